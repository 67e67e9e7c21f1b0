"""The diagnosis from the command line and from Python, what it is held against, and diagnostics of users' own."""

import json
import re
import shlex
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import update
from sqlmodel import col

from logs_ui.recorder import (
    Card,
    Diagnostic,
    Report,
    Settings,
    SettingsError,
    diagnose,
    flush,
    load_run,
    load_runs,
    record,
    record_environment,
    start_run,
)
from logs_ui.recorder.analysis.diagnose import muted_of, settings_of
from logs_ui.recorder.diagnosis import DIAGNOSTICS
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.queries import annotated, find_run, known_values, saved_settings
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.changes import Source, SourcesChange
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.vocabulary import Mark, SourceKind
from tests.doc_tables import DIAGNOSIS, PAGES, written
from tests.support.card_keys import CARD_KEYS
from tests.support.command import typed
from tests.support.dashboard import dashboard
from tests.support.factory import make_run as make_factory_run

HOSTILE = "<b>\x1b[31mred\u202e\n[bold]x[/]"


def make_run(db: Path, name: str, *, cut: int, steps: int = 6, finish: bool = True, **settings: Any) -> str:
    """Steps of 2 groups of 4 rollouts, the first `cut` of each group cut off and worth nothing; the others win most."""
    run = start_run(name, db=db, **settings)
    for step in range(1, steps + 1):
        for group in range(2):
            for i in range(4):
                of_row: dict[str, Any] = {"step": step, "group": f"{step}-{group}", "generation": i, "mode": "train"}
                with run.rollout(f"task {group}", task=f"task {group}", **of_row) as row:
                    row.turn(f"answer {step} {i}", action=f"go {i}", observation=f"at {step}", done=True)
                    row.stop("length" if i < cut else "done")
                row.score(rewards={"solved": 0.0 if i < cut else 1.0 - 0.05 * ((i + step) % 3)})
    if finish:
        run.finish()
    flush()
    return run.id


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnose") / "a.db"
    start_run("empty", db=path).finish()
    make_run(path, "healthy", cut=0)
    make_run(path, "young", cut=2, steps=1, finish=False)
    make_run(path, "low", cut=2)
    return path


@pytest.fixture
def own(db: Path, tmp_path: Path) -> Path:
    """A copy that a test may save settings for."""
    path = tmp_path / "own.db"
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("VACUUM INTO ?", [str(path)])
    return path


