"""Builds the addresses of all pages. A filter is part of its page's address, in its shortest form.

Behind a proxy that serves the dashboard under a path, every address begins with that path: see `under`.
"""

import math
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Cursor, RunFilter
from logs_ui.recorder.queries.filters.language import FINDING, WHERE
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_where, print_filter
from logs_ui.recorder.queries.filters.terms import Range, Term

Pairs = list[tuple[str, str]]

LONGEST = 8_000
"""Characters of a filter in an address: proxies accept no more, and a page has hundreds of addresses."""

FIRST, LAST = 7_000_000_000_000_001, 7_000_000_000_000_002
"""Placeholders for steps in an address that a script fills in."""

_ALL = RolloutFilter()
_prefix: ContextVar[str] = ContextVar("prefix", default="")
_order: ContextVar[tuple[str, str]] = ContextVar("order", default=("", ""))
_view: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("view", default=())
_runs_view: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("runs_view", default=())


def under(prefix: str) -> None:
    """Set the path that the addresses of this request begin with; it begins with a slash and ends without."""
    _prefix.set(prefix)


def home(seen: str = "") -> str:
    """Return the address of the list of runs."""
    return with_query("/", [("seen", seen)] if seen else [])


def runs(chosen: RunFilter | None = None, *, after: Cursor | None = None, view: Pairs | None = None) -> str:
    """Return the address of the matching runs, or of the page that starts after a cursor; `view` replaces the columns,
    order and groups of this request.
    """
    place = [("after", print_cursor(after))] if after else []
    view_pairs = _runs_view.get() if view is None else view
    return with_query("/", [*run_filter(chosen or RunFilter()), *view_pairs, *place])


def listing_runs(view: Pairs) -> None:
    """Make the addresses of the list of runs keep its columns, order and groups in this request."""
    _runs_view.set(tuple(view))


def runs_where(chosen: RunFilter, **parts: Any) -> str:
    """Return the address of the list with some parts of its filter changed."""
    return runs(replace(chosen, **parts))


def runs_of(**parts: Any) -> str:
    """Return the address of the runs with a tag, or of a project."""
    return runs(RunFilter(**parts))


def runs_live(chosen: RunFilter, newest: int, seen: str) -> str:
    """Return the address of the list's live updates."""
    return with_query("/live", [*run_filter(chosen), *_runs_view.get(), ("newest", str(newest)), ("seen", seen)])


def tag_runs(chosen: RunFilter) -> str:
    """Return the address that tags the selected runs and returns to the list."""
    return with_query("/tags", [*run_filter(chosen), *_runs_view.get()])


def compare_runs(runs: Iterable[str] = (), pairs: Iterable[tuple[str, str]] = ()) -> str:
    """Return the address of the comparison of several runs."""
    return with_query("/compare", [*(("run", uid) for uid in runs), *pairs])


def source(digest: str) -> str:
    """Return the address of a source text as plain text."""
    return at(f"/sources/{_segment(digest)}")


def of_run(run_uid: str, *parts: str | int) -> str:
    """Return the address, without parameters, of a part of a run: `of_run(uid, "rollouts", 3, "notes")`."""
    return at("/".join(["/runs", *(_segment(str(part)) for part in (run_uid, *parts))]))


def at(path: str) -> str:
    """Put the proxy's path in front of a path."""
    return _prefix.get() + path


def with_default_columns(run_uid: str, chosen: RolloutFilter) -> str:
    """Return the address of the same rollouts with the default columns; forget those that were chosen."""
    view = [pair for pair in view_parameters() if pair[0] != "cols"]
    return with_query(f"/runs/{_segment(run_uid)}", [*filter_parameters(chosen), *view, ("choose", "1")])


@lru_cache(maxsize=256)
def filter_parameters(chosen: RolloutFilter) -> tuple[tuple[str, str], ...]:
    """Return filter and order as names and values of a form. Cached: a page has a hundred addresses with the same."""
    return tuple(print_filter(chosen))


