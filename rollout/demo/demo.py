"""Runs the demo: a real `trl.GRPOTrainer` teaches a tiny model to guess numbers, on a real OpenEnv server."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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
    """Holds the demo's settings. The trainer writes to `output_dir`; None is a temporary folder."""

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
    is called after every optimizer step. Raise ImportError, in one line, where a package is missing, and RuntimeError
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


class GuessServer:
    """Runs `guess_env` in a process of its own, which ends with the `with` block, or with this process."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "logs_ui.rollout.demo.guess_env", "--port", "0", "--until-stdin-closes"]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the trainer alone, which then ends the server
        )
        return self

    def wait_until_ready(self, timeout: float = 60.0) -> str:
        """Return the server's address once it answers. Raise RuntimeError if it does not within `timeout` seconds."""
        assert self._process.stdout is not None  # noqa: S101 (for the type checker)
        # `readline` has no time limit. Killing the process closes its output, and `readline` then returns an empty
        # line.
        give_up = threading.Timer(timeout, self._process.kill)
        give_up.start()
        try:
            url = self._process.stdout.readline().decode().strip()
            if not url:
                raise RuntimeError(f"The demo's environment server did not start: {self._last_words()}")
            # A proxy that the environment variables name could not reach a server on 127.0.0.1.
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"{url}/health", timeout=timeout):
                return url
        except OSError as error:
            raise RuntimeError(f"The demo's environment server did not answer: {self._last_words()}") from error
        finally:
            give_up.cancel()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=3)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _last_words(self) -> str:
        """Return the last line that the process wrote to standard error, once it has ended."""
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode} and said nothing"


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
    """Return a trainer callback that passes on the mean reward of each training step."""
    from transformers import TrainerCallback

    class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ARG002
            if "reward" in logs:
                on_step(state.global_step, state.max_steps, float(logs["reward"]))

    return Progress()


@contextlib.contextmanager
def _quietly_on_one_thread() -> Iterator[None]:
    """Use one torch thread (a small model is slower on more) and no notices from the libraries; undone at the end."""
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
