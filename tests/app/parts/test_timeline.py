"""What a reader follows: reasoning apart from what was said, tokens and rewards by turn, and texts of any size."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logs_ui.app.main import make_templates
from logs_ui.app.parts import safe_text, timeline
from logs_ui.app.parts.timeline import Card
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.storage.tables import EvaluationRow
from tests.support.dashboard import flat
from tests.support.factory import HOSTILE_TEXT

ROW = EvaluationRow(
    uid="a", run_id=1, eval_name="e", mode="train", step=1, policy_step=0, group="g", generation=0, process=0, created=1
)


def cards(
    messages: list[dict[str, Any]], *, mask: list[int] | None = None, actions: list[dict[str, Any]] | None = None
) -> list[Card]:
    tokens = None
    if mask is not None:
        ids = np.arange(len(mask), dtype=np.int32)
        tokens = Tokens(ids, ids, None, np.array(mask, np.uint8))
    return timeline.make_timeline(Rollout(ROW, messages, actions or [], {}, {}, tokens))


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("message", "thought", "said"),
    [
        (assistant("<think>\nlet me see\n</think>\n\nfour"), "let me see", "four"),
        (assistant("let me see</think>four"), "let me see", "four"),  # the prompt opened it
        (assistant("<think>let me"), "let me", None),  # it was cut off
        (assistant("four", reasoning_content="let me see"), "let me see", "four"),
        (assistant("<think>a</think>b", reasoning_content="let me see"), "let me see", "<think>a</think>b"),
        (assistant("four"), None, "four"),
        (assistant("Well. <think>hm</think> four"), "hm", "Well. four"),
        (assistant("Well. <think>hm"), None, "Well. <think>hm"),
        ({"role": "user", "content": "<think>say this</think>"}, None, "<think>say this</think>"),
    ],
)
def test_reasoning_is_told_from_what_was_said(message: dict[str, Any], thought: str | None, said: str | None) -> None:
    (card,) = cards([message])
    assert (card.reasoning and card.reasoning.value, card.content and card.content.value) == (thought, said)


def test_each_turn_has_the_tokens_that_were_sampled_and_those_that_were_inserted_behind_it() -> None:
    messages = [assistant("a"), {"role": "user", "content": "seen"}, assistant("b"), {"role": "tool", "content": "end"}]
    told = [(card.role, card.tokens) for card in cards(messages, mask=[1, 1, 1, 0, 0, 1, 0])]
    assert told == [("assistant", 3), ("user", 2), ("assistant", 1), ("tool", 1)]
    assert [card.tokens for card in cards(messages, mask=[1, 0, 1, 0, 1])] == [None] * 4, "three were sampled, of two"
    two = [*messages[:2], {"role": "user", "content": "and more"}, *messages[2:]]
    assert [card.tokens for card in cards(two, mask=[1, 0, 0, 1, 0])] == [1, None, None, 1, 1], "which of both is it?"


def test_the_outline_says_each_steps_reward() -> None:
    step = {"turn": 1, "text": "go", "action": {"go": 1}, "observation": "a wall", "reward": -0.25, "done": False}
    made = cards([assistant("go")], actions=[step])
    shown = SimpleNamespace(cards=made, most_tokens=1, rail=None, scoring=[], anomaly=None)
    template = make_templates().get_template("rollout/_outline.html")
    html = template.render(timeline=shown, view="timeline", tokens=None)
    assert "\u22120.25" in html
    assert 'title="reward of this step"' in html


def test_calls_of_reward_functions_are_no_part_of_the_turns() -> None:
    """The tabs about actions, the comparison of rollouts and the timeline look at a rollout's own actions."""
    own = {"turn": 1, "text": "go", "action": {"go": 1}, "observation": "a wall"}
    scored = own | {"phase": "scoring", "function": "solved", "action": {"rate": 1}, "error": "ConnectError: refused"}
    alone, found = (cards([assistant("go")], actions=[own, *more]) for more in ([], [scored]))
    assert found == alone
    rollout = Rollout(ROW, [assistant("go")], [own, scored], {}, {}, None)
    assert rollout.own_actions == [own]
    (card,) = timeline.make_scoring(rollout)
    assert (card.name, card.turn, card.anomaly) == ("solved", None, "the call raised an error")


def test_three_megabytes_in_one_message_are_cut() -> None:
    said = (HOSTILE_TEXT + "<think>") * 20_000
    assert len(said) > 3_000_000
    (card,) = cards([assistant(said, tool_calls=[{"function": {"name": "run", "arguments": said}}])])
    assert card.content
    html = safe_text.block(card.content.value)
    assert len(html) < 400_000
    assert card.content.is_cut
    assert card.content.value == said


