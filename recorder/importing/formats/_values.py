"""Converts values that readers of several formats meet: numbers and times as text, conversations, token arrays."""

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.importing.reader import ImportedRollout
from logs_ui.recorder.importing.source_files import Place, RecordError, file_id, json_value, open_read_only
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Dropped, Mode, Status, StopReason

_ROLE = re.compile(r"^(system|user|assistant)\n", re.MULTILINE)
_BEGIN, _END, _CHATML = "<|im_start|>", "<|im_end|>", {"system", "developer", "user", "assistant", "tool"}
_ROLES = re.compile(r"(system )?user( assistant user)* assistant")
_SHARED = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}  # ShareGPT's roles
_TEXTS = ("input_text", "output_text")  # of the Responses API
_LONG = 1 << 20  # characters of JSON text in a column
_WHOLE = ("step", "policy_step", "generation", "prompt_tokens", "completion_tokens")
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")
_AGREEING = 8  # groups whose sums may be 0 by chance
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (1e20, 1e-3))  # most of s, ms, µs and ns, which are beyond 1973 then


def number(value: Any) -> float | None:
    """Return a number, also one that is written as text: "NaN", "Infinity", "0.5". None for anything else."""
    try:
        return float(value) if isinstance(value, bool | int | float | str) else None
    except ValueError:
        return None
    except OverflowError:  # an integer with hundreds of digits
        return math.inf if value > 0 else -math.inf


def whole(value: Any) -> int | None:
    """Return a number as an integer; None for anything else, fractions, NaN and infinities."""
    result = number(value)
    return int(result) if result is not None and result.is_integer() else None


def step_number(value: Any) -> Any:
    """Return a number as an integer; what is none as it is, for which the import refuses the record."""
    return value if whole(value) is None else whole(value)


def micros(value: Any) -> int | None:
    """Return ISO text (UTC without a zone), or a number of s, ms, µs or ns, as µs since the epoch. None for else."""
    with suppress(ValueError, TypeError):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    time = number(value) or 0.0
    return int(time * next(factor for most, factor in _UNITS if time < most)) if 0 < time < _UNITS[-1][0] else None


_KINDS: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(_WHOLE, step_number), "reward": float, "advantage": float}
_KINDS |= dict.fromkeys(("prompt", "completion"), lambda value: value)
_OURS: Mapping[str, Callable[[Any], Any]] = {
    "mode": Mode, "status": Status, "stop_reason": StopReason, "dropped": Dropped,
    **dict.fromkeys(("actions", "tags"), list), **dict.fromkeys(("reward", "advantage", "seconds"), number),
    **dict.fromkeys((*_WHOLE, "staleness", "created", "returned"), whole),
    **dict.fromkeys(("group", "task", "eval_name", "model", "error"), str),
    **dict.fromkeys(("rewards", "metrics", "sampling", "metadata"), dict),
}  # fmt: skip


def restore_columns(rollout: ImportedRollout, columns: Mapping[str, Any]) -> ImportedRollout:
    """Return a rollout with the columns of our own export; as it is without, or if its messages or reward changed."""
    count, reward = columns.get("message_count", -1), columns.get("reward", math.nan)
    is_same = len(rollout.prompt) + len(rollout.completion) in (count, count or 1)  # some formats need a message
    odd = {name: number(value) for name, value in (columns.get("odd_rewards") or {}).items()}
    if not is_same or not (odd or rollout.reward is None or np.isclose(rollout.reward, reward, equal_nan=True)):
        return rollout
    fields = {name: kind(columns[name]) for name, kind in _OURS.items() if columns.get(name) is not None}
    if odd:  # NaN and infinities, as text
        rewards = fields.get("rewards", {})
        fields["rewards"] = rewards | {name: value for name, value in odd.items() if name in rewards}
        fields.setdefault("reward", odd.get("reward", sum(value or 0.0 for value in odd.values())))
    return ImportedRollout(
        rollout.key, rollout.prompt, rollout.completion, run=rollout.run, turns=rollout.turns,
        weights=columns.get("reward_weights") or {},
        tokens=token_arrays(*map(columns.get, _TOKENS)) or rollout.tokens, **fields,
    )  # fmt: skip


