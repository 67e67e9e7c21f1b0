"""Realistic runs that are written as other trainers write them, and imported: the first finding is the same wherever
the shape holds what it needs, and elsewhere none is made up.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import diagnose, export_run, import_run, load_run, load_runs
from logs_ui.recorder.vocabulary import Lack
from tests.faults.realistic.registry import RUNS
from tests.recorder.importing.foreign_shapes import SHAPES

WHOLE = {"verifiers", "atif", "eval-protocol"}  # what their fields cannot hold, our exports add
ELSEWHERE: dict[str, dict[str, str | None]] = {
    "coding-regressed": {"trl": "forgotten"},  # a sum of rewards, as verl's and NeMo-RL's files have, is no outcome
    "mix-unscored": dict.fromkeys(("trl", "verl", "nemo-rl"), "invalid_reward"),
    "coding-memory": dict.fromkeys(("trl", "verl", "nemo-rl"), "invalid_reward"),  # their errors are not written
    "judge-length": {"trl": "proxy", "verl": "proxy", "nemo-rl": "length"},  # without tokens, lengths are of texts
    "coding-healthy": {}, "tools-truncated": {}, "web-noop": {}, "shaped-regressed": {}, "async-stale": {},
}  # fmt: skip
"""The first finding in the other shapes; without one, nothing is found there."""


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.exhaustive
def test_a_realistic_run_has_its_first_finding_in_another_shape(name: str, tmp_path: Path) -> None:
    (run,) = [it for it in RUNS if it.id == name]
    run.record(tmp_path / "recorded.db")
    rows = load_run("latest", db=tmp_path / "recorded.db")
    for shape, write in SHAPES.items():
        (folder := tmp_path / shape).mkdir()
        write(rows, tmp_path / "recorded.db", folder)
        found = import_run(folder, run=shape, db=tmp_path / "imported.db")
        assert (found.rollouts, found.bad) == (len(rows), [])
        cards = diagnose(shape, db=tmp_path / "imported.db").cards
        expected = run.expected if shape in WHOLE else ELSEWHERE[name].get(shape)
        assert [it.id for it in cards][:1] == [expected] * (expected is not None), shape


@pytest.mark.parametrize("shape", ["verifiers", "atif", "eval-protocol"])
def test_an_export_of_imported_rollouts_lacks_what_their_files_lacked(shape: Any, tmp_path: Path) -> None:
    (folder := tmp_path / "dump").mkdir()
    rows = [{"input": f"q{i // 4}", "output": f"a{i}", "score": float(i % 2), "step": 1} for i in range(8)]
    (folder / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_run(folder, run="first", db=tmp_path / "first.db")
    name = "out" if shape == "atif" else "out.jsonl"
    export_run("first", shape, tmp_path / name, db=tmp_path / "first.db")
    import_run(tmp_path / name, run="second", db=tmp_path / "second.db")
    lacks = [load_runs(db=tmp_path / f"{run}.db").config[0]["import"]["lacks"] for run in ("first", "second")]
    assert {Lack.ERRORS, Lack.STOP_REASONS} <= set(lacks[0]) <= set(lacks[1])
