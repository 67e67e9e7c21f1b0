"""A rollout's page in a real Chromium: tokens painted, keys, and what is read without any script."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, update
from sqlmodel import col

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.vocabulary import RunState, SentPrompt
from tests.support.axe import check_looks
from tests.support.dashboard import first_row
from tests.support.factory import make_run, make_tokenizer
from tests.support.payloads import pack_content, pack_tokens

RUN = "tokens-a1b2"
SHORT, LONG, BARE, THINKING, SEARCHED, SCORED, PLAYED = 2, 3, 4, 5, 6, 7, 8  # rollouts that this file writes anew
SAID = ["The answer is 4 🐈\n", "tool: 81 chapter1.txt", "I submit it\u202e now"]
LOGPS = (-0.01, -0.2, -0.7, -1.5, -3.0, -6.0)


def fill(engine: Engine) -> None:
    make_run(engine, uid=RUN, steps=3, state=RunState.FINISHED)
    write(engine, SHORT, *three_segments())
    write(engine, LONG, *many_tokens())
    write(engine, BARE, None, {"messages": [{"role": "assistant", "content": "four"}]})
    write(
        engine, THINKING, None, {"messages": [{"role": "assistant", "content": f"<think>{'hm ' * 400}</think>\nfour"}]}
    )
    hidden = f"<think>{'hm ' * 400} PATISSERIE, closed</think>\nThe <b>p\u00e2tisserie</b> is [closed](x)"
    messages = [{"role": "user", "content": "closed patisserie" + "\n" * 200}, {"role": "assistant", "content": hidden}]
    write(engine, SEARCHED, None, {"messages": messages})
    write(engine, SCORED, None, {"messages": [{"role": "assistant", "content": "four"}], "actions": scored_actions()})
    write(engine, PLAYED, None, {"messages": played()})
    with engine.begin() as connection:
        played_long = update(EvaluationRow).where(col(EvaluationRow.id) == PLAYED)
        connection.execute(played_long.values(turns=60, task="find the needle"))
        sent_more = update(EvaluationRow).where(col(EvaluationRow.id) == SCORED)
        connection.execute(sent_more.values(sent_prompt=SentPrompt.EXTENDED))
        alike = {"reward": 0.25, "advantage": 0.0}
        dead = update(EvaluationRow).where(col(EvaluationRow.generation) < 9, col(EvaluationRow.step) == 2)
        connection.execute(dead.values(**alike))
        connection.execute(update(Run).values(config={"beta": 0.0}))


@pytest.fixture(scope="module")
def url(engine: Engine, path: Path) -> Iterator[str]:
    with BackgroundServer(path) as server:
        yield f"{server.url}/runs/{RUN}/rollouts"


def write(engine: Engine, row: int, tokens: Tokens | None, content: dict[str, Any]) -> None:
    payload = {"tokens": None if tokens is None else pack_tokens(tokens), "content": pack_content(content)}
    with engine.begin() as connection:
        connection.execute(update(RolloutPayload).where(col(RolloutPayload.row_id) == row).values(**payload))


def three_segments() -> tuple[Tokens, dict[str, Any]]:
    pieces = [make_tokenizer().encode(text).ids for text in SAID]
    ids = [token for piece in pieces for token in piece]
    mask = [int(i != 1) for i, piece in enumerate(pieces) for _ in piece]
    logps = [LOGPS[i % len(LOGPS)] for i in range(len(ids))]
    tokens = Tokens(
        np.array(pieces[1], np.int32), np.array(ids, np.int32), np.array(logps, np.float16), np.array(mask, np.uint8)
    )
    messages = [{"role": "assistant", "content": SAID[0]}, {"role": "user", "content": SAID[1]}]
    return tokens, {"messages": [*messages, {"role": "assistant", "content": SAID[2]}]}


def played() -> list[dict[str, Any]]:
    """Sixty turns; the prompt, the model (20th turn) and a tool (40th turn) say `needle`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the needle."}]
    for turn in range(1, 61):
        call = {"id": str(turn), "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
        text = f"Turn {turn}." + " Where is the NEEDLE?" * (turn == 20)
        output = "hay\n" * 900 + "a needle\n" * (turn == 40) + "hay\n" * 200
        messages += [{"role": "assistant", "content": text, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": str(turn), "content": output}]
    return messages


def scored_actions() -> list[dict[str, Any]]:
    """A turn of the rollout, and what two reward functions called after it."""
    none = dict.fromkeys(("text", "action", "observation", "reward", "done", "metadata", "seconds", "error"))
    messages = [{"role": "system", "content": "Rate it <b>"}, {"role": "user", "content": "Answer: four"}]
    sent = {**none, "turn": 1, "text": "four", "action": {"say": 4}, "observation": "yes", "seconds": 0.1}
    stepped = {**none, "turn": 1, "action": {"guess": 4}, "observation": {"hint": "lower"}, "seconds": 0.25}
    judged = {**none, "turn": 1, "action": messages, "seconds": 2.5, "error": "APIConnectionError: Connection refused"}
    scoring = {"phase": "scoring", "evidence": "order"}
    return [sent, {**stepped, **scoring, "function": "solved"}, {**judged, **scoring, "function": "judged"}]


def many_tokens() -> tuple[Tokens, dict[str, Any]]:
    ids = make_tokenizer().encode('The listing shows {"sizes": "in bytes"}, so it works.\n' * 2_000).ids[:32_000]
    assert len(ids) == 32_000
    noise = np.random.default_rng(0).exponential(0.6, len(ids))
    return Tokens(np.array([], np.int32), np.array(ids, np.int32), (-noise).astype(np.float16), None), {}


def painted(page: Page) -> dict[str, list[str]]:
    """Text of every range, by the highlight's name."""
    words_by_level: dict[str, list[str]] = page.evaluate(
        """Object.fromEntries([...CSS.highlights].map(([name, ranges]) => [name, [...ranges].map(
            (it) => it.startContainer.data.slice(it.startOffset, it.endOffset))]))"""
    )
    return words_by_level


@pytest.mark.exhaustive
def test_all_views_are_accessible_and_no_wider_than_their_window(quiet_page: Page, url: str) -> None:
    views = (f"{SHORT}?view=tokens", f"{BARE}?view=tokens", str(THINKING), str(SCORED), "1?view=tokens")
    check_looks(
        quiet_page,
        [f"{url}/{view}" for view in views],
        4,
        widths=(390, 900, 1440),
        prepare=lambda page: expect(page.locator(".trained")).to_be_visible(),
    )


def test_calls_of_reward_functions_come_after_the_answer(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/{SCORED}")
    expect(page.locator("#scoring")).to_have_text("Calls of reward functions 2 calls")
    answer, stepped, judged = (page.locator(f"main article:has-text('{text}')") for text in ("yes", "lower", "Rate it"))
    expect(answer).not_to_contain_text("solved")
    for card, texts in (
        (stepped, ("solved", "guess", "250 ms")),
        (judged, ("judged", "Answer: four", "2.5 s", "refused")),
    ):
        for text in texts:
            expect(card).to_contain_text(text)
    expect(judged.locator(".word")).to_have_text("the call raised an error")
    # It is no error of the rollout.
    expect(page.locator("#failure")).to_have_count(0)
    expect(page.locator("[data-first-anomaly]")).to_have_count(0)
    page.get_by_role("link", name="reward functions").click()
    assert page.url.endswith("#scoring")
    response = page.goto(f"{url}/{SCORED}/text/scoring-1-1-error")
    assert response is not None
    assert response.text() == "APIConnectionError: Connection refused"


def test_tokens_are_painted_by_surprise_and_only_what_was_sampled(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/{SHORT}?view=tokens")
    tokens, _ = three_segments()
    segments = page.locator(".segment .spelt")
    expect(segments).to_have_count(4)  # with the prompt
    assert segments.evaluate_all("all => all.map(it => it.childNodes.length)") == [1, 1, 1, 1]
    assert segments.nth(1).inner_text().startswith("The answer is 4 🐈")
    ranges = painted(page)
    assert tokens.mask is not None
    sampled = [level for level, is_sampled in zip(surprise_levels(tokens), tokens.mask, strict=True) if is_sampled]
    assert {len(ranges[f"heat-{level}"]) > 0 for level in set(sampled) - {0}} == {True}
    inserted = page.locator(".segment.inserted .spelt").inner_text()
    assert not any(text and text == inserted for name in ranges for text in ranges[name])
    assert ranges["token-label"] == ["⟨RLO⟩"]
    assert ranges["token-end"] == ["↵"]
    assert "".join(ranges["heat-5"]), "the strongest"
    expect(page.locator(".segment.inserted")).to_contain_text("not trained on")


def surprise_levels(tokens: Tokens) -> list[int]:
    assert tokens.logprobs is not None
    return [sum(-float(logp) >= level for level in (0.1, 0.5, 1, 2, 4)) for logp in tokens.logprobs]


def test_the_token_under_the_pointer_says_its_figures(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/{SHORT}?view=tokens")
    tokens, _ = three_segments()
    text = page.locator(".segment.own .spelt").first
    figures = page.locator("#token-said")
    text.hover(position={"x": 3, "y": 8})
    expect(figures).to_contain_text("token 0")
    expect(figures).to_contain_text(f"id {tokens.completion_ids[0]}")
    expect(figures).to_contain_text("log p \u22120.010  p 99.0 %  mask 1")
    assert painted(page)["token-here"] == [make_tokenizer().decode([tokens.completion_ids[0]])]
    cat = text.evaluate(
        """it => { const r = document.createRange(), at = it.firstChild.data.indexOf("🐈");
                   r.setStart(it.firstChild, at); r.setEnd(it.firstChild, at + 2);
                   const b = r.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }"""
    )
    page.mouse.move(*cat)
    expect(figures).to_contain_text(re.compile(r'"🐈" part 1 of \d'))
    assert painted(page)["token-here"] == ["🐈"]
    page.mouse.move(2, 2)
    expect(figures).to_have_text("")
    page.locator(".segment.inserted .spelt").hover(position={"x": 3, "y": 8})
    expect(figures).to_contain_text("mask 0")


def test_keys_go_from_surprise_to_surprise_and_from_token_to_token(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/{SHORT}?view=tokens")
    tokens, _ = three_segments()
    assert tokens.mask is not None
    places = [i for i, level in enumerate(surprise_levels(tokens)) if level == 5 and tokens.mask[i]]
    assert len(places) > 1
    figures = page.locator("#token-said")
    for i in (*places, places[0]):  # round the end
        page.keyboard.press(".")
        expect(figures).to_contain_text(re.compile(rf"^token {i} "))
    page.keyboard.press(",")
    expect(figures).to_contain_text(re.compile(rf"^token {places[-1]} "))
    expect(page.locator("#said")).to_contain_text("log p \u22126.000")
    page.keyboard.press("ArrowLeft")
    expect(figures).to_contain_text(re.compile(rf"^token {places[-1] - 1} "))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    expect(figures).to_have_text("")
    page.get_by_role("button", name="1", exact=True).click()
    least = next(i for i, level in enumerate(surprise_levels(tokens)) if level >= 3 and tokens.mask[i])
    expect(figures).to_contain_text(re.compile(rf"^token {least} "))
    expect(page.get_by_role("button", name="1", exact=True)).to_have_attribute("aria-pressed", "true")


@pytest.mark.exhaustive
def test_a_surprise_far_down_is_scrolled_to(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/{LONG}?view=tokens")
    page.keyboard.press(",")  # the last one, round the beginning
    expect(page.locator("#token-said")).to_contain_text(re.compile(r"^token 3\d,?\d{3} "))
    assert page.evaluate("scrollY") > 2_000
    expect(page.locator("#token-bar")).to_be_in_viewport()


def test_the_line_at_the_top_says_whether_it_moved_the_policy(quiet_page: Page, engine: Engine, url: str) -> None:
    dead = first_row(engine, RUN, col(EvaluationRow.step) == 2)
    for view in ("timeline", "tokens", "raw"):
        quiet_page.goto(f"{url}/{dead}?view={view}")
        expect(quiet_page.locator(".trained")).to_contain_text("Not used in training: its advantage is 0: all")
    quiet_page.goto(f"{url}/{SHORT}")
    expect(quiet_page.locator(".trained")).to_contain_text(re.compile(r"Sampled [\d,]+ tokens, trained on [\d,]+, adv"))


def test_a_long_rollout_opens_at_the_words_of_the_role_that_was_searched(quiet_page: Page, url: str) -> None:
    marked = "() => [...CSS.highlights.get('searched')].map(String)"
    top = "() => [...CSS.highlights.get('searched')][0].getBoundingClientRect().top"
    for where, turn, words in (("tool:needle", 40, "needle"), ("assistant:needle", 20, "NEEDLE")):
        quiet_page.goto(f"{url}/{PLAYED}?where={where}")
        assert quiet_page.evaluate(marked) == [words], where
        assert 0 < quiet_page.evaluate(top) < 720, where
        line = quiet_page.locator("article", has_text="Where is the NEEDLE" if turn == 20 else "a needle")
        expect(line).to_be_in_viewport()
        if turn == 40:
            expect(line.locator("details.line")).to_have_attribute("open", "")
    quiet_page.goto(f"{url}/{PLAYED}?where=prompt:needle")
    assert quiet_page.evaluate(marked) == ["needle"]
    assert 0 < quiet_page.evaluate(top) < 720


def test_the_words_that_were_searched_for_are_marked_where_they_stand(quiet_page: Page, url: str) -> None:
    marked = "() => [...CSS.highlights.get('searched')].map(String)"
    quiet_page.goto(f'{url}/{SEARCHED}?where="patisserie closed" -text:user')
    assert quiet_page.evaluate(marked) == ["PATISSERIE, closed"], "a phrase, whatever its signs and case"
    fold = quiet_page.locator("details.fold", has_text="Reasoning")
    expect(fold).to_have_attribute("open", "")
    assert quiet_page.evaluate("scrollY") > 0
    quiet_page.goto(f"{url}/{SEARCHED}?where=pat%2A")
    assert quiet_page.evaluate(marked) == ["patisserie", "PATISSERIE", "p\u00e2tisserie"]
    assert quiet_page.locator(".text b").count() == 0, "what a model wrote stays text"
    quiet_page.goto(f"{url}/{SEARCHED}?where=status:ok")
    assert quiet_page.evaluate("CSS.highlights.has('searched')") is False
