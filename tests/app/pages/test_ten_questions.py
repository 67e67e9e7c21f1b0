"""Questions of people who train agents: ten take three clicks from the list of runs, ten more two from Overview."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from operator import itemgetter
from statistics import fmean
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.app.web import urls
from tests.faults.realistic.counting import by, is_dead, tried
from tests.faults.realistic.recorded import Recorded, recorded, recorded_pair

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def runs() -> tuple[Recorded, Recorded]:
    """One whose entropy collapses; one that is cut off from step 10 on, and loses two repositories at step 12."""
    return recorded_pair("coding-entropy", "coding-two")


@pytest.fixture(scope="module")
def url(runs: tuple[Recorded, Recorded]) -> Iterator[str]:
    with BackgroundServer(runs[0].db) as server:
        yield server.url


class Person:
    """Somebody who clicks, a few times at most."""

    def __init__(self, page: Page, url: str, most: int) -> None:
        self.page, self.url, self._most, self._clicks = page, url, most, 0

    def open(self, address: str = "") -> None:
        self._clicks = 0
        self.page.goto(f"{self.url}{address}")
        self.page.wait_for_load_state("networkidle")

    def begin(self, run: Recorded) -> None:
        self.open()
        self.click(self.page.locator(f'a.row-link[href*="{run.truth.run}"]'))

    def click(self, what: Locator) -> None:
        self._clicks += 1
        assert self._clicks <= self._most
        what.first.click()
        expect(self.page.locator(".htmx-request")).to_have_count(0)  # what is swapped in is no load to wait for
        self.page.wait_for_load_state("networkidle")

    def tab(self, name: str) -> None:
        self.click(self.page.locator("#run-line .switch a, .why-tabs a, nav a", has_text=name))

    def text(self, of: str = "main") -> str:
        return " ".join(self.page.locator(of).first.inner_text().split())


def test_ten_questions_take_three_clicks_each_and_are_answered(
    page: Page, runs: tuple[Recorded, Recorded], url: str
) -> None:
    collapsed, run = runs
    truth: list[dict[str, Any]] = [dict(it) for it in run.truth.rollouts]
    late = [it for it in truth if it["step"] >= 12]
    person = Person(page, url, 3)

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
    person.open()
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
    person.open()
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


ADMIN = "shopping_admin"
Question = tuple[str, Sequence[str], str, Callable[[Recorded], str]]
"""A run, what is clicked from its Overview, where the answer stands, and a pattern of it, by the truth."""
TWO_CLICKS: dict[str, Question] = {
    "is all well?": ("coding-healthy", [], "#overview", lambda _: "No fault found"),
    "which family of three thousand tasks fails?": (
        "web-regressed", ["Why", "#by-places > summary"], "#by-places",
        lambda run: rf"solved in webarena/{ADMIN}/ \d+% {100 * solved_of(run)[ADMIN]:.0f}%",
    ),
    "which tasks are never solved?": (
        "web-regressed", ["Why", "Tasks"], "main",
        lambda _: f"(?=.*0 never solved).*webarena/{ADMIN}/ regressed since step 21",
    ),
    "how many groups teach nothing?": (
        "web-regressed", ["Groups"], "main",
        lambda run: f"{100 * fmean(map(is_dead, by('group', run.truth.rollouts).values())):.0f}% zero variance",
    ),
    "what do failing rollouts have that others have not?": (
        "tools-truncated", ["Why", "#by-groups > summary"], "#by-groups", lambda _: r"truncated 0% \d+%",
    ),
    "at what length are answers cut off?": (
        "mix-two", ["Why"], "main",
        lambda run: "Truncated generations have {} tokens \\(all of them\\)".format(
            *{it["cut_tokens"] for it in run.last_steps if it["truncated"]}
        ),
    ),
    "which environment of a mix is behind?": (
        "mix-two", ["Why", "#by-places > summary"], "#by-places tbody tr",
        lambda run: f"solved in {min(solved_of(run), key=solved_of(run).__getitem__)}/",
    ),
    "which function has most left to gain?": (
        "mix-two", ["Why", "Reward functions"], "main",
        lambda run: "{} has most left to gain \\({:.3f}\\)".format(*max(gains(run).items(), key=itemgetter(1))),
    ),
    "did TRL do the arithmetic that its arguments ask for?": (
        "async-healthy", ["Why", "Audit"], "main",
        lambda run: f"Advantages {sum(it['advantage'] is not None for it in run.last_steps)} none",
    ),
}  # fmt: skip


def solved_of(run: Recorded) -> dict[str, float]:
    """Return the share that is solved of each family in the last steps."""
    return {family: fmean(it["solved"] for it in mine) for family, mine in by("family", tried(run.last_steps)).items()}


def gains(run: Recorded) -> dict[str, float]:
    values = {name: [(it["values"] or {}).get(name) for it in run.last_steps] for name in run.truth.weights}
    return {name: 1 - fmean(value for value in mine if value is not None) for name, mine in values.items()}


@pytest.fixture
def read(page: Page) -> Iterator[Callable[[str], tuple[Person, Recorded]]]:
    """Return what opens the Overview of a realistic run."""
    with ExitStack() as servers:

        def begin(name: str) -> tuple[Person, Recorded]:
            run = recorded(name)
            person = Person(page, servers.enter_context(BackgroundServer(run.db)).url, 2)
            person.open(urls.overview(run.truth.run))
            return person, run

        yield begin


@pytest.mark.parametrize("question", TWO_CLICKS)
def test_ten_more_take_two_clicks_from_overview(read: Callable[[str], tuple[Person, Recorded]], question: str) -> None:
    name, clicks, place, answer = TWO_CLICKS[question]
    reader, run = read(name)
    for what in clicks:
        if what.startswith("#"):
            reader.click(reader.page.locator(what))
        else:
            reader.tab(what)
    assert re.search(answer(run), reader.text(place))


def test_what_the_worst_rollouts_of_the_last_step_are(read: Callable[[str], tuple[Person, Recorded]]) -> None:
    reader, run = read("shaped-healthy")
    box = reader.page.locator("#plot-reward .u-over").bounding_box()
    assert box
    reader.page.locator("#plot-reward .u-over").click(position={"x": box["width"] - 1, "y": 20})
    reader.page.wait_for_url(re.compile(r"step"))
    last = max(it["step"] for it in run.truth.rollouts)
    rewards = sorted(it["reward"] for it in run.truth.rollouts if it["step"] == last)
    expect(reader.page.locator("#found strong").first).to_have_text(str(len(rewards)))
    reader.click(reader.page.locator("th a", has_text="Reward"))
    expect(reader.page.locator("th", has_text="Reward").first).to_have_attribute("aria-sort", "ascending")
    shown = [float(it.replace("\N{MINUS SIGN}", "-")) for it in reader.page.locator("td.reward").all_inner_texts()[:3]]
    assert shown == pytest.approx(rewards[:3], abs=2e-3)
