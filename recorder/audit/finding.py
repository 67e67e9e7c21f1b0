"""Defines a check of an audit, and what it finds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from logs_ui.recorder.audit.recorded_run import Recorded
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import Bools

NOT_SHOWN = (
    "An audit cannot see whether a function got the columns and the completion of its own row, or whether a trainer of "
    "your own changed the value that it returned. Nor does it see the tensors that are made of ids and mask: how they "
    "are padded, cut and masked. Nor does it see what comes after the advantage: the loss and its clipping, importance "
    "ratios and the reference model, gradients, the optimizer, and how ranks are averaged. With a fault there, all of "
    "these checks may pass."
)
_FIRST = 5


@dataclass(frozen=True)
class Finding:
    """Says what is computed wrongly, and for which rollouts."""

    id: str
    title: str
    rows: int  # number of rollouts that it touches
    where: str  # the filter that selects these
    first: tuple[int, ...]  # ids of the first five
    evidence: str = ""  # the figures of one rollout; "" without


class Found(NamedTuple):
    """Says where something is wrong."""

    id: str  # of `Check.findings`
    rows: Bools  # (N,) True for the rollouts that it touches
    evidence: str = ""


@dataclass(frozen=True)
class Looked:
    """Holds what a check saw; what it found in no rollout counts as not found."""

    rows: int = 0  # number of rollouts that were compared
    faults: Sequence[Found] = ()
    lacking: str = ""  # what is not recorded, so that nothing was compared; "" where something was
    note: str = ""  # what was seen and is no fault


@dataclass(frozen=True)
class Check:
    """One comparison; `findings` are the titles of what it can find, by id."""

    name: str
    comparison: str  # what is held against what
    tolerance: str  # with its source
    look: Callable[[Recorded], Looked]
    findings: dict[str, str]


@dataclass(frozen=True)
class Checked:
    """A check, and its result."""

    check: Check
    rows: int
    findings: list[Finding]
    lacking: str
    note: str

    @classmethod
    def of(cls, check: Check, recorded: Recorded) -> "Checked":
        """Make a check."""
        outcome, findings = check.look(recorded), list[Finding]()
        for fault in outcome.faults:
            rows = recorded.id[fault.rows]
            title = f"{check.findings[fault.id]} ({len(rows):,} rollout{'s' * (len(rows) != 1)})"
            finding = Finding(fault.id, title, len(rows), ids(rows), tuple(rows[:_FIRST].tolist()), fault.evidence)
            findings += [finding] * bool(len(rows))
        return cls(check, outcome.rows, findings, outcome.lacking, outcome.note)


@dataclass(frozen=True)
class Audited:
    """A run's audit: each check with its result."""

    run: str
    checks: Sequence[Checked]

    @property
    def findings(self) -> list[Finding]:
        """Return all findings, the worst first: in the order of the checks."""
        return [finding for check in self.checks for finding in check.findings]

    def as_dict(self) -> dict[str, Any]:
        """Return findings and checks as plain values for JSON."""
        checks = [
            {"name": check.check.name, "held": check.check.comparison, "tolerance": check.check.tolerance,
             "rows": check.rows, "not_recorded": check.lacking or None, "note": check.note or None,
             "findings": [finding.id for finding in check.findings]}
            for check in self.checks
        ]  # fmt: skip
        return {"run": self.run, "findings": [*map(asdict, self.findings)], "checks": checks, "not_shown": NOT_SHOWN}
