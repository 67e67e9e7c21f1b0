"""Turns a job into changes of rows: attributes the recorded calls, and builds each row from its calls.

Runs where rows are written: in the helper process, or in the writer's thread if there is none, or if the user's own
functions (`parse=`, `edit=`) have to be called.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.capture.calls import Call, CallRecords, EnvironmentCall, Generation
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked, without_keys
from logs_ui.recorder.rows.attribution import Attribution, RowCalls, attribute, attribute_unfinished
from logs_ui.recorder.rows.attribution.scoring_calls import ScoredRow, attribute_scoring
from logs_ui.recorder.rows.builder import encoded
from logs_ui.recorder.rows.chat_parser import Spelling, prompt_messages
from logs_ui.recorder.rows.draft_batches import RowDraft
from logs_ui.recorder.rows.ends import error_reason
from logs_ui.recorder.rows.jobs import ColumnsJob, FailedJob, FinishedJob, HeaderJob, ReturnedJob, RunningJob
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.task_names import asked_key
from logs_ui.recorder.rows.text_compare import is_in
from logs_ui.recorder.rows.tokens import all_sampled, spell_rows, spelling_of, unfinished_tokens
from logs_ui.recorder.storage.changes import Change, RowChange, RunChange
from logs_ui.recorder.storage.payload import NO_TOKENS, Tokens
from logs_ui.recorder.vocabulary import Status

_NO_IDS: Ids = np.empty(0, np.int32)
_COMPARED = 1_000  # characters at the end of a prompt that tell it from the others


def changes_of(job: Any) -> Iterable[Change | RowDraft]:
    """Make the changes of the rows of a job in `jobs.py`. The text of a call that has ended is released then."""
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
            return (job.call.change(index, values) for index, values in columns if index not in job.call.left_out)
    raise TypeError(type(job).__name__)


def _ended(call: RolloutCall, rows: Iterator[Change | RowDraft | None]) -> Iterator[Change | RowDraft]:
    yield from (row for row in rows if row is not None)
    call.release()


def _running(job: RunningJob) -> Iterator[Change | RowDraft]:
    call = job.call
    headers = [{"status": Status.RUNNING, "stop_reason": None, "task": task} for task in call.tasks]
    rows: Iterable[RowChange | RowDraft | None] = ()
    if not call.settled:
        only_headers = job.only_announces()
        rows = (
            (call.change(index, columns) for index, columns in enumerate(headers))
            if only_headers
            else _so_far(call, headers)
        )
    for row in rows:
        if row is not None and not call.settled:  # the function may return at any time
            yield row


def _so_far(call: RolloutCall, headers: list[dict[str, Any]]) -> Iterator[RowChange | RowDraft | None]:
    calls = call.so_far()
    attribution = Attribution([RowCalls() for _ in call.prompts], 0)
    with guard("giving calls to rows that run"):
        attribution = _attribute_unfinished(call, calls, is_running=True)
    spelling = spelling_of(call)
    for index, row in enumerate(attribution.rows):
        yield encoded(
            call, index, row, unfinished_tokens(row), lambda _: {}, headers[index] | all_sampled(row), spelling
        )


def _returned(job: ReturnedJob) -> Iterator[Change | RowDraft | None]:
    call, output, spelling = job.call, job.output, spelling_of(job.call)
    tokens = [_tokens(output, index) for index in range(len(call.prompts))]
    attribution = Attribution([RowCalls() for _ in tokens], 0)
    with guard("giving calls to rows"):
        prompts = [_NO_IDS if row is None else row.prompt_ids for row in tokens]
        completions = [_NO_IDS if row is None else row.completion_ids for row in tokens]
        decode = spelling.of if spelling else call.decode
        texts = _last_texts(call) if any(generation.is_failure for generation in call.calls.generations) else ()
        attribution = attribute(prompts, completions, call.calls.sort(), decode, output.numbers, texts)
    scored: list[ScoredRow] = []
    if job.scoring is not None:
        lost = 0
        with guard("giving calls of reward functions to rows"):
            scored, lost = _attribute_scored(job, job.scoring)
        yield RunChange(call.run, {}, unattributed_scoring=lost)
    asked_keys: Sequence[int | None] = [None] * len(tokens)
    with guard("spelling rows"):
        spell_rows(spelling, attribution.rows, tokens)
        asked_keys = _asked_keys(call, tokens, spelling)
    for index, row in enumerate(attribution.rows):
        columns = {"returned": job.returned, "asked_key": asked_keys[index]}
        yield encoded(call, index, row, tokens[index], output.extras, columns, spelling, *scored[index : index + 1])
    if job.scoring is None:  # else they were counted with the job before this one
        yield from _count_lost(call, attribution, tokens)


def _asked_keys(call: RolloutCall, tokens: list[Tokens | None], spelling: Spelling | None) -> Sequence[int | None]:
    """Return the `asked_key` of each row: its group's, unless its prompt ids hold another prompt of the call, and not
    its own, or one that its own is a part of. None if they cannot be read; they are, unless each prompt has its own.
    """
    keys = list(map(cache(asked_key), call.prompts))  # copies of a prompt are hashed once
    ids = [b"" if row is None else row.prompt_ids.tobytes() for row in tokens]
    if call.prompt_keys or len(set(zip(keys, ids, strict=True))) == len(set(keys)) == len(set(ids)):
        return call.prompt_keys or keys
    if spelling is None:
        return [None] * len(keys)
    texts = map(spelling.respelled, _last_texts(call))
    text_of = {key: text.strip()[-_COMPARED:] for key, text in zip(keys, texts, strict=True)}
    spelling.learn([], [row.prompt_ids for row in tokens if row is not None])
    row_keys: list[int] = []
    for row_key, row in zip(keys, tokens, strict=True):
        prompt = "" if row is None else spelling.whole(row.prompt_ids)
        # The first value prefers a prompt that holds the row's own, as its own does; then the longest one counts.
        fits = [
            (text_of[row_key] in prompt_end, len(prompt_end), key == row_key, key)
            for key, prompt_end in text_of.items()
            if prompt_end and is_in(prompt_end, prompt)
        ]
        row_keys.append(max(fits)[-1] if fits else row_key)
    return row_keys


def _attribute_scored(job: ReturnedJob, scoring: CallRecords) -> tuple[list[ScoredRow], int]:
    call, completions = job.call, orjson.loads(job.completions)
    columns = call.columns or [b"null"] * len(call.prompts)
    prompts_and_columns = [[orjson.loads(text) for text in both] for both in zip(call.prompts, columns, strict=True)]
    return attribute_scoring(scoring.sort(), job.functions, completions, prompts_and_columns[: len(completions)])


def _tokens(output: Output, index: int) -> Tokens | None:
    """Return the tokens of row `index`; None if its ids are no valid ids, in which case TRL will raise."""
    with suppress(TypeError, ValueError, OverflowError):
        return output.tokens(index)
    return None


def _finished(job: FinishedJob) -> Iterator[Change | RowDraft | None]:
    calls = job.call.calls.sort()
    columns = {**job.ended, "returned": job.returned}
    if job.output is None:
        attribution = attribute_unfinished(1, calls)
        tokens = unfinished_tokens(attribution.rows[0])
        columns |= all_sampled(attribution.rows[0])
    else:
        tokens = job.output.tokens(0)
        attribution = attribute([tokens.prompt_ids], [tokens.completion_ids], calls)
    spelling = spelling_of(job.call)
    yield encoded(
        job.call, 0, attribution.rows[0], tokens, lambda _: masked(orjson.loads(job.metadata)), columns, spelling
    )
    yield from _count_lost(job.call, attribution, [tokens] if job.output else ())


def _failed(job: FailedJob) -> Iterator[Change | RowDraft | None]:
    attribution = _attribute_unfinished(job.call, job.call.calls)
    end, spelling = _end_of_all(job.call, attribution, job.error), spelling_of(job.call)
    metadata = {**masked(orjson.loads(job.metadata)), **_traceback(job.trace)}
    yield from _count_lost(job.call, attribution, but=end)
    for index, row in enumerate(attribution.rows):
        ended = job.ended(index) | all_sampled(row)
        broken = [call for call in row.environment_calls if call.error]
        if not broken and isinstance(end, EnvironmentCall):
            broken = [end]
        if broken and job.status == Status.ERROR:
            ended["stop_reason"] = error_reason(broken[-1])
        yield encoded(job.call, index, row, unfinished_tokens(row), lambda _: metadata, ended, spelling)


def _headers(job: HeaderJob) -> Iterator[Change | RowDraft]:
    metadata = _traceback(job.trace)
    rows = [
        encoded(job.call, index, RowCalls(), None, lambda _: metadata, header)
        for index, header in enumerate(job.headers)
    ]
    written = [row for row in rows if row is not None]
    for row in written:
        (row.change if isinstance(row, RowDraft) else row).tokens = NO_TOKENS
    yield RunChange(job.call.run, {}, dropped_payloads=len(written))
    yield from written


def _traceback(trace: str | None) -> dict[str, Any]:
    return {"traceback": trace} if trace else {}


def _attribute_unfinished(call: RolloutCall, calls: CallRecords, *, is_running: bool = False) -> Attribution:
    """Attribute the calls of rows without tokens, by the last text of each row's prompt among others."""
    prompts = _last_texts(call)
    return attribute_unfinished(len(prompts), calls.sort(), prompts, call.decode, is_running=is_running)


