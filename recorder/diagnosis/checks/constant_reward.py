"""A reward that is the same whatever the model does."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause

_FEW = 16  # rollouts that may be alike by accident
_ALONE = 0.9  # of the loss: what one failure must hold to be why all are paid alike, where no environment tells
_MOST = 0.5  # of the loss: where failures of another kind have more, they have earned it


def _missing(run: Run) -> str | None:
    return None if np.isfinite(run.rows.reward).sum() >= _FEW else f"{_FEW} rewards"


def _look(run: Run) -> Card | None:
    rows = run.rows
    has = np.isfinite(rows.reward)
    rewards = rows.reward[has]
    if float(np.ptp(rewards)) > SAME or rewards[0] >= run.scale.solved - SAME:
        return None
    told_apart = _environment(rows)
    if told_apart == 0 and abs(rewards[0]) <= SAME:
        return None  # the environment, too, calls all of them failures: nothing shows that any was not
    ends = np.unique(rows.stop_reason[has].astype(str))
    parts = [name for name, values in rows.parts.items() if np.isfinite(values).any()]
    said = [
        f"{len(rewards)} rollouts in {len(rows.groups.size)} groups, all alike; they ended by {listed(list(ends), 4)}.",
        f"Reward functions: {', '.join(parts) or 'not recorded'}.",
    ]
    if told_apart:
        said.append(f"The environment rewards {percent(told_apart)} of them more than its worst.")
    is_sure = bool(told_apart) or not _is_earned(run, float(rewards[0]))
    return Card(
        id="constant_reward",
        title=f"Every rollout gets the reward {figure(float(rewards[0]))}",
        cost=run.fall.lost if is_sure else run.cost_of(LossCause.WRONG_ANSWER),
        evidence=tuple(said),
        suggestion="Call the reward functions by hand on a good and a bad completion: they must tell them apart. "
        "If they do, no rollout has earned more: begin with easier tasks.",
        where=f"reward:{rewards[0]:.9g}",
        aspects=("certain",) if is_sure else (),
        stops_learning=is_sure,
        needs=None if not is_sure or cancels(rows).any() else np.inf if told_apart else _ALONE,
    )


def _environment(rows: Rows) -> float | None:
    """Share of rollouts that the environment rewards more than its worst; None where it says nothing."""
    known = rows.env_reward_sum[np.isfinite(rows.env_reward_sum)]
    return float(np.mean(known > known.min() + SAME)) if len(known) else None


def _is_earned(run: Run, reward: float) -> bool:
    """Whether most rollouts failed before their answer counted, so that it is no wonder that they are paid alike: of a
    reward of 0 most of them, of any other all.
    """
    other = 1 - run.cost_of(LossCause.WRONG_ANSWER) / run.fall.lost if run.fall.lost > 0 else 0.0
    return other > (_MOST if abs(reward) <= SAME else 0.99)


DIAGNOSTIC = Diagnostic(
    "constant_reward",
    "Constant reward",
    f"All rewards of the last steps differ by at most {SAME:g}, and are not the best. Not where all are 0 and the "
    "environment rewarded none either; where other failures account for them, only what is left to those "
    "that came to their end counts.",
    "ours",
    _missing,
    _look,
    position=180,
    explained_by=(
        "infrastructure",
        "invalid_reward",
        "parse_failures",
        "truncation",
        "loops",
        "turn_limit",
        "never_acted",
        "diversity:cold",
        "degenerate_text",
        "reward_parts:cancels",
    ),
)
