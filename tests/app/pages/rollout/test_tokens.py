"""The token view: what the page is given of each token."""

import base64
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, insert

from logs_ui.app.pages.rollout.token_view import Segment, make_view
from logs_ui.app.parts import safe_text
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run, Tokenizer
from logs_ui.recorder.vocabulary import Status
from tests.app.pages.rollout.test_token_text import id_of, tokenizer
from tests.support.dashboard import dashboard
from tests.support.factory import insert_run
from tests.support.payloads import pack_content, pack_tokens

RUN = Run(uid="run", name="run", created=1, heartbeat=1, tokenizer="bytes")
LONG = "the cat said <b>\"résumé\"</b> to 🐈 猫,\nand {'the': 'end'}\n\n" * 900


def fill(engine: Engine) -> None:
    with engine.begin() as connection:
        for name, source in (("bytes", tokenizer("bytes").to_str().encode()), ("broken", b"{}")):
            connection.execute(insert(Tokenizer), {"hash": name, "data": zstandard.compress(source)})


@pytest.fixture
def db(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


def rollout(tokens: Tokens | None, **columns: Any) -> Rollout:
    fields: dict[str, Any] = {
        "uid": "a", "run_id": 1, "eval_name": "e", "mode": "train", "step": 1, "policy_step": 0, "group": "g",
        "generation": 0, "process": 0, "created": 1, "status": Status.OK,
    }  # fmt: skip
    return Rollout(EvaluationRow(**fields | columns), [], [], {}, {}, tokens)


def some_tokens(
    ids: list[int], *, prompt: tuple[int, ...] = (), mask: list[int] | None = None, logps: list[float] | None = None
) -> Tokens:
    return Tokens(
        np.array(prompt, np.int32),
        np.array(ids, np.int32),
        None if logps is None else np.array(logps, np.float16),
        None if mask is None else np.array(mask, np.uint8),
    )


def numbers(packed: str) -> list[int]:
    values, value, place = [], 0, 0
    for byte in base64.b64decode(packed):
        value |= (byte & 127) << place
        place += 7
        if byte < 128:
            values.append(value)
            value = place = 0
    return values


def token_texts(segment: Segment) -> list[str]:
    """By token, as a browser cuts them out of the text: by UTF-16 units."""
    units = unescape(str(segment.spelling.text)).encode("utf-16-le")
    lengths = numbers(segment.spelling.lengths)
    backs = numbers(segment.spelling.backs) or [0] * len(lengths)
    texts, at = [], 0
    for length, back in zip(lengths, backs, strict=True):
        start = at - back
        at = start + length
        texts.append(units[2 * start : 2 * at].decode("utf-16-le"))
    return texts


def test_sampled_and_inserted_segments_stand_apart_in_order(db: Connection) -> None:
    ids = tokenizer("bytes").encode("abcdefg").ids
    logps = [-0.05, -0.1, -3.0, 0.0, 0.0, -5.0, -0.6]
    tokens = some_tokens(ids, prompt=(1, 2), mask=[1, 1, 1, 0, 0, 1, 1], logps=logps)
    view = make_view(db, RUN, rollout(tokens), turns=2)
    places = [(part.kind, part.anchor, part.turn, part.first, part.count) for part in view.segments]
    assert places == [
        ("prompt", "tokens-prompt", None, 0, 2),
        ("sampled", "tokens-1", 1, 0, 3),
        ("inserted", "tokens-1-answer", 1, 3, 2),
        ("sampled", "tokens-2", 2, 5, 2),
    ]
    assert [unescape(part.spelling.text) for part in view.segments[1:]] == ["abc", "de", "fg"]
    assert [segment.mean_logp for segment in view.segments] == [
        None,
        pytest.approx(-1.05, abs=1e-3),
        None,
        pytest.approx(-2.8, abs=1e-3),
    ]
    assert [bool(part.logps) for part in view.segments] == [False, True, False, True]
    assert numbers(view.segments[3].spelling.ids) == ids[5:]
    assert (
        np.frombuffer(base64.b64decode(view.segments[3].logps), "<f2").tolist()
        == np.array([-5, -0.6], np.float16).tolist()
    )
    # -0.1 is a little more than that in float16, as the page's script has it, too: no other number decides
    assert view.level_counts == ((0.1, 3), (0.5, 3), (1.0, 2), (2.0, 2), (4.0, 1))
    assert (view.missing, view.hidden_count) == ([], 0)


def test_turns_are_named_only_where_as_many_were_sampled(db: Connection) -> None:
    tokens = some_tokens([5, 6, 7], mask=[1, 0, 1], logps=[-1, 0, -1])
    assert {segment.turn for segment in make_view(db, RUN, rollout(tokens), turns=3).segments} == {None}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 300), max_size=60), st.text(max_size=20))
def test_every_token_is_cut_out_of_what_is_shown(engine: Engine, ids: list[int], text: str) -> None:
    """Also behind halves of characters, astral ones, labels of what cannot be seen, and what is no token at all."""
    behind = tokenizer("bytes").encode(text + " the end").ids
    with engine.connect() as db:
        (segment,) = make_view(db, RUN, rollout(some_tokens([*ids, *behind])), turns=1).segments
    words = token_texts(segment)
    assert len(words) == len(ids) + len(behind)
    assert "".join(words[-8:]).endswith("he end")
    whole = unescape(segment.spelling.text)
    assert not safe_text.labels(whole)
    assert "\r" not in whole
    starts, at = [], 0
    for back, size in zip(numbers(segment.spelling.marks)[::2], numbers(segment.spelling.marks)[1::2], strict=True):
        at += back
        starts.append(whole.encode("utf-16-le")[2 * at : 2 * (at + size)].decode("utf-16-le"))
    assert all(mark == "↵" or (mark[0], mark[-1]) == ("⟨", "⟩") for mark in starts)


