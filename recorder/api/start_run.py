"""`start_run()` opens a run by hand, for loops that nothing else wraps: verl, a notebook, an offline evaluation."""

import itertools
import os
import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, TypeVar, Unpack

from logs_ui.recorder.api.options import CheckedOptions, RecordOptions, checked_options, takes_record_options
from logs_ui.recorder.api.row_scope import CurrentRow
from logs_ui.recorder.api.run_description import join_run, name_run
from logs_ui.recorder.api.run_record import RunRecord, finite
from logs_ui.recorder.capture import instruments
from logs_ui.recorder.capture.calls import CallRecords, EnvironmentCall, Generation, answered
from logs_ui.recorder.capture.model_answers import Sequence as Answer
from logs_ui.recorder.capture.observed_images import observed
from logs_ui.recorder.capture.rollout_output import Output, checked_output, copied_row, token_ids
from logs_ui.recorder.capture.strands import Scope, Strand, enter_scope, leave_scope, scoped
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.errors import DatabaseError, LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.jobs import ColumnsJob, FailedJob, FinishedJob, RunningJob, reward_columns
from logs_ui.recorder.rows.rollout_call import OpenCall, Parse, RolloutCall, RowOptions, TokenizerSource
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.snapshot import column, one_line, plain_settings, snapshot
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.vocabulary import Mode, RunState, StopReason

T = TypeVar("T")
_INT8 = 2**63
_ROLLOUT_BITS = 32  # a forked process numbers its rollouts from its pid times 2**32: none has its parent's number
_TICKET_SECONDS = 5.0  # pickling a rollout that was written to waits so long until that is durable


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
            _check_reachable(options.address, joins[1])
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
        name = "" if self._name is None else f" {self._name!r}"
        within = "" if self._project is None else f" in project {self._project!r}"
        return f"<OpenRun {self.id}{name}{within}, {self._record.state}>"

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
        step, generation = _whole("step", step), _whole("generation", generation)
        if os.getpid() != self._process:  # this is a fork of the run's process
            self._process = os.getpid()
            self._numbers = itertools.count(self._process << _ROLLOUT_BITS)
        number, written = next(self._numbers), snapshot(prompt)
        call = OpenCall(
            run=self.id,
            launch=self._record.launch,
            eval_name=_name_of(eval_name) or self._eval_name,
            mode=Mode(mode),
            step=step,
            policy_step=step if policy_step is None else _whole("policy_step", policy_step),
            batch=number,
            model=self._model,
            prompts=[written],
            tasks=[prompt_task(written) if (name := _name_of(task)) is None else name],
            source=self._tokenizer,
            options=self._options,
            group=None if (name := _name_of(group)) is None else f"{self.id}/{mode}/{name}",
            generation=generation,
        )
        row = OpenRollout(self._writer, call, snapshot(_converted(dict, metadata) or {}), self._unbegun)
        if staleness is not None:
            row._end_columns["staleness"] = _whole("staleness", staleness)  # noqa: SLF001
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


