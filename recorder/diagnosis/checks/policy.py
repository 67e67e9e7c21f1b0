"""Finds a policy that is not updated, or that differs between the sampler and the trainer."""

from dataclasses import replace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, Trend, check, quiet, since
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.contrast import SURER
from logs_ui.recorder.diagnosis.largest_differences import compare_over_time
from logs_ui.recorder.diagnosis.mean_difference import compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import FIRST_KL, STANDSTILL
from logs_ui.recorder.diagnosis.places import MACHINE, columns_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Rows, means
from logs_ui.recorder.diagnosis.wording import figure, list_places, listed, percent
from logs_ui.recorder.settings import FROM_NOTHING, NO_THRESHOLD
from logs_ui.recorder.vocabulary import Lack

_DIFFERENCE = "sampling/sampling_logp_difference/mean"
_RATIO = "sampling/importance_sampling_ratio/"
_NAMES = (_DIFFERENCE, f"{_RATIO}mean", "kl")
_MEAN = 0.05  # nats: mean exp|Δ| of 1.05
_LEAST_RATIO = 0.5  # of a mean that is 1 if both agree [ours]
_ENTROPY = 0.5  # share of the trainer's entropy [ours]
_LEAST_ENTROPY = 0.1  # nats
_ERRORS = 3.0  # standard errors
_KL, _GROWS, _GROUPS = 0.2, 10.0, 30  # nats per token; times; on either side [ours]
_READ, _APART = 512, 2  # rollouts whose metrics are read, of the last steps and of others; times as large [ours]
_FIRST = 3  # points of which the median is the start of a mismatch [ours]
_ADVICE = (
    "Sample with the weights, dtype and temperature that are trained, and return the ids and log-probs that were "
    "sampled: re-tokenised text may not match."
)
_SYNC = "Check that the sampler gets the weights of each step: their synchronisation, adapters, the model's name."
_OLD = "as if the sampler did not get the trainer's weights: a wrong dtype or temperature shows from the first step on"
_LAG, _SHARE = 4, 0.1  # policy versions; of the rollouts


def _recent(run: Run, name: str) -> list[float]:
    """Return what was logged at the last steps, else the latest value before them.

    A learning rate that was never logged is taken from the trainer's arguments.
    """
    trend, argument = run.current.get(name, ()), run.config.get(name)
    recent = [value for _, value in run.recent(trend)]
    if not recent and name == "learning_rate" and isinstance(argument, int | float):
        return [float(argument)]
    if name == "kl" and (np.isfinite([value for _, value in trend]).sum() <= FIRST_KL or not run.config.get("beta", 1)):
        return []  # with a weight of 0 the trainer does not compute it
    return recent


def _check_no_update(run: Run) -> Outcome:
    spread = run.rows.groups.std
    if not np.isfinite(spread).any():
        return NotJudged("No group has rewards of more than one rollout.")
    if not (spread[np.isfinite(spread)] > SAME).any():
        return NotJudged("Rewards do not vary within any group: there is nothing to learn.")
    recent = {name: values for name in STANDSTILL if (values := _recent(run, name))}
    stopped = [name for name, values in recent.items() if max(np.abs(values)) <= STANDSTILL[name]]
    if not stopped:
        logged = {figure_name: values for figure_name, values in recent.items() if run.current.get(figure_name)}
        if not logged:
            return NotJudged("The trainer logged no learning_rate, grad_norm or kl.")
        most = ", ".join(f"{figure_name} {figure(max(np.abs(values)))}" for figure_name, values in logged.items())
        return Below(f"Largest values over the last steps: {most}.")
    name = stopped[0]
    trend: Trend = run.current.get(name, ())
    sentences = [
        f"{figure_name} is at most {figure(max(np.abs(recent[figure_name])))} over the last steps."
        for figure_name in stopped
    ]
    clip = run.current.get("clip_ratio/region_mean", run.current.get("clip_ratio", ()))
    clipped = [value for step, value in clip if step >= run.rows.steps[0]]
    if clipped and max(clipped) == 0:
        sentences.append("No token was clipped.")
    return Card(
        id="no_update",
        title=f"The policy is not updated: {name} is {figure(max(np.abs(recent[name])))}",
        cost=run.fall.lost,
        evidence=(
            *sentences,
            f"Rewards differ in {int((spread > SAME).sum())} of {len(spread)} groups: there is a signal.",
        ),
        suggestion="Check the learning rate and its schedule, frozen parameters, and masks that leave no tokens.",
        where="",
        trend=trend,
        since_step=since(trend, lambda value: abs(value) <= STANDSTILL[name]),
        is_loss=False,
    )


