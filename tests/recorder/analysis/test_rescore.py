"""rescore(): what a real trainer gave its reward functions, rebuilt, and what another would change, by hand."""

import asyncio
import csv
import functools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from logs_ui.recorder import LogsUIError, load_run, record, record_environment, record_trainer, rescore, start_run
from logs_ui.recorder.analysis.rescore.comparison import compare, ranks
from logs_ui.recorder.analysis.rescore.rescore import RESCORED_COLUMNS
from tests.support.command import logs_ui, typed
from tests.support.exhaustive import cases
from tests.support.late import datasets, tiny_model
from tests.support.quiet import QUIET
from tests.support.training import ROWS, make_trainer, sequential

QUESTION = [{"role": "user", "content": "2 + 2?"}]
_GIVEN = ("prompts", "completions", "completion_ids", "task", "answer", "env_reward")


class Seen:
    """A reward function that keeps what it is given, row by row."""

    __name__ = "seen"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.states: list[Any] = []

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        given = {"prompts": prompts, "completions": completions, **columns}
        names = [name for name in _GIVEN if name in given]
        self.rows += [{name: given[name][i] for name in names} for i in range(len(prompts))]
        self.states += [columns["trainer_state"].global_step] * len(prompts)
        return [float(len(ids)) for ids in columns["completion_ids"]]


def write(db: Path, groups: Sequence[Sequence[float | None]]) -> None:
    """A run of groups with these rewards, whose answers are 1, 2, 3, ... letters long, of 1 step a group."""
    with start_run("by hand", db=db) as run:
        for step, rewards in enumerate(groups, 1):
            for i, reward in enumerate(rewards):
                columns = {"bonus": i, "kind": f"kind {step % 2}"}
                of_group: dict[str, Any] = {"step": step, "group": f"g{step}", "generation": i, "mode": "train"}
                with run.rollout(QUESTION, task=f"task {step % 2}", metadata=columns, **of_group) as row:
                    row.turn("x" * (i + 1))
                if reward is not None:
                    row.score(rewards={"right": reward, "form": 1.0}, weights={"right": 1.0, "form": 0.0})


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[-1]["content"])) for completion in completions]


def bonus(bonus: list[int], **_: Any) -> list[float | None]:
    return [None if value == 0 else float(value) for value in bonus]


@pytest.mark.exhaustive
def test_a_rollout_functions_rows_are_given_as_the_trainer_gave_them(game_url: str, tmp_path: Path, db: Path) -> None:
    then, now = Seen(), Seen()
    make_trainer(record(sequential(game_url), db=db), tmp_path / "out", reward_funcs=[then]).train()
    frame = rescore("latest", now, db)
    assert len(now.rows) == 2 * ROWS
    assert now.rows == then.rows
    assert now.states == then.states == [0] * ROWS + [1] * ROWS
    assert frame["new"].tolist() == pytest.approx(frame["old"].tolist())
    assert compare(frame).changed == 0


@pytest.mark.exhaustive
def test_prompts_that_are_texts_are_given_as_texts(tmp_path: Path, db: Path) -> None:
    then, now = Seen(), Seen()

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        ids = [tokenizer(f"guess {i % 3}")["input_ids"] for i in range(len(prompts))]
        logprobs = [[0.0] * len(own) for own in ids]
        return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": ids, "logprobs": logprobs}

    trainer = make_trainer(record(rollout_func, db=db), tmp_path / "out", reward_funcs=[then], warm=0)
    rows = [{"prompt": f"guess {i}", "task": "t", "answer": i} for i in range(8)]
    trainer.train_dataset = datasets.Dataset.from_list(rows)
    trainer.train()
    rescore("latest", now, db)
    assert isinstance(now.rows[0]["completions"], str)
    assert now.rows == then.rows
    as_messages = Seen()
    rescore("latest", as_messages, db, prompts="messages")
    assert as_messages.rows[0]["prompts"] == [{"role": "user", "content": then.rows[0]["prompts"]}]
    assert as_messages.rows[0]["completions"] == [{"role": "assistant", "content": then.rows[0]["completions"]}]


class Adding:
    def reset(self, **_: Any) -> str:
        return " Now."

    def add(self, number: int) -> str:
        """Adds.

        Args:
            number: to add.
        """
        return f"more than {number}"


def taught(folder: Path, lessons: list[Any], then: Seen, **options: Any) -> Any:
    """Return TRL's trainer of a model that answers as the lessons do; it gives `then` what it generates."""
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tiny_model.make_tokenizer(lessons)
    tokenizer.response_template = options.pop("response_template", None)
    model = tiny_model.make_model(tokenizer)
    tiny_model.teach(model, tokenizer, lessons, steps=60)
    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1, "max_completion_length": 100}
    rows = [{"prompt": ADD, "task": "t", "answer": 3}] * 4
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[then],
        args=GRPOConfig(str(folder), **settings, **QUIET),
        train_dataset=datasets.Dataset.from_list(rows),
        **options,
    )


