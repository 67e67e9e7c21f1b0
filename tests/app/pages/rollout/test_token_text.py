"""Token ids as text: nothing is lost, and nothing is shifted."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from logs_ui.app.pages.rollout.token_text import TokenText, Vocabularies, Vocabulary
from logs_ui.recorder.errors import LogsUIError
from tests.support.exhaustive import examples

WORDS = ("the", "cat", "sat", "on", "mat", "a", "s", ".", "é", "猫", "🐈", "##s", "n't")
KINDS = ("bytes", "byte fallback", "metaspace", "word piece", "word ends", "no decoder")


@cache
def tokenizer(kind: str) -> Tokenizer:
    """Of each kind that models come with, small."""
    spaced = ["<unk>", "▁", *(f"▁{word}" for word in WORDS), *WORDS]
    match kind:
        case "bytes":  # GPT-2, Qwen, Llama 3; here with few merges
            letters = sorted(pre_tokenizers.ByteLevel.alphabet())
            merges = [("t", "h"), ("th", "e"), ("Ã", "©")]
            pieces = [*letters, *(a + b for a, b in merges)]
            model = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
            model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            model.decoder = decoders.ByteLevel()
        case "byte fallback":  # Llama 2, Mistral, Gemma
            pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *spaced]
            model = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
            model.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            )
        case "metaspace":
            model = words_of(spaced)
            model.decoder = decoders.Metaspace()
        case "word piece":
            model = words_of(list(WORDS))
            model.decoder = decoders.WordPiece(cleanup=False)
        case "word ends":
            model = words_of([*WORDS, *(f"{word}</w>" for word in WORDS)])
            model.decoder = decoders.BPEDecoder()
        case _:
            model = words_of(list(WORDS))
    model.add_special_tokens(["<|end|>"])
    return model


def words_of(pieces: list[str]) -> Tokenizer:
    return Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, pieces[0]))


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer(kind).to_str().encode())


def id_of(kind: str, name: str) -> int:
    token = tokenizer(kind).token_to_id(name)
    assert token is not None
    return token


def token_texts(spelt: TokenText) -> list[str]:
    """By token."""
    return [spelt.text[start:end] for start, end in zip(spelt.starts, spelt.ends, strict=True)]


@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), st.data())
def test_tokens_say_together_what_the_tokenizer_decodes(kind: str, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer(kind).get_vocab_size() - 1), max_size=40))
    spelt = vocabulary(kind).spell(ids)
    whole = tokenizer(kind).decode(ids, skip_special_tokens=False)
    assert spelt.text.removesuffix(" ") == whole.removesuffix(" "), "at its end, one kind drops a space"
    assert [0, *spelt.ends][: len(ids)] >= list(spelt.starts), "no gap"
    assert sorted(spelt.starts) == list(spelt.starts)
    assert sorted(spelt.ends) == list(spelt.ends)
    assert not ids or spelt.ends[-1] == len(spelt.text)


@pytest.mark.parametrize("kind", ["bytes", "byte fallback"])
def test_parts_of_one_character_share_it(kind: str) -> None:
    letters = "ðŁĲĪ"  # the four bytes of a cat, as byte level tokenizers write them
    names = list(letters) if kind == "bytes" else [f"<0x{byte:02X}>" for byte in "🐈".encode()]
    cat = [id_of(kind, name) for name in names]
    the = id_of(kind, "the")
    assert token_texts(vocabulary(kind).spell([the, *cat, the])) == ["the", "🐈", "🐈", "🐈", "🐈", "the"]


def test_a_character_that_breaks_off_is_replaced_and_nothing_else() -> None:
    e, acute, the = (id_of("bytes", name) for name in ("Ã", "©", "the"))
    assert token_texts(vocabulary("bytes").spell([e, the])) == ["\ufffd", "the"]
    assert token_texts(vocabulary("bytes").spell([the, acute, the])) == ["the", "\ufffd", "the"]
    assert token_texts(vocabulary("bytes").spell([the, e])) == ["the", "\ufffd"]


def test_ids_that_the_tokenizer_has_not_are_spelt_as_numbers() -> None:
    for kind in KINDS:
        the, size = id_of(kind, "the"), tokenizer(kind).get_vocab_size()
        words = token_texts(vocabulary(kind).spell([the, size, -1, 2**31 - 1, the]))
        assert words[1:4] == [f"⟨{size}⟩", "⟨-1⟩", f"⟨{2**31 - 1}⟩"]
        assert words[0].strip() == words[4].strip() == "the"
        assert not vocabulary(kind).has(size)
        assert vocabulary(kind).has(the)


def test_special_tokens_are_known() -> None:
    end = id_of("metaspace", "<|end|>")
    assert vocabulary("metaspace").special == {end}
    assert token_texts(vocabulary("metaspace").spell([1, end]))[-1] == "<|end|>"


def test_a_tokenizer_is_read_once_and_the_last_four_are_kept() -> None:
    read: list[str] = []
    vocabularies = Vocabularies()

    def get(name: str) -> Vocabulary:
        def source() -> bytes:
            read.append(name)
            return tokenizer("bytes").to_str().encode()

        return vocabularies.get(name, source)

    assert get("a") is get("a")
    for name in ("b", "c", "d", "a", "e", "a"):
        get(name)
    assert read == ["a", "b", "c", "d", "e"]
    get("b")
    assert read[-1] == "b"


def test_a_tokenizer_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(LogsUIError, match="cannot read the stored tokenizer") as raised:
        Vocabulary(b"{}")
    assert "\n" not in str(raised.value)
