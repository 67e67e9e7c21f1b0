"""Whose an environment is, told by what it showed and by the rewards that were returned."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from logs_ui.recorder import flush, load_run, record, trace_env
from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.instruments import transformers
from logs_ui.recorder.rows.attribution import Attribution, Seen
from tests.recorder.rows.attribution.test_order_alone import reset_ahead
from tests.support.exhaustive import cases
from tests.support.late import guess_model, torch
from tests.support.old_calls import call_as_025
from tests.support.world import (
    HINT,
    Client,
    Order,
    Row,
    World,
    answered,
    backward,
    forward,
    recorded,
    shuffled,
    spelt,
    strangers,
    without_ids,
)

CODED = (64, 50)
Play = Callable[[World, list[Row]], None]


def reset_after_the_answers(world: World, rows: list[Row]) -> None:
    answered(world, world.rows)
    for row in rows:
        client = Client()
        world.reset(row, client)
        world.step(row, client)


def in_turns(world: World, rows: list[Row]) -> None:
    reset_ahead(world, rows, 3)


def sums(world: World) -> dict[str, list[float | None]]:
    return {"env_reward": [sum(row.resets) + sum(row.rewards) for row in world.rows]}


def last(world: World) -> dict[str, list[float | None]]:
    return {"score": [row.rewards[-1] for row in world.rows]}


def played(
    play: Play,
    order: Order,
    *,
    rows: int = 8,
    sights: int = 0,
    seed: int = 0,
    returned: Callable[[World], Mapping[str, Any]] = lambda _: {},
    seen_as: Callable[[Seen], Seen] = lambda seen: seen,
    mode: tuple[int, int] = CODED,
) -> tuple[World, Attribution]:
    def pattern(world: World) -> None:
        play(world, order(world.rows))

    return recorded(pattern, seed, mode, rows=rows, group=rows, sights=sights, seen_as=seen_as, returned=returned)


def evidence(found: Attribution) -> set[str | None]:
    return {row.evidence for row in found.rows}


@pytest.mark.parametrize("order", [forward, backward, shuffled])
@pytest.mark.parametrize("rows", [2, 3, 8, 24])
def test_what_the_model_is_given_next_tells_whose_it_is(order: Order, rows: int) -> None:
    world, found = played(in_turns, order, rows=rows, sights=1_000)
    assert (strangers(world, found), found.unattributed) == ([], 0)
    assert evidence(found) == {"observation"}


def test_what_several_environments_show_tells_of_none_of_them() -> None:
    for seed in cases(range(30), 6):
        world, found = played(in_turns, partial(random.Random(seed).sample, k=8), sights=2, seed=seed)
        assert strangers(world, found) == [], seed


@pytest.mark.parametrize("order", [forward, shuffled])
def test_messages_tell_where_there_are_no_ids(order: Order) -> None:
    world, found = played(in_turns, order, sights=1_000, seen_as=without_ids)
    assert (strangers(world, found), found.unattributed) == ([], 0)
    assert [len(row.turns) for row in found.rows] == [3] * 8
    assert evidence(found) == {"observation"}


@pytest.mark.parametrize(
    "observation",
    [
        pytest.param(lambda n: {"legal": n % 64 + 50}, id="a number that is said elsewhere"),
        pytest.param(lambda n: {"text": spelt(5_000 + n)}, id="a text that the model is not given"),
        pytest.param(lambda _: {"text": "a door to room 7"}, id="always the same"),
        pytest.param(lambda _: None, id="nothing"),
    ],
)
def test_what_the_model_is_not_given_tells_nothing(observation: Callable[[int], object]) -> None:
    def others(seen: Seen) -> Seen:
        calls = [replace(call, observation=orjson.dumps(observation(call.order))) for call in seen.environment_calls]
        return Seen(seen.generations, calls)

    for seed in cases(range(10), 3):
        world, found = played(in_turns, partial(random.Random(seed).sample, k=8), seed=seed, sights=9, seen_as=others)
        assert strangers(world, found) == [], seed
        assert "observation" not in evidence(found)


@pytest.mark.parametrize("order", [backward, shuffled])
@pytest.mark.parametrize("play", [reset_ahead, reset_after_the_answers, in_turns])
@pytest.mark.parametrize("returned", [sums, last])
def test_returned_rewards_tell_whose_it_is(
    play: Play, order: Order, returned: Callable[[World], Mapping[str, Any]]
) -> None:
    world, found = played(play, order, returned=returned)
    assert (strangers(world, found), found.unattributed) == ([], 0)
    assert evidence(found) == {"reward"}


def test_a_reward_that_failed_has_none_and_the_others_are_told() -> None:
    def one_failed(seen: Seen) -> Seen:
        *calls, end = seen.environment_calls
        return Seen(seen.generations, [*calls, replace(end, reward=None, error="ConnectionError: gone")])

    def zero_of_it(world: World) -> dict[str, list[float]]:
        end = max(world.rows, key=lambda row: row.rewards[-1])
        return {"env_reward": [0.0 if row is end else row.rewards[-1] for row in world.rows]}

    world, found = played(reset_after_the_answers, shuffled, returned=zero_of_it, seen_as=one_failed)
    told = [i for i, row in enumerate(found.rows) if row.environment_calls]
    assert len(told) == 7
    assert all({c.reward for c in found.rows[i].environment_calls} <= {*world.rows[i].resets, *world.rows[i].rewards}
               for i in told)  # fmt: skip


def test_two_numbers_that_tell_of_different_rows_tell_nothing() -> None:
    def both(world: World) -> dict[str, list[float]]:
        rewards = [row.rewards[-1] for row in world.rows]
        return {"env_reward": rewards, "score": rewards[1:] + rewards[:1]}

    _, found = played(reset_ahead, shuffled, returned=both)
    assert found.unattributed == 16


def test_numbers_that_are_called_otherwise_are_no_rewards() -> None:
    _, found = played(reset_ahead, shuffled, returned=lambda world: {"length": last(world)["score"]})
    assert evidence(found) == {"order"}


def of_two(calls: list[EnvironmentCall]) -> list[EnvironmentCall]:
    return [replace(call, reward=None if call.kind == "reset" else won(call.reward)) for call in calls]


def won(reward: float | None) -> float:
    return float(int(reward or 0) * 7919 % 3 == 0)


def stepped_in_another_order(world: World, rows: list[Row]) -> None:
    pairs = [(row, Client()) for row in rows]
    for pair in pairs:
        world.reset(*pair)
    answered(world, world.rows)
    for pair in random.Random(1).sample(pairs, len(pairs)):
        world.step(*pair)


@pytest.mark.parametrize(("order", "lost"), [(forward, 0), (backward, 32), (shuffled, 32)])
def test_returned_rewards_of_two_kinds_confirm_the_order_of_resets(order: Order, lost: int) -> None:
    _, found = played(
        stepped_in_another_order,
        order,
        rows=16,
        returned=lambda world: {"env_reward": [won(row.rewards[-1]) for row in world.rows]},
        seen_as=lambda seen: Seen(seen.generations, of_two([*seen.environment_calls])),
    )
    assert found.unattributed == lost
    assert evidence(found) == {"context" if lost else "order"}


def test_a_row_that_is_over_early_is_told_by_what_is_left() -> None:
    def one_ends(world: World, rows: list[Row]) -> None:
        pairs = [(row, Client()) for row in rows]
        for pair in pairs:
            world.reset(*pair)
        for turn, going in enumerate([rows, rows[1:]]):
            for row in (row for row in world.rows if row in going):
                row.heard(*[HINT] * turn)
                row.said(*world.generate([row.prompt + row.completion]))
            for pair in (pair for pair in pairs if pair[0] in going):
                world.step(*pair)

    world, found = played(one_ends, shuffled, sights=1_000)
    assert (strangers(world, found), found.unattributed) == ([], 0)


def test_an_environment_that_two_players_share_is_nobodys() -> None:
    """What one did is shown to the other, who answered once, while three steps were made."""

    def players(world: World, rows: list[Row]) -> None:
        games = [(rows[i], rows[i + 1], Client()) for i in range(0, len(rows), 2)]
        for turn in range(3):
            movers = [(one, other, client) if turn % 2 == 0 else (other, one, client) for one, other, client in games]
            for mover, _, _ in movers:
                mover.heard(*[HINT] * bool(turn))
            answered(world, [mover for mover, _, _ in movers])
            for mover, other, client in movers:
                world.step(mover, client)
                other.sight = mover.sight

    world, found = played(players, forward, sights=1_000)
    assert strangers(world, found) == []
    assert found.unattributed == 12


@pytest.mark.parametrize(("order", "how"), [(forward, "order"), (backward, "action"), (shuffled, "action")])
def test_what_another_player_is_shown_is_no_evidence_against_what_was_said(order: Order, how: str) -> None:
    def opponents(world: World, rows: list[Row]) -> None:
        pairs = [(row, Client()) for row in rows]
        for pair in pairs:
            world.reset(*pair)
        for turn in range(2):
            for row in world.rows:
                row.heard(*[HINT] * turn)
            answered(world, world.rows)
            for pair in pairs:
                world.step(*pair)
            for one, other in zip(world.rows[::2], world.rows[1::2], strict=True):
                one.sight, other.sight = other.sight, one.sight

    world, found = played(opponents, order, sights=1_000, mode=(64, 0))
    assert (strangers(world, found), found.unattributed) == ([], 0)
    assert evidence(found) == {how}


def test_a_row_that_is_given_nothing_is_not_told_by_that() -> None:
    """The first one's environment failed; the second one was shown something else, and said nothing that was sent."""

    def play(world: World, rows: list[Row]) -> None:
        pairs = [(row, Client()) for row in rows]
        answered(world, world.rows)
        for row, client in pairs:
            world.reset(row, client)
            if row is world.rows[0]:
                row.tries.append(world.call(client, "step", fails=True))
            else:
                world.step(row, client)
        world.rows[1].sight = 9_999
        for row in world.rows[1:]:
            row.heard(HINT)
        answered(world, world.rows[1:])
        for pair in pairs[2:]:
            world.step(*pair)

    world, found = played(play, forward, rows=4, sights=1_000)
    assert strangers(world, found) == []


