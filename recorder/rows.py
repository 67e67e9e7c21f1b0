"""From one call of a rollout function to the rows that are stored: what is kept on the caller's thread, and how the
writer's thread encodes it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder import chat
from logs_ui.recorder.attribution import Attribution, RowCalls, attribute, attribute_unfinished
from logs_ui.recorder.calls import CallLog, EnvironmentCall, Ids
from logs_ui.recorder.clean import column, error_line, one_line, trace
from logs_ui.recorder.guard import guard
from logs_ui.recorder.models import Status, StopReason
from logs_ui.recorder.output import Output
from logs_ui.recorder.payload import Tokens, pack_content, pack_tokens
from logs_ui.recorder.run import now_us
from logs_ui.recorder.store import Change, RowChange, RunChange

_NO_IDS: Ids = np.empty(0, np.int32)
_PREVIEW = 120


@dataclass
class RolloutCall:
    """One call of a rollout function: its rows before they have an end.

    Attributes:
        run: uid.
        launch: see `RunName`.
        batch: counts the trainer's batches, alike on all ranks.
        attempt: counts the calls for this batch: more than one where a function that raised is called again.
        first: global index of this process's first row.
        prompts: (N) JSON of each prompt.
        tasks: (N) None where they are not known yet.
        columns: (N) JSON of the dataset's other columns; None where they are not known.
        settled: True once the function returned or raised.
    """

    run: str
    launch: str
    eval_name: str
    mode: str
    step: int
    policy_step: int
    epoch: float | None
    batch: int
    attempt: int
    process: int
    first: int
    generations: int
    model: str | None
    prompts: list[bytes]
    tasks: list[str | None]
    columns: list[bytes] | None
    tokenizer: Tokenizer | None
    calls: CallLog = field(default_factory=CallLog)
    created: int = field(default_factory=now_us)
    settled: bool = False

    def change(
        self, i: int, columns: Mapping[str, Any], content: bytes | None = None, tokens: bytes | None = None
    ) -> RowChange:
        """Of this call's row `i`."""
        index = self.first + i
        identity = {
            "eval_name": self.eval_name,
            "mode": self.mode,
            "step": self.step,
            "policy_step": self.policy_step,
            "epoch": self.epoch,
            "group": f"{self.run}/{self.mode}/{self.batch}/{index // self.generations}",
            "generation": index % self.generations,
            "process": self.process,
            "model": self.model,
            "created": self.created,
        }
        uid = f"{self.launch}/{self.batch}/{index}" + (f"/{self.attempt}" if self.attempt else "")
        return RowChange(self.run, uid, identity, columns, content, tokens)

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        return sum(map(len, self.prompts)) + sum(map(len, self.columns or ())) + self.calls.size

    def release(self) -> None:
        """Lets go of what no later job needs, once the rows' ends are encoded."""
        self.calls.release()
        self.columns = None

    def prompt(self, i: int) -> list[dict[str, Any]]:
        return chat.prompt_messages(orjson.loads(self.prompts[i]))


def prompt_task(prompt: bytes) -> str:
    """The name of a task that nobody named: the prompt's hash."""
    return "prompt-" + hashlib.sha256(prompt).hexdigest()[:8]


@dataclass(frozen=True)
class OpenedJob:
    """Rows that run. Writes nothing where the function has returned by then: the next job says all of it."""

    call: RolloutCall

    @property
    def size(self) -> int:
        return self.call.size

    def changes(self) -> Iterable[Change]:
        if self.call.settled:
            return
        for i, task in enumerate(self.call.tasks):
            messages = self.call.prompt(i)
            content = pack_content({"messages": messages, "actions": [], "sampling": {}, "metadata": {}})
            running = {"status": Status.RUNNING, "task": task, "message_count": len(messages)}
            yield self.call.change(i, running, content)


@dataclass(frozen=True)
class ReturnedJob:
    """Rows whose rollout function returned something that the trainer can take."""

    call: RolloutCall
    output: Output
    returned: int

    @property
    def size(self) -> int:
        return self.output.size + self.call.size

    def changes(self) -> Iterable[Change]:
        calls = self.call.calls
        tokens = [self._tokens(i) for i in range(len(self.call.prompts))]
        found = Attribution([RowCalls() for _ in tokens], 0)
        with guard("giving calls to rows"):
            prompts = [_NO_IDS if row is None else row.prompt_ids for row in tokens]
            completions = [_NO_IDS if row is None else row.completion_ids for row in tokens]
            found = attribute(prompts, completions, calls.generations, calls.environment_calls)
        yield from _lost_calls(self.call, found)
        for i, row in enumerate(found.rows):
            yield _ended_whatever_it_holds(
                self.call, i, row, tokens[i], self.output.extras, {"returned": self.returned}
            )
        self.call.release()

    def _tokens(self, i: int) -> Tokens | None:
        """None for a row whose ids are none: TRL will raise."""
        with suppress(TypeError, ValueError, OverflowError):
            return self.output.tokens(i)
        return None


