"""The dashboard's answers, over HTTP without a browser."""

import ast
import dataclasses
import hashlib
import inspect
import json
import os
import re
import socket
import sqlite3
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, func, select
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import serve
from logs_ui.app.main import create_app
from logs_ui.app.parts import charts, figures, safe_text, timeline, words
from logs_ui.app.web import htmx
from logs_ui.app.web.open_database import Source
from logs_ui.app.web.security import CONTENT_SECURITY_POLICY
from logs_ui.recorder import flush, queries, start_run, trace_env
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries import background_refresh
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState, Status
from tests.support.changes import wait_until
from tests.support.dashboard import add_rollouts, changed, dashboard, first_row, flat, fragment, poll_of, row_ids
from tests.support.factory import make_run, make_run_at

TOKEN = "s3cret-ä"  # noqa: S105 - nobody's
RUN, LIVE = "main-run-1234", "live-run-5678"
FOLDER = Path(__file__).parents[2]
VENDOR = FOLDER / "app" / "static" / "vendor"


def fill(engine: Engine) -> None:
    now = time.time_ns() // 1000
    make_run(engine, uid=RUN, name="a run", steps=12, state=RunState.FINISHED)
    make_run(engine, uid=LIVE, name="another", steps=3, created=now - 200_000_000, heartbeat=now + 600_000_000)


# --- Pages and fragments


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/", "runs"), (f"/runs/{RUN}", "results"), (f"/runs/{RUN}/overview", "overview"),
        (f"/runs/{RUN}/rollouts/1", "rollout"), (f"/runs/{RUN}/groups", "groups"), (f"/runs/{RUN}/groups/1", "group"),
        (f"/compare?run={RUN}&run={LIVE}", "compare"),
    ],
)  # fmt: skip
def test_a_fragment_is_a_piece_of_its_page_and_no_cache_keeps_it(client: TestClient, address: str, target: str) -> None:
    page, piece = client.get(address), client.get(address, headers=fragment(target))
    assert page.text.startswith("<!doctype html>")
    assert "<html" not in piece.text
    assert f'id="{target}"' in piece.text
    assert page.headers["cache-control"] == "no-cache"
    assert piece.headers["cache-control"] == "no-store"
    assert page.headers["vary"] == piece.headers["vary"] == "HX-Request-Type, HX-Target, Accept-Encoding"


def test_back_is_given_a_whole_page(client: TestClient) -> None:
    headers = {"HX-Request": "true", "HX-Request-Type": "full", "HX-Target": "body"}
    answer = client.get(f"/runs/{RUN}?stop=length", headers=headers)
    assert answer.text.startswith("<!doctype html>")
    assert "hx-push-url" not in answer.headers  # it would cut off the way forward


@pytest.mark.parametrize(
    ("page", "target"),
    [
        ("", "live"), ("/overview", "overview"), ("/groups", "live"), ("/groups/{}", "group"),
        ("/rollouts/{}", "rollout"),
    ],
)  # fmt: skip
def test_a_page_of_a_living_run_asks_for_news_and_gets_none_unless_there_are(
    client: TestClient, engine: Engine, page: str, target: str
) -> None:
    running = first_row(engine, LIVE, col(EvaluationRow.status) == Status.RUNNING)
    address = poll_of(client.get(f"/runs/{LIVE}{page.format(running)}").text)
    assert client.get(address, headers=fragment(target)).status_code == 204
    with live_run(engine, changed=50), changed(engine, EvaluationRow, col(EvaluationRow.id) == running, changed=50):
        assert client.get(address, headers=fragment(target)).status_code == 200
    assert "data-poll" not in client.get(f"/runs/{RUN}{page.format(1)}").text, "a run that is over"


@pytest.mark.parametrize("name", ["latest", "another", LIVE[:6]])
@pytest.mark.parametrize(
    "page",
    ["?status=ok", "/why?step_min=2", *(f"/why/{tab}?steps=all" for tab in ("tasks", "rewards", "actions", "trained"))],
)
def test_a_run_is_found_by_its_other_names_and_shown_under_its_own(client: TestClient, name: str, page: str) -> None:
    answer = client.get(f"/runs/{name}{page}", follow_redirects=False)
    page = page.replace("?status=ok", "?where=status:ok")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{LIVE}{page}")


def live_run(engine: Engine, **values: Any) -> AbstractContextManager[None]:
    """Of other values for a while."""
    return changed(engine, Run, col(Run.uid) == LIVE, **values)


def shown(html: str, word: str) -> int:
    """How many rows of the table have this status."""
    return len(re.findall(rf'<td class="status">(?:(?!</td>).)*</svg>\s*{word}</span></td>', html))