def decode_json(value: Any, name: str = "") -> Any:
    """Return the value of JSON text or bytes; anything else as it is. Raise RecordError, with the name."""
    try:
        value = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        return json_value(value) if isinstance(value, bytes) else value
    except (ValueError, RecursionError):
        raise RecordError(f"{f'`{name}`' if name else 'it'} is not valid JSON") from None


def part(record: Any, *names: str) -> dict[str, Any]:
    """Return the dict that a record has under these names, without what is null; an empty one if there is none."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return {key: value for key, value in record.items() if value is not None} if isinstance(record, dict) else {}


def _items(value: Any) -> Any:
    """Return what the JSON text of a list of objects says; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        with suppress(RecordError):  # a text that only begins like JSON
            return decode_json(value)
    return value


def lost_kinds(value: Any) -> list[str]:
    """Return the kinds of items of the Responses API that are no messages, beside others that are."""
    if not isinstance(items := _items(value), list):
        return []
    messages = [_message_of(item) for item in items if isinstance(item, dict)]
    kinds = [str(item["type"]) for item in messages if "role" not in item and isinstance(item.get("type"), str)]
    return kinds if len(kinds) < len(messages) else []


def messages_of(value: Any, role: str = "user") -> list[dict[str, Any]] | None:
    """Return messages: a list, or its JSON text, as they are; any other text as a message of `role`. None for else."""
    items = _items(value)
    if isinstance(items, list):
        candidates = [_message_of(item) for item in items if isinstance(item, dict)]
        # All items must be messages, or of a kind that is known to be none. A list that needs no change is kept.
        messages = [message for message in candidates if isinstance(message.get("role"), str)]
        if len(messages) == len(items) - len(lost_kinds(items)):
            is_same = len(messages) == len(items) and all(map(operator.is_, messages, items))
            return items if is_same else _turns_of(messages)
    return [{"role": role, "content": value}] if isinstance(value, str) else None


def _message_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message of ShareGPT, or an item of the Responses API, in OpenAI's form; any other as it is."""
    kind, call, parts = item.get("type"), item.get("call_id"), item.get("content")
    if kind == "function_call":
        function = {name: item.get(name) for name in ("name", "arguments")}
        calls = [{"id": call, "type": "function", "function": function}]
        return {"role": "assistant", "content": "", "tool_calls": calls}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": call, "content": item.get("output")}
    if kind == "reasoning":
        thoughts = [str(part(thought).get("text", "")) for thought in parts or item.get("summary") or ()]
        return {"role": "assistant", "content": "", "reasoning_content": "\n".join(thoughts)}
    if kind == "message" and isinstance(parts, list):
        texts = [{**entry, "type": "text"} if part(entry).get("type") in _TEXTS else entry for entry in parts]
        return {"role": item.get("role"), "content": texts}
    if "role" in item or not isinstance(item.get("from"), str) or "value" not in item:
        return item
    rest = {name: value for name, value in item.items() if name not in ("from", "value")}
    return {"role": _SHARED.get(item["from"], item["from"]), "content": item["value"], **rest}


