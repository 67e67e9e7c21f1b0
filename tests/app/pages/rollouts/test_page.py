"""The rollouts page beside its filter: columns, pivot, export, and what it says of a search."""

import csv
import io
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from logs_ui.app.pages.rollouts import export_jobs
from logs_ui.app.parts.table_columns import parse_columns, print_columns
from logs_ui.app.web.indexer import Indexer
from logs_ui.app.web.open_database import Source
from logs_ui.recorder import load_run, queries
from logs_ui.recorder.diagnosis import CAUSES
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.sidecars import SEARCH
from logs_ui.recorder.vocabulary import RunState
from tests.support.changes import wait_until
from tests.support.dashboard import dashboard, flat, rollouts_at
from tests.support.factory import make_run

RUN, LIVE = "main-run-1234", "live-run-5678"
OURS = {"Sec-Fetch-Site": "same-origin"}


def fill(engine: Engine) -> None:
    now = time.time_ns() // 1000
    make_run(engine, uid=RUN, steps=12, state=RunState.FINISHED)
    make_run(engine, uid=LIVE, steps=3, created=now - 200_000_000, heartbeat=now + 600_000_000)


@pytest.fixture
def client(engine: Engine, path: Path) -> Iterator[TestClient]:
    with dashboard(path) as client:
        yield client


