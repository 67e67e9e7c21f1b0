"""Addresses of the pages. A filter is part of its page's address, in its shortest form.

Behind a proxy that serves the dashboard under a path of its own, every address begins with that path: `under`.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Cursor, RunFilter
from logs_ui.recorder.queries.filters.filter_fields import Is
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, print_filter
from logs_ui.recorder.queries.filters.terms import Range, Term

Pairs = list[tuple[str, str]]

FIRST, LAST = 7_000_000_000_000_001, 7_000_000_000_000_002
"""Stand for steps in an address that a script fills in."""

_ALL = RolloutFilter()
_prefix: ContextVar[str] = ContextVar("prefix", default="")
_order: ContextVar[tuple[str, str]] = ContextVar("order", default=("", ""))
_view: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("view", default=())


def under(prefix: str) -> None:
    """Makes the addresses of this request begin with a path, which begins with a slash and ends without."""
    _prefix.set(prefix)


def home(seen: str = "") -> str:
    """The list of runs."""
    return with_query("/", [("seen", seen)] if seen else [])


def runs(chosen: RunFilter | None = None, *, after: Cursor | None = None) -> str:
    """Those runs of the list that are wanted, or the page of them that begins after a cursor."""
    place = [("after", print_cursor(after))] if after else []
    return with_query("/", [*_run_filter(chosen or RunFilter()), *place])


def runs_where(chosen: RunFilter, **parts: Any) -> str:
    """The same runs with some parts of what is wanted set anew."""
    return runs(replace(chosen, **parts))


def runs_tagged(tag: str) -> str:
    """The runs that have a tag."""
    return runs(RunFilter(tags=(tag,)))


def runs_of(project: str) -> str:
    """The runs of a project."""
    return runs(RunFilter(projects=(project,)))


def runs_live(chosen: RunFilter, newest: int, seen: str) -> str:
    """What has become new beside the list of runs."""
    return with_query("/live", [*_run_filter(chosen), ("newest", str(newest)), ("seen", seen)])


def tag_runs(chosen: RunFilter) -> str:
    """Where tags of the ticked runs are written to; from there back to the same runs."""
    return with_query("/tags", _run_filter(chosen))


def compare_runs(runs: Iterable[str] = (), pairs: Iterable[tuple[str, str]] = ()) -> str:
    """Several runs side by side."""
    return with_query("/compare", [*(("run", uid) for uid in runs), *pairs])


def source(digest: str) -> str:
    """A text that a run is made of, by itself and whole."""
    return at(f"/sources/{_segment(digest)}")


def at(path: str) -> str:
    """A path of ours as the browser has to ask for it."""
    return _prefix.get() + path


def said(chosen: RolloutFilter) -> Pairs:
    """A filter and its order as the hidden fields of a form."""
    return print_filter(chosen)


def with_default_columns(run: str, chosen: RolloutFilter) -> str:
    """The same rollouts, with the columns of who chose none; forgets those that were."""
    view = [pair for pair in shown() if pair[0] != "cols"]
    return with_query(f"/runs/{_segment(run)}", [*print_filter(chosen), *view, ("choose", "1")])


@lru_cache(maxsize=256)
def _said(chosen: RolloutFilter) -> tuple[tuple[str, str], ...]:
    """A page has a hundred addresses of the same filter."""
    return tuple(print_filter(chosen))


def showing(view: Pairs) -> None:
    """Makes the addresses of rollouts, in this request, show them as its own does: see `view.py`."""
    _view.set(tuple(view))


def shown() -> Pairs:
    """How this request shows rollouts."""
    return list(_view.get())


def rollouts(
    run: str, chosen: RolloutFilter | None = None, *, after: Cursor | None = None, view: Pairs | None = None
) -> str:
    """The rollouts of a run, or the page of them that begins after a cursor; `view` in place of this request's own."""
    pairs = [*_said(chosen)] if chosen else []
    place = [("after", print_cursor(after))] if after else []
    return with_query(f"/runs/{_segment(run)}", [*pairs, *(shown() if view is None else view), *place])


