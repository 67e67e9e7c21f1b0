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
        other = select(col(Run.id)).where(col(Run.uid) == OTHER).scalar_subquery()
        db.execute(update(row).where(col(row.run_id) == other).values(task="something else"))
        db.execute(update(row).where(col(row.run_id) == 2, col(row.task).like("count%")).values(task="only of B"))


def test_families_of_tasks_are_compared_by_what_is_solved_of_them() -> None:
    def run(solved_of_web: int) -> dict[str, list[GroupResult]]:
        tasks = [(f"{family}/{i}", family) for family in ("code", "web") for i in range(6)]
        return {task: [GroupResult(4, solved_of_web if family == "web" else 2, 2.0)] for task, family in tasks}

    figures = figures_of([run(4), run(0)], [{}, {}], "raw")
    means = {name: [it and (it.mean, it.is_clear) for it in cells] for name, cells in figures.items() if " in " in name}
    assert means == {"solved in code/": [(0.5, False)] * 2, "solved in web/": [(1.0, False), (0.0, True)]}


def shown(client: TestClient, *runs: str, **asked: Any) -> tuple[dict[str, list[str]], str]:
    """The figures of the page, each with its cells as text, and the whole page as text."""
    html = client.get("/compare", params={"run": list(runs), **asked}).text
    tables = re.findall(r'<table class="figure-table".*?</table>', html, re.DOTALL)
    lines = re.findall(r'<tr[^>]*>\s*<th scope="row".*?</tr>', "".join(tables), re.DOTALL)
    cells = [[text(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL)] for line in lines]
    return {first: rest for first, *rest in cells}, text(html)


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).replace("\N{MINUS SIGN}", "-").split())


def test_the_error_is_that_of_clusters() -> None:
    values = {"a": [1.0, 1, 0, 1], "b": [0.0, 0, 0], "c": [1.0, 0.5]}
    found = estimate([(len(it), sum(it)) for it in values.values()])
    assert found is not None
    flat = np.array([value for it in values.values() for value in it])
    off = [sum(value - flat.mean() for value in it) for it in values.values()]
    wanted = math.sqrt(3 / 2 * sum(it**2 for it in off)) / len(flat)
    assert found.mean == pytest.approx(flat.mean())
    assert (found.rollouts, found.groups) == (9, 3)
    assert found.error == pytest.approx(wanted)


def test_of_groups_of_one_the_error_is_the_usual_one() -> None:
    values = [0.0, 1.0, 0.5, 0.25, 1.0]
    found = estimate([(1, value) for value in values])
    assert found is not None
    assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(5))


def test_equal_rollouts_of_a_group_add_no_certainty() -> None:
    once, eight_times = (estimate([(n, n * value) for value in (0.0, 1.0, 1.0, 0.0)]) for n in (1, 8))
    assert once is not None
    assert eight_times is not None
    assert eight_times.error == pytest.approx(once.error)


@pytest.mark.parametrize("groups", [[], [(0, 0.0)]])
def test_without_rollouts_there_is_no_mean(groups: list[tuple[int, float]]) -> None:
    assert estimate(groups) is None


def test_one_group_has_no_error_and_huge_rewards_do_not_fail() -> None:
    one = estimate([(4, 2.0)])
    assert one is not None
    assert one.error is None
    huge = estimate([(1, 1e308), (1, -1e308), (1, 1e308)])
    assert huge is not None
    assert not math.isfinite(huge.error or 0.0)


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
        groups = [GroupResult(2, 0, 0.0, {"rewards.f": it}) for it in sums]
        (found,) = figures_of([{"t": groups}], [{"f": weight}], part)["rewards.f"]
        return found and round(found.mean, 6)

    of_two = (2, 1.0, 0.9), (2, 0.0, 0.0)
    assert [mean(part, 2.0, *of_two) for part in ("raw", "weighted", "headroom")] == [0.25, 0.5, 1.3]
    assert mean("headroom", 2.0, (2, -0.5, -0.25)) == 0.5, "what it took; no reward of 2 can be had from it"
    assert mean("headroom", 0.5, (2, 0.0, 0.0)) == 0.5, "all of its weight is left to win"


