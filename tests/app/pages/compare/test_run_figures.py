"""Figures of compared runs: by reward function, truncation, turns, tokens, with errors by groups, of equal tasks."""

import math
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select, update
from sqlmodel import col

from logs_ui.app.pages.compare.run_figures import PARTS, Estimate, compared_tasks, estimate, figures_of
from logs_ui.app.pages.compare.run_table import ComparedSide, make_figure_table
from logs_ui.app.pages.compare.run_tasks import make_table
from logs_ui.app.web import urls
from logs_ui.recorder import queries, start_run
from logs_ui.recorder.queries import GroupResult
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard, flat
from tests.support.factory import WEIGHTS, make_run

A, B, OTHER = "one-aaaa", "two-bbbb", "other-cccc"


def fill(engine: Engine) -> None:
    for i, uid in enumerate((A, B, OTHER)):
        make_run(engine, uid=uid, name=uid, steps=8, seed=i, state=RunState.FINISHED, generations=4)
    row = EvaluationRow
    with engine.begin() as db:
        other_run = select(col(Run.id)).where(col(Run.uid) == OTHER).scalar_subquery()
        db.execute(update(row).where(col(row.run_id) == other_run).values(task="something else"))
        db.execute(update(row).where(col(row.run_id) == 2, col(row.task).like("count%")).values(task="only of B"))


def test_families_of_tasks_are_compared_by_what_is_solved_of_them() -> None:
    def run(solved_of_web: int) -> dict[str, list[GroupResult]]:
        tasks = [(f"{family}/{i}", family) for family in ("code", "web") for i in range(6)]
        return {task: [GroupResult(4, solved_of_web if family == "web" else 2, 2.0)] for task, family in tasks}

    figures = figures_of([run(4), run(0)], [{}, {}], "raw")
    means = {
        name: [cell and (cell.mean, cell.is_clear) for cell in cells]
        for name, cells in figures.items()
        if " in " in name
    }
    assert means == {"solved in code/": [(0.5, False)] * 2, "solved in web/": [(1.0, False), (0.0, True)]}


def read_figures(client: TestClient, *runs: str, **parameters: Any) -> tuple[dict[str, list[str]], str]:
    """The figures of the page, each with its cells as text, and the whole page as text."""
    html = client.get("/compare", params={"run": list(runs), **parameters}).text
    tables = re.findall(r'<table class="figure-table".*?</table>', html, re.DOTALL)
    lines = re.findall(r'<tr[^>]*>\s*<th scope="row".*?</tr>', "".join(tables), re.DOTALL)
    cells = [[text(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL)] for line in lines]
    return {first: rest for first, *rest in cells}, text(html)


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).replace("\N{MINUS SIGN}", "-").split())


def test_the_error_is_that_of_clusters() -> None:
    values = {"a": [1.0, 1, 0, 1], "b": [0.0, 0, 0], "c": [1.0, 0.5]}
    group_estimate = estimate([(len(group), sum(group)) for group in values.values()])
    assert group_estimate is not None
    flat = np.array([value for group in values.values() for value in group])
    off = [sum(value - flat.mean() for value in group) for group in values.values()]
    error = math.sqrt(3 / 2 * sum(group**2 for group in off)) / len(flat)
    assert group_estimate.mean == pytest.approx(flat.mean())
    assert (group_estimate.rollouts, group_estimate.groups) == (9, 3)
    assert group_estimate.error == pytest.approx(error)


@pytest.mark.parametrize(
    ("groups", "mean", "error"),
    [
        ([], None, None),
        ([(0, 0.0)], None, None),
        ([(4, 2.0)], 0.5, None),  # one group has no error
        ([(1, it) for it in (0.0, 1.0, 0.5, 0.25, 1.0)], 0.55, 0.2),  # of groups of one it is the usual one
        ([(1, it) for it in (0.0, 1.0, 1.0, 0.0)], 0.5, 3**-0.5 / 2),
        ([(8, 8 * it) for it in (0.0, 1.0, 1.0, 0.0)], 0.5, 3**-0.5 / 2),  # equal rollouts add no certainty
        ([(1, 1e308), (1, -1e308), (1, 1e308)], 1e308 / 3, math.inf),
    ],
)
def test_an_error_is_of_as_many_as_there_are_groups(
    groups: list[tuple[int, float]], mean: float | None, error: float | None
) -> None:
    found = estimate(groups)
    assert (found and found.mean) == pytest.approx(mean)
    assert (found and found.error) == pytest.approx(error)