@dataclass(frozen=True)
class FailedJob:
    """Rows whose rollout function raised, or returned what the trainer cannot take."""

    call: RolloutCall
    error: str
    trace: str | None
    status: Status
    returned: int

    @property
    def size(self) -> int:
        return len(self.trace or "") + self.call.size

    @classmethod
    def of(cls, call: RolloutCall, error: BaseException) -> "FailedJob":
        """An interrupt aborts the rows; any other exception is their error."""
        status = Status.ERROR if isinstance(error, Exception) else Status.ABORTED
        return cls(call, error_line(error), trace(error), status, now_us())

    def changes(self) -> Iterable[Change]:
        calls = self.call.calls
        found = attribute_unfinished(len(self.call.prompts), calls.generations, calls.environment_calls)
        yield from _lost_calls(self.call, found)
        reason = StopReason.EXCEPTION if self.status == Status.ERROR else StopReason.ABORTED
        for i, row in enumerate(found.rows):
            ended = {"returned": self.returned, "status": self.status, "error": self.error, "stop_reason": reason}
            if any(call.error for call in row.environment_calls):
                ended["stop_reason"] = StopReason.ENVIRONMENT_ERROR
            ended["task"] = self.call.tasks[i] or prompt_task(self.call.prompts[i])
            yield _ended_whatever_it_holds(self.call, i, row, _unfinished_tokens(row), self._metadata, ended)
        self.call.release()

    def _metadata(self, _: int) -> dict[str, Any]:
        return {"traceback": self.trace} if self.trace else {}


@dataclass(frozen=True)
class ColumnsJob:
    """Figures that came later: rewards, advantages."""

    call: RolloutCall
    columns: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        return 200 * len(self.columns)

    def changes(self) -> Iterable[Change]:
        for i, columns in enumerate(self.columns):
            yield self.call.change(i, columns)


def _lost_calls(call: RolloutCall, found: Attribution) -> Iterable[Change]:
    if found.unattributed:
        yield RunChange(call.run, {}, found.unattributed)


def _ended_whatever_it_holds(
    call: RolloutCall,
    i: int,
    row: RowCalls,
    tokens: Tokens | None,
    metadata_of: Callable[[int], dict[str, Any]],
    ended: dict[str, Any],
) -> RowChange:
    """As `_ended`; a row that cannot be encoded costs its text, and no other row."""
    with guard("encoding a rollout"):
        return _ended(call, i, row, tokens, metadata_of(i), ended)
    bare = {
        "status": Status.OK,
        "stop_reason": StopReason.NOT_RECORDED,
        "error": "logs-ui could not encode this rollout",
    }
    return call.change(i, bare | ended)


def _ended(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens | None, metadata: dict[str, Any], ended: dict[str, Any]
) -> RowChange:
    """The change that a row's end is, from its calls and tokens; what `ended` names stands above what they show."""
    prompt, answers = call.prompt(i), _messages(call, row, tokens)
    last_call = row.environment_calls[-1] if row.environment_calls else None
    broken = last_call.error if last_call else None
    columns: dict[str, Any] = {
        "status": Status.ERROR if broken else Status.OK,
        "stop_reason": _stop_reason(row),
        "error": broken,
        "message_count": len(prompt) + len(answers),
        "turns": len(row.turns) or None,
        "preview": _preview(answers),
        **_counts(tokens),
        **_environment_rewards(row),
        "rollout_reward": _rollout_reward(metadata),
        "seconds": _seconds(row),
        **({"task": call.tasks[i]} if call.tasks[i] else {}),
        **ended,
    }
    columns["error"] = columns["error"] and one_line(columns["error"])
    if call.columns is not None:
        metadata = {**metadata, "dataset": orjson.loads(call.columns[i])}
    if row.evidence is not None:
        metadata = {**metadata, "attribution": row.evidence}
    content = {
        "messages": prompt + answers,
        "actions": _actions(call, row),
        "sampling": row.turns[-1].generation.sampling if row.turns else {},
        "metadata": metadata,
    }
    packed = None if tokens is None else pack_tokens(tokens)
    return call.change(i, columns, pack_content(content), packed)


def _messages(call: RolloutCall, row: RowCalls, tokens: Tokens | None) -> list[dict[str, Any]]:
    """Of the completion. Where there is no mask, what was sampled is known from the calls."""
    if tokens is None or call.tokenizer is None:
        return []
    mask = tokens.mask
    if mask is None and row.turns and all(turn.start is not None for turn in row.turns):
        mask = _mask(row, len(tokens.completion_ids))
    return chat.completion_messages(call.tokenizer, tokens.completion_ids, mask)