ADD = [{"role": "user", "content": "Add."}]


@pytest.mark.exhaustive
def test_messages_and_tools_of_an_environment_are_given_as_the_trainer_gave_them(tmp_path: Path, db: Path) -> None:
    asked = {"role": "user", "content": "Add. Now."}
    talk = [asked, tiny_model.call("add", number=2), tiny_model.answer("add", "more than 2")]
    lessons = [([*talk, {"role": "assistant", "content": "ok"}], [Adding.add])] * 50
    then, now = Seen(), Seen()
    taught(tmp_path / "out", lessons, then, environment_factory=record_environment(Adding, db=db)).train()
    rescore("latest", now, db)
    assert any(message["role"] == "tool" for row in then.rows for message in row["completions"])
    assert [{n: row[n] for n in then.rows[0]} for row in now.rows] == then.rows


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("said", "handed", "expected"),
    cases(
        [
            ("take 1 and 4\n</think>\n9", "text", {"content": "take 1 and 4\n</think>\n9"}),
            ("<think>take 1</think>9", "messages", {"reasoning_content": "take 1", "content": "9"}),
            ("<think>\n\n</think>\n\n9", "messages", {"content": "9"}),
        ],
        1,
    ),
)
def test_reasoning_is_given_as_the_trainer_gave_it(
    tmp_path: Path, db: Path, said: str, handed: str, expected: dict[str, str]
) -> None:
    """In the text if TRL decodes it, beside it if it parses it, which the tokenizer decides."""
    from trl.chat_template_utils import qwen3_template

    then, now = Seen(), Seen()
    template = qwen3_template if handed == "messages" else None
    lessons = [([*ADD, {"role": "assistant", "content": said}], None)] * 50
    trainer = taught(tmp_path / "out", lessons, then, response_template=template)
    record_trainer(trainer, db=db)
    trainer.train()
    rescore("latest", now, db)
    assert {"role": "assistant", **expected} in [row["completions"][0] for row in then.rows]
    assert [{n: row[n] for n in then.rows[0]} for row in now.rows] == then.rows
    rows = load_run(db=db)
    assert handed in set(rows["handed"])
    assert all("</think>" not in messages[-1]["content"] for messages in rows["messages"])


def test_nothing_that_is_stored_changes(db: Path) -> None:
    write(db, [(0.0, 1.0)])
    before = load_run(db=db).drop(columns=["messages"]).to_json(default_handler=str, date_format="iso")
    rescore("latest", length, db)
    assert load_run(db=db).drop(columns=["messages"]).to_json(default_handler=str, date_format="iso") == before


def test_what_changes_is_worked_out_of_both_rewards(db: Path) -> None:
    #                 dead       not         not
    write(db, [(0.0, 0.0), (0.0, 1.0, 2.0), (2.0, 1.0), (None, 5.0)])
    #     new:  1    2      1    2    3      1    2      1   2
    found = compare(rescore("latest", length, db))
    assert (found.rollouts, found.compared, found.gained, found.lost, found.failed) == (9, 8, 1, 0, 0)
    assert found.old == pytest.approx(11 / 8)
    assert found.new == pytest.approx(14 / 8)
    assert found.changed == 8
    assert (found.groups, found.teach, found.dead) == (3, 2, 0)
    assert (found.woken, found.dulled) == ([1], [])
    assert found.best_changed == 1
    assert (found.pairs, found.pairs_alike) == (3 + 1, 3)
    assert found.turned == 2
    assert [(it.id, it.old, it.new) for it in found.largest[:2]] == [(9, 5.0, 2.0), (2, 0.0, 2.0)]
    assert [(it.task, it.rollouts, it.old, it.new, it.changed) for it in found.tasks] == [
        ("task 1", 4, 3 / 4, 6 / 4, 4),
        ("task 0", 4, 8 / 4, 8 / 4, 4),
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([0, 1], [1, 0], (False, False, 2, True, 1, 0)),
        ([0, 1, 1], [0, 1, 2], (False, False, 0, False, 2, 2)),  # one pair was a tie; a tie of the mean is no side
        ([0, 0, 3], [0, 0, 0], (False, True, 0, False, 0, 0)),
        ([1, 1 + 1e-7], [0, 5], (True, False, 0, False, 0, 0)),
        ([1, 2, 3, 4], [1, 3, 2, 4], (False, False, 2, False, 6, 5)),
    ],
)
def test_ranks_of_a_group(old: list[float], new: list[float], expected: tuple[Any, ...]) -> None:
    found = ranks(np.array(old, float), np.array(new, float))
    assert tuple(vars(found).values()) == expected


