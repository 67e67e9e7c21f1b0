"""Environments of their own, which `.ci/environments` makes: for what cannot be installed beside the rest."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python_of(name: str) -> str:
    """Path of that environment's Python. Skips where it is not there and cannot be made, as without a network."""
    made = subprocess.run([ROOT / ".ci" / "environments", name], capture_output=True, text=True, check=False)
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"The environment {name} could not be made (.ci/environments {name}): {last}")
    return made.stdout.strip()
