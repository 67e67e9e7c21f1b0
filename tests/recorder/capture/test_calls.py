"""What is seen of calls while a rollout function runs: in threads, in children, cancelled, of other models."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlmodel import Session, col, select

from logs_ui.recorder import flush, load_run, record, row_scope, trace_env
from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, Generation, collecting
from logs_ui.recorder.capture.forked_children import CallsOfChildren
from logs_ui.recorder.capture.instruments import concurrency, transformers
from logs_ui.recorder.capture.instruments.patch import Patches, patches
from logs_ui.recorder.capture.model_answers import Sequence, TokenBatch
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import Run
from tests.support.late import guess_model, torch
from tests.support.old_calls import call_as_025


@cache
def tokenizer() -> Any:
    return guess_model.make_tokenizer()


def generation(context: int, sampled: int) -> Generation:
    return Generation(0, 0, 0, [Sequence(np.zeros(context, np.int32), np.zeros(sampled, np.int32), "stop")], {})


def step(sent: bytes, observation: bytes | None) -> EnvironmentCall:
    return EnvironmentCall(0, 0, 0, 0, "step", sent, observation, None, None, None, None)


def generated_by(model: type, *args: Any, **more: Any) -> list[Generation]:
    """Of a call of `generate()`, whose class is patched."""
    Patches().method(model, "generate", transformers._recorded)
    log = Collector()
    with collecting(log):
        model().generate(*args, **more)
    log.close()
    return log.records.generations


def generate(model: Any) -> Any:
    return model.generate(input_ids=torch.tensor([[1, 2]]), max_new_tokens=2, pad_token_id=0)


def test_a_log_knows_the_bytes_that_it_keeps_alive() -> None:
    log = Collector()
    log.add(generation(10, 5))
    log.add(step(b"{}", None))
    assert log.records.size == 4 * 15 + 2
    log.add(generation(3, 1))
    log.add(step(b"{}", b"12345"))
    assert log.records.size == 4 * 19 + 9
    log.records.release()
    assert (log.records.generations, log.records.environment_calls, log.records.size) == ([], [], 0)


def test_what_is_counted_is_what_is_kept_alive() -> None:
    transformers.install()
    log = Collector()
    with collecting(log):
        guess_model.make_model(tokenizer(), 0).generate(input_ids=torch.ones(8, 2, dtype=torch.long), max_new_tokens=2)
    batch = log.records.generations[0].sequences
    assert isinstance(batch, TokenBatch)
    pairs = [(one.context, one.sampled) for one in batch]
    assert len(pairs) == len(batch) == 8
    assert {id(array.base) for pair in pairs for array in pair if array is not None} == {
        id(batch.given),
        id(batch.answers),
    }
    assert batch.given.base is batch.answers.base is batch.kept is None
    assert log.records.size == batch.given.nbytes + batch.answers.nbytes == batch.size


def test_a_log_that_ends_within_another_leaves_the_other_in_place() -> None:
    outer, inner = Collector(), Collector()
    with collecting(outer):
        with collecting(inner):
            assert current_strand() is inner.tree.root
        assert current_strand() is outer.tree.root
    assert current_strand() is None


def test_generations_that_run_at_once_are_all_recorded() -> None:
    together = threading.Barrier(4, timeout=30)

    class Model:
        generation_config = None

        def generate(self, input_ids: Any) -> Any:
            together.wait()
            return torch.cat([input_ids, torch.tensor([[5]])], 1)

    Patches().method(Model, "generate", transformers._recorded)
    log = Collector()
    with collecting(log):
        threads = [threading.Thread(target=Model().generate, args=(torch.tensor([[1, 2]]),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(log.records.generations) == 4


def test_a_generation_within_another_is_recorded_once() -> None:
    transformers.install()
    inner = guess_model.make_model(tokenizer(), 0)

    class Wrapped:
        generation_config = inner.generation_config

        def generate(self, **kwargs: Any) -> Any:
            return inner.generate(**kwargs)

    assert len(generated_by(Wrapped, input_ids=torch.tensor([[1, 2]]), max_new_tokens=2, pad_token_id=0)) == 1


@pytest.mark.parametrize(
    ("eos", "pad", "answers", "finish"),
    [
        (9, 0, [[5, 9], [5, 6, 9], [0, 0, 0], [5, 6, 7]], ["stop", "stop", "length", "length"]),
        ([8, 9], None, [[5, 9], [5, 6, 9], [0, 0, 0], [5, 6, 7]], ["stop", "stop", "length", "length"]),
        (None, 0, [[5, 9], [5, 6, 9], [], [5, 6, 7]], ["stop", "length", "stop", "length"]),
    ],
)
def test_each_answer_of_a_batch_ends_with_its_end_token_or_before_its_padding(
    eos: Any, pad: int | None, answers: list[list[int]], finish: list[str]
) -> None:
    class Model:
        generation_config = SimpleNamespace(eos_token_id=eos, pad_token_id=pad, max_new_tokens=3)

        def generate(self, input_ids: Any, attention_mask: Any) -> Any:
            return torch.cat([input_ids, torch.tensor([[5, 9, 0], [5, 6, 9], [0, 0, 0], [5, 6, 7]])], 1)

    sequences = generated_by(Model, torch.tensor([[0, 1]] * 4), attention_mask=torch.tensor([[0, 1]] * 4))[0].sequences
    assert [ids(sequence.context) for sequence in sequences] == [[1]] * 4
    assert [ids(sequence.sampled) for sequence in sequences] == answers
    assert [sequence.finish for sequence in sequences] == finish


@pytest.mark.parametrize(
    ("settings", "answers"),
    [
        ({}, [[5, 6, 0], [5, 0, 0]]),  # at the limit: the model sampled what it pads with
        ({"stop_strings": ["6"]}, [[5, 6], [5]]),
        ({"stopping_criteria": [len]}, [[5, 6], [5]]),
        ({"max_new_tokens": 4}, [[5, 6], [5]]),
    ],
)
def test_an_answer_at_the_limit_may_end_with_padding_that_it_sampled(
    settings: dict[str, Any], answers: list[list[int]]
) -> None:
    class Model:
        generation_config = SimpleNamespace(eos_token_id=9, pad_token_id=0, max_new_tokens=3)

        def generate(self, input_ids: Any, **_: Any) -> Any:
            return torch.cat([input_ids, torch.tensor([[5, 6, 0], [5, 0, 0]])], 1)

    sequences = generated_by(Model, torch.tensor([[1, 2]] * 2), **settings)[0].sequences
    assert [ids(sequence.sampled) for sequence in sequences] == answers


@pytest.mark.parametrize(
    ("mask", "contexts"),
    [
        ([[0, 0, 1], [1, 1, 1]], [[7], [5, 6, 7]]),
        ([[1, 0, 0], [1, 1, 0]], [[5], [5, 6]]),
        ([[1, 0, 1], [0, 1, 0]], [[5, 7], [6]]),
        ([[0, 0, 0], [0, 1, 1]], [[], [6, 7]]),
        (None, [[5, 6, 7], [5, 6, 7]]),
    ],
)
def test_a_context_is_what_the_mask_keeps_and_stays_as_it_was(mask: Any, contexts: list[list[int]]) -> None:
    class Model:
        generation_config = SimpleNamespace(eos_token_id=9, pad_token_id=0, max_new_tokens=1)

        def generate(self, input_ids: Any, **_: Any) -> Any:
            return torch.cat([input_ids, torch.tensor([[8], [9]])], 1)

    given = torch.tensor([[5, 6, 7]] * 2)
    (one,) = generated_by(Model, given, attention_mask=None if mask is None else torch.tensor(mask))
    given.fill_(0)
    assert [ids(sequence.context) for sequence in one.sequences] == contexts


def test_a_batch_is_taken_apart_when_it_is_asked_for() -> None:
    given, mask = np.array([[0, 1], [2, 3]], np.int32), np.array([[False, True], [True, True]])
    batch = TokenBatch(given, mask, np.array([[5, 9], [6, 7], [9, 0], [5, 0]], np.int32), (9,), 0, 2)
    assert (len(batch), batch.size) == (4, given.nbytes + mask.nbytes + 32)
    assert [(ids(one.context), ids(one.sampled), one.finish) for one in batch] == [
        ([1], [5, 9], "stop"),
        ([1], [6, 7], "length"),
        ([2, 3], [9], "stop"),
        ([2, 3], [5], "stop"),
    ]
    assert batch[0] is next(iter(batch))


@pytest.mark.parametrize(
    ("given", "mask", "answers"),
    [((2, 3), (2, 2), (2, 1)), ((2, 3), None, (3, 1)), ((3,), None, (1, 1)), ((0, 3), None, (0, 1))],
)
def test_arrays_that_are_no_batch_are_refused_while_their_call_can_be_told(given: Any, mask: Any, answers: Any) -> None:
    ids, kept = np.zeros(given, np.int32), None if mask is None else np.zeros(mask, np.bool_)
    with pytest.raises(ValueError, match=r"no batch|answers to"):
        TokenBatch(ids, kept, np.zeros(answers, np.int32), (), None, 0)


def ids(array: Any) -> list[int]:
    return [int(number) for number in array]


def test_only_the_trainers_model_is_recorded_however_it_is_wrapped() -> None:
    class Prompted(torch.nn.Module):  # type: ignore[misc]
        """A model with a parameter of the wrapper's before its own."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.prompt = torch.nn.Parameter(torch.zeros(1))
            self.model = model

    transformers.install()
    policy, judge = guess_model.make_model(tokenizer(), 0), guess_model.make_model(tokenizer(), 0)
    for wrap in (lambda model: model, torch.nn.DataParallel, Prompted):
        log = Collector(model=wrap(policy))
        with collecting(log):
            generate(judge)
            generate(policy)
            generate(judge)
        assert len(log.records.generations) == 1


