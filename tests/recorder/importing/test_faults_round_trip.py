"""A planted fault that is written as another trainer writes it, and imported, gives the same first card.

Elsewhere the table names the check and what the format lacks: then the check says that it is not recorded.
"""

import itertools
from pathlib import Path

import pytest

from logs_ui.recorder import diagnose, import_run, load_run
from logs_ui.recorder.diagnosis import Report
from tests.faults import Fault
from tests.faults.registry import FAULTS
from tests.recorder.importing.foreign_shapes import SHAPES
from tests.support.exhaustive import cases

NO_TURNS = {
    "parse_failures": "what the parser said", "loops": "actions", "never_acted": "actions",
    "turn_limit": "stop reasons", "truncation": "stop reasons", "disagreement": "rewards of the environment",
}  # fmt: skip
NO_SCALARS = dict.fromkeys(("no_update", "not_finite", "first_prompt"), "scalars")
NO_SCALARS |= {"unsent_prompts": "prompts as they were sent"}
NO_LENGTHS = {"length": "tokens", "cut_prompts": "tokens of prompts"}
NO_TASKS = {
    **dict.fromkeys(("never_solved", "task_mix", "forgotten"), "names of tasks"),
    **dict.fromkeys(("evaluation_gap", "evaluation_ends"), "evaluations"),
}  # fmt: skip
ONE_REWARD = dict.fromkeys(("reward_parts", "hacking"), "rewards by function")

NO_WORLD = {
    "infrastructure": "errors of the environment", "unseeded": "resets", "staleness": "the policy's version",
    "worse_place": "hosts", "no_room": "tools' answers",
}  # fmt: skip
GROUPED = {"wiring": "groups, other than by prompt"}

NOT_RECORDED: dict[str, dict[str, str]] = {
    **{shape: {**NO_SCALARS, "mismatch": "scalars"} for shape in ("verifiers", "atif", "eval-protocol")},
    "trl": {**NO_TURNS, **NO_SCALARS, **NO_WORLD, **GROUPED, **NO_LENGTHS, **NO_TASKS, "mismatch": "scalars",
            "hacking": "weights", "format outweighs": "weights", "cancel: weights": "weights"},
    "verl": {**NO_TURNS, **NO_SCALARS, **NO_WORLD, **GROUPED, **NO_LENGTHS, **NO_TASKS, **ONE_REWARD,
             "mismatch": "scalars"},
    "nemo-rl": {**NO_TURNS, **NO_SCALARS, **NO_WORLD, **GROUPED, **NO_TASKS, **ONE_REWARD,
                "log-prob mismatch, trained": "the trainer's log-probs",
                "log-prob mismatch: ratio": "scalars", "log-prob mismatch: entropy": "scalars"},
}  # fmt: skip
"""Checks, or causes of faults, that say so of an imported run, and what the format lacks for them."""

OUTWEIGHED = ("format outweighs: by size", "format outweighs: never right")
OF_FUNCTIONS = ("dead function", "function at 0", "failing judge", "lost format")
OF_TEXTS = ("empty table", "never matches", "final answers", "refused form", "no reference", "seldom source",
            "unread field", "unread form", "unread shape", "unread answers", "unnamed reference", "several candidates",
            "unpaid answers", "shared state")  # fmt: skip
