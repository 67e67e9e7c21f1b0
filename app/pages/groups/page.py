"""Shows the groups of a run: a summary, a table, and live updates."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.groups import charts as group_charts
from logs_ui.app.pages.groups.choice import GroupChoice, choice_of
from logs_ui.app.parts import figures
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.diagnoses import success_of
from logs_ui.app.parts.filter_form import checked_filter, mended, repaired
from logs_ui.app.parts.step_stacks import StepStack
from logs_ui.app.parts.waiting_page import WAIT, until_counted
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import DEAD, Count, Cursor, Group, Kind, RunSummary, Survey
from logs_ui.recorder.queries.filters.chips import FilterPart, filter_parts
from logs_ui.recorder.queries.filters.language import WHERE
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, print_where
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

PAGE_SIZE = 50
KINDS: Final = (Kind.MIXED, Kind.SAME_OUTCOME, Kind.PASSED, Kind.LEVEL, Kind.FAILED, Kind.UNSCORED)
"""The kinds in the order of the chart, from bottom to top."""

_POLLED_LINES = 100  # of a page that are looked at again, at most, while they are unfinished
_OWN_PARAMETERS = ("sort", "kind", "after", "newest", "seen", "open", "follow", WAIT)

router = APIRouter()


class GroupLine(NamedTuple):
    """Describes a group: the strip of its rewards; ids of best and worst rollout, None with fewer than two rewards."""

    group: Group
    strip: group_charts.Strip
    ends: tuple[int, int] | None


class GroupLines(NamedTuple):
    """Holds some lines of the table, and the address of the following ones; None at the end."""

    lines: list[GroupLine]
    next: str | None


class Overview(NamedTuple):
    """Holds the summary above the table."""

    survey: Survey
    counts: list[tuple[Kind, int]]  # number of groups of each kind, in the order of the chart
    dead: int  # number of groups with zero variance
    solved: str  # the definition of solved, in words
    stacks: list[StepStack]  # by step; empty for fewer than two steps

    @property
    def steps(self) -> str:
        """Return the steps that were read, in words."""
        return figures.steps(self.survey.step_min or 0, self.survey.step_max or 0)

    @property
    def scored(self) -> int:
        """Return the number of groups with at least two rewards."""
        return sum(count for kind, count in self.counts if kind != Kind.UNSCORED)

    @property
    def dead_share(self) -> float | None:
        """Share of the scored groups; None without any."""
        return self.dead / self.scored if self.scored else None


@dataclass(frozen=True)
class GroupsLive:
    """Fills the live corner of the table."""

    newest: int  # highest id of a rollout when the page was made; groups with a higher first id are new
    version: str
    new_count: Count
    address: str
    poll_seconds: int | None  # seconds between two polls; None if nothing is to come


@dataclass(frozen=True)
class GroupsPage:
    """Context of `groups/groups.html` and `groups/_groups.html`."""

    summary: RunSummary
    chosen: RolloutFilter
    where: str  # the filter as text; as it was written if it is wrong
    chips: list[FilterPart]
    choice: GroupChoice
    modes: list[tuple[str, str, bool]]  # (text, address, is chosen) of each mode, and of all, if the run has several
    overview: Overview
    rows: GroupLines
    is_first: bool  # True if the lines start at the beginning of the table
    live: GroupsLive
    mistake: FilterError | None  # the error in the filter; `chosen` is then the filter without the wrong part
    correction: str | None  # address of the filter that was probably meant; None without a mistake or a guess


@dataclass(frozen=True)
class MoreGroupsPage:
    """Context of `groups/_more_groups.html`: the lines that follow."""

    summary: RunSummary
    chosen: RolloutFilter
    rows: GroupLines


@dataclass(frozen=True)
class LiveGroupsPage:
    """Context of `groups/_groups_live.html`: changed lines, or the whole first page if the table follows new groups."""

    summary: RunSummary
    chosen: RolloutFilter
    choice: GroupChoice
    overview: Overview
    rows: GroupLines
    follows: bool
    live: GroupsLive


@router.get("/runs/{run_reference}/groups")
def groups(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Show the table, a further page of it, or the error in the filter."""
    with source.reading_run(run_reference) as (db, run):
        pairs = request.query_params.multi_items()
        cursor_text = request.query_params.get("after")
        try:
            choice = choice_of(pairs)
            chosen = checked_filter(db, run, _filter_pairs(pairs))
            after = urls.parse_cursor(cursor_text) if cursor_text else None
        except FilterError as mistake:
            filter_pairs = _filter_pairs(pairs)
            page = _page(
                db, run, repaired(filter_pairs, mistake), GroupChoice(), None, pairs=filter_pairs, mistake=mistake
            )
            return htmx.render(request, "groups/groups.html", page, fragments=("groups",), status=422, address="false")
        address = _address(run, chosen, choice, after)
        if htmx.target(request) == "more":
            summary = queries.run_summary(db, id_of(run))
            rows = _rows(db, run, chosen, choice, after, None)
            return htmx.fragment(request, "groups/_more_groups.html", MoreGroupsPage(summary, chosen, rows))
        if htmx.target(request) is None and run_reference != run.uid:
            return RedirectResponse(address, 303)
        if (frame := until_counted(request, db, run, "groups", queries.survey)) is not None:
            return frame
        page = _page(db, run, chosen, choice, after)
        return htmx.render(request, "groups/groups.html", page, fragments=("groups",), address=address)


