"""What a rollout's text and tokens come to once they are stored: prompts that rollouts share are stored once."""

import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs_ui.recorder import flush, load_image, load_run, start_run
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.rows.draft_batches import RowDraft, packed
from logs_ui.recorder.storage.address import Address, as_text, database_address
from logs_ui.recorder.storage.changes import Batch, Change, RunChange, StoredImage
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.payload import (
    Tokens,
    Unpacked,
    pack_together,
    unpack_content,
    unpack_tokens,
    unpacked_tokens,
)
from logs_ui.recorder.storage.payload import unpacked_content as content
from logs_ui.recorder.storage.spool import entry as entries
from logs_ui.recorder.storage.spool.entry import Entry
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.upkeep import check, delete_run, merge, prune
from tests.support.changes import BEGUN, nth, row, stored
from tests.support.exhaustive import examples
from tests.support.payloads import pack_tokens

IDS = st.lists(st.sampled_from([0, 1, 65_535, 65_536, 151_935, 2**31 - 1, -1]), max_size=9)
PROMPT = [{"role": "user", "content": "What is it? " * 60}]
ASKED = content({"messages": [*PROMPT, {"role": "assistant"}]})


def tokens() -> Tokens:
    return Tokens(np.arange(300, dtype=np.int32) % 97, np.arange(5, dtype=np.int32), None, None)