def rollouts_said(run: str, pairs: Pairs) -> str:
    """The rollouts of a run by what stands for a filter in an address, right or wrong."""
    return with_query(f"/runs/{_segment(run)}", [*pairs, *shown()])


def rollouts_where(run: str, **parts: Any) -> str:
    """The rollouts of a run that have one thing in common."""
    return narrowed(run, _ALL, **parts)


def tagged(run: str, tag: str) -> str:
    """The rollouts of a run that have a tag."""
    return rollouts(run, RolloutFilter(terms=[Term("tag", (tag,))]))


def starred(run: str) -> str:
    """The rollouts of a run that somebody starred."""
    return rollouts(run, RolloutFilter(terms=[Term("is", (Is.STARRED,))]))


def noted(run: str) -> str:
    """The rollouts of a run that somebody wrote a note on."""
    return rollouts(run, RolloutFilter(terms=[Term("note", (None,), negated=True)]))


def narrowed(run: str, chosen: RolloutFilter, **parts: Any) -> str:
    """The same filter with some parts set anew."""
    return rollouts(run, _changed(chosen, tuple(parts.items())))


@lru_cache(maxsize=512)
def _changed(chosen: RolloutFilter, parts: tuple[tuple[str, Any], ...]) -> RolloutFilter:
    """Lines of a table that have a task, a step, ... in common lead to the same."""
    changes = dict(parts)
    return replace(chosen, sort=changes.pop("sort", chosen.sort)).with_parts(**changes)


def of_rewards(run: str, chosen: RolloutFilter, low: float | None, high: float | None) -> str:
    """The same filter with its rewards from `low` up to, and without, `high`."""
    ends = [] if low is None and high is None else [Term("reward", (Range(low, high, below=True),))]
    return rollouts(run, chosen.without("reward").with_terms(*ends))


def suggestions(run: str) -> str:
    """What could be written in a filter."""
    return at(f"/runs/{_segment(run)}/suggestions")


def live(run: str, chosen: RolloutFilter, since_id: int, seen: str) -> str:
    """What has become new beside a page of rollouts."""
    extra = [("newest", str(since_id)), ("seen", seen)]
    return with_query(f"/runs/{_segment(run)}/live", [*print_filter(chosen), *shown(), *extra])


def rollout(run: str, row: int, chosen: RolloutFilter | None = None, *, view: str = "timeline", seen: str = "") -> str:
    """One rollout, seen from within a filter."""
    pairs = [*_said(chosen)] if chosen else []
    if view != "timeline":
        pairs.append(("view", view))
    return with_query(f"/runs/{_segment(run)}/rollouts/{row}", [*pairs, *([("seen", seen)] if seen else [])])


def overview(run: str, *, mode: str = "", eval_name: str = "", search: str = "", seen: str = "") -> str:
    """What a run is and how it goes, of one kind of its rollouts, or what of it holds `search`."""
    found = (("mode", mode), ("eval", eval_name), ("q", search), ("seen", seen))
    return with_query(f"/runs/{_segment(run)}/overview", [(name, value) for name, value in found if value])


def why(run: str, **given: Any) -> str:
    """Why the rewards of a run are low; `given`: which steps, task, ... it is about. None and "" are left out."""
    return _why(run, "", given)


def why_settings(run: str) -> str:
    """Where what the diagnosis holds a run against is written to."""
    return at(f"/runs/{_segment(run)}/why/settings")


def why_short(run: str) -> str:
    """The same in short, as the overview has it."""
    return _why(run, "/short", {})


def why_fresh(run: str, **given: Any) -> str:
    """Whether a run has gone on since a page beside Why was made."""
    return _why(run, "/fresh", given)


def why_tasks(run: str, **given: Any) -> str:
    """Its rewards by task and step."""
    return _why(run, "/tasks", given)