def test_nothing_runs_or_is_awaited_in_a_run_that_is_over(client: TestClient, engine: Engine) -> None:
    living = client.get(f"/runs/{LIVE}").text
    runs = shown(living, "running")
    assert shown(living, "awaiting")
    with live_run(engine, heartbeat=0):
        whole = client.get(f"/runs/{LIVE}").text
        assert [shown(whole, word) for word in ("running", "awaiting", "aborted")] == [0, 0, runs]
        assert shown(whole, "no reward")
        assert len(row_ids(client.get(f"/runs/{LIVE}?status=aborted").text)) == runs > 0
        assert not row_ids(client.get(f"/runs/{LIVE}?status=running").text)
        one = first_row(engine, LIVE, col(EvaluationRow.status) == Status.RUNNING)
        html = client.get(f"/runs/{LIVE}/rollouts/{one}").text
        assert "The process ended in the middle of the rollout" in html
        assert "is still running" not in html
        assert "is-live" not in html
        assert client.get(f"/runs/{LIVE}/rollouts/{one}/text/raw").json()["status"] == "aborted"
        assert {client.get(f"/runs/{LIVE}/rollouts/{row_id}").status_code for row_id in row_ids(whole)[::7]} == {200}


def test_a_run_that_dies_while_its_pages_are_open_is_seen_to(client: TestClient, engine: Engine) -> None:
    one = first_row(engine, LIVE, col(EvaluationRow.status) == Status.RUNNING)
    pages = {f"/runs/{LIVE}": "live", f"/runs/{LIVE}/overview": "overview", f"/runs/{LIVE}/rollouts/{one}": "rollout"}

    def polls(page: str) -> str:
        html = client.get(page).text
        opened = re.findall(r'<input type="hidden" name="open" value="(\d+)">', html)
        return poll_of(html) + "".join(f"&open={row_id}" for row_id in opened)

    addresses = {target: polls(page) for page, target in pages.items()}
    following = addresses["live"] + "&follow=1"
    ask = {target: (address, fragment(target)) for target, address in addresses.items()}
    assert {client.get(address, headers=headers).status_code for address, headers in ask.values()} == {204}
    with live_run(engine, heartbeat=0):
        said = {target: client.get(address, headers=headers).text for target, (address, headers) in ask.items()}
        assert all("died" in html for html in said.values())
        assert f'hx-target="#row-{one}"' in said["live"]
        assert shown(said["live"], "aborted")
        assert not shown(said["live"], "running")
        assert shown(client.get(following, headers=fragment("live")).text, "aborted")
        assert "The process ended in the middle" in said["rollout"]
        again = {target: polls(page) for page, target in pages.items()}
        assert f"open={one}" in again["live"], "it may have been asleep"
    woken = client.get(again["live"], headers=fragment("live")).text
    assert shown(woken, "running")
    assert "is still running" in client.get(again["rollout"], headers=fragment("rollout")).text


def test_a_reward_that_was_no_number_is_told_from_one_that_was_not_given(client: TestClient, engine: Engine) -> None:
    one = first_row(engine, RUN, col(EvaluationRow.status) == Status.OK)
    values = {"rewards": {"a": None, "b": None}, "odd_rewards": {"b": "nan"}}
    with changed(engine, EvaluationRow, col(EvaluationRow.id) == one, **values):
        html = flat(client.get(f"/runs/{RUN}/rollouts/{one}").text)
    shown = re.findall(r'title="The reward function returned None[^>]*>(—)<|>(nan)</dd>', html)
    assert shown == [("—", ""), ("", "nan")]


def test_what_the_recorder_gave_up_is_said(client: TestClient, engine: Engine) -> None:
    assert "had trouble" not in client.get(f"/runs/{LIVE}").text
    trouble = {"dropped": 7, "dropped_payloads": 5, "recorder_errors": 1, "last_recorder_error": "disk full <b>"}
    with live_run(engine, **trouble):
        html = client.get(f"/runs/{LIVE}").text
    assert "7 changes lost" in html
    assert "5 rollouts lost messages and tokens because the queue was full" in html
    assert "1 error inside the recorder" in html
    assert "disk full &lt;b&gt;" in html


# --- Filters


