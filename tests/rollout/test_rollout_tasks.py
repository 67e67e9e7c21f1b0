"""Tasks and seeds: one for each group, on whichever rank its completions are made."""

import copy
from types import SimpleNamespace
from typing import Any

from logs_ui.rollout.play.tasks_and_seeds import Assignment, Rotation, Seeded
from tests.support.rollouts import Scripted

TASKS = ("a", "b", "c")


def trainer(rank: int = 0, ranks: int = 1, *, step: int = 0, training: bool = True, generations: int = 4) -> Any:
    return SimpleNamespace(
        model=SimpleNamespace(training=training),
        num_generations=generations,
        num_generations_eval=2,
        accelerator=SimpleNamespace(num_processes=ranks, process_index=rank),
        state=SimpleNamespace(global_step=step),
    )


def test_a_group_shares_its_task_and_seed_and_the_next_gets_others() -> None:
    rotation = Rotation(TASKS)
    rows = rotation.assign(trainer(), [None] * 8) + rotation.assign(trainer(step=1), [None] * 8)
    groups = [rows[i : i + 4] for i in range(0, 16, 4)]
    assert all(len(set(group)) == 1 for group in groups)
    assert [group[0].task for group in groups] == ["a", "b", "c", "a"]
    assert len({group[0].seed for group in groups}) == 4


def test_ranks_agree_on_a_group_that_straddles_them() -> None:
    """Three ranks of four rows, in two groups of six."""
    rotations = [Rotation(TASKS) for _ in range(3)]
    for step in range(2):
        batches = [rotations[rank].assign(trainer(rank, 3, step=step, generations=6), [None] * 4) for rank in range(3)]
        rows = [row for batch in batches for row in batch]
        assert len(set(rows[:6])) == len(set(rows[6:])) == 1
        assert [rows[0].task, rows[6].task] == [["a", "b"], ["c", "a"]][step]


def test_every_evaluation_gets_the_same_and_training_goes_on_beside_it() -> None:
    rotation = Rotation(TASKS)
    first = rotation.assign(trainer(), [None] * 4)

    def evaluate(step: int) -> list[Assignment]:
        return [row for _ in range(2) for row in rotation.assign(trainer(step=step, training=False), [None] * 4)]

    evaluation = evaluate(1)
    assert [row.task for row in evaluation] == ["a", "a", "b", "b", "c", "c", "a", "a"]
    assert rotation.assign(trainer(step=1), [None] * 4)[0].task == "b"
    assert evaluate(1) == evaluate(2) == evaluation
    assert {row.seed for row in evaluation}.isdisjoint({first[0].seed})


def test_a_resumed_training_does_not_begin_with_the_first_games_again() -> None:
    fresh = Rotation(TASKS)
    batches = [fresh.assign(trainer(step=step), [None] * 4) for step in range(6)]
    assert Rotation(TASKS).assign(trainer(step=5), [None] * 4) == batches[5]


def test_the_seed_decides_the_seeds_and_none_gives_none() -> None:
    def seeds(seed: int | None) -> list[int | str | None]:
        return [row.seed for row in Rotation(seed=seed).assign(trainer(), [None] * 8)]

    assert seeds(1) == seeds(1) != seeds(2)
    assert seeds(None) == [None] * 8


def test_a_model_around_another_can_be_copied() -> None:
    model = Scripted(lambda *_: "")
    copied = copy.copy(Seeded(model, "0", 0))
    assert copied.model is model
    assert not hasattr(copied, "missing")
