"""Records one trainer's run: opens rows for its rollout calls, and takes what the trainer reports afterwards."""

import atexit
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
import orjson
from msgspec.structs import replace
from numpy.typing import NDArray

from logs_ui.recorder.api.options import CheckedOptions
from logs_ui.recorder.api.run_description import name_run
from logs_ui.recorder.api.run_record import RunRecord, finite
from logs_ui.recorder.capture.calls import CallRecords, Collector
from logs_ui.recorder.capture.instruments import trl, trl_parts, trl_shapes
from logs_ui.recorder.capture.instruments.trl_parts import distinct
from logs_ui.recorder.capture.rollout_output import OutputError, checked_output
from logs_ui.recorder.capture.source_code import Part
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.jobs import ColumnsJob, FailedJob, ReturnedJob, RunningJob
from logs_ui.recorder.rows.rollout_call import OpenCall, TokenizerSource
from logs_ui.recorder.rows.task_names import asked_key, name_task, prompt_task, returned_tasks
from logs_ui.recorder.snapshot import plain_settings, snapshot
from logs_ui.recorder.storage.changes import RunChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.portable import on_fork
from logs_ui.recorder.vocabulary import FIRST_PROMPT, Mode, RunState, Status


class Recording:
    """Records the rollout calls of one trainer during one training, and the rewards and advantages of their rows.

    The trainer's instrument calls `rewards`, `advantages`, `logged`, `train_ended` and `train_raised`.
    """

    def __init__(self, trainer: Any, writer: Writer, wanted: CheckedOptions) -> None:
        self._writer, self.db = writer, writer.address
        self._wanted = wanted
        self._last: tuple[int, int] | None = None  # the batch of the last call, and the attempt at it
        self._awaiting: OpenCall | None = None  # the call whose rewards come next
        self._running: OpenCall | None = None
        self._returned: ReturnedJob | None = None  # the rows of the last call, until they are scored
        self._scores: tuple[bytes, CallRecords, dict[int, str]] | None = None  # completions, calls, functions
        self._handed: list[dict[str, Any]] = []  # columns of what reward functions were handed of the last call's rows
        self._training = False
        # First, and on every rank: this waits for all ranks, so one that failed before would leave the others waiting.
        self._record = RunRecord(writer, trl.shared_from_first(trainer, name_run(writer.address)))
        self.run = self._record.uid
        self._model: str | None = None
        self._tokenizer: TokenizerSource | None = None
        with guard("describing the run"):
            self._describe(trainer)
        with guard("attaching to the trainer"):
            trl.attach(trainer, self)
        _recordings.add(self)

    def flush(self, seconds: float) -> None:
        """Wait until everything that was recorded so far is written, for at most so many seconds."""
        self._writer.flush(seconds)

    def stops(self, why: str) -> None:
        """Store why the training is about to be stopped; `why` is one line."""
        self._record.put(RunChange(self.run, {"error": why}))

    def is_over(self, trainer: Any) -> bool:
        """Return True if the training ended and the trainer trains again, as another run. An evaluation is not one."""
        return self._record.ended and trl.position(trainer, 0)["mode"] == Mode.TRAIN

    def open(self, prompts: Sequence[Any], trainer: Any) -> OpenCall:
        """Open a row for each prompt that a rollout function is called with."""
        where = trl.position(trainer, len(prompts))
        batch = trl.current_batch(trainer, len(prompts))
        number, attempt = self._last = self._number(batch)
        call = OpenCall(
            run=self.run,
            launch=self._record.launch,
            eval_name=self._wanted.eval_name,
            **where,
            batch=number,
            attempt=attempt,
            model=self._model,
            prompts=[snapshot(prompt) for prompt in prompts],
            tasks=[None] * len(prompts),
            source=self._tokenizer,
            collector=Collector(trainer.model),
            options=self._wanted.rows,
        )
        call.collector.tree.rows = len(prompts)
        if batch is not None:
            call.tasks = self._tasks(batch.rows, call)
            call.columns = [snapshot({k: v for k, v in row.items() if k != "prompt"}) for row in batch.rows]
        self._running = self._awaiting = call
        self._returned = self._scores = None
        self._handed = []
        _recordings.add(self)  # again, if training had ended
        self._training = self._training or where["mode"] == Mode.TRAIN
        running = RunningJob(call)
        self._writer.put(running)
        self._writer.follow(running)
        return call

    def prompted(self, call: OpenCall, prompts: Sequence[Any], trainer: Any) -> None:
        """Store the prompts after the environments' resets. A row without a prompt of its own is named a task anew."""
        was_empty = [orjson.loads(prompt) == trl.NO_PROMPT for prompt in call.prompts]
        call.prompt_keys = list(map(cache(asked_key), call.prompts))
        call.prompts = [snapshot(prompt) for prompt in prompts]
        batch = trl.current_batch(trainer, len(prompts))
        if any(was_empty) and batch is not None:
            tasks = zip(was_empty, self._tasks(batch.rows, call), call.tasks, strict=True)
            call.tasks = [new if empty else old for empty, new, old in tasks]
        # TRL asks a vLLM server for prompts[::num_generations] only.
        is_served = getattr(trainer, "use_vllm", False) and getattr(trainer, "vllm_mode", None) == "server"
        if is_served and call.process == 0 and call.mode == Mode.TRAIN:
            # `firsts` are the indices of the first row of each row's group: only that row's prompt was sent to the
            # server.
            firsts = [i - (call.first + i) % call.generations for i in range(len(prompts))]
            others = sum(call.prompts[first] != call.prompts[i] for i, first in enumerate(firsts))
            if others:
                self._record.log(call.step, {FIRST_PROMPT: others / len(prompts)})

    def returned(self, call: OpenCall, output: Any) -> None:
        """End the rows of a call that returned; its output is copied."""
        call.collector.close()
        try:
            copy = checked_output(output, len(call.prompts))
        except OutputError as error:
            self._settle(call, FailedJob(call, str(error), None, Status.ERROR, now_us()))
        else:
            if self._wanted.task is None:
                call.tasks = returned_tasks(call.tasks, output, call.prompts)
            job = ReturnedJob(call, copy, now_us())
            if call is self._awaiting:  # its own calls are released once the job is encoded
                self._returned = ReturnedJob(call.carrying(call.calls.copy()), copy, job.returned)
            self._settle(call, job)
            self._put_scored()  # before trl 0.24 the tokens are seen last

    def failed(self, call: OpenCall, error: BaseException) -> None:
        """End the rows of a call that raised."""
        call.collector.close()
        self._settle(call, FailedJob.of(call, error))
        self._writer.flush_at_end()  # unless the error is caught the process ends next, with what is still in memory

    def handed(self, completions: Any, *, are_parsed: bool) -> None:
        """Take the completions that reward functions were handed, to be described with the rewards; None if not seen.
        `are_parsed` is False if the trainer only decodes answers.
        """
        self._handed = [trl_shapes.handed_columns(completion, is_parsed=are_parsed) for completion in completions]

    def scored(self, calls: Collector, completions: Any) -> None:
        """Write the last call's rows once more, with what reward functions called for them, unless that is nothing."""
        calls.close()
        self._scores = (snapshot(completions), calls.records, calls.functions) if calls.records.calls else None
        self._put_scored()
        self._returned = None

    def _put_scored(self) -> None:
        if self._returned is not None and self._scores is not None:
            completions, scoring, functions = self._scores
            self._writer.put(replace(self._returned, completions=completions, scoring=scoring, functions=functions))
            self._returned = self._scores = None

    def rewards(
        self, values: NDArray[np.float64], declined: NDArray[np.bool_], names: list[str], weights: list[float],
        inputs: list[Any],
    ) -> None:  # fmt: skip
        """Write the rewards of the last call's N rows, from F functions. If only the main process calls rollout
        functions, they are those of all ranks, and `inputs`, the N dataset rows, are the main process's.

        `values` (N, F) are NaN if a function returned None; `declined` (N, F) says where, as far as that was seen.
        """
        call = self._awaiting
        if call is None or len(values) != len(call.prompts):
            return
        # As TRL sums them: a function that gave no score counts nothing, and a row without any score has no reward.
        totals = np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values * weights, axis=1))
        names = distinct(names)
        scored = now_us()
        tasks = call.tasks
        # Where the batch's dataset rows were not seen when the rows were opened, the tasks are named here.
        if None in tasks and len(inputs) == len(tasks):
            tasks = self._tasks(inputs, call)
        columns = [
            {
                "rewards": {name: finite(value) for name, value in zip(names, row, strict=True)},
                "odd_rewards": _odd(names, row, none) or None,
                "reward_weights": dict(zip(names, weights, strict=True)),
                "reward": finite(total),
                "task": task or prompt_task(prompt),
                "scored": scored,
            }
            for row, none, total, task, prompt in zip(values, declined, totals, tasks, call.prompts, strict=True)
        ]
        for row_columns, handed in zip(columns, self._handed, strict=False):
            row_columns.update(handed)
        self._writer.put(ColumnsJob(call, columns))

    def advantages(self, values: NDArray[np.float64]) -> None:
        """Write the (N,) advantages of the last call's rows."""
        call, self._awaiting = self._awaiting, None
        if call is not None and len(values) == len(call.prompts):
            self._writer.put(ColumnsJob(call, [{"advantage": finite(value)} for value in values]))

    def logged(self, step: int, values: dict[str, Any]) -> None:
        """Write what the trainer logs at a step, on the main process only."""
        self._record.log(step, values)

    def train_ended(self) -> None:
        self._record.end(RunState.FINISHED)
        self._release_if_done()
        self._writer.flush_at_end()

    def train_raised(self, error: BaseException) -> None:
        self._record.raised(error)
        self._awaiting = None
        self._release_if_done()
        self._writer.flush_at_end()

    def _release_if_done(self) -> None:
        """Release this recording if nothing is left to write when the process exits."""
        if self._record.ended and self._running is None:
            _recordings.discard(self)

    def process_ends(self) -> None:
        """Write, when the process exits, that a training without an end failed, and that its open rows were aborted."""
        if self._running is not None:
            self._running.collector.close()
            error = "The process ended in the middle of the rollout"
            self._settle(self._running, FailedJob(self._running, error, None, Status.ABORTED, now_us()))
        if self._record.ended:
            return
        if self._training:
            self._record.end(RunState.FAILED, error="The process ended in the middle of the training")
        else:
            self._record.end(RunState.FINISHED)

    def _describe(self, trainer: Any) -> None:
        """Write the run's row. Only the first process does."""
        columns = trl.run_columns(trainer)
        self._model = columns["model"]
        self._tokenizer = TokenizerSource.of(trainer.processing_class)
        if trainer.accelerator.process_index != 0:
            return
        columns |= {"config": masked(plain_settings(trainer.args.to_dict())), "diagnosis": self._wanted.settings}
        columns["project"] = self._wanted.project
        resumes = trl.output_folder(trainer.args) if trainer.state.global_step > 0 else None
        parts: list[Part] = []
        with guard("collecting the sources of the run"):
            parts = trl_parts.parts(trainer)
        self._record.begin(columns, self._tokenizer, parts=parts, resumes=resumes, announce=self._wanted.announce)

    def _number(self, batch: trl.Batch | None) -> tuple[int, int]:
        """Return the batch's number and the attempt at it; a count of the calls if the trainer shows no batches."""
        if self._last is None:
            return (batch.number if batch else 0), 0
        number, attempt = self._last
        if batch is None:
            return number + 1, 0
        return batch.number, attempt + 1 if batch.number == number else 0

    def _tasks(self, rows: Sequence[dict[str, Any]], call: OpenCall) -> list[str | None]:
        pairs = zip(rows, call.prompts, strict=True)
        return [name_task(self._wanted.task, row, prompt) for row, prompt in pairs]

    def _settle(self, call: OpenCall, job: ReturnedJob | FailedJob) -> None:
        call.settled = True
        self._running = None
        self._writer.put(job)
        self._release_if_done()


