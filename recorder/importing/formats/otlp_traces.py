"""Reads OTLP/JSON of spans by OpenTelemetry's conventions for generative AI, also what our own export writes."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats._values import decode_json, halves, key_of, number, part, restore_columns, whole
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, ImportOptions, Reader, Turn
from logs_ui.recorder.importing.source_files import Place, RecordError
from logs_ui.recorder.vocabulary import Lack

_CALLS, _OURS = ("chat", "text_completion", "generate_content"), "logs_ui."
_INSTRUCTIONS = "gen_ai.system_instructions"
_KEYS = (_INSTRUCTIONS, ".messages", ".tool.call.arguments", ".tool.call.result", "gen_ai.operation.name", "resource")
_SCORE = ("gen_ai.evaluation.name", "gen_ai.evaluation.score.value")
_TRACES = 1_000  # of which spans are remembered
_IDS = ("token ids", "log-probs")  # our export has none, either
_NESTED = {"rewards", "reward_weights", "odd_rewards", "metrics", "sampling", "metadata", "tags"}  # JSON in our export


class OtlpReader(Reader):
    """Reads a trace with calls of a model as a rollout; its root is the agent's span."""

    name, title = "otlp", "OpenTelemetry (GenAI)"
    marks = "JSON with `resourceSpans`"
    lacks = (*Lack, *_IDS, "advantages")
    may_repeat = True

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        self._spans: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # of the last traces, by their ids

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        spans = [
            {**span, "attributes": _attributes(span) | {"resource": _attributes(part(owner, "resource"))}}
            for owner in record["resourceSpans"] for scope in owner["scopeSpans"] for span in scope["spans"]
        ]  # fmt: skip
        for trace, of_trace in groupby(sorted(spans, key=_order), lambda span: str(span["traceId"])):
            # A collector writes a trace in several lines, its root last: each line adds to the rollout.
            parts = [span for span in of_trace if "gen_ai.operation.name" in span["attributes"]]
            parts = sorted([*self._spans.pop(trace, ()), *parts], key=_order)
            if parts:
                self._spans[trace] = parts
                yield self._rollout(trace, parts, place)
        while len(self._spans) > _TRACES:
            self._spans.popitem(last=False)

    def _rollout(self, trace: str, spans: list[dict[str, Any]], place: Place) -> ImportedRollout:
        root, about = spans[0], spans[0]["attributes"]
        columns = {name.removeprefix(_OURS): value for name, value in about.items() if name.startswith(_OURS)}
        columns |= {name: decode_json(columns[name], _OURS + name) for name in _NESTED & columns.keys()}
        calls = [span for span in spans if span["attributes"]["gen_ai.operation.name"] in _CALLS] or [root]
        messages, turns, actions = list[dict[str, Any]](), list[Turn](), list[dict[str, Any]]()
        for span in spans:
            values, seconds = span["attributes"], (_nanos(span, "end") - _nanos(span, "start")) / 1e9
            error = _error(span)
            if span in calls:
                inputs, answers = (_messages(values, f"gen_ai.{side}.messages") for side in ("input", "output"))
                # Most calls repeat the conversation so far; one that does not, as of another agent, is added whole.
                messages += inputs[len(messages) :] if inputs[: len(messages)] == messages else inputs
                messages += answers
                finish = (values.get("gen_ai.response.finish_reasons") or [None])[0]
                tokens, limit = (
                    whole(values.get(f"gen_ai.{name}")) for name in ("usage.output_tokens", "request.max_tokens")
                )
                turns += [Turn(finish, seconds, tokens, limit, error=error)] * bool(answers)
            elif "gen_ai.tool.name" in values:
                action, result = (_plain(values.get(f"gen_ai.tool.call.{name}")) for name in ("arguments", "result"))
                actions.append({
                    "turn": len(turns), "text": messages[-1]["content"] if messages else None, "observation": result,
                    "action": action, "reward": number(values.get("logs_ui.reward")),
                    "done": values.get("logs_ui.done"), "metadata": None, "seconds": seconds, "error": error,
                })  # fmt: skip
        scores = [
            _attributes(event) for span in spans for event in span.get("events") or () if "evaluation" in event["name"]
        ]
        pairs = [[score.get(name) for name in _SCORE] for score in scores]
        rewards = {str(name): number(score) for name, score in pairs if score is not None}
        total = rewards.pop("reward", None)
        outputs = _messages(about, "gen_ai.output.messages")
        messages += outputs[1:] if messages[-1:] == outputs[:1] else []  # what came after the last answer
        instructions = next(filter(None, (span["attributes"].get(_INSTRUCTIONS) for span in spans)), None)
        if instructions and not (messages and messages[0]["role"] == "system"):
            messages[:0] = _messages({"": [{"role": "system", "parts": decode_json(instructions, _INSTRUCTIONS)}]}, "")
        run_id, (prompt, completion) = about["resource"].get("logs_ui.run"), halves(messages)
        prompt_counts, completion_counts = (
            [
                count
                for span in calls
                if (count := whole(span["attributes"].get(f"gen_ai.usage.{name}_tokens"))) is not None
            ]
            for name in ("input", "output")
        )
        title = about["resource"].get("logs_ui.run_name") or about["resource"].get("service.name")
        self.runs.setdefault(run_id, ImportedRun(title, lacks=_IDS if columns else self.lacks, ours=columns))
        more = {
            "spans": [{"name": span.get("name")} | _rest(span["attributes"]) for span in spans[1:]],
            "evaluations": [score for score in scores if score.keys() - {*_SCORE}],
            "resource": _rest(about["resource"]),
        }  # fmt: skip
        more = {name: value for name, value in more.items() if value or name == "spans"}
        rollout = ImportedRollout(
            key_of((columns and about.get("gen_ai.conversation.id")) or trace, place), prompt, completion, run=run_id,
            turns=turns, rewards=rewards or None, reward=total, weights=self.options.weights,
            eval_name=about.get("gen_ai.agent.name"),
            model=next(
                (model for span in (root, *calls) if (model := span["attributes"].get("gen_ai.request.model"))), None
            ),
            error=_error(root), created=_nanos(root, "start") // 1_000,
            returned=_nanos(root, "end") // 1_000, seconds=(_nanos(root, "end") - _nanos(root, "start")) / 1e9,
            prompt_tokens=prompt_counts[0] if prompt_counts else None,
            completion_tokens=sum(completion_counts) if completion_counts else None,
            metadata=_rest(about) | more,
        )  # fmt: skip
        return restore_columns(rollout, columns and {**columns, "actions": actions})