def test_the_page_has_every_figure_of_the_rollouts(client: TestClient, engine: Engine) -> None:
    found, page = shown(client, A, B, steps="all")
    assert list(found)[:2] == ["mean reward", "solved"]
    assert {"truncated", "errors", "turns", "tokens"} <= set(found)
    assert re.fullmatch(r"\d+\.\d% ±\d+\.\d%", found["errors"][0])
    assert set(WEIGHTS) <= set(found)
    row = EvaluationRow
    of_train = col(row.run_id) == 1, col(row.mode) == "train"
    wanted = *of_train, col(row.task).not_like("count%"), col(row.turns).is_not(None)
    with engine.connect() as db:
        turns = db.execute(select(col(row.group), col(row.turns)).where(*wanted)).all()
    found_in = {group: [n or 0 for name, n in turns if name == group] for group, _ in turns}
    by_group = [(len(of_group), sum(of_group)) for of_group in found_in.values()]
    by_hand = estimate([(n, float(total)) for n, total in by_group])
    assert by_hand is not None
    assert found["turns"][0] == f"{by_hand.mean:.2f} ±{by_hand.error:.2f}"
    assert re.fullmatch(r"\d+ \(\d+\)", found["rollouts (groups)"][0])
    assert re.search(r"Over the (\d) tasks that all runs have in common, of [67]\.", page)


def test_weighted_means_and_headroom_are_one_choice_away(client: TestClient) -> None:
    raw, weighted = (shown(client, A, B, part=part)[0]["brevity"][0] for part in ("raw", "weighted"))
    assert float(weighted.split()[0]) == pytest.approx(float(raw.split()[0]) * WEIGHTS["brevity"], abs=1e-3)
    assert "Left to gain is the highest weighted value" in shown(client, A, B, part="headroom")[1]


def test_a_run_without_a_task_in_common_is_not_added_up(client: TestClient) -> None:
    found, page = shown(client, A, OTHER, steps="all")
    assert "B has no task in common with A : the means are over different tasks" in page
    assert found["mean reward"][2] == "—"
    assert found["mean reward"][1] != "—", "its own figures are there"
    assert "0 tasks in common" not in page
    found, page = shown(client, A, B, OTHER, steps="all")
    assert "C has no task in common with A" in page
    assert found["mean reward"][4] == "—" != found["mean reward"][3]


def test_tasks_of_runs_that_differ_by_their_seed_alone_are_alike() -> None:
    def run(seed: int) -> dict[str, list[GroupResult]]:
        dice = np.random.default_rng(seed)
        wins = {f"task {i}": dice.binomial(8, i / 53, size=10).tolist() for i in range(53)}
        return {task: [GroupResult(8, it, float(it)) for it in of_task] for task, of_task in wins.items()}

    table = make_table([run(1), run(2)], 1, "difference", 53)
    assert (table.tasks, table.better, table.worse) == (53, 0, 0)
    assert max(abs(it.difference or 0.0) for it in table.lines) > 0.1


def test_what_may_be_chance_has_no_colour_and_the_heads_of_the_runs_no_means(client: TestClient) -> None:
    html = flat(client.get("/compare", params={"run": [A, B], "steps": "all"}).text)
    by_chance = re.findall(r'<tr class="by-chance"><th scope="row" class="task mono">.*?</tr>', html, re.DOTALL)
    assert any(re.search(r'"tone-quiet">[+\u2212]', line) for line in by_chance)
    assert not any(re.search("tone-positive|tone-negative", line) for line in by_chance)
    heads = html.partition('aria-label="The runs"')[2].partition("</ul>")[0]
    assert "8 steps" in heads
    assert not re.search(r"\d\.\d{3}", heads)


def test_each_task_has_its_number_and_error(client: TestClient) -> None:
    html = flat(client.get("/compare", params={"run": [A, B], "steps": "all"}).text)
    lines = [text(line) for line in re.findall(r'<tr[^>]*><th scope="row" class="task mono">.*?</tr>', html, re.DOTALL)]
    assert any(re.search(r"0\.\d{3} ±0\.\d{3} \d+ ", line) for line in lines)


def test_functions_are_summed_over_the_newest_rollouts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.comparison.WINDOW", 10, raising=False)
    found = queries.task_results(engine, 1, "train", (0, 99), [])
    assert 0 < sum(it.sums.get("rewards.format", (0,))[0] for of_task in found.values() for it in of_task) <= 10


