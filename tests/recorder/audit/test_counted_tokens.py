"""Where no ids of generations are recorded, the turns' numbers of tokens show a mask that is missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from logs_ui.recorder import diagnose, start_run
from tests.support.command import typed

Count = Callable[[str], int | None]
BYTES = Tokenizer(
    models.BPE({symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
)
BYTES.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES.decoder = decoders.ByteLevel()
CALL = "I look at the table.\n<tool_call>{}</tool_call>"


def encode(text: str) -> list[int]:
    return list(BYTES.encode(text).ids)


def sampled(text: str) -> int:
    return len(encode(text))


def words(text: str) -> int:
    return len(text.split())


def uncounted(_: str) -> None:
    return None


def play(
    db: Path, mask: str, *, count: Count = sampled, tokenizer: Any = BYTES, heard: str = "north {}, south 12",
    calls: int = 3, is_inserted: bool = True, thought: str = "",
) -> str:  # fmt: skip
    """Record 32 rollouts that call a tool, and then answer. The tokens between answers are `mask`: "none" is given,
    "right" leaves them out, "ones" includes them, "second" includes those of the second call's observation, and
    "message" those around it, too; without `is_inserted` they are not among the ids. The model's ids begin with a
    thought, of what it was told before, that its texts lack.
    """
    with start_run("tables", db=db, tokenizer=tokenizer) as run:
        for number in range(32):
            task = f"Table {number // 4}?"
            with run.rollout(
                task, task=task, step=1 + number // 8, group=str(number // 4), generation=number % 4
            ) as row:
                ids, marks, told = list[int](), list[int](), ""
                for call in range(calls):
                    said, before, told = CALL.format(10 * number + call), told, heard.format(100 + call)
                    row.turn(said, finish="stop", action={"table": call}, observation=told, tokens=count(said))
                    parts = ["\n<|user|>\n<tool_response>\n", told, "\n</tool_response>\n<|assistant|>\n"]
                    parts = [part * is_inserted for part in parts]
                    thinks = thought.format(before)
                    ids += encode(thinks + said + "".join(parts))
                    marks += [1] * sampled(thinks + said)
                    is_part = {"second": (0, 1, 0), "message": (1, 1, 1)}.get(mask if call == 1 else "", (0, 0, 0))
                    marks += [mark for mark, part in zip(is_part, parts, strict=True) for _ in encode(part)]
                end = f"It is {number}, as the table says."
                row.turn(end, finish="stop", tokens=count(end))
                ids, marks = ids + encode(end), marks + [1] * sampled(end)
                row.tokens(encode(task), ids, mask={"none": None, "ones": [1] * len(marks)}.get(mask, marks))
            row.score(float(number % 3 == 0))
    return str(run.id)


def read(db: Path, uid: str) -> tuple[list[str], int]:
    """Return what the audit finds, and the number of rollouts of which it compared the mask."""
    audited = json.loads(typed("audit", uid, "--json", "--db", db).stdout)
    (mask,) = (check for check in audited["checks"] if check["name"] == "Mask")
    return [finding["id"] for finding in audited["findings"]], mask["rows"]


@pytest.mark.parametrize(
    ("mask", "more", "named"),
    [
        ("none", {}, "mask_missing"),
        ("none", {"heard": "{}"}, "mask_missing"),
        ("none", {"tokenizer": None, "heard": "count {} mean 12.5 std 3.1 min 0 max 77"}, "mask_missing"),
        ("ones", {"calls": 1}, "mask_inserted"),
        ("second", {}, "mask_inserted"),
        ("second", {"count": uncounted}, "mask_inserted"),
        ("second", {"heard": "CREATE TABLE t{} (\n  id INTEGER\n);", "thought": "<think>I was told {}.</think>"},
         "mask_inserted"),
        ("message", {}, "mask_inserted"),
        ("message", {"count": words}, "mask_inserted"),
    ],
)  # fmt: skip
def test_tokens_that_no_turn_counted_are_those_of_tools(db: Path, mask: str, more: dict[str, Any], named: str) -> None:
    uid = play(db, mask, **more)
    assert read(db, uid) == ([named], 32)
    first = diagnose(uid, db=db).cards[0]
    assert (first.id, first.is_setup) == ("arithmetic", True)
    assert "no generation sampled" in first.evidence[0]


@pytest.mark.parametrize(
    ("mask", "more", "compared"),
    [
        ("right", {}, 32),
        ("right", {"tokenizer": None}, 32),
        ("none", {"calls": 0}, 0),
        ("none", {"is_inserted": False}, 32),
        # What was counted otherwise shows nothing.
        ("right", {"count": words}, 0),
        ("right", {"count": words, "tokenizer": None}, 0),
        ("none", {"count": words, "is_inserted": False}, 0),
        ("none", {"count": words, "calls": 0, "tokenizer": None}, 0),
        ("none", {"count": uncounted}, 0),
        # Thoughts that quote what was observed, and that the recorded texts and numbers lack.
        ("right", {"thought": "<think>{}</think>"}, 0),
        ("right", {"thought": "<think>{}</think>", "count": uncounted}, 0),
        ("right", {"thought": "{}", "count": words}, 0),
    ],
)
def test_a_mask_that_fits_or_cannot_be_told_is_no_fault(
    db: Path, mask: str, more: dict[str, Any], compared: int
) -> None:
    assert read(db, play(db, mask, **more)) == ([], compared)


def test_how_many_masks_could_be_compared_is_told(db: Path) -> None:
    """Words are counted of most answers."""
    counts = iter([*[sampled] * 16, *[words] * 112])

    def count(text: str) -> int | None:
        return next(counts)(text)

    uid = play(db, "right", count=count, calls=3)
    report = typed("audit", uid, "--db", db).stdout
    assert "Mask: 4 rollouts compared, none differs. Rollouts whose mask could not be compared: 28." in report
    (said,) = (check.said for check in diagnose(uid, db=db).checked if check.id == "arithmetic")
    assert said.startswith("The mask was compared in 4 rollouts only: ")


@pytest.mark.parametrize(
    ("count", "calls", "is_judged"), [(sampled, 3, True), (uncounted, 3, False), (uncounted, 0, True)]
)
def test_a_mask_that_was_not_compared_is_told(db: Path, count: Count, calls: int, *, is_judged: bool) -> None:
    report = diagnose(play(db, "right", count=count, calls=calls), db=db)
    (said,) = (check.said for check in report.checked if check.id == "arithmetic")
    assert said.startswith("No rollout differs" if is_judged else "The mask was not compared")
