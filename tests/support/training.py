"""Makes small real trainings: a real GRPOTrainer, a tiny real model, a real OpenEnv server over its socket."""

import atexit
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from logs_ui.rollout.demo.demo import GuessServer
from logs_ui.rollout.models.token_episode import Answer, Trajectory
from logs_ui.rollout.play.batch import trainer_columns
from logs_ui.rollout.play.chat_template import Chat
from tests.support.late import datasets, guess_env, guess_model, guess_rollout, mcp_types, torch, trl
from tests.support.quiet import QUIET
from tests.support.teaching import teach_once

ROWS = 8
GROUP = 4


@cache
def _server() -> str:
    server = GuessServer()
    atexit.register(server.__exit__)
    return server.__enter__().wait_until_ready(240)  # on a machine that does much else


_clients: list[Any] = []


@contextmanager
def guess_server() -> Iterator[str]:
    """Yield the address of a real OpenEnv server, which takes seconds to start: one process serves all tests."""
    try:
        yield _server()
    finally:
        while _clients:
            with suppress(Exception):  # a test may have broken it
                _clients.pop().close()


def numbered(task: str, game: int) -> Any:
    """Return the demo's prompt, with the number of the game in it."""
    system, rules = guess_rollout.prompt(task)
    return [system, {**rules, "content": f"Find number {game}. {rules['content']}"}]


def game_of(messages: Any) -> dict[str, Any]:
    """Return the environment's `reset` arguments for such a prompt: its task, and the number as its seed."""
    game, _, low, high = (int(number) for number in re.findall(r"\d+", messages[-1]["content"]))
    return {"task": next(task for task, bounds in guess_env.TASKS.items() if bounds == (low, high)), "seed": game}


def dataset(games: int = 8) -> Any:
    rows = [
        {"prompt": numbered(task, game), "task": task, "answer": game}
        for game in range(games)
        for task in guess_env.TASKS
    ]
    return datasets.Dataset.from_list(rows)


def tool(name: str, argument: str, kind: str) -> Any:
    """Return a tool of OpenEnv's, with one argument of a kind of JSON's."""
    schema = {"type": "object", "properties": {argument: {"type": kind}}, "required": [argument]}
    return mcp_types.Tool(name=name, description=f"The tool {name}.", input_schema=schema)


def solved(env_reward: list[float], **_: Any) -> list[float]:
    return env_reward


def _warm_model(steps: int) -> Any:
    """Return a new model that is warmed up for so many steps, and set torch's random state as it is then."""
    torch.manual_seed(0)
    tokenizer = guess_model.make_tokenizer()
    model = guess_model.make_model(tokenizer, 0)
    if steps:
        warm_up = partial(guess_model.warm_up, model, tokenizer, seed=0, steps=steps)
        teach_once(model, warm_up, __file__, f"warm {steps}")
    return model.train()


def make_trainer(
    rollout_func: Callable[..., Any] | None,
    folder: Path,
    *,
    reward_funcs: Sequence[Callable[..., Any]] = (solved,),
    warm: int = 40,
    kind: Any = None,
    arguments: Any = None,
    callbacks: Sequence[Any] = (),
    **config: Any,
) -> Any:
    """Return a trainer that trains for 2 steps of 8 rollouts in groups of 4, unless `config` says otherwise. Without a
    rollout function it rolls out itself.
    """
    torch.set_num_threads(1)
    tokenizer, model = guess_model.make_tokenizer(), _warm_model(warm)
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
        "num_completions_to_print": 1,
        **QUIET,
        **config,
    }
    return (kind or trl.GRPOTrainer)(
        model=model,
        processing_class=tokenizer,
        reward_funcs=list(reward_funcs),
        args=(arguments or trl.GRPOConfig)(**settings),
        train_dataset=dataset(),
        eval_dataset=dataset(1),
        callbacks=list(callbacks),
        **({} if rollout_func is None else {"rollout_func": rollout_func}),
    )


def sequential(url: str, seen: list[Any] | None = None) -> Callable[..., dict[str, Any]]:
    """Return a rollout function that plays one prompt after another through one client, as wordle and browsergym do.

    `seen` collects what the function itself knows of each row: sampled texts, hints heard, log-probs.
    """
    client = guess_env.GuessEnv(base_url=url).sync()
    client.connect()
    _clients.append(client)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        games = [Game(client, messages, trainer.processing_class) for messages in prompts]
        for game in games:
            game.begin()
            while not game.over:
                game.play(*generate(trainer, [game.trajectory.context]))
        if seen is not None:
            seen.extend((game.texts, game.hints, game.trajectory.logprobs) for game in games)
        return columns_of(games, trainer)

    return rollout_func


class Game:
    """One game, with its exact tokens."""

    def __init__(self, client: Any, messages: Any, tokenizer: Any) -> None:
        self._client = client
        self._messages = messages
        self._chat = Chat(tokenizer)
        self.trajectory = Trajectory(self._chat.prompt_ids(messages))
        self.texts: list[str] = []
        self.hints: list[str] = []
        self.reward = 0.0
        self.over = False

    def begin(self) -> None:
        self._client.reset(**game_of(self._messages))

    def play(self, answer: Answer) -> None:
        self.trajectory.sample(answer)
        self.texts.append(answer.text)
        action = guess_rollout.act(answer.text)
        if action is None:
            self.over = True
            return
        result = self._client.step(action)
        self.hints.append(result.observation.hint)
        self.reward += result.reward
        self.over = result.done or len(self.texts) == guess_env.TURNS
        if not self.over:
            heard = {"role": "user", "content": guess_rollout.feedback(result.observation)}
            self.trajectory.insert(self._chat.inserted(answer.ids, [heard]))


def columns_of(games: Sequence[Game], trainer: Any) -> dict[str, Any]:
    columns = trainer_columns([game.trajectory for game in games], trainer.processing_class.eos_token_id)
    return {**columns, "env_reward": [game.reward for game in games]}


def generate(trainer: Any, contexts: Sequence[list[int]]) -> list[Answer]:
    """Return one answer to each context, in one batch of the model's own `generate`, as people write it."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    batch = tokenizer.pad({"input_ids": contexts}, return_tensors="pt")
    output = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=guess_rollout.MAX_NEW_TOKENS,
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
        ended = tokenizer.eos_token_id in ids
        length = ids.index(tokenizer.eos_token_id) + 1 if ended else len(ids)
        text = tokenizer.decode(ids[:length], skip_special_tokens=True)
        answers.append(Answer(ids[:length], values[:length], "stop" if ended else "length", text))
    return answers


def logged_by_trl(folder: Path) -> pd.DataFrame:
    """Return the completions tables that TRL wrote: step, prompt, completion, a column a reward function, advantage."""
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "completions").glob("*.parquet"))])
