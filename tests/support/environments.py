"""Finds Python environments that `.ci/environments` makes for packages that cannot be installed with the rest."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python_of(name: str) -> str:
    """Return the path of that environment's Python. Skips the test if it cannot be made, as without a network."""
    made = subprocess.run([ROOT / ".ci" / "environments", name], capture_output=True, text=True, check=False)
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"The environment {name} could not be made (.ci/environments {name}): {last}")
    return made.stdout.strip()
