"""What the pages say of realistic runs, against a count of what the generator meant."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import unescape
from itertools import pairwise
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from logs_ui.app.commands.cli import app
from logs_ui.app.main import create_app
from logs_ui.app.web import urls
from logs_ui.recorder import load_run
from logs_ui.recorder.diagnosis.tables.tasks import Label
from tests.faults.realistic import Realistic, Truth
from tests.faults.realistic.counting import ATTEMPTS, Rollouts, by, is_dead, label_of, mean, tried
from tests.faults.realistic.recorded import Recorded, recorded
from tests.faults.realistic.registry import RUNS, of
from tests.support.exhaustive import cases
from tests.support.page_text import Table, read, with_columns

WITH_OUTCOME = [run for run in RUNS if run.kind != "judge"]
STATUS = {
    Label.FEW: "few attempts", Label.NEVER: "never solved", Label.FORGOTTEN: "regressed",
    Label.SATURATED: "saturated", Label.LEARNING: "partly solved",
}  # fmt: skip
"""How the names of tasks' states begin."""
LOOKS_AT_ACTIONS = ("Loops", "Never acted", "Parse failures")
LOOKS_AT_TASKS = ("Never solved", "Regressed tasks")


@cache
def _client(db: Path) -> TestClient:
    return TestClient(create_app(db), base_url="http://127.0.0.1")


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    _client.cache_clear()


@cache
def page(db: Path, address: str) -> tuple[str, list[Table]]:
    answer = _client(db).get(address)
    assert answer.status_code == 200, answer.text
    return read(answer.text)


def of_run(recording: Recorded, *parts: str, **parameters: str) -> tuple[str, list[Table]]:
    """Return text and tables of a page about a run's diagnosis."""
    # The first request may only say that it is computed.
    _client(recording.db).get(urls.why(recording.truth.run, wait="1"))
    return page(recording.db, urls.why(recording.truth.run, *parts, **parameters))


def number(text: str) -> float | None:
    """Return the number that a cell begins with; None for a dash or a word. `<1%` is 0.5%."""
    match = re.match(r"(<|>)?([+\u2212-]?[\d,]*\.?\d+(?:e[+\u2212-]?\d+)?)(k?)(%?)", text.strip())
    if not match:
        return None
    value = float(match[2].replace(",", "").replace("\u2212", "-")) * (1000 if match[3] else 1)
    value += {"<": -0.5, ">": 0.5}.get(match[1] or "", 0.0)
    return value / 100 if match[4] else value


def is_near(cell: str, truth: float | None, least: float = 0.0051) -> bool:
    """Return True if a cell shows the number, as far as its digits go. None is a cell without a number."""
    shown_number = number(cell)
    if truth is None or shown_number is None:
        return truth is None and shown_number is None
    return abs(shown_number - truth) <= max(least, 0.006 * abs(truth), 51.0 if cell.endswith("k") else 0.0)


def pass_at(rollouts: Iterable[Mapping[str, Any]], k: int) -> float | None:
    """Return the probability that one of k rollouts of a group solves it, mean over groups of k or more."""
    chances = []
    for group in by("group", tried(rollouts)).values():
        won = sum(rollout["solved"] for rollout in group)
        if len(group) >= k:
            chances.append(1 - math.comb(len(group) - won, k) / math.comb(len(group), k))
    return mean(chances)


# --- Why


