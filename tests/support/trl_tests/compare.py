"""Runs TRL's own tests for GRPO, tools, environments and rollout functions with the TRL that is installed: as they are,
and under `logs-ui run -m pytest`. Exits with 1 if the outcome of a test differs.

    TRL_SOURCE=~/trl python -m tests.support.trl_tests.compare [options of pytest, such as -k tools]

TRL_SOURCE names a checkout of TRL, of the installed release or one near it; only its tests are used. Nothing is
downloaded: models and datasets of the hub are made (`trl_hub.py`, `trl_plugin.py`). Tests that need others, such as
those of vision models, fail both ways. A test whose outcome differs runs once more, both ways.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
FILES = [
    "test_grpo_trainer.py",
    "test_rloo_trainer.py",
    "test_online_dpo_trainer.py",
    "experimental/test_async_grpo_trainer.py",
    "experimental/test_gmpo_trainer.py",
    "experimental/test_grpo_with_replay_buffer_trainer.py",
    "experimental/test_gspo_token_trainer.py",
    "experimental/test_harbor.py",
    "experimental/test_online_dpo_trainer.py",
    "experimental/test_openreward.py",
]


def outcomes(folder: Path, *, recorded: bool, arguments: list[str]) -> dict[str, str]:
    """Returns the outcome of each test. The folder has TRL's tests, and the hub."""
    file = folder / "outcomes"
    file.write_text("")
    command = [sys.executable, "-m", "pytest"]
    if recorded:
        db = ["--db", str(folder / "recorded.db")]
        command = [sys.executable, "-m", "logs_ui.app.commands.cli", "run", *db, "-m", "pytest"]
    quiet = ["-q", "-m", "not slow", "--continue-on-collection-errors", "--timeout", "600"]
    quiet += ["-p", "no:cacheprovider", "-p", "trl_plugin"]
    variables = {
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_OUTCOMES": str(file),
    }
    with (folder / f"log-{'with' if recorded else 'without'}").open("a") as log:
        subprocess.run(
            [*command, *quiet, *arguments],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
            check=False,
        )
    return dict(line.split("\t")[:2] for line in file.read_text().splitlines())


def main() -> int:
    """Compares them, and prints how many there are of each outcome."""
    source = Path(os.environ["TRL_SOURCE"]).expanduser() / "tests"
    folder = Path(tempfile.mkdtemp(prefix="trl-tests-"))
    shutil.copytree(source, folder / "tests")
    make = [sys.executable, str(HERE / "trl_hub.py"), str(folder / "tests"), str(folder / "hub")]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    files = [f"tests/{name}" for name in FILES if (source / name).exists()]
    both = [outcomes(folder, recorded=recorded, arguments=[*files, *sys.argv[1:]]) for recorded in (False, True)]
    unlike = [test for test in {**both[0], **both[1]} if both[0].get(test) != both[1].get(test)]
    if unlike:
        for result, recorded in zip(both, (False, True), strict=True):
            result.update(outcomes(folder, recorded=recorded, arguments=unlike))
    unlike = [test for test in unlike if both[0].get(test) != both[1].get(test)]
    counted = ", ".join(f"{count} {outcome}" for outcome, count in Counter(both[1].values()).most_common())
    print(f"trl {version('trl')}: {len(both[1])} tests under logs-ui run: {counted}")
    for test in unlike:
        print(f"  {test}: {both[0].get(test)} without, {both[1].get(test)} with")
    print(f"{len(unlike)} tests have another outcome under logs-ui run. Logs: {folder}")
    return bool(unlike) or not both[1]


if __name__ == "__main__":
    sys.exit(main())
