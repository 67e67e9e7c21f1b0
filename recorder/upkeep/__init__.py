"""Maintains databases: frees space (`prune`, `delete_run`, `vacuum`), reports (`look_at`, `check`), copies runs
(`merge`), reads damaged files (`recover`) and migrates schemas (`migrate_database`). A training may record meanwhile,
unless a function says otherwise.
"""

from logs_ui.recorder.upkeep.delete import delete_run
from logs_ui.recorder.upkeep.info import look_at
from logs_ui.recorder.upkeep.integrity_check import check
from logs_ui.recorder.upkeep.merge import merge
from logs_ui.recorder.upkeep.migrate import migrate_database
from logs_ui.recorder.upkeep.prune import prune
from logs_ui.recorder.upkeep.recover import recover
from logs_ui.recorder.upkeep.vacuum import vacuum

__all__ = ["check", "delete_run", "look_at", "merge", "migrate_database", "prune", "recover", "vacuum"]
