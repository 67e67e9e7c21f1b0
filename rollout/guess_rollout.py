"""The demo's multi-turn rollout function for `trl.GRPOTrainer`, and the words that are exchanged in it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from logs_ui.rollout.guess_env import TASKS, TURNS, GuessAction, GuessObservation

SYSTEM = "Find my number. Answer like this: guess 5"
MAX_NEW_TOKENS = 8
"""Tokens the model may use for one guess; "guess 5" and its end take three."""

Messages = list[dict[str, str]]
RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]


def prompt(task: str, game: int) -> Messages:
    """The system and user message that open a game."""
    low, high = TASKS[task]
    rules = f"Game {game}. {TURNS} guesses, {low} to {high}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": rules}]


def game_of(messages: Messages) -> dict[str, Any]:
    """The environment's `reset` arguments for a prompt: its task and its seed."""
    game, _, low, high = (int(number) for number in re.findall(r"\d+", messages[-1]["content"]))
    return {"task": next(task for task, bounds in TASKS.items() if bounds == (low, high)), "seed": game}


def parse_guess(text: str) -> int | None:
    """The number in "guess 5"; None for anything else."""
    match = re.fullmatch(r"guess (\d+)", text.strip())
    return int(match[1]) if match else None


def feedback(observation: GuessObservation) -> str:
    """The user message that answers a wrong guess, such as "higher. 2 left, 8 to 10"."""
    return f"{observation.hint}. {observation.turns_left} left, {observation.low} to {observation.high}"


@dataclass
class Episode:
    """One rollout while it is played. Token ids only ever grow: nothing sampled is tokenised again."""

    client: Any
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the sampled tokens; 0 for the environment's
    env_mask: list[int] = field(default_factory=list)  # 1 = sampled by the model, 0 = said by the environment
    reward: float = 0.0
    parsed: bool = True
    over: bool = False

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append to the completion: tokens sampled with these log-probs, or the environment's, which have none."""
        self.completion_ids += ids
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self.env_mask += [int(logprobs is not None)] * len(ids)


def make_rollout_func(clients: Sequence[Any]) -> RolloutFunc:
    """A rollout function that plays each prompt's game in a session of its own.

    `clients` are connected, synchronous `GuessEnv` sessions, at least as many as a batch has prompts; they are reused
    from step to step.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)

        episodes = []
        for client, messages in zip(clients[: len(prompts)], prompts, strict=True):
            client.reset(**game_of(messages))
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            episodes.append(Episode(client, ids))

        while live := [episode for episode in episodes if not episode.over]:
            answers = generate(model, tokenizer, [episode.prompt_ids + episode.completion_ids for episode in live])
            for episode, (answer, logprobs) in zip(live, answers, strict=True):
                episode.add(answer, logprobs)
                guess = parse_guess(tokenizer.decode(answer, skip_special_tokens=True))
                if guess is None:
                    episode.parsed, episode.over = False, True
                    continue
                result = episode.client.step(GuessAction(guess=guess))
                episode.reward += result.reward
                episode.over = result.done or result.observation.turns_left == 0
                if not episode.over:
                    episode.add(reply_ids(tokenizer, feedback(result.observation)))

        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            "completion_ids": [episode.completion_ids for episode in episodes],
            "env_mask": [episode.env_mask for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_reward": [episode.reward for episode in episodes],
            "parsed": [episode.parsed for episode in episodes],
        }

    return rollout_func


def generate(model: Any, tokenizer: Any, contexts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Sample one answer to each context, in one batch: new token ids, the end-of-turn token included if it came, and
    the log-prob of each.
    """
    import torch

    batch = tokenizer.pad({"input_ids": contexts}, return_tensors="pt")
    output = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        return_dict_in_generate=True,
        output_logits=True,
    )
    sampled = output.sequences[:, batch["input_ids"].shape[1] :]
    logprobs = torch.stack(output.logits, dim=1).log_softmax(-1).gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    answers = []
    for ids, values in zip(sampled.tolist(), logprobs.tolist(), strict=True):
        length = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        answers.append((ids[:length], values[:length]))
    return answers


def reply_ids(tokenizer: Any, content: str) -> list[int]:
    """The tokens from the model's end-of-turn token to its next turn: the environment's message in the template."""
    message = [{"role": "user", "content": content}]
    text = "\n" + tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def solved(env_reward: list[float], **_: Any) -> list[float]:
    """What the environment paid for the episode, summed over its turns."""
    return env_reward


def format(parsed: list[bool], **_: Any) -> list[float]:  # noqa: A001 (the name a reader sees beside the curve)
    """1 where every answer could be read as a guess, else 0."""
    return [float(ok) for ok in parsed]
