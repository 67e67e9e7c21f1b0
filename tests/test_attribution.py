"""Which call belongs to which row, against references written by hand."""

from collections.abc import Sequence as Seq

import numpy as np

from logs_ui.recorder.attribution import Attribution, attribute, attribute_unfinished
from logs_ui.recorder.calls import EnvironmentCall, Generation, Ids, Sequence

END = 9


def ids(*values: int) -> Ids:
    return np.array(values, np.int32)


def generation(order: int, *sequences: tuple[Seq[int], Seq[int]], finish: str = "stop") -> Generation:
    return Generation(order, order, 0.1, [Sequence(ids(*c), ids(*s), finish) for c, s in sequences], {})


def env(order: int, kind: str, client: int = 0, *, error: str | None = None) -> EnvironmentCall:
    return EnvironmentCall(order, order, 0.1, client, kind, b"{}", b"{}", 1.0, False, None, error)


def orders(found: Attribution) -> list[tuple[list[int], list[int]]]:
    """(generations, environment calls) of each row."""
    return [([t.order for t in row.turns], [c.order for c in row.environment_calls]) for row in found.rows]


def test_sequential_rows_with_one_shared_client() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt), ids(*prompt)],
        [ids(3, END, 7, 4, END), ids(5, END)],
        [
            generation(1, (prompt, [3, END])),
            generation(3, ([1, 2, 3, END, 7], [4, END])),
            generation(6, (prompt, [5, END])),
        ],
        [env(0, "reset"), env(2, "step"), env(4, "step"), env(5, "reset"), env(7, "step")],
    )
    assert orders(found) == [([1, 3], [0, 2, 4]), ([6], [5, 7])]
    assert found.unattributed == 0
    assert [turn.start for turn in found.rows[0].turns] == [0, 3]


def test_lockstep_batches_with_a_client_for_each_row() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 3,
        [ids(3, END, 7, 4, END), ids(5, END), ids(3, END, 7, 6, END)],
        [
            generation(3, (prompt, [3, END]), (prompt, [5, END]), (prompt, [3, END])),
            generation(7, ([1, 2, 3, END, 7], [4, END]), ([1, 2, 3, END, 7], [6, END])),
        ],
        [env(i, "reset", i) for i in range(3)]
        + [env(4, "step", 0), env(5, "step", 1), env(6, "step", 2), env(8, "step", 0), env(9, "step", 2)],
    )
    assert orders(found) == [([3, 7], [0, 4, 8]), ([3], [1, 5]), ([3, 7], [2, 6, 9])]


def test_identical_twins_keep_the_order_of_the_rows() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END)] * 2,
        [generation(0, (prompt, [3, END])), generation(3, (prompt, [3, END]))],
        [env(1, "reset", 0), env(2, "step", 0), env(4, "reset", 0), env(5, "step", 0)],
    )
    assert orders(found) == [([0], [1, 2]), ([3], [4, 5])]


def test_all_generated_first_then_each_stepped() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(0, (prompt, [3, END])), generation(1, (prompt, [4, END]))],
        [env(2, "reset", 0), env(3, "step", 0), env(4, "reset", 0), env(5, "step", 0)],
    )
    assert orders(found) == [([0], [2, 3]), ([1], [4, 5])]


def test_one_reset_then_a_step_for_each_row() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(1, (prompt, [3, END]), (prompt, [4, END]))],
        [env(0, "reset"), env(2, "step"), env(3, "step")],
    )
    assert orders(found) == [([1], [0, 2]), ([1], [0, 3])]


def test_an_episode_that_is_retried_stays_with_its_row() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(1, (prompt, [3, END])), generation(6, (prompt, [4, END]))],
        [
            env(0, "reset", 0),
            env(2, "step", 0, error="TimeoutError: 1 s"),
            env(3, "reset", 1),
            env(4, "step", 1),
            env(5, "reset", 2),
            env(7, "step", 2),
        ],
    )
    assert orders(found) == [([1], [0, 2, 3, 4]), ([6], [5, 7])]


def test_a_row_whose_answer_was_never_sent_has_no_step() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(1, (prompt, [3, END])), generation(3, (prompt, [4, END]))],
        [env(0, "reset"), env(2, "reset"), env(4, "step")],
    )
    assert orders(found) == [([1], [0]), ([3], [2, 4])]


def test_an_answer_without_its_end_token_and_one_that_was_cut_are_still_known() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, 4), ids(5, 6)],
        [generation(0, (prompt, [3, 4, END]), (prompt, [5, 6, 7, 8]))],
        [],
    )
    assert [row.evidence for row in found.rows] == ["context", "context"]


def test_prompts_that_were_tokenised_anew_fall_back_on_the_sampled_tokens() -> None:
    found = attribute(
        [ids(1, 2), ids(1, 2)],
        [ids(3, END), ids(4, END)],
        [generation(0, ([8, 8, 8], [4, END])), generation(1, ([8, 8, 8], [3, END]))],
        [],
    )
    assert orders(found) == [([1], []), ([0], [])]
    assert {row.evidence for row in found.rows} == {"tokens"}


def test_what_matches_nothing_is_counted_and_forced_on_nobody() -> None:
    found = attribute(
        [ids(1, 2), ids(1, 2)],
        [ids(3, END), ids(4, END)],
        [generation(0, ([8, 8], [6, 7, END]))],
        [env(1, "reset", 0), env(2, "step", 0), env(3, "reset", 1), env(4, "reset", 2)],
    )
    assert orders(found) == [([], []), ([], [])]
    assert found.unattributed == 5


