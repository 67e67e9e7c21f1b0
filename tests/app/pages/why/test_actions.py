"""What rollouts did in their environments, and the page that shows it."""

import re
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from sqlalchemy import Engine, delete, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.pages.why import actions as why_actions
from logs_ui.recorder import queries
from logs_ui.recorder.action_text import written_action
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.action_sample import Played, failure, kind_names, sampled, words_of
from logs_ui.recorder.diagnosis.tables.actions import Tally, habits, looping, tallies
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.rows.text_facts import facts
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload
from logs_ui.recorder.vocabulary import Mark, RunState
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of
from tests.support.agent_runs import record_coding
from tests.support.dashboard import dashboard, flat, page_of, rollouts_at
from tests.support.exhaustive import cases
from tests.support.factory import COMMANDS, make_run

RUN, SILENT = "main-run-1234", "silent-5678"


def entry(action: Any = None, observation: Any = None, error: str | None = None, turn: int = 1) -> dict[str, Any]:
    return {"turn": turn, "text": None, "action": action, "observation": observation, "error": error}


# --- What actions are called


@pytest.mark.parametrize(
    ("actions", "names"),
    [
        # a tool call, as OpenEnv's MCP, OpenAI and others write it
        ([{"type": "call_tool", "tool_name": "search", "arguments": {"q": "a"}, "metadata": {}}], ["search"]),
        ([{"function": {"name": "search", "arguments": "{}"}}], ["search"]),
        ([{"tool": "search", "input": 1}, {"name": "open", "arguments": {}}], ["search", "open"]),
        # a name without arguments is no tool's
        ([{"name": "Ann"}], ["name: Ann"]),
        ([{"type": "list_tools", "metadata": {}}], ["type: list_tools"]),
        # the field that tells actions of one shape apart
        ([{"op": op, "at": at} for op in ("push", "pop") for at in ("a b c", "d e f", "g h i")],
         ["op: push"] * 3 + ["op: pop"] * 3),
        ([{"x": 1, "y": 2}], ["{x, y}"]),
        # few texts are themselves, many are called by their first word
        (["look", " look ", "go north"], ["look", "look", "go north"]),
        ([f"click({n})" for n in range(13)], ["click …"] * 13),
        ([f"<b>{n}" for n in range(13)], ["b …"] * 13),
        ([{"guess": n, "metadata": {}} for n in range(13)], ["guess: any number"] * 13),
        ([{"guess": 3}, {"guess": 4}], ["guess: 3", "guess: 4"]),
        ([{"command": f"ls -la {n}"} for n in range(13)], ["command: ls …"] * 13),
        ([{}], ["{}"]),
        ([[1, 2], 7], ["[1,2]", "7"]),
    ],
)  # fmt: skip
def test_actions_that_are_alike_have_one_name(actions: list[Any], names: list[str]) -> None:
    assert kind_names(actions) == names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("search", "search"), ("click …", "click"), ("guess: any number", "guess"), ("op: push", "op: push"),
        ("{x}", None),
    ],
)  # fmt: skip
def test_a_kind_is_looked_for_by_words_that_its_actions_have(name: str, words: str | None) -> None:
    assert words_of(name) == words


# --- What went wrong


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (entry("a", error="TimeoutError: 30 s\nTraceback"), "TimeoutError: 30 s"),
        (entry("a", {"error": "no such file"}), "no such file"),
        (entry("a", {"error": {"error_type": "bad", "message": "no such tool"}}), "no such tool"),
        (entry("a", {"last_action_error": True}), "last_action_error"),
        (entry("a", {"stdout": "", "exit_code": 127}), "exit_code 127"),
        (entry("a", {"stdout": "", "exit_code": 0, "error": None}), None),
        (entry("a", "an error is mentioned"), None),
        (entry("a"), None),
    ],
)
def test_an_error_is_what_was_raised_or_what_the_observation_calls_one(answered: dict[str, Any], message: str) -> None:
    assert failure(answered) == message


