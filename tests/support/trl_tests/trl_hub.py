"""Makes models and tokenizers of the names that TRL's own tests load from the hub, with random weights, into a folder
that is laid out as the hub's cache. It downloads nothing.

TRL's tests of tools and environments hold token ids of Qwen's tokenizer, with their texts in a comment. The tokenizer
here is made from those: ids decode to these texts. In a copy of the tests, ids have other numbers: see `renumbered`.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

OWNER = "trl-internal-testing"
END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = {PAD: 151643, "<|im_start|>": 151644, END: 151645}
MARKS = {"<tool_call>": 151657, "</tool_call>": 151658, "<tool_response>": 151665, "</tool_response>": 151666}
MARKS |= {"<think>": 151667, "</think>": 151668}
QWENS = 151_936  # the size of its vocabulary, most of which the tests do not need
VOCABULARY = 2_048

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template for releases of TRL that bring none."""


def make_hub(tests: Path, hub: Path) -> None:
    """Makes all models, and adapts the token ids in a copy of TRL's tests."""
    source = (tests / "test_grpo_trainer.py").read_text()
    texts = dict(texts_with_ids(source))
    used = {number for ids in texts.values() for number in ids if number > 255}
    small = {old: 256 + number for number, old in enumerate(sorted({*used, *SPECIAL.values(), *MARKS.values()}))}
    tokens = {text: small.get(number, number) for text, number in (pieces(texts) | SPECIAL | MARKS).items()}
    (tests / "test_grpo_trainer.py").write_text(renumbered(source, small))
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"intermediate_size": 32, "vocab_size": VOCABULARY, "pad_token_id": tokens[PAD]}
    size |= {"eos_token_id": tokens[END], "bos_token_id": tokens[PAD], "max_position_embeddings": 32_768}
    experts = size | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 2}
    thin = size | {"head_dim": 2}
    kinds: dict[str, tuple[Any, Any, str]] = {
        "tiny-Qwen2ForCausalLM-2.5": (Qwen2ForCausalLM, Qwen2Config(**size), "qwen2_5"),
        "tiny-Qwen2ForSequenceClassification-2.5": (
            Qwen2ForSequenceClassification,
            Qwen2Config(**size, num_labels=1),
            "qwen2_5",
        ),
        "tiny-Qwen3ForCausalLM": (Qwen3ForCausalLM, Qwen3Config(**thin), "qwen3"),
        "tiny-Qwen3ForCausalLM-Instruct-2507": (Qwen3ForCausalLM, Qwen3Config(**thin), "qwen3_instruct_2507"),
        "tiny-Qwen3ForSequenceClassification": (
            Qwen3ForSequenceClassification,
            Qwen3Config(**thin, num_labels=1),
            "qwen3",
        ),
        "tiny-Qwen3MoeForCausalLM": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**experts), "qwen3"),
        "tiny-Cohere2ForCausalLM": (Cohere2ForCausalLM, Cohere2Config(**size), "cohere2"),
        "tiny-Gemma2ForCausalLM": (Gemma2ForCausalLM, Gemma2Config(**size, head_dim=2), "gemma"),
        "tiny-LlamaForCausalLM-3.2": (LlamaForCausalLM, LlamaConfig(**size), "llama3_2"),
        "tiny-LlamaForSequenceClassification-3.2": (
            LlamaForSequenceClassification,
            LlamaConfig(**size, num_labels=1),
            "llama3_2",
        ),
        "tiny-MistralForCausalLM-0.2": (MistralForCausalLM, MistralConfig(**size), "chatml"),
    }
    for name, (kind, config, template) in kinds.items():
        folder = hub / f"models--{OWNER}--{name}"
        snapshot = folder / "snapshots" / "local"
        kind(config).save_pretrained(snapshot)
        make_tokenizer(tokens, template).save_pretrained(snapshot)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("local")


def make_tokenizer(tokens: Mapping[str, int], template: str) -> Any:
    """Returns a byte-level tokenizer with these further tokens."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]  # in Qwen's order
    visible = dict(zip([*printable, *others], letters, strict=True))
    known = {"".join(visible[byte] for byte in text.encode()): number for text, number in tokens.items()}
    vocabulary = {letter: number for number, letter in enumerate(letters)} | known
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKS])
    path = files("trl") / "chat_templates" / f"{template}.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=path.read_text() if path.is_file() else CHATML,
        clean_up_tokenization_spaces=False,
        model_max_length=32_768,
        model_input_names=["input_ids", "attention_mask"],
    )


def texts_with_ids(source: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields each list of token ids that has its text in the comment before it."""
    text = None
    for line in map(str.strip, source.splitlines()):
        if found := re.fullmatch(r"# ((['\"])<?\w.*\2)( \+ pad\w*)?", line):
            text = ast.literal_eval(found[1])
        elif (found := re.fullmatch(r"\[(\d[\d, ]*)\],?", line)) and text is not None:
            ids = [int(number) for number in found[1].split(",")]
            if max(ids) < QWENS:
                yield text, tuple(number for number in ids if number != SPECIAL[PAD])
            text = None


def renumbered(source: str, small: Mapping[int, int]) -> str:
    """Returns the tests with other numbers in their lists of token ids: with all of Qwen's they take minutes each."""

    def changed(found: re.Match[str]) -> str:
        return ", ".join(str(small.get(int(number), int(number))) for number in found[0].split(", "))

    return re.sub(r"(?<=\[)\d+(, \d+){2,}(?=\])", changed, source)


def pieces(texts: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns a token for each id, such that the ids of each text decode to it. Where a text can be cut in several
    places, any will do.
    """
    whole = SPECIAL | MARKS | {chr(33 + number): number for number in range(94)} | {"\n": 198, " ": 220}
    found = {number: text for text, number in whole.items()}
    jobs = list(texts.items())
    sys.setrecursionlimit(10_000)

    def solved(job: int, at: int, place: int) -> bool:
        if job == len(jobs):
            return True
        text, ids = jobs[job]
        if place == len(ids):
            return at == len(text) and solved(job + 1, 0, 0)
        number = ids[place]
        if number in found:
            token = found[number]
            return text.startswith(token, at) and solved(job, at + len(token), place + 1)
        for length in range(1, min(16, len(text) - at) + 1):
            token = text[at : at + length]
            if token in found.values():
                continue
            found[number] = token
            if solved(job, at + length, place + 1):
                return True
            del found[number]
        return False

    if not solved(0, 0, 0):
        raise ValueError("no tokens give the texts that stand beside the token ids of TRL's tests")
    return {text: number for number, text in found.items() if text not in whole}


if __name__ == "__main__":
    make_hub(Path(sys.argv[1]), Path(sys.argv[2]))
