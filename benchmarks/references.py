"""Compares healthy and faulty runs with healthy references, and counts which are called different.

    python -m benchmarks.references [--cases 100] [--first 0] [--drift 1] [--references 4]

Prints a Markdown table. All runs are generated as columns, from fixed seeds. Runs of a set-up differ as seeds of a
training do: each learns at a speed of its own, its chance to solve a task and the length of its answers wander from
step to step, and its machine and its environment are its own. A fault begins at some step of the middle half of a run,
and takes a tenth of the rollouts that would have been solved from then on.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import Rows, Settings
from logs_ui.recorder.diagnosis.against import Against, RunGroups, compare_runs
from logs_ui.recorder.diagnosis.mean_difference import Mean as GroupMean
from logs_ui.recorder.diagnosis.mean_difference import chance, chance_limit
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.vocabulary import Status, StopReason
from tests.recorder.diagnosis.test_diagnosis import rows_of

REFERENCES, SIZE, TENTH, NEAR = 4, 8, 0.1, 2
GONE: Any = "ConnectionError: gone"

Columns = dict[str, Any]
Dice = np.random.Generator


class Setup(NamedTuple):
    """Describes what the runs of one case have in common."""

    steps: int
    groups: int  # of a step
    tasks: Any  # (T,) how hard each is, in logits
    gain: float  # what a run of mean speed learns, in logits
    tokens: float  # of an answer at the first step
    grows: float  # the logarithm of how much longer answers become
    turns: float  # 1 for answers of one turn


def setup(number: int) -> Setup:
    dice = np.random.default_rng([number, 99])
    tasks = dice.normal(dice.uniform(-1.0, 0.5), 1.5, int(dice.integers(20, 200)))
    turns = float(dice.choice([1.0, 4.0, 8.0]))
    grows = dice.uniform(-0.2, 0.4)
    return Setup(
        int(dice.integers(40, 121)), int(dice.integers(4, 9)), tasks, dice.uniform(0.8, 2.0),
        dice.uniform(150, 600), grows, turns,
    )  # fmt: skip


def wander(dice: Dice, steps: int, size: float) -> Any:
    """Return (steps,) values of an autoregression of order 1, a tenth of which is forgotten from step to step."""
    found, noise = np.empty(steps), dice.normal(0, size, steps)
    found[0] = noise[0]
    for step in range(1, steps):
        found[step] = 0.9 * found[step - 1] + np.sqrt(1 - 0.81) * noise[step]
    return found


def healthy(given: Setup, seed: int, drift: float = 1.0) -> Columns:
    """Return a healthy run as `rows_of` takes it; `drift` multiplies what seeds differ by."""
    dice, count = np.random.default_rng([seed, given.steps, len(given.tasks)]), given.steps * given.groups * SIZE
    group = np.arange(count) // SIZE
    step = group // given.groups
    task = dice.integers(0, len(given.tasks), group[-1] + 1)[group]
    speed = np.exp(dice.normal(0, 0.2 * drift))
    learnt = (1 - np.exp(-2 * speed * step / given.steps)) / (1 - np.exp(-2))
    able = wander(dice, given.steps, 0.1 * drift)[step]
    solves = dice.random(count) < 1 / (1 + np.exp(given.tasks[task] - given.gain * learnt - able))
    long = given.grows * learnt + wander(dice, given.steps, 0.04 * drift)[step] + dice.normal(0, 0.06 * drift) * learnt
    tokens, limit = given.tokens * np.exp(long + dice.normal(0, 0.4, count)), 3.5 * given.tokens
    fails = dice.random(count) < 0.01 * np.exp(dice.normal(0, 0.3 * drift))
    formed = dice.random(count) < 0.98 - 0.3 * np.exp(-3 * speed * step / given.steps)
    turns = np.ones(count) if given.turns == 1 else 1 + dice.poisson(given.turns - 1, count)
    seconds = tokens / 50 * np.exp(dice.normal(0, 0.2 * drift) + dice.normal(0, 0.2, count))
    return {
        "count": count, "steps": given.steps, "group": group, "task": [f"task {it}" for it in task],
        "turns": turns, "completion_tokens": np.minimum(tokens, limit), "seconds": seconds, "prompt_key": task,
        "stop_reason": np.select([fails, tokens > limit], [StopReason.ENVIRONMENT_ERROR, StopReason.LENGTH], "done"),
        "status": np.where(fails, Status.ERROR, Status.OK), "error": np.where(fails, GONE, None),
        "compression": dice.normal(2, 0.2, count), "distinct_words": dice.uniform(0.5, 0.8, count),
        "trigram_repeats": dice.uniform(0, 0.1, count), "tool_calls": turns - 1,
        "env_errors": (dice.random(count) < 0.02).astype(float),
        "parts": {"solved": np.where(fails | (tokens > limit), 0.0, solves), "format": np.where(fails, 0.0, formed)},
        "weights": {"solved": 1.0, "format": 0.1},
    }  # fmt: skip


def made(columns: Columns) -> Rows:
    """Return the run, whose rewards are the weighted sums of what its functions gave."""
    weights = columns["weights"]
    parts = {name: values * weights[name] for name, values in columns["parts"].items()}
    return rows_of(**{**columns, "parts": parts, "reward": sum(parts.values())})


# --- Faults: each changes the rollouts from `since` on; (N,) `step` counts from 0


def ends(columns: Columns, chosen: Any, **values: Any) -> None:
    """Set columns of chosen rollouts, which are not solved."""
    for name, value in values.items():
        columns[name] = np.where(chosen, value, columns.get(name, 0.0))
    unsolved(columns, chosen)


def unsolved(columns: Columns, chosen: Any, value: float = 0.0) -> None:
    columns["parts"]["solved"] = np.where(chosen, value, columns["parts"]["solved"])


def truncated(columns: Columns, late: Any, dice: Dice) -> None:
    hit = late & (dice.random(len(late)) < TENTH)
    ends(columns, hit, stop_reason=StopReason.LENGTH, completion_tokens=columns["completion_tokens"].max())


def environment_fails(columns: Columns, late: Any, dice: Dice) -> None:
    hit = late & (dice.random(len(late)) < TENTH)
    ends(columns, hit, stop_reason=StopReason.ENVIRONMENT_ERROR, status=Status.ERROR, error=GONE)


def no_action(columns: Columns, late: Any, dice: Dice) -> None:
    ends(columns, late & (dice.random(len(late)) < TENTH), stop_reason=StopReason.NO_ACTION, parse_failures=1.0)


def no_reward(columns: Columns, late: Any, dice: Dice) -> None:
    hit = late & (dice.random(len(late)) < TENTH)
    columns["parts"] = {name: np.where(hit, np.nan, values) for name, values in columns["parts"].items()}


def shorter(columns: Columns, late: Any, dice: Dice) -> None:
    """Let answers become shorter by a third, and ten steps later fewer are solved."""
    columns["completion_tokens"] = columns["completion_tokens"] * np.where(late, 2 / 3, 1.0)
    per_step = columns["count"] // columns["steps"]
    delayed = np.concatenate([np.zeros(10 * per_step, bool), late[: -10 * per_step]])
    unsolved(columns, delayed & (dice.random(len(late)) < TENTH))


def longer(columns: Columns, late: Any, dice: Dice) -> None:
    """Let answers become longer by half, and repeat themselves."""
    columns["completion_tokens"] = columns["completion_tokens"] * np.where(late, 1.5, 1.0)
    columns["trigram_repeats"] = columns["trigram_repeats"] + np.where(late, 0.05, 0.0)
    unsolved(columns, late & (dice.random(len(late)) < TENTH))


def failed_calls(columns: Columns, late: Any, dice: Dice) -> None:
    """Return a tool fails in a fifth of the rollouts, half of which would have been solved without it."""
    columns["env_errors"] = np.where(late & (dice.random(len(late)) < 2 * TENTH), 1.0, columns["env_errors"])
    unsolved(columns, late & (dice.random(len(late)) < TENTH))


def fewer_turns(columns: Columns, late: Any, dice: Dice) -> None:
    """Episodes end after two thirds of their turns; of answers of one turn, texts have fewer distinct words."""
    columns["turns"] = np.where(late, np.maximum(1.0, np.round(columns["turns"] * 2 / 3)), columns["turns"])
    columns["tool_calls"] = columns["turns"] - 1
    columns["distinct_words"] = columns["distinct_words"] - np.where(late & (columns["turns"] == 1), 0.1, 0.0)
    unsolved(columns, late & (dice.random(len(late)) < TENTH))


def forgotten(columns: Columns, late: Any, dice: Dice) -> None:
    """Tasks that hold a tenth of what is solved are not solved any more; nothing else changes."""
    names = np.array(columns["task"])
    solved = columns["parts"]["solved"] * late
    by_task = {name: float(solved[names == name].sum()) for name in dice.permutation(np.unique(names))}
    lost, gone = 0.0, list[str]()
    for name, worth in by_task.items():
        if lost + worth <= TENTH * solved.sum() * 1.1:
            lost, gone = lost + worth, [*gone, name]
    unsolved(columns, late & np.isin(names, gone))


def slow_decay(columns: Columns, late: Any, dice: Dice) -> None:
    """More and more answers are wrong, a fifth of them at the end; nothing else changes."""
    chance_of_it = np.where(late, np.cumsum(late) / late.sum() * 2 * TENTH, 0.0)
    unsolved(columns, dice.random(len(late)) < chance_of_it)


FAULTS: dict[str, Callable[[Columns, Any, Dice], None]] = {
    "a tenth of the rollouts is truncated": truncated,
    "a tenth ends with an environment error": environment_fails,
    "a tenth ends without an action": no_action,
    "a tenth gets no reward": no_reward,
    "shorter answers, then fewer solved": shorter,
    "longer answers that repeat": longer,
    "failed tool calls": failed_calls,
    "fewer turns, or fewer distinct words": fewer_turns,
    "some tasks are forgotten": forgotten,
    "answers slowly get worse": slow_decay,
}


def faulty(given: Setup, seed: int, fault: str, drift: float = 1.0) -> tuple[Columns, int]:
    """Return a run with a fault, and the step that it begins at."""
    columns, dice = healthy(given, seed, drift), np.random.default_rng([seed, 7])
    since = int(given.steps * dice.uniform(0.25, 0.75))
    step = columns["group"] // given.groups
    FAULTS[fault](columns, step >= since, dice)
    return columns, since + 1


# --- The score


class Case(NamedTuple):
    """One run and its references; `since` is None for a healthy one."""

    kind: str
    run: Rows
    references: list[Rows]
    since: int | None


def cases(count: int, drift: float, first: int = 0, references: int = REFERENCES) -> Iterator[Case]:
    """Yield so many healthy runs, and as many faulty ones."""
    names = list(FAULTS)
    for number in range(first, first + 2 * count):
        given, fault = setup(number), names[number % len(names)] if number >= first + count else None
        seeds = [10 * number + place for place in range(references + 1)]
        others = [made(healthy(given, seed, drift)) for seed in seeds[1:]]
        if fault is None:
            yield Case("healthy", made(healthy(given, seeds[0], drift)), others, None)
        else:
            columns, since = faulty(given, seeds[0], fault, drift)
            yield Case(fault, made(columns), others, since)


def differs_by_groups(case: Case) -> bool:
    """Return True if a test over groups calls the reward different from that of the references in any tenth."""
    chances = []
    for tenth in range(10):
        means = [
            it.groups.mean[(it.groups.step - 1) * 10 // len(it.steps) == tenth] for it in (case.run, *case.references)
        ]
        a, b = (values[np.isfinite(values)] for values in (means[0], np.concatenate(means[1:])))
        sides = [
            GroupMean(float(it.mean()), float(it.std(ddof=1) / np.sqrt(len(it))), len(it), len(it)) for it in (a, b)
        ]
        chances.append(chance(*sides) or 1.0)
    return chance_limit(chances) >= 0


def against(case: Case) -> Against:
    success = Scale.of(case.run, Settings()).success
    return compare_runs(
        RunGroups.of(case.run, success), {str(n): RunGroups.of(it, success) for n, it in enumerate(case.references)}
    )


def line(kind: str, judged: Sequence[tuple[Case, Against]]) -> str:
    left = [(case, it) for case, it in judged if it.id == "left"]
    by_groups = sum(differs_by_groups(case) for case, _ in judged)
    near = sum(abs((it.figures[0].since_step or 0) - case.since) <= NEAR for case, it in left if case.since is not None)
    named = Counter(it.figures[0].name for _, it in left).most_common(3)
    onset = f"{near} of {len(left)}" if judged[0][0].since is not None else ""
    first = ", ".join(f"{name} {count}" for name, count in named)
    return f"| {kind} | {len(judged)} | {by_groups} | {len(left)} | {onset} | {first} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=100, help="healthy runs, and as many faulty ones")
    parser.add_argument("--first", type=int, default=0, help="number of the first case: others were not tuned for")
    parser.add_argument("--drift", type=float, default=1.0, help="multiplies what healthy runs differ by")
    parser.add_argument("--references", type=int, default=REFERENCES)
    options = parser.parse_args()
    judged: dict[str, list[tuple[Case, Against]]] = {}
    for case in cases(options.cases, options.drift, options.first, options.references):
        judged.setdefault(case.kind, []).append((case, against(case)))
    print("| runs | number | different by groups | different | onset within 2 steps | figure that left first |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for kind, found in judged.items():
        print(line(kind, found))
    print(line("**all faults**", [it for kind in FAULTS for it in judged.get(kind, ())]))


if __name__ == "__main__":
    main()
