"""`record_worker()`: rollouts that TRL's AsyncGRPO makes, in the process that makes them.

AsyncGRPOTrainer's worker spawns a process, where nothing that was patched in the trainer's is patched. So the worker is
told to run its loop as a subclass of that loop which records.

What is relied on (trl 1.16), and what is lost without it:
    AsyncRolloutWorker._loop_cls, ._loop_kwargs, ._process         everything; `record_worker` then raises
    loop.run()                                                     that the run ended
    loop._repeat_iterator() -> (group_id, dataset row), ...        dataset columns, tasks by name
    loop._generate_one(prompt, ..., group_id) -> (completion, ids, sequences, ...)     rows
    loop._generate_one_turn(prompt_ids) -> (token_ids, logprobs)   turns, and the policy's version at each
    loop._execute_tool_calls(tool_calls, tool_dict)                the tools' arguments and results
    loop._score_group(group) -> samples with .completion, .metrics, .advantage          rewards, advantages
"""

import functools
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from logs_ui.recorder.calls import Generation, Sequence, failed, generating, generating_strand
from logs_ui.recorder.database import database_path
from logs_ui.recorder.environment import Answer, environment_call
from logs_ui.recorder.guard import guard
from logs_ui.recorder.open_run import OpenRollout, start_run

W = TypeVar("W")

_TASK_COLUMNS = ("task", "task_id")
_SEAM = "trl-async"
_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
_DESCRIBED = (*_SETTINGS, "model_name", "num_generations", "max_inflight_tasks", "max_tool_calling_iterations")


def record_worker(
    worker: W, /, *, name: str | None = None, eval_name: str = "rollouts", db: str | os.PathLike[str] | None = None
) -> W:
    """Records every rollout that a worker of AsyncGRPO makes. Call it before the training begins.

    The rollouts are a run of their own, written by the worker's process. `step` and `policy_step` are the version of
    the policy that the group was begun with; which versions answered each turn, and how many the policy was ahead when
    the rollout ended, are in `metadata["notes"]["policy"]`. What the trainer then made of a rollout (its loss, whether
    it was dropped as stale) is not recorded.

    Args:
        worker: `trainer.rollout_worker`, or what is given to the trainer as such: an `AsyncRolloutWorker` or a subclass
            of it. None, as on all ranks but the first, is left alone.
        name: of the run, for people; None shows its id.
        eval_name: what the rollouts are an evaluation of.
        db: the database's path; None takes LOGS_UI_DB, else the one that `logs-ui serve` reads too.

    Returns:
        The worker.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        RuntimeError: its process was started already.
        TypeError: it is no worker of that kind.
    """
    if worker is None:
        return worker
    for part in ("_loop_cls", "_loop_kwargs", "_process"):
        if not hasattr(worker, part):
            raise TypeError(f"record_worker() takes an AsyncRolloutWorker of trl, not a {type(worker).__name__}")
    if worker._process is not None:  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        raise RuntimeError("The rollout worker runs already: call record_worker() before trainer.train()")
    options = _Options(name, eval_name, str(database_path(db)))
    loop = worker._loop_cls  # type: ignore[attr-defined]  # noqa: SLF001
    if not isinstance(loop, functools.partial):  # else it is recorded already
        worker._loop_cls = functools.partial(make_loop, loop, options)  # type: ignore[attr-defined]  # noqa: SLF001
    return worker


@dataclass(frozen=True)
class _Options:
    """What the user asked for; pickled on its way to the worker's process."""

    name: str | None
    eval_name: str
    db: str


@dataclass
class _Rollout:
    """One that is under way.

    Attributes:
        versions: (T) of the policy, before and after each turn's request.
        prompt_tokens: of the first turn; None before it.
    """

    row: OpenRollout
    versions: list[tuple[int, int]] = field(default_factory=list)
    prompt_tokens: int | None = None


_rollout: ContextVar[_Rollout | None] = ContextVar("logs_ui_worker_rollout", default=None)


def make_loop(loop_class: type, options: _Options, **kwargs: Any) -> Any:
    """The worker's loop, recorded. Called in the worker's process, in place of the class."""
    recorded = type(loop_class.__name__, (_Recorded, loop_class), {"__module__": loop_class.__module__})
    loop = recorded(**kwargs)
    loop.record(options, kwargs)
    return loop