def test_functions_are_added_up_as_trl_does_and_recorded_ones_kept(db: Path) -> None:
    write(db, [(0.0, 4.0)])
    frame = rescore("latest", [length, bonus], db, weights=[1.0, 10.0], keep={"right": 100.0, "form": None})
    assert frame["new"].tolist() == [1.0, 2.0 + 10.0 + 400.0]  # None does not count, form's own weight is 0
    assert frame["rewards"].tolist()[0] == {"length": 1.0, "bonus": None, "right": 0.0, "form": 1.0}
    assert np.isnan(rescore("latest", bonus, db)["new"].tolist()[0])
    unknown = r"Cannot keep 'nix': no such reward function was recorded\. Recorded: right, form"
    with pytest.raises(LogsUIError, match=unknown):
        rescore("latest", length, db, keep=["nix"])
    with pytest.raises(LogsUIError, match="1 weights do not fit 2 reward functions"):
        rescore("latest", [length, bonus], db, weights=[1.0])


def test_async_functions_share_one_loop_also_where_one_runs(db: Path) -> None:
    write(db, [(0.0, 4.0), (1.0, 1.0)])
    loops = set()

    async def judge(completions: list[Any], **_: Any) -> list[float]:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return length(completions)

    async def notebook() -> pd.DataFrame:
        return rescore("latest", judge, db)

    assert asyncio.run(notebook())["new"].tolist() == [1.0, 2.0, 1.0, 2.0]
    assert len(loops) == 1


def test_a_row_that_raises_costs_itself_alone(db: Path) -> None:
    write(db, [(0.0, 4.0, 1.0), (1.0, 1.0)])

    def picky(completions: list[Any], **_: Any) -> list[float]:
        if any(len(it[-1]["content"]) == 2 for it in completions):
            raise ValueError("two\nletters")
        return length(completions)

    frame = rescore("latest", picky, db)
    assert frame["new"].isna().tolist() == [False, True, False, False, True]
    found = compare(frame)
    assert (found.failed, found.lost, found.failures) == (2, 2, [("picky: ValueError: two letters", 2, 2)])

    def infinite(completions: list[Any], **_: Any) -> list[float]:
        return [float("inf"), 1.0][: len(completions)]

    assert rescore("latest", infinite, db, where="step:2")["failed"].tolist()[0] == "infinite: it returned inf"


def test_a_batch_is_whole_groups_of_one_step(db: Path) -> None:
    with start_run(db=db) as run:
        for i in range(6):  # of two groups of step 1 whose rollouts alternate, and one of step 2
            group = "c" if i > 3 else "ab"[i % 2]
            with run.rollout(QUESTION, step=1 + (i > 3), group=group, generation=i) as row:
                row.turn("x" * (i + 1))
    sizes: list[list[float]] = []

    def sized(completions: list[Any], **_: Any) -> list[float]:
        sizes.append(length(completions))
        return sizes[-1]

    frame = rescore("latest", sized, db)
    assert sizes == [[1, 3], [2, 4], [5, 6]]
    assert frame["new"].tolist() == [1, 3, 2, 4, 5, 6]
    sizes.clear()
    rescore("latest", sized, db, batch=100)
    assert sizes == [[1, 3, 2, 4], [5, 6]]


def test_a_column_that_is_missing_is_named(db: Path) -> None:
    write(db, [(0.0, 4.0)])

    def needs(prompts: list[Any], solution: list[Any], **_: Any) -> list[float]:
        raise AssertionError

    def keyed(**columns: Any) -> list[float]:
        return columns["solution"]  # type: ignore[no-any-return]

    def narrow(completions: list[Any]) -> list[float]:
        raise AssertionError

    with pytest.raises(LogsUIError, match=r"^needs\(\) needs 'solution'. Recorded columns: .*'bonus'"):
        rescore("latest", needs, db)
    with pytest.raises(LogsUIError, match=r"KeyError: 'solution'. Recorded columns: .*'bonus'"):
        rescore("latest", keyed, db)
    with pytest.raises(LogsUIError, match=r"^narrow\(\) does not take 'prompts', .* add \*\*kwargs"):
        rescore("latest", narrow, db)
    frame = rescore("latest", functools.partial(bonus, extra=1), db)
    assert frame["rewards"].tolist()[1] == {"bonus": 1.0}


