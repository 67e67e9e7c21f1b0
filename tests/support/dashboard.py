"""What tests of the dashboard's pages share: a client of it, rows, and what an address leads to."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment
from sqlalchemy import Engine, func, insert, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import queries
from logs_ui.recorder.queries.filters.rollout_filter import parse_filter
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.tables import EvaluationRow, Run

_BLOCKS = (
    "article|caption|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|header|legend|li|main|nav|"
    "ol|option|p|section|summary|table|tbody|td|th|thead|title|tr|ul|rect|svg|select"
)


class _Noting:
    """Templates that note what they were given last."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self.given = environment, SimpleNamespace()

    def get_template(self, name: str) -> Any:
        template = self._environment.get_template(name)

        def render(context: dict[str, Any]) -> str:
            self.given = SimpleNamespace(**context)
            return template.render(context)

        return SimpleNamespace(render=render)


def dashboard(
    db: Address, *, headers: dict[str, str] | None = None, follow_redirects: bool = True, **options: Any
) -> TestClient:
    """Return a client of a database's dashboard; `options` are those of `create_app`."""
    app = create_app(db, **options)
    app.state.templates = _Noting(app.state.templates)
    return TestClient(app, base_url="http://127.0.0.1", headers=headers, follow_redirects=follow_redirects)


def page_of(client: TestClient, address: str, target: str | None = None, **parameters: Any) -> Any:
    """Return what a page's template was given, such as a `GroupsPage`, by names; of a fragment if it has a target."""
    answer = client.get(address, params=parameters or None, headers=fragment(target) if target else None)
    assert answer.status_code == 200, answer.text[:500]
    app: Any = client.app
    return app.state.templates.given


def fragment(target: str) -> dict[str, str]:
    """Return the headers that htmx sends when the answer is to go into `#target`."""
    return {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Target": f"div#{target}"}


def poll_of(html: str) -> str:
    """Return the address at which a page looks for news."""
    poll = re.search(r'data-poll hx-get="([^"]+)"', html)
    assert poll
    return unescape(poll[1])


def text_of(html: str) -> str:
    """Return a page without tags and runs of space."""
    text = re.sub(r"<[^>]*>", " ", re.sub(r"<noscript>.*?</noscript>", "", html, flags=re.DOTALL))
    return " ".join(unescape(text).split())


def flat(html: str) -> str:
    """Return a page as if its source had no line breaks: one space for several, none beside the tag of a block."""
    html = re.sub(r"\s+>", ">", html)
    block = rf"</?(?:{_BLOCKS})\b(?:[^<>\"]|\"[^\"]*\")*>"
    return re.sub(rf" ?({block}) ?", r"\1", " ".join(html.split()))


def row_ids(html: str) -> list[int]:
    """Return the ids of a table's rollouts."""
    return [int(row_id) for row_id in re.findall(r'<tr id="row-(\d+)"', html)]


def rollouts_at(engine: Engine, address: str) -> int:
    """Return how many rollouts a link leads to: its path names the run, its query the filter."""
    path, _, query = unescape(address).partition("?")
    run = queries.find_run(engine, path.split("/")[2])
    return queries.exact_count(engine, run.id or 0, parse_filter(parse_qsl(query)))


def of_run(uid: str) -> Any:
    """Return the condition that a row is of this run."""
    return col(EvaluationRow.run_id) == select(col(Run.id)).where(col(Run.uid) == uid).scalar_subquery()


def first_row(engine: Engine, uid: str, *conditions: Any) -> int:
    """Return the id of a run's first rollout of which these hold."""
    with engine.connect() as connection:
        return int(connection.scalar(select(func.min(col(EvaluationRow.id))).where(of_run(uid), *conditions)) or 0)


def add_rollouts(engine: Engine, uid: str, number: int = 1, **values: Any) -> int:
    """Write more rollouts like a run's last; return the id of the newest."""
    with engine.begin() as connection:
        top = int(connection.scalar(select(func.max(col(EvaluationRow.id)))) or 0)
        last = select(EvaluationRow).where(of_run(uid)).order_by(col(EvaluationRow.id).desc()).limit(1)
        row = dict(connection.execute(last).mappings().one()) | {"changed": 100 + top} | values
        copies = [row | {"id": top + 1 + i, "uid": f"new-{top + i}"} for i in range(number)]
        connection.execute(insert(EvaluationRow), copies)
        connection.execute(update(Run).where(col(Run.uid) == uid).values(changed=col(Run.changed) + 100))
    return top + number


@contextmanager
def changed(engine: Engine, table: Any, condition: Any, **values: Any) -> Iterator[None]:
    """Give a row other values for a while."""
    columns = [getattr(table, name) for name in values]
    with engine.begin() as connection:
        before = dict(connection.execute(select(*columns).where(condition)).mappings().one())
        connection.execute(update(table).where(condition).values(**values))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(update(table).where(condition).values(**before))
