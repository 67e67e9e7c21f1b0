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
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.instruments.trl import columns_of_arguments
from logs_ui.recorder.capture.instruments.trl_callback import reporting_callback
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import plain_settings

_MODULE = "trl.experimental.async_grpo.async_grpo_trainer"
_OVERSIZE = "batch/dropped_oversize_total"


class Marked(dict[str, Any]):
    """A sample's metrics, which TRL carries from the worker's process into the batch, with the sample's row."""

    row: Any = None


def mark(sample: Any, row: Any) -> None:
    """Attach its row to a sample. `row` is pickled with it."""
    metrics = Marked(sample.metrics)
    metrics.row = row
    sample.metrics = metrics


def watch(worker: Any, listener: Any) -> None:
    """Report what the trainer does with the worker's samples to the listener, a `TrainerChannel`, from now on."""
    _listeners[worker.rollout_buffer] = listener
    patches.when_imported(_MODULE, _patch)
    stop = worker.stop

    @functools.wraps(stop)
    def reporting_stop(*args: Any, **kwargs: Any) -> Any:
        with guard("recording that training ended"):
            # `stop` is called in a `finally`, where the exception that ends the training is still being handled.
            listener.ended(sys.exception())
        return stop(*args, **kwargs)

    worker.stop = reporting_stop


_listeners: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()  # by the worker's queue
_heard: "weakref.WeakSet[Any]" = weakref.WeakSet()  # trainers


def _patch(module: Any) -> None:
    if hasattr(module, "RolloutQueueDataset"):
        patches.method(module.RolloutQueueDataset, "__iter__", _with_fates)
    if hasattr(module, "AsyncGRPOTrainer"):
        patches.method(module.AsyncGRPOTrainer, "get_train_dataloader", _with_callback)


@patch
def _with_fates(iterate: Method, dataset: Any) -> Iterator[Any]:
    queue = getattr(dataset, "queue", None)
    listener = None if queue is None else _listeners.get(queue)
    if listener is None:
        yield from iterate(dataset)
        return
    dataset.queue = watched = _WatchedQueue(queue, dataset, listener)
    try:
        # The dataset yields what it does not drop. What is after the yield runs when the batcher wants another sample.
        for sample in iterate(dataset):
            watched.handed_on()
            yield sample
            watched.went_on()
    finally:
        dataset.queue = queue


class _WatchedQueue:
    """Wraps a worker's queue while a dataset takes samples from it."""

    def __init__(self, queue: Any, dataset: Any, listener: Any) -> None:
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


@patch
def _with_callback(get_train_dataloader: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    with guard("attaching to the trainer"):
        queue = getattr(trainer, "rollout_queue", None)
        listener = None if queue is None else _listeners.get(queue)
        if listener is not None and trainer not in _heard:
            _heard.add(trainer)
            trainer.add_callback(reporting_callback(listener.logged))
            arguments, settings = trainer.args, masked(plain_settings(trainer.args.to_dict()))
            columns = columns_of_arguments(arguments, arguments.max_steps, arguments.num_generations)
            listener.described({"config": settings, **columns})
    return get_train_dataloader(trainer, *args, **kwargs)
