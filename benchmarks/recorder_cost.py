"""Measures the cost of recording for the training process, per rollout.

    python benchmarks/recorder_cost.py --steps 60 [--assert]

Plays the same steps with and without `record()`, in turn: 32 rollouts of three turns, played in lockstep, of about 9 KB
each in all (messages, actions, token ids, log-probs as they are stored and mask, as JSON), and once more of 15 KB, 9 of
them without log-probs and mask. Prints a Markdown table in µs a rollout, medians over the steps:

- what handing the result over takes on the caller's thread, and what all that is recorded there takes: processor time;
- as a yardstick, in the same steps on the same thread, what it takes to copy the lists that the function returned (a
  tuple of each) and to do nothing else: no recorder hands over in less what the caller may change later;
- what a thread that is busy in Python all the time loses: that, and the time for which it waits for the GIL while a
  thread of the recorder has it. Each turn's generation is then a loop that reads the clock, as is the time until the
  rows are committed; what is lost is where the clock jumps. No thread of a training waits for the GIL more than such
  a one;
- how often the recorder's thread has to wait there, most often for the GIL that it had let go of: each time costs that
  busy thread a change of threads, whatever is done then (Linux only);
- processor time of the training's whole process, where each turn's generation is a pause, so that all of it is the
  recorder's: also what runs without the GIL;
- processor time of the helper process, which writes what was recorded (attribution, encoding, compression, SQLite),
  on a core that the training may or may not want. With `LOGS_UI_WRITER=thread` all of it is the training's.

The limits are for rollouts of 9 KB, and `--assert` exits with 1 above them: 5 µs for handing over; 150 µs in
all, the GIL included, which is what makes a step of 32 rollouts half a percent of a second longer. Processor time has
none.

In it is all that `record()` makes this process do from the call of the rollout function until its rows are committed:
the calls seen on the function's own thread, the copy of what it returns, and in a thread of its own, or in the helper
process, the rows' first appearance as `running`, attribution, encoding, compression, SQLite, its log and its
checkpoints. The function takes as
long as `--pause` says, three times for each step: rows that run for more than a second are written again as they stand
(after 1, 3, 7, ... seconds), and their cost is in it if the pauses are that long. Not in it is what comes once for a
run (its first tenth of the steps is left out), what a trainer says of the rows later (rewards, advantages), images, and
what other processes do (the dashboard's reading).
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd
import psutil
import torch

from logs_ui.recorder import flush, load_run, record, trace_env
from logs_ui.recorder.api.trainer_run import Recording
from logs_ui.recorder.capture.instruments import transformers
from logs_ui.recorder.capture.instruments.patch import Patches
from logs_ui.recorder.delivery import writer
from logs_ui.rollout.demo.guess_model import EOS, START, make_tokenizer

sys.path.append(str(Path(__file__).parent.parent))
from tests.support.old_calls import StandInTrainer, generating

ROWS, GROUP, TURNS, PROMPT, SAID = 32, 8, 3, 330, 12
COUNTED = " 1 2 3 4 5 6 7 8 9 10"
HANDING_OVER, IN_ALL = 5.0, 150.0  # µs a rollout, at most
LIMITS = f"{HANDING_OVER:.0f}", "", "", f"{IN_ALL:.0f}", "", "", ""
LISTS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
NAMES = (
    "handing the result over, caller's thread",
    "yardstick: copying the lists that it returned, and nothing else",
    "all of it, caller's thread",
    "lost by a thread that is always busy: that, and waiting for the GIL",
    "all of it, processor time of the training's process",
    "processor time of the helper process",
    "no time: how often the recorder's thread waits beside a busy one",
)
JUMP = 3e-6  # seconds between two looks at the clock, which take some 0.1 µs: somebody else ran
os.environ["LOGS_UI_RAISE"] = "1"
torch.set_num_threads(1)

Pause = Callable[[float], None]


class Size(NamedTuple):
    """The size of a rollout.

    Attributes:
        answer: tokens that the model says in each turn.
        reply: how often the environment counts to ten in between.
    """

    answer: int
    reply: int

    @property
    def reply_text(self) -> str:
        """Return the text between two answers."""
        return f"{EOS}\n{START}user\n{COUNTED * self.reply}{EOS}\n{START}assistant\n"


SIZES = Size(110, 1), Size(200, 5)  # the limits are for the first


class Environment:
    """Answers at once."""

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text": "the room is dark " * 8}, {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {"text": "you hear " + action["say"][:8]}, 0.25, False, False, {}


class Model:
    """Samples after a pause.

    Attributes:
        said: (TURNS, ROWS) what its answers begin with.
    """

    training = True

    def __init__(self, tokenizer: Any, seconds: float, size: Size) -> None:
        random = np.random.default_rng(0)
        shape = ROWS, size.answer
        self._answers = [torch.from_numpy(random.integers(5, len(tokenizer), shape)) for _ in range(TURNS)]
        self.said = [tokenizer.batch_decode(answers[:, :SAID], skip_special_tokens=True) for answers in self._answers]
        self._turn = 0
        self._seconds = seconds
        self.pause: Pause = time.sleep
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        self.generation_config = SimpleNamespace(**ends, temperature=1.0, top_p=0.9, max_new_tokens=size.answer)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self.pause(self._seconds)
        self._turn += 1
        return torch.cat([input_ids, self._answers[(self._turn - 1) % TURNS]], 1)


class Rollouts:
    """A rollout function that does nothing but what is recorded."""

    def __init__(self, tokenizer: Any, model: Model, environments: list[Any], size: Size) -> None:
        self._model, self._environments = model, environments
        self._prompt = torch.from_numpy(np.random.default_rng(1).integers(5, len(tokenizer), (ROWS // GROUP, PROMPT)))
        self._reply = torch.tensor([tokenizer.encode(size.reply_text, add_special_tokens=False)] * ROWS)
        inserted = self._reply.shape[1]
        self._mask = ([1] * size.answer + [0] * inserted) * (TURNS - 1) + [1] * size.answer
        self._logprobs = np.random.default_rng(2).normal(-1, 1, (ROWS, len(self._mask)))

    def __call__(self, prompts: list[Any], args: Any, processing_class: Any) -> dict[str, Any]:  # noqa: ARG002
        for environment in self._environments:
            environment.reset()
        tokens = self._prompt.repeat_interleave(GROUP, 0)
        for turn in range(TURNS):
            tokens = self._model.generate(tokens, attention_mask=torch.ones_like(tokens))
            for environment, words in zip(self._environments, self._model.said[turn], strict=True):
                environment.step({"say": words})
            tokens = torch.cat([tokens, self._reply], 1) if turn + 1 < TURNS else tokens
        return {
            "prompt_ids": self._prompt.tolist(),
            "completion_ids": tokens[:, PROMPT:].tolist(),
            "logprobs": self._logprobs.tolist(),
            "env_mask": [list(self._mask) for _ in range(ROWS)],
            "env_reward": [0.75] * ROWS,
        }


class Busy:
    """A thread that only runs Python, and the seconds for which it could not."""

    def __init__(self) -> None:
        self.seconds = self.lost = 0.0

    def pause(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        self.until(lambda: time.perf_counter() >= end)

    def until(self, is_over: Callable[[], bool]) -> None:
        clock, lost = time.perf_counter, 0.0
        begin = before = clock()
        while not is_over():
            for _ in range(200):
                now = clock()
                if now - before > JUMP:
                    lost += now - before
                before = now
        self.seconds += clock() - begin
        self.lost += lost


def _flushed(event: threading.Event) -> None:
    flush()
    event.set()


class Bench:
    """Plays the same rollouts with and without the recorder."""

    def __init__(self, pause: float, db: Path, size: Size) -> None:
        tokenizer = make_tokenizer()
        Patches().method(Model, "generate", transformers._recorded)  # noqa: SLF001 - what is measured
        self._model = Model(tokenizer, pause, size)
        plain = Rollouts(tokenizer, self._model, [Environment() for _ in range(ROWS)], size)
        traced = Rollouts(tokenizer, self._model, [trace_env(Environment()) for _ in range(ROWS)], size)
        prompts = [[{"role": "user", "content": "find the door. " * 40}] for _ in range(ROWS // GROUP)]
        recorded, trainer = (
            record(traced.__call__, eval_name="bench", db=db),
            StandInTrainer(model=self._model, num_generations=GROUP),
        )

        def call_recorded() -> dict[str, Any]:
            with generating(trainer):
                output: dict[str, Any] = recorded(prompts, trainer.args, tokenizer)
                return output

        self._without = lambda: plain(prompts, None, tokenizer)
        self._with = call_recorded
        self._handed_over = self._tail = 0.0
        self._waits = 0
        self._measure_handing_over()

    def step(self) -> "Cost":
        """Measure one step, in µs per rollout."""
        own, process, returned = self._processor_time(self._without)
        copying = seconds_for_copies(returned)
        beside = seconds_beside()
        recorded_own, recorded_process, _ = self._processor_time(self._with)
        beside = seconds_beside() - beside
        handed_over = self._handed_over
        unhindered = self._lost(self._without)
        hindered = self._lost(self._with)
        spent = (handed_over, copying, recorded_own - own, hindered - unhindered, recorded_process - process, beside)
        return Cost(*(seconds * 1e6 / ROWS for seconds in spent))._replace(waits=self._waits / ROWS)

    def _processor_time(self, call: Callable[[], Any]) -> tuple[float, float, dict[str, Any]]:
        """Measure the processor time of this thread and of the process until everything is written. Also return what
        the function returned.
        """
        self._model.pause = time.sleep
        own, process = time.thread_time(), time.process_time()
        returned = call()
        own = time.thread_time() - own
        flush()
        return own, time.process_time() - process, returned

    def _lost(self, call: Callable[[], Any]) -> float:
        """Seconds in which a thread that is always busy did not do its own work, until all is written; of work without
        the recorder as many seconds, and what the system takes from it.
        """
        busy = Busy()
        self._model.pause = busy.pause
        begin, waits = time.perf_counter(), waits_of_writer()
        call()
        outside = time.perf_counter() - begin - busy.seconds
        if call is self._without:
            busy.pause(self._tail)
        else:
            begin = time.perf_counter()
            written = threading.Event()
            threading.Thread(target=_flushed, args=(written,)).start()
            busy.until(written.is_set)
            self._tail = time.perf_counter() - begin
            self._waits = waits_of_writer() - waits
        return outside + busy.lost

    def _measure_handing_over(self) -> None:
        hand_over = Recording.returned

        def measured(*args: Any) -> None:
            begin = time.thread_time()
            hand_over(*args)
            self._handed_over = time.thread_time() - begin

        Recording.returned = measured  # type: ignore[method-assign, assignment]


class Cost(NamedTuple):
    """Costs in µs per rollout."""

    handing_over: float
    copying: float
    own: float
    lost: float
    process: float
    beside: float
    waits: float = 0.0  # no time, but how many


def seconds_for_copies(returned: dict[str, Any]) -> float:
    """Processor time for a tuple of each list that a rollout function returned."""
    begin = time.thread_time()
    copies = [list(map(tuple, returned[name])) for name in LISTS]
    seconds = time.thread_time() - begin
    del copies
    return seconds


def seconds_beside() -> float:
    """Processor time so far of the process that writes; 0 where there is none."""
    pids = [getattr(it._outlet, "pid", None) for it in writer._by_address.values()]  # noqa: SLF001 - no children of it
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids if pid is not None)


def waits_of_writer() -> int:
    """Return how often the recorder's thread has waited so far; 0 if the system does not report it."""
    ids = [thread.native_id for thread in threading.enumerate() if thread.name == "logs-ui writer"]
    files = [Path(f"/proc/self/task/{native}/status") for native in ids]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def bytes_of(row: "pd.Series[Any]") -> tuple[int, int]:
    """Return the size of one rollout as JSON: all of it, with log-probs to three decimals; and its messages, actions
    and token ids alone.
    """
    told = [row.messages, row.actions, row.prompt_ids.tolist(), row.completion_ids.tolist()]
    numbers = [[round(float(value), 3) for value in row.logprobs], row["mask"].tolist()]
    return len(orjson.dumps([*told, *numbers])), len(orjson.dumps(told))


