"""Records one rollout of a run that `start_run()` opened."""

import pickle
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from logs_ui.recorder.api.argument_values import converted, numbers_of
from logs_ui.recorder.api.rollout_handover import (
    pack_ended,
    pack_open,
    reach_writer,
    unpack,
    unreachable_writer,
)
from logs_ui.recorder.api.row_scope import CurrentRow
from logs_ui.recorder.api.run_record import finite
from logs_ui.recorder.capture.calls import EnvironmentCall, Generation, answered
from logs_ui.recorder.capture.model_answers import Sequence as Answer
from logs_ui.recorder.capture.observed_images import observed
from logs_ui.recorder.capture.rollout_output import Output, checked_output, copied_row, token_ids
from logs_ui.recorder.capture.strands import Scope, Strand, enter_scope, leave_scope, scoped
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.jobs import ColumnsJob, FailedJob, FinishedJob, RunningJob, reward_columns
from logs_ui.recorder.rows.rollout_call import OpenCall, RowOptions
from logs_ui.recorder.snapshot import one_line, snapshot
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import StopReason

_TICKET_SECONDS = 5.0  # pickling a rollout that was written to waits so long until that is durable


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
        frames = pack_open(call, self._output, self._metadata, self._end_columns) if is_passed_on else pack_ended(call)
        options = call.options if is_passed_on else None
        pickle.dumps(options)  # before the rollout is handed over: a lambda cannot be pickled
        if is_passed_on and self in self._unbegun:  # what it has is stored here, before the other process adds to it
            self._unbegun.discard(self)
            self.__exit__(None, None, None)
            self._writer.flush(_TICKET_SECONDS)
        # From here on the other process records the rollout, and this one may only score it.
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
            collector = self._call.collector
            answer_text, counted, limit = converted(str, text), converted(int, tokens), converted(int, max_tokens)
            if answer_text is not None:
                begun = collector.begin(self._strand, "generation", seam="turn")
                answer = Answer(None, None, converted(str, finish), text=answer_text, completion_tokens=counted)
                sampling = {} if limit is None else {"max_tokens": limit}
                collector.add(Generation(begun.order, begun.began, 0.0, [answer], sampling, "turn", self._strand))
            if any(value is not None for value in (action, observation, reward, done, error)):
                begun = collector.begin(self._strand, "step", self, snapshot(action))
                with answered(begun):
                    heard, images = (None, None) if observation is None else observed(observation)
                    collector.add(
                        EnvironmentCall(
                            begun.order, begun.began, converted(float, seconds) or 0.0, begun.client, "step",
                            begun.sent or b"null", heard, converted(float, reward), converted(bool, done), None,
                            converted(lambda value: one_line(str(value)), error), self._strand, None, images,
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
            columns: dict[str, Any] = {} if advantage is None else {"advantage": finite(converted(float, advantage))}
            total, scores = converted(float, reward), converted(numbers_of, rewards)
            if total is not None or scores is not None:
                numbers = converted(numbers_of, weights) or {}
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
                self._writer.put(FailedJob.of(self._call, error, self._metadata))
                # The exception decides how the rollout ended, so of the columns for its end only the staleness is
                # stored.
                columns = {name: value for name, value in self._end_columns.items() if name == "staleness"}
                if columns:
                    self._writer.put(ColumnsJob(self._call, [columns]))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.__exit__(kind, error, traceback)


def _received(address: Address, host: str, frames: list[bytes], options: RowOptions | None) -> OpenRollout:
    """Return the rollout that another process pickled; `options` is None if it may only be scored here."""
    writer = reach_writer(address, host)
    if writer is None:
        writer, options = unreachable_writer(address), None
    call, job = unpack(frames, options)
    row = OpenRollout(writer, call, job.metadata if options else b"{}", set())
    if options is not None:
        row._output, row._end_columns, row._was_received = job.output, job.ended, True  # noqa: SLF001
    return row


def _misused(how: str) -> None:
    """Log a misuse once, and count it on the run."""
    guard.caught(how, LogsUIError(how))
