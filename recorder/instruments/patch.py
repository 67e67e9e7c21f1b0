"""Replaces methods on other people's classes, once, and puts them back."""

from collections.abc import Callable
from typing import Any

import wrapt

_MARK = "__logs_ui_original__"


class Patches:
    """Methods that were replaced, and can be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[type, str, Any]] = []

    def method(self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces `owner.name` by `make(original)`, unless that was done before or `owner` does not define it."""
        original = owner.__dict__.get(name)
        if original is None or hasattr(original, _MARK):
            return
        replacement = make(original)
        setattr(replacement, _MARK, original)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original))

    def when_imported(self, module: str, attach: Callable[[Any], None]) -> None:
        """Calls `attach(module)` now if it is imported already, else right after its import. Imports nothing."""
        wrapt.register_post_import_hook(attach, module)

    def undo(self) -> None:
        """Puts every method back, last replaced first."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)


patches = Patches()
"""The process's own."""