def test_a_sample_is_what_its_rollouts_did() -> None:
    look, fetch = {"tool_name": "look"}, {"tool_name": "fetch", "arguments": {}}
    sample = sampled(
        [
            Played(
                1, 0.0, [entry(None, "start", turn=0), *[entry(look, "a wall")] * 3, entry(fetch, {"error": "gone"})]
            ),
            Played(2, 1.0, [entry(fetch, "it"), entry(look, "it")]),
            Played(3, None, [entry(None, "start", turn=0)]),
        ]
    )
    assert (sample.rollouts, sample.actions) == (3, 6)
    by_name = {kind.name: kind for kind in sample.kinds}
    assert [kind.name for kind in sample.kinds] == ["look", "fetch"]
    assert (by_name["look"].times, by_name["look"].rollouts, by_name["look"].looped_in) == (4, [1, 2], [1])
    assert (by_name["look"].first_in, by_name["look"].last_in, by_name["look"].last_rewards) == ([1], [2], [1.0])
    assert (by_name["fetch"].failed, by_name["fetch"].failed_in, by_name["fetch"].last_in) == (1, [1], [1])
    assert [
        (observation.text, observation.times, observation.rollouts, list(observation.after))
        for observation in sample.errors
    ] == [("gone", 1, [1], ["fetch"])]
    assert [(observation.text, observation.times, observation.rollouts) for observation in sample.repeated] == [
        ("a wall", 2, [1]),
        ("it", 1, [2]),
    ]


def test_errors_that_differ_only_in_numbers_are_one() -> None:
    died = [entry("run", error=f"ContainerDiedError: container {name} exited") for name in ("4f1a", "9c07", "31")]
    sample = sampled([Played(place, 0.0, [episode]) for place, episode in enumerate(died, 1)])
    assert [(error.text, error.times, error.rollouts) for error in sample.errors] == [
        ("ContainerDiedError: container 4f1a exited", 3, [1, 2, 3])
    ]


# --- Over all rollouts


def test_tallies_are_of_every_rollout() -> None:
    rows = rows_of(
        8, steps=2, reward=[1, 0, NAN, 1, 1, 0.5, 1, 0], first_action=["a", "a", "a", "b", None, "b", "b", None]
    )
    first_actions = tallies(rows, Scale(1.0, Success((Mark("reward", 1.0),)), ""), "first_action")
    assert [(tally.value, tally.rollouts, tally.scored, tally.solved) for tally in first_actions] == [
        ("a", 3, 2, 1), ("b", 3, 3, 2), (None, 2, 2, 1)
    ]  # fmt: skip
    assert [tally.mean for tally in first_actions] == pytest.approx([0.5, 2.5 / 3, 0.5])


def test_rollouts_that_no_deciding_function_scored_have_a_mean_and_no_share() -> None:
    rows = rows_of(2, steps=1, reward=[0.2, 0.4], parts={"game": [0.2, 0.4]}, first_action=["hit", "hit"])
    (tally,) = tallies(rows, Scale(1.0, Success((Mark("rewards.solved", 1.0),)), ""), "first_action")
    assert tally.mean == pytest.approx(0.3)
    assert tally.scored == 0


def test_habits_are_of_those_rollouts_that_tell() -> None:
    rows = rows_of(4, steps=1, reward=[1, 0, 0, 1], action_streak=[1, 3, 4, NAN], tool_calls=[0, 0, 0, 0])
    counts = {count.habit.id: count for count in habits(rows)}
    assert set(counts) == {"streak"}, "what no column tells is no habit, nor is what no rollout ever does otherwise"
    assert (counts["streak"].rollouts, counts["streak"].recorded) == (2, 3)
    assert (counts["streak"].mean, counts["streak"].mean_others) == (0.0, 1.0)


def test_loops_are_those_of_the_finding_on_loops() -> None:
    """A streak that was left behind is none; what nothing tells of is not counted."""
    rows = rows_of(5, steps=1, action_streak=[3, 5, 1, 1, NAN], action_tail=[1, 5, 1, 1, NAN],
                   repeats=[0.1, 0.2, 0.8, 0.0, NAN])  # fmt: skip
    counts = {count.habit.id: count for count in habits(rows)}
    assert [(counts[name].rollouts, counts[name].recorded) for name in ("streak", "loops")] == [(2, 4), (2, 4)]
    assert counts["loops"].rollouts == looping(rows).sum()
    assert counts["loops"].habit.where == "id:2..3"


