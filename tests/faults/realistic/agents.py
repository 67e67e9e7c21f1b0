"""Agents with tools: one that repairs code, and one of forty turns."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from logs_ui.recorder.capture.observed_images import png
from tests.faults.realistic import Realistic, Rollout, Truth, Turn
from tests.faults.realistic.generating import Place, Shape, generate, observed
from tests.faults.runs import Run

CODING_TASKS = {
    "django-13551": 0.65, "pytest-7432": 0.85, "sympy-20590": 0.45, "scikit-learn-14087": 0.6, "flask-5014": 0.75,
    "requests-2317": 0.55, "matplotlib-23314": 0.4, "astropy-12907": 0.5,
}  # fmt: skip
"""How often each is solved."""
FORGOTTEN, FORGOTTEN_SINCE = ("django-13551", "flask-5014"), 12
CUT_SINCE, COLLAPSED_SINCE = 10, 14
STARVED = "sympy-20590"
OUT_OF_MEMORY = "container killed: out of memory (limit 2 GiB)"
WEIGHTS = {"tests_passed": 1.0, "patch_applies": 0.2, "format": 0.1, "length_penalty": 1.0, "judge": 0.3}
_SYSTEM = "You repair a repository. Call one tool per turn: bash, str_replace_editor or submit."
_FILES = ("models.py", "forms.py", "views.py", "utils.py", "resolver.py", "compat.py", "fields.py", "base.py")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call as an action."""
    return {"name": name, "arguments": arguments}