def test_the_address_is_the_filter_in_its_shortest_form(client: TestClient) -> None:
    typed = f"/runs/{RUN}?eval=&step_min=2&step_max=&status=ok&sort=newest&reward_max="
    answer = client.get(typed, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{RUN}?where=status:ok%20step%3E%3D2")
    piece = client.get(typed, headers=fragment("results"))
    assert piece.headers["hx-push-url"] == f"/runs/{RUN}?where=status:ok%20step%3E%3D2"


@pytest.mark.parametrize(
    ("query", "said", "mend"),
    [
        ("step_min=x&status=ok", "step_min 'x' is not a whole number", "?where=status:ok"),
        ("statsu=ok&step_min=2", "did you mean status?", "?status=ok&step_min=2"),
        ("where=statsu:ok+step:2", "unknown field 'statsu': did you mean status?", "?where=status:ok%20step:2"),
        ("where=rewards.solvd<1", "no reward function 'solvd': did you mean solved?", "?where=rewards.solved%3C1"),
        ('where=step:2+"open', "the opening quote has no closing quote", ""),
        ("after=nonsense", "not a position in the table", ""),
    ],
)
def test_a_misspelt_filter_is_said_and_never_no_rows(client: TestClient, query: str, said: str, mend: str) -> None:
    for headers in ({}, fragment("results")):
        answer = client.get(f"/runs/{RUN}?{query}", headers=headers)
        assert answer.status_code == 422
        html = unescape(flat(answer.text))
        assert said in re.sub("<[^>]+>", "", html)
        assert f'href="/runs/{RUN}{mend}"' in html
        assert "No rollouts match" not in html
    assert answer.headers["hx-push-url"] == "false"


def test_the_field_at_fault_is_marked_and_keeps_what_was_typed(client: TestClient) -> None:
    html = client.get(f"/runs/{LIVE}?reward_min=high&step_max=9").text
    assert "data-poll" not in html, "it is not refreshed away"
    assert re.search(r'name="reward_min" value="high"[^>]*aria-invalid="true"', html, re.DOTALL)
    assert re.search(r'name="step_max" value="9"', html)


@pytest.mark.parametrize(
    ("words", "term"),
    [("truncated", "stop:length"), ("Length", "stop:length"), ("step 12", "step:12"), ("my length", None)],
)
def test_words_that_match_nothing_name_the_term(client: TestClient, words: str, term: str | None) -> None:
    html = flat(client.get(f"/runs/{RUN}", params={"where": f"{words} status:aborted"}).text)
    assert "No rollouts match" in html
    assert re.findall(r"Did you mean <a [^>]*>([^<]*)</a>", html) == ([term] if term else [])


def test_an_empty_result_says_what_removing_each_part_would_give(client: TestClient) -> None:
    html = flat(client.get(f"/runs/{RUN}?status=aborted&step_max=3").text)
    assert "No rollouts match" in html
    wanted = [36]  # of the step alone there are 3 x 3 x 4; no rollout of the run was aborted, and nobody is led there
    assert sorted(int(n) for n in re.findall(r'<li><span class="num">(\d+)</span>', html)) == wanted
    assert f'href="/runs/{RUN}" hx-get="/runs/{RUN}">Clear all filters' in html
    both = client.get(f"/runs/{RUN}", params={"where": "status:aborted step:900"}).text
    assert "Removing any one filter still leaves no matches" in both
    assert '<li><span class="num">' not in both
    assert "Clear all filters" in both


PAIR = f"/compare?run={RUN}&run={LIVE}"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/?state=finishd", "did you mean 'finished'"), ("/?stat=died", "did you mean 'state'"),
        ("/?sort=-stps", "'steps'"), ("/?col=rewrd", "'reward'"), ("/?by=modl", "'model'"),
        (f"{PAIR}&x=stpe", "did you mean 'step'"), (f"{PAIR}&k=many", "k 'many' is not a number"),
        (f"{PAIR}&solved=nan", "solved 'nan' is not a number"), (f"{PAIR}&figures=kl", "did you mean 'figure'"),
        (f"{PAIR}&figure=los", "did you mean 'loss'"), (f"{PAIR}&sort=reward", "unknown sort"),
        ("overview?x=1", "unknown parameter 'x': choose from mode, eval, q<"),
        ("overview?mode=eval&eval=shell-agent", "shell-agent held-out"),
        ("overview/steps?of=rewrd", "did you mean 'reward'?"), ("?view=pivot&rows=taks", "task"),
        ("?view=pivot&of=spread", "unknown value of of 'spread'"),
        ("rollouts/1?stop=lenght", f'href="/runs/{RUN}/rollouts/1?stop=length"'),
        ("rollouts/3?view=rwa", "unknown view 'rwa': did you mean 'raw'?"),
        ("rollouts/3?view=zz&stop=length", "unknown view 'zz': choose from timeline, tokens, raw"),
        ("rollouts/3?task=nosuch", "this run has no task 'nosuch'"),
        ("rollouts/3?step_min=1_0", "step_min '1_0' is not a whole number"),
        ("groups?where=stop:lenght", f'href="/runs/{RUN}/groups?where=stop:length"'),
        ("groups?where=stop:lenght", 'value="stop:lenght"'), ("groups?kind=ded", "did you mean"),
        ("groups?sort=newst", "did you mean"), ("groups/1?sort=largest", "did you mean 'largest-std'"),
        ("compare?a=1", "b is missing"), ("compare?wher=x&a=1&b=2", "did you mean"),
        ("why/tasks?sort=wrost", "did you mean 'worst'"), ("why/tasks?label=never", "unknown label 'never'"),
        ("why/tasks?steps=some", "step 'some' is not a whole number"), ("why/tasks?tsak=1", "unknown parameter 'tsak'"),
        ("why/rewards?steps=some", "step 'some' is not a whole number"),
        ("why/rewards?step=all", "did you mean 'steps'"),
        ("why/actions?steps=some", "step 'some' is not a whole number"),
        ("why/actions?step=all", "did you mean 'steps'"),
    ],
)  # fmt: skip
def test_an_address_that_is_wrong_does_not_pass_in_silence(client: TestClient, address: str, said: str) -> None:
    of_run = f"/runs/{RUN}{'' if address[0] == '?' else '/'}{address}"
    answer = client.get(address if address[0] == "/" else of_run)
    assert answer.status_code == 422
    assert said in unescape(answer.text)


