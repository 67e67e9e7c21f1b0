"""One trainer's run, as this process records it."""

import atexit
import hashlib
import os
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.calls import CallLog
from logs_ui.recorder.clean import column, error_line, plain, snapshot, trace
from logs_ui.recorder.database import database_path
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments import trl
from logs_ui.recorder.models import Mode, RunState, Status
from logs_ui.recorder.output import OutputError, checked_output
from logs_ui.recorder.rows import ColumnsJob, FailedJob, OpenedJob, ReturnedJob, RolloutCall, prompt_task
from logs_ui.recorder.run import RunName, git, machine, name_run, now_us, versions
from logs_ui.recorder.store import Change, RunChange, ScalarsChange, TokenizerChange
from logs_ui.recorder.writer import Writer

Task = str | Callable[[dict[str, Any]], object]
"""A dataset column, or a function of the dataset row."""

_TASK_COLUMNS = ("task", "task_id")
_TASK_LENGTH = 120
_PATIENCE = 10.0  # seconds that the end of a training waits for its last rows


@dataclass(frozen=True)
class ChangesJob:
    """Changes that are ready, or made by a function in the writer's thread."""

    make: Callable[[], Iterable[Change]]
    size: int = 1_000

    def changes(self) -> Iterable[Change]:
        return self.make()