def showing(view: Pairs) -> None:
    """Make the rollout addresses of this request keep its view: see `view.py`."""
    _view.set(tuple(view))


def view_parameters() -> Pairs:
    """Return the view of this request."""
    return list(_view.get())


def rollouts(
    run_uid: str, chosen: RolloutFilter | None = None, *, after: Cursor | None = None, at: int = 0, find: str = "",
    view: Pairs | None = None,
) -> str:  # fmt: skip
    """Return the address of a run's rollouts, from a cursor on if given, or at the row with the id `at`; `find`
    searches the names of its tasks, and `view` replaces this request's view.
    """
    pairs = [*filter_parameters(chosen)] if chosen else []
    place = [("after", print_cursor(after))] if after else [("at", str(at))] if at else []
    place += [("find", find)] if find else []
    return with_query(f"/runs/{_segment(run_uid)}", [*pairs, *(view_parameters() if view is None else view), *place])


def rollouts_said(run_uid: str, pairs: Pairs) -> str:
    """Return the address of the rollouts of a filter given as parameters, valid or not."""
    return with_query(f"/runs/{_segment(run_uid)}", [*pairs, *view_parameters()])


def rollouts_where(run_uid: str, **parts: Any) -> str:
    """Return the address of a run's rollouts that have something in common; `terms` are for what has no own part."""
    terms: tuple[Term, ...] = parts.pop("terms", ())
    return rollouts(run_uid, _change_filter(_ALL, tuple(parts.items())).with_terms(*terms))


def matching(run_uid: str, where: str) -> str | None:
    """Return the address of the rollouts of a run that match a line of the filter language, or of `finding:ID`; None
    if the line is too long for one, or the language cannot express it: a card's filter may name a value that is no
    name, or come from the user's own diagnostic.
    """
    if where.startswith(f"{FINDING}:"):
        return rollouts_said(run_uid, [(WHERE, where)])
    try:
        return rollouts(run_uid, _parsed(where)) if len(where) <= LONGEST else None
    except FilterError:
        return None


_parsed = lru_cache(maxsize=512)(parse_where)  # a page has hundreds of filters, and shows them again


def tagged(run_uid: str, tag: str) -> str:
    """Return the address of the rollouts of a run with a tag."""
    return rollouts(run_uid, RolloutFilter(terms=[Term("tag", (tag,))]))


def narrowed(run_uid: str, chosen: RolloutFilter, **parts: Any) -> str:
    """Return the address of the same filter with some parts changed."""
    return rollouts(run_uid, _change_filter(chosen, tuple(parts.items())))


@lru_cache(maxsize=512)
def _change_filter(chosen: RolloutFilter, parts: tuple[tuple[str, Any], ...]) -> RolloutFilter:
    """Cache the address, because lines of a table that share a task or a step have the same one."""
    changes = dict(parts)
    return replace(chosen, sort=changes.pop("sort", chosen.sort)).with_parts(**changes)


def of_rewards(run_uid: str, chosen: RolloutFilter, low: float | None, high: float | None) -> str:
    """Return the address of the same filter with rewards from `low` to below `high`."""
    ends = [] if low is None and high is None else [Term("reward", (Range(low, high, below=True),))]
    return rollouts(run_uid, chosen.without("reward").with_terms(*ends))


def live(run_uid: str, chosen: RolloutFilter, since_id: int, seen: str) -> str:
    """Return the address of the table's live updates."""
    extra = [("newest", str(since_id)), ("seen", seen)]
    return with_query(f"/runs/{_segment(run_uid)}/live", [*filter_parameters(chosen), *view_parameters(), *extra])


