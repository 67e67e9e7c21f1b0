"""Runs side by side: curves, tasks, and what differs."""

import math
import random
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.app.pages.compare import page as compare_runs_page
from logs_ui.app.pages.compare import run_differences, run_tasks
from logs_ui.app.pages.compare.run_curves import Axis, make_chart
from logs_ui.app.pages.compare.run_differences import comparisons, working_trees
from logs_ui.app.pages.compare.run_tasks import group_sizes, make_table
from logs_ui.app.web import urls
from logs_ui.recorder import queries
from logs_ui.recorder.queries import CurvePoint, GroupResult
from logs_ui.recorder.storage.changes import Source, SourcesChange
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run, RunSource, StepStatistics
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.vocabulary import Mark, RunState, SourceKind
from tests.support.dashboard import dashboard, flat, fragment, of_run, page_of, rollouts_at, text_of
from tests.support.factory import insert_rows, insert_run, make_run, make_run_at

A, B, C = "one-aaaa", "two-bbbb", "three-cccc"
DIFF = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-lr = 1e-6\n+lr = <b>1e-4</b>\n"


def fill(engine: Engine) -> None:
    for i, (uid, steps) in enumerate([(A, 12), (B, 6), (C, 4)]):
        make_run(engine, uid=uid, name=f"run {uid}", steps=steps, seed=i, state=RunState.FINISHED, generations=4)
    reward = "def solved(x):\n    return x\n"
    template = Source(SourceKind.CHAT_TEMPLATE, "", "{{ messages }}\n")
    with engine.begin() as connection:
        ids = run_writes.run_ids(connection, [A, B], 0)
        a = (Source(SourceKind.REWARD, "solved", reward, 1.0), template)
        b = (
            Source(SourceKind.REWARD, "solved", reward.replace("return x", "return x * '<script>'"), 1.0),
            Source(SourceKind.REWARD, "extra", None, 0.5),
            template,
            Source(SourceKind.CHANGED_FILES, "", "1\t1\tt.py\n-\t-\tlogo.png\n"),
            Source(SourceKind.CHANGES, "", DIFF),
        )
        run_writes.write_sources(connection, [SourcesChange(A, a), SourcesChange(B, b)], ids)
        changed = {"config": {"seed": 1, "beta": 0.0, "new <i>": [1, 2]}, "versions": {"trl": "1.15.0"}}
        connection.execute(update(Run).where(col(Run.uid) == B).values(**changed))


def page(client: TestClient, *runs: str, **parameters: Any) -> Any:
    """Return the `ComparePage`."""
    return page_of(client, "/compare", run=list(runs), **parameters)


def html_of(client: TestClient, *runs: str, **parameters: Any) -> str:
    return flat(client.get("/compare", params={"run": list(runs), **parameters}).text)


# --- The page


@pytest.mark.exhaustive
def test_two_runs_are_on_the_same_axes(client: TestClient) -> None:
    html = html_of(client, A, B)
    assert html.count('class="smoothed s') == 2
    assert [len(of_run.split()) for of_run in re.findall(r'data-steps="([\d ]+)"', html)] == [12, 6]
    for text in ("goes from", "run one-aaaa", "Show as table"):
        assert text in html
    outlines = page(client, A, B).outlines
    assert all(f'{urls.why(uid)}">{escape(outlines[uid].verdict.said)}' in html for uid in (A, B))


@pytest.mark.parametrize(("axis", "figure"), [*zip(Axis, ("mean reward", "kl", "loss"), strict=True)])
def test_any_figure_by_any_axis(client: TestClient, axis: Axis, figure: str) -> None:
    chart = page(client, A, B, x=axis.value, figure=figure).chart
    assert len(chart.series) == 2
    for points in (part for series in chart.series for part in series.smooth_parts):
        assert all(0 <= float(number) <= 100 for number in re.split("[ ,]", points))