def groups(**scored: int) -> Mapping[str, list[GroupResult]]:
    return {task: [GroupResult(number, 0, 0.5 * number)] * 2 for task, number in scored.items()}


def test_runs_are_compared_by_the_tasks_that_they_have_in_common() -> None:
    assert compared_tasks([groups(a=4, b=4), groups(b=4, c=4)]) == [{"b"}, {"b"}]
    assert compared_tasks([groups(a=4, b=4), groups(b=4, a=0)]) == [{"b"}, {"b"}]
    assert compared_tasks([groups(a=4, b=4), groups(b=4), groups(x=4)]) == [{"b"}, {"b"}, {"x"}]
    assert compared_tasks([groups(a=0), groups(b=4)]) == [set(), {"b"}]
    assert compared_tasks([groups(), groups()]) == [set(), set()]


def test_the_last_line_does_not_add_up_different_tasks() -> None:
    table = make_table([groups(a=4), groups(b=4)], 1, "difference", 10)
    assert table.apart == [1]
    assert table.overall.difference is None
    assert table.overall.cells[1] is None
    assert make_table([groups(a=4, b=4), groups(b=4)], 1, "task", 10).common == 1


def test_a_function_is_raw_weighted_or_what_is_left() -> None:
    def mean(part: str, weight: float, *sums: tuple[int, float, float]) -> float | None:
        groups = [GroupResult(2, 0, 0.0, {"rewards.f": group_sums}) for group_sums in sums]
        (part_estimate,) = figures_of([{"t": groups}], [{"f": weight}], part)["rewards.f"]
        return part_estimate and round(part_estimate.mean, 6)

    of_two = (2, 1.0, 0.9), (2, 0.0, 0.0)
    assert [mean(part, 2.0, *of_two) for part in ("raw", "weighted", "headroom")] == [0.25, 0.5, 1.3]
    assert mean("headroom", 2.0, (2, -0.5, -0.25)) == 0.5, "what it took; no reward of 2 can be had from it"
    assert mean("headroom", 0.5, (2, 0.0, 0.0)) == 0.5, "all of its weight is left to win"


@pytest.mark.exhaustive
def test_the_page_has_every_figure_of_the_rollouts(client: TestClient, engine: Engine) -> None:
    figures, page = read_figures(client, A, B, steps="all")
    assert list(figures)[:2] == ["mean reward", "solved"]
    assert {"truncated", "errors", "turns", "tokens"} <= set(figures)
    assert re.fullmatch(r"\d+\.\d% ±\d+\.\d%", figures["errors"][0])
    assert set(WEIGHTS) <= set(figures)
    row = EvaluationRow
    of_train = col(row.run_id) == 1, col(row.mode) == "train"
    conditions = *of_train, col(row.task).not_like("count%"), col(row.turns).is_not(None)
    with engine.connect() as db:
        turns = db.execute(select(col(row.group), col(row.turns)).where(*conditions)).all()
    found_in = {group: [n or 0 for name, n in turns if name == group] for group, _ in turns}
    by_group = [(len(of_group), sum(of_group)) for of_group in found_in.values()]
    by_hand = estimate([(n, float(total)) for n, total in by_group])
    assert by_hand is not None
    assert figures["turns"][0] == f"{by_hand.mean:.2f} ±{by_hand.error:.2f}"
    assert re.fullmatch(r"\d+ \(\d+\)", figures["rollouts (groups)"][0])
    assert re.search(r"Over the (\d) tasks that all runs have in common, of [67]\.", page)


