"""Reads what a rollout answered, and what the dataset says is right."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from logs_ui.recorder.action_text import split_reasoning

_BEFORE = r"(?:(?:gold|final|reference|correct|expected|target)_?)?"
_WORDS = (r"(?:ground_?truth|gt)s?", r"answers?", "target", "reference", "expected", "label", r"gold\w*", "solution")
"""Names of references; the first is the surest, and a solution most often says how the answer is found."""
_NAMES = [re.compile(_BEFORE + word, re.IGNORECASE) for word in _WORDS]
_LONGEST = 2_000  # characters of an answer
_BOXED = r"\boxed{"
_MARKS = {_BOXED: "}", "<answer>": "</answer>", "####": "\n"}
"""What stands before and after an answer."""
_TAGGED = re.compile(r"<(?P<tag>[A-Za-z]\w{0,30})>(?P<text>[^<>]*)</(?P=tag)>[\s.*]*\Z")
_FENCED = re.compile(r"```[\w+-]*\n(?P<text>(?:(?!```).)*)```\s*\Z", re.DOTALL)
_NO_ANSWERS = re.compile(
    r"think|thought|reason|scratch|tool|function|action|code|confiden|analy|search|reflect|plan|verif|check|note|score",
    re.IGNORECASE,
)
"""Matches tags that hold something else."""
_ENDED = re.compile(r"</answer>|\\boxed\{|^#### *-?\$?\d", re.MULTILINE)
SPEAKER = re.compile(r"\n(?:Human|User) *:|<\|(?:im_start|start_header_id)\|>|<start_of_turn>|<tool_response>")
"""What ends an answer; what begins another one's turn."""
_ANSWERING = re.compile(r"answer|solution|result", re.IGNORECASE)  # in names of tools, or of their arguments
_ENDING = re.compile(
    r"(?:\w+_)?(?:submit|finish|final|done)\w*", re.IGNORECASE
)  # tools whose argument may be an answer
LAST_LINE = "the last line"
"""The place of an answer without any of these."""
_OURS = ("metrics", "notes")  # metadata that a rollout reported
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class Told(NamedTuple):
    """Holds an answer, and the place where it stands: a column of the dataset, or a part of the last message."""

    text: str
    place: str


class Answer(NamedTuple):
    """Holds reference and final answer of a rollout; None for one that it does not have."""

    reference: Told | None
    final: Told | None


def rank_of(name: str) -> int | None:
    """Return the rank of a column's name among those of references, 0 for the surest; None for other names.

    >>> rank_of("reward_model.ground_truth"), rank_of("gts"), rank_of("gold_answer"), rank_of("difficulty")
    (0, 0, 1, None)
    """
    bare = name.rpartition(".")[2]
    return next((rank for rank, pattern in enumerate(_NAMES) if pattern.fullmatch(bare)), None)


def reference_of(metadata: Mapping[str, Any], column: str | None = None) -> Told | None:
    """Return the reference of a rollout; None if it has none. Of a value in a dict the name has a dot, as in
    `reward_model.ground_truth`.

    Args:
        metadata: metadata of the rollout. The dataset's columns are under "dataset"; where nothing is, as in imported
            files, they are among the others.
        column: column that has it; None takes the one that is named most like a reference.
    """
    columns = dataset_columns(metadata)
    ranks = {name: rank for name in columns if (rank := rank_of(name)) is not None}
    name = column or min(ranks, key=ranks.__getitem__, default="")
    return Told(columns[name], name) if name in columns else None


def dataset_columns(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the dataset's columns of a rollout, as texts: see `reference_of`."""
    dataset = metadata.get("dataset")
    return dict(_values(dataset if isinstance(dataset, dict) else metadata))


def _values(source: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in source.items():
        if isinstance(value, dict) and not before:
            yield from _values(value, f"{name}.") if name not in _OURS else ()
        elif value not in _EMPTY:
            yield f"{before}{name}", value if isinstance(value, str) else orjson.dumps(value).decode()


def final_answer(messages: Sequence[Mapping[str, Any]], turns: int | None = None) -> Told | None:
    r"""Return what the model's last message gives as its answer: whatever comes last of a `\boxed{}`, an `<answer>`
    tag, and a line's text after `####`; else what stands in a tag, or between fences, that end the message; else the
    only argument of its call of a tool that is named like an answer; else its last line. None if that message has none
    of these, or `turns`, the number of the model's calls, is 0.

    >>> final_answer([{"role": "assistant", "content": "So \\boxed{\\frac{1}{2}}."}])
    Told(text='\\frac{1}{2}', place='after the last \\boxed{')
    """
    text = last_text(messages) if turns != 0 else ""
    if marks := list(_find_marks(text)):
        _, answer, place = max(marks)
        return Told(answer, place)
    tagged = _TAGGED.search(text[-_LONGEST:])
    if tagged and not _NO_ANSWERS.match(tagged["tag"]) and (answer := tagged["text"].strip()):
        return Told(answer, f"in <{tagged['tag']}>")
    fenced = _FENCED.search(text[-_LONGEST:])
    if fenced and (answer := fenced["text"].strip()):
        return Told(answer, "between the last fences")
    if turns != 0 and (called := _find_called(messages)) is not None:
        return called
    lines = text.rstrip().splitlines() or [""]
    answer = lines[-1].strip()[-_LONGEST:]
    return Told(answer, LAST_LINE) if answer else None


def _find_called(messages: Sequence[Mapping[str, Any]]) -> Told | None:
    """Return the only argument of the last call in the model's last message, if its tool is named like an answer."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    calls = answers[-1].get("tool_calls") if answers else None
    function = calls[-1].get("function") if isinstance(calls, list) and calls and isinstance(calls[-1], dict) else None
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    if not isinstance(name, str):
        return None
    with suppress(orjson.JSONDecodeError):
        arguments = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict) or len(arguments) != 1:
        return None
    ((argument, value),) = arguments.items()
    is_answer = _ANSWERING.search(name) or (_ENDING.fullmatch(name) and _ANSWERING.search(argument))
    text = orjson.dumps(value).decode() if isinstance(value, int | float) else value
    has_text = is_answer and isinstance(text, str) and not isinstance(value, bool) and text.strip()
    return Told(text.strip()[:_LONGEST], f"the call of {name}") if has_text else None


def _find_marks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield position, answer and place for each kind of mark that the text has."""
    for mark, end in _MARKS.items():
        before, separator, rest = text.rpartition(mark)
        stop = rest.find(end) if end in rest else len(rest)
        if mark == _BOXED:  # which may hold braces of its own
            # The first brace that closes more than was opened ends the box.
            depths = accumulate((character == "{") - (character == "}") for character in rest[:_LONGEST])
            stop = next((at for at, depth in enumerate(depths) if depth < 0), 0)
        if separator and (answer := rest[:stop].strip()):
            yield len(before), answer[:_LONGEST], f"after the last {mark}"


def goes_on(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the model's last message has a final answer in its first half, or another speaker's turn."""
    text = last_text(messages)
    return bool(SPEAKER.search(text) or _ENDED.search(text[: len(text) // 2]))


def last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the model's last message without its reasoning; "" without any."""
    texts = [text_of(message) for message in messages if message.get("role") == "assistant"]
    return split_reasoning(texts[-1])[1] if texts else ""


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with its reasoning if that is a part of it; "" without any."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
