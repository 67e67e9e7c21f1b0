"""Rollouts of 200 turns with observations of 4 KB: what their page sends, folds, marks and shows as pictures."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from logs_ui.app.pages.rollout import long_timeline
from logs_ui.app.parts import rendered_text, timeline
from logs_ui.app.parts.pictures import split_content
from logs_ui.app.parts.turns import TurnLine, turns_of
from logs_ui.recorder import queries, start_run
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage.database import disposed, reading_engine
from logs_ui.recorder.storage.tables import EvaluationRow
from tests.faults.realistic import agents
from tests.faults.realistic.recorded import recorded
from tests.support.dashboard import dashboard, flat
from tests.support.exhaustive import cases

LIMIT = 60_000  # bytes of HTML
ANCHOR = re.compile(r'<article id="([^"]+)"')


class Site(NamedTuple):
    """The dashboard of the run, and the rollouts of its first group, in order of generation."""

    client: TestClient
    run: str
    rollouts: list[Rollout]

    def get(self, number: int, query: str = "") -> Any:
        return self.client.get(f"{self.run}/rollouts/{self.rollouts[number].row.id}{query}")

    def compare(self) -> Any:
        a, b = (rollout.row.id for rollout in self.rollouts[:2])
        return self.client.get(f"{self.run}/compare?a={a}&b={b}")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    long = recorded(agents.LONG.id)
    with disposed(reading_engine(long.db)) as engine, engine.connect() as db:
        run_id = queries.find_run(db, long.truth.run).id or 0
        rows = queries.page(db, run_id, RolloutFilter(), limit=20).rows
        of_group = sorted((row for row in rows if row.group.endswith("/1/0")), key=lambda row: row.generation)
        rollouts = [queries.rollout(db, run_id, row.id or 0) for row in of_group]
    with dashboard(long.db) as client:
        yield Site(client, f"/runs/{long.truth.run}", rollouts)


def test_the_first_view_is_small_and_has_the_beginning_and_the_end(site: Site) -> None:
    for number in cases([1, *range(len(site.rollouts))], 1):
        cards = timeline.make_timeline(site.rollouts[number])
        assert sum(len(text) for text in timeline.texts(cards).values()) > 800_000
        for query in (
            "",
            "?turn=100",
            "?show=assistant",
            "?where=turns>5 reward>=-9",
            "?where=line",
            "?where=tool:passed",
        ):
            page = site.get(number, query)
            assert page.status_code == 200
            assert len(page.content) <= LIMIT, (number, query)
        sent = ANCHOR.findall(site.get(number).text)
        sent.remove("failure") if "failure" in sent else None
        assert sent[:4] == [card.anchor for card in cards[:4]]
        assert sent[-1] == cards[-1].anchor


OBSERVED = "a line of output\n" * 240
METADATA = {"traceback": "at work\n" * 1_000, "server_log": "served\n" * 1_000, "patch": "+ a line\n" * 1_000}


TURNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"reward": 0.5}, {}),
    ({"action": {"name": "edit", "arguments": {"old": "a 'b'\n" * 1_300, "new": "c\n" * 2_500}}}, METADATA),
    ({"action": {"name": "fill", "arguments": {"a": "b" * 3_000}}, "observation": "ok"}, {}),
    ({"action": "look"}, METADATA),
    ({"action": {"name": "move", "arguments": {"to": "a"}}, "reward": 0.5}, {}),
    ({"action": {"name": "write", "arguments": {"text": "x = 'y'\n" * 1_000}}}, {}),
    ({"action": {"name": "fill", "arguments": {f"field_{i}": i for i in range(200)}}}, {}),
]


@pytest.mark.parametrize(("turn", "metadata"), cases(TURNS, 3))
@pytest.mark.parametrize("is_called", cases([True, False], 1))
def test_the_first_view_is_small_whatever_a_turn_has(
    tmp_path: Path, turn: dict[str, Any], metadata: dict[str, Any], *, is_called: bool
) -> None:
    with start_run(db=tmp_path / "a.db") as run, run.rollout("Go.", metadata=metadata) as row:
        for i in range(200):
            content = f"<tool_call>\n{json.dumps(turn.get('action'))}\n</tool_call>" if is_called else "I wait."
            sign = {"reward": turn["reward"] * (-1) ** i} if "reward" in turn else {}
            row.turn(content, **{"observation": OBSERVED} | turn | sign)
    with dashboard(tmp_path / "a.db") as client:
        for query in ("", "?turn=100", "?show=assistant"):
            page = client.get(f"/runs/{run.id}/rollouts/1{query}")
            assert page.status_code == 200
            assert len(page.content) <= LIMIT, query
        for part in METADATA.keys() & metadata.keys():
            opened = client.get(f"/runs/{run.id}/rollouts/1/folded/{part if part in page.text else 'metadata'}")
            assert str(metadata[part])[:8] in opened.text


def test_neighbours_of_a_kind_are_one_mark(site: Site) -> None:
    card = next(card for card in timeline.make_timeline(site.rollouts[1]) if card.answer and card.turn)
    assert card.answer
    answer = replace(card.answer, is_fallback=True, reward=0.5)
    cards = [replace(card, turn=i, anomaly=None, answer=answer) for i in range(1, 2_001)]
    rail = long_timeline.rail(cards, [turn.line for turn in turns_of(cards)])
    assert rail
    assert [(mark.turn, mark.last, mark.title) for mark in rail.marks] == [
        (1, 2_000, "positive rewards, to turn 2000"),
        (1, 2_000, "action not in the answer, to turn 2000"),
    ]
    assert len(rail.bands) < 40


def agent(turns: int, observation: Any) -> tuple[list[timeline.Card], list[TurnLine]]:
    """The cards and lines of a rollout that calls bash and looks by turns, and is answered with this."""
    messages = [{"role": "user", "content": "go"}, *[{"role": "assistant", "content": "I act."}] * turns]
    actions: list[dict[str, Any]] = [
        {"turn": n, "action": {"name": "bash" if n % 2 else "look", "arguments": {"n": n}}, "observation": observation}
        for n in range(1, turns + 1)
    ]
    row = EvaluationRow(turns=turns)  # type: ignore[call-arg]  # nothing else of it is looked at
    cards = timeline.make_timeline(Rollout(row, messages, actions, {}, {}, None))
    cards = [replace(card, answer=replace(card.answer, is_fallback=False)) if card.answer else card for card in cards]
    return cards, [turn.line for turn in turns_of(cards)]


def test_the_rail_of_an_agent_without_rewards_has_tools_and_sizes() -> None:
    rail = long_timeline.rail(*agent(32, {"stdout": "0123456789"}))
    assert rail
    assert [(band.turn, band.title, band.share) for band in rail.bands] == [
        (1, "turns 1 to 10: bash 5, look 5", 1.0),
        (11, "turns 11 to 20: bash 5, look 5", 1.0),
        (21, "turns 21 to 30: bash 5, look 5", 1.0),
        (31, "turns 31 to 32: bash 1, look 1", 0.2),
    ]


def test_the_rail_marks_answers_with_errors() -> None:
    cards, lines = agent(32, {"exit_code": 0})
    lines[6] = replace(lines[6], exit_code=2, failure="exit_code 2")
    rail = long_timeline.rail(cards, lines)
    assert rail
    assert [(mark.turn, mark.kind, mark.title) for mark in rail.marks] == [(7, "warn", "bash: exit 2")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("query", cases(["?turn=100", "", "?show=output,rendered"], 1))
def test_gaps_fill_with_every_turn_once_and_in_order(site: Site, query: str) -> None:
    html = site.get(1, query).text
    for _ in range(100):
        gap = re.search(r'<a class="gap" id="(gap-\d+)".*?hx-get="([^"]+)".*?</a>', html, re.DOTALL)
        if gap is None:
            break
        headers = {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Target": f"a#{gap[1]}"}
        filled = site.client.get(unescape(gap[2]), headers=headers)
        assert len(filled.content) <= (LIMIT if "output" not in query else 3 * LIMIT)
        html = html.replace(gap[0], filled.text)
    assert ANCHOR.findall(html) == [card.anchor for card in timeline.make_timeline(site.rollouts[1])]


@pytest.mark.exhaustive
def test_what_a_page_shows_already_stays_when_it_changes(site: Site) -> None:
    html = site.get(0, "?show=rendered&gaps=40-150").text
    assert re.findall(r'data-gap="([^"]+)"', html) == ["40-150"]
    assert "turn 39<" in html
    for odd in (
        "?gaps=9-1",
        "?gaps=x-",
        "?fill=",
        "?fill=7-99999999999",
        "?turn=99999999999",
        "?show=all,x",
        "?gaps=0-0",
    ):
        assert site.get(0, odd).status_code == 200, odd


def test_an_action_is_on_the_page_once_and_as_a_person_writes_it(site: Site) -> None:
    bash = next(action for action in site.rollouts[0].actions if action["action"]["name"] == "bash")
    command = bash["action"]["arguments"]["command"]
    html = unescape(flat(site.get(0, "?show=output,reasoning").text))
    html = re.sub(r'<details class="turn-lines".*?</details>', "", html, flags=re.DOTALL)
    assert html.count(command) == 1
    assert re.search(rf'<strong class="mono"><bdi>bash</bdi></strong><div class="text mono">{re.escape(command)}', html)
    assert '"arguments"' not in html
    compared = unescape(flat(site.compare().text))
    compared = re.sub(r"<summary>.*?</summary>", "", compared, flags=re.DOTALL)
    assert re.sub("</?mark>", "", compared).count(command) == 1


def test_a_long_output_is_one_line_with_its_size_and_outcome(site: Site) -> None:
    html = site.get(0).text
    lines = re.findall(r'<details class="line"[^>]*>.*?</details>', html, re.DOTALL)
    assert len(lines) > 3
    assert all("4.0 kB" in line and len(line) < 1_400 for line in lines)
    body = re.search(r'hx-get="([^"]+/folded/[^"]+)"', lines[0])
    assert body
    opened = site.client.get(body[1])
    assert opened.headers["cache-control"] == "no-store"
    assert len(opened.text) > 4_000
    assert site.client.get(body[1] + "x").status_code == 404
    assert re.search(r'<p class="body"><a href="([^"]+/text/[^"]+)">', lines[0]), "without a script"


def test_every_turns_reasoning_is_folded_and_opened_at_once(site: Site) -> None:
    thoughts = [message["reasoning_content"] for message in site.rollouts[0].messages if "reasoning_content" in message]
    assert len(thoughts) == agents.LONG_TURNS - 1
    for query, is_shown in (("?gaps=40-150", False), ("?show=reasoning&gaps=40-150", True)):
        html = site.get(0, query).text
        assert html.count("Reasoning <span") == 39 + 49
        assert (thoughts[10] in html) == is_shown


def test_only_what_the_model_wrote_is_shown_on_request(site: Site) -> None:
    html = site.get(0, "?show=assistant").text
    assert 'class="card own' in html
    assert "card  reply" not in html
    assert 'data-said-by="prompt"' not in html
    assert 'class="line"' not in html


def test_what_happened_on_the_way_is_marked_and_one_click_away(site: Site) -> None:
    html = site.get(1).text
    marks = re.findall(r'<a href="([^"]+)"[^>]*><span class="n">(\d+)</span><span class="who">([^<]+)', html)
    listed = {int(turn): (unescape(href), title) for href, turn, title in marks}
    assert listed[agents.LONG_CUT][1] == "cut off at the token limit"
    assert listed[agents.LONG_FALLBACK][1] == "action not in the answer"
    assert listed[agents.LONG_ERROR][1] == "the environment raised an error"
    assert listed[50][1] == "reward +0.5"
    for turn in (agents.LONG_FALLBACK, agents.LONG_ERROR):
        page, _, anchor = listed[turn][0].partition("#")
        assert f'<article id="{anchor}"' in site.client.get(page).text
    assert "data-first-anomaly" in html, "it opens where it first went wrong"
    assert "cut off at the token limit</span>" in html
    assert long_timeline.rail(timeline.make_timeline(site.rollouts[1])[:40], []) is None, "a short one lists its turns"


def test_images_of_messages_are_pictures(site: Site) -> None:
    html = site.get(1, f"?turn={agents.LONG_PICTURE}&show=output").text
    assert "base64" not in html
    assert "$image" not in html
    prompt, screenshot = re.findall(r'<img src="([^"]+)"', html)
    for source in (prompt, screenshot):
        answer = site.client.get(source)
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.content.startswith(b"\x89PNG")
    assert site.client.get(prompt.replace("image-0", "image-1")).status_code == 404
    assert "here is the desktop." in html


REMOTE = "https://evil.example/a.png"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(
    ("content", "notes", "left"),
    [
        ([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}], [""], []),
        ([{"type": "image_url", "image_url": REMOTE}], [f"not loaded: {REMOTE}"], []),
        ([{"type": "image"}, {"type": "text", "text": "a"}], ["not recorded"], [{"type": "text", "text": "a"}]),
        ([{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}], [""], []),
        ([{"type": "image", "source": {"type": "base64", "data": PIXEL}}], [""], []),
        ([{"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zz4="}}],
         ["an image/svg+xml of 0.1 kB, not shown"], []),
        ([{"type": "image", "source": {"media_type": "image/gif", "data": "R0lG" * 4_000}}],
         ["an image/gif of 12.1 kB, not shown"], []),
        ('{"a": 1, "shot": {"$image": "%s", "width": 2, "height": 3}}' % ("0" * 64), [""], {"a": 1, "shot": None}),
        ("a {'$image'} b", [], "a {'$image'} b"),
        (None, [], None),
    ],
)  # fmt: skip
def test_images_leave_a_message_and_none_is_loaded_from_elsewhere(content: Any, notes: list[str], left: Any) -> None:
    rest, pictures = split_content("message-0", content)
    assert [picture.note for picture in pictures] == notes
    assert rest == left
    assert all(picture.data.startswith(b"\x89PNG") for picture in pictures if picture.part)


@pytest.mark.parametrize("text", ["[" * 100_000 + '"$image"', '{"a":' * 900 + '{"$image": 1}' + "}" * 900])
def test_a_text_that_is_nested_too_deep_stays_text(tmp_path: Path, text: str) -> None:
    with start_run(db=tmp_path / "a.db") as run, run.rollout("Go.") as row:
        row.turn(text)
    with dashboard(tmp_path / "a.db") as deep:
        for view in ("", "?show=rendered", "?view=raw", "?view=tokens"):
            assert deep.get(f"/runs/{run.id}/rollouts/1{view}").status_code == 200, view
        assert deep.get(f"/runs/{run.id}/groups/1").status_code == 200


class Tags(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_markdown_code_and_formulas_are_rendered(site: Site) -> None:
    html = site.get(0, "?show=rendered").text
    assert "<mfrac>" in html
    assert '<pre><code><span class="code-k">assert</span>' in html
    assert re.search(r"<p>I <strong>[^<]+</strong>\.</p>", html)
    markup = rendered_text.rendered("**a** `b`\n\n| x |\n|---|\n| 1 |\n\n\\[ x^2 \\]\n\ncosts $5 and $6")
    assert {tag for tag, _ in Tags(markup).found} >= {"strong", "code", "table", "math", "msup"}
    assert "costs $5 and $6" in markup


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1)) [y](data:text/html,x) [z](/runs) ![i](https://evil.example/i.png)",
    '[home](https://evil.example/a?b="><script>)',
    "$\\href{javascript:alert(1)}{x}$ $\\text{<script>alert(1)</script>}$ $\\style{color:red}{x}$ $\\class{evil}{x}$",
    '$\\color{red" onload="alert(1)}{x}$ $\\begin{array}{c" onclick="x}a\\end{array}$',
    '```html" onclick="alert(1)\n<script>alert(1)</script>\n```',
    "$\\frac{$ $\\def\\a{\\a\\a}\\a$ \\(" + "x" * 3_000 + "\\)",
    "a\u202eb `c\u202ed`\n\n```\ne\u202ef\n```",
    "```\u202ex y\na\n```",
    "|a|b|\n|:--|--:|\n|1|2|",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_text(text: str) -> None:
    html = rendered_text.rendered(text)
    for tag, attributes in Tags(html).found:
        assert tag not in {"script", "img", "iframe", "style", "form", "input", "object"}
        assert not any(name.startswith("on") or name in {"style", "src", "srcdoc"} for name in attributes), attributes
        if "href" in attributes:
            assert str(attributes["href"]).startswith("https://")
            assert attributes["rel"] == "noreferrer noopener"
            assert str(attributes["href"]) in unescape(html.replace("href=", "")), "the address can be read"
    assert "\u202e" not in html


@pytest.mark.exhaustive
def test_rendering_takes_no_longer_for_hostile_texts() -> None:
    begun = time.process_time()
    for piece in ("\\(", "$$", "$a", "[", "> ", "*a ", "`", "\\frac{", "$\\frac{1}{2}$ ", "| a ", "<think>"):
        rendered_text.rendered((piece * 20_000)[:20_000])
    head = "|".join("a" * 3_000)
    wide = f"{head}\n{'|'.join(['-'] * 3_000)}\n" + "|a|\n" * 500
    assert len(rendered_text.rendered(wide)) < 2 * len(wide), "no cells are made that the text lacks"
    for language in ("autohotkey", "perl", "php", "cpp", "c", "ini", "python", "java"):
        for piece in ("\n ", "s{", '"{$a', "a.b[]", " "):
            rendered_text.rendered(f"```{language}\n{piece * 4_000}x\n```")
    assert time.process_time() - begun < 20


def test_two_rollouts_that_differ_from_their_first_turn_on_are_not_said_to_diverge_there(site: Site) -> None:
    assert "diverge" not in re.sub(r'title="[^"]*"', "", site.compare().text)


@pytest.mark.exhaustive
def test_a_group_and_a_comparison_of_long_rollouts_leave_out_turns_that_are_one_click_away(site: Site) -> None:
    run, client, id_a = site.run, site.client, site.rollouts[0].row.id
    numbers = re.compile(r'aria-label="Turn (\d+)"')
    group = client.get(f"{run}/groups/{id_a}")
    assert len(group.content) < 300_000
    columns = group.text.split('<article class="completion"')[1:]
    for column in columns:
        shown_turns = [int(number) for number in numbers.findall(column)]
        assert shown_turns[:6] == [1, 2, 3, 4, 5, 6]
        assert len(shown_turns) < 30
        first, last = re.findall(r">turns (\d+) to (\d+)</a>", column)[0]
        assert not [number for number in shown_turns if int(first) <= number <= int(last)]
    (link,) = set(re.findall(rf'hx-get="({run}/groups/{id_a}/column\?whole={id_a})"', group.text))
    whole = site.client.get(link).text
    assert len(numbers.findall(whole)) > 150
    assert f'name="whole" value="{id_a}"' in whole, "a refresh of the page keeps it whole"
    refreshed = site.client.get(
        f"{run}/groups/{id_a}?whole={id_a}", headers={"HX-Request": "true", "HX-Target": "group"}
    ).text
    assert len(numbers.findall(refreshed)) > 150

    compared = site.compare()
    assert len(compared.content) < 400_000
    turns = [int(number) for number in re.findall(r'id="turn-(\d+)"', compared.text)]
    (divergence,) = {int(number) for number in re.findall(r'id="turn-(\d+)"[^>]* data-parts', compared.text)}
    assert {1, 2, divergence} <= {*turns}
    assert len(turns) < 35
    address = unescape(re.findall(r'<a href="([^"]*)#turn-\d+">turns \d+ to \d+</a>', compared.text)[0])
    everything = site.client.get(address).text
    assert len(re.findall(r'id="turn-\d+"', everything)) > 150
    assert ">turns " not in everything
