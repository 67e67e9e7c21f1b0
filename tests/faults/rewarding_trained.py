"""Faults of rewards, groups and updates in real trainings."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from logs_ui.recorder import record
from tests.faults import Fault

Rollouts = Callable[[list[Any], Any], dict[str, Any]]


def _train(
    db: Path, *, wrong: Callable[[Rollouts], Rollouts] = lambda it: it, rewards: tuple[Any, ...] = (), **config: Any
) -> None:
    """Six steps of sixteen rollouts in groups of four, one game after another, by a function that `wrong` spoils."""
    import tempfile

    from tests.support.training import guess_server, make_trainer, sequential, solved

    with guess_server() as url, tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            record(wrong(sequential(url)), eval_name="guess", db=db, announce=False),
            Path(folder),
            reward_funcs=list(rewards) or [solved],
            **{"max_steps": 6, "warm": 150, "per_device_train_batch_size": 16, "log_completions": False, **config},
        )
        trainer.train()


def constant(completions: list[Any], **_: Any) -> list[float]:
    """As if nothing were ever read."""
    return [0.25 for _ in completions]


def expanded(rollouts: Rollouts) -> Rollouts:
    """Each prompt comes once for each of its completions already; this repeats it all the same."""

    def again(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        distinct = [prompt for number, prompt in enumerate(prompts) if prompt not in prompts[:number]]
        return rollouts((distinct * trainer.num_generations)[: len(prompts)], trainer)

    return again


def first_of_all(rollouts: Rollouts) -> Rollouts:
    """The same in the other order, which leaves each group with one prompt, though not its own."""

    def again(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        repeated = [prompt for prompt in prompts for _ in range(trainer.num_generations)]
        return rollouts(repeated[: len(prompts)], trainer)

    return again


def of_another_policy(rollouts: Rollouts) -> Rollouts:
    """Log-probs as of a policy that is three times as unsure."""

    def scaled(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found = rollouts(prompts, trainer)
        return {**found, "logprobs": [[3 * it for it in row] for row in found["logprobs"]]}

    return scaled


FAULTS: tuple[Fault, ...] = (
    Fault("no update, trained", "A learning rate of 0, in a real training", "no_update",
          train=partial(_train, learning_rate=0.0)),
    Fault("constant reward, trained", "A reward function that gives 0.25 to all, in a real training",
          "constant_reward", train=partial(_train, rewards=(constant,))),
    Fault("wrong grouping, trained", "Prompts that are expanded again, in a real training", "arithmetic",
          train=partial(_train, wrong=expanded)),
    Fault("wrong grouping, trained: one prompt", "The same in the other order", "arithmetic",
          train=partial(_train, wrong=first_of_all)),
    Fault("log-prob mismatch, trained", "Log-probs of another policy, in a real training", "mismatch",
          train=partial(_train, wrong=of_another_policy)),
)  # fmt: skip