def refused(*arguments: str | Path, code: int = 1) -> str:
    """What it says when it cannot do it: one line."""
    done = typed(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    return line


def settings(db: Path) -> Settings:
    with disposed(reading_engine(db)) as engine:
        return settings_of(engine, find_run(engine, "latest"))


# --- The command


def test_the_first_card_says_what_is_wrong_what_it_costs_and_how_to_see_it(db: Path) -> None:
    done = typed("diagnose", "low", "--db", db)
    assert (done.returncode, done.stderr) == (3, "")
    report = diagnose("low", db)
    assert f"Run {report.run}, steps 1 to 6" in done.stdout
    (first,) = [line for line in done.stdout.splitlines() if line.startswith("1. ")]
    assert first == f"1. {report.cards[0].title} [truncation]"
    assert report.cards[0].title.startswith("50% of rollouts")
    for said in (*report.cards[0].evidence, report.cards[0].suggestion, report.cards[0].where):
        assert said in done.stdout
    assert f"http://127.0.0.1:7070/runs/{report.run}?where=" in done.stdout
    assert f"logs-ui serve --db {shlex.quote(str(db))}" in done.stdout
    assert "Not recorded, so not checked:" in done.stdout


def test_its_waterfall_has_the_longest_bar_for_what_costs_most(db: Path) -> None:
    said = typed("diagnose", "low", "--db", db).stdout.splitlines()
    bars = {line.split("  ")[1]: line.count("█") for line in said if "█" in line}
    assert bars["truncated"] == max(bars.values()) == 24
    assert 1 <= bars["ended below best"] < 24
    (line,) = [line for line in said if "truncated" in line and "█" in line]
    assert "24 rollouts" in line


def test_calls_that_are_no_rollouts_are_said(own: Path) -> None:
    assert "belong" not in str(diagnose("low", own))
    with sqlite3.connect(own) as connection:
        connection.execute("UPDATE run SET unattributed_calls = 3")
    said = "3 model or environment calls could not be matched to a rollout: some rollouts lack actions or turns"
    assert said in str(diagnose("low", own))
    assert said in typed("diagnose", "low", "--db", own).stdout
    assert diagnose("low", own).as_dict()["unattributed_calls"] == 3
    with dashboard(own) as client:
        assert said in client.get(f"/runs/{load_runs(own).run[0]}/why").text


def test_references_are_compared_with_and_leave_the_exit_code(db: Path) -> None:
    done = typed("diagnose", "low", "--db", db, "--against", "healthy", "--json")
    against = json.loads(done.stdout)["against"]
    assert done.returncode == 3
    assert against | {"references": "", "figures": ""} == {
        "id": "not_judged", "references": "", "steps": [1, 6], "figures": "", "not_compared": [], "differing": [],
        "said": "no verdict, which needs 3 references; means over the last third of steps 1 to 6",
    }  # fmt: skip
    assert against["figures"][0].keys() == {"name", "value", "references", "is_share", "since_step"}
    lines = typed("diagnose", "low", "--db", db, "--against", "healthy").stdout.splitlines()
    assert f"Against 1 reference: {against['said']}." in lines
    assert "+50 pp  truncated 50% (reference 0%)" in [line.strip() for line in lines]
    assert "cannot be compared with itself" in refused("diagnose", "low", "--db", db, "--against", "low")


def test_arguments_and_sources_that_differ_from_a_reference_are_named(tmp_path: Path) -> None:
    with disposed(writing_engine(tmp_path / "a.db")) as engine:
        for name, template in (("a", "{{ x }}"), ("b", "{{ y }}")):
            make_factory_run(engine, uid=name, steps=4, seed=3)
            with engine.begin() as connection:
                ids = run_writes.run_ids(connection, [name], 0)
                sources = SourcesChange(name, (Source(SourceKind.CHAT_TEMPLATE, "", template),))
                run_writes.write_sources(connection, [sources], ids)
        with engine.begin() as connection:
            other = {"config": {"learning_rate": 0.1, "output_dir": "b"}}
            connection.execute(update(Run).where(col(Run.uid) == "b").values(**other))
    against = diagnose("a", tmp_path / "a.db", against=["b"]).against
    assert against is not None
    assert against.differing == ["beta", "chat template", "learning_rate", "num_generations", "seed"]


def test_json_has_these_names_and_the_dearest_first(db: Path) -> None:
    done = typed("diagnose", "low", "--db", db, "--json")
    assert (done.returncode, done.stderr) == (3, "")
    said = json.loads(done.stdout)
    assert said["run"] == load_runs(db).run[0]
    assert all(set(card) == CARD_KEYS | {"behind"} for card in said["cards"])
    first = said["cards"][0]
    assert (first["id"], first["cost"]) == ("truncation", max(card["cost"] for card in said["cards"]))
    assert said == diagnose("low", db).as_dict()
    assert sum(part["cost"] for part in said["waterfall"]) == pytest.approx(said["best"] - said["mean"], abs=0.01)


def test_every_cards_filter_opens_rollouts(db: Path) -> None:
    report = diagnose("low", db)
    cut = load_run("low", db, where=report.cards[0].where)
    assert len(cut) == 24
    assert set(cut.stop_reason) == {"length"}


@pytest.mark.parametrize(
    ("run", "said", "values"),
    [
        ("healthy", "No cause found; too few groups to tell a trend: solved 33%.", {"cards": []}),
        ("young", "Too early to judge", {"warming_up": True}),
        ("empty", "no rollout has ended yet", {"cards": [], "mean": None, "steps": None}),
    ],
)
def test_a_run_without_a_finding_exits_with_0(db: Path, run: str, said: str, values: dict[str, Any]) -> None:
    done = typed("diagnose", run, "--db", db)
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout
    shown = json.loads(typed("diagnose", run, "--db", db, "--json").stdout)
    assert {name: shown[name] for name in values} == values


def test_a_training_that_failed_says_its_error_and_exits_with_3(tmp_path: Path) -> None:
    def train() -> None:
        with start_run("broken", db=tmp_path / "a.db") as run:
            run.rollout("?", step=1).score(1.0)
            raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError):
        train()
    done = typed("diagnose", "broken", "--db", tmp_path / "a.db")
    assert done.returncode == 3, done.stderr
    assert "The training failed: RuntimeError: CUDA out of memory." in done.stdout