def _check_mismatch(run: Run) -> Outcome:
    outcomes = [make(run) for make in (_check_logged, _by_ratio, _by_entropy, _by_kl)]
    first = next(
        (outcome for kind in (Card, Below, NotJudged) for outcome in outcomes if isinstance(outcome, kind)), None
    )
    if not isinstance(first, Card | Below) and any(
        name in run.scalars and name not in run.current for name in (*_NAMES, "entropy")
    ):
        return NotJudged("What the trainer logged at the last steps is NaN or infinite.")
    return first


def _check_logged(run: Run) -> Outcome:
    whole = run.current.get(_DIFFERENCE, ())
    limit = run.threshold("mismatch", _MEAN)
    mean = _mean(run.recent(whole))
    if not mean > limit:
        calm = f"Mean |log p (trainer) - log p (sampler)|: {figure(mean)} nats per token (threshold {figure(limit)})."
        return Below(calm) if np.isfinite(mean) else None
    sentences = [f"Mean |log p (trainer) - log p (sampler)|: {figure(mean)} nats per token."]
    ratios = run.recent(run.current.get(f"{_RATIO}min", ()))
    sentences += [f"Smallest importance-sampling ratio: {figure(min(value for _, value in ratios))}."] if ratios else []
    title, begun = f"{figure(mean)} nats per token", above(whole, limit)
    if (of_machine := _find_machine(run, limit)) is not None:
        place, fields = of_machine
        return replace(_card(run, f"{title}: {place}", sentences, begun, _SYNC), **fields)
    low = float(np.median([value for _, value in whole[:_FIRST]]))
    is_from_nothing = low * _GROWS <= mean
    steady = _find_changed(run) if is_from_nothing and begun.get("half_step") is not None else None
    if steady is None or steady[0]:
        return _card(run, title, sentences, begun)
    grown = f"The mismatch grows from {figure(low)} (median of the first {_FIRST} points) to {figure(mean)}, {_OLD}."
    return _card(run, title, [grown, steady[1], *sentences], begun, _SYNC)


def _find_machine(run: Run, limit: float) -> tuple[str, dict[str, Any]] | None:
    """Return words on the machines whose rollouts measured a difference above the limit, or else are many versions old,
    if the others are not, and the fields of a card on these; None if there are none, or nothing tells.
    """
    rows, name = run.all, _DIFFERENCE.split("/")[1]
    is_last = rows.step >= run.rows.steps[0]
    read = {**run.sample(is_last, _READ), **run.sample(~is_last, _READ)}
    measured = {row: texts.metrics.get(name) for row, texts in read.items()}
    differences = np.array([measured.get(row) for row in rows.id.tolist()], float)
    machines = [column for column in columns_of(rows, run.labels_of_all) if MACHINE.search(column[2])]
    kinds = (differences, limit, "{}"), (lag(rows), float(_LAG), "weights {} versions old")
    for values, most, words in kinds:
        for places, _, column in machines:
            of_places = means(places.task + 1, np.where(is_last, values, np.nan), len(places.tasks) + 1)[1:]
            worse = np.flatnonzero(of_places > most).tolist()
            if not worse or not (of_places <= most).any():
                continue
            names, there = [places.tasks[place] for place in worse], np.isin(places.task, worse)
            more = compare(np.where(is_last, values, np.nan), there, rows.group)
            if not is_beyond_chance(more, SURER / len(places.tasks)) or more.chosen < _APART * more.others:
                continue
            apart, beside = (figure(float(np.nanmean(values[is_last & side]))) for side in (there, ~there))
            return f"{words.format(apart)} in {column} {list_places(names)} ({beside} elsewhere)", {
                "where": links.tasks(names, column),
                "own": there[is_last],
                "is_setup": True,
                "explains": ("worse_place", "staleness"),
                **above(rows.by_step(np.where(there, values, np.nan)), most),
            }
    return None