@pytest.mark.parametrize("figure", ["truncated", "errors", "turns", "tokens", "rewards.format"])
def test_a_figure_of_the_rollouts_by_step_is_that_of_its_rollouts(
    client: TestClient, engine: Engine, figure: str
) -> None:
    html = html_of(client, A, B, figure=figure)
    assert f'<option value="{figure}" selected>' in html
    row, run_id = EvaluationRow, queries.find_run(engine, A).id or 0
    query = select(row).where(col(row.run_id) == run_id, col(row.mode) == "train")
    by_step: dict[int, list[float]] = {}
    with Session(engine) as session:
        for rollout in session.scalars(query).all():
            ended = rollout.status in {"ok", "error"}
            value = {
                "truncated": float(rollout.stop_reason == "length") if ended else None,
                "errors": float(rollout.status == "error") if ended else None,
                "turns": rollout.turns,
                "tokens": rollout.completion_tokens,
                "rewards.format": (rollout.rewards or {}).get("format"),
            }[figure]
            by_step.setdefault(rollout.step, []).extend([] if value is None else [value])
    points = queries.figure_points(engine, run_id, "train", figure, 100)
    assert {point.step: point.value for point in points} == pytest.approx(
        {step: sum(values) / len(values) for step, values in by_step.items() if values}
    )
    assert any(point.value for point in points) or figure == "errors"
    rewards = {
        point.step: (point.rollouts, point.when) for point in queries.reward_points(engine, run_id, "train", 100)
    }
    assert {point.step: (point.rollouts, point.when) for point in points if point.step in rewards} == rewards


def test_up_to_six_runs_and_no_more(client: TestClient, engine: Engine) -> None:
    assert html_of(client, A, B, C).count('class="key"') == 3
    with engine.begin() as connection:
        for i in range(7):
            insert_run(connection, {"uid": f"bare-{i}", "name": f"bare {i}", "created": i, "heartbeat": i})
    bare = [f"bare-{i}" for i in range(7)]
    assert "None of these runs has rewards" in html_of(client, *bare[:6])
    answer = client.get("/compare", params={"run": bare})
    assert answer.status_code == 422
    assert "at most 6 runs" in answer.text


def test_with_fewer_than_two_runs_it_asks_for_more(client: TestClient) -> None:
    assert "Choose at least two runs" in html_of(client)
    html = html_of(client, A)
    assert "Choose one more run" in html
    assert f'<option value="{B}">' in html
    assert f'<option value="{A}">' not in html


