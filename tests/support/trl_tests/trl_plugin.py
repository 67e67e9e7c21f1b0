"""A plugin of pytest for TRL's own tests: serves the datasets that they load from the hub, and writes the outcome of
each test into the file that TRL_OUTCOMES names.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from transformers import TrainingArguments

_SUBJECTS = ("Short code", "A flat list", "An open door", "Plain text", "One way", "A good name", "A small step")
_PAIRS = [
    (f"{subject} is better than", f" {other}.") for subject in _SUBJECTS for other in ("none", "many", "a long one")
]
_outcomes = Path(os.environ["TRL_OUTCOMES"])
_from_hub = datasets.load_dataset


def load_dataset(path: Any, name: str | None = None, *args: Any, split: Any = None, **options: Any) -> Any:
    """Returns a made dataset for one of TRL's names."""
    if not str(path).startswith("trl-internal-testing/zen"):
        return _from_hub(path, name, *args, split=split, **options)
    rows = [_row(str(path), str(name), number) for number in range(len(_PAIRS))]
    parts = {"train": rows[:5], "test": rows[5:7]}  # a third of theirs: a test takes seconds
    made = datasets.DatasetDict({part: datasets.Dataset.from_list(some) for part, some in parts.items()})
    if options.get("streaming"):
        streams = {part: some.to_iterable_dataset() for part, some in made.items()}
        return streams[split] if split else datasets.IterableDatasetDict(streams)
    return made[split] if split else made


def _row(path: str, name: str, number: int) -> dict[str, Any]:
    prompt, end = _PAIRS[number]
    ask: Any = [{"role": "user", "content": prompt}]
    answer: Any = [{"role": "assistant", "content": end}]
    if name.startswith("standard"):
        ask, answer = prompt, end
    both = {"messages": ask + answer} if name.startswith("conversational") else {"text": ask + answer}
    images = [Image.new("RGB", (32, 32), (number, number, number))]
    row = {"prompt": ask}
    if name.endswith("language_modeling"):
        row = both
    elif name.endswith("prompt_completion"):
        row |= {"completion": answer}
    elif name.endswith("preference"):
        row |= {"chosen": answer, "rejected": answer}
    if path.endswith("multi-image"):
        row |= {"images": images * (number % 3)}
    elif path.endswith("image"):
        row |= {"image": images[0]}
    return row


def _is_available(name: str) -> Any:
    """Answers for `trl.import_utils` what other releases of TRL have there: a module's `__getattr__`."""
    if name.startswith("is_") and name.endswith("_available"):
        return lambda: importlib.util.find_spec(name.removeprefix("is_").removesuffix("_available")) is not None
    raise AttributeError(name)


def pytest_collection(session: pytest.Session) -> None:
    """Adapts the release of TRL before its tests are imported."""
    datasets.load_dataset = load_dataset
    TrainingArguments.__dataclass_fields__["num_train_epochs"].default = 1.0  # and not 3
    if not torch.cuda.is_available():  # TRL 0.25 wants bf16, and transformers 4 that is told to stay on the CPU for it
        TrainingArguments.__dataclass_fields__["use_cpu"].default = True
    vars(importlib.import_module("trl.import_utils"))["__getattr__"] = _is_available


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes a line for the outcome of a test's phase, unless it is that nothing happened."""
    if report.when == "call" or not report.passed:
        outcome: str = "error" if report.failed and report.when != "call" else report.outcome
        outcome = f"x{outcome}" if hasattr(report, "wasxfail") else outcome
        line = "" if not report.failed else str(report.longrepr).rstrip().splitlines()[-1]
        with _outcomes.open("a") as file:
            file.write(f"{report.nodeid}\t{outcome}\t{line}\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Writes a line for a file that cannot be imported."""
    if report.failed:
        with _outcomes.open("a") as file:
            file.write(f"{report.nodeid}\tnot collected\t{str(report.longrepr).rstrip().splitlines()[-1]}\n")