class OpenRollout(CurrentRow):
    """Records one rollout of an `OpenRun`, from `run.rollout()`.

    It is stored at the end of its `with` block. An exception that leaves the block makes its status `error`. Besides
    its own methods it has those of `CurrentRow`. Nothing that goes wrong in recording is raised: it is logged once and
    counted on the run.

    It can be pickled, and another process goes on with it. If it was not entered yet, that process may do all that this
    one could, and this one may only `score()` it. A rollout whose `with` was entered ends there; other processes may
    `score()` it, before or after its end.

    Examples:
        >>> from logs_ui.recorder import load_run, start_run
        >>> with start_run("calculator", db="runs.db") as run:
        ...     with run.rollout([{"role": "user", "content": "What is 2 + 3?"}]) as row:
        ...         row.turn("I add.", action={"tool": "add", "args": [2, 3]}, observation="5", seconds=0.01)
        ...         row.turn("It is 5.", reward=1.0, done=True)
        ...         row.tag("checked")
        ...     row.score(rewards={"correct": 1.0, "brief": 0.5}, weights={"brief": 0.1})
        >>> rows = load_run(run.id, db="runs.db")
        >>> int(rows.turns[0]), float(rows.reward[0]), rows.stop_reason[0]
        (2, 1.05, 'done')
    """

    _strand: Strand

    def __init__(self, writer: Writer, call: OpenCall, metadata: bytes, unbegun: "set[OpenRollout]") -> None:
        """`unbegun` is the run's set of rollouts that were written to before they were entered."""
        tree = call.collector.tree
        super().__init__(tree.child(tree.root, row=0))
        tree.is_one_row = True
        self._writer, self._call, self._metadata, self._unbegun = writer, call, metadata, unbegun
        self._scope: Scope | None = None
        self._vain_entries = 0  # `with` blocks that were entered in vain, and are not left yet
        self._output: Output | None = None
        self._end_columns: dict[str, Any] = {}
        self._was_received = False  # from another process, where it was not entered

    def __reduce__(self) -> tuple[Any, ...]:
        call, is_passed_on = self._call, self._scope is None and not self._call.settled
        if call.options.edit is not None and not is_passed_on:  # `edit` decides at the end whether the row is stored
            if not call.settled:
                raise pickle.PicklingError("A rollout of a run with edit= can be pickled only after its `with`")
            self._writer.flush(_TICKET_SECONDS)
        sent = call.carrying(call.so_far() if is_passed_on else CallRecords(), texts=is_passed_on)
        sent.options, sent.source = RowOptions(), call.source if is_passed_on else None
        job = FinishedJob(sent, self._output, self._metadata, self._end_columns, 0)
        frames, _ = Wire().frames(job if is_passed_on else ColumnsJob(sent, []))
        options = call.options if is_passed_on else None
        pickle.dumps(options)  # before the rollout is handed over: a lambda cannot be pickled
        if is_passed_on and self in self._unbegun:  # what it has is stored here, before the other process adds to it
            self._unbegun.discard(self)
            self.__exit__(None, None, None)
            self._writer.flush(_TICKET_SECONDS)
        call.settled = call.settled or is_passed_on
        return _received, (self._writer.address, socket.gethostname(), frames, options)

    def __deepcopy__(self, _: Any = None) -> Self:
        """Return the rollout itself: pickling, by which objects are copied else, would pass it on."""
        return self

    __copy__ = __deepcopy__

    def scope(self) -> AbstractContextManager[None]:
        """Return a context manager in which calls belong to this rollout, also in tasks and executors started there.

        It is needed if several rollouts are open at once in one task or thread. Calls outside of a scope are
        unattributed then: they are counted on the run.
        """
        self._is_open_for("scope")
        return scoped(self._strand, self._call.run)

    def turn(
        self,
        text: str | None = None,
        *,
        finish: str | None = None,
        action: Any = None,
        observation: Any = None,
        reward: float | None = None,
        done: bool | None = None,
        seconds: float | None = None,
        error: str | None = None,
        tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Record a turn that no instrument sees: the model's answer, the action, and what the environment returned.

        Args:
            text: The model's answer. None if an instrument recorded it, such as that of an openai client.
            finish: Why the answer ended, as the server says: "stop", or "length" if it hit the token limit. None if
                that is not known.
            action: What was sent to the environment. None if nothing was, or if it is not known.
            observation: What the environment returned. None if it returned nothing.
            reward: The environment's reward for this action; None if it gave none.
            done: True if the environment says that the episode is over; None if it does not say.
            seconds: Time that the environment took, in seconds; None, or 0, if it is not known.
            error: The environment's error in one line; None if it answered.
            tokens: Number of tokens of the answer; None if it is not known.
            max_tokens: Token limit of the model call; None if it is not known.
        """
        with guard("recording a turn"):
            if not self._is_open_for("turn"):
                return
            log = self._call.collector
            answer_text, counted, limit = _converted(str, text), _converted(int, tokens), _converted(int, max_tokens)
            if answer_text is not None:
                begun = log.begin(self._strand, "generation", seam="turn")
                answer = Answer(None, None, _converted(str, finish), text=answer_text, completion_tokens=counted)
                sampling = {} if limit is None else {"max_tokens": limit}
                log.add(Generation(begun.order, begun.began, 0.0, [answer], sampling, "turn", self._strand))
            if any(value is not None for value in (action, observation, reward, done, error)):
                begun = log.begin(self._strand, "step", self, snapshot(action))
                with answered(begun):
                    heard, images = (None, None) if observation is None else observed(observation)
                    log.add(
                        EnvironmentCall(
                            begun.order, begun.began, _converted(float, seconds) or 0.0, begun.client, "step",
                            begun.sent or b"null", heard, _converted(float, reward), _converted(bool, done), None,
                            _converted(lambda value: one_line(str(value)), error), self._strand, None, images,
                        )
                    )  # fmt: skip
            self._store_if_received()

    def tokens(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        *,
        logprobs: Sequence[float] | None = None,
        mask: Sequence[int] | None = None,
    ) -> None:
        """Record the rollout's tokens. A second call replaces the first.

        Args:
            prompt_ids: (P,) Token ids of the prompt.
            completion_ids: (C,) Token ids of the model and of the environment, in order.
            logprobs: (C,) Log-probabilities that the tokens were sampled with; None if they are not known.
            mask: (C,) 1 for tokens of the model, 0 for those of the environment. None: all are the model's.
        """
        with guard("recording a rollout's tokens"):
            if not self._is_open_for("tokens"):
                return
            # What is no token id raises here, where it costs the tokens; later it would cost the whole rollout.
            prompt, completion = (token_ids(copied_row(ids)) for ids in (prompt_ids, completion_ids))
            rows = {"prompt_ids": prompt, "completion_ids": completion, "logprobs": logprobs, "env_mask": mask}
            self._output = checked_output({key: None if row is None else [row] for key, row in rows.items()}, 1)
            self._store_if_received()

    def score(
        self,
        reward: float | Mapping[str, float | None] | None = None,
        *,
        rewards: Mapping[str, float | None] | None = None,
        weights: Mapping[str, float] | None = None,
        advantage: float | None = None,
    ) -> None:
        """Record rewards, at any time, also after the `with`. An argument that is None changes nothing; a
        value that is no number counts as None.

        Args:
            reward: The total reward. None takes the weighted sum of `rewards` that are neither None nor NaN; an
                infinite sum is no reward. A mapping is taken as `rewards`.
            rewards: Reward by reward function; None for a function that gave none.
            weights: Weight by reward function; 1 for a function that is missing.
            advantage: The advantage that the trainer uses.
        """
        with guard("recording a reward"):
            if isinstance(reward, Mapping):
                rewards, reward = {**reward, **(rewards or {})}, None
            columns: dict[str, Any] = {} if advantage is None else {"advantage": finite(_converted(float, advantage))}
            total, scores = _converted(float, reward), _converted(_numbers, rewards)
            if total is not None or scores is not None:
                numbers = _converted(_numbers, weights) or {}
                known_weights = {name: weight for name, weight in numbers.items() if weight is not None}
                columns |= {**reward_columns(total, scores, known_weights), "scored": now_us()}
            if not self._call.settled:
                self._is_open_for("score")
            self._writer.put(ColumnsJob(self._call, [columns]))

    def stop(self, reason: str) -> None:
        """Record why the rollout ended, if its calls do not show it.

        Args:
            reason: A value of `StopReason`, such as "length" or "turn_limit".

        Raises:
            ValueError: `reason` is not a `StopReason`.
        """
        stop_reason = StopReason(reason)
        if self._is_open_for("stop"):
            self._end_columns["stop_reason"] = stop_reason
            self._store_if_received()

    def _say(self, kind: str, values: Any) -> None:
        if self._is_open_for("failed" if kind == "error" else kind):
            super()._say(kind, values)
            self._store_if_received()

    def _store_if_received(self) -> None:
        """Store the rollout as it is now: no run of this process stores it at its end."""
        if self._was_received and self._scope is None:
            call = self._call.carrying(self._call.so_far())  # a copy, whose calls are released when it is written
            self._writer.put(FinishedJob(call, self._output, self._metadata, self._end_columns, now_us()))

    def _is_open_for(self, method: str) -> bool:
        """Return True if the rollout has not ended. One that was not entered yet is stored with its run."""
        if self._call.settled:
            _misused(
                f"row.{method}() was called after the rollout had ended or had been pickled, and is ignored: only "
                "row.score() works then"
            )
        elif self._scope is None:
            self._unbegun.add(self)
        return not self._call.settled

    def __enter__(self) -> Self:
        if self._call.settled or self._scope is not None:
            _misused(
                "`with row` was entered a second time, or after the rollout was pickled, and is ignored. Open another "
                "run.rollout(), or use row.scope()"
            )
            self._vain_entries += 1
            return self
        self._unbegun.discard(self)
        self._scope = enter_scope(self._strand, self._call.run)
        running = RunningJob(self._call)
        self._writer.put(running)
        self._writer.follow(running)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._vain_entries:
            self._vain_entries -= 1
            return
        if self._scope is not None:
            leave_scope(self._scope)
        with guard("recording a rollout's end"):
            self._call.collector.tree.closed = True
            self._call.collector.close()
            self._call.settled = True
            if error is None:
                self._writer.put(FinishedJob(self._call, self._output, self._metadata, self._end_columns, now_us()))
            else:
                self._writer.put(FailedJob.of(self._call, error))
                columns = {name: value for name, value in self._end_columns.items() if name == "staleness"}
                if columns:
                    self._writer.put(ColumnsJob(self._call, [columns]))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.__exit__(kind, error, traceback)


def _received(address: Address, host: str, frames: list[bytes], options: RowOptions | None) -> OpenRollout:
    """Return the rollout that another process pickled; `options` is None if it may only be scored here."""
    wire = Wire()
    job: Any = [wire.job(frame) for frame in frames][-1]
    writer: Any = SimpleNamespace(put=lambda _: None, flush=lambda _: False, address=address)
    with guard("taking over a rollout"):
        try:
            _check_reachable(address, host)
            writer = writer_for(address)
            instruments.install()
        except DatabaseError as error:
            guard.caught("taking over a rollout", error)
            options = None
    call = OpenCall(**{name: getattr(job.call, name) for name in RolloutCall.__struct_fields__})
    call.settled, call.options = options is None, options or RowOptions()
    row = OpenRollout(writer, call, job.metadata if options else b"{}", set())
    if options is not None:
        call.collector.go_on_from(job.call.calls)
        row._output, row._end_columns, row._was_received = job.output, job.ended, True  # noqa: SLF001
    return row


def _check_reachable(database: Address, host: str) -> None:
    """Raise a DatabaseError if the database is a file on a disk of `host`, and this is another machine."""
    if isinstance(database, Path) and host != socket.gethostname() and network_kind(database) is None:
        raise DatabaseError(
            f"This rollout was started on {host}, in the SQLite file {database}, which {socket.gethostname()} cannot "
            "reach. Record into PostgreSQL: db= or LOGS_UI_DB"
        )


def _whole(name: str, value: Any) -> int:
    """Return a number, such as 3.0 or numpy's, as an int that the writer can store."""
    with suppress(TypeError, ValueError, OverflowError):
        if -_INT8 <= int(value) < _INT8 and int(value) == value:
            return int(value)
    raise ValueError(f"{name} must be a whole number of at most 64 bits, not {value!r}")


def _converted(convert: Callable[[Any], T], value: Any) -> T | None:
    """Convert a value; None for None, and for a value with which that raises, which is logged once."""
    if value is not None:
        with guard("reading what was given of a rollout"):
            return convert(value)
    return None


def _name_of(value: object) -> str | None:
    return _converted(lambda text: shortened(str(text)), value)


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: _converted(float, value) for name, value in values.items()}


def _misused(how: str) -> None:
    """Log a misuse once, and count it on the run."""
    guard.caught(how, LogsUIError(how))
