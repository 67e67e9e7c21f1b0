"""A rollout function whose model says what it is told, in two turns, and that goes wrong where it is asked to."""

from collections.abc import Callable
from typing import Any

from tests.support import old_trl
from tests.support.late import datasets, tiny_model, torch, transformers, trl
from tests.support.quiet import QUIET

HEARD = "\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n"
GROUP = 2
ROWS = 4


def said(number: int) -> list[str]:
    """Return what the model says in both turns."""
    return [f"<think>maybe {number}</think>guess {number}", f"<think>so less</think>guess {number - 1}"]


def asked(number: int) -> list[dict[str, str]]:
    rules = "You guess numbers, one after the other, and say each of them once."
    return [{"role": "system", "content": rules}, {"role": "user", "content": f"Game {number}: what is my number?"}]


def trainer(rollout_func: Callable[..., Any], folder: Any, reward_funcs: list[Any], **config: Any) -> Any:
    """Return a trainer of a random model, for one step of 4 rollouts in groups of 2."""
    torch.set_num_threads(1)
    spoken = [[*asked(n), {"role": "assistant", "content": text}] for n in range(9) for text in said(n)]
    with old_trl.templates():
        tokenizer = tiny_model.make_tokenizer([(messages, []) for messages in spoken])
    settings: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": ROWS, "num_generations": GROUP,
        "max_completion_length": 120, "logging_steps": 1, **QUIET,
    }  # fmt: skip
    return trl.GRPOTrainer(
        model=tiny_model.make_model(tokenizer), processing_class=tokenizer, reward_funcs=reward_funcs,
        args=trl.GRPOConfig(**settings | config), rollout_func=rollout_func,
        train_dataset=datasets.Dataset.from_list([{"prompt": asked(number)} for number in range(4)]),
    )  # fmt: skip


def playing(bug: str = "") -> Callable[..., dict[str, list[Any]]]:
    """Return the rollout function; `bug` is one of the names below, "" for none."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        half = [bug, ""] if bug == "retokenized" else [bug, bug]  # a model writes most of its texts as they are encoded
        rows = [_row(messages, 2 + 2 * i, trainer, half[i % 2]) for i, messages in enumerate(prompts)]
        found = {name: [row[name] for row in rows] for name in rows[0]}
        if bug == "mask_missing":
            del found["env_mask"]
        return found

    return rollout_func


def _row(messages: Any, number: int, trainer: Any, bug: str) -> dict[str, list[Any]]:
    tokenizer = trainer.processing_class
    heard = tokenizer.encode(HEARD, add_special_tokens=False)
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    prompt = whole[len(whole) // 3 :] if bug == "prompt_cut_left" else whole
    shown = whole[-12:] if bug == "context_prompt" else prompt
    completion: list[int] = []
    mask: list[int] = []
    for turn, text in enumerate(said(number)):
        before = list(completion)
        if bug == "context_reasoning" and turn:  # as a template that drops the reasoning of earlier turns
            seen = said(number)[0].rpartition("</think>")[2] + tokenizer.eos_token
            before = [*tokenizer.encode(seen, add_special_tokens=False), *heard]
        words = tokenizer.encode(text, add_special_tokens=False)
        letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in text[-7:]]
        spelled = [*tokenizer.encode(text[:-7], add_special_tokens=False), *letters]
        sampled = _generate(trainer, [*shown, *before], spelled if bug == "retokenized" else words)
        ids = [*words, sampled[-1]] if bug == "retokenized" else sampled
        own = [0 if bug == "mask_sampled" and place < len(ids) // 2 else 1 for place in range(len(ids))]
        completion, mask = [*completion, *ids], [*mask, *own]
        if not turn:
            completion, mask = [*completion, *heard], [*mask, *[0] * len(heard)]
    logprobs = [-0.5] * len(mask)
    if bug == "mask_shifted":
        mask = [1, *mask[:-1]]
    if bug == "repeated_prompt":
        completion, mask = [*prompt, *completion], [*[1] * len(prompt), *mask]
        logprobs = [-0.5] * len(mask)
    if bug == "end_token":
        completion, mask, logprobs = completion[:-1], mask[:-1], logprobs[:-1]
    logprobs = {"logprobs_positive": [0.5], "logprobs_zero": [0.0]}.get(bug, [-0.5]) * len(logprobs)
    return {
        "prompt_ids": prompt, "completion_ids": completion, "env_mask": mask,
        "logprobs": logprobs[1:] if bug == "logprobs_length" else logprobs,
    }  # fmt: skip


def _generate(trainer: Any, context: list[int], words: list[int]) -> list[int]:
    """Sample exactly these words, and the end token."""
    told = [*words, trainer.processing_class.eos_token_id]

    class Told(transformers.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            forced = torch.full_like(scores, -torch.inf)
            forced[:, told[input_ids.shape[1] - len(context)]] = 0.0
            return forced

    ids = torch.tensor([context])
    output = trainer.accelerator.unwrap_model(trainer.model).generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(told) + 1, do_sample=True,
        logits_processor=[Told()], eos_token_id=told[-1], pad_token_id=trainer.processing_class.pad_token_id,
    )  # fmt: skip
    found: list[int] = output[0, len(context) :].tolist()
    return found