def test_weighted_means_and_headroom_are_one_choice_away(client: TestClient) -> None:
    raw, weighted = (read_figures(client, A, B, part=part)[0]["brevity"][0] for part in ("raw", "weighted"))
    assert float(weighted.split()[0]) == pytest.approx(float(raw.split()[0]) * WEIGHTS["brevity"], abs=1e-3)
    assert "Left to gain is the highest weighted value" in read_figures(client, A, B, part="headroom")[1]


def test_a_run_without_a_task_in_common_is_not_added_up(client: TestClient) -> None:
    figures, page = read_figures(client, A, OTHER, steps="all")
    assert "B has no task in common with A : the means are over different tasks" in page
    assert figures["mean reward"][2] == "—"
    assert figures["mean reward"][1] != "—", "its own figures are there"
    assert "0 tasks in common" not in page
    figures, page = read_figures(client, A, B, OTHER, steps="all")
    assert "C has no task in common with A" in page
    assert figures["mean reward"][4] == "—" != figures["mean reward"][3]


def test_tasks_of_runs_that_differ_by_their_seed_alone_are_alike() -> None:
    def run(seed: int) -> dict[str, list[GroupResult]]:
        dice = np.random.default_rng(seed)
        wins = {f"task {i}": dice.binomial(8, i / 53, size=10).tolist() for i in range(53)}
        return {task: [GroupResult(8, count, float(count)) for count in of_task] for task, of_task in wins.items()}

    table = make_table([run(1), run(2)], 1, "difference", 53)
    assert (table.tasks, table.better, table.worse) == (53, 0, 0)
    assert max(abs(line.difference or 0.0) for line in table.lines) > 0.1


def test_what_may_be_chance_has_no_colour_and_the_heads_of_the_runs_no_means(client: TestClient) -> None:
    html = flat(client.get("/compare", params={"run": [A, B], "steps": "all"}).text)
    by_chance = re.findall(r'<tr class="by-chance"><th scope="row" class="task mono">.*?</tr>', html, re.DOTALL)
    assert any(re.search(r'"tone-quiet">[+\u2212]', line) for line in by_chance)
    assert not any(re.search("tone-positive|tone-negative", line) for line in by_chance)
    lines = [text(line) for line in re.findall(r'<tr[^>]*><th scope="row" class="task mono">.*?</tr>', html, re.DOTALL)]
    assert any(re.search(r"0\.\d{3} ±0\.\d{3} \d+ ", line) for line in lines)
    heads = html.partition('aria-label="The runs"')[2].partition("</ul>")[0]
    assert "8 steps" in heads
    assert not re.search(r"\d\.\d{3}", heads)


def test_functions_are_summed_over_the_newest_rollouts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.comparison.WINDOW", 10, raising=False)
    results = queries.task_results(engine, 1, "train", (0, 99), [])
    assert 0 < sum(group.sums.get("rewards.format", (0,))[0] for of_task in results.values() for group in of_task) <= 10


def test_values_that_no_sum_can_hold_are_left_out(address: Address) -> None:
    with start_run(db=address if isinstance(address, Path) else address.render_as_string(hide_password=False)) as run:
        for i, value in enumerate((1e308, -1e308, 1e308, 1e308, 1.0)):
            with run.rollout("Go.", mode="train", group="a" if i < 2 else "b" if i < 4 else "c", task="t") as row:
                row.turn("x")
            row.score(rewards={"it": value}, weights={"it": 1.0})
    with disposed(writing_engine(address)) as engine:
        results = queries.task_results(engine, 1, "train", (0, 99), [])
    for part in PARTS:
        cells = [cell for figure in figures_of([results], [{}], part).values() for cell in figure if cell]
        assert all(
            math.isfinite(cell.mean) and abs(cell.mean) < 1e9 and math.isfinite(cell.error or 0) for cell in cells
        )


