"""Collects the functions, templates and data set that a run of TRL's trainer is made of, besides its arguments.

What is relied on (trl 1.16), each by itself: what is missing is not stored.
    trainer.reward_funcs, .reward_func_names, .reward_weights    reward functions and models
    trainer.rollout_func, .environment_factories                 what makes the rollouts
    trainer.processing_class.chat_template, .chat_template       the tokenizer's template, and one in its place
    trainer.train_dataset                                        of `datasets`: .info, .split, .column_names
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from logs_ui.recorder.capture.source_code import Part
from logs_ui.recorder.vocabulary import SourceKind


def weights_of(trainer: Any) -> list[float]:
    """Return the weights of the reward functions. TRL keeps them in single precision, in which 0.1 is 0.10000000149."""
    return [float(f"{weight:.7g}") for weight in trainer.reward_weights.tolist()]


def parts(trainer: Any) -> list[Part]:
    """Return the parts of the run."""
    weights = weights_of(trainer) if hasattr(trainer, "reward_weights") else []
    names = distinct(getattr(trainer, "reward_func_names", ()))
    rewards = zip(getattr(trainer, "reward_funcs", ()), names, weights, strict=False)
    makers = getattr(trainer, "environment_factories", None) or {}
    rollout_func = getattr(trainer, "rollout_func", None)
    run_parts = [_reward_part(function, name, weight) for function, name, weight in rewards]
    if rollout_func is not None:
        name = getattr(rollout_func, "__name__", type(rollout_func).__name__)
        run_parts.append(Part(SourceKind.ROLLOUT, name, rollout_func))
    run_parts += [
        Part(SourceKind.ENVIRONMENT, str(name or getattr(make, "__name__", "")), make) for name, make in makers.items()
    ]
    return [*run_parts, *_template_parts(trainer), *_dataset_part(getattr(trainer, "train_dataset", None))]


def distinct(names: Iterable[str]) -> list[str]:
    """Make names distinct: equal ones are numbered from the second on."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return numbered


def _reward_part(function: Any, name: str, weight: float) -> Part:
    """Describe a reward function by its source; a reward model by its origin, since its class says nothing about it."""
    if not hasattr(function, "forward"):
        return Part(SourceKind.REWARD, name, function, weight)
    origin = getattr(getattr(function, "config", None), "_name_or_path", None)
    return Part(SourceKind.REWARD, name, f"a reward model: {origin}" if origin else None, weight)


def _template_parts(trainer: Any) -> list[Part]:
    """Return the tokenizer's templates, and the one that the trainer uses instead for a model that calls tools."""
    templates = {
        "": getattr(trainer.processing_class, "chat_template", None),
        "training": getattr(trainer, "chat_template", None),
    }
    # A template is a text, or several texts by name: the name is then added to the key.
    by_name = {
        key if isinstance(template, str) else f"{key} {name}".strip(): text
        for key, template in templates.items()
        for name, text in (template if isinstance(template, dict) else {"": template}).items()
    }
    return [Part(SourceKind.CHAT_TEMPLATE, key, text) for key, text in by_name.items() if isinstance(text, str)]


def _dataset_part(dataset: Any) -> list[Part]:
    """Describe the dataset in lines of facts. One that was made in memory has no name."""
    info = getattr(dataset, "info", None)
    facts = {
        "name": getattr(info, "dataset_name", None) or getattr(info, "builder_name", None),
        "configuration": getattr(info, "config_name", None),
        "split": getattr(dataset, "split", None),
        "rows": len(dataset) if hasattr(dataset, "__len__") else None,
        "columns": ", ".join(getattr(dataset, "column_names", None) or ()) or None,
    }
    lines = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    return [Part(SourceKind.DATASET, "", "\n".join(lines))] if lines else []
