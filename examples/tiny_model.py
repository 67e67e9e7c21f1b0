"""A model that two processor cores can train, made on the spot: nothing is downloaded. In place of it use your own."""

import functools
import importlib.resources
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

EOS, PAD = "<|im_end|>", "<|endoftext|>"
Message = dict[str, Any]
Lesson = tuple[list[Message], list[Callable[..., Any]]]
"""A conversation, and the tools that the assistant could call in it."""


def tiny_model(lessons: Sequence[Lesson], *, steps: int = 150) -> tuple[Any, Any]:
    """A Qwen3 of 0.2 million parameters and its tokenizer, taught for `steps` to talk as in the lessons: from random
    weights it would say nothing that an environment can read.
    """
    tokenizer = make_tokenizer(lessons)
    model = make_model(tokenizer)
    teach(model, tokenizer, lessons, steps=steps)
    return model, tokenizer


def say(role: str, content: str) -> Message:
    """A message."""
    return {"role": role, "content": content}


def call(name: str, **arguments: Any) -> Message:
    """The model's message that calls a tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def answer(name: str, content: str) -> Message:
    """What the tool answers."""
    return {"role": "tool", "name": name, "content": content}


def template(name: str) -> str:
    """One of TRL's own chat templates."""
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def make_tokenizer(lessons: Sequence[Lesson]) -> Any:
    """A byte-pair tokenizer of 600 tokens, trained on the lessons, with TRL's own template for the Qwen3 that does not
    think. Merges cross words, so that what all lessons have in common is few tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split("\n", behavior="isolated")  # where a turn begins, tokens begin
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [lines, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, EOS, "<|im_start|>"])
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    fast = functools.partial(
        PreTrainedTokenizerFast,
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=template("qwen3_instruct_2507"),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    texts = [fast().apply_chat_template(messages, tools=tools, tokenize=False) for messages, tools in lessons]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return fast()


def make_model(tokenizer: Any) -> Any:
    """A Qwen3 of 0.2 million random parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def teach(model: Any, tokenizer: Any, lessons: Sequence[Lesson], *, steps: int) -> None:
    """Supervised, on what the lessons' assistant says."""
    dice = random.Random(0)
    spell = functools.partial(tokenizer.apply_chat_template, chat_template=template("qwen3_instruct_2507_training"))
    spelled = [
        spell(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True) for messages, tools in lessons
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    model.train()
    for _ in range(steps):
        rows = dice.sample(spelled, 8)
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((8, width), tokenizer.pad_token_id)
        labels = torch.full((8, width), -100)
        for i, row in enumerate(rows):
            tokens, said = torch.tensor(row["input_ids"]), torch.tensor(row["assistant_masks"])
            ids[i, : len(tokens)] = tokens
            labels[i, : len(tokens)] = torch.where(said == 1, tokens, -100)
        model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