def test_what_cannot_be_seen_is_labelled_and_shifts_nothing(db: Connection) -> None:
    ids = tokenizer("bytes").encode("a\u202eb\x1b[31m\n\nc").ids
    (segment,) = make_view(db, RUN, rollout(some_tokens(ids)), turns=1).segments
    assert unescape(segment.spelling.text) == "a⟨RLO⟩b⟨ESC⟩[31m↵\n↵\nc"
    words = token_texts(segment)
    assert words[:5] == ["a", "⟨RLO⟩", "⟨RLO⟩", "⟨RLO⟩", "b"]
    assert words[-3:] == ["↵\n", "↵\n", "c"]


def test_special_tokens_and_unknown_ids_are_told(db: Connection) -> None:
    end = id_of("bytes", "<|end|>")
    view = make_view(db, RUN, rollout(some_tokens([1, end, end + 1, end])), turns=1)
    assert view.special_ids == f"{end} {end + 1}"
    assert token_texts(view.segments[0])[1:] == ["<|end|>", f"⟨{end + 1}⟩", "<|end|>"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [(None, "start_run() takes one"), ("elsewhere", "copy the table"), ("broken", "cannot read the stored")],
)
def test_without_a_tokenizer_ids_stand_in_its_place(db: Connection, name: str | None, reason: str) -> None:
    run = Run(uid="run", name="run", created=1, heartbeat=1, tokenizer=name)
    view = make_view(db, run, rollout(some_tokens([17, 4, 90_000], logps=[-1, -2, -3])), turns=1)
    assert view.missing[0][0] == "No tokenizer"
    assert reason in view.missing[0][1]
    assert token_texts(view.segments[0]) == ["17 ", "4 ", "90000 "]
    assert view.has_heat


def test_what_is_not_recorded_is_named(db: Connection) -> None:
    def missing(record: Rollout, turns: int = 1) -> list[str]:
        return [title for title, _ in make_view(db, RUN, record, turns).missing]

    assert missing(rollout(None, status=Status.RUNNING)) == ["No tokens yet"]
    assert missing(rollout(None, status=Status.ERROR)) == ["No tokens"]
    assert "return_token_ids" in make_view(db, RUN, rollout(None), 1).missing[0][1]
    lost = Run(uid="run", name="run", created=1, heartbeat=1, dropped_payloads=7)
    assert "LOGS_UI_QUEUE_MB" in make_view(db, lost, rollout(None, completion_tokens=3), 1).missing[0][1]
    assert missing(rollout(some_tokens([1]))) == ["No log-probabilities"]
    assert missing(rollout(some_tokens([1], logps=[float("nan")]))) == ["No log-probabilities"]
    assert missing(rollout(some_tokens([1, 2], logps=[-1, -1])), turns=2) == ["No mask"]
    assert missing(rollout(some_tokens([1, 2], logps=[-1, float("nan")]))) == []
    reasons = [reason for _, reason in make_view(db, RUN, rollout(some_tokens([1, 2])), turns=2).missing]
    assert [reason.partition("recorded")[0] for reason in reasons] == [
        "No finite log-probabilities were ",
        "No `env_mask` was ",
    ]
    assert make_view(db, RUN, rollout(some_tokens([])), 0).segments == []


def test_very_many_tokens_and_segments_are_cut(db: Connection) -> None:
    many = make_view(db, RUN, rollout(some_tokens([5] * 70_000, prompt=(5,) * 20_000)), turns=1)
    assert [len(numbers(segment.spelling.lengths)) for segment in many.segments] == [16_384, 65_536]
    assert [segment.count for segment in many.segments] == [20_000, 70_000]
    assert many.hidden_count == 90_000 - 16_384 - 65_536
    torn = make_view(db, RUN, rollout(some_tokens([5] * 5_000, mask=[1, 0] * 2_500)), turns=1)
    assert (len(torn.segments), torn.hidden_count) == (1_000, 4_000)


def long_rollout(engine: Engine) -> None:
    ids = tokenizer("bytes").encode(LONG).ids[:32_000]
    assert len(ids) == 32_000
    noise = np.random.default_rng(0).exponential(0.5, len(ids))
    tokens = some_tokens(ids, mask=([1] * 300 + [0] * 20) * 100, logps=(-noise).tolist())
    row = rollout(None).row.model_dump(exclude={"id", "run_id"})
    columns = RUN.model_dump(exclude={"id"})
    with engine.begin() as connection:
        run_id = insert_run(connection, columns)
        connection.execute(insert(EvaluationRow), row | {"id": 1, "run_id": run_id, "completion_tokens": 30_000})
        payload = {"row_id": 1, "content": pack_content({}), "tokens": pack_tokens(tokens)}
        connection.execute(insert(RolloutPayload), payload)


def test_a_page_of_32_thousand_tokens_is_small(engine: Engine, path: Path) -> None:
    long_rollout(engine)
    with dashboard(path) as client:
        html = client.get("/runs/run/rollouts/1?view=tokens").text
    assert html.count('class="text mono spelt"') == 200
    assert "<b>" not in html
    assert len(html.encode()) < 400_000 + 100 * 1_100, "and what a hundred turns' frames take"