@pytest.mark.parametrize(
    ("action", "written"),
    [
        ({"name": "bash", "arguments": {"command": "git diff"}}, "bash  git diff"),
        ({"arguments": '{"command": "git diff"}', "name": "bash"}, "bash  git diff"),
        ('{"arguments":{"command":"git diff"},"name":"bash"}', "bash  git diff"),
        ({"type": "call_tool", "tool_name": "search", "arguments": {"q": "a b"}, "metadata": {}}, "search  a b"),
        ({"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1, "b": "x y"}'}},
         'bash  a=1 b="x y"'),
        ({"name": "submit", "arguments": {}}, "submit"),
        ({"name": "submit", "arguments": "{}", "metadata": {"at": 3}}, "submit"),
        ({"tool": "open", "input": 3}, "open  3"),
        ({"name": "bash", "arguments": '{"command": "git'}, 'bash  {"command": "git'),
        ({"guess": 3, "metadata": {}}, "guess=3"),
        ({"op": "push", "at": [1, 2], "to": None}, "op=push at=[1,2]"),
        ({"message": "go north"}, "go north"),
        ({}, "{}"),
        ("  look ", "look"),
        ([1, "\ud800"], "[1, '\\ud800']"),
        (7, "7"),
    ],
)  # fmt: skip
def test_an_action_is_written_as_a_person_would(action: Any, written: str) -> None:
    assert written_action(action) == written
    assert written_action(written) == written or written == "{}", "what is stored so is shown so"


def test_one_call_in_several_forms_is_one_line() -> None:
    """A server's call and a parsed one differ in the order of their keys and in metadata."""
    forms = [{"name": "submit", "arguments": {}}, {"arguments": {}, "name": "submit", "metadata": {}}]
    last_actions = {facts([], [entry(form)], [], None)["last_action"] for form in forms}
    assert last_actions == {"submit"}
    (kind,) = sampled([Played(n, 0.0, [entry(form)]) for n, form in enumerate(forms)]).kinds
    assert (kind.name, dict(kind.values)) == ("submit", {"submit": 2})


def test_the_tools_name_is_not_cut_off_by_its_arguments() -> None:
    long = {"arguments": {"command": "str_replace", "new_str": "y" * 400}, "name": "edit"}
    assert facts([], [entry(long)], [], None)["first_action"].startswith("edit  command=str_replace new_str=yyy")


# --- The page


def fill(engine: Engine) -> None:
    """A run of a shell, and one of which no action is known."""
    make_run(engine, uid=RUN, steps=20, state=RunState.FINISHED)
    make_run(engine, uid=SILENT, steps=3, state=RunState.FINISHED, seed=1)
    run_id, silent = (queries.find_run(engine, uid).id or 0 for uid in (RUN, SILENT))
    of_silent = select(col(EvaluationRow.id)).where(col(EvaluationRow.run_id) == silent)
    rollouts = [rollout for chunk in queries.rollouts(engine, run_id, RolloutFilter()) for rollout in chunk]
    with engine.begin() as db:
        db.execute(delete(RolloutPayload).where(col(RolloutPayload.row_id).in_(of_silent)))
        for rollout in rollouts:
            columns = facts(rollout.messages, rollout.actions, [], rollout.tokens)
            db.execute(update(EvaluationRow).where(col(EvaluationRow.id) == rollout.row.id).values(**columns))


def page(client: TestClient, uid: str = RUN, query: str = "") -> Any:
    """Return the `WhyActionsPage`."""
    return page_of(client, f"/runs/{uid}/why/actions{query}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("query", cases(["", "?steps=all"], 1))
@pytest.mark.parametrize("which", ["first_actions", "last_actions"])
def test_each_first_and_last_action_leads_to_exactly_its_rollouts(
    client: TestClient, engine: Engine, which: str, query: str
) -> None:
    lines = getattr(page(client, RUN, query), which).lines
    assert len(lines) == len(COMMANDS) + 1, "and those that did nothing"
    assert [rollouts_at(engine, line.address) for line in lines] == [line.rollouts for line in lines]


@pytest.mark.exhaustive
def test_each_habit_leads_to_exactly_its_rollouts(client: TestClient, engine: Engine) -> None:
    habits = page(client).habits
    assert {"never act", "have a call that raised"} <= {habit_count.habit.name for habit_count, _ in habits}
    assert [rollouts_at(engine, address) for _, address in habits] == [
        habit_count.rollouts for habit_count, _ in habits
    ]


def test_an_action_with_an_error_is_the_same_in_the_tile_and_in_the_table(tmp_path: Path) -> None:
    record_coding(tmp_path / "a.db")
    with dashboard(tmp_path / "a.db") as client:
        shown_page = page(client, "latest", "?wait=1")
    tiles = {tile.title: tile for tile in shown_page.tiles}
    assert (shown_page.tiles[0].remark, float(tiles["Actions per rollout"].text)) == ("2 of 2", 40.0)
    assert (tiles["Actions with an error"].text, tiles["Actions with an error"].remark) == (
        "15%", "12 of 80, newest 2 rollouts",
    )  # fmt: skip
    assert sum(line.kind.failed for line in shown_page.sampled_actions.kinds) == 12


@pytest.mark.parametrize(
    ("scored", "wins", "sentence"),
    [
        ((40, 40), (36, 0), "91% of the unsolved rollouts end without any action, against 0% of the solved ones."),
        ((40, 40), (0, 36), "91% of the unsolved rollouts end with run  ls, against 0% of the solved ones."),
        ((40, 40), (20, 16), ""),  # by chance
        ((40, 40), (0, 0), ""),
        ((40, 40), (40, 40), ""),
    ],
)
def test_the_last_action_that_is_typical_of_unsolved_rollouts_is_named(
    scored: tuple[int, int], wins: tuple[int, int], sentence: str
) -> None:
    acted, idle = (Tally(value, n, 0.5, n, won) for value, n, won in zip(("run  ls", None), scored, wins, strict=True))
    assert why_actions._contrast([*zip((acted, idle), wins, strict=True)]) == sentence


@pytest.mark.exhaustive
def test_the_sample_is_of_the_newest_rollouts_and_its_numbers_lead_to_them(client: TestClient, engine: Engine) -> None:
    shown_page = page(client, RUN, "?steps=all")
    assert (shown_page.sampled_actions.sample.rollouts, len(shown_page.sampled_actions.kinds)) == (200, len(COMMANDS))
    for line in shown_page.sampled_actions.kinds:
        for linked in (line.rollouts, line.first_in, line.last_in, line.failed_in, line.looped_in):
            assert linked.address is None or rollouts_at(engine, linked.address) == min(linked.count, 60)
        assert page_of(client, line.address).matches.count.value >= 1, line.kind.name
    (late,) = [
        error
        for error in shown_page.sampled_actions.errors
        if "TimeoutError: the environment did not answer" in error.observation.text
    ]
    assert late.kinds_before[0].startswith("command: ")


def test_the_template_shows_what_it_is_given_and_how_to_get_what_is_missing(client: TestClient) -> None:
    html = flat(client.get(f"/runs/{RUN}/why/actions?steps=all").text)
    shown_page = page(client, RUN, "?steps=all")
    for address in (
        shown_page.first_actions.lines[0].address,
        shown_page.habits[0][1],
        shown_page.sampled_actions.kinds[0].rollouts.address,
    ):
        assert f'<a href="{escape(address)}"' in html
    assert re.search(r"[\d,]+ actions of the newest 200 rollouts of steps 1\u201320", html)
    assert "TimeoutError: the environment did not answer within 30 s" in html
    silent = flat(client.get(f"/runs/{SILENT}/why/actions").text)
    assert "No action was recorded in steps 1\u20133" in silent
    assert "record_environment()" in silent
