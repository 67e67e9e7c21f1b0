"""Counts for what is said of the training: its log, its policy, its groups and its evaluations."""

import math
import re
from collections.abc import Callable, Iterable
from statistics import fmean, median, pstdev, stdev

import numpy as np

from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from tests.faults.columns import stop_reason
from tests.faults.policy import RATIO, SAMPLING
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    SAME,
    Case,
    Count,
    completion,
    ends_compared,
    failed,
    grouped,
    in_groups,
    is_cut,
    is_equal,
    length,
    logged,
    means,
    read_evenly,
    reward,
    rewards,
    spread_of,
    surprise,
    tasks,
    values,
    windows,
)


def all_fail(case: Case, *_: str) -> tuple[str, ...]:
    equal = [group for group in case.groups if is_equal(group)]
    failed = sum(not any(map(case.solved, group)) for group in equal)
    return str(failed), str(len(equal)), str(len(equal) - failed)


def zero_variance(case: Case, _: str, failed: str | None, whole: str | None) -> tuple[str | None, ...]:
    several = [group for group in case.groups if len(rewards(group)) > 1]
    equal = [group for group in several if is_equal(group)]
    share, low = percent(len(equal) / len(several)), min(rewards(case.last))
    if failed is None:
        return share, failed, whole
    number = sum(not any(map(case.solved, group)) and min(rewards(group)) <= low + SAME for group in equal)
    return share, str(number), str(len(equal))


def stds(case: Case) -> list[float]:
    """Return the mean standard deviation within groups of each step."""
    by_step = grouped(case.run.rollouts, lambda it: it.step)
    groups = ([pstdev(rewards(it)) for it in grouped(step, lambda it: it.group)] for step in by_step)
    return [float(np.average(step)) for step in groups]


def lag(it: Rollout) -> float:
    return float(
        it.staleness
        if it.staleness is not None
        else max(it.step - (it.step if it.policy_step is None else it.policy_step) - 1, 0)
    )


