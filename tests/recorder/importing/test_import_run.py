"""What is true of each import, whatever the format: nothing is lost or doubled, and a fault costs itself alone."""

import gzip
import json
import math
import os
import sqlite3
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from logs_ui.recorder import LogsUIError, import_run, load_run, load_runs
from logs_ui.recorder.importing import batch_writer, formats, source_files
from logs_ui.recorder.importing import import_run as importing
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Mode

_TRL = "Parquet, or W&B's .table.json, with `step`, `prompt`, `completion` and `advantage`"
_SKYRL = "`input_prompt`, `output_response`"
_PACKED = gzip.compress(b'{"text": "a"}\n', mtime=0)


def _archive() -> bytes:
    packed, member = BytesIO(), tarfile.TarInfo("b.jsonl")
    member.size = len(b'{"text": "a"}\n')
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        opened.addfile(member, BytesIO(b'{"text": "a"}\n'))
    return packed.getvalue()


def _zipped() -> bytes:
    """A file that is stored as it is, so that its second line can be read."""
    with BytesIO() as made:
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("a.jsonl", '\n{"text": "a"}\n')
        return made.getvalue()


_ARCHIVE = _archive()


class _Plain(Reader):
    """Reads `{"text", "reward", "step", ...}`."""

    name, title, marks = "plain", "plain", "JSONL with `text`"

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        return "text" in head.keys

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        if record["text"] == "bad":
            raise RecordError("it is marked as bad")
        others = {name: value for name, value in record.items() if name not in {"text", "reward", "step", "run"}}
        yield ImportedRollout(
            place.key,
            [{"role": "user", "content": "What is it?"}],
            [{"role": "assistant", "content": record["text"], "tool_calls": record.get("calls")}],
            step=record.get("step", 0),
            mode=Mode.TRAIN,
            group=str(record.get("group", 0)),
            reward=record.get("reward"),
            rewards=record.get("rewards"),
            prompt_tokens=record.get("count"),
            staleness=record.get("count"),
            metrics={"size": record["size"]} if "size" in record else {},
            tags=[record["tag"]] if "tag" in record else [],
            metadata=others,
            turns=[Turn("stop")],
            run=record.get("run"),
        )


@pytest.fixture(autouse=True)
def _plain_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "readers", lambda: (_Plain,))


def _write(file: Path, *records: dict[str, Any], mode: str = "w") -> Path:
    file.parent.mkdir(exist_ok=True, parents=True)
    with file.open(mode, encoding="utf-8") as opened:
        opened.writelines(json.dumps(record) + "\n" for record in records)
    return file


def _rows(db: Path, run: str) -> pd.DataFrame:
    """Return all that is stored of a run's rollouts, but for the time at which they were stored."""
    return load_run(run, db=db).drop(columns=["id"], errors="ignore").reset_index(drop=True)


def _stored(file: Path) -> tuple[importing.Imported, pd.DataFrame]:
    found = import_run(file, db=file.parent / "runs.db")
    return found, _rows(file.parent / "runs.db", found.runs[0])


@contextmanager
def _followed(path: Path, db: Path) -> Iterator[importing.Importer]:
    """Take what is there, and after the body what it has changed."""
    with closing(importing.Importer([path], ImportOptions(), db=db, is_followed=True)) as importer:
        importer.take()
        yield importer
        importer.take()


def _answers(rows: pd.DataFrame) -> list[str]:
    return sorted(messages[-1]["content"] for messages in rows.messages)