def test_the_address_is_the_choice_in_its_shortest_form(client: TestClient) -> None:
    address = f"/compare?run=latest&run={A}&run={A}&x=step&figure=kl&solved=&label=&sort=difference&steps=all"
    answer = client.get(address.replace("latest", C), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/compare?run={C}&run={A}&figure=kl&steps=all")
    assert client.get(answer.headers["location"], follow_redirects=False).status_code == 200
    piece = client.get(address.replace("latest", C), headers=fragment("compare"))
    assert piece.headers["hx-push-url"] == f"/compare?run={C}&run={A}&figure=kl&steps=all"


# --- Task by task


def rewards_of(engine: Engine, uid: str) -> dict[str, list[EvaluationRow]]:
    """Return a run's scored training rollouts up to step 6 by their task."""
    row = EvaluationRow
    conditions = of_run(uid), col(row.step) <= 6, col(row.mode) == "train", col(row.reward).is_not(None)
    by_task = defaultdict(list)
    with Session(engine) as session:
        for rollout in session.scalars(select(row).where(*conditions)):
            by_task[str(rollout.task)].append(rollout)
    return by_task


def test_tasks_have_the_figures_of_their_rollouts(client: TestClient, engine: Engine) -> None:
    tasks = page(client, A, B, steps="common", k=1).tasks
    assert (tasks.success.marks, tasks.k, tasks.steps) == ((Mark("rewards.solved", 1.0),), 1, [(1, 6), (1, 6)])
    by_name = {line.task: line for line in tasks.table.lines}
    for place, uid in enumerate((A, B)):
        for task, rows in rewards_of(engine, uid).items():
            cell = by_name[task].cells[place]
            assert cell.rollouts == len(rows)
            assert cell.mean == pytest.approx(mean(row.reward or 0.0 for row in rows))
            # of pass@1: all groups are of one size
            assert cell.pass_at == pytest.approx(mean((row.rewards or {})["solved"] or 0.0 for row in rows))
    cells = [cell for line in page(client, A, B).tasks.table.lines for cell in line.cells if cell]
    assert any(cell.pass_at for cell in cells), "not one of eight solved anywhere"


def test_a_task_leads_to_its_rollouts_in_each_run(client: TestClient, engine: Engine) -> None:
    html = html_of(client, A, B)
    links = re.findall(r'<td class="num mean"><a href="([^"]+)"', html)
    assert {link.split("?")[0] for link in links} == {f"/runs/{A}", f"/runs/{B}"}
    address, rollouts = re.findall(r'href="([^"]+)" title="(\d+) rollouts? in A"', html)[0]
    assert rollouts_at(engine, address) == int(rollouts)


def test_groups_that_are_too_small_have_no_part_in_pass_at_k() -> None:
    results = [{"t": [GroupResult(8, 8, 8.0), GroupResult(2, 0, 0.0)]}, {"t": [GroupResult(2, 1, 1.0)]}]
    (line,) = make_table(results, 4, "difference", 10).lines
    assert [cell and (cell.mean, cell.pass_at) for cell in line.cells] == [(0.8, 1.0), (0.5, None)]
    assert line.difference == pytest.approx(-0.3)
    assert group_sizes(results) == [2, 8]


@pytest.mark.exhaustive
def test_pass_at_k_is_first_of_the_largest_groups_that_all_runs_have(tmp_path: Path) -> None:
    for i, size in enumerate((4, 8)):
        make_run_at(tmp_path / "a.db", uid=f"of-{size}", name=f"of {size}", steps=3, seed=i, generations=size)
    with dashboard(tmp_path / "a.db") as client:
        assert page(client, "of-4", "of-8").tasks.k == 4
        assert page(client, "of-4", "of-8", k=8).tasks.k == 8


def test_the_order_of_tasks() -> None:
    def run(**means: float) -> dict[str, list[GroupResult]]:
        return {task: [GroupResult(1, 0, mean)] for task, mean in means.items()}

    results = [run(a=0.0, b=0.5, c=0.3, only=1.0), run(a=0.4, b=0.0, c=0.3)]
    orders = {
        sort: [line.task for line in make_table(results, 1, sort, 9).lines] for sort in (*run_tasks.SORTS, "mean2")
    }
    assert orders == {
        "difference": ["b", "a", "c", "only"],
        "better": ["a", "c", "b", "only"],
        "worse": ["b", "c", "a", "only"],
        "task": ["a", "b", "c", "only"],
        "mean2": ["b", "c", "a", "only"],
    }


def test_of_three_runs_the_difference_is_the_largest_to_the_first() -> None:
    results = [{"t": [GroupResult(1, 0, mean)]} for mean in (0.5, 0.6, 0.1)]
    (line,) = make_table(results, 1, "difference", 9).lines
    assert line.difference == pytest.approx(-0.4)
    assert line.other_run == 2


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"k": 1},
            "pass@1 is the probability that at least one of 1 rollout of a prompt is solved. Solved: solved ≥ 1.",
        ),
        ({"solved": 0.5}, "Solved: reward ≥ 0.5, as set on this page."),
    ],
)
def test_the_page_says_what_is_solved(client: TestClient, parameters: dict[str, Any], sentence: str) -> None:
    assert sentence in text_of(html_of(client, A, B, **parameters)).replace(" .", ".").replace(" ,", ",")


