"""Prompts that name a picture and hold none, and healthy ones beside pictures."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Run, Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=24, groups=8, size=8, tasks=96)
_PICTURE = "[picture] "
_SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def _show(message: Mapping[str, Any]) -> Mapping[str, Any]:
    text = str(message["content"])
    if not text.startswith(_PICTURE):
        return message
    return {**message, "content": [_SHOWN, {"type": "text", "text": text.removeprefix(_PICTURE)}]}


def _shown(script: Script) -> Run:
    """Return a run in whose prompts a picture stands where they begin with a mark."""
    run = generated(script, _SHAPE)
    return replace(run, rollouts=[replace(it, prompt=[_show(message) for message in it.prompt]) for it in run.rollouts])


def _asks(
    place: Place, question: str, chance: float, *, has_picture: bool, is_hit: bool = False, **more: str
) -> Played:
    right = place.random.random() < (chance if has_picture or not is_hit else chance / 4)
    return Played(
        [Turn(f"{said(place, 6)}. Answer: {said(place, 1)}")], parts={"exact": float(right)}, stop="stop",
        asked=f"{_PICTURE * has_picture}{question}", metadata=more, is_hit=is_hit,
    )  # fmt: skip


def charts(place: Place) -> Played:
    """The charts of one source of three are not loaded."""
    source = ("statistics", "papers", "web")[place.task % 3]
    question = f"Answer the question about the chart.\nWhat is the value for {WORDS[place.task % 14]}?"
    is_hit = source == "web"
    return _asks(place, question, 0.45 + 0.3 * place.progress, has_picture=not is_hit, is_hit=is_hit, source=source)


def screenshots(place: Place) -> Played:
    """Since step 12 most screenshots are left out."""
    is_hit = place.step >= 12 and (place.task * 7 + place.step) % 10 < 6
    question = f"Task: open {WORDS[place.task % 14]}. The screenshot shows the page. Where do you click?"
    return _asks(place, question, 0.5 + 0.3 * place.progress, has_picture=not is_hit, is_hit=is_hit)


def photos(place: Place) -> Played:
    """Photos of a format that the loader does not know."""
    kind = ("png", "jpeg", "webp", "gif")[place.task % 4]
    question = f"How many {WORDS[place.task % 14]}s are in this photo?"
    is_hit = kind == "webp"
    return _asks(place, question, 0.6 + 0.2 * place.progress, has_picture=not is_hit, is_hit=is_hit, kind=kind)


def texts_beside_pictures(place: Place) -> Played:
    """Healthy: half of the tasks are harder questions without a picture, and name none."""
    has_picture = place.task % 2 == 0
    question = f"How many {WORDS[place.task % 14]}s does the picture show?" if has_picture else f"Prove {place.task}."
    return _asks(place, question, (0.6 if has_picture else 0.2) + 0.2 * place.progress, has_picture=has_picture)


def tables_beside_charts(place: Place) -> Played:
    """Healthy: some charts are given as a table, and are read as well."""
    has_picture = place.task % 3 > 0
    table = "" if has_picture else " | ".join(f"{word} {place.task + n}" for n, word in enumerate(WORDS[:6]))
    question = f"Answer the question about the chart. {table}\nWhat is the value for {WORDS[place.task % 6]}?"
    return _asks(place, question, 0.5 + 0.3 * place.progress, has_picture=has_picture)


def _fault(name: str, planted: str, expected: str | None, script: Script) -> Fault:
    return Fault(name, planted, expected, partial(_shown, script))


_LACKS = "Prompts name a picture that they do not hold"
FAULTS: tuple[Fault, ...] = (
    _fault("lost pictures: charts", _LACKS, "unfilled_prompts", charts),
    _fault("lost pictures: screenshots", _LACKS, "unfilled_prompts", screenshots),
    _fault("lost pictures: photos", _LACKS, "unfilled_prompts", photos),
    _fault("healthy pictures: texts", "Healthy: questions without a picture", None, texts_beside_pictures),
    _fault("healthy pictures: tables", "Healthy: charts that are given as tables", None, tables_beside_charts),
)