def said(dice: Random, words: int = 14) -> str:
    """Return a thought, like no other."""
    verbs = ("check", "read", "change", "compare", "run", "fix", "print", "follow")
    return " ".join(f"{dice.choice(verbs)} {dice.choice(_FILES)}:{dice.randrange(900)}" for _ in range(words // 2))


def worked(dice: Random, turns: int, *, size: int = 4_000) -> list[Turn]:
    """Return turns that explore, each with an observation of so many characters."""
    found = []
    for number in range(turns):
        file, line = dice.choice(_FILES), dice.randrange(900)
        action = (
            call("bash", command=f"sed -n {line},{line + 40}p src/core/{file}")
            if number % 3
            else call("str_replace_editor", command="str_replace", path=f"src/{file}", old_str=f"x{line}", new_str="y")
        )
        text = f"I {said(dice)}.\n<tool_call>{action['name']}</tool_call>"
        found.append(Turn(text, action, observed(dice, size), False, tokens=dice.randrange(30, 70), heard=60))
    return found


def _coding_values(dice: Random, turns: list[Turn], *, solved: bool, is_cut: bool) -> dict[str, float | None]:
    tokens = sum(turn.tokens for turn in turns)
    return {
        "tests_passed": float(solved),
        "patch_applies": float(solved or (not is_cut and dice.random() < 0.7)),
        "format": float(not is_cut and dice.random() < 0.93),
        "length_penalty": -round(tokens / 20_000, 4),
        "judge": round(min(max(dice.gauss(0.62 if solved else 0.42, 0.18), 0.0), 1.0), 2),
    }


def coding(place: Place, causes: frozenset[str]) -> Rollout:
    """An agent on one of eight repositories: it explores, edits, and submits or is cut off."""
    dice = place.random
    task = list(CODING_TASKS)[place.number % len(CODING_TASKS)]
    chance = min(CODING_TASKS[task] * (0.85 + 0.25 * place.progress), 0.95)
    mine = set()
    if "forgotten" in causes and task in FORGOTTEN and place.step >= FORGOTTEN_SINCE:
        chance = 0.02
        mine.add("forgotten")
    path = dice
    if "diversity" in causes and place.step >= COLLAPSED_SINCE:
        path = place.of_group  # all rollouts of a group do nearly the same, and end alike
        chance *= 0.75
        mine.add("diversity")
    solved = path.random() < chance
    turns = worked(path, path.randrange(10, 16) if solved else path.randrange(12, 20))
    if "diversity" in mine:
        turns[-1] = replace(turns[-1], text=f"I {said(dice)}.", tokens=dice.randrange(30, 70))
    if "infrastructure" in causes and task == STARVED and place.random.random() < 0.6:
        broken = replace(turns[3], observation=None, done=None, error=f"RuntimeError: {OUT_OF_MEMORY}")
        mine.add("infrastructure")
        return Rollout(task, _asked(task), [*turns[:3], broken], None, solved=False, causes=frozenset(mine))
    is_cut = "truncation" in causes and place.step >= CUT_SINCE and place.random.random() < 0.4
    if is_cut:
        solved = False
        mine.add("truncation")
        text = f"I rewrite the whole file.\n{said(dice, 60)}"
        turns = [*turns[:6], Turn(text, tokens=512, finish="length", limit=512)]
    else:
        observation = {"submitted": True, "tests": "passed" if solved else "failed"}
        turns += [Turn("I submit.", call("submit"), observation, done=True, tokens=12)]
    values = _coding_values(dice, turns, solved=solved, is_cut=is_cut)
    repo = task.rpartition("-")[0]
    dataset = {
        "repo": repo, "difficulty": "easy" if CODING_TASKS[task] > 0.6 else "hard",
        "extra_info": {"level": round(10 * (1 - CODING_TASKS[task])), "version": "3.10" if repo == "django" else "3.9"},
        "patch": "diff --git a/src/models.py b/src/models.py\n" + "-        value = self.lookup(name)\n" * 40,
    }  # fmt: skip
    metrics = {"patch_lines": float(len(turns) * 7 % 90)}
    return Rollout(task, _asked(task), turns, values, solved, causes=frozenset(mine), dataset=dataset, metrics=metrics)


def _asked(task: str) -> list[dict[str, Any]]:
    issue = f"Repository of {task}. The issue: a field's value is lost when its form is saved twice."
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": issue}]


def _coding_logged(causes: frozenset[str], step: int) -> dict[str, float]:
    dice = Random(f"coding {step}")
    entropy = 0.97 - 0.006 * step + dice.uniform(-0.02, 0.02)
    if "diversity" in causes and step >= COLLAPSED_SINCE:
        entropy = 0.12 if step == COLLAPSED_SINCE else 0.023 + dice.uniform(-0.004, 0.004)
    return {"entropy": entropy, "grad_norm": dice.uniform(0.2, 0.4), "learning_rate": 1e-6, "kl": 0.001 * step}


def _make_coding(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 2_048, "num_generations": 8, "temperature": 1.0}
    shape = Shape(24, 4, 8, WEIGHTS, config, partial(_coding_logged, causes))
    return generate(run, shape, lambda place: coding(place, causes))


# --- Forty turns

TOOL_TASKS = {f"terminal/{name}": rate for name, rate in (("build-kernel", 0.4), ("fix-cron", 0.6), ("sort-logs", 0.7))}
TOOL_CUT_SINCE = 7


def forty_turns(place: Place, causes: frozenset[str]) -> Rollout:
    """An agent in a terminal, forty turns long; its only reward is whether the check passes."""
    dice = place.random
    task = list(TOOL_TASKS)[place.number % len(TOOL_TASKS)]
    solved = dice.random() < TOOL_TASKS[task] * (0.8 + 0.4 * place.progress)
    turns = worked(dice, dice.randrange(34, 40))
    prompt = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{task}: make `make check` pass."}]
    if "truncation" in causes and place.step >= TOOL_CUT_SINCE and dice.random() < 0.5:
        cut = Turn(f"I write the file anew.\n{said(dice, 80)}", tokens=1_024, finish="length", limit=1_024)
        values: dict[str, float | None] = {"check_passes": 0.0, "uses_tools": 1.0}
        return Rollout(task, prompt, [*turns, cut], values, solved=False, causes=frozenset({"truncation"}))
    check = "I check it.\n<tool_call>bash</tool_call>"
    again = [replace(turns[0], text=check, action=call("bash", command="make check"))] * 3  # tests run again: no loop
    end = Turn(
        "Done.\n<tool_call>submit</tool_call>",
        call("submit"),
        {"check": "passed" if solved else "failed"},
        done=True,
        tokens=8,
    )
    values = {"check_passes": float(solved), "uses_tools": 1.0}
    return Rollout(task, prompt, [*turns[:20], *again, *turns[20:], end], values, solved)


def _make_forty(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 16_384, "num_generations": 8}
    shape = Shape(14, 1, 8, {"check_passes": 1.0, "uses_tools": 0.1}, config)
    return generate(run, shape, lambda place: forty_turns(place, causes))


# --- Two hundred turns

LONG_TURNS = 200
LONG_CUT, LONG_FALLBACK, LONG_ERROR, LONG_PICTURE = 57, 88, 120, 3
"""Turns (from 1) of the second rollout: truncated, without an action, refused by its environment, with a screenshot."""
LONG_LOST = "browser crashed: target closed"


def screenshot(dice: Random, width: int = 320, height: int = 200) -> bytes:
    """Return a PNG with a few windows on it."""
    pixels = np.full((height, width, 3), 236, np.uint8)
    for _ in range(4):
        x, y = dice.randrange(width - 90), dice.randrange(height - 60)
        pixels[y : y + 60, x : x + 90] = [dice.randrange(80, 230) for _ in range(3)]
    return png(pixels)


def _as_written(action: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(action)}\n</tool_call>"


def two_hundred(place: Place) -> Rollout:
    """An agent at a desktop, two hundred turns long: reasoning, tool calls, and a picture in its prompt.

    The first of a group solves its task; the second suffers from all that can happen on the way; the third stops at the
    turn limit, without reasoning; the fourth raises. An observation of 4 KB follows each action.
    """
    dice = place.random
    task = ("desktop/settings-dark-mode", "desktop/settings-proxy")[place.number % 2]
    url = f"data:image/png;base64,{base64.b64encode(screenshot(Random(task))).decode()}"
    asked = [
        {"type": "text", "text": f"{task}: here is the desktop."},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    prompt: list[dict[str, Any]] = [
        {"role": "system", "content": f"{_SYSTEM}\n" * 12},
        {"role": "user", "content": asked},
    ]
    turns = []
    for number, turn in enumerate(worked(dice, LONG_TURNS), 1):
        thought = "" if place.generation == 2 else f"<think>\n{said(dice, 40)}\n</think>\n\n"
        text = f"{thought}I **{said(dice, 8)}**.\n\n{_as_written(turn.action)}"
        reward = 0.5 if number % 50 == 0 else None
        turns.append(replace(turn, text=text, tokens=len(text) // 4, reward=reward))
    if place.generation == 0:
        math = "It is done: $\\frac{1}{2} + \\frac{1}{2} = 1$.\n\n```python\nassert settings.is_saved\n```\n\n"
        end = replace(turns[-1], text=math + _as_written(call("submit")), action=call("submit"))
        turns[-1] = replace(end, observation={"success": True}, done=True, reward=1.0)
    if place.generation == 1:
        cut, fallback, error, picture = (
            turns[number - 1] for number in (LONG_CUT, LONG_FALLBACK, LONG_ERROR, LONG_PICTURE)
        )
        turns[LONG_CUT - 1] = replace(cut, text=f"I rewrite it all. {said(dice, 60)}", finish="length", action=None)
        turns[LONG_CUT - 1] = replace(turns[LONG_CUT - 1], observation="Continue.", tokens=512)
        turns[LONG_FALLBACK - 1] = replace(
            fallback, text="I wait.", action=call("bash", command="true"), is_fallback=True
        )
        turns[LONG_ERROR - 1] = replace(error, observation=None, done=None, error=f"RuntimeError: {LONG_LOST}")
        seen = {"text": "A dialog has opened.", "screenshot": screenshot(dice)}
        turns[LONG_PICTURE - 1] = replace(picture, observation=seen)
    values = None if place.generation == 3 else {"done": float(place.generation == 0), "judge": round(dice.random(), 2)}
    raises = LONG_LOST if place.generation == 3 else None
    return Rollout(task, prompt, turns, values, place.generation == 0, raises=raises)


def _make_two_hundred(run: Realistic) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 32_768, "num_generations": 4}
    return generate(run, Shape(1, 2, 4, {"done": 1.0, "judge": 0.2}, config), two_hundred)


LONG = Realistic(
    "desktop-long", "desktop", "Agents of 200 turns, for pages: pictures, reasoning, errors on the way", None,
    _make_two_hundred,
)  # fmt: skip
"""It is too small to be diagnosed, and so is not one of `RUNS`."""


def runs(make: Callable[..., tuple[Run, Truth]], *described: tuple[Any, ...]) -> tuple[Realistic, ...]:
    """Return runs of one kind, from (id, what is planted, expected card, since step, other cards and their steps)."""
    found = []
    for name, planted, expected, *more in described:
        since, also = (*more, None, {})[:2] if more else (None, {})
        causes = frozenset({expected, *(also or {})} - {None})
        kind = name.partition("-")[0]
        found.append(Realistic(name, kind, planted, expected, partial(make, causes=causes), since, also or {}))
    return tuple(found)


RUNS = (
    *runs(_make_coding,
          ("coding-healthy", "Healthy: a coding agent with five reward functions", None),
          ("coding-regressed", "Two of eight repositories are not solved any more from step 12 on", "forgotten",
           FORGOTTEN_SINCE),
          ("coding-truncated", "From step 10 on 40% of rollouts are cut off by the call's own max_tokens",
           "truncation", CUT_SINCE),
          ("coding-entropy", "The entropy collapses at step 14; only the trainer logs it", "diversity",
           COLLAPSED_SINCE),
          ("coding-memory", "The containers of one repository run out of memory", "infrastructure"),
          ("coding-two", "Truncation from step 10 on, and two repositories that regress at step 12", "truncation",
           CUT_SINCE, {"forgotten": FORGOTTEN_SINCE})),
    *runs(_make_forty,
          ("tools-healthy", "Healthy: an agent of forty turns with 4 KB observations", None),
          ("tools-truncated", "From step 7 on half of the rollouts are cut off in their last answer", "truncation",
           TOOL_CUT_SINCE)),
)  # fmt: skip