@router.get("/runs/{run_reference}/groups/live")
def live(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Return what changed since the table was made; 204 if nothing did."""
    with source.reading_run(run_reference) as (db, run):
        pairs = request.query_params.multi_items()
        choice = choice_of(pairs)
        chosen = checked_filter(db, run, _filter_pairs(pairs))
        newest = urls.parse_whole(request.query_params.get("newest", "0"))
        follows = "follow" in request.query_params and not choice.needs_survey
        summary = queries.run_summary(db, id_of(run))
        corner = _live(db, summary, chosen, choice, None if follows else newest)
        seen_version = request.query_params.get("seen", "")
        if corner.version == seen_version and corner.newest == newest:
            return htmx.nothing_new()
        if follows:
            rows = _rows(db, run, chosen, choice, None, None)
        else:
            unfinished = [urls.parse_whole(value) for name, value in pairs if name == "open"][:_POLLED_LINES]
            rows = GroupLines(_changed_lines(db, run, unfinished, seen_version, corner.version), None)
        page = LiveGroupsPage(
            summary=summary,
            chosen=chosen,
            choice=choice,
            overview=_overview(
                db, run, rested(db, id_of(run), queries.survey, chosen, success_of(db, run).marks), chosen, choice
            ),
            rows=rows,
            follows=follows,
            live=corner,
        )
        return htmx.fragment(request, "groups/_groups_live.html", page)


def _page(
    db: Connection, run: Run, chosen: RolloutFilter, choice: GroupChoice, after: Cursor | None, *,
    pairs: urls.Pairs | None = None, mistake: FilterError | None = None,
) -> GroupsPage:  # fmt: skip
    survey = rested(db, id_of(run), queries.survey, chosen, success_of(db, run).marks)
    summary = queries.run_summary(db, id_of(run))
    corner = _live(db, summary, chosen, choice, None)
    return GroupsPage(
        summary=summary,
        chosen=chosen,
        where=dict(pairs or []).get(WHERE, print_where(chosen)),
        chips=filter_parts(chosen),
        choice=choice,
        modes=_modes(db, run, chosen, choice),
        overview=_overview(db, run, survey, chosen, choice),
        rows=_rows(db, run, chosen, choice, after, survey),
        is_first=after is None,
        # News would take the place of what is to be mended.
        live=replace(corner, poll_seconds=None) if mistake else corner,
        mistake=mistake,
        correction=urls.with_query(urls.groups(run.uid), mended_pairs)
        if mistake and (mended_pairs := mended(pairs or [], mistake))
        else None,
    )


def _modes(db: Connection, run: Run, chosen: RolloutFilter, choice: GroupChoice) -> list[tuple[str, str, bool]]:
    modes = dict.fromkeys(series.mode for series in rested(db, id_of(run), queries.step_series))
    if len(modes) < 2:
        return []
    choices: list[tuple[str, tuple[str, ...]]] = [("all", ()), *((mode, (mode,)) for mode in modes)]
    return [
        (text, _address(run, chosen.with_parts(modes=mode_words), choice), chosen.words("mode") == mode_words)
        for text, mode_words in choices
    ]


def _filter_pairs(pairs: urls.Pairs) -> urls.Pairs:
    return [(name, value) for name, value in pairs if name not in _OWN_PARAMETERS]


def _address(run: Run, chosen: RolloutFilter, choice: GroupChoice, after: Cursor | None = None) -> str:
    return urls.groups(run.uid, chosen, sort=choice.sort, kind=choice.kind, after=after)


def _overview(db: Connection, run: Run, survey: Survey, chosen: RolloutFilter, choice: GroupChoice) -> Overview:
    counts = Counter(tally.kind for tally in survey.tallies)
    address = partial(urls.groups_where, run.uid, chosen, sort=choice.sort, kind=choice.kind)
    stacks = group_charts.stacks(survey.tallies, KINDS, address)
    return Overview(
        survey=survey,
        counts=[(kind, counts[kind]) for kind in KINDS],
        dead=sum(counts[kind] for kind in DEAD),
        solved=success_of(db, run).description,
        stacks=stacks if len(stacks) > 1 else [],
    )


def _rows(
    db: Connection, run: Run, chosen: RolloutFilter, choice: GroupChoice, after: Cursor | None,
    survey: Survey | None,
) -> GroupLines:  # fmt: skip
    run_id, marks = id_of(run), success_of(db, run).marks
    if choice.needs_survey:
        whole_survey = survey or rested(db, run_id, queries.survey, chosen, marks)
        page = queries.surveyed_groups(
            db, run_id, whole_survey, marks, choice.sort, choice.kinds, after=after, limit=PAGE_SIZE
        )
    else:
        below = None if after is None else after.id
        page = queries.newest_groups(db, run_id, chosen, marks, after=below, limit=PAGE_SIZE)
    following = _address(run, chosen, choice, page.next) if page.next else None
    return GroupLines(_lines(db, run, page.groups), following)


def _lines(db: Connection, run: Run, groups: list[Group]) -> list[GroupLine]:
    scale = Scale.over(queries.reward_ends(db, id_of(run)))
    return [GroupLine(group, group_charts.strip(group.rewards, group.mean, scale), _ends(group)) for group in groups]


def _ends(group: Group) -> tuple[int, int] | None:
    scored = [(member.reward, -member.generation, member.id) for member in group.members if member.reward is not None]
    return (max(scored)[2], min(scored)[2]) if len(scored) > 1 else None


def _live(
    db: Connection, summary: RunSummary, chosen: RolloutFilter, choice: GroupChoice, newest: int | None
) -> GroupsLive:
    """Build the live corner. `newest` is None if the page is being made now."""
    run, run_id = summary.run, id_of(summary.run)
    new_count = Count(0, exact=True)
    if newest is None:
        top = queries.page(db, run_id, chosen, limit=1).rows
        newest = top[0].id or 0 if top else 0
    else:
        new_count = queries.new_groups(db, run_id, chosen, newest)
    version = f"{run.changed}.{summary.state}"
    address = urls.groups_live(run.uid, chosen, sort=choice.sort, kind=choice.kind, newest=newest, seen=version)
    poll_seconds: dict[Any, int] = {RunState.RUNNING.value: 3, "died": 10}
    return GroupsLive(newest, version, new_count, address, poll_seconds.get(summary.state))


def _changed_lines(db: Connection, run: Run, ids: list[int], seen_version: str, version: str) -> list[GroupLine]:
    """Return the lines that may have changed since the last poll: a new state of the run changes running groups."""
    change, _, state = seen_version.partition(".")
    groups = queries.groups_of_rows(db, id_of(run), ids, success_of(db, run).marks)
    is_same = state == version.partition(".")[2]
    return _lines(db, run, [group for group in groups if not is_same or group.changed > urls.parse_whole(change)])
