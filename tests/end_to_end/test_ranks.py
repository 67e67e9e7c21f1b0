"""Two ranks on the CPU write one run."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from logs_ui.recorder.analysis.audit import audit
from logs_ui.recorder.analysis.opened_runs import opened
from tests.support.ports import free_port
from tests.support.ranks import run_on_two_ranks
from tests.support.training import guess_server

RANK = """
import sys
from pathlib import Path
from logs_ui.recorder import record
from tests.support.training import make_trainer, sequential
make_trainer(
    record(sequential(sys.argv[1]), db=sys.argv[2]),
    Path(sys.argv[3]),
    per_device_train_batch_size=6,
    max_steps=2,
    ddp_backend="gloo",
).train()
"""


@pytest.mark.exhaustive
def test_two_ranks_write_one_run_and_a_group_that_straddles_them_is_one_group(db: Path, tmp_path: Path) -> None:
    with guess_server() as url:
        run_on_two_ranks(RANK, tmp_path, url, db, tmp_path / "out")
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        runs = connection.execute("select state, recorder_errors, dropped from run").fetchall()
        assert runs == [("finished", 0, 0)]
        groups = connection.execute(
            'select step, "group", group_concat(generation), group_concat(process), count(distinct task),'
            " sum(reward is not null and advantage is not null), abs(sum(advantage)) < 1e-4"
            ' from (select * from evaluation_row order by generation) group by step, "group"'
        ).fetchall()
    assert len(groups) == 2 * 3
    for step, group, generations, processes, tasks, scored, balanced in groups:
        assert generations == "0,1,2,3"
        assert (tasks, scored, balanced) == (1, 4, 1), (step, group)
        expected = {"0": "0,0,0,0", "1": "0,0,1,1", "2": "1,1,1,1"}[group.rsplit("/", 1)[1]]
        assert processes == expected
    with opened("latest", db) as (engine, run):
        audited = audit(engine, run)
    advantages = next(it for it in audited.checks if it.check.name == "Advantages")
    assert (audited.findings, advantages.rows) == ([], 24), "recomputed from groups of both ranks"


FAILING = """
import os, sys
from pathlib import Path
from logs_ui.recorder import record_trainer
from tests.support.training import make_trainer

batches = []

def length(completions, **_):
    batches.append(len(completions))
    if len(batches) == 2 and os.environ["RANK"] == sys.argv[1]:
        raise ValueError("no length here")
    return [float(len(one[0]["content"])) for one in completions]

trainer = make_trainer(
    None, Path(sys.argv[3]), reward_funcs=(length,), warm=0, max_completion_length=8, per_device_train_batch_size=4
)
record_trainer(trainer, db=sys.argv[2]).train()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("failing", [0, 1])
def test_of_ranks_that_fail_the_first_failure_is_shown(failing: int, db: Path, tmp_path: Path) -> None:
    """Without a launcher, which would stop the other rank before it can notice."""
    path = tmp_path / "rank.py"
    path.write_text(FAILING)
    same = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    same |= {"ACCELERATE_USE_CPU": "1", "GLOO_SOCKET_IFNAME": "lo", "LOGS_UI_RAISE": "0"}
    same["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    ranks = [
        subprocess.Popen(
            [sys.executable, path, str(failing), db, tmp_path / "out"],
            env={**os.environ, **same, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert "ValueError: no length here" in said[failing]
    assert "Connection closed by peer" in said[1 - failing], "which is what the other one raises"
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        ((state, error, traceback),) = connection.execute("select state, error, traceback from run").fetchall()
    assert (state, error) == ("failed", "ValueError: no length here")
    assert "in length" in traceback
