"""Describes one call of a rollout function: the names of its rows, their prompts and the calls that were seen."""

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from logs_ui.recorder.capture.calls import CallRecords, Collector
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.storage.changes import RowChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import Mode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Parse = Callable[[str], object]
"""The rollout function's own parser: turns an answer's text into an action; None, or an exception, means no action."""

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""A function that changes what is stored of a row, or returns None to store nothing. See `record(edit=...)`."""

_OWN_BYTES, _ROW_BYTES = 2_000, 100  # without any text; measured


class RowOptions(Struct, frozen=True, array_like=True):
    """Holds the user's options for rows. Functions are called in the writer's thread."""

    parse: Parse | None = None  # see `Parse`; None if no parser is known
    edit: Edit | None = None  # None stores rows as they are
    # The environment server's log file, whose end is stored with errors; None stores none.
    server_log: Path | None = None
    # True if tool calls are the only actions: an answer without one is no action, and no parse failure either.
    offers_tools: bool = False


class TokenizerSource:
    """A tokenizer as JSON, with the SHA-256 of that; it is only parsed where ids are decoded."""

    def __init__(self, hash_: str, json: str) -> None:
        self.hash, self.json = hash_, json

    @classmethod
    def of(cls, tokenizer: Any) -> "TokenizerSource | None":
        """Return the source of a tokenizer or processor; None if it is not based on the `tokenizers` library."""
        inner = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        backend = getattr(inner, "backend_tokenizer", inner)
        json = backend.to_str() if hasattr(backend, "to_str") else None
        return None if json is None else cls(hashlib.sha256(json.encode()).hexdigest(), json)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.json)


class RolloutCall(Struct, array_like=True, eq=False):
    """Holds one call of a rollout function: its rows before they have an end."""

    run: str  # uid of the run
    launch: str  # see `RunName`
    eval_name: str
    mode: Mode
    step: int
    policy_step: int
    batch: int  # number of the trainer's batch, the same on all ranks
    prompts: list[bytes]  # (N) JSON of each prompt
    tasks: list[str | None]  # (N) names; None for those that are not known yet
    epoch: float | None = None
    attempt: int = 0  # number of the call for this batch, from 0: a function that raised may be called again
    process: int = 0
    first: int = 0  # global index of this process's first row
    generations: int = 1
    model: str | None = None
    columns: list[bytes] | None = None  # (N) JSON of the dataset's other columns; None if they are not known
    source: TokenizerSource | None = None  # the tokenizer; None if it is not known
    calls: CallRecords = field(default_factory=CallRecords)
    created: int = field(default_factory=now_us)
    settled: bool = False  # True once the function returned or raised
    options: RowOptions = field(default_factory=RowOptions)
    group: str | None = None  # group of the one row of an explicit run; None in a batch, where the index determines it
    generation: int | None = None  # its number within that; None in a batch, likewise
    left_out: set[int] = field(default_factory=set)  # indices of rows of which `options.edit` stores nothing
    # (N) keys of the prompts before resets added to them; None if they are `prompts`.
    prompt_keys: list[int] | None = None

    def change(self, index: int, columns: Mapping[str, Any]) -> RowChange:
        """Return a change of row `index`'s columns."""
        number = self.first + index
        identity = {
            "eval_name": self.eval_name,
            "mode": self.mode,
            "step": self.step,
            "policy_step": self.policy_step,
            "epoch": self.epoch,
            "group": self.group or f"{self.run}/{self.mode}/{self.batch}/{number // self.generations}",
            "generation": number % self.generations if self.generation is None else self.generation,
            "process": self.process,
            "model": self.model,
            "created": self.created,
        }
        uid = f"{self.launch}/{self.batch}/{number}" + (f"/{self.attempt}" if self.attempt else "")
        return RowChange(self.run, uid, identity, columns)

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """Return the tokenizer; None if it is not known."""
        return None if self.source is None else self.source.tokenizer

    @property
    def size(self) -> int:
        """Estimate how many bytes it keeps alive."""
        texts = sum(map(len, self.prompts)) + sum(map(len, self.columns or ()))
        return _OWN_BYTES + _ROW_BYTES * len(self.prompts) + texts + self.calls.size

    def release(self) -> None:
        """Release what no later job needs. Called when the rows' ends are encoded."""
        self.calls.release()
        self.columns = None

    def drop_text(self) -> None:
        """Release all text that is not needed to write the rows. A prompt stays if the task's name is made from it."""
        self.release()
        self.prompts = [b"[]" if task else prompt for prompt, task in zip(self.prompts, self.tasks, strict=True)]

    def decode(self, ids: Ids) -> str:
        """Return the text of ids without special tokens; empty if the tokenizer is not known."""
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True) if self.tokenizer else ""

    def so_far(self) -> CallRecords:
        """Return the calls as of now, while the function runs."""
        return self.calls

    def carrying(self, calls: CallRecords, *, texts: bool = True) -> "RolloutCall":
        """Return a copy to be sent, with these calls, and with or without prompts and dataset columns."""
        sent = copy(self)  # not replace(), which would call __post_init__
        sent.calls = calls
        if not texts:
            sent.prompts, sent.columns = [b"[]"] * len(self.prompts), None
        return sent


class OpenCall(RolloutCall, array_like=True, kw_only=True, eq=False):
    """Describes a call of a rollout function in the training, where a `collector` collects its `calls`."""

    collector: Collector = field(default_factory=Collector)

    def __post_init__(self) -> None:
        self.calls = self.collector.records

    def so_far(self) -> CallRecords:
        return self.collector.so_far()
