"""What a database needs now and then: room (`prune`, `delete_run`, `vacuum`), a look at it (`look_at`, `check`), other
databases' runs (`merge`) and newer schemas (`migrate_database`). None of it holds up a training that records meanwhile,
but for those that say so and refuse.
"""

from logs_ui.recorder.upkeep.check import check
from logs_ui.recorder.upkeep.delete import delete_run
from logs_ui.recorder.upkeep.info import look_at
from logs_ui.recorder.upkeep.merge import merge
from logs_ui.recorder.upkeep.migrate import migrate_database
from logs_ui.recorder.upkeep.prune import prune
from logs_ui.recorder.upkeep.vacuum import vacuum

__all__ = ["check", "delete_run", "look_at", "merge", "migrate_database", "prune", "vacuum"]
