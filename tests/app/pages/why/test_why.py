"""The page that says why rewards are low: over HTTP and in a real Chromium, on runs that are low for many reasons."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.app.main import create_app, make_templates
from logs_ui.app.pages.why.cards import make_cards
from logs_ui.app.parts.figure_table import line, thinned
from logs_ui.app.parts.loss_waterfall import make_fall
from logs_ui.app.web import urls
from logs_ui.recorder import diagnose, flush, queries, start_run
from logs_ui.recorder.diagnosis import Card, Report, Settings
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.waterfall import CAUSES, Share, Waterfall
from logs_ui.recorder.storage.address import db_option
from logs_ui.recorder.storage.database import disposed, reading_engine
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, play
from tests.recorder.queries.test_notes import OURS
from tests.support.axe import check_looks
from tests.support.dashboard import flat, fragment, rollouts_at, text_of
from tests.support.stored import last_run

_LOOK = Turn("<a>look</a>", action="look", observation="a room", done=False)


def low(place: Place) -> Played:
    """Dies, is cut off more and more, or runs out of turns."""
    chance, dice = place.random.random(), place.random
    if chance < 0.15:
        return Played([_LOOK], None, raises="ConnectionError: session lost")
    if chance < 0.15 + 0.35 * place.progress:
        return Played([_LOOK, Turn(f"{dice.random()} and so on", action=None)], -0.2, stop="length")
    if chance < 0.7:
        return Played([_LOOK, Turn(f"<a>{dice.random()}</a>", action=f"{dice.random()}")], 0.1, stop="turn_limit")
    action = f"open {dice.random()}"
    won = 1.5 if chance > 0.995 else 1.0
    return Played([Turn(f"<a>{action}</a>", action=action, observation="open", done=True)], won)


def well(place: Place) -> Played:
    return answered(place, 0.8 + 0.19 * place.progress)


def half(place: Place) -> Played:
    """Nothing is wrong but the answers."""
    return answered(place, 0.4)


def cut(place: Place) -> Played:
    """Two of three answers are cut off after one word."""
    return well(place) if place.random.random() < 0.3 else Played([Turn("and", action=None)], 0.0, stop="length")


def answered(place: Place, chance: float) -> Played:
    action = f"open {place.random.random()}"
    reward = 1.0 if place.random.random() < chance else 0.0
    return Played([Turn(f"<a>{action}</a>", action=action, observation="open", done=True)], reward)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    play(folder / "low.db", low, Shape(steps=20, groups=4, size=6, tasks=5))
    return folder


@pytest.fixture(scope="module")
def clients(folder: Path) -> Iterator[dict[str, TestClient]]:
    """Return dashboards of the run that is low, which is all that a browser sees, and of others."""
    play(folder / "well.db", well, Shape(steps=10, groups=4, size=6))
    play(folder / "half.db", half, Shape(steps=10, groups=4, size=6))
    play(folder / "cut.db", well, Shape(steps=12, groups=8, size=3, evaluated=cut, every=6, attempts=2))
    play(folder / "early.db", low, Shape(steps=1, groups=2, size=4, ended=False))
    clients_by_name = {
        path.stem: TestClient(create_app(path), base_url="http://127.0.0.1") for path in folder.glob("*.db")
    }
    yield clients_by_name
    for client in clients_by_name.values():
        client.close()


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with BackgroundServer(folder / "low.db") as server:
        yield server.url


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with disposed(reading_engine(folder / "low.db")) as engine:
        yield engine


@pytest.fixture(scope="module")
def uid(folder: Path) -> str:
    """Return the id of the run that is low."""
    return last_run(folder / "low.db").uid


def page_of(clients: dict[str, TestClient], name: str, **parameters: object) -> str:
    answer = clients[name].get(urls.why("latest", **parameters))
    assert answer.status_code == 200, answer.text
    return answer.text


# --- The waterfall


@pytest.mark.parametrize(
    "chosen",
    [
        {}, {"step_min": 3, "step_max": 9}, {"step_max": 1}, {"task": "task 2"},
        {"step_min": 5, "task": "task 4", "eval": "planted"},
    ],
)  # fmt: skip
def test_the_parts_add_up_and_each_opens_exactly_its_rollouts(
    clients: dict[str, TestClient], engine: Engine, chosen: dict[str, object]
) -> None:
    html = page_of(clients, "low", **chosen)
    lines = []
    for row in re.findall(r'<tr class="of-.*?</tr>', html, re.DOTALL):
        address = re.search(r'class="row-link" href="([^"]+)"', row)
        cells = re.findall(r'<td class="num[^"]*">([^<]*)</td>', row)
        lines.append((row.partition('"')[2].partition('"')[0][3:], address[1] if address else "", *cells))
    names = [name for name, *_ in lines]
    assert (names[0], names[-1]) == ("best", "mean")
    assert len(names) > 3
    figures = [float(reward.replace("\u2212", "-")) for _, _, reward, *_ in lines]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.0005 * len(figures))
    assert sum(int(share[:-1]) for *_, share, _ in lines if share) == pytest.approx(100, abs=len(lines))
    for name, address, *_, count in lines:
        if name not in {"best", "above"}:
            assert rollouts_at(engine, address) == int(count), (name, address)
    lost = sum(int(count) for name, *_, count in lines if name in {cause.id for cause in CAUSES})
    assert lost <= int(lines[-1][-1])


def test_what_a_rollout_has_above_the_best_is_a_bar_of_its_own_and_a_negative_mean_lies_left_of_zero() -> None:
    of = {cause.id.value: cause for cause in CAUSES}
    costs = (("truncation", 1.6), ("wrong_answer", 0.05))
    shares = tuple(Share(of[name], cost, 1, f"cause:{name}") for name, cost in costs)
    fall = make_fall(Waterfall(1.0, -0.6, 1.6, 0.05, shares), "as set", "a-run", "step:1..2", 5)
    assert [(line.id, line.reward) for line in fall.stairs] == [
        ("best", 1.0), ("above", 0.05), ("truncation", -1.6), ("wrong_answer", -0.05), ("mean", -0.6),
    ]  # fmt: skip
    assert fall.mean_share == 0
    # From -0.6 to 1.05 in parts of 100.
    assert fall.zero == pytest.approx(100 * 0.6 / 1.65, abs=0.01)
    best, _, cut, wrong, mean = fall.stairs
    assert (best.start, best.length) == pytest.approx((fall.zero, 100 / 1.65), abs=0.02)
    assert (cut.start, cut.length) == pytest.approx((100 * 0.05 / 1.65, 100 * 1.6 / 1.65), abs=0.02)
    assert (mean.start, mean.length) == pytest.approx((0, fall.zero), abs=0.02)
    assert wrong.before == cut.after
    assert [cause.share for cause in fall.causes] == pytest.approx([1.6 / 1.65, 0.05 / 1.65])


# --- The cards


def test_the_page_says_first_what_costs_most_what_is_lost_and_what_to_change(
    clients: dict[str, TestClient], folder: Path
) -> None:
    report = diagnose(db=folder / "low.db")
    html = page_of(clients, "low")
    verdict = text_of(html[html.index('class="verdict"') :])
    first = report.cards[0]
    assert f"Fault of the set-up: {first.title}" in verdict
    assert verdict.index(first.title) < verdict.index("Lost reward by cause")
    assert verdict.index(first.suggestion) < verdict.index("Lost reward by cause")
    assert "Best reward 1.000: the run's 99th percentile" in verdict
    unscored = int(re.findall(r", (\d+) without a reward counted as 0", verdict)[0])
    mean = f"Mean reward, with {unscored} unscored as 0: {report.fall.mean:.3f} of 1.000"
    assert f"{mean} , {report.fall.lost:.3f} lost per rollout" in verdict
    assert unscored == sum(share.rollouts for share in report.fall.shares if share.cause.id == "infrastructure")
    for card in report.cards:
        assert f'id="card-{card.id}"' in html
        card_text = text_of(html[html.index(f'id="card-{card.id}"') :].partition(' class="fold')[0])
        assert (f"{card.share:.0%} of rollouts" if card.cost is None else f"\u2212{card.cost:.3f}") in card_text
        assert all(sentence in card_text for sentence in card.evidence)
        assert card.cost is None or ("these bars add up" if card.is_part else "the costs do not add up") in card_text
    assert len(report.cards) > 2
    assert (
        html.count('<line class="limit"')
        == sum(card.limit is not None and len(card.trend) > 1 for card in report.cards)
        > 0
    )


def test_a_card_opens_as_many_rollouts_as_its_button_says(clients: dict[str, TestClient], engine: Engine) -> None:
    html = flat(page_of(clients, "low"))
    buttons = re.findall(r'<a class="button" href="([^"]+)">(?:(?!</a>).)*?Open its ([\d,]+) rollouts', html, re.DOTALL)
    assert len(buttons) > 2
    assert [rollouts_at(engine, address) for address, _ in buttons] == [int(count) for _, count in buttons]


def a_card(name: str, cost: float, *explains: str, where: str = "") -> Card:
    return Card(name, f"it is {name}", cost, ("so",), "do", where, explains=explains)


LOST = Waterfall(best=1.0, mean=0.0, lost=1.0, above=0.0, shares=())
REPORT = Report((), LOST, Scale(1.0, Success(), "as set"), steps=None, scope="", warming_up=False)


def test_what_another_card_explains_stands_below_it_and_says_so() -> None:
    cards = (
        a_card("truncation", 0.5, "never_acted", "dead_groups"),
        a_card("never_acted", 0.4, "dead_groups"),
        a_card("dead_groups", 0.3),
        a_card("mine", 0.2, "truncation"),  # which stands above: no circle
    )
    shown_cards = make_cards(REPORT, cards, Settings(), "a-run", lambda _: queries.Count(3, exact=True))
    assert [(shown_card.card.id, [child.card.id for child in shown_card.children]) for shown_card in shown_cards] == [
        ("truncation", ["never_acted", "dead_groups"]),
        ("mine", []),
    ]
    assert shown_cards[0].children[1].parents == [("truncation", "Truncation"), ("never_acted", "Never acted")]
    assert shown_cards[1].diagnostic is None  # somebody's own


def test_commands_to_copy_name_the_database_that_is_served(
    clients: dict[str, TestClient], folder: Path, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = folder / "low.db"
    assert f"logs-ui diagnose {uid} --db {db} --threshold ID=VALUE --save" in page_of(clients, "low")
    part = "{% from 'why/_why_tabs.html' import part %}{{ part({'uid': 'r'}, 'some') }}"
    html = make_templates(db=db_option(db)).from_string(part).render()
    assert f"<code>logs-ui diagnose r --db {db} --all</code>" in html
    monkeypatch.setenv("LOGS_UI_DB", str(db))
    assert db_option(db) == f" --db {db}", "another terminal does not know the variable"
    default_path = folder / "logs-ui" / "logs-ui.db"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    assert db_option(default_path) == f" --db {default_path}", "LOGS_UI_DB names another"
    monkeypatch.delenv("LOGS_UI_DB")
    assert db_option(default_path) == "", "it is found without"


def test_a_card_whose_filter_cannot_be_read_leads_nowhere() -> None:
    cards = (a_card("mine", 0.2, where="no_such_field>3"),)
    (shown_card,) = make_cards(REPORT, cards, Settings(), "a-run", lambda _: _never())
    assert (shown_card.address, shown_card.count) == (None, None)


def _never() -> queries.Count:
    raise AssertionError


def test_a_trend_is_drawn_with_its_threshold_from_the_step_on_which_it_is_bad() -> None:
    trend = line(((10, 0.0), (20, 1.0), (30, 2.0)), 20, 4.0, (10, 20))
    assert trend is not None
    # 180 by 34, with an edge of 3; the threshold, 4, is the highest.
    assert trend.points == "3.0,31.0 90.0,24.0 177.0,17.0"
    assert trend.between == (3.0, 87.0)
    assert (trend.limit, trend.since, trend.end) == (3.0, 90.0, (177.0, 17.0))
    assert line(((10, 0.0),), None) is None
    many = tuple((step, float(step)) for step in range(1000))
    assert len(thinned(many)) <= 61
    assert thinned(many)[-1] == many[-1]


def test_a_rollouts_page_says_the_cause_and_the_loss_that_why_tells(clients: dict[str, TestClient]) -> None:
    html = page_of(clients, "low")
    (address,) = re.findall(r'<tr class="of-truncation">.*?class="row-link" href="([^"]+)"', html, re.DOTALL)
    table = clients["low"].get(unescape(address)).text
    row = re.findall(r'<tr id="row-(\d+)"', table)[0]
    text = text_of(clients["low"].get(urls.rollout("latest", int(row))).text)
    assert "cause truncated reward lost \u22121.200" in text


# --- Nothing to say


def test_a_healthy_run_says_so_and_what_was_looked_at(clients: dict[str, TestClient]) -> None:
    html = page_of(clients, "well")
    assert "No fault found, " in html
    assert 'id="causes-title"' not in html
    assert "Checked, no finding" in html
    assert "Not recorded" in html
    assert "needs" in html[html.index("Not recorded") :]
    assert "Lost reward by cause" in html


def test_a_finding_about_the_evaluations_opens_their_rollouts(clients: dict[str, TestClient]) -> None:
    html = flat(page_of(clients, "cut"))
    verdict = html[html.index('class="verdict"') : html.index("</section>", html.index('class="verdict"'))]
    assert "of evaluation rollouts are truncated at the token limit, 0% of training rollouts" in verdict
    assert "in the evaluations" in verdict
    assert "No fault found" not in verdict
    (opened,) = re.findall(r'<a class="button" href="([^"]+)">.*?Open its (\d+) rollouts', verdict)
    assert "mode:eval" in unescape(opened[0])
    assert "cause:truncation" in unescape(opened[0])
    (count,) = re.findall(r"(\d+) of 32 rollouts in the last 2 evaluations", verdict)
    assert opened[1] == count
    assert "of evaluation rollouts" in page_of(clients, "cut", step_min=3)
    assert "of evaluation rollouts are" not in page_of(clients, "cut", task="task 1")


def test_what_no_diagnostic_explains_is_not_called_fine(clients: dict[str, TestClient]) -> None:
    page = page_of(clients, "half")
    verdict = page[page.index('class="verdict"') : page.index("Lost reward by cause</h2>")]
    short = short_of(clients["half"])
    for html in (verdict, short):
        assert "No cause found; no clear change: solved " in html
        assert "tone-good" not in html
    assert re.search(r"\d+ of \d+ checks judged", verdict)
    assert 'class="of-wrong_answer"' in short
    assert 'class="thin-fall"' in short
    assert "<ol>" not in short


def test_a_figure_that_was_bad_before_is_worse() -> None:
    def began(*values: float, limit: float | None = 0.2) -> str:
        trend = tuple(enumerate(values, 1))
        return replace(a_card("mine", 0.1), trend=trend, since_step=3, limit=limit).began

    assert began(0.1, 0.1, 0.3, 0.3) == "since step 3"
    assert began(0.3, 0.3, 0.6, 0.6) == "worse since step 3"
    assert began(0.3, 0.3, 0.6, 0.6, limit=None) == "since step 3"
    assert a_card("mine", 0.1).began == ""


def test_a_run_in_warm_up_says_how_much_it_has_and_needs(clients: dict[str, TestClient]) -> None:
    text = text_of(page_of(clients, "early"))
    assert "Too early for a diagnosis" in text
    assert "The diagnosis needs 32 rollouts from 2 steps; the run has 8 rollouts from 1 step." in text
    assert "Checked, no finding" not in text


def test_a_slice_of_few_rollouts_says_that_they_are_too_few(clients: dict[str, TestClient]) -> None:
    text = text_of(page_of(clients, "low", step_min=4, step_max=4))
    assert "Too few rollouts for a diagnosis" in text
    assert "this selection has 24" in text
    assert "Lost reward by cause" in text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("step_min=x", "step_min &#39;x&#39; is not a whole number"), ("step_min=9&step_max=3", "swap them"),
        ("step_min=900", "this selection has no rollout that ended"), ("task=task+9", "unknown task &#39;task 9&#39;"),
        ("eval=plantd", "&#39;planted&#39;"), ("tsk=1", "unknown parameter"),
    ],
)  # fmt: skip
def test_a_slice_that_cannot_be_is_one_line(clients: dict[str, TestClient], query: str, says: str) -> None:
    answer = clients["low"].get(f"{urls.why('latest')}?{query}")
    assert answer.status_code == 422
    assert says in answer.text


# --- Kept up


def test_a_page_that_nothing_is_new_for_is_told_so(clients: dict[str, TestClient]) -> None:
    html = page_of(clients, "early")
    poll = re.search(r'data-poll hx-get="([^"]+)"', html)
    assert poll
    assert clients["early"].get(unescape(poll[1]), headers=fragment("why")).status_code == 204
    stale = clients["early"].get(re.sub("seen=[^&]*", "seen=0", unescape(poll[1])), headers=fragment("why"))
    assert stale.text.lstrip().startswith('<div id="why"')
    assert 'hx-target="#run-line"' in stale.text
    assert "data-poll" not in page_of(clients, "low")  # it has ended


# --- Settings


@pytest.mark.exhaustive
def test_settings_are_kept_for_the_run_and_change_what_is_said(folder: Path, uid: str) -> None:
    with TestClient(create_app(folder / "low.db"), base_url="http://127.0.0.1", headers=OURS) as client:
        form = {"max_reward": "2", "solved_at": "", "steps": "5", "threshold.truncation": "0.2"}
        answer = client.post(urls.of_run(uid, "why", "settings"), data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{urls.why(uid)}#settings")
        html = flat(client.get(urls.why(uid)).text)
        assert "Best reward 2.000: as set" in text_of(html)
        assert "steps 16\u201320" in html
        assert 'name="threshold.truncation" inputmode="decimal" value="0.2"' in html
        with reading_engine(folder / "low.db").connect() as db:
            saved = queries.saved_settings(db, uid)
        expected = {"max_reward": 2.0, "solved_at": None, "solved_by": None, "reference": None, "steps": 5}
        assert saved == {**expected, "thresholds": {"truncation": 0.2}, "environments": {}, "muted": {}}
        # What the form does not name stays.
        client.post(urls.of_run(uid, "why", "settings"), data={"max_reward": "1.5"})
        assert 'name="threshold.truncation" inputmode="decimal" value="0.2"' in flat(client.get(urls.why(uid)).text)
        for wrong, says in (
            ({"max_reward": "lots"}, "is not a number"),
            ({"steps": "0"}, "from 1 on"),
            ({"threshold.turn_limit": "-1"}, "The threshold of turn_limit must be a number from 0 to 1, not -1."),
            ({"threshold.constant_reward": "0.1"}, "constant_reward has no threshold."),
        ):
            refused = client.post(urls.of_run(uid, "why", "settings"), data=wrong)
            assert refused.status_code == 422
            assert says in flat(refused.text)
            assert f'href="{urls.why(uid)}"' in flat(refused.text)
        client.post(urls.of_run(uid, "why", "settings"), data={"reset": "1"})
        assert "the run's 99th percentile" in text_of(flat(client.get(urls.why(uid)).text))
        elsewhere = {"Sec-Fetch-Site": "cross-site"}
        assert client.post(urls.of_run(uid, "why", "settings"), data=form, headers=elsewhere).status_code == 403


# --- The overview


def short_of(client: TestClient) -> str:
    """Return the short diagnosis, as the overview has it once the diagnosis is made."""
    html = client.get(urls.overview("latest"), headers=fragment("overview")).text
    return html.partition('id="why-short"')[2].partition("</section>")[0]


def test_the_overview_asks_for_it_once_and_shows_it_at_once_from_then_on(folder: Path, uid: str) -> None:
    with TestClient(create_app(folder / "low.db"), base_url="http://127.0.0.1") as client:
        first = flat(client.get(urls.overview(uid)).text)
        assert 'hx-trigger="load" hx-target="#overview"' in first
        assert f'<a href="{urls.why(uid)}">Open diagnosis</a>' in first
        short = short_of(client)
        then = flat(client.get(urls.overview(uid)).text)
        assert 'hx-trigger="load"' not in then
        request = re.search(r'hx-get="([^"]+)" hx-trigger="load"', first)
        assert request
        filled = client.get(unescape(request[1]), headers=fragment("overview"))
        assert "HX-Push-Url" not in filled.headers
        for html in (flat(short), then):
            assert 'class="thin-fall"' in html
            assert 1 <= len(re.findall(r"<li><strong>\u2212[\d.]+</strong><a href", html)) <= 3
        cards = re.findall(r'href="([^"#]+)#(card-[\w]+)"', short)
        page = flat(client.get(cards[0][0]).text)
        assert all(f'id="{card}"' in page for _, card in cards)


def test_the_overview_of_a_healthy_run_has_one_quiet_line_and_that_of_an_early_one_nothing(
    clients: dict[str, TestClient],
) -> None:
    calm = short_of(clients["well"])
    assert "No fault found, " in calm
    assert "<ol>" not in calm
    assert short_of(clients["early"]).startswith(" hidden></div>")


# --- In a browser


@pytest.mark.exhaustive
def test_a_narrow_window_loses_no_column_and_no_words(quiet_page: Page, url: str, uid: str) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(url + urls.why(uid))
    heads = page.locator(".waterfall thead th")
    expect(heads).to_have_text(["Cause", "Reward", "Share", "Rollouts"])
    assert heads.evaluate_all("all => all.every((it) => it.scrollWidth <= it.clientWidth)")
    expect(page.locator(".waterfall .of-mean td:last-child")).to_be_visible()
    page.goto(url + urls.overview(uid))
    expect(page.locator("#how")).to_have_css("display", "block")
    expect(page.locator("#chart-reward .at")).to_have_text("last step, 20")
    page.goto(url + urls.why(uid, "actions"))
    for title in ("First action", "Last action"):
        table = page.locator(f'.scroll-x[aria-label="{title}"]')
        assert table.evaluate("it => it.scrollWidth <= it.clientWidth"), title


@pytest.mark.exhaustive
def test_the_page_is_for_everybody(quiet_page: Page, url: str, uid: str) -> None:
    def unfold(page: Page) -> None:
        page.locator("details").evaluate_all("all => all.forEach(it => it.open = true)")

    addresses = (urls.why(uid, wait="1"), urls.overview(uid))
    check_looks(quiet_page, [url + it for it in addresses], widths=(1440, 900, 400), prepare=unfold)


@pytest.mark.exhaustive
def test_a_table_that_goes_on_to_the_right_fades_there(quiet_page: Page, url: str, uid: str) -> None:
    quiet_page.set_viewport_size({"width": 700, "height": 700})
    quiet_page.goto(url + urls.why(uid, "tasks"))
    table = quiet_page.locator(".why-tasks .scroll-x")
    expect(table).to_have_css("--beyond", "44px")
    assert table.evaluate("it => it.scrollWidth > it.clientWidth + 20")
    table.evaluate("it => { it.scrollLeft = 1e6; }")
    expect(table).to_have_css("--beyond", "0px")
    quiet_page.set_viewport_size({"width": 1900, "height": 700})
    assert table.evaluate("it => it.scrollWidth <= it.clientWidth")
    expect(table).to_have_css("--beyond", "0px")


def test_the_first_finding_is_four_keys_away(quiet_page: Page, url: str, uid: str) -> None:
    quiet_page.goto(url + urls.why(uid, wait="1"))
    for key in ("Tab", "Enter", "Tab", "Tab"):
        quiet_page.keyboard.press(key)
    expect(quiet_page.locator(":focus")).to_have_text(re.compile("Open its"))


def test_a_slice_is_chosen_without_leaving_the_page_and_the_key_w_leads_to_it(
    quiet_page: Page, url: str, uid: str
) -> None:
    page = quiet_page
    page.goto(url + urls.overview(uid))
    page.keyboard.press("w")
    expect(page).to_have_url(url + urls.why(uid))
    page.get_by_label("Last step").fill("6")
    page.get_by_label("Last step").press("Enter")
    expect(page).to_have_url(url + urls.why(uid, step_max=6))
    expect(page.locator(".basis")).to_contain_text("steps 1\u20136 \u00b7 144 rollouts")
    page.locator(".of-mean .row-link").click()
    expect(page.locator(".found strong").first).to_have_text("144")


@pytest.mark.exhaustive
def test_a_page_of_a_run_that_is_alive_follows_it_and_keeps_what_is_being_written(
    quiet_page: Page, tmp_path: Path
) -> None:
    page, db = quiet_page, tmp_path / "alive.db"
    run = start_run("alive", eval_name="planted", db=db)

    def record(step: int, count: int) -> None:
        for number in range(count):
            with run.rollout([{"role": "user", "content": "?"}], step=step, group=f"{step}/{number // 4}") as row:
                row.turn("look", action="look", observation="a room", done=False)
                row.stop("length" if number % 2 else "done")
            row.score(reward=0.0 if number % 2 else 1.0)
        flush()

    flush()
    with BackgroundServer(db) as server:
        page.goto(server.url + urls.why("latest"))
        expect(page.get_by_role("heading", name="No rollout has ended yet.")).to_be_visible()
        expect(page.locator("main")).to_contain_text("The diagnosis needs 32 rollouts from 2 steps.")
        record(1, 8)
        expect(page.locator("#verdict")).to_have_text("Too early for a diagnosis")
        page.locator("#settings summary").click()
        page.get_by_label("Best reward", exact=True).fill("3")
        record(2, 40)
        expect(page.locator("#verdict")).to_contain_text("truncated")
        expect(page.get_by_label("Best reward", exact=True)).to_have_value("3")
        expect(page.locator("#run-line")).to_contain_text("48 rollouts")
    run.finish()


@pytest.mark.exhaustive
def test_without_a_script_the_form_and_the_links_do_the_same(scriptless_page: Page, url: str, uid: str) -> None:
    page = scriptless_page
    page.goto(url + urls.overview(uid))
    page.get_by_role("link", name=re.compile("Open diagnosis|findings")).click()
    page.get_by_label("First step").fill("2")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".basis")).to_contain_text("steps 2\u201320")
