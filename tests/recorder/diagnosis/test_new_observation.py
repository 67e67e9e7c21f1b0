"""An observation that begins during a run and costs reward is a finding, unless the policy's actions explain it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.action_text import observation_key
from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.checks.invented_observations import _find_invented
from logs_ui.recorder.diagnosis.checks.new_observation import _keys, _quote
from logs_ui.recorder.diagnosis.wording import figure
from tests.recorder.diagnosis.test_diagnosis import card, rows_of

COUNT = 480
PLACE = np.arange(COUNT)
LATE = PLACE >= COUNT // 2  # step 7 of 12
HIT = LATE & (PLACE % 4 < 2)
GONE, HOME = "503 Service is gone, id 7f", "a red door"
KEYS = {text: observation_key(text) for text in (GONE, HOME)}
ANSWERED = [{"action": {"name": "search", "arguments": {"q": name}}, "observation": HOME} for name in ("a", "b")]
WON = np.where(HIT, 0.0, (PLACE % 5 > 0).astype(float))


def judged(hit: Any = HIT, texts: bool = True, **columns: Any) -> Report:  # noqa: FBT001, FBT002
    """Diagnose a run whose rollouts call `search` and hear that the service is gone, or of a door."""
    heard = [GONE if it else HOME for it in hit]
    columns = dict[str, Any](reward=WON, observation_keys=[KEYS[it] for it in heard], env_steps=1.0) | columns
    action = columns.pop("action", lambda place: {"name": "search", "arguments": {"q": str(place)}})
    more = columns.pop("more", ())

    def read(ids: Sequence[int]) -> Mapping[int, Texts]:
        found = {it: [{"action": action(it - 1), "observation": heard[it - 1]}, *more] for it in ids}
        return {it: Texts((), entries) for it, entries in found.items()} if texts else {}

    return diagnose_rows(rows_of(COUNT, steps=12, **columns), has_ended=True, read_texts=read)


def test_it_is_found_with_its_text_step_action_and_cost() -> None:
    advantage = np.where(HIT, -0.5, 0.5)
    found = card(judged(advantage=advantage), "new_observation")
    assert (found.since_step, found.is_setup) == (7, True)
    assert found.title == "\u201c503 Service is gone, id 7f\u201d is answered to 30% of rollouts, 0% before step 7"
    assert found.evidence[0] == (
        "In 32 of them that were read, 32 of 32 answers to search are so (equal actions count once); in 32 rollouts "
        "before, 0 of 32."
    )
    assert found.evidence[1:] == (
        "They lose 0.8 more than others of their groups.",
        "100% of them are trained on; their mean advantage is \u22120.5.",
    )


NEW_TASK = [f"{'other' if late else 'task'} {place % 3}" for place, late in zip(PLACE // 4, LATE, strict=True)]


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("Of 1 frequent beginnings or endings of observations none began", {"reward": (PLACE % 5 > 0).astype(float)}),
        ("Of 1 frequent beginnings or endings of observations none began", {"task": NEW_TASK}),
        (
            "No beginning or ending of observations that is frequent was 10 times rarer",
            {"hit": HIT | (PLACE % 16 == 0)},
        ),
        ("it follows actions that were not taken before", {"action": lambda it: {"name": f"f{HIT[it]}", "input": "a"}}),
        ("these repeat their actions", {"action_tail": np.where(HIT, 5.0, 1.0), "more": ANSWERED}),
        ("The texts of its rollouts cannot be read", {"texts": False}),
    ],
)
def test_it_is_no_finding_if_something_else_explains_it(said: str, changes: Mapping[str, Any]) -> None:
    report = judged(**changes)
    checked = {it.id: it.said for it in report.checked}
    assert said in checked.get("new_observation", str([it.title for it in report.cards]))


WORDS = [f"{first}{second}sh" for first in "bcdfgklmp" for second in "aeiou"]
GUESSES = np.random.default_rng(2).choice(WORDS[:30], COUNT)


def test_guesses_of_many_words_are_no_new_actions_if_as_many_recur_as_did_before() -> None:
    found = card(judged(action=lambda place: {"guess": GUESSES[place]}), "new_observation")
    assert found.is_setup
    report = judged(action=lambda place: {"guess": "zz" + GUESSES[place] if HIT[place] else GUESSES[place]})
    assert (
        "it follows actions that were not taken before" in {it.id: it.said for it in report.checked}["new_observation"]
    )


def test_it_is_no_fault_of_the_set_up_if_such_calls_are_answered_otherwise_too() -> None:
    found = card(judged(more=ANSWERED), "new_observation")
    assert (found.is_setup, found.evidence[0][:50]) == (False, "In 32 of them that were read, 32 of 96 answers to ")


def test_it_is_found_if_it_costs_the_outcome_alone() -> None:
    judge, kept = np.where(LATE, 1.0, PLACE % 2), np.where(HIT, 0.25, 0.75)
    parts, weights = {"judge": judge, "kept": 0 * kept}, {"judge": 1.0, "kept": 0.0}
    report = judged(reward=judge, parts=parts, values={"judge": judge, "kept": kept}, weights=weights)
    found = card(report, "new_observation")
    assert [it.id for it in report.cards] == ["hacking", "new_observation"]
    assert (found.cost, found.is_setup) == (None, False)
    assert found.evidence[1] == "Their mean kept is 0.5 lower than that of others of their groups."


@pytest.mark.parametrize(
    ("answer", "is_invented"),
    [
        ("I go.\nObservation: You see a cat.", True),
        ("I go.\n**Tool output:** You see a cat.", True),
        ("I go.\n<observation>\n You see a cat.</observation>\nI go.", True),
        ("I go.\n[Result 2] You see a cat.", True),
        ("I go.\n# Environment: You see a cat.", True),
        ("I go.\nObservation:", False),
        ("I go.\nObservation: I see a cat.", False),
        ("I go.\nObservation: You see a door.", False),
        ("Observation: You see a cat.", False),
        ("<think>I go.\nObservation: You see a cat.\n</think>I go.", False),
        ("I go.\nYou see a cat.", False),
        ("I go.\nThought: You see a cat.", False),
        ("I go. The last observation: You see a cat.", False),
    ],
)
def test_a_labelled_line_that_begins_as_usual_and_was_not_heard_is_invented(answer: str, *, is_invented: bool) -> None:
    said = [("user", "Go."), ("assistant", "I go."), ("user", "You see a door. It is red."), ("assistant", answer)]
    texts = Texts([{"role": role, "content": content} for role, content in said], ())
    assert bool(_find_invented({1: texts}, {"You see a"})) is is_invented


@pytest.mark.parametrize(
    ("last", "quoted"),
    [
        (["ModuleNotFoundError: No module named 'numpy'"] * 3, "ModuleNotFoundError: No module named 'numpy'\u201d"),
        (["KeyError: 'a'", "numpy.Error: b", "numpy.Error: b"], "numpy.Error: b\u201d or another exception"),
    ],
)
def test_of_tracebacks_the_exception_is_quoted(last: list[str], quoted: str) -> None:
    before = 'Traceback (most recent call last):\n  File "cell_0.py", line 1, in <module>\n    import it\n'
    texts = [Texts([], [{"turn": 1, "action": "run", "observation": f"{before}{line}\n"}]) for line in last]
    (key,) = {_keys(text.actions[0]["observation"])[0] for text in texts}
    assert key is not None
    assert _quote(texts, key) == f"\u201cTraceback \u2026 {quoted}"


def test_a_rounded_nothing_has_no_sign() -> None:
    assert [figure(value) for value in (-0.0, 0.0, -0.25)] == ["0", "0", "\u22120.25"]


def test_endings_are_not_compared_with_rows_that_were_stored_without_their_keys() -> None:
    """A blank says that they were looked at."""
    said = []
    for blank in (" ", ""):
        keys = [
            f"{KEYS[HOME]} {'cutX' if hit else ''}" if late else f"{KEYS[HOME]}{blank}"
            for hit, late in zip(HIT, LATE, strict=True)
        ]
        report = judged(observation_keys=keys)
        said.append(next(check.said for check in report.checked if check.id == "new_observation"))
    assert said == [
        "An observation is new and costs reward, but 32 rollouts that were read do not have it.",
        "No beginning or ending of observations that is frequent was 10 times rarer at first.",
    ]
