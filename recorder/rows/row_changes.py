"""Turns a job into changes of rows: attributes the recorded calls, and builds each row from its calls.

Runs where rows are written: in the helper process, or in the writer's thread if there is none, or if the user's own
functions (`parse=`, `edit=`) have to be called.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.capture.calls import Call, CallRecords, EnvironmentCall, Generation
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.attribution import Attribution, RowCalls, attribute, attribute_unfinished
from logs_ui.recorder.rows.attribution.scoring_calls import ScoredRow, attribute_scoring
from logs_ui.recorder.rows.ends import error_reason
from logs_ui.recorder.rows.packing import RowDraft
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.row_builder import encoded
from logs_ui.recorder.rows.row_jobs import ColumnsJob, FailedJob, FinishedJob, HeaderJob, ReturnedJob, RunningJob
from logs_ui.recorder.rows.row_messages import prompt_of
from logs_ui.recorder.rows.row_tokens import all_sampled, spell_rows, spelling_of, unfinished_tokens
from logs_ui.recorder.storage.changes import Change, RowChange, RunChange
from logs_ui.recorder.storage.payload import NO_TOKENS, Tokens
from logs_ui.recorder.vocabulary import Status

_NO_IDS: Ids = np.empty(0, np.int32)


def changes_of(job: Any) -> Iterable[Change | RowDraft]:
    """Make the changes of the rows of a job in `row_jobs.py`. The text of a call that has ended is released then."""
    match job:
        case RunningJob():
            return _running(job)
        case ReturnedJob():
            return _ended(job.call, _returned(job))
        case FinishedJob():
            return _ended(job.call, _finished(job))
        case FailedJob():
            return _ended(job.call, _failed(job))
        case HeaderJob():
            return _headers(job)
        case ColumnsJob():
            columns = enumerate(job.columns)
            return (job.call.change(i, known) for i, known in columns if i not in job.call.left_out)
    raise TypeError(type(job).__name__)


def _ended(call: RolloutCall, rows: Iterator[Change | RowDraft | None]) -> Iterator[Change | RowDraft]:
    yield from (row for row in rows if row is not None)
    call.release()


def _running(job: RunningJob) -> Iterator[Change | RowDraft]:
    call = job.call
    known = [{"status": Status.RUNNING, "stop_reason": None, "task": task} for task in call.tasks]
    rows: Iterable[RowChange | RowDraft | None] = ()
    if not call.settled:
        only_headers = job.only_announces()
        rows = (call.change(i, columns) for i, columns in enumerate(known)) if only_headers else _so_far(call, known)
    for row in rows:
        if row is not None and not call.settled:  # the function may return at any time
            yield row


def _so_far(call: RolloutCall, known: list[dict[str, Any]]) -> Iterator[RowChange | RowDraft | None]:
    seen = call.so_far()
    found = Attribution([RowCalls() for _ in call.prompts], 0)
    with guard("giving calls to rows that run"):
        found = _unfinished(call, seen, is_running=True)
    for i, row in enumerate(found.rows):
        yield encoded(call, i, row, unfinished_tokens(row), lambda _: {}, known[i] | all_sampled(row))


def _returned(job: ReturnedJob) -> Iterator[Change | RowDraft | None]:
    call, output, spelling = job.call, job.output, None
    tokens = [_tokens(output, i) for i in range(len(call.prompts))]
    found = Attribution([RowCalls() for _ in tokens], 0)
    with guard("spelling answers"):
        spelling = spelling_of(call)
    with guard("giving calls to rows"):
        prompts = [_NO_IDS if row is None else row.prompt_ids for row in tokens]
        completions = [_NO_IDS if row is None else row.completion_ids for row in tokens]
        decode = spelling.of if spelling else call.decode
        found = attribute(prompts, completions, call.calls.sort(), decode, output.numbers)
    scored: list[ScoredRow] = []
    if job.scoring is not None:
        lost = 0
        with guard("giving calls of reward functions to rows"):
            scored, lost = _scored(job, job.scoring)
        yield RunChange(call.run, {}, unattributed_scoring=lost)
    else:  # else they were counted with the job before this one
        yield from _lost_calls(call, found)
    with guard("spelling rows"):
        spell_rows(spelling, found.rows, tokens)
    for i, row in enumerate(found.rows):
        yield encoded(call, i, row, tokens[i], output.extras, {"returned": job.returned}, spelling, *scored[i : i + 1])


def _scored(job: ReturnedJob, scoring: CallRecords) -> tuple[list[ScoredRow], int]:
    call, completions = job.call, orjson.loads(job.completions)
    columns = call.columns or [b"null"] * len(call.prompts)
    given = [[orjson.loads(one) for one in both] for both in zip(call.prompts, columns, strict=True)]
    return attribute_scoring(scoring.sort(), job.functions, completions, given[: len(completions)])


def _tokens(output: Output, i: int) -> Tokens | None:
    """Return the tokens of row `i`; None if its ids are no valid ids, in which case TRL will raise."""
    with suppress(TypeError, ValueError, OverflowError):
        return output.tokens(i)
    return None


def _finished(job: FinishedJob) -> Iterator[Change | RowDraft | None]:
    seen = job.call.calls.sort()
    known = {**job.ended, "returned": job.returned}
    if job.output is None:
        found = attribute_unfinished(1, seen)
        tokens = unfinished_tokens(found.rows[0])
        known |= all_sampled(found.rows[0])
    else:
        tokens = job.output.tokens(0)
        found = attribute([tokens.prompt_ids], [tokens.completion_ids], seen)
    yield from _lost_calls(job.call, found)
    yield encoded(job.call, 0, found.rows[0], tokens, lambda _: masked(orjson.loads(job.metadata)), known)


def _failed(job: FailedJob) -> Iterator[Change | RowDraft | None]:
    found = _unfinished(job.call, job.call.calls)
    end = _end_of_all(job.call, found, job.error)
    yield from _lost_calls(job.call, found, but=end)
    for i, row in enumerate(found.rows):
        ended = job.ended(i) | all_sampled(row)
        broken = [call for call in row.environment_calls if call.error]
        if not broken and isinstance(end, EnvironmentCall):
            broken = [end]
        if broken and job.status == Status.ERROR:
            ended["stop_reason"] = error_reason(broken[-1])
        yield encoded(job.call, i, row, unfinished_tokens(row), lambda _: _traceback(job.trace), ended)


def _headers(job: HeaderJob) -> Iterator[Change | RowDraft]:
    metadata = _traceback(job.trace)
    rows = [encoded(job.call, i, RowCalls(), None, lambda _: metadata, one) for i, one in enumerate(job.headers)]
    kept = [row for row in rows if row is not None]
    for row in kept:
        (row.change if isinstance(row, RowDraft) else row).tokens = NO_TOKENS
    yield RunChange(job.call.run, {}, dropped_payloads=len(kept))
    yield from kept


def _traceback(trace: str | None) -> dict[str, Any]:
    return {"traceback": trace} if trace else {}


def _unfinished(call: RolloutCall, calls: CallRecords, *, is_running: bool = False) -> Attribution:
    """Attribute the calls of rows without tokens, by the last text of each row's prompt among others."""
    last = [[message.get("content") for message in prompt_of(call, i)][-1:] for i in range(len(call.prompts))]
    prompts = [text[0] if text and isinstance(text[0], str) else "" for text in last]
    return attribute_unfinished(len(prompts), calls.sort(), prompts, call.decode, is_running=is_running)


def _end_of_all(call: RolloutCall, found: Attribution, error: str) -> Generation | EnvironmentCall | None:
    """Return the unattributed call whose `error` ended the function, so that all rows show it; None without one."""
    of_rows: list[Generation | EnvironmentCall] = []
    for row in found.rows:
        of_rows += [*row.failures, *row.environment_calls, *row.children]
    made: list[Generation | EnvironmentCall] = [*call.calls.generations, *call.calls.environment_calls]
    failed = [one for one in made if one.error == error and (one.strand is None or one.strand.call is None)]
    end = max(failed, key=lambda one: one.order, default=None)
    return None if end is None or end.order in {call.order for call in of_rows} else end


def _lost_calls(call: RolloutCall, found: Attribution, but: Call | None = None) -> Iterator[Change]:
    """Counts the unattributed calls on the run, all `but` one."""
    lost = found.unattributed - (but is not None)
    if lost > 0:
        yield RunChange(call.run, {}, lost)
