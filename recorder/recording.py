"""One trainer's run, as this process records it."""

import atexit
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.clean import column, plain, snapshot
from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments import trl
from logs_ui.recorder.models import Mode, RunState, Status
from logs_ui.recorder.output import OutputError, checked_output
from logs_ui.recorder.rows import ColumnsJob, FailedJob, OpenedJob, ReturnedJob, RolloutCall, prompt_task
from logs_ui.recorder.run import RunName, begin_run, git, machine, now_us, versions
from logs_ui.recorder.store import Change, RunChange, ScalarsChange, TokenizerChange
from logs_ui.recorder.writer import Writer

Task = str | Callable[[dict[str, Any]], object]
"""A dataset column, or a function of the dataset row."""

_TASK_COLUMNS = ("task", "task_id")
_PATIENCE = 10.0  # seconds that the end of a training waits for its last rows


@dataclass(frozen=True)
class ChangesJob:
    """Changes that are ready, or made by a function in the writer's thread."""

    make: Callable[[], Iterable[Change]]
    size: int = 1_000

    def changes(self) -> Iterable[Change]:
        return self.make()


class Recording:
    """Rows of one trainer's rollout calls, and what the trainer says of them afterwards."""

    def __init__(self, trainer: Any, writer: Writer, eval_name: str, task: Task | None) -> None:
        self._writer = writer
        self._eval_name = eval_name
        self._task = task
        self._calls: Counter[str] = Counter()
        self._awaiting: RolloutCall | None = None  # the call whose rewards come next
        self._running: RolloutCall | None = None
        self._training = self._ended = False
        # First of all, and on every rank: a rank that failed before it would leave the others waiting.
        self._run: RunName = trl.shared_from_first(trainer, self._begin(trainer))
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

    def open(self, prompts: Sequence[Any], trainer: Any) -> RolloutCall:
        """Rows for the prompts that a rollout function is called with."""
        where = trl.position(trainer, len(prompts))
        rows = trl.dataset_rows(trainer, len(prompts))
        number = self._calls[where.mode]
        self._calls[where.mode] += 1
        call = RolloutCall(
            run=self.run,
            eval_name=self._eval_name,
            mode=where.mode,
            step=where.step,
            policy_step=where.policy_step,
            epoch=where.epoch,
            call=number,
            process=where.process,
            first=where.first,
            generations=where.generations,
            model=self._model,
            prompts=[snapshot(prompt) for prompt in prompts],
            tasks=[None] * len(prompts),
            columns=None,
            tokenizer=self._tokenizer,
        )
        if rows is not None:
            with guard("naming the tasks"):
                call.tasks = [self._task_of(row, prompt) for row, prompt in zip(rows, call.prompts, strict=True)]
            call.columns = [snapshot({k: v for k, v in row.items() if k != "prompt"}) for row in rows]
        self._awaiting = self._running = call
        if where.mode == Mode.TRAIN:
            self._training_goes_on()
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
        self._training = False
        self._end(RunState.FAILED)
        self._writer.flush(_PATIENCE)

    def rewards(self, values: NDArray[np.float64], names: list[str], weights: list[float], inputs: list[Any]) -> None:
        """See `trl.Listener`."""
        call = self._awaiting
        if call is None or len(values) != len(call.prompts):
            return
        # As TRL sums them: what a function did not score does not count, and a row that none scored has no reward.
        totals = np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values * weights, axis=1))
        named_weights = dict(zip(names, weights, strict=True))
        scored = now_us()
        tasks = call.tasks
        if None in tasks:
            with guard("naming the tasks"):
                tasks = [self._task_of(row, prompt) for row, prompt in zip(inputs, call.prompts, strict=True)]
        columns = [
            {
                "rewards": {name: _number(value) for name, value in zip(names, row, strict=True)},
                "reward_weights": named_weights,
                "reward": _number(total),
                "task": task,
                "scored": scored,
            }
            for row, total, task in zip(values, totals, tasks, strict=True)
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
        self._training = False
        self._end(RunState.FINISHED)
        self._writer.flush(_PATIENCE)

    def process_ends(self) -> None:
        """At exit: a training that never said that it ended has failed, and what ran in it was aborted."""
        if self._running is not None:
            self._running.calls.close()
            self._settle(
                self._running,
                FailedJob(
                    self._running, "The process ended in the middle of the rollout", None, Status.ABORTED, now_us()
                ),
            )
        if self._training or not self._ended:
            self._end(RunState.FAILED if self._training else RunState.FINISHED)

    def _begin(self, trainer: Any) -> RunName | None:
        with guard("naming the run"):
            if trainer.accelerator.process_index != 0:
                return None
            resumed = trainer.args.output_dir if trainer.state.global_step > 0 else None
            return begin_run(self._writer.engine, resumed_output=resumed)
        return RunName("unnamed")

    def _describe(self, trainer: Any) -> None:
        """The run's row, once; what takes time is found out in the writer's thread."""
        columns = {**trl.run_columns(trainer), **machine(), "versions": versions()}
        config = plain(trainer.args.to_dict())
        folder = Path.cwd()
        self._model = columns["model"]
        source = trl.tokenizer_json(trainer)
        digest = None
        if source is not None:
            digest = hashlib.sha256(source.encode()).hexdigest()
            self._tokenizer = Tokenizer.from_str(source)

        def changes() -> Iterable[Change]:
            now = now_us()
            if source is not None and digest is not None:
                yield TokenizerChange(digest, source)
            known = {**columns, **git(folder), "tokenizer": digest, "config": config, "parent": self._run.parent}
            name = column(str(columns.get("name") or self.run))
            yield RunChange(self.run, {"name": name, "created": now, "heartbeat": now} | known | {"name": name})

        if trainer.accelerator.process_index == 0:
            self._writer.put(ChangesJob(changes, len(source or "")))

    def _task_of(self, row: dict[str, Any], prompt: bytes) -> str:
        """Of one dataset row.

        Raises:
            KeyError: the column that the user named is not there.
        """
        if callable(self._task):
            return column(str(self._task(row))) or ""
        names = _TASK_COLUMNS if self._task is None else (self._task,)
        for name in names:
            if row.get(name) is not None:
                return column(str(row[name])) or ""
        if self._task is not None and self._task not in row:
            raise KeyError(f"record(task={self._task!r}) names no column of the dataset; it has {sorted(row)}")
        return prompt_task(prompt)

    def _settle(self, call: RolloutCall, job: ReturnedJob | FailedJob) -> None:
        call.settled = True
        self._running = None
        self._writer.put(job)

    def _training_goes_on(self) -> None:
        """Also after it ended: `train()` may be called again, or an exception caught."""
        self._training = True
        if self._ended:
            self._ended = False
            self._put(RunChange(self.run, {"state": RunState.RUNNING, "finished": None}))

    def _end(self, state: RunState) -> None:
        self._ended = True
        now = now_us()
        self._put(RunChange(self.run, {"state": state, "finished": now, "heartbeat": now}))

    def _put(self, change: Change) -> None:
        self._writer.put(ChangesJob(lambda: [change]))


def _number(value: float) -> float | None:
    """JSON and SQL have no NaN: it becomes None."""
    number = float(value)
    return number if np.isfinite(number) else None


_recordings: list[Recording] = []


def _process_ends() -> None:
    for recording in _recordings:
        with guard("ending the run"):
            recording.process_ends()


atexit.register(_process_ends)  # runs before the writer's own, which was registered earlier
