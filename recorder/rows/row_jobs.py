"""What is to be written of a rollout function call at each moment of its life; encoded where it is written."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.capture.calls import Call, CallLog, EnvironmentCall, Generation, Ids
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.attribution import Attribution, RowCalls, Seen, attribute, attribute_unfinished
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.row_builder import (
    all_sampled,
    encoded,
    error_reason,
    rollout_reward,
    spell_rows,
    spelling_of,
    unfinished_tokens,
)
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.snapshot import error_line, trace
from logs_ui.recorder.storage.changes import Change, RowChange, RunChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.payload import NO_TOKENS, Tokens
from logs_ui.recorder.vocabulary import Status, StopReason

_NO_IDS: Ids = np.empty(0, np.int32)
_TEXT_DROPPED = "logs-ui dropped its text: what waited to be written took too much memory"
_ERROR_SHOWN = 200  # characters of a row's own error, beside that
_HEADER_BYTES = 500  # measured
_COLUMN_BYTES = 100  # measured
_QUICK_BYTES = 1 << 20  # of JSON that is read on the caller's thread: some milliseconds


@dataclass
class RunningJob:
    """Rows as they stand while the function runs; whose calls are whose is provisional. Writes nothing where the
    function has returned by then: the next job says all of it. At first only that they are there, since most rows end
    before there is more to say; not where the user's `edit` has to see them first.

    Attributes:
        are_there: whether that was written.
    """

    call: RolloutCall
    are_there: bool = False

    @property
    def size(self) -> int:
        """The calls are kept alive by the function that runs, not by this."""
        return 1_000

    def without_payload(self) -> "RunningJob":
        """Itself."""
        return self

    @property
    def is_over(self) -> bool:
        return self.call.settled

    def changes(self) -> Iterable[Change]:
        if self.call.settled:
            return
        bare = self.says_only_that_they_are_there()
        for change in self._headers() if bare else self._as_they_stand():
            if change is not None and not self.call.settled:
                yield change

    def says_only_that_they_are_there(self) -> bool:
        """Whether that is all that is to be written now; asked once for each time."""
        first, self.are_there = not self.are_there, True
        return first and self.call.options.edit is None

    def _headers(self) -> Iterable[RowChange]:
        for i in range(len(self.call.prompts)):
            yield self.call.change(i, self._known(i))

    def _as_they_stand(self) -> Iterable[RowChange | None]:
        seen = self.call.calls.so_far()
        found = Attribution([RowCalls() for _ in self.call.prompts], 0)
        with guard("giving calls to rows that run"):
            found = _unfinished(self.call, seen, is_running=True)
        for i, row in enumerate(found.rows):
            known = self._known(i) | all_sampled(row)
            yield encoded(self.call, i, row, unfinished_tokens(row), lambda _: {}, known)

    def _known(self, i: int) -> dict[str, Any]:
        return {"status": Status.RUNNING, "stop_reason": None, "task": self.call.tasks[i]}


@dataclass(frozen=True)
class ReturnedJob:
    """Rows whose rollout function returned something that the trainer can take."""

    call: RolloutCall
    output: Output
    returned: int

    @property
    def size(self) -> int:
        return self.output.size + self.call.size

    def without_payload(self) -> "HeaderJob":
        """Their counts and their own rewards, and that they returned."""
        rows = range(len(self.call.prompts))
        headers = [returned_header(self.output, i, {"returned": self.returned}) for i in rows]
        return HeaderJob.of(self.call, headers)

    def changes(self) -> Iterable[Change]:
        calls, spelling = self.call.calls, None
        tokens = [self._tokens(i) for i in range(len(self.call.prompts))]
        found = Attribution([RowCalls() for _ in tokens], 0)
        with guard("spelling answers"):
            spelling = spelling_of(self.call)
        with guard("giving calls to rows"):
            prompts = [_NO_IDS if row is None else row.prompt_ids for row in tokens]
            completions = [_NO_IDS if row is None else row.completion_ids for row in tokens]
            decode = spelling.of if spelling else self.call.decode
            found = attribute(prompts, completions, seen_of(calls), decode, self.output.numbers)
        yield from _lost_calls(self.call, found)
        with guard("spelling rows"):
            spell_rows(spelling, found.rows, tokens)
        for i, row in enumerate(found.rows):
            change = encoded(self.call, i, row, tokens[i], self.output.extras, {"returned": self.returned}, spelling)
            if change is not None:
                yield change
        self.call.release()

    def _tokens(self, i: int) -> Tokens | None:
        """None for a row whose ids are none: TRL will raise."""
        with suppress(TypeError, ValueError, OverflowError):
            return self.output.tokens(i)
        return None


@dataclass(frozen=True)
class FinishedJob:
    """A rollout that came to its end, with or without tokens."""

    call: RolloutCall
    output: Output | None
    metadata: bytes
    ended: dict[str, Any]
    returned: int

    @property
    def size(self) -> int:
        return self.call.size + len(self.metadata) + (self.output.size if self.output else 0)

    def without_payload(self) -> "HeaderJob":
        """Its counts, and what was said of its end."""
        header = returned_header(self.output, 0, {**self.ended, "returned": self.returned})
        return HeaderJob.of(self.call, [header])

    def changes(self) -> Iterable[Change]:
        seen = seen_of(self.call.calls)
        if self.output is None:
            found = attribute_unfinished(1, seen)
            tokens = unfinished_tokens(found.rows[0])
        else:
            tokens = self.output.tokens(0)
            found = attribute([tokens.prompt_ids], [tokens.completion_ids], seen)
        yield from _lost_calls(self.call, found)
        (row,) = found.rows
        known = {**self.ended, "returned": self.returned} | (all_sampled(row) if self.output is None else {})
        change = encoded(self.call, 0, row, tokens, lambda _: masked(orjson.loads(self.metadata)), known)
        if change is not None:
            yield change
        self.call.release()


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

    def without_payload(self) -> "HeaderJob":
        """Their error, its traceback, and when it was."""
        error = f"{self.error[:_ERROR_SHOWN]} ({_TEXT_DROPPED})"
        headers = [self._ended(i) | {"error": error} for i in range(len(self.call.prompts))]
        return HeaderJob.of(self.call, headers, self.trace)

    @classmethod
    def of(cls, call: RolloutCall, error: BaseException) -> "FailedJob":
        """An interrupt aborts the rows; any other exception is their error."""
        status = Status.ERROR if isinstance(error, Exception) else Status.ABORTED
        return cls(call, error_line(error), trace(error), status, now_us())

    def changes(self) -> Iterable[Change]:
        calls = self.call.calls
        found = _unfinished(self.call, calls)
        end = _end_of_all(self.call, found, self.error)
        yield from _lost_calls(self.call, found, but=end)
        for i, row in enumerate(found.rows):
            ended = self._ended(i) | all_sampled(row)
            broken = [call for call in row.environment_calls if call.error]
            if not broken and isinstance(end, EnvironmentCall):
                broken = [end]
            if broken and self.status == Status.ERROR:
                ended["stop_reason"] = error_reason(broken[-1])
            change = encoded(self.call, i, row, unfinished_tokens(row), lambda _: _traceback(self.trace), ended)
            if change is not None:
                yield change
        self.call.release()

    def _ended(self, i: int) -> dict[str, Any]:
        return {
            "returned": self.returned,
            "status": self.status,
            "error": self.error,
            "stop_reason": StopReason.EXCEPTION if self.status == Status.ERROR else StopReason.ABORTED,
            "task": self.call.tasks[i] or prompt_task(self.call.prompts[i]),
        }


@dataclass(frozen=True)
class HeaderJob:
    """Rows that ended, and whose text had no room to wait: their columns, as far as these are known without it.

    Attributes:
        headers: (N) columns of each row.
        trace: the traceback of what ended them; None where they returned.
    """

    call: RolloutCall
    headers: Sequence[Mapping[str, Any]]
    trace: str | None = None

    @classmethod
    def of(cls, call: RolloutCall, headers: Sequence[Mapping[str, Any]], trace: str | None = None) -> "HeaderJob":
        """Lets go of the call's text."""
        call.drop_text()
        return cls(call, headers, trace)

    @property
    def size(self) -> int:
        return self.call.size + _HEADER_BYTES * len(self.headers) + len(self.trace or "")

    def without_payload(self) -> "HeaderJob":
        """Itself."""
        return self

    def changes(self) -> Iterable[Change]:
        metadata = _traceback(self.trace)
        rows = [encoded(self.call, i, RowCalls(), None, lambda _: metadata, one) for i, one in enumerate(self.headers)]
        kept = [replace(row, tokens=NO_TOKENS) for row in rows if row is not None]
        yield RunChange(self.call.run, {}, dropped_payloads=len(kept))
        yield from kept


