"""Small real trainings: a real GRPOTrainer, a tiny real model, a real OpenEnv server over its socket."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from logs_ui.rollout.guess_env import TASKS, TURNS, GuessAction, GuessEnv
from logs_ui.rollout.guess_model import make_model, make_tokenizer, warm_up
from logs_ui.rollout.guess_rollout import Episode, feedback, game_of, generate, parse_guess, prompt, reply_ids
from logs_ui.rollout.guess_server import GuessServer

ROWS = 8
GROUP = 4


@contextmanager
def guess_server() -> Iterator[str]:
    """The address of a real OpenEnv server in a process of its own."""
    with GuessServer() as server:
        yield server.wait_until_ready()


def dataset(games: int = 8) -> Dataset:
    rows = [{"prompt": prompt(task, game), "task": task, "answer": game} for game in range(games) for task in TASKS]
    return Dataset.from_list(rows)


def solved(env_reward: list[float], **_: Any) -> list[float]:
    return env_reward


def make_trainer(
    rollout_func: Callable[..., Any],
    folder: Path,
    *,
    reward_funcs: Sequence[Callable[..., Any]] = (solved,),
    warm: int = 40,
    kind: type[GRPOTrainer] = GRPOTrainer,
    **config: Any,
) -> GRPOTrainer:
    """A trainer that trains for 2 steps of 8 rollouts in groups of 4, unless `config` says otherwise."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    if warm:
        warm_up(model, tokenizer, seed=0, steps=warm)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": 0,
        "max_steps": 2,
        "per_device_train_batch_size": ROWS,
        "per_device_eval_batch_size": ROWS,
        "num_generations": GROUP,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "log_completions": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        **config,
    }
    return kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=list(reward_funcs),
        rollout_func=rollout_func,
        args=GRPOConfig(**settings),
        train_dataset=dataset(),
        eval_dataset=dataset(1),
    )


def sequential(url: str, seen: list[Any] | None = None) -> Callable[..., dict[str, Any]]:
    """One prompt after another, all through one shared client: as wordle and browsergym do it.

    `seen` collects what the function itself knows of each row: sampled texts, hints heard, log-probs.
    """
    client = GuessEnv(base_url=url).sync()
    client.connect()

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        rows = [play(client, messages, trainer) for messages in prompts]
        if seen is not None:
            seen.extend(row["seen"] for row in rows)
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward")
        return {key: [row[key] for row in rows] for key in keys}

    return rollout_func


def play(client: Any, messages: list[dict[str, str]], trainer: Any) -> dict[str, Any]:
    """One game, token-exact."""
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    client.reset(**game_of(messages))
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    episode = Episode(client, prompt_ids)
    texts: list[str] = []
    hints: list[str] = []
    for turn in range(TURNS):
        ((answer, logprobs),) = generate(model, tokenizer, [prompt_ids + episode.completion_ids])
        episode.add(answer, logprobs)
        texts.append(tokenizer.decode(answer, skip_special_tokens=True))
        guess = parse_guess(texts[-1])
        if guess is None:
            break
        result = client.step(GuessAction(guess=guess))
        hints.append(result.observation.hint)
        episode.reward += result.reward
        if result.done or turn + 1 == TURNS:
            break
        episode.add(reply_ids(tokenizer, feedback(result.observation)))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": episode.completion_ids,
        "logprobs": episode.logprobs,
        "env_mask": episode.env_mask,
        "env_reward": episode.reward,
        "seen": (texts, hints, episode.logprobs),
    }


def logged_by_trl(folder: Path) -> pd.DataFrame:
    """The completions tables that TRL itself wrote: step, prompt, completion, a column a reward function, advantage."""
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "completions").glob("*.parquet"))])