def test_a_rollout_outside_of_the_filter_says_so_and_has_neighbours_in_it(client: TestClient, engine: Engine) -> None:
    run_id = queries.find_run(engine, RUN).id or 0
    chosen = RolloutFilter(stop_reasons=("length",))
    inside = queries.page(engine, run_id, chosen).rows
    outside = first_row(
        engine, RUN, col(EvaluationRow.stop_reason) != "length",
        col(EvaluationRow.id) > inside[-1].id, col(EvaluationRow.id) < inside[0].id,
    )  # fmt: skip
    html = client.get(f"/runs/{RUN}/rollouts/{outside}?stop=length").text
    assert "not in this filter" in html
    linked = [int(found) for found in re.findall(r'rollouts/(\d+)\?where=stop:length" data-key="[kj]"', html)]
    assert len(linked) == 2
    assert set(linked) < {row.id for row in inside}


def test_a_length_that_is_known_is_said(client: TestClient, engine: Engine) -> None:
    def planned(max_steps: int) -> int | None:
        run = Run(uid="x", name="x", created=0, heartbeat=0, config={"max_steps": max_steps})
        return words.planned_steps(dataclasses.replace(queries.all_runs(engine)[0], run=run))

    assert "step 12 of 12" in flat(client.get(f"/runs/{RUN}").text)
    assert "step 1 of 12" in flat(client.get(f"/runs/{RUN}/rollouts/1").text)
    assert re.search(r"12 <span[^>]*>of 12<", flat(client.get("/").text))
    assert planned(-1) is None  # by epochs
    assert planned(9) == 9


# --- Live


def live_address(client: TestClient, query: str = "") -> str:
    return poll_of(client.get(f"/runs/{LIVE}{query}").text)


def test_news_come_with_the_counts_and_wait_behind_the_pill(client: TestClient, engine: Engine) -> None:
    address = live_address(client)
    add_rollouts(engine, LIVE)
    html = client.get(address, headers=fragment("live")).text
    count = queries.count(engine, queries.find_run(engine, LIVE).id or 0, RolloutFilter()).value
    assert "1 new" in html
    assert f"<strong>{count}</strong> rollouts" in html
    assert 'hx-target="#filters-panel"' in html
    assert 'hx-target="#rows"' not in html


def test_a_table_that_follows_gets_the_news_in_place(client: TestClient, engine: Engine) -> None:
    address = live_address(client)
    new = add_rollouts(engine, LIVE)
    html = client.get(f"{address}&follow=1", headers=fragment("live")).text
    assert 'class="pill"' not in html
    assert row_ids(html)[0] == new
    assert live_address(client).split("newest=")[1].startswith(f"{new}&")
    lowest = live_address(client, "?sort=lowest-reward")
    add_rollouts(engine, LIVE)
    assert 'class="pill"' in client.get(f"{lowest}&follow=1", headers=fragment("live")).text