def test_a_repeated_import_adds_nothing(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", *({"text": f"answer {i}", "reward": i / 9} for i in range(10)))
    (first, before), (again, after) = _stored(file), _stored(file)
    assert again.runs == first.runs
    pd.testing.assert_frame_equal(after, before)
    assert before.reward.tolist() == pytest.approx([i / 9 for i in range(10)])


def test_a_copy_is_the_same_run_and_another_file_is_another(tmp_path: Path) -> None:
    _write(tmp_path / "here/a.jsonl", {"text": "one"})
    _write(tmp_path / "there/a.jsonl", {"text": "one"})
    _write(tmp_path / "other/a.jsonl", {"text": "two"})
    runs = [import_run(tmp_path / name, db=tmp_path / "runs.db").runs for name in ("here", "there", "other")]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("cuts", [[1], [7, 60, 61, 62], [200], list(range(1, 700, 13))])
def test_a_file_read_in_pieces_gives_the_same_rows_as_the_whole(tmp_path: Path, cuts: list[int]) -> None:
    records = [{"text": f"answer {i} é", "reward": i, "step": i // 3, "group": i // 2} for i in range(12)]
    whole = _write(tmp_path / "whole/a.jsonl", *records)
    written = whole.read_bytes()
    grown = tmp_path / "grown/a.jsonl"
    grown.parent.mkdir()
    with closing(
        importing.Importer([grown.parent], ImportOptions(), db=tmp_path / "b.db", is_followed=True)
    ) as importer:
        for before, after in zip([0, *cuts], [*cuts, len(written)], strict=True):
            with grown.open("ab") as opened:
                opened.write(written[before:after])
            importer.take()
    assert (importer.result.bad_count, importer.result.rollouts) == (0, 12)
    one = _rows(tmp_path / "b.db", importer.result.runs[0])
    other = _rows(tmp_path / "c.db", import_run(whole, db=tmp_path / "c.db").runs[0])
    times = ["created", "returned", "scored"]  # the file's time
    pd.testing.assert_frame_equal(one.drop(columns=times), other.drop(columns=times))
    assert len(one) == 12


def test_the_last_line_counts_without_its_end_once_it_is_whole(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"text": "one"})
    with file.open("a") as opened:
        opened.write('{"text": "two"}')
    assert import_run(file, db=tmp_path / "runs.db").rollouts == 2
    with file.open("a") as opened:
        opened.write('\n\n{"text": "thr')
    found = import_run(file, db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad_count) == (2, 1)
    assert found.bad[0].number == 4  # the empty line counts
    assert "cut off" in found.bad[0].reason


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_log_that_is_rotated_loses_and_doubles_nothing(tmp_path: Path, *, is_copied: bool) -> None:
    folder, db = tmp_path / "logs", tmp_path / "runs.db"
    file = _write(folder / "a.jsonl", {"text": "one"}, {"text": "two"})
    with _followed(folder, db) as importer:
        if not is_copied:
            _write(file, {"text": "three"}, mode="a")
        (folder / "a.jsonl.1").write_bytes(file.read_bytes())
        if not is_copied:
            file.rename(folder / "a.jsonl.1")
        _write(file, {"text": "four"})
    (run,) = importer.result.runs
    texts = ["four", "one", "two"] if is_copied else ["four", "one", "three", "two"]
    assert (importer.result.rollouts, _answers(_rows(db, run))) == (len(texts), texts)
    assert import_run(folder, db=db).runs == [run]
    assert _answers(_rows(db, run)) == texts


def test_a_run_with_a_name_goes_on_when_its_first_files_are_deleted(tmp_path: Path) -> None:
    folder, db = tmp_path / "logs", tmp_path / "runs.db"
    _write(folder / "step_1.jsonl", {"text": "one", "step": 1})
    _write(folder / "step_2.jsonl", {"text": "two", "step": 2})
    first = import_run(folder, run="night", db=db)
    (folder / "step_1.jsonl").unlink()
    _write(folder / "step_10.jsonl", {"text": "ten", "step": 10})
    assert import_run(folder, run="night", db=db).runs == first.runs
    assert _rows(db, first.runs[0]).step.tolist() == [1, 2, 10]


def _rewritten(folder: Path, *contents: str, moved: bool = False, name: str = "1.jsonl") -> importing.Importer:
    """Follow a file that is written anew, with each content in turn."""
    file = folder / "logs" / name
    file.parent.mkdir()
    importer = importing.Importer([file.parent], ImportOptions(), db=folder / "runs.db", is_followed=True)
    for content in contents:
        if moved:
            file.with_suffix(".part").write_text(content)
            file.with_suffix(".part").replace(file)
        else:
            file.write_text(content)
        importer.take()
    importer.close()
    return importer


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("between", [[], [""], ['{"text": "0", "reward": 0.0}\n']])
def test_a_file_written_anew_and_shorter_replaces_its_rollouts(
    tmp_path: Path, between: list[str], *, moved: bool
) -> None:
    before = "".join(f'{{"text": "{i}", "reward": 0.0, "step": {i}, "tag": "t"}}\n' for i in range(4))
    after = '{"text": "0", "reward": 0.0, "step": 0, "tag": "t"}\n{"text": "1", "reward": 0.5, "step": 1}\n'
    between = [it.replace("0.0}", '0.0, "step": 0, "tag": "t"}') for it in between]
    importer = _rewritten(tmp_path, before, *between, after, moved=moved)
    rows = _rows(tmp_path / "runs.db", importer.result.runs[0])
    assert (sorted(rows.reward), importer.result.rollouts, importer.result.new) == ([0.0, 0.5], 2, 2)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
        sums = connection.execute("SELECT step, rollouts FROM step_statistics WHERE rollouts > 0 ORDER BY step")
        assert sums.fetchall() == [(0, 1), (1, 1)]
        assert connection.execute("SELECT COUNT(*) FROM rollout_payload").fetchone() == (2,)


def test_a_json_list_written_anew_and_shorter_replaces_its_rollouts(tmp_path: Path) -> None:
    contents = (json.dumps([{"text": str(i)} for i in range(count)]) for count in (3, 5, 2))
    importer = _rewritten(tmp_path, *contents, name="1.json")
    assert len(_rows(tmp_path / "runs.db", importer.result.runs[0])) == importer.result.rollouts == 2


def test_a_rollout_that_another_file_has_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "key", property(lambda it: f"{it.id}-{it.number % 3}"))
    first = _write(tmp_path / "logs/a.jsonl", {"text": "zero", "run": "r"}, {"text": "one", "run": "r"})
    with _followed(tmp_path / "logs", tmp_path / "a.db") as importer:
        (tmp_path / "logs/a.jsonl.1").write_bytes(first.read_bytes())
        _write(first, {"text": "new", "run": "r"})
    assert len(_rows(tmp_path / "a.db", importer.result.runs[0])) == 3


@pytest.mark.parametrize("step", [2**31, 10**400, -1, 1.5, math.inf, math.nan])
def test_a_step_that_no_column_holds_is_no_step_0(tmp_path: Path, step: float) -> None:
    found, rows = _stored(_write(tmp_path / "a.jsonl", {"text": "one", "step": step}, {"text": "two", "step": 2}))
    assert (rows.step.tolist(), [it.number for it in found.bad]) == ([2], [1])
    assert found.bad[0].reason.endswith("is not a whole number from 0 to 2,147,483,647")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 cut off"), ("a.eval", b"PK\3\4 cut off"), ("a.json", b'[{"text": "o'),
        ("a.jsonl", b"\x00\x01\x02\n"), ("a.ndjson", b'{"text": '),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_marks_no_run(tmp_path: Path, name: str, content: bytes) -> None:
    _write(tmp_path / "logs/b.jsonl", {"text": "one"})
    (tmp_path / "logs" / name).write_bytes(content)
    found = import_run(tmp_path / "logs", db=tmp_path / "runs.db")
    assert (found.rollouts, found.unknown) == (1, [name])
    assert load_runs(tmp_path / "runs.db").state.tolist() == ["finished"]
    with pytest.raises(LogsUIError, match=f"{name}: it is (not valid JSON|damaged|a zip archive)") as caught:
        import_run(tmp_path / "logs" / name, db=tmp_path / "runs.db")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fails", ["records", "rollouts", "describe"])
def test_a_reader_that_fails_marks_nobody_elses_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    class _Fails(_Plain):
        name, title = "fails", "fails"

        @classmethod
        def recognizes(cls, head: Head) -> bool:
            return "fail" in head.keys

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(_Fails, fails, fail)
    monkeypatch.setattr(importing, "readers", lambda: (_Plain, _Fails))
    for name, key in (("a", "fail"), ("b", "text"), ("c", "fail")):
        _write(tmp_path / "logs" / f"{name}.jsonl", {key: "x", **({"text": "x"} if fails == "describe" else {})})
    monkeypatch.setattr(_Plain, "recognizes", lambda head: "fail" not in head.keys)
    found = import_run(tmp_path / "logs", db=tmp_path / "runs.db")
    assert {*load_runs(tmp_path / "runs.db").state} == {"finished"}
    assert [it.file for it in found.bad] == ([] if fails == "describe" else ["a.jsonl", "c.jsonl"])
    assert not any("Zero" in it.reason for it in found.bad)


def test_what_is_imported_again_moves_to_its_step(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    file = _write(tmp_path / "a.jsonl", {"text": "0"}, *({"text": f"{i}", "step": 1, "tag": "old"} for i in range(4)))
    import_run(file, db=db)
    _write(file, {"text": "0"}, *({"text": f"{i}", "step": 2 + i // 2, "group": i, "tag": "new"} for i in range(4)))
    (run,) = import_run(file, db=db).runs
    rows = _rows(db, run)
    assert sorted(rows.step) == [0, 2, 2, 3, 3]
    assert sorted(rows.generation) == [0] * 5
    assert {*rows.tags.explode().dropna()} == {"new"}
    with closing(sqlite3.connect(db)) as connection:
        sums = connection.execute("SELECT step, rollouts FROM step_statistics ORDER BY step").fetchall()
    assert sums == [(0, 1), (2, 2), (3, 2)]


def test_numbers_that_no_column_holds_are_not_recorded(tmp_path: Path) -> None:
    odd = [10**30, 1e300, {"a": 1}, 1.5, "7", math.nan, 7.0]
    _, rows = _stored(_write(tmp_path / "a.jsonl", *({"text": f"{i}", "count": it} for i, it in enumerate(odd))))
    for column in (rows.prompt_tokens, rows.staleness):
        assert [None if pd.isna(it) else it for it in column] == [*[None] * 6, 7]


def test_foreign_metrics_and_tags_are_metadata(tmp_path: Path) -> None:
    odd: list[Any] = [{"metrics": [1], "tags": "easy"}, {"metrics": "f1", "tags": 5}, {"metrics": {"f": 1.0}}]
    common = {"text": "a", "size": 10**400, "tag": "t"}
    _, rows = _stored(_write(tmp_path / "a.jsonl", *({**common, **record} for record in odd)))
    assert [*rows.metrics] == [{"size": None}, {"size": None}, {"f": 1.0, "size": None}]
    assert [*rows.tags] == [["t"]] * 3
    assert (rows.metadata[0]["metrics of the file"], rows.metadata[1]["tags of the file"]) == ([1], 5)


def test_a_tool_call_shows_no_secrets(tmp_path: Path) -> None:
    call = {"function": {"name": "login", "arguments": '{"api_key": "hunter2"}'}}
    _, rows = _stored(_write(tmp_path / "a.jsonl", {"text": "", "calls": [call]}))
    assert rows.actions[0][0]["action"] == {"name": "login", "arguments": {"api_key": "***"}}
    assert "hunter2" not in rows.last_action[0]


def test_a_bad_record_costs_itself(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "bad"}, {"no": "text"}, {"text": "four"})
    with file.open("a") as opened:
        opened.write("no json\n[1, 2]\n" + '{"text": "seven"}\n')
    found = import_run(file, db=tmp_path / "runs.db")
    assert found.rollouts == 3
    assert [(it.number, it.reason.partition(":")[0]) for it in found.bad] == [
        (2, "it is marked as bad"), (3, "it lacks `text`"), (5, "it is not valid JSON"),
        (6, "it is not as plain writes it"),
    ]  # fmt: skip
    assert found.bad_count == 4
    with pytest.raises(LogsUIError, match=r"^a\.jsonl, record 2: it is marked as bad"):
        import_run(file, strict=True, db=tmp_path / "strict.db")


@pytest.mark.parametrize("more", ["", " and longer"])
def test_a_step_that_is_written_anew_while_it_is_followed_replaces_its_rollouts(tmp_path: Path, more: str) -> None:
    system = "Be helpful. " * 40  # equal beginnings
    old = [{"text": f"{system}{i}", "step": 5} for i in range(8)]
    new = [{"text": f"{system}{i} new {more}", "step": 5} for i in range(8)]
    importer = _rewritten(tmp_path, *("".join(f"{json.dumps(it)}\n" for it in records) for records in (old, new)))
    assert _answers(_rows(tmp_path / "runs.db", importer.result.runs[0])) == [it["text"] for it in new]
    assert importer.result.rollouts == 8


def test_a_file_that_got_the_inode_of_another_is_another(tmp_path: Path) -> None:
    folder, db = tmp_path / "logs", tmp_path / "runs.db"
    file = _write(folder / "1.jsonl", *({"text": f"one {i}"} for i in range(8)))
    with _followed(folder, db) as importer:
        _write(file, *({"text": f"two, and longer {i}"} for i in range(8)))  # as if it was deleted
        file.rename(folder / "2.jsonl")
    assert len(_rows(db, importer.result.runs[0])) == importer.result.rollouts == 16


def test_a_table_that_is_written_anew_keeps_what_was_read(tmp_path: Path) -> None:
    file = _write(tmp_path / "logs/10.json", {"text": "train"})
    with _followed(file, tmp_path / "runs.db") as importer:
        _write(file, {"text": "evaluated"})
    assert len(_rows(tmp_path / "runs.db", importer.result.runs[0])) == importer.result.rollouts == 2


def test_files_that_only_begin_alike_are_told_apart(tmp_path: Path) -> None:
    for name in ("here", "there"):
        for step in (0, 5):
            records = [{"text": "same"}, *({"text": f"{step} {i}"} for i in range(9))]
            _write(tmp_path / f"{name}/global_step_{step}/gsm8k.jsonl", *records)
    for name in ("here", "there", "everywhere"):
        _write(tmp_path / f"copies/{name}/a.jsonl", {"text": "one"}, {"text": "two"})
    found = [import_run(tmp_path / name, db=tmp_path / "runs.db").runs for name in ("here", "there")]
    assert found[0] == found[1]
    assert len(_rows(tmp_path / "runs.db", found[0][0])) == 20
    paths = [tmp_path / f"here/global_step_{step}/gsm8k.jsonl" for step in (0, 5)]
    assert import_run(paths, db=tmp_path / "runs.db").runs == found[0]
    assert len(_rows(tmp_path / "runs.db", found[0][0])) == 20
    copies = import_run(tmp_path / "copies", db=tmp_path / "runs.db")
    assert len(_rows(tmp_path / "runs.db", copies.runs[0])) == copies.rollouts == 2


def test_a_file_that_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    _write(folder / "1.jsonl", {"text": "one"})
    (folder / "2.db").write_bytes(b"SQLite format 3\0" + b"x" * 5_000)
    (folder / "3.json").write_text("[" * 200_000)
    (folder / "4.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "four"}\n')
    with closing(sqlite3.connect(folder / "5.db")) as locked:
        locked.execute("CREATE TABLE t (a)")
        locked.execute("BEGIN EXCLUSIVE")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(source_files, "_PATIENCE", 0.1)
            found = import_run(folder, db=tmp_path / "runs.db")
            with pytest.raises(LogsUIError, match=r"^5\.db: the file cannot be read: .+locked"):
                import_run(folder / "5.db", db=tmp_path / "runs.db")
    assert found.rollouts == found.bad_count == 2
    assert [it.file for it in found.bad] == ["2.db", "5.db"]
    assert [it.reason.partition(": ")[0] for it in found.bad] == ["the file cannot be read"] * 2


@pytest.mark.parametrize("limit", [{"_BATCH": 4}, {"_BATCH_BYTES": 4 * 8_000}])
def test_a_record_of_many_rollouts_is_stored_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    ids = np.zeros(2_000, np.int32)
    one = ImportedRollout("0", [], [], step=1, tokens=Tokens(ids, ids, None, None))
    many = [replace(one, key=str(i)) for i in range(30)]
    monkeypatch.setattr(_Plain, "rollouts", lambda *_: many)
    for name, value in limit.items():
        monkeypatch.setattr(batch_writer, name, value)
    stored, sizes = batch_writer.BatchWriter._store, list[int]()

    def store(writer: batch_writer.BatchWriter, changes: list[Any]) -> None:
        sizes.append(len(changes))
        stored(writer, changes)

    monkeypatch.setattr(batch_writer.BatchWriter, "_store", store)
    _, rows = _stored(_write(tmp_path / "a.jsonl", {"text": "one"}))
    assert len(rows) == 30
    assert max(sizes) <= 5


def test_a_line_that_is_too_long_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_LONGEST", 1 << 20)
    texts = ["one", "x" * (3 << 20), "y" * ((2 << 20) - 13), "four"]
    found = import_run(_write(tmp_path / "a.jsonl", *({"text": it} for it in texts)), db=tmp_path / "runs.db")
    assert (found.rollouts, [it.number for it in found.bad]) == (2, [2, 3])
    assert found.bad[0].reason == "its line has more than 1 MiB"


def test_what_is_read_again_while_it_is_followed_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    table = folder / "b.json"
    _write(table, {"text": "table"})
    _write(folder / "c.json", {"nothing": 1})
    file = _write(folder / "a.jsonl", {"text": "one"})
    importer = importing.Importer([folder], ImportOptions(), db=tmp_path / "runs.db", is_followed=True)
    importer.take()
    os.utime(table, ns=(1, 1))
    with file.open("a") as opened:
        opened.write('{"text": "bad"}')
    importer.take()
    assert (importer.result.rollouts, importer.result.bad_count) == (2, 1)
    with file.open("a") as opened:
        opened.write('\n{"text": "two"}')
    table.write_text("{")
    importer.take()
    assert (importer.result.rollouts, importer.result.bad_count) == (2, 1)
    _write(table, {"text": "table"}, mode="w")
    with file.open("a") as opened:
        opened.write("\n")
    with pytest.MonkeyPatch.context() as patched:
        looked: Counter[str] = Counter()
        patched.setattr(_Plain, "recognizes", lambda head: bool(looked.update([head.file.name])) or "text" in head.keys)
        importer.take()
    assert [*looked] == ["b.json"]  # not the unknown one, which is as it was
    importer.close()
    assert (importer.result.rollouts, importer.result.bad_count) == (3, 1)
    assert len(_rows(tmp_path / "runs.db", importer.result.runs[0])) == 3


def test_nan_none_absent_and_zero_stay_four_things(tmp_path: Path) -> None:
    rewards: list[dict[str, Any]] = [{"reward": math.nan}, {"reward": None}, {}, {"reward": 0.0}, {"reward": -math.inf}]
    _, rows = _stored(_write(tmp_path / "a.jsonl", *({"text": f"{i}", **it} for i, it in enumerate(rewards))))
    assert rows.odd_rewards.tolist() == [{"reward": "nan"}, None, None, None, {"reward": "-inf"}]
    assert rows.reward.isna().tolist() == [True, True, True, False, True]
    parts: list[Any] = [{"f": None}, {"f": 0.0}, {}, None]
    _, rows = _stored(_write(tmp_path / "b.jsonl", *({"text": "a", "rewards": it} for it in parts)))
    assert rows.rewards.tolist() == [{"f": None}, {"f": 0.0}, None, None]


def test_hostile_text_is_stored(tmp_path: Path) -> None:
    texts = ["\ud800 lone", "NUL \x00", "<script>alert(1)</script>", "x" * 3_000_000, "\u202e bidi"]
    records = [{"text": text, "group": "g" * 400, "n" * 300: text[:50], "api_key": "secret"} for text in texts]
    found, rows = _stored(_write(tmp_path / "a.jsonl", *records))
    assert (found.rollouts, found.bad_count) == (5, 0)
    assert [len(messages[-1]["content"]) for messages in rows.messages] == [len(text) for text in texts]
    assert rows.groupby("group").size().tolist() == [5]
    assert {it["api_key"] for it in rows.metadata} == {"***"}


def test_runs_of_their_own_and_a_name_for_all(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"text": "one", "run": "r1"}, {"text": "two", "run": "r2"})
    assert len(import_run(file, db=tmp_path / "runs.db").runs) == 2
    (named,) = import_run(file, run="both", db=tmp_path / "runs.db").runs
    other = _write(tmp_path / "b.jsonl", {"text": "three"})
    assert import_run([other], run="both", db=tmp_path / "runs.db").runs == [named]
    assert len(load_run("both", db=tmp_path / "runs.db")) == 3


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"text": "é"}\n{"text": "a"}\n{"text": "ü"}\n'.encode("latin-1"))
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    line = "a.jsonl: bytes that are not UTF-8 are shown as \ufffd in 2 lines. iconv converts it to UTF-8."
    assert (found.rollouts, found.notes) == (3, [line])


def test_what_no_reader_knows_gets_one_line(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"nothing": 1})
    with pytest.raises(LogsUIError, match=r"No reader knows a\.jsonl: it has `nothing`\.\nIt has no key by which"):
        import_run(file, db=tmp_path / "runs.db")
    with pytest.raises(LogsUIError, match=r"There is nothing at .*none"):
        import_run(tmp_path / "none", db=tmp_path / "runs.db")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogsUIError, match=r"empty holds nothing to read: no file of \.db, \.eval, \.json"):
        import_run(tmp_path / "empty", db=tmp_path / "runs.db")
    for name in ("a.jsonl", "a.pth", "0 .pt"):
        pickled = tmp_path / name
        pickled.write_bytes(b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.")
        with pytest.raises(LogsUIError, match=r"it is a pickle .+python -c .+ '?.+\.(jsonl|pth|pt)'? > .+jsonl"):
            import_run(pickled, db=tmp_path / "runs.db")
    _write(tmp_path / "mixed/a.jsonl", {"text": "one"})
    _write(tmp_path / "mixed/b.jsonl", {"nothing": 1})
    _write(tmp_path / "mixed/settings.json", {"beside": "them"})
    pickled.rename(tmp_path / "mixed/c.pt")
    found = import_run(tmp_path / "mixed", db=tmp_path / "runs.db")
    assert (found.rollouts, found.unknown) == (1, ["b.jsonl", "c.pt"])


@pytest.mark.parametrize(
    ("keys", "near"),
    [
        (("input", "output", "score"), "verl (JSONL with `input`, `output`, `score` and `step`): it lacks `step`."),
        (("input_prompt", "score"), f"skyrl (JSONL with {_SKYRL} and `score`): it lacks `output_response`."),
        (("content", "rewards"), "nemo-rl (JSONL with `content`, `rewards` and `idx`): it lacks `idx`."),
        (("step", "prompt", "completion", "advantage"), f"trl ({_TRL}): the file's name or kind is another."),
    ],
)  # fmt: skip
def test_the_nearest_format_is_named_with_the_key_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], near: str
) -> None:
    monkeypatch.setattr(importing, "readers", formats.readers)
    file = _write(tmp_path / "a.jsonl", dict.fromkeys(keys, 1))
    with pytest.raises(LogsUIError) as caught:
        import_run(file, db=tmp_path / "runs.db")
    first, second, third = str(caught.value).splitlines()
    assert first == "No reader knows a.jsonl: it has " + ", ".join(f"`{it}`" for it in sorted(keys)) + "."
    assert second == f"Nearest is {near}"
    assert third == f"Name the format with --as, or columns: logs-ui import --suggest {file} > mapping.toml"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.gz", _PACKED, "it is packed by gzip. Convert it, and import the result: gzip -dc "),
        ("a.jsonl", _PACKED, "it is packed by gzip."),
        ("a.jsonl.zst", zstandard.compress(b"{}"), "it is packed by zstd. Convert it, and import the result: zstd "),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), "it is UTF-16. Convert it, and import the result: iconv "),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), "it is UTF-16. Convert it, and import the result: iconv "),
        ("a.jsonl", '[{"text": "a"}]\n'.encode("utf-16-be"), "it is UTF-16. Convert it, and import the result: iconv "),
        ("a.tar.gz", _ARCHIVE, "it is an archive. Convert it, and import the result: mkdir "),
        ("a.tar", gzip.decompress(_ARCHIVE), "it is an archive. Convert it, and import the result: mkdir "),
        ("a.zip", _zipped(), "it is an archive. Convert it, and import the result: python -m zipfile "),
        ("a.tgz", _ARCHIVE, "it is an archive. Convert it, and import the result: mkdir "),
        ("a.csv", b"text,reward\na,1\n", "it is CSV. Convert it, and import the result: python -c "),
        ("a.tsv", b"text\treward\na, b\t1\n", "it is TSV. Convert it, and import the result: python -c "),
        ("a.jsonl", b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "Convert it: jq -c . "),
    ],
)  # fmt: skip
def test_what_is_no_jsonl_is_named_with_the_line_that_converts_it(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / name).write_bytes(content)
    with pytest.raises(LogsUIError) as caught:
        import_run(tmp_path / "logs" / name, db=tmp_path / "runs.db")
    assert said in str(caught.value)
    _write(tmp_path / "logs/b.jsonl", {"text": "one"})
    assert import_run(tmp_path / "logs", db=tmp_path / "runs.db").unknown == [name]
    line = str(caught.value).rpartition("result: ")[2]
    if "zstd" not in line and "jq" not in line:
        subprocess.run(line, shell=True, check=True)  # noqa: S602 - it is ours
        (made,) = {*(tmp_path / "logs").iterdir()} - {tmp_path / "logs" / name, tmp_path / "logs/b.jsonl"}
        assert import_run(made, db=tmp_path / "runs.db").rollouts == 1, line