@pytest.mark.parametrize("command", [["diagnose"], ["export", "-o"]])
def test_a_run_may_be_named_in_four_ways(db: Path, tmp_path: Path, command: list[str]) -> None:
    uid = load_runs(db).run[0]
    first, *options = command

    def file(number: int) -> list[str | Path]:
        return [*options, tmp_path / f"{number}.csv"] if options else []

    for number, name in enumerate((uid, uid[:-1], "low", "latest")):
        assert typed(first, name, *file(number), "--db", db).returncode in (0, 3)
    assert "'low'" in refused(first, "lwo", *file(9), "--db", db)


def test_what_a_task_is_called_reaches_no_terminal(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with start_run("hostile", db=db) as run:
        for step in range(1, 13):
            for i in range(4):
                task = HOSTILE if i < 2 else "fair"
                with run.rollout(task, task=task, mode="train", step=step, group=f"{step}-{task}") as row:
                    row.turn("go", action=f"go {step}", done=True)
                row.score(0.0 if i < 2 else 1.0)
    done = typed("diagnose", "hostile", "--db", db, FORCE_COLOR="1", COLUMNS="60")
    assert done.returncode == 3, done.stderr
    assert "never solved" in done.stdout
    assert "\x1b[31mred" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "[bold]x[/]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--threshold", "truncation"], "--threshold 'truncation' is not a threshold: write it as truncation=0.1."),
        (["--threshold", "truncation=x"], "is not a number"),
        (["--threshold", "truncation=nan"], "must be a finite number, not nan."),
        (["--threshold", "turn_limit=-1"], "The threshold of turn_limit must be a number from 0 to 1, not -1."),
        (["--threshold", "truncation=1.5"], "from 0 to 1, not 1.5."),
        (["--threshold", "never_solved=0"], "The threshold of never_solved must be a number from 1 on, not 0."),
        (["--solved-by", "solvd"], "There is no reward function 'solvd': did you mean 'solved'?"),
        (["--threshold", "trunkation=1"], "There is no diagnostic 'trunkation': did you mean 'truncation'?"),
        (["--max-reward", "inf"], "max_reward must be a finite number, not inf."),
        (["--max-reward", "1", "--solved-at", "2"], "solved_at 2 is above max_reward 1"),
        (["--diagnostics", "nowhere:NOTHING"], "There is no module nowhere"),
        (["--diagnostics", "json:dumps"], "neither a Diagnostic nor a list of them"),
        (["--diagnostics", "json:nothing"], "Write it as module:name"),
    ],
)
def test_a_setting_that_cannot_be_is_answered_in_one_line(db: Path, arguments: list[str], what: str) -> None:
    assert what in refused("diagnose", "low", "--db", db, *arguments)


def test_what_is_misspelt_exits_with_2(db: Path) -> None:
    assert "logs-ui diagnose --help" in refused("diagnose", "low", "--db", db, "--treshold", "x=1", code=2)
    assert "'--steps'" in refused("diagnose", "low", "--db", db, "--steps", "0", code=2)


def test_its_options_set_what_the_run_is_held_against(db: Path) -> None:
    thresholds = ("--threshold", "truncation=0.9", "--threshold", "dead_groups=0.9")
    scale = ("--max-reward", "2", "--solved-at", "1.5", "--steps", "4")
    said = json.loads(typed("diagnose", "low", "--db", db, "--json", *scale, *thresholds).stdout)
    assert (said["best"], said["best_is"], said["solved_at"], said["steps"]) == (2.0, "as set", 1.5, [3, 6])
    assert "truncation" not in {card["id"] for card in said["cards"]}
    assert not NOTES.path(db).exists(), "only --save keeps them"


# --- Settings of a run


