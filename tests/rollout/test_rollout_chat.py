"""What the trainer gets of a rollout is exactly what the model saw and sampled, whatever the chat template."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs_ui.rollout.models.token_episode import Answer, Finish, Trajectory
from logs_ui.rollout.play.chat_template import Chat, ChatTemplateError, Message
from logs_ui.rollout.play.evaluation_dataset import Prompts
from logs_ui.rollout.play.play import prompt_alone
from tests.support.exhaustive import examples
from tests.support.late import datasets

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|start_header_id|>{{ m['role'] }}"
    "<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "<start_of_turn>{{ role }}\n{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GLM = (
    "[gMASK]{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
WORDS = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def _qwen3() -> str:
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()


TEMPLATES = {
    "chatml": (CHATML, "<|im_end|>"),
    "qwen3": (None, "<|im_end|>"),
    "llama": (LLAMA, "<|eot_id|>"),
    "mistral": (MISTRAL, "</s>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "glm": (GLM, "<|user|>"),
    "words": (WORDS, "</s>"),
}
"""A template each, and the token with which its models end their turn."""

SPECIAL = [
    "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "[gMASK]", "<|user|>", "<|assistant|>",
]  # fmt: skip


@cache
def make_tokenizer(name: str) -> Any:
    """A fast byte-pair tokenizer with merges, so that a text can be cut in several ways."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["guess a number, higher lower assistant user hello " * 20, "\n\n \n user: assistant: " * 20]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    template, _ = TEMPLATES[name]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=False)),
        additional_special_tokens=SPECIAL[3:],
        chat_template=template or _qwen3(),
    )


def said(text: str, role: str = "user") -> list[Message]:
    return [{"role": role, "content": text}]


def answered(tokenizer: Any, text: str, end: str | None) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids if end is None else [*ids, tokenizer.convert_tokens_to_ids(end)]


texts = st.text(st.sampled_from("guess 1\n né<|"), min_size=1, max_size=20)
turns = st.lists(st.tuples(st.lists(st.integers(15, 300), max_size=6), st.booleans(), texts), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(name=st.sampled_from(sorted(TEMPLATES)), plain=st.booleans(), turns=turns, first=texts)
def test_what_the_trainer_gets_is_what_the_model_saw_and_sampled(
    *, name: str, plain: bool, turns: Any, first: str
) -> None:
    tokenizer = make_tokenizer(name)
    chat, end = Chat(tokenizer), tokenizer.convert_tokens_to_ids(TEMPLATES[name][1])
    prompt: Any = "Guess." if plain else said("Guess.")
    trajectory = Trajectory(chat.prompt_ids(prompt, said(first)))
    saw: list[tuple[list[int], list[int]]] = []
    for sampled, ends, observation in turns:
        ids = [*sampled, end] if ends or not sampled else sampled
        finish: Finish = "stop" if ends else "length"
        saw.append((trajectory.context, ids))
        trajectory.sample(Answer(ids, [-0.5] * len(ids), finish, ""))
        trajectory.insert(chat.inserted(ids, said(observation), plain=plain))
    whole = trajectory.prompt_ids + trajectory.completion_ids
    assert trajectory.logprobs is not None
    assert len(trajectory.mask) == len(trajectory.logprobs) == len(trajectory.completion_ids)
    for context, ids in saw:
        start = len(context) - len(trajectory.prompt_ids)
        assert whole[: len(context)] == context
        assert trajectory.completion_ids[start : start + len(ids)] == ids
        assert trajectory.mask[start : start + len(ids)] == [1] * len(ids)
        assert trajectory.logprobs[start : start + len(ids)] == [-0.5] * len(ids)
    assert sum(trajectory.mask) == sum(len(ids) for _, ids in saw)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("ends", [True, False])
def test_a_conversation_reads_as_the_template_writes_it(name: str, *, ends: bool) -> None:
    """Also where the answer was cut off: what is missing of its end is inserted."""
    tokenizer, end = make_tokenizer(name), TEMPLATES[name][1]
    chat = Chat(tokenizer)
    prompt, answer, observation = said("Guess a number."), "guess 5", said("higher")
    ids = answered(tokenizer, answer, end if ends else None)
    found = chat.prompt_ids(prompt) + ids + chat.inserted(ids, observation)
    whole = [*prompt, {"role": "assistant", "content": answer}, *observation]
    expected = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    text = tokenizer.decode(found)
    if name == "mistral":
        expected = expected.replace("[/INST] guess", "[/INST]guess")  # a space that the model samples itself
    if name == "words" and ends:
        text = text.replace("</s>", "")
    if name == "words":
        expected = expected.replace("assistant: guess", "assistant:guess")
    assert text == expected


def test_a_turns_end_that_was_sampled_is_not_repeated_and_what_the_environment_says_is_never_taken_for_it() -> None:
    tokenizer = make_tokenizer("chatml")
    chat, end = Chat(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>")
    inserted = chat.inserted([20], said("higher"))
    assert inserted[0] == end
    assert chat.inserted([20, end], said("higher")) == inserted[1:]
    whole = tokenizer("\nhigher\n", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(chat.inserted(whole, said("higher"), plain=True)).strip() == "higher"


def test_thinking_stays_where_it_was_sampled() -> None:
    tokenizer = make_tokenizer("qwen3")
    chat = Chat(tokenizer)
    ids = answered(tokenizer, "<think>\nlow\n</think>\n\nguess 5", "<|im_end|>")
    context = chat.prompt_ids(said("Guess.")) + ids + chat.inserted(ids, said("higher"))
    assert "<think>\nlow\n</think>\n\nguess 5<|im_end|>\n<|im_start|>user\nhigher<|im_end|>\n" in tokenizer.decode(
        context
    )
    told = Chat(tokenizer, options={"enable_thinking": False}).inserted(ids, said("higher"))
    assert tokenizer.decode(told).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert "<tool_response>\nhigher\n</tool_response>" in tokenizer.decode(chat.inserted(ids, said("higher", "tool")))


def test_a_first_observation_is_joined_to_the_prompts_last_message() -> None:
    for name in ("mistral", "gemma"):
        tokenizer = make_tokenizer(name)
        text = tokenizer.decode(Chat(tokenizer).prompt_ids(said("Guess a number."), said("It is 1 to 3.")))
        assert "Guess a number.\n\nIt is 1 to 3." in text


def test_a_text_is_given_as_the_trainer_gives_it() -> None:
    tokenizer = make_tokenizer("llama")
    chat = Chat(tokenizer)
    assert chat.prompt_ids("guess") == tokenizer(text=["guess"])["input_ids"][0]
    assert tokenizer.decode(chat.prompt_ids("guess", said("low"))) == "guess\nlow\n"
    assert tokenizer.decode(chat.inserted([20], said("low"), plain=True)) == "\nlow\n"


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (
            MISTRAL,
            said("4", "tool"),
            r"refuses messages of these roles: user, assistant, tool \(Conversation roles must",
        ),
        (GEMMA.replace("| trim", "| nothing"), said("4"), "refuses messages of these roles: user, assistant"),
        (
            "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}",
            said("4"),
            "does not show an ass",
        ),
        (
            "{% for m in messages if m['role'] != 'tool' %}{{ m['content'] }}{% endfor %}",
            said("4", "tool"),
            "leaves out mes",
        ),
    ],
)
def test_a_template_that_cannot_do_it_says_what_to_do(template: str, messages: list[Message], message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message) as caught:
        Chat(make_tokenizer("chatml"), template).inserted([20], messages)
    assert "\n" not in str(caught.value)


def test_a_conversation_without_a_template_is_refused() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer("chatml").backend_tokenizer)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        Chat(tokenizer).prompt_ids(said("Guess."))


