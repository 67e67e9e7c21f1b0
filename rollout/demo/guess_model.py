"""Makes the demo's tiny model: a tokenizer and a Qwen3, trained until they half know how to play."""

import random
from typing import Any

from logs_ui.rollout.demo.guess_env import TASKS, TURNS, GuessAction, GuessEnvironment, GuessObservation
from logs_ui.rollout.demo.guess_rollout import Messages, feedback, prompt

HIGHEST = max(high for _, high in TASKS.values())
"""The highest number the tokenizer has a word for."""

EOS, PAD, UNKNOWN, START = "<|im_end|>", "<|endoftext|>", "<|unk|>", "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = r" ?[A-Za-z]+| ?[0-9]+|\n|[^\sA-Za-z0-9]"
HABITS = {
    "guess {a}": 3,
    "my guess is {a}": 3,
    "is it {a} or {b}?": 2,
    "maybe {a}, maybe {b}, maybe {c}, maybe {a}, maybe {b}": 2,
    "guess {a} or {b}": 1,
    "I do not know": 1,
}
"""What the model says before GRPO, and how often. Only the first can be read as a guess; the fourth is cut off."""


SKILL = 0.5
"""The share of the warm-up's numbers that fit the game so far."""


def make_tokenizer() -> Any:
    """Make a tokenizer of about 120 whole words, with a ChatML template. Decoding returns the exact text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    splitter = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    # The vocabulary consists of all words that the game and the model can say, so that no text has an unknown word.
    corpus = [message["content"] for task in TASKS for message in prompt(task)]
    corpus += [feedback(GuessObservation(hint=hint, low=1, high=2)) for hint in ("higher", "lower")]
    corpus += [habit.format(a=1, b=2, c=3) for habit in HABITS]
    corpus += ["system", "user", "assistant", "\n", *(f" {number}" for number in range(1, HIGHEST + 1))]
    words = dict.fromkeys(word for text in corpus for word, _ in splitter.pre_tokenize_str(text))
    vocabulary = {word: index for index, word in enumerate([PAD, UNKNOWN, START, EOS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Any, seed: int) -> Any:
    """Make a Qwen3 of some 80,000 random parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=16,
        initializer_range=0.12,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.config.name_or_path = "guess-qwen3-80k"  # what the run is shown to train
    return model


def warm_up(model: Any, tokenizer: Any, *, seed: int, steps: int = 200, rows: int = 8) -> None:
    """Teach the model, supervised, to talk as `HABITS` say, with numbers drawn at random: no skill, some format."""
    import torch

    dice = random.Random(seed)  # noqa: S311 (sampling text, not keys)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=steps)
    model.train()
    for _ in range(steps):
        batch = tokenizer.pad([_lesson(tokenizer, dice) for _ in range(rows)], return_tensors="pt")
        # `pad` knows no field for a loss mask, so `token_type_ids` carries it. The loss ignores the label -100.
        spoken = batch.pop("token_type_ids")
        loss = model(**batch, labels=batch["input_ids"].masked_fill(spoken == 0, -100)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _lesson(tokenizer: Any, dice: random.Random) -> dict[str, list[int]]:
    """Return one conversation as token ids; `token_type_ids` is 1 where the model speaks."""
    ids = tokenizer.apply_chat_template(_conversation(dice), return_dict=False)
    start, newline, end, speaker = tokenizer.convert_tokens_to_ids([START, "\n", EOS, "assistant"])
    # The model speaks after the header `<|im_start|>assistant\n`. The end token counts as spoken, too, because the
    # model has to learn to write it.
    spoken, speaks = [], False
    for index, token in enumerate(ids):
        spoken.append(int(speaks))
        if token == newline and ids[index - 2 : index] == [start, speaker]:
            speaks = True
        elif token == end:
            speaks = False
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": spoken}


def _conversation(dice: random.Random) -> Messages:
    """Invent a game: every second guess fits the hints, and the rest are drawn blindly."""
    task = dice.choice(list(TASKS))
    environment = GuessEnvironment()
    environment.reset(task=task, seed=dice.randrange(10_000))
    messages = prompt(task)
    for _ in range(TURNS):
        state = environment.state
        a, b, c = (
            dice.randint(state.low, state.high) if dice.random() < SKILL else dice.randint(1, 25) for _ in range(3)
        )
        habit = dice.choices(list(HABITS), weights=list(HABITS.values()))[0]
        messages.append({"role": "assistant", "content": habit.format(a=a, b=b, c=c)})
        heard = environment.step(GuessAction(guess=a))
        if heard.done or heard.turns_left == 0:
            break
        messages.append({"role": "user", "content": feedback(heard)})
    return messages