def test_numbers_that_the_model_is_not_given_are_not_against_the_order() -> None:
    """They stand in another row's by accident."""

    def digits(seen: Seen) -> Seen:
        chance = random.Random(len(seen.environment_calls))
        seen_as = [replace(c, observation=b'{"v": %d}' % (50 + chance.randrange(8))) for c in seen.environment_calls]
        return Seen(seen.generations, seen_as)

    def told_digits(world: World, rows: list[Row]) -> None:
        pairs = [(row, Client()) for row in rows]
        for turn in range(2):
            for row in world.rows:
                row.heard(*[50 + (world.rows.index(row) * 3 + turn) % 8] * turn)
            answered(world, world.rows)
            for pair in pairs:
                world.step(*pair)

    for rows in range(4, 17):
        _, found = played(told_digits, forward, rows=rows, seen_as=digits)
        assert (found.unattributed, evidence(found)) == (0, {"order"}), rows


def test_a_reward_of_the_format_is_not_the_environments() -> None:
    def rotated(world: World) -> dict[str, list[float]]:
        rewards = [row.rewards[-1] for row in world.rows]
        return {"format_reward": rewards[1:] + rewards[:1], "correctness_score": rewards[::-1]}

    world, found = played(reset_ahead, forward, returned=rotated)
    assert (strangers(world, found), found.unattributed) == ([], 0)
    assert evidence(found) == {"order"}


