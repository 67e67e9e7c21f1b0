"""Teaches a tiny model once for all processes of the tests: it takes seconds, and what comes of it is the same."""

import fcntl
import hashlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.late import torch

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".pytest_cache" / "taught"
_SOURCES = [_ROOT / "examples" / "tiny_model.py", *sorted((_ROOT / "rollout" / "demo").glob("*.py"))]


def teach_once(model: Any, teach: Callable[[], object], source: str, name: str) -> None:
    """Gives the model the weights, and torch the random state, that they have after `teach()`. It is called if nobody
    did for this name since one of the files changed that it depends on: those of `_SOURCES` and `source`, the caller's.
    """
    of = hashlib.sha256(f"{name} {version('torch')} {version('transformers')}".encode())
    for path in (*_SOURCES, Path(source)):
        of.update(path.read_bytes())
    _FOLDER.mkdir(parents=True, exist_ok=True)
    kept = _FOLDER / f"{of.hexdigest()}.pt"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            teach()
            torch.save((model.state_dict(), torch.get_rng_state()), kept.with_suffix(".new"))
            kept.with_suffix(".new").rename(kept)
    weights, dice = torch.load(kept)
    model.load_state_dict(weights)
    torch.set_rng_state(dice)