def _last_texts(call: RolloutCall) -> list[str]:
    """Return the text of each prompt's last message; empty without one."""
    return list(map(cache(_last_text), call.prompts))  # a group's prompts are read once


def _last_text(prompt: bytes) -> str:
    last = prompt_messages(orjson.loads(prompt))[-1:]
    return text if last and isinstance(text := last[0].get("content"), str) else ""


def _end_of_all(call: RolloutCall, attribution: Attribution, error: str) -> Generation | EnvironmentCall | None:
    """Return the unattributed call whose `error` ended the function, so that all rows show it; None without one."""
    failed = [failed_call for failed_call in _failed_calls(call) if failed_call.error == error]
    end = max(failed, key=lambda failed_call: failed_call.order, default=None)
    return None if end is None or end.order in _list_attributed(attribution) else end


def _failed_calls(call: RolloutCall) -> list[Generation | EnvironmentCall]:
    """Return the calls that raised, without those that an environment's call made."""
    calls: list[Generation | EnvironmentCall] = [*call.calls.generations, *call.calls.environment_calls]
    return [
        failed_call
        for failed_call in calls
        if failed_call.error is not None and (failed_call.strand is None or failed_call.strand.call is None)
    ]


def _list_attributed(attribution: Attribution) -> set[int]:
    return {call.order for row in attribution.rows for call in row.calls + row.children}


