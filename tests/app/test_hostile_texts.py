"""No text of a model, a task, a reward function or a reader becomes markup or turns what is beside it, anywhere."""

import re
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, select
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.recorder import flush, start_run
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.tables import EvaluationRow
from tests.support.dashboard import first_row
from tests.support.site import pages

BAD = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[31m{{ 7*7 }} \x00'
MORE = (
    "/overview/steps?of=components", "/overview/preview?step_min=1&step_max=9", "/suggestions?where=task:",
    "/suggestions?where=rewards.", "/groups/{}/column", "/rollouts/{}?show=rendered,output",
)  # fmt: skip
_SENT_BACK = re.compile(  # as it is, by a form
    r'\s(?:value|aria-label)="[^"]*"|<textarea.*?</textarea>|<label class="sr-only".*?</label>', re.DOTALL
)


def fill(engine: Engine, path: Path) -> None:
    """Two runs in which all that has a name or a text is hostile."""
    for end in "ab":
        config = {BAD: BAD, "nested": {BAD: BAD}}
        with start_run(f"{BAD}{end}", eval_name=BAD, model=BAD, project=BAD, config=config, db=path) as run:
            for step in range(1, 5):
                for number in range(4):
                    task, group = f"{BAD}{number // 2}", f"{BAD}{step}{number // 2}"
                    about = {BAD: BAD, "dataset": {BAD: BAD}}
                    with run.rollout(
                        BAD, step=step, generation=number % 2, metadata=about, task=task, group=group
                    ) as row:
                        row.turn(f"<think>{BAD}</think>{BAD}", action={"name": BAD, "arguments": {BAD: BAD}})
                        for reward in (number / 3, None):
                            row.turn(BAD, action=BAD, observation={BAD: BAD}, reward=reward)
                        row.tag(BAD)
                        row.metric(BAD, number)
                        row.note(**{BAD: BAD})
                        if number == 3:
                            row.failed(RuntimeError(BAD))
                    row.score(rewards={BAD: number / 3, f"{BAD}2": 1.0 - number / 4})
                run.log(step, {BAD: 0.5, f"{BAD}/a": 0.25})
        flush()
        with engine.connect() as connection:
            uid = connection.scalars(select(col(EvaluationRow.uid)).order_by(col(EvaluationRow.id).desc())).first()
        for subject in (Subject(run.id), Subject(run.id, uid or "")):
            Notebook(path).tag(subject, BAD)
            Notebook(path).note(subject, BAD)


def test_nothing_that_is_hostile_becomes_markup(client: TestClient, engine: Engine, path: Path) -> None:
    uid = pages(path)["overview"].split("/")[2]
    narrowed = [f"/?{name}={quote(BAD)}" for name in ("q", "tag")]
    of_run = [f"/runs/{uid}{it}".format(first_row(engine, uid)) for it in MORE]
    for address in (*pages(path).values(), *narrowed, *of_run):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "<script>alert" not in answer.text, address
        assert "<img src=x" not in answer.text, address
        assert set(_SENT_BACK.sub("", answer.text)).isdisjoint("\u202e\x1b\x00"), address
        assert "&lt;script&gt;alert" in answer.text, address
