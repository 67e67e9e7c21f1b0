"""TRL's own trainers with lines of their source changed: bugs as people have had them."""

import inspect
import itertools
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_numbers = itertools.count()


def patched_trainer(*changes: tuple[str, str], name: str = "GRPOTrainer", module: str = "grpo_trainer") -> Any:
    """Return the trainer's class, made from its source with each first text replaced by the second wherever it is."""
    original = import_module(f"trl.trainer.{module}")
    source = inspect.getsource(original)
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    made = ModuleType(f"trl.trainer.{module}_{next(_numbers)}")
    made.__dict__.update(__package__="trl.trainer", __file__=original.__file__)
    sys.modules[made.__name__] = made
    exec(compile(source, str(original.__file__), "exec"), made.__dict__)  # noqa: S102 - TRL's own source
    return getattr(made, name)
