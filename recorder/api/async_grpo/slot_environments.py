"""Records the environments of AsyncGRPO's loop.

The loop resets an environment for each rollout before the rollout begins, and calls its `get_reward` after it ended.
Both calls belong to the rollout. Its tools are recorded where the loop calls them: see `rollout_loop.py`.

TRL compares `get_reward` by exact type. So each class gets one subclass of the same name, whose `reset` and
`get_reward` are recorded, and the `__class__` of each environment is set to it, as in `record_environment()`.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from logs_ui.recorder.capture.environment_call import method_call, recorded_function
from logs_ui.recorder.capture.instruments.quiet_subclass import quiet_subclass
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard


class RolloutEnvironments:
    """Records the environments of one loop."""

    def __init__(self, strand_of: Callable[[Any, str], Strand | None], rewarded: Callable[[Any], None]) -> None:
        """`strand_of` returns the strand for the loop's "reset" or "reward" of an environment; None records nothing.
        `rewarded` is called after the loop's `get_reward` of an environment.
        """
        self._strand_of, self._rewarded = strand_of, rewarded
        self._kinds: dict[type, type] = {}  # recorded class by original class

    def watch(self, loop: Any) -> None:
        """Record the environments that the loop has, and those that it will make."""
        factories = getattr(loop, "environment_factories", None)
        if not factories:
            return
        loop.environment_factories = {name: functools.partial(self._made, make) for name, make in factories.items()}
        for environment in itertools.chain(*loop._environment_pool.values()):  # noqa: SLF001 - see rollout_loop.py
            self._record(environment)
        owned = getattr(loop, "_env_reward_types", [])
        owned[:] = [self._kinds.get(kind, kind) for kind in owned]

    def _made(self, factory: Callable[[], Any]) -> Any:
        environment = factory()
        self._record(environment)
        return environment

    def _record(self, environment: Any) -> None:
        kind = type(environment)
        if kind in self._kinds.values():
            return
        with guard("preparing to record an environment"):
            recorded = self._kinds.get(kind) or self._recorded(kind)
            # object's own __setattr__: a user's class may forbid it.
            object.__setattr__(environment, "__class__", recorded)
            self._kinds[kind] = recorded  # only after it worked: TRL must find all of a class under one type

    def _recorded(self, kind: type) -> type:
        """Return a recorded subclass; raise a TypeError if none can be made."""
        methods = {name: inspect.getattr_static(kind, name, None) for name in ("reset", "get_reward")}
        recorded = {
            name: recorded_function(method, functools.partial(self._call, name))
            for name, method in methods.items()
            if inspect.isfunction(method)
        }
        return quiet_subclass(kind, recorded)

    @contextmanager
    def _call(self, name: str, environment: Any, /, *args: Any, **kwargs: Any) -> Iterator[Callable[[Any], Any]]:
        """Record a call in the rollout that it belongs to: in the running one if one of its tools makes the call."""
        is_the_loops = current_strand() is None
        try:
            strand_of = self._strand_of if is_the_loops else lambda *_: None
            kind = "reset" if name == "reset" else "reward"
            with method_call(environment, kind, name, args, kwargs, strand_of) as came_back:
                yield came_back
        finally:
            if is_the_loops and name == "get_reward":
                self._rewarded(environment)
