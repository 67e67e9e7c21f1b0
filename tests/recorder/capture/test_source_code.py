"""What a run is made of beside its arguments, as it is found and stored."""

import functools
import inspect
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlmodel import Session, col

from logs_ui.recorder.api.run_description import RunName, git
from logs_ui.recorder.api.run_record import RunRecord
from logs_ui.recorder.capture import source_code
from logs_ui.recorder.capture.instruments.trl_parts import distinct
from logs_ui.recorder.capture.source_code import CODE_VARIABLE, Part
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.queries import run_sources, source_texts
from logs_ui.recorder.storage.changes import Source
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import Run, RunSource, Text
from logs_ui.recorder.vocabulary import SourceKind
from logs_ui.rollout import environment_reward, openenv_rollout_func
from tests.support.changes import wait_until


def solved(completions: list[str], scale: float = 1.0) -> list[float]:
    """A reward function."""
    return [scale * len(completion) for completion in completions]


class Judge:
    """A reward function with a state."""

    def __call__(self, completions: list[str]) -> list[float]:
        return [0.0 for _ in completions]


def parse(text: str) -> str:
    """The user's part of a rollout function of ours."""
    return text.strip()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    ("thing", "begins"),
    [
        (solved, "def solved("),
        (functools.partial(solved, scale=2.0), "def solved("),
        (decorated(solved), "def solved("),
        (Judge(), "class Judge:"),
        (Judge, "class Judge:"),
        ("{{ a template }}", "{{ a template }}"),
    ],
    ids=["function", "partial", "decorated", "object", "class", "text"],
)
def test_the_source_is_what_the_user_wrote(thing: Any, begins: str) -> None:
    text = source_code.source_text(thing)
    assert text is not None
    assert text.startswith(begins)


def test_of_a_rollout_function_of_ours_the_source_is_what_it_was_given() -> None:
    made = openenv_rollout_func(base_url="http://127.0.0.1:1", act=parse)
    text = source_code.source_text(made)
    assert text is not None
    assert "def parse(text: str)" in text
    assert "class OpenEnvRollouts" not in text
    own = source_code.source_text(environment_reward)  # which holds nothing of anybody's
    assert own is not None
    assert own.startswith("def environment_reward(")


@pytest.mark.parametrize("thing", [eval("lambda x: x"), len, None], ids=["typed in", "written in C", "nothing"])  # noqa: S307
def test_what_has_no_source_has_a_name_alone(thing: Any) -> None:
    assert source_code.source_text(thing) is None


def test_where_python_fails_to_parse_once_the_source_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([SystemError("AST constructor recursion depth mismatch (before=57, after=162)")])
    getsource = inspect.getsource

    def failing_once(thing: Any) -> str:
        for failure in failures:
            raise failure
        return getsource(thing)

    monkeypatch.setattr(inspect, "getsource", failing_once)
    assert (source_code.source_text(Part) or "").startswith("@dataclass(frozen=True)\nclass Part:")


def test_keys_are_no_part_of_a_source() -> None:
    text = 'login("hf_abcdefghijklmnopqrst")\napi_key = "plain words"\nurl = "http://me:pass@host/"\nsk = "sk-1"\n'
    kept = source_code.storable(text)
    for secret in ("hf_abc", "plain words", ":pass@"):
        assert secret not in kept
    assert 'sk = "sk-1"' in kept


def test_a_long_text_is_cut_and_says_so() -> None:
    text = os.urandom(600_000).hex()
    kept = source_code.storable(text)
    assert kept.startswith(text[:1000])
    assert kept.endswith("[logs-ui kept only the beginning]\n")
    assert len(kept) < len(text)


def test_a_thing_that_breaks_when_it_is_looked_at_costs_only_its_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poison:
        __module__ = "users"

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.delenv(RAISE_VARIABLE, raising=False)
    found = source_code.read_sources(
        [Part(SourceKind.REWARD, "bad", Poison()), Part(SourceKind.REWARD, "good", solved, 0.5)]
    )
    assert [(source.name, source.text is None, source.weight) for source in found] == [
        ("bad", True, None),
        ("good", False, 0.5),
    ]