class _Recorded:
    """Stands before the worker's own loop: passes everything on, and records it."""

    _run: Any = None

    def record(self, options: _Options, settings: Mapping[str, Any]) -> None:
        """Begins the run."""
        self._columns: dict[int, dict[str, Any]] = {}  # dataset rows of the groups that are not scored yet
        self._begun: dict[int, int] = {}  # the policy's version then, by group
        self._members: Counter[int] = Counter()
        self._finished: dict[int, tuple[Any, OpenRollout]] = {}  # by id of the completion, which is kept alive
        with guard("beginning the run of a rollout worker"):
            self._run = start_run(
                options.name,
                eval_name=options.eval_name,
                model=settings.get("model_name"),
                config={key: settings.get(key) for key in _DESCRIBED},
                tokenizer=settings.get("processing_class"),
                db=options.db,
            )

    def run(self) -> None:
        """As the loop's own; then the run has ended."""
        with nullcontext() if self._run is None else self._run:
            super().run()  # type: ignore[misc]

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for group, row in super()._repeat_iterator():  # type: ignore[misc]
            self._columns[group] = row
            yield group, row

    async def _generate_one(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        rollout = None
        with guard("opening a row of a rollout worker"):
            rollout = self._opened(prompt, kwargs.get("group_id", args[2] if len(args) > 2 else 0))
        if rollout is None:
            return await super()._generate_one(prompt, *args, **kwargs)  # type: ignore[misc]
        async with rollout.row:
            _rollout.set(rollout)  # in this task's own context
            output = await super()._generate_one(prompt, *args, **kwargs)  # type: ignore[misc]
            with guard("recording what a rollout worker made"):
                self._ended(rollout, output)
        return output

    def _opened(self, prompt: Any, group: int) -> _Rollout | None:
        if self._run is None:
            return None
        dataset = {key: value for key, value in self._columns.get(group, {}).items() if key != "prompt"}
        task = next((str(dataset[name]) for name in _TASK_COLUMNS if dataset.get(name) is not None), None)
        number = self._members[group]
        self._members[group] += 1
        row = self._run.rollout(
            prompt,
            task=task,
            step=self._begun.setdefault(group, self.model_version),  # type: ignore[attr-defined]
            mode="train",
            group=str(group),
            generation=number,
            metadata={"dataset": dataset},
        )
        return _Rollout(row)

    def _ended(self, rollout: _Rollout, output: Any) -> None:
        """Its tokens, as the trainer gets them where that is in one piece."""
        completion, _, sequences = output[:3]
        row, start = rollout.row, rollout.prompt_tokens
        if len(sequences) == 1 and start is not None:
            (sequence,) = sequences
            row.tokens(
                sequence.input_ids[:start],
                sequence.input_ids[start:],
                logprobs=sequence.old_log_probs[start:],
                mask=sequence.completion_mask[start:],
            )
        now = self.model_version  # type: ignore[attr-defined]
        first = rollout.versions[0][0] if rollout.versions else now
        row.note(
            policy={"version": first, "turns": rollout.versions, "staleness": now - first},
            training_rows=len(sequences),  # more than one where what was tokenised anew differs from what was sampled
        )
        self._finished[id(completion)] = completion, row

    async def _generate_one_turn(self, prompt_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        rollout, strand = _rollout.get(), generating_strand()
        if rollout is None or strand is None:
            return await super()._generate_one_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        before, log = self.model_version, strand.tree.log  # type: ignore[attr-defined]
        begun = log.begin(strand, "generation")
        try:
            with generating():
                answer = await super()._generate_one_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            with guard("recording that a generation failed"):
                log.add(failed(begun, _SEAM, error))
            raise
        with guard("recording a turn of a rollout worker"):
            rollout.versions.append((before, self.model_version))  # type: ignore[attr-defined]
            rollout.prompt_tokens = rollout.prompt_tokens or len(prompt_ids)
            seconds = time.perf_counter() - begun.began
            sequences = [self._sequence(prompt_ids, *answer)]
            log.add(Generation(begun.order, begun.began, seconds, sequences, self._sampling(), _SEAM, strand))
        return answer

    def _sequence(self, prompt_ids: list[int], token_ids: list[int], logprobs: list[float]) -> Sequence:
        ended = bool(token_ids) and token_ids[-1] in self.eos_token_ids  # type: ignore[attr-defined]
        cut = len(token_ids) == self.max_tokens  # type: ignore[attr-defined]
        finish = "stop" if ended else "length" if cut else None
        ids = np.array(prompt_ids, np.int32), np.array(token_ids, np.int32)
        return Sequence(*ids, finish, np.array(logprobs, np.float32))

    def _sampling(self) -> dict[str, Any]:
        return {name: value for name in _SETTINGS if (value := getattr(self, name, None)) is not None}

    async def _execute_tool_calls(self, tool_calls: Any, tool_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        recorded = {name: _recorded_tool(name, tool) for name, tool in tool_dict.items()}
        return await super()._execute_tool_calls(tool_calls, recorded, *args, **kwargs)  # type: ignore[misc]

    async def _score_group(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        samples = await super()._score_group(group, *args, **kwargs)  # type: ignore[misc]
        with guard("recording rewards of a rollout worker"):
            for completion in group.completions:
                _, row = self._finished.pop(id(completion), (None, None))
                sample = next((sample for sample in samples if sample.completion is completion), None)
                if row is not None and sample is not None:
                    self._scored(row, sample)
            for state in (self._columns, self._begun, self._members):
                state.pop(group.group_id, None)
        return samples

    def _scored(self, row: OpenRollout, sample: Any) -> None:
        names = self.reward_func_names  # type: ignore[attr-defined]
        rewards = {name: sample.metrics[f"rewards/{name}"] for name in names}
        row.score(sample.metrics["reward"], rewards=rewards, advantage=sample.advantage)


def _recorded_tool(name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
    def recording(arguments: dict[str, Any]) -> Any:
        return environment_call("tool", tool, lambda: {"name": name, "arguments": arguments}, Answer)

    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def call_async(**arguments: Any) -> Any:
            with recording(arguments) as came_back:
                return came_back(await tool(**arguments))

        return call_async

    @functools.wraps(tool)
    def call(**arguments: Any) -> Any:
        with recording(arguments) as came_back:
            return came_back(tool(**arguments))

    return call
