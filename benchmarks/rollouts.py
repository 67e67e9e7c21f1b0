"""Makes a database of as many rollouts as a long training makes, that look like those of one.

    python benchmarks/rollouts.py million.db --rollouts 1000000 --processes 2 --runs 1

What is real: some thousands of rollouts (16 for each of `--tasks`, each with texts, token ids and log-probs of its own)
are recorded by `start_run()`, so that the recorder's own code finds their messages, columns and facts, and packs each
payload by itself. What is not: a rollout of the database then takes one of these as its text, payload and facts, so
that a million are made in minutes; its identity, group, times, rewards, advantage and keys are its own. All are written
by the recorder's `Writer` as a training's are: by several processes to one run, half of each step by each.

The texts are English prose (Python's language reference, as `help()` shows it) where a person or a model speaks, and
source code (Python's standard library) where an environment does; the passages of a rollout follow one another in one
of them. Token ids are a byte-level BPE's of 32,000 tokens, trained on the same texts; a third of the prompt's are of
declared tools, which no message has.

On average a rollout has 7 kB of messages, 2,000 token ids, 1,000 of which have log-probs, and 5 turns. There are 4
evals and one that is held out, 512 tasks, 32 rollouts a step in groups of 8, 3 reward functions whose rewards rise, and
every way in which a rollout ends. The last line says how many bytes of the file each takes.
"""

import argparse
import itertools
import math
import multiprocessing
import os
import random
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlmodel import col
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from logs_ui.recorder import queries, start_run
from logs_ui.recorder.api.run_description import versions
from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery.writer import Writer, flush
from logs_ui.recorder.queries.payloads import with_payloads
from logs_ui.recorder.storage.changes import (
    Change,
    PayloadStartChange,
    RowChange,
    RunChange,
    ScalarsChange,
    TokenizerChange,
    kept_bytes,
)
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason

STEP_ROLLOUTS, GROUP = 32, 8
STEP_US = 40_000_000
EVAL_EVERY = 100  # steps
EVALS = {"shell": 8, "maths": 4, "web": 3, "games": 1}  # by their share of the tasks, in 16ths
HELD_OUT = "shell held-out"
WEIGHTS = {"solved": 1.0, "format": 0.2, "brevity": 0.1}
ENDS = ("solved",) * 6 + ("wrong",) * 3 + ("length",) * 2 + ("turn_limit",) * 2 + ("no_action", "error", "timeout")
"""Of the rollouts of a task that are recorded."""
FAILURES = {"wrong": 45, "length": 25, "turn_limit": 15, "no_action": 10, "error": 3, "timeout": 2}
LOGGED = ("loss", "grad_norm", "learning_rate", "entropy", "kl", "reward", "reward_std", "frac_reward_zero_std")
LOGGED_EVERY = 10  # steps
SYSTEM = (
    "You are a careful assistant with a shell. Call the tool `run` with one command at a time; say `done` at the end."
)
TOOLS_TOKENS, PROMPT_TOKENS, COMPLETION_TOKENS = 340, 680, 950
VOCABULARY = 32_000
_OF_ITS_OWN = {"id", "run_id", "uid", "changed", "group", "generation", "process", "step", "policy_step", "epoch"}
_OF_ITS_OWN |= {"mode", "eval_name", "model", "created", "returned", "scored", "seconds", "reward", "rewards"}
_OF_ITS_OWN |= {"reward_weights", "advantage"}


class Texts:
    """Real texts, of which rollouts are made."""

    def __init__(self) -> None:
        self.prose = "\n".join(" ".join(text.split()) for text in topics.topics.values())
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.code = "\n".join(source.read_text(errors="replace") for source in sources)


class Passages:
    """Passages of a text that follow one another, as what is said of one thing does, from some place in it on."""

    def __init__(self, text: str, tokenizer: Tokenizer, rng: random.Random) -> None:
        self._text, self._tokenizer = text, tokenizer
        self._place = rng.randrange(len(text) - 50_000)

    def next(self, tokens: int) -> str:
        """Return the next one, of so many tokens."""
        ids = self._tokenizer.encode(self._text[self._place : self._place + 8 * tokens + 40]).ids[: max(tokens, 4)]
        passage: str = self._tokenizer.decode(ids).strip("\ufffd")
        self._place += len(passage)
        return passage


