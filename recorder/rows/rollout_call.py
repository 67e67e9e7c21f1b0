"""Describes one call of a rollout function: the names of its rows, their prompts and the calls that were seen."""

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from logs_ui.recorder.capture.calls import CallRecords, Collector, Ids
from logs_ui.recorder.storage.changes import RowChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import Mode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Parse = Callable[[str], object]
"""The rollout function's own parser: an answer's text to an action; None, or an exception, where there is none."""

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Changes what is stored of a row, or returns None to store nothing. See `record(edit=...)`."""


_OWN_BYTES, _ROW_BYTES = 2_000, 100  # without any text; measured


class RowOptions(Struct, frozen=True, array_like=True):
    """Options of the user for rows; functions are called in the writer's thread.

    Attributes:
        parse: returns None for an answer without an action; None if that is not known.
        edit: None stores rows as they are.
        server_log: the environment server's log file, whose end is kept with errors; None keeps none.
        offers_tools: whether the environment is acted on by tool calls alone: an answer without one is no action, and
            nothing that could not be parsed.
    """

    parse: Parse | None = None
    edit: Edit | None = None
    server_log: Path | None = None
    offers_tools: bool = False


class TokenizerSource:
    """A tokenizer by its JSON, which is only read where texts are made.

    Attributes:
        hash: of the JSON.
    """

    def __init__(self, hash_: str, json: str) -> None:
        self.hash, self.json = hash_, json

    @classmethod
    def of(cls, json: str) -> "TokenizerSource":
        """Hash a tokenizer's JSON."""
        return cls(hashlib.sha256(json.encode()).hexdigest(), json)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.json)


class RolloutCall(Struct, array_like=True, eq=False):
    """Holds one call of a rollout function: its rows before they have an end.

    Attributes:
        run: uid.
        launch: see `RunName`.
        batch: counts the trainer's batches, alike on all ranks.
        attempt: counts the calls for this batch: more than one where a function that raised is called again.
        first: global index of this process's first row.
        prompts: (N) JSON of each prompt.
        tasks: (N) None where they are not known yet.
        columns: (N) JSON of the dataset's other columns; None where they are not known.
        source: of the tokenizer; None where that is not known.
        settled: True once the function returned or raised.
        group, generation: names of the one row of an explicit run; None: rows of a batch, told by their index.
        left_out: rows that `options.edit` stores nothing of.
    """

    run: str
    launch: str
    eval_name: str
    mode: Mode
    step: int
    policy_step: int
    epoch: float | None
    batch: int
    attempt: int
    process: int
    first: int
    generations: int
    model: str | None
    prompts: list[bytes]
    tasks: list[str | None]
    columns: list[bytes] | None
    source: TokenizerSource | None
    calls: CallRecords = field(default_factory=CallRecords)
    created: int = field(default_factory=now_us)
    settled: bool = False
    options: RowOptions = field(default_factory=RowOptions)
    group: str | None = None
    generation: int | None = None
    left_out: set[int] = field(default_factory=set)

    def change(self, i: int, columns: Mapping[str, Any]) -> RowChange:
        """Columns of row `i`, as they are written."""
        index = self.first + i
        identity = {
            "eval_name": self.eval_name,
            "mode": self.mode,
            "step": self.step,
            "policy_step": self.policy_step,
            "epoch": self.epoch,
            "group": self.group or f"{self.run}/{self.mode}/{self.batch}/{index // self.generations}",
            "generation": index % self.generations if self.generation is None else self.generation,
            "process": self.process,
            "model": self.model,
            "created": self.created,
        }
        uid = f"{self.launch}/{self.batch}/{index}" + (f"/{self.attempt}" if self.attempt else "")
        return RowChange(self.run, uid, identity, columns)

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer; None if it is not known."""
        return None if self.source is None else self.source.tokenizer

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        texts = sum(map(len, self.prompts)) + sum(map(len, self.columns or ()))
        return _OWN_BYTES + _ROW_BYTES * len(self.prompts) + texts + self.calls.size

    def release(self) -> None:
        """Releases what no later job needs, once the rows' ends are encoded."""
        self.calls.release()
        self.columns = None

    def drop_text(self) -> None:
        """Releases all that its rows can be written without. A prompt stays if it names the task."""
        self.release()
        self.prompts = [b"[]" if task else prompt for prompt, task in zip(self.prompts, self.tasks, strict=True)]

    def decode(self, ids: Ids) -> str:
        """The text of ids without special tokens; empty if the tokenizer is not known."""
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True) if self.tokenizer else ""

    def so_far(self) -> CallRecords:
        """The calls as of now, while the function runs."""
        return self.calls

    def carrying(self, calls: CallRecords, *, texts: bool = True) -> "RolloutCall":
        """A copy to be sent, with these calls, and with or without the texts that the training was given."""
        sent = copy(self)  # not replace(), which would call __post_init__
        sent.calls = calls
        if not texts:
            sent.prompts, sent.columns = [b"[]"] * len(self.prompts), None
        return sent


class OpenCall(RolloutCall, array_like=True, kw_only=True, eq=False):
    """A call of a rollout function in the training, where its calls are collected.

    Attributes:
        collector: collects `calls`. It stays in the training.
    """

    collector: Collector = field(default_factory=Collector)

    def __post_init__(self) -> None:
        self.calls = self.collector.records

    def so_far(self) -> CallRecords:
        return self.collector.so_far()