def _turns_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which what the Responses API has as several items of one answer is one."""
    turns = messages[:1]
    for item in messages[1:]:
        last, thoughts = turns[-1], "reasoning_content"
        if not item["role"] == last["role"] == "assistant" or (last.get("content") and item.get("content")):
            turns.append(item)
            continue
        joined = {"content": last["content"] or item["content"]}
        if texts := [message[thoughts] for message in (last, item) if message.get(thoughts)]:
            joined[thoughts] = "\n".join(texts)
        if calls := [*last.get("tool_calls", ()), *item.get("tool_calls", ())]:
            joined["tool_calls"] = calls
        turns[-1] = last | item | joined
    return turns


def table_of(value: Any) -> dict[str, Any] | None:
    """Return a dict, also of its JSON text, and of a list of names with values; None for anything else."""
    if isinstance(value, str) and value[:1] == "{" and len(value) < _LONG:
        with suppress(RecordError):
            value = decode_json(value)
    pairs = value if isinstance(value, list) else ()
    if pairs and all(isinstance(pair, dict) and {"name", "value"} <= pair.keys() for pair in pairs):
        return {str(pair["name"]): pair["value"] for pair in value}
    return value if isinstance(value, dict) else None


def conversation(prompt: Any, completion: Any) -> dict[str, Any]:
    """Return the messages of a prompt and a completion, each of which is text or messages.

    Text is one message. But decoders that leave out special tokens leave the roles, each on a line of its own; where
    these alternate until the policy's turn, the text is cut there. ChatML is cut into all of its messages.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        # `opening` is the prompt's last turn: without an end mark, the completion goes on with it. `earlier` has what
        # is before the first mark, too, so the last turn is the message `len(earlier) - 1`.
        *earlier, opening = prompt.split(_BEGIN)
        marked = _of_chatml(prompt + completion) if earlier and _END not in opening else []
        if marked and marked[len(earlier) - 1]["role"] == "assistant":
            return {"prompt": marked[: len(earlier) - 1], "completion": marked[len(earlier) - 1 :]}
        # Roles and texts take turns in `parts`; the last text is the beginning of the answer.
        begin, *parts = _ROLE.split(prompt)
        if not begin and _ROLES.fullmatch(" ".join(parts[::2])):
            answers = zip(parts[:-2:2], parts[1::2], strict=False)
            messages = [{"role": role, "content": text.removesuffix("\n")} for role, text in answers]
            return {"prompt": messages, "completion": [{"role": "assistant", "content": parts[-1] + completion}]}
    sides = messages_of(prompt), messages_of(completion, "assistant")
    if None in sides:
        raise RecordError("its prompt or its completion is neither text nor messages")
    return dict(zip(("prompt", "completion"), map(_without_none, sides), strict=True))


def _of_chatml(text: str) -> list[dict[str, Any]]:
    """Return the messages of a text that is ChatML from its begin to its end; none if it is not."""
    before, *parts = text.split(_BEGIN)
    turns = [(role, *content.partition(_END)) for role, _, content in (part.partition("\n") for part in parts)]
    is_whole = not before and all(role in _CHATML and not rest.strip() for role, _, _, rest in turns)
    return [{"role": role, "content": content} for role, content, _, _ in turns] if is_whole else []


def group_size(batches: Iterable[Iterable[Mapping[str, Any]]]) -> int | None:
    """Return the size of a group, by `prompt` and `advantage` of the rows of batches; None if these do not show it.

    Equal prompts beside each other are a group, or several ones of a prompt. Advantages of a group have the sum 0 and,
    where TRL divides them by their deviation, squares with the sum size - 1. Else 8 groups must agree.
    """
    prompts, runs = list[Any](), list[list[float | None]]()
    for prompt, prompt_rows in chain.from_iterable(groupby(rows, lambda row: row.get("prompt")) for rows in batches):
        prompts += [prompt] if prompt not in prompts[:1] and len(prompts) < 2 else []
        runs.append([number(row.get("advantage")) for row in prompt_rows])
    # The most frequent number of equal prompts beside each other; the smallest of those that are equally frequent.
    counts = Counter(map(len, runs))
    usual = max(counts, key=lambda length: (counts[length], -length), default=1)
    unscaled = None
    # From the smallest size on: advantages of several groups together have the sum 0, too.
    for size in (length for length in range(2, usual + 1) if usual % length == 0):
        values = [advantage for prompt_rows in runs if len(prompt_rows) % size == 0 for advantage in prompt_rows]
        blocks = np.array([math.nan if value is None else value for value in values], float).reshape(-1, size)
        nonzero = blocks[(blocks != 0).any(axis=1)]
        if len(nonzero) and np.allclose(nonzero.sum(axis=1), 0, atol=1e-3 * size):
            if np.allclose((nonzero**2).sum(axis=1), size - 1, rtol=0.02):
                return size
            unscaled = unscaled or (size if len(nonzero) >= _AGREEING else None)
    return usual if len(prompts) > 1 or usual == 1 else unscaled