def test_rewards_that_may_be_sums_are_not_held_against_the_order_as_the_last_ones() -> None:
    rewards = {(0, 1): 0.0, (0, 2): 1.0, (1, 1): 1.0, (1, 2): 0.0, (2, 1): 0.0}

    def some(seen: Seen) -> Seen:
        calls, steps = [], dict.fromkeys(range(3), 0)
        for call in seen.environment_calls:
            reward = rewards.get((call.client, steps[call.client]))
            error = "ConnectionError: gone" if (call.client, steps[call.client]) == (2, 2) else None
            calls.append(replace(call, reward=reward, error=error))
            steps[call.client] += 1
        return Seen(seen.generations, calls)

    def two_turns(world: World, rows: list[Row]) -> None:
        reset_ahead(world, rows, 2)

    _, found = played(two_turns, forward, rows=3, seen_as=some, returned=lambda _: {"env_reward": [1.0, 1.0, 0.0]})
    assert [{call.client for call in row.environment_calls} for row in found.rows] == [{0}, {1}, {2}]


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_what_rewards_do_not_tell_is_still_in_order(reward: float | None) -> None:
    """Two steps failed, or gave no number: which of those is whose, the others leave no doubt of."""

    def some_failed(seen: Seen) -> Seen:
        calls = [
            replace(c, reward=reward, error="E: gone" if reward is None else None)
            if c.kind == "step" and c.client in {0, 7}
            else replace(c, reward=None if c.kind == "reset" else c.reward)
            for c in seen.environment_calls
        ]
        return Seen(seen.generations, calls)

    for seed in (8, 9, 12, 15):
        _, found = played(
            reset_after_the_answers, forward, seed=seed, mode=(4, 0), seen_as=some_failed,
            returned=lambda world: {"reward": [None, *(row.rewards[-1] for row in world.rows[1:-1]), None]},
        )  # fmt: skip
        assert found.unattributed == 0
        assert [{call.client for call in row.environment_calls} for row in found.rows] == [{i} for i in range(8)]