class Recordings:
    """Holds the recordings of one function or factory: one for each trainer that calls it and each training."""

    def __init__(self, wanted: CheckedOptions) -> None:
        self._writer, self._wanted = writer_for(wanted.address), wanted
        self._by_trainer: weakref.WeakKeyDictionary[Any, Recording | None] = weakref.WeakKeyDictionary()

    def of(self, trainer: Any) -> Recording:
        """Return the trainer's recording; a new one if it trains again. Raise LogsUIError if rank 0 does not record
        the training, so that this rank cannot.
        """
        with one_opens():
            recording = self._by_trainer.get(trainer)
            if recording is None and trainer in self._by_trainer:
                raise LogsUIError(trl.NOT_ON_RANK_0)
            if recording is None or recording.is_over(trainer):
                self._by_trainer[trainer] = None  # it is not tried again: a rank waits for a minute
                recording = self._by_trainer[trainer] = Recording(trainer, self._writer, self._wanted)
            return recording


def _odd(names: list[str], values: NDArray[np.float64], declined: NDArray[np.bool_]) -> dict[str, str]:
    """Return the NaN and infinite rewards of a row by function; not those of a function that returned None."""
    odd = ~np.isfinite(values) & ~declined
    return {name: str(value) for name, value, is_odd in zip(names, values, odd, strict=True) if is_odd}


def one_opens() -> AbstractContextManager[object]:
    """Return the lock by which concurrent first calls share one run, and each call gets a number of its own."""
    return _opening


_recordings: set[Recording] = set()  # those that have something left to write when the process exits
_opening = threading.RLock()


def _process_ends() -> None:
    for recording in tuple(_recordings):
        with guard("ending the run"):
            recording.process_ends()


def _forked() -> None:
    """Clear the parent's recordings in a forked child, and renew the lock: the thread that held it is not here."""
    global _opening  # noqa: PLW0603 - as `Guard.renew_lock`
    _recordings.clear()
    _opening = threading.RLock()


on_fork(after_in_child=_forked)
atexit.register(_process_ends)  # runs before the writer's, which was registered earlier
