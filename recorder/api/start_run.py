"""`start_run()` opens a run by hand, for loops that nothing else wraps: verl, a notebook, an offline evaluation."""

import itertools
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, Unpack

from logs_ui.recorder.api.argument_values import converted, name_of, whole
from logs_ui.recorder.api.open_rollout import OpenRollout
from logs_ui.recorder.api.options import CheckedOptions, RecordOptions, checked_options, takes_record_options
from logs_ui.recorder.api.rollout_handover import check_reachable
from logs_ui.recorder.api.run_description import join_run, name_run
from logs_ui.recorder.api.run_record import RunRecord
from logs_ui.recorder.capture import instruments
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.rollout_call import OpenCall, Parse, TokenizerSource
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.snapshot import column, plain_settings, snapshot
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.vocabulary import Mode, RunState

_ROLLOUT_BITS = 32  # a forked process numbers its rollouts from its pid times 2**32: none has its parent's number


@takes_record_options
def start_run(
    name: str | None = None,
    *,
    model: str | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    parse: Parse | None = None,
    **options: Unpack[RecordOptions],
) -> "OpenRun":
    """Begin a run whose rollouts are recorded one by one. Use it in a `with`, or call `finish()`.

    Args:
        name: Name of the run, for people. None shows the run's id.
        model: Name of the model, for rollouts whose calls do not show it.
        config: Settings to store with the run, as a dict that JSON can hold. Values that look like secrets are masked.
        tokenizer: A tokenizer of transformers or tokenizers. None stores token ids without their texts.
        parse: Your own parser; see `record()`.
        **options: The options in `RecordOptions`.

    Returns:
        The run. It takes rollouts until it is finished.

    Raises:
        DatabaseError: `db` or LOGS_UI_DB can never be recorded into; see `record()`.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `diagnosis` is not a `Settings`, or an option is unknown.

    Examples:
        >>> from logs_ui.recorder import load_run, start_run
        >>> with start_run("arithmetic", eval_name="sums", db="runs.db") as run:
        ...     with run.rollout("What is 2 + 3?", task="sums-1") as row:
        ...         row.turn("5", action={"answer": 5}, reward=1.0, done=True)
        ...         row.score(1.0)
        >>> load_run(run.id, db="runs.db")[["task", "status", "reward"]]
             task status  reward
        0  sums-1     ok     1.0
    """
    checked = checked_options(start_run, options, parse=parse)
    return OpenRun(checked, name, config or {}, model, tokenizer)


