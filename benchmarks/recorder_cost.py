"""What does recording cost the training process, for each rollout?

    python benchmarks/recorder_cost.py --steps 60

Plays the same steps with and without `record()`, one of each in turn: 32 rollouts of three turns, played in lockstep,
about 9 KB each (messages, actions and token ids as JSON). Prints a Markdown table in µs of processor time a rollout,
medians over the steps. Processor time, so that neither waiting nor other work on the machine counts; the caches are as
cold as a pause leaves them.

In it is all that `record()` makes this process do from the call of the rollout function until its rows are committed:
the calls seen on the function's own thread, the copy of what it returns, and in the writer's thread the rows' first
appearance as `running`, attribution, encoding, compression, SQLite, its log and its checkpoints. The function takes as
long as `--pause` says, three times for each step: rows that run for more than a second are written again as they stand
(after 1, 3, 7, ... seconds), and their cost is in it if the pauses are that long. Not in it is what comes once for a
run (its first tenth of the steps is left out), what a trainer says of the rows later (rewards, advantages), images, and
what other processes do (the dashboard's reading).

The last rows say how much of it runs in zstd and in SQLite's driver, for the most part without the GIL: other threads
of the training can run meanwhile where there is more than one core.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
import zstandard
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from logs_ui.recorder import flush, load_run, record, trace_env
from logs_ui.recorder.instruments import transformers
from logs_ui.recorder.instruments.patch import Patches
from logs_ui.recorder.recording import Recording
from logs_ui.rollout.guess_model import EOS, START, make_tokenizer

ROWS, GROUP, TURNS, PROMPT, ANSWER = 32, 8, 3, 300, 170
REPLY = f"{EOS}\n{START}user\n" + " 1 2 3 4 5 6 7 8 9 10" * 5 + f"{EOS}\n{START}assistant\n"
os.environ["LOGS_UI_RAISE"] = "1"
torch.set_num_threads(1)


class Environment:
    """Answers at once."""

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text": "the room is dark " * 8}, {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {"text": "you hear " + str(action["say"]) * 8}, 0.25, False, False, {}


class Model:
    """Samples after a pause in which it uses no processor."""

    def __init__(self, tokenizer: Any, pause: float) -> None:
        self._answers = torch.from_numpy(np.random.default_rng(0).integers(5, len(tokenizer), (ROWS, ANSWER)))
        self._pause = pause
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        self.generation_config = SimpleNamespace(**ends, temperature=1.0, top_p=0.9, max_new_tokens=ANSWER)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        time.sleep(self._pause)
        return torch.cat([input_ids, self._answers], 1)


class Rollouts:
    """A rollout function that does nothing but what is recorded."""

    def __init__(self, tokenizer: Any, pause: float, environments: list[Any]) -> None:
        self._model, self._environments = Model(tokenizer, pause), environments
        self._prompt = torch.from_numpy(np.random.default_rng(1).integers(5, len(tokenizer), (ROWS // GROUP, PROMPT)))
        self._reply = torch.tensor([tokenizer.encode(REPLY, add_special_tokens=False)] * ROWS)
        inserted = self._reply.shape[1]
        self._mask = ([1] * ANSWER + [0] * inserted) * (TURNS - 1) + [1] * ANSWER
        self._logprobs = np.random.default_rng(2).normal(-1, 1, (ROWS, len(self._mask)))

    def __call__(self, prompts: list[Any], args: Any, processing_class: Any) -> dict[str, Any]:  # noqa: ARG002
        for environment in self._environments:
            environment.reset()
        tokens = self._prompt.repeat_interleave(GROUP, 0)
        for turn in range(TURNS):
            tokens = self._model.generate(tokens, attention_mask=torch.ones_like(tokens))
            for environment in self._environments:
                environment.step({"say": turn})
            tokens = torch.cat([tokens, self._reply], 1) if turn + 1 < TURNS else tokens
        return {
            "prompt_ids": self._prompt.tolist(),
            "completion_ids": tokens[:, PROMPT:].tolist(),
            "logprobs": self._logprobs.tolist(),
            "env_mask": [self._mask] * ROWS,
            "env_reward": [0.75] * ROWS,
        }


class Cost(NamedTuple):
    """Processor time, in µs a rollout."""

    own: float
    process: float
    zstd: float
    sqlite: float

    def without(self, other: "Cost") -> "Cost":
        return Cost(*(mine - its for mine, its in zip(self, other, strict=True)))


class Clock:
    """Adds up the processor time, in seconds, of some calls, each in its own thread."""

    def __init__(self) -> None:
        self.total = self._began = 0.0

    def start(self, *_: Any) -> None:
        self._began = time.thread_time()

    def stop(self, *_: Any) -> None:
        self.total += time.thread_time() - self._began

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self.start()
            try:
                return function(*args)
            finally:
                self.stop()

        return timed


class Costs:
    """Measures calls of rollout functions."""

    def __init__(self) -> None:
        self._zstd, self._sqlite, self._handing_over = Clock(), Clock(), Clock()
        self.handing_over: list[float] = []
        Recording.returned = self._handing_over.around(Recording.returned)  # type: ignore[method-assign]
        zstandard.ZstdCompressor = self._compressor  # type: ignore[assignment, misc]
        event.listen(Engine, "before_cursor_execute", self._sqlite.start)
        event.listen(Engine, "after_cursor_execute", self._sqlite.stop)
        DefaultDialect.do_commit = self._sqlite.around(DefaultDialect.do_commit)  # type: ignore[method-assign]

    def _compressor(self, *args: Any, **kwargs: Any) -> Any:
        made = _ZstdCompressor(*args, **kwargs)
        return SimpleNamespace(compress=self._zstd.around(made.compress))

    def of(self, function: Any, *args: Any) -> Cost:
        """Until all is written."""
        handing_over = self._handing_over.total
        zstd, sqlite, own, process = self._zstd.total, self._sqlite.total, time.thread_time(), time.process_time()
        function(*args)
        own = time.thread_time() - own
        flush()
        spent = own, time.process_time() - process, self._zstd.total - zstd, self._sqlite.total - sqlite
        self.handing_over.append((self._handing_over.total - handing_over) * 1e6 / ROWS)
        return Cost(*(seconds * 1e6 / ROWS for seconds in spent))


_ZstdCompressor = zstandard.ZstdCompressor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that each turn's generation takes")
    given = parser.parse_args()
    tokenizer = make_tokenizer()
    Patches().method(Model, "generate", transformers._recorded)  # noqa: SLF001 - what is measured
    plain = Rollouts(tokenizer, given.pause, [Environment() for _ in range(ROWS)])
    traced = Rollouts(tokenizer, given.pause, [trace_env(Environment()) for _ in range(ROWS)])
    prompts = [[{"role": "user", "content": "find the door. " * 40}] for _ in range(ROWS // GROUP)]
    args = SimpleNamespace(num_generations=GROUP, max_steps=given.steps, run_name=None, output_dir=".", to_dict=dict)
    costs = Costs()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "a.db"
        recorded = record(traced.__call__, eval_name="bench", db=db)
        added, handed_over = [], []
        for _ in range(given.steps):
            without = costs.of(plain, prompts, args, tokenizer)
            added.append(costs.of(recorded, prompts, args, tokenizer).without(without))
            handed_over.append(costs.handing_over[-1])
        rows = load_run(db=db)
        assert len(rows) == given.steps * ROWS, set(rows.error)
        assert set(rows.status) == {"ok"}
        row = rows.iloc[0]
        size = len(
            orjson.dumps(
                [row.messages, row.actions, *map(list, (row.prompt_ids.tolist(), row.completion_ids.tolist()))]
            )
        )
    warm = given.steps // 10
    print(f"{ROWS} rollouts of {size:,} bytes, {given.steps} steps\n")
    print("| µs a rollout | median |\n| --- | --- |")
    print(f"| handing the result over, own thread | {median(handed_over[warm:]):.1f} |")
    names = {"own": "own thread", "process": "whole process", "zstd": "whole process, in zstd"}
    for field, name in (names | {"sqlite": "whole process, in SQLite's driver"}).items():
        print(f"| all of it, {name} | {median(getattr(cost, field) for cost in added[warm:]):.0f} |")


if __name__ == "__main__":
    main()
