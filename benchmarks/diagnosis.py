"""Measures the time of the diagnosis of a long run.

    python benchmarks/diagnosis.py [--rollouts 100000] [--times 5] [--assert]

Records some rollouts for real, copies their rows until there are as many as asked for, and prints a Markdown table in
milliseconds, medians: the whole diagnosis as a command or a first page makes it (reading all columns, every
diagnostic), and what it takes to keep it up, after one more step of 32 rollouts. The limit is two seconds for
100,000 rollouts; `--assert` exits with 1 above it.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Engine, text

from logs_ui.recorder import flush, queries, start_run
from logs_ui.recorder.analysis.diagnose import Diagnosis
from logs_ui.recorder.storage.database import reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow

LIMIT_MS = 2_000
STEPS, GROUPS, GENERATIONS = 10, 4, 8
TASKS = 50
NEW_STEP = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--assert", action="store_true", dest="is_gate", help="exit with 1 above the limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "diagnosis.db"
        record_some(db)
        engine = writing_engine(db)
        copy_until(engine, options.rollouts)
        whole, kept = measure(engine, reading_engine(db), options.times)
    print(f"| {options.rollouts:,} rollouts | ms |\n| --- | --- |")
    print(f"| the whole diagnosis | {whole:.0f} |\n| again, after {NEW_STEP} more rollouts | {kept:.0f} |")
    if options.is_gate and whole > LIMIT_MS:
        sys.exit(f"The whole diagnosis took {whole:.0f} ms: more than {LIMIT_MS}.")


def record_some(db: Path) -> None:
    """Rollouts of three turns, half of them solved, with token ids and log-probs."""
    draw = random.Random(0)
    with start_run("long", db=db) as run:
        for step in range(1, STEPS + 1):
            for group in range(GROUPS):
                task = f"task {draw.randrange(TASKS)}"
                for generation in range(GENERATIONS):
                    ids = [draw.randrange(1_000) for _ in range(60)]
                    with run.rollout(
                        "Go.", task=task, step=step, group=f"{step}.{group}", generation=generation
                    ) as row:
                        for turn in range(3):
                            said = " ".join(f"w{draw.randrange(500)}" for _ in range(40))
                            row.turn(said, action={"go": draw.choice("NESW")}, observation=said[::-1], done=turn == 2)
                        row.tokens([step, group], ids, logprobs=[-draw.random() for _ in ids])
                    solved = float(draw.random() < 0.5)
                    row.score(rewards={"solved": solved, "short": draw.random()}, weights={"short": 0.1})
        run.log(STEPS, {"grad_norm": 0.5, "learning_rate": 1e-6})
    flush()


def copy_until(engine: Engine, count: int) -> None:
    """More steps, with the rows of those that there are."""
    made = STEPS * GROUPS * GENERATIONS
    for round_ in range(1, -(-count // made)):
        copy(engine, round_, min(made, count - round_ * made))


def copy(engine: Engine, round_: int, limit: int, changed: str = "changed") -> None:
    table = str(EvaluationRow.__tablename__)
    own = {"id", "uid", "step", "policy_step", "group", "changed"}
    rest = ", ".join(f'"{name}"' for name in EvaluationRow.model_fields if name not in own)
    with engine.begin() as connection:
        connection.execute(
            text(
                f'INSERT INTO {table} (uid, step, policy_step, "group", changed, {rest}) '  # noqa: S608 - names of ours
                f"SELECT uid || '/{round_}', step + {round_ * STEPS}, policy_step + {round_ * STEPS}, "
                f"\"group\" || '/{round_}', {changed}, {rest} FROM {table} "
                f"WHERE step <= {STEPS} ORDER BY id LIMIT {limit}"
            )
        )


def measure(writing: Engine, engine: Engine, times: int) -> tuple[float, float]:
    """Milliseconds: the whole, and what keeping it up takes."""
    run = queries.find_run(engine, "latest")
    whole = median(timed(lambda: Diagnosis(engine, run).now(engine, run)) for _ in range(times))
    diagnosis = Diagnosis(engine, run)
    diagnosis.now(engine, run)
    kept = []
    for number in range(times):
        copy(writing, 1_000_000 + number, NEW_STEP, changed=str(10_000_000 + number))
        kept.append(timed(lambda: diagnosis.now(engine, run)))
    return whole, median(kept)


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return 1_000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
