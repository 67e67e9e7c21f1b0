"""Shows a rollout as a reader follows it: messages, and between them the calls to the environment."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from logs_ui.app.parts import safe_text
from logs_ui.app.parts.pictures import Picture, pictures_of, split_content, without_pictures
from logs_ui.recorder.action_text import split_reasoning
from logs_ui.recorder.diagnosis.tables.action_sample import exit_code, failure
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.rows.text_facts import CALL, occurs
from logs_ui.recorder.storage.payload import first_answer
from logs_ui.recorder.vocabulary import SCORING, StopReason

_SHORT = 24
_EMPTY: tuple[Any, ...] = (None, "", {}, [])
_WAITED_IN = ("metadata", "generation")  # of an environment's call, and of the model's
_FOLDED_FROM = 600
"""Length from which a system prompt is folded, since it is the same in every rollout."""
_LONG, _LONG_LINES = 400, 8
"""An observation of more characters or lines is folded to one line."""
_CUT_OFF = ("length", "max_tokens")
"""Finish reasons of an answer that hit its token limit."""


@dataclass(frozen=True)
class Text:
    """A piece of text, and the name under which it can be opened as plain text."""

    part: str
    value: str

    @property
    def is_cut(self) -> bool:
        """True if a page shows only its beginning."""
        return len(self.value) > safe_text.TEXT_LIMIT


Fields = list[tuple[str, Text]]
"""The fields of an object, or another value under an empty name."""


class ToolCall(NamedTuple):
    """Holds a tool call as the model wrote it."""

    name: str
    arguments: Fields


@dataclass(frozen=True)
class CallResult:
    """One reset or step of the environment, or a model call that brought no answer."""

    turn: int
    action: Fields  # what was sent; empty for a reset
    observation: Fields  # empty if a message contains it; the message is then the card's content
    whole: Text | None  # raw action, observation and metadata, if not all of it is shown
    reward: float | None
    done: bool
    seconds: float | None
    error: Text | None
    shown_as: str | None = None  # role and name of the message with the observation: `user`, `tool run`; or None
    is_waited_for: bool = False  # True if the call had not returned when it was recorded
    # Images of the observation, and of the calls that a tool made itself.
    pictures: list[Picture] = field(default_factory=list)
    tool: str = ""  # name of the tool, if the action is a tool call: `action` has its arguments
    is_called: bool = False  # True if the action equals a tool call of the model's message, which shows it
    is_unread: bool = False  # True if a tool returned it, and the model was sent an empty message
    # True if a parser found no action in the answer, or the answer does not contain this one: the rollout function may
    # have sent a default. None if that is not known.
    is_fallback: bool | None = None
    exit_code: int | None = None  # that the observation has in a field; None without one
    failure: str = ""  # its error in one line, or that of the observation's fields; empty without one


@dataclass(frozen=True)
class Card:
    """Describes an entry of the timeline: a message, or a call to the environment with the message that its answer
    became.

    Attributes:
        role: of the message; "environment" for a call to it, "model" for a failed model call.
        turn: number of the model call that this is, or answers; None in the prompt.
        tokens: tokens sampled in this turn, or inserted by this message; None if they cannot be told apart, and in
            the prompt.
        seconds: duration of the model call; None if unknown, and for other cards.
        finish: finish reason reported by the server; empty likewise.
    """

    anchor: str
    role: str
    name: str
    turn: int | None
    content: Text | None
    reasoning: Text | None = None
    calls: list[ToolCall] = field(default_factory=list)
    answer: CallResult | None = None
    tokens: int | None = None
    anomaly: str | None = None
    seconds: float | None = None
    finish: str = ""
    pictures: list[Picture] = field(default_factory=list)

    @property
    def is_own(self) -> bool:
        """True if the model sampled it in this rollout."""
        return self.role == "assistant" and self.turn is not None

    @property
    def is_reply(self) -> bool:
        """True if the model received it: an environment's answer, a tool's output, a message after a turn."""
        called = self.answer is not None and self.role != "model"
        return called or self.role == "tool" or (self.turn is not None and self.role not in {"assistant", "model"})

    @property
    def all_pictures(self) -> list[Picture]:
        """Return the images of the message and of the observation."""
        return [*self.pictures, *(self.answer.pictures if self.answer else [])]

    @property
    def said_by(self) -> str:
        """Return who wrote the text, by the names of the index: see `search_tables.COLUMNS`."""
        if self.role == "model" or self.anchor.startswith("scoring"):
            return "other"
        if self.is_own:
            return "assistant"
        # The observation of a reset is a part of the prompt if it is a message.
        return "tool" if self.is_reply and (self.turn or self.content is None) else "prompt"

    @property
    def output(self) -> list[Text]:
        """Return the texts of a reply."""
        answer = self.answer
        heard = [value for _, value in answer.observation] if answer else []
        return [text for text in (answer and answer.error, *heard, self.content) if text]

    @property
    def size(self) -> int:
        return sum(len(text.value) for text in self.output)

    @property
    def is_line(self) -> bool:
        """True if it is a long reply, which is one line until it is opened."""
        return self.is_reply and self.is_folded

    @property
    def shown_turn(self) -> int | None:
        """Return the turn that its head names; None for what the model's message before it shows."""
        return self.turn if self.is_own or (self.answer and not self.answer.is_called) else None

    @property
    def tokens_anchor(self) -> str:
        """Return where its tokens begin in the view of tokens."""
        return f"tokens-{self.turn}{'' if self.is_own else '-answer'}" if self.turn else "tokens-prompt"

    @property
    def is_folded(self) -> bool:
        """True if the message is a long system prompt, or a long reply."""
        if self.is_reply:
            lines = sum(text.value.count("\n") for text in self.output)
            return lines > _LONG_LINES or self.size > _LONG
        return self.role == "system" and self.content is not None and len(self.content.value) > _FOLDED_FROM

    @property
    def tone(self) -> str:
        """Return the tone of its anomaly: calls that raised are worse than truncated turns."""
        return "bad" if self.answer and self.answer.error else "warn"

    @property
    def title(self) -> str:
        if self.calls:
            return self.calls[0].name
        return self.name or self.role