def heads(html: str) -> list[str]:
    (head,) = re.findall(r"<thead>.*?</thead>", html, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", "", cell).split()) for cell in re.findall(r"<th .*?</th>", head, re.DOTALL)]


# --- Columns


def test_the_columns_of_a_link_are_shown_in_their_own_order(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}?cols=task,reward,rewards.solved,tags").text
    assert heads(html) == ["ID", "Reward", "solved", "Task and eval", "Tags"]
    assert html.count('<tr id="row-') == 50
    assert "cols=reward,rewards.solved,task,tags" in html  # what leads on from here keeps them


def test_why_it_ended_and_what_could_not_be_read_are_columns(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}?cols=cause,parse_failures&where=-cause:none").text
    assert heads(html) == ["ID", "Cause", "Unparsed"]
    causes = set(re.findall(r'<td class="text"><bdi>([^<]+)</bdi></td>', html))
    assert causes <= {*(cause.name for cause in CAUSES), "turn limit", "loop", "ended normally"}
    assert len(causes) > 1


def test_chosen_columns_are_remembered_and_a_link_wins_and_is_not(client: TestClient) -> None:
    chosen = client.get(f"/runs/{RUN}", params=[("choose", "1"), ("col", "task"), ("col", "turns")])
    assert str(chosen.url).endswith(f"/runs/{RUN}?cols=task,turns")
    again = client.get(f"/runs/{LIVE}")
    assert str(again.url).endswith("?cols=task,turns")
    link = client.get(f"/runs/{RUN}?cols=reward")
    assert heads(link.text) == ["ID", "Reward"]
    assert str(client.get(f"/runs/{RUN}").url).endswith("?cols=task,turns")
    usual = client.get(f"/runs/{RUN}?choose=1")
    assert str(usual.url).endswith(f"/runs/{RUN}")
    assert "Last message or error" in heads(client.get(f"/runs/{RUN}").text)


def test_columns_survive_what_a_cookie_and_a_name_can_hold(client: TestClient) -> None:
    keys = ("rewards.a,b", "rewards.100%", "metrics.größe", "preview")
    assert set(parse_columns([print_columns(keys)]) or ()) == set(keys)
    page = client.get(f"/runs/{RUN}", params=[("choose", "1"), *(("col", key) for key in map(_quoted, keys))])
    assert page.status_code == 200
    assert heads(client.get(f"/runs/{RUN}").text) == ["ID", "100%", "a,b", "größe", "Last message or error"]
    client.cookies.set("logs-ui-columns", "nonsense")
    assert client.get(f"/runs/{RUN}").status_code == 200


def _quoted(key: str) -> str:
    return print_columns([key])


def test_a_column_that_is_misspelt_is_an_error() -> None:
    with pytest.raises(FilterError, match="there is no column 'taks': did you mean 'task'"):
        parse_columns(["taks"])
    assert parse_columns([""]) is None


# --- Pivot


def test_a_cell_of_the_pivot_leads_to_its_rollouts(client: TestClient, engine: Engine) -> None:
    html = flat(client.get(f"/runs/{RUN}?view=pivot&of=count&columns=stop").text)
    cells = re.findall(r'<td class="num h\d"><a href="([^"]+)"[^>]*>(?:<bdi>)?([\d,]+)', html)
    assert len(cells) > 10
    assert [rollouts_at(engine, address) for address, _ in cells] == [int(number) for _, number in cells]
    page = client.get(unescape(cells[0][0]))
    assert 'id="rows"' in page.text
    assert "view=pivot" not in str(page.url)


def test_a_pivot_is_of_the_same_moment_as_its_counts_and_says_when_it_is_outdated(client: TestClient) -> None:
    headers = {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Target": "div#live"}
    counts = {
        view: client.get(f"/runs/{LIVE}/live?view={view}&newest=1&seen=0", headers=headers).text
        for view in ("pivot", "table")
    }
    assert ('hx-target="#found"' in counts["pivot"], 'hx-target="#outdated"' in counts["pivot"]) == (False, True)
    assert ('hx-target="#found"' in counts["table"], 'hx-target="#outdated"' in counts["table"]) == (True, False)
    assert f'hx-get="/runs/{LIVE}?view=pivot">reload</a>' in counts["pivot"]
    assert 'id="outdated"' in client.get(f"/runs/{LIVE}?view=pivot").text


def test_a_look_for_news_opens_no_rollout(client: TestClient, engine: Engine) -> None:
    statements: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    open_rows = re.findall(r'name="open" value="(\d+)"', client.get(f"/runs/{LIVE}").text)
    assert open_rows
    event.listen(Engine, "before_cursor_execute", hear)
    try:
        news = client.get(f"/runs/{LIVE}/live?newest=1&seen=0.running&open={'&open='.join(open_rows)}&open=99999999")
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
    assert [f'hx-target="#row-{row_id}"' in news.text for row_id in open_rows] == [True] * len(open_rows)
    assert statements
    assert not any("rollout_payload" in statement for statement in statements)


def test_an_empty_pivot_says_so_once(client: TestClient) -> None:
    assert client.get(f"/runs/{RUN}?view=pivot&where=step:99999").text.count("No rollouts match") == 1


# --- Export


def test_what_is_filtered_is_downloaded_with_run_and_filter_in_its_name(client: TestClient, path: Path) -> None:
    where = "stop:length reward<0.2"
    answer = client.post(f"/runs/{RUN}/exports", params={"where": where, "format": "csv"}, headers=OURS)
    assert answer.status_code == 200
    assert 'filename="main-run-1234_' in answer.headers["content-disposition"]
    assert "stop-length" in answer.headers["content-disposition"]
    assert "reward-below-0.2" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["id"]) for row in rows] == sorted(load_run(RUN, db=path, where=where)["id"])


def test_the_line_for_pandas_gives_the_same_rollouts(client: TestClient, path: Path) -> None:
    html = client.get(f"/runs/{RUN}", params={"where": 'task:"résumé: Zeilen zählen 素因数" -stop:done'}).text
    (line,) = re.findall(r'id="in-pandas">(.*?)</code>', html, re.DOTALL)
    code = line.replace("&#39;", "'").replace("&#34;", '"').replace("&lt;", "<").replace("&amp;", "&")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - it is what somebody copies
    where = parse_where('task:"résumé: Zeilen zählen 素因数" -stop:done')
    with disposed(writing_engine(path)) as engine:
        assert len(names["df"]) == queries.exact_count(engine, 1, where) > 0


