"""Defines a chain: generations of which each continues the one before, so that all of them are of one row."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.branches import place_of
from logs_ui.recorder.rows.attribution.prefixes import answer_of, context_of


@dataclass(eq=False)
class Chain:
    """Generations of one row that follow one another, as far as their tokens show it."""

    branch: Strand | None  # where they were made; where branches are turns, where the first one was
    row: int | None  # the row that they name themselves; None where they name none
    begins: bool  # True if the first one can be a row's first turn; else it is some row's later turn
    parts: list[tuple[Generation, Sequence]] = field(default_factory=list)
    head: bytes = b""  # bytes of the first context; empty where it is unknown
    tail: bytes | None = None  # bytes up to the end of the last answer; None where they are unknown
    # True if each context repeats all before it, so that the tail holds all of the chain's tokens.
    is_unbroken: bool = True
    # Rows with this prompt, set once the chain turned out to match no whole row; None where its first context holds no
    # row's prompt.
    candidate_rows: Seq[int] | None = None

    def add(self, generation: Generation, sequence: Sequence, context: bytes | None) -> None:
        """Append a turn; `context` are the bytes of its context, see `context_of`."""
        sampled = answer_of(sequence)
        if not self.parts:
            self.head = context or b""
        is_known = not self.parts or self.tail is not None
        continues = context is not None and is_known and context.startswith(self.tail or b"")
        self.is_unbroken = self.is_unbroken and continues and bool(sampled)
        self.parts.append((generation, sequence))
        if context is not None and sampled is not None:
            self.tail = context + sampled

    def split(self) -> list["Chain"]:
        """Return one chain for each turn."""
        single = [Chain(self.branch, self.row, self.begins, candidate_rows=self.candidate_rows) for _ in self.parts]
        for chain, part in zip(single, self.parts, strict=True):
            chain.add(*part, context_of(part[1]))
        return single

    def key(self) -> tuple[int, int]:
        """Return the key that sorts chains as their rows began: by the start of their strands, then by time."""
        return place_of(self.branch), self.parts[0][0].order

    @property
    def model(self) -> object:
        """Return the seam and the model's name, as far as it is known."""
        generation = self.parts[0][0]
        return generation.seam, generation.sampling.get("model")

    @property
    def size(self) -> int:
        """Return sampled tokens; characters where there are no ids."""
        return sum(
            len(sequence.text or "") if sequence.sampled is None else len(sequence.sampled)
            for _, sequence in self.parts
        )
