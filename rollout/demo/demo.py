"""Runs the demo: a real `trl.GRPOTrainer` teaches a model that is made on the spot to guess numbers, on a real OpenEnv
server.
"""

import contextlib
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logs_ui.rollout.demo.guess_server import GuessServer

if TYPE_CHECKING:
    from logs_ui.rollout.evaluations.evaluations import Evaluation

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]

PACKAGES = ("torch", "transformers", "datasets", "trl", "openenv")
GROUP = 8
GROUPS = 4
"""Groups an optimizer step learns from: a game of each task."""
EVALUATIONS = 4
"""Times a run is evaluated, on the same game of each task."""


@dataclass(frozen=True)
class DemoSettings:
    """The demo's settings: optimizer steps, seed, and where the trainer may write (None: a temporary folder, removed at
    the end).
    """

    steps: int = 200
    seed: int = 6
    output_dir: Path | None = None


def train_demo(
    settings: DemoSettings,
    *,
    wrap: Callable[[RolloutFunc], RolloutFunc] = lambda function: function,
    on_step: Callable[[int, int, float], None] | None = None,
) -> None:
    """Train to the end.

    `wrap` is applied to the rollout function, as a user would apply `record(...)`; `on_step(step, steps, mean_reward)`
    is called after every optimizer step. Raises ImportError, in one line, where a package is missing, and RuntimeError
    where the environment's server does not start.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'The demo needs {", ".join(missing)}. Install: pip install "logs-ui[demo]"')
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(GuessServer())  # starts up while torch and trl are imported here
        folder = settings.output_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logs-ui-demo-")))
        stack.enter_context(_quietly_on_one_thread())

        from logs_ui.rollout.demo.guess_model import make_model, make_tokenizer, warm_up
        from logs_ui.rollout.demo.guess_rollout import guessing

        tokenizer = make_tokenizer()
        model = make_model(tokenizer, settings.seed)
        warm_up(model, tokenizer, seed=settings.seed)
        game = guessing(server.wait_until_ready(), settings.seed)
        rollouts = game.rollouts()
        stack.callback(rollouts.close)
        trainer = _make_trainer(
            settings, folder, game=game, rollout_func=wrap(rollouts), model=model, processing_class=tokenizer
        )
        if on_step:
            trainer.add_callback(_progress(on_step))
        trainer.train()


def _make_trainer(settings: DemoSettings, folder: Path, *, game: "Evaluation", **parts: Any) -> Any:
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        seed=settings.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=GROUP * GROUPS,
        num_generations=GROUP,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        reward_weights=game.reward_weights,
        shuffle_dataset=False,  # else a step may play one task twice
        eval_strategy="steps",
        eval_steps=max(1, settings.steps // EVALUATIONS),
        per_device_eval_batch_size=GROUP * GROUPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        reward_funcs=game.rewards, args=config, train_dataset=game.dataset, eval_dataset=game.dataset, **parts
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _progress(on_step: Callable[[int, int, float], None]) -> Any:
    """A trainer callback that passes on the mean reward of each training step."""
    from transformers import TrainerCallback

    class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ARG002
            if "reward" in logs:
                on_step(state.global_step, state.max_steps, float(logs["reward"]))

    return Progress()


@contextlib.contextmanager
def _quietly_on_one_thread() -> Iterator[None]:
    """One torch thread (a model this small is slower on more) and no notices from the libraries; undone at the end."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    import torch
    from transformers.utils import logging

    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the libraries, about one another
            yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
