"""Taking the text of old rollouts: what goes, what stays, and what everything else makes of it."""

import io
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from logs_ui.app.web import urls
from logs_ui.recorder import LogsUIError, flush, load_image, load_run, load_runs, rescore, start_run, trace_env
from logs_ui.recorder.errors import FilterError, ImageNotFoundError, RunNotFoundError
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.upkeep import check, merge, prune
from logs_ui.recorder.vocabulary import RunState
from tests.recorder.capture.test_observed_images import screenshot
from tests.support.changes import interrupt, stored
from tests.support.command import typed
from tests.support.dashboard import dashboard
from tests.support.factory import make_run

RUNS = ("old", "new")
DAY_US = 86_400_000_000
TEXT = [
    "messages", "actions", "sampling", "metadata", "prompt_ids", "completion_ids", "logprobs", "mask", "pruned",
    "tags",
]  # fmt: skip
PROMPT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 days ago, and one of yesterday that is still under way, whose last step awaits its rewards."""
    path = tmp_path_factory.mktemp("stock") / "stock.db"
    now = time.time_ns() // 1000
    make = partial(make_run, steps=12, groups_per_step=1, generations=4)
    with disposed(writing_engine(path)) as engine:
        make(engine, uid="old", state=RunState.FINISHED, created=now - 40 * DAY_US, seed=1)
        make(engine, uid="new", heartbeat=now + 3_600_000_000, created=now - DAY_US, seed=2)
    return path


@pytest.fixture
def db(address: Address, stock: Path) -> str:
    merge([stock], as_text(address))
    return as_text(address)


@pytest.fixture
def file(stock: Path, tmp_path: Path) -> str:
    return str(shutil.copy(stock, tmp_path / "a.db"))


def with_text(db: str, run: str) -> pd.DataFrame:
    frame = load_run(run, db)
    return frame[frame.messages.map(len) > 0]


def test_text_goes_and_figures_stay(db: str) -> None:
    before = load_run("old", db)
    gone = prune(db, run="old")
    after = load_run("old", db)
    assert gone.runs == {"old": len(before)}
    assert gone.bytes > 0
    pd.testing.assert_frame_equal(after.drop(columns=TEXT), before.drop(columns=TEXT))
    assert not after.messages.map(len).any()
    assert after.prompt_ids.isna().all()
    assert after.pruned.notna().all()
    assert load_runs(db).set_index("run").pruned.to_dict() == {"old": len(before), "new": 0}
    assert len(with_text(db, "new")) == 56
    assert prune(db, run="old").rollouts == 0
    assert all(finding.is_whole for finding in check(db))


def test_what_a_dry_run_says_is_what_goes_then(db: str) -> None:
    said = prune(db, keep_every=3, dry_run=True)
    assert len(with_text(db, "old")) == len(load_run("old", db))
    assert prune(db, keep_every=3) == said
    assert said.rollouts == sum(load_run(run, db).pruned.count() for run in ("old", "new"))


def test_rules_narrow_one_another(db: str) -> None:
    assert set(prune(db, older_than="30d", dry_run=True).runs) == {"old"}
    assert set(prune(db, older_than="1h", dry_run=True).runs) == {"old", "new"}
    assert prune(db, older_than="30d", run="new", dry_run=True).rollouts == 0
    prune(db, older_than="30d", keep_every=5, where="mode:train")
    kept = with_text(db, "old")
    assert set(kept.step[kept["mode"] == "train"]) == {5, 10}
    assert len(kept[kept["mode"] == "eval"]) == 8
    prune(db, run="old", keep_every=2, of="rollouts")
    assert all(with_text(db, "old").id % 2 == 0)


def test_what_people_marked_stays_unless_they_say_otherwise(db: str, address: Address) -> None:
    of_run = "SELECT evaluation_row.uid FROM evaluation_row JOIN run ON run.id = run_id WHERE run.uid = 'old' LIMIT 3"
    (first,), (second,), (third,) = stored(address, of_run)
    notebook = Notebook(address)
    notebook.star(Subject("old", first), starred=True)
    notebook.tag(Subject("old", second), "look")
    notebook.note(Subject("old", third), "odd")
    notebook.star(Subject("new"), starred=True)
    gone = prune(db, run=RUNS)
    assert (set(gone.runs), gone.kept) == ({"old"}, 3 + 52)
    assert len(with_text(db, "old")) == 3
    assert len(with_text(db, "new")) == 56
    assert prune(db, run=RUNS, keep="nothing").runs == {"old": 3, "new": 52}


def test_what_runs_or_awaits_its_reward_is_left_alone(db: str) -> None:
    prune(db, run="new")
    left = with_text(db, "new")
    assert set(left.step) == {12}
    assert left.reward.isna().all()
    assert len(left) == 4


@pytest.mark.exhaustive
def test_a_training_that_records_meanwhile_loses_nothing(db: str) -> None:
    done = threading.Event()

    def keep_pruning() -> None:
        while not done.is_set():
            prune(db, where="reward>=0")

    with start_run("beside", db=db) as run:
        thread = threading.Thread(target=keep_pruning)
        thread.start()
        for number in range(60):
            with run.rollout(PROMPT) as row:
                row.turn(f"answer {number}")
                row.score(-1.0 if number % 2 else 1.0)
            time.sleep(0.01)
        assert flush()
        done.set()
        thread.join()
    assert flush()
    prune(db, run="beside", where="reward>=0")
    frame = load_run("beside", db)
    assert len(frame) == 60
    assert [messages[-1]["content"] for messages in frame.messages if messages] == [
        f"answer {it}" for it in range(1, 60, 2)
    ]


def test_one_that_is_stopped_goes_on_when_it_is_asked_again(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._MOST", 16)
    whole = prune(db, run=RUNS, dry_run=True)

    def stop(what: str, done: int, _: int) -> None:
        if what == "pruning" and done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(db, run=RUNS, progress=stop)
    taken = load_runs(db).pruned.sum()
    assert 0 < taken < whole.rollouts
    assert taken == sum(load_run(run, db).pruned.count() for run in ("old", "new"))
    assert prune(db, run=RUNS).rollouts == whole.rollouts - taken
    assert load_runs(db).pruned.sum() == whole.rollouts


class Screens:
    def __init__(self) -> None:
        self.shade = 0

    def reset(self) -> dict[str, object]:
        self.shade += 1
        return {"screen": screenshot(self.shade % 2)}


def test_images_go_with_the_last_rollout_that_shows_them(address: Address) -> None:
    db = as_text(address)
    env = trace_env(Screens())
    with start_run("shots", db=db) as run:
        for number in range(3):
            with run.rollout(PROMPT, task=str(number)) as row:
                env.reset()
                row.score(0.0)
    assert flush()
    frame = load_run("shots", db).set_index("task")
    first, second, third = (frame.actions[str(it)][0]["observation"]["screen"]["$image"] for it in range(3))
    assert first == third != second
    gone = prune(db, where="task:0,1")
    assert gone.images == 1
    assert gone.image_bytes > 100
    assert load_image(third, db)
    with pytest.raises(ImageNotFoundError):
        load_image(second, db)
    assert prune(db, where="task:2").images == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "^Say what to prune: older_than, keep_every, where or run"),
        ({"keep_every": 1}, "^keep_every must be at least 2, not 1"),
        ({"older_than": "soon"}, ": expected a time such as"),
        ({"run": "odl"}, "did you mean 'old'"),
        ({"where": "task:nobody"}, "this run has no task 'nobody'"),
        ({"keep_every": 2, "of": "turns"}, "of must be 'steps' or 'rollouts', not 'turns'"),
        ({"keep_every": 2, "keep": "all"}, "keep must be 'starred' or 'nothing', not 'all'"),
    ],
)
def test_a_rule_that_cannot_be_takes_nothing(stock: Path, how: dict[str, object], said: str) -> None:
    with pytest.raises((LogsUIError, FilterError, RunNotFoundError), match=said):
        prune(stock, **how)  # type: ignore[arg-type]


def test_of_all_runs_those_that_lack_what_the_filter_names_are_passed_over(file: str) -> None:
    with start_run("tasks", db=file) as run, run.rollout(PROMPT, task="mine") as row:
        row.score(0.0)
    assert flush()
    assert list(prune(file, where="task:mine").runs.values()) == [1]


@pytest.fixture
def pruned(file: str) -> int:
    """The file's older run has lost its texts; the number of one of its rollouts."""
    prune(file, run="old")
    return int(load_run("old", file, where="step:3").id[0])


