"""Values of foreign records are converted as they are meant, and what is none of them stays apart."""

import math
from pathlib import Path

import pytest

from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.formats._values import (
    decode_json,
    halves,
    key_of,
    messages_of,
    micros,
    number,
    part,
    whole,
)
from logs_ui.recorder.importing.reader import ImportedRollout
from logs_ui.recorder.importing.source_files import Place, RecordError
from tests.recorder.importing.flat_reading import token_lists


def test_numbers_may_be_written_as_text() -> None:
    assert [number(it) for it in (1, 0.5, True, "0.5", "-Infinity", 10**400, -(10**400))] == [
        *(1.0, 0.5, 1.0, 0.5, -math.inf, math.inf, -math.inf)
    ]
    assert math.isnan(number("NaN") or 0.0)
    assert [number(it) for it in (None, "a", "", [1], ())] == [None] * 5
    assert [whole(it) for it in (3, "4", 5.0, math.nan, "Infinity", None)] == [3, 4, 5, None, None, None]


def test_times_are_told_apart_by_their_size() -> None:
    expected = 1_790_000_000_000_000
    for value in (1_790_000_000, 1_790_000_000_000, "1790000000000000", 1_790_000_000_000_000_000):
        assert micros(value) == expected
    for text in ("2026-09-21T14:13:20", "2026-09-21T16:13:20+02:00", "2026-09-21T14:13:20Z"):
        assert micros(text) == expected
    assert [micros(it) for it in (None, "soon", 0, -5, math.nan, math.inf, 1e30, ())] == [None] * 8


def test_json_that_is_none_costs_its_record() -> None:
    assert decode_json('{"a": NaN, "b": "\\ud800"}') != decode_json(b"{}") == {}
    assert decode_json(None) is None
    assert decode_json([1]) == [1]
    with pytest.raises(RecordError, match="is not valid JSON"):
        decode_json("{")
    assert part({"a": {"b": None, "c": 0}}, "a") == {"c": 0}
    assert part({"a": 1}, "a") == part(None, "a") == {}


def test_conversations_are_messages_or_text() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert messages_of(messages) is messages
    assert messages_of('[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]') == messages
    for text in ("a", "[{", '[{"a": 1}]', ""):
        assert messages_of(text, "assistant") == [{"role": "assistant", "content": text}]
    assert [messages_of(it) for it in (None, 1, [1], [{"content": "a"}], [{"role": None}])] == [None] * 5
    assert halves(messages) == (messages[:1], messages[1:])
    assert halves(messages[:1]) == (messages[:1], [])


def test_token_arrays_fit_each_other() -> None:
    tokens = _values.token_arrays([1], [2, 3], [None, -1e9], [1, 0])
    assert token_lists(tokens) == [[1], [2, 3], [1, 0], [None, -math.inf]]
    assert _values.token_arrays([1], None) is _values.token_arrays(None, []) is None
    for wrong in (([1], ["a"]), ([1], [2, 3], [0.5]), ([1], [2**40]), ([1], [[2], [3]]), ([1], [2], 0.5)):
        with pytest.raises(RecordError, match="token ids"):
            _values.token_arrays(*wrong)


def test_an_id_that_is_too_long_is_hashed() -> None:
    place = Place(Path("a.jsonl"), "a.jsonl", "f", 3)
    assert [key_of(it, place) for it in ("x", 7, None, "", "y" * 300)] == ["x", "7", "f-3", "f-3", "y" * 300]
    assert len(key_of("z" * 301, place)) == 16


def test_columns_of_our_export_are_restored_unless_another_tool_has_changed_the_rollout() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    found = ImportedRollout("k", messages[:1], messages[1:], reward=0.5, staleness=0, task="q", run="r")
    own = {"message_count": 2, "reward": 0.5, "task": "t", "policy_step": 3, "step": 4, "stop_reason": "length"}
    one = _values.restore_columns(found, own)
    assert (one.key, one.run, one.prompt, one.task, one.step, one.policy_step) == ("k", "r", messages[:1], "t", 4, 3)
    assert (one.stop_reason, one.staleness, one.mode) == ("length", None, "eval"), "what is not there was None"
    for changed in ({}, own | {"reward": 1.0}, own | {"message_count": 3}):
        assert _values.restore_columns(found, changed) is found
    odd = _values.restore_columns(
        found, own | {"reward": None, "odd_rewards": {"f": "nan"}, "rewards": {"f": None, "g": 1.0}}
    )
    assert math.isnan(odd.reward or 0.0)
    assert math.isnan((odd.rewards or {})["f"] or 0.0)
    with pytest.raises(ValueError, match="strange"):
        _values.restore_columns(found, own | {"stop_reason": "strange"})