@dataclass(frozen=True)
class ColumnsJob:
    """Figures that came later: rewards, advantages."""

    call: RolloutCall
    columns: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        return sum(2 * _COLUMN_BYTES + _COLUMN_BYTES * len(columns) for columns in self.columns)

    def without_payload(self) -> "ColumnsJob":
        """Itself."""
        return self

    def changes(self) -> Iterable[Change]:
        for i, columns in enumerate(self.columns):
            if i not in self.call.left_out:
                yield self.call.change(i, columns)


def returned_header(output: Output | None, i: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of row `i`, which returned `output`, without its text: what is found quickly, and what is known."""
    header: dict[str, Any] = {"error": _TEXT_DROPPED, **known}
    if output is not None:
        header |= output.lengths(i)
    if output is not None and len(output.others) <= _QUICK_BYTES:
        header["rollout_reward"] = rollout_reward(output.extras(i))
    return header


def _traceback(trace: str | None) -> dict[str, Any]:
    return {"traceback": trace} if trace else {}


def seen_of(calls: CallLog) -> Seen:
    """What attribution goes by."""
    calls.sort()
    return Seen(calls.generations, calls.environment_calls, calls.notes)


def _unfinished(call: RolloutCall, calls: CallLog, *, is_running: bool = False) -> Attribution:
    prompts = [call.asked(i) for i in range(len(call.prompts))]
    return attribute_unfinished(len(prompts), seen_of(calls), prompts, call.decode, is_running=is_running)


def _end_of_all(call: RolloutCall, found: Attribution, error: str) -> Generation | EnvironmentCall | None:
    """The call whose `error` ended the function, the last of those that failed so, where it is no row's: all rows tell
    of it. None where a row has it, and where the function ended by itself.
    """
    own: list[Generation | EnvironmentCall] = []
    for row in found.rows:
        own += [*row.failures, *row.environment_calls, *row.children]
    made: list[Generation | EnvironmentCall] = [*call.calls.generations, *call.calls.environment_calls]
    failed = [one for one in made if one.error == error and (one.strand is None or one.strand.call is None)]
    end = max(failed, key=lambda one: one.order, default=None)
    return None if end is None or end.order in {call.order for call in own} else end


def _lost_calls(call: RolloutCall, found: Attribution, but: Call | None = None) -> Iterable[Change]:
    """How many calls are nobody's, `but` one."""
    lost = found.unattributed - (but is not None)
    if lost > 0:
        yield RunChange(call.run, {}, lost)