def why_rewards(run: str, **given: Any) -> str:
    """Its reward functions against each other."""
    return _why(run, "/rewards", given)


def why_actions(run: str, **given: Any) -> str:
    """What its rollouts did in their environments."""
    return _why(run, "/actions", given)


def why_trained(run: str, **given: Any) -> str:
    """Which of its rollouts moved the policy."""
    return _why(run, "/trained", given)


def _why(run: str, page: str, given: Mapping[str, Any]) -> str:
    pairs = [(name, str(value)) for name, value in given.items() if value not in {None, ""}]
    return with_query(f"/runs/{_segment(run)}/why{page}", pairs)


def step_table(run: str, chart: str, mode: str, eval_name: str) -> str:
    """One of an overview's charts as a table."""
    pairs = [("of", chart), ("mode", mode), ("eval", eval_name)]
    return with_query(f"/runs/{_segment(run)}/overview/steps", pairs)


def preview(run: str, mode: str, eval_name: str) -> str:
    """A few rollouts of some steps, which FIRST and LAST stand for."""
    pairs = [("mode", mode), ("eval", eval_name), ("step_min", str(FIRST)), ("step_max", str(LAST))]
    return with_query(f"/runs/{_segment(run)}/overview/preview", pairs)


def groups(
    run: str, chosen: RolloutFilter | None = None, *, sort: str = "", kind: str = "", after: Cursor | None = None
) -> str:
    """The groups of a run in which rollouts of a filter are; its own order takes no part in theirs."""
    return with_query(f"/runs/{_segment(run)}/groups", _of_groups(chosen, sort, kind, after))


def groups_where(run: str, chosen: RolloutFilter, **parts: Any) -> str:
    """The groups of the same filter with some parts set anew."""
    return groups(run, _changed(chosen, tuple(parts.items())))


def groups_of_steps(
    run: str, chosen: RolloutFilter, step_min: int, step_max: int, *, sort: str = "", kind: str = ""
) -> str:
    """The groups of the same filter, of these steps alone."""
    return groups(run, chosen.with_parts(step_min=step_min, step_max=step_max), sort=sort, kind=kind)


@lru_cache(maxsize=512)  # each line of a table leads to several of these
def filter_pairs(chosen: RolloutFilter) -> tuple[tuple[str, str], ...]:
    """A filter, less its order, as the names and values of a form."""
    return tuple(print_filter(replace(chosen, sort=Sort.NEWEST)))


def groups_live(run: str, chosen: RolloutFilter, *, sort: str, kind: str, newest: int, seen: str) -> str:
    """What has become new beside a page of groups."""
    pairs = [*_of_groups(chosen, sort, kind, None), ("newest", str(newest)), ("seen", seen)]
    return with_query(f"/runs/{_segment(run)}/groups/live", pairs)


def ordering(sort: str, kind: str) -> None:
    """Makes the addresses of single groups, in this request, follow an order of groups, and one kind of them."""
    _order.set((sort, kind))


def groups_in_order(run: str, chosen: RolloutFilter) -> str:
    """The groups as this request has them."""
    sort, kind = _order.get()
    return groups(run, chosen, sort=sort, kind=kind)


def group(run: str, row: int, chosen: RolloutFilter | None = None, *, seen: str = "") -> str:
    """The completions of the group that a rollout is in, seen from within a filter."""
    pairs = _of_groups(chosen, *_order.get(), None)
    return with_query(f"/runs/{_segment(run)}/groups/{row}", [*pairs, *([("seen", seen)] if seen else [])])


def column(run: str, row: int) -> str:
    """One completion of a group, as its column shows it."""
    return at(f"/runs/{_segment(run)}/groups/{row}/column")


def compare_rollouts_form(run: str) -> str:
    """Where a form that names two rollouts leads."""
    return at(f"/runs/{_segment(run)}/compare")