def test_a_function_that_always_fails_is_given_up_soon(db: Path) -> None:
    write(db, [(0.0,) * 30] * 5)
    asked = []

    def broken(completions: list[Any], **_: Any) -> list[float]:
        asked.append(len(completions))
        raise RuntimeError("no")

    with pytest.raises(LogsUIError, match=r"broken\(\) failed for every rollout. RuntimeErr"):
        rescore("latest", broken, db)
    assert sum(asked) < 150 + 30 * 5


def test_what_ran_or_broke_is_left_out_and_what_lost_its_text_says_so(db: Path) -> None:
    write(db, [(0.0, 1.0)])
    with start_run(db=db) as run:
        with pytest.raises(OSError, match="gone"), run.rollout(QUESTION, group="g") as row:
            raise OSError("gone")
        with run.rollout([], group="g") as row:
            row.stop("done")
        with run.rollout(QUESTION, group="g") as row:
            row.turn("xx")
    frame = rescore("latest", length, db)
    assert len(frame) == 2
    assert frame["failed"].tolist()[0] == "its messages were not recorded"
    assert frame["new"].tolist()[1] == 2.0


def test_the_frame_has_the_columns_of_the_docs(db: Path) -> None:
    write(db, [(0.0, 1.0)])
    assert list(rescore("latest", length, db).columns) == [column.name for column in RESCORED_COLUMNS]


MODULE = """
def short(completions, **columns):
    return [float(len(it[-1]["content"]) < 2) for it in completions]

async def picky(completions, kind, **columns):
    if kind[0] == "kind 0":
        raise ValueError("no \\x1b[31m kinds")
    return [1.0 for _ in completions]

number = 3
"""


SUFFIX = "The suffix of b.txt names no format: use .csv, .parquet or .jsonl."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    write(tmp_path / "a.db", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0, 1.0)])
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed("rescore", "latest", "--db", "a.db", *arguments, folder=folder, COLUMNS="200")


def test_the_command_shows_what_changes(folder: Path) -> None:
    done = command(folder, "--reward", "mine:short")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "mean reward 0.429 -> 0.429 (+0.000) over 7 of 7 rollouts (100.0%)" in lines
    assert "different reward 4 of 7 rollouts (57.1%)" in lines
    assert "groups 2 mixed with both; 0 dead with both; 1 dead before, mixed after; 0 mixed before, dead after" in lines
    assert "different best rollout 1 of 2 groups mixed with both (50.0%)" in lines
    uid = load_run(db=folder / "a.db")["run"][0]
    assert f"dead before, mixed after: http://127.0.0.1:7070/runs/{uid}/groups/1" in lines
    assert f"http://127.0.0.1:7070/runs/{uid}/rollouts/1 1 0.000 1.000 +1.000" in lines


def test_the_command_writes_files_and_json(folder: Path) -> None:
    done = command(folder, "--reward", "mine:picky=2", "--keep", "right", "--where", "step<=2", "-o", "b.csv", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["rollouts"], said["failed"], said["lost"], said["new"]) == (4, 2, 2, 2.0)
    (failure,) = said["failures"]
    assert (failure["rollouts"], failure["first"]) == (2, 3)
    assert failure["failed"].startswith("picky: ValueError: no ")
    assert "\x1b" not in done.stdout
    with (folder / "b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["new"] for row in rows] == ["2.0", "2.0", "", ""]
    done = command(folder, "--reward", "mine:short", "-o", "b.parquet")
    assert done.returncode == 0, done.stderr
    assert pd.read_parquet(folder / "b.parquet")["new"].tolist() == [1, 0, 1, 0, 1, 0, 0]
    done = command(folder, "--reward", "mine:picky")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.exhaustive
def test_a_function_of_the_folder_that_the_command_is_run_in_is_found(folder: Path) -> None:
    given: tuple[str | Path, ...] = ("latest", "--db", "a.db", "--reward", "mine:short", "--json")
    done = logs_ui("rescore", *given, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(command(folder, "--reward", "mine:short", "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reward", "mine:none"), "mine has nothing of that name: none should be a function."),
        (("--reward", "mine:number"), "mine has a int of that name: number should be a function."),
        (("--reward", "mine"), "mine names no function: write it as mine:function."),
        (("--reward", "nix:f"), "There is no module nix in the current folder or on Python's path"),
        (("--reward", "mine:short=a"), "--reward mine:short=a: 'a' is not a weight. Write it as mine:short=0.5."),
        (("--reward", "mine:short", "-o", "b.txt"), SUFFIX),
        (("--reward", "mine:short", "--prompts", "both"), "--prompts 'both': must be messages or text."),
    ],
)
def test_what_is_misspelt_is_one_line(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = command(folder, *arguments)
    assert (done.returncode, done.stderr.strip()) == (1, f"logs-ui: {said}")