FORKED = """
import os, sys
from logs_ui.recorder import trace_env
from logs_ui.recorder.capture.calls import Collector, collecting
from logs_ui.recorder.capture.strands import current_strand
tool, log = trace_env(lambda action: action), Collector()
with collecting(log) as _:
    child = os.fork() == 0
    if child:
        tool(1)
if child:
    sys.exit(len(log.records.environment_calls))
print(os.waitstatus_to_exitcode(os.wait()[1]), log.records.environment_calls)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_records_into_nothing_and_leaves_in_peace() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 []\n", "")


POOL = """
import json, multiprocessing, os, sys
from logs_ui.recorder import current_row, load_run, record, start_run, trace_env, unrecorded
from tests.support.old_calls import call_as_025

tool = trace_env(lambda action: action)
outer = trace_env(lambda: tool(3))

def call(action):
    outer() if action == 2 else tool(action)
    with unrecorded():
        tool("a judge's")
    if action == 1 and (grandchild := os.fork()) == 0:
        tool("a grandchild's")
        os._exit(0)
    elif action == 1:
        os.waitpid(grandchild, 0)

def rollout(prompts, args, processing_class):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(call, [0, 1, 2])
    return {"prompt_ids": [[1]] * len(prompts), "completion_ids": [[2]] * len(prompts), "logprobs": None}

