"""Reward functions as people write them: what they call is on the row that it was called for, or unattributed."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from typing import Any

import orjson
import pytest

from logs_ui.recorder import row_scope, trace_env, unrecorded
from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, collecting
from logs_ui.recorder.capture.instruments import install
from logs_ui.recorder.rows.attribution.scoring_calls import ScoredRow, attribute_scoring
from tests.support.exhaustive import cases

ROWS, GROUP = 8, 4
WORDS = [
    "the", "answer", "of", "which", "I", "am", "quite", "sure", "is", "no", "number", "but", "some", "other", "word",
]  # fmt: skip
GOLD = ["photosynthesis in green plants", "mitosis of eukaryotic cells"]

Function = Callable[[list[str]], Any]


class Verifier:
    """A sandbox, a verifier and an environment, which return the row that the reward function called them for."""

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.fails = fails
        self.row = -1
        self.tried: set[int] = set()

    def checked(self, row: int, *sent: Any) -> int:
        if self.fails(row) and row not in self.tried:
            self.tried.add(row)
            raise ConnectionError(f"refused {row}")
        return row

    def reset(self) -> int:
        return self.row

    def step(self, sent: Any) -> int:
        return self.row

    async def checked_late(self, row: int, *sent: Any) -> int:
        await asyncio.sleep(random.random() / 500)
        return self.checked(row, *sent)


def texts(seed: int, *, short: bool = False, alike: bool = False) -> list[str]:
    dice = random.Random(seed)
    made = [str(dice.randrange(9)) if short else " ".join(dice.sample(WORDS, 9)) for _ in range(ROWS)]
    return [made[row - row % 2] for row in range(ROWS)] if alike else made


def scored(function: Function, completions: list[Any]) -> tuple[list[ScoredRow], int]:
    install()
    calls = Collector()
    with collecting(calls), calls.running("function"):
        made = function(completions)
        if asyncio.iscoroutine(made):
            asyncio.run(made)
    calls.close()
    given = [[{"content": "Name the process."}, {"gold": GOLD[row // GROUP]}] for row in range(len(completions))]
    return attribute_scoring(calls.records.sort(), calls.functions, completions, given)


def strangers(rows: list[ScoredRow]) -> list[tuple[int, Any]]:
    observed = [(row, call) for row, of_row in enumerate(rows) for _, _, call in of_row.calls]
    return [
        (row, call)
        for row, call in observed
        if isinstance(call, EnvironmentCall)
        and row != (int((call.error or "").split()[-1]) if call.error else orjson.loads(call.observation or b""))
    ]


def evidence(rows: list[ScoredRow]) -> set[str]:
    return {how for row in rows for _, how, _ in row.calls}


def one_by_one(
    completions: list[str],
    rows: Iterable[int] | None = None,
    *,
    fails: Callable[[int], bool] = lambda _: False,
    tries: int = 1,
) -> None:
    """Check rows in their order or another, each until it is answered, or was tried so often."""
    check = trace_env(Verifier(fails).checked)
    for row in range(len(completions)) if rows is None else rows:
        for _ in range(tries):
            with suppress(ConnectionError):
                check(row, completions[row])
                break


def from_the_second_on(completions: list[str]) -> None:
    """The first row has nothing to check."""
    one_by_one(completions, range(1, ROWS))


def one_missed_and_another_tried_again(completions: list[str]) -> None:
    """As many calls as rows, but they are not one for each."""
    one_by_one(completions, range(1, ROWS), fails=lambda row: row == 5, tries=2)


def each_tried_until_it_answers(completions: list[str]) -> None:
    one_by_one(completions, fails=lambda row: row % 3 == 0, tries=2)


def some_raise(completions: list[str]) -> None:
    one_by_one(completions, fails=lambda row: row % 3 == 0)


async def gathered(completions: list[str]) -> None:
    check = trace_env(Verifier().checked_late)
    await asyncio.gather(*(check(row, text) for row, text in enumerate(completions)))


async def gathered_with_two_calls_each(completions: list[str]) -> None:
    check, judge = trace_env(Verifier().checked_late), trace_env(Verifier().checked_late)

    async def of(row: int, text: str) -> None:
        await check(row, text)
        await judge(row, "is this good", text)

    await asyncio.gather(*(of(row, text) for row, text in enumerate(completions)))


def in_an_executor(completions: list[str]) -> None:
    check = trace_env(Verifier().checked)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(check, range(len(completions)), completions))


def in_a_pool(completions: list[str]) -> None:
    check = trace_env(Verifier().checked)
    with ThreadPool(3) as pool:
        pool.starmap(check, enumerate(completions))


async def by_workers_of_a_queue(completions: list[str]) -> None:
    check, left = trace_env(Verifier().checked_late), list(enumerate(completions))

    async def worker() -> None:
        while left:
            await check(*left.pop(0))

    await asyncio.gather(*(worker() for _ in range(3)))


def by_a_thread(completions: list[str]) -> None:
    thread = threading.Thread(target=one_by_one, args=(completions,))
    thread.start()
    thread.join()


def by_length(completions: list[str]) -> None:
    one_by_one(completions, sorted(range(ROWS), key=lambda row: completions[row]))


def a_part_of_each(completions: list[str]) -> None:
    check = trace_env(Verifier().checked)
    for row, text in list(enumerate(completions))[1:]:
        check(row, text[:30])


def in_a_longer_text(completions: list[str]) -> None:
    check = trace_env(Verifier().checked)
    for row, text in list(enumerate(completions))[1:]:
        check(row, [{"role": "user", "content": f"The reference is {GOLD[row // GROUP]}.\nAnswer: {text}\n\nRate it."}])


def episodes(completions: list[str]) -> None:
    env = Verifier()
    traced = trace_env(env)
    for row, text in enumerate(completions):
        env.row = row
        traced.reset()
        for _ in range(row % 3):
            traced.step(text)


def an_environment_each(completions: list[str]) -> None:
    for row, text in enumerate(completions):
        env = Verifier()
        env.row = row
        traced = trace_env(env)
        traced.reset()
        traced.step(text)


def in_scopes(completions: list[str]) -> None:
    check = trace_env(Verifier().checked)
    for row in reversed(range(len(completions))):
        with row_scope(row):
            check(row, "the same for all of them")


ALL: list[Function] = [
    one_by_one, each_tried_until_it_answers, some_raise, gathered, gathered_with_two_calls_each, in_an_executor,
    in_a_pool, episodes, an_environment_each, in_scopes, by_a_thread,
]  # fmt: skip
BY_TEXT: list[Function] = [
    from_the_second_on, one_missed_and_another_tried_again, by_length, a_part_of_each, in_a_longer_text,
    by_workers_of_a_queue,
]  # fmt: skip


@pytest.mark.parametrize("seed", cases(range(3), 1))
@pytest.mark.parametrize("function", [*ALL, *BY_TEXT], ids=lambda it: it.__name__)
def test_calls_are_on_the_row_that_they_were_made_for(function: Function, seed: int) -> None:
    rows, lost = scored(function, texts(seed))
    assert not strangers(rows)
    assert lost == 0
    assert ("text" in evidence(rows)) == (function in BY_TEXT)
    assert {name for row in rows for name, _, _ in row.calls} == {"function"}


@pytest.mark.parametrize("seed", cases(range(3), 1))
@pytest.mark.parametrize("function", ALL, ids=lambda it: it.__name__)
def test_short_texts_leave_the_order(function: Function, seed: int) -> None:
    rows, lost = scored(function, texts(seed, short=True))
    assert not strangers(rows)
    assert lost == 0


@pytest.mark.parametrize("function", [from_the_second_on, a_part_of_each, in_a_longer_text], ids=lambda it: it.__name__)
@pytest.mark.parametrize(
    "completions", [texts(0, short=True), texts(0, alike=True), ["the same for all of them"] * ROWS]
)
def test_where_rows_cannot_be_told_apart_calls_are_unattributed(function: Function, completions: list[str]) -> None:
    rows, lost = scored(function, completions)
    assert not strangers(rows)
    assert lost == ROWS - 1 - sum(len(row.calls) for row in rows) > 0


def sorted_by_text(completions: list[str]) -> None:
    step = trace_env(Verifier().step)
    for text in sorted(completions):
        step(text.split()[-1])


def test_short_texts_of_other_rows_speak_against_order() -> None:
    rows, lost = scored(sorted_by_text, [f"I say {ROWS - row}" for row in range(ROWS)])
    assert lost == ROWS
    assert not any(row.calls for row in rows)


@pytest.mark.parametrize("function", [one_by_one, gathered, in_a_pool, episodes], ids=lambda it: it.__name__)
def test_equal_answers_are_told_apart_by_order(function: Function) -> None:
    rows, lost = scored(function, ["the same for all of them"] * ROWS)
    assert not strangers(rows)
    assert (lost, evidence(rows)) == (0, {"order"})


def test_a_call_for_all_rows_is_unattributed() -> None:
    def batch(completions: list[str]) -> None:
        check = trace_env(Verifier().checked)
        check(0, completions)
        check(0, "\n".join(completions[:2]))

    rows, lost = scored(batch, texts(0))
    assert (lost, evidence(rows)) == (2, set())


def test_a_text_of_the_dataset_is_no_answer() -> None:
    """A row that answers with the reference must not get the calls of rows whose judge was told the reference."""

    def judged(completions: list[str]) -> None:
        check = trace_env(Verifier().checked)
        for row in (0, 1, 2):
            check(row, f"The reference is {GOLD[0]}. The answer is {completions[row][:6]}.")
            check(row, GOLD[0])

    rows, lost = scored(judged, ["it is mitosis or so", "no", "perhaps", GOLD[0], *texts(1)[4:]])
    assert not strangers(rows)
    assert lost == 6


def test_a_command_that_one_row_mentions_says_nothing() -> None:
    def commanded(completions: list[str]) -> None:
        check = trace_env(Verifier().checked)
        for row in range(1, ROWS):
            check(row, "evaluate_the_submission", row)

    rows, lost = scored(commanded, ["I call evaluate_the_submission now", *texts(2)[1:]])
    assert (lost, evidence(rows)) == (ROWS - 1, set())


def test_messages_are_told_apart_by_what_the_model_wrote() -> None:
    """Messages of environments, which all rows have, are not the model's."""
    heard = {"role": "tool", "content": "the tool said the same to all of them"}
    said = texts(3)
    chats = [
        [{"role": "assistant", "content": "I look it up"}, heard, {"role": "assistant", "content": text}]
        for text in said
    ]

    def judged(completions: list[Any]) -> None:
        check = trace_env(Verifier().checked)
        for row in (6, 2):
            check(row, {"transcript": completions[row][-1]["content"]})

    rows, lost = scored(judged, chats)
    assert not strangers(rows)
    assert (lost, evidence(rows)) == (0, {"text"})