def _compare(path: Path, *, of_b: dict[str, float] | None = None, **settings: dict[str, Any]) -> str:
    """Compare A, with shaped rewards and its own settings, to B with other rewards and settings."""
    with disposed(writing_engine(path)) as engine:
        for i, uid in enumerate("ab"):
            make_run(engine, uid=uid, name=uid, steps=4, seed=i, state=RunState.FINISHED, generations=4)
        row = EvaluationRow
        with engine.begin() as connection:
            for uid, values in settings.items():
                connection.execute(update(Run).where(col(Run.uid) == uid).values(diagnosis=values))
            if of_b is not None:
                of_run = select(col(Run.id)).where(col(Run.uid) == "b").scalar_subquery()
                connection.execute(update(row).where(col(row.run_id) == of_run).values(rewards=of_b))
    with dashboard(path) as client:
        return html_of(client, "a", "b")


def test_runs_that_define_solved_differently_are_compared_without_it(tmp_path: Path) -> None:
    html = _compare(tmp_path / "a.db", a={"solved_at": 0.5}, b={"solved_at": 0.7})
    sentence = (
        "Solved: not defined alike in these runs. A: reward ≥ 0.5, as set; B: reward ≥ 0.7, as set. Set it, to see"
    )
    assert sentence in text_of(html)
    assert 'class="num pass"' not in html
    assert re.search(r'class="num mean"><a[^>]*>\D?\d', html), "the means are compared"
    assert "pass@" not in text_of(html).replace("to see pass@k", "")


def test_a_run_that_has_solved_nothing_yet_is_compared_by_the_definition_of_the_other(tmp_path: Path) -> None:
    html = _compare(tmp_path / "a.db", of_b={"solved": 0.0, "format_ok": 0.5})
    assert "Solved: solved ≥ 1." in text_of(html)
    assert "B: " not in text_of(html).partition("Solved: ")[2][:40]
    shares = re.findall(r'<td class="num pass">([^<]+)</td>', html)
    assert set(shares[1::2]) <= {"0%", "—"} != set(shares[::2])


def test_the_first_mark_that_has_a_value_decides(tmp_path: Path) -> None:
    engine = writing_engine(tmp_path / "a.db")
    with engine.begin() as connection:
        scores = [
            ("m", {"math": 1.0}),
            ("m", {"math": 0.0, "the code": 5}),
            ("c", {"the code": 2}),
            ("n", {"other": 1}),
        ]
        rows = [
            {"group": task, "task": task, "reward": 1.0, "rewards": rewards, "env_success": int(task == "n")}
            for task, rewards in scores
        ]
        run_id = insert_rows(connection, rows)

    def solved(*marks: Mark) -> dict[str, int | None]:
        results = queries.task_results(engine, run_id, "train", (1, 1), marks)
        return {task: groups[0].solved for task, groups in results.items()}

    assert solved(Mark("rewards.math", 1.0), Mark('rewards."the code"', 2.0)) == {"m": 1, "c": 1, "n": None}
    assert solved(Mark("env_success", 1.0)) == {"m": 0, "c": 0, "n": 1}
    assert solved(Mark("reward", 1.0 + 5e-7)) == {"m": 2, "c": 1, "n": 1}
    assert solved(Mark("reward", 1.0, "web")) == {"m": None, "c": None, "n": None}
    assert solved() == {"m": None, "c": None, "n": None}
    engine.dispose()


def test_of_a_long_run_only_the_last_rollouts_are_added_up(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_runs_page, "MOST_ROLLOUTS", 30)
    html = text_of(html_of(client, A, B))
    steps = re.search(r"Steps (\d+) to 6\.", html)
    assert steps  # both from the same step on
    assert steps[1] != "1"
    assert "Only the last 50,000 rollouts" in html


