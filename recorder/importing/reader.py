"""Defines what a reader of a foreign format yields: rollouts, as far as their file shows them, and what a reader is.

A reader turns one record of a file (a line of JSONL, a row of Parquet or of a table) into rollouts. All else is the
same for every format: which files are read and how far (`source_files.py`), rows (`imported_rows.py`), and what is
written (`import_run.py`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from logs_ui.recorder.importing.source_files import Head, Place, records_of
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Dropped, Lack, Mode, Status, StopReason


class Turn(NamedTuple):
    """Describes one answer of the model, as far as it is known; times are in s."""

    finish: str | None = None  # why the answer ended, as the server says: "stop", "length", "tool_calls"
    seconds: float | None = None  # how long the model took
    tokens: int | None = None  # number of the answer's tokens
    limit: int | None = None  # token limit of the call
    reward: float | None = None  # the environment's reward for the action
    done: bool | None = None  # True if the environment says that the episode is over
    env_seconds: float | None = None  # how long the environment, or the tools, took
    error: str | None = None  # the environment's error in one line


@dataclass(slots=True)
class ImportedRollout:
    """Describes one rollout as its file shows it. None always means that the file does not show it.

    What has the same key is the same rollout: the later one replaces it. Messages are in OpenAI's form; tool calls may
    have arguments as an object. `reward` of None takes the weighted sum of `rewards` without NaN, in which a missing
    weight is 1. NaN and infinities are taken as they are, and shown as such.
    """

    key: str  # at most 300 characters: the source's own id, or the place's `key`
    prompt: Sequence[Mapping[str, Any]]  # messages before the policy's first answer
    completion: Sequence[Mapping[str, Any]]  # answers, and what came between them: "tool", "user", "system"
    step: int = 0
    mode: Mode = Mode.EVAL
    group: str | None = None  # unique within the run, mode and step; None makes it a group of its own
    generation: int | None = None  # its number in the group; None counts
    eval_name: str | None = None  # name of the environment or dataset; None takes the run's
    policy_step: int | None = None  # the version of the policy that made it; None takes `step`
    staleness: int | None = None
    dropped: Dropped | None = None
    task: str | None = None
    model: str | None = None
    status: Status | None = None  # None infers it from `error`
    stop_reason: StopReason | None = None  # None infers it from `error` and the last turn's `finish`
    error: str | None = None
    reward: float | None = None  # the total
    rewards: Mapping[str, float | None] | None = (
        None  # by reward function; None for one that did not run or returned None
    )
    weights: Mapping[str, float] | None = None  # by reward function
    advantage: float | None = None
    tokens: Tokens | None = None  # ids, log-probs and mask
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    turns: Sequence[Turn] = ()  # one for each assistant message of `completion`; empty if nothing is known of them
    is_one_text: bool = False  # True if turns and tool calls stand unmarked in it: their number is not recorded then
    actions: list[dict[str, Any]] | None = None  # as in `Rollout.actions`; None makes them of the messages
    sampling: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # numbers that are no rewards; other values are left out
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)  # all else that the record says
    created: int | None = None  # µs since the epoch, UTC, as `returned`; None takes the file's time
    returned: int | None = None
    seconds: float | None = None  # from the first call to the last
    run: str | None = None  # the source's own id of the run, where a file has several


@dataclass(frozen=True)
class ImportedScalars:
    """Figures that the trainer logged at a step, by name."""

    step: int
    values: Mapping[str, float | None]
    run: str | None = None


@dataclass(frozen=True)
class ImportedRun:
    """Describes a run as its files show it."""

    name: str | None = None  # for people; None takes the name of the file or folder
    model: str | None = None
    num_generations: int | None = None
    max_steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # settings, as JSON can hold them
    versions: Mapping[str, str] = field(default_factory=dict)  # of the programs that wrote it, by name
    lacks: Sequence[str] = ()  # what the format never has, in words that go into a sentence: "token ids"
    ours: Mapping[str, Any] = field(default_factory=dict)  # first rollout's columns of our own export


@dataclass(frozen=True)
class ImportOptions:
    """Holds what the user said about the files."""

    rewards: Sequence[str] | None = None  # names of the columns that are rewards; None leaves that to the reader
    weights: Mapping[str, float] = field(default_factory=dict)  # by reward; empty if none were given
    mapping: Path | None = None  # the file of `--map`; None without


class Reader:
    """Reads one format. An import has one instance of it, which sees all records in order.

    A subclass sets the class attributes, and implements `rollouts`; what is no JSONL, JSON or Parquet
    also needs `records`, and one that can describe a run puts it into `runs` before it yields its first rollout. The
    same records give the same rollouts, whatever was read before them, but for `generation`.

    JSONL that has grown is read on from where it ended; any other file that has changed is read anew.

    Attributes:
        name: of the format, for `--as`.
        title: for people: "verifiers and prime-rl".
        marks: how its files are recognized, for the error about a file of an unknown format: "JSONL with `nodes`".
        lacks: of a run that is not in `runs`.
        may_repeat: True if a later record may replace an earlier one of the same key.
        runs: by the source's own id.
        notes: what people should know of what was read, in lines.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    marks: ClassVar[str]
    may_repeat: ClassVar[bool] = False
    lacks: Sequence[str] = ()

    def __init__(self, root: Path, options: ImportOptions) -> None:
        """Make a reader; it reads nothing yet. `root` is the first path that was given."""
        self.root, self.options = root, options
        self.runs: dict[str | None, ImportedRun] = {}
        self.notes: list[str] = []

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        """Return True if a file is of this format, by its content: it has the keys that `marks` has in backquotes."""
        return any(head.keys >= keys for keys in cls.alternatives())

    @classmethod
    def alternatives(cls) -> list[set[str]]:
        """Return the sets of keys that `marks` has in backquotes, each of which marks its files."""
        return [keys for mark in re.split("; |, or |, with ", cls.marks) if (keys := {*re.findall("`(.+?)`", mark)})]

    def describe(self, run_id: str | None) -> ImportedRun:
        """Describe the run with this id of the source's own; called when its first rollout was read."""
        weights = [Lack.WEIGHTS] if self.options.rewards and not self.options.weights else []
        return self.runs.get(run_id, ImportedRun(run_id, lacks=(*self.lacks, *weights)))

    def records(self, file: Path) -> Iterable[tuple[int, Any]]:
        """Yield the file's records, each with its number, from 1 on. A record that is no JSON is a `RecordError`."""
        return records_of(file)

    def rollouts(self, record: Any, place: Place) -> Iterable[ImportedRollout | ImportedScalars]:
        """Yield the rollouts of a record. Raise RecordError if it is none."""
        raise NotImplementedError
