"""Finds answers that grow while nothing is gained by it, and tells a penalty of length from a fault of the set-up."""

from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.repeats import repeating
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER, Rise, added_by, rise, spread
from logs_ui.recorder.diagnosis.largest_differences import time_sides
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import correlation, lengths
from logs_ui.recorder.diagnosis.outcome import Outcome, list_other_mixes, outcome_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Ints, Rows
from logs_ui.recorder.diagnosis.success import is_outcome
from logs_ui.recorder.diagnosis.wording import figure, percent

TIMES = 2.0
"""By which answers must grow [ours]."""
_BEGUN = 1.2  # times the first steps' length: then they have begun to grow [ours]
_SHORT = 10  # percentile of the lengths: such answers are short
_CHARGES = -0.5  # Pearson's r within groups with length, of a function that charges for it [ours]
_MAYBE = 0.1  # the probability by chance of a rise of the outcome, below which growth may have been worth it [ours]
_MOST = 0.5  # of the first rollouts act: an answer in place of an action is of another kind [ours]
_ERRORS = 2.0  # standard errors of r, within which longer answers are not better paid
_LITTLE = 0.05  # of the range of rewards: a penalty below it is no loss, and the finding's place is that of so much


def is_penalty(rows: Rows, name: str) -> bool:
    """Return True for a function that can only take from the reward of a long answer: it is never above 0, or never
    above what short answers get.
    """
    paid, tokens = rows.parts[name], lengths(rows)
    is_known = np.isfinite(paid) & np.isfinite(tokens)
    if is_outcome(name) or not is_known.any():
        return False
    short = paid[is_known & (tokens <= np.percentile(tokens[is_known], _SHORT))]
    return float(paid[is_known].max()) <= max(0.0, float(np.median(short))) + SAME


class _Charge(NamedTuple):
    """Describes a penalty of length that takes more at last than at first."""

    name: str
    more: float  # of the mean reward


def find_growth(run: Run, *, is_cut: bool) -> Card | None:
    """Return a card if answers grow to twice their length or more, while the outcome does not rise, and longer answers
    are not better paid than others of their groups. `is_cut`: many are truncated, so that a lower limit is no advice.
    """
    outcome, grown = outcome_of(run), rise(run, lengths, chance=SURER)
    if not (grown.is_sure and grown.after >= TIMES * grown.before > 0) or not _grows_when_alike(run):
        return None
    gained, tokens = _over_time(run, outcome.values), lengths(run.rows)
    is_known = np.isfinite(run.rows.reward) & np.isfinite(tokens)
    r = correlation(run.rows, run.rows.reward, tokens)
    if gained is None or gained.chance is None or (gained.value > 0 and gained.chance < _MAYBE):
        return None
    # The standard error of a correlation near 0 is about one over the root of the number of rollouts.
    if not r <= _ERRORS / np.sqrt(is_known.sum()):
        return None
    charge, whole = _find_charge(run), _LITTLE * spread(run)
    is_loss = charge is not None and charge.more > whole
    unsolved = _unsolved_longer(run)
    affected = tokens >= TIMES * grown.before
    least = int(np.ceil(TIMES * grown.before))
    is_alone = np.array_equal(tokens, run.rows.completion_tokens, equal_nan=True)
    return Card(
        id="length",
        title=f"Answers grow from {figure(grown.before)} to {figure(grown.after)} tokens per turn, and the outcome "
        "does not rise",
        cost=charge.more if charge is not None and is_loss else whole,
        evidence=_list_evidence(run, outcome, gained, r, charge, unsolved),
        suggestion=_advise(run, charge, is_longer=unsolved is not None, is_cut=is_cut),
        where=f"completion_tokens>={least}" if is_alone else links.ids(run.rows.id[affected]),
        **above(run.all.by_step(lengths(run.all)), _BEGUN * grown.before),
        own=affected,
        clause=f"have {least:,}+ tokens per turn",
        measure="tokens per turn",
        is_loss=is_loss,
    )


