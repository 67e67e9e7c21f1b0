"""Checks the arguments of rollout functions before anything starts: each mistake is reported in one line."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from logs_ui.rollout.environments.sources import check_url
from logs_ui.rollout.models.backends import Model, Sampling, stop_texts
from logs_ui.rollout.play.tasks_and_seeds import Seeded


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda value: _is_whole(value) and value >= 1, "a whole number from 1"),
    "temperature": (lambda value: _is_number(value) and value >= 0, "a number from 0"),
    "top_p": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "top_k": (lambda value: _is_whole(value) and value >= -1, "a whole number from 1, or 0 or -1 for all tokens"),
    "min_p": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "seed": (_is_whole, "a whole number"),
}
"""Of a `Sampling`: whether a value can be taken, and what can."""


def check_rules(act: Any, observe: Any, reward: Any, max_turns: Any) -> None:
    if not callable(act):
        raise TypeError(f"act must be a function of an answer's text, not {act!r}")
    if observe is not None and not callable(observe):
        raise TypeError(f"observe must be a function of an observation, or None, not {observe!r}")
    if not callable(reward) and reward not in ("sum", "last"):
        raise ValueError(f"reward must be 'sum', 'last' or a function of the steps' rewards, not {reward!r}")
    check_counts(max_turns=max_turns)
    for name, function in {"act": act, "observe": observe, "reward": reward}.items():
        called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
            raise TypeError(f"{name} must be a plain function, not a coroutine function: {function!r}")


def check_environment(*, provider: Any, environment_variables: Any, headers: Any) -> None:
    """Check the environment's arguments of `openenv_rollout_func`, as far as openenv would not refuse them itself."""
    if provider is not None and not any(
        callable(getattr(provider, name, None)) for name in ("start_container", "start")
    ):
        raise TypeError(
            "provider must be one of openenv's, such as LocalDockerProvider, its class, or None for Docker, "
            f"not {provider!r}"
        )
    for name, texts in (("environment_variables", environment_variables), ("headers", headers)):
        if texts is None:
            continue
        if not isinstance(texts, Mapping):
            raise TypeError(f"{name} must be a dict of strings, not {texts!r}")
        odd = [
            argument for argument, value in texts.items() if not isinstance(argument, str) or not isinstance(value, str)
        ]
        if odd:
            raise TypeError(
                f"{name} must be a dict of strings, but the value of {odd[0]!r} is {type(texts[odd[0]]).__name__}"
            )


def check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if not (_is_whole(count) and count >= 1):
            raise ValueError(f"{name} must be a whole number from 1, not {count!r}")


def check_limits(**limits: Any) -> None:
    """Do the same as `check_counts`, but accepts None for no limit."""
    check_counts(**{name: limit for name, limit in limits.items() if limit is not None})


def check_seed(seed: Any, *words: str) -> None:
    """Raise ValueError unless the seed is a whole number or None. `words` are other values that it may have."""
    if seed is not None and seed not in words and not _is_whole(seed):
        raise ValueError(f"seed must be {', '.join(['a whole number', *map(repr, words)])} or None, not {seed!r}")


def check_unparsable(on_unparsable: str, message: str | None, action: Any) -> None:
    if on_unparsable not in ("fail", "retry", "noop"):
        raise ValueError(f"on_unparsable must be 'fail', 'retry' or 'noop', not {on_unparsable!r}")
    if on_unparsable == "noop" and action is None:
        raise ValueError("on_unparsable='noop' needs noop_action, the action to take")
    if on_unparsable != "noop" and action is not None:
        raise ValueError(f"noop_action is for on_unparsable='noop', not for {on_unparsable!r}")
    if on_unparsable != "retry" and message is not None:
        raise ValueError(f"unparsable_message is for on_unparsable='retry', not for {on_unparsable!r}")
    if message is not None and not isinstance(message, str):
        raise TypeError(f"unparsable_message must be a string, not {message!r}")


def task_names(tasks: Any, task_var: Any) -> tuple[str, ...]:
    names = (None,) if isinstance(tasks, str) or not isinstance(tasks, Iterable) else tuple(tasks)
    if not all(isinstance(task, str) and task for task in names):
        raise TypeError(f"tasks must be a list of names, not {tasks!r}")
    if task_var is not None and not names:
        raise ValueError(f"task_var={task_var!r} names tasks, and there are none: give tasks=[...]")
    return names


def sampling_fields(sampling: Sampling | Mapping[str, Any] | None, *, has_seed: bool) -> dict[str, Any]:
    """Return the fields of a `Sampling`, without `max_tokens` if that is left to the budget. Raise TypeError or
    ValueError, in one line, if a value cannot be used.
    """
    if sampling is None:
        return {}
    if isinstance(sampling, Sampling):
        values = asdict(sampling)
    elif isinstance(sampling, Mapping):
        values = dict(sampling)
    else:
        raise TypeError(f"sampling must be a Sampling or its fields, not {sampling!r}")
    names = [field.name for field in fields(Sampling)]
    odd = [name for name in values if name not in names]
    if odd:
        raise ValueError(f"sampling has no {', '.join(map(str, odd))}; it has {', '.join(names)}")
    if "stop" in values:
        values["stop"] = stop_texts(values["stop"])
    for name, value in values.items():
        if name in _NUMBERS and (value is not None or name == "max_tokens") and not _NUMBERS[name][0](value):
            raise ValueError(f"sampling.{name} must be {_NUMBERS[name][1]}, not {value!r}")
    if values.get("seed") is not None and not has_seed:
        raise ValueError(
            "sampling.seed is for a model's server: the trainer's own model would give a group one answer. "
            "Set GRPOConfig(seed=...)"
        )
    return values


def model_maker(model: Any, url: str | None, api_key: str | None) -> Callable[[Any, int], Model]:
    """Return a function that makes the model of a batch, from the trainer and the number of rows."""
    if model is not None and not isinstance(model, str):
        if not hasattr(model, "answer"):
            raise TypeError(f"model must be a name, a Model or None for the trainer's own, not {model!r}")
        _only_for_url(model_url=url, api_key=api_key)
        return _of_batches(model)
    if url is None:
        _only_for_url(model=model, api_key=api_key)
        from logs_ui.rollout.models.trainer_model import TrainerModel

        return TrainerModel
    if not model:
        raise ValueError("model_url needs model, the name under which the server serves it")
    check_url("model_url", url, ("http://", "https://"))
    from logs_ui.rollout.models.server_model import ServerModel

    return _of_batches(ServerModel(url, model, api_key=api_key))


def _of_batches(model: Model) -> Callable[[Any, int], Model]:
    batches = (
        itertools.count()
    )  # each has seeds of its own: one step may have several batches, in evaluation for example

    def of_batch(trainer: Any, rows: int) -> Model:
        batch = f"{trainer.state.global_step}/{next(batches)}"
        return Seeded(model, batch, trainer.accelerator.process_index * rows)

    return of_batch


def _only_for_url(**options: Any) -> None:
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise ValueError(f"{' and '.join(names)}: only for a model's server, which model_url and model name together")
