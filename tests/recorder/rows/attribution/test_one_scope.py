"""The shortcut of rows that are alone finds what the search would find."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, Generation, Note
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.rows import attribution
from logs_ui.recorder.rows.attribution import Seen, attribute, attribute_unfinished
from logs_ui.recorder.rows.attribution.exact.one_scope import of_one_scope

NO_IDS = np.array([1], np.int32)


def generation(log: Collector, order: int, *texts: str, row: int | None = 0, ids: Ids | None = None) -> Generation:
    strand = log.tree.child(log.tree.root, row=row)
    answers = [Sequence(ids, ids, "stop", text=text) for text in texts]
    return Generation(order, float(order), 0.1, answers, {}, "turn", strand)


def call(log: Collector, order: int, kind: str, *, client: int = 0, within: int | None = None) -> EnvironmentCall:
    strand = log.tree.child(log.tree.root, row=0)
    return EnvironmentCall(
        order, float(order), 0.1, client, kind, b"{}", b'"heard"', 0.5, None, None, None, strand, within
    )


def episode() -> Seen:
    log = Collector()
    failed = structs.replace(generation(log, 10), error="ConnectionError: refused")
    made = [generation(log, 1, "one"), generation(log, 5, "two", "or three"), generation(log, 9), failed]
    within = [call(log, 3, "step", within=2), call(log, 4, "step", client=1, within=3)]
    calls = [
        call(log, 0, "reset"),
        call(log, 2, "tool"),
        *within,
        call(log, 6, "step"),
        call(log, 7, "tool", client=-1),
    ]
    return Seen(made, calls, [Note(8, "tag", b'["x"]', log.tree.child(log.tree.root, row=0))])


@pytest.mark.parametrize("finished", [True, False])
def test_a_row_alone_is_given_what_the_search_gives_it(monkeypatch: pytest.MonkeyPatch, *, finished: bool) -> None:
    def found() -> Any:
        return attribute([NO_IDS], [NO_IDS], episode_) if finished else attribute_unfinished(1, episode_)

    episode_ = episode()
    shortcut = found()
    monkeypatch.setattr(attribution, "of_one_scope", lambda *_: None)
    assert shortcut == found()
    one, two = shortcut.rows[0].turns
    assert (one.sequence.text, two.sequence.text) == ("one", "two")
    assert ([other.text for other in two.others], two.is_used) == (["or three"], False)
    assert [child.order for child in shortcut.rows[0].children] == [3, 4]
    assert [failure.order for failure in shortcut.rows[0].failures] == [10], "nothing was asked of 9"


def test_what_is_to_be_found_out_is_searched() -> None:
    log, whole = Collector(), episode()
    with_ids = Seen([generation(log, 1, "one", ids=NO_IDS)], [])
    without_scope = Seen([generation(log, 1, "one"), generation(log, 2, "two", row=None)], [])
    unknown_parent = Seen([generation(log, 1, "one")], [call(log, 2, "step", within=7)])
    assert of_one_scope(1, whole)
    assert [of_one_scope(1, seen) for seen in (with_ids, without_scope, unknown_parent, Seen([], []))] == [None] * 4
    assert of_one_scope(2, whole) is None