def test_a_long_export_shows_how_far_it_is_and_can_be_cancelled(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, was_shown = threading.Event(), threading.Event()

    def slow(*_: Any, progress: Any, **__: Any) -> int:
        progress(10, 200)
        was_shown.set()
        go.wait(240)
        progress(20, 200)
        return 20

    monkeypatch.setattr(export_jobs, "write_run", slow)
    monkeypatch.setattr("logs_ui.app.pages.rollouts.export_page._AT_ONCE_SECONDS", 0.05)
    way_back = "where=reward%3C0.2&sort=longest&cols=reward"
    page = client.post(f"/runs/{RUN}/exports?{way_back}&format=jsonl", headers=OURS)
    assert was_shown.wait(240)
    watched = client.get(str(page.url))
    assert "10 of 200 rollouts" in watched.text
    assert '<progress max="200" value="10"' in watched.text
    job = page.url.path.rpartition("/")[2]
    assert unescape(watched.text).count(f'href="/runs/{RUN}?{way_back}"') == 1  # the crumb
    cancel = unescape(re.findall(r'action="([^"]+/cancel[^"]*)"', watched.text)[0])
    ended = client.post(cancel, headers=OURS, follow_redirects=False)
    assert ended.headers["location"] == f"/runs/{RUN}?{way_back}"
    go.set()
    gone = client.get(f"/runs/{RUN}/exports/{job}")
    assert gone.status_code == 404
    assert "Export again" in gone.text


def test_an_export_that_fails_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> int:
        raise RuntimeError("no such codec")

    monkeypatch.setattr(export_jobs, "write_run", broken)
    page = client.post(f"/runs/{RUN}/exports?format=csv", headers=OURS)
    assert "The export failed" in page.text
    assert "RuntimeError: no such codec" in page.text


def test_a_file_in_the_making_makes_room_for_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(export_jobs, "write_run", lambda *_, **__: 0 if go.wait(240) else 1)
    monkeypatch.setattr(export_jobs, "_KEPT_SECONDS", 0.0)
    jobs = export_jobs.Jobs(path)
    working = [jobs.start(RUN, "csv", "x.csv", RolloutFilter()) for _ in range(export_jobs.MOST)]
    assert [jobs.find(RUN, job.id) for job in working] == working
    with pytest.raises(export_jobs.TooManyExportsError, match="wait for one, or"):
        jobs.start(RUN, "csv", "x.csv", RolloutFilter())
    go.set()
    for job in working:
        job.wait(240)
    assert jobs.find(RUN, jobs.start(RUN, "csv", "x.csv", RolloutFilter()).id)
    jobs.close()


def test_an_export_leaves_nothing_behind(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jobs = export_jobs.Jobs(path)
    job = jobs.start(RUN, "parquet", "x.parquet", RolloutFilter())
    assert list(tmp_path.iterdir()) == []
    job.wait(240)
    assert b"".join(job.blocks()).startswith(b"PAR1")
    assert list(tmp_path.iterdir()) == []
    for _ in range(export_jobs.MOST + 3):
        jobs.start(RUN, "csv", "x.csv", parse_where("id:1")).wait(240)
    assert jobs.find(RUN, job.id) is None
    jobs.close()


def test_an_export_is_asked_for_by_our_own_pages_alone(client: TestClient) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil"}
    assert client.post(f"/runs/{RUN}/exports?format=csv", headers=elsewhere).status_code == 403
    assert client.post(f"/runs/{RUN}/exports?format=xls", headers=OURS).status_code == 422
    assert client.get(f"/runs/{RUN}/exports/nothing").status_code == 404


# --- Search, and the histogram


@pytest.mark.usefixtures("engine")  # there has to be a database
def test_the_thread_that_fills_the_index_outlives_what_nobody_thought_of(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such tokenizer")

    monkeypatch.setattr("logs_ui.recorder.queries.search.index.SearchIndex.fill", broken)
    monkeypatch.setattr("logs_ui.app.web.background._PATIENCE", 0.01)
    indexer = Indexer(path, Source(path))
    indexer.start()
    wait_until(lambda: indexer.trouble == "no such tokenizer")
    assert indexer._thread.is_alive()
    indexer.stop()


def indexed(path: Path) -> int:
    """How many rollouts the full-text index holds."""
    if not SEARCH.path(path).exists():
        return 0
    with closing(sqlite3.connect(SEARCH.path(path))) as index:
        is_made = index.execute("SELECT count(*) FROM sqlite_master WHERE name = 'texts_docsize'").fetchone()[0]
        return int(index.execute("SELECT count(*) FROM texts_docsize").fetchone()[0]) if is_made else 0


@pytest.fixture
def indexing(engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Source, Indexer]]:
    """Of a database whose texts are not indexed yet, two rollouts in each step."""
    assert engine
    monkeypatch.setattr("logs_ui.recorder.queries.search.index._AT_ONCE", 2)
    for end in ("", "-wal", "-shm"):
        Path(f"{SEARCH.path(path)}{end}").unlink(missing_ok=True)
    source = Source(path)
    indexer = Indexer(path, source)
    yield source, indexer
    indexer.stop()


def test_the_thread_that_fills_the_index_lets_pages_go_first_and_keeps_nobody_from_it(
    indexing: tuple[Source, Indexer], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs_ui.app.web.indexer._LONGEST_REST", 600.0)
    source, indexer = indexing
    rests = threading.Event()
    rest = indexer._rest

    def resting() -> None:
        rests.set()
        rest()

    monkeypatch.setattr(indexer, "_rest", resting)
    with source.reading():
        indexer.start()
        assert rests.wait(240)
        assert indexed(path) == 2
        assert SearchIndex(path, source.reading_beside).fill(stopped=iter([False, True]).__next__)
        assert indexed(path) == 4
    wait_until(lambda: indexed(path) > 4)


def test_a_page_that_never_ends_does_not_keep_the_index_from_being_filled(
    indexing: tuple[Source, Indexer], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs_ui.app.web.indexer._LONGEST_REST", 0.1)
    source, indexer = indexing
    with source.reading():
        indexer.start()
        wait_until(lambda: indexed(path) > 6)


def test_a_page_that_reads_is_known_until_it_has(engine: Engine, path: Path) -> None:
    assert engine
    source = Source(path)
    assert source.quiet > 1e9
    with source.reading(), source.reading_beside():
        assert source.quiet == 0
    assert 0 < source.quiet < 1e9
    with pytest.raises(RuntimeError), source.reading():
        raise RuntimeError
    assert source.quiet > 0


def test_the_page_says_how_much_was_searched_and_completes_itself(engine: Engine, path: Path) -> None:
    index = SEARCH.path(path)
    index.unlink(missing_ok=True)
    client = dashboard(path)  # no lifespan: nobody fills the index
    html = flat(client.get(f"/runs/{RUN}?where=largest").text)
    assert re.search(r"Searching 0 of \d+ rollouts; the index is being built", html)
    (poll,) = re.findall(r'data-poll hx-get="([^"]+)"', html)
    with dashboard(path) as filling:
        for _ in range(600):
            news = filling.get(poll.replace("&amp;", "&"))
            if news.status_code == 200 and "being built" not in flat(news.text):
                break
            time.sleep(0.1)
        assert "<strong>0</strong> rollouts" not in flat(news.text)
        assert 'id="new"' in flat(news.text)
        assert "Searching" not in flat(filling.get(f"/runs/{RUN}?where=largest").text)


def test_a_bin_of_the_histogram_leads_to_as_many_rollouts_as_it_says(client: TestClient, engine: Engine) -> None:
    html = flat(client.get(f"/runs/{RUN}").text)
    bins = re.findall(r'<a href="([^"]+)"[^>]*aria-label="[^"]*: ([\d,]+)" data-bin', html)
    counted = [rollouts_at(engine, address) for address, _ in bins]
    assert all(abs(count - int(said)) <= 1 for count, (_, said) in zip(counted, bins, strict=True)), "ends are rounded"
    assert sum(counted) == queries.exact_count(engine, 1, parse_where("scored:yes"))