def are_short(fields: Fields) -> bool:
    """Return True if the fields fit beside each other instead of one per line."""
    return len(fields) > 1 and all(len(value.value) <= _SHORT and "\n" not in value.value for _, value in fields)


def make_timeline(rollout: Rollout) -> list[Card]:
    """Build the cards: turn n of the model is followed by the environment calls of turn n."""
    actions: dict[int, list[dict[str, Any]]] = defaultdict(list)
    failures: dict[int, list[dict[str, Any]]] = defaultdict(list)  # of the model, before the answer of their turn
    for action in rollout.own_actions:
        (failures if _is_failure(action) else actions)[int(action.get("turn") or 0)].append(action)
    first = first_answer(rollout.messages, rollout.row.turns)
    # The card of a call to the environment waits for the message that repeats its answer, and is merged with it.
    # Before the model's next answer it is shown by itself.
    cards: list[Card] = []
    waiting: list[Card] = []  # answers that the next message may say again
    turn = 0
    for index, message in enumerate(rollout.messages):
        is_own = message.get("role") == "assistant" and index >= first
        card = _message(index, message)
        if is_own:
            if turn == 0:
                waiting += _answers(actions.pop(0, []))
            turn += 1
            cards += [*waiting, *_answers(failures.pop(turn, []))]
            played = actions.pop(turn, [])
            waiting = _answers(played)
            timing = _timing(played)
            anomaly = _UNPARSED if _is_parsed(played) is False else None
            anomaly = _AT_THE_LAST_TURN[StopReason.LENGTH] if timing["finish"] in _CUT_OFF else anomaly
            cards.append(replace(card, turn=turn, anomaly=anomaly, **timing))
        # Of the prompt, only the last message may be what the reset returned.
        elif message.get("role") in {"user", "tool", "environment"} and (turn or index >= first - 1):
            if turn == 0:
                waiting += _answers(actions.pop(0, []))
            cards += _merge_answer(card, waiting, turn or None)
        else:
            cards.append(card)
    rest = [action for number in sorted({*actions, *failures}) for action in (*failures[number], *actions[number])]
    cards += [*waiting, *_answers(rest)]
    return _with_anomaly(_with_tokens(_with_calls(cards), rollout), rollout)


