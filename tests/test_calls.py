"""What is seen of calls while a rollout function runs: in threads, in children, cancelled, of other models."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from logs_ui.recorder.calls import CallLog, EnvironmentCall, Generation, Sequence, collecting
from logs_ui.recorder.instruments import concurrency, transformers
from logs_ui.recorder.instruments.patch import Patches, patches
from logs_ui.recorder.strands import current_strand
from logs_ui.rollout.guess_model import make_model, make_tokenizer

TOKENIZER = make_tokenizer()


def generation(context: int, sampled: int) -> Generation:
    return Generation(0, 0, 0, [Sequence(np.zeros(context, np.int32), np.zeros(sampled, np.int32), "stop")], {})


def step(sent: bytes, observation: bytes | None) -> EnvironmentCall:
    return EnvironmentCall(0, 0, 0, 0, "step", sent, observation, None, None, None, None)


def generate(model: Any) -> Any:
    return model.generate(input_ids=torch.tensor([[1, 2]]), max_new_tokens=2, pad_token_id=0)


def test_a_log_knows_the_bytes_that_it_keeps_alive() -> None:
    log = CallLog([generation(10, 5)], [step(b"{}", None)])
    assert log.size == 4 * 15 + 2
    log.add(generation(3, 1))
    log.add(step(b"{}", b"12345"))
    assert log.size == 4 * 19 + 9
    log.release()
    assert (log.generations, log.environment_calls, log.size) == ([], [], 0)


def test_what_is_counted_is_what_is_kept_alive() -> None:
    transformers.install()
    log = CallLog()
    with collecting(log):
        make_model(TOKENIZER, 0).generate(input_ids=torch.ones(8, 2, dtype=torch.long), max_new_tokens=2)
    pairs = [(one.context, one.sampled) for one in log.generations[0].sequences]
    arrays = [array for pair in pairs for array in pair if array is not None]
    assert len(arrays) == 16
    assert all(array.base is None for array in arrays)
    assert log.size == sum(array.nbytes for array in arrays)


def test_a_log_that_ends_within_another_leaves_the_other_in_place() -> None:
    outer, inner = CallLog([generation(10, 5)]), CallLog([generation(10, 5)])
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
    log = CallLog()
    with collecting(log):
        threads = [threading.Thread(target=Model().generate, args=(torch.tensor([[1, 2]]),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(log.generations) == 4


def test_a_generation_within_another_is_recorded_once() -> None:
    transformers.install()
    inner = make_model(TOKENIZER, 0)

    class Wrapped:
        generation_config = inner.generation_config

        def generate(self, **kwargs: Any) -> Any:
            return inner.generate(**kwargs)

    Patches().method(Wrapped, "generate", transformers._recorded)
    log = CallLog()
    with collecting(log):
        generate(Wrapped())
        generate(inner)
    assert len(log.generations) == 2


@pytest.mark.parametrize(
    ("eos", "pad", "answers", "finish"),
    [
        (9, 0, [[5, 9], [5, 6, 9], [], [5, 6, 7]], ["stop", "stop", "stop", "length"]),
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

    Patches().method(Model, "generate", transformers._recorded)
    log = CallLog()
    with collecting(log):
        Model().generate(torch.tensor([[0, 1]] * 4), attention_mask=torch.tensor([[0, 1]] * 4))
    sequences = log.generations[0].sequences
    assert [ids(sequence.context) for sequence in sequences] == [[1]] * 4
    assert [ids(sequence.sampled) for sequence in sequences] == answers
    assert [sequence.finish for sequence in sequences] == finish


def ids(array: Any) -> list[int]:
    """As numbers."""
    return [int(number) for number in array]


class Prompted(torch.nn.Module):
    """A model with a parameter of the wrapper's before its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.prompt = torch.nn.Parameter(torch.zeros(1))
        self.model = model


@pytest.mark.parametrize("wrap", [lambda model: model, torch.nn.DataParallel, Prompted])
def test_only_the_trainers_model_is_recorded_however_it_is_wrapped(wrap: Callable[[Any], Any]) -> None:
    transformers.install()
    policy, judge = make_model(TOKENIZER, 0), make_model(TOKENIZER, 0)
    log = CallLog(model=wrap(policy))
    with collecting(log):
        generate(judge)
        generate(policy)
        generate(judge)
    assert len(log.generations) == 1


FORKED = """
import os, sys
from logs_ui.recorder.calls import CallLog, collecting
from logs_ui.recorder.strands import current_strand
with collecting(CallLog()) as _:
    child = os.fork() == 0
    seen = current_strand()
if child:
    sys.exit(7 if seen is None else 8)
print(os.waitstatus_to_exitcode(os.wait()[1]), seen is None)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_records_into_nothing_and_leaves_in_peace() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("7 False\n", "")


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
    log = CallLog()
    with collecting(log):
        generate(make_model(TOKENIZER, 0))
    assert len(log.generations) == 1


def test_a_task_factory_of_the_users_own_is_called_as_ever() -> None:
    concurrency.install()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro: asyncio.Task(coro, loop=loop))
        return await asyncio.create_task(asyncio.sleep(0, "done"))

    with collecting(CallLog()):
        assert asyncio.run(main()) == "done"


def test_what_comes_after_the_end_is_not_kept() -> None:
    log = CallLog()
    log.close()
    log.add(step(b"{}", None))
    assert (log.environment_calls, log.size) == ([], 0)