@pytest.mark.exhaustive
def test_saved_settings_stand_above_recorded_ones_until_they_are_taken_back(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    recorded = Settings(max_reward=2.0, thresholds={"truncation": 0.9})
    uid = make_run(db, "low", cut=2, diagnosis=recorded)
    assert settings(db) == recorded
    assert diagnose(db=db).scale.best == 2.0
    done = typed("diagnose", "low", "--db", db, "--save", "--solved-at", "0.5", "--threshold", "loops=0.3")
    assert str(NOTES.path(db)) in done.stderr
    saved = Settings(max_reward=2.0, solved_at=0.5, thresholds={"truncation": 0.9, "loops": 0.3})
    assert settings(db) == saved
    assert diagnose(db=db).scale.success.marks == (Mark("reward", 0.5),)
    back = typed("diagnose", "low", "--db", db, "--json", "--reset")
    assert settings(db) == recorded
    assert json.loads(back.stdout)["best"] == 2.0
    assert "settings are reset" in back.stderr
    typed("diagnose", "low", "--db", db, "--save", "--steps", "3")
    typed("diagnose", "low", "--db", db, "--reset", "--save", "--max-reward", "4")
    assert settings(db) == replace(recorded, max_reward=4.0), "what was saved before is gone"
    Notebook(db).diagnosis(uid, None)
    assert settings(db) == recorded


def test_the_column_of_a_reference_is_saved_for_the_run_and_for_one_eval(own: Path) -> None:
    with disposed(reading_engine(own)) as engine:
        (name,) = known_values(engine, find_run(engine, "low").id or 0, ("eval",))["eval"]
    typed("diagnose", "low", "--db", own, "--save", "--reference", "metadata.key", "--reference", f"{name}=7")
    assert settings(own) == Settings(reference="key", environments={name: {"reference": "7"}})


def test_saving_does_not_touch_the_recorders_database(own: Path) -> None:
    before = own.read_bytes()
    assert typed("diagnose", "low", "--db", own, "--save", "--max-reward", "3").returncode == 3
    assert own.read_bytes() == before
    assert settings(own) == Settings(max_reward=3.0)


def test_a_file_of_notes_from_before_is_read_and_written_on(own: Path) -> None:
    run = Subject(load_runs(own).run[0])
    Notebook(own).star(run, starred=True)
    with sqlite3.connect(NOTES.path(own)) as connection:
        connection.execute("DROP TABLE diagnosis")
    assert settings(own) == Settings()
    with disposed(reading_engine(own)) as engine:
        assert annotated(engine, run.run).starred == 0
    Notebook(own).diagnosis(run.run, Settings(steps=3))
    assert settings(own) == Settings(steps=3)


def test_settings_that_cannot_be_read_count_as_none(own: Path) -> None:
    with sqlite3.connect(own) as connection:
        connection.execute("""UPDATE run SET diagnosis = '{"steps": "many"}'""")
    assert settings(own) == Settings()
    later = """UPDATE run SET diagnosis = '{"steps": 4, "later": 1, "thresholds": {"of_tomorrow": 1}}'"""
    with sqlite3.connect(own) as connection:
        connection.execute(later)
    assert settings(own) == Settings(steps=4, thresholds={"of_tomorrow": 1.0})
    assert diagnose(db=own).cards


@pytest.mark.parametrize("door", [record, record_environment])
def test_the_doors_refuse_settings_that_cannot_be(door: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'truncation'"):
        door(lambda: None, diagnosis=Settings(thresholds={"trunctaion": 1}), db=tmp_path / "a.db")
    with pytest.raises(TypeError, match="diagnosis takes Settings"):
        door(lambda: None, diagnosis={"steps": 3}, db=tmp_path / "a.db")
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_reward": value} for value in (float("nan"), "1", True)),
        *({"steps": value} for value in (0, 1.5)),
        *({"thresholds": value} for value in ({"loops": None}, [1])),
        {"solved_at": float("inf")},
        {"max_reward": 1.0, "solved_at": 1.1},
    ],
)
def test_settings_are_numbers_that_go_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as error:
        Settings(**wrong)
    assert "\n" not in str(error.value)


def test_settings_take_numpys_numbers_and_are_plain_then() -> None:
    made = Settings(max_reward=np.float32(1.0), steps=np.int64(5), thresholds={"loops": np.float64(0.5)})  # type: ignore[arg-type]
    numbers = {"max_reward": 1.0, "steps": 5, "thresholds": {"loops": 0.5}, "environments": {}, "muted": {}}
    unset = {"solved_at": None, "solved_by": None, "reference": None}
    assert json.loads(json.dumps(made.as_dict())) == numbers | unset


# --- Python


def test_a_report_is_a_table_a_text_and_a_dict(db: Path) -> None:
    report = diagnose("low", db)
    assert isinstance(report, Report)
    frame = report.frame()
    names = "run id title cost since_step share evidence suggestion where is_part behind"
    assert list(frame.columns) == names.split()
    assert frame.id[0] == "truncation"
    assert list(frame.cost) == [card.cost for card in report.cards]
    empty = diagnose("healthy", db).frame()
    pd.testing.assert_series_equal(frame.dtypes, empty.dtypes)
    assert len(empty) == 0
    command = typed("diagnose", "low", "--db", db).stdout
    assert all(line.strip() in command for line in str(report).splitlines())


# --- Diagnostics of one's own


