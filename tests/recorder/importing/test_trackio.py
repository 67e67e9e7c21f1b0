"""Trackio's databases, as it writes them itself, become runs with rollouts, figures and settings."""

import json
import math
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import import_run, load_run, load_runs, load_scalars
from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.formats.trackio import TrackioReader
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedScalars, ImportOptions
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.vocabulary import Lack, Mode, Status

_FIXTURES = Path(__file__).parent / "fixtures" / "trackio"
_DB = _FIXTURES / "traces.db"


def _all(file: Path, reader: TrackioReader | None = None) -> list[ImportedRollout | ImportedScalars]:
    reader = reader or TrackioReader(file, ImportOptions())
    found: list[ImportedRollout | ImportedScalars] = []
    for number, record in reader.records(file):
        with suppress(RecordError):
            found += reader.rollouts(record, Place(file, file.name, "id", number))
    return found


def _traces(file: Path = _DB) -> dict[str, list[ImportedRollout]]:
    """Return rollouts by the key that they were logged under; completions under ''."""
    found: dict[str, list[ImportedRollout]] = {}
    for it in _all(file):
        if isinstance(it, ImportedRollout):
            found.setdefault(it.metadata.get("key", ""), []).append(it)
    return found


def _trace(**columns: Any) -> list[ImportedRollout | ImportedScalars]:
    row = {"id": "t", "run_id": "r", "run_name": "n", "step": 1, "key": "k", "messages": "[]", "metadata": "{}"}
    return list(TrackioReader(Path(), ImportOptions()).rollouts(row | columns, Place(Path(), "a.db", "id", 1)))


@pytest.mark.parametrize("name", ["traces.db", "traces.parquet"])
def test_both_files_are_recognized(name: str) -> None:
    assert [it.name for it in readers() if it.recognizes(Head(_FIXTURES / name))] == ["trackio"]


@pytest.mark.parametrize("name", ["traces.db", "traces.parquet"])
def test_what_async_grpo_traces_is_a_rollout(name: str) -> None:
    first, second, third = _traces(_FIXTURES / name)["rollouts"]
    assert first.prompt == [{"role": "user", "content": "question 40"}]
    assert first.completion == [{"role": "assistant", "content": "yes"}]
    assert (first.step, first.policy_step, first.mode) == (8, 7, Mode.TRAIN)
    assert (first.group, second.group, third.group) == ("40", "40", "41")
    assert (first.reward, first.advantage, second.advantage, third.reward) == (1.0, 0.5, -0.5, math.inf)
    assert first.rewards is not None
    assert first.rewards["exact"] == 1.0
    assert first.rewards["format"] is None, "Trackio writes NaN for a function that did not score"
    assert (first.prompt_tokens, first.completion_tokens) == (5, 4)
    assert first.metrics == {"reward_std": 0.5, "tools/call_frequency": 2.0, "tools/failure_frequency": 0.5}
    assert first.created is not None
    assert len({it.key for it in (first, second, third)}) == 3


def test_a_table_of_completions_is_rollouts_with_weights_of_the_settings() -> None:
    rows = _traces()[""]
    assert len(rows) == 4  # a table under another name is none
    assert [it.completion[0]["content"] for it in rows] == ["5", "6", "7", "8"]
    assert [it.advantage for it in rows] == [0.7, -0.7, 0.7, -0.7]
    assert [it.group for it in rows][::2] == sorted({it.group or "" for it in rows})  # two groups of num_generations
    assert {it.step for it in rows} == {2}
    assert rows[0].rewards == {"exact": 1.0, "format": 1.0}
    assert (rows[3].rewards or {})["exact"] is None
    assert rows[0].weights == {"exact": 1.0, "format": 0.5}
    assert (rows[0].metrics, rows[0].metadata) == ({"length": 1}, {"answer": "5"})


@pytest.mark.parametrize("name", ["traces.db", "traces.parquet"])
def test_verls_agent_loops_are_refused_and_tools_are_metadata(name: str) -> None:
    reader, rollouts, refused = TrackioReader(_FIXTURES / name, ImportOptions()), [], []
    for number, record in reader.records(_FIXTURES / name):
        try:
            rollouts += list(reader.rollouts(record, Place(_FIXTURES / name, name, "id", number)))
        except RecordError as error:
            refused.append(str(error))
    assert refused == ["it is a trace of verl's agent loop: import the files of trainer.rollout_data_dir"] * 3
    called, told = (
        next(it for it in rollouts if isinstance(it, ImportedRollout) and it.metadata.get("key") == key)
        for key in ("eval/agent", "agent")
    )
    assert (called.mode, called.status, called.error, called.seconds) == (Mode.EVAL, Status.ERROR, None, 2.25)
    assert (called.reward, called.metrics) == (-1e300, {"duration_ms": 2250, "cost_usd": 0.1})
    assert called.metadata["session_id"] == "s"
    assert [it["name"] for it in called.metadata["spans"]] == ["chat", "search", "chat", "all"]
    assert (told.mode, told.status) == (Mode.TRAIN, None)