def make_tokenizer(texts: Texts) -> Tokenizer:
    """Byte-level BPE, with the special tokens of ChatML."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([texts.prose, texts.code[:3_000_000]], trainer)
    return tokenizer


@dataclass(frozen=True)
class Model:
    """A rollout as it was recorded, which others take after."""

    columns: dict[str, Any]
    payload: dict[str, Any]
    starts: tuple[PayloadStartChange, ...]


class Models:
    """Rollouts of some tasks, recorded by `start_run()` into a database that is thrown away.

    Attributes:
        by_task: by the task's number and how they end.
    """

    def __init__(
        self, tasks: range, tokenizer: Tokenizer, texts: Texts, told: Callable[[int], None] = lambda _: None
    ) -> None:
        """`told` is called with how many more are recorded, now and then."""
        self._tokenizer, self._texts = tokenizer, texts
        os.environ["LOGS_UI_QUEUE_SECONDS"] = "600"  # none loses its text
        with tempfile.TemporaryDirectory() as folder:
            db = Path(folder, "models.db")
            with start_run(tokenizer=tokenizer, db=db) as run:
                for task in tasks:
                    self._record(run, task)
                    told(len(ENDS))
                flush(None)
            self.by_task = _read(db)

    def _record(self, run: Any, task: int) -> None:
        rng = random.Random(task)
        asked = self._passages(self._texts.prose, rng).next(PROMPT_TOKENS - 60 + rng.randrange(-200, 200))
        # As a chat template declares them: a part of the prompt's ids that no message has.
        tools = self._passages(self._texts.code, random.Random(eval_of(task))).next(TOOLS_TOKENS)
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
        prompt_ids = self._ids(
            tools + "".join(f"<|im_start|>{it['role']}\n{it['content']}<|im_end|>\n" for it in prompt)
        )
        for number, end in enumerate(ENDS):
            with run.rollout(prompt, task=task_name(task), group=f"{task}", generation=number) as row:
                row.note(end=end)
                self._play(row, random.Random(f"{task}/{number}"), end, prompt_ids)

    def _play(self, row: Any, rng: random.Random, end: str, prompt_ids: list[int]) -> None:
        """Return some turns: what the model says, the command that it gives, and what the shell answers."""
        length = int(COMPLETION_TOKENS * rng.lognormvariate(-0.08, 0.4)) * (2 if end == "length" else 1)
        turns = 8 if end == "turn_limit" else rng.randint(2, 7)
        prose, code = self._passages(self._texts.prose, rng), self._passages(self._texts.code, rng)
        ids: list[int] = []
        mask: list[int] = []
        for turn in range(turns):
            is_last = turn == turns - 1
            said = prose.next(int(0.55 * length / turns))
            command = f"grep -rn {rng.choice(said.split() or ['x'])!r} lib/ | head -n {rng.randint(1, 40)}"
            is_action = not (is_last and end in {"no_action", "length"})
            answer = f"{said}\n\n```sh\n{command}\n```<|im_end|>" if is_action else said
            heard = code.next(int(0.35 * length / turns))
            failed = {"error": "ConnectionError: the shell closed its end (code 1011)", "timeout": "TimeoutError: 30 s"}
            broken = failed.get(end) if is_last else None
            own = self._ids(answer)
            ids, mask = ids + own, mask + [1] * len(own)
            row.turn(
                answer.removesuffix("<|im_end|>"),
                finish="length" if is_last and end == "length" else "stop",
                action={"command": command} if is_action else None,
                observation=heard if is_action and broken is None else None,
                reward=float(end == "solved") if is_last else 0.0,
                done=is_last and end in {"solved", "wrong"},
                seconds=rng.uniform(0.05, 2.0),
                error=broken,
            )
            if not is_last:
                between = self._ids(f"\n<|im_start|>user\n{heard}<|im_end|>\n<|im_start|>assistant\n")
                ids, mask = ids + between, mask + [0] * len(between)
        surprise = np.random.default_rng(rng.randrange(2**32)).gamma(0.35, 0.9, len(ids))
        row.tokens(prompt_ids, ids, logprobs=(-surprise * np.array(mask)).tolist(), mask=mask)
        if rng.random() < 0.02:
            row.tag("looked-at")
        row.metric("commands", turns)

    def _passages(self, text: str, rng: random.Random) -> Passages:
        return Passages(text, self._tokenizer, rng)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


def _read(db: Path) -> dict[int, dict[str, list[Model]]]:
    found: dict[int, dict[str, list[Model]]] = defaultdict(lambda: defaultdict(list))
    row, payload = EvaluationRow, RolloutPayload
    joined = with_payloads(select(row, col(payload.content_start), col(payload.tokens_start))).order_by(col(row.id))
    engine = reading_engine(db)
    with engine.connect() as connection:
        for values in connection.execute(joined).mappings():
            columns = {name: values[name] for name in row.model_fields if name not in _OF_ITS_OWN}
            end = ENDS[values["generation"]]
            packed = {name: values[name] for name in ("content", "content_start", "tokens", "tokens_start")}
            begins = {values[f"{name}_start"]: values[f"before_{name}"] for name in ("content", "tokens")}
            starts = tuple(PayloadStartChange(start, data) for start, data in begins.items() if start is not None)
            found[int(columns["task"].rpartition(" ")[2])][end].append(Model(columns, packed, starts))
    engine.dispose()
    return {task: dict(by_end) for task, by_end in found.items()}


def task_name(task: int) -> str:
    return f"{eval_of(task)} task {task}"


def eval_of(task: int) -> str:
    """Draw an eval, each with its own share."""
    names = [name for name, share in EVALS.items() for _ in range(share)]
    return names[task % len(names)]


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        steps: of the first and the one behind the last that are written now.
        of: steps that the training has in all, by which rewards rise.
        begins: µs since the epoch.
    """

    uid: str
    steps: range
    of: int
    begins: int
    seed: int