def measured(size: Size, steps: int, pause: float) -> tuple[str, Cost]:
    """Measure the size and the cost of its rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "a.db"
        bench = Bench(pause, db, size)
        costs = [bench.step() for _ in range(steps)]
        rows = load_run(db=db)
        assert len(rows) == 2 * steps * ROWS, set(rows.error)
        assert set(rows.status) == {"ok"}
        whole, without_numbers = bytes_of(rows.iloc[0])
    told = f"{whole:,} bytes, {without_numbers:,} without log-probs and mask"
    return told, Cost(*map(median, zip(*costs[steps // 10 :], strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that each turn's generation takes")
    parser.add_argument("--assert", action="store_true", dest="asserts", help="exit with 1 above the limits")
    given = parser.parse_args()
    found = []
    for size in SIZES:  # each in a process of its own: what the first leaves behind would cost the second
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
            found.append(own.submit(measured, size, given.steps, given.pause).result())
    (told, limited), (told_larger, larger) = found
    print(f"{ROWS} rollouts a step, {given.steps} steps; A: {told}; B: {told_larger}\n")
    print("| µs a rollout, median | A | at most | B |\n| --- | --- | --- | --- |")
    for name, a, limit, b in zip(NAMES, limited, LIMITS, larger, strict=True):
        print(f"| {name} | {_short(a)} | {limit} | {_short(b)} |")
    holds = limited.handing_over <= HANDING_OVER and limited.lost <= IN_ALL
    print("\nWithin the limits." if holds else "\nAbove the limits.")
    sys.exit(given.asserts and not holds)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


if __name__ == "__main__":
    main()
