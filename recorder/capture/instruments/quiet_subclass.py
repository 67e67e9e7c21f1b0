"""Creates a subclass without triggering `__init_subclass__` or the metaclass, which may keep lists of classes.

pickle stores its instances as instances of the class itself.
"""

import abc
import copyreg
import functools
from collections.abc import Mapping
from typing import Any, cast

_MARK = "__logs_ui_recorded__"


def is_quiet_subclass(kind: type) -> bool:
    """Return True if `quiet_subclass` made it."""
    return _MARK in vars(kind)


def quiet_subclass(kind: type, members: Mapping[str, Any]) -> type:
    """Make a subclass with the name and the layout of `kind`, so that `__class__` of an instance can be set to it.

    Raises:
        TypeError: no subclass of it can be made.
    """
    # With slots or a dict of its own it would have another layout.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__slots__": ()}
    metaclass = _quiet(type(kind))
    # Calling the metaclass would run its __init__. What that did to `kind` is inherited.
    make = abc.ABCMeta if issubclass(metaclass, abc.ABCMeta) else type
    made: type = make.__new__(metaclass, kind.__name__, (kind,), {**members, **names, _MARK: True})
    return made


class _Silent:
    """Comes before a class whose `__init_subclass__` must not run in the method resolution order."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """Does not call super()."""


@functools.cache
def _quiet(metaclass: type) -> Any:
    """Return a subclass of the metaclass, for quiet subclasses of its classes."""

    def mro(cls: type) -> list[type]:
        first, *others = super(quiet, cls).mro()
        others = [one for one in others if one is not _Silent]  # it is there if the user derived from a quiet subclass
        return [first, _Silent, *others] if is_quiet_subclass(first) else [first, *others]

    quiet: Any = type.__new__(type(metaclass), metaclass.__name__, (metaclass,), {"mro": mro})
    # A quiet subclass is pickled as the class that it was made from, any other class by its own name.
    copyreg.pickle(
        quiet, lambda kind: (cast, (object, kind.__bases__[0])) if _MARK in vars(kind) else kind.__qualname__
    )
    return quiet
