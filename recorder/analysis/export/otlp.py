"""Writes rollouts as OpenTelemetry's traces, by its conventions for generative AI, and sends them to servers.

Token ids are left out: nothing shows them, and many servers cut attributes off at 64 kB. Traces are sent as protobuf,
since not every server takes JSON.
"""

import base64
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

import orjson

from logs_ui.recorder.action_text import tool_of
from logs_ui.recorder.analysis.export.exported import Exported, without_none
from logs_ui.recorder.errors import LogsUIError

_ASKED = ("temperature", "top_p", "top_k", "max_tokens", "seed", "presence_penalty", "frequency_penalty")
_BYTES = 4 << 20  # of a request, about
_WAITS = (1, 2, 4, 8, 16, 0)  # seconds after each try, if the server names no other
_LATER = frozenset({429, 502, 503, 504})  # OTLP asks to repeat these
_ODD = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def trace(rollout: Exported) -> dict[str, Any]:
    """Return a line of OTLP/JSON: a span of the rollout, with all columns as `logs_ui.NAME`, and below it one of each
    answer and each action. An export that is repeated has the same ids.
    """
    row, model, begin = rollout.row, rollout.row["model"], 0
    first, last = (
        (rollout.turns[0].place, rollout.turns[-1].place)
        if rollout.turns
        else (len(rollout.messages), len(rollout.messages))
    )
    ended = max([row["returned"] or row["created"], *(turn.end for turn in rollout.turns)])
    columns = {f"logs_ui.{name}": value for name, value in rollout.columns.items() if name != "actions"}
    spans: list[tuple[Any, ...]] = [("invoke_agent", row["eval_name"], row["created"], ended, row["error"], columns | {
        "gen_ai.agent.name": row["eval_name"], "gen_ai.request.model": model,
        "gen_ai.input.messages": _chat(rollout.messages[:first]),
        "gen_ai.output.messages": _chat(rollout.messages[last:]),
    }), *_action_spans(rollout.moves[0], row["created"])]  # fmt: skip
    for turn in rollout.turns:
        sampling, finish = (row["sampling"] or {}) | (turn.call.get("sampling") or {}), turn.call.get("finish")
        used = turn.span and (len(row["prompt_ids"]) + turn.span[0], turn.span[1] - turn.span[0])
        spans += [("chat", model, turn.begin, turn.end, None, {
            "gen_ai.request.model": model, "gen_ai.response.finish_reasons": finish and [finish],
            "gen_ai.usage.input_tokens": used and used[0], "gen_ai.usage.output_tokens": used and used[1],
            "gen_ai.input.messages": _chat(rollout.messages[begin : turn.place]),  # those that no call before had
            "gen_ai.output.messages": _chat([rollout.messages[turn.place]]),
            **{f"gen_ai.request.{name}": sampling.get(name) for name in _ASKED},
        }), *_action_spans(turn.moves, turn.end)]  # fmt: skip
        begin = turn.place + 1
    ids = [blake2b(f"{rollout.key}#{number}".encode(), digest_size=8).hexdigest() for number in range(len(spans))]
    written = [
        without_none(
            traceId=blake2b(rollout.key.encode(), digest_size=16).hexdigest(), spanId=id_, name=f"{kind} {name}",
            parentSpanId=ids[0] if id_ != ids[0] else None, kind=3 if kind == "chat" else 1,
            startTimeUnixNano=f"{start}000", endTimeUnixNano=f"{end}000",
            status={"code": 2, "message": error} if error else {}, events=_scores(rollout,
            ended) if id_ == ids[0] else [],
            attributes=_attributes(values | {
                "gen_ai.operation.name": kind, "gen_ai.provider.name": "_OTHER", "gen_ai.conversation.id": rollout.key,
                "error.type": error and error.partition(":")[0],
            }),
        )
        for id_, (kind, name, start, end, error, values) in zip(ids, spans, strict=True)
    ]  # fmt: skip
    resource = _attributes(
        {"service.name": "logs-ui", "logs_ui.run": rollout.run.uid, "logs_ui.run_name": rollout.run.name}
    )
    scopes = [{"scope": {"name": "logs-ui"}, "spans": written}]
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}


def _action_spans(actions: list[dict[str, Any]], begin: int) -> list[tuple[Any, ...]]:
    """Return the spans of actions: operation, name, begin and end in µs, error, attributes."""
    spans = []
    for action in actions:
        name, end = tool_of(action["action"]) or "environment", begin + int(1e6 * (action.get("seconds") or 0))
        spans.append(("execute_tool", name, begin, end, action.get("error"), {
            "gen_ai.tool.name": name, "logs_ui.reward": action.get("reward"), "logs_ui.done": action.get("done"),
            "gen_ai.tool.call.arguments": action["action"], "gen_ai.tool.call.result": action["observation"],
        }))  # fmt: skip
        begin = end
    return spans