def make_scoring(rollout: Rollout) -> list[Card]:
    """Build a card for each call that a reward function made; its name is the function's."""
    cards = []
    for index, action in enumerate(action for action in rollout.actions if action.get("phase") == SCORING):
        request = action.get("action")
        card = _answer(action, index, "scoring")
        if card.answer and isinstance(request, list) and all(isinstance(message, dict) for message in request):
            messages = [
                (safe_text.label(part.get("role"), 40), safe_text.as_text(part.get("content"))) for part in request
            ]
            fields = [(role, Text(f"{card.anchor}-said-{i}", text)) for i, (role, text) in enumerate(messages)]
            card = replace(card, role="model", answer=replace(card.answer, action=fields))
        anomaly = _RAISED_IN_SCORING if card.answer and card.answer.error else None
        cards.append(replace(card, name=safe_text.label(action.get("function") or "", 80), turn=None, anomaly=anomaly))
    return cards


def texts(cards: Iterable[Card]) -> dict[str, str]:
    """Return every text of a timeline by its name."""
    pieces: list[Text | None] = []
    for card in cards:
        pieces += [card.content, card.reasoning, *(value for call in card.calls for _, value in call.arguments)]
        if card.answer:
            pieces += [value for _, value in (*card.answer.action, *card.answer.observation)]
            pieces += [card.answer.whole, card.answer.error]
    return {piece.part: piece.value for piece in pieces if piece}


def _message(index: int, message: dict[str, Any]) -> Card:
    part = f"message-{index}"
    text, pictures = split_content(part, message.get("content"))
    content = safe_text.as_text(text)
    reasoning = safe_text.as_text(message.get("reasoning_content"))
    if not reasoning and message.get("role") == "assistant":
        thought, content = split_reasoning(content)
        reasoning = thought or ""
    calls = message.get("tool_calls")
    return Card(
        anchor=part,
        role=safe_text.label(message.get("role") or "message", 40),
        name=safe_text.label(message.get("name") or "", 80),
        turn=None,
        content=Text(part, content) if content else None,
        reasoning=Text(f"{part}-reasoning", reasoning) if reasoning else None,
        calls=[_tool_call(f"{part}-call-{i}", call) for i, call in enumerate(calls if isinstance(calls, list) else [])],
        pictures=pictures,
    )


def _tool_call(part: str, call: Any) -> ToolCall:
    function = call.get("function", call) if isinstance(call, dict) else {"arguments": call}
    function = function if isinstance(function, dict) else {"arguments": function}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # what cannot be read is shown as it was written
            arguments = json.loads(arguments)
    return ToolCall(safe_text.label(function.get("name") or "call", 80), _fields(part, arguments))


def _fields(part: str, value: Any, beside: tuple[str, ...] = ()) -> Fields:
    """Return the fields that are not empty, without those in `beside`, which are shown elsewhere."""
    if value in _EMPTY:
        return []
    if not isinstance(value, dict):
        return [("", Text(part, safe_text.as_text(value)))]
    return [
        (safe_text.label(name, 80), Text(f"{part}-{index}", safe_text.as_text(item)))
        for index, (name, item) in enumerate(value.items())
        if item not in _EMPTY and name not in beside
    ]


def _answers(actions: list[dict[str, Any]]) -> list[Card]:
    return [_answer(action, index) for index, action in enumerate(actions) if _was_sent(action)]


def _was_sent(action: dict[str, Any]) -> bool:
    """Return True if the environment was called. An answer without a parsed action has only its text."""
    sent = any(action.get(name) is not None for name in ("action", "observation", "error", "seconds"))
    return sent or _is_waited_for(action) or _is_failure(action)


def _is_waited_for(action: dict[str, Any]) -> bool:
    return any(isinstance(value := action.get(name), dict) and value.get("waiting") is True for name in _WAITED_IN)


def _is_failure(action: dict[str, Any]) -> bool:
    """Return True if it is a model call that brought no answer, or has not yet."""
    call = _model_call(action)
    return call.get("error") is not None or call.get("waiting") is True


def _model_call(action: dict[str, Any]) -> dict[str, Any]:
    call = action.get("generation")
    return call if isinstance(call, dict) else {}