@pytest.mark.exhaustive
def test_pages_say_that_text_was_pruned(file: str, pruned: int) -> None:
    rollout = f"/runs/old/rollouts/{pruned}"
    said = {
        rollout: "The text was pruned",
        f"{rollout}?view=tokens": "Tokens were pruned",
        f"{rollout}?view=raw": "&#34;pruned&#34;: &#34;2",
        urls.of_run("old", "groups", pruned, "column"): "The text of this rollout was pruned.",
        "/runs/old": "56 rollouts of this run were pruned",
        **dict.fromkeys(("/runs/old/overview", "/runs/old/groups", "/runs/old/why", urls.group("old", pruned)), ""),
    }
    with dashboard(Path(file)) as client:
        for address, words in said.items():
            answer = client.get(address)
            assert (answer.status_code, words in answer.text) == (200, True), address


def one(completions: list[str], **_: object) -> list[float]:
    return [1.0] * len(completions)


def test_what_needs_text_says_that_it_was_pruned(file: str, pruned: int) -> None:
    assert list(rescore("old", one, file, where=f"id:{pruned}").failed) == ["its messages were pruned"]
    assert len(load_run("old", file, where='"hello"')) == 0
    done = typed("rescore", "old", "--reward", "tests.recorder.upkeep.test_prune:one", "--db", file)
    assert "All 52 rollouts were pruned, so there are no messages to score" in done.stderr