FLAT = ("trl", "verl", "nemo-rl")  # prompts and completions, without turns
OTHERWISE: dict[tuple[str, str], str | None] = {
    **dict.fromkeys(itertools.product(OF_FUNCTIONS, ["verl", "nemo-rl"]), None),  # which have one reward
    **dict.fromkeys(itertools.product(OF_TEXTS, ["trl", "verl", "nemo-rl"]), None),  # no observations, no references
    **dict.fromkeys(itertools.product(OUTWEIGHED, ["trl"]), "reward_parts"),  # by its size, without weights
    **dict.fromkeys(itertools.product(["unsolvable tasks: all"], ["trl", "verl", "nemo-rl"]), "constant_reward"),
    # The habit that comes of it is seen.
    **dict.fromkeys(
        itertools.product(["invented answers", "failing observation", "covered buttons"], FLAT), "new_habit"
    ),
    **dict.fromkeys(
        itertools.product(["frozen screens", "invented observations", "one of several"], ["trl", "nemo-rl"]),
        "degenerate_text",
    ),
    **dict.fromkeys(itertools.product(["frozen screens", "invented observations", "one of several"], ["verl"]), None),
    **dict.fromkeys(itertools.product(["habit: limits"], FLAT), None),  # stands in calls of tools
    ("no_room", "atif"): "truncation",
    **dict.fromkeys(itertools.product(["wrong grouping, trained"], ["verifiers", "atif", "eval-protocol"]), "wiring"),
    **dict.fromkeys(itertools.product(["wrong grouping, trained"], ["trl", "nemo-rl"]), None),
    ("wrong grouping, trained", "verl"): "empty_answers",
    ("cold: 8 rollouts", "trl"): None,  # with one prompt, and advantages of 0, nothing tells what a group is
    ("length hack: one of two", "nemo-rl"): None,  # its total reward alone goes less with the length
    **dict.fromkeys(itertools.product(["stale policy: reused"], ["verifiers", "atif", "eval-protocol"]), None),
}
"""First cards of those that a shape judges by other columns; the last is known from the trainer's arguments alone."""
ENTROPY = "cold, trained"  # the trainer's entropy, a scalar, shows it before the dead groups
WHOLE = {"verifiers", "atif", "eval-protocol"}  # hold evaluations, too
TWO_SIDED = "unsolvable: 256 rollouts"  # half of the shapes hold what it needs


def faults() -> list[Fault]:
    """Return one fault of each check, and of each cause that a table names: by default `TWO_SIDED` alone."""
    named = {name for lost in NOT_RECORDED.values() for name in lost} | {name for name, _ in OTHERWISE} | {ENTROPY}
    chosen: dict[str | None, Fault] = {}
    for fault in sorted(FAULTS, key=lambda fault: fault.id != TWO_SIDED):
        key = next((name for name in (fault.id, fault.id.partition(":")[0]) if name in named), fault.expected)
        chosen.setdefault(key, fault)
    return list(chosen.values())


@pytest.mark.parametrize("fault", cases(faults(), 1), ids=lambda fault: fault.id)
def test_another_shape_of_a_fault_has_its_first_card(fault: Fault, tmp_path: Path) -> None:
    fault.record(db := tmp_path / "recorded.db")
    assert first(diagnose(db=db)) == fault.expected
    rows, names = load_run("latest", db=db), {str(fault.expected), fault.id.partition(":")[0], fault.id}
    for shape, write in SHAPES.items():
        kept = (rows["mode"] == "train") & (rows.completion_ids.notna() | (shape != "nemo-rl"))  # which needs ids
        kept |= shape in WHOLE
        if not kept.any():
            continue
        (tmp_path / shape).mkdir()
        write(rows, db, tmp_path / shape)
        imported = import_run(tmp_path / shape, db=tmp_path / shape / "imported.db")
        report = diagnose(db=tmp_path / shape / "imported.db")
        assert (imported.rollouts, imported.bad_count) == (kept.sum(), 0), shape
        if otherwise := [OTHERWISE[name, shape] for name in names if (name, shape) in OTHERWISE]:
            assert [first(report)] == otherwise, shape
        elif names & NOT_RECORDED[shape].keys():
            assert fault.expected in {it.id for it in report.missing}, shape
            assert first(report) != fault.expected, shape
        elif ENTROPY in names:
            assert first(report) != fault.expected, shape
        else:
            assert first(report) == fault.expected, shape


def first(report: Report) -> str | None:
    return report.cards[0].id if report.cards else None


def test_each_cause_that_a_shape_cannot_tell_is_planted() -> None:
    planted = {name for fault in FAULTS for name in (fault.expected, fault.id.partition(":")[0], fault.id)}
    assert {name for lost in NOT_RECORDED.values() for name in lost} <= planted
