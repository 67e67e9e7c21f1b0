"""A generated run as the columns that the diagnosis takes, without recorder and database.

How a rollout ended is derived once more, from the generator's turns. The facts of texts and tokens are the product's.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson

from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.analysis.diagnosis_columns import columns_of
from logs_ui.recorder.diagnosis import Rows, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.answers import dataset_columns
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.labels import attribute_text, attributes_in, metrics_in
from logs_ui.recorder.rows.sent_prompt import compare_messages
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.rows.text_facts import answers, call_facts, text_facts, token_facts
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.faults.runs import Rollout, Run

EVALUATED = 60
"""At most so many rollouts of the evaluations are read, as `evaluated_texts_of` does."""


class _Row(SimpleNamespace):
    """Takes the place of an `EvaluationRow`, which takes ten times as long to make. What it is not given is None."""

    def __getattr__(self, name: str) -> None:
        return None


def diagnosed(run: Run) -> Diagnosed:
    """Return what the diagnosis says of a run."""
    rows, scalars = columns(run), {name: tuple(points.items()) for name, points in run.scalars.items()}
    evaluations = _evaluations(run)
    evaluated = columns(replace(run, rollouts=run.evaluation, mode=Mode.EVAL)) if run.evaluation else None
    evaluated = evaluated and replace(evaluated, id=evaluated.id + len(run.rollouts))
    report = diagnose_rows(
        rows, config=run.config, scalars=scalars, evaluations=evaluations, evaluated=evaluated, has_ended=run.has_ended,
        read_labels=partial(_labels, run), read_texts=partial(_texts, run),
        read_evaluated=partial(_evaluated, run),
    )  # fmt: skip
    return Diagnosed(rows, report, Settings(), run.config, scalars, evaluations, evaluated)


def _evaluations(run: Run) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return the mean rewards of the evaluations by eval and step."""
    paid: dict[int, list[float]] = defaultdict(list)
    for rollout in run.evaluation:
        weights, values = rollout.weights or {}, rollout.values or {}
        paid[rollout.step].append(
            sum(weights.get(name, 1.0) * value for name, value in values.items() if value is not None)
        )
    return {run.eval_name: tuple((step, sum(each) / len(each)) for step, each in paid.items())} if paid else {}


def columns(run: Run) -> Rows:
    """Return the rollouts of a run, in their order."""
    messages = [_messages(it) for it in run.rollouts]
    of_texts = text_facts([answers(it) for it in messages])
    kept = [it.tokens for it in run.rollouts if it.tokens is not None and it.raises is None]
    of_tokens = iter(token_facts(kept))
    rows: list[Any] = []
    for number, (it, said) in enumerate(zip(run.rollouts, messages, strict=True)):
        has_tokens = it.tokens is not None and it.raises is None
        facts = call_facts(said, _actions(it), [turn.finish for turn in it.turns], keyed=not has_tokens)
        facts |= of_texts[number] | (next(of_tokens) if has_tokens else {}) | _rewards(it) | _end(it)
        facts |= _lengths(it) if has_tokens else {}
        facts |= {
            "id": number + 1, "eval_name": it.eval or run.eval_name, "step": it.step, "group": f"{it.step}/{it.group}",
            "policy_step": it.step if it.policy_step is None else it.policy_step, "turns": len(it.turns) or None,
            "task": it.task or prompt_task(orjson.dumps(it.prompt)), "staleness": it.staleness, "dropped": it.dropped,
        }  # fmt: skip
        if it.turns and it.turns[0].limit is not None:  # only a client's call tells what was sent
            sent = it.prompt if it.sent is None else it.sent
            facts["sent_prompt"] = compare_messages([*map(dict, it.prompt)], [*map(dict, sent)])
        rows.append(_Row(**facts))
    return replace(columns_of(rows), is_evaluation=run.mode != Mode.TRAIN)


def _texts(run: Run, ids: Sequence[int]) -> dict[int, Texts]:
    chosen = {it: run.rollouts[it - 1] for it in ids}
    return {
        it: Texts(
            _messages(rollout),
            _actions(rollout),
            metrics=metrics_in(rollout.metadata) or {},
            dataset_prompt=rollout.prompt if rollout.sent else (),
            dataset=dataset_columns(rollout.metadata),
        )
        for it, rollout in chosen.items()
    }