def play(db: str, run: str, prompts: int = 1, *, together: bool = True) -> None:
    """Groups of three, of a prompt each, all written in one transaction or each in its own."""
    with start_run(run, db=db) as opened:
        for number in range(3 * prompts):
            prompt = [{"role": "user", "content": f"{run} {number // 3}: {PROMPT[0]['content']}"}]
            place = {"task": f"{number // 3}", "group": f"{run}/{number // 3}", "generation": number % 3, "step": 1}
            with opened.rollout(prompt, **place) as row:  # type: ignore[arg-type]
                row.turn(f"It is {number}.", action=number)
                ids = [ord(run), number // 3, *range(299)]
                row.tokens(ids, [7, 8, number], logprobs=[-1.0, -2.0, -3.0], mask=[1, 0, 1])
                row.score(1.0)
            assert together or flush()
    assert flush()


def counted(db: str) -> tuple[int, int, int]:
    """Starts, and payloads whose content, and whose tokens, begin with one."""
    both = "SELECT (SELECT count(*) FROM payload_start), count(content_start), count(tokens_start) FROM rollout_payload"
    ((starts, contents, of_tokens),) = stored(database_address(db), both)
    return starts, contents, of_tokens


def whole(db: str, run: str) -> list[tuple[str, str, list[int], list[int]]]:
    frame = load_run(run, db).sort_values(["group", "generation"])
    return [
        (messages[0]["content"], messages[1]["content"], list(prompt), list(answer))
        for messages, prompt, answer in zip(frame.messages, frame.prompt_ids, frame.completion_ids, strict=True)
    ]


def as_played(run: str, prompts: int = 1) -> list[tuple[str, str, list[int], list[int]]]:
    return [
        (f"{run} {n // 3}: {PROMPT[0]['content']}", f"It is {n}.", [ord(run), n // 3, *range(299)], [7, 8, n])
        for n in range(3 * prompts)
    ]


@given(IDS, IDS, st.booleans(), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_tokens_are_what_they_were(prompt: list[int], answer: list[int], has_logprobs: bool, has_mask: bool) -> None:  # noqa: FBT001
    logprobs = np.linspace(-9, 0, len(answer)).astype(np.float16) if has_logprobs else None
    mask = np.ones(len(answer), np.uint8) if has_mask else None
    given = Tokens(np.array(prompt, np.int32), np.array(answer, np.int32), logprobs, mask)
    found = unpack_tokens(pack_tokens(given))
    assert found is not None
    for name in ("prompt_ids", "completion_ids", "logprobs", "mask"):
        before, after = getattr(given, name), getattr(found, name)
        assert (before is None) == (after is None), name
        if before is not None:
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_what_an_answer_or_a_prompt_says_is_no_start() -> None:
    said = 'x" }, {"role":"assistant"' * 50
    answers = [f"{said}{n}" for n in range(3)]
    asked = {"role": "user", "content": said}
    payloads = [content({"messages": [asked, {"role": "assistant", "content": answer}]}) for answer in answers]
    packed, starts = pack_together(payloads)
    assert len(starts) == 1
    unpacked = [unpack_content(it.data, starts[it.start or 0]) for it in packed]
    assert [it["messages"][1]["content"] for it in unpacked] == answers


def test_a_start_that_only_one_has_stays_with_it() -> None:
    alone = [
        content({"messages": [{"role": "user", "content": f"{n}{'.' * 900}"}, {"role": "assistant"}]}) for n in (1, 2)
    ]
    packed, starts = pack_together(alone)
    assert not starts
    assert all(it.start is None for it in packed)
    assert pack_together([content({"messages": [{"role": "user"}, {"role": "assistant"}]})] * 2)[1] == {}, "short"
    assert pack_together([Unpacked(b"{}" * 900)] * 2)[1] == {}, "nobody answered"


@pytest.mark.parametrize("logprob", [None, 0.0, -0.25, -1.5])
@pytest.mark.parametrize("has_mask", [True, False])
def test_tokens_without_their_prompt_are_not_taken_for_others(logprob: float | None, *, has_mask: bool) -> None:
    logprobs = None if logprob is None else np.full(9, logprob, np.float16)
    mask = np.ones(9, np.uint8) if has_mask else None
    given = Tokens(np.arange(300, dtype=np.int32), np.arange(9, dtype=np.int32), logprobs, mask)
    packed, starts = pack_together([unpacked_tokens(given)] * 2)
    assert unpack_tokens(packed[0].data, starts[packed[0].start or 0]) is not None
    with pytest.raises((ValueError, struct.error)):
        unpack_tokens(packed[0].data)


def test_so_many_prompts_are_remembered_as_the_docs_say() -> None:
    def of(number: int) -> list[Unpacked]:
        prompt = [{"role": "user", "content": f"{number}{'.' * 900}"}, {"role": "assistant"}]
        given = Tokens(np.arange(300, dtype=np.int32) + number, np.arange(5, dtype=np.int32), None, None)
        return [content({"messages": prompt}), unpacked_tokens(given)]

    for number in range(4_096):
        pack_together(of(number))
    packed, starts = pack_together(of(0))
    assert len(starts) == len([it for it in packed if it.start in starts]) == 2


@pytest.mark.parametrize("together", [True, False])
def test_the_prompt_of_a_group_is_stored_once(address: Address, *, together: bool) -> None:
    db = as_text(address)
    play(db, "a", 2, together=together)
    assert whole(db, "a") == as_played("a", 2)
    starts, contents, of_tokens = counted(db)
    assert starts == 4
    assert contents == of_tokens
    assert contents >= 4, "of each prompt all but the first, which may have come before it was known to be shared"
    assert all(finding.is_whole for finding in check(db))


def test_it_goes_with_the_last_rollout_of_it(address: Address) -> None:
    db = as_text(address)
    play(db, "a", 2)
    play(db, "b")
    assert counted(db)[0] == 6
    prune(db, run="a", where="task:0")
    assert counted(db)[0] == 4
    assert whole(db, "b") == as_played("b")
    delete_run("a", db)
    assert counted(db)[0] == 2
    assert whole(db, "b") == as_played("b")
    prune(db, run="b", where="generation:0")
    assert counted(db)[0] == 2, "two rollouts have it yet"


def test_it_is_merged_along(address: Address, tmp_path: Any) -> None:
    db, other = as_text(address), str(tmp_path / "other.db")
    play(db, "a", 2)
    merge([db], other)
    merge([db], other)
    assert whole(other, "a") == as_played("a", 2)
    assert counted(other) == counted(db)
    assert all(finding.is_whole for finding in check(other))


def draft(
    uid: str, said: Unpacked | None, ids: Tokens | None, *, images: tuple[StoredImage, ...] = (), **columns: Any
) -> RowDraft:
    return RowDraft(replace(row(uid, columns), images=images), said or content({}), ids, None)


def store(address: Address, *of_entries: Sequence[Change | RowDraft]) -> int:
    """Each in an entry of its own; return how many rows were refused."""
    with disposed(writing_engine(address)) as engine:
        intake = Intake(address, lambda: engine, "w", is_own=True)
        return sum(intake.take([Entry(nth(at), 1, packed(list(it)))]) for at, it in enumerate(of_entries, 1))


def test_a_payload_that_comes_later_keeps_the_others_start(address: Address) -> None:
    """As content without tokens: a row's tokens stay, and what they begin with."""
    first = [draft(f"{n}", ASKED, tokens()) for n in range(2)]
    store(address, [BEGUN, *first], [draft("0", content({"messages": []}), None)])
    frame = load_run("r", as_text(address))
    assert [len(it) for it in frame.messages] == [0, 2]
    assert [list(it) for it in frame.prompt_ids] == [list(tokens().prompt_ids)] * 2


def test_a_row_that_is_refused_costs_no_other_its_prompt(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGS_UI_RAISE")
    first, last = (draft(uid, ASKED, tokens()) for uid in "02")
    assert store(address, [BEGUN, first, draft("1", ASKED, tokens(), turns=2**70), last]) == 1
    assert [it[0]["content"] for it in load_run("r", as_text(address)).messages] == [PROMPT[0]["content"]] * 2


def test_what_waits_on_disk_has_it() -> None:
    rows = [draft(f"{n}", None, tokens()) for n in range(2)]
    batch = packed(rows)
    assert [row.tokens_start for row in batch.rows] == [batch.starts[0].id] * 2
    data, refused = entries.encoded(Entry(nth(1), 1, batch))
    assert refused == 0
    assert entries.decoded(data, entry_of).batch == batch
    kinds = [kind for it in batch.split() for kind in ("starts", "rows") if getattr(it, kind)]
    assert kinds == ["starts", "rows", "rows"]
    assert Batch.joined([batch, batch]).starts == batch.starts
    assert len(batch.starts) == 1


def test_a_rollout_whose_prompt_is_gone_is_counted_as_damaged(tmp_path: Any) -> None:
    db = str(tmp_path / "a.db")
    play(db, "a", 2)
    gone = "SELECT content_start FROM rollout_payload ORDER BY row_id DESC LIMIT 1"
    with sqlite3.connect(db) as connection:
        connection.execute(f"DELETE FROM payload_start WHERE id = ({gone})")  # noqa: S608
    said = {finding.what: finding.said for finding in check(db) if not finding.is_whole}
    assert "of rollout_payload refer to something that is missing" in said["references"]


def test_an_image_that_a_shared_prompt_shows_is_used(address: Address) -> None:
    shown = StoredImage("a" * 64, "image/png", 1, 1, b"png")
    said = {"messages": [{"role": "user", "content": {"$image": shown.hash}}, *PROMPT, {"role": "assistant"}]}
    rows = [draft(f"{n}", content(said), None, images=(shown,), task=f"{n}", status="ok") for n in range(3)]
    store(address, [BEGUN, RunChange("r", {"state": "finished"}), *rows])
    db = as_text(address)
    assert prune(db, where="task:0").images == 0
    assert load_image(shown.hash, db=db) == b"png"
    assert prune(db, run="r").images == 1
