"""Reads OTLP/JSON of spans by OpenTelemetry's conventions for generative AI, also what our own export writes."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats._values import decoded, halves, key_of, number, part, restored, whole
from logs_ui.recorder.importing.imported import ImportedRollout, ImportedRun, ImportOptions, Reader, Turn
from logs_ui.recorder.importing.source_files import Place, RecordError
from logs_ui.recorder.vocabulary import Lack

_CALLS, _OURS = ("chat", "text_completion", "generate_content"), "logs_ui."
_INSTRUCTIONS = "gen_ai.system_instructions"
_READ = (_INSTRUCTIONS, ".messages", ".tool.call.arguments", ".tool.call.result", "gen_ai.operation.name", "resource")
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
            {**span, "attributes": _attributes(span) | {"resource": _attributes(part(one, "resource"))}}
            for one in record["resourceSpans"] for scope in one["scopeSpans"] for span in scope["spans"]
        ]  # fmt: skip
        for trace, of_trace in groupby(sorted(spans, key=_order), lambda it: str(it["traceId"])):
            # A collector writes a trace in several lines, its root last: each line adds to the rollout.
            parts = [it for it in of_trace if "gen_ai.operation.name" in it["attributes"]]
            parts = sorted([*self._spans.pop(trace, ()), *parts], key=_order)
            if parts:
                self._spans[trace] = parts
                yield self._rollout(trace, parts, place)
        while len(self._spans) > _TRACES:
            self._spans.popitem(last=False)

    def _rollout(self, trace: str, spans: list[dict[str, Any]], place: Place) -> ImportedRollout:
        root, about = spans[0], spans[0]["attributes"]
        own = {name.removeprefix(_OURS): it for name, it in about.items() if name.startswith(_OURS)}
        own |= {name: decoded(own[name], _OURS + name) for name in _NESTED & own.keys()}
        calls = [span for span in spans if span["attributes"]["gen_ai.operation.name"] in _CALLS] or [root]
        said, turns, actions = list[dict[str, Any]](), list[Turn](), list[dict[str, Any]]()
        for span in spans:
            values, seconds = span["attributes"], (_nanos(span, "end") - _nanos(span, "start")) / 1e9
            error = _error(span)
            if span in calls:
                asked, answers = (_messages(values, f"gen_ai.{it}.messages") for it in ("input", "output"))
                said += [*asked[len(said) :], *answers] if asked[: len(said)] == said else [*asked, *answers]
                finish = (values.get("gen_ai.response.finish_reasons") or [None])[0]
                used, limit = (
                    whole(values.get(f"gen_ai.{it}")) for it in ("usage.output_tokens", "request.max_tokens")
                )
                turns += [Turn(finish, seconds, used, limit, error=error)] * bool(answers)
            elif "gen_ai.tool.name" in values:
                action, result = (_plain(values.get(f"gen_ai.tool.call.{it}")) for it in ("arguments", "result"))
                actions.append({
                    "turn": len(turns), "text": said[-1]["content"] if said else None, "observation": result,
                    "action": action, "reward": number(values.get("logs_ui.reward")),
                    "done": values.get("logs_ui.done"), "metadata": None, "seconds": seconds, "error": error,
                })  # fmt: skip
        scores = [_attributes(it) for span in spans for it in span.get("events") or () if "evaluation" in it["name"]]
        named = [[it.get(name) for name in _SCORE] for it in scores]
        rewards = {str(name): number(score) for name, score in named if score is not None}
        total = rewards.pop("reward", None)
        ended = _messages(about, "gen_ai.output.messages")
        said += ended[1:] if said[-1:] == ended[:1] else []  # what came after the last answer
        instructions = next(filter(None, (span["attributes"].get(_INSTRUCTIONS) for span in spans)), None)
        if instructions and not (said and said[0]["role"] == "system"):
            said[:0] = _messages({"": [{"role": "system", "parts": decoded(instructions, _INSTRUCTIONS)}]}, "")
        run, (prompt, completion) = about["resource"].get("logs_ui.run"), halves(said)
        had, made = (
            [count for it in calls if (count := whole(it["attributes"].get(f"gen_ai.usage.{name}_tokens"))) is not None]
            for name in ("input", "output")
        )
        title = about["resource"].get("logs_ui.run_name") or about["resource"].get("service.name")
        self.runs.setdefault(run, ImportedRun(title, lacks=_IDS if own else self.lacks, ours=own))
        more = {
            "spans": [{"name": it.get("name")} | _rest(it["attributes"]) for it in spans[1:]],
            "evaluations": [it for it in scores if it.keys() - {*_SCORE}], "resource": _rest(about["resource"]),
        }  # fmt: skip
        more = {name: it for name, it in more.items() if it or name == "spans"}
        found = ImportedRollout(
            key_of((own and about.get("gen_ai.conversation.id")) or trace, place), prompt, completion, run=run,
            turns=turns, rewards=rewards or None, reward=total, weights=self.options.weights,
            eval_name=about.get("gen_ai.agent.name"),
            model=next((it for span in (root, *calls) if (it := span["attributes"].get("gen_ai.request.model"))), None),
            error=_error(root), created=_nanos(root, "start") // 1_000,
            returned=_nanos(root, "end") // 1_000, seconds=(_nanos(root, "end") - _nanos(root, "start")) / 1e9,
            prompt_tokens=had[0] if had else None, completion_tokens=sum(made) if made else None,
            metadata=_rest(about) | more,
        )  # fmt: skip
        return restored(found, own and {**own, "actions": actions})


def _rest(values: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span that are metadata."""
    return {name: value for name, value in values.items() if not name.startswith(_OURS) and not name.endswith(_READ)}


