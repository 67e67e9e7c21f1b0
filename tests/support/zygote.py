"""Forks helper processes from one that has recorded already: to start an interpreter for each, which imports and
compiles what it runs, takes a second of processor time, and some thousand tests record. All else is the real one: a
process of its own, its pipe, its end. `test_helper.py` starts them as a training does.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DEVNULL = subprocess.DEVNULL
_MOST = 1 << 20  # bytes of a message


class Popen:
    """Takes what `spawn.py` gives to `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, pass_fds: Sequence[int], cwd: Path | None, env: Mapping[str, str], **_: Any
    ) -> None:
        socket.send_fds(_zygote(), [json.dumps([str(cwd or Path.cwd()), dict(env)]).encode()], pass_fds)

    def wait(self) -> int:
        """Return at once, as the process that `spawn.py` starts, which forks and ends."""
        return 0


@cache
def _zygote() -> socket.socket:
    # Each message is sent and received whole: threads, and processes that a test forks, send at the same time.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"from tests.support.zygote import serve; serve({theirs.fileno()})"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGS_UI_")}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LOGS_UI_WRITER": "thread"}
    subprocess.Popen(  # it ends with this process
        [sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=environment, start_new_session=True
    )
    theirs.close()
    return ours


def serve(descriptor: int) -> None:
    """Forks a helper process for each message, until the tests' process has ended."""
    import logs_ui.recorder.storage.postgres.engine  # noqa: F401
    from logs_ui.recorder.delivery import committer
    from logs_ui.recorder.delivery.helper import process as helper_process

    _record()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    tests = socket.socket(fileno=descriptor)
    while True:
        message, connections, _, _ = socket.recv_fds(tests, _MOST, 1)
        if not message:
            return
        folder, environment = json.loads(message)
        if not os.fork():
            tests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 0)
            os.dup2(nowhere, 1)
            committer.HEARTBEAT = float(environment.get("TESTS_HEARTBEAT", committer.HEARTBEAT))
            helper_process.main(connections[0])
        os.close(connections[0])


def _record() -> None:
    """Records one rollout here, so that all that this imports and compiles is there in each fork."""
    from logs_ui.recorder import start_run
    from logs_ui.recorder.delivery.writer import LATE
    from tests.support.writers import ending_writers

    # What it announces would be a line more on the stderr of the test that is the first to record.
    with TemporaryDirectory() as folder, ending_writers(), redirect_stderr(StringIO()):
        with start_run(db=Path(folder) / "a.db") as run:
            with run.rollout([{"role": "user", "content": "?"}]) as rollout:
                rollout.turn("!", action={"n": 1}, observation="?", reward=0.5)
                rollout.tag("a")
                rollout.metric("b", 1.0)
                rollout.score(rewards={"solved": 1.0}, advantage=0.5)
            run.log(1, {"loss": 0.5})
        for thread in threading.enumerate():
            if thread.name == LATE:
                thread.join()
