"""Reads logs of Inspect AI, `.eval` and `.json`, without the package.

A log is a run: its header has one task, one model and one configuration, while a `run_id` may have several logs.
"""

import math
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo, is_zipfile

import zstandard

from logs_ui.recorder.importing.formats._values import key_of, micros, number, part, whole
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, json_value, records_of
from logs_ui.recorder.vocabulary import Lack, Status, StopReason

_HEADERS = ("header.json", "_journal/start.json")  # there is only the second one until the log is finished
_SAMPLE = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)")
_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_FINISH = {"max_tokens": "length", "model_length": "length", "unknown": None}
_LIMITS = {"token": "length", "context": "length", "time": "timeout", "working": "timeout", "operator": "aborted"}
_WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_MOST = 1 << 28  # bytes of a sample
_IDS = ("run_id", "task_id", "created")  # of a log before February 2025, together
_METRICS = ("total_time", "working_time", "turn_count", "token_limit_usage")


class InspectReader(Reader):
    """Reads samples; epochs are the attempts at them."""

    name, title = "inspect", "Inspect AI"
    marks = ".eval; JSON with `eval`, `status` and `samples`"
    lacks = ("token ids", "advantages", Lack.POLICY_VERSIONS)

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        if head.magic.startswith(b"PK"):
            return is_zipfile(head.file) and not {*_HEADERS}.isdisjoint(ZipFile(head.file).namelist())
        return head.keys >= {"eval", "status", "samples"}

    def records(self, file: Path) -> Iterable[tuple[int, Any]]:
        if is_zipfile(file):
            with ZipFile(file) as archive:
                members = archive.NameToInfo  # of several members with one name the last one counts
            log = _member(file, next(members[name] for name in _HEADERS if name in members))
            samples = [info for name, info in members.items() if _SAMPLE.fullmatch(name)]
        else:
            log = dict(next(iter(records_of(file)))[1])
            samples = log.pop("samples")
        if not samples and part(log, "eval").get("shards"):
            return [(1, RecordError("its samples are in other files (`shards`), which are not read"))]
        return enumerate(((log, sample) for sample in samples), 1)

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        log, sample = record
        sample = _member(place.file, sample) if isinstance(sample, ZipInfo) else sample
        about = part(log, "eval")
        run_id = str(about.get("eval_id") or "/".join(str(about.get(name)) for name in _IDS))
        if run_id not in self.runs:
            epochs, versions = part(about, "config").get("epochs"), part(about, "packages")
            name, model = about.get("task"), about.get("model")
            are_several = len(self.options.rewards or sample.get("scores") or ()) > 1 and not self.options.weights
            lacks = (*self.lacks, *([Lack.WEIGHTS] if are_several else []))
            self.runs[run_id] = ImportedRun(name, model, epochs, None, log, versions, lacks)
        rest = {name: value for name, value in sample.items() if value is not None and name != "events_data"}
        events, attachments = rest.pop("events", []), rest.pop("attachments", {})
        rest = _resolve_attachments(rest, attachments)
        messages, task, epoch = rest.pop("messages", None) or rest["input"], str(sample["id"]), whole(sample["epoch"])
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        # Answers with the source "input" are examples in the prompt.
        prompt = list(
            takewhile(lambda message: message.get("role") != "assistant" or message.get("source") == "input", messages)
        )
        answers = messages[len(prompt) :]
        turns = _turns(answers, events, part(rest, "output"))
        rewards, reasons = _rewards(part(rest, "scores") or {name: rest[name] for name in ("score",) if name in rest})
        weights = self.options.weights
        # The header's first scorer that has metrics gives the reward, whichever samples have its score.
        scorers = ("scores" in rest and (about.get("scorers") or part(log, "results").get("scores"))) or ()
        names = [str(score.get("scorer") or score["name"]) for score in scorers if score.get("metrics") != []]
        if rewards and max(len(names), len(rewards)) > 1 and self.options.rewards is None and not weights:
            first = names[0] if names else next(iter(rewards))
            main = next((name for name in rewards if name == first or name.startswith(f"{first}.")), first)
            rewards = {main: None, **rewards}
            weights = {name: float(name == main) for name in rewards}
            note = f"{about.get('task')}: the reward is the score {main}, and others are not added to it"
            if not any(line.startswith(note) for line in self.notes):
                others = ", ".join([name for name in dict.fromkeys((*rewards, *names)) if name != main][:3])
                self.notes.append(f"{note} ({others}). --rewards names those that are summed.")
        metrics: dict[str, Any] = {name: rest[name] for name in _METRICS if name in rest}
        for usage in part(rest, "model_usage").values():
            metrics |= {name: metrics.get(name, 0) + count for name, count in usage.items() if count}
        if self.options.rewards is not None:
            metrics |= rewards
            rewards = {name: rewards.get(name) for name in self.options.rewards}
        error, limit = part(rest, "error").get("message"), part(rest, "limit").get("type")
        stop = StopReason(_LIMITS.get(limit, "turn_limit")) if limit and not error else None
        yield ImportedRollout(
            key_of(rest.get("uuid") or f"{run_id}/{task}/{epoch}", place), [*map(_message, prompt)],
            [*map(_message, answers)], run=run_id, eval_name=about.get("task"), task=task, group=task,
            model=about.get("model"), generation=None if epoch is None else epoch - 1, turns=turns,
            rewards=rewards or None, metrics=metrics, weights=weights,
            status=Status.ERROR if error else Status.OK, metadata=rest,
            error=error or (f"LimitExceededError: {limit} limit" if stop is StopReason.TIMEOUT else None),
            stop_reason=stop,
            tags=[*reasons, *([f"limit:{limit}"] if limit else [])], seconds=number(rest.get("total_time")),
            completion_tokens=sum(turn.tokens or 0 for turn in turns) or None,
            sampling=part(about, "model_generate_config") | part(log, "plan", "config"),
            created=micros(rest.get("started_at")), returned=micros(rest.get("completed_at")),
        )  # fmt: skip