def own_diagnostic(look: Any, missing: Any = lambda _: None, name: str = "mine") -> Diagnostic:
    return Diagnostic(name, "Mine", "what it is", "ours", missing=missing, look=look)


def mine(**changes: Any) -> Card:
    given = {"id": "mine", "title": "Mine", "cost": 10.0, "evidence": ("Because.",), "suggestion": "Do.", "where": ""}
    return Card(**{**given, **changes})


def test_a_diagnostic_of_ones_own_stands_among_the_others(db: Path) -> None:
    def look(run: Any) -> Card | None:
        return mine(evidence=(f"{len(run.rows)} rollouts, above {run.threshold('mine', 1.0)}.",), where="reward<0.5")

    report = diagnose("low", db, diagnostics=[own_diagnostic(look)], settings=Settings(thresholds={"mine": 7.0}))
    (card,) = [card for card in report.cards if card.id == "mine"]
    assert card.evidence == ("48 rollouts, above 7.0.",)
    assert set(load_run("low", db, where=card.where).reward) == {0.0}
    assert "truncation" in {card.id for card in report.cards}


def test_what_it_lacks_is_not_recorded(db: Path) -> None:
    report = diagnose("low", db, diagnostics=[own_diagnostic(lambda _: mine(), lambda _: "the moon")])
    assert ("mine", "the moon") in {(it.id, it.said) for it in report.missing}
    assert "Mine (needs the moon)" in str(report)


@pytest.mark.parametrize(
    ("look", "what"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda _: {"id": "mine"}, "it returned a dict, not a Card or None"),
        (lambda _: mine(id="other"), "its card has the id 'other'"),
        (lambda _: mine(evidence="one text"), "give a tuple of sentences"),
        (lambda _: mine(cost=float("nan")), "its card costs nan"),
        (lambda _: mine(where="no_such_field:1"), "no_such_field"),
    ],
)
def test_what_goes_wrong_in_it_is_one_line_and_hides_no_card(db: Path, look: Any, what: str) -> None:
    report = diagnose("low", db, diagnostics=[own_diagnostic(look)])
    (failed,) = report.failed
    assert what in failed.error
    assert "\n" not in failed.error
    assert report.cards == diagnose("low", db).cards
    assert f"The diagnostic mine failed: {failed.error}" in str(report)


