"""Describes TRL's masks, which may have removed rollouts or tokens from the loss without being recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.links import exactly
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.vocabulary import StopReason

RATIO = "sampling/importance_sampling_ratio/min"


@dataclass(frozen=True)
class Mask:
    """A mask that is enabled."""

    name: str  # the trainer's argument that sets it
    effect: str  # what it may have done, as a clause
    rollouts: int  # number of rollouts that count as trained on and may be masked
    logged: str = ""  # a sentence on what the trainer logs about it; "" if it logs nothing
    # The filter that selects them among the rollouts that count as trained on; None if there is none.
    where: str | None = ""


def masks(rows: Rows, trained: Bools, config: Mapping[str, Any], scalars: Mapping[str, Trend]) -> tuple[Mask, ...]:
    """Return the masks that are enabled; `trained` is (N,) True for rollouts that count as trained on."""
    candidates = [_importance_sampling(rows, trained, config, scalars)]
    threshold = config.get("off_policy_mask_threshold")
    if threshold is not None:
        effect = f"masked rollouts of negative advantage as off-policy (threshold {threshold})"
        count = int((trained & (rows.advantage < 0)).sum())
        candidates.append(Mask("off_policy_mask_threshold", effect, count, where="advantage<0"))
    unseen = trained & np.asarray(rows.stop_reason == StopReason.NOT_RECORDED, bool)
    if config.get("mask_truncated_completions") is True and unseen.any():
        effect = "masked rollouts without a recorded stop reason as truncated"
        candidates.append(Mask("mask_truncated_completions", effect, int(unseen.sum()), where="stop:not_recorded"))
    return tuple(mask for mask in candidates if mask is not None)


def _importance_sampling(
    rows: Rows, trained: Bools, config: Mapping[str, Any], scalars: Mapping[str, Trend]
) -> Mask | None:
    mode = config.get("vllm_importance_sampling_mode")
    corrects = config.get("use_vllm") is True and config.get("vllm_importance_sampling_correction") is True
    if not (corrects and isinstance(mode, str) and mode.endswith("_mask")):
        return None
    tokens = "all tokens of a rollout" if mode.startswith("sequence") else "some tokens of a rollout"
    cap = config.get("vllm_importance_sampling_clip_max")
    ratios = dict(scalars.get(RATIO, ()))
    # A logged minimum tells of a step only if it belongs to one batch, and is not a mean over several.
    batches, accumulated = config.get("steps_per_generation"), config.get("gradient_accumulation_steps")
    is_of_one_batch = isinstance(batches, int) and isinstance(accumulated, int) and batches >= accumulated
    is_of_one_batch = is_of_one_batch and config.get("logging_steps") == 1
    clean = [step for step, ratio in ratios.items() if ratio > 0 and is_of_one_batch]
    left = trained & ~np.isin(rows.step, clean)
    return Mask(
        "vllm_importance_sampling_mode",
        f"dropped {tokens} by importance sampling ({mode}, above {cap})",
        int(left.sum()),
        _describe_ratios(ratios, rows, clean),
        "" if (left == trained).all() else exactly(rows.id[left]) or None,
    )


def _describe_ratios(ratios: Mapping[int, float], rows: Rows, clean: list[int]) -> str:
    """Describe the logged ratios: TRL logs 0 for one that it dropped."""
    here = [step for step in rows.steps.tolist() if step in ratios]
    if not here:
        return f"The trainer logged no {RATIO}, which would be 0 where something was dropped."
    dropped = sum(ratios[step] == 0 for step in here)
    nothing_dropped = f"; at {len(set(clean) & set(here))} nothing was" if clean else ""
    return (
        f"The trainer's {RATIO} is 0 at {dropped} of {len(here)} steps: something was dropped there{nothing_dropped}."
    )