def test_a_model_call_that_failed_stands_before_the_answer_of_its_turn() -> None:
    bare = dict.fromkeys(("text", "action", "observation", "reward", "done", "metadata", "seconds", "error"))
    failed = {"turn": 2, **bare, "generation": {"seconds": 30.0, "error": "APIConnectionError: <b>refused</b>"}}
    first = {"turn": 1, **bare, "text": "a", "action": "a", "generation": {"seconds": 0.5, "finish": "stop"}}
    second = {"turn": 2, **bare, "text": "b", "generation": {"seconds": 1.25, "finish": "length"}}
    waiting = {"turn": 3, **bare, "generation": {"waiting": True}}
    messages = [{"role": "user", "content": "go"}, assistant("a"), {"role": "user", "content": "low"}, assistant("b")]
    found = cards(messages, actions=[first, failed, second, waiting])
    assert [(card.role, card.turn, card.seconds, card.finish) for card in found] == [
        ("user", None, None, ""),
        ("assistant", 1, 0.5, "stop"),
        ("environment", 1, None, ""),
        ("user", 1, None, ""),
        ("model", 2, None, ""),
        ("assistant", 2, 1.25, "length"),
        ("model", 3, None, ""),
    ]
    refused, hangs = (card for card in found if card.role == "model")
    assert refused.answer is not None
    assert hangs.answer is not None
    assert (refused.anomaly, refused.tone, refused.answer.seconds) == ("the model did not answer", "bad", 30.0)
    assert (hangs.anomaly, hangs.answer.is_waited_for) == (None, True)
    assert timeline.texts(found)["failure-2-0-error"] == "APIConnectionError: <b>refused</b>"


def test_an_answer_without_an_action_is_marked_whatever_was_sent_for_it() -> None:
    bare = dict.fromkeys(("text", "action", "observation", "reward", "done", "metadata", "seconds", "error"))
    entries: list[dict[str, Any]] = [
        {"turn": 1, **bare, "text": "hm", "action": "look", "metadata": {"parsed": False}},
        {"turn": 2, **bare, "text": "go", "action": "go", "metadata": {"parsed": True}},
        {"turn": 3, **bare, "text": "no environment", "metadata": {"parsed": False}},
        {"turn": 4, **bare, "text": "it is not said", "metadata": {"parsed": None}},
    ]
    found = cards([{"role": "user", "content": "?"}, *[assistant(it["text"]) for it in entries]], actions=entries)
    marks = [card.anomaly for card in found if card.role == "assistant"]
    assert marks == ["no action was parsed", None, "no action was parsed", None]


LOOK, MOVE = (
    {"function": {"name": name, "arguments": arguments}}
    for name, arguments in (("bash", '{"command": "git diff"}'), ("move", '{"from": "a.py", "to": "b.py"}'))
)
DIFF = {"name": "bash", "arguments": {"command": "git diff"}}


@pytest.mark.parametrize(
    ("text", "calls", "sent", "is_called", "is_fallback"),
    [
        ("I look at it. <tool_call>...", [LOOK], DIFF, True, False),
        ("I look at it. <tool_call>...", [LOOK], {"command": "git diff"}, True, False),
        ("I look at it. <tool_call>...", [LOOK], None, True, False),
        ("I look at it. <tool_call>...", [LOOK], {"name": "bash", "arguments": {"command": "true"}}, False, True),
        ("I look at it. <tool_call>...", [LOOK], {"name": "sh", "arguments": {"command": "git diff"}}, False, True),
        ("I look at it. <tool_call>...", [LOOK], "git diff", True, False),
        ("I move it.", [MOVE], {"to": "a.py", "from": "b.py"}, False, False),
        ("I move it.", [MOVE], {"name": "move", "arguments": {"to": "a.py", "from": "b.py"}}, False, False),
        ("I look. <tool_call>bash</tool_call>", [], DIFF, False, False),
        ("I wait.", [], DIFF, False, True),
        (None, [], {"name": "get_reward", "arguments": {}}, False, None),
        (None, [], {"name": "look", "arguments": {}}, False, True),
    ],
)
def test_an_action_is_shown_once_and_marked_if_the_answer_has_it_not(
    text: str | None, calls: list[Any], sent: Any, *, is_called: bool, is_fallback: bool | None
) -> None:
    """A trainer's request for a reward is no action that the answer lacks."""
    entry = {"turn": 1, "text": text, "action": sent, "observation": "nothing changed", "reward": 1.0}
    made = cards([assistant(text or "done", **({"tool_calls": calls} if calls else {}))], actions=[entry])
    *_, answer = (card.answer for card in made if card.answer)
    assert (answer.is_called, answer.is_fallback) == (is_called, is_fallback)