def test_a_check_of_our_own_that_fails_costs_no_report(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every, look = {check.id: check for check in DIAGNOSTICS}, Mock(side_effect=ZeroDivisionError)
    broken = every | {"truncation": replace(every["truncation"], look=look)}
    monkeypatch.setattr("logs_ui.recorder.analysis.diagnose.DIAGNOSTICS", tuple(broken.values()))
    with pytest.raises(ZeroDivisionError):
        diagnose("low", db)
    monkeypatch.delenv(RAISE_VARIABLE)
    report = diagnose("low", db)
    assert [failed.id for failed in report.failed] == ["truncation"]
    assert [check.state for check in report.checked if check.id == "truncation"] == ["not_judged"]
    assert len(report.cards) + len(report.checked) == len(DIAGNOSTICS)


def test_two_diagnostics_of_one_name_are_refused(db: Path) -> None:
    with pytest.raises(SettingsError, match="Two diagnostics are called 'loops'"):
        diagnose("low", db, diagnostics=[own_diagnostic(lambda _: None, name="loops")])
    with pytest.raises(TypeError, match="not a str"):
        diagnose("low", db, diagnostics=["mine"])  # type: ignore[list-item]


def test_the_command_takes_them_by_name_and_says_when_they_break(db: Path, tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(
        "from logs_ui.recorder import Card, Diagnostic\n"
        "def look(run):\n"
        "    return Card('mine', 'Mine', 10.0, ('Because.',), 'Do.', '')\n"
        "MINE = Diagnostic('mine', 'Mine', '', 'ours', missing=lambda run: None, look=look)\n"
        "BROKEN = [Diagnostic('broken', 'Broken', '', 'ours', missing=lambda run: None, look=lambda run: 1 / 0)]\n"
    )

    def asked(run: str, *names: str) -> subprocess.CompletedProcess[str]:
        options = [part for name in names for part in ("--diagnostics", f"checks:{name}")]
        return typed("diagnose", run, "--db", db, "--json", *options, folder=tmp_path)

    done = asked("low", "MINE", "BROKEN")
    said = json.loads(done.stdout)
    assert {"mine", "truncation"} <= {card["id"] for card in said["cards"]}
    assert said["failed"] == [{"id": "broken", "name": "Broken", "error": "ZeroDivisionError: division by zero"}]
    assert done.stderr == "logs-ui: The diagnostic broken failed: ZeroDivisionError: division by zero\n"
    assert done.returncode == 3
    assert asked("healthy", "BROKEN").returncode == 1, "nobody could say that it is healthy"


# --- Its page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_in_the_docs_are_as_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert text == written(text), "python -m tests.doc_tables writes the tables anew"


def test_the_docs_say_which_keys_and_columns_there_are(db: Path) -> None:
    page, report = DIAGNOSIS.read_text(), diagnose("low", db)
    (keys,) = re.findall(r"\| key \| is \|\n\| --- \| --- \|\n(.*?)\n\n", page, re.DOTALL)
    named = set(re.findall(r"`(?:cards\[\]\.)?(\w+)`", " ".join(row.split(" | ")[0] for row in keys.splitlines())))
    said = report.as_dict()
    assert named == {*said, *said["cards"][0]}
    (columns,) = re.findall(r"\| column of `frame\(\)` .*?\n\| --- .*?\n(.*?)\n\n", page, re.DOTALL)
    cells = [row.split(" | ")[:2] for row in columns.splitlines()]
    types = {name: kind for names, kind in cells for name in re.findall(r"`(\w+)`", names)}
    assert {name: f"`{kind}`" for name, kind in report.frame().dtypes.items()} == types


def test_the_diagnostic_in_the_docs_works(db: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DIAGNOSIS.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "checks.py" in block]
    (tmp_path / "checks.py").write_text(code)
    (line,) = re.findall(r"^logs-ui (diagnose latest --diagnostics .*)$", DIAGNOSIS.read_text(), re.MULTILINE)
    done = typed(*line.split(), "--db", db, folder=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "100% of rollouts end after one turn [gave_up, your own diagnostic]" in done.stdout


def test_the_options_in_the_docs_are_those_that_there_are() -> None:
    (usage,) = re.findall(r"```bash\nlogs-ui diagnose RUN (.*?)```", DIAGNOSIS.read_text(), re.DOTALL)
    asked = typed("diagnose", "--help").stdout
    there = set(re.findall(r"^ +(--[a-z-]+)", asked, re.MULTILINE))
    assert set(re.findall(r"--[a-z-]+", usage)) == there - {"--help"}


def test_filters_of_several_environments_select_what_was_counted(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    with start_run(db=db) as run:
        for place in range(128):
            name, points = ("web", float(place % 4 < 2)) if place // 4 % 2 else ("game", float(place % 7))
            with run.rollout("Go.", eval_name=name, group=str(place // 4), step=place // 32, mode="train") as row:
                row.score(points)
    report = diagnose(run.id, db)
    (share,) = report.fall.shares
    assert share.where == "cause:wrong_answer -reward_in.game>=6 -reward_in.web>=1"
    assert len(load_run(run.id, db, where=f"{share.where} {report.scope}")) == share.rollouts == 88


def _truncated(db: Path, project: str | None) -> str:
    """Record three truncated rollouts of four."""
    with start_run(db=db, project=project) as run:
        for place in range(32):
            with run.rollout("Go.", group=str(place // 4), mode="train") as row:
                row.turn("So", finish="length" if place % 4 else "stop")
                row.score(float(place % 4 == 0))
    return run.id


@pytest.mark.exhaustive
def test_what_is_muted_for_a_project_is_muted_in_its_runs(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    alone, first = _truncated(db, None), _truncated(db, "math")
    mute = ("--db", db, "--mute", "truncation=short", "--save", "--for-project")
    assert typed("diagnose", first, "--db", db, "--mute", "dead_groups=of this run alone", "--save").returncode == 3
    assert typed("diagnose", first, *mute).returncode == 0
    with disposed(reading_engine(db)) as engine:
        assert muted_of(engine, "math") == {"truncation": "short"}
    typed("diagnose", first, "--db", db, "--max-reward", "2", "--save")
    with disposed(reading_engine(db)) as engine:
        stored = saved_settings(engine, first)
        assert stored
        assert stored["muted"] == {"dead_groups": "of this run alone"}
    assert "this run has no project" in typed("diagnose", alone, *mute).stderr
    reports = diagnose(_truncated(db, "math"), db), diagnose(alone, db)
    assert [[it.id for it in report.checked if it.state == "muted"] for report in reports] == [["truncation"], []]
