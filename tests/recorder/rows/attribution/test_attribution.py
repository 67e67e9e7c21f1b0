"""Which call belongs to which row, against references written by hand."""

import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, Generation, Note
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution import Attribution, Seen, attribute, attribute_unfinished
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens, _cut_fit, _fit_by_parts, _whole_fit, fit
from logs_ui.recorder.rows.attribution.prefixes import bytes_of

END = 9


def ids(*values: int) -> Ids:
    return np.array(values, np.int32)


def generation(order: int, *sequences: tuple[Seq[int], Seq[int]], finish: str = "stop") -> Generation:
    return Generation(order, order, 0.1, [Sequence(ids(*c), ids(*s), finish) for c, s in sequences], {})


def env(order: int, kind: str, client: int = 0, *, error: str | None = None) -> EnvironmentCall:
    return EnvironmentCall(order, order, 0.1, client, kind, b"{}", b"{}", 1.0, False, None, error)


def orders(found: Attribution) -> list[tuple[list[int], list[int]]]:
    return [([t.order for t in row.turns], [c.order for c in row.environment_calls]) for row in found.rows]


def test_an_answer_without_its_end_token_and_one_that_was_cut_are_still_known() -> None:
    calls = [generation(0, ([1, 2], [3, 4, END]), ([1, 2], [5, 6, 7, 8]))]
    found = attribute([ids(1, 2)] * 2, [ids(3, 4), ids(5, 6)], Seen(calls, []))
    assert [row.evidence for row in found.rows] == ["context", "context"]


def test_prompts_that_were_tokenised_anew_fall_back_on_the_sampled_tokens() -> None:
    calls = [generation(0, ([8, 8, 8], [4, END])), generation(1, ([8, 8, 8], [3, END]))]
    found = attribute([ids(1, 2)] * 2, [ids(3, END), ids(4, END)], Seen(calls, []))
    assert orders(found) == [([1], []), ([0], [])]
    assert {row.evidence for row in found.rows} == {"tokens"}


class Strands:
    """Strands below one function's own, and calls made in them."""

    def __init__(self) -> None:
        self.tree = Collector().tree

    def start(self, parent: Strand | None = None, **differs: Any) -> Strand:
        return self.tree.child(parent or self.tree.root, **differs)


def at(strand: Strand, *calls: Any) -> list[Any]:
    return [replace(call, strand=strand) for call in calls]


def by_kind(calls: list[Any]) -> Seen:
    calls = sorted(calls, key=lambda call: call.order)
    return Seen(
        [call for call in calls if isinstance(call, Generation)],
        [call for call in calls if isinstance(call, EnvironmentCall)],
        [call for call in calls if isinstance(call, Note)],
    )


PROMPT = [1, 2]
TWIN = ids(3, END, 7, 4, END)
"""Two turns."""
STRANDS = Strands()
ONE, TWO = STRANDS.start(), STRANDS.start()
SECOND = ([1, 2, 3, END, 7], [4, END])
"""What the second of two turns was asked and said."""
RETOKENISED: list[Any] = [
    generation(1, ([1, 2], [3, END])),
    generation(3, ([1, 2, 30, END, 7], [4, END])),
    generation(5, ([2, 40, END, 7], [5, END])),  # no longer begins with the prompt
]
BOTH = generation(0, (PROMPT, [3, END]), (PROMPT, [4, END]))
OF_TWO_TURNS: list[Any] = [env(0, "reset"), generation(1, (PROMPT, [3, END])), env(2, "step"), generation(3, SECOND)]
Found = list[tuple[list[int], list[int]]]


