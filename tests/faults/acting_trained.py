"""Faults of acting in real trainings: a real GRPOTrainer, a tiny model, the demo's OpenEnv server."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from logs_ui.recorder import record
from tests.faults import Fault


def _train(db: Path, *, rewards: Sequence[Callable[..., Any]] = (), config: Any = None, **options: Any) -> None:
    """Four steps of eight rollouts, each with its own game."""
    from logs_ui.rollout import environment_reward, openenv_rollout_func
    from logs_ui.rollout.demo.guess_env import TASKS, TURNS, GuessEnv
    from logs_ui.rollout.demo.guess_rollout import MAX_NEW_TOKENS, act, observe
    from tests.support.training import guess_server, make_trainer

    with guess_server() as url, tempfile.TemporaryDirectory() as folder:
        played: dict[str, Any] = {
            "environment": GuessEnv,
            "base_url": url,
            "act": act,
            "observe": observe,
            "tasks": list(TASKS),
            "max_turns": TURNS,
            "sampling": {"max_tokens": MAX_NEW_TOKENS},
            **options,
        }
        rollouts = openenv_rollout_func(**played)
        trainer = make_trainer(
            record(rollouts, eval_name="guess", db=db, announce=False),
            Path(folder),
            reward_funcs=list(rewards) or [environment_reward],
            **{"max_steps": 4, "warm": 60, "log_completions": False, **(config or {})},
        )
        trainer.train()
        rollouts.close()


def _nothing(completions: list[Any], **_: Any) -> list[None]:
    """A reward function that ends without a return for each."""
    return [None for _ in completions]


def _dying() -> type:
    """A client whose server goes away in the middle of one task."""
    from logs_ui.rollout.demo.guess_env import GuessEnv

    class Dying(GuessEnv):
        task = ""

        async def reset(self, **options: Any) -> Any:
            self.task = options["task"]
            return await super().reset(**options)

        async def step(self, action: Any, **options: Any) -> Any:
            if self.task.startswith("fair"):
                raise ConnectionError("the server went away")
            return await super().step(action, **options)

    return Dying


def _dies(db: Path) -> None:
    _train(db, environment=_dying(), config={"warm": 300, "max_steps": 6})


FAULTS: tuple[Fault, ...] = (
    Fault("completion limit, trained", "Completions of two tokens at most, in a real training", "truncation",
          train=partial(_train, sampling={"max_tokens": 2})),
    Fault("broken parser, trained", "A parser that finds nothing, in a real training", "parse_failures",
          train=partial(_train, act=lambda _: None)),
    Fault("no reward, trained", "A reward function that returns None, in a real training", "invalid_reward",
          train=partial(_train, rewards=[_nothing])),
    Fault("cold, trained", "A temperature of 0.01, in a real training", "diversity",
          train=partial(_train, config={"temperature": 0.01, "warm": 150})),
    Fault("environment dies, trained", "A client that raises in one of four tasks, in a real training",
          "infrastructure", train=_dies),
)  # fmt: skip
