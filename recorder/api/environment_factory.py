"""Makes the environments of a trainer, or of a loop of AsyncGRPO, and records them."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

from logs_ui.recorder.api.trainer_run import Recordings
from logs_ui.recorder.capture.instruments import trl
from logs_ui.recorder.capture.instruments.trl_tools import players, record_class
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard


class Factory:
    """Makes recorded environments. A copy that is pickled to another process makes unrecorded ones there."""

    def __init__(self, make: Callable[[], Any], recordings: Recordings | None, key: str | None) -> None:
        functools.update_wrapper(self, make, updated=())
        self.make = make
        self.key = key  # in the dict of factories; None if it is the only one
        self.recordings = recordings
        self._made: set[int] = set()  # ids of the environments that are alive
        self._kept: list[Any] = []
        _factories.add(self)

    def __call__(self) -> Any:
        return self.adopt(self.make())

    def __reduce__(self) -> Any:
        return cast, (object, self.make)  # which returns `make` itself

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the factory, such as a constant of the environment's class."""
        if name == "make" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.make, name)

    def adopt(self, environment: Any) -> Any:
        """Record the environment from now on, and return it."""
        try:
            # Before TRL 1.8 a trainer keeps only its environments, and not their factory: it is found by these ids. The
            # bound method keeps the factory alive for as long as one of its environments lives.
            weakref.finalize(environment, self._forget, id(environment))
        except TypeError:  # a class with __slots__ may lack __weakref__: it is kept alive, so that its id stays its own
            self._kept.append(environment)
        self._made.add(id(environment))
        with guard("preparing to record an environment"):
            record_class(type(environment))
        return environment

    def has_made(self, environment: Any) -> bool:
        """Return True if this factory made or adopted the environment."""
        return id(environment) in self._made

    def _forget(self, number: int) -> None:
        self._made.discard(number)


_factories: "weakref.WeakSet[Factory]" = weakref.WeakSet()


def record_environments(owner: Any, recordings: Recordings | None) -> bool:
    """Record the environments that a trainer, or a loop of AsyncGRPO, has or will make. Return False if it has none."""
    factories = getattr(owner, "environment_factories", None)
    if factories:
        owner.environment_factories = {key: Factory(make, recordings, key) for key, make in factories.items()}
        for key, pool in getattr(owner, "_environment_pool", {}).items():
            for environment in pool:
                owner.environment_factories[key].adopt(environment)
        return True
    environments = trl.environments(owner)  # before TRL 1.8
    for factory in [Factory(type(environments[0]), recordings, None)] if environments else ():
        for environment in environments:
            factory.adopt(environment)
    return bool(environments)


def factory_of(trainer: Any) -> Factory | None:
    """Return the first factory whose environments the trainer plays in; None without a recorded one."""
    factories = getattr(trainer, "environment_factories", None) or {}  # before TRL 1.8 it does not keep them
    in_trainer = [factory for factory in factories.values() if isinstance(factory, Factory)]
    first = trl.environments(trainer)[:1]
    return next(iter(in_trainer or [factory for factory in _factories if any(map(factory.has_made, first))]), None)


def environment_name(environment: Any) -> str:
    """Return the key of the environment's factory; the name of its class if the factory has none."""
    keys = (factory.key for factory in tuple(_factories) if factory.key is not None and factory.has_made(environment))
    return str(next(keys, type(environment).__name__))


def _strand(environment: Any, kind: str) -> Strand | None:
    """Return the strand of a call that a trainer makes; None if it is not part of a rollout."""
    trainer, row = trl.place_of(environment) or (None, None)
    # The environment's own reward is the rollout's, also where TRL asks for it among the reward functions.
    here = trl.scoring(trainer) or current_strand() if kind == "reward" else current_strand()
    if trainer is None or here is None:
        return None
    return here if row is None else here.tree.child(here, row=row)


players.append(_strand)
