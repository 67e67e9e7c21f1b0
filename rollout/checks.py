"""What rollout functions are given, checked before anything starts: each mistake is one line."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from logs_ui.rollout.backends import Model, Sampling
from logs_ui.rollout.sources import check_url


def check(*, act: Any, observe: Any, reward: Any, max_turns: Any, concurrency: Any, max_completion_tokens: Any) -> None:
    if not callable(act):
        raise TypeError(f"act is a function of an answer's text, not {act!r}")
    if observe is not None and not callable(observe):
        raise TypeError(f"observe is a function of an observation, or None, not {observe!r}")
    if reward not in ("sum", "last") and not callable(reward):
        raise ValueError(f"reward is 'sum', 'last' or a function of the steps' rewards, not {reward!r}")
    if max_turns is None:
        raise ValueError("max_turns is a whole number from 1, not None")
    check_counts(max_turns=max_turns, concurrency=concurrency, max_completion_tokens=max_completion_tokens)


def check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(f"{name} is a whole number from 1, not {count!r}")


def check_unparsable(what: str, message: str | None, action: Any) -> None:
    if what not in ("fail", "retry", "noop"):
        raise ValueError(f"on_unparsable is 'fail', 'retry' or 'noop', not {what!r}")
    if what == "noop" and action is None:
        raise ValueError("on_unparsable='noop' needs noop_action, the action to take")
    if what != "noop" and action is not None:
        raise ValueError(f"noop_action is for on_unparsable='noop', not for {what!r}")
    if what != "retry" and message is not None:
        raise ValueError(f"unparsable_message is for on_unparsable='retry', not for {what!r}")


def task_names(tasks: Any, task_var: Any) -> tuple[str, ...]:
    if isinstance(tasks, str) or not all(isinstance(task, str) for task in tasks):
        raise TypeError(f"tasks is a list of names, not {tasks!r}")
    if task_var is not None and not tasks:
        raise ValueError(f"task_var={task_var!r} names tasks, and there are none: give tasks=[...]")
    return tuple(tasks)


def sampling_fields(sampling: Sampling | Mapping[str, Any] | None, *, has_seed: bool) -> dict[str, Any]:
    """Its fields, without `max_tokens` where that is left to the budget."""
    if sampling is None:
        return {}
    if isinstance(sampling, Sampling):
        given = asdict(sampling)
    elif isinstance(sampling, Mapping):
        given = dict(sampling)
    else:
        raise TypeError(f"sampling is a Sampling or its fields, not {sampling!r}")
    known = [one.name for one in fields(Sampling)]
    odd = [name for name in given if name not in known]
    if odd:
        raise ValueError(f"sampling has no {', '.join(map(str, odd))}; it has {', '.join(known)}")
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if given.get("seed") is not None and not has_seed:
        raise ValueError(
            "sampling.seed is for a model's server: the trainer's own model would give a group one answer. "
            "Set GRPOConfig(seed=...)"
        )
    return given


def model_maker(model: Any, url: str | None, api_key: str | None) -> Callable[[Any, int], Model]:
    """Makes the model of a batch, from the trainer and the number of rows."""
    if model is not None and not isinstance(model, str):
        if not hasattr(model, "answer"):
            raise TypeError(f"model is a name, a Model or None for the trainer's own, not {model!r}")
        _only_for_url(model_url=url, api_key=api_key)
        return lambda _, __: model
    if url is None:
        _only_for_url(model=model, api_key=api_key)
        return _trainers_own
    if not model:
        raise ValueError("model_url needs model, the name under which the server serves it")
    check_url("model_url", url, ("http://", "https://"))
    from logs_ui.rollout.server_model import ServerModel

    server = ServerModel(url, model, api_key=api_key)
    return lambda _, __: server


def _trainers_own(trainer: Any, rows: int) -> Model:
    from logs_ui.rollout.trainer_model import TrainerModel

    return TrainerModel(trainer, rows)


def _only_for_url(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(f"{' and '.join(names)}: only for a model's server, which model_url and model name together")
