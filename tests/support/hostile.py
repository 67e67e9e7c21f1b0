"""Records runs whose figures, names and sizes are as bad as they can be, for walks over all pages.

python -m tests.support.hostile some.db
"""

import math
import sys
from pathlib import Path

from logs_ui.recorder import start_run

HUGE = (1e308, -1e308, math.nan, math.inf, -math.inf, 0.0, 1.0, 0.5)
"""Rewards of the first run's rollouts, in turn; the weight 10 makes an infinite sum of 1e308."""
LONG = "webarena/shopping_admin/" + "a_name_without_any_blank_" * 8
FUNCTIONS = [f"rewards.environment.correctness_of_the_final_answer_reward_func_number_{n}" for n in range(60)]


def record_huge(db: Path) -> str:
    """Record groups of 64 rollouts with rewards of any size, names without blanks, and one rollout of 200 turns."""
    config = {"learning_rate": math.nan, "beta": math.inf, "epsilon": -math.inf, LONG: LONG, "list": [math.nan, 1.0]}
    with start_run(f"run {LONG}", eval_name=f"eval {LONG}", model=f"/models/{LONG}", config=config, db=db) as run:
        for step in range(1, 5):
            for group in range(2):
                for generation in range(64):
                    value = HUGE[(generation + group) % len(HUGE)]
                    with run.rollout(
                        f"Do {LONG}.", task=f"{LONG}{group}", step=step, mode="train", group=f"{step}/{group}",
                        generation=generation, metadata={LONG: {"metrics": LONG}, "score": value},
                    ) as row:  # fmt: skip
                        for turn in range(200 if not generation and step == 1 else 2):
                            action = {"name": f"tool_{LONG}", "arguments": {LONG: f"{LONG}{turn}"}}
                            row.turn(f"I {LONG}", action=action, observation={LONG: LONG}, reward=value, seconds=1e9)
                        row.tag(LONG)
                        row.metric(f"metric_{LONG}", value)
                        if generation == 63:
                            row.failed(RuntimeError(f"broken {LONG}"))
                    rewards = {f"reward_{LONG}": value, f"other_{LONG}": 1e308 if generation % 3 else -1e308}
                    weights = {f"reward_{LONG}": 10.0, f"other_{LONG}": 1e-308}
                    row.score(rewards=rewards, weights=weights, advantage=value)
            values = {
                "loss": HUGE[step],
                "kl": HUGE[step - 1],
                f"metric_{LONG}": 1e308 * (-1) ** step,
                "entropy": 1e-308,
            }
            run.log(
                step, {**values, f"{LONG}/a": 7.5e-05 * step, f"rewards/{LONG}": 1e308, "step_time": 7.5e-05 * step}
            )
    return run.id


def record_many(db: Path) -> str:
    """Record 60 reward functions, 3,000 tasks with one beginning, and a group of 64 for each of the first eight."""
    weights = dict.fromkeys(FUNCTIONS, 0.1)
    with start_run("many", eval_name="many", model="tiny", config={"learning_rate": 1e-6}, db=db) as run:
        for number in range(3_000):
            for generation in range(64 if number % 375 == 0 else 1):
                step, task = number // 300 + 1, f"webarena/shopping_admin/gsm8k-train-{number:06}"
                with run.rollout(
                    "Go.", task=task, step=step, mode="train", group=str(number), generation=generation
                ) as row:
                    row.turn("I go.", action={"name": "go", "arguments": {"to": number}}, observation="gone", done=True)
                score = (number + generation) % 7 / 6
                given = {name: float((number + place + generation) % 3 == 0) for place, name in enumerate(FUNCTIONS)}
                row.score(rewards={**given, FUNCTIONS[0]: score}, weights=weights, advantage=score - 0.5)
            if number % 300 == 0:
                run.log(
                    number // 300 + 1, {f"rewards/{name}/{it}": 0.1 for name in FUNCTIONS for it in ("mean", "std")}
                )
    return run.id


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.hostile PATH")
    sys.stdout.write(f"{record_huge(Path(sys.argv[1]))}\n{record_many(Path(sys.argv[1]))}\n")
