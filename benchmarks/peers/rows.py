"""The rollouts that every peer is given: texts, and ids of their tokens, as `benchmarks/rollouts.py` makes them."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.rollouts import Passages, Texts, make_tokenizer

GROUP, STEP = 8, 32
PROMPT, COMPLETION = 1_000, 1_000  # token ids; each of the completion's has a log-prob
SYSTEM = {"role": "system", "content": "You are a careful assistant with a shell. Say `done` at the end."}
ASKED, SAID, HEARD, TURNS = 450, 210, 180, 4  # tokens: 9 kB of messages in all


def write_rows(folder: Path, count: int) -> dict[str, Path]:
    """Two files of the same rollouts, a line each: without tokens, and with them."""
    texts = Texts()
    tokenizer = make_tokenizer(texts)
    paths = {"messages": folder / "messages.jsonl", "tokens": folder / "tokens.jsonl"}
    with paths["messages"].open("w") as plain, paths["tokens"].open("w") as with_tokens:
        for number in range(count):
            rng = random.Random(number)
            prose, code = Passages(texts.prose, tokenizer, rng), Passages(texts.code, tokenizer, rng)
            row = rollout(number, prose, code, rng)
            plain.write(json.dumps(row) + "\n")
            text = " ".join(message["content"] for message in row["messages"])
            ids = tokenizer.encode(text).ids
            ids = (ids * (1 + (PROMPT + COMPLETION) // len(ids)))[: PROMPT + COMPLETION]
            logprobs = [round(-rng.gammavariate(0.35, 0.9), 6) for _ in range(COMPLETION)]
            tokens = {"prompt_ids": ids[:PROMPT], "completion_ids": ids[PROMPT:], "logprobs": logprobs}
            with_tokens.write(json.dumps(row | tokens) + "\n")
    return paths


def rollout(number: int, prose: Passages, code: Passages, rng: random.Random) -> dict[str, Any]:
    """Return a question, and turns of the model and of what it hears."""
    return {
        "id": f"rollout-{number:07d}",
        "step": number // STEP,
        "group": f"group-{number // GROUP}",
        "generation": number % GROUP,
        "task": f"task-{number // GROUP % 97}",
        "reward": round(rng.random(), 4),
        "messages": [SYSTEM, {"role": "user", "content": prose.next(ASKED)}, *turns(prose, code)],
    }


def turns(prose: Passages, code: Passages) -> Iterator[dict[str, str]]:
    for turn in range(TURNS):
        yield {"role": "assistant", "content": prose.next(SAID)}
        if turn + 1 < TURNS:
            yield {"role": "user", "content": code.next(HEARD)}
