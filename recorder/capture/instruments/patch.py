"""Replaces methods of other libraries' classes, once, and restores them."""

import functools
from collections.abc import Callable
from typing import Any

import wrapt

from logs_ui.recorder.guard import guard

Method = Callable[..., Any]

_MARK = "__logs_ui_original__"
_INHERITED = object()


class Patches:
    """Methods that were replaced, and can be restored."""

    def __init__(self) -> None:
        self._undo: list[tuple[type, str, Any]] = []
        self._era = object()  # a new one at each undo

    def method(self, owner: type, name: str, make: Callable[[Method], Method]) -> None:
        """Replace `owner.name` by `make(original)`, unless that was done before or `owner` does not define it. What is
        no method, such as a mock of one, is not given `self`, and stays.
        """
        original: Any = owner.__dict__.get(name)
        if not hasattr(original, "__get__") or hasattr(original, _MARK):
            return
        replacement = make(original)
        setattr(replacement, _MARK, original)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original))

    def own_or_inherited(self, owner: type, name: str, replacement: Method) -> None:
        """Give the class a method in the place of its own or an inherited one; the class it inherits from keeps its."""
        self._undo.append((owner, name, owner.__dict__.get(name, _INHERITED)))
        type.__setattr__(owner, name, replacement)  # a metaclass may forbid it

    def when_imported(self, module: str, attach: Callable[[Any], object]) -> None:
        """Call `attach(module)` now or right after its import, unless `undo` is called before. This imports nothing."""
        era = self._era

        def attach_unless_undone(imported: Any) -> None:
            if self._era is era:
                with guard(f"attaching to {module}"):
                    attach(imported)

        wrapt.register_post_import_hook(attach_unless_undone, module)

    def undo(self) -> None:
        """Restore every method, the last replaced first, and cancel what waits for an import."""
        self._era = object()
        while self._undo:
            owner, name, original = self._undo.pop()
            if original is _INHERITED:
                type.__delattr__(owner, name)
            else:
                type.__setattr__(owner, name, original)


patches = Patches()
"""The patches of this process."""


def patch(around: Method) -> Callable[[Method], Method]:
    """Return a `make` for `Patches.method`: each call becomes `around(original, *args, **kwargs)`."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        return replacement

    return make
