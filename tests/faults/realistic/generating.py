"""Generates runs, and keeps what is true of their rollouts."""

import itertools
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np

from logs_ui.recorder.storage.payload import Tokens
from tests.faults import runs
from tests.faults.realistic import Realistic, Rollout, Truth

_LINES = (
    "Traceback (most recent call last):", '  File "/testbed/src/core/handlers.py", line {}, in resolve',
    "    return self._cache[key]", "KeyError: 'field_{}'", "FAILED tests/test_forms.py::test_clean_{} - AssertionError",
    "PASSED tests/test_models.py::test_save_{}", "diff --git a/src/core/handlers.py b/src/core/handlers.py",
    "@@ -{},7 +{},9 @@ class Resolver:", "-        value = self.lookup(name_{})",
    "+        value = self.lookup(name_{}, None)",
    "    def get_prep_value_{}(self, value):", "        # see ticket {}", "collected {} items / 3 deselected",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Which rollout is to be made.

    Attributes:
        step: from 1.
        group: in its step.
        generation: in its group.
        number: of the group among all groups, from 0.
        progress: 0 at the first step, 1 at the last.
        random: the rollout's own; the same in every run.
        of_group: a generator that begins anew for each rollout of a group, so that they draw the same.
    """

    step: int
    group: int
    generation: int
    number: int
    progress: float
    random: Random
    of_group: Random


Script = Callable[[Place], Rollout]
Logged = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True)
class Shape:
    """How large a run is.

    Attributes:
        weights: of the reward functions.
        logged: returns what the trainer logs at a step.
        tools: descriptions that calls of the model pass.
    """

    steps: int
    groups: int
    size: int
    weights: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)
    logged: Logged = lambda _: {}


def observed(dice: Random, size: int = 4_000) -> str:
    """Return a terminal's output of so many characters, like no other."""
    text = _noise()
    start = dice.randrange(len(text) - size)
    return text[start : start + size]


@cache
def _noise() -> str:
    dice = Random("terminal")
    return "\n".join(dice.choice(_LINES).replace("{}", str(dice.randrange(1_000))) for _ in range(8_000))


def generate(run: Realistic, shape: Shape, script: Script) -> tuple[runs.Run, Truth]:
    """Return a run of that shape, each rollout as the script has it."""
    rollouts: list[runs.Rollout] = []
    truth: list[dict[str, Any]] = []
    scalars: dict[str, dict[int, float]] = {}
    for step in range(1, shape.steps + 1):
        for group in range(shape.groups):
            places = [
                Place(
                    step, group, generation, (step - 1) * shape.groups + group, (step - 1) / max(shape.steps - 1, 1),
                    Random(f"{run.kind}/{step}/{group}/{generation}"),
                    Random(f"{run.kind}/{step}/{group}"),
                )
                for generation in range(shape.size)
            ]  # fmt: skip
            meant = [script(place) for place in places]
            known = [_true(place, rollout, shape) for place, rollout in zip(places, meant, strict=True)]
            _add_advantages(known, shape)
            truth += known
            rollouts += [_rollout(run, shape, *each) for each in zip(places, meant, known, strict=True)]
        for name, value in shape.logged(step).items():
            scalars.setdefault(name, {})[step] = value
    made = runs.Run(run.id, run.kind, rollouts, scalars, shape.config, model="Qwen3-8B")
    return made, Truth(
        run.id, run.kind, "", run.expected, run.since, run.also, truth, shape.weights, scalars, shape.size
    )


def _rollout(run: Realistic, shape: Shape, place: Place, rollout: Rollout, truth: Mapping[str, Any]) -> runs.Rollout:
    return runs.Rollout(
        place.step, place.group, place.generation, rollout.task, rollout.prompt, rollout.turns, rollout.values,
        weights={name: shape.weights[name] for name in rollout.values or ()}, advantage=truth["advantage"],
        tokens=_tokens(place, rollout), raises=rollout.raises, staleness=rollout.staleness,
        dropped="stale" if rollout.dropped else None,
        metadata={"dataset": dict(rollout.dataset), "metrics": dict(rollout.metrics)},
        is_hit=run.expected in rollout.causes,
    )  # fmt: skip


def _tokens(place: Place, rollout: Rollout) -> Tokens:
    """Return ids of prompt and completion; those of the environment are masked."""
    dice = np.random.default_rng(place.random.randrange(2**32))
    parts = []
    for turn in rollout.turns:
        parts += [np.ones(turn.tokens, np.uint8)]
        parts += [] if turn.observation is None else [np.zeros(turn.heard, np.uint8)]
    mask = np.concatenate(parts) if parts else np.ones(0, np.uint8)
    ids = dice.integers(10, 150_000, len(mask)) if rollout.ids is None else np.array(rollout.ids)
    logprobs = None
    if rollout.nll is not None:
        logprobs = np.where(mask == 1, -dice.exponential(rollout.nll, len(mask)), 0.0).astype(np.float16)
    prompt = np.random.default_rng(zlib.crc32(rollout.task.encode())).integers(10, 150_000, 60)
    return Tokens(prompt.astype(np.int32), ids.astype(np.int32), logprobs, mask if (mask == 0).any() else None)


def _add_advantages(group: Sequence[dict[str, Any]], shape: Shape) -> None:
    """Compute a group's advantages as GRPO or AsyncGRPO does: a rollout without a reward has none."""
    spread, epsilon = (statistics.pstdev, 1e-8) if "max_staleness" in shape.config else (statistics.stdev, 1e-4)
    known = [it["reward"] for it in group if it["reward"] is not None]
    for it in group:
        if it["reward"] is not None and len(known) > 1 and not it["dropped"]:
            it["advantage"] = (it["reward"] - statistics.fmean(known)) / (spread(known) + epsilon)


def _true(place: Place, rollout: Rollout, shape: Shape) -> dict[str, Any]:
    last = rollout.turns[-1] if rollout.turns else None
    cut = last if last is not None and last.finish == "length" else None
    actions = [str(turn.action) for turn in rollout.turns if turn.action is not None]
    streaks = [sum(1 for _ in same) for _, same in itertools.groupby(actions)]
    error = next((turn.error for turn in rollout.turns[-1:] if turn.error), None)
    values = rollout.values
    known = {name: value for name, value in (values or {}).items() if value is not None}
    return {
        "group": f"{place.step}/{place.group}", "generation": place.generation, "step": place.step,
        "task": rollout.task, "family": rollout.family, "values": values,
        "reward": sum(value * shape.weights[name] for name, value in known.items()) if known else None,
        "solved": rollout.solved, "truncated": cut is not None, "cut_tokens": cut and cut.tokens,
        "limit": cut and cut.limit, "errored": bool(error or rollout.raises),
        "error": error or (rollout.raises and f"RuntimeError: {rollout.raises}"),
        "staleness": rollout.staleness, "dropped": rollout.dropped, "turns": len(rollout.turns),
        "tokens": sum(turn.tokens for turn in rollout.turns), "actions": len(actions),
        "fallbacks": sum(turn.is_fallback for turn in rollout.turns),
        "streak": max(streaks, default=0), "ends_in_streak": bool(streaks) and streaks[-1] >= 3,
        "done": bool(last and last.done),
        "text": "".join(turn.text for turn in rollout.turns), "causes": rollout.causes, "advantage": None,
    }  # fmt: skip