def _evaluated(run: Run, _: str) -> dict[int, Texts]:
    every = list(enumerate(run.evaluation, len(run.rollouts) + 1))
    return {number: Texts(_messages(it), _actions(it)) for number, it in every[:: -(-len(every) // EVALUATED) or 1]}


def _labels(run: Run, rows: Rows) -> dict[str, list[str | None]]:
    """Return the attributes of some rollouts, as `labels_of` reads them."""
    rollouts = [*run.rollouts, *run.evaluation]
    found = [attributes_in(dict(rollouts[it - 1].metadata)) or {} for it in rows.id.tolist()]
    names = dict.fromkeys(name for it in found for name in it)
    return {f"metadata.{name}": [attribute_text(it.get(name)) for it in found] for name in names}


def _messages(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the conversation up to the last answer."""
    found = [dict(message) for message in (rollout.prompt if rollout.sent is None else rollout.sent)]
    for number, turn in enumerate(rollout.turns, 1):
        found.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None and number < len(rollout.turns):
            heard = turn.observation
            found.append({"role": "user", "content": heard if isinstance(heard, str) else orjson.dumps(heard).decode()})
    return found


def _actions(rollout: Rollout) -> Sequence[dict[str, Any]]:
    entries: list[dict[str, Any]] = [
        {
            "turn": number, "text": turn.text, "action": turn.action, "observation": turn.observation,
            "reward": turn.reward, "done": turn.done, "metadata": None, "error": turn.error,
        }
        for number, turn in enumerate(rollout.turns, 1)
    ]  # fmt: skip
    if entries and rollout.stop == StopReason.STOP:
        entries[-1]["metadata"] = {"parsed": True}  # a last answer is no action that was not found
    return entries


def _rewards(rollout: Rollout) -> dict[str, Any]:
    heard = [turn.reward for turn in rollout.turns if turn.reward is not None]
    of_environment = {"env_reward_sum": sum(heard), "env_reward_last": heard[-1]} if heard else {}
    if rollout.values is None:
        return of_environment
    weights = {name: float((rollout.weights or {}).get(name, 1.0)) for name in rollout.values}
    values = {n: it if it is not None and math.isfinite(it) else None for n, it in rollout.values.items()}
    odd = {n: str(it) for n, it in rollout.values.items() if it is not None and values[n] is None}
    weighted = [it * weights[name] for name, it in values.items() if it is not None]
    return of_environment | {
        "scored": 1, "rewards": values, "reward_weights": weights, "odd_rewards": odd or None,
        "reward": sum(weighted) if weighted else None, "advantage": rollout.advantage,
    }  # fmt: skip


def _end(rollout: Rollout) -> dict[str, Any]:
    turns, error = rollout.turns, rollout.raises and f"RuntimeError: {rollout.raises}"
    error = error or (turns[-1].error if turns else None)
    return {"status": Status.ERROR if error else Status.OK, "error": error, "stop_reason": stop_reason(rollout)}


def stop_reason(rollout: Rollout) -> StopReason:
    turns = rollout.turns
    is_played = any(turn.is_move for turn in turns)
    # Of a single turn, or without any `done`, nobody knows if there would have been more.
    has_end = len(turns) > 1 and any(turn.done is not None for turn in turns)
    reasons = (
        (rollout.raises is not None, StopReason.EXCEPTION),
        (turns and turns[-1].error is not None, StopReason.ENVIRONMENT_ERROR),
        (rollout.stop is not None, rollout.stop),
        (any(turn.done for turn in turns), StopReason.DONE),
        (turns and turns[-1].finish == "length", StopReason.LENGTH),
        (turns and not is_played and turns[-1].finish is not None, StopReason.STOP),
        (is_played and not turns[-1].is_move, StopReason.NO_ACTION),
        (has_end, StopReason.TURN_LIMIT),
    )
    return StopReason(str(next((reason for is_so, reason in reasons if is_so), StopReason.NOT_RECORDED)))


def _lengths(rollout: Rollout) -> dict[str, Any]:
    """Return the counts of tokens, and of those of the last answer that hit its limit."""
    assert rollout.tokens is not None
    ids, mask = rollout.tokens.completion_ids, rollout.tokens.mask
    heard = 0 if mask is None else int((mask == 0).sum())
    found = {
        "prompt_tokens": len(rollout.tokens.prompt_ids), "completion_tokens": len(ids) - heard, "env_tokens": heard,
    }  # fmt: skip
    cut = next((turn for turn in reversed(rollout.turns) if turn.finish == "length"), None)
    if cut is None:
        return found
    # Of an answer that is recorded by hand nobody counts the tokens, unless it is the only one.
    whole = found["completion_tokens"] if len(rollout.turns) == 1 else None
    return found | {"cut_tokens": whole if cut.limit is None else cut.tokens, "cut_limit": cut.limit}
