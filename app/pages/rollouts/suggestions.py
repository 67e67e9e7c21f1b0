"""Suggests what to type in the filter: field names, then the run's values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from logs_ui.app.parts import words
from logs_ui.app.parts.diagnoses import cached_diagnosis
from logs_ui.app.parts.filter_form import in_full
from logs_ui.app.web import htmx, page_cache
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis.task_families import families
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Facets, RunSummary
from logs_ui.recorder.queries.filters.fields import FIELDS, NUMERIC, Field, Is, Kind
from logs_ui.recorder.queries.filters.language import FINDING, Place, place_at
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Scored, parse_where
from logs_ui.recorder.queries.filters.terms import ABSENT, print_name
from logs_ui.recorder.vocabulary import StopReason

_COUNTED = 200_000  # of a run with more rollouts the values are named without their counts
_MOST_VALUES = 40
_MOST_FOUND = 6  # values that are offered where no name has been written yet
_SIGNS = frozenset(":<>=!")
_AGES = ("30m", "2h", "1d", "7d")
_FAILURES = ("timeout", "environment_error", "at_capacity", "exception", "aborted")

router = APIRouter()


@dataclass(frozen=True)
class Suggestion:
    """Holds one line of the list."""

    label: str  # the text that it would insert
    meaning: str  # of that text; empty if it is obvious
    count: int | None  # number of rollouts that would match; None if not counted
    text: str  # the whole filter with it
    caret: int  # position of the caret after it, in UTF-16 units, as browsers count
    goes_on: bool  # True if there are further suggestions at the caret


@dataclass(frozen=True)
class SuggestionsPage:
    """Context of `rollouts/_suggestions.html`: suggestions for the line `where`."""

    where: str
    suggestions: list[Suggestion]


@dataclass(frozen=True)
class _Candidate:
    """Describes a possible suggestion: `insertion` is inserted, `value` is compared with what was typed."""

    value: str
    insertion: str
    meaning: str = ""
    count: int | None = None
    goes_on: bool = False


@router.get("/runs/{run_reference}/suggestions")
def suggestions(
    request: Request, source: SourceOfPages, run_reference: str, where: str = "", at: int | None = None
) -> Response:
    """Suggest for the text `where` with the caret at `at`, in UTF-16 units, or at its end."""
    cursor = len(where) if at is None else len(_units(where)[: 2 * max(at, 0)].decode("utf-16-le", "ignore"))
    place = place_at(where, cursor)
    with source.reading_run(run_reference) as (db, run):
        candidates = list(_candidates(db, queries.run_summary(db, id_of(run)), place))
    page = SuggestionsPage(where, [_suggestion(where, place, candidate) for candidate in candidates])
    return htmx.fragment(request, "rollouts/_suggestions.html", page)


def _candidates(db: Connection, summary: RunSummary, place: Place) -> Iterator[_Candidate]:
    if place.expects == "other":
        return
    if place.expects == "value":
        field = FIELDS.get(place.field or "")
        candidates = _values(db, summary, field, place) if field else _findings(db, summary, place)
        unwritten = [candidate for candidate in candidates if candidate.value not in place.others]
        yield from _matching(unwritten, place.written)[:_MOST_VALUES]
        return
    yield from _matching(list(_names(db, summary, place.written)), place.written)
    if place.written.isdecimal():
        yield _Candidate(place.written, f"id:{place.written} ", "the rollout with this number")
    if len(place.written) > 1:
        facets = _facets(db, summary, place)
        values = [
            _Candidate(candidate.value, f"{name}:{candidate.insertion} ", candidate.meaning, candidate.count)
            for name in ("status", "stop", "family", "task", "eval", "tag")
            for candidate in _field_values(db, summary, facets, name)
        ]
        yield from _matching(values, place.written)[:_MOST_FOUND]


def _names(db: Connection, summary: RunSummary, written: str) -> Iterator[_Candidate]:
    columns = queries.own_columns(db, id_of(summary.run)) if len(written) > 1 else {}
    for field in FIELDS.values():
        meaning = field.meaning.replace("`", "")
        if not field.among or not written.startswith(field.name):
            sign = "." if field.is_keyed else "" if field.kind in NUMERIC else ":"
            yield _Candidate(field.name, field.name + sign, meaning, goes_on=bool(sign))
    yield _Candidate(FINDING, f"{FINDING}:", "the rollouts of a finding of the page Why", goes_on=True)
    yield from (_Candidate(name, name, FIELDS[name.partition(".")[0]].meaning) for name in columns)


def _values(db: Connection, summary: RunSummary, field: Field, place: Place) -> list[_Candidate]:
    candidates = [] if field.among else _field_values(db, summary, _facets(db, summary, place), field.name)
    if field.kind == Kind.TIME:
        candidates = [_Candidate(age, age, "ago") for age in _AGES]
    if field.optional:
        candidates.append(_Candidate(ABSENT, ABSENT, "absent"))
    return [
        _Candidate(candidate.value, f"{candidate.insertion} ", candidate.meaning, candidate.count)
        for candidate in candidates
    ]


def _findings(db: Connection, summary: RunSummary, place: Place) -> list[_Candidate]:
    """Return the findings of the run, if it was diagnosed already."""
    diagnosis = cached_diagnosis(db, summary.run) if place.field == FINDING else None
    return [_Candidate(card.id, f"{card.id} ", card.title) for card in diagnosis.report.cards] if diagnosis else []


def _field_values(db: Connection, summary: RunSummary, facets: Facets | None, name: str) -> list[_Candidate]:
    """Return the values of a field, with counts if `facets` are given."""
    counted = _counted_values(facets) if facets else {}
    if name in counted:
        values = counted[name]
    elif FIELDS[name].words is not None:
        values = [(word.value, None) for word in FIELDS[name].words or ()]
    elif name == "error":
        values = [(word, None) for word in _FAILURES]
    elif name == "family":
        tasks = queries.known_values(db, id_of(summary.run), ["task"])["task"]
        values = [(family, None) for family in dict.fromkeys(families(tasks) or ())]
    elif name in {"eval", "task", "tag", "model"}:
        values = [(value, None) for value in queries.known_values(db, id_of(summary.run), [name])[name]]
    else:
        values = []
    explain = _MEANINGS.get(name)
    return [_Candidate(value, print_name(value), explain(value) if explain else "", count) for value, count in values]


def _facets(db: Connection, summary: RunSummary, place: Place) -> Facets | None:
    """Count values under the rest of the filter, if that can be read."""
    if summary.rollouts > _COUNTED:
        return None
    try:
        beside = parse_where(in_full(db, summary.run, place.beside))
        queries.check_names(db, id_of(summary.run), beside)
    except FilterError:
        beside = RolloutFilter()
    return page_cache.facets(db, summary, beside)


def _counted_values(facets: Facets) -> dict[str, list[tuple[str, int | None]]]:
    failures = [(value, count) for value, count in facets.stop_reasons if value in _FAILURES]
    values_by_name = {
        "eval": facets.evals, "mode": facets.modes, "status": facets.statuses, "stop": facets.stop_reasons,
        "scored": facets.scored, "task": facets.tasks, "error": failures,
    }  # fmt: skip
    return {name: list(values) for name, values in values_by_name.items() if len(values) < queries.MOST_TASKS}


def _matching(candidates: list[_Candidate], written: str) -> list[_Candidate]:
    """Return what starts with the text, then what contains it, without what is typed out already."""
    folded_text = written.casefold()
    prefixed = [candidate for candidate in candidates if candidate.value.casefold().startswith(folded_text)]
    containing = [
        candidate for candidate in candidates if folded_text in candidate.value.casefold() and candidate not in prefixed
    ]
    return [
        candidate for candidate in prefixed + containing if candidate.value != written or candidate.insertion != written
    ]


def _suggestion(text: str, place: Place, candidate: _Candidate) -> Suggestion:
    tail = text[place.end :]
    insertion = candidate.insertion.removesuffix(" " if tail[:1] in {" ", ","} else ":" if tail[:1] in _SIGNS else "")
    head = text[: place.start] + insertion
    label, caret = candidate.insertion.strip(), len(_units(head)) // 2
    return Suggestion(label, candidate.meaning, candidate.count, head + tail, caret, candidate.goes_on)


def _units(text: str) -> bytes:
    """Encode text with two bytes for each unit that a browser counts."""
    return text.encode("utf-16-le", "replace")


_MEANINGS: dict[str, Callable[[str], str]] = {
    "status": lambda value: words.status_word(value).meaning,
    "stop": lambda value: words.stop_reason(value).meaning.split(" In filters")[0],
    "error": lambda value: words.stop_reason(StopReason(value)).meaning.split(" In filters")[0],
    "scored": lambda value: words.SCORED[Scored(value)].meaning,
    "is": lambda value: {Is.STARRED.value: "by a user"}[value],
}
