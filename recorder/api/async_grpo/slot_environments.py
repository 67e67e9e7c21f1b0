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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall, recorded_function
from logs_ui.recorder.capture.instruments.quiet_subclass import quiet_subclass
from logs_ui.recorder.capture.strands import Strand, current_strand, within
from logs_ui.recorder.guard import guard

ResetIn = Callable[[Any], Strand | None]
Rewarded = Callable[[Any], tuple[Strand, Callable[[], None]] | None]
CameBack = Callable[[Any], Any]

_GET_REWARD: dict[str, Any] = {"name": "get_reward", "arguments": {}}


class RolloutEnvironments:
    """Records the environments of one loop."""

    def __init__(self, reset_in: ResetIn, rewarded: Rewarded) -> None:
        """
        Args:
            reset_in: Returns the strand to record the loop's reset of an environment in; None records nothing.
            rewarded: Returns the strand for the loop's `get_reward`, and a function to call after it returned.
        """
        self._reset_in, self._rewarded = reset_in, rewarded
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
        """
        Raises:
            TypeError: no subclass of it can be made.
        """
        methods = {name: inspect.getattr_static(kind, name, None) for name in ("reset", "get_reward")}
        arounds = {"reset": self._reset, "get_reward": self._reward}
        recorded = {
            name: recorded_function(method, arounds[name])
            for name, method in methods.items()
            if inspect.isfunction(method)
        }
        return quiet_subclass(kind, recorded)

    @contextmanager
    def _reset(self, environment: Any, /, *args: Any, **kwargs: Any) -> Iterator[CameBack]:
        """Record a reset in the rollout that it prepares, or in the running rollout if one of its tools resets."""
        scope: AbstractContextManager[Any] = nullcontext()
        with guard("finding the rollout of a reset"):
            strand = None if current_strand() is not None else self._reset_in(environment)
            scope = nullcontext() if strand is None else within(strand)

        def sent() -> Any:
            return {"args": list(args), **kwargs} if args else kwargs  # TRL passes everything by name

        with scope, RecordedCall("reset", environment, sent, Answer) as came_back:
            yield came_back

    @contextmanager
    def _reward(self, environment: Any, /) -> Iterator[CameBack]:
        scope: AbstractContextManager[Any] = nullcontext()
        answered: Callable[[], None] | None = None
        with guard("finding the rollout of a reward"):
            asked = None if current_strand() is not None else self._rewarded(environment)
            if asked is not None:
                scope, answered = within(asked[0]), asked[1]
        try:
            with scope, RecordedCall("reward", environment, lambda: _GET_REWARD, _reward_of) as came_back:
                yield came_back
        finally:
            if answered is not None:
                answered()


def _reward_of(result: Any) -> Answer:
    return Answer(None, reward=result)
