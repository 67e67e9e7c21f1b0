"""What the cards say of realistic runs, against a count of what the generator meant."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run
from logs_ui.recorder.diagnosis import Card
from logs_ui.recorder.diagnosis.tables.tasks import Label, figures, labels
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import LossCause
from tests.faults.realistic import Realistic, Truth, counting
from tests.faults.realistic.counting import ATTEMPTS, SAME, by, cause_of, is_dead, tried, twins
from tests.faults.realistic.recorded import Judged, Recorded, judged, recorded
from tests.faults.realistic.registry import RUNS, each, of

PLANTED = [run for run in RUNS if run.expected is not None]
WITH_OUTCOME = [run for run in RUNS if run.kind != "judge"]
HABIT = re.compile(r"In low rollouts of (\d+) groups: (?:.*?; )?(turns) ([\d,.]+), in better ones ([\d,.]*\d)[.;]")


def card_of(found: Judged, cause: str | None = None) -> Card:
    """Return the card of a cause, by default the one that must come first."""
    cards = {card.id: card for card in found.diagnosed.report.cards}
    name = cause or found.truth.expected
    assert name in cards, list(cards)
    return cards[name]


def opened(found: Recorded, where: str) -> set[tuple[str, int]]:
    """Return (group, generation) of the rollouts that a filter opens."""
    frame = load_run(found.truth.run, found.db, where=where, columns=["group", "generation"])
    return {
        (group.partition("/train/")[2], int(number))
        for group, number in zip(frame.group, frame.generation, strict=True)
    }


def keys(rollouts: Iterable[Mapping[str, Any]]) -> set[tuple[str, int]]:
    return {(it["group"], it["generation"]) for it in rollouts}


def shown(card: Card) -> str:
    """Return all sentences of a card."""
    return " ".join([card.title, *card.evidence, card.suggestion])


def has_number(text: str, value: float) -> bool:
    """Return True if a text contains a number, rounded in one of the usual ways."""
    forms = {
        figure(value),
        f"{value:,.0f}" if float(value).is_integer() else figure(value),
        f"{value:.2f}",
        f"{value:.3f}",
    }
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?![\d]|\.\d)", text) for form in forms)


# --- Cards


@each(RUNS)
def test_the_first_card_names_the_cause(run: Realistic) -> None:
    report = judged(run.id).diagnosed.report
    assert not report.warming_up
    cards = [(card.id, card.title) for card in report.cards]
    assert (cards[0][0] if cards else None) == run.expected, cards


@pytest.mark.exhaustive
@each([run for run in PLANTED if run.also])
def test_the_other_planted_causes_have_a_card_too(run: Realistic) -> None:
    found = judged(run.id)
    for cause, step in run.also.items():
        card = card_of(found, cause)
        assert step is None or abs((card.since_step or 0) - step) <= 2, card.since_step


@each(RUNS)
def test_each_card_is_a_planted_cause_or_its_result(run: Realistic) -> None:
    results = {"dead_groups", "signal_cliff", "forgotten", "new_habit"} if run.expected else set()
    said = {card.id: card.title for card in judged(run.id).diagnosed.report.cards}
    assert said.keys() <= {run.expected, *run.also, *results}, said


@each(PLANTED)
def test_its_step_is_the_planted_one(run: Realistic) -> None:
    card = card_of(judged(run.id))
    if run.since is None:
        assert card.since_step is None or card.since_step <= 3, card.since_step
    else:
        assert card.since_step is not None
        assert abs(card.since_step - run.since) <= 2, card.since_step


@each(PLANTED)
def test_its_figures_are_those_of_the_truth(run: Realistic) -> None:
    found = judged(run.id)
    FIGURES[run.expected or ""](found, card_of(found))


def _truncation(found: Judged, card: Card) -> None:
    cut = [it for it in found.last_steps if it["truncated"]]
    others = [it for it in found.last_steps if not it["truncated"]]
    assert percent(len(cut) / len(found.last_steps)) in card.title
    assert has_number(shown(card), fmean(it["reward"] for it in tried(cut)))
    assert has_number(shown(card), fmean(it["reward"] for it in tried(others)))
    assert has_number(shown(card), fmean(it["cut_tokens"] for it in cut))
    if limits := {it["limit"] for it in cut} - {None}:
        assert has_number(card.suggestion, limits.pop())
        given = found.diagnosed.config["max_completion_length"]
        assert not has_number(card.suggestion, given), "it is not the limit that was hit"


def _forgotten(found: Judged, card: Card) -> None:
    truth, since = found.truth, card.since_step
    assert since is not None
    tasks = {it["task"] for it in truth.of("forgotten")}
    families = {it["family"] for it in truth.of("forgotten")}
    comes_once = len(tasks) > 10
    assert all(name in shown(card) for name in (families if comes_once else tasks))
    key, gone = ("family", families) if comes_once else ("task", tasks)
    assert re.match(rf"{len(gone)} of {len({it[key] for it in truth.rollouts})} ", card.title)
    mine = [it for it in truth.rollouts if it[key] in gone and it["reward"] is not None]
    before, after = ([it["solved"] for it in mine if (it["step"] < since) is first] for first in (True, False))
    assert f"{sum(before)} of {len(before)} attempts" in shown(card)
    assert f"{sum(after)} of {len(after)} since" in shown(card)
    assert percent(fmean(before)) in card.title
    assert percent(fmean(after)) in card.title


def _infrastructure(found: Judged, card: Card) -> None:
    broken = [it for it in found.last_steps if it["errored"]]
    assert percent(len(broken) / len(found.last_steps)) in card.title
    assert "out of memory" in shown(card)
    assert has_number(shown(card), len(broken))
    assert all(it["task"] in shown(card) for it in broken)


def _diversity(found: Judged, card: Card) -> None:
    entropy = found.truth.scalars["entropy"]
    assert has_number(shown(card), entropy[max(entropy)]) or has_number(shown(card), fmean(list(entropy.values())[-3:]))
    assert "sampler" not in shown(card), "no log-probs are recorded"


def _reward_parts(found: Judged, card: Card) -> None:
    name = "correctness_reward_func"
    assert name in shown(card)
    assert has_number(shown(card), found.truth.weights[name])


def _length(found: Judged, card: Card) -> None:
    assert re.search(r"r = (1|0\.99\d*|>0\.99)\b", shown(card))
    assert "answers follow" not in card.title, "answers do not grow"


def _inconsistent(found: Judged, card: Card) -> None:
    alike, differing = twins(found.last_steps)
    counts = [len({(it["task"], it["text"]) for it in some}) for some in (differing, alike)]
    assert "{} of {} ".format(*counts) in card.title
    assert has_number(shown(card), len(alike))
    assert has_number(shown(card), len(differing))


def _parse_failures(found: Judged, card: Card) -> None:
    turns = sum(it["turns"] for it in found.last_steps)
    share = sum(it["fallbacks"] for it in found.last_steps) / turns
    rollouts = fmean(it["fallbacks"] > 0 for it in found.last_steps)
    assert percent(share) in card.title or percent(rollouts) in card.title
    assert "noop" in shown(card)


def _staleness(found: Judged, card: Card) -> None:
    assert percent(fmean(it["staleness"] >= 4 for it in found.last_steps)) in card.title
    assert has_number(shown(card), fmean(it["staleness"] for it in found.last_steps))
    assert has_number(shown(card), max(it["staleness"] for it in found.last_steps))
    assert has_number(shown(card), sum(it["dropped"] for it in found.last_steps))


def _invalid_reward(found: Judged, card: Card) -> None:
    bad = [it for it in found.last_steps if it["reward"] is None]
    assert percent(len(bad) / len(found.last_steps)) in card.title
    assert has_number(shown(card), len(bad))
    assert "code_tests" in shown(card)


FIGURES: dict[str, Callable[[Judged, Card], None]] = {
    "truncation": _truncation, "forgotten": _forgotten, "infrastructure": _infrastructure, "diversity": _diversity,
    "reward_parts": _reward_parts, "length": _length, "inconsistent": _inconsistent,
    "parse_failures": _parse_failures, "staleness": _staleness, "invalid_reward": _invalid_reward,
}  # fmt: skip


@pytest.mark.exhaustive
@of(PLANTED, 2)
def test_its_link_opens_exactly_its_rollouts(run: Realistic) -> None:
    found = recorded(run.id)
    card = card_of(found)
    rollouts = opened(found, card.where)
    # A card is about the last steps, or about the steps that its own filter names.
    first, last = _steps(found, card)
    within = [it for it in found.truth.rollouts if first <= it["step"] <= last]
    if run.expected in {"diversity", "reward_parts"}:
        assert rollouts <= keys(within)
        assert len(rollouts) >= 0.1 * len(within), "it is about most groups"
    elif run.expected == "length":
        middle = median(it["tokens"] for it in within)
        assert rollouts in (keys(within), keys(it for it in within if it["tokens"] >= middle))
    elif run.expected == "forgotten":
        tasks, since = {it["task"] for it in found.truth.of("forgotten")}, run.since or 1
        assert rollouts == keys(it for it in within if it["task"] in tasks and (it["step"] >= since or first < since))
    elif run.expected == "inconsistent":
        assert rollouts == keys(twins(within)[1])
    else:
        assert rollouts == keys(it for it in within if run.expected in it["causes"])


def _steps(found: Judged, card: Card) -> tuple[int, int]:
    steps = found.diagnosed.report.steps
    assert steps is not None
    named = re.search(r"step:(\d+)\.\.(\d+)", card.where)
    since = re.search(r"step>=(\d+)", card.where)
    if named:
        return int(named[1]), int(named[2])
    return (int(since[1]), steps[1]) if since else steps


# --- The loss of rollouts that ended by themselves


@of(RUNS, 2)
def test_what_is_said_of_low_rollouts_is_true(run: Realistic) -> None:
    found = recorded(run.id)
    report, rows = found.diagnosed.report, found.last_steps
    low = [it for it in rows if cause_of(it) == LossCause.WRONG_ANSWER and it["reward"] < report.fall.best - SAME]
    lost = sum(report.fall.best - it["reward"] for it in low)
    card = report.scored_low
    if card is None:
        assert lost < 0.1 * report.fall.lost * len(rows) or report.fall.lost <= 0.1 * report.fall.best
        return
    assert opened(found, card.where) == keys(low)
    assert percent(min(lost / len(rows) / report.fall.lost, 1.0)) in card.title
    evidence = " ".join(card.evidence)
    ended = [it for it in rows if it["reward"] is not None and cause_of(it) == LossCause.WRONG_ANSWER]
    for name, mean in re.findall(r"(\S+) \(mean reward ([\d.\u2212]+)\)", evidence):
        of_task = [it["reward"] for it in ended if it["task"] == name or it["task"].startswith(name)]
        assert mean == figure(fmean(of_task)), name
    parts = re.search(r"best 1% of rollouts, averaged over all and weighted: (.+?) less\.", evidence)
    assert parts or run.kind != "coding", evidence
    if parts:
        for name, less in re.findall(r"(\w+) ([\d.\u2212]+)", parts[1]):
            assert less == figure(_shortfall(found, low, name)), name
    for groups, what, theirs, others in HABIT.findall(evidence) if run.kind != "judge" else ():
        assert (theirs, others, int(groups)) == _habit(found, low, what)


def _shortfall(found: Judged, low: list[Mapping[str, Any]], name: str) -> float:
    """Return how much less the low rollouts get of a function than the best hundredth of the run, per rollout. It
    scored none of those without a number.
    """
    rewards = [-math.inf if it["reward"] is None else it["reward"] for it in found.truth.rollouts]
    least = float(np.percentile(rewards, 99))
    best = [it for it, reward in zip(found.truth.rollouts, rewards, strict=True) if reward >= least]
    top, mine = ([value for it in side if (value := it["values"][name]) is not None] for side in (best, low))
    return (fmean(top) - fmean(mine)) * found.truth.weights[name] * len(mine) / len(found.last_steps)


def _habit(found: Judged, low: list[Mapping[str, Any]], what: str) -> tuple[str, str, int]:
    """Return the means of low rollouts and of those that solved the task, and the number of groups that have both. A
    group with m and n of them has the weight mn / (m + n).
    """
    low_keys = keys(low)
    sides: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for it in found.last_steps:
        if it["solved"] or ((it["group"], it["generation"]) in low_keys):
            sides[it["group"]][it["solved"]].append(it[what])
    both = [
        (one, other, len(one) * len(other) / (len(one) + len(other))) for one, other in sides.values() if one and other
    ]
    weights = sum(weight for *_, weight in both)
    ours = sum(fmean(one) * weight for one, _, weight in both) / weights
    theirs = sum(fmean(other) * weight for _, other, weight in both) / weights
    return figure(ours), figure(theirs), len(both)


# --- Checks without a card


@each(RUNS)
def test_the_figures_of_checks_without_a_card_are_true(run: Realistic) -> None:
    found = judged(run.id)
    wrong = {}
    for it in found.diagnosed.report.checked:
        if it.state == "below" and (expected := BELOW.get(it.id)) is not None:
            said, truth = numbers(it.said), expected(found)
            if not all(any(abs(one - value) <= max(0.006, 0.006 * abs(one)) for value in said) for one in truth):
                wrong[it.id] = (it.said, truth)
    assert not wrong


def numbers(text: str) -> list[float]:
    """Return the numbers of a text; percentages as shares, `<1%` as a half."""
    found = []
    for sign, value, unit in re.findall(r"([<>]?)([\u2212-]?\d[\d,]*(?:\.\d+)?)(%?)", text):
        one = float(value.replace(",", "").replace("\u2212", "-")) + {"<": -0.5, ">": 0.5}.get(sign, 0.0)
        found.append(one / 100 if unit else one)
    return found


def _share(found: Judged, is_so: Callable[[Mapping[str, Any]], bool]) -> list[float]:
    return [fmean(is_so(it) for it in found.last_steps)]


def _zero_variance(found: Judged) -> list[float]:
    groups = [group for group in by("group", tried(found.last_steps)).values() if len(group) > 1]
    all_fail = [fmean(is_dead(it) and not any(one["solved"] for one in it) for it in groups)]
    return [fmean(map(is_dead, groups)), *(all_fail if found.truth.kind != "judge" else [])]


def _length_r(found: Judged) -> list[float]:
    pairs = []
    for group in by("group", tried(it for it in found.last_steps if not it["errored"])).values():
        lengths, rewards = [it["tokens"] / it["turns"] for it in group], [it["reward"] for it in group]
        pairs += [(x - fmean(lengths), y - fmean(rewards)) for x, y in zip(lengths, rewards, strict=True)]
    norm = (sum(x * x for x, _ in pairs) * sum(y * y for _, y in pairs)) ** 0.5
    return [sum(x * y for x, y in pairs) / norm] if norm else []


def _many_attempts(found: Judged) -> list[float]:
    return [sum(len(mine) >= ATTEMPTS for mine in by("task", tried(found.truth.rollouts)).values())]


def _families(found: Judged) -> list[float]:
    """Count tasks with many attempts; families, if tasks come once or twice."""
    if any(often := _many_attempts(found)):
        return often
    return [sum(len(mine) >= ATTEMPTS for mine in by("family", tried(found.truth.rollouts)).values())]


def _range(found: Judged) -> list[float]:
    rewards = [it["reward"] for it in found.last_steps if it["reward"] is not None]
    return [min(rewards), max(rewards)]


BELOW: dict[str, Callable[[Judged], list[float]]] = {
    "infrastructure": lambda found: _share(found, lambda it: it["errored"]),
    "invalid_reward": lambda found: [sum(it["values"] is not None for it in found.last_steps)],
    "parse_failures": lambda found: [
        sum(it["fallbacks"] for it in found.last_steps) / sum(it["turns"] for it in found.last_steps)
    ],
    "truncation": lambda found: _share(found, lambda it: it["truncated"]),
    "loops": lambda found: _share(found, lambda it: it["ends_in_streak"]),
    "never_acted": lambda found: [0.0],  # a rollout without an environment does not fail to act in it
    "staleness": lambda found: _share(found, lambda it: (it["staleness"] or 0) >= 4),
    "dead_groups": _zero_variance,
    "constant_reward": _range,
    "length": _length_r,
    "never_solved": _many_attempts,
    "forgotten": _families,
}
"""The figures that a check below its threshold must name, by its id."""


# --- The loss


@each(RUNS)
def test_no_cost_is_above_the_loss(run: Realistic) -> None:
    report = judged(run.id).diagnosed.report
    costs = {card.id: card.cost for card in report.cards if card.cost is not None}
    assert all(0 <= cost <= report.fall.lost + SAME for cost in costs.values()), (costs, report.fall.lost)


@of(RUNS, 2)
def test_the_parts_of_the_loss_add_up_and_hold_the_rollouts_of_the_truth(run: Realistic) -> None:
    found = recorded(run.id)
    fall = found.diagnosed.report.fall
    rewards = [it["reward"] or 0.0 for it in found.last_steps]
    assert fall.mean == pytest.approx(fmean(rewards))
    assert fall.lost == pytest.approx(fall.best - fmean(rewards))
    assert sum(share.cost for share in fall.shares) - fall.above == pytest.approx(fall.lost)
    lost = [it for it in found.last_steps if (it["reward"] or 0.0) < fall.best - SAME]
    assert {share.cause.id: share.rollouts for share in fall.shares} == Counter(map(cause_of, lost))
    scope = found.diagnosed.report.scope
    for share in fall.shares:
        mine = keys(it for it in lost if cause_of(it) == share.cause.id)
        assert opened(found, f"{share.where} {scope}") == mine, share.where


# --- Solved


def shares_of(truth: Truth) -> dict[str, float]:
    """Return the share of the attempts at each task that solved it."""
    return {task: fmean(it["solved"] for it in mine) for task, mine in by("task", tried(truth.rollouts)).items()}


@each(WITH_OUTCOME)
def test_solved_is_what_the_generator_means(run: Realistic) -> None:
    found = judged(run.id)
    rows, scale = found.diagnosed.rows, found.diagnosed.report.scale
    share = figures(rows, scale, found.truth.size).share
    assert dict(zip(rows.tasks, share.tolist(), strict=True)) == pytest.approx(shares_of(found.truth))


@each([run for run in RUNS if run.kind == "judge"])
def test_without_an_outcome_no_task_is_said_to_be_solved_or_not(run: Realistic) -> None:
    found = judged(run.id)
    rows, scale = found.diagnosed.rows, found.diagnosed.report.scale
    said = set(labels(rows, scale).label.tolist())
    assert said.isdisjoint({Label.NEVER, Label.FORGOTTEN, Label.SATURATED}), said


@each(WITH_OUTCOME)
def test_labels_are_true(run: Realistic) -> None:
    found = judged(run.id)
    rows, scale = found.diagnosed.rows, found.diagnosed.report.scale
    said = dict(zip(rows.tasks, labels(rows, scale).label.tolist(), strict=True))
    assert said == counting.labels(found.truth)


# --- The shelf


def test_no_two_runs_share_an_id() -> None:
    assert len({run.id for run in RUNS}) == len(RUNS)


def test_each_kind_has_a_healthy_run_and_a_planted_one() -> None:
    for kind in {run.kind for run in RUNS}:
        assert {run.expected is None for run in RUNS if run.kind == kind} == {True, False}
