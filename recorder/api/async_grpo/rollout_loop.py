"""Records the loop of AsyncGRPO's rollout worker, in the process that the worker spawned.

What is relied on (trl 1.16), and what is lost without it:
    loop.run()                                                     that the run ended
    loop._repeat_iterator() -> (group_id, dataset row), ...        dataset columns, tasks, rows before their reset
    loop._generate_loop()                                          why a row that was being reset ended
    loop.environment_factories, ._environment_pool, ._env_reward_types     resets, `get_reward`
    loop._generate_one(prompt, ..., group_id) -> (completion, ids, sequences, ...)     rows
    loop._generate_one_turn(prompt_ids) -> (token_ids, logprobs)   turns, and the policy's version at each
    loop._execute_tool_calls(tool_calls, tool_dict)                the tools' arguments and results
    loop._factory, ._adapter of HarnessRolloutWorker's loop        sessions: instruments/openenv_harness.py
    loop._score_group(group) -> samples with .completion, .metrics, .advantage    rewards, advantages, the samples' fate
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from logs_ui.recorder.api.async_grpo.trainer_channel import TrainerChannel, TrainerListener, TrainerRaised
from logs_ui.recorder.api.environment_factory import record_environments
from logs_ui.recorder.api.open_rollout import OpenRollout
from logs_ui.recorder.api.options import RecordOptions, checked_options
from logs_ui.recorder.api.start_run import OpenRun, start_run
from logs_ui.recorder.capture.calls import Generation, answered, generating_strand, generation
from logs_ui.recorder.capture.environment_call import Answer, RecordedCall, recorded_function
from logs_ui.recorder.capture.instruments import openenv_harness, trl, trl_async, trl_shapes
from logs_ui.recorder.capture.instruments.trl_tools import players
from logs_ui.recorder.capture.model_answers import Sequence, finish_of
from logs_ui.recorder.capture.strands import Strand, current_strand, within
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Parse
from logs_ui.recorder.rows.task_names import Task, name_task
from logs_ui.recorder.snapshot import snapshot

_SEAM = "trl-async"
_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
_DESCRIBED = (*_SETTINGS, "model_name", "num_generations", "max_inflight_tasks", "max_tool_calling_iterations")


@dataclass(frozen=True)
class LoopOptions:
    """Holds the options of `record_worker()`, and the channel from the trainer; pickled to the worker's process."""

    name: str | None
    task: Task | None
    parse: Parse | None
    shared: RecordOptions
    trainer: TrainerChannel


@dataclass(eq=False)
class _Rollout:
    """A rollout that is under way, from its dataset row on."""

    open_rollout: OpenRollout
    group: int
    metadata: dict[str, Any] = field(default_factory=dict)  # metadata of its row
    # (T) Versions of the policy before and after the request of each turn.
    versions: list[tuple[int, int]] = field(default_factory=list)
    environment: Any = None  # the environment that it is played in; None before the reset, and without one
    is_generated: bool = False  # True once everything but its rewards is there
    is_over: bool = False  # True once its row has ended
    # The context that the row is entered and left in. No other code runs in it: the loop's tasks take turns in one
    # thread, and a row that is open in a shared context would claim the calls of other tasks.
    context: Context = field(default_factory=copy_context)

    @property
    def strand(self) -> Strand:
        return self.open_rollout._strand  # noqa: SLF001

    def end(self, error: BaseException | None = None) -> None:
        """End the row unless it has ended."""
        if self.is_over:
            return
        self.is_over = True
        rewards = [call.reward for call in self.open_rollout._call.calls.environment_calls if call.kind == "reward"]  # noqa: SLF001
        if rewards:
            self.metadata["env_reward"] = rewards[-1]
        self.open_rollout._metadata = snapshot(self.metadata)  # noqa: SLF001
        self.context.run(self.open_rollout.__exit__, None if error is None else type(error), error, None)