def test_the_variable_says_what_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "train.py").write_text("changed\n")
    monkeypatch.setenv(CODE_VARIABLE, "none")
    assert source_code.read_sources([Part(SourceKind.REWARD, "solved", solved)]) == [
        Source(SourceKind.REWARD, "solved", None)
    ]
    monkeypatch.setenv(CODE_VARIABLE, "sources")
    assert [source.kind for source in source_code.changes(folder)] == [SourceKind.CHANGED_FILES]
    monkeypatch.setenv(CODE_VARIABLE, "al")
    with pytest.raises(LogsUIError, match=r"LOGS_UI_CODE is 'al'.*all, sources, none"):
        source_code.read_sources([])


def test_changes_of_tracked_files_are_kept_without_secrets(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    assert source_code.changes(folder) == []
    (folder / "train.py").write_text("lr = 1e-4\nHF_TOKEN=hf_abcdefghijklmnopqrst\n")
    (folder / "untracked.py").write_text("secret plans\n")
    files, diff = source_code.changes(folder)
    assert files.text == "2\t1\ttrain.py\n"
    assert diff.text is not None
    assert "-lr = 1e-6\n+lr = 1e-4\n" in diff.text
    assert "abcdefgh" not in diff.text
    assert "secret plans" not in diff.text


def test_outside_of_a_repository_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        source_code.changes(tmp_path)


def test_runs_share_a_text_and_the_list_of_runs_never_reads_it(db: Path) -> None:
    writer = Writer(db)
    for uid in ("one", "two"):
        record = RunRecord(writer, RunName(uid, "abcd"))
        record.begin({}, parts=[Part(SourceKind.REWARD, "solved", solved, 1.0)], announce=False)
    assert writer.flush(60)
    engine = reading_engine(db)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Text)) == 1
        ids = [run or 0 for run in connection.scalars(select(col(Run.id)).order_by(col(Run.id)))]
    found = run_sources(engine, ids)
    assert {source.hash for of_run in found.values() for source in of_run} == {found[ids[0]][0].hash}
    (text,) = source_texts(engine, [found[ids[0]][0].hash or ""]).values()
    assert text.startswith("def solved(")
    assert not {column.name for column in Run.__table__.columns} & {"source", "text", "diff"}  # type: ignore[attr-defined]


@pytest.fixture
def _git_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("_git_hangs")
def test_git_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source_code, "_GIT_SECONDS", 0.2)
    begin = time.monotonic()
    assert git(tmp_path) == {}
    assert time.monotonic() - begin < 30


@pytest.mark.usefixtures("_git_hangs")
def test_a_run_that_begins_does_not_wait_for_git(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.db")
    began = time.monotonic()
    RunRecord(writer, RunName("one", "abcd")).begin({}, announce=False)
    assert time.monotonic() - began < 20
    assert writer.flush(60)


def test_a_run_in_a_changed_tree_stores_what_changed(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repository(tmp_path)
    (folder / "train.py").write_text("lr = 1e-4\n")
    monkeypatch.chdir(folder)
    writer = Writer(db)
    RunRecord(writer, RunName("one", "abcd")).begin({}, announce=False)
    both = {SourceKind.CHANGED_FILES, SourceKind.CHANGES}
    wait_until(lambda: writer.flush(10) and stored_kinds(reading_engine(db)) == both)


def test_functions_of_one_name_are_told_apart() -> None:
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]


def stored_kinds(engine: Engine) -> set[str]:
    with Session(engine) as session:
        return set(session.exec(select(col(RunSource.kind))).scalars())  # type: ignore[call-overload]


def repository(tmp_path: Path) -> Path:
    """With one committed file, `train.py`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("lr = 1e-6\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_a_mistaken_variable_costs_only_the_sources(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE, raising=False)
    monkeypatch.setenv(CODE_VARIABLE, "everything")
    writer = Writer(db)
    record = RunRecord(writer, RunName("one", "abcd"))
    record.begin({"model": "m"}, parts=[Part(SourceKind.REWARD, "solved", solved)], announce=False)
    writer.flush(10)
    with reading_engine(db).connect() as connection:
        assert connection.scalar(select(col(Run.model))) == "m"
        assert connection.scalar(select(func.count()).select_from(RunSource)) == 0
    assert "LOGS_UI_CODE is 'everything'" in caplog.text
