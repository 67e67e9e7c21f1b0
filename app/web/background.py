"""A background thread that works now and then while the dashboard serves."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """A thread that calls `_look` until it is stopped; `start()` starts it."""

    def __init__(self, name: str, *, pause: float, patience: float) -> None:
        """Prepares the thread.

        Args:
            name: of the thread.
            pause: seconds between two calls.
            patience: seconds after a failed one.
        """
        self._pause, self._patience = pause, patience
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the current step has ended."""
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _look(self) -> bool:
        """Does the work that is due; returns False if it failed. Must not raise, because that would end the thread."""

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._pause if self._look() else self._patience)