def _turns(completion: list[dict[str, Any]], events: list[dict[str, Any]], output: dict[str, Any]) -> list[Turn]:
    """Return what events say about each answer."""
    answers = [message for message in completion if message.get("role") == "assistant"]
    answered = [event for event in events if part(event, "output").get("choices")]
    # If there is not one event for each answer, only the sample's output is known to be that of the last answer.
    unknown: dict[str, Any] = {"output": {"choices": [{}]}}
    last = {"output": output} if output.get("choices") else unknown
    in_order = answered if len(answered) == len(answers) else [unknown] * (len(answers) - 1) + [last]
    calls = {
        event["output"]["choices"][0]["message"].get("id"): event for event in (last, *answered) if event is not unknown
    }
    tools = {event.get("id"): event for event in events if event.get("event") == "tool"}
    turns = []
    for message, at_its_place in zip(answers, in_order, strict=False):
        event = calls.get(message["id"], unknown) if message.get("id") else at_its_place
        events_used = [tools[call["id"]] for call in message.get("tool_calls") or [] if call.get("id") in tools]
        errors = [
            f"{event['error'].get('type')}: {event['error'].get('message')}"
            for event in events_used
            if event.get("error")
        ]
        answer, finish = event["output"], str(event["output"]["choices"][0].get("stop_reason", "unknown"))
        turns.append(Turn(
            _FINISH.get(finish, finish), number(answer.get("time")) or number(event.get("working_time")),
            whole(part(answer, "usage").get("output_tokens")), whole(part(event, "config").get("max_tokens")),
            env_seconds=sum(number(event.get("working_time")) or 0.0 for event in events_used) if events_used else None,
            error=next(iter(errors), None),
        ))  # fmt: skip
    return turns


def _rewards(scores: dict[str, Any]) -> tuple[dict[str, float | None], list[str]]:
    """Return rewards as Inspect's `value_to_float` has them, and reasons for odd ones."""
    rewards: dict[str, float | None] = {}
    reasons = [score.get("reason") or part(score, "metadata").get("unscored_reason") for score in scores.values()]
    for (name, score), reason in zip(scores.items(), reasons, strict=True):
        value = score.get("value")
        for key, entry in value.items() if isinstance(value, dict) else [("", value)]:
            reward = _WORDS.get(str(entry), _WORDS.get(str(entry).lower(), number(entry)))
            if reward is not None:
                is_lacking = math.isnan(reward) and reason not in {"grader_failed", "scoring_failed"}
                rewards[f"{name}.{key}" if key else name] = None if is_lacking else reward
    return rewards, [str(reason) for reason in reasons if reason]


def _message(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    message = {name: value for name, value in item.items() if name not in {"id", "source", "function", "tool_calls"}}
    if isinstance(item.get("content"), list):
        thoughts = [entry for entry in item["content"] if entry.get("type") == "reasoning"]
        texts = [thought.get("summary" if thought.get("redacted") else "reasoning") for thought in thoughts]
        message["reasoning_content"] = "\n".join(text for text in texts if text) or None
        message["content"] = [
            {"type": "image_url", "image_url": {"url": entry.get("image")}} if entry.get("type") == "image" else entry
            for entry in item["content"] if entry not in thoughts
        ]  # fmt: skip
    for source in item.get("tool_calls") or []:
        function = {"name": source.get("function"), "arguments": source.get("arguments")}
        call = {"id": source.get("id"), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call | {"parse_error": source.get("parse_error")})
    content = message.get("content") or part(item, "error").get("message")  # models are shown it
    return message | {"name": item.get("function"), "content": content}


def _resolve_attachments(value: Any, attachments: dict[str, str]) -> Any:
    """Return the value with the texts that Inspect stored apart."""
    if isinstance(value, str):
        return _ATTACHMENT.sub(lambda match: attachments.get(match[1], match[0]), value)
    if isinstance(value, dict):
        return {name: _resolve_attachments(item, attachments) for name, item in value.items()}
    return [_resolve_attachments(item, attachments) for item in value] if isinstance(value, list) else value


def _member(file: Path, info: ZipInfo) -> Any:
    """Return the JSON of a zip's member. It may be packed by zstd, which Python's zipfile refuses before 3.14."""
    if info.filename.endswith("/sample.json"):  # 0.3.285 can write these, and not read them
        raise RecordError(f"{info.filename} is stored in parts, which cannot be read")
    if max(info.file_size, info.compress_size) > _MOST:  # before any of it is unpacked
        raise RecordError(f"{info.filename} has more than {_MOST >> 20} MiB")
    # At offset 26 of the member's own header are the lengths of its name and extra fields; its data is behind these.
    with file.open("rb") as stream:
        stream.seek(info.header_offset + 26)
        stream.seek(sum(int.from_bytes(stream.read(2), "little") for _ in "ne"), 1)  # the name and the extra fields
        packed = stream.read(info.compress_size)
    most = min(max(info.file_size, 64 * info.compress_size), _MOST)  # a few kilobytes can become any number
    try:
        # 93 is zstd; all others but 0, which is not packed, are read as deflate.
        if info.compress_type == 93:
            packed = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read(most + 1)
        elif info.compress_type:
            packed = zlib.decompressobj(-15).decompress(packed, most + 1)
        if len(packed) <= most:
            return json_value(packed)
    except (ValueError, RecursionError, zlib.error, zstandard.ZstdError):
        raise RecordError(f"{info.filename} is damaged") from None
    raise RecordError(f"{info.filename} is larger than its archive says")
