"""What attribution goes by, and what it finds."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from logs_ui.recorder.capture.calls import CallRecords, EnvironmentCall, Generation, Note, Sequence

STRENGTH = (
    "scope", "context", "strand", "generation", "tokens", "text", "observation", "reward", "action", "prompt", "order",
    "position",
)  # fmt: skip
"""Evidence, strongest first; `attribution` says what each is."""


Returned = Mapping[str, Seq[float | None]]
"""What a function returned beside tokens, by name: (N) a number for each row, None where it is no number."""


Seen = CallRecords
"""The calls that attribution goes by, each kind in the order in which they began."""


@dataclass(slots=True)  # not frozen: that costs four times as much
class Turn:
    """One answer of the model within a row. Nobody changes it once it is made.

    Attributes:
        order: of the generation call.
        start: index of its first token in the completion; None where it does not stand there.
        others: what the same call answered besides, where it was asked for several answers to the same.
        is_used: False where there are others, and nothing shows which of them went on: then this is the first.
    """

    order: int
    generation: Generation
    sequence: Sequence
    start: int | None
    others: Seq[Sequence] = ()
    is_used: bool = True


@dataclass
class RowCalls:
    """The calls of one row, each kind in the order in which they began.

    Attributes:
        children: calls that the environment calls made themselves (`EnvironmentCall.within`).
        evidence: the weakest evidence by which a call came here; None without calls.
        is_whole: False where it has no environment call, and some were made that are nobody's: they may be its own.
        failures: generations without an answer: they raised, or have not come back.
    """

    turns: list[Turn] = field(default_factory=list)
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    children: list[EnvironmentCall] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    evidence: str | None = None
    is_whole: bool = True
    failures: list[Generation] = field(default_factory=list)

    def lower_evidence(self, evidence: str) -> None:
        """Keeps the weaker of this evidence and what the row rests on so far."""
        if self.evidence is None or STRENGTH.index(evidence) > STRENGTH.index(self.evidence):
            self.evidence = evidence

    @property
    def calls(self) -> list[Generation | EnvironmentCall]:
        """All of them, but for what environment calls made themselves."""
        return [*[turn.generation for turn in self.turns], *self.failures, *self.environment_calls]

    def may_hold(self, failure: Generation) -> bool:
        """Whether a failed generation can be one of its turns. Not if an environment's call made it, nor if it is seen
        to be of another model than all that answered: a judge's.
        """
        if failure.strand is not None and failure.strand.call is not None:
            return False
        return not self.turns or any(_may_be_alike(turn.generation, failure) for turn in self.turns)

    def may_end_by(self, failure: Generation) -> bool:
        """Whether a failed generation, which it holds, can be of the model that plays it: the one whose answers stand
        in its completion; where less than two do, the one that answered first.
        """
        standing = [turn for turn in self.turns if turn.start is not None]
        own = standing if len(standing) > 1 else sorted(self.turns, key=lambda turn: turn.order)[:1]
        return not own or any(_may_be_alike(turn.generation, failure) for turn in own)

    def sort(self) -> None:
        """By the order in which they began."""
        self.turns.sort(key=lambda turn: turn.order)
        self.environment_calls.sort(key=lambda call: call.order)
        self.notes.sort(key=lambda note: note.order)
        self.failures.sort(key=lambda failure: failure.order)


def _may_be_alike(answered: Generation, failure: Generation) -> bool:
    """Whether both can be of one model; of a failure that never came back only the seam is known."""
    is_known = bool(failure.sampling)
    same_model = answered.sampling.get("model") == failure.sampling.get("model")
    return answered.seam == failure.seam and (same_model or not is_known)


@dataclass(frozen=True)
class Attribution:
    """Calls by row, and how many found none."""

    rows: list[RowCalls]
    unattributed: int
