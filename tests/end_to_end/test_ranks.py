"""Two ranks on the CPU write one run."""

import sqlite3
from pathlib import Path

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


def test_two_ranks_write_one_run_and_a_group_that_straddles_them_is_one_group(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
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