@pytest.mark.parametrize("address", ["", "?status=ok&status=running&status=error", "live", "live&follow=1"])
def test_a_page_is_of_one_moment(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """While it is made, a rollout comes in after each of its questions to the database."""
    run_id = queries.find_run(engine, LIVE).id or 0
    if address.startswith("live"):
        address = live_address(client) + address.removeprefix("live")
        add_rollouts(engine, LIVE)
    else:
        address = f"/runs/{LIVE}{address}"
    before = queries.count(engine, run_id, RolloutFilter()).value
    newest = queries.page(engine, run_id, RolloutFilter(), limit=1).rows[0].id

    def interrupted(question: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = question(*args, **kwargs)
            add_rollouts(engine, LIVE)
            return answer

        return ask

    with monkeypatch.context() as patched:
        for name in list(vars(queries)):
            if inspect.isfunction(getattr(queries, name)) and name != "find_run":  # which makes the row
                patched.setattr(queries, name, interrupted(getattr(queries, name)))
        html = flat(client.get(address, headers=fragment("live") if "/live" in address else {}).text)
    assert queries.count(engine, run_id, RolloutFilter()).value > before + 4
    assert f"<strong>{before}</strong> rollouts" in html
    counts = re.findall(r'name="scored".*?<span class="n">(\d+)</span>', html, re.DOTALL)
    running = re.search(r'name="status" value="running".*?<span class="n">(\d+)</span>', html, re.DOTALL)
    assert running
    assert sum(map(int, counts)) + int(running[1]) == before
    assert max(row_ids(html), default=newest) == newest
    assert f"newest={newest}" in html or "1 new" in html


# --- A run's overview


def test_what_ended_a_run_is_said_with_its_traceback(client: TestClient, engine: Engine) -> None:
    why = {"error": "ValueError: <b>no</b>", "traceback": "Traceback: line 7"}
    with changed(engine, Run, col(Run.uid) == RUN, **why):
        for address in (f"/runs/{RUN}", f"/runs/{RUN}/overview"):
            html = client.get(address).text
            assert "ValueError: &lt;b&gt;no&lt;/b&gt;" in html
            assert "Traceback: line 7" in html
        assert "ValueError: &lt;b&gt;no" in client.get("/").text


@pytest.mark.parametrize(
    ("points", "lines"),
    [
        ([(1, 0.0), (3, 1.0)], ["0,38 100,2"]),
        ([(1, 0.0), (2, None), (3, 1.0), (5, 0.5)], ["0,38", "50,2 100,20"]),
        ([(7, 2.0)], ["0,20"]),
        ([(1, None)], []),
    ],
)
def test_a_curve_is_broken_where_no_value_was_logged(points: list[tuple[int, float | None]], lines: list[str]) -> None:
    found = charts.curve("loss", tuple(points))
    assert found.lines == lines
    assert len(found.steps.split()) == len(found.values.split()) == len(points)


# --- One rollout


def test_a_failed_rollout_says_why_before_anything_else(client: TestClient, engine: Engine) -> None:
    failed = first_row(engine, RUN, col(EvaluationRow.status) == Status.ERROR)
    html = client.get(f"/runs/{RUN}/rollouts/{failed}").text
    assert html.index("Traceback (most recent call last)") < html.index('id="message-0"')


def test_an_observation_that_became_a_message_is_shown_once(engine: Engine) -> None:
    run_id = queries.find_run(engine, RUN).id or 0
    done = first_row(engine, RUN, col(EvaluationRow.stop_reason) == "done", col(EvaluationRow.step) > 1)
    found = queries.rollout(engine, run_id, done)
    cards = timeline.make_timeline(found)
    answers = [card.answer for card in cards if card.answer and card.answer.turn]
    assert len(answers) == len(found.actions) - 1
    assert all(answer.shown_as == "tool run" for answer in answers)
    assert not [card for card in cards if card.role == "tool"]
    assert not any(answer.observation for answer in answers)
    tokens = [card.tokens for card in cards if card.role == "assistant"]
    assert sum(count or 0 for count in tokens) == found.row.completion_tokens


def test_the_raw_view_holds_the_whole_row(client: TestClient, engine: Engine) -> None:
    plain = client.get(f"/runs/{RUN}/rollouts/5/text/raw")
    record = json.loads(plain.text)
    assert set(EvaluationRow.model_fields) < set(record)
    assert len(record["tokens"]["prompt_ids"]) == record["prompt_tokens"]
    assert record["messages"]
    assert re.fullmatch(r"2026-01-01T\d\d:\d\d:\d\d\.\d{6}Z", record["created"])
    assert max(len(str(value)) for value in record["tokens"]["logprobs"]) <= 10, "a float16 needs no more"
    assert plain.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in plain.headers["content-security-policy"]


def test_a_long_text_is_cut_and_had_whole_elsewhere(tmp_path: Path) -> None:
    long = "a <b>" * safe_text.TEXT_LIMIT
    with start_run(db=tmp_path / "a.db") as run, run.rollout("Go.") as row:
        row.turn(long)
    with dashboard(tmp_path / "a.db") as client:
        html = client.get(f"/runs/{run.id}/rollouts/1").text
        links = re.findall(r'class="whole" href="([^"]+)">', html)
        assert len(html) < 2 * len(long)
        assert [client.get(link).text for link in links] == [long]


# --- Text of models


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
        ("\x1b[31mred\x1b[0m \x1b[1;32mok\x1b[22m\x1b[39m.",
         'ansi-red">red</span> <span class="ansi-bold ansi-green">ok</span>.'),
        ("\x1b[2J\x1b]0;title\x07x", "x"), ("a\u202eb", ">RLO</span>b"), ("\ud800", ">D800</span>"),
        ("a\r\nb\rc", ">CR</span>c"), ("👩\u200d👩", "👩\u200d👩"), ("a\u200db", ">ZWJ</span>b"),
        ("\U000e0041", ">E0041</span>"),
    ],
)  # fmt: skip
def test_text_is_made_visible(written: str, shown: str) -> None:
    assert shown in safe_text.block(written)
    safe_text.block(written).encode()


