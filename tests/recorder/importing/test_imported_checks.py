"""What is said of an imported run: nothing that its files do not hold counts as looked at."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import diagnose, import_run, load_runs
from logs_ui.recorder.importing import import_run as importing
from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.reader import ImportedRollout, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place
from logs_ui.recorder.vocabulary import Lack, Mode

UNKNOWN = {"infrastructure", "staleness", "wiring", "unseeded", "task_mix"}


class _Bare(Reader):
    """Reads texts and rewards, as from files that hold nothing else."""

    name, title, marks = "bare", "bare", "JSONL with `text`"
    lacks = tuple(Lack)
    finish: str | None = None

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        return "text" in head.keys

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        messages = [{"role": role, "content": record["text"]} for role in ("user", "assistant")]
        yield ImportedRollout(
            place.key, messages[:1], messages[1:], step=record["step"], mode=Mode.TRAIN, group=str(record["group"]),
            reward=record["reward"], turns=[Turn(self.finish)] if self.finish else (),
        )  # fmt: skip


class _Whole(_Bare):
    lacks, finish = (), "stop"


def _made(folder: Path) -> Path:
    file = folder / "a.jsonl"
    lines = [
        {"text": f"answer {i} of {g} at {step}", "step": step, "group": g, "reward": (i + g) % 4 / 4}
        for step in range(1, 9)
        for g in range(4)
        for i in range(4)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


DOCS = Path(__file__).parents[3] / "docs" / "import.md"
FIXTURES = Path(__file__).parent / "fixtures"
LACKS = {it.title: it.lacks for it in readers()}
STORED = {
    "TRL": "trl/1.16.0", "ART": "art/v1", "Eval Protocol": "eval_protocol/logs.db",
    "verifiers and prime-rl": "verifiers/classic_0_1_9",
}  # fmt: skip


@pytest.mark.parametrize(
    "title",
    [*STORED, "verl", "NeMo-RL", "AReaL", "SkyRL evaluations", "open-instruct", "Inspect AI", "ATIF and Harbor"],
)
def test_docs_name_what_a_format_lacks(title: str, tmp_path: Path) -> None:
    lacks = LACKS[title]
    if title in STORED:
        import_run(FIXTURES / STORED[title], db=tmp_path / "a.db")
        lacks = load_runs(db=tmp_path / "a.db").config[0]["import"]["lacks"]
    heading = "Harbor (Terminal-Bench) and ATIF" if title == "ATIF and Harbor" else title
    said = DOCS.read_text().split(f"### {heading}\n")[1].split("\n#")[0].split("cannot tell:")[1]
    for lack in (Lack.ERRORS, Lack.STOP_REASONS, Lack.POLICY_VERSIONS, Lack.TASKS, Lack.GROUPS):
        assert (lack in lacks) == (lack in " ".join(said.split())), lack


@pytest.mark.parametrize("reader", [_Bare, _Whole])
def test_a_check_without_its_data_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: type[_Bare]
) -> None:
    monkeypatch.setattr(importing, "readers", lambda: (reader,))
    found = import_run(_made(tmp_path), db=tmp_path / "runs.db")
    report = diagnose(found.runs[0], db=tmp_path / "runs.db")
    missing = {it.id: it.said for it in report.missing}
    assert "first_prompt" in missing  # no file has what a trainer asked its server for
    if reader is _Bare:
        assert missing.keys() >= UNKNOWN
        assert missing["staleness"] == "policy versions, which the imported files do not hold"
    else:
        assert not missing.keys() & UNKNOWN
    assert report.scored_low is not None
    how = "how mostly not recorded" if reader is _Bare else "Ended below best: "
    assert how in report.scored_low.title


def test_a_run_of_two_formats_lacks_what_one_of_them_lacks(tmp_path: Path) -> None:
    (dump := tmp_path / "dump").mkdir()
    row = {"input": "q", "output": "a", "score": 1.0, "step": 1}
    (dump / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    trials = Path(__file__).parent / "fixtures/atif/jobs"
    for paths in ([dump, trials], [trials, dump]):
        db = tmp_path / f"{paths[0].name}.db"
        import_run(paths, run="both", db=db)
        lacks = load_runs(db=db).config[0]["import"]["lacks"]
        assert {Lack.ERRORS, Lack.STOP_REASONS, "why the model's answers ended"} <= {*lacks}
        assert len(lacks) == len({*lacks})