def _list_evidence(
    run: Run, outcome: Outcome, gained: Difference, r: float, charge: _Charge | None, unsolved: Difference | None
) -> tuple[str, ...]:
    sides = time_sides(run)
    before, after = (percent(value) if outcome.is_share else figure(value) for value in (gained.others, gained.chosen))
    among = f" at the same {sides.unit}" if sides is not None and sides.unit else ""
    name = f"{outcome.name[0].upper()}{outcome.name[1:]}{among}"
    maybe = (
        "; the difference may be chance" if before != after and not is_beyond_chance(gained, CHANCE, sign=-1) else ""
    )
    sentences = [f"{name}, first to last steps: {before} \u2192 {after}{maybe}."]
    sentences.append(f"Correlation of reward and tokens within groups: r = {figure(r)}.")
    if charge is not None:
        sentences.append(f"{charge.name} takes {figure(charge.more)} more from the reward than at first.")
    if unsolved is not None:
        longer, others = figure(unsolved.chosen), figure(unsolved.others)
        sentences.append(f"Within groups, unsolved answers have {longer} tokens per turn, solved ones {others}.")
    return tuple(sentences)


def _over_time(run: Run, values: Floats, strata: Ints | None = None) -> Difference | None:
    """Compare the last steps with the first, at the same tasks or evals, or within other strata."""
    sides = time_sides(run)
    if sides is None:
        return None
    among = np.where(sides.among, values, np.nan)
    return compare(among, sides.late, run.all.group, sides.strata if strata is None else strata)


def _grows_when_alike(run: Run) -> bool:
    """Return False if answers grow because the tasks are others: not at the same tasks, or at the same values of a
    column of the dataset that came in another mix. Text that repeats itself does not count; and where most act at
    first, answers that do so must grow.
    """
    sides, acts = time_sides(run), run.all.facts["env_steps"] > 0
    if sides is None:
        return False
    tokens = np.where(repeating(run.all), np.nan, lengths(run.all))
    first = acts[sides.among & ~sides.late]
    if first.sum() >= _MOST * len(first):
        tokens = np.where(acts, tokens, np.nan)
    growths = [_over_time(run, tokens)]
    for mix in list_other_mixes(run, sides):
        within = _over_time(run, tokens, mix.codes) if mix.is_shared else None
        if within is None and mix.is_difficulty:
            return False
        growths += [] if within is None or within.chance is None else [within]
    return all(growth is not None and growth.chosen >= TIMES * growth.others for growth in growths)


def _find_charge(run: Run) -> _Charge | None:
    """Return the penalty of length that takes most of what it did not take at first; None if there is none."""
    tokens, charges = lengths(run.rows), list[_Charge]()
    for name, part in run.rows.parts.items():
        if correlation(run.rows, part, tokens) <= _CHARGES and is_penalty(run.all, name):
            change: Rise = rise(run, added_by(name))
            charges += [_Charge(name, -change.value)] if change.is_sure and change.value < 0 else []
    return max(charges, key=lambda charge: charge.more, default=None)


def _unsolved_longer(run: Run) -> Difference | None:
    """Return the lengths of unsolved answers and of solved ones of their groups, if the unsolved are longer."""
    rows, success = run.rows, run.scale.success
    if not success.is_defined:
        return None
    tokens = np.where(success.countable(rows), lengths(rows), np.nan)
    difference = compare(tokens, ~success.solved(rows), rows.group, rows.group)
    return difference if is_beyond_chance(difference, CHANCE, sign=1) else None


def _advise(run: Run, charge: _Charge | None, *, is_longer: bool, is_cut: bool) -> str:
    loss = run.config.get("loss_type")
    if is_longer and loss in {None, "grpo"}:
        name = 'With loss_type "grpo"' if loss else 'If loss_type is "grpo"'
        return (
            f"{name}, the loss divides by each answer's length, so that long wrong answers are punished less per token "
            '(Dr. GRPO, arXiv 2503.20783): set "dr_grpo" or "dapo".'
        )
    if charge is not None:
        lower = "" if is_cut else ", or lower max_completion_length"
        return f"Give {charge.name} more weight or let it charge from fewer tokens on{lower}."
    lower = "A" if is_cut else "Lower max_completion_length, or a"
    return f"{lower}dd a penalty of length that right answers of usual length do not pay."