db = sys.argv[1]
call_as_025(record(rollout, db=db, announce=False), ["a", "b"])
with start_run(db=db) as run, run.rollout("c"):
    if (child := os.fork()) == 0:
        tool("a child's")
        os._exit(0)
    os.waitpid(child, 0)
with start_run(db=db) as run, run.rollout("d"):
    tool("its own")
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_calls_that_forked_children_make_are_counted_on_the_run(tmp_path: Path) -> None:
    db, command = tmp_path / "a.db", [sys.executable, "-c", POOL]
    done = subprocess.run([*command, db], capture_output=True, text=True, check=True, timeout=120)
    with Session(reading_engine(db)) as session:
        counted = session.exec(select(Run.unattributed_calls).order_by(col(Run.created))).all()
    assert counted == [4, 1, 0], "of the pool's child two, one with another within it, and of its child one"
    assert done.stderr.count("forked while a rollout was recorded") == 1


def test_so_many_calls_of_children_are_counted_in_portions() -> None:
    counted = CallsOfChildren()
    for _ in range(3):
        counted.add()
    assert counted.take() == 0, "nothing was forked"
    counted.there_are()
    assert [counted.take(), counted.take()] == [3, 0]


class Parent:
    def speak(self) -> str:
        return "parent"


class Child(Parent):
    pass


def loudly(original: Callable[..., str]) -> Callable[..., str]:
    return lambda self: original(self).upper()


def test_what_was_patched_once_is_undone_by_the_same_object_and_can_be_patched_again() -> None:
    original = Parent.__dict__["speak"]
    for _ in range(2):
        own = Patches()
        own.method(Parent, "speak", loudly)
        own.method(Parent, "speak", loudly)
        own.method(Child, "speak", loudly)
        assert Child().speak() == "PARENT"
        own.undo()
        assert Parent.__dict__["speak"] is original
        assert "speak" not in Child.__dict__