def reused(case: Case) -> float:
    """Return by how many versions a batch is older on average, as it is used for several steps."""
    of = {"steps_per_generation": 1, "num_iterations": 1, "gradient_accumulation_steps": 1} | dict(case.run.config)
    return float(max(of["steps_per_generation"] * of["num_iterations"] // of["gradient_accumulation_steps"], 1) - 1) / 2


def mismatch(case: Case, _: str) -> tuple[str, ...]:
    points = case.run.scalars[SAMPLING].items()
    return (means(value for step, value in points if step >= case.last[0].step),)


def mismatch_of_sampler(case: Case, *_: str) -> tuple[str, ...]:
    hits, others = ([it for it in case.last if it.is_hit is side] for side in (True, False))
    apart, beside = (
        means(
            it.metadata["metrics"]["sampling_logp_difference"] if "metrics" in it.metadata else lag(it) for it in side
        )
        for side in (hits, others)
    )
    samplers = {it.metadata["sampler"] for it in hits}
    return *mismatch(case, ""), apart, " or ".join(samplers), beside


def grown(case: Case, *_: str) -> tuple[str, ...]:
    """Return the ends of a mismatch that rises, of a policy that samples as ever."""
    points = sorted(case.run.scalars[SAMPLING].items())
    assert points[0][1] < 0.1 * points[-1][1]
    assert abs(fmean(rewards(windows(case)[0])) - fmean(rewards(windows(case)[1]))) < 0.1
    return figure(float(np.median([value for _, value in points[:3]]))), "3", mismatch(case, "")[0]


def kl_alone(case: Case, *_: str) -> tuple[str, ...]:
    """Return the mean KL of the first steps and of the last, if neither rewards nor lengths moved by three errors."""
    sides = windows(case)
    for measure in (rewards, lambda group: [length(it) for it in group]):
        first, last = ([fmean(measure(group)) for group in in_groups(side)] for side in sides)
        assert abs(fmean(first) - fmean(last)) <= 3 * math.hypot(*(stdev(it) / len(it) ** 0.5 for it in (first, last)))
    steps = [{it.step for it in side} for side in sides]
    return tuple(figure(fmean(kl for step, kl in case.run.scalars["kl"].items() if step in of)) for of in steps)


def unchanged(case: Case, *said: str) -> tuple[str, ...]:
    """Return the steps that are compared; what did not change is as it is said."""
    ends = [str(end) for side in windows(case) for end in (min(it.step for it in side), max(it.step for it in side))]
    return *ends, *said[4:]


def broken(case: Case, name: str) -> tuple[str, ...]:
    """Return the name of a logged figure, how many steps it is no number up to the last, the first, and that before."""
    steps = [step for step, value in case.run.scalars[name].items() if not np.isfinite(value)]
    finite = [step for step, value in case.run.scalars[name].items() if np.isfinite(value)]
    assert steps[0] > finite[-1]
    return name, str(len(steps)), str(steps[0]), str(finite[-1])


def names_of_broken(case: Case, _: str) -> tuple[str, ...]:
    logged = {name: [*points.values()][-1] for name, points in case.run.scalars.items()}
    names = [it for it in ("loss", "grad_norm", "kl", "entropy") if not np.isfinite(logged.get(it, 0.0))]
    return (" and ".join(", ".join(names).rsplit(", ", 1)),)


def rounds(case: Case) -> list[tuple[int, float, float]]:
    """Return of each evaluation its step, its mean reward, and that of the steps since the one before."""
    steps = sorted({it.step for it in case.run.evaluation})
    by_step = {it.step: [] for it in case.run.rollouts}  # type: dict[int, list[float | None]]
    for it in case.run.rollouts:
        by_step[it.step].append(reward(it))
    return [
        (
            step,
            fmean(reward(it) or 0.0 for it in case.run.evaluation if it.step == step),
            fmean(fmean(it or 0.0 for it in by_step[of]) for of in by_step if before < of <= step),
        )
        for before, step in zip([0, *steps], steps, strict=False)
    ]


def evaluated(case: Case, *_: str) -> tuple[str, ...]:
    every = rounds(case)
    ends = every[: len(every) // 3], every[-(len(every) // 3) :]
    return tuple(figure(fmean(it[column] for it in end)) for column in (1, 2) for end in ends)


def told_by_system(case: Case, *_: str) -> tuple[str, ...]:
    """Return how many rollouts of training and evaluation are read, and which of either have a system message."""
    sides = read_evenly(case, 60), evaluated_of(case)
    told = [{it.prompt[0]["role"] == "system" for it in side} for side in sides]
    said = [{frozenset([True]): "all", frozenset([False]): "none"}.get(frozenset(it), "some") for it in told]
    return f"{len(sides[0])}", said[0], f"{len(sides[1])}", said[1]


def ends_so(case: Case) -> Callable[[Rollout], bool]:
    """Return whether a rollout ends as the title says."""
    ways: dict[str, Callable[[Rollout], bool]] = {
        "truncated": is_cut, "with an error": failed, "out of turns": lambda it: stop_reason(it) == "turn_limit",
    }  # fmt: skip
    (way,) = (is_so for words, is_so in ways.items() if words in case.card.title)
    return way


def end_otherwise(case: Case, *_: str) -> tuple[str, ...]:
    evaluation, training = (percent(fmean(map(ends_so(case), side))) for side in ends_compared(case))
    return evaluation, training


def counted_ends(case: Case, side: int) -> tuple[str, str]:
    rollouts = ends_compared(case)[side]
    return str(sum(map(ends_so(case), rollouts))), str(len(rollouts))


def paid_ends(case: Case, *_: str) -> tuple[str, ...]:
    way, (evaluation, _training) = ends_so(case), ends_compared(case)
    theirs, others = (
        figure(fmean(reward(it) or 0.0 for it in evaluation if way(it) is side)) for side in (True, False)
    )
    return theirs, others


def most_ends(case: Case, _: str, name: str, __: str) -> tuple[str, str, str]:
    """Return the longest of the evaluation that end so, and of the training."""
    way, (evaluation, training) = ends_so(case), ends_compared(case)

    def longest(rollouts: Iterable[Rollout]) -> str:
        if name == "turns":
            return str(max(len(it.turns) for it in rollouts))
        return str(max(len(it.tokens.completion_ids) for it in rollouts if it.tokens))

    return longest(filter(way, evaluation)), name, longest(training)


def best_evaluations(case: Case, *_: str) -> tuple[str, ...]:
    """Return the mean of the best three in a row, and the steps of the first and the last of them."""
    every = rounds(case)
    threes = [(fmean(mean for _, mean, _ in every[at : at + 3]), every[at][0], every[at + 2][0])
              for at in range(len(every) - 2)]  # fmt: skip
    mean, first, last = max(threes, key=lambda three: three[0])
    return figure(mean), f"{first}", f"{last}"


def kept(case: Case, *_: str) -> tuple[str, str]:
    """Return the version of the last rollout, and the first step of which all have it, as all of the step before."""
    version = case.run.rollouts[-1].policy_step
    since = max(it.step for it in case.run.rollouts if it.policy_step != version) + 2
    return str(version), str(since)


def evaluated_of(case: Case) -> list[Rollout]:
    """Return the rollouts of the evaluation that are read."""
    every = case.run.evaluation
    return list(every[:: -(-len(every) // 60) or 1])


def of_evaluation(case: Case) -> tuple[str, ...]:
    """Return how many answers equal their reference, and count, of the evaluation and of the training."""
    said = []
    for side in (evaluated_of(case), spread_of(case)):
        equal = [it for it in side if re.findall(r"answer: (\w+)", it.turns[-1].text.replace(",", ""))[0].casefold()
                 == it.metadata["answer"]]  # fmt: skip
        said.append((str(sum(map(case.solved, equal))), str(len(equal))))
    return *said[0], *said[1]


COUNTS: dict[str, Count] = {
    "# of groups have zero reward variance, and so zero advantage[: in # of these # every rollout fails, at the lowest "
    "reward]": zero_variance,
    "In # of these # groups no rollout is solved; # hold solved ones.": all_fail,
    "Std within the others: #.": lambda c, _: (
        figure(fmean(pstdev(rewards(it)) for it in c.groups if len(rewards(it)) > 1 and not is_equal(it))),
    ),
    "Median std over the # steps before step #: #. Mean over the last 3: #.": lambda c, _, step, *__: (
        str(min(20, int(step) - 1)), step, figure(median(stds(c)[: int(step) - 1][-20:])), figure(fmean(stds(c)[-3:])),
    ),
    "The reward std within groups fell from # to #": lambda c, *_: (
        figure(median(stds(c)[: (c.card.since_step or len(stds(c)) - 2) - 1][-20:])), figure(fmean(stds(c)[-3:])),
    ),
    "Lag in versions: mean #, maximum #.": lambda c, *_: (means(map(lag, c.last)), figure(max(map(lag, c.last)))),
    "# of rollouts are 4+ policy versions old when they are trained on[.]": lambda c, _: (
        c.share(lambda it: lag(it) + reused(c) >= 4),
    ),
    "The sampler has kept the policy of step # since step #": kept,
    "Each batch is used for # steps, which adds # on average.": lambda c, *_: (
        str(int(2 * reused(c) + 1)), figure(reused(c)),
    ),
    "The policy is not updated: # is #": lambda c, name, _: (name, figure(logged(c, name))),
    "# is at most # over the last steps.": lambda c, name, _: (name, figure(logged(c, name))),
    "@ are NaN or infinite": names_of_broken,
    "#: NaN or infinite at all # logged steps from # on, last finite at step #.": lambda c, name, *_: broken(c, name),
    "Rewards differ in # of # groups: there is a signal.": lambda c, *_: (
        str(sum(np.ptp(rewards(it)) > SAME for it in c.groups)), str(len(c.groups)),
    ),
    "Trainer/sampler mismatch: # nats per token": mismatch,
    "Trainer/sampler mismatch: # nats per token: # in metadata.sampler # (# elsewhere)": mismatch_of_sampler,
    "Trainer/sampler mismatch: # nats per token: weights # versions old in metadata.sampler # (# elsewhere)": (
        mismatch_of_sampler
    ),
    "Mean |log p (trainer) - log p (sampler)|: # nats per token.": mismatch,
    "The mismatch grows from # (median of the first # points) to #, as if the sampler did not get the trainer's "
    "weights: a wrong dtype or temperature shows from the first step on.": grown,
    "Trainer/sampler mismatch: the mean importance-sampling ratio is #": lambda c, _: (figure(logged(c, RATIO)),),
    "If both agree it is 1. The loss is weighted by it: # of the gradient is lost.": lambda c, _: (
        percent(1 - logged(c, RATIO)),
    ),
    "Trainer/sampler mismatch: sampler NLL # vs trainer entropy # nats per token": lambda c, *_: (
        figure(surprise(c)), figure(logged(c, "entropy")),
    ),
    "Trainer/sampler mismatch: the KL to the reference grew from # to #, and nothing that is sampled changed": kl_alone,
    "No change beyond chance from steps #\u2013# against #\u2013#: @.": unchanged,
    "The sampler's mean of -log p is # nats per token; the trainer's entropy over the same tokens is #.": (
        lambda c, *_: (figure(surprise(c)), figure(logged(c, "entropy")))
    ),
    "Evaluation rewards go from # to #, training rewards from # to #": evaluated,
    "Means of the first and last # of # evaluations (planted), and of steps before.": lambda c, *_: (
        f"{len(rounds(c)) // 3}", f"{len(rounds(c))}",
    ),
    "Best 3 evaluations in a row: mean #, steps # to #.": best_evaluations,
    **{
        f"# of evaluation rollouts {ends}, # of training rollouts": end_otherwise
        for ends in ("are truncated at the token limit", "fail with an error", "run out of turns")
    },
    "# of # rollouts in the last # evaluations (planted, up to step #).": lambda c, *_: (
        *counted_ends(c, 0), str(len({it.step for it in ends_compared(c)[0]})), str(c.run.evaluation[-1].step),
    ),
    "# of # rollouts in the last evaluation (planted, up to step #).": lambda c, *_: (
        *counted_ends(c, 0), str(c.run.evaluation[-1].step) * (len({it.step for it in ends_compared(c)[0]}) == 1),
    ),
    "# of # training rollouts, at most 2 steps away.": lambda c, *_: counted_ends(c, 1),
    "Mean reward: these rollouts #, other evaluation rollouts #.": paid_ends,
    "The longest of these has # #, the longest training rollout #.": most_ends,
    "Of # rollouts of the training that were read, # have a system message; of # of the evaluation, #.": told_by_system,
    "Half of the tasks were trained on at # steps or more.": lambda c, _: (
        f"{median(len({it.step for it in mine}) for mine in tasks(c.run.rollouts).values()):g}",
    ),
    "# of the # have equal completions only.": lambda c, *_: (
        str(sum(len(set(map(completion, g))) == 1 for g in c.groups if is_equal(g))), str(sum(map(is_equal, c.groups))),
    ),
    "@ differs between groups, but never within one, though completions differ in # of all # groups.": lambda c, *_: (
        listed([
            name for name in c.last[0].values or {}
            if len(set(values(c.last, name))) > 1 and all(len(set(values(group, name))) == 1 for group in c.groups)
        ]),
        str(sum(len(set(map(completion, group))) > 1 for group in c.groups)), str(len(c.groups)),
    ),
    "# of # evaluation answers that equal their reference count as solved; in training # of # do": lambda c, *_: (
        of_evaluation(c)
    ),
    "# answers were read in the evaluation (@), # in training.": lambda c, _, name, __: (
        str(len(evaluated_of(c))), name if name == c.run.eval_name else "", str(len(spread_of(c))),
    ),
    "Reference: @. Solved: @.": lambda c, column, text: (
        column if column in c.last[0].metadata else "", text if text == "correct \u2265 1" else "",
    ),
    "Such answers that do not count: @.": lambda c, text: (
        text
        if set(re.findall(r"(\S+(?: kg)?) \(for", text))
        <= {re.findall(r"answer: (.*)", it.turns[-1].text)[0] for it in c.run.evaluation if not c.solved(it)}
        else "",
    ),
}  # fmt: skip