@of([run for run in RUNS if not run.expected and run.kind != "judge"], 2)
def test_the_verdict_on_a_healthy_run_is_true(run: Realistic) -> None:
    """What is solved, in the last steps, or within the tasks that the first steps and the last have in common."""
    recording = recorded(run.id)
    sentence = recording.diagnosed.report.verdict.said
    assert sentence in of_run(recording)[0]
    match = re.fullmatch(
        r"No fault found[\w, ]*: solved (\d+%)(?:, mean reward (\S+))?(?:; at the same tasks (\S+))?"
        r"(?: \u2192 (\S+) \((?:steps 1\u2013(\d+) against (\d+)\u2013\d+(.*?)|a line over all steps)\))?"
        r"(?:; rewards are equal within (\S+) of groups)?",
        sentence,
    )
    assert match is not None, sentence
    level, paid, at_same, after, first, last, mix, equal = match.groups()
    if paid or at_same or not after:
        assert is_near(level, fmean(rollout["solved"] for rollout in tried(recording.last_steps)))
    if equal:
        assert is_near(equal, fmean(map(is_dead, by("group", recording.last_steps).values())))
    if not after:
        return
    rollouts, figure = tried(recording.truth.rollouts), "reward" if paid else "solved"
    before = paid or at_same or level
    ends = ends_of_line(rollouts, figure) if first is None else ends_of(rollouts, figure, int(first), int(last), mix)
    assert [is_near(cell, end) for cell, end in zip((before, after), ends, strict=True)] == [True, True], sentence


def ends_of(rollouts: Rollouts, figure: str, first: int, last: int, mix: str) -> list[float]:
    """Return the means up to the `first` step and from the `last` on: with `mix`, within the tasks that both hold."""
    sides = (
        [rollout for rollout in rollouts if rollout["step"] <= first],
        [rollout for rollout in rollouts if rollout["step"] >= last],
    )
    strata = [by("task", side) if mix else {"": side} for side in sides]
    weights = {name: len(a) * len(b) / (len(a) + len(b)) for name, a in strata[0].items() if (b := strata[1].get(name))}
    return [
        sum(weight * fmean(rollout[figure] for rollout in side[name]) for name, weight in weights.items())
        / sum(weights.values())
        for side in strata
    ]


def ends_of_line(rollouts: Rollouts, figure: str) -> list[float]:
    """Return the first step's and the last's value of the line over all steps that fits best within tasks."""
    steps, values = list[float](), list[float]()
    for of_task in by("task", rollouts).values():
        middle = fmean(rollout["step"] for rollout in of_task), fmean(rollout[figure] for rollout in of_task)
        steps += [rollout["step"] - middle[0] for rollout in of_task]
        values += [rollout[figure] - middle[1] for rollout in of_task]
    slope = linear_regression(steps, values, proportional=True).slope
    middle_value, count = fmean(rollout[figure] for rollout in rollouts), len({rollout["step"] for rollout in rollouts})
    return [middle_value - slope * (count - 1) / 2, middle_value + slope * (count - 1) / 2]


def share_of_both(rollouts: Sequence[Mapping[str, Any]], last: int) -> float:
    """Return the share of the first steps' rollouts, or of the last steps', that is of tasks of both: the lower one."""
    steps = sorted({rollout["step"] for rollout in rollouts})
    count = last if 2 * last <= len(steps) else len(steps) // 3
    sides = [
        [rollout["task"] for rollout in rollouts if rollout["step"] in side_steps]
        for side_steps in (steps[:count], steps[-count:])
    ]
    return min(fmean(task in of_other for task in side) for side, of_other in zip(sides, sides[::-1], strict=True))


@pytest.mark.exhaustive
@of(RUNS, 3)
def test_nothing_is_below_its_threshold_that_was_not_looked_at(run: Realistic) -> None:
    recording = recorded(run.id)
    truth = recording.truth
    fine = [check.name for check in recording.diagnosed.report.checked if check.state == "below"]
    assert "Truncation" in fine or run.expected == "truncation"
    unseen: list[str] = []
    if not any(rollout["actions"] for rollout in truth.rollouts):
        unseen += LOOKS_AT_ACTIONS
    attempts = [len(tried(mine)) for mine in by("task", truth.rollouts).values()]
    if run.kind == "judge" or max(attempts) < ATTEMPTS:
        unseen += LOOKS_AT_TASKS[: 1 if run.kind == "web" else 2]  # its families are looked at
    if (
        run.kind != "web"
        and share_of_both(truth.rollouts, len({rollout["step"] for rollout in recording.last_steps})) < 0.5
    ):
        unseen += ["Task mix"]
    if len(truth.weights) < 2:
        unseen += ["Reward functions", "Suspected hacking"]
    if run.kind not in {"web", "shaped", "mix"}:
        unseen += ["Environment/reward disagreement"]
    assert [name for name in fine if name.startswith(tuple(unseen))] == []
    lacking = [check.said for check in recording.diagnosed.report.missing]
    assert [said for said in lacking if "token ids" in said or "completion tokens" in said] == [], "all record them"


