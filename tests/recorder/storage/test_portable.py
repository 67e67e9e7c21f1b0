"""Windows, as far as Linux can play it: `tests/support/windows.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exhaustive import cases

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests/recorder/importing/fixtures/trl/1.16.0"


def on_windows(code: str, folder: Path) -> str:
    """What a program prints; it finds the imports `recorder`, `sys`, `sqlite3` and `main`, the command line."""
    imports = "import tests.support.windows, os, sqlite3, sys; from logs_ui import recorder; "
    program = f"{imports}from logs_ui.app.commands.cli import main\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / '.dev'}:{ROOT}")


@pytest.mark.exhaustive
def test_rollouts_are_imported_read_diagnosed_exported_and_served(tmp_path: Path) -> None:
    said = on_windows(
        f"""
for name in recorder.__all__:
    getattr(recorder, name)
from tests.support.site import pages
from logs_ui.app.commands.serve import BackgroundServer
from pathlib import Path
import httpx
run = recorder.import_run({str(SAMPLES)!r}, db="a.db").runs[0]
print(len(recorder.load_run(run, "a.db")), type(recorder.diagnose(run, "a.db")).__name__)
for format in ("csv", "parquet", "jsonl", "jsonl"):
    recorder.export_run(run, format, "a." + format, "a.db")
with BackgroundServer(Path("a.db")) as server:
    addresses = [*pages(Path("a.db"), run).values()][:{len(cases(range(99), 6))}]
    answers = [httpx.get(server.url + address, timeout=60).status_code for address in addresses]
    tagged = httpx.post(f"{{server.url}}/runs/{{run}}/notes", data={{"star": "1"}}, headers={{"origin": server.url}})
print({{*answers}}, tagged.status_code)
""",
        tmp_path,
    )
    assert said == "24 Report\n{200} 303\n"
    assert {path.name for path in tmp_path.iterdir()} >= {"a.csv", "a.parquet", "a.jsonl", "a.notes.db"}


@pytest.mark.exhaustive
def test_a_thread_records_and_what_waits_on_disk_is_stored_and_deleted(tmp_path: Path) -> None:
    recording = """
os.environ["LOGS_UI_SPOOL_SECONDS"] = "0.1"
other = sqlite3.connect("a.db", isolation_level=None)
with recorder.start_run("waiting", db="a.db") as run:
    assert recorder.flush()
    other.execute("BEGIN IMMEDIATE")
    with run.rollout("2+3") as row:
        row.turn("5")
        row.score(rewards={"right": 1.0})
    print(recorder.flush(), flush=True)
    os._exit(0)
"""
    assert "True\n" in on_windows(recording, tmp_path)
    assert list((tmp_path / "a.db-spool").glob("*.spool"))
    assert on_windows("print(recorder.load_run('waiting', 'a.db').reward.tolist())", tmp_path) == "[1.0]\n"
    assert not list((tmp_path / "a.db-spool").glob("*.spool"))


@pytest.mark.exhaustive
def test_databases_are_maintained_and_a_program_that_cannot_be_run_is_refused_in_one_line(tmp_path: Path) -> None:
    code = f"""
recorder.import_run({str(SAMPLES)!r}, db="a.db")
for words in ("db check --db a.db", "db vacuum --db a.db", "db info --db a.db", "db recover a.db b.db", "run a.py"):
    sys.argv = ["logs-ui", *words.split()]
    try:
        main()
    except SystemExit as ended:
        print(words, ended.code or 0, file=sys.stderr)
"""
    ended = on_windows(code, tmp_path).splitlines()
    words = {"db check --db a.db", "db vacuum --db a.db", "db info --db a.db", "db recover a.db b.db"}
    assert {*(f"{command} 0" for command in words), "run a.py 1"} <= {*ended}
    assert "logs-ui: logs-ui run needs Linux, macOS or WSL. On Windows, call record_trainer() in the script." in ended
