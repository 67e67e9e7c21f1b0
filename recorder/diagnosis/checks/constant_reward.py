"""Finds a reward that is the same whatever the model does."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause

_FEW = 16  # rollouts that may have equal rewards by chance
_ALONE = 0.9  # of the loss: what one failure must hold to explain equal rewards if no environment rewards are recorded
_MOST = 0.5  # of the loss: if other failures hold more, the rollouts have earned their equal rewards


def _look(run: Run) -> Card | None:
    rows = run.rows
    has = np.isfinite(rows.reward)
    rewards = rows.reward[has]
    if float(np.ptp(rewards)) > SAME or rewards[0] >= run.scale.solved - SAME:
        return None
    known = rows.env_reward_sum[np.isfinite(rows.env_reward_sum)]
    better = float(np.mean(known > known.min() + SAME)) if len(known) else None
    if better == 0 and abs(rewards[0]) <= SAME:
        return None  # the environment calls all of them failures, too: nothing shows that any was not one
    ends = np.unique(rows.stop_reason[has].astype(str))
    parts = [name for name, values in rows.parts.items() if np.isfinite(values).any()]
    evidence = [
        f"{len(rewards)} rollouts in {len(rows.groups.size)} groups have equal rewards.",
        f"Stop reasons: {listed(list(ends), 4)}.",
        f"Reward functions: {', '.join(parts) or 'not recorded'}.",
    ]
    if better:
        evidence.append(f"The environment rewards {percent(better)} of them above its minimum.")
    is_sure = bool(better) or not _is_earned(run, float(rewards[0]))
    return Card(
        id="constant_reward",
        title=f"Every rollout gets the reward {figure(float(rewards[0]))}",
        cost=run.fall.lost if is_sure else run.cost_of(LossCause.WRONG_ANSWER),
        evidence=tuple(evidence),
        suggestion="Call the reward functions by hand on a good and a bad completion: their rewards must differ. "
        "If they do, no rollout has earned more: start with easier tasks.",
        where=f"reward:{rewards[0]:.9g}",
        aspects=("certain",) if is_sure else (),
        stops_learning=is_sure,
        needs=None if not is_sure or cancels(rows).any() else np.inf if better else _ALONE,
    )


def _is_earned(run: Run, reward: float) -> bool:
    """Return True if most rollouts failed before their answer counted, which explains why their rewards are equal.

    If the reward is not 0, nearly all of them must have.
    """
    other = 1 - run.cost_of(LossCause.WRONG_ANSWER) / run.fall.lost if run.fall.lost > 0 else 0.0
    return other > (_MOST if abs(reward) <= SAME else 0.99)


DIAGNOSTIC = Diagnostic(
    "constant_reward",
    "Constant reward",
    f"All rewards of the last steps differ by at most {SAME:g}, and are not the best reward. Silent if all are 0 and "
    "the environment rewarded none either. If other failures explain the equal rewards, only the loss of rollouts "
    "that ended normally is counted.",
    "ours",
    lambda run: None if np.isfinite(run.rows.reward).sum() >= _FEW else f"{_FEW} rewards",
    _look,
    position=180,
    explained_by=(
        *("infrastructure", "invalid_reward", "parse_failures", "truncation", "loops", "turn_limit", "never_acted"),
        *("diversity:cold", "degenerate_text", "reward_parts:cancels"),
    ),
)
