"""Shows one group: the completions of one prompt side by side, highest reward first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.groups import charts as group_charts
from logs_ui.app.pages.groups.best_and_worst import Lens, lens_of
from logs_ui.app.pages.groups.charts import Strip
from logs_ui.app.pages.groups.choice import GroupChoice, choice_of
from logs_ui.app.parts import timeline, turns, words
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.diagnoses import success_of
from logs_ui.app.parts.divergence import find_divergence
from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.reward_parts import RewardPart, reward_parts
from logs_ui.app.parts.timeline import Card
from logs_ui.app.parts.turns import Turn
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of, storable
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import settings_of
from logs_ui.recorder.analysis.rollout_answers import read_answers
from logs_ui.recorder.diagnosis.answers import Answer, Told
from logs_ui.recorder.queries import Kind, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Status

OPENED = 8
"""Number of columns whose turns are sent with the page; the others are loaded when they are scrolled to."""

_OWN_PARAMETERS = ("seen", "column", "open", "whole", "sort", "kind")
_MOST_OPENED = 64

router = APIRouter()


class CompletionColumn(NamedTuple):
    """Describes one completion of the group."""

    row: EvaluationRow
    parts: list[RewardPart]
    turns: list[Turn] | None  # None if they are not loaded yet
    # The turn at which it diverges from the best; for the best, the first at which any loaded one diverges. None if
    # there is none, or it is not loaded.
    divergence: int | None
    # First and last turn of what is left out; empty if the reader asked for the whole completion.
    gaps: list[tuple[int, int]]
    is_best: bool  # True for the first of those that have a reward


@dataclass(frozen=True)
class GroupPage:
    """Context of `groups/group.html` and `groups/_group.html`."""

    summary: RunSummary
    chosen: RolloutFilter
    first_id: int  # id of its first rollout, which is in its address
    columns: list[CompletionColumn]
    prompt: list[Card]  # messages of the prompt, from the rollout `prompt_row`; empty ones are left out
    prompt_row: EvaluationRow
    is_one_prompt: bool  # True if all were sent the same
    best_id: int | None  # id of the one with the highest reward; None without rewards
    kind: Kind
    # `mean` and `std`: mean and standard deviation of the rewards; None for fewer than one, or two.
    mean: float | None
    std: float | None
    strip: Strip
    scale: Scale  # scale of the reward functions' bars
    pair: tuple[int, int] | None  # ids of the best and the worst; None if fewer than two have a reward
    # `newer_id` and `older_id`: ids of the next groups in the order, kind and filter of the address; None at the ends.
    newer_id: int | None
    older_id: int | None
    answers: dict[int, Answer]  # by id; empty unless one of them has a reference
    reference: Told | None  # None unless all have the same
    lens: Lens | None  # comparison of best and worst; None without a pair, and if one of them has no turns
    refresh: str | None  # address to poll while the group is not settled; None if nothing is to come


@dataclass(frozen=True)
class ColumnPage:
    """Context of `groups/_column.html`: the turns of one completion."""

    summary: RunSummary
    column: CompletionColumn


@router.get("/runs/{run_reference}/groups/{row_id}")
def group(request: Request, source: SourceOfPages, run_reference: str, row_id: int) -> Response:
    """Show the group that contains a rollout."""
    pairs = request.query_params.multi_items()
    with source.reading_run(run_reference) as (db, run):
        rows = queries.group_rows(db, id_of(run), storable(row_id))
        chosen = checked_filter(db, run, [pair for pair in pairs if pair[0] not in _OWN_PARAMETERS])
        choice = choice_of(pairs)
        first_id = min(row.id or 0 for row in rows)
        if htmx.target(request) is None and (run_reference != run.uid or row_id != first_id):
            return RedirectResponse(urls.group(run.uid, first_id, chosen), 303)
        summary = queries.run_summary(db, id_of(run))
        if htmx.target(request) == "group" and request.query_params.get("seen") == _seen(rows, summary):
            return htmx.nothing_new()
        order, open_ids, whole_ids = (_parse_numbers(pairs, name) for name in ("column", "open", "whole"))
        # In the order in which the page shows them, so that none moves under the reader; new ones come last.
        places = {row_id: place for place, row_id in enumerate(order)}
        rows.sort(key=lambda row: places.get(row.id or 0, len(places)))
        page = _page(db, summary, rows, chosen, choice, open_ids, whole_ids)
    return htmx.render(request, "groups/group.html", page, fragments=("group",))


@router.get("/runs/{run_reference}/groups/{row_id}/column")
def column(request: Request, source: SourceOfPages, run_reference: str, row_id: int, whole: int = 0) -> Response:
    """Return the turns of one completion, for its column; `whole` is its id if none is to be left out."""
    with source.reading_run(run_reference) as (db, run):
        rows = queries.group_rows(db, id_of(run), storable(row_id))
        timelines = _read_timelines(db, id_of(run), [rows[0].id or 0, row_id])
        summary = queries.run_summary(db, id_of(run))
    turns_by_id = {timeline_id: turns.turns_of(cards) for timeline_id, cards in timelines.items()}
    (completion,) = (candidate for candidate in _make_columns(rows, turns_by_id, [whole]) if candidate.row.id == row_id)
    return htmx.fragment(request, "groups/_column.html", ColumnPage(summary, completion))


def _page(
    db: Connection, summary: RunSummary, rows: list[EvaluationRow], chosen: RolloutFilter, choice: GroupChoice,
    open_ids: Sequence[int], whole_ids: Sequence[int],
) -> GroupPage:  # fmt: skip
    run, run_id = summary.run, id_of(summary.run)
    ids = [row.id or 0 for row in rows]
    scored = [row for row in sorted(rows, key=queries.by_reward) if row.reward is not None]
    pair = (scored[0].id or 0, scored[-1].id or 0) if len(scored) > 1 else None
    timelines = _read_timelines(
        db, run_id, [*ids[:OPENED], *(row_id for row_id in open_ids if row_id in ids), *(pair or ())]
    )
    turns_by_id = {row_id: turns.turns_of(cards) for row_id, cards in timelines.items()}
    shown_ids = {*ids[:OPENED], *open_ids}
    columns = _make_columns(
        rows, {row_id: row_turns for row_id, row_turns in turns_by_id.items() if row_id in shown_ids}, whole_ids
    )
    prompt_row = next((row for row in rows if timelines.get(row.id or 0)), rows[0])
    rewards = [row.reward for row in rows if row.reward is not None]
    marks = success_of(db, run).marks
    if choice.needs_survey:
        survey = rested(db, run_id, queries.survey, chosen, marks)
        newer_id, older_id = queries.beside_in_survey(
            db, run_id, survey, marks, choice.sort, choice.kinds, rows[0].group
        )
    else:
        newer_id, older_id = queries.beside(db, run_id, chosen, rows)
    group = queries.groups_of_rows(db, run_id, ids[:1], marks)[0]
    answers = read_answers(db, rows, settings_of(db, run))
    references = {answer.reference for answer in answers.values()}
    return GroupPage(
        summary=summary,
        chosen=chosen,
        first_id=min(ids),
        columns=columns,
        prompt=[
            card for card in turns.prompt_of(timelines.get(prompt_row.id or 0, [])) if card.content or card.pictures
        ],
        prompt_row=prompt_row,
        is_one_prompt=is_one_prompt(rows),
        best_id=scored[0].id if scored else None,
        kind=group.kind,
        mean=group.mean,
        std=group.std,
        strip=group_charts.strip(rewards, group.mean, Scale.over(queries.reward_ends(db, run_id))),
        scale=Scale.over([part.worth for column in columns for part in column.parts if part.worth is not None]),
        pair=pair,
        newer_id=newer_id,
        older_id=older_id,
        answers=answers if references - {None} else {},
        reference=next(iter(references)) if len(references) == 1 else None,
        lens=lens_of(summary, scored, turns_by_id, group.kind),
        refresh=_refresh(run, rows, summary, chosen, min(ids)),
    )


def is_one_prompt(rows: Sequence[EvaluationRow]) -> bool:
    """Return True if nothing recorded shows that the rows were sent different prompts."""
    keys = {row.prompt_key for row in rows if row.prompt_key is not None}
    return len({row.sent_prompt for row in rows}) == 1 and len(keys) < 2


def _read_timelines(db: Connection, run_id: int, row_ids: Iterable[int]) -> dict[int, list[Card]]:
    rollouts = queries.opened(db, run_id, list(dict.fromkeys(row_ids))[:_MOST_OPENED])
    return {row_id: timeline.make_timeline(rollout) for row_id, rollout in rollouts.items()}


def _make_columns(
    rows: Sequence[EvaluationRow], turns_by_id: Mapping[int, list[Turn]], whole_ids: Sequence[int]
) -> list[CompletionColumn]:
    best_id = min(rows, key=queries.by_reward).id or 0
    best_turns = turns_by_id.get(best_id)
    divergences = {
        row_id: find_divergence(best_turns, row_turns)
        for row_id, row_turns in turns_by_id.items()
        if best_turns is not None and row_id != best_id
    }
    divergences[best_id] = min((number for number in divergences.values() if number is not None), default=None)
    columns = []
    for row in rows:
        row_id, divergence = row.id or 0, divergences.get(row.id or 0)
        row_turns = turns_by_id.get(row_id)
        gaps = turns.left_out([turn.number for turn in row_turns or ()], divergence) if row_id not in whole_ids else []
        is_best = row_id == best_id and row.reward is not None
        columns.append(CompletionColumn(row, reward_parts(row), row_turns, divergence, gaps, is_best))
    return columns


def _refresh(
    run: Run, rows: Sequence[EvaluationRow], summary: RunSummary, chosen: RolloutFilter, first_id: int
) -> str | None:
    is_open = summary.is_alive or any(row.status == Status.RUNNING for row in rows)
    if not is_open or all(words.is_settled(row) for row in rows):
        return None
    return urls.group(run.uid, first_id, chosen, seen=_seen(rows, summary))


def _seen(rows: Sequence[EvaluationRow], summary: RunSummary) -> str:
    return f"{max(row.changed for row in rows)}.{len(rows)}.{summary.state}"


def _parse_numbers(pairs: urls.Pairs, name: str) -> list[int]:
    return [int(value) for key, value in pairs if key == name and value.isascii() and value.isdigit()][:1000]