def test_a_thinned_curve_is_of_all_evaluations(tmp_path: Path) -> None:
    with start_run("evals", db=tmp_path / "runs.db") as run:
        for step in range(1, 41):
            for name, ended in (("a", "length"), ("b", "stop"))[: 1 + (step >= 12)]:
                with run.rollout("q", step=step, eval_name=name) as row:
                    row.turn("x", finish=ended)
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        points = queries.figure_points(engine, 1, "eval", "truncated", 15)
    assert (len(points), points[0].step, points[-1].step) == (15, 1, 40)
    assert {(point.step < 12, point.value) for point in points} == {(True, 1.0), (False, 0.5)}


def test_rewards_near_the_largest_number_fail_no_page(tmp_path: Path) -> None:
    for name, reward in (("huge", 1.7e308), ("none", None)):
        with start_run(name, db=tmp_path / "runs.db") as run:
            for step in range(4):
                with run.rollout("q", step=step, group=f"{step // 2}") as row:
                    row.score(rewards={"a": reward})
    client = dashboard(tmp_path / "runs.db")
    runs = [summary.run.uid for summary in queries.all_runs(writing_engine(tmp_path / "runs.db"))]
    addresses = [f"/compare?run={first}&run={second}" for first, second in (runs, runs[::-1])]
    for address in ("/runs/huge/groups/1", *addresses):
        assert client.get(address).status_code == 200, address


def test_sums_by_group_are_those_of_the_rows(engine: Engine) -> None:
    results = queries.task_results(engine, 1, "train", (0, 99), [])
    sums = [group.sums for of_task in results.values() for group in of_task]
    row = EvaluationRow
    with engine.connect() as db:
        columns = (col(row.rewards), col(row.stop_reason), col(row.status))
        rows = db.execute(select(*columns).where(col(row.run_id) == 1, col(row.mode) == "train")).all()
    given = [value for it in rows if (value := (it.rewards or {}).get("format")) is not None]
    ended = [it for it in rows if it.status in {"ok", "error"}]
    failed = sum(it.status == "error" for it in rows)

    def total(name: str) -> Any:
        found = [of_group[name] for of_group in sums if name in of_group]
        return sum(it[0] for it in found), sum(it[1] or 0 for it in found)

    assert total("rewards.format") == (len(given), pytest.approx(sum(given)))
    assert total("truncated") == (len(ended), sum(it.stop_reason == "length" for it in ended))
    assert total("errors") == (len(ended), failed)
    assert failed > 0
    assert queries.reward_weights(engine, 1) == WEIGHTS


@pytest.mark.parametrize(("name", "part", "weights", "tone"), [
    ("rewards.too_long", "raw", (-1.0, -0.5), "tone-negative"),
    ("rewards.too_long", "weighted", (-1.0, -0.5), "tone-positive"),
    ("rewards.too_long", "headroom", (-1.0, -0.5), "tone-negative"),
    ("rewards.right", "raw", (1.0, 2.0), "tone-positive"),
    ("rewards.watched", "raw", (0.0, 0.0), ""),
    ("rewards.turned", "raw", (1.0, -1.0), ""),
    ("truncated", "raw", (1.0, 1.0), "tone-negative"),
])  # fmt: skip
def test_more_of_a_figure_is_better_or_worse(name: str, part: str, weights: tuple[float, float], tone: str) -> None:
    sides = [ComparedSide(letter, letter, "", "", is_apart=False) for letter in "AB"]
    cells = [Estimate(0.2, 0.01, 80, 10), Estimate(0.8, 0.01, 80, 10, is_clear=True)]
    of_runs = [{name.removeprefix("rewards."): weight} for weight in weights]
    (line,) = make_figure_table(sides, {name: cells}, part, of_runs).lines
    assert line.differences[0].tone == f"clear {tone}".strip()


def test_a_function_that_is_called_in_a_place_opens_no_family() -> None:
    sides = [ComparedSide(letter, letter, "", "step:1..2", is_apart=False) for letter in "AB"]
    cells = [Estimate(0.2, 0.01, 80, 10), Estimate(0.8, 0.01, 80, 10, is_clear=True)]
    (line,) = make_figure_table(sides, {"rewards.correct in box": cells}, "raw", [{}, {}]).lines
    assert [cell.address for cell in line.values] == [urls.matching(letter, "step:1..2") for letter in "AB"]
