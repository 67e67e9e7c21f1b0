"""What numpy counts in many texts at once is what Python counts in each."""

import random
from itertools import islice
from pydoc_data import topics

import numpy as np
import pytest

from logs_ui.recorder.rows.repetition import Shares, shares
from logs_ui.recorder.rows.text_facts import text_facts, token_facts
from logs_ui.recorder.storage.payload import Tokens

PROSE = " ".join(text for _, text in sorted(topics.topics.items()))
ODD = "ab AB\n\tçÇ é\u00a0İß字 \x1c\x85\u2003\0\ud800"


def counted(text: str) -> Shares | None:
    words = text.lower().split()
    if len(words) < 30:
        return None
    threes = list(zip(words, islice(words, 1, None), islice(words, 2, None), strict=False))
    return len(set(words)) / len(words), 1 - len(set(threes)) / len(threes)


def test_words_are_counted_as_python_splits_and_lowers_them() -> None:
    some = random.Random(0)
    odd = ["".join(some.choices(ODD, k=some.randrange(400))) for _ in range(200)]
    prose = [PROSE[place : place + some.randrange(3_000)] for place in range(0, 200_000, 997)]
    texts = [*odd, "", " ", "a", "x " * 40, PROSE[:200_000], "\n a b c " * 20, *prose, "w " * 50_000, "end " * 30]
    assert shares(texts, 30) == [counted(text) for text in texts]


def test_there_is_nothing_to_count_without_texts() -> None:
    assert shares([], 30) == []
    assert text_facts([]) == []
    assert text_facts([[]]) == [dict.fromkeys(("compression", "distinct_words", "trigram_repeats", "non_latin"))]


def test_a_rollout_has_the_worst_of_its_own_answers() -> None:
    circle, prose = "the same again " * 500, PROSE[:1_000]
    both, alone, none = text_facts([[prose, circle, "short"], [prose], []])
    assert both == text_facts([[circle]])[0]
    assert alone == text_facts([[prose]])[0]
    assert both["compression"] > 50
    assert 1 < alone["compression"] < 5
    assert set(none.values()) == {None}


def test_tokens_of_many_rollouts_are_measured_as_those_of_each() -> None:
    some = np.random.default_rng(0)
    prompts = [some.integers(0, 9, 4).astype(np.int32) for _ in range(20)]
    rollouts = []
    for i in range(100):
        ids, mask = some.integers(0, 9, i % 7).astype(np.int32), some.integers(0, 2, i % 7).astype(np.uint8)
        logprobs = some.normal(-1, 1, i % 7).astype(np.float16)
        logprobs[:1] = [np.nan, np.inf, -1.0][i % 3]
        rollouts.append(Tokens(prompts[i // 5], ids, logprobs if i % 4 else None, mask if i % 5 else None))
    found = token_facts(rollouts)
    assert found == [fact for one in rollouts for fact in token_facts([one])]
    assert len({fact["prompt_key"] for fact in found}) == 20
    (alone,) = token_facts([Tokens(prompts[0], prompts[0], np.array([-0.5, np.nan, -1.5, -9], np.float16), None)])
    assert alone["mean_logprob"] == (-0.5 - 1.5 - 9) / 3


@pytest.mark.parametrize(("texts", "share"), [
    (["It is 7."], 0.0),
    (["Caf\u00e9, na\u00efve, \u0153uvre"], 0.0),
    (["ab", "\u7b54\u6848 12_"], 0.5),  # two letters of four, over all answers
    (["\u0434\u0430"], 1.0),
    (["\u00e9\u0434"], 0.5),
    (["abc", "\u2d30\u2d63\u2d53"], 0.5),
    (["x in \u211d within 5 \u00b5s"], 0.0),  # signs
    (["12 + 3 = 15"], None),
    (["12 \u2264 15"], None),
    (["x\u00b2 + y\u00b2 = \u00bd \u2460"], 0.0),  # numbers, which no language tells
    ([], None),
])  # fmt: skip
def test_letters_of_other_scripts_than_latin_are_counted(texts: list[str], share: float | None) -> None:
    assert text_facts([texts])[0]["non_latin"] == share