def test_a_name_stays_on_its_line_and_within_its_attribute() -> None:
    ticks = safe_text.block("`" * 300_000, 300_000)
    assert safe_text.fenced(ticks) == ticks  # which took minutes
    assert safe_text.line("a\n\n  b\tc") == "<bdi>a b c</bdi>"
    assert safe_text.line("x" * 400, 10) == f"<bdi>{'x' * 9}…</bdi>"
    assert safe_text.label("run\u202e1") == "run⟨RLO⟩1"
    assert htmx.plain_text("a\ud800").body == b"a?"


@pytest.mark.parametrize(
    ("function", "value", "shown"),
    [
        (figures.number, None, "—"), (figures.number, -0.0163, "\u22120.016"), (figures.number, 12345.678, "12,346"),
        (figures.number, float("nan"), "NaN"), (figures.number, -0.00001, "\u22121e\u221205"),
        (figures.number, 3e8, "3e+08"), (figures.signed, 0.5, "+0.50"),
        (figures.signed, -0.5, "\u22120.50"), (figures.tokens, 999, "999"), (figures.tokens, 2104, "2.1k"),
        (figures.percent, 0.001, "<1%"), (figures.percent, 0.999, ">99%"), (figures.percent, 0.45, "45%"),
        (figures.duration, 0.697, "697 ms"), (figures.duration, 28.84, "28.8 s"), (figures.duration, 63, "1m 03s"),
        (figures.significant, 0.00123456, "0.001235"), (figures.significant, 255772.0, "255,772"),
        (figures.significant, 9.0, "9"), (figures.significant, -2e-8, "\u22122e\u221208"),
        (figures.significant, None, "—"),
        (figures.signed, -0.004, "0.00"), (figures.signed, 0.004, "0.00"), (figures.signed, 0.0, "0.00"),
        (figures.signed, 0.005001, "+0.01"), (figures.number, -0.0, "0.000"), (figures.significant, -0.0, "0"),
        (figures.signed, 1e-5, "0.00"), (figures.signed, 100.0, "+100.00"),
        (figures.window, None, "all rollouts"), (figures.window, (7, 7), "step 7"),
        (figures.window, (1_200, 1_300), "steps 1,200\u20131,300"),
        (figures.duration, 7505, "2h 05m"), (figures.signed_bin, 2.42, "p3"), (figures.signed_bin, -0.13, "zero"),
    ],
)  # fmt: skip
def test_figures_are_written_alike(function: Any, value: Any, shown: str) -> None:
    assert function(value) == shown


def test_numbers_are_no_longer_than_they_were_meant() -> None:
    sum_of_tenths = 0.1 + 0.2
    written = {"a": [float(np.float32(0.3)), sum_of_tenths], "b": 1e300, "c": 1 / 3, "d": True, "e": float("inf")}
    assert figures.tidy(written) == {"a": [0.3, 0.3], "b": 1e300, "c": 1 / 3, "d": True, "e": float("inf")}


# --- Errors


