"""Follows AsyncGRPO in the trainer's process: the samples that it takes from its rollout worker, and its scalars.

What is relied on (trl 1.16), and what is lost without it:
    worker.rollout_buffer, the queue that the trainer takes samples from            all of the below
    worker.stop(), called in the `finally` of the training                         that an exception ended it
    sample.metrics, a dict that goes with a sample up to its batch                 the row of each sample: both below
    RolloutQueueDataset.__iter__() takes from .queue.get(), and yields what it does not drop    staleness, "stale"
    RolloutQueueDataset.model_version_fn(), sample.model_version                   staleness, "stale"
    RolloutQueueDataset.metrics["batch/dropped_oversize_total"], a list that grows as a batcher drops    "oversize"
    AsyncGRPOTrainer.get_train_dataloader(), .rollout_queue                        scalars, the trainer's arguments
"""

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from logs_ui.recorder.capture.instruments.patch import patches
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import column, plain

_MODULE = "trl.experimental.async_grpo.async_grpo_trainer"
_OVERSIZE = "batch/dropped_oversize_total"


class Listener(Protocol):
    """Hears what a trainer does with its worker's samples. Called in the trainer's process, and on its thread."""

    def described(self, columns: dict[str, Any]) -> None:
        """Take columns of `Run`, when training begins."""

    def logged(self, step: int, values: Mapping[str, Any]) -> None:
        """Take what the trainer logs at a step."""

    def taken(self, row: Any, staleness: int, dropped: str | None) -> None:
        """Take that a sample was taken from the worker's queue.

        Args:
            row: The row that was passed to `mark`.
            staleness: Number of versions by which the trainer's policy was ahead of the sample's.
            dropped: "stale" or "oversize"; None if it is trained on. A sample that is dropped as oversize is reported
                twice, first with None.
        """

    def ended(self, error: BaseException | None) -> None:
        """Take that the worker is about to be stopped; `error` is the exception that caused it, or None."""


class Marked(dict[str, Any]):
    """A sample's metrics, and its row. TRL carries metrics from the worker's process into the batch; the sample itself
    takes no further attributes.
    """

    row: Any = None


def mark(sample: Any, row: Any) -> None:
    """Attach its row to a sample. `row` is pickled with it."""
    metrics = Marked(sample.metrics)
    metrics.row = row
    sample.metrics = metrics


def watch(worker: Any, listener: Listener) -> None:
    """Report what the trainer does with the worker's samples to the listener, from now on."""
    _listeners[worker.rollout_buffer] = listener
    patches.when_imported(_MODULE, _patch)
    stop = worker.stop

    @functools.wraps(stop)
    def reporting_stop(*args: Any, **kwargs: Any) -> Any:
        with guard("recording that training ended"):
            listener.ended(sys.exception())
        return stop(*args, **kwargs)

    worker.stop = reporting_stop


_listeners: "weakref.WeakKeyDictionary[Any, Listener]" = weakref.WeakKeyDictionary()  # by the worker's queue
_heard: "weakref.WeakSet[Any]" = weakref.WeakSet()  # trainers


def _patch(module: Any) -> None:
    for owner, method, make in (
        ("RolloutQueueDataset", "__iter__", _with_fates),
        ("AsyncGRPOTrainer", "get_train_dataloader", _with_callback),
    ):
        if hasattr(module, owner):
            patches.method(getattr(module, owner), method, make)


def _with_fates(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        queue = getattr(self, "queue", None)
        listener = None if queue is None else _listeners.get(queue)
        if listener is None:
            yield from original(self)
            return
        self.queue = watched = _WatchedQueue(queue, self, listener)
        try:
            for sample in original(self):
                watched.handed_on()
                yield sample
                watched.went_on()
        finally:
            self.queue = queue

    return iterate


class _WatchedQueue:
    """Wraps a worker's queue while a dataset takes samples from it."""

    def __init__(self, queue: Any, dataset: Any, listener: Listener) -> None:
        self._queue, self._dataset, self._listener = queue, dataset, listener
        self._sample: tuple[Any, int] | None = None  # row and staleness of the last sample; None if it has no row
        self._is_kept = False
        self._oversize = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next sample. If the last one was not passed on, it was dropped."""
        if not self._is_kept:
            self._report("stale")
        self._sample, self._is_kept = None, False
        sample = self._queue.get(*args, **kwargs)
        with guard("recording that a sample was taken"):
            if isinstance(sample.metrics, Marked):
                version = int(self._dataset.model_version_fn())
                self._sample = sample.metrics.row, version - int(sample.model_version)
        return sample

    def handed_on(self) -> None:
        """Note that the dataset passes the last sample on to a batcher."""
        self._is_kept = True
        self._report(None)
        self._oversize = self._dropped_as_oversize()

    def went_on(self) -> None:
        """Note that the batcher wants another sample. Only before this moment a sample can be dropped as oversize, and
        the trainer clears its count only when it logs.
        """
        if self._dropped_as_oversize() > self._oversize:
            self._report("oversize")

    def _dropped_as_oversize(self) -> int:
        return len(getattr(self._dataset, "metrics", {}).get(_OVERSIZE, ()))

    def _report(self, dropped: str | None) -> None:
        if self._sample is not None:
            with guard("reporting that a sample was taken"):
                self._listener.taken(*self._sample, dropped)


def _with_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_train_dataloader(self: Any, *args: Any, **kwargs: Any) -> Any:
        with guard("attaching to the trainer"):
            queue = getattr(self, "rollout_queue", None)
            listener = None if queue is None else _listeners.get(queue)
            if listener is not None and self not in _heard:
                _heard.add(self)
                self.add_callback(_callback(listener))
                listener.described(_run_columns(self))
        return original(self, *args, **kwargs)

    return get_train_dataloader


def _callback(listener: Listener) -> Any:
    from transformers import TrainerCallback

    class Recorded(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
        """Passes on what the trainer logs."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
            if logs and state.is_world_process_zero:
                with guard("recording the trainer's scalars"):
                    listener.logged(int(state.global_step), dict(logs))

    return Recorded()


def _run_columns(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    columns = {
        "config": masked(plain(args.to_dict())),
        "max_steps": int(args.max_steps) if args.max_steps > 0 else None,
        "num_generations": int(args.num_generations),
        "output_dir": os.path.abspath(str(args.output_dir)),  # noqa: PTH100 - links are not followed: it is a name
    }
    # Without a run_name of the user transformers sets it to the output folder.
    return columns | (
        {"name": column(str(args.run_name))} if args.run_name and args.run_name != args.output_dir else {}
    )
