"""The loop of AsyncGRPO's rollout worker, recorded: in the process that the worker spawned.

What is relied on (trl 1.16), and what is lost without it:
    loop.run()                                                     that the run ended
    loop._repeat_iterator() -> (group_id, dataset row), ...        dataset columns, tasks by name
    loop.environment_factories, ._environment_pool                 resets
    loop._generate_one(prompt, ..., group_id) -> (completion, ids, sequences, ...)     rows
    loop._generate_one_turn(prompt_ids) -> (token_ids, logprobs)   turns, and the policy's version at each
    loop._execute_tool_calls(tool_calls, tool_dict)                the tools' arguments and results
    loop._score_group(group) -> samples with .completion, .metrics, .advantage    rewards, advantages, the samples' fate
"""

import functools
import inspect
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logs_ui.recorder.calls import (
    EnvironmentCall,
    Generation,
    Sequence,
    answered,
    failed,
    generating,
    generating_strand,
)
from logs_ui.recorder.clean import snapshot
from logs_ui.recorder.consumption import TrainerChannel, TrainerListener, TrainerRaised
from logs_ui.recorder.diagnosis import Settings
from logs_ui.recorder.environment import Answer, environment_call
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import observed
from logs_ui.recorder.instruments import trl_async
from logs_ui.recorder.open_run import OpenRollout, start_run
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.strands import current_strand

_TASK_COLUMNS = ("task", "task_id")
_SEAM = "trl-async"
_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
_DESCRIBED = (*_SETTINGS, "model_name", "num_generations", "max_inflight_tasks", "max_tool_calling_iterations")


@dataclass(frozen=True)
class LoopOptions:
    """What the user asked for, and where the trainer is heard; pickled on its way to the worker's process."""

    name: str | None
    eval_name: str
    diagnosis: Settings | None
    project: str | None
    db: str
    trainer: TrainerChannel


@dataclass(frozen=True)
class _Reset:
    """Of an environment, before the rollout that is played in it.

    Attributes:
        began, seconds: of `time.perf_counter`.
        sent: JSON of the dataset row.
    """

    environment: Any
    began: float
    seconds: float
    sent: bytes
    observation: Any


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


def make_loop(loop_class: type, options: LoopOptions, **kwargs: Any) -> Any:
    """The worker's loop, recorded. Called in the worker's process, in place of the class."""
    recorded = type(loop_class.__name__, (_Recorded, loop_class), {"__module__": loop_class.__module__})
    loop = recorded(**kwargs)
    loop.record(options, kwargs)
    return loop


class _Recorded:
    """Stands before the worker's own loop: passes everything on, and records it."""

    _run: Any = None
    _trainer: Any = None
    _reset: _Reset | None = None

    def record(self, options: LoopOptions, settings: Mapping[str, Any]) -> None:
        """Begins the run."""
        self._columns: dict[int, dict[str, Any]] = {}  # dataset rows of the groups that are not scored yet
        self._begun: dict[int, int] = {}  # the policy's version then, by group
        self._members: Counter[int] = Counter()
        self._finished: dict[int, tuple[Any, OpenRollout]] = {}  # by id of the completion, which is kept alive
        with guard("beginning the run of a rollout worker"):
            config = {key: settings.get(key) for key in _DESCRIBED}
            self._run = start_run(
                options.name,
                eval_name=options.eval_name,
                diagnosis=options.diagnosis,
                project=options.project,
                model=settings.get("model_name"),
                config=config,
                tokenizer=settings.get("processing_class"),
                db=options.db,
            )
            columns = {"config": config} | ({} if options.name is None else {"name": options.name})
            self._trainer = TrainerListener(options.trainer, self._run, database_address(options.db), columns)
        with guard("preparing to see environments being reset"):
            self._watch_environments()

    def run(self) -> None:
        """As the loop's own; then the run has ended."""
        if self._trainer is None:
            super().run()  # type: ignore[misc]
            return
        with suppress(TrainerRaised), self._run, self._trainer:
            super().run()  # type: ignore[misc]

    def _watch_environments(self) -> None:
        factories = getattr(self, "environment_factories", None)
        if factories:
            self.environment_factories = {name: functools.partial(self._made, make) for name, make in factories.items()}
            for environment in itertools.chain(*self._environment_pool.values()):  # type: ignore[attr-defined]
                self._watch(environment)

    def _made(self, factory: Callable[[], Any]) -> Any:
        environment = factory()
        self._watch(environment)
        return environment

    def _watch(self, environment: Any) -> None:
        """The loop resets an environment just before it begins the rollout, and one at a time."""
        reset = environment.reset

        @functools.wraps(reset)
        def watched(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            observation = reset(*args, **kwargs)
            if current_strand() is None:  # else the environment, or a tool, does it within a rollout
                with guard("recording that an environment was reset"):
                    seconds = time.perf_counter() - began
                    self._reset = _Reset(environment, began, seconds, snapshot(kwargs), observation)
            return observation

        with suppress(AttributeError):  # of one with slots
            environment.reset = watched

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for group, row in super()._repeat_iterator():  # type: ignore[misc]
            self._columns[group] = row
            yield group, row

    def _generate_one(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        """Called before another environment is reset, unlike what it returns."""
        reset, self._reset = self._reset, None
        return self._generate_recorded(reset, prompt, *args, **kwargs)

    async def _generate_recorded(self, reset: _Reset | None, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        rollout = None
        with guard("opening a row of a rollout worker"):
            rollout = self._opened(prompt, kwargs.get("group_id", args[2] if len(args) > 2 else 0))
        if rollout is None:
            return await super()._generate_one(prompt, *args, **kwargs)  # type: ignore[misc]
        async with rollout.row:
            _rollout.set(rollout)  # in this task's own context
            if reset is not None:
                with guard("recording how an environment was reset"):
                    _add_reset(reset)
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
        begun = log.begin(strand, "generation", seam=_SEAM)
        try:
            with generating():
                answer = await super()._generate_one_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            with guard("recording that a generation failed"):
                log.add(failed(begun, error))
            raise
        with guard("recording a turn of a rollout worker"), answered(begun):
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
                own = [sample for sample in samples if sample.completion is completion]
                if row is not None and own:
                    self._scored(row, own)
            for state in (self._columns, self._begun, self._members):
                state.pop(group.group_id, None)
        return samples

    def _scored(self, row: OpenRollout, samples: list[Any]) -> None:
        names = self.reward_func_names  # type: ignore[attr-defined]
        sample = samples[0]
        rewards = {name: sample.metrics[f"rewards/{name}"] for name in names}
        row.score(sample.metrics["reward"], rewards=rewards, advantage=sample.advantage)
        identity = row._call.change(0, {})  # noqa: SLF001
        for sample in samples:
            trl_async.mark(sample, identity)


def _add_reset(reset: _Reset) -> None:
    """To the row that is open here."""
    strand = current_strand()
    if strand is None:
        return
    log = strand.tree.log
    begun = log.begin(strand, "reset", reset.environment, reset.sent)
    with answered(begun):
        said, images = (None, None) if reset.observation is None else observed(reset.observation)
        log.add(
            EnvironmentCall(
                begun.order, reset.began, reset.seconds, begun.client, "reset", reset.sent,
                said, None, None, None, None, strand, None, images,
            )
        )  # fmt: skip


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