def test_runs_without_a_step_in_common_say_so(client: TestClient, engine: Engine) -> None:
    make_run(engine, uid="later", steps=1, state=RunState.FINISHED)
    with engine.begin() as connection:
        of_run = select(col(Run.id)).where(col(Run.uid) == "later").scalar_subquery()
        for table in (EvaluationRow, StepStatistics):
            connection.execute(update(table).where(col(table.run_id) == of_run).values(step=500))
    assert "no step in common" in html_of(client, A, "later")
    assert 'class="num diff"' in html_of(client, A, "later", steps="all")


# --- What differs


def test_only_arguments_that_differ_are_shown_until_all_are_wanted(client: TestClient) -> None:
    html = html_of(client, A, B)
    assert "4 of 5 differ" in html  # two are missing in one, `new` in the other
    assert ">seed</bdi>" in html
    assert ">beta</bdi>" not in html
    assert ">beta</bdi>" in html_of(client, A, B, arguments="all")
    assert "new &lt;i&gt;" in html


def test_sources_that_differ_are_compared_line_by_line(client: TestClient) -> None:
    html = client.get("/compare", params={"run": [A, B]}).text
    removed, added = (
        re.findall(rf'<tr class="{kind}">.*?code-line">(.*?)</td>', html, re.DOTALL) for kind in ("removed", "added")
    )
    assert removed[0] == "    return x"
    assert added[0] == "    return x * &#39;&lt;script&gt;&#39;"
    assert "lr = &lt;b&gt;1e-4&lt;/b&gt;" in added
    assert "binary" in html
    assert re.search(r"extra</bdi></span></h2>\s*<span[^>]*>≠ differs", html)
    assert re.search(r"Identical in all runs</h2>.*Chat template", html, re.DOTALL)


def test_runs_of_which_nothing_is_stored_are_named(client: TestClient) -> None:
    html = html_of(client, A, C)
    assert "No sources are stored for this run" in html
    assert "≠ differs" not in html  # nobody knows


def test_a_text_is_one_click_away_and_plain(client: TestClient, path: Path) -> None:
    (digest,) = {
        source.hash for source in queries.run_sources(reading_engine(path), [2])[2] if source.kind == SourceKind.CHANGES
    }
    answer = client.get(f"/sources/{digest}")
    assert answer.text == DIFF
    assert answer.headers["content-type"].startswith("text/plain")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert client.get("/sources/nothing").status_code == 404


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_a_diff_says_how_the_one_text_becomes_the_other(before: list[str], after: list[str]) -> None:
    lines = run_differences._diff_lines(before, after)
    for gone, number, text in (("added", "before", before), ("removed", "after", after)):
        numbered_lines = [(getattr(line, number), line.text) for line in lines if line.kind not in {gone, "gap"}]
        assert all(text[at - 1] == value for at, value in numbered_lines)
    added, removed = (sum(line.kind == kind for line in lines) for kind in ("added", "removed"))
    assert len(before) - removed + added == len(after)
    assert bool(lines) == (before != after)


def test_a_huge_text_is_compared_as_far_as_that_is_quick() -> None:
    rng = random.Random(0)
    texts = {name: "\n".join(rng.choice("ab{}") for _ in range(60_000)) for name in "xy"}
    sources = [[RunSource(run_id=i, kind=SourceKind.REWARD, name="f", hash=digest)] for i, digest in enumerate("xy")]
    (comparison,) = comparisons(sources, texts)
    (difference,) = comparison.differences
    assert difference.is_cut
    assert len(difference.lines) <= 600


def test_the_same_changes_are_shown_once() -> None:
    def changes(run: int, digest: str) -> list[RunSource]:
        return [RunSource(run_id=run, kind=SourceKind.CHANGES, name="", hash=digest)]

    trees = working_trees([changes(0, "x"), [], changes(2, "x"), changes(3, "y")], {"x": DIFF, "y": ""})
    assert [tree.run_indices for tree in trees] == [[0, 2], [3]]
    assert [line.kind for line in trees[0].lines] == ["file", "file", "file", "gap", "removed", "added"]