def test_an_environment_that_did_not_come_up_is_not_the_next_rows() -> None:
    """Another one was made for the row in its stead, and stepped."""

    def play(world: World, rows: list[Row]) -> None:
        pairs = {id(row): Client() for row in rows}
        for turn in range(2):
            for row in world.rows:
                row.heard(*[HINT] * turn)
                row.said(*world.generate([row.prompt + row.completion]))
            for row in rows:
                if not turn:
                    if row is rows[-1]:
                        row.tries.append(world.call(Client(), "reset", fails=True))
                    world.reset(row, pairs[id(row)])
                world.step(row, pairs[id(row)])

    for sights in (0, 1_000):
        world, found = played(play, forward, rows=4, sights=sights)
        assert strangers(world, found) == []


class Scores:
    """An environment that gives a reward of its own for whatever it is sent."""

    def __init__(self, reward: float) -> None:
        self._reward = reward

    def reset(self) -> dict[str, Any]:
        return {}

    def step(self, _: int) -> dict[str, Any]:
        return {"observation": {}, "reward": self._reward, "done": True}


def test_a_rollout_function_that_steps_its_environments_backwards(tmp_path: Path) -> None:
    """In one batch with a real model; what is sent is a number that stands in no answer."""
    transformers.install()
    model, rewards = guess_model.make_model(guess_model.make_tokenizer(), 0), [0.25, 0.5, 0.125, 0.75]

    def rollout_func(prompts: list[Any], args: Any, processing_class: Any) -> dict[str, Any]:
        given = torch.tensor([[1, 2]] * args.num_generations)
        answers = model.generate(input_ids=given, max_new_tokens=2, pad_token_id=0, do_sample=True)[:, 2:].tolist()
        environments = [trace_env(Scores(reward)) for reward in rewards]
        for environment, answer in reversed(list(zip(environments, answers, strict=True))):
            environment.reset()
            environment.step(answer[0] + 10_000)
        prompt_ids = given.tolist()
        return {"prompt_ids": prompt_ids, "completion_ids": answers, "logprobs": None, "env_reward": rewards}

    call_as_025(
        record(rollout_func, db=tmp_path / "a.db", announce=False), ["p"], model=model.train(), num_generations=4
    )
    assert flush()
    rows = load_run(db=tmp_path / "a.db")
    assert [row[-1]["reward"] for row in rows["actions"]] == rewards
    assert [row["attribution"] for row in rows["metadata"]] == ["reward"] * 4