def _by_ratio(run: Run) -> Outcome:
    """Judge by the mean importance-sampling ratio: it should be 1, and falls because ratios are capped or set to 0."""
    whole = run.current.get(f"{_RATIO}mean", ())
    mean = _mean(run.recent(whole))
    if not mean < _LEAST_RATIO:
        calm = f"Mean importance-sampling ratio: {figure(mean)} (threshold {_LEAST_RATIO:g})."
        return Below(calm) if np.isfinite(mean) else None
    sentences = [f"If both agree it is 1. The loss is weighted by it: {percent(1 - mean)} of the gradient is lost."]
    title = f"the mean importance-sampling ratio is {figure(mean)}"
    return _card(run, title, sentences, below(whole, _LEAST_RATIO))


def _by_entropy(run: Run) -> Outcome:
    """Judge by the entropy: for on-policy samples, the sampler's mean of -log p equals it in expectation.

    Only at temperature 1: samplers leave the temperature out of their log-probs, and the trainer does not. Both are
    means over tokens, so a long answer counts more than a short one.
    """
    if run.config.get("temperature", 1.0) != 1.0:
        return NotJudged("Only at temperature 1 can the sampler's log-probs be compared with the trainer's entropy.")
    entropies = dict(run.current.get("entropy", ()))
    sampled = dict(_surprise(run.all))
    whole = tuple((step, sampled[step] - entropies[step]) for step in sorted(entropies.keys() & sampled.keys()))
    recent = run.recent(whole)
    if not recent:
        return NotJudged("No step has both the sampler's log-probs and the trainer's entropy.")
    entropy = _mean(tuple((step, entropies[step]) for step, _ in recent))
    limit = max(_ENTROPY * entropy, _LEAST_ENTROPY)
    mean = _mean(recent)
    between = float(np.std([value for _, value in recent])) / np.sqrt(len(recent))
    error = max(between, _error(run.all.where(np.isin(run.all.step, [step for step, _ in recent]))))
    nll, of_trainer = figure(entropy + mean), figure(entropy)
    if not (abs(mean) > limit and abs(mean) > _ERRORS * error and np.isfinite(mean)):
        return Below(
            f"Sampler NLL {nll} vs trainer entropy {of_trainer} nats per token (threshold: {figure(limit)} apart)."
        )
    sentences = [
        (
            f"The sampler's mean of -log p is {nll} nats per token; the trainer's entropy over the same tokens is "
            f"{of_trainer}."
        )
    ]
    sentences += ["For on-policy samples the two are equal in expectation."]
    title = f"sampler NLL {nll} vs trainer entropy {of_trainer} nats per token"
    begun = above(tuple((step, abs(value)) for step, value in whole), limit)
    return _card(run, title, sentences, {**begun, "trend": whole, "limit": None})


def _by_kl(run: Run) -> Outcome:
    """Judge by the KL of the trained policy to its reference, where no log-prob is known: if it grows and nothing that
    is sampled changes, the samples may come from weights that are not trained.
    """
    trend, windows = run.current.get("kl", ()), run.windows
    if windows is None or not trend:
        return None
    first, last = (
        _mean(tuple((step, kl) for step, kl in trend if of.steps[0] <= step <= of.steps[-1] and np.isfinite(kl)))
        for of in windows
    )
    if not (last >= _KL and last >= _GROWS * first):
        return Below(f"Mean KL to the reference: {figure(first)}, then {figure(last)} (threshold {_KL:g}).")
    if (change := _find_changed(run)) is None:
        return NotJudged(f"The KL to the reference grew, and it takes {_GROUPS} groups to tell that nothing else did.")
    changed, sentence = change
    if changed:
        return Below(f"The KL to the reference grew to {figure(last)}, and {changed} changed with it.")
    title = f"the KL to the reference grew from {figure(first)} to {figure(last)}, and nothing that is sampled changed"
    return _card(run, title, [sentence], above(trend, _KL), _SYNC)


