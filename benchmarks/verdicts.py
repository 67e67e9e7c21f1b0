"""Compares the diagnosis with what was planted, and counts what it finds in healthy runs.

    python -m benchmarks.verdicts [--pairs 25] [--draws 20]

Prints Markdown tables; all runs are generated as columns, from fixed seeds:

- The shelves of `tests/faults/`. Of the finding that was planted: how often it is the first one, and among the others;
  whether it names exactly the planted tasks; the error of its first step; the error of its share of the last steps'
  rollouts. The truth is counted from the rollouts that a generator marks. Faults that are really trained are left out.
- Healthy runs, in pairs that differ by the seed alone: runs with any finding, verdicts, tasks that Compare calls
  different.
- Power: how often a fault is found, by the share of rollouts (or of tasks) that it hits and the number of steps.
"""

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logs_ui.app.pages.compare.run_figures import Estimate, estimate, mark_clear
from logs_ui.recorder.diagnosis import Card, Report, Rows, diagnose_rows
from logs_ui.recorder.vocabulary import Status, StopReason
from tests.faults import Fault
from tests.faults.columns import diagnosed
from tests.faults.realistic.registry import RUNS
from tests.faults.registry import FAULTS
from tests.recorder.diagnosis.test_diagnosis import rows_of

PLACED = (
    *("environment dies", "unsolvable", "harder mix", "forgotten task", "coding-regressed", "coding-memory"),
    *("web-regressed", "shaped-regressed", "mix-unscored", "mix-two"),
)
"""How the ids of faults begin that hit some tasks only."""
NEAR_STEPS, NEAR_SHARE = 2, 0.02
GROUPS, SIZE = 4, 8
GONE: Any = "ConnectionError: gone"
SHARES, STEPS = (0.05, 0.1, 0.2, 0.4), (6, 20, 60)

Columns = dict[str, Any]


class Verdict(NamedTuple):
    """The findings of a run, and what the planted one of them says. None: not planted, or not found."""

    findings: list[str]
    verdict: str
    place: str | None = None  # "right", "wrong" or "not said"
    onset: int | str | None = None  # error in steps, or "not said"; None also for a fault that is there from step 1 on
    is_late: bool | None = None  # of a fault from step 1 on: True if its finding begins later
    share: float | None = None  # error


# --- The shelves


def judge(fault: Fault) -> Verdict:
    """Diagnose a generated fault."""
    assert fault.made is not None
    run = fault.made()
    found = diagnosed(run)
    findings = [card.id for card in found.report.cards]
    card = next((it for it in found.report.cards if it.id == fault.expected), None)
    hit = np.array([rollout.is_hit for rollout in run.rollouts])
    if card is None or not hit.any() or found.report.steps is None:
        return Verdict(findings, found.report.verdict.id)
    rows, is_last = found.rows, found.rows.step >= found.report.steps[0]
    tasks, first = set(rows.task[hit & is_last].tolist()), int(rows.step[hit].min())
    is_placed = fault.id.startswith(PLACED) and len(tasks) < len(rows.tasks)
    is_from_start = first == rows.step[0]
    return Verdict(
        findings,
        found.report.verdict.id,
        place=place_said(card, rows, is_last, tasks) if is_placed else None,
        onset=None if is_from_start else "not said" if card.since_step is None else abs(card.since_step - first),
        is_late=(card.since_step or first) > first + NEAR_STEPS if is_from_start else None,
        share=None if card.share is None else abs(card.share - float(hit[is_last].mean())),
    )


def place_said(card: Card, rows: Rows, is_last: Any, planted: set[int]) -> str:
    """Compare the tasks that a card's filter selects, or that its sentences name, with the planted ones."""
    said = set[int]()
    if card.own is not None and ("task:" in card.where or "family:" in card.where):
        said = set(rows.task[is_last][card.own].tolist())
    else:
        words = " ".join([card.title, *card.evidence])
        said = {number for number, name in enumerate(rows.tasks) if f"{name} " in words or f"{name}," in words}
    return "not said" if not said else "right" if said == planted else "wrong"