def compare_rollouts(run: str, a: int, b: int, chosen: RolloutFilter | None = None) -> str:
    """Two rollouts beside each other, `a` of this run, `b` of any; seen from within a filter of this run."""
    pairs = _said(chosen) if chosen else ()
    return with_query(f"/runs/{_segment(run)}/compare", [*pairs, ("a", str(a)), ("b", str(b))])


def export(run: str, chosen: RolloutFilter, format: str) -> str:  # noqa: A002
    """Where a file of a filter's rollouts is asked for; it knows the way back."""
    return with_query(f"/runs/{_segment(run)}/exports", [*_said(chosen), *shown(), ("format", format)])


def exported(run: str, job: str, said: Pairs) -> str:
    """How far a file is, of the filter that `said` stands for."""
    return with_query(f"/runs/{_segment(run)}/exports/{_segment(job)}", [*said, *shown()])


def exported_file(run: str, job: str) -> str:
    """A file that is ready."""
    return at(f"/runs/{_segment(run)}/exports/{_segment(job)}/file")


def export_cancel(run: str, job: str, said: Pairs) -> str:
    """Where a file is given up; from there back to its rollouts."""
    return with_query(f"/runs/{_segment(run)}/exports/{_segment(job)}/cancel", [*said, *shown()])


def text(run: str, row: int, part: str) -> str:
    """One text of a rollout, by itself and whole."""
    return at(f"/runs/{_segment(run)}/rollouts/{row}/text/{_segment(part)}")


def rollout_notes(run: str, row: int) -> str:
    """Where a star, a tag or a note on a rollout is written to."""
    return at(f"/runs/{_segment(run)}/rollouts/{row}/notes")


def run_notes(run: str) -> str:
    """Where those on a run are written to."""
    return at(f"/runs/{_segment(run)}/notes")


def image(image_hash: str) -> str:
    """An image of any observation."""
    return at(f"/images/{_segment(image_hash)}")


def with_query(path: str, pairs: Iterable[tuple[str, str]]) -> str:
    query = urlencode(list(pairs), quote_via=quote, safe=":/,")
    return at(f"{path}?{query}" if query else path)


def _run_filter(chosen: RunFilter) -> Pairs:
    return [
        *([("q", " ".join(chosen.words))] if chosen.words else []),
        *(("state", state) for state in chosen.states),
        *(("tag", tag) for tag in chosen.tags),
        *([("starred", "1")] if chosen.starred else []),
        *(("project", project) for project in chosen.projects),
    ]


def _of_groups(chosen: RolloutFilter | None, sort: str, kind: str, after: Cursor | None) -> Pairs:
    pairs = filter_pairs(chosen) if chosen else ()
    own = (("sort", "" if sort == "newest" else sort), ("kind", kind), ("after", print_cursor(after) if after else ""))
    return [*pairs, *((name, str(value)) for name, value in own if value)]


def print_cursor(cursor: Cursor) -> str:
    return f"{'none' if cursor.key is None else repr(cursor.key)}~{cursor.id}"


def parse_cursor(written: str) -> Cursor:
    """Raises FilterError."""
    key, _, row = written.partition("~")
    try:
        cursor = Cursor(None if key == "none" else _number(key), int(_number(row)))
    except ValueError:
        message = f"after {written[:40]!r} is not a place in the table: begin with its first page"
        raise FilterError("after", message) from None
    return cursor


def parse_whole(written: str) -> int:
    """A number that one of our own addresses holds; 0 of anything else, and of what no database holds."""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 19 else 0


def _number(written: str) -> float | int:
    """An integer stays one: ids and token counts are compared as such."""
    value: float | int
    try:
        value = int(written)
    except ValueError:
        value = float(written)
    if not -(2**63) <= value < 2**63:  # neither NaN nor what a database cannot hold
        raise ValueError(written)
    return value


def _segment(value: str) -> str:
    return quote(value, safe="")