def repeats(prompts: Sequence[Any], size: int | None) -> list[tuple[int, int]]:
    """Return group and generation of each row. Equal prompts beside each other are a group, or several ones if they are
    a multiple of the size. Without a size each row is a group.
    """
    lengths = [len(list(equal_prompts)) for _, equal_prompts in groupby(prompts)]
    cut = size or 1
    groups = [part for length in lengths for part in ([cut] * (length // cut) if length % cut == 0 else [length])]
    return [(number, i) for number, length in enumerate(groups) for i in range(length)]


def beside_total(
    total: float | None, parts: Mapping[str, float | None], weights: Mapping[str, float]
) -> dict[str, Any]:
    """Return rewards and weights of parts beside a total, which is a reward of weight 1 where no weights are given."""
    if weights or not parts:
        return {"rewards": parts or None, "weights": weights}
    return {"rewards": {**parts, "reward": total}, "weights": {**dict.fromkeys(parts, 0.0), "reward": 1.0}}


def halves(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split messages before the first answer of the model, into prompt and completion."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first], messages[first:]


def token_arrays(prompt: Any, completion: Any, logprobs: Any = None, mask: Any = None) -> Tokens | None:
    """Return token arrays of lists; None without ids of the completion. Raise RecordError if they do not fit."""
    if not completion:
        return None
    try:
        with np.errstate(over="ignore"):
            values = np.array(logprobs, np.float16) if logprobs else None
        ids, sampled = np.array(completion, np.int32), np.array(mask, np.uint8) if mask else None
        tokens = Tokens(np.array(prompt or [], np.int32), ids, values, sampled)
    except (TypeError, ValueError, OverflowError):
        raise RecordError("its token ids, log-probs or mask are not lists of numbers") from None
    if any(array is not None and array.shape != (len(completion),) for array in (values, ids, sampled)):
        raise RecordError("its log-probs or its mask are not as long as its token ids")
    return tokens


def key_of(own_id: Any, place: Place) -> str:
    """Return a rollout's key: the id that its source gave it, hashed if it is long; without one, that of its place."""
    own_id = "" if own_id is None else str(own_id)
    return file_id("", own_id) if len(own_id) > 300 else own_id or place.key


def table_rows(file: Path, *queries: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of an SQLite file. Text that is no UTF-8 does not end it."""
    with closing(open_read_only(file)) as connection:
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")
        for query in queries:
            yield from map(dict, connection.execute(query))


def fields_of(row: Any, table: Mapping[str, str | None], rewards: Iterable[str]) -> dict[str, Any]:
    """Return fields of an ImportedRollout, named by a table of keys (None: read elsewhere); others are more columns."""
    if not isinstance(row, dict):
        raise RecordError("it is not a JSON object")
    fields = {to: _KINDS.get(to, str)(row[key]) for key, to in table.items() if to and row.get(key) is not None}
    if "completion" in table.values():
        fields |= conversation(fields.get("prompt"), fields.get("completion"))
    scores = {name: None if row[name] is None else float(row[name]) for name in rewards if name in row}
    rest = {key: value for key, value in row.items() if value is not None and key not in table and key not in scores}
    numbers = {key: value + 0 for key, value in rest.items() if isinstance(value, int | float)}
    other = {key: value for key, value in rest.items() if key not in numbers}
    return {**fields, **({"rewards": scores} if scores else {}), "metrics": numbers, "metadata": other}


def _without_none(value: Any) -> Any:
    """Return a value without the keys of objects that are None: Arrow gives each object the keys of all."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
