"""Count how many recorded calls find their row, and which kind of evidence decides.

    python benchmarks/attribution.py                        # a table of patterns, and one of the evidence: a minute
    python benchmarks/attribution.py --json before.json     # the same, and the counts as JSON
    PYTHONPATH=../other/.dev:. python benchmarks/attribution.py --compare before.json

A pattern is a rollout function as people write them; they come from the tests of attribution. Each is played by
`tests.support.world`, where a row knows which answers and which environment calls are its own, so that every call can
be counted:

    right         on its own row
    wrong         on another row: there must be none
    unattributed  on no row

Calls that the function makes for all rows together (one reset of a shared environment) are left out. Where a function
was cut off, rows of one prompt are alike: then a call is right if its row holds calls of one row alone, of that prompt.

The second table counts rows, and the environment calls on them, by the weakest evidence that the row rests on.

To compare two implementations, write the counts of one as JSON and run the other one with `--compare`: patterns that
have more wrong calls, or a share of right ones below 99 % of what it was, are printed, and the exit status is 1. In
patterns with threads the number of calls, and what can be told of them, varies a little from run to run.
"""

import argparse
import json
import logging
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.rows.attribution import Attribution, RowCalls
from tests.recorder.capture import test_turns
from tests.recorder.rows.attribution import test_cut_off, test_order_alone, test_outcomes, test_patterns
from tests.support.world import GROUP, MODES, Order, Row, World, backward, decode, forward, recorded, without_ids

CUTS = (7, 20, 41)
"""Numbers of calls after which functions are cut off."""
KEPT = 0.99
"""Least share of the right calls that the other implementation must find."""

Case = tuple[str, World, Attribution]


