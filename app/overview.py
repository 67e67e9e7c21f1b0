"""What a run is and how its training goes: the figures that are logged, by step, and what it was started with."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from logs_ui.app import charts, htmx, text, urls
from logs_ui.app.source import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.filters import check_word
from logs_ui.recorder.models import RunState
from logs_ui.recorder.queries import RunSummary, ScalarCurve

router = APIRouter()

_POLL_SECONDS = 5
_TRAINING, _EVALUATION = "training", "evaluation"
_GROUPS = (_TRAINING, "rewards", "completions")
_SHORT_VALUE = 40  # characters
_FIRST = ("reward", "reward_std", "reward_stderr", "loss", "grad_norm", "kl", "entropy", "learning_rate")
"""Figures that are looked at first; the others follow by name."""


@dataclass(frozen=True)
class CurveGroup:
    """Figures that are logged under one prefix."""

    name: str
    curves: list[charts.Curve]


@dataclass(frozen=True)
class Setting:
    """A name and its value; `is_structured` where that is an object or a list too long to stand beside the name."""

    name: str
    value: str
    is_structured: bool


@dataclass(frozen=True)
class OverviewPage:
    """What `overview.html` and `_overview.html` show.

    Attributes:
        search: only figures, arguments and versions whose name or value holds this are shown.
        groups: of the figures by step, the training's first.
        single: figures that were logged once: what a trainer says at the end, or all of an evaluation's.
        config: arguments of the trainer or the evaluation, structured ones last.
        versions: of packages.
        refresh: where a run that is alive looks for news; None where none is to come.
        every: seconds between two looks.
    """

    summary: RunSummary
    search: str
    groups: list[CurveGroup]
    single: list[tuple[str, float | None]]
    config: list[Setting]
    versions: list[Setting]
    refresh: str | None
    every: int


@router.get("/runs/{name}/overview")
def overview(request: Request, source: SourceOfPages, name: str, q: str = "", seen: str = "") -> Response:
    """Figures by step, arguments and versions, or those of them that hold `q`."""
    for parameter in request.query_params.keys() - {"seen"}:
        check_word(parameter, "parameter", parameter, ("q",))
    wanted = htmx.target(request)
    with source.reading() as db:
        run = queries.find_run(db, name)
        here = urls.overview(run.uid, search=q.strip())
        if wanted is None and name != run.uid:
            return RedirectResponse(here, 303)
        run_id = id_of(run)
        summary = queries.run_summary(db, run_id)
        now = f"{queries.last_logged_step(db, run_id)}.{summary.steps}.{summary.state}"
        if wanted == "overview" and seen == now:
            return htmx.nothing_new()
        page = _page(summary, queries.scalar_curves(db, run_id), q.strip(), now)
    return htmx.render(request, "overview.html", page, fragments=("overview",), address=None if seen else here)


def _page(summary: RunSummary, logged: list[ScalarCurve], search: str, seen: str) -> OverviewPage:
    run = summary.run
    shown = [curve for curve in logged if search.lower() in curve.name.lower()]
    is_alive = summary.state in {RunState.RUNNING, "died"}
    return OverviewPage(
        summary=summary,
        search=search,
        groups=_groups(curve for curve in shown if len(curve.points) > 1),
        single=[(curve.name, curve.points[0][1]) for curve in sorted(shown, key=_rank) if len(curve.points) == 1],
        config=_found(run.config, search),
        versions=_found(run.versions, search),
        refresh=urls.overview(run.uid, search=search, seen=seen) if is_alive else None,
        every=_POLL_SECONDS,
    )


def _groups(curves: Iterable[ScalarCurve]) -> list[CurveGroup]:
    groups: dict[str, list[ScalarCurve]] = defaultdict(list)
    for curve in curves:
        groups[_group_of(curve.name)].append(curve)
    return [
        CurveGroup(name, [charts.curve(each.name, each.points) for each in sorted(groups[name], key=_rank)])
        for name in sorted(groups, key=_group_rank)
    ]


def _group_rank(name: str) -> tuple[bool, int, str]:
    return name == _EVALUATION, _GROUPS.index(name) if name in _GROUPS else len(_GROUPS), name


def _group_of(name: str) -> str:
    """Evaluations are logged as `eval_...`, related figures as `completions/mean_length`."""
    if name.startswith("eval_"):
        return _EVALUATION
    prefix, slash, _ = name.partition("/")
    return prefix if slash else _TRAINING


def _rank(curve: ScalarCurve) -> tuple[int, str]:
    bare = curve.name.removeprefix("eval_")
    return (_FIRST.index(bare) if bare in _FIRST else len(_FIRST), curve.name)


def _found(values: dict[str, Any], search: str) -> list[Setting]:
    """By name, what is simple first; None is shown, as an argument that was left out is one that was decided on."""
    settings = (_setting(name, value) for name, value in values.items())
    found = (it for it in settings if search.lower() in it.name.lower() or search.lower() in it.value.lower())
    return sorted(found, key=lambda it: (it.is_structured, it.name))


def _setting(name: str, value: Any) -> Setting:
    written = text.as_json(value) if value is None else text.shown(value)
    return Setting(name, written, isinstance(value, dict | list) and len(written) > _SHORT_VALUE)