def _actions(call: RolloutCall, row: RowCalls) -> list[dict[str, Any]]:
    """In order: the reset as turn 0, then each answer with what was sent to the environment and what came back. An
    answer that was not sent has no action; a step that no answer was seen before has no text.
    """
    steps = list(row.environment_calls)
    entries = []
    for number, turn in enumerate(row.turns, 1):
        after = row.turns[number].order if number < len(row.turns) else float("inf")
        entries += [_action(number - 1, None, step) for step in steps if step.order < turn.order]
        own = [step for step in steps if turn.order < step.order < after]
        steps = [step for step in steps if step.order > after]
        text = None
        if call.tokenizer is not None:
            text = call.tokenizer.decode(turn.sequence.sampled.tolist(), skip_special_tokens=True)
        resets = [step for step in own if step.kind == "reset"]
        entries += [_action(number, None, step) for step in resets]
        moves: list[EnvironmentCall | None] = [step for step in own if step.kind == "step"]
        entries += [_action(number, text, step) for step in moves or [None]]
    seen = len(row.turns)
    for step in steps if not row.turns else []:
        seen += step.kind == "step"
        entries.append(_action(seen, None, step))
    return entries


def _action(turn: int, text: str | None, call: EnvironmentCall | None) -> dict[str, Any]:
    entry: dict[str, Any] = dict.fromkeys(
        ("turn", "text", "action", "observation", "reward", "done", "metadata", "seconds", "error")
    )
    entry |= {"turn": turn, "text": text}
    if call is None:
        return entry
    metadata = orjson.loads(call.metadata) if call.metadata else None
    if call.kind == "reset":
        arguments = orjson.loads(call.sent)
        entry |= {"turn": 0, "metadata": {**(metadata or {}), "reset": arguments} if arguments else metadata}
    else:
        entry |= {"action": orjson.loads(call.sent), "metadata": metadata}
    return entry | {
        "observation": None if call.observation is None else orjson.loads(call.observation),
        "reward": call.reward,
        "done": call.done,
        "seconds": call.seconds,
        "error": call.error,
    }


def _stop_reason(row: RowCalls) -> StopReason:
    """Why it ended, from the last answer and what the environment said to it."""
    steps = [call for call in row.environment_calls if call.kind == "step"]
    if row.environment_calls and row.environment_calls[-1].error:
        return StopReason.ENVIRONMENT_ERROR
    if steps and steps[-1].done:
        return StopReason.DONE
    if not row.turns:
        return StopReason.TURN_LIMIT if steps else StopReason.NOT_RECORDED
    last = row.turns[-1]
    if last.sequence.finish == "length":
        return StopReason.LENGTH
    if not row.environment_calls:
        return StopReason.STOP
    answered = bool(steps) and steps[-1].order > last.order
    return StopReason.TURN_LIMIT if answered else StopReason.NO_ACTION


def _counts(tokens: Tokens | None) -> dict[str, int]:
    if tokens is None:
        return {}
    inserted = 0 if tokens.mask is None else int((tokens.mask == 0).sum())
    return {
        "prompt_tokens": len(tokens.prompt_ids),
        "completion_tokens": len(tokens.completion_ids) - inserted,
        "env_tokens": inserted,
    }


def _environment_rewards(row: RowCalls) -> dict[str, float | None]:
    rewards = [call.reward for call in row.environment_calls if call.kind == "step" and call.reward is not None]
    return {
        "env_reward_sum": sum(rewards) if rewards else None,
        "env_reward_last": rewards[-1] if rewards else None,
    }


def _rollout_reward(extras: Mapping[str, Any]) -> float | None:
    """Under the names in use: TRL's and OpenEnv's examples say env_reward, Eval Protocol eval_score."""
    for name in ("env_reward", "reward", "rewards", "eval_score"):
        value = extras.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _seconds(row: RowCalls) -> float | None:
    spans = [(turn.generation.began, turn.generation.seconds) for turn in row.turns]
    spans += [(call.began, call.seconds) for call in row.environment_calls]
    if not spans:
        return None
    return max(began + seconds for began, seconds in spans) - min(began for began, _ in spans)


def _preview(answers: list[dict[str, Any]]) -> str | None:
    """The model's last words; its tool calls where it said nothing else."""
    for message in reversed(answers):
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", ())]
            called = " ".join(f"{function['name']}({function['arguments']})" for function in calls)
            words = message["content"] or called or message.get("reasoning_content", "")
            return column(" ".join(words.split())[:_PREVIEW])
    return None


def _unfinished_tokens(row: RowCalls) -> Tokens | None:
    """What a row that never returned had come to, from its generations."""
    if not row.turns:
        return None
    first, last = row.turns[0].sequence, row.turns[-1].sequence
    completion: Ids = np.concatenate([last.context[len(first.context) :], last.sampled])
    return Tokens(first.context, completion, None, _mask(row, len(completion)))


def _mask(row: RowCalls, length: int) -> NDArray[np.uint8]:
    """(C,) 1 where a turn of the row stands in its completion."""
    mask = np.zeros(length, np.uint8)
    for turn in row.turns:
        start = turn.start or 0
        mask[start : start + len(turn.sequence.sampled)] = 1
    return mask