def test_a_name_keeps_its_blanks_and_its_emoji_where_it_is_cut() -> None:
    name = "find the largest file in the home  folder"
    assert re.sub("<[^>]+>", "", safe_text.middle(name)) == name
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for end in range(20):
        name = f"{'a' * 30}{family}{'b' * end}"
        assert re.sub("<[^>]+>", "", safe_text.middle(name)) == name
    assert "control" not in safe_text.middle(name)


def test_fenced_code_has_the_fixed_width_face_where_a_text_is_not_rendered() -> None:
    text = "See:\n```py\nx < 1\n```\nand ``` here\n~~~\nopen"
    assert safe_text.fenced(safe_text.block(text)) == (
        'See:\n<span class="mono">```py\nx &lt; 1\n```</span>\nand ``` here\n<span class="mono">~~~\nopen</span>'
    )
    coloured = "```\n\x1b[31mred\n```\nstill\x1b[0m"
    assert "mono" not in safe_text.fenced(safe_text.block(coloured)), "no tag ends within another"


def test_an_earlier_answer_that_was_cut_off_is_marked() -> None:
    cut = {"turn": 1, "text": "a", "action": "a", "generation": {"seconds": 0.5, "finish": "length"}}
    found = cards([assistant("a"), {"role": "user", "content": "go on"}, assistant("b")], actions=[cut])
    assert [card.anomaly for card in found if card.role == "assistant"] == ["cut off at the token limit", None]


@pytest.mark.parametrize("call", [None, [], "x", {"seconds": "a", "finish": {"a": 1}}, {"error": 3, "seconds": []}])
def test_what_is_said_of_a_model_call_may_be_anything(call: Any) -> None:
    action = {"turn": 1, "text": "a", "generation": call}
    said = [card.content.value for card in cards([assistant("a")], actions=[action]) if card.content]
    assert said == ["a"]


@pytest.mark.parametrize("seen", [["a lamp", "a door"], []])
def test_a_list_of_which_the_model_was_sent_nothing_is_shown_beside_the_empty_message(seen: list[str]) -> None:
    call = {"name": "look", "arguments": {}}
    asked = assistant("", tool_calls=[{"id": "0", "type": "function", "function": {"name": "look", "arguments": "{}"}}])
    messages = [asked, {"role": "tool", "content": ""}, assistant("ok")]
    entry = {"turn": 1, "text": "", "action": call, "observation": seen, "metadata": {"sent": ""}}
    shown = cards(messages, actions=[entry])
    assert [card.role for card in shown] == ["assistant", "environment", "assistant"]
    answer = shown[1].answer
    assert answer is not None
    assert (answer.is_unread, answer.shown_as) == (True, "tool")
    assert [value.value for _, value in answer.observation] == [safe_text.as_text(seen)]
    page = flat(make_templates().get_template("rollout/_output.html").render(card=shown[1], run=None, row=ROW, show=()))
    assert "the model was sent an empty message" in page
    entry["metadata"] = None
    assert [card.role for card in cards(messages, actions=[entry])] == ["assistant", "environment", "tool", "assistant"]


SHORT, LONG = timeline.Text("m", "four"), timeline.Text("m", "x" * 401)


@pytest.mark.parametrize(
    ("card", "shown_turn", "tokens_anchor", "is_line"),
    [
        (Card("m", "user", "", None, LONG), None, "tokens-prompt", False),
        (Card("m", "assistant", "", 2, LONG), 2, "tokens-2", False),
        (Card("m", "user", "", 2, SHORT), None, "tokens-2-answer", False),
        (Card("m", "tool", "", 2, LONG), None, "tokens-2-answer", True),
        (Card("m", "critic", "", None, SHORT), None, "tokens-prompt", False),
    ],
)
def test_a_card_says_where_it_stands(card: Card, shown_turn: int | None, tokens_anchor: str, *, is_line: bool) -> None:
    assert (card.shown_turn, card.tokens_anchor, card.is_line) == (shown_turn, tokens_anchor, is_line)


@pytest.mark.parametrize(("is_called", "shown_turn"), [(False, 1), (True, None)])
def test_an_action_that_the_message_shows_names_no_turn(shown_turn: int | None, *, is_called: bool) -> None:
    calls = [{"function": {"name": "run", "arguments": {"c": 1}}}] if is_called else []
    sent = {"turn": 1, "action": {"name": "run", "arguments": {"c": 1}}, "observation": "a wall"}
    _, answer = cards([assistant("go", tool_calls=calls)], actions=[sent])
    assert answer.shown_turn == shown_turn