EACH: dict[str, tuple[list[list[int]], list[Any], Found, int]] = {
    "one reset, and a step for each row": (
        [[3, END], [4, END]], [env(0, "reset"), replace(BOTH, order=1), env(2, "step"), env(3, "step")],
        [([1], [0, 2]), ([1], [0, 3])], 0,
    ),
    "and a generation for each": (
        [[3, END], [4, END]],
        [
            generation(0, (PROMPT, [3, END])), generation(1, (PROMPT, [4, END])),
            env(2, "reset"), env(3, "step"), env(4, "step"),
        ],
        [([0], [2, 3]), ([1], [2, 4])], 0,
    ),
    "a step for each row where no generation was seen": (
        [[3, END], [3, END]], [env(0, "reset"), env(1, "step"), env(2, "step")], [([], [0, 1]), ([], [0, 2])], 0,
    ),
    "and where one was that is no rows": (
        [[3, END], [3, END]], [env(0, "reset"), env(1, "step"), env(2, "step"), generation(0, ([8], [6]))],
        [([], []), ([], [])], 4,
    ),
    "what matches nothing is forced on nobody": (
        [[3, END], [4, END]],
        [generation(0, ([8, 8], [6, 7, END])), env(1, "reset"), env(2, "step"), env(3, "reset", 1), env(4, "reset", 2)],
        [([], []), ([], [])], 5,
    ),
    "more steps than answers are no rows": (
        [[3, END], [4, END]],
        [BOTH, env(1, "reset"), env(2, "step"), env(3, "step"), env(4, "reset", 1), env(5, "step", 1)],
        [([0], []), ([0], [])], 5,
    ),
    "answers that stand in no row, though as many as rows": (
        [[3, END], [4, END]], [BOTH, generation(1, ([70], [80, 81]), ([71], [80, 82]))], [([0], []), ([0], [])], 2,
    ),
    "two steps of one row are not one for each": (
        [[3, END, 7, 4, END], [5, END]], [*OF_TWO_TURNS, env(4, "step"), generation(5, (PROMPT, [5, END]))],
        [([1, 3], [0, 2, 4]), ([5], [])], 0,
    ),
    "a row that begins like another is not taken for it": (
        [[3, END], [3, END, 7, 4, END]],
        [*OF_TWO_TURNS, env(4, "step"), env(5, "reset"), generation(6, (PROMPT, [3, END])), env(7, "step")],
        [([6], [5, 7]), ([1, 3], [0, 2, 4])], 0,
    ),
    "a worker plays one row after another": (
        [[3, END], [4, END], [5, END], [6, END]],
        [
            *at(ONE, env(0, "reset", 0), generation(2, (PROMPT, [3, END])), env(4, "step", 0)),
            *at(TWO, env(1, "reset", 1), generation(3, (PROMPT, [4, END])), env(5, "step", 1)),
            *at(TWO, env(6, "reset", 1), generation(7, (PROMPT, [5, END])), env(9, "step", 1)),
            *at(ONE, env(8, "reset", 0), generation(10, (PROMPT, [6, END])), env(11, "step", 0)),
        ],
        [([2], [0, 4]), ([3], [1, 5]), ([7], [6, 9]), ([10], [8, 11])], 0,
    ),
    "twins of workers whose contexts are tokenised anew keep their turns": (
        [[*TWIN], [*TWIN], [5, END]],
        [
            *at(ONE, generation(0, ([8, 8], [3, END])), generation(3, ([8, 5, 8], [4, END]))),
            *at(TWO, generation(1, ([8, 8], [3, END])), generation(2, ([8, 5, 8], [4, END]))),
            *at(ONE, generation(4, (PROMPT, [5, END]))),
        ],
        [([0, 3], []), ([1, 2], []), ([4], [])], 0,
    ),
    "a judge's answer in the row's task is no turn, where the task is not all there is": (
        [[3, END]],
        [
            *at(ONE, env(0, "reset"), generation(1, (PROMPT, [3, END])), env(2, "step")), env(9, "reset", 1),
            *at(ONE, replace(generation(3, ([70], [80])), seam="openai", sampling={"model": "judge"})),
        ],
        [([1], [0, 2])], 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("completions", "calls", "found", "lost"), EACH.values(), ids=EACH)
def test_each_call_is_its_rows_or_nobodys(
    completions: list[list[int]], calls: list[Any], found: Found, lost: int
) -> None:
    rows = attribute([ids(*PROMPT)] * len(completions), [ids(*one) for one in completions], by_kind(calls))
    assert (orders(rows), rows.unattributed) == (found, lost)


RAISED: dict[str, tuple[list[Any], Found, int]] = {
    "an environment that died at once is the first rows": (
        [env(0, "reset", error="ConnectionError: refused")], [([], [0]), ([], []), ([], [])], 0,
    ),
    "two steps are not one for each": ([*OF_TWO_TURNS, env(4, "step")], [([1, 3], [0, 2, 4]), ([], []), ([], [])], 0),
    "turns tokenised anew are of the row whose episode goes on": (
        [
            *RETOKENISED, env(0, "reset"), env(2, "step"), env(4, "step"), env(6, "step"), env(7, "reset"),
            generation(8, ([1, 2], [3, END])), env(9, "step"), generation(10, ([1, 2, 30, END, 7], [6, END])),
        ],
        [([1, 3, 5], [0, 2, 4, 6]), ([8, 10], [7, 9]), ([], [])], 0,
    ),
    "and nobodys where no episode tells whose": (RETOKENISED[:2], [([1], []), ([], []), ([], [])], 1),
    "a step of another client begins no later turn": (
        [
            *(env(i, "reset", i) for i in range(3)), *(env(2 * i + 4, "step", i) for i in range(3)),
            *(generation(2 * i + 3, ([2 * i + 1, 2 * i + 2], [7, END])) for i in range(3)),
        ],
        [([3], [0, 4]), ([5], [1, 6]), ([7], [2, 8])], 0,
    ),
    "another prompt after a reset begins the next row": (
        [*OF_TWO_TURNS[:3], env(3, "reset"), generation(4, ([5, 6], [3, END])), env(5, "step")],
        [([1], [0, 2]), ([4], [3, 5]), ([], [])], 0,
    ),
    "rows are told apart by what their contexts go on from": (
        [
            *OF_TWO_TURNS, env(4, "reset"), generation(5, (PROMPT, [5, END])), env(6, "step", error="ValueError: dead"),
        ],
        [([1, 3], [0, 2]), ([5], [4, 6]), ([], [])], 0,
    ),
    "turns tokenised anew together are nobodys": (
        [
            generation(1, (PROMPT, [3, END]), (PROMPT, [4, END])), env(0, "reset"), env(2, "step"),
            generation(3, ([1, 2, 30, END, 7], [4, END]), ([1, 2, 40, END, 7], [4, END])),
        ],
        [([1], []), ([1], []), ([], [])], 4,
    ),
    "rows under way are told apart by their tasks": (
        [
            *at(TWO, env(0, "reset", 1), generation(1, (PROMPT, [3, END])), env(2, "step", 1)),
            *at(ONE, replace(env(3, "reset", 0), seconds=None), generation(4, (PROMPT, [3, END]))),
        ],
        [([4], [3]), ([1], [0, 2]), ([], [])], 0,
    ),
    "generations given to an executor one by one are turns, not rows": (
        [
            *at(STRANDS.start(), generation(0, (PROMPT, [3, END]))), *at(STRANDS.start(), generation(1, SECOND)),
            *at(STRANDS.start(), generation(2, ([1, 2, 3, END, 7, 4, END, 7], [5, END]))),
            *at(STRANDS.start(), generation(3, (PROMPT, [6, END]))),
        ],
        [([0, 1, 2], []), ([3], []), ([], [])], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "found", "lost"), RAISED.values(), ids=RAISED)
def test_calls_of_a_function_that_raised_are_their_rows_or_nobodys(calls: list[Any], found: Found, lost: int) -> None:
    rows = attribute_unfinished(3, by_kind(calls))
    assert (orders(rows), rows.unattributed) == (found, lost)


def test_turns_of_a_function_that_raised_start_where_a_completion_would_have_them() -> None:
    found = attribute_unfinished(1, by_kind(OF_TWO_TURNS))
    assert [turn.start for turn in found.rows[0].turns] == [0, 3]


def twin(strand: Strand, orders: Seq[int], client: int, *, reward: float = 1.0) -> list[Any]:
    """reset, answer, step, answer, step: of rows that say the same, and are answered differently."""
    reset, first, step, second, last = orders
    return at(
        strand,
        env(reset, "reset", client),
        generation(first, (PROMPT, [3, END])),
        replace(env(step, "step", client), reward=reward),
        generation(second, ([1, 2, 3, END, 7], [4, END])),
        replace(env(last, "step", client), reward=reward),
    )


def rewards(found: Attribution) -> list[list[float | None]]:
    return [[call.reward for call in row.environment_calls if call.kind == "step"] for row in found.rows]


def test_twins_of_workers_are_not_guessed_at() -> None:
    strands = Strands()
    one, two = strands.start(), strands.start()
    calls = twin(two, (0, 2, 4, 6, 8), 1, reward=0.5) + twin(one, (1, 3, 5, 7, 9), 0, reward=0.25)
    calls += at(one, env(10, "reset", 0), generation(11, (PROMPT, [5, END])), env(12, "step", 0))
    found = attribute([ids(*PROMPT)] * 3, [TWIN, ids(5, END), TWIN], by_kind(calls))
    assert orders(found)[1] == ([11], [10, 12])
    assert [row.environment_calls for row in (found.rows[0], found.rows[2])] == [[], []]
    assert found.unattributed == 6


def test_a_row_whose_environment_never_came_up_is_found_by_its_task() -> None:
    strands = Strands()
    first, second = strands.start(), strands.start()
    calls = at(first, env(0, "reset", 0, error="ConnectionError: refused"))
    calls += at(second, env(1, "reset", 1), generation(2, (PROMPT, [4, END])), env(3, "step", 1))
    found = attribute([ids(*PROMPT)] * 2, [ids(8), ids(4, END)], by_kind(calls))
    assert orders(found) == [([], [0]), ([2], [1, 3])]
    assert found.rows[0].evidence == "order"


def test_only_the_last_turn_returned() -> None:
    alone = [env(0, "reset"), generation(1, ([1, 2], [3, END])), env(2, "step")]
    alone += [generation(3, ([5, 5], [4, END])), env(4, "step")]
    other = [env(10, "reset"), generation(11, ([1, 2], [6, END])), env(12, "step")]
    other += [generation(13, ([5, 6], [8, END])), env(14, "step")]
    found = attribute([ids(5, 5), ids(5, 6)], [ids(4, END), ids(8, END)], by_kind(alone + other))
    assert orders(found) == [([1, 3], [0, 2, 4]), ([11, 13], [10, 12, 14])]
    assert [turn.start for turn in found.rows[1].turns] == [None, 0]


def test_a_tool_that_is_a_function_belongs_to_the_row_that_asked_for_it() -> None:
    tools = [replace(env(order, "tool"), client=-1) for order in (2, 3, 8)]
    calls = [
        env(0, "reset"), generation(1, (PROMPT, [3, END])), *tools[:2], env(4, "step"),
        generation(5, SECOND),
        env(6, "reset"), generation(7, (PROMPT, [5, END])), tools[2], env(9, "step"),
    ]  # fmt: skip
    found = attribute([ids(*PROMPT)] * 2, [TWIN, ids(5, END)], by_kind(calls))
    assert orders(found) == [([1, 5], [0, 2, 3, 4]), ([7], [6, 8, 9])]
    together = [generation(0, (PROMPT, [3, END]), (PROMPT, [4, END])), *tools[:2]]
    assert attribute([ids(*PROMPT)] * 2, [ids(3, END), ids(4, END)], by_kind(together)).unattributed == 2


def test_only_the_last_turn_returned_with_the_earlier_ones_in_its_prompt() -> None:
    calls = [*OF_TWO_TURNS, env(4, "step")]
    found = attribute([ids(1, 2, 3, END, 7)], [ids(4, END)], by_kind(calls))
    assert orders(found) == [([1, 3], [0, 2, 4])]
    assert [turn.start for turn in found.rows[0].turns] == [None, 0]


def test_tokens_that_the_function_inserts_between_turns() -> None:
    newline = 10
    calls = [*OF_TWO_TURNS, env(4, "step")]
    found = attribute([ids(*PROMPT)], [ids(3, END, newline, 7, 4, END, newline)], by_kind(calls))
    assert orders(found) == [([1, 3], [0, 2, 4])]
    assert [turn.start for turn in found.rows[0].turns] == [0, 4]
    assert found.rows[0].evidence == "tokens"


def test_a_server_that_returns_no_ids_is_matched_by_text() -> None:
    def said(order: int, text: str) -> Generation:
        return Generation(order, order, 0.1, [Sequence(None, None, "stop", text=text)], {})

    calls = [env(0, "reset"), said(1, "guess 4"), env(2, "step"), said(3, "guess 6"), env(4, "step")]
    calls += [env(5, "reset"), said(6, "guess 6"), env(7, "step")]
    texts = ["guess 6", "guess 4 lower guess 6"]
    found = attribute([ids(*PROMPT)] * 2, [ids(6), ids(4, 7, 6)], by_kind(calls), lambda row: texts[len(row) // 2])
    assert orders(found) == [([6], [5, 7]), ([1, 3], [0, 2, 4])]
    assert {row.evidence for row in found.rows} == {"text"}


def test_what_a_function_says_belongs_to_the_row_whose_call_came_last() -> None:
    calls = [
        env(0, "reset"), generation(1, (PROMPT, [3, END])), env(2, "step"), Note(3, "note", b"{}"),
        env(5, "reset"), generation(6, (PROMPT, [4, END])), Note(7, "tag", b"[]"), env(8, "step"),
    ]  # fmt: skip
    found = attribute([ids(*PROMPT)] * 2, [ids(3, END), ids(4, END)], by_kind(calls))
    assert [[note.order for note in row.notes] for row in found.rows] == [[3], [7]]


def test_a_call_within_a_tool_is_its_child() -> None:
    calls = [
        generation(0, (PROMPT, [3, END])), env(1, "tool"), replace(env(2, "step", 1), within=1),
        generation(3, SECOND),
    ]  # fmt: skip
    found = attribute([ids(*PROMPT)], [TWIN], by_kind(calls))
    assert orders(found) == [([0, 3], [1])]
    assert [call.order for call in found.rows[0].children] == [2]


def test_a_generation_whose_request_names_its_row_is_that_rows() -> None:
    calls = [replace(generation(0, ([8], [6, END])), request_id="cmpl-row-1"), generation(1, (PROMPT, [3, END]))]
    found = attribute([ids(*PROMPT)] * 2, [ids(3, END), ids(4, END)], by_kind(calls))
    assert orders(found) == [([1], []), ([0], [])]
    assert found.rows[1].evidence == "scope"


def test_what_a_judge_says_is_no_turn_of_the_row_that_says_it_too() -> None:
    def said(order: int, text: str, model: str) -> Generation:
        return Generation(order, order, 0.1, [Sequence(None, None, "stop", text=text)], {"model": model})

    calls = [said(0, "yes, it is 4", "policy"), said(1, "it is 4", "judge"), said(2, "no, it is 5", "policy")]
    texts = ["yes, it is 4 as it is 4", "no, it is 5"]
    found = attribute([ids(*PROMPT)] * 2, [ids(4), ids(4, 5)], by_kind(calls), lambda row: texts[len(row) - 1])
    assert orders(found) == [([0], []), ([2], [])]
    assert found.unattributed == 1


def sent(order: int, kind: str, client: int, action: bytes) -> EnvironmentCall:
    return replace(env(order, kind, client), sent=action)


def test_what_was_sent_says_whose_a_step_is_where_order_does_not() -> None:
    batch = generation(0, *((PROMPT, [n, END]) for n in (3, 4, 5)))
    calls: list[Generation | EnvironmentCall | Note] = [batch]
    for i, number in enumerate((4, 5, 3)):
        action = b'{"tool":"guess","number":%d,"id":"%d"}' % (number, 70 + i)
        calls += [env(2 * i + 1, "reset", i), sent(2 * i + 2, "step", i, action)]
    found = attribute([ids(*PROMPT)] * 3, [ids(n, END) for n in (3, 4, 5)], by_kind(calls), words)
    assert orders(found) == [([0], [5, 6]), ([0], [1, 2]), ([0], [3, 4])]
    assert {row.evidence for row in found.rows} == {"action"}


def words(row: Ids) -> str:
    return " ".join(map(str, row.tolist()))


def test_a_number_is_no_part_of_a_longer_one() -> None:
    batch = generation(0, (PROMPT, [5, END]), (PROMPT, [57, END]))
    calls = [batch, sent(1, "step", 0, b'{"guess":5}'), sent(2, "step", 1, b'{"guess":57}')]
    found = attribute([ids(*PROMPT)] * 2, [ids(5, END), ids(57, END)], by_kind(calls), words)
    assert orders(found) == [([0], [1]), ([0], [2])]
    assert {row.evidence for row in found.rows} == {"order"}


def test_rows_played_twice_have_no_episode_that_could_be_the_other_tries() -> None:
    calls: list[Generation | EnvironmentCall | Note] = []
    for i, reward in enumerate((0.0, 1.0)):
        calls += [env(3 * i, "reset", i), generation(3 * i + 1, (PROMPT, [3, END]))]
        calls += [replace(env(3 * i + 2, "step", i), reward=reward)]
    found = attribute([ids(*PROMPT)], [ids(3, END)], by_kind(calls))
    assert (found.rows[0].environment_calls, found.rows[0].is_whole) == ([], False)
    assert found.unattributed == 5


def test_rows_that_raised_are_told_apart_by_their_prompts() -> None:
    calls = [generation(0, ([5, 8], [3, END])), generation(1, ([5, 7], [4, END])), generation(2, ([5, 7], [6, END]))]
    found = attribute_unfinished(4, by_kind(calls), ["7", "7", "8", "8"], words)
    assert orders(found) == [([1], []), ([2], []), ([0], []), ([], [])]
    assert [row.evidence for row in found.rows] == ["prompt", "prompt", "prompt", None]


def test_a_chain_that_stands_whole_in_a_row_is_found_as_by_its_parts() -> None:
    random = np.random.default_rng(0)
    whole = 0
    for _ in range(1_000):
        tokens = random.integers(0, 3, 12).tolist()
        cuts = sorted(random.integers(0, 13, 4).tolist())
        row = RowTokens(ids(*tokens[: cuts[0]]), ids(*tokens[cuts[0] :]))
        row.matched = max(row.prompt, int(random.integers(0, 4)))
        chain = Chain(None, None, begins=True)
        for start, end in (cuts[1:3], cuts[2:4]):
            turn = generation(start, (tokens[:start], tokens[start:end] + [0] * int(random.integers(0, 4) == 0)))
            chain.add(turn, turn.sequences[0], bytes_of(turn.sequences[0].context))
        found = fit(chain, row, str)
        whole += _whole_fit(chain, row) is not None
        assert found == (_fit_by_parts(chain, row, str) or _cut_fit(chain, row))
    assert 100 < whole < 900


def round_robin_of(rows: int) -> tuple[list[Ids], list[Ids], Seen]:
    chance = np.random.default_rng(0)
    said: list[list[int]] = [[] for _ in range(rows)]
    made: list[Generation] = []
    calls = [env(i, "reset", i) for i in range(rows)]
    for turn in range(4):
        for i in range(rows):
            order, answer = rows + 2 * (turn * rows + i), [*chance.integers(10, 99, 9).tolist(), END]
            made.append(generation(order, ([7, i // 8, *said[i]], answer)))
            calls.append(env(order + 1, "step", i))
            said[i] += [*answer, 7] if turn < 3 else answer
    return [ids(7, i // 8) for i in range(rows)], [ids(*one) for one in said], Seen(made, calls)


@pytest.mark.exhaustive
def test_eight_times_as_many_rows_do_not_take_eight_times_as_long_each() -> None:
    def seconds(rows: int) -> float:
        prompts, completions, seen = round_robin_of(rows)
        began = time.process_time()
        assert attribute(prompts, completions, seen).unattributed == 0
        return time.process_time() - began

    assert min(seconds(800) for _ in range(3)) < 24 * min(seconds(100) for _ in range(5))
