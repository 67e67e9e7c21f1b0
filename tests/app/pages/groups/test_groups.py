"""Groups: which there are, what they come to, and two rollouts beside each other; over HTTP without a browser."""

import itertools
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from html import unescape
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, insert, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.pages.groups import group_page
from logs_ui.app.pages.groups import page as groups_page
from logs_ui.app.pages.groups.charts import stacks, strip
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.differences import Differ
from logs_ui.recorder import queries
from logs_ui.recorder.queries import GroupSort, Kind
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.groups import kind_of
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.vocabulary import Mark, RunState, StopReason
from tests.support.dashboard import dashboard, flat, fragment, of_run
from tests.support.exhaustive import cases, examples
from tests.support.factory import make_run, make_run_at
from tests.support.payloads import pack_content
from tests.support.postgres import DATABASES, fresh_database

RUN, LIVE, MANY = "main-run-1234", "live-run-5678", "mixed-up-9999"
LOW, HIGH = -9.0, 9.0  # of the run's rewards
SOLVED = (Mark("rewards.solved", 1.0),)


@pytest.fixture(scope="module", params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with fresh_database(request.param, tmp_path_factory.mktemp("groups")) as address:
        yield address


@pytest.fixture(scope="module")
def engine(database: Address) -> Iterator[Engine]:
    """Of the first run groups of step 3 failed, of step 4 are solved, of step 5 alike, not known to be solved."""
    with disposed(writing_engine(database)) as engine:
        now = time.time_ns() // 1000
        make_run(engine, uid=RUN, name="a run", steps=12, state=RunState.FINISHED)
        make_run(engine, uid=LIVE, name="another", steps=3, created=now - 200_000_000, heartbeat=now + 600_000_000)
        make_run(engine, uid=MANY, steps=40, generations=3, state=RunState.FINISHED, seed=5)
        with engine.begin() as db:
            for step, reward, values in ((3, 0.0, {"solved": 0.0}), (4, HIGH, {"solved": 1.0}), (5, 0.5, {})):
                of_step = (of_run(RUN), col(EvaluationRow.step) == step)
                db.execute(update(EvaluationRow).where(*of_step).values(reward=reward, rewards=values, advantage=0.0))
            lowest = (of_run(RUN), col(EvaluationRow.step) == 6, col(EvaluationRow.generation) == 0)
            db.execute(update(EvaluationRow).where(*lowest).values(reward=LOW))
            _shuffle(db)
        yield engine


def _shuffle(db: Any) -> None:
    """Rows of a step's groups come as their ranks wrote them: in no order."""
    rng = random.Random(3)
    row = EvaluationRow
    rows = db.execute(select(col(row.id), col(row.step), col(row.mode), col(row.group)).where(of_run(MANY)))
    by_step: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
    for row_id, step, mode, name in rows:
        by_step[step, mode].append((row_id, name))
    for pairs in by_step.values():
        names = [name for _, name in pairs]
        rng.shuffle(names)
        for (row_id, _), name in zip(pairs, names, strict=True):
            db.execute(update(EvaluationRow).where(col(EvaluationRow.id) == row_id).values(group=name))


@pytest.fixture(scope="module")
def client(engine: Engine, database: Address) -> Iterator[TestClient]:
    with dashboard(database) as client:
        yield client


@pytest.fixture(scope="module")
def stored(engine: Engine) -> dict[str, list[EvaluationRow]]:
    """The rows of both runs that are over."""
    return {uid: rows_of(engine, uid) for uid in (RUN, MANY)}


def run_id(engine: Engine, uid: str) -> int:
    return queries.find_run(engine, uid).id or 0


def rows_of(engine: Engine, uid: str, *conditions: Any) -> list[EvaluationRow]:
    with engine.connect() as db:
        mappings = db.execute(
            select(EvaluationRow).where(of_run(uid), *conditions).order_by(col(EvaluationRow.id))
        ).mappings()
        return [EvaluationRow(**row) for row in mappings]


def group_ids(html: str) -> list[int]:
    """The groups of a page, by the ids of their first rollouts."""
    return [int(group_id) for group_id in re.findall(r'<tr id="group-(\d+)"', html)]


# --- Which groups there are


@pytest.mark.parametrize("uid", [RUN, MANY])
@pytest.mark.parametrize(
    "chosen",
    [
        RolloutFilter(), RolloutFilter(stop_reasons=("length",)), RolloutFilter(statuses=("error",)),
        RolloutFilter(step_min=3, step_max=7), RolloutFilter(modes=("eval",)),
    ],
    ids=["all", "truncated", "failed", "steps", "mode"],
)  # fmt: skip
@pytest.mark.parametrize("sort", cases(list(GroupSort), 2))
def test_walking_the_pages_gives_each_group_once_in_its_order(
    engine: Engine, stored: dict[str, list[EvaluationRow]], uid: str, chosen: RolloutFilter, sort: GroupSort
) -> None:
    key = run_id(engine, uid)
    survey = queries.survey(engine, key, chosen, SOLVED)
    names: list[str] = []
    places: list[tuple[float, int]] = []
    rows = stored[uid]
    after = None
    while True:
        if sort == GroupSort.NEWEST:
            below = after.id if after else None
            page = queries.newest_groups(engine, key, chosen, SOLVED, after=below, limit=4)
        else:
            page = queries.surveyed_groups(engine, key, survey, SOLVED, sort, [], after=after, limit=4)
        names += [group.name for group in page.groups]
        assert [figures_of(group) for group in page.groups] == [truth_of(group, rows) for group in page.groups]
        places += [_place(group, sort, chosen, rows) for group in page.groups]
        after = page.next
        if after is None:
            break
    expected = {row.group for row in rows if _matches(row, chosen)}
    assert len(names) == len(set(names))
    assert set(names) == expected == {tally.name for tally in survey.tallies}
    assert places == sorted(places)


def figures_of(group: queries.Group) -> tuple[Any, ...]:
    mean, std = (value and round(value, 6) for value in (group.mean, group.std))
    return mean, std, group.truncated, group.errors


def truth_of(group: queries.Group, rows: list[EvaluationRow]) -> tuple[Any, ...]:
    mine = [row for row in rows if row.group == group.name]
    rewards = [row.reward for row in mine if row.reward is not None]
    cut = sum(row.stop_reason == StopReason.LENGTH for row in mine)
    mean, std = (round(fmean(rewards), 6) if rewards else None), (round(stdev(rewards), 6) if rewards[1:] else None)
    return mean, std, cut, sum(row.status == "error" for row in mine)


def _matches(row: EvaluationRow, chosen: RolloutFilter) -> bool:
    steps = chosen.range("step")
    return (
        row.stop_reason in (chosen.words("stop") or [row.stop_reason])
        and row.status in (chosen.words("status") or [row.status])
        and row.mode in (chosen.words("mode") or [row.mode])
        and (steps.low or 0) <= row.step <= (steps.high or 99)
    )


def _place(
    group: queries.Group, sort: GroupSort, chosen: RolloutFilter, rows: list[EvaluationRow]
) -> tuple[float, int]:
    last = max(member.id for member in group.members)
    if sort == GroupSort.NEWEST:
        matching = [row.id or 0 for row in rows if row.group == group.name and _matches(row, chosen)]
        return 0, -max(matching)
    if sort == GroupSort.LOWEST_MEAN:
        return (round(group.mean, 9) if group.mean is not None else 99.0), -last
    if sort == GroupSort.LARGEST_STD:
        return (-round(group.std, 6) if group.std is not None else 99.0), -last
    return (Kind.FAILED, Kind.PASSED, Kind.LEVEL, Kind.SAME_OUTCOME, Kind.MIXED, Kind.UNSCORED).index(group.kind), -last


def test_a_group_is_shown_whole_where_one_of_its_rollouts_matches(client: TestClient, engine: Engine) -> None:
    truncated = {row.group for row in rows_of(engine, RUN, col(EvaluationRow.stop_reason) == StopReason.LENGTH)}
    html = client.get(f"/runs/{RUN}/groups?where=stop:length").text
    firsts = {min(row.id or 0 for row in rows_of(engine, RUN, col(EvaluationRow.group) == name)) for name in truncated}
    assert set(group_ids(html)) == firsts
    assert html.count('<td class="num size">4</td>') + html.count(" of</span> 4</span>") == len(firsts)


def test_groups_of_an_evaluation_are_told_from_those_of_the_training(client: TestClient, engine: Engine) -> None:
    html = client.get(f"/runs/{RUN}/groups?where=step:10&sort=lowest-mean").text
    lines = re.findall(r'<tr id="group-(\d+)">(.*?)</tr>', html, re.DOTALL)
    modes = {row.id: row.mode for row in rows_of(engine, RUN)}
    assert {modes[int(row_id)] for row_id, _ in lines} == {"train", "eval"}
    assert [row_id for row_id, line in lines if 'class="mode"' in line] == [
        row_id for row_id, _ in lines if modes[int(row_id)] == "eval"
    ]
    switch = re.findall(r'<nav class="switch" aria-label="Mode">(.*?)</nav>', html)[0]
    links = {text: unescape(link) for link, text in re.findall(r'<a href="([^"]+)"[^>]*>(\w+)</a>', switch)}
    assert list(links) == ["all", "train", "eval"]
    assert "sort=lowest-mean" in links["eval"]
    eval_html = client.get(links["eval"]).text
    assert {modes[int(row_id)] for row_id in re.findall(r'<tr id="group-(\d+)">', eval_html)} == {"eval"}


def test_kinds_are_counted_and_lead_to_their_groups(client: TestClient) -> None:
    html = flat(client.get(f"/runs/{RUN}/groups").text)
    counts = dict(re.findall(r'class="kind-(\w+)"><a.*?<span class="n">(\d+)</span>', html, re.DOTALL))
    assert ">Solved: solved ≥ 1<" in html
    assert (counts["failed"], counts["passed"], counts["level"]) == ("3", "3", "3")
    for kind, step in (("failed", 3), ("passed", 4), ("level", 5)):
        page = flat(client.get(f"/runs/{RUN}/groups?kind={kind}").text)
        assert len(group_ids(page)) == 3
        assert {3: "0.000", 4: "9.000", 5: "0.500"}[step] in page
        assert set(re.findall(r'title="Only step (\d+)"', page)) == {str(step)}
    assert len(group_ids(flat(client.get(f"/runs/{RUN}/groups?kind=dead").text))) == 9
    assert "No groups match" in flat(client.get(f"/runs/{RUN}/groups?kind=passed&where=step:3").text)


@pytest.mark.parametrize(
    ("rewards", "solved", "kind"),
    [
        ([0.0, 0.0], 0, Kind.FAILED), ([0.4, 0.4], 0, Kind.FAILED), ([0.75, 0.75], 2, Kind.PASSED),
        ([0.3, 0.3 + 1e-7], 1, Kind.LEVEL), ([1.0, 1.0], None, Kind.LEVEL), ([0.3, 0.3 + 1e-5], 1, Kind.MIXED),
        ([0.3, 0.3 + 1e-5], None, Kind.MIXED), ([0.3, 0.3 + 1e-5], 2, Kind.SAME_OUTCOME),
        ([0.0, float("inf")], 0, Kind.SAME_OUTCOME), ([0.0], 0, Kind.UNSCORED), ([], None, Kind.UNSCORED),
    ],
)  # fmt: skip
def test_a_group_of_equal_rewards_is_named_by_what_is_solved(
    rewards: list[float], solved: int | None, kind: Kind
) -> None:
    assert kind_of(min(rewards, default=None), max(rewards, default=None), len(rewards), solved) == kind


def test_what_needs_all_groups_is_bounded_and_says_so(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.group_survey.WINDOW", 30)
    survey = queries.survey(engine, run_id(engine, RUN), RolloutFilter(), SOLVED)
    assert (survey.step_min, survey.step_max, survey.is_whole) == (11, 12, False)
    assert {tally.step for tally in survey.tallies} == {11, 12}
    html = flat(client.get(f"/runs/{RUN}/groups?sort=lowest-mean").text)
    assert "Only steps 11 to 12" in html
    assert len(group_ids(html)) == 6
    newest = flat(client.get(f"/runs/{RUN}/groups").text)
    assert "Only of" not in newest
    assert len(group_ids(newest)) == 38
    monkeypatch.setattr("logs_ui.recorder.queries.group_survey.WINDOW", 5)
    survey_of_step = queries.survey(engine, run_id(engine, RUN), RolloutFilter(step_min=2, step_max=2), SOLVED)
    assert (survey_of_step.step_min, survey_of_step.is_whole) == (2, False)


def test_the_next_page_follows_without_javascript(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_page, "PAGE_SIZE", 5)
    address, ids = f"/runs/{RUN}/groups?sort=largest-std", []
    while address:
        html = client.get(address).text
        ids += group_ids(html)
        following = re.search(r'<a href="([^"]+)">Next groups', html)
        address = unescape(following[1]) if following else ""
    assert len(ids) == len(set(ids)) == 38
    piece = client.get(f"/runs/{RUN}/groups?sort=largest-std", headers=fragment("more")).text
    assert "<html" not in piece
    assert group_ids(piece) == ids[:5]


# --- Meanwhile


def test_news_wait_behind_the_pill_and_known_groups_are_no_news(client: TestClient, engine: Engine) -> None:
    page = flat(client.get(f"/runs/{LIVE}/groups").text)
    address = unescape(re.search(r'hx-get="(/runs/[^"]+/groups/live[^"]+)"', page)[1])  # type: ignore[index]
    assert client.get(address, headers=fragment("live")).status_code == 204
    last = max(rows_of(engine, LIVE), key=lambda row: row.id or 0)
    first = min(row.id or 0 for row in rows_of(engine, LIVE, col(EvaluationRow.group) == last.group))
    copy = last.model_dump() | {"changed": 500}
    with engine.begin() as db:
        top = int(db.scalar(select(func.max(col(EvaluationRow.id)))) or 0)
        late = copy | {"id": top + 1, "uid": "late", "generation": 4}
        new = copy | {"id": top + 2, "uid": "new", "group": f"{LIVE}/train/99/0"}
        db.execute(insert(EvaluationRow), [late, new])
        db.execute(update(Run).where(col(Run.uid) == LIVE).values(changed=500))
    news = flat(client.get(f"{address}&open={first}", headers=fragment("live")).text)
    assert "1 new" in unescape(re.sub(r"<svg.*?</svg>", "", news))
    assert f'hx-target="#group-{first}"' in news
    assert " of</span> 5</span>" in news
    followed = flat(client.get(f"{address}&follow=1", headers=fragment("live")).text)
    assert group_ids(followed)[0] == top + 2
    assert 'hx-target="#rows"' in followed


def test_an_open_group_is_refreshed_without_moving_its_columns(client: TestClient, engine: Engine) -> None:
    unscored = rows_of(engine, LIVE, col(EvaluationRow.scored).is_(None))[-1]
    members = rows_of(engine, LIVE, col(EvaluationRow.group) == unscored.group)
    page = client.get(f"/runs/{LIVE}/groups/{members[0].id}").text
    address = unescape(re.search(r'hx-get="([^"]+seen=[^"]+)"', page)[1])  # type: ignore[index]
    assert client.get(address, headers=fragment("group")).status_code == 204
    order = columns(page)
    with engine.begin() as db:
        is_last = col(EvaluationRow.id) == order[-1]
        db.execute(update(EvaluationRow).where(is_last).values(reward=5.0, changed=600, status="ok"))
    query = "&".join(f"column={row_id}" for row_id in order)
    assert columns(client.get(f"{address}&{query}", headers=fragment("group")).text) == order
    assert columns(client.get(f"/runs/{LIVE}/groups/{members[0].id}").text)[0] == order[-1]


def columns(html: str) -> list[int]:
    return [int(row_id) for row_id in re.findall(r'id="completion-(\d+)"', html)]


# --- One group


def test_completions_stand_from_the_highest_reward_to_the_lowest(client: TestClient, engine: Engine) -> None:
    (first, *_) = rows_of(engine, RUN, col(EvaluationRow.step) == 8)
    members = rows_of(engine, RUN, col(EvaluationRow.group) == first.group)
    expected = sorted(members, key=queries.by_reward)
    html = client.get(f"/runs/{RUN}/groups/{first.id}").text
    assert columns(html) == [row.id for row in expected]
    scored = [row for row in expected if row.reward is not None]
    assert f'href="/runs/{RUN}/compare?a={scored[0].id}&amp;b={scored[-1].id}" data-key="c"' in html
    moved = client.get(f"/runs/{RUN}/groups/{members[-1].id}", follow_redirects=False)
    assert moved.headers["location"] == f"/runs/{RUN}/groups/{first.id}"


def test_of_many_completions_only_the_first_are_opened(address: Address) -> None:
    make_run_at(address, uid=RUN, steps=1, groups_per_step=1, generations=64, state=RunState.FINISHED)
    with dashboard(address) as client:
        html = client.get(f"/runs/{RUN}/groups/1").text
        assert len(columns(html)) == 64
        assert html.count('hx-trigger="revealed"') == 64 - group_page.OPENED
        late = columns(html)[-1]
        piece = client.get(f"/runs/{RUN}/groups/{late}/column").text
        assert '<section class="turn"' in piece
        assert f'href="/runs/{RUN}/rollouts/{late}">Show turns' in html, "which reads without JavaScript"


# --- Where they part


def test_the_parting_is_marked_in_its_column(client: TestClient, engine: Engine) -> None:
    first = rows_of(engine, RUN, col(EvaluationRow.step) == 9)[0]
    members = rows_of(engine, RUN, col(EvaluationRow.group) == first.group)
    said = [{"role": role, "content": text} for role, text in (("user", "go"), ("assistant", "1"), ("assistant", "2"))]
    shared = {"turn": 1, "action": {"command": "ls"}, "observation": {"out": "a b"}}
    with engine.begin() as db:
        for place, row in enumerate(sorted(members, key=queries.by_reward)):
            parting = {"turn": 2, "observation": {"out": "."}, "action": {"command": "cat a" if place < 2 else "cat b"}}
            parting |= {"reward": 1.0 if place < 2 else -0.5, "done": place < 2}
            content = pack_content({"messages": said, "actions": [shared, parting]})
            db.execute(update(RolloutPayload).where(col(RolloutPayload.row_id) == row.id).values(content=content))
    html = flat(client.get(f"/runs/{RUN}/groups/{first.id}").text)
    best, equal, *columns_behind = re.split(r'(?=<article class="completion")', html)[1:]
    assert "first divergence" in best
    assert "diverges from best" not in equal
    for column in columns_behind:
        before, mark, after = column.partition("diverges from best here")
        assert mark
        assert (before.count('<section class="turn"'), after.count('<section class="turn"')) == (1, 1)
    ids = columns(html)
    both = flat(client.get(f"/runs/{RUN}/compare?a={ids[0]}&b={ids[-1]}").text)
    assert re.search(r'id="turn-1"(?! open)', both), "what is equal is folded"
    assert re.search(r'id="turn-2" open', both)
    text = unescape(re.sub("<(?!/?mark)[^>]+>", "", both))
    assert [
        it
        for it in ("They diverge at turn 2", "<mark>a</mark>", "<mark>b</mark>", "+1, done", "-0.5")
        if it not in text
    ] == []
    alike = flat(client.get(f"/runs/{RUN}/compare?a={ids[0]}&b={ids[1]}").text)
    assert "Their actions are identical" in alike
    assert "<mark" not in alike


def test_rollouts_of_two_runs_are_compared(client: TestClient, engine: Engine) -> None:
    row_a, row_b = rows_of(engine, RUN)[5], rows_of(engine, MANY)[7]
    html = client.get(f"/runs/{RUN}/compare?a={row_a.id}&b={row_b.id}").text
    assert f"/runs/{RUN}/rollouts/{row_a.id}" in html
    assert f"/runs/{MANY}/rollouts/{row_b.id}" in html
    assert f'href="/runs/{MANY}/compare?a={row_b.id}&amp;b={row_a.id}"' in html, "sides are changed"


def test_a_comparison_leads_back_to_the_filter_that_it_came_from(client: TestClient, engine: Engine) -> None:
    id_a, id_b = (row.id for row in rows_of(engine, RUN)[:2])
    where = "where=stop:done"
    first = client.get(f"/runs/{RUN}/groups/{id_a}?{where}").text
    pair = re.findall(r'href="([^"]+/compare[^"]+)" data-key="c"', first)
    assert where in pair[0]
    html = client.get(f"/runs/{RUN}/compare?{where}&a={id_a}&b={id_b}").text
    links = [unescape(link) for link in re.findall(r'href="(/runs/[^"]+)"', html)]
    assert f"/runs/{RUN}/groups/{id_a}?{where}" in links
    assert f"/runs/{RUN}?{where}" in links
    assert f"/runs/{RUN}/rollouts/{id_b}?{where}" in links
    assert f"/runs/{RUN}/compare?{where}&a={id_b}&b={id_a}" in links
    assert '<input type="hidden" name="where" value="stop:done">' in html


# --- What differs between two texts


WORDS = st.lists(st.sampled_from(["a", "b", "cc", "\n", "  ", "d\te", "\u202e", "é"]), max_size=60).map(" ".join)


@settings(deadline=None, max_examples=examples(300))
@given(WORDS, WORDS)
def test_the_segments_are_the_texts(a: str, b: str) -> None:
    for segments, whole in zip(Differ().compare(a, b), (a, b), strict=True):
        at = 0
        for segment in segments:
            assert whole.startswith(segment.text, at)
            at += len(segment.text) + segment.skipped
        assert at == len(whole)
    if a == b:
        assert not any(segment.changed for segment in Differ().compare(a, b)[0])
    else:
        assert any(segment.changed for side in Differ().compare(a, b) for segment in side)


def test_a_word_that_differs_is_marked_alone() -> None:
    a, b = Differ().compare("the cat sat on the mat today", "the dog sat on a mat today")
    assert [segment.text for segment in a] == ["the ", "cat", " ", "sat on ", "the", " mat today"]
    assert [segment.text for segment in a if segment.changed] == ["cat", "the"]
    assert [segment.text for segment in b if segment.changed] == ["dog", "a"]


def test_of_megabytes_little_more_than_the_differences_is_kept() -> None:
    rng = random.Random(1)
    words = [rng.choice("abcdefgh") * rng.randint(1, 7) for _ in range(700_000)]
    whole = " ".join(words)
    words[350_000] = "DIFFERENT"
    changed_text = " ".join(words)
    unlike = " ".join(reversed(words))
    assert len(whole) > 3_000_000
    differ = Differ()
    a, b = differ.compare(whole, changed_text)
    assert [segment.text for segment in b if segment.changed] == ["DIFFERENT"]
    assert sum(len(segment.text) for segment in a) < 1_000
    c, _ = differ.compare(whole, unlike)
    assert sum(len(segment.text) for segment in c) < 20_000
    for _ in range(40):
        differ.compare(whole[:3_000], unlike[:3_000])


# --- Charts


def test_rewards_stand_on_each_other_within_the_strip() -> None:
    full_strip = strip([1.0] * 63 + [0.0], 63 / 64, Scale(0.0, 1.0))
    assert [pill.tone for pill in full_strip.pills] == ["negative", "positive"]
    assert all(0 <= pill.x <= 235 and pill.y >= 0 and pill.y + pill.height <= 22 for pill in full_strip.pills)
    assert full_strip.label == "Rewards: 63 times 1.000, 0.000"
    assert {pill.tone for pill in strip([0.5, 0.5], 0.5, Scale(0.0, 1.0)).pills} == {"even"}
    assert strip([], None, Scale(0.0, 1.0)).pills == []


def test_many_steps_share_a_stack_that_leads_to_all_of_them(engine: Engine) -> None:
    tallies = queries.survey(engine, run_id(engine, MANY), RolloutFilter(), SOLVED).tallies
    many = [tally._replace(step=tally.step * 10) for tally in tallies]
    step_stacks = stacks(many, groups_page.KINDS, "{step_min} {step_max}".format)
    assert len(step_stacks) <= 60
    assert sum(int(cell) for stack in step_stacks for cell in stack.cells) == len(tallies)
    for stack in step_stacks:
        assert sum(part.height for part in stack.pieces) == pytest.approx(100, abs=0.1)
    assert all(
        int(left.address.split()[1]) < int(right.address.split()[0]) for left, right in itertools.pairwise(step_stacks)
    )


@pytest.mark.parametrize("query", ["where=stop:length", "sort=largest-std", "kind=mixed&sort=lowest-mean"])
def test_a_group_leads_to_the_next_in_the_order_that_it_was_opened_from(client: TestClient, query: str) -> None:
    lines = re.findall(r'class="row-link" href="([^"]+)"', client.get(f"/runs/{RUN}/groups?{query}").text)
    assert len(lines) > 3
    for at in (0, 1, len(lines) - 1):
        html = client.get(unescape(lines[at])).text
        beside = dict(re.findall(r'href="([^"]+/groups/[^"]+)" data-key="([jk])"', html))
        keys = {lines[at + by]: key for by, key in ((-1, "k"), (1, "j")) if 0 <= at + by < len(lines)}
        assert beside == keys
        (up,) = re.findall(r'href="([^"]+)" data-key="u"', html)
        assert set(unescape(up).partition("?")[2].split("&")) == set(query.split("&"))