# --- Tasks


@pytest.mark.exhaustive
@of(WITH_OUTCOME)
def test_the_table_of_tasks_is_true(run: Realistic) -> None:
    recording = recorded(run.id)
    truth, (_, tables) = recording.truth, of_run(recording, "tasks")
    table = next(with_columns(tables, "Task", "Attempts", "Solved", "pass@1"))
    lines = {name: row for name, row in table.by_name().items() if name != "Task"}
    tasks = by("task", truth.rollouts)
    assert len(lines) == min(len(tasks), 25)
    place = {name: table.column(name) or 0 for name in ("Attempts", "Mean", "Solved", "pass@1", "Status")}
    wide = next(index for index, head in enumerate(table.rows[0]) if re.match(r"pass@(?!1$)", head))
    k = int(table.rows[0][wide].partition("@")[2])
    sizes = Counter(len(tried(group)) for group in by("group", truth.rollouts).values())
    assert k == sizes.most_common(1)[0][0]
    for name, row in lines.items():
        mine = tried(tasks[name])
        assert is_near(row[place["Attempts"]], len(mine)), (name, row)
        assert is_near(row[place["Mean"]], mean(rollout["reward"] for rollout in mine)), (name, row)
        assert is_near(row[place["Solved"]], mean(rollout["solved"] for rollout in mine)), (name, row)
        assert is_near(row[place["pass@1"]], pass_at(mine, 1)), (name, row)
        assert is_near(row[wide], pass_at(mine, k)), (name, row)
        assert row[place["Status"]].startswith(STATUS[label_of(tasks[name])]), (name, row)


# --- Reward functions


@of(RUNS, 3)
def test_the_table_of_reward_functions_is_true(run: Realistic) -> None:
    recording = recorded(run.id)
    text, tables = of_run(recording, "rewards")
    table = next(with_columns(tables, "Function", "Weight", "Raw mean"))
    lines, rows = table.by_name(), [rollout for rollout in recording.last_steps if rollout["values"] is not None]
    place = {
        name: table.column(name) or 0
        for name in ("Weight", "Raw mean", "Weighted mean", "Variance share", "To gain", "None or NaN")
    }
    shares, rooms = variance_shares(recording.truth, recording.last_steps), dict[str, float]()
    for name, weight in recording.truth.weights.items():
        row, values = lines[name], [rollout["values"][name] for rollout in rows]
        raw = mean(values)
        assert is_near(row[place["Weight"]], weight)
        assert is_near(row[place["Raw mean"]], raw, 0.0006), (row, raw)
        assert is_near(row[place["None or NaN"]], fmean(value is None for value in values)), row
        if None not in values:
            assert is_near(row[place["Weighted mean"]], (raw or 0.0) * weight, 0.0006), row
        assert is_near(row[place["Variance share"]], shares[name], 0.011), (row, shares[name])
        values_seen = {
            rollout["values"][name] for rollout in recording.truth.rollouts if rollout["values"] is not None
        } - {None}
        rooms[name] = (max(0.0, *values_seen) - (raw or 0.0)) * weight
        assert is_near(row[place["To gain"]], rooms[name], 0.0006), (row, "a constant shows no room")
    if match := re.search(r"(\w+) explains [^;\n]*?(?:; (\w+)| and) has most left to gain", text):
        assert shares[match[1]] == max(shares.values()), match[0]
        assert rooms[match[2] or match[1]] == max(rooms.values()), match[0]
    assert is_near(lines["reward"][place["Weighted mean"]], mean(rollout["reward"] for rollout in rows), 0.0006)


