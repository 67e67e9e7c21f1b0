"""Settings that the examples' trainings have in common."""

import argparse
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from trl import GRPOConfig

ROWS, GROUP = 8, 4


def arguments(description: str | None, **needed: str) -> argparse.Namespace:
    """`--steps` and `--db` of a command line, and what else an example needs."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps; 0 trains nothing")
    parser.add_argument("--db", default="examples.db", help="where the rollouts are recorded")
    for name, meaning in needed.items():
        parser.add_argument(f"--{name}", required=True, help=meaning)
    return parser.parse_args()


def config(steps: int, **others: Any) -> GRPOConfig:
    """Returns the configuration of a training of `steps` on a processor: 8 rollouts per step, in groups of 4."""
    settings: dict[str, Any] = {
        "output_dir": str(Path(gettempdir()) / "logs-ui-example"),
        "max_steps": steps,
        "per_device_train_batch_size": ROWS,
        "num_generations": GROUP,
        "max_completion_length": 32,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**settings | others)