def _is_parsed(actions: list[dict[str, Any]]) -> bool | None:
    """Return False if a parser found no action in the answer: see `text_facts.py`; None without a parser."""
    flags = [action["metadata"].get("parsed") for action in actions if isinstance(action.get("metadata"), dict)]
    return True if True in flags else False if False in flags else None


def _timing(actions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return duration and finish reason of the model call before these actions."""
    call = next(filter(None, map(_model_call, actions)), {})
    return {"seconds": _float(call.get("seconds")), "finish": safe_text.as_text(call.get("finish"))}


def _answer(action: dict[str, Any], index: int, kind: str = "action") -> Card:
    turn = int(action.get("turn") or 0)
    failed = _is_failure(action)
    part = f"{'failure' if failed else kind}-{turn}-{index}"
    ended = _model_call(action) if failed else action
    error = safe_text.as_text(ended.get("error"))
    names = ("action", "observation", "metadata")
    recorded = {name: without_pictures(action[name]) for name in names if action.get(name)}
    observation, sent = action.get("observation"), action.get("action")
    tool, arguments = (
        (sent["name"], sent["arguments"]) if isinstance(sent, dict) and sent.keys() == CALL else ("", sent)
    )
    is_unread = (
        isinstance(observation, list)
        and isinstance(metadata := action.get("metadata"), dict)
        and metadata.get("sent") == ""
    )
    unread = (
        [("", Text(f"{part}-observation", safe_text.as_text(observation)))] if is_unread else []
    )  # an empty list, too
    answer = CallResult(
        turn=turn,
        action=_fields(f"{part}-action", arguments or ("" if tool else action.get("text"))) if turn else [],
        tool=safe_text.label(tool, 80),
        observation=_fields(f"{part}-observation", without_pictures(observation), beside=("done", "reward")) or unread,
        whole=Text(f"{part}-whole", safe_text.as_json(recorded))
        if any(_is_more(value) for name, value in recorded.items() if name != "action" or not tool)
        else None,
        reward=_float(action.get("reward")),
        done=bool(action.get("done")),
        seconds=_float(ended.get("seconds")),
        error=Text(f"{part}-error", error) if error else None,
        is_waited_for=_is_waited_for(action),
        is_unread=is_unread,
        pictures=pictures_of(observation, action.get("metadata")),
        is_fallback=None if sent is not None and _is_parsed([action]) is None else _is_parsed([action]) is False,
        exit_code=exit_code(observation),
        failure=failure({"error": ended.get("error"), "observation": observation}) or "",
    )
    return Card(part, "model" if failed else "environment", "", turn or None, None, answer=answer)


def _is_more(value: Any) -> bool:
    """Return True if the value has more than what the card shows."""
    return isinstance(value, dict) and (len(value) > 1 or any(isinstance(item, dict | list) for item in value.values()))


def _merge_answer(card: Card, waiting: list[Card], turn: int | None) -> list[Card]:
    """Return the message, merged into the answer that it repeats, if any, after those before. Empties `waiting`."""
    before: list[Card] = []
    while waiting:
        step = waiting.pop(0)
        if step.answer and _says_the_same(card, step.answer):
            # In place of pictures the message has references: then the observation is shown.
            is_apart = step.answer.pictures or step.answer.is_unread
            heard, content = (step.answer.observation, None) if is_apart else ([], card.content)
            answer = replace(step.answer, observation=heard, shown_as=f"{card.role} {card.name}".strip())
            return [*before, replace(step, anchor=card.anchor, content=content, answer=answer)]
        before.append(step)
    return [*before, replace(card, turn=turn)]


def _says_the_same(card: Card, answer: CallResult) -> bool:
    """Return True if the message contains the observation or one of its texts; very short texts occur in all."""
    if card.content is None or not answer.observation:
        return card.role == "tool" and card.content is None and answer.is_unread
    message = card.content.value.strip()
    values = [value.value.strip() for name, value in answer.observation]
    return any(value == message or (len(value) > 3 and value in message) for value in values)


def _with_calls(cards: list[Card]) -> list[Card]:
    """Mark actions that equal a tool call of their turn, to show each once, and those that the message lacks."""
    messages = {card.turn: card for card in cards if card.role == "assistant"}
    marked = []
    for card in cards:
        answer, message = card.answer, messages.get(card.turn)
        if answer and (answer.action or answer.tool) and card.turn and message and card.role == "environment":
            text = message.content.value.strip() if message.content else None  # it is sent if nothing was parsed of it
            is_text = text is not None and any(not name and text in value.value for name, value in answer.action)
            is_called = is_text or any(_is_same(call, answer) for call in message.calls)
            is_fallback = answer.is_fallback
            if is_fallback is None and answer.tool != "get_reward":  # the trainer asks for that
                # An answer without tool calls may name the tool in its text, with arguments in a form of its own.
                values = [] if answer.tool and not message.calls else [value.value for _, value in answer.action]
                sent = [answer.tool, *values]
                is_fallback = not is_called and not occurs(sent, " ".join(texts([message]).values()))
            card = replace(card, answer=replace(answer, is_called=is_called, is_fallback=is_fallback))  # noqa: PLW2901
        marked.append(card)
    return marked


def _is_same(call: ToolCall, answer: CallResult) -> bool:
    """Return True if a tool call asks for the action: by name and arguments, or, where the action has no name, by
    values.
    """
    called, sent = ({(name, text.value) for name, text in fields} for fields in (call.arguments, answer.action))
    if {name for name, _ in sent} - {name for name, _ in called}:
        called, sent = ({("", value) for _, value in fields} for fields in (called, sent))
    return call.name == answer.tool and called == sent if answer.tool else bool(sent) and called >= sent


def _with_tokens(cards: list[Card], rollout: Rollout) -> list[Card]:
    """Add the number of completion tokens to each turn, if the mask shows it."""
    answers = [index for index, card in enumerate(cards) if card.is_own]
    runs = _runs(rollout)
    if not answers or len(runs) != len(answers):
        return cards
    counted = list(cards)
    for index, end, (sampled, inserted) in zip(answers, [*answers[1:], len(cards)], runs, strict=True):
        counted[index] = replace(cards[index], tokens=sampled)
        messages = [i for i in range(index + 1, end) if cards[i].content is not None]
        # Only if a single message follows are all of the inserted tokens known to be its own.
        if inserted and len(messages) == 1:
            counted[messages[0]] = replace(cards[messages[0]], tokens=inserted)
    return counted


def _runs(rollout: Rollout) -> list[tuple[int, int]]:
    """Return the lengths of unbroken runs of sampled tokens, and of the inserted tokens after each."""
    tokens = rollout.tokens
    if tokens is None:
        return []
    if tokens.mask is None:
        return [(len(tokens.completion_ids), 0)]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], tokens.mask.astype(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    following = [*starts[1:], len(tokens.mask)]
    return [(int(b - a), int(c - b)) for a, b, c in zip(starts, ends, following, strict=True)]


_RAISED = {"environment": "the environment raised an error", "model": "the model did not answer"}
_RAISED_IN_SCORING = "the call raised an error"
_UNPARSED = "no action was parsed"
_AT_THE_LAST_TURN = {
    StopReason.LENGTH: "cut off at the token limit",
    StopReason.NO_ACTION: "not sent to the environment",
    StopReason.TURN_LIMIT: "the rollout function stopped here",
    StopReason.ABORTED: "the process ended here",
}


def _with_anomaly(cards: list[Card], rollout: Rollout) -> list[Card]:
    """Mark calls that raised, and the last turn of a rollout that was cut off. Answers without an action, and earlier
    ones that were cut off, are marked already.
    """
    marked = [
        replace(card, anomaly=_RAISED[card.role]) if card.answer and card.answer.error else card for card in cards
    ]
    reason = next((why for stop, why in _AT_THE_LAST_TURN.items() if stop == rollout.row.stop_reason), None)
    if rollout.row.no_room:
        reason = "no room for the tool's answer"
    answers = [index for index, card in enumerate(marked) if card.is_own]
    if reason and answers and not (marked[answers[-1]].anomaly and rollout.row.stop_reason == StopReason.NO_ACTION):
        marked[answers[-1]] = replace(marked[answers[-1]], anomaly=reason)
    return marked


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