def test_more_steps_than_answers_are_not_a_rows() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(0, (prompt, [3, END]), (prompt, [4, END]))],
        [env(1, "reset", 0), env(2, "step", 0), env(3, "step", 0), env(4, "reset", 1), env(5, "step", 1)],
    )
    assert found.unattributed == 5


def test_rows_of_a_function_that_raised_are_told_apart_by_what_their_contexts_go_on_from() -> None:
    prompt = [1, 2]
    found = attribute_unfinished(
        3,
        [
            generation(1, (prompt, [3, END])),
            generation(3, ([1, 2, 3, END, 7], [4, END])),
            generation(5, (prompt, [5, END])),
        ],
        [env(0, "reset"), env(2, "step"), env(4, "reset"), env(6, "step", error="ValueError: dead")],
    )
    assert orders(found) == [([1, 3], [0, 2]), ([5], [4, 6]), ([], [])]
    assert [turn.start for turn in found.rows[0].turns] == [0, 3]


def test_an_environment_that_died_at_once_is_the_first_rows() -> None:
    found = attribute_unfinished(3, [], [env(0, "reset", error="ConnectionError: refused")])
    assert orders(found) == [([], [0]), ([], []), ([], [])]


def test_answers_that_stand_in_no_row_are_nobodys_even_if_there_are_as_many_as_rows() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(0, (prompt, [3, END]), (prompt, [4, END])), generation(1, ([70], [80, 81]), ([71], [80, 82]))],
        [],
    )
    assert orders(found) == [([0], []), ([0], [])]
    assert found.unattributed == 2


def test_two_steps_of_one_row_are_not_one_for_each() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END, 7, 4, END), ids(5, END)],
        [
            generation(1, (prompt, [3, END])),
            generation(3, ([1, 2, 3, END, 7], [4, END])),
            generation(5, (prompt, [5, END])),
        ],
        [env(0, "reset"), env(2, "step"), env(4, "step")],
    )
    assert orders(found) == [([1, 3], [0, 2, 4]), ([5], [])]


def test_a_step_for_each_row_after_a_generation_for_each() -> None:
    prompt = [1, 2]
    found = attribute(
        [ids(*prompt)] * 2,
        [ids(3, END), ids(4, END)],
        [generation(0, (prompt, [3, END])), generation(1, (prompt, [4, END]))],
        [env(2, "reset"), env(3, "step"), env(4, "step")],
    )
    assert orders(found) == [([0], [2, 3]), ([1], [2, 4])]


def test_a_step_for_each_row_where_no_generation_was_seen() -> None:
    steps = [env(0, "reset"), env(1, "step"), env(2, "step")]
    found = attribute([ids(1, 2)] * 2, [ids(3, END)] * 2, [], steps)
    assert orders(found) == [([], [0, 1]), ([], [0, 2])]
    found = attribute([ids(1, 2)] * 2, [ids(3, END)] * 2, [generation(0, ([8], [6]))], steps)
    assert found.unattributed == 4


def test_two_steps_before_a_function_raised_are_not_one_for_each() -> None:
    found = attribute_unfinished(
        2,
        [generation(1, ([1, 2], [3, END])), generation(3, ([1, 2, 3, END, 7], [4, END]))],
        [env(0, "reset"), env(2, "step"), env(4, "step")],
    )
    assert orders(found) == [([1, 3], [0, 2, 4]), ([], [])]


RETOKENISED = [
    generation(1, ([1, 2], [3, END])),
    generation(3, ([1, 2, 30, END, 7], [4, END])),
    generation(5, ([2, 40, END, 7], [5, END])),  # no longer begins with the prompt
]


def test_turns_tokenised_anew_stay_with_the_row_whose_episode_goes_on() -> None:
    found = attribute_unfinished(
        3,
        [*RETOKENISED, generation(8, ([1, 2], [3, END])), generation(10, ([1, 2, 30, END, 7], [6, END]))],
        [env(0, "reset"), env(2, "step"), env(4, "step"), env(6, "step"), env(7, "reset"), env(9, "step")],
    )
    assert orders(found) == [([1, 3, 5], [0, 2, 4, 6]), ([8, 10], [7, 9]), ([], [])]
    assert found.unattributed == 0


def test_turns_tokenised_anew_are_nobodys_where_no_episode_tells_whose() -> None:
    found = attribute_unfinished(3, RETOKENISED[:2], [])
    assert orders(found) == [([1], []), ([], []), ([], [])]
    assert found.unattributed == 1
    together = [
        generation(1, ([1, 2], [3, END]), ([1, 2], [4, END])),
        generation(3, ([1, 2, 30, END, 7], [4, END]), ([1, 2, 40, END, 7], [4, END])),
    ]
    found = attribute_unfinished(3, together, [env(0, "reset"), env(2, "step")])
    assert [generations for generations, _ in orders(found)] == [[1], [1], []]


def test_a_step_of_another_client_begins_no_later_turn() -> None:
    prompts = [[1, 2], [3, 4], [5, 6]]
    found = attribute_unfinished(
        3,
        [generation(2 * i + 3, (prompt, [7, END])) for i, prompt in enumerate(prompts)],
        [env(i, "reset", i) for i in range(3)] + [env(2 * i + 4, "step", i) for i in range(3)],
    )
    assert orders(found) == [([3], [0, 4]), ([5], [1, 6]), ([7], [2, 8])]


def test_another_prompt_after_a_reset_begins_the_next_row() -> None:
    found = attribute_unfinished(
        2,
        [generation(1, ([1, 2], [3, END])), generation(4, ([5, 6], [3, END]))],
        [env(0, "reset"), env(2, "step"), env(3, "reset"), env(5, "step")],
    )
    assert orders(found) == [([1], [0, 2]), ([4], [3, 5])]
