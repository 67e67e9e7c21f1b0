"""The pages of a run that was imported from files that hold neither errors nor stop reasons nor turns."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from logs_ui.recorder import diagnose, import_run
from tests.support.dashboard import dashboard, flat, fragment


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("imported")
    for step in (1, 2, 3):
        rows = [
            {"input": f"question {i // 4}", "output": f"answer {i}", "score": float(i % 2), "step": step}
            for i in range(8)
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for run in ("one", "two"):
        import_run(folder, run=run, db=folder / "logs-ui.db")
    return dashboard(folder / "logs-ui.db")


@pytest.mark.parametrize(
    ("address", "words", "unknown"),
    [
        (
            "/runs/one/overview",
            ["Mean reward", "Not recorded, since the imported files do not hold this"],
            ">(Truncated|Turns|Status)<",
        ),
        ("/?col=reward&col=truncated&col=errors", ["<tbody"], "<tbody.*0%"),
        ("/runs/one/rollouts/1", ["completion tokens"], "returned after|scored after"),
        ("/runs/one/why/trained", ["it is not recorded whether they were trained on"], "contributed to the gradient"),
    ],
    ids=["overview", "list of runs", "rollout", "why"],
)
def test_a_page_has_no_figure_of_what_was_not_recorded(
    pages: TestClient, address: str, words: list[str], unknown: str
) -> None:
    page = pages.get(address).text
    assert [word for word in words if word not in page] == []
    assert not re.search(unknown, page, re.DOTALL)


def test_groups_count_neither_truncated_nor_failed_rollouts(pages: TestClient) -> None:
    page = flat(pages.get("/runs/one/groups").text)
    for column in ("cut", "failed"):
        assert set(re.findall(rf'<td class="num {column}"><span class="quiet">(.*?)</span>', page)) == {"—"}, column
    assert re.search(r'title="The files do not hold: errors, .*">\d+ things not recorded</a>', page)


def test_compared_runs_have_no_shares_of_them(pages: TestClient) -> None:
    runs = "&".join(f"run={uid}" for uid in re.findall(r'name="run" value="(import-\w+)"', pages.get("/").text))
    page = pages.get(f"/compare?{runs}").text
    assert "reward" in page
    assert not re.search(r"<th[^>]*>\s*(truncated|errors)", page)
    curve = pages.get(f"/compare?{runs}&figure=errors")
    assert curve.status_code == 200


@pytest.mark.parametrize("measure", ["truncated", "errors", "stop:turn_limit"])
def test_a_pivot_has_no_shares_of_them(pages: TestClient, measure: str) -> None:
    page = pages.get(f"/runs/one?view=pivot&of={measure}").text
    table = page.split('<table class="pivot"', 1)[1]
    assert "—" in table
    assert not re.search(r"\d%<", table)
    assert f'value="{measure}"' not in pages.get("/runs/one?view=pivot").text


def bare(folder: Path, rows: list[dict[str, Any]], mapping: str = "") -> TestClient:
    """The dashboard of a run of these rows, which have no rewards."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "m.toml").write_text(f'prompt = "question"\ncompletion = "answer"\n{mapping}')
    import_run(folder / "rows.jsonl", run="bare", mapping=folder / "m.toml", db=folder / "logs-ui.db")
    return dashboard(folder / "logs-ui.db")


def test_a_run_without_rewards_is_not_called_healthy(tmp_path: Path) -> None:
    client = bare(tmp_path, [{"question": f"q{i}", "answer": f"a{i}"} for i in range(40)])
    for part in ("why", "overview"):
        page = client.get(f"/runs/bare/{part}").text
        assert "No fault found" not in page, part
        assert ">NaN<" not in page, part
    assert "No rollout of these steps has a reward" in client.get("/runs/bare/why").text
    assert "No fault found" not in str(diagnose("bare", db=tmp_path / "logs-ui.db"))


def test_a_finding_of_a_run_without_rewards_is_shown_without_a_mean(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{i}", "answer": f"a{i}", "end": ("length", "stop")[i % 2], "step": i // 32} for i in range(96)
    ]
    client = bare(tmp_path, rows, 'stop_reason = "end"\nstep = "step"\n')
    why = client.get("/runs/bare/why?wait=1")
    for page in (why.text, client.get("/runs/bare/overview?seen=undiagnosed", headers=fragment("overview")).text):
        assert "50% of rollouts are truncated at the token limit" in page
        assert "o rollout has a reward" in page
        assert "Mean reward: truncated" not in page
        assert not re.search(r">\s*NaN\s*<", page)


def test_an_evaluation_needs_no_variance(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    rows = [{"input": f"q{i // 4}", "output": f"a{i}", "score": float(i > 31), "step": 1} for i in range(64)]
    (tmp_path / "val" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_run(tmp_path / "val", run="one", db=tmp_path / "logs-ui.db")
    (state,) = [it.state for it in diagnose("one", db=tmp_path / "logs-ui.db").checked if it.id == "dead_groups"]
    assert state == "not_judged"
