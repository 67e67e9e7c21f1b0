"""Finds a training whose figures are no numbers any more: weights that are NaN stay so."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, Outcome, Run, check
from logs_ui.recorder.diagnosis.wording import listed
from logs_ui.recorder.settings import NO_THRESHOLD

_ALWAYS = ("loss", "grad_norm")  # of every trainer
_SOME = ("kl", "entropy")  # that a trainer may log as NaN because it does not compute them
_LACK = "the trainer's loss or grad_norm"
_IN_A_ROW = 3  # logged steps: fp16 skips single steps whose gradient overflows, and goes on [ours]
_BEFORE = 1  # steps: rewards of the step before may be what is trained on [ours]
_FROM_FIRST = 10  # the same of a figure that never was finite: fp16 begins with several such steps [ours]


def _check(run: Run) -> Outcome:
    curves = {name: run.scalars.get(name, ()) for name in (*_ALWAYS, *_SOME)}
    last = {name: max((step for step, _ in curve), default=-1) for name, curve in curves.items()}
    gaps = {
        name: run.not_finite[name] for name in curves if run.not_finite.get(name) and (curves[name] or name in _ALWAYS)
    }
    lasting = {name: [step for step in steps if step > last[name]] for name, steps in gaps.items()}
    least = {name: _FROM_FIRST if step < 0 else _IN_A_ROW for name, step in last.items()}
    broken = {name: steps for name, steps in lasting.items() if len(steps) >= least[name]}
    if not broken:
        lapses = [f"{name} at {len(steps)} of {len(steps) + len(curves[name])} steps" for name, steps in gaps.items()]
        if lapses:
            return Below(f"NaN or infinite: {listed(lapses, 4)}; too few of them up to the last step.")
        return Below(f"Finite at all logged steps: {listed([name for name in curves if curves[name]], 4)}.")
    first, sound = min(steps[0] for steps in broken.values()), min(last[name] for name in broken)
    evidence = [
        f"{name}: NaN or infinite at all {len(steps)} logged steps from {steps[0]:,} on, "
        + (f"last finite at step {last[name]:,}." if last[name] >= 0 else "and never finite before.")
        for name, steps in broken.items()
    ]
    if "loss" not in broken and curves["loss"] and run.config.get("logging_nan_inf_filter"):
        evidence.append("loss: finite, since logging_nan_inf_filter is set: another figure stands in place of NaN.")
    evidence += _describe_rewards(run, first)
    return Card(
        id="not_finite",
        title=f"{listed(list(broken), 4)} {'is' if len(broken) == 1 else 'are'} NaN or infinite",
        cost=run.fall.lost,
        evidence=tuple(evidence),
        suggestion=(
            f"If weights became NaN, training cannot recover: go back to a checkpoint of step {sound:,} or before. "
            if sound >= 0
            else ""
        )
        + "Look at what was trained on then: rewards, advantages, log-probs and lengths."
        + (" fp16 is set: bf16 overflows far later." if run.config.get("fp16") else ""),
        where=f"step:{sound + 1}..{first}",
        since_step=first,
        since_range=(sound + 1, first) if sound >= 0 else None,
        is_setup=True,
        is_loss=False,
        share=float((run.rows.step > first).mean()),  # of rollouts that the broken update may have changed
    )


def _describe_rewards(run: Run, first: int) -> list[str]:
    """Return a sentence on rewards that were not finite at the step at which figures stopped to be so, or right before
    it; none if all were.
    """
    rows = run.all.where(run.all.odd & (run.all.step >= first - _BEFORE) & (run.all.step <= first))
    names = [name for name, values in rows.values.items() if not np.isfinite(values).all()]
    if not len(rows) or not names:
        return []
    steps = " and ".join(f"{step:,}" for step in rows.steps.tolist())
    rollouts = "1 rollout" if len(rows) == 1 else f"{len(rows):,} rollouts"
    return [f"{listed(names)} gave NaN or an infinity to {rollouts} of step {steps}: look there first."]


NOT_FINITE = check(
    "not_finite",
    "NaN or infinity in the log",
    f"{' or '.join(_ALWAYS)} is NaN or infinite at the last {_IN_A_ROW} or more steps that the trainer logs "
    f"({_FROM_FIRST}, if it never was finite); or {' or '.join(_SOME)} is, and was finite before. Single steps do not "
    "count: fp16 skips those whose gradient overflows.",
    lambda run: (
        None if any(map(run.scalars.get, (*_ALWAYS, *_SOME))) or any(map(run.not_finite.get, _ALWAYS)) else _LACK
    ),
    _check,
    limits=NO_THRESHOLD,
)