def cases(seeds: int) -> Iterator[Case]:
    """Yield a pattern's name, what its rows know, and what was attributed; `seeds` times for each pattern."""
    whole = [*test_patterns.WHOLE, *test_turns.WHOLE]
    shuffles = [test_turns.shuffled_pool_for_each_turn, test_turns.pool_for_each_turn_of_two_tries]
    for seed in range(seeds):
        mode = MODES[seed % len(MODES)]
        for pattern in [*whole, *test_patterns.IN_PART, *shuffles]:
            yield pattern.__name__, *recorded(pattern, seed, mode)
        for pattern in test_patterns.WHOLE:
            found = recorded(pattern, seed, (64, 0), sights=1_000, seen_as=without_ids)
            yield f"{pattern.__name__}, texts alone", *found
        yield from outcomes(seed)
    for seed in range((seeds + 1) // 2):
        for pattern in [*whole, *test_patterns.IN_PART]:
            for limit in CUTS:
                world, found_ = test_cut_off.cut_off(pattern, limit, MODES[seed % len(MODES)])
                yield f"{pattern.__name__}, cut off", world, found_


def outcomes(seed: int) -> Iterator[Case]:
    """Yield functions in which what environments showed, or what was returned, may tell rows apart."""
    plays = (test_outcomes.reset_after_the_answers, test_outcomes.in_turns, test_outcomes.stepped_in_another_order)
    by_name: dict[str, Any] = {
        "": {},
        ", observations": {"sights": 1_000},
        ", rewards": {"returned": test_outcomes.last},
        ", sums": {"returned": test_outcomes.sums},
    }
    orders: list[Order] = [forward, backward, partial(random.Random(seed).sample, k=8)]
    for play in [test_order_alone.reset_ahead, *plays]:
        for order, name in zip(orders, ("forward", "backward", "shuffled"), strict=True):
            for what, options in by_name.items():
                for mode in ((2, 0), (64, 50)):
                    found = test_outcomes.played(play, order, seed=seed, mode=mode, **options)
                    yield f"{play.__name__}, {name}{what}", *found


def counted(name: str, world: World, found: Attribution) -> Counter[str]:
    """Count a function's calls: right, wrong, unattributed."""
    counts: Counter[str] = Counter()
    is_cut = name.endswith("cut off")
    owners = {number: row for row in world.rows for number in (*row.resets, *row.rewards, *row.tries)}
    left = Counter(map(id, owners.values()))
    for place, (row, calls) in enumerate(zip(world.rows, found.rows, strict=True)):
        held = [owners[call.reward] for call in calls.environment_calls if call.reward in owners]
        own = _owner_of(world, held, place) if is_cut else row
        for owner in held:
            counts["right" if owner is own else "wrong"] += 1
            left[id(owner)] -= 1
        if not is_cut:
            matched = _matched(row, calls)
            counts["right"] += matched
            missing = len(row.answers) - matched
            counts["wrong" if len(calls.turns) > matched else "unattributed"] += missing
    counts["unattributed"] += sum(left.values())
    return counts


def _owner_of(world: World, held: list[Row], place: int) -> Row | None:
    """Return the row that most of these calls are of, if it has the prompt of the row at `place`."""
    alike = [row for row in held if world.rows.index(row) // GROUP == place // GROUP]
    return max(alike, key=lambda row: sum(other is row for other in held), default=None)


def _matched(row: Row, calls: RowCalls) -> int:
    """Count the row's answers that its turns hold, in order."""
    ids = [turn.sequence.sampled for turn in calls.turns]
    said = iter([
        turn.sequence.text if sampled is None else decode(sampled)
        for turn, sampled in zip(calls.turns, ids, strict=True)
    ])  # fmt: skip
    return sum(decode(np.array(answer)) in said for answer in row.answers)


def count(found: Iterator[Case], counting: Callable[[str, World, Attribution], Counter[str]] = counted) -> Any:
    """Sum the counts of all cases by pattern, and the rows and calls by evidence."""
    patterns: dict[str, Counter[str]] = defaultdict(Counter)
    evidence: dict[str, Counter[str]] = defaultdict(Counter)
    for name, world, attribution in found:
        patterns[name] += counting(name, world, attribution)
        for row in attribution.rows:
            evidence[row.evidence or "no calls"] += Counter(rows=1, calls=len(row.environment_calls))
    return {"patterns": patterns, "evidence": evidence}


def worse(before: dict[str, dict[str, int]], after: dict[str, Counter[str]]) -> list[str]:
    """List the patterns that have more wrong calls, or a smaller share of right ones."""
    found = []
    for name, old in before.items():
        new = after.get(name, Counter())
        if new["wrong"] > old.get("wrong", 0) or _share(new) < KEPT * _share(old):
            found.append(f"{name}: {_line(old)} -> {_line(new)}")
    return found


def _share(counts: Any) -> float:
    total: int = max(sum(counts.values()), 1)
    return int(counts.get("right", 0)) / total


def _line(counts: Any) -> str:
    return "/".join(str(counts.get(kind, 0)) for kind in ("right", "wrong", "unattributed"))


def main() -> int:
    """Print the tables; return 1 where a comparison fails."""
    parser = argparse.ArgumentParser(
        description="Count right, wrong and unattributed calls of known rollout functions."
    )
    parser.add_argument("--seeds", type=int, default=4, help="times that each pattern is played")
    parser.add_argument("--json", type=Path, help="file to write the counts to")
    parser.add_argument("--compare", type=Path, help="counts of another implementation, written with --json")
    args = parser.parse_args()
    # Functions that are cut off raise in all of their threads and tasks: that is no news.
    threading.excepthook = lambda _: None
    logging.getLogger("asyncio").disabled = True
    found = count(cases(args.seeds))
    print(f"{'pattern':<70} right wrong unattributed")
    for name, counts in found["patterns"].items():
        print(f"{name:<70} {counts['right']:>5} {counts['wrong']:>5} {counts['unattributed']:>12}")
    total: Counter[str] = sum(found["patterns"].values(), Counter())
    print(f"{'all':<70} {total['right']:>5} {total['wrong']:>5} {total['unattributed']:>12}\n")
    print(f"{'weakest evidence of the row':<30} rows environment calls")
    for name, counts in sorted(found["evidence"].items(), key=lambda one: -one[1]["rows"]):
        print(f"{name:<30} {counts['rows']:>5} {counts['calls']:>17}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    lines = worse(json.loads(args.compare.read_text())["patterns"], found["patterns"]) if args.compare else []
    print("", *lines, sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