def test_errors_are_pages_that_say_what_to_do(client: TestClient) -> None:
    unknown = client.get(f"/runs/{RUN[:-1]}X")
    assert unknown.status_code == 404
    assert RUN in unknown.text  # the nearest
    gone = client.get(f"/runs/{RUN}/rollouts/999999")
    assert gone.status_code == 404
    assert f'href="/runs/{RUN}"' in gone.text
    rollouts = [f"rollouts/{it}" for it in ("first", 2**70, "1/text/message-99")]
    of_run = (*rollouts, "groups/99999999", f"groups/{2**70}", "compare?a=1&b=99999999")
    for address in ("/nothing/here", *(f"/runs/{RUN}/{it}" for it in of_run)):
        assert client.get(address).status_code == 404, address
    assert client.post("/", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 405
    within = client.get("/runs/nobody", headers=fragment("results"))
    assert (within.status_code, within.headers["hx-retarget"]) == (404, "#flash")
    assert "<html" not in within.text


def test_a_bug_is_a_page_with_our_headers_and_no_traceback(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(queries, "list_runs", broken)
    client = TestClient(create_app(path), base_url="http://127.0.0.1", raise_server_exceptions=False)
    page, polled = client.get("/"), client.get("/", headers=fragment("runs"))
    assert page.status_code == 500
    assert "ZeroDivisionError" in page.text
    assert "secret" not in page.text
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert polled.headers["hx-reswap"] == "none"


def test_a_database_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("these are not the rollouts that you look for")
    client = dashboard(tmp_path / "text.db")
    answer = client.get("/")
    assert answer.status_code == 503
    assert "is not an SQLite database" in answer.text
    assert client.get("/healthz").text == "ok\n"


def test_the_database_may_come_late_go_and_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "later.db"
    client = dashboard(file)
    assert "No recording yet" in flat(client.get("/").text)
    assert re.search(rf"{file}</bdi></code> does not exist yet", flat(client.get("/").text))
    assert client.get("/runs/latest").status_code == 503
    for name in ("first life", "second life"):
        with disposed(writing_engine(file)) as engine:
            assert "No runs yet" in flat(client.get("/").text)
            make_run(engine, name=name, steps=2)
        assert name in flat(client.get("/").text)
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        assert "No recording yet" in flat(client.get("/").text)


# --- Who may look


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for address in ("/", f"/runs/{RUN}", "/healthz", "/static/app.js", "/nothing"):
        headers = client.get(address).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"


def test_no_template_holds_what_the_policy_forbids() -> None:
    for template in (FOLDER / "templates").rglob("*.html"):
        html = template.read_text()
        assert not re.search(r"\sstyle=|hx-on|<style|\bon\w+=\"|javascript:|\bjs:|\|\s*safe\b", html), template.name
        assert not re.search(r"<script(?![^>]*src=)", html), template.name


@pytest.mark.parametrize(
    ("host", "repeated"),
    [
        ("evil.example:7070", "evil.example"),
        ("127.0.0.1.evil.example:7070", "127.0.0.1.evil.example"),
        ("[::2]:7070", "[::2]"),
        ("$(reboot)<b>", "NAME"),
    ],
)
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str, repeated: str) -> None:
    for ours in ("127.0.0.1:7070", "localhost", "[::1]:7070"):
        assert client.get("/", headers={"Host": ours}).status_code == 200
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert f"logs-ui serve --allow-host {repeated}\n" in answer.text
    assert "reboot" not in answer.text
    assert "Content-Security-Policy" in answer.headers


def test_with_a_token_only_its_bearer_sees_anything(path: Path) -> None:
    app = create_app(path, hosts=("*",), token=TOKEN, port=7070)
    client = TestClient(app, base_url="http://somewhere:7070", follow_redirects=False)
    for address in ("/", f"/runs/{RUN}", "/nothing", "/?token=wrong", "/?token="):
        refused = client.get(address)
        assert refused.status_code == 401
        assert "another" not in refused.text
    assert client.get("/healthz").status_code == client.get("/static/app.css").status_code == 200

    welcome = client.get(f"/runs/{RUN}", params={"status": "ok", "token": TOKEN})
    assert (welcome.status_code, welcome.headers["location"]) == (303, f"/runs/{RUN}?status=ok")
    cookie = welcome.headers["set-cookie"].lower()
    assert cookie.startswith("logs-ui-7070=")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200
    elsewhere = client.get("http://somewhere:7070//evil.example/", params={"token": TOKEN})
    assert elsewhere.headers["location"].startswith("/evil.example")


def test_cookies_of_other_sites_lock_nobody_out(path: Path) -> None:
    app = create_app(path, hosts=("*",), token=TOKEN, port=7070)
    client = TestClient(app, base_url="http://somewhere:7070", follow_redirects=False)
    ours = client.get("/", params={"token": TOKEN}).headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    old, other_port = "logs-ui-7070=old", "logs-ui-7071=x"
    for others in ("a/b=1", "x@y=1", "{json:1}", "a b=c", "grafana=é", "=", "", old, 'a="b', other_port):
        for sent, status in ((f"{others}; {ours}", 200), (f"{ours};{others}", 200), (others, 401), (f"x{ours}", 401)):
            assert client.get("/", headers={b"Cookie": sent.encode()}).status_code == status, sent


# --- On a port


def test_a_dashboard_leaves_nothing_beside_the_index(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make_run_at(path, uid="one", steps=2)
    with dashboard(path) as client:
        wait_until(lambda: _is_indexed(path))
        assert client.get("/runs/one/overview").status_code == 200
        assert len([*tmp_path.glob("a.search.db*")]) > 1, "while it reads it"
    assert [it.name for it in tmp_path.glob("a.search.db*")] == ["a.search.db"]


def _is_indexed(path: Path) -> bool:
    with disposed(reading_engine(path)) as engine, engine.connect() as connection:
        state = search_state(connection, 1)
    return state.indexed > 0 and not state.behind


def test_a_port_in_use_is_one_line(path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LogsUIError, match=rf"Port {port} is in use.*--port {port + 1}"):
            serve(path, port=port)
    with pytest.raises(LogsUIError, match="not an address of this machine"):
        serve(path, host="192.0.2.1")


# --- The house


def test_vendored_files_are_those_of_the_manifest() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    files = {name: file["sha256"] for package in manifest["packages"] for name, file in package["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert found.pop("manifest.json")
    assert found == files
    assert all(package["license"] and package["integrity"].startswith("sha512-") for package in manifest["packages"])


def test_the_sprite_holds_the_icons_that_are_used_and_no_other() -> None:
    sprite = set(re.findall(r'<symbol id="([\w-]+)"', (VENDOR / "icons.svg").read_text()))
    sources = "".join(path.read_text() for path in (FOLDER / "templates").rglob("*.html"))
    sources += (FOLDER / "app" / "parts" / "words.py").read_text()
    literals = set(re.findall(r'"([a-z][a-z-]*)"', sources))
    assert sprite <= literals
    assert set(re.findall(r'icon\("([\w-]+)"', sources)) <= sprite


def test_pages_hold_no_sql() -> None:
    for file in (FOLDER / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and "logs_ui" not in str(node.module):
                names = {alias.name for alias in node.names}
                assert not names & {"select", "insert", "update", "text", "Session"}, file


def test_a_rollout_shows_what_it_waits_for_and_what_was_said_of_it(tmp_path: Path) -> None:
    db, let_go = tmp_path / "a.db", threading.Event()
    environment = trace_env(SlowEnvironment(let_go))
    with start_run(db=db) as run, TestClient(create_app(db), base_url="http://127.0.0.1") as client:

        def play() -> None:
            with run.rollout("open the door", task="door") as row:
                row.turn("I push")
                environment.reset()
                row.tag("stuck <door>")
                row.metric("depth", 3)

        player = threading.Thread(target=play)
        player.start()
        wait_until(lambda: ">waiting</span>" in client.get(f"/runs/{run.id}/rollouts/1").text)
        assert "shows what was recorded so far" in client.get(f"/runs/{run.id}/rollouts/1").text
        let_go.set()
        player.join()
        flush()
        html = client.get(f"/runs/{run.id}/rollouts/1").text
    assert ">waiting</span>" not in html
    assert "stuck &lt;door&gt;" in html
    assert re.search(r"<dt>.*depth.*</dt>\s*<dd>.*3.*</dd>", html)
    assert ">scope</dd>" in html


class SlowEnvironment:
    """Does not come up before it is let."""

    def __init__(self, let_go: threading.Event) -> None:
        self._let_go = let_go

    def reset(self) -> str:
        assert self._let_go.wait(240)
        return "a door"

    def step(self, action: str) -> tuple[str, float, bool]:
        return action, 0.0, False


def test_what_is_written_into_a_folder_that_this_user_may_only_read_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, access = tmp_path / "a.db", os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))

    def record(uid: str) -> None:
        make_run_at(db, uid=uid, steps=1, groups_per_step=1)

    def runs() -> int | None:
        with source.reading() as connection:
            return connection.scalar(select(func.count()).select_from(Run))

    record("a")
    source = Source(db)
    assert runs() == 1
    record("b")
    assert runs() == 2
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE run SET name = 'c'")
        connection.commit()
        assert runs() == 2
        with source.reading() as reading:
            assert set(reading.scalars(select(col(Run.name)))) == {"c"}
    connection.close()
    source.close()


def test_a_log_that_reading_begins_does_not_open_the_database_again(tmp_path: Path) -> None:
    writing_engine(tmp_path / "a.db").dispose()  # which takes the write-ahead log away
    source = Source(tmp_path / "a.db")
    with source.reading() as first, source.reading() as second, source.reading() as third:
        assert first.engine is second.engine is third.engine
    source.close()


def test_no_page_waits_for_a_question_about_a_database_that_was_replaced(tmp_path: Path) -> None:
    db, other = tmp_path / "runs.db", tmp_path / "other.db"
    for path in (db, other):
        writing_engine(path).dispose()
    source, began, answered = Source(db), threading.Event(), threading.Event()

    def question(_: object) -> None:
        began.set()
        answered.wait(240)

    with source.reading() as connection:
        assert background_refresh.ask_later(connection.engine, "slow", question)
    assert began.wait(240)
    other.replace(db)
    with ThreadPoolExecutor(2) as pages:
        asked = [pages.submit(source.exists) for _ in range(2)]
        try:  # the one that has found it replaced ends the question, and waits for that
            assert any(it.result() for it in wait(asked, 240, FIRST_COMPLETED).done)
        finally:
            answered.set()
    source.close()


def test_equal_rewards_stand_on_each_other() -> None:
    scale = charts.Scale(0.0, 1.0)
    found = charts.stacked([0.5, None, 0.5, 0.505, 0.0], scale)
    assert found == [(48.0, -2.0), None, (48.0, -6.0), (52.0, -2.0), (0.0, -2.0)]
    many = [dot for dot in charts.stacked([0.5] * 64, scale) if dot]
    assert len(set(many)) == 64
    assert min(y for _, y in many) >= -42
