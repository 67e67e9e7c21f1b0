"""`finding:ID` in a filter: it opens the rollouts of that finding, wherever a filter is taken."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import Card, FilterError, Settings, diagnose, load_run, start_run
from logs_ui.recorder.queries.filters.filter_language import with_findings
from logs_ui.recorder.queries.filters.rollout_filter import parse_where, print_where


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run of 600 rollouts, every other one truncated."""
    db = str(tmp_path_factory.mktemp("findings") / "runs.db")
    with start_run(db=db) as run:
        for i in range(600):
            with run.rollout("What is 1 + 1?", task="sum") as row:
                row.turn("no idea", finish="length" if i % 2 else "stop")
                row.score(0.0 if i % 2 else 1.0)
    return run.id, db


def test_a_finding_opens_its_rollouts(recorded: tuple[str, str]) -> None:
    run, db = recorded
    frame = load_run(run, db)
    cut = set(frame["id"][frame["stop_reason"] == "length"])
    assert len(cut) == 300
    for line, expected in (
        ("finding:truncation", cut),
        ("finding=truncation reward>0.5", set()),
        ("-finding:truncation", set(frame["id"]) - cut),
        ("finding!=truncation", set(frame["id"]) - cut),
    ):
        assert set(load_run(run, db, where=line)["id"]) == expected, line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("finding:truncated", "this run has no finding 'truncated': did you mean 'truncation'?"),
        ("finding:unseeded", "unseeded is no finding of this run: "),
        ("finding:truncation,loops", "write it with one id, as in finding:truncation"),
        ("finding>truncation", "write it with one id, as in finding:truncation"),
    ],
)
def test_a_wrong_finding_is_refused_in_one_line(recorded: tuple[str, str], line: str, message: str) -> None:
    with pytest.raises(FilterError, match=re.escape(message)):
        load_run(recorded[0], recorded[1], where=line)


def test_without_a_run_it_is_told_that_one_is_needed() -> None:
    with pytest.raises(FilterError, match="finding:loops: only the diagnosis of one run knows its findings: name the"):
        parse_where("finding:loops")


def test_a_page_opens_a_finding_and_offers_them(recorded: tuple[str, str]) -> None:
    run, db = recorded
    with TestClient(create_app(Path(db)), base_url="http://127.0.0.1") as client:
        for _ in range(2):  # the first makes the index of texts, and pages begin anew
            shown = client.get(f"/runs/{run}?where=finding:truncation").text
        assert "300 rollouts" in re.sub(r"(<[^>]*>|\s)+", " ", shown)
        assert "truncation" in client.get(f"/runs/{run}/suggestions?where={quote('finding:trun')}").text
        wrong = client.get(f"/runs/{run}?where=finding:truncated")
        assert "did you mean" in wrong.text


LONG = "id:" + ",".join(str(it) for it in range(1, 400, 2))


@pytest.mark.parametrize(
    ("line", "opened", "printed"),
    [
        ("finding:loops", "stop:length step:3", "stop:length step:3"),
        ("-finding:loops", "-reward>=1", "reward>=1"),
        ("reward<1 finding:loops", LONG, "reward<1 finding:loops"),
        ("-finding:loops", LONG, "-finding:loops"),
        ('"finding:loops"', LONG, '"finding:loops"'),
    ],
)
def test_a_long_finding_is_printed_by_its_id(line: str, opened: str, printed: str) -> None:
    assert print_where(parse_where(with_findings(line, lambda _: opened))) == printed


def test_several_terms_cannot_be_negated_together() -> None:
    with pytest.raises(
        FilterError, match="-finding:loops: it has 2 terms, which cannot be negated together: stop:length"
    ):
        with_findings("-finding:loops", lambda _: "stop:length step:3")


def test_a_report_prints_the_id_of_a_long_filter(recorded: tuple[str, str]) -> None:
    run, db = recorded
    long = Card("truncation", "Many", 0.5, (), "Read them.", LONG)
    by_own, by_others = diagnose(run, db), diagnose(run, db, settings=Settings(max_reward=2.0))
    assert by_own.where_of(long) == "finding:truncation"
    for report, card in ((by_others, long), (by_own, replace(long, by_user=True)), (by_own, by_own.cards[0])):
        assert report.where_of(card) == card.where
