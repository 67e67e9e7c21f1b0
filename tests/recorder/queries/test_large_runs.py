"""What is looked at only in part of a run that is large, and says so. How large that is, is set lower here."""

import re
import shutil
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, select, update
from sqlmodel import col

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.app.pages.rollouts import table as rollout_table
from logs_ui.app.parts import waiting_page
from logs_ui.app.web import page_cache
from logs_ui.app.web.open_database import Source
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import diagnose
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.queries import Cursor
from logs_ui.recorder.queries.facets import _edge
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_where, read_sort
from logs_ui.recorder.queries.run_totals import totals
from logs_ui.recorder.queries.sql.selection import sections
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mode, RunState
from tests.recorder.queries.query_plans import plans
from tests.support.dashboard import dashboard, flat
from tests.support.exhaustive import cases
from tests.support.factory import make_run_at

STEPS, WINDOW = 40, 100
ALL = RolloutFilter()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 steps of 12 rollouts, and 8 more after every tenth."""
    path = tmp_path_factory.mktemp("made") / "large.db"
    make_run_at(path, uid="large", steps=STEPS, state=RunState.FINISHED)
    return path


@pytest.fixture
def db(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path))


@pytest.fixture
def reader(db: Path) -> Iterator[Engine]:
    with disposed(reading_engine(db)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    lows = {"LARGE": 200, "MANY": 200, "WINDOW": WINDOW, "SAMPLED": 100, "_FIRST_PART": 10}
    names = ("queries", *(f"queries.{it}" for it in ("common", "time_boxed", "pivot", "rollout_list")))
    for name in (*names, "analysis.diagnosis_columns"):
        module = sys.modules[f"logs_ui.recorder.{name}"]
        for limit in lows.keys() & vars(module).keys():
            monkeypatch.setattr(module, limit, lows[limit])


def ids(page: queries.Page) -> list[int]:
    return [row.id or 0 for row in page.rows]


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", cases(["turns>=2", "spread>0", "turns>=99", "error:timeout", "turns>=2 step:3.."], 2))
@pytest.mark.parametrize("sort", [Sort.NEWEST, Sort.OLDEST])
def test_looking_through_a_run_in_parts_finds_what_one_look_does(reader: Engine, where: str, sort: Sort) -> None:
    chosen = RolloutFilter(terms=parse_where(where).terms, sort=sort)
    after: Cursor | None = None
    found: list[int] = []
    while True:
        page = queries.page_in_time(reader, 1, chosen, after=after, limit=7, seconds=60.0)
        found += ids(page)
        after = page.next
        if after is None:
            break
    assert found == ids(queries.page(reader, 1, chosen, limit=10_000))


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["turns>=2", "turns>=99", "error:timeout step:3.."])
@pytest.mark.parametrize("sort", [Sort.NEWEST, Sort.OLDEST])
def test_neighbours_that_are_found_in_time_are_the_same(reader: Engine, where: str, sort: Sort) -> None:
    chosen = RolloutFilter(terms=parse_where(where).terms, sort=sort)
    count = queries.count(reader, 1, chosen)
    for row in queries.page(reader, 1, ALL, limit=300).rows[::60]:
        found = queries.neighbours_in_time(reader, 1, chosen, row, total=count, seconds=60.0)
        expected = queries.neighbours(reader, 1, chosen, row, total=count)
        assert found == replace(expected, position=None)
        soon = queries.neighbours_in_time(reader, 1, chosen, row, total=count, seconds=0.0)
        for name in ("previous", "next"):
            known = getattr(soon, name), getattr(found, name)
            assert known[0] == known[1] or (known[0] is None and name in soon.unsure)


def test_neighbours_in_an_order_that_no_index_has_are_of_the_newest_rollouts(reader: Engine) -> None:
    chosen = RolloutFilter(sort=Sort.LONGEST)
    first, second, third = queries.page_in_time(reader, 1, chosen, limit=3).rows
    found = queries.neighbours_in_time(reader, 1, chosen, second, total=queries.Count(0, exact=False))
    assert (found.previous, found.next, found.inside, found.position) == (first.id, third.id, True, None)


@pytest.mark.parametrize("sort", [Sort.NEWEST, Sort.OLDEST])
def test_how_many_were_looked_through_counts_those_of_full_pages_too(reader: Engine, sort: Sort) -> None:
    order = ids(queries.page(reader, 1, replace(ALL, sort=sort), limit=1_000))
    chosen = RolloutFilter(terms=parse_where("turns>=2").terms, sort=sort)
    after, full, pages = None, 0, 0
    while True:
        page = queries.page_in_time(reader, 1, chosen, after=after, limit=8, seconds=0.0)
        after = page.next
        if after is None:
            break
        assert after.key == order.index(after.id) + 1
        assert page.looked_at in {None, after.key}
        full += page.looked_at is None
        pages += 1
    assert 0 < full < pages, "some pages were full, and of others the time was over"


def test_an_order_that_no_index_has_is_of_the_newest_rollouts(reader: Engine) -> None:
    newest = queries.page(reader, 1, ALL, limit=WINDOW).rows
    found = queries.page_in_time(reader, 1, RolloutFilter(sort=Sort.LONGEST), limit=5)
    assert found.looked_at == WINDOW
    longest = sorted((row.completion_tokens or 0 for row in newest), reverse=True)[:5]
    assert [row.completion_tokens for row in found.rows] == longest


def test_what_no_index_has_is_counted_in_the_newest_rollouts_of_the_filters_steps(reader: Engine) -> None:
    for where, step_max in (("turns>=1", STEPS), ("turns>=1 step:0..600", 600), ("turns>=1 step:..20", 20)):
        chosen = parse_where(where)
        rows = queries.page(reader, 1, RolloutFilter(step_max=step_max), limit=WINDOW).rows
        span = queries.window(reader, 1, chosen)
        expected = sum((row.turns or 0) >= 1 for row in rows)
        assert queries.count(reader, 1, chosen, span=span) == queries.Count(expected, exact=False)


def test_pages_say_what_they_looked_at(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard(db) as client:
        filtered = client.get("/runs/large?where=turns%3E%3D1").text
        assert "in the newest 100" in filtered
        assert "in the newest" not in client.get("/runs/large").text
        assert "100 newest rollouts" in client.get("/runs/large?sort=longest").text
        assert "No rollouts found" in client.get("/runs/large?where=turns%3E%3D99&sort=longest").text
        address, *_ = re.findall(r'href="(/runs/large/rollouts/\d+[^"]*)"', filtered)
        assert re.search(r"one of \d+\+", client.get(unescape(address)).text)
        assert re.search(r"\d+ of \d+", client.get("/runs/large/rollouts/300").text)
        monkeypatch.setattr(queries, "neighbours_in_time", partial(queries.neighbours_in_time, seconds=0.0))
        said = {row: client.get(f"/runs/large/rollouts/{row}?where=turns%3E%3D99").text for row in (1, 250)}
    assert "previous and next not found nearby" in said[250]
    assert "previous not found nearby" in said[1], "there is surely no next, as it is the oldest"


def test_a_page_says_how_far_it_has_looked_and_goes_on_by_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_SECONDS", "_MORE_SECONDS"):
        monkeypatch.setattr(rollout_table, name, 0.0)
    monkeypatch.setattr(sys.modules["logs_ui.recorder.queries.time_boxed"], "_FIRST_PART", 100)
    looked, more = ("{} of 512 rollouts scanned", r'<tr id="more" class="more" hx-get="([^"]+)" hx-trigger="revealed"')
    headers = {"HX-Request-Type": "partial", "HX-Target": "tr#more"}
    with dashboard(db) as client:
        part = client.get("/runs/large?where=turns%3E%3D99").text
        for number in range(100, 600, 100):
            assert looked.format(number) in part
            found = re.search(more, part)
            assert found is not None
            part = client.get(unescape(found[1]), headers=headers).text
    assert "No more rollouts match" in part
    assert not re.search(more, part)


def test_a_figure_that_took_long_is_shown_for_a_while_but_not_of_another_state_or_run(
    reader: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_REST", 1e9)
    ask = Answers()
    with reader.begin() as connection:
        summary = queries.run_summary(connection, 1)
        changes: list[dict[str, Any]] = [{}, {"changed": 7}, {"state": RunState.FAILED}, {"id": 2, "changed": 1}]
        others = [replace(summary, run=summary.run.model_copy(update=change)) for change in changes]
        others[2] = replace(others[2], state="failed")
        assert [page_cache.figure(connection, it, ask, ALL) for it in others] == [1, 1, 2, 3]


def test_what_the_table_shows_is_not_said_to_be_new(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*asked: Any) -> int:
        time.sleep(0.05)
        return newest(*asked) - 5  # as it was a while ago

    newest = queries.newest_row
    monkeypatch.setattr(queries, "newest_row", slow)
    writer, now = writing_engine(db), time.time_ns() // 1000
    with writer.begin() as connection:
        connection.execute(update(Run).values(state=RunState.RUNNING, heartbeat=now))
    writer.dispose()
    with dashboard(db) as client:
        page = client.get("/runs/large?where=mode%3Atrain").text
    top = max(int(row) for row in re.findall(r"/runs/large/rollouts/(\d+)", page))
    assert re.findall(r"/live[^\"]*newest=(\d+)", page) == [str(top)]


class Answers:
    """What is asked of a large run again and again: it takes long, and says how often it was asked, and by whom."""

    def __init__(self) -> None:
        self.by: list[str] = []

    def __call__(self, *_: Any) -> int:
        self.by.append(threading.current_thread().name)
        time.sleep(0.02)
        return len(self.by)


def test_what_took_long_is_asked_again_in_the_background(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_REST", 0.001)
    writer, source, ask, here = writing_engine(db), Source(db), Answers(), threading.current_thread().name

    def asked() -> int:
        with writer.begin() as connection:
            connection.execute(update(Run).values(changed=col(Run.changed) + 1))
        with source.reading() as connection:
            return page_cache.figure(connection, queries.run_summary(connection, 1), ask, ALL)

    found = [asked() for _ in range(3)]
    source.close()  # which waits for the answer
    assert found[:2] == [1, 1]
    assert found[2] in {1, 2}, "the answer in the background may have come"
    assert ask.by[0] == here
    assert set(ask.by[1:]) == {"logs-ui-figures_0"}
    monkeypatch.setattr(page_cache, "_LATE", 0.0)
    assert [asked(), asked()] == [len(ask.by) - 1, len(ask.by)]  # of a database that is opened anew, nothing is known
    assert ask.by[-1] == here
    source.close()
    writer.dispose()


def test_the_totals_of_a_long_run_are_added_up_in_the_background(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_runs = sys.modules["logs_ui.recorder.queries.runs"]
    by: list[str] = []

    def counted(*args: Any) -> Any:
        by.append(threading.current_thread().name)
        return totals(*args)

    for name, value in (("_MANY_STEPS", 10), ("_REST", 0.0), ("totals", counted)):
        monkeypatch.setattr(of_runs, name, value)
    writer, source = writing_engine(db), Source(db)
    for _ in range(2):
        with source.reading() as connection:
            assert queries.run_summary(connection, 1).rollouts == 512
        with writer.begin() as connection:
            connection.execute(update(Run).values(changed=col(Run.changed) + 1))
    source.close()
    writer.dispose()
    assert by == [threading.current_thread().name, "logs-ui-figures_0"]


def test_the_rewards_of_a_whole_run_are_counted_by_their_index(reader: Engine) -> None:
    found = queries.reward_histogram(reader, 1, ALL)
    assert found is not None
    assert sum(found.counts) == queries.exact_count(reader, 1, parse_where("scored:yes"))
    explained = plans(reader, lambda: queries.reward_histogram(reader, 1, ALL))
    assert not [plan for plan in explained if "TEMP B-TREE" in plan], "no row for each rollout is sorted"


def test_the_tags_of_a_few_steps_are_looked_up_row_by_row(reader: Engine) -> None:
    steps = parse_where("step:3..5")
    found = queries.pivot(reader, 1, steps, "tag", "status", "count")
    assert found.overall.count >= queries.exact_count(reader, 1, steps), "once for each tag"
    explained = plans(reader, lambda: queries.pivot(reader, 1, steps, "tag", "status", "count"))[-1].split(" / ")
    assert any("row_tag USING COVERING INDEX tag_by_row (row_id=?)" in step for step in explained)
    assert not [step for step in explained if "LEFT-JOIN" in step and "SCAN" in step], "no list is scanned for each row"
    assert not [step for step in explained if "row_by_id" in step], "the run is not walked from its end to these steps"


def test_an_order_without_index_is_long_even_in_a_few_steps(reader: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MANY", 200)
    summary = queries.run_summary(reader, 1)
    for where, sort, is_long in (
        ("step:11..20", "-metadata.level", False), ("step:11..38", "-metadata.level", True),
        ("step:11..38", "-status", True), ("step:11..38 repeats>0.5", "newest", False),
        ("step:11..38", "lowest-reward", False), ('step:11..38 task:"a"', "-turns", False),
    ):  # fmt: skip
        chosen = replace(parse_where(where), sort=read_sort(sort))
        assert page_cache.is_long(summary, chosen) == is_long, (where, sort)
        rows = queries.page_in_time(reader, 1, chosen).rows if is_long else []
        assert all(11 <= row.step <= 38 for row in rows)


def test_of_a_step_with_many_rollouts_the_newest_are_compared(reader: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared() -> int:
        of_tasks = queries.task_results(reader, 1, "train", (7, 8), ())
        return sum(group.scored for groups in of_tasks.values() for group in groups)

    every = compared()
    monkeypatch.setattr("logs_ui.recorder.queries.comparison.MOST_ROLLOUTS", 5)
    assert compared() == 5 < every


@pytest.mark.parametrize(("low", "high"), [(-2, -1), (-2, 0), (0, 1), (-1, 3)])
def test_a_reward_at_an_edge_is_counted_where_a_filters_histogram_counts_it(low: int, high: int) -> None:
    width = (high - low) / 24
    edges = [_edge(low, width, i) for i in range(24)]
    for parts in (3, 7, 10, 24):
        rewards = [(low * parts + k) / parts for k in range((high - low) * parts + 1)]
        divided = [min(int((reward - low) / width), 23) for reward in rewards]
        assert [bisect_right(edges, reward) - 1 for reward in rewards] == divided


def test_a_diagnosis_reads_the_newest_steps_and_some_of_those_before(db: Path) -> None:
    with disposed(reading_engine(db)) as engine:
        columns = RunColumns(1, Mode.TRAIN)
        rows = columns.refresh(engine)
        sample = columns.sample
        assert sample is not None
        steps = set(rows.steps.tolist())
        assert steps == {step for step in range(1, STEPS + 1) if step >= sample.recent or step % sample.every == 0}
        assert 60 <= len(rows) <= 200
        report = diagnose("large", db)
        assert report.sample == f"{len(rows)} of {sample.rollouts} rollouts: {sample}"
        assert f"diagnosed from a sample: {report.sample}" in str(report)
        assert sample.rollouts > 400
        whole = RunColumns(1, Mode.TRAIN, whole=True)
        assert (len(whole.refresh(engine)), whole.sample) == (sample.rollouts, None)
        assert diagnose("large", db, whole=True).sample is None


BROWSER = {"Accept": "text/html,*/*"}
OF_WHY = ("", "/tasks", "/rewards", "/actions", "/trained")


@pytest.mark.exhaustive
def test_every_page_of_why_says_how_many_of_how_many_it_read_and_what_reads_them_all(db: Path) -> None:
    read = diagnose("large", db).sample
    assert read
    with dashboard(db) as client:
        for page in OF_WHY:
            html = flat(client.get(f"/runs/large/why{page}").text)
            command = f"logs-ui diagnose large --db {db} --all"
            assert f"The run is large, so a sample is read: {read}. <code>{command}</code>" in html
            (every,) = set(re.findall(r'href="([^"]*why/\w+\?steps=(?:all|last))"', html)) or {""}
            if every:
                assert read in client.get(every).text
        beyond = client.get("/runs/large/why?step_max=1")
        assert beyond.status_code == 422
        assert f"of this large run a sample is read: {read}" in beyond.text


@pytest.mark.parametrize(
    "place", cases(["", "/why", "/groups?kind=mixed", "?steps=all", *(f"/why{page}" for page in OF_WHY[1:])], 3)
)
def test_what_takes_long_shows_a_frame_and_then_the_page(db: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(waiting_page, "_QUICK", 100)
    address = f"/runs/large{place}" if place != "?steps=all" else "/runs/large/why/rewards?steps=all"
    # Read-only: the file of an index that comes meanwhile would have the database opened again, with nothing known.
    with dashboard(db, headers=BROWSER, read_only=True) as client:
        frame = client.get(address)
        assert frame.headers["cache-control"] == "no-store"
        (whole,) = re.findall(r'data-whole="([^"]+)"', frame.text)
        assert f'<noscript><meta http-equiv="refresh" content="0; url={whole}"></noscript>' in frame.text
        assert "<progress" in frame.text
        assert ("recounted" in frame.text) == ("/why" not in address)
        assert 'id="run-line"' in frame.text
        made = client.get(unescape(whole))
        assert made.status_code == 200
        assert "data-whole" not in made.text
        (title,) = re.findall("<title>.*</title>", frame.text)
        assert title in made.text
        assert "data-whole" not in client.get(address).text, "it is known from now on"
    with dashboard(db) as client:
        assert "data-whole" not in client.get(address).text, "a script gets what it asks for"


def test_a_small_run_has_no_frame(db: Path) -> None:
    with dashboard(db, headers=BROWSER) as client:
        assert "data-whole" not in client.get("/runs/large/why").text


@pytest.mark.exhaustive
def test_a_browser_shows_the_frame_then_the_page(quiet_page: Page, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_page, "_QUICK", 100)
    with BackgroundServer(db) as server:
        address = f"{server.url}/runs/large/why?step_min=30#settings"
        quiet_page.goto(address, wait_until="commit")
        expect(quiet_page.locator("#settings")).to_be_visible()
        expect(quiet_page).to_have_url(address)
    with BackgroundServer(db) as server:
        without = quiet_page.context.browser.new_page(java_script_enabled=False)  # type: ignore[union-attr]
        without.goto(f"{server.url}/runs/large/why")
        expect(without.locator("#settings")).to_be_visible()
        without.close()


def test_a_diagnosis_of_a_large_run_follows_its_changes(db: Path) -> None:
    engine, writer = reading_engine(db), writing_engine(db)
    columns = RunColumns(1, Mode.TRAIN)
    last = int(columns.refresh(engine).id[-1])
    with writer.begin() as connection:
        connection.execute(update(Run).values(changed=col(Run.changed) + 1))
        changed = connection.scalar(select(col(Run.changed)).where(col(Run.id) == 1)) or 0
        connection.execute(
            update(EvaluationRow).where(col(EvaluationRow.id) == last).values(reward=7.5, changed=changed)
        )
    rows = columns.refresh(engine)
    assert rows.reward[rows.id == last].tolist() == [7.5]
    writer.dispose()
    engine.dispose()


@pytest.mark.parametrize("sort", [Sort.LOWEST_REWARD, Sort.HIGHEST_REWARD, Sort.LONGEST, Sort.SLOWEST])
def test_rows_that_lack_the_key_follow_those_that_have_it_on_a_later_page_too(sort: Sort) -> None:
    """A page that begins amid rows that have the key reads their ties, the others, and rows without the key."""
    assert len(sections(RolloutFilter(sort=sort), (0.5, 7))) == 3
    assert len(sections(RolloutFilter(sort=sort), (0.5, 7), backwards=True)) == 2
    assert len(sections(RolloutFilter(sort=sort), (None, 7))) == 1