def make_loop(loop_class: type, options: LoopOptions, **kwargs: Any) -> Any:
    """Make the worker's loop, recorded. The worker's process calls this in place of the loop's class."""
    recorded = type(loop_class.__name__, (_Recorded, loop_class), {"__module__": loop_class.__module__})
    loop = recorded(**kwargs)
    loop.record(options, kwargs)
    return loop


class _Recorded:
    """Records the worker's loop as its subclass, by multiple inheritance: passes each call on, and records it."""

    _run: OpenRun | None = None
    _trainer: Any = None

    def record(self, options: LoopOptions, settings: Mapping[str, Any]) -> None:
        """Begin the run; `settings` are the keyword arguments of the loop."""
        self._options = options
        self._columns: dict[int, dict[str, Any]] = {}  # dataset rows of groups that are not scored yet
        self._begun: dict[int, int] = {}  # version of the policy at the beginning of each group
        self._members: Counter[int] = Counter()
        self._opening: list[_Rollout] = []  # rollouts whose environment is being made or reset
        self._under_way: set[_Rollout] = set()  # rollouts whose row has not ended
        # By id of the completion, which is kept alive so that the id stays its own.
        self._finished: dict[int, tuple[Any, _Rollout]] = {}
        with guard("beginning the run of a rollout worker"):
            config = {key: settings.get(key) for key in _DESCRIBED}
            # Without an adapter, a harness's agent acts by its own tools.
            offers_tools = bool(getattr(self, "tools", None)) or getattr(self, "_adapter", self) is None
            checked = checked_options(start_run, options.shared, parse=options.parse, offers_tools=offers_tools)
            model, tokenizer = settings.get("model_name"), settings.get("processing_class")
            self._run = OpenRun(checked, options.name, config, model, tokenizer)
            columns = {"config": config} | ({} if options.name is None else {"name": options.name})
            self._trainer = TrainerListener(options.trainer, self._run, checked.address, columns)
        if self._run is not None:
            with guard("preparing to record resets of environments"):
                if record_environments(self, None):
                    players.append(self._strand_of)
                if hasattr(self, "_factory"):
                    openenv_harness.watch(self._factory, getattr(self, "_adapter", None))

    def run(self) -> None:
        """Run the loop, and end the run after it."""
        if self._trainer is None or self._run is None:
            super().run()  # type: ignore[misc]
            return
        with suppress(TrainerRaised), self._run, self._trainer:
            try:
                super().run()  # type: ignore[misc]
            except BaseException as error:
                self._end_openings(error)
                raise
            finally:
                for rollout in tuple(self._under_way):  # those that only wait for a reward are complete
                    self._end(rollout, None if rollout.is_generated else asyncio.CancelledError())

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Open a row for each dataset row. The loop resets an environment for it next, one at a time."""
        for group, dataset_row in super()._repeat_iterator():  # type: ignore[misc]
            self._columns[group] = dataset_row
            with guard("opening a row of a rollout worker"):
                self._opening += self._open_rollout(dataset_row, group)
            yield group, dataset_row

    async def _generate_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._generate_loop(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            self._end_openings(error)
            raise

    def _open_rollout(self, dataset_row: Mapping[str, Any], group: int) -> list[_Rollout]:
        """Open a rollout for a dataset row; return none if there is no run."""
        if self._run is None:
            return []
        prompt = dataset_row.get("prompt", trl.NO_PROMPT)
        generation_number = self._members[group]
        self._members[group] += 1
        open_rollout = self._run.rollout(
            prompt,
            task=name_task(self._options.task, dict(dataset_row), snapshot(prompt)),
            step=self._begun.setdefault(group, self.model_version),  # type: ignore[attr-defined]
            mode="train",
            group=str(group),
            generation=generation_number,
        )
        open_rollout._call.columns = [snapshot({key: value for key, value in dataset_row.items() if key != "prompt"})]  # noqa: SLF001
        rollout = _Rollout(open_rollout, group)
        rollout.context.run(open_rollout.__enter__)
        self._under_way.add(rollout)
        return [rollout]

    def _strand_of(self, environment: Any, kind: str) -> Strand | None:
        """Return the strand of the loop's `get_reward`, or of its reset; None if no row waits for the environment."""
        if not any(factory.has_made(environment) for factory in self.environment_factories.values()):  # type: ignore[attr-defined]
            return None
        if current_strand() is not None:  # a tool of the running rollout makes the call
            return current_strand()
        if kind == "reward":
            # It was played in the environment, and only waits for its reward.
            played = (
                candidate
                for candidate in self._under_way.copy()
                if candidate.environment is environment and candidate.is_generated
            )
            return next((candidate.strand for candidate in played), None)
        # This is a reset. The loop resets one environment at a time, for the row that it has drawn last, so the
        # first row without an environment is the one.
        rollout = next((rollout for rollout in self._opening if rollout.environment is None), None)
        if rollout is None:
            return None
        rollout.environment = environment
        key = self._columns.get(rollout.group, {}).get("environment")
        is_named = key is not None and key in self.environment_factories  # type: ignore[attr-defined]
        rollout.metadata["environment"] = str(key) if is_named else type(environment).__name__
        return rollout.strand

    def _end(self, rollout: _Rollout, error: BaseException | None = None) -> None:
        with guard("ending a row of a rollout worker"):
            self._under_way.discard(rollout)
            rollout.end(error)

    def _end_openings(self, error: BaseException) -> None:
        for rollout in self._opening:
            self._end(rollout, error)
        self._opening.clear()

    def _generate_one(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        """Find the row now: the coroutine that this returns runs only after other environments were reset."""
        rollout = None
        with guard("opening a row of a rollout worker"):
            rollout = self._begun_rollout(prompt, kwargs.get("group_id", args[2] if len(args) > 2 else 0))
        return self._generate_recorded(rollout, prompt, *args, **kwargs)

    def _begun_rollout(self, prompt: Any, group: int) -> _Rollout | None:
        """Return the open rollout of the group, with its prompt as it is after the reset of the environment."""
        waiting = [rollout for rollout in self._opening if rollout.group == group][:1]
        if not waiting:
            return next(iter(self._open_rollout({"prompt": prompt, **self._columns.get(group, {})}, group)), None)
        (rollout,) = waiting
        self._opening.remove(rollout)
        call, dataset_row = rollout.open_rollout._call, self._columns.get(group, {})  # noqa: SLF001
        call.prompts = [snapshot(prompt)]
        if "prompt" not in dataset_row:
            call.tasks = [name_task(self._options.task, dict(dataset_row), call.prompts[0])]
        return rollout

    async def _generate_recorded(self, rollout: _Rollout | None, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        if rollout is None:
            return await super()._generate_one(prompt, *args, **kwargs)  # type: ignore[misc]
        try:
            with within(rollout.strand):
                output = await super()._generate_one(prompt, *args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            self._end(rollout, error)
            raise
        with guard("recording the output of a rollout worker"):
            if output[0] or output[2]:
                self._record_output(rollout, output)
            else:
                self._record_failure(rollout)
        rollout.is_generated = True
        if not hasattr(type(rollout.environment), "get_reward"):  # else get_reward is called when the group is scored
            self._end(rollout)
        return output

    def _record_failure(self, rollout: _Rollout) -> None:
        """Record that a harness's session failed: the loop logs that, leaves the rollout out, and goes on."""
        calls = rollout.open_rollout._call.calls  # noqa: SLF001
        if not any(note.kind == "error" for note in calls.notes):
            ordered: list[Any] = sorted([*calls.generations, *calls.environment_calls], key=attrgetter("order"))
            errors = [call.error for call in ordered[-1:] if call.error]
            rollout.open_rollout.failed((errors or ["The session failed: the log of the worker's process says how"])[0])
        rollout.open_rollout.score(rewards=dict.fromkeys(self.reward_func_names))  # type: ignore[attr-defined]

    def _record_output(self, rollout: _Rollout, output: Any) -> None:
        """Record the tokens that the trainer gets, if they are one sequence."""
        completion, _, sequences = output[:3]
        open_rollout = rollout.open_rollout
        first_turn = next((call.sequences[0] for call in open_rollout._call.calls.generations if call.sequences), None)  # noqa: SLF001
        if len(sequences) == 1 and first_turn is not None and first_turn.context is not None:
            # The context of the first turn is the prompt; everything that follows it is the completion.
            (sequence,), start = sequences, len(first_turn.context)
            open_rollout.tokens(
                sequence.input_ids[:start],
                sequence.input_ids[start:],
                logprobs=sequence.old_log_probs[start:],
                mask=sequence.completion_mask[start:],
            )
        now = self.model_version  # type: ignore[attr-defined]
        first = rollout.versions[0][0] if rollout.versions else self._begun.get(rollout.group, now)
        open_rollout.note(
            policy={"version": first, "turns": rollout.versions, "staleness": now - first},
            training_rows=len(sequences),  # several if tokenizing again gave other ids than sampled
        )
        open_rollout._end_columns |= trl_shapes.handed_columns(completion, is_parsed=True)  # noqa: SLF001
        self._finished[id(completion)] = completion, rollout

    async def _generate_one_turn(self, prompt_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        strand = generating_strand()
        playing = (
            candidate
            for candidate in self._under_way.copy()
            if strand is not None and candidate.strand.tree is strand.tree
        )
        rollout = next(playing, None)
        if rollout is None or strand is None:
            return await super()._generate_one_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        before = self.model_version  # type: ignore[attr-defined]
        with generation(strand, _SEAM) as begun:
            answer = await super()._generate_one_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        with guard("recording a turn of a rollout worker"), answered(begun):
            rollout.versions.append((before, self.model_version))  # type: ignore[attr-defined]
            seconds = time.perf_counter() - begun.began
            token_ids, logprobs = answer
            finish = finish_of(token_ids, self.eos_token_ids, self.max_tokens)  # type: ignore[attr-defined]
            ids = np.array(prompt_ids, np.int32), np.array(token_ids, np.int32)
            sequences = [Sequence(*ids, finish, np.array(logprobs, np.float32))]
            sampling = {name: value for name in _SETTINGS if (value := getattr(self, name, None)) is not None}
            record = Generation(begun.order, begun.began, seconds, sequences, sampling, _SEAM, strand)
            strand.tree.collector.add(record)
        return answer

    async def _execute_tool_calls(self, tool_calls: Any, tool_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        recorded = {name: _recorded_tool(name, tool) for name, tool in tool_dict.items()}
        return await super()._execute_tool_calls(tool_calls, recorded, *args, **kwargs)  # type: ignore[misc]

    async def _score_group(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        samples = await super()._score_group(group, *args, **kwargs)  # type: ignore[misc]
        with guard("recording rewards of a rollout worker"):
            for completion in group.completions:
                _, rollout = self._finished.pop(id(completion), (None, None))
                its_samples = [sample for sample in samples if sample.completion is completion]
                if rollout is not None:
                    self._end(rollout)
                if rollout is not None and its_samples:
                    self._record_score(rollout.open_rollout, its_samples)
            for state in (self._columns, self._begun, self._members):
                state.pop(group.group_id, None)
        return samples

    def _record_score(self, open_rollout: OpenRollout, samples: list[Any]) -> None:
        names = self.reward_func_names  # type: ignore[attr-defined]
        sample = samples[0]
        rewards = {name: sample.metrics[f"rewards/{name}"] for name in names}
        open_rollout.score(sample.metrics["reward"], rewards=rewards, advantage=sample.advantage)
        # All samples of the row are marked with its identity, so that the trainer's process can tell what became of
        # them.
        identity = open_rollout._call.change(0, {})  # noqa: SLF001
        for sample in samples:
            trl_async.mark(sample, identity)


def _recorded_tool(name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
    def around(**arguments: Any) -> RecordedCall:
        return RecordedCall("tool", tool, lambda: {"name": name, "arguments": arguments}, Answer)

    return recorded_function(tool, around)