class Recording:
    """Rows of one trainer's rollout calls during one training, and what the trainer says of them afterwards."""

    def __init__(self, trainer: Any, writer: Writer, eval_name: str, task: Task | None, *, announce: bool) -> None:
        self._writer = writer
        self._eval_name = eval_name
        self._task = task
        self._announce = announce
        self._last_call: RolloutCall | None = None
        self._awaiting: RolloutCall | None = None  # the call whose rewards come next
        self._running: RolloutCall | None = None
        self._training = self._ended = False
        # First of all, and on every rank: a rank that failed before it would leave the others waiting.
        self._run: RunName = trl.shared_from_first(trainer, name_run(writer.path))
        self._model: str | None = None
        self._tokenizer: Tokenizer | None = None
        with guard("describing the run"):
            self._describe(trainer)
        with guard("attaching to the trainer"):
            trl.attach(trainer, self)
        _recordings.append(self)

    @property
    def run(self) -> str:
        """The run's uid."""
        return self._run.uid

    def is_over(self, trainer: Any) -> bool:
        """Whether the trainer trains anew after this training ended: that is another run. An evaluation is not."""
        return self._ended and trl.position(trainer, 0).mode == Mode.TRAIN

    def open(self, prompts: Sequence[Any], trainer: Any) -> RolloutCall:
        """Rows for the prompts that a rollout function is called with."""
        where = trl.position(trainer, len(prompts))
        batch = trl.current_batch(trainer, len(prompts))
        number, attempt = self._number(batch)
        call = RolloutCall(
            run=self.run,
            launch=self._run.launch,
            eval_name=self._eval_name,
            mode=where.mode,
            step=where.step,
            policy_step=where.policy_step,
            epoch=where.epoch,
            batch=number,
            attempt=attempt,
            process=where.process,
            first=where.first,
            generations=where.generations,
            model=self._model,
            prompts=[snapshot(prompt) for prompt in prompts],
            tasks=[None] * len(prompts),
            columns=None,
            tokenizer=self._tokenizer,
            calls=CallLog(model=trainer.model),
        )
        if batch is not None:
            call.tasks = self._tasks(batch.rows, call)
            call.columns = [snapshot({k: v for k, v in row.items() if k != "prompt"}) for row in batch.rows]
        self._last_call = self._awaiting = self._running = call
        self._training = self._training or where.mode == Mode.TRAIN
        self._writer.put(OpenedJob(call))
        return call

    def returned(self, call: RolloutCall, output: Any) -> None:
        """The rollout function returned; what it returned is copied."""
        call.calls.close()
        try:
            copy = checked_output(output, len(call.prompts))
        except OutputError as error:
            self._settle(call, FailedJob(call, str(error), None, Status.ERROR, now_us()))
        else:
            self._settle(call, ReturnedJob(call, copy, now_us()))

    def failed(self, call: RolloutCall, error: BaseException) -> None:
        """The rollout function raised: the training ends unless somebody catches it, so nothing is left in memory."""
        call.calls.close()
        self._settle(call, FailedJob.of(call, error))
        self._writer.flush(_PATIENCE)

    def rewards(
        self,
        values: NDArray[np.float64],
        declined: NDArray[np.bool_],
        names: list[str],
        weights: list[float],
        inputs: list[Any],
    ) -> None:
        """See `trl.Listener`."""
        call = self._awaiting
        if call is None or len(values) != len(call.prompts):
            return
        # As TRL sums them: what a function did not score does not count, and a row that none scored has no reward.
        totals = np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values * weights, axis=1))
        names = _distinct(names)
        scored = now_us()
        tasks = call.tasks if None not in call.tasks else self._tasks(inputs, call)
        columns = [
            {
                "rewards": {name: _number(value) for name, value in zip(names, row, strict=True)},
                "odd_rewards": _odd(names, row, none) or None,
                "reward_weights": dict(zip(names, weights, strict=True)),
                "reward": _number(total),
                "task": task,
                "scored": scored,
            }
            for row, none, total, task in zip(values, declined, totals, tasks, strict=True)
        ]
        self._writer.put(ColumnsJob(call, columns))

    def advantages(self, values: NDArray[np.float64]) -> None:
        """See `trl.Listener`."""
        call, self._awaiting = self._awaiting, None
        if call is not None and len(values) == len(call.prompts):
            self._writer.put(ColumnsJob(call, [{"advantage": _number(value)} for value in values]))

    def logged(self, step: int, values: dict[str, Any]) -> None:
        """See `trl.Listener`."""
        numbers = {
            name: _number(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._put(ScalarsChange(self.run, step, numbers))

    def train_ended(self) -> None:
        """See `trl.Listener`."""
        self._end(RunState.FINISHED)
        self._writer.flush(_PATIENCE)

    def train_raised(self, error: BaseException) -> None:
        """See `trl.Listener`."""
        state = RunState.FAILED if isinstance(error, Exception) else RunState.INTERRUPTED
        self._end(state, error=error_line(error), traceback=trace(error))
        self._writer.flush(_PATIENCE)

    def process_ends(self) -> None:
        """At exit: a training that never said that it ended has failed, and what ran in it was aborted."""
        if self._running is not None:
            self._running.calls.close()
            error = "The process ended in the middle of the rollout"
            self._settle(self._running, FailedJob(self._running, error, None, Status.ABORTED, now_us()))
        if self._ended:
            return
        if self._training:
            self._end(RunState.FAILED, error="The process ended in the middle of the training")
        else:
            self._end(RunState.FINISHED)

    def _describe(self, trainer: Any) -> None:
        """The run's row, once, by the first process."""
        columns = {**trl.run_columns(trainer), **machine(), "versions": versions()}
        self._model = columns["model"]
        source = trl.tokenizer_json(trainer)
        if source is not None:
            columns["tokenizer"] = hashlib.sha256(source.encode()).hexdigest()
            self._tokenizer = Tokenizer.from_str(source)
        if trainer.accelerator.process_index != 0:
            return
        now = now_us()
        columns |= {"config": plain(trainer.args.to_dict()), "created": now, "heartbeat": now}
        columns["name"] = column(str(columns.get("name", self.run)))
        resumes = trl.output_folder(trainer) if trainer.state.global_step > 0 else None
        self._put(RunChange(self.run, columns, resumes=resumes))
        if self._announce:
            sys.stderr.write(f"logs-ui: recording run {self.run}; browse it with: {self._serve_command()}\n")
        if source is not None:
            self._put(TokenizerChange(columns["tokenizer"], source), len(source))
        # git may take seconds on a large tree: neither the training nor the rows wait for it.
        threading.Thread(target=self._describe_code, args=(Path.cwd(),), name="logs-ui git", daemon=True).start()

    def _serve_command(self) -> str:
        path = self._writer.path
        return "logs-ui serve" + ("" if path == database_path().absolute() else f" --db {shlex.quote(str(path))}")

    def _describe_code(self, folder: Path) -> None:
        with guard("asking git for the commit"):
            self._put(RunChange(self.run, git(folder)))

    def _number(self, batch: trl.Batch | None) -> tuple[int, int]:
        """The batch's number and the attempt at it; our own count where the trainer shows no batches."""
        last = self._last_call
        if last is None:
            return (batch.number if batch else 0), 0
        if batch is None:
            return last.batch + 1, 0
        return batch.number, last.attempt + 1 if batch.number == last.batch else 0

    def _tasks(self, rows: Sequence[dict[str, Any]], call: RolloutCall) -> list[str | None]:
        return [self._task_or_prompt(row, prompt) for row, prompt in zip(rows, call.prompts, strict=True)]

    def _task_or_prompt(self, row: dict[str, Any], prompt: bytes) -> str:
        with guard("naming a task"):
            return _shortened(self._task_of(row, prompt))
        return prompt_task(prompt)

    def _task_of(self, row: dict[str, Any], prompt: bytes) -> str:
        """Of one dataset row.

        Raises:
            LogsUIError: the column that the user named is not there.
        """
        if callable(self._task):
            return str(self._task(row))
        names = _TASK_COLUMNS if self._task is None else (self._task,)
        for name in names:
            if row.get(name) is not None:
                return str(row[name])
        if self._task is not None and self._task not in row:
            raise LogsUIError(
                f"record(task={self._task!r}) names no column of the dataset, which has {', '.join(sorted(row))}. "
                "Name one of them, or give a function of the dataset row; until then tasks are told apart by prompt."
            )
        return prompt_task(prompt)

    def _settle(self, call: RolloutCall, job: ReturnedJob | FailedJob) -> None:
        call.settled = True
        self._running = None
        self._writer.put(job)

    def _end(self, state: RunState, **why: str | None) -> None:
        self._ended = True
        now = now_us()
        self._put(RunChange(self.run, {"state": state, "finished": now, "heartbeat": now, **why}))

    def _put(self, change: Change, size: int = 1_000) -> None:
        self._writer.put(ChangesJob(lambda: [change], size))


def _distinct(names: list[str]) -> list[str]:
    """Functions of one name are numbered from the second on."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct


def _odd(names: list[str], values: NDArray[np.float64], declined: NDArray[np.bool_]) -> dict[str, str]:
    """What reward functions gave one row that is no number to learn from; None is a function's right."""
    odd = ~np.isfinite(values) & ~declined
    return {name: str(value) for name, value, is_odd in zip(names, values, odd, strict=True) if is_odd}


def _shortened(task: str) -> str:
    """A task's name is in every row and two indexes: one that is a whole problem keeps its beginning and a hash."""
    if len(task) > _TASK_LENGTH:
        task = f"{task[:_TASK_LENGTH]}... {hashlib.sha256(task.encode(errors='replace')).hexdigest()[:8]}"
    return column(task) or ""


def _number(value: float) -> float | None:
    """JSON and SQL have no NaN: it becomes None."""
    number = float(value)
    return number if np.isfinite(number) else None


_recordings: list[Recording] = []


def _process_ends() -> None:
    for recording in _recordings:
        with guard("ending the run"):
            recording.process_ends()


os.register_at_fork(after_in_child=_recordings.clear)  # they are the parent's
atexit.register(_process_ends)  # runs before the writer's own, which was registered earlier
