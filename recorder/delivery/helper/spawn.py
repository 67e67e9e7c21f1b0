"""Starts a helper process (`process.py`), sends it messages and listens to it. Runs in the training."""

import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from socket import SHUT_WR, socket
from typing import Any

import msgspec

from logs_ui.recorder.delivery.helper import pipe
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.storage.portable import on_fork

logger = logging.getLogger("logs_ui")

_SOON = 1.0  # seconds that a short message waits for one that is being sent
# The helper process takes neither a GPU nor further cores. It raises nothing, and reports its failures instead.
_ALONE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", RAISE_VARIABLE: "0"}
# The first process forks and ends at once, so that the helper process is no child of the training: code that waits for
# all of the training's children, or kills them, does not affect it.
_CODE = (
    "'logs-ui: writes what a training records'; import os, sys; os.fork() and os._exit(0); sys.path[:] = {}; "
    "from logs_ui.recorder.delivery.helper.process import main; main(int(sys.argv[1]))"
)
_connections: list[Connection] = []  # of this process, open


def _leave_to_parent() -> None:
    """Close the parent's connections in a forked child: kept open, they would hide the end of either side."""
    for connection in _connections:
        connection.close()
    _connections.clear()


on_fork(after_in_child=_leave_to_parent)


class HelperProcess:
    """A helper process that was started, and the thread that listens to it."""

    def __init__(self, heard: Callable[[list[Any]], None], condition: threading.Condition, folder: Path | None) -> None:
        """Start it in a working directory; None takes this process's. Raise OSError if it does not start.

        `heard` is called with each message, in the listener's thread, under the lock of `condition`, which is notified
        after each message, and when the process ends.
        """
        self.pid: int | None = None  # its PID; None until it can write
        self.is_running = True  # False once it has ended
        self.is_settled = True  # set it to False before sending "settle"
        self._heard, self._condition = heard, condition
        self._sending = threading.Lock()
        self._connection, theirs = Pipe()
        _connections.extend((self._connection, theirs))
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores other entries
        try:
            self._starter = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-c", _CODE.format(path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals from a terminal or a launcher to its group are for the training
                env=os.environ | _ALONE,
            )
        except OSError:
            self._close(self._connection)
            raise
        finally:
            self._close(theirs)
        threading.Thread(target=self._listen, name="logs-ui listener", daemon=True).start()

    def send(self, message: tuple[Any, ...], frames: Sequence[bytes]) -> None:
        """Send a message with its frames. Do nothing if the process has ended."""
        with suppress(OSError), self._sending:
            pipe.send(self._connection, message, frames)

    def send_soon(self, *message: Any) -> None:
        """Send a short message, from any thread; give up if the process does not read, as when it is stopped."""
        if not self._sending.acquire(timeout=_SOON):
            return
        try:
            with suppress(OSError, ValueError):  # closed
                waiting = select.poll()
                waiting.register(self._connection, select.POLLOUT)
                if waiting.poll(_SOON * 1_000):
                    pipe.send(self._connection, message)
        finally:
            self._sending.release()

    def end_sending(self) -> None:
        """Let the process read the end of the connection after what was sent, also if a thread is sending now."""
        # Only the direction to the process is shut down: what it still reports is read to its end.
        with suppress(OSError), socket(fileno=os.dup(self._connection.fileno())) as ours:  # it may have ended
            ours.shutdown(SHUT_WR)

    def _listen(self) -> None:
        # The first process forks and ends at once: this only takes its exit status.
        self._starter.wait()
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._hear(msgspec.msgpack.decode(self._connection.recv_bytes()))
        finally:  # whatever ends it, no thread may go on waiting
            # The lock makes sure that no thread is sending when the connection is closed.
            with self._sending:
                self._close(self._connection)
            with self._condition:
                self.is_running = False
                self._condition.notify_all()

    def _hear(self, message: list[Any]) -> None:
        if message[0] == "log":
            with suppress(Exception):  # the user's logging may raise: later messages must still be handled
                logger.log(message[1], "%s", message[2])
            return
        with self._condition:
            match message:
                case ["started", pid]:
                    self.pid = pid
                case ["settled"]:
                    self.is_settled = True
            self._heard(message)
            self._condition.notify_all()

    @staticmethod
    def _close(connection: Connection) -> None:
        connection.close()
        with suppress(ValueError):  # in a forked child, all of them are closed already
            _connections.remove(connection)