def test_words_that_were_indexed_before_are_still_found(file: str) -> None:
    before = list(load_run("old", file, where='"home"').id)
    assert before
    prune(file, run="old")
    assert list(load_run("old", file, where='"home"').id) == before


def test_the_command_says_first_and_takes_when_told_to(file: str) -> None:
    of_old = ("prune", "--db", file, "--older-than", "30d")
    asked = typed(*of_old)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "in all  56 rollouts, " in asked.stdout
    assert asked.stdout.endswith("Nothing was changed. To do it, add --yes.\n")
    assert len(with_text(file, "old")) == 56
    done = typed(*of_old, "--yes")
    assert done.returncode == 0
    assert "Pruned 56 rollouts: " in done.stdout
    assert f"logs-ui db vacuum --db {file}" in done.stdout
    assert with_text(file, "old").empty
    again = typed(*of_old, "--yes")
    assert (again.returncode, again.stdout, again.stderr) == (0, "There is nothing to prune.\n", "")
    unclear = typed("prune", "--db", file)
    assert (unclear.returncode, unclear.stdout) == (1, "")
    said = "Choose what to prune: --older-than, --keep-every, --where or --run. Rollouts must match all.\n"
    assert unclear.stderr == f"logs-ui: {said}"


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 56), ("\n", 56)])
def test_at_a_terminal_it_asks(file: str, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr("logs_ui.app.commands.terminal.err", Console(stderr=True, force_terminal=True))
    typed("prune", "--db", file, "--run", "old")
    assert len(with_text(file, "old")) == left


def test_ctrl_c_says_what_it_leaves(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["logs_ui.recorder.upkeep.prune"], "_take", interrupt)
    done = typed("prune", "--db", file, "--run", "old", "--yes")
    said = "Stopped. Rollouts pruned so far stay pruned; run the same command again for the rest.\n"
    assert (done.returncode, done.stderr) == (130, said)