def shelf(faults: Iterable[Fault]) -> Iterator[str]:
    """Yield the table of a shelf: a line for all variants of a cause, and one for all faults."""
    yield "| planted | finding | runs | first | among | place | onset | share | others |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- | --- | --- |"
    every: list[tuple[Fault, Verdict]] = []
    for _, variants in itertools.groupby(faults, lambda fault: fault.id.partition(":")[0]):
        judged = [(fault, judge(fault)) for fault in variants]
        every += judged
        name = judged[0][0].expected
        yield line(judged[0][0].planted, f"`{name}`" if name else "none", judged)
    yield line("**all faults**", "", [it for it in every if it[0].expected is not None])
    yield line("**all healthy runs**", "none", [it for it in every if it[0].expected is None])
    for what, is_sick in (("sick", True), ("healthy", False)):
        verdicts = Counter(it.verdict for fault, it in every if (fault.expected is not None) is is_sick)
        yield f"\nVerdicts on {what} runs: {', '.join(f'`{it}` {count}' for it, count in verdicts.most_common())}."


def line(planted: str, finding: str, judged: Sequence[tuple[Fault, Verdict]]) -> str:
    first = sum(it.findings[:1] == [fault.expected] * (fault.expected is not None) for fault, it in judged)
    among = sum(fault.expected in it.findings for fault, it in judged)
    others = Counter(name for fault, it in judged for name in it.findings if name != fault.expected)
    verdicts = [it for _, it in judged]
    cells = (
        planted, finding, len(judged), first, "" if finding == "none" else among,
        counted([it.place for it in verdicts], lambda it: it == "right"),
        onsets(verdicts),
        shares([it.share for it in verdicts if it.share is not None]),
        ", ".join(f"`{name}` {count}" for name, count in others.most_common()),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def counted(values: Iterable[Any], is_right: Callable[[Any], bool]) -> str:
    """Return how many of the values that are not None are right, and how many are not said; "" for none."""
    known = [it for it in values if it is not None]
    silent = sum(it == "not said" for it in known)
    right = sum(it != "not said" and is_right(it) for it in known)
    return f"{right} of {len(known)}{f', {silent} not said' if silent else ''}" if known else ""


def onsets(verdicts: Sequence[Verdict]) -> str:
    errors = [it.onset for it in verdicts if isinstance(it.onset, int)]
    near = counted([it.onset for it in verdicts], lambda it: it <= NEAR_STEPS)
    late = sum(it.is_late is True for it in verdicts)
    cells = [f"{near} (worst {max(errors)})" if max(errors, default=0) > NEAR_STEPS else near]
    return "; ".join(filter(None, [*cells, f"{late} from step 1 on begin late" if late else ""]))


def shares(errors: Sequence[float]) -> str:
    near = counted(errors, lambda it: it <= NEAR_SHARE)
    return f"{near} (worst {max(errors):.2f})" if max(errors, default=0.0) > NEAR_SHARE else near


# --- Healthy runs


class Setup(NamedTuple):
    """Describes what two runs of a pair have in common."""

    steps: int
    kind: str
    gain: float  # of the chance to be right, from the first step to the last
    abilities: Any  # (T,) the chance at the first step by task


KINDS = ("one turn, right or wrong", "one turn, graded by a judge", "agent with tools", "two environments")


def setup(kind: str, number: int, gain: float) -> Setup:
    dice = np.random.default_rng([KINDS.index(kind), number])
    return Setup(int(dice.integers(20, 61)), kind, gain, dice.uniform(0.15, 0.7, int(dice.integers(8, 61))))


def healthy(given: Setup, seed: int) -> Columns:
    """Return a healthy run as `rows_of` takes it. One rollout in forty is cut off, and one in a hundred fails."""
    dice, count = np.random.default_rng([seed, given.steps, len(given.abilities)]), given.steps * GROUPS * SIZE
    group = np.arange(count) // SIZE
    task = dice.integers(0, len(given.abilities), group[-1] + 1)[group]
    chance = np.clip(given.abilities[task] + given.gain * np.arange(count) / count, 0, 1)
    right = (dice.random(count) < chance).astype(float)
    graded = np.clip(dice.normal(chance, 0.15), 0, 1)
    cut, failed = dice.random(count) < 1 / 40, dice.random(count) < 1 / 100
    whole = ~cut & ~failed
    right, graded = right * whole, graded * whole
    is_agent, is_first = given.kind == KINDS[2], task % 2 == 0
    turns = dice.integers(3, 10, count) if is_agent else np.ones(count)
    parts = {
        KINDS[0]: {"correct": right},
        KINDS[1]: {"judge": graded},
        KINDS[2]: {"solved": right, "format": 0.1 * (dice.random(count) < 0.9) * whole},
        KINDS[3]: {"tests": np.where(is_first, right, np.nan), "judge": np.where(is_first, np.nan, graded)},
    }[given.kind]
    acting = {"env_steps": turns, "parse_failures": 0, "parse_tail": 0, "action_tail": 1, "repeats": 0}
    found: Columns = {
        "count": count, "steps": given.steps, "group": group, "task": [f"task {it}" for it in task], "parts": parts,
        "reward": np.nansum(list(parts.values()), axis=0), "turns": turns, "prompt_key": task,
        "completion_key": np.arange(count), "completion_tokens": np.where(cut, 512, dice.integers(60, 400, count)),
        "truncated_turns": cut, "mean_logprob": dice.normal(-0.8, 0.1, count),
        "compression": dice.normal(2, 0.2, count), "distinct_words": dice.uniform(0.5, 0.8, count),
        "trigram_repeats": dice.uniform(0, 0.1, count),
        "stop_reason": np.select([failed, cut], [StopReason.ENVIRONMENT_ERROR, StopReason.LENGTH], StopReason.DONE),
        "status": np.where(failed, Status.ERROR, Status.OK), "error": np.where(failed, GONE, None),
        **(acting if is_agent else {}),
    }  # fmt: skip
    return found


def report(columns: Columns) -> Report:
    return diagnose_rows(rows_of(**columns), has_ended=True)


def findings(columns: Columns) -> list[str]:
    return [card.id for card in report(columns).cards]


def false_findings(pairs: int) -> Iterator[str]:
    """Yield the table of healthy runs: of each kind so many pairs that stay as they are, and as many that improve."""
    yield "| healthy runs | | runs | with findings | findings | verdicts | tasks that differ | pairs that differ |"
    yield "| --- | --- | ---: | ---: | --- | --- | ---: | ---: |"
    for (word, gain), kind in itertools.product((("stationary", 0.0), ("improving", 0.3)), KINDS):
        given = [setup(kind, number, gain) for number in range(pairs)]
        runs = [[healthy(it, 2 * number + side) for side in (0, 1)] for number, it in enumerate(given)]
        reports = [report(run) for pair in runs for run in pair]
        found = [[card.id for card in it.cards] for it in reports]
        compared = [same_tasks(*pair) for pair in runs]
        differing = sum(map(differences, (tasks for tasks, _ in compared)))
        named, said = (
            ", ".join(f"`{name}` {count}" for name, count in Counter(names).most_common())
            for names in (itertools.chain(*found), (it.verdict.id for it in reports))
        )
        apart = sum(differences([whole]) for _, whole in compared)
        yield (
            f"| {kind} | {word} | {len(found)} | {sum(map(bool, found))} | {named} | {said} | "
            f"{differing} of {sum(len(tasks) for tasks, _ in compared)} | {apart} of {pairs} |"
        )


def differences(pairs: Sequence[tuple[Estimate, Estimate]]) -> int:
    """Return how many means of a table Compare calls different."""
    return sum(other.is_clear for _, other in mark_clear([list(pair) for pair in pairs]) if other is not None)


def same_tasks(one: Columns, other: Columns) -> tuple[list[tuple[Estimate, Estimate]], tuple[Estimate, Estimate]]:
    """Return the means of two runs as Compare has them: of the tasks that both have, and of all rollouts."""
    first, second = by_task(one), by_task(other)
    both = [(estimate(first[task]), estimate(second[task])) for task in sorted(first.keys() & second.keys())]
    whole = [estimate(list(itertools.chain(*run.values()))) for run in (first, second)]
    assert whole[0] is not None
    assert whole[1] is not None
    return [(a, b) for a, b in both if a is not None and b is not None], (whole[0], whole[1])


def by_task(columns: Columns) -> dict[str, list[tuple[int, float]]]:
    """Return the size and the sum of rewards of each group, by task."""
    found: dict[str, list[tuple[int, float]]] = {}
    sums = columns["reward"].reshape(-1, SIZE).sum(axis=1)
    for task, total in zip(columns["task"][::SIZE], sums.tolist(), strict=True):
        found.setdefault(task, []).append((SIZE, total))
    return found


# --- Power


def hit_by(cause: str, columns: Columns, share: float, dice: Any) -> None:
    """Plant a fault in a healthy run of an agent."""
    hit = dice.random(columns["count"]) < share
    if cause == "forgotten":  # a share of the tasks, from the middle on
        names = sorted(set(columns["task"]))
        gone = set(names[: max(1, round(share * len(names)))])
        hit = np.isin(columns["task"], list(gone)) & (np.arange(len(hit)) >= len(hit) / 2)
    planted: dict[str, Columns] = {
        "truncation": {"stop_reason": StopReason.LENGTH, "truncated_turns": 1.0, "completion_tokens": 512},
        "infrastructure": {
            "stop_reason": StopReason.ENVIRONMENT_ERROR, "status": Status.ERROR, "error": GONE,
        },
        "parse_failures": {"stop_reason": StopReason.NO_ACTION, "parse_failures": 1.0, "parse_tail": 1.0},
        "invalid_reward": {},
        "forgotten": {},
    }  # fmt: skip
    for name, value in planted[cause].items():
        columns[name] = np.where(hit, value, columns[name])
    given = np.nan if cause == "invalid_reward" else 0.0
    columns["reward"] = np.where(hit, given, columns["reward"])
    columns["parts"] = {name: np.where(hit, given, it) for name, it in columns["parts"].items()}


def power(draws: int) -> Iterator[str]:
    """Yield the table of faults that are found: of so many runs each, of agents that improve, with twelve tasks."""
    yield f"| planted in | steps | {' | '.join(f'{share:.0%}' for share in SHARES)} |"
    yield f"| --- | ---: |{' ---: |' * len(SHARES)}"
    for cause, steps in itertools.product(
        ("truncation", "infrastructure", "parse_failures", "invalid_reward", "forgotten"), STEPS
    ):
        cells = []
        for share in SHARES:
            found = []
            for seed in range(draws):
                dice = np.random.default_rng([seed, steps])
                columns = healthy(Setup(steps, KINDS[2], 0.3, dice.uniform(0.15, 0.7, 12)), seed)
                hit_by(cause, columns, share, dice)
                found.append(findings(columns))
            cells.append(f"{sum(cause in it for it in found)} ({sum(it[:1] == [cause] for it in found)})")
        yield f"| `{cause}` | {steps} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=25, help="of healthy runs, of each of four kinds, twice")
    parser.add_argument("--draws", type=int, default=20, help="runs of each cell of the table of power")
    options = parser.parse_args()
    games = [fault for fault in FAULTS if fault.made is not None]
    tables: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("Small games", lambda: shelf(games)),
        ("Realistic runs", lambda: shelf(run.as_fault() for run in RUNS)),
        ("Healthy runs", lambda: false_findings(options.pairs)),
        (f"Power: found (first) in {options.draws} runs", lambda: power(options.draws)),
    )
    for title, table in tables:
        began = time.perf_counter()
        print(f"{title}:\n")
        for row in table():
            print(row, flush=True)
        print(f"\n{time.perf_counter() - began:.0f} seconds.\n")


if __name__ == "__main__":
    main()