def test_figures_and_settings_are_the_runs() -> None:
    reader = TrackioReader(_DB, ImportOptions())
    scalars = [it for it in _all(_DB, reader) if isinstance(it, ImportedScalars)]
    assert [it.step for it in scalars] == [1, 2]
    assert scalars[0].values["loss"] == 0.5
    assert math.isnan(scalars[0].values["rewards/format/mean"] or 0.0)
    assert scalars[1].values == {"loss": math.inf, "kl": -math.inf}
    run = reader.describe(scalars[0].run)
    assert (run.name, run.model, run.num_generations, run.max_steps) == ("grpo-1", "tiny", 2, 50)
    assert run.config["lr"] == 0.1


def test_a_run_lacks_what_its_traces_have_no_name_for(tmp_path: Path) -> None:
    found = import_run(_DB, db=tmp_path / "runs.db")
    lacks = load_runs(db=tmp_path / "runs.db").set_index("run").config[found.runs[0]]["import"]["lacks"]
    assert {*Lack} & {*lacks} == {Lack.ERRORS, Lack.STOP_REASONS, Lack.TASKS}


def test_traces_of_an_older_version_are_named() -> None:
    row = {"id": 1, "run_id": "r", "run_name": "n", "step": 1}
    metrics = json.dumps({"loss": 0.5, "rollouts": [{"_type": "trackio.trace", "messages": []}]})
    found = TrackioReader(Path(), ImportOptions()).rollouts(row | {"metrics": metrics}, Place(Path(), "a.db", "id", 1))
    assert isinstance(next(found), ImportedScalars)
    with pytest.raises(RecordError, match="before 0"):
        next(found)


@pytest.mark.parametrize(
    ("key", "mode"),
    {"eval/agent": "eval", "val": "eval", "validation_set": "eval", "value/agent": "train", "valid_n": "train"}.items(),
)
def test_a_key_tells_an_evaluation_by_its_first_word(key: str, mode: str) -> None:
    (found,) = _trace(key=key)
    assert isinstance(found, ImportedRollout)
    assert found.mode == mode


@pytest.mark.parametrize("written", ['"NaN"', "NaN", "null"])
def test_a_function_that_did_not_score_is_none_and_a_total_stays_what_it_is(written: str) -> None:
    about = f'{{"rewards/a": {written}, "rewards/b": 0.5, "reward": "NaN"}}'
    (one,) = _trace(metadata=about, messages='[{"role": "user", "content": "q"}]')
    assert isinstance(one, ImportedRollout)
    assert one.rewards is not None
    assert (one.rewards["a"], one.rewards["b"]) == (None, 0.5)
    assert math.isnan(one.reward or 0.0)


def test_hostile_values_pass_or_cost_themselves() -> None:
    one, other = _traces()["many"]
    assert one.prompt[0]["content"] == "<script>\0"
    assert one.completion[0]["content"] == [{"type": "text", "text": "é"}]
    assert math.isnan(one.reward or 0.0)
    assert (one.group, one.metadata["name"], one.key != other.key) == ("g" * 300, "n" * 300, True)
    assert one.metadata["deep"] == {"nan": "NaN"}
    metadata = '{"reward": -Infinity, "big": 1e400, "name": "\\ud800"}'
    (found,) = _trace(id="x" * 400, metadata=metadata, spans=b'[1, {"a": 1}]')
    assert isinstance(found, ImportedRollout)
    assert (len(found.key), found.reward) == (16, -math.inf)
    assert (found.metadata["name"], found.metadata["spans"]) == ("\ud800", [1, {"a": 1}])
    wrong: Any = [{"messages": "{"}, {"messages": "[1]"}, {"metadata": "[]"}, {"metadata": '{"reward": "a"}'}]
    for columns in wrong:
        with pytest.raises((RecordError, ValueError)):
            _trace(**columns)


def test_a_project_is_imported_with_its_log(tmp_path: Path) -> None:
    source, target = tmp_path / "fixture.db", tmp_path / "runs.db"
    source.write_bytes(_DB.read_bytes())
    writer = sqlite3.connect(source)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute(
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) SELECT run_id, timestamp, run_name, 3, '{' "
        "FROM metrics LIMIT 1"
    )
    writer.commit()
    for _ in range(2):
        found = import_run(source, db=target)
        assert (found.rollouts, found.bad_count, len(found.runs)) == (11, 4, 2)
    rows = load_run(found.runs[0], db=target)
    assert len(rows) == 7
    assert rows[rows["policy_step"] == 7]["reward"].tolist()[:2] == [1.0, 0.0]
    table = rows[(rows["mode"] == "train") & (rows["step"] == 2)].sort_values(["group", "generation"])
    assert table["reward"].tolist() == [1.5, 0.5, 0.0, 0.5]
    scalars = load_scalars(found.runs[0], db=target)
    assert (scalars["loss"][1], scalars["loss"].isna().tolist()) == (0.5, [False, True])
    writer.close()
