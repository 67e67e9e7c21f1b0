"""Audits a recorded run, or the newest rollouts of one that is diagnosed: reads them in chunks, and recomputes what the
trainer said of them.
"""

import math
import re

import numpy as np
from tokenizers import Tokenizer

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.audit.finding import Audited
from logs_ui.recorder.audit.recorded_run import Gathering
from logs_ui.recorder.audit.run_audit import audit_rows
from logs_ui.recorder.audit.token_faults import TOKEN_CHECKS, Sources
from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome
from logs_ui.recorder.diagnosis.card import Run as DiagnosedRun
from logs_ui.recorder.diagnosis.checks.wiring import mixed, unseeded
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.wording import listed
from logs_ui.recorder.queries import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Lack, Mode, SourceKind

_METHOD = re.compile(r"^(?: {4}|\t)(?:async )?def ([a-z]\w*)\(", re.MULTILINE)
_NO_TOOLS = {"reset", "get_reward", "step", "state", "close"}
_NEWEST = 256  # rollouts that a diagnosis has audited: about a quarter of a second
_MASKS = 0.5  # of the rollouts whose environment's tokens are to be masked [ours]
# No fault that is known, one that is a constant factor as of the learning rate, and one that the check of groups finds.
_OTHERWISE = {"advantage", "advantage_spread", "groups_mixed"}


def audit(
    db: Database,
    run: Run,
    chosen: RolloutFilter = RolloutFilter(),  # noqa: B008 - it cannot change
    *,
    mixed_ids: frozenset[int] | None = None,
) -> Audited:
    """Audit the rollouts of a run that match a filter; it must select whole groups, and the advantages of those that
    are scaled by batches are compared in whole batches only. `mixed_ids` are the rollouts in groups that mix prompts;
    if it is None, all of the run's rollouts are read to find them.
    """
    if run.lacks(Lack.GROUPS):
        mixed_ids = frozenset()
    elif mixed_ids is None:
        mixed_ids = frozenset().union(
            *(find_mixed(RunColumns(run.id or 0, mode, whole=True).refresh(db)) for mode in Mode)
        )
    gathering = Gathering(_sources(db, run))
    for chunk in queries.rollouts(db, run.id or 0, chosen):
        gathering.add(chunk)
    size = run.config.get("num_generations") and (run.num_generations or run.config["num_generations"])
    recorded = gathering.recorded(
        config=run.config,
        lost_calls=run.unattributed_calls,
        versions=run.versions,
        group_size={False: size, True: run.config.get("num_generations_eval") or size},
        mixed=mixed_ids,
    )
    return audit_rows(recorded, run.uid)


class NewestAudit:
    """Audits the newest rollouts of a run for its diagnosis, anew only if these are others than before."""

    def __init__(self) -> None:
        self._seen: tuple[str, bytes] | None = None
        self._outcome: Outcome = None

    def judge(self, db: Database, run: Run, diagnosed: DiagnosedRun) -> Outcome:
        """Return the card of the worst finding, which lists the others. Imported rollouts are not judged, for files may
        hold 0 where nothing was recorded.
        """
        if diagnosed.imported is not None:
            return NotJudged("The rollouts were imported: logs-ui audit compares what their files have.")
        last = diagnosed.rows.last_steps(1, _NEWEST)
        # Advantages compare whole groups, so all rollouts of the groups of the newest ones are taken.
        last = last.where(np.isin(last.group, np.unique(last.group[np.argsort(last.id)[-_NEWEST:]])))
        where = ids(last.id)
        seen = where, last.reward.tobytes() + last.advantage.tobytes()  # these are written later
        if seen != self._seen and where:
            audited = audit(db, run, parse_where(where), mixed_ids=frozenset())
            self._seen, self._outcome = seen, _judge(audited, diagnosed, len(last))
        return self._outcome


def _name_compared(audited: Audited) -> str:
    """Return words on a comparison without a finding: what was compared, and how much could not be."""
    names = [check.check.name for check in audited.checks if check.rows]
    rest = f"; {len(audited.checks) - len(names)} other comparisons could not be made"
    return f"No rollout differs in {listed(names, len(names))}{rest * (len(names) < len(audited.checks))}"


def _judge(audited: Audited, diagnosed: DiagnosedRun, count: int) -> Outcome:
    compared = (
        f"The newest {count:,} training rollouts were audited; logs-ui audit {audited.run} audits all, evaluations too."
    )
    findings = [finding for finding in audited.findings if finding.id not in _OTHERWISE]
    if not any(check.rows for check in audited.checks):
        return NotJudged("Nothing of what an audit compares is recorded.")
    if not findings:
        titles = {finding.id: finding.title for finding in audited.findings}
        is_unexplained = "advantage" in titles
        why = titles.get("advantage") or titles.get("advantage_spread") or _name_compared(audited)
        rows = diagnosed.rows
        masks = next(check.rows for check in audited.checks if check.check.name == "Mask")
        in_need = (rows.turns > 1) & (rows.facts["env_steps"] > 0) & np.isfinite(rows.env_tokens)
        if masks < _MASKS * in_need.mean() * count:
            extent = f"compared in {masks:,} rollouts only" if masks else "not compared"
            needed = TOKEN_CHECKS["Mask"].lacking
            return NotJudged(f"The mask was {extent}: that needs {needed}. {why}. {compared}")
        return NotJudged(f"{why}. {compared}") if is_unexplained else Below(f"{why}. {compared}")
    first, *others = findings
    return Card(
        id="arithmetic",
        title=first.title,
        cost=max(diagnosed.fall.lost, contrast.spread(diagnosed)) or 1.0,
        evidence=tuple(filter(None, [first.evidence, *(f"{other.title}." for other in others), compared])),
        suggestion="Fix this first: other findings may follow from it. docs/audit.md says what each check compares.",
        where=first.where,
        is_setup=True,
        is_loss=False,
        share=first.rows / count,
    )


def find_mixed(rows: Rows) -> frozenset[int]:
    """Return the ids of rollouts in groups that mix prompts."""
    if not len(rows):
        return frozenset()
    odd = mixed(rows)[rows.group] & ~unseeded(rows)
    return frozenset(rows.id[np.asarray(odd, bool)].tolist())


def _sources(db: Database, run: Run) -> Sources:
    """Return the run's tokenizer, and the tools of environments that TRL calls: public methods of their classes."""
    source = queries.tokenizer_json(db, run.tokenizer) if run.tokenizer else None
    sources = queries.run_sources(db, [run.id or 0]).get(run.id or 0, [])
    environments = [source.hash for source in sources if source.kind == SourceKind.ENVIRONMENT and source.hash]
    is_own = all(source.kind != SourceKind.ROLLOUT for source in sources)
    # Only where TRL plays one environment by itself are all public methods of its class known to be tools.
    texts = queries.source_texts(db, environments).values() if is_own and len(environments) == 1 else ()
    tools = {name for text in texts for name in _METHOD.findall(text)} - _NO_TOOLS
    tokenizer = None if source is None else Tokenizer.from_buffer(source)
    longest = run.config.get("max_completion_length") or math.inf
    return Sources(tokenizer, frozenset(tools), longest, is_own=is_own and "scale_rewards" in run.config)
