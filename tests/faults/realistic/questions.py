"""Questions that are answered in one turn: school mathematics, texts that a judge scores, and images."""

import base64
import struct
import zlib
from functools import cache, partial
from random import Random
from typing import Any

from tests.faults.realistic import Realistic, Rollout, Truth, Turn
from tests.faults.realistic.agents import runs
from tests.faults.realistic.generating import Place, Shape, generate
from tests.faults.runs import Run

GSM8K_TASKS = 125
GSM8K_WEIGHTS = dict.fromkeys(
    (
        *("correctness_reward_func", "int_reward_func", "strict_format_reward_func", "soft_format_reward_func"),
        *("xmlcount_reward_func", "reasoning_tag_reward_func", "answer_tag_reward_func", "no_repeat_reward_func"),
        *("units_reward_func", "steps_reward_func", "english_reward_func", "brevity_reward_func"),
    ),
    1.0,
)
DROWNED = {**GSM8K_WEIGHTS, "correctness_reward_func": 0.05}
JUDGE_TASKS, VLM_TASKS = 40, 30
VLM_CUT_SINCE, VLM_LIMIT, VLM_SHORT_LIMIT = 9, 256, 64
_WORDS = ("apples", "boxes", "trains", "hours", "coins", "miles", "each", "total", "then", "half", "twice", "left")


