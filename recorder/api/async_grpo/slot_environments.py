"""Records the environments of AsyncGRPO's loop.

The loop resets an environment for each rollout before the rollout begins, and calls its `get_reward` after it ended.
Both calls belong to the rollout. Its tools are recorded where the loop calls them: see `rollout_loop.py`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from logs_ui.recorder.capture.instruments.trl_tools import players, record_class
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard


def record_environments(loop: Any, strand_of: Callable[[Any, str], Strand | None]) -> None:
    """Record the environments that the loop has, and those that it will make. `strand_of` returns the strand for the
    loop's "reset" or "reward" of an environment; None records nothing.
    """
    factories = getattr(loop, "environment_factories", None)
    if not factories:
        return
    environments: dict[int, Any] = {}  # which keeps them alive, so that an id stays its own

    def adopt(environment: Any) -> Any:
        environments[id(environment)] = environment
        with guard("preparing to record an environment"):
            record_class(type(environment))
        return environment

    def strand(environment: Any, kind: str) -> Strand | None:
        # In the running rollout if one of its tools makes the call.
        return (current_strand() or strand_of(environment, kind)) if id(environment) in environments else None

    players.append(strand)
    loop.environment_factories = {name: functools.partial(_made, make, adopt) for name, make in factories.items()}
    for environment in itertools.chain(*loop._environment_pool.values()):  # noqa: SLF001 - see rollout_loop.py
        adopt(environment)


def _made(factory: Callable[[], Any], adopt: Callable[[Any], Any]) -> Any:
    return adopt(factory())
