"""Ten more questions of people who train agents, each answered by two clicks from a run's Overview at most."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import fmean

import pytest
from playwright.sync_api import Locator, Page, expect

from logs_ui.app.commands.serve_command import BackgroundServer
from logs_ui.app.web import urls
from tests.faults.realistic.counting import by, is_dead, tried
from tests.faults.realistic.recorded import Recorded, recorded

pytestmark = pytest.mark.exhaustive
_CLICKS = 2
_MINUS = "\N{MINUS SIGN}"


class Reader:
    """Somebody who looks at a run's Overview, and clicks."""

    def __init__(self, page: Page, run: Recorded, server: str) -> None:
        self.page, self.run, self.clicks = page, run, 0
        page.goto(f"{server}{urls.overview(run.truth.run)}")
        page.wait_for_load_state("networkidle")

    def click(self, place: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= _CLICKS
        place.first.click()
        self.page.wait_for_load_state("networkidle")

    def open_tab(self, name: str) -> None:
        self.click(self.page.locator("#run-line .switch a, .why-tabs a", has_text=name))

    def text_of(self, selector: str = "main") -> str:
        return " ".join(self.page.locator(selector).first.inner_text().split())


@pytest.fixture
def read(page: Page) -> Iterator[Callable[[str], Reader]]:
    """Return what opens the Overview of a realistic run."""
    with ExitStack() as servers:
        yield lambda name: Reader(page, recorded(name), servers.enter_context(BackgroundServer(recorded(name).db)).url)


def test_is_all_well_is_answered_at_once(read: Callable[[str], Reader]) -> None:
    reader = read("coding-healthy")
    expect(reader.page.locator("#overview")).to_contain_text("Healthy")


def test_which_family_of_three_thousand_tasks_fails(read: Callable[[str], Reader]) -> None:
    reader = read("web-regressed")
    reader.open_tab("Why")
    reader.click(reader.page.locator("#by-places > summary"))
    late = [it for it in tried(reader.run.last_steps) if it["task"].startswith("webarena/shopping_admin/")]
    share = fmean(it["solved"] for it in late)
    assert re.search(rf"solved in webarena/shopping_admin/ \d+% {100 * share:.0f}%", reader.text_of("#by-places"))


def test_what_failing_rollouts_have_that_others_have_not(read: Callable[[str], Reader]) -> None:
    reader = read("tools-truncated")
    reader.open_tab("Why")
    reader.click(reader.page.locator("#by-groups > summary"))
    assert re.search(r"truncated 0% \d+%", reader.text_of("#by-groups"))


def test_at_what_length_answers_are_cut_off(read: Callable[[str], Reader]) -> None:
    reader = read("mix-two")
    reader.open_tab("Why")
    cut = [it for it in reader.run.last_steps if it["truncated"]]
    assert {it["cut_tokens"] for it in cut} == {128}
    assert "Truncated generations have 128 tokens (all of them)" in reader.text_of()


def test_which_environment_of_a_mix_is_behind(read: Callable[[str], Reader]) -> None:
    reader = read("mix-two")
    reader.open_tab("Why")
    reader.click(reader.page.locator("#by-places > summary"))
    shares = {
        family: fmean(it["solved"] for it in tried(rollouts))
        for family, rollouts in by("family", reader.run.last_steps).items()
    }
    worst = min(shares, key=lambda family: shares[family])
    assert f"solved in {worst}/" in reader.text_of("#by-places tbody tr")


def test_how_many_groups_teach_nothing(read: Callable[[str], Reader]) -> None:
    reader = read("web-regressed")
    reader.open_tab("Groups")
    groups = by("group", reader.run.truth.rollouts).values()
    assert f"{100 * fmean(map(is_dead, groups)):.0f}% zero variance" in reader.text_of()


def test_which_function_has_most_left_to_gain(read: Callable[[str], Reader]) -> None:
    reader = read("mix-two")
    reader.open_tab("Why")
    reader.open_tab("Reward functions")
    gains = {
        name: 1 - fmean(value for it in reader.run.last_steps if (value := (it["values"] or {}).get(name)) is not None)
        for name in ("math_correct", "web_success", "code_tests")
    }
    most = max(gains, key=lambda name: gains[name])
    assert f"{most} has most left to gain ({gains[most]:.3f})" in reader.text_of()


def test_what_the_worst_rollouts_of_the_last_step_are(read: Callable[[str], Reader]) -> None:
    reader = read("shaped-healthy")
    box = reader.page.locator("#plot-reward .u-over").bounding_box()
    assert box
    reader.clicks += 1
    reader.page.locator("#plot-reward .u-over").click(position={"x": box["width"] - 1, "y": 20})
    reader.page.wait_for_url(re.compile(r"step"))
    last = max(it["step"] for it in reader.run.truth.rollouts)
    count = sum(it["step"] == last for it in reader.run.truth.rollouts)
    expect(reader.page.locator("#found strong").first).to_have_text(str(count))
    reader.click(reader.page.locator("th a", has_text="Reward"))
    shown = [float(it.replace(_MINUS, "-")) for it in reader.page.locator("td.reward").all_inner_texts()[:3]]
    rewards = sorted(it["reward"] for it in reader.run.truth.rollouts if it["step"] == last)
    assert shown == pytest.approx(rewards[:3], abs=2e-3)


def test_which_tasks_are_never_solved(read: Callable[[str], Reader]) -> None:
    reader = read("web-regressed")
    reader.open_tab("Why")
    reader.open_tab("Tasks")
    assert "0 never solved" in reader.text_of()
    assert "webarena/shopping_admin/ regressed since step 21" in reader.text_of()


def test_whether_trl_did_the_arithmetic_that_its_arguments_ask_for(read: Callable[[str], Reader]) -> None:
    reader = read("async-healthy")
    reader.open_tab("Why")
    reader.open_tab("Audit")
    count = sum(it["advantage"] is not None for it in reader.run.last_steps)
    assert f"Advantages {count} none" in reader.text_of()