def rollout(
    run_uid: str, row_id: int, chosen: RolloutFilter | None = None, **parameters: str | int | Sequence[str]
) -> str:
    """Return the address of one rollout, within a filter. `parameters` are the page's, such as `view`; what is
    empty, and the view "timeline", is left out.
    """
    pairs = [
        (name, str(value) if isinstance(value, str | int) else ",".join(value))
        for name, value in parameters.items()
        if value
    ]
    shown_pairs = [pair for pair in pairs if pair != ("view", "timeline")]
    return with_query(
        f"/runs/{_segment(run_uid)}/rollouts/{row_id}", [*(filter_parameters(chosen) if chosen else ()), *shown_pairs]
    )


def overview(run_uid: str, *, mode: str = "", eval_name: str = "", search: str = "", seen: str = "") -> str:
    """Return the address of a run's overview, for one series of rollouts, or filtered by `search`."""
    parameters = (("mode", mode), ("eval", eval_name), ("q", search), ("seen", seen))
    return with_query(f"/runs/{_segment(run_uid)}/overview", [(name, value) for name, value in parameters if value])


def why(run_uid: str, *page: str, **parameters: Any) -> str:
    """Return the address of a run's diagnosis, or of one of its pages; `parameters` select steps, task, ... None and
    "" are left out.
    """
    pairs = [(name, str(value)) for name, value in parameters.items() if value not in {None, ""}]
    return with_query("/".join([f"/runs/{_segment(run_uid)}/why", *page]), pairs)


def step_table(run_uid: str, chart: str, mode: str, eval_name: str) -> str:
    """Return the address of an overview's chart as a table."""
    pairs = [("of", chart), ("mode", mode), ("eval", eval_name)]
    return with_query(f"/runs/{_segment(run_uid)}/overview/steps", pairs)


def preview(run_uid: str, mode: str, eval_name: str) -> str:
    """Return the address of a preview of some steps' rollouts, with FIRST and LAST in place of the steps."""
    pairs = [("mode", mode), ("eval", eval_name), ("step_min", str(FIRST)), ("step_max", str(LAST))]
    return with_query(f"/runs/{_segment(run_uid)}/overview/preview", pairs)


def groups(
    run_uid: str, chosen: RolloutFilter | None = None, *, sort: str = "", kind: str = "", after: Cursor | None = None
) -> str:
    """Return the address of the groups with a rollout that matches a filter; the filter's own order does not apply."""
    return with_query(f"/runs/{_segment(run_uid)}/groups", _of_groups(chosen, sort, kind, after))


def groups_where(run_uid: str, chosen: RolloutFilter, *, sort: str = "", kind: str = "", **parts: Any) -> str:
    """Return the address of the groups of the same filter with some parts changed."""
    return groups(run_uid, _change_filter(chosen, tuple(parts.items())), sort=sort, kind=kind)


@lru_cache(maxsize=512)  # each line of a table leads to several of these
def filter_pairs(chosen: RolloutFilter) -> tuple[tuple[str, str], ...]:
    """Return a filter without its order as names and values of a form."""
    return tuple(print_filter(replace(chosen, sort=Sort.NEWEST)))


def groups_live(run_uid: str, chosen: RolloutFilter, *, sort: str, kind: str, newest: int, seen: str) -> str:
    """Return the address of the live updates of the groups."""
    pairs = [*_of_groups(chosen, sort, kind, None), ("newest", str(newest)), ("seen", seen)]
    return with_query(f"/runs/{_segment(run_uid)}/groups/live", pairs)


def ordering(sort: str, kind: str) -> None:
    """Make the addresses of single groups in this request keep an order and a kind."""
    _order.set((sort, kind))


def groups_in_order(run_uid: str, chosen: RolloutFilter) -> str:
    """Return the address of the groups in this request's order."""
    sort, kind = _order.get()
    return groups(run_uid, chosen, sort=sort, kind=kind)


def group(run_uid: str, row: int, chosen: RolloutFilter | None = None, *, seen: str = "") -> str:
    """Return the address of the group that contains a rollout, within a filter."""
    pairs = _of_groups(chosen, *_order.get(), None)
    return with_query(f"/runs/{_segment(run_uid)}/groups/{row}", [*pairs, *([("seen", seen)] if seen else [])])


