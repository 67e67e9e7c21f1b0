"""Runs scripts on two ranks on the CPU: real processes of `torch.distributed.run`. One pair runs all scripts, because
importing a trainer takes it longer than all of them.
"""

import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

from tests.support.ports import free_port

RANKS = 2
_PATIENCE = 200.0


class Ranks:
    """The pair of ranks. Script n lies in `folder` as `n`, a line for each argument after its path; `n-RANK` is what
    was raised there, empty where nothing was.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._scripts = 0
        port = str(free_port())
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", port]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
            "GLOO_SOCKET_IFNAME": "lo",
            "ACCELERATE_USE_CPU": "1",
        }
        self._output = (self._folder / "output").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, *launcher, "-m", "tests.support.ranks", str(self._folder), str(os.getpid())],
            env=environment,
            stdout=self._output,
            stderr=self._output,
        )

    def run(self, path: Path, arguments: tuple[str, ...]) -> None:
        """Run a script on both and wait for it. AssertionError says what one of them raised, or that it ended."""
        self._scripts += 1
        told = self._folder / f"{self._scripts}.new"
        told.write_text("\n".join([str(path), *arguments]))
        told.rename(self._folder / str(self._scripts))
        raised = [self._folder / f"{self._scripts}-{rank}" for rank in range(RANKS)]
        deadline = time.monotonic() + _PATIENCE
        while not all(one.exists() for one in raised):
            failed = [text for one in raised if one.exists() and (text := one.read_text())]
            if failed or self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                _ranks.cache_clear()  # the next script has a new pair
                self._output.seek(0)
                raise AssertionError("\n".join(failed) or self._output.read()[-3_000:])
            time.sleep(0.02)
        assert [one.read_text() for one in raised] == [""] * RANKS


@cache
def _ranks() -> Ranks:
    return Ranks()


def run_on_two_ranks(script: str, folder: Path, *arguments: object) -> None:
    """Runs a script on each rank, with these arguments; it is written into the folder. A test that calls this has
    `two_ranks_` in its name: see `TWO_RANKS` in conftest.py.
    """
    path = folder / "rank.py"
    path.write_text(script)
    _ranks().run(path, tuple(map(str, arguments)))


def _serve(folder: Path, parent: int) -> None:
    """Runs each script that arrives, until the tests have ended."""
    import logs_ui.recorder

    rank, number = os.environ["RANK"], 1
    while True:
        while not (folder / str(number)).exists():
            try:
                os.kill(parent, 0)
            except OSError:
                return
            time.sleep(0.02)
        sys.argv = (folder / str(number)).read_text().split("\n")
        raised = ""
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            logs_ui.recorder.flush()
        except BaseException:  # noqa: BLE001 - the tests are told
            raised = traceback.format_exc()
        told = folder / f"{number}-{rank}.new"
        told.write_text(raised)
        told.rename(folder / f"{number}-{rank}")
        number += 1


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