def test_undoing_gives_a_library_its_own_methods_back() -> None:
    from transformers.generation import utils

    patches.undo()
    original = utils.GenerationMixin.__dict__["generate"]
    transformers.install()
    assert utils.GenerationMixin.__dict__["generate"] is not original
    patches.undo()
    assert utils.GenerationMixin.__dict__["generate"] is original
    transformers.install()
    log = Collector()
    with collecting(log):
        generate(guess_model.make_model(tokenizer(), 0))
    assert len(log.records.generations) == 1


def test_a_task_factory_of_the_users_own_is_called_as_ever() -> None:
    concurrency.install()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro: asyncio.Task(coro, loop=loop))
        return await asyncio.create_task(asyncio.sleep(0, "done"))

    with collecting(Collector()):
        assert asyncio.run(main()) == "done"


def test_what_comes_after_the_end_is_not_kept() -> None:
    log = Collector()
    log.close()
    log.add(step(b"{}", None))
    assert (log.records.environment_calls, log.records.size) == ([], 0)


GIVEN_UP = "TimeoutError: the rollout ended before this call came back"


class Hang(threading.Event):
    """What hangs waits for it, and has `begun` then."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


@pytest.fixture
def hung() -> Iterator[Hang]:
    over = Hang()
    yield over
    over.set()


class Hangs:
    """An environment that never answers a step, unless it is told to go on."""

    def __init__(self, over: threading.Event) -> None:
        self.over = over
        self.came_back = threading.Event()

    def reset(self) -> str:
        return "go"

    def step(self, action: str) -> str:
        self.over.wait(30)
        self.came_back.set()
        return action


def give_up(hung: Hang, call: Callable[..., Any], *args: Any) -> None:
    """As a rollout function does that waits only so long."""
    executor = ThreadPoolExecutor(1)
    try:
        waiting = executor.submit(call, *args)
        assert hung.begun.wait(60)
        waiting.result(timeout=0.1)
    finally:
        executor.shutdown(wait=False)


def recorded_row(rollout_func: Callable[[], Any], folder: Path) -> dict[str, Any]:
    def function(prompts: list[Any], args: Any, processing_class: Any) -> Any:
        with row_scope(0):
            return rollout_func()

    recorder = record(function, db=folder / "a.db", announce=False)
    with suppress(TimeoutError):
        call_as_025(recorder, ["p"])
    assert flush()
    (row,) = load_run(db=folder / "a.db").to_dict("records")
    return {str(name): value for name, value in row.items()}


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_that_never_came_back_is_the_rows_timeout(hung: Hang, tmp_path: Path, *, goes_on: bool) -> None:
    def function() -> dict[str, Any]:
        transformers.install()
        env = trace_env(Hangs(hung))
        env.reset()
        output = generate(guess_model.make_model(tokenizer(), 0))[0, 2:].tolist()
        with suppress(TimeoutError) if goes_on else nullcontext():
            give_up(hung, env.step, "go")
        return {"prompt_ids": [[1, 2]], "completion_ids": [output], "logprobs": None}

    row = recorded_row(function, tmp_path)
    error = GIVEN_UP if goes_on else "TimeoutError"
    assert (row["status"], row["stop_reason"], row["error"]) == ("error", "timeout", error)
    reset, *_, step = row["actions"]
    assert (reset["error"], step["action"], step["error"]) == (None, "go", GIVEN_UP)
    assert step["observation"] is None
    assert 0.1 <= step["seconds"] < 10


def test_a_generation_that_never_came_back_failed(hung: Hang) -> None:
    class Model:
        generation_config = None

        def generate(self, input_ids: Any) -> Any:
            hung.wait(30)
            return input_ids

    Patches().method(Model, "generate", transformers._recorded)
    concurrency.install()
    log = Collector()
    with collecting(log), pytest.raises(TimeoutError):
        give_up(hung, Model().generate, torch.tensor([[1, 2]]))
    log.close()
    assert [(one.error, one.seam, one.sequences) for one in log.records.generations] == [(GIVEN_UP, "transformers", [])]
    assert (log.records.generations[0].seconds or 0) >= 0.1


def test_a_call_inside_of_one_that_never_came_back_did_not_either(hung: Hang) -> None:
    env = trace_env(Hangs(hung))

    @trace_env
    def tool(action: str) -> str:
        return env.step(action)

    concurrency.install()
    log = Collector()
    with collecting(log), pytest.raises(TimeoutError):
        give_up(hung, tool, "go")
    log.close()
    outer, inner = log.records.environment_calls
    assert (outer.kind, outer.within, outer.error) == ("tool", None, GIVEN_UP)
    assert (inner.kind, inner.within, inner.error) == ("step", outer.order, GIVEN_UP)


def test_what_comes_back_after_the_end_changes_nothing(hung: Hang) -> None:
    environment = Hangs(hung)
    concurrency.install()
    log = Collector()
    with collecting(log), pytest.raises(TimeoutError):
        give_up(hung, trace_env(environment).step, "go")
    log.close()
    kept, size = list(log.records.environment_calls), log.records.size
    hung.set()
    assert environment.came_back.wait(30)
    assert (log.records.environment_calls, log.records.size) == (kept, size)
    assert size == sum(call.size for call in kept)


def test_a_generation_of_which_nothing_can_be_recorded_is_not_waited_for() -> None:
    class Model:
        generation_config = SimpleNamespace()

        def generate(self, inputs_embeds: Any) -> Any:
            return inputs_embeds

    assert generated_by(Model, inputs_embeds=torch.ones(1, 2, 3)) == []


DESTRUCTOR = """
import gc, threading
from logs_ui.recorder import trace_env
from logs_ui.recorder.capture.calls import Collector, collecting