def test_other_ways_to_write_json_are_read(tmp_path: Path) -> None:
    contents = {
        "0.ndjson": '{"text": "0"}\n{"text": "0"}\n', "1.json": '{"text": "1"}\n{"text": "1"}\n',
        "2.json": '[{"text": "2"},\n {"text": "2"}]', "3.jsonl": '[{"text": "3"}, {"text": "3"}]\n',
        "4.jsonl": '[\n {\n  "text": "4"\n },\n {\n  "text": "4"\n }\n]\n',
        "5.jsonl": '\ufeff{"text": "5"}\n{"text": "5"}',
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad, found.unknown) == (12, [], [])
    assert _answers(_rows(tmp_path / "runs.db", found.runs[0])) == [it for it in "012345" for _ in range(2)]


def test_a_line_is_refused_before_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_LONGEST", 1 << 20)
    file = _write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "x" * (40 << 20)}, {"text": "three"})
    tracemalloc.start()
    numbers = [number for number, it in source_files.JsonLines(file) if not isinstance(it, RecordError)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert numbers == [1, 3]
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "line", ["[" + "[]," * 40_000 + "[]]", '[{"a": "' + "x" * 200 + '"}' + ',{"a":1}' * 9_000 + "]"]
)
def test_many_small_values_are_refused_before_they_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(source_files, "_IN_MEMORY", 1 << 20)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "one"}}\n{line}\n{{"text": "{"[" * 9_000}"}}\n')
    found = import_run(tmp_path, db=tmp_path / "a.db")
    assert (found.rollouts, [(it.number, it.reason) for it in found.bad]) == (
        2, [(2, "its values would take more than 1 MiB in memory")],
    )  # fmt: skip


@pytest.mark.parametrize(
    "column",
    [pa.array(["x" * (2 << 20)]), pa.array([[0] * 400_000]), pa.array(["y" * (2 << 20)] * 2).dictionary_encode()],
)
def test_a_row_group_that_unpacks_to_far_more_than_the_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array
) -> None:
    monkeypatch.setattr(source_files, "_GROUP", 1 << 20)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(LogsUIError, match=r"a\.parquet: its rows would take more than 64 times the file's size"):
        import_run(tmp_path, db=tmp_path / "a.db")


def test_rows_of_a_large_dictionary_are_few_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_GROUP", 4 << 20)
    noise = np.random.default_rng(1).bytes(1 << 19).hex()  # a file as large as its dictionary
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), [noise])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    peaks = [pa.total_allocated_bytes() - before for _ in source_files.records_of(tmp_path / "a.parquet")]
    assert (len(peaks), max(peaks) < 16 << 20) == (256, True)
