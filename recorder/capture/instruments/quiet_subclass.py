"""A subclass that nothing of the user's is told of: neither `__init_subclass__` nor a metaclass, which may keep lists
of classes, runs for it, and pickle takes its instances for those of the class itself.
"""

import abc
import copyreg
import functools
from collections.abc import Mapping
from typing import Any, cast

_MARK = "__logs_ui_recorded__"


def is_quiet_subclass(kind: type) -> bool:
    """Whether `quiet_subclass` made it."""
    return _MARK in vars(kind)


def quiet_subclass(kind: type, members: Mapping[str, Any]) -> type:
    """A class under the name of `kind`, of the same layout: an instance of the one can become the other's.

    Raises:
        TypeError: it cannot be derived from.
    """
    # With slots of its own, or a dict, it would be of another layout.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__slots__": ()}
    metaclass = _quiet(type(kind))
    # Not by a call, which the metaclass would hear of. What it gave to `kind` is inherited.
    make = abc.ABCMeta if issubclass(metaclass, abc.ABCMeta) else type
    made: type = make.__new__(metaclass, kind.__name__, (kind,), {**members, **names, _MARK: True})
    return made


class _Untold:
    """Stands before a class whose `__init_subclass__` is not to run."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """Tells nobody."""


@functools.cache
def _quiet(metaclass: type) -> Any:
    """The metaclass, for quiet subclasses of its classes."""

    def mro(cls: type) -> list[type]:
        own, *others = super(quiet, cls).mro()
        others = [one for one in others if one is not _Untold]  # the user's own subclass of one
        return [own, _Untold, *others] if is_quiet_subclass(own) else [own, *others]

    quiet: Any = type.__new__(type(metaclass), metaclass.__name__, (metaclass,), {"mro": mro})
    copyreg.pickle(quiet, _pickled)
    return quiet


def _pickled(kind: type) -> Any:
    """A quiet subclass as what it stands in for, any other class by its own name."""
    return (cast, (object, kind.__bases__[0])) if is_quiet_subclass(kind) else kind.__qualname__
