"""What the dashboard does now and then while it serves, in a thread of its own."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Begins with `start()`."""

    def __init__(self, name: str, *, pause: float, patience: float) -> None:
        """What it is about.

        Args:
            name: of the thread.
            pause: seconds between two looks.
            patience: seconds after one that failed.
        """
        self._pause, self._patience = pause, patience
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the step that is under way has ended."""
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _look(self) -> bool:
        """Does what there is to do; whether that was possible. Must not raise: the thread has to outlive it."""

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._pause if self._look() else self._patience)
