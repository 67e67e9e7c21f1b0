"""Echo with a rollout function of one's own, wrapped by `record()`.

python -m examples.echo
logs-ui serve --db examples.db
"""

import contextlib
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer

from examples.echo_env import EchoAction, EchoEnv, serve
from examples.settings import ROWS, arguments, config
from examples.tiny_model import Lesson, say, tiny_model
from logs_ui.recorder import record

SYSTEM = "Say something to the echo."
WORDS = ("hi", "hello", "good day", "good morning", "good evening")


def rollout(clients: list[Any], prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
    """One answer to each prompt, in one batch; each is sent to an environment of its own."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    batch = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**batch, do_sample=True, temperature=1.0, max_new_tokens=12)
    width = batch["input_ids"].shape[1]
    prompt_ids = [row[mask == 1].tolist() for row, mask in zip(*batch.values(), strict=True)]
    completion_ids = [to_the_end(row.tolist(), tokenizer.eos_token_id) for row in output[:, width:]]

    rewards = []
    for client, ids in zip(clients, completion_ids, strict=False):
        client.reset()
        result = client.step(EchoAction(message=tokenizer.decode(ids, skip_special_tokens=True)))
        rewards.append(result.reward)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "env_reward": rewards}


def to_the_end(ids: list[int], eos: int) -> list[int]:
    """Without what was padded after the end token."""
    return ids[: ids.index(eos) + 1] if eos in ids else ids


def env_reward(env_reward: list[float], **_: Any) -> list[float]:
    """Returns the environment's reward."""
    return env_reward


def main() -> None:
    """Trains, recorded."""
    chosen = arguments(__doc__)
    lessons: list[Lesson] = [
        ([say("system", SYSTEM), say("user", "Go."), say("assistant", words)], []) for words in WORDS * 2
    ]
    model, tokenizer = tiny_model(lessons)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serve())
        clients = [stack.enter_context(EchoEnv(base_url=url).sync()) for _ in range(ROWS)]

        @record(eval_name="echo", db=chosen.db)
        def rollout_func(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
            return rollout(clients, prompts, trainer)

        trainer = GRPOTrainer(
            model,
            reward_funcs=[env_reward],
            args=config(chosen.steps),
            train_dataset=Dataset.from_list([{"prompt": [say("system", SYSTEM), say("user", "Go.")]}] * 64),
            processing_class=tokenizer,
            rollout_func=rollout_func,
        )
        trainer.train()


if __name__ == "__main__":
    main()
