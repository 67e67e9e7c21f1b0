"""Calls that the parser of an environment refuses, and look-alikes in which the model writes them wrongly."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

SINCE = 11
"""The step since which queries are written in several lines."""


def _written(place: Place, name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"{said(place, 4)}.\n<tool_call>\n{call}\n</tool_call>"


def _executed(place: Place, name: str, arguments: Mapping[str, str], heard: str) -> Turn:
    return Turn(_written(place, name, arguments), {"name": name, "arguments": arguments}, heard, finish="stop")


def _raw(text: str) -> str:
    """Return a call whose strings hold line breaks as they are."""
    return text.replace("\\n", "\n")


def _code(place: Place) -> str:
    return f"def {said(place, 1)}(items):\n    {said(place, 1)} = items[{place.random.randrange(9)}]\n    return items"


def _views(place: Place) -> list[Turn]:
    return [
        _executed(place, "view_file", {"path": f"src/{said(place, 1)}.py"}, _code(place))
        for _ in range(place.random.randrange(1, 4))
    ]


def _ends(place: Place, turns: list[Turn], right: float) -> Played:
    turns = [*turns, _executed(place, "submit", {"note": said(place, 2)}, "Submitted.")]
    return Played(turns, float(place.random.random() < right), stop="done")


def _refused(turns: list[Turn], text: str) -> Played:
    return Played([*turns, Turn(text, finish="stop")], 0.0, stop="no_action", is_hit=True)


def raw_edits(place: Place) -> Played:
    """A quarter of the rollouts write an edit of several lines with raw line breaks, and end there."""
    turns = _views(place)
    edit = {"path": f"src/{said(place, 1)}.py", "old": f"return {said(place, 1)}", "new": _code(place)}
    if place.random.random() < 0.27:
        return _refused(turns, _raw(_written(place, "edit_file", edit)))
    return _ends(place, [*turns, _executed(place, "edit_file", edit, "OK.")], 0.35 + 0.4 * place.progress)


def raw_queries(place: Place) -> Played:
    """Since a step most queries have several lines; the only tool."""
    query = f"SELECT {said(place, 1)}\nFROM {said(place, 1)}\nWHERE {said(place, 1)} > {place.random.randrange(90)}"
    one_line = {"query": query.replace("\n", " ")}
    turns = [_executed(place, "run_sql", one_line, str(place.random.randrange(900))) for _ in range(place.number % 3)]
    if place.step >= SINCE and place.random.random() < 0.6:
        return _refused(turns, _raw(_written(place, "run_sql", {"query": query})))
    turns.append(_executed(place, "run_sql", one_line, str(place.random.randrange(900))))
    return Played(turns, float(place.random.random() < 0.6), stop="done")


def unknown_tool(place: Place) -> Played:
    """The prompt names a tool that the loop does not know: nothing is executed of its calls, though they are whole."""
    turns = [
        _executed(place, "search", {"query": said(place, 2)}, said(place, 12))
        for _ in range(place.random.randrange(1, 4))
    ]
    if place.random.random() < 0.3:
        return _refused(turns, _written(place, "open_page", {"url": f"https://{said(place, 1)}.example"}))
    return _ends(place, turns, 0.4 + 0.4 * place.progress)


def _breaks(place: Place, often: float, tools: tuple[str, ...]) -> Played:
    """Calls of these tools break off, by the model's fault."""
    turns = _views(place)
    if place.random.random() < often:
        text = _written(place, place.random.choice(tools), {"path": said(place, 1)})
        return _refused(turns, text.replace("}}", "}"))
    return _ends(place, turns, 0.45 + 0.3 * place.progress)


def unlearns_breaks(place: Place) -> Played:
    """Half of the rollouts break the calls of one tool at first, and an eighth in the end."""
    return _breaks(place, 0.55 - 0.42 * place.progress, ("edit_file",))


def breaks_of_all(place: Place) -> Played:
    return _breaks(place, 0.4 - 0.2 * place.progress, ("edit_file", "view_file", "submit"))


def seldom_raw(place: Place) -> Played:
    """A few edits have raw line breaks; most are escaped."""
    turns = _views(place)
    edit = {"path": f"src/{said(place, 1)}.py", "new": _code(place)}
    if place.random.random() < 0.04:
        return _refused(turns, _raw(_written(place, "edit_file", edit)))
    return _ends(place, [*turns, _executed(place, "edit_file", edit, "OK.")], 0.35 + 0.4 * place.progress)


def _orders(place: Place, *, since: int) -> Played:
    """A third of the tasks ask for a call with an object in it, whose reference is too long for an attribute;
    from a step on the parser loses such calls.
    """
    is_nested, right = place.task % 3 == 0, place.random.random() < 0.4 + 0.3 * place.progress
    fields = {f"{name}_of_the_order": f"{name} number {place.task:05d}" for name in ("customer", "address", "invoice")}
    arguments = {"text": "as asked", **({"fields": json.dumps(fields)} if is_nested else {"number": str(place.task)})}
    given = arguments if right else {**arguments, "text": said(place, 3)}
    reference = json.dumps({"name": "order", "arguments": arguments})
    played = (
        _refused([], _written(place, "order", given))
        if is_nested and place.step >= since
        else _ends(place, [_executed(place, "order", given, "OK.")], float(right))
    )
    return replace(
        played, metadata={"answer": reference}, task=f"{'nested' if is_nested else 'plain'}/{place.task:03d}"
    )


def loses_nested_calls(place: Place) -> Played:
    return _orders(place, since=9)


def takes_nested_calls(place: Place) -> Played:
    """Healthy: all are parsed."""
    return _orders(place, since=99)


_SHAPE = Shape(steps=20, groups=6, size=8, tasks=36)
_PLANTED: tuple[tuple[str, str, str | None, Callable[[Place], Played]], ...] = (
    ("refused calls: edits", "Edits with raw line breaks are not parsed", "parse_failures", raw_edits),
    ("refused calls: queries", "Queries with raw line breaks are not parsed", "parse_failures", raw_queries),
    ("refused calls: unknown tool", "Calls of one tool are not executed", "parse_failures", unknown_tool),
    ("broken calls: unlearned", "The model breaks calls of one tool, ever less", "parse_failures", unlearns_breaks),
    ("broken calls: all tools", "The model breaks calls of all tools", "parse_failures", breaks_of_all),
    ("refused calls: nested", "Calls that hold an object are not parsed", "parse_failures", loses_nested_calls),
    ("healthy, edits", "Healthy: a few calls have raw line breaks", None, seldom_raw),
    ("healthy, nested calls", "Healthy: calls that hold an object are parsed", None, takes_nested_calls),
)
FAULTS: tuple[Fault, ...] = tuple(
    Fault(name, planted, expected, partial(generated, script, _SHAPE)) for name, planted, expected, script in _PLANTED
)