def _scores(rollout: Exported, moment: int) -> list[dict[str, Any]]:
    """Return an event for the reward, and one for each reward function; one that did not run has no value."""
    total = {} if rollout.row["reward"] is None else {"reward": (rollout.row["reward"], None)}
    return [
        {"timeUnixNano": f"{moment}000", "name": "gen_ai.evaluation.result", "attributes": _attributes({
            "gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": score, "logs_ui.weight": weight})}
        for name, (score, weight) in {**total, **rollout.scores}.items()
    ]  # fmt: skip


def _chat(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": message["role"], "parts": _parts(message)} for message in messages]


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content, thought = message.get("content", []), message.get("reasoning_content")
    parts: list[dict[str, Any]] = [{"type": "reasoning", "content": thought}] if thought else []
    listed: list[Any] = [{"text": content}] if isinstance(content, str) else content
    for part in listed:
        head, _, data = part.get("image_url", {}).get("url", "").partition(";base64,")
        if head:
            image = {"type": "blob", "mime_type": head[5:], "content": data} if data else {"type": "uri", "uri": head}
            parts.append({**image, "modality": "image"})
        elif message["role"] == "tool":
            parts.append({"type": "tool_call_response", "id": message["tool_call_id"], "response": part["text"]})
        else:
            parts.append({"type": "text", "content": part["text"]})
    calls = message.get("tool_calls", ())
    return parts + [{"type": "tool_call", "id": call["id"], **call["function"]} for call in calls]


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes. What is nested is JSON, because few servers take anything else on a span."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and abs(value) < 1 << 63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _ODD.get(str(value), value)}
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return {"arrayValue": {"values": [{"stringValue": text} for text in value]}}
    return {"stringValue": value if isinstance(value, str) else orjson.dumps(value).decode()}


@contextmanager
def sending(url: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that sends a trace. Raise LogsUIError if the server does not take all of them."""
    try:
        from google.protobuf.json_format import Parse, ParseDict
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
    except ImportError as error:
        raise LogsUIError("Traces are sent by opentelemetry-proto: pip install 'logs-ui[otlp]'.") from error
    body, waiting, sent = bytearray(), 0, 0

    def flush() -> None:
        nonlocal waiting, sent
        before = f"{sent} rollouts were sent before; sent again, they have the same ids."
        answer, response = _answer(url, bytes(body), before), service.ExportTraceServiceResponse()
        Parse(answer, response, ignore_unknown_fields=True) if answer[:1] == b"{" else response.ParseFromString(answer)
        if response.partial_success.rejected_spans:
            why = f"{response.partial_success.rejected_spans} spans, saying {response.partial_success.error_message!r}"
            raise LogsUIError(f"{url} rejected {why}. {before}")
        waiting, sent = 0, sent + waiting
        body.clear()

    def send(trace: dict[str, Any]) -> None:
        nonlocal waiting
        for span in trace["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            for name in span.keys() & {"traceId", "spanId", "parentSpanId"}:  # hex in OTLP, base64 in protobuf's JSON
                span[name] = base64.b64encode(bytes.fromhex(span[name]))
        # Messages one after the other are one message with the fields of all.
        body.extend(ParseDict(trace, service.ExportTraceServiceRequest()).SerializeToString())
        waiting += 1
        if len(body) > _BYTES:
            flush()

    yield send
    if waiting:
        flush()


def _answer(url: str, body: bytes, before: str) -> bytes:
    """Post a request, several times if need be, with the headers of OTEL_EXPORTER_OTLP_HEADERS."""
    pairs = [pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")]
    headers = {unquote(name).strip(): unquote(value).strip() for name, _, value in pairs if name.strip()}
    request = Request(url, body, {**headers, "Content-Type": "application/x-protobuf"})  # noqa: S310
    for wait in _WAITS:
        try:
            with urlopen(request, timeout=60) as answer:  # noqa: S310 - http or https: `export/files.py` checks it
                if answer.url == url:
                    return bytes(answer.read())
            why = f"it leads to {answer.url}, which must be named itself"  # a POST that is redirected stores nothing
            break
        except HTTPError as error:
            why, after = f"it answered {error.code} {error.reason}", error.headers.get("Retry-After", "")
            if error.code not in _LATER:
                break
        except OSError as error:
            why, after = str(error), ""
        time.sleep(min(int(after), 60) if after.isdecimal() else wait)
    raise LogsUIError(f"{url} did not take the rollouts: {why}. {before}")
