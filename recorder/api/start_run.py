"""An explicit run, for loops that no wrapper knows: verl, a notebook, an offline evaluation."""

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from logs_ui.recorder.api.options import settings_to_keep
from logs_ui.recorder.api.row_scope import CurrentRow
from logs_ui.recorder.api.run_description import name_run
from logs_ui.recorder.api.run_record import RunRecord, finite
from logs_ui.recorder.capture import instruments
from logs_ui.recorder.capture.calls import EnvironmentCall, Generation, answered
from logs_ui.recorder.capture.calls import Sequence as Answer
from logs_ui.recorder.capture.observed_images import observed
from logs_ui.recorder.capture.rollout_output import Output, checked_output
from logs_ui.recorder.capture.strands import Scope, Strand, enter_scope, leave_scope, scoped
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.rollout_call import Edit, Parse, RolloutCall, RowOptions, TokenizerSource
from logs_ui.recorder.rows.row_jobs import ColumnsJob, FailedJob, FinishedJob, RunningJob
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.snapshot import column, one_line, plain, snapshot
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.changes import TokenizerChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import Mode, RunState, StopReason

_ROLLOUTS = 32  # bits: a process that was forked from a run's counts its rollouts beyond that of the others


def start_run(
    name: str | None = None,
    *,
    eval_name: str = "rollouts",
    model: str | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    parse: Parse | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
) -> "OpenRun":
    """Begins a run whose rollouts are recorded one by one. Use it in a `with`, or call `finish()`.

    Args:
        name: of the run, for people; None shows its id.
        eval_name: what the rollouts are an evaluation of, where `rollout()` does not say.
        model: name of the model, where the calls do not show it.
        config: settings to keep with the run; secrets are masked.
        tokenizer: transformers' or tokenizers'; without one token ids are kept but not spelt.
        parse: see `record()`.
        edit: see `record()`.
        server_log: see `record()`.
        diagnosis: see `record()`.
        project: see `record()`.
        db: see `record()`.

    Raises:
        DatabaseError: see `record()`.
        SettingsError, TypeError: see `record()`.
    """
    described = {"config": config or {}, "model": model, "project": project, "diagnosis": settings_to_keep(diagnosis)}
    options = RowOptions(parse, edit, None if server_log is None else Path(server_log))
    return OpenRun(writer_for(database_address(db)), name, eval_name, described, tokenizer, options)