def test_what_a_template_escapes_is_not_left_out() -> None:
    tokenizer = make_tokenizer("chatml")
    template = CHATML.replace("m['content'] }}", "m['content'] | tojson if m['role'] == 'tool' else m['content'] }}")
    text = tokenizer.decode(Chat(tokenizer, template).inserted([20], said('say "4"', "tool")))
    assert r"say \"4\"" in text


@pytest.mark.exhaustive
def test_every_template_that_trl_ships_takes_what_a_user_says() -> None:
    import trl

    tokenizer = make_tokenizer("chatml")
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        if path.name.startswith(("idefics3", "llava_next", "smolvlm")):
            continue  # of models that look at images: their messages are lists of parts
        text = tokenizer.decode(Chat(tokenizer, path.read_text()).inserted([20], said("WHAT IT SAYS")))
        assert "WHAT IT SAYS" in text, path.name


@pytest.mark.parametrize("prompt", [1, None, [], [1], ["guess"], [{"content": "x"}], [{"role": "user"}], {"role": "x"}])
def test_a_datasets_prompt_is_a_text_or_messages(prompt: Any) -> None:
    rows = [{"prompt": "x"}, {"prompt": prompt}]
    with pytest.raises(TypeError, match=r"^Row 1 of the dataset: its prompt is a text, or a list of messages, .*\Z"):
        Prompts(rows)


@pytest.mark.parametrize("prompt", [np.array([]), np.array(["a", "b"])])
def test_a_datasets_prompt_is_no_array(prompt: Any) -> None:
    with pytest.raises(TypeError, match="Row 0 of the dataset: its prompt is a text, or a list of messages"):
        Prompts([{"prompt": prompt}])


def test_the_prompts_of_any_kind_of_dataset_are_checked() -> None:
    rows = [{"prompt": [{"role": "user", "content": "x"}]}, {"prompt": []}]
    with pytest.raises(TypeError, match="Row 1 of the dataset"):
        Prompts(datasets.Dataset.from_list(rows))
    streamed = Prompts(datasets.Dataset.from_list(rows).to_iterable_dataset())
    assert streamed.rows(1) == rows[:1]
    with pytest.raises(TypeError, match="Row 1 of the dataset"):
        streamed.rows()


def test_a_prompt_that_nothing_can_be_made_of_is_the_end_of_sequence_alone() -> None:
    tokenizer = make_tokenizer("chatml")
    prompt: Any = 1
    assert prompt_alone(Chat(tokenizer), prompt) == [tokenizer.eos_token_id]