def _find_changed(run: Run) -> tuple[str, str] | None:
    """Return a figure of the rollouts that changed, "" if none did, and a sentence on all; None of too few groups."""
    compared = compare_over_time(run)
    every = compared.differences if compared else {}
    # Those that never vary say nothing.
    differences = {name: difference for name, difference in every.items() if difference.chance != 1.0}
    if compared is None or min((min(difference.groups) for difference in differences.values()), default=0) < _GROUPS:
        return None
    limit = max(compared.limit, SURER)
    changed = next((name for name, difference in differences.items() if (difference.chance or 0.0) <= limit), "")
    return changed, f"No change beyond chance from {compared.description}: {listed(list(differences))}."


def _surprise(rows: Rows) -> Trend:
    """Return the mean of -log p over each step's sampled tokens; steps without any are left out."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    is_known = np.isfinite(surprise) & (tokens > 0)
    sums = rows.by_step(np.where(is_known, surprise * tokens, np.nan))
    counts = rows.by_step(np.where(is_known, tokens, np.nan))
    return tuple((step, total / count) for (step, total), (_, count) in zip(sums, counts, strict=True))


def _error(rows: Rows) -> float:
    """Return the standard error of the mean over tokens, clustered by rollout (ratio estimator, Cochran 1977)."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    is_known = np.isfinite(surprise) & (tokens > 0)
    surprise, tokens = surprise[is_known], tokens[is_known]
    mean = np.average(surprise, weights=tokens)
    return float(np.sqrt(np.sum((tokens * (surprise - mean)) ** 2)) / np.sum(tokens))


def _card(run: Run, title: str, sentences: list[str], begun: dict[str, Any], advice: str = _ADVICE) -> Card:
    return Card(
        id="mismatch",
        title=f"Trainer/sampler mismatch: {title}",
        cost=run.fall.lost,
        evidence=tuple(sentences),
        suggestion=advice,
        where="",
        **begun,
        is_loss=False,
    )


def _mean(trend: Trend) -> float:
    return float(np.mean([value for _, value in trend])) if trend else float("nan")


def _missing(run: Run) -> str | None:
    by_entropy = run.scalars.get("entropy") and _surprise(run.rows)
    if by_entropy or any(run.scalars.get(name) for name in _NAMES):
        return None
    return f"the trainer's {_DIFFERENCE}"


def lag(rows: Rows) -> Floats:
    """Return (N,) versions between the policy that sampled a rollout and the one that was trained on it.

    An asynchronous trainer reports it; otherwise it is the number of steps between generating and logging.
    """
    steps = np.maximum(rows.step - rows.policy_step - 1, 0).astype(float)
    return np.where(np.isnan(rows.staleness), steps, rows.staleness)


_USES = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")  # arguments: see `reuse`