def _rest(values: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span that are metadata."""
    return {name: value for name, value in values.items() if not name.startswith(_OURS) and not name.endswith(_KEYS)}


def _order(span: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key to sort spans by: by trace, the root first, which has no parent, and then by their beginning."""
    return str(span["traceId"]), bool(span.get("parentSpanId")), _nanos(span, "start")


def _error(span: dict[str, Any]) -> str | None:
    """Return what failed in a span; None if it did not."""
    status, kind = part(span, "status"), span["attributes"].get("error.type")
    is_failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    return status.get("message") or (str(kind or "it failed") if is_failed else None)


def _nanos(span: dict[str, Any], side: str) -> int:
    return whole(span.get(f"{side}TimeUnixNano")) or 0


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """Return attributes by name, without the types in which they are wrapped."""
    return {attribute["key"]: _value(part(attribute, "value")) for attribute in owner.get("attributes") or ()}


def _plain(value: Any) -> Any:
    """Return what the JSON of an object or a list says; any other text as it is."""
    with suppress(RecordError):
        return decode_json(value) if str(value)[:1] in ("{", "[") else value
    return value


def _value(wrapped: dict[str, Any]) -> Any:
    for kind, value in wrapped.items():
        if kind == "arrayValue":
            return [_value(item) for item in value.get("values", ())]
        if kind == "kvlistValue":
            return _attributes({"attributes": value.get("values")})
        return whole(value) if kind == "intValue" else number(value) if kind == "doubleValue" else value
    return None


def _messages(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form, of an attribute's, which have parts."""
    messages = []
    for original in decode_json(values.get(name), name) or ():
        message = {**original, "content": "", "tool_calls": []}
        parts: list[dict[str, Any]] = []
        for item in message.pop("parts", ()):
            kind, content = item.get("type"), item.get("content")
            if kind == "tool_call_response":
                message |= {"tool_call_id": item.get("id"), "content": item.get("response")}
            elif kind == "tool_call":
                function = {name: item.get(name) for name in ("name", "arguments")}
                message["tool_calls"].append({"id": item.get("id"), "type": "function", "function": function})
            elif kind == "reasoning":
                message["reasoning_content"] = "\n".join(filter(None, (message.get("reasoning_content"), content)))
            elif kind == "text":
                parts.append({"type": "text", "text": str(content)})
            else:
                url = item.get("uri") or f"data:{item.get('mime_type')};base64,{content}"
                parts.append({"type": "image_url", "image_url": {"url": url}})
        texts = [item["text"] for item in parts if "text" in item]
        message["content"] = ("".join(texts) if len(texts) == len(parts) else parts) or message["content"]
        messages.append({name: value for name, value in message.items() if name != "tool_calls" or value})
    if not all(isinstance(message.get("role"), str) for message in messages):
        raise RecordError("it has messages without a role")
    return messages