def test_what_a_call_calls_itself_is_on_its_row() -> None:
    def nested(completions: list[str]) -> None:
        inner = trace_env(Verifier().checked)

        @trace_env
        def outer(row: int, text: str) -> int:
            return inner(row, f"nothing of the {len(text)}")

        for row, text in enumerate(completions):
            outer(row, text)

    rows, lost = scored(nested, texts(4))
    assert lost == 0
    assert [len(row.calls) for row in rows] == [1] * ROWS
    made = [[orjson.loads(call.observation or b"") for call in row.environment_calls] for row in rows]
    assert made == [[row, row] for row in range(ROWS)]


def test_a_scope_of_no_row_and_unrecorded_calls() -> None:
    def odd(completions: list[str]) -> None:
        check = trace_env(Verifier().checked)
        with row_scope(3) as row:
            row.metric("length", 7)
        with unrecorded():
            check(0, completions[0])

    rows, lost = scored(odd, texts(5))
    assert (lost, evidence(rows), [len(row.notes) for row in rows]) == (0, set(), [0, 0, 0, 1, 0, 0, 0, 0])


def test_a_row_alone() -> None:
    def twice(completions: list[str]) -> None:
        one_by_one(completions)
        one_by_one(completions)

    rows, lost = scored(twice, ["4"])
    assert (lost, [len(row.calls) for row in rows]) == (0, [2])