class OpenRun:
    """A run that takes rollouts, from any thread or task, until it is finished. `start_run()` makes it.

    As a context manager it is finished at the end of the block. An exception that leaves the block is stored as the
    run's error: its state is then "failed", or "interrupted" if the exception is not an `Exception` (Ctrl-C).

    It can be pickled: a process that gets it opens rollouts of the same run, with the same options. Only the process
    that started the run ends it; `finish()` elsewhere waits for that process's rows.

    Attributes:
        id: The run's id, for `load_run()` and `logs-ui export`.

    Examples:
        >>> from logs_ui.recorder import start_run
        >>> run = start_run("two steps", model="tiny", config={"learning_rate": 1e-5}, db="runs.db")
        >>> for step in (1, 2):
        ...     for i in range(2):
        ...         with run.rollout("Say yes.", step=step, mode="train", group=f"step {step}", generation=i) as row:
        ...             row.turn("yes")
        ...             row.score(rewards={"said yes": 1.0})
        ...     run.log(step, {"loss": 0.5 / step})
        >>> run.finish()
    """

    def __init__(
        self, options: CheckedOptions, name: str | None, config: Mapping[str, Any], model: str | None, tokenizer: Any,
        joins: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`joins` are the id of a run and the host of the process that pickled it; None starts a run."""
        if joins is not None:
            check_reachable(options.address, joins[1])
        self._writer = writer_for(options.address)
        instruments.install()
        self._joins, self._checked = joins is not None, replace(options, address=self._writer.address)  # absolute
        self._record = RunRecord(self._writer, name_run(options.address) if joins is None else join_run(joins[0]))
        self._eval_name, self._model, self._options = shortened(options.eval_name or "rollouts"), model, options.rows
        self._numbers, self._process = itertools.count(), os.getpid()
        self._unbegun: set[OpenRollout] = set()  # written to, but never entered
        self._tokenizer: TokenizerSource | None = tokenizer if self._joins else None
        self.id = self._record.uid
        self._name, self._project = name, options.project
        if self._joins:
            return
        with guard("describing the run"):
            columns: dict[str, Any] = {
                "config": masked(plain_settings(config)),
                "model": column(model),
                "diagnosis": options.settings,
                "project": options.project,
            }
            self._tokenizer = TokenizerSource.of(tokenizer)
            self._record.begin(columns | ({} if name is None else {"name": name}), self._tokenizer)

    def __repr__(self) -> str:
        named = "" if self._name is None else f" {self._name!r}"
        within = "" if self._project is None else f" in project {self._project!r}"
        return f"<OpenRun {self.id}{named}{within}, {self._record.state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        joins = (self.id, socket.gethostname())
        return OpenRun, (self._checked, self._name, {}, self._model, self._tokenizer, joins)

    def rollout(
        self,
        prompt: Any,
        *,
        eval_name: str | None = None,
        task: object = None,
        step: int = 0,
        mode: str = "eval",
        group: str | None = None,
        generation: int = 0,
        policy_step: int | None = None,
        staleness: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> "OpenRollout":
        """Open one rollout. Play it inside `with` or `async with`.

        Generations and environment calls that are made in the block belong to it, also in tasks and executors that are
        started there. If several rollouts are open at once in one task or thread, `row.scope()` says which of them a
        call belongs to. A rollout whose content is only written by `turn()` and the other methods needs no `with`: it
        is stored when the run is finished.

        Args:
            prompt: A list of messages, or a text.
            eval_name: Name of the evaluation. None takes the run's.
            task: Name of the task, or any value whose `str()` names it. None, or a value whose `str()` fails, takes a
                hash of the prompt.
            step: Step of the optimizer, a whole number; 0 outside of a training.
            mode: "train" or "eval".
            group: Name of the group of rollouts that this one is compared with, unique within the run. None makes it a
                group of its own.
            generation: Number of the rollout within its group, from 0.
            policy_step: Version of the policy that plays it, a whole number; None takes `step`.
            staleness: Number of versions by which the policy that trains on it is ahead; None if that is not known.
            metadata: Values to store with the rollout. They are copied now; values that look like secrets are masked.

        Raises:
            ValueError: `mode` is neither "train" nor "eval", or a number is no whole one.
        """
        if mode not in list(Mode):
            raise ValueError(f'mode must be "train" or "eval", not {mode!r}')
        step, generation = whole("step", step), whole("generation", generation)
        if os.getpid() != self._process:  # this is a fork of the run's process
            self._process = os.getpid()
            self._numbers = itertools.count(self._process << _ROLLOUT_BITS)
        number, written = next(self._numbers), snapshot(prompt)
        call = OpenCall(
            run=self.id,
            launch=self._record.launch,
            eval_name=name_of(eval_name) or self._eval_name,
            mode=Mode(mode),
            step=step,
            policy_step=step if policy_step is None else whole("policy_step", policy_step),
            batch=number,
            model=self._model,
            prompts=[written],
            tasks=[prompt_task(written) if (label := name_of(task)) is None else label],
            source=self._tokenizer,
            options=self._options,
            group=None if (label := name_of(group)) is None else f"{self.id}/{mode}/{label}",
            generation=generation,
        )
        row = OpenRollout(self._writer, call, snapshot(converted(dict, metadata) or {}), self._unbegun)
        if staleness is not None:
            row._end_columns["staleness"] = whole("staleness", staleness)  # noqa: SLF001
        return row

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Record scalars of a step, such as the loss.

        Args:
            step: Step of the optimizer.
            values: Numbers by name. Values that are not numbers are left out; NaN and infinities are stored as null.
        """
        with guard("recording scalars"):
            self._record.log(step, values)

    def finish(self) -> None:
        """End the run, and wait for its rows to be written: at most LOGS_UI_END_SECONDS, 10 s by default."""
        self._store_unbegun()
        if not self._record.ended and not self._joins:
            self._record.end(RunState.FINISHED)
        self._writer.flush_at_end()

    def _store_unbegun(self) -> None:
        """Store the rollouts that were written to, and never entered."""
        while self._unbegun:
            self._unbegun.pop().__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._store_unbegun()
        if error is not None and not self._joins:
            with guard("recording that the run was left by an exception"):
                self._record.raised(error)
        self.finish()
