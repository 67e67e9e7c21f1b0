"""Records the calls that a trainer of TRL makes of its `tools` and of its environments, where it makes them.

What is relied on (trl 0.26 to 1.16), and what is lost without it:
    trainer._sync_tool_dicts, ._async_tool_dicts     (rows) tools by name, of each row: its tool calls (from 0.29 on)
    trainer._sync_tool_dict, ._async_tool_dict, ._tool_dict    tools by name, of all rows: the same, before 0.29
    environment.reset(), .get_reward(), of the class           both calls
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from logs_ui.recorder.capture.environment_call import method_call, recorded_function
from logs_ui.recorder.capture.instruments.patch import patches
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard

_DICTS = ("_sync_tool_dicts", "_async_tool_dicts", "_sync_tool_dict", "_async_tool_dict", "_tool_dict")
_MARK = "__logs_ui_recorded__"

players: list[Callable[[Any, str], Strand | None]] = []
"""Each returns the strand of an environment's "reset" or "reward"; None if the environment does not play for it, or if
the call is not part of a rollout."""


@contextmanager
def recorded_tools(trainer: Any) -> Iterator[None]:
    """Record the tool calls of the trainer in the block, each in its row."""
    originals = {name: vars(trainer)[name] for name in _DICTS if name in vars(trainer)}
    with guard("preparing to record tools"):
        for name, tools in originals.items():
            is_by_row = isinstance(tools, list)
            recorded = (
                [_Tools(functions, row) for row, functions in enumerate(tools)] if is_by_row else _Tools(tools, None)
            )
            setattr(trainer, name, recorded)
    try:
        yield
    finally:
        for name, tools in originals.items():
            setattr(trainer, name, tools)


class _Tools(dict[str, Any]):
    """Tools by name, which are recorded when they are called; `row` is None if they serve several rows."""

    def __init__(self, tools: dict[str, Any], row: int | None) -> None:
        super().__init__(tools)
        self._row = row

    def __getitem__(self, name: str) -> Any:
        tool = super().__getitem__(name)
        environment = getattr(tool, "__self__", None)

        def around(*args: Any, **kwargs: Any) -> Any:
            here = current_strand()
            strand = here if here is None or self._row is None else here.tree.child(here, row=self._row)
            return method_call(strand, environment, "tool", name, args, kwargs)

        return recorded_function(tool, around)


def record_class(kind: type) -> None:
    """Record `reset` and `get_reward` of those instances of a class that play for one of the `players`.

    TRL compares `get_reward` by exact type, and so may the user: the class itself is changed, and no class is added.
    """
    for kind_of_call, name in (("reset", "reset"), ("reward", "get_reward")):
        function = getattr(kind, name, None)
        if inspect.isfunction(function) and not hasattr(function, _MARK):
            replacement = recorded_function(function, functools.partial(_around, kind_of_call, name))
            setattr(replacement, _MARK, True)
            patches.own_or_inherited(kind, name, replacement)


def _around(kind: str, name: str, environment: Any, /, *args: Any, **kwargs: Any) -> Any:
    strand: Strand | None = None
    with guard("finding the row of an environment"):
        here = current_strand()
        # A tool may be called `get_reward`, and an override may call what it overrides: one call is recorded once.
        is_part = here is not None and here.call is not None
        strands = (player(environment, kind) for player in tuple(players) if not is_part)
        strand = next((strand for strand in strands if strand is not None), None)
    if strand is None:
        return nullcontext(lambda result: result)
    return method_call(strand, environment, kind, name, args, kwargs)