class Env:
    def step(self, action):
        return action

class Quits(Env):
    def __del__(self):
        env.step("quit")

class QuitsElsewhere(Env):
    def __del__(self):
        thread = threading.Thread(target=env.step, args=("quit",))
        thread.start()
        thread.join()

env = trace_env(Env())
log = Collector()
with collecting(log):
    gc.set_threshold(1)
    for number in range(100):
        env.step(number)
        unreachable = Quits()
        unreachable.itself = unreachable
        del unreachable
    gc.set_threshold(700)
    gc.collect()
    trace_env(Quits()).step(1)
    trace_env(QuitsElsewhere()).step(1)
    log.close()  # it was the last to hold the two
print(len([call for call in log.records.environment_calls if call.sent == b'"quit"']))
"""


def test_a_destructor_that_calls_an_environment_may_run_at_any_time() -> None:
    done = subprocess.run([sys.executable, "-c", DESTRUCTOR], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("100\n", "")


@trace_env
def tool(action: Any) -> Any:
    return action


def turns_taken(*playing: Iterator[None]) -> None:
    """Generators that take turns, in one context."""
    left = list(playing)
    while left:
        left = [play for play in left if next(play, "over") is None]


def test_scopes_of_rows_that_take_turns_in_generators_say_nothing_but_where_one_is_open() -> None:
    log = Collector()

    def play(index: int, turns: int) -> Iterator[None]:
        with row_scope(index) as row:
            for turn in range(turns):
                tool((index, turn))
                row.tag(f"{index}")
                yield

    with collecting(log):
        turns_taken(play(0, 2), play(1, 4))
        tool("after both")
        with row_scope(2), row_scope(2):
            tool("of two, twice")
        with row_scope(3):
            with row_scope(4):
                tool("of either")
            tool("of three")
    said = [None if call.strand is None else call.strand.row for call in log.records.environment_calls]
    assert said == [0, None, None, None, 1, 1, None, 2, None, 3]
    assert [note.strand.row for note in log.records.notes if note.strand] == [0, 1, 0, 1, 1, 1], (
        "each is told of its own"
    )


def test_a_scope_holds_on_where_its_context_went() -> None:
    log, over = Collector(), threading.Event()

    def work() -> None:
        assert over.wait(60)
        tool("late")

    with collecting(log):
        with row_scope(1):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
        with row_scope(2):
            over.set()
            thread.join(60)
    assert [call.strand.row for call in log.records.environment_calls if call.strand] == [1]


def test_what_a_call_is_given_goes_before_its_config_and_that_before_the_models() -> None:
    model = SimpleNamespace(generation_config=SimpleNamespace(temperature=1.0, top_p=0.9, max_new_tokens=8))
    config = SimpleNamespace(temperature=0.5, max_new_tokens=4)
    found = transformers._settings(model, (), {"generation_config": config, "max_new_tokens": 2})
    assert (found["max_new_tokens"], found["temperature"], found["top_p"]) == (2, 0.5, 0.9)