class OpenRun:
    """A run that takes rollouts, from any thread or task, until it is finished.

    Attributes:
        id: for `load_run()` and `logs-ui export`.
    """

    def __init__(
        self,
        writer: Writer,
        name: str | None,
        eval_name: str,
        described: Mapping[str, Any],
        tokenizer: Any,
        options: RowOptions,
    ) -> None:
        instruments.install()
        self._writer = writer
        self._record = RunRecord(writer, name_run(writer.address))
        self._eval_name, self._model, self._options = eval_name, described["model"], options
        self._numbers, self._process = itertools.count(), os.getpid()
        self._told: set[OpenRollout] = set()
        self._tokenizer: TokenizerSource | None = None
        self.id = self._record.uid
        self._name, self._project = name, described["project"]
        with guard("describing the run"):
            columns: dict[str, Any] = {
                "config": masked(plain(dict(described["config"]))),
                "model": column(self._model),
                "diagnosis": described["diagnosis"],
                "project": described["project"],
            }
            source = _tokenizer_json(tokenizer)
            if source is not None:
                self._tokenizer = TokenizerSource.of(source)
                columns["tokenizer"] = self._tokenizer.hash
                self._record.put(TokenizerChange(columns["tokenizer"], source), len(source))
            self._record.begin(columns | ({} if name is None else {"name": name}))

    def __repr__(self) -> str:
        named = "" if self._name is None else f" {self._name!r}"
        within = "" if self._project is None else f" in project {self._project!r}"
        return f"<OpenRun {self.id}{named}{within}, {self._record.state}>"

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
        metadata: Mapping[str, Any] | None = None,
    ) -> "OpenRollout":
        """One rollout, to be played inside `with` or `async with`: generations and environment calls made there are its
        own, in tasks and executors that are started there, too. Where several are open at once in one task or thread,
        `row.scope()` says whose a call is. One that is only told, by `turn()` and the like, needs no `with`: it is
        stored when the run is finished.

        Args:
            prompt: messages, or a text.
            eval_name: None takes the run's.
            task: its name, or anything whose text is; None takes a hash of the prompt.
            step: of the optimizer; 0 outside of a training.
            mode: "train" or "eval".
            group: name of what it is compared with, unique within the run; None is a group of its own.
            generation: its number in the group.
            metadata: kept as it is now, without secrets.

        Raises:
            ValueError: `mode` is neither.
        """
        if os.getpid() != self._process:  # a fork, whose rollouts are not its parent's
            self._process = os.getpid()
            self._numbers = itertools.count(self._process << _ROLLOUTS)
        number = next(self._numbers)
        call = RolloutCall(
            run=self.id,
            launch=self._record.launch,
            eval_name=shortened(str(eval_name or self._eval_name)),
            mode=Mode(mode),
            step=step,
            policy_step=step,
            epoch=None,
            batch=number,
            attempt=0,
            process=0,
            first=0,
            generations=1,
            model=self._model,
            prompts=[snapshot(prompt)],
            tasks=[None if task is None else shortened(str(task))],
            columns=None,
            source=self._tokenizer,
            options=self._options,
            group=None if group is None else f"{self.id}/{mode}/{shortened(str(group))}",
            generation=generation,
        )
        if task is None:
            call.tasks = [prompt_task(call.prompts[0])]
        return OpenRollout(self._writer, call, snapshot(dict(metadata or {})), self._told)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Scalars of one step: loss, learning rate, ..."""
        with guard("recording scalars"):
            self._record.log(step, values)

    def finish(self) -> None:
        """Tells that the run ended, and waits for its rows: ten seconds at most, or LOGS_UI_END_SECONDS."""
        self._end_told()
        if not self._record.ended:
            self._record.end(RunState.FINISHED)
        self._writer.flush_at_end()

    def _end_told(self) -> None:
        """Rollouts that were told, and never begun, are what was told of them."""
        while self._told:
            self._told.pop().__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_told()
        if error is not None:
            with guard("recording that the run was left by an exception"):
                self._record.raised(error)
        self.finish()


class OpenRollout(CurrentRow):
    """One rollout of an `OpenRun`. Nothing that goes wrong in recording it is raised."""

    _strand: Strand

    def __init__(self, writer: Writer, call: RolloutCall, metadata: bytes, told: "set[OpenRollout]") -> None:
        """`told` holds those that something was told of, and that were not begun."""
        tree = call.calls.tree
        super().__init__(tree.child(tree.root, row=0))
        tree.is_one_row = True
        self._writer, self._call, self._metadata, self._told = writer, call, metadata, told
        self._scope: Scope | None = None
        self._again = 0  # times that it was entered in vain, and not left
        self._output: Output | None = None
        self._ended: dict[str, Any] = {}

    def scope(self) -> AbstractContextManager[None]:
        """Says that calls made inside are this rollout's, in tasks and executors that are started there, too. Needed
        where several rollouts are open at once in one task or thread: what is called there outside of a scope is
        nobody's, and counted on the run.
        """
        self._takes("scope")
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
    ) -> None:
        """One turn that no instrument saw: the model's answer, what was sent to the environment, what came back.

        Args:
            text: None where the answer was seen by itself, as an openai client's.
            finish: why the answer ended, as the server says: `stop`, `length` where it hit the token limit, ...; None
                where that is not known.
            action: None where nothing was sent, or nobody knows what.
            observation: what came back; None where nothing did.
            reward: as the environment said; None where it did not.
            done: as the environment said; None where it did not.
            seconds: that the environment took.
            error: of the environment, in one line; None where it answered.
        """
        with guard("recording a turn"):
            if not self._takes("turn"):
                return
            log = self._call.calls
            if text is not None:
                begun = log.begin(self._strand, "generation", seam="turn")
                answer = Answer(None, None, finish, text=text)
                log.add(Generation(begun.order, begun.began, 0.0, [answer], {}, "turn", self._strand))
            if any(value is not None for value in (action, observation, reward, done, error)):
                begun = log.begin(self._strand, "step", self, snapshot(action))
                with answered(begun):
                    heard, images = (None, None) if observation is None else observed(observation)
                    log.add(
                        EnvironmentCall(
                            begun.order, begun.began, seconds or 0.0, begun.client, "step", begun.sent or b"null",
                            heard, None if reward is None else float(reward), done, None,
                            None if error is None else one_line(str(error)), self._strand, None, images,
                        )
                    )  # fmt: skip

    def tokens(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        *,
        logprobs: Sequence[float] | None = None,
        mask: Sequence[int] | None = None,
    ) -> None:
        """The row's tokens.

        Args:
            prompt_ids: (P,)
            completion_ids: (C,) the model's and the environment's, in order.
            logprobs: (C,) None where they are not known.
            mask: (C,) 1 = the model's; None = all of them.
        """
        with guard("recording a rollout's tokens"):
            if not self._takes("tokens"):
                return
            rows = {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": mask}
            self._output = checked_output({key: None if row is None else [row] for key, row in rows.items()}, 1)

    def score(
        self,
        reward: float | None = None,
        *,
        rewards: Mapping[str, float | None] | None = None,
        weights: Mapping[str, float] | None = None,
        advantage: float | None = None,
    ) -> None:
        """Its rewards, at any time, also after the `with`. What is None stays as it is.

        Args:
            reward: in all; None with `rewards` takes their weighted sum, where any is not None.
            rewards: by reward function.
            weights: of those; 1 where one is missing.
            advantage: as the trainer uses it.
        """
        with guard("recording a reward"):
            columns: dict[str, Any] = {} if advantage is None else {"advantage": finite(advantage)}
            if rewards is not None:
                values = {name: None if value is None else finite(value) for name, value in rewards.items()}
                weight = {name: float((weights or {}).get(name, 1.0)) for name in values}
                given = [value * weight[name] for name, value in values.items() if value is not None]
                columns |= {"rewards": values, "reward_weights": weight, "scored": now_us()}
                columns["reward"] = sum(given) if given else None
            if reward is not None:
                columns |= {"reward": finite(reward), "scored": now_us()}
            if not self._call.settled:
                self._takes("score")
            self._writer.put(ColumnsJob(self._call, [columns]))

    def stop(self, reason: str) -> None:
        """Why it ended, where its calls do not show it.

        Raises:
            ValueError: no `StopReason` has that name.
        """
        ended = StopReason(reason)
        if self._takes("stop"):
            self._ended["stop_reason"] = ended

    def _say(self, kind: str, values: Any) -> None:
        if self._takes("failed" if kind == "error" else kind):
            super()._say(kind, values)

    def _takes(self, what: str) -> bool:
        """Whether anything can still be told of it. One that was not begun is stored as it was told, with its run."""
        if self._call.settled:
            _misused(f"row.{what}() came after the rollout's end, and is lost: only row.score() may come later")
        elif self._scope is None:
            self._told.add(self)
        return not self._call.settled

    def __enter__(self) -> Self:
        if self._call.settled or self._scope is not None:
            _misused("a rollout was entered twice: what it holds stays. Take another run.rollout(), or row.scope()")
            self._again += 1
            return self
        self._told.discard(self)
        self._scope = enter_scope(self._strand, self._call.run)
        running = RunningJob(self._call)
        self._writer.put(running)
        self._writer.follow(running)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._again:
            self._again -= 1
            return
        if self._scope is not None:
            leave_scope(self._scope)
        with guard("recording a rollout's end"):
            self._call.calls.tree.closed = True
            self._call.calls.close()
            self._call.settled = True
            if error is None:
                self._writer.put(FinishedJob(self._call, self._output, self._metadata, self._ended, now_us()))
            else:
                self._writer.put(FailedJob.of(self._call, error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def _misused(how: str) -> None:
    """Says so once, and counts it on the run."""
    guard.caught(how, LogsUIError(how))


def _tokenizer_json(tokenizer: Any) -> str | None:
    if tokenizer is None:
        return None
    inner = getattr(tokenizer, "tokenizer", tokenizer)  # a processor's
    backend = getattr(inner, "backend_tokenizer", inner)
    return str(backend.to_str()) if hasattr(backend, "to_str") else None