def reuse(run: Run) -> int:
    """Return the optimizer steps that one batch of rollouts is used for, by the trainer's arguments; 1 by default."""
    config = run.config
    batches, times, accumulated = (
        number if isinstance(number := config.get(name), int) and number > 0 else 1 for name in _USES
    )
    return max(batches * times // accumulated, 1)


def _find_frozen(run: Run) -> tuple[int, int] | None:
    """Return the version that all rollouts up to the last were sampled with, and the first step that had it from the
    step before; None if that is no longer than a version may stay.
    """
    version = int(run.all.policy_step[-1])
    others = run.all.step[run.all.policy_step != version]
    steps = [step for step in run.all.steps.tolist() if not len(others) or step > others.max()]
    return (version, steps[1]) if len(steps) > max(_LAG, reuse(run)) else None


def _missing_versions(run: Run) -> str | None:
    """Return what the check needs: a loop of the user's own that names no version is recorded as if each were new."""
    rows = run.all
    is_told = (
        not run.config.keys().isdisjoint(_USES[:2])  # TRL's own names
        or run.imported is not None
        or np.isfinite(rows.staleness).any()
        or (rows.policy_step != rows.step).any()
    )
    return run.lacking(Lack.POLICY_VERSIONS) if is_told else "policy_step of rollouts, or a trainer's arguments"


def _check_staleness(run: Run) -> Outcome:
    limit = run.threshold("staleness", _LAG)
    ahead = (reuse(run) - 1) / 2  # the mean over the steps that use a batch
    behind = lag(run.rows)
    is_old = behind + ahead >= limit
    share = float(is_old.mean())
    if share <= _SHARE:
        return quiet(share, f"of rollouts are {figure(limit)}+ policy versions old", _SHARE)
    gone = int(sum(value is not None for value in run.rows.dropped))
    sentences = [f"Lag in versions: mean {figure(float(behind.mean()))}, maximum {figure(float(behind.max()))}."]
    sentences += [f"Each batch is used for {reuse(run)} steps, which adds {figure(ahead)} on average."] if ahead else []
    sentences += [f"{gone} of {len(run.rows)} were dropped as too old or too large."] if gone else []
    title = f"{percent(share)} of rollouts are {figure(limit)}+ policy versions old when they are trained on"
    card = Card(
        id="staleness",
        title=title,
        cost=run.fall.lost * share,
        evidence=tuple(sentences),
        suggestion="Sample with the newest weights, generate fewer rollouts ahead, or limit the staleness.",
        where="" if ahead >= limit else f"lag>={limit - ahead:g}",
        **above(run.all.by_step(lag(run.all) + ahead >= limit), _SHARE),
        is_loss=False,
        own=is_old,
    )
    if (frozen := _find_frozen(run)) is None:
        return card
    version, first = frozen
    return replace(
        card, title=f"The sampler has kept the policy of step {version:,} since step {first:,}", suggestion=_SYNC,
        evidence=(f"{title}.", *sentences), since_step=first, since_range=None, explains=("mismatch",),
    )  # fmt: skip


NO_UPDATE = check(
    "no_update",
    "Policy not updating",
    "Over the last steps a learning rate of at most {learning_rate:g}, a gradient norm of at most {grad_norm:g}, or a "
    "KL to the reference of at most {kl:g}, while rewards differ within groups.".format_map(STANDSTILL),
    lambda run: None if any(_recent(run, name) for name in STANDSTILL) else "the trainer's learning_rate or grad_norm",
    _check_no_update,
    limits=NO_THRESHOLD,
)
MISMATCH = check(
    "mismatch",
    "Trainer/sampler mismatch",
    f"Mean |Δ log p| over the trained tokens, as the trainer logs it, above {_MEAN:g} nats (mean exp|Δ| above 1.05). "
    f"Or a mean importance-sampling ratio below {_LEAST_RATIO:g}. Or a sampler's mean of -log p that differs from the "
    f"trainer's entropy by more than {_ENTROPY:.0%} of that, {_LEAST_ENTROPY:g} nats, and {_ERRORS:g} standard errors. "
    f"Or a KL to the reference of at least {_KL:g} nats per token, {_GROWS:g} times that of the first steps, while no "
    f"figure of the rollouts changes beyond chance ({_GROUPS} groups on either side). If the mean |Δ log p| "
    "rose bit by bit from a tenth of its value or less, and no figure of the rollouts changed, the card names old "
    "weights as the likely cause.",
    _missing,
    _check_mismatch,
    source="NeMo-RL; the thresholds of ratios and entropy are ours",
    limits=FROM_NOTHING,
)
STALENESS = check(
    "staleness",
    "Staleness",
    f"More than a tenth of the rollouts are {_LAG} or more versions older than the policy that is trained on them. A "
    "batch that is used for several steps (steps_per_generation, num_iterations) is older by half of them on average. "
    f"If one version samples all rollouts up to the last, for more than {_LAG} steps and a batch's, it is named.",
    _missing_versions,
    _check_staleness,
    limits=FROM_NOTHING,
)
