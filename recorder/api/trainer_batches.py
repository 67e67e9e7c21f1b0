"""Records the batches that a trainer of TRL rolls out itself: its model's answers, its tools, its environments.

A rollout function records its own: see `record.py`.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from logs_ui.recorder.api.environment_factory import environment_name, factory_of
from logs_ui.recorder.api.trainer_run import Recording, Recordings
from logs_ui.recorder.capture.calls import collecting
from logs_ui.recorder.capture.instruments import install, trl, trl_online_dpo
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import OpenCall


def record_batches(trainer: Any = None, recordings: Recordings | None = None) -> None:
    """Record the batches of trainers with recorded environments from now on, and those of the trainer if one is given,
    with its recordings.
    """
    install()
    trl.watch_batches(_door)
    if trainer is not None:
        _recorded[trainer] = recordings
        (trl_online_dpo if trl_online_dpo.compares_pairs(trainer) else trl).patch_classes(trainer)


def recordings_of(trainer: Any) -> Recordings | None:
    """Return what records the trainer's own batches; None if nothing does."""
    factory = factory_of(trainer)
    return _recorded.get(trainer) or (None if factory is None else factory.recordings)


@dataclass(eq=False)
class _Batch:
    """A batch that a trainer rolls out, from its first reset to its last reward."""

    trainer: Any
    recording: Recording
    call: OpenCall
    # Context managers that stay open until all tokens are there.
    generating: ExitStack = field(default_factory=ExitStack)
    # The tokens and masks, in the form that a rollout function returns; None until they are there.
    output: dict[str, Any] | None = None

    def generated(self, prompts: list[Any] | None, output: dict[str, Any]) -> None:
        """Take the tokens. The rows end here, unless their environments have a `get_reward` that is called next."""
        self.generating.close()
        if prompts is not None:
            self.recording.prompted(self.call, prompts, self.trainer)
        # Copied: reward functions are given the same lists, and may change them.
        self.output = {key: rows and [list(row) for row in rows] for key, rows in output.items()}
        if any(hasattr(type(environment), "get_reward") for environment in trl.environments(self.trainer)):
            # The trainer asks the environments for rewards next, and these calls belong to the rows as well.
            self.call.collector.tree.closed = False
        else:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the rows unless they have ended. An error that is raised after the tokens is not an error of the rows."""
        if self.call.settled:
            return
        self.call.collector.tree.closed = True
        if self.output is None:
            self.recording.failed(
                self.call,
                error or LookupError("logs-ui found no token ids of this batch: it knows TRL from 0.18.2 to 1.16"),
            )
        else:
            self.recording.returned(self.call, self.output | self._extras())

    def _extras(self) -> dict[str, list[Any]]:
        """Return environments and rewards under the names that a rollout function would return them by."""
        environments = trl.environments(self.trainer)
        rewards = {
            call.strand.row: call.reward
            for call in self.call.calls.environment_calls
            if call.kind == "reward" and call.within is None and call.strand is not None
        }
        extras = {"environment": [environment_name(environment) for environment in environments]}
        rows = range(len(self.call.prompts))
        rewarded = {"env_reward": [rewards.get(row) for row in rows]} if rewards else {}
        return (extras | rewarded) if environments else {}


class _Door:
    """Hears from the instrument of TRL of the batches whose rollouts a trainer makes itself."""

    def __init__(self) -> None:
        self._batches: weakref.WeakKeyDictionary[Any, _Batch] = weakref.WeakKeyDictionary()

    def records(self, trainer: Any) -> bool:
        """Return True if the trainer's own batches are recorded."""
        return recordings_of(trainer) is not None

    @contextmanager
    def batch(self, trainer: Any, prompts: list[Any]) -> Iterator[None]:
        """Wrap all that a trainer does for a batch of prompts of the dataset: opens the rows if its batches are
        recorded, and at the end those that are still open end.
        """
        batch: _Batch | None = None
        before = self._batches.get(trainer)  # of an override that samples again
        with guard("opening the rows of a batch"):
            batch = self._opened(trainer, prompts)
        if batch is None:
            yield
            return
        error: BaseException | None = None
        try:
            with batch.generating:
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            del self._batches[trainer]
            if before is not None:
                self._batches[trainer] = before
            with guard("ending the rows of a batch"):
                batch.end(error)

    def awaits_tokens(self, trainer: Any) -> bool:
        """Return True in a recorded batch whose tokens are not there yet."""
        return trainer in self._batches and self._batches[trainer].output is None

    def has_tokens(self, trainer: Any) -> bool:
        """Return True in a recorded batch whose tokens are there."""
        return trainer in self._batches and self._batches[trainer].output is not None

    def generated(self, trainer: Any, prompts: list[Any] | None, output: dict[str, Any]) -> None:
        """Take the rollouts: the prompts after the environments were reset (None: they are the same), and what a
        rollout function returns.
        """
        self._batches[trainer].generated(prompts, output)

    def scoring(self, trainer: Any) -> Strand | None:
        """Return the strand in which the trainer's environments are asked for rewards; None outside of that."""
        if not self.has_tokens(trainer):
            return None
        tree = self._batches[trainer].call.collector.tree
        return tree.root if tree.is_open else None

    def scored(self, trainer: Any) -> None:
        """Take that all reward functions have returned."""
        if self.has_tokens(trainer):
            self._batches[trainer].end()

    def _opened(self, trainer: Any, prompts: list[Any]) -> _Batch | None:
        recordings = recordings_of(trainer)
        if recordings is None:
            return None
        recording = recordings.of(trainer)
        batch = self._batches[trainer] = _Batch(trainer, recording, recording.open(prompts, trainer))
        batch.generating.enter_context(collecting(batch.call.collector))
        return batch


_door = _Door()
_recorded: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