def _order(span: dict[str, Any]) -> tuple[Any, ...]:
    return str(span["traceId"]), bool(span.get("parentSpanId")), _nanos(span, "start")


def _error(span: dict[str, Any]) -> str | None:
    """Return what failed in a span; None if it did not."""
    status, kind = part(span, "status"), span["attributes"].get("error.type")
    is_failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    return status.get("message") or (str(kind or "it failed") if is_failed else None)


def _nanos(span: dict[str, Any], at: str) -> int:
    return whole(span.get(f"{at}TimeUnixNano")) or 0


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """Return attributes by name, without the types in which they are wrapped."""
    return {it["key"]: _value(part(it, "value")) for it in owner.get("attributes") or ()}


def _plain(written: Any) -> Any:
    """Return what the JSON of an object or a list says; any other text as it is."""
    with suppress(RecordError):
        return decoded(written) if str(written)[:1] in ("{", "[") else written
    return written


def _value(wrapped: dict[str, Any]) -> Any:
    for kind, value in wrapped.items():
        if kind == "arrayValue":
            return [_value(it) for it in value.get("values", ())]
        if kind == "kvlistValue":
            return _attributes({"attributes": value.get("values")})
        return whole(value) if kind == "intValue" else number(value) if kind == "doubleValue" else value
    return None


def _messages(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form, of an attribute's, which have parts."""
    messages = []
    for given in decoded(values.get(name), name) or ():
        found = {**given, "content": "", "tool_calls": []}
        listed: list[dict[str, Any]] = []
        for one in found.pop("parts", ()):
            kind, content = one.get("type"), one.get("content")
            if kind == "tool_call_response":
                found |= {"tool_call_id": one.get("id"), "content": one.get("response")}
            elif kind == "tool_call":
                called = {name: one.get(name) for name in ("name", "arguments")}
                found["tool_calls"].append({"id": one.get("id"), "type": "function", "function": called})
            elif kind == "reasoning":
                found["reasoning_content"] = "\n".join(filter(None, (found.get("reasoning_content"), content)))
            elif kind == "text":
                listed.append({"type": "text", "text": str(content)})
            else:
                url = one.get("uri") or f"data:{one.get('mime_type')};base64,{content}"
                listed.append({"type": "image_url", "image_url": {"url": url}})
        texts = [it["text"] for it in listed if "text" in it]
        found["content"] = ("".join(texts) if len(texts) == len(listed) else listed) or found["content"]
        messages.append({name: it for name, it in found.items() if name != "tool_calls" or it})
    if not all(isinstance(it.get("role"), str) for it in messages):
        raise RecordError("it has messages without a role")
    return messages
