"""Each diagnostic against figures worked out by hand."""

from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, Report, Rows, Settings, diagnose_rows, waterfall
from logs_ui.recorder.diagnosis.measures import shares
from logs_ui.recorder.diagnosis.report import card_lines
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.rows.text_facts import FACTS, TEXTS, facts
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Status, StopReason

NAN = float("nan")
GROUP = 4


def rows_of(count: int = 48, *, steps: int = 6, **columns: Any) -> Rows:
    """A run in which all is well but for what `columns` say: groups of four, half of each solved, three tasks.

    Args:
        count: of rollouts.
        steps: that they are spread over.
        columns: (count,) values, or one for all; a reward function's values as `parts={...}`, facts by their name.
    """

    def column(name: str, default: Any, dtype: Any = float) -> Any:
        return np.broadcast_to(np.asarray(columns.pop(name, default), dtype), count).copy()

    place = np.arange(count)
    reward = column("reward", place % 2)
    parts = columns.pop("parts", {"solved": reward})
    tasks = columns.pop("task", [f"task {group % 3}" for group in place // GROUP])
    names = list(dict.fromkeys(task for task in tasks if task is not None))
    codes = np.array([-1 if task is None else names.index(task) for task in tasks], np.int64)
    weights = columns.pop("weights", dict.fromkeys(parts, 1.0))
    values = columns.pop("values", {name: np.asarray(part) / (weights[name] or 1) for name, part in parts.items()})
    found = {name: column(name, NAN) for name in (*FACTS, "prompt_tokens")}
    found |= {name: column(name, None, object) for name in (*TEXTS, "sent_prompt")}
    made = Rows(
        id=place + 1,
        step=place * steps // count + 1,
        policy_step=column("policy_step", place * steps // count, np.int64),
        group=column("group", place // GROUP, np.int64),
        task=codes,
        eval=np.zeros(count, np.int64),
        status=column("status", Status.OK, object),
        stop_reason=column("stop_reason", StopReason.DONE, object),
        error=column("error", None, object),
        dropped=column("dropped", None, object),
        reward=reward,
        scored=column("scored", True, bool),
        odd=column("odd", False, bool),
        advantage=column("advantage", NAN),
        turns=column("turns", 2.0),
        completion_tokens=column("completion_tokens", 100.0),
        env_tokens=column("env_tokens", 10.0),
        seconds=column("seconds", 1.0),
        staleness=column("staleness", NAN),
        env_reward_sum=column("env_reward_sum", NAN),
        env_reward_last=column("env_reward_last", NAN),
        parts={name: np.asarray(values, float) for name, values in parts.items()},
        values={name: np.asarray(given, float) for name, given in values.items()},
        weights=weights,
        facts=found,
        tasks=names,
        evals=["e"],
    )
    assert not columns, columns
    return made


def card(report: Report, name: str) -> Card:
    found = {it.id: it for it in report.cards}
    assert name in found, (list(found), report.missing)
    return found[name]


PLACE = np.arange(48)
QUARTER = PLACE % 4 == 0  # one of each group; its reward is 0 where nothing else is said


def test_a_run_that_has_just_begun_is_not_judged() -> None:
    report = diagnose_rows(rows_of(16, steps=1, reward=0.0))
    assert (report.warming_up, report.cards) == (True, ())


def test_what_was_not_recorded_is_said() -> None:
    missing = {it.id: it.said for it in diagnose_rows(rows_of()).missing}
    assert missing["mismatch"] == "the trainer's sampling/sampling_logp_difference/mean"
    assert {"parse_failures", "diversity", "inconsistent", "never_acted"} <= set(missing)


# --- The waterfall


def test_each_lost_point_has_one_cause_and_the_parts_add_up() -> None:
    stop = np.array(["done"] * 48, object)
    stop[0], stop[4] = "environment_error", "length"
    rows = rows_of(stop_reason=stop, parse_tail=np.where(PLACE == 4, 1.0, 0.0))  # cut off, so no action was found
    fall = waterfall(rows, Scale.of(rows, Settings(max_reward=1.0)))
    # 24 of 48 lost a point: one to its environment, one to the token limit, which goes before its parse failure.
    assert [(share.cause.id, share.rollouts) for share in fall.shares] == [
        ("wrong_answer", 22),
        ("infrastructure", 1),
        ("truncation", 1),
    ]
    assert fall.lost == pytest.approx(0.5)
    assert sum(share.cost for share in fall.shares) == pytest.approx(fall.lost + fall.above)
    assert fall.best - fall.mean == pytest.approx(fall.lost)


def test_a_rollout_without_a_reward_counts_as_nothing() -> None:
    rows = rows_of(reward=np.where(PLACE % 2, 1.0, NAN))
    fall = waterfall(rows, Scale.of(rows, Settings(max_reward=1.0)))
    (share,) = fall.shares
    assert share.cause.id == "invalid_reward"
    assert share.cost == pytest.approx(0.5)


def test_rollouts_that_are_not_scored_yet_are_left_out() -> None:
    rows = rows_of(reward=np.where(PLACE < 24, 1.0, NAN), scored=PLACE < 24)
    assert waterfall(rows, Scale.of(rows, Settings(max_reward=1.0))).lost == pytest.approx(0.0)


def test_a_parse_failure_that_it_recovered_from_costs_nothing() -> None:
    rows = rows_of(parse_failures=1, parse_streak=1, parse_tail=0)
    assert [share.cause.id for share in waterfall(rows, Scale.of(rows, Settings())).shares] == ["wrong_answer"]


# --- Diagnostics


def test_truncation_costs_what_the_cut_rollouts_lost() -> None:
    rows = rows_of(
        truncated_turns=QUARTER.astype(float), stop_reason=np.where(QUARTER, StopReason.LENGTH, StopReason.DONE)
    )
    found = card(diagnose_rows(rows), "truncation")
    assert found.title == "25% of rollouts are truncated at the token limit"
    assert found.cost == pytest.approx(0.25)
    assert found.is_part
    assert found.since_step == 1


def test_environment_errors_name_their_kind_and_tasks() -> None:
    broken = (PLACE // GROUP % 3 == 0) & (PLACE % 2 == 0)  # of task 0, and all that fail of it
    rows = rows_of(
        stop_reason=np.where(broken, StopReason.ENVIRONMENT_ERROR, StopReason.DONE),
        status=np.where(broken, Status.ERROR, Status.OK),
        error=["RuntimeError: the game crashed" if it else None for it in broken],
    )
    found = card(diagnose_rows(rows), "infrastructure")
    assert found.cost == pytest.approx(8 / 48)
    assert found.evidence == ("RuntimeError \u00d78: the game crashed.", "Affected tasks: task 0 (8 of 16).")


def test_errors_that_differ_in_numbers_and_ids_are_one_kind() -> None:
    """Of two tasks; the one that nearly always fails is named first, though it has fewer rollouts."""
    few, many = (PLACE < 4), (PLACE >= 8) & QUARTER
    text = "RuntimeError: container {} killed: out of memory"
    rows = rows_of(
        task=["a" if place < 4 else "b" for place in PLACE],
        stop_reason=np.where(few | many, StopReason.ENVIRONMENT_ERROR, StopReason.DONE),
        status=np.where(few | many, Status.ERROR, Status.OK),
        error=["TimeoutError", *[text.format(f"3f{n:02x}") if few[n] or many[n] else None for n in range(1, 48)]],
    )
    found = card(diagnose_rows(rows), "infrastructure")
    assert found.evidence[:3] == (
        "RuntimeError \u00d713, such as: container 3f01 killed: out of memory.",
        "TimeoutError \u00d71.",
        "Affected tasks: a (4 of 4) and b (10 of 44).",
    )


def test_failed_rollouts_are_opened_exactly_if_the_model_received_some_of_the_errors() -> None:
    ended = PLACE < 6
    rows = rows_of(
        reward=np.where(ended | QUARTER, 0.0, 1.0),
        status=np.where(ended, Status.ERROR, Status.OK),
        stop_reason=np.where(ended, StopReason.ENVIRONMENT_ERROR, StopReason.DONE),
        env_steps=2.0,
        env_errors=np.where(QUARTER & ~ended, 2.0, 0.0),
    )
    found = card(diagnose_rows(rows), "infrastructure")
    assert found.where == "id:1..6,9,13,17,21,25,29,33,37,41,45"


def test_parse_failures_are_a_share_of_turns() -> None:
    rows = rows_of(
        parse_failures=np.where(QUARTER, 2.0, 0.0),
        parse_streak=np.where(QUARTER, 2.0, 0.0),
        parse_tail=np.where(QUARTER, 2.0, 0.0),
        stop_reason=np.where(QUARTER, StopReason.NO_ACTION, StopReason.DONE),
    )
    found = card(diagnose_rows(rows), "parse_failures")
    assert found.title == "No action is found in 25% of the model's answers"  # 24 of 96 turns
    assert found.cost == pytest.approx(0.25)


def test_rewards_that_are_no_numbers_are_counted() -> None:
    rows = rows_of(reward=np.where(QUARTER, NAN, PLACE % 2), parts={"solved": np.where(QUARTER, NAN, PLACE % 2)})
    found = card(diagnose_rows(rows, Settings(max_reward=1.0)), "invalid_reward")
    assert found.cost == pytest.approx(0.25)
    assert "No number from solved." in found.evidence


def test_loops_cost_what_they_get_less() -> None:
    rows = rows_of(action_tail=np.where(QUARTER, 5.0, 1.0))
    found = card(diagnose_rows(rows), "loops")
    # They get 0, the others 24 of 36: a quarter of the rollouts lose 2/3.
    assert found.cost == pytest.approx(1 / 6)


def test_groups_that_fail_as_a_whole_are_dead() -> None:
    dead = PLACE // GROUP % 4 != 0  # 9 of 12 groups
    rows = rows_of(reward=np.where(dead, 0.0, PLACE % 2))
    found = card(diagnose_rows(rows), "dead_groups")
    assert found.title.startswith("75% of groups")
    assert found.cost == pytest.approx(0.75)
    assert found.evidence[0] == "In 9 of these 9 groups no rollout is solved; 0 hold solved ones."


def test_groups_that_pass_as_a_whole_cost_nothing() -> None:
    rows = rows_of(reward=np.where(PLACE // GROUP % 4 != 0, 1.0, PLACE % 2))
    assert diagnose_rows(rows).cards == ()


def test_a_task_that_is_never_solved_costs_what_it_is_behind_the_others() -> None:
    hard = PLACE // GROUP % 3 == 0  # 16 attempts
    rows = rows_of(reward=np.where(hard, 0.0, PLACE % 2))
    found = card(diagnose_rows(rows), "never_solved")
    assert found.title == "1 of 3 tasks is never solved"
    assert found.cost == pytest.approx((1.0 - 0.5) * 16 / 48)
    assert found.where == 'task:"task 0"'


def test_unsolved_tasks_that_had_too_few_attempts_are_told_apart() -> None:
    place = np.arange(600)
    task = np.where(
        place < 64, "mated", np.where(place < 76, "endgame", np.char.add("opening ", (place % 10).astype(str)))
    )
    order = np.random.default_rng(1).permutation(600)
    won = np.where(place < 76, 0.0, place // 10 % 6 == 0)  # a sixth
    rows = rows_of(600, steps=12, reward=won[order], task=task[order].tolist(), group=place)
    found = card(diagnose_rows(rows, Settings(steps=12)), "never_solved")
    assert found.title == "1 of 12 tasks is never solved, beyond chance"
    assert found.where == "task:mated"
    assert "1 more was not solved, in so few attempts that it may be chance." in found.evidence


def test_unsolved_tasks_that_may_each_be_chance_are_counted_together() -> None:
    place = np.arange(1_200)  # 40 attempts of each of 30 tasks, of which 18 are never solved
    task, wins = place % 30, np.array([0] * 18 + [1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 20, 24])
    won = (place // 30 < wins[task]).astype(float)
    order = np.random.default_rng(1).permutation(1_200)
    names = np.char.add("riddle ", task.astype(str))
    rows = rows_of(1_200, steps=20, reward=won[order], task=names[order].tolist(), group=place)
    found = card(diagnose_rows(rows, Settings(steps=20)), "never_solved")
    assert found.title == "18 of 30 tasks are never solved, in 40 attempts each on average"
    # 99 of 1,200 attempts are solved: 30 * (1 - 0.0825) ** 40 is 0.96
    assert found.evidence[1] == "If all tasks were equally hard, chance would leave fewer than 1 unsolved."


@pytest.mark.parametrize("lucky", [0, 1])
def test_a_family_without_a_success_is_named_in_place_of_its_tasks(lucky: int) -> None:
    place = np.arange(480)  # 8 attempts of each of 60 tasks, of three families
    family, number = np.array(["sql/", "git/", "ssh/"])[place % 3], np.char.add("task-", (place % 60).astype(str))
    won = np.where(family == "ssh/", place == 2 if lucky else False, place // 60 % 4 == 0).astype(float)
    rows = rows_of(480, steps=12, reward=won, task=np.char.add(family, number).tolist(), group=place)
    report = diagnose_rows(rows, Settings(steps=12))
    titles = [found.title for found in report.cards if found.id == "never_solved"]
    named = ["None of the 160 rollouts of ssh/ (20 tasks) was solved; elsewhere 25% were"]
    assert titles == named * (1 - lucky)


def test_a_harder_mix_is_told_from_getting_worse() -> None:
    place = np.arange(96)
    easy = np.where(place < 48, place % 4 != 0, place % 8 == 1)  # three of four rollouts, later one of eight
    task = np.where(easy, "easy", "hard")
    rows = rows_of(96, task=task.tolist(), reward=easy.astype(float), group=place, steps=6)
    found = card(diagnose_rows(rows, Settings(steps=3)), "task_mix")
    assert found.cost == pytest.approx(0.75 - 0.125)
    assert "within-task change 0, task-mix change \u22120.625." in found.evidence[0]


def test_one_part_that_decides_alone_is_found() -> None:
    shape, right = (PLACE % 2).astype(float), (PLACE % 48 == 0).astype(float)
    rows = rows_of(
        reward=2 * shape + right, parts={"format": 2 * shape, "right": right}, weights={"format": 2, "right": 1}
    )
    assert sum(shares(rows).values()) == pytest.approx(1.0)
    found = card(diagnose_rows(rows), "reward_parts")
    assert found.cost == pytest.approx(1 - 1 / 48)
    assert "right" in found.title


def test_thresholds_can_be_set() -> None:
    rows = rows_of(
        truncated_turns=QUARTER.astype(float), stop_reason=np.where(QUARTER, StopReason.LENGTH, StopReason.DONE)
    )
    assert diagnose_rows(rows, Settings(thresholds={"truncation": 0.5})).cards == ()


# --- Facts


def entry(turn: int, text: str | None, action: Any, observation: Any = None, **more: Any) -> dict[str, Any]:
    known = {"turn": turn, "text": text, "action": action, "observation": observation}
    return {**known, "metadata": None, "error": None, **more}


def test_facts_of_an_episode() -> None:
    actions = [
        entry(0, None, None, "a"),
        entry(1, "go", {"n": 1}, "a"),
        entry(2, "go", {"n": 1}, "b"),
        entry(3, "hm", None),
    ]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "go"}]
    ids, logprobs = np.array([1, 2, 3, 4, 5], np.int32), np.array([-1.0, -9.0, -2.0], np.float16)
    tokens = Tokens(ids[:2], ids[2:], logprobs, np.array([1, 0, 1], np.uint8))
    found = facts(messages, actions, ["stop", "length", None], tokens)
    assert found["env_steps"] == 2
    assert (found["parse_failures"], found["parse_streak"], found["parse_tail"]) == (1, 1, 1)
    assert (found["action_streak"], found["repeats"]) == (2, 0.5)
    assert (found["first_action"], found["last_action"]) == ("n=1", "n=1")
    assert found["truncated_turns"] == 1
    assert found["mean_logprob"] == pytest.approx(-1.5)
    assert found["distinct_words"] is None


@pytest.mark.parametrize(("actions", "streak", "repeats"), [((), None, None), ((1,), 1, None), ((1, 2, 3), 1, 0.0)])
def test_actions_that_are_all_different_repeat_nothing(
    actions: tuple[int, ...], streak: int | None, repeats: float | None
) -> None:
    found = facts([], [entry(n, "go", {"n": n}, "a") for n in actions], [], None)
    assert (found["action_streak"], found["repeats"]) == (streak, repeats)


def test_facts_of_what_was_not_seen_are_none() -> None:
    found = facts([], [], [], None)
    assert set(found.values()) == {None}


def test_a_parser_that_falls_back_is_seen_through() -> None:
    said = [entry(turn, "??", "noop", metadata={"parsed": False}) for turn in (1, 2, 3)]
    found = facts([], [*said, entry(4, "go", "go", metadata={"parsed": True})], [], None)
    assert (found["parse_failures"], found["parse_streak"], found["parse_tail"]) == (3, 3, 0)


def test_text_in_circles_is_compressed_well() -> None:
    found = facts([{"role": "assistant", "content": "the same again " * 500}], [], [], None)
    assert found["compression"] > 10
    assert found["distinct_words"] == pytest.approx(3 / 1500, rel=0.5)
    assert found["trigram_repeats"] > 0.9


def test_equal_actions_at_the_end_are_counted() -> None:
    sent = [entry(n, "go", {"n": n}, "a") for n in (1, 1, 1, 2, 2)]
    assert facts([], sent, [], None)["action_tail"] == 2


@pytest.mark.parametrize(
    ("heard", "metadata", "verdict"),
    [
        ({"text": "bye", "success": True}, None, 1),
        ({"text": "correct!", "metadata": {"solved": False}}, None, 0),
        ({"success": True, "resolved": False}, None, 0),  # the call went well, and nothing was resolved
        ({"info": {"won": 1}}, None, 1),
        ({"passed": 1, "failed": 3}, None, None),  # counts
        ({"passed": False}, None, 0),
        ({"solved": True, "won": False}, None, None),
        ({"score": 0.75}, {"is_correct": True}, 1),
        ('{"result": {"is_success": 0}}', None, 0),
        ("Correct! The answer is 4.", None, 1),
        ("**You won** after 3 turns.", None, 1),
        ({"message": "Incorrect: it was 4"}, None, 0),
        ("Wrong answer", None, 0),
        ("Game over.", None, 0),
        ("Game over! You win.", None, None),
        ("Game over, 12 points", None, None),
        ("not correct", None, None),
        ("Successfully submitted", None, None),
        ("Success: false", None, None),
        ("Correct the spelling", None, None),
        (None, None, None),
    ],
)
def test_the_environments_own_word_is_heard_where_it_ended_the_episode(
    heard: Any, metadata: Any, verdict: int | None
) -> None:
    before = entry(1, "go", "go", "You won")
    last: Any = entry(2, "go", "go", heard, metadata=metadata, done=True)
    assert facts([], [before, last], [], None)["env_success"] == verdict
    assert facts([], [before, {**last, "done": False}], [], None)["env_success"] is None
    assert facts([], [last, entry(0, None, None, "again")], [], None)["env_success"] is None  # of another episode


def test_the_word_of_an_environment_that_a_tool_called_is_heard() -> None:
    inner = entry(1, None, "4", {"solved": True}, done=True)
    called = entry(1, "go", {"name": "answer", "arguments": {}}, "sent", done=True, metadata={"calls": [inner]})
    assert facts([], [called], [], None)["env_success"] == 1


def test_actions_that_no_answer_contains_are_counted() -> None:
    sent = [
        entry(1, "I go North.", "north"),
        entry(2, "Hm.", "noop"),
        entry(3, "click 12, 3", {"x": 12, "y": 3, "metadata": {"id": "q"}, "final": True}),
        entry(4, "click 120", {"x": 12}),
        entry(5, "??", {"type": "noop"}),
        entry(6, "!!", {"type": "noop"}),
    ]
    found = facts([], sent, [], None)
    assert (found["unsaid_actions"], found["unsaid_action"]) == (4, "noop")


def test_a_tool_call_contains_its_action() -> None:
    call = {"function": {"name": "bash", "arguments": '{"cmd": "git diff", "note": "a\\nb"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "an example"},
        {"role": "user", "content": "now you"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": "I am done."},
    ]
    made = {"name": "bash", "arguments": {"cmd": "git diff", "note": "a\nb"}}
    found = facts(messages, [entry(1, "", made), entry(2, "I am done.", "noop")], [], None)
    assert (found["unsaid_actions"], found["unsaid_action"]) == (1, "noop")


def test_of_a_tool_that_a_text_asks_for_only_the_name_has_to_occur_as_on_the_page() -> None:
    made = {"name": "bash", "arguments": {"command": "git diff"}}
    for text, unsaid in (("I look. <tool_call>bash</tool_call>", 0), ("I wait.", 1)):
        assert facts([], [entry(1, text, made)], [], None)["unsaid_actions"] == unsaid
    odd = {"name": 'a "b"', "arguments": {}}  # which JSON writes otherwise
    assert facts([], [entry(1, "I look.", odd)], [], None)["unsaid_actions"] == 0


def test_without_an_answer_it_is_not_known_if_actions_were_said() -> None:
    assert facts([], [entry(1, None, "go")], [], None)["unsaid_actions"] is None


@pytest.mark.parametrize(
    ("ends", "name"),
    [
        ({"stop_reason": np.where(np.arange(48) % 2, StopReason.DONE, StopReason.TURN_LIMIT)}, "turn limit"),
        ({"stop_reason": StopReason.NOT_RECORDED, "action_tail": np.where(np.arange(48) % 2, 1.0, 7.0)}, "loop"),
        (
            {
                "stop_reason": np.where(np.arange(48) % 4, StopReason.NOT_RECORDED, StopReason.TURN_LIMIT),
                "action_tail": np.where(np.arange(48) % 2, 1.0, 7.0),
            },
            "loop or turn limit",
        ),
    ],
)
def test_a_bar_is_named_by_what_applies(ends: dict[str, Any], name: str) -> None:
    shares = diagnose_rows(rows_of(**ends)).fall.shares
    assert [(it.cause.id, it.cause.name, it.rollouts) for it in shares] == [("loop", name, 24)]


@pytest.mark.parametrize(
    ("others", "said"), [(0.5, "reward lost per rollout, more than other rollouts: 0.125"), (1.0, None)]
)
def test_a_cost_that_is_not_against_the_best_reward_says_what_it_is_more_than(others: float, said: str | None) -> None:
    """A quarter never acts and loses all, 0.25 per rollout; of the others a half is lost, or nothing."""
    idle, place = np.arange(80) // 4 % 4 == 0, np.arange(80)
    paid = np.where(idle, 0.0, np.where(place % 2, 1.0, 2 * others - 1))
    rows = rows_of(80, steps=10, reward=paid, env_steps=np.where(idle, np.nan, 2.0), tool_calls=0.0)
    report = diagnose_rows(rows)
    found = next(it for it in report.cards if it.id == "never_acted")
    line = card_lines(report, found)[0].text
    assert line.startswith(f"{said or 'reward lost per rollout: 0.25'} \N{MIDDLE DOT} ")
