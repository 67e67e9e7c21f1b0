"""Ten questions of people who train agents, each answered by clicks from the list of runs: three at most."""

import re
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from logs_ui.app.commands.serve_command import BackgroundServer
from tests.faults.realistic.recorded import Recorded, recorded_pair

MOST = 3


@pytest.fixture(scope="module")
def runs() -> tuple[Recorded, Recorded]:
    """One whose entropy collapses; one that is cut off from step 10 on, and loses two repositories at step 12."""
    return recorded_pair("coding-entropy", "coding-two")


@pytest.fixture(scope="module")
def url(runs: tuple[Recorded, Recorded]) -> Iterator[str]:
    with BackgroundServer(runs[0].db) as server:
        yield server.url


class Clicking:
    """A person who begins at the list of runs, and counts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url, self.clicks = page, url, 0

    def begin(self, run: Recorded) -> None:
        self.page.goto(self.url)
        self.clicks = 0
        self.click(self.page.locator(f'a.row-link[href*="{run.truth.run}"]'))

    def click(self, what: Locator) -> None:
        what.first.click()
        self.page.wait_for_load_state("networkidle")
        self.clicks += 1
        assert self.clicks <= MOST

    def tab(self, name: str) -> None:
        self.click(self.page.locator("#run-line .switch a, .why-tabs a, nav a", has_text=name))

    def text(self, of: str = "main") -> str:
        return " ".join(self.page.locator(of).first.inner_text().split())


@pytest.mark.exhaustive
def test_ten_questions_take_three_clicks_each_and_are_answered(
    page: Page, runs: tuple[Recorded, Recorded], url: str
) -> None:
    collapsed, run = runs
    truth: list[dict[str, Any]] = [dict(it) for it in run.truth.rollouts]
    late = [it for it in truth if it["step"] >= 12]
    person = Clicking(page, url)

    # 1. Which tasks fail most since step 12?
    person.begin(run)
    person.tab("Why")
    share = defaultdict(list)
    for it in late:
        share[it["task"]].append(bool(it["solved"]))
    worst = sorted(sorted(share, key=lambda task: fmean(share[task]))[:2])
    person.click(page.locator("#fold-forgotten summary"))
    assert f"{worst[0]} and {worst[1]}: " in person.text()
    assert "since step 12" in person.text()

    # The same since a step of one's own choice: a field that is filled counts as a click.
    person.begin(run)
    page.get_by_label("all, since step").fill("13")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Tasks by steps, steps 13")).to_be_visible()
    since = defaultdict(list)
    for it in (it for it in truth if it["step"] >= 13):
        since[it["task"]].append(bool(it["solved"]))
    lowest = sorted(since, key=lambda task: fmean(since[task]))[:2]
    assert page.locator("table.tasks tbody .task").first.inner_text() in lowest

    # 2. Which reward function is to blame?
    person.begin(run)
    person.tab("Why")
    person.tab("Reward functions")
    assert "tests_passed" in person.text(".verdict")

    # 3. The ten worst truncated rollouts
    page.goto(url)
    person.clicks = 0
    person.click(page.locator("tr", has=page.locator(f'[value="{run.truth.run}"]')).locator("td.truncated a"))
    shown = [float(it.replace("\N{MINUS SIGN}", "-")) for it in page.locator("td.reward").all_inner_texts()[:10]]
    cut = sorted(it["reward"] for it in truth if it["truncated"])
    assert shown == pytest.approx(cut[:10], abs=2e-3)

    # 4. Best against worst of one prompt
    person.begin(run)
    person.tab("Groups")
    person.click(page.locator("td.pair a"))
    expect(page.locator(".side-head")).to_have_count(2)
    assert "higher reward" in person.text()

    # 5. When did the entropy collapse?
    person.begin(collapsed)
    person.tab("Why")
    assert re.search("Entropy collapsed: .*since step 14", person.text(".verdict"))

    # 6. Is it the environment, or the policy?
    person.begin(run)
    person.tab("Why")
    fall = person.text("table.waterfall")
    cut_recently = sum(it["truncated"] for it in truth if it["step"] in sorted({it["step"] for it in truth})[-10:])
    assert f"55% {cut_recently}" in fall
    assert "nvironment" not in fall.replace("environment's", ""), "nothing went wrong there"

    # 7. Which rollouts were not trained on, and why?
    person.begin(run)
    person.tab("Why")
    person.tab("Used in training")
    steps = sorted({it["step"] for it in truth})[-10:]
    used = sum(it["step"] in steps and it["advantage"] != 0 for it in truth)
    assert f"{used} of {sum(it['step'] in steps for it in truth)} rollouts" in person.text(".verdict")

    # 8. What changed between two runs?
    page.goto(url)
    person.clicks = 0
    for box in page.locator('.tick input[name="run"]').all():
        person.click(box)
    person.click(page.locator("#compare"))
    figures = {line.split("\t")[0]: line for line in page.locator("table.figure-table tr").all_inner_texts()}
    for one in runs:
        solved = [bool(row["solved"]) for row in one.truth.rollouts if row["solved"] is not None]
        assert f"{100 * fmean(solved):.1f}%" in figures["solved"]
    assert "\N{BLACK UP-POINTING TRIANGLE}" in figures["solved"], "the other one solves more, beyond chance"
    assert "tests_passed" in figures

    # 9. Where did the model say it?
    person.begin(run)
    person.tab("Rollouts")
    words = {word for it in truth for word in re.findall(r"[a-z]{6,}", it["text"].lower())}
    said = {word: sum(bool(re.search(rf"\b{word}\b", it["text"].lower())) for it in truth) for word in sorted(words)}
    word = next(word for word, number in said.items() if 0 < number < len(truth))
    page.locator("#where").fill(f"assistant:{word}")
    page.keyboard.press("Enter")
    expect(page.locator("#found strong").first).to_have_text(str(said[word]), timeout=20_000)

    # 10. Share what I see
    person.begin(run)
    person.tab("Why")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    person.click(page.get_by_role("button", name="Copy link"))
    expect(page.locator("#said")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url

    # Find it again: a view that was saved under a name
    save = f"{url}/runs/{run.truth.run}/views"
    page.request.post(save, form={"query": "where=stop:length", "name": "cut off"}, headers={"Origin": url})
    person.begin(run)
    person.click(page.get_by_role("link", name="cut off"))
    expect(page.locator("#where")).to_have_value("stop:length")