class Maker:
    """Rollouts of one process's tasks.

    Args:
        process: which of `processes`: it has that part of the tasks, and of each step's groups.
    """

    def __init__(self, found: Models, process: int, processes: int) -> None:
        self._models, self._tasks = found.by_task, sorted(found.by_task)
        self._process, self._processes = process, processes

    def step(self, plan: Plan, step: int) -> list[tuple[tuple[Change, ...], ...]]:
        """Return what is written of each row when it starts, returns and is scored."""
        rng = random.Random(f"{plan.seed}/{plan.uid}/{step}/{self._process}")
        modes = [Mode.TRAIN] + [Mode.EVAL] * (step % EVAL_EVERY == 0)
        groups = range(self._process, STEP_ROLLOUTS // GROUP, self._processes)
        return [row for mode in modes for group in groups for row in self._group(plan, rng, mode, step, group)]

    def _group(
        self, plan: Plan, rng: random.Random, mode: Mode, step: int, group: int
    ) -> Iterator[tuple[tuple[Change, ...], ...]]:
        task = rng.choice(self._tasks)
        # Harder and easier ones; what is never solved at first is learnt late.
        skill = 6 * step / plan.of - 4 + (task * 2654435761 % 1000) / 200
        ends = [self._end(rng, 1 / (1 + math.exp(-skill))) for _ in range(GROUP)]
        rewards = [_rewards(rng, end) for end in ends]
        totals = [_total(given) for given in rewards]
        known = [total for total in totals if total is not None]
        mean, spread = (fmean(known), pstdev(known)) if known else (0.0, 0.0)
        began = plan.begins + step * STEP_US + rng.randrange(STEP_US // 4)
        for generation, (end, given, total) in enumerate(zip(ends, rewards, totals, strict=True)):
            index = group * GROUP + generation
            identity = {
                "eval_name": eval_of(task) if mode == Mode.TRAIN else HELD_OUT,
                "mode": mode, "step": step, "policy_step": step - 1, "epoch": step / plan.of,
                "group": f"{plan.uid}/{mode.value}/{step}/{group}", "generation": generation,
                "process": self._process, "model": "Qwen/Qwen3-0.6B", "created": began,
            }  # fmt: skip
            advantage = None if total is None else (total - mean) / (spread + 1e-4)
            scored = {"reward": total, "rewards": given, "reward_weights": WEIGHTS, "advantage": advantage}
            yield self._row(plan, rng, self._models[task][end], f"{mode.value}/{step}/{index}", identity, scored)

    def _end(self, rng: random.Random, chance: float) -> str:
        return "solved" if rng.random() < chance else rng.choices(list(FAILURES), list(FAILURES.values()))[0]

    def _row(
        self, plan: Plan, rng: random.Random, models: list[Model], uid: str, identity: dict[str, Any],
        scored: dict[str, Any],
    ) -> tuple[tuple[Change, ...], ...]:  # fmt: skip
        model = rng.choice(models)
        seconds = (model.columns["turns"] or 1) * rng.lognormvariate(0.3, 0.5)
        returned = identity["created"] + int(1e6 * seconds)
        own = {"seconds": seconds, "returned": returned, "completion_key": rng.getrandbits(62)}
        own |= {"completion_tokens": model.columns["completion_tokens"]}
        columns = {**model.columns, **own}
        task = columns["task"]
        begins = {"status": Status.RUNNING, "stop_reason": None, "task": task}
        if rng.random() < 0.0002:
            columns |= {"status": Status.ABORTED, "stop_reason": StopReason.ABORTED, "error": "KeyboardInterrupt"}
            scored = dict.fromkeys(scored)
        tags = ("odd",) if rng.random() < 0.003 else ()
        return (
            (RowChange(plan.uid, uid, identity, begins),),
            (*model.starts, RowChange(plan.uid, uid, identity, columns, tags=tags, **model.payload)),
            (RowChange(plan.uid, uid, identity, {**scored, "scored": returned + 2_000_000}),),
        )


def _rewards(rng: random.Random, end: str) -> dict[str, float | None]:
    """None of a rollout that its environment cost."""
    if end in {"error", "timeout"}:
        return dict.fromkeys(WEIGHTS)
    form = -1.0 if end in {"no_action", "length"} else rng.choice((0.5, 1.0, 1.0))
    return {"solved": float(end == "solved"), "format": form, "brevity": round(-rng.random(), 3)}


def _total(given: dict[str, float | None]) -> float | None:
    known = [value * WEIGHTS[name] for name, value in given.items() if value is not None]
    return math.fsum(known) if known else None


def _logged(plan: Plan, step: int) -> ScalarsChange:
    rng = random.Random(f"{plan.seed}/{step}")
    return ScalarsChange(plan.uid, step, {name: rng.random() * (1 - step / plan.of) for name in LOGGED})


def _described(plan: Plan, tokenizer: str) -> list[Change]:
    digest = f"benchmark-{VOCABULARY}"
    config = {"learning_rate": 1e-6, "num_generations": GROUP, "beta": 0.0, "seed": plan.seed, "max_steps": plan.of}
    columns = {
        "host": "benchmark", "pid": os.getpid(), "versions": versions(), "config": config,
        "name": f"benchmark {plan.uid}", "created": plan.begins, "heartbeat": now_us(),
        "model": "Qwen/Qwen3-0.6B", "max_steps": plan.of, "num_generations": GROUP,
        "tokenizer": digest,
    }  # fmt: skip
    return [RunChange(plan.uid, columns), TokenizerChange(digest, tokenizer)]


def _put(writer: Writer, changes: list[Change]) -> None:
    writer.put(ChangesJob(changes.copy, sum(map(kept_bytes, changes))))


def write(
    db: Path, plans: list[Plan], tokenizer: str, tasks: int, process: int, processes: int, recorded: Any, done: Any
) -> None:
    """Record this process's part of some runs, one after the other. `recorded` counts those that others take after,
    `done` those that are written.
    """

    def told(number: int) -> None:
        with recorded.get_lock():
            recorded.value += number

    found = Models(range(process, tasks, processes), Tokenizer.from_str(tokenizer), Texts(), told)
    maker, writer = Maker(found, process, processes), Writer(db, Limits(queue_bytes=64 << 20, queue_seconds=3600.0))
    for plan in plans:
        for step in plan.steps:
            rows = maker.step(plan, step)
            logged = [_logged(plan, step)] if process == 0 and step % LOGGED_EVERY == 0 else []
            _put(writer, [*(change for row in rows for part in row for change in part), *logged])
            with done.get_lock():
                done.value += len(rows)
    writer.flush()


def keep_writing(db: Path, run: str, per_second: float, begun: Any, stop: Any, tasks: int = 32) -> None:
    """More rollouts of a run that is there, as a training writes them: at first that they run, a second later what
    they said, and one later their rewards.

    Args:
        db: the database.
        run: the run's uid.
        per_second: rollouts.
        begun: an event, which is set when it begins.
        stop: an event, which ends it.
        tasks: of how many tasks the rollouts are.
    """
    engine = reading_engine(db)
    found = queries.find_run(engine, run)
    first = 1 + max((series.last for series in queries.step_series(engine, found.id or 0)), default=0)
    engine.dispose()
    texts = Texts()
    maker, writer = Maker(Models(range(tasks), make_tokenizer(texts), texts), 0, 1), Writer(db)
    plan = Plan(found.uid, range(0), 2 * first, now_us() - first * STEP_US, 0)
    _put(writer, [RunChange(found.uid, {"state": RunState.RUNNING, "finished": None})])
    writer.flush()
    begun.set()
    pause, later = STEP_ROLLOUTS / per_second, int(per_second / STEP_ROLLOUTS) + 1
    made: list[list[tuple[tuple[Change, ...], ...]]] = []
    start = time.monotonic()
    for number in itertools.count():
        made.append(maker.step(plan, first + number))
        for age, part in enumerate((0, later, 2 * later)):
            if number >= part:
                _put(writer, [change for row in made[number - part] for change in row[age]])
        if number >= 2 * later:
            made[number - 2 * later] = []
        over = stop.wait(max(0.0, start + (number + 1) * pause - time.monotonic()))
        if over or os.getppid() == 1:  # also where who began it was killed
            break
    writer.flush(60.0)
    took = time.monotonic() - start
    sys.stderr.write(f"wrote {STEP_ROLLOUTS * number / took:,.0f} rollouts/s for {took:.0f} s\n")


def make(db: Path, rollouts: int, processes: int, runs: int, tasks: int) -> None:
    """Write them, and say how far it is."""
    steps = -(-rollouts // (STEP_ROLLOUTS * runs) * EVAL_EVERY // (EVAL_EVERY + 1))
    now = now_us()
    plans = [
        Plan(
            f"benchmark-{number:02}", range(1, steps + 1), steps, now - (runs - number) * (steps + 1) * STEP_US, number
        )
        for number in range(runs)
    ]
    tokenizer = make_tokenizer(Texts()).to_str()
    writer = Writer(db)
    for plan in plans:
        _put(writer, _described(plan, tokenizer))
    writer.flush()
    context = multiprocessing.get_context("spawn")
    recorded, done = context.Value("q", 0), context.Value("q", 0)
    start = time.monotonic()
    workers = [
        context.Process(target=write, args=(db, plans, tokenizer, tasks, process, processes, recorded, done))
        for process in range(processes)
    ]
    for worker in workers:
        worker.start()
    begun = 0.0
    while any(worker.is_alive() for worker in workers):
        time.sleep(1.0)
        took = time.monotonic() - start
        begun = took if not done.value else begun
        left = f", {(took - begun) * (rollouts / done.value - 1):.0f} s left" if done.value else ""
        what = f"{done.value:,} of {rollouts:,} written" if done.value else f"{recorded.value:,} recorded"
        sys.stderr.write(f"\r{what}, {took:.0f} s{left}   ")
    if any(worker.exitcode for worker in workers):
        sys.exit("\nA process failed: see above.")
    for plan in plans:
        _put(writer, [RunChange(plan.uid, {"state": RunState.FINISHED, "finished": now_us(), "heartbeat": now_us()})])
    writer.flush()
    writer.settle(60.0)
    size = db.stat().st_size
    sys.stderr.write(f"\n{db}: {size / 1e9:.2f} GB, {size / done.value:,.0f} bytes a rollout\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=512)
    given = parser.parse_args()
    if given.db.exists():
        sys.exit(f"{given.db} is there already. Name another file.")
    make(given.db, given.rollouts, given.processes, given.runs, given.tasks)


if __name__ == "__main__":
    main()