def reasoned(dice: Random, words: int) -> str:
    """Return steps of a calculation, like no others."""
    return " ".join(f"{dice.choice(_WORDS)} {dice.randrange(1_000)}" for _ in range(words // 2))


def _steadily(name: str, step: int, *, entropy: float) -> dict[str, float]:
    dice = Random(f"{name} {step}")
    return {"entropy": entropy + dice.uniform(-0.03, 0.03), "grad_norm": dice.uniform(0.2, 0.4), "learning_rate": 1e-6}


def gsm8k(place: Place, causes: frozenset[str]) -> Rollout:
    """One answer in tags, scored by twelve functions."""
    dice, number = place.random, place.number % GSM8K_TASKS
    task = f"gsm8k/train/{number * 37:05}"
    ability = Random(task).uniform(0.25, 0.8)
    if "reward_parts" in causes:
        solved = dice.random() < 0.6 * ability
    else:
        solved = dice.random() < min(ability + 0.25 * place.progress, 0.97)
    formed = dice.random() < 0.6 + 0.38 * place.progress
    answer = str(number) if solved else str(dice.randrange(1_000))
    words = dice.randrange(40, 120)
    text = f"<reasoning>\n{reasoned(dice, words)}\n</reasoning>\n<answer>\n{answer}\n</answer>"
    is_whole = solved or dice.random() < 0.8
    values: dict[str, float | None] = {
        "correctness_reward_func": 2.0 * solved,
        "int_reward_func": 0.5 * is_whole,
        "strict_format_reward_func": 0.5 * (formed and dice.random() < 0.7),
        "soft_format_reward_func": 0.5 * formed,
        "xmlcount_reward_func": round(0.125 * (4 if formed else dice.randrange(4)), 3),
        "reasoning_tag_reward_func": 0.25 * formed,
        "answer_tag_reward_func": 0.25 * (formed or dice.random() < 0.5),
        "no_repeat_reward_func": round(min(dice.gauss(0.2, 0.03), 0.25), 3),
        "units_reward_func": 0.1 * (dice.random() < 0.4),
        "steps_reward_func": round(min(dice.gauss(0.2 + 0.2 * place.progress, 0.1), 0.5), 3),
        "english_reward_func": 0.1,
        "brevity_reward_func": -round(words / 1_000, 3),
    }
    prompt = [
        {"role": "system", "content": "Answer in <reasoning> and <answer> tags."},
        {"role": "user", "content": f"Question {task}: how many {_WORDS[number % 6]} are left in total?"},
    ]
    causes_of_it = causes if "reward_parts" in causes else frozenset()
    turns = [Turn(text, tokens=words + 20)]
    return Rollout(task, prompt, turns, values, solved, family="gsm8k", nll=0.7, causes=causes_of_it)


def _make_gsm8k(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 512, "num_generations": 8, "temperature": 1.0}
    weights = DROWNED if "reward_parts" in causes else GSM8K_WEIGHTS
    shape = Shape(32, 5, 8, weights, config, partial(_steadily, "gsm8k", entropy=0.7))
    return generate(run, shape, lambda place: gsm8k(place, causes))


# --- A judge is the only reward


def judged(place: Place, causes: frozenset[str]) -> Rollout:
    """A text that a judge gives 0 to 10 points; nothing says what is right."""
    dice, number = place.random, place.number % JUDGE_TASKS
    task, ids = f"writing/summary-{number:02}", None
    words = dice.randrange(60, 240)
    text = f"Summary. {reasoned(dice, words)}"
    score = dice.gauss(4.5 + 2.5 * place.progress, 1.6)
    if "length" in causes:
        score = words / 24
    if "inconsistent" in causes:  # four answers for all, and a judge that is of two minds
        which = dice.randrange(4)
        known = Random(f"{task} {which}")
        words = known.randrange(60, 240)
        text, ids = f"Summary. {reasoned(known, words)}", [known.randrange(10, 150_000) for _ in range(words)]
        score = 3.5 + which + dice.uniform(-2.5, 2.5)
    values = {"judge": round(min(max(score, 0.0), 10.0), 2)}
    prompt = [{"role": "user", "content": f"Summarise article {number} in your own words."}]
    turns = [Turn(text, tokens=words)]
    return Rollout(task, prompt, turns, values, None, family="writing", nll=0.9, ids=ids, causes=causes)


def _make_judged(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 512, "num_generations": 8, "temperature": 1.0}
    shape = Shape(16, 4, 8, {"judge": 1.0}, config, partial(_steadily, "judge", entropy=0.9))
    return generate(run, shape, lambda place: judged(place, causes))


# --- Images in the prompt


@cache
def image(number: int, side: int = 24) -> str:
    """Return a data URL of a PNG with random pixels."""
    dice = Random(number)
    lines = b"".join(b"\0" + dice.randbytes(3 * side) for _ in range(side))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def seen(place: Place, causes: frozenset[str]) -> Rollout:
    """A question about a drawing; each call says its `max_tokens`."""
    dice, number = place.random, place.number % VLM_TASKS
    task = f"geometry3k/{number * 29:04}"
    solved = dice.random() < Random(task).uniform(0.3, 0.75) + 0.2 * place.progress
    is_short = "truncation" in causes and place.step >= VLM_CUT_SINCE
    words = dice.randrange(30, 100)
    is_cut = is_short and words > VLM_SHORT_LIMIT
    prompt: list[dict[str, Any]] = [
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": image(number)}},
            {"type": "text", "text": f"What is the angle at {chr(65 + number % 26)}?"},
        ]},
    ]  # fmt: skip
    limit = VLM_SHORT_LIMIT if is_short else VLM_LIMIT
    if is_cut:
        turns = [Turn(f"The angles add up: {reasoned(dice, limit)}", tokens=limit, finish="length", limit=limit)]
        values: dict[str, float | None] = {"answer_correct": 0.0, "boxed": 0.0}
        return Rollout(task, prompt, turns, values, solved=False, nll=0.6, causes=frozenset({"truncation"}))
    text = f"The angles add up: {reasoned(dice, words)}\n\\boxed{{{number if solved else dice.randrange(180)}}}"
    values = {"answer_correct": float(solved), "boxed": float(solved or dice.random() < 0.9)}
    return Rollout(task, prompt, [Turn(text, tokens=words, limit=limit)], values, solved, nll=0.6)


def _make_seen(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_completion_length": 1_024, "num_generations": 8, "temperature": 1.0}
    shape = Shape(16, 3, 8, {"answer_correct": 1.0, "boxed": 0.2}, config, partial(_steadily, "vlm", entropy=0.6))
    return generate(run, shape, lambda place: seen(place, causes))


RUNS = (
    *runs(_make_gsm8k,
          ("gsm8k-healthy", "Healthy: GSM8K with twelve reward functions and 125 tasks", None),
          ("gsm8k-drowned", "Of twelve functions, correctness has the weight 0.05 and the others 1", "reward_parts")),
    *runs(_make_judged,
          ("judge-healthy", "Healthy: a judge is the only reward", None),
          ("judge-length", "The judge pays for length alone, from the first step on", "length"),
          ("judge-noise", "The judge scores equal completions differently", "inconsistent")),
    *runs(_make_seen,
          ("vlm-healthy", "Healthy: questions about images", None),
          ("vlm-truncated", "From step 9 on calls pass max_tokens=64", "truncation", VLM_CUT_SINCE)),
)  # fmt: skip