def _count_lost(
    call: RolloutCall, attribution: Attribution, returned: Sequence[Tokens | None] = (), but: Call | None = None
) -> Iterator[Change]:
    """Count on the run the unattributed calls, all `but` one, with their errors; and the rows whose `returned` tokens
    no generation sampled that was seen.
    """
    lost, unseen = max(0, attribution.unattributed - (but is not None)), _count_unseen(call, attribution, returned)
    if not (lost or unseen):
        return
    orders = {but and but.order, *_list_attributed(attribution)}
    errors = Counter(
        without_keys(failed_call.error or "")
        for failed_call in _failed_calls(call)
        if lost and failed_call.order not in orders
    )
    yield RunChange(call.run, {}, lost, unattributed_errors=errors, unseen_sampling=unseen)


def _count_unseen(call: RolloutCall, attribution: Attribution, returned: Sequence[Tokens | None]) -> int:
    """Count the stored rows with tokens but no generation. One that is on no row may be any row's, and a row may have
    the answer of another.
    """
    rows = [
        (row, tokens.completion_ids.tobytes())
        for index, (row, tokens) in enumerate(zip(attribution.rows, returned, strict=False))
        if tokens is not None and index not in call.left_out
    ]
    answers = {answer for row, answer in rows if row.turns}
    silent = sum([not (row.turns or row.failures) and answer not in answers for row, answer in rows])
    if not silent:
        return 0
    answered = sum(len(generation.sequences) for generation in call.calls.generations)
    placed = sum(1 + len(turn.others) for row in attribution.rows for turn in row.turns)
    return max(0, silent - max(0, answered - placed))