def compare_rollouts(run_uid: str, a: int, b: int, chosen: RolloutFilter | None = None) -> str:
    """Return the address that compares two rollouts, `a` of this run, `b` of any; within a filter of this run."""
    pairs = filter_parameters(chosen) if chosen else ()
    return with_query(f"/runs/{_segment(run_uid)}/compare", [*pairs, ("a", str(a)), ("b", str(b))])


def export(run_uid: str, chosen: RolloutFilter, format: str) -> str:  # noqa: A002
    """Return the address that starts an export; it knows the way back."""
    return with_query(
        f"/runs/{_segment(run_uid)}/exports", [*filter_parameters(chosen), *view_parameters(), ("format", format)]
    )


def exported(run_uid: str, job: str, parameters: Pairs, *, do: str = "") -> str:
    """Return the address of an export's progress, or with "/cancel" that cancels it and returns to its rollouts;
    `parameters` are those of the filter.
    """
    return with_query(f"/runs/{_segment(run_uid)}/exports/{_segment(job)}{do}", [*parameters, *view_parameters()])


def text(run_uid: str, row: int, part: str) -> str:
    """Return the address of one text of a rollout as plain text."""
    return of_run(run_uid, "rollouts", row, "text", part)


def image(image_hash: str) -> str:
    """Return the address of an image of an observation."""
    return at(f"/images/{_segment(image_hash)}")


def with_query(path: str, pairs: Iterable[tuple[str, str]]) -> str:
    query = urlencode(list(pairs), quote_via=quote, safe=":/,")
    return at(f"{path}?{query}" if query else path)


def run_filter(chosen: RunFilter) -> Pairs:
    """Return a filter of runs as names and values of a form, or of an address."""
    return [
        *([("q", " ".join(chosen.words))] if chosen.words else []),
        *(("state", state) for state in chosen.states),
        *(("tag", tag) for tag in chosen.tags),
        *([("starred", "1")] if chosen.starred else []),
        *(("project", project) for project in chosen.projects),
    ]


def _of_groups(chosen: RolloutFilter | None, sort: str, kind: str, after: Cursor | None) -> Pairs:
    pairs = filter_pairs(chosen) if chosen else ()
    parameters = (
        ("sort", "" if sort == "newest" else sort),
        ("kind", kind),
        ("after", print_cursor(after) if after else ""),
    )
    return [*pairs, *((name, str(value)) for name, value in parameters if value)]


def print_cursor(cursor: Cursor) -> str:
    key = f"text:{cursor.key}" if isinstance(cursor.key, str) else repr(cursor.key)
    return f"{'none' if cursor.key is None else key}~{cursor.id}"


def parse_cursor(written: str) -> Cursor:
    """Read a cursor. Raise FilterError."""
    key, _, row = written.rpartition("~")
    of_text = key.removeprefix("text:") if key.startswith("text:") else None
    try:
        cursor = Cursor(of_text if of_text is not None or key == "none" else _number(key), int(_number(f"{int(row)}")))
    except ValueError:
        message = f"after {written[:40]!r} is not a position in the table: start at its first page"
        raise FilterError("after", message) from None
    return cursor


def parse_whole(written: str) -> int:
    """Read a number from one of our own addresses; 0 for anything else, and for numbers that no database can store."""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 19 else 0


def _number(written: str) -> float | int:
    """Read a number; an integer stays one, since ids and token counts are compared as such."""
    value: float | int
    try:
        value = int(written)
    except ValueError:
        value = float(written)
    if math.isnan(value) or (isinstance(value, int) and not -(2**63) <= value < 2**63):  # no database holds these
        raise ValueError(written)
    return value


def _segment(value: str) -> str:
    return quote(value, safe="")