def test_files_that_the_runs_changed_differently_come_first() -> None:
    def names(run: int, digest: str) -> list[RunSource]:
        return [RunSource(run_id=run, kind=SourceKind.CHANGED_FILES, name="", hash=digest)]

    texts = {"x": "1\t0\ta.py\n2\t2\tb.py\n", "y": "1\t0\ta.py\n3\t2\tb.py\n-\t-\tc d.png\n"}
    trees = working_trees([names(0, "x"), names(1, "y")], texts)
    assert [[file.name for file in tree.differing_files] for tree in trees] == [["b.py"], ["b.py", "c d.png"]]
    assert [[file.name for file in tree.common_files] for tree in trees] == [["a.py"], ["a.py"]]
    (alone,) = working_trees([names(0, "x"), []], texts)
    assert [file.name for file in alone.differing_files] == ["a.py", "b.py"]


# --- Curves


def test_a_value_that_is_missing_breaks_the_line() -> None:
    points = [CurvePoint(step, None if step == 3 else float(step), step, step) for step in range(1, 7)]
    chart = make_chart(["A", "B"], [points, []], Axis.STEP)
    assert chart is not None
    assert len(chart.series[0].smooth_parts) == 2
    assert chart.series[0].values == "1 2 - 4 5 6"
    assert chart.series[1].last is None
    assert "B has no value" in chart.label
    assert [value for _, (value, _) in chart.table][2] is None


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=30), st.sampled_from(list(Axis)))
def test_every_point_lies_within_the_axes(values: list[float], axis: Axis) -> None:
    points = [CurvePoint(i, value, 8 * i, i * 1_000_000) for i, value in enumerate(values)]
    chart = make_chart(["A"], [points], axis)
    assert chart is not None
    numbers = [float(n) for part in chart.series[0].smooth_parts for n in re.split("[ ,]", part)]
    assert all(-0.01 <= number <= 100.01 for number in numbers)
    assert 2 <= len(chart.y_ticks) <= 12
    assert all(math.isfinite(float(number)) for number in numbers)


def test_the_axis_ends_where_the_longest_curve_does() -> None:
    chart = make_chart(["A"], [[CurvePoint(step, 0.5, 8 * step, step) for step in range(71)]], Axis.STEP)
    assert chart
    assert chart.series[0].places.endswith(" 100.0")
    assert chart.x_ticks == [(0.0, "0"), (28.57, "20"), (57.14, "40"), (85.71, "60 steps")]


def test_one_value_is_no_curve() -> None:
    assert make_chart(["A"], [[CurvePoint(1, 0.5, 8, 1)]], Axis.STEP) is None


def test_all_curves_are_smoothed_over_as_many_steps() -> None:
    wave = [CurvePoint(step, float(step % 2), step, step) for step in range(1, 61)]
    chart = make_chart(["A", "B"], [wave, wave[:14]], Axis.STEP)
    assert chart
    long, short = (series.smooth_parts[0].split(" ") for series in chart.series)
    assert long[:13] == short[:13]
    assert all(series.exact_parts for series in chart.series)


@pytest.mark.exhaustive
def test_the_first_of_four_runs_is_compared_with_the_others_as_references(tmp_path: Path) -> None:
    for seed, uid in enumerate((A, B, C, "four-dddd")):
        make_run_at(tmp_path / "runs.db", uid=uid, steps=12, seed=seed, state=RunState.FINISHED)
    with dashboard(tmp_path / "runs.db") as client:
        against = page(client, A, B, C, "four").against
        assert (against.id, against.references, against.steps) == ("within", ["B", "C", "D"], [1, 12])
        assert "A against B, C, D as references: within what they do" in html_of(client, A, B, C, "four")
        assert page(client, A, B, C, "four", mode="eval").against is None
        assert page(client, A, B, C).against is None