def variance_shares(truth: Truth, rollouts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return Cov(part, R) / Var(R) within groups, over the rollouts with a reward; a missing part counts as 0."""
    sums, whole = dict.fromkeys(truth.weights, 0.0), 0.0
    for group in by("group", tried(rollouts)).values():
        rewards = [rollout["reward"] for rollout in group]
        centre = fmean(rewards)
        whole += sum((reward - centre) ** 2 for reward in rewards)
        for name, weight in truth.weights.items():
            parts = [(rollout["values"][name] or 0.0) * weight for rollout in group]
            sums[name] += sum(
                (part - fmean(parts)) * (reward - centre) for part, reward in zip(parts, rewards, strict=True)
            )
    return {name: value / whole for name, value in sums.items()}


# --- Two runs


@pytest.mark.parametrize(
    "name", cases(["mix-unscored", "coding-two", "gsm8k-drowned", "coding-memory", "web-regressed"], 1)
)
def test_findings_are_counted_and_one_loss_is_one_figure(name: str) -> None:
    """All cards under the heading are counted, in the order that it says, and bar and card say the same of a cause."""
    recording = recorded(name)
    html = _client(recording.db).get(urls.why(recording.truth.run)).text
    if 'id="causes-title"' not in html:
        html = _client(recording.db).get(urls.why(recording.truth.run, wait="1")).text
    findings = html.partition('id="causes-title"')[2].partition("</section>")[0]
    cards = [fold.partition("</article>")[0] for fold in findings.split('<details class="fold')[1:]]
    assert len(cards) == len(recording.diagnosed.report.cards) - 1
    follows = [card.startswith(" follows") for card in cards]  # the first may follow the finding that stands above
    top = [card for card, is_below in zip(cards, follows, strict=True) if not is_below]
    costs = [float(cost) for card in top for cost in re.findall(r'"cost"><strong>\u2212([\d.]+)<', card)]
    assert costs == sorted(costs, reverse=True)
    assert ("below a finding is what it may cause" in findings) == any(
        after and not before for before, after in pairwise(follows)
    )
    rest = html.partition('id="rest-title"')[2].partition("</section>")[0]
    bar = html.partition('<tr class="of-wrong_answer">')[2].partition("</tr>")[0]
    reward, share = re.findall(r'<td class="num(?: strong)?">([^<]+)</td>', bar)
    assert f"<strong>{reward}</strong>" in rest
    assert f": {unescape(share)} of the lost reward" in unescape(rest)


@of(RUNS, 2)
def test_the_verdict_is_the_same_sentence_everywhere_in_at_most_30_words(run: Realistic) -> None:
    recording = recorded(run.id)
    sentence = recording.diagnosed.report.verdict.said
    assert len(sentence.split()) <= 30
    commands = [["diagnose", recording.truth.run, "--db", str(recording.db), *more] for more in ([], ["--json"])]
    text, as_json = (CliRunner().invoke(app, command).stdout for command in commands)
    assert f"{sentence}." in " ".join(text.split())
    assert json.loads(as_json)["verdict"]["said"] == sentence
    places = [
        of_run(recording),
        *(page(recording.db, urls.of_run(recording.truth.run, tab)) for tab in ("overview", "verdict")),
    ]
    assert [sentence in text for text, _ in places] == [True] * 3
    assert sentence in page(recording.db, "/")[0]


# --- All pages


@of(WITH_OUTCOME)
def test_all_pages_mean_the_same_by_solved(run: Realistic) -> None:
    """Where pages print the definition, it is one; and no page takes it from a percentile."""
    recording = recorded(run.id)
    definitions = set()
    for parts in ((), ("tasks",), ("actions",), ("trained",)):
        text, _ = of_run(recording, *parts)
        definitions |= {
            definition.casefold().rstrip(". ")
            for definition in re.findall(r"Solved if ([^(\n,.]+(?:\.\d[^(\n,.]*)*)", text)
        }
    assert len(definitions) <= 1, definitions
    assert not any("percentile" in definition for definition in definitions)


# --- One rollout


@of(RUNS, 3)
def test_the_page_of_a_rollout_says_truly_what_became_of_it(run: Realistic) -> None:
    """One rollout of each kind that occurs: solved, failed, truncated, with an error, dropped, without a reward."""
    recording = recorded(run.id)
    of_run(recording)  # a rollout's page names its cause once the run is diagnosed
    frame = load_run(recording.truth.run, recording.db, columns=["id", "group", "generation"])
    ids = {
        (group.partition("/train/")[2], int(generation)): int(row)
        for row, group, generation in zip(frame.id, frame.group, frame.generation, strict=True)
    }
    dead = {name for name, group in by("group", recording.truth.rollouts).items() if is_dead(group)}
    kinds = {
        (
            rollout["solved"],
            rollout["truncated"],
            rollout["errored"],
            rollout["dropped"],
            rollout["reward"] is None,
        ): rollout
        for rollout in recording.truth.rollouts
    }
    for rollout in kinds.values():
        text, _ = page(recording.db, urls.rollout(recording.truth.run, ids[rollout["group"], rollout["generation"]]))
        is_used = bool(rollout["advantage"]) and rollout["group"] not in dead
        assert ("trained on 0" not in text and "Not used in training" not in text) or not is_used, rollout["group"]
        assert "Not used in training" in text or is_used, (rollout["group"], rollout["generation"])
        assert "run ended before" not in text
        assert ("ended below best" in text) <= (rollout["solved"] is not True), "it did what was asked"
        assert bool(re.search(r"outcome\s+solved", text)) == (
            rollout["solved"] is True and rollout["reward"] is not None
        )
        assert not rollout["errored"] or rollout["error"].partition(": ")[2] in text
        assert not rollout["truncated"] or rollout["solved"] or re.search(r"cause\s+truncated", text)
        assert not (rollout["solved"] and rollout["reward"] is not None and re.search(r"\bcause\b", text)), (
            "nothing went wrong"
        )


def test_the_overviews_two_means_are_named_apart() -> None:
    """The tile's is over the rollouts with a reward, and of one eval; that of the causes counts the others as 0."""
    recording = recorded("mix-unscored")
    scored = tried(recording.last_steps)
    missing = len(recording.last_steps) - len(scored)
    of_scored, of_all = (
        mean(rollout["reward"] for rollout in scored),
        mean(rollout["reward"] or 0.0 for rollout in recording.last_steps),
    )
    assert missing
    of_run(recording)
    text, _ = page(recording.db, urls.overview(recording.truth.run))
    assert f"Mean reward {of_scored:.3f}" in " ".join(text.split())
    assert f"mean reward, with {missing} unscored as 0: {of_all:.3f}" in " ".join(text.split())


def test_tasks_from_a_step_on_are_true() -> None:
    recording = recorded("shaped-regressed")
    forgotten = {rollout["task"] for rollout in recording.truth.of("forgotten")}
    last = max(rollout["step"] for rollout in recording.truth.rollouts)
    text, tables = of_run(recording, "tasks", steps="11..", sort="worst")
    since = by("task", [rollout for rollout in tried(recording.truth.rollouts) if rollout["step"] >= 11])
    table = next(with_columns(tables, "Task", "Attempts", "Solved"))
    lines = {name: row for name, row in table.by_name().items() if name != "Task"}
    assert lines.keys() == since.keys()
    for name, row in lines.items():
        assert row[table.column("Attempts") or 0] == str(len(since[name]))
        assert is_near(row[table.column("Solved") or 0], mean(rollout["solved"] for rollout in since[name])), name
    assert set(list(lines)[:2]) == forgotten != set()
    assert f"steps 11\N{EN DASH}{last}" in text
    for beside in ("rewards", "actions", "trained"):
        of_run(recording, beside, steps="12..20")
    answer = _client(recording.db).get(urls.why(recording.truth.run, "tasks", steps="90.."))
    assert answer.status_code == 422
    assert f"steps 90..: there are none, choose from 1 to {last}" in answer.text