def test_values_that_no_sum_can_hold_are_left_out(address: Address) -> None:
    with start_run(db=address if isinstance(address, Path) else address.render_as_string(hide_password=False)) as run:
        for i, value in enumerate((1e308, -1e308, 1e308, 1e308, 1.0)):
            with run.rollout("Go.", mode="train", group="a" if i < 2 else "b" if i < 4 else "c", task="t") as row:
                row.turn("x")
            row.score(rewards={"it": value}, weights={"it": 1.0})
    with disposed(writing_engine(address)) as engine:
        found = queries.task_results(engine, 1, "train", (0, 99), [])
    for part in PARTS:
        cells = [it for figure in figures_of([found], [{}], part).values() for it in figure if it]
        assert all(math.isfinite(it.mean) and abs(it.mean) < 1e9 and math.isfinite(it.error or 0) for it in cells)


def test_a_thinned_curve_is_of_all_evaluations(tmp_path: Path) -> None:
    with start_run("evals", db=tmp_path / "runs.db") as run:
        for step in range(1, 41):
            for name, ended in (("a", "length"), ("b", "stop"))[: 1 + (step >= 12)]:
                with run.rollout("q", step=step, eval_name=name) as row:
                    row.turn("x", finish=ended)
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        points = queries.figure_points(engine, 1, "eval", "truncated", 15)
    assert (len(points), points[0].step, points[-1].step) == (15, 1, 40)
    assert {(it.step < 12, it.value) for it in points} == {(True, 1.0), (False, 0.5)}


def test_rewards_near_the_largest_number_fail_no_page(tmp_path: Path) -> None:
    for name, reward in (("huge", 1.7e308), ("none", None)):
        with start_run(name, db=tmp_path / "runs.db") as run:
            for step in range(4):
                with run.rollout("q", step=step, group=f"{step // 2}") as row:
                    row.score(rewards={"a": reward})
    client = dashboard(tmp_path / "runs.db")
    runs = [summary.run.uid for summary in queries.all_runs(writing_engine(tmp_path / "runs.db"))]
    compared = [f"/compare?run={one}&run={other}" for one, other in (runs, runs[::-1])]
    for address in ("/runs/huge/groups/1", *compared):
        assert client.get(address).status_code == 200, address


def test_sums_by_group_are_those_of_the_rows(engine: Engine) -> None:
    found = queries.task_results(engine, 1, "train", (0, 99), [])
    sums = [group.sums for of_task in found.values() for group in of_task]
    row = EvaluationRow
    with engine.connect() as db:
        columns = (col(row.rewards), col(row.turns), col(row.stop_reason), col(row.status))
        rows = db.execute(select(*columns).where(col(row.run_id) == 1, col(row.mode) == "train")).all()
    given = [(it.rewards or {}).get("format") for it in rows]
    assert sum(it["rewards.format"][0] for it in sums if "rewards.format" in it) == sum(it is not None for it in given)
    assert sum(it["rewards.format"][1] for it in sums if "rewards.format" in it) == pytest.approx(
        sum(it or 0.0 for it in given)
    )
    ended = [it for it in rows if it.status in {"ok", "error"}]
    assert sum(it["truncated"][0] for it in sums) == len(ended)
    assert sum(it["truncated"][1] or 0 for it in sums) == sum(it.stop_reason == "length" for it in ended)
    failed = sum(it.status == "error" for it in rows)
    assert (failed > 0, sum(it["errors"][0] for it in sums)) == (True, len(ended))
    assert sum(it["errors"][1] or 0 for it in sums) == failed
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
    of_runs = [{name.removeprefix("rewards."): it} for it in weights]
    (line,) = make_figure_table(sides, {name: cells}, part, of_runs).shown
    assert line.differences[0].tone == f"clear {tone}".strip()


def test_a_function_that_is_called_in_a_place_opens_no_family() -> None:
    sides = [ComparedSide(letter, letter, "", "step:1..2", is_apart=False) for letter in "AB"]
    cells = [Estimate(0.2, 0.01, 80, 10), Estimate(0.8, 0.01, 80, 10, is_clear=True)]
    (line,) = make_figure_table(sides, {"rewards.correct in box": cells}, "raw", [{}, {}]).shown
    assert [it.address for it in line.values] == [urls.matching(letter, "step:1..2") for letter in "AB"]
