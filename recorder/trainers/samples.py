"""Records samples that a trainer hands over whole: one run for each process, and a row for each sample."""

import atexit
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from logs_ui.recorder.api.start_run import OpenRun, start_run
from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import snapshot

_runs: dict[str, OpenRun] = {}


def run_of(trainer: str, about: Callable[[], dict[str, Any]]) -> OpenRun:
    """Return this process's run for a trainer; the first call begins it, with the arguments that `about` returns."""
    if trainer not in _runs:
        _runs[trainer] = start_run(**about())
        atexit.register(end_run, trainer)
    return _runs[trainer]


def end_run(trainer: str, error: BaseException | None = None) -> None:
    """End this process's run for a trainer, if it began; `error` is what ended the training."""
    with guard("ending the run"):
        if run := _runs.pop(trainer, None):
            run.__exit__(type(error), error, None)


def record_samples(run: OpenRun, step: int, mode: str, samples: Iterable[dict[str, Any]]) -> None:
    """Record the samples of a step: arguments of `_record`. A `group` is unique in the step; None takes the prompt."""
    numbers: Counter[str] = Counter()
    for sample in samples:
        name = hash(repr(sample["prompt"])) if sample.get("group") is None else sample["group"]
        group = f"{step}/{sample.get('eval_name') or ''}/{name}"
        with guard("recording a sample"):
            _record(run, **{"generation": numbers[group], **sample, "step": step, "mode": mode, "group": group})
        numbers[group] += 1


def _record(
    run: OpenRun, prompt: Any, *, ids: Any = None, mask: Any = None, logprobs: Any = None, text: str | None = None,
    finish: str | None = None, rewards: Mapping[str, Any], advantage: float | None = None,
    sampling: Mapping[str, Any] | None = None, extra: Mapping[str, Any], calls: Iterable[Any] = (),
    stop: str | None = None, **about: Any,
) -> None:  # fmt: skip
    """Record a sample. `about` are arguments of `run.rollout()`; numbers of `extra` become metrics, the rest metadata.

    `ids` are those of the prompt (P,) and completion (C,). Adjacent ones in `mask` (C,) are a turn, and `finish` is
    why the last one ended, as SGLang and vLLM say it. `text` serves if the ids or the tokenizer are not known. `calls`
    are the model's and its tools': when each began, its seconds, what was sent to a tool, and its answer.
    """
    metrics = {
        name: float(value) for name, value in extra.items() if isinstance(value, int | float | np.number | np.bool_)
    }
    metadata = {name: value for name, value in extra.items() if name not in metrics and value is not None}
    with run.rollout(prompt, task=metadata.get("dataset", {}).get("task"), metadata=metadata, **about) as row:
        turns: list[Any] = [None]
        if ids is not None:
            row.tokens(*ids, logprobs=logprobs, mask=mask)
            sampled = np.asarray(ids[1], np.int32)
            # The ends of each block of ones: differences of the mask between two zeros are not 0 where a block begins
            # or has ended, so the places come in pairs, (start, end) of each turn.
            edges = np.flatnonzero(np.diff(np.r_[0, np.ones(len(sampled)) if mask is None else mask, 0]))
            turns = [sampled[start:end] for start, end in edges.reshape(-1, 2)]
        # The text is that of the whole completion, which is not known by turn.
        strand, collector, text = row._strand, row._strand.tree.collector, None if turns[1:] else text  # noqa: SLF001
        # Turns that `calls` does not contain come last, without times.
        unseen = len(turns) - sum(sent is None for _, _, sent, _ in calls)
        for began, seconds, sent, answer in [*calls, *[(0.0, 0.0, None, None)] * unseen]:
            if sent is not None:
                begun, made = (
                    collector.begin(strand, "tool"),
                    (snapshot(sent), snapshot(answer), None, None, None, None),
                )
                collector.add(EnvironmentCall(begun.order, begun.began + began, seconds, -1, "tool", *made, strand))
            else:
                begun, turn = (
                    collector.begin(strand, "generation", seam="trainer"),
                    turns.pop(0) if turns else sampled[:0],
                )
                answers = [Sequence(None, turn, "stop" if turns else finish, text=text)], dict(sampling or {})
                collector.add(Generation(begun.order, begun.began + began, seconds, *answers, "trainer", strand))
        for name, value in metrics.items():
            row.metric(name, value)
        if finish == "error":
            row.failed("the trainer marked the sample as failed")
        elif stop or finish == "abort":
            row.stop(stop or "aborted")
    row.score(rewards=rewards, advantage=advantage)
