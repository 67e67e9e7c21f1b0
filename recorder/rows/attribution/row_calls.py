"""The calls that attribution works on, and the rows that it fills."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from logs_ui.recorder.capture.calls import CallRecords, EnvironmentCall, Generation, Note
from logs_ui.recorder.capture.model_answers import Sequence

STRENGTH = (
    "scope", "context", "strand", "generation", "tokens", "text", "observation", "reward", "action", "prompt", "order",
    "position",
)  # fmt: skip
"""Kinds of evidence, strongest first; the package's docstring explains each."""

Returned = Mapping[str, Seq[float | None]]
"""Numbers that a function returned beside tokens, by name: (N) one for each row, None where it is no number."""

Seen = CallRecords
"""The calls that attribution goes by, each kind in the order in which they began."""


@dataclass(slots=True)  # not frozen: that costs four times as much
class Turn:
    """Holds one answer of the model within a row; it is not changed once it is made."""

    order: int  # of the generation call
    generation: Generation
    sequence: Sequence
    # Index of its first token in the completion, beyond its end where that was cut off before; None where the
    # completion does not hold it.
    start: int | None
    others: Seq[Sequence] = ()  # the other answers of the same call to the same prompt, as with `n=2`
    # False where there are others, and nothing shows which of them was used: then this is the first.
    is_used: bool = True


@dataclass
class RowCalls:
    """The calls of one row, each kind in the order in which they began."""

    turns: list[Turn] = field(default_factory=list)
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    # Calls that the environment calls made themselves (`EnvironmentCall.within`).
    children: list[EnvironmentCall] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    evidence: str | None = None  # the weakest evidence by which a call came here; None without calls
    is_whole: bool = True  # False if it has no environment call and some are unattributed: they may be its own
    # Generations without an answer: they raised, or have not come back.
    failures: list[Generation] = field(default_factory=list)

    def lower_evidence(self, evidence: str) -> None:
        """Keep the weaker of this evidence and the row's so far."""
        if self.evidence is None or STRENGTH.index(evidence) > STRENGTH.index(self.evidence):
            self.evidence = evidence

    @property
    def calls(self) -> list[Generation | EnvironmentCall]:
        """Return its generations, failures and environment calls, except those made by environment calls themselves."""
        return [*[turn.generation for turn in self.turns], *self.failures, *self.environment_calls]

    def may_hold(self, failure: Generation) -> bool:
        """Return True if a failed generation can be one of its turns: not if an environment's call made it, nor if it
        is known to be of another model than all answers of the row, such as a judge's.
        """
        if failure.strand is not None and failure.strand.call is not None:
            return False
        return not self.turns or any(_may_be_alike(turn.generation, failure) for turn in self.turns)

    def may_end_by(self, failure: Generation) -> bool:
        """Return True if a failed generation can be of the model that plays the row: the one whose answers the
        completion holds; where it holds fewer than two, the one that answered first.
        """
        standing = [turn for turn in self.turns if turn.start is not None]
        players = standing if len(standing) > 1 else sorted(self.turns, key=lambda turn: turn.order)[:1]
        return not players or any(_may_be_alike(turn.generation, failure) for turn in players)

    def sort(self) -> None:
        self.turns.sort(key=lambda turn: turn.order)
        self.environment_calls.sort(key=lambda call: call.order)
        self.notes.sort(key=lambda note: note.order)
        self.failures.sort(key=lambda failure: failure.order)


def _may_be_alike(answered: Generation, failure: Generation) -> bool:
    """Return True if both can be of one model; of a call that never came back only the seam is known."""
    is_known = bool(failure.sampling)
    same_model = answered.sampling.get("model") == failure.sampling.get("model")
    return answered.seam == failure.seam and (same_model or not is_known)


@dataclass(frozen=True)
class Attribution:
    """Calls by row, and the number of those that found none."""

    rows: list[RowCalls]
    unattributed: int
