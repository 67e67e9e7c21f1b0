"""Runs all checks of an audit, the worst faults first."""

from functools import partial

import numpy as np

from logs_ui.recorder.audit import advantage_check, reward_checks
from logs_ui.recorder.audit.finding import Audited, Check, Checked, Found, Looked
from logs_ui.recorder.audit.recorded_run import Recorded
from logs_ui.recorder.audit.token_faults import TOKEN_CHECKS
from logs_ui.recorder.diagnosis.wording import exact_percent

_INSERTED = {"mask_missing", "mask_inserted"}
_CONSTANT = 50  # log-probs that are all 0: a model that is sure of so many tokens has nothing left to learn


def audit_rows(recorded: Recorded, run_uid: str) -> Audited:
    """Run all checks over the rows of the run with this uid."""
    return Audited(run_uid, [Checked.of(check, recorded) for check in CHECKS])


def _look_at_tokens(name: str, recorded: Recorded) -> Looked:
    of_tokens = [token.faults.get(name) for token in recorded.tokens]
    if name == "Ids" and not any("Context" in token.faults for token in recorded.tokens):
        of_tokens = [
            row_faults and [fault for fault in row_faults if fault == "repeated_prompt"] for row_faults in of_tokens
        ]  # no generation was seen
    compared = sum(row_faults is not None for row_faults in of_tokens)
    if not compared:
        return Looked(lacking=TOKEN_CHECKS[name].lacking)
    counts, zeros = (np.array([getattr(token, kind) for token in recorded.tokens]) for kind in ("logprobs", "zeros"))
    is_constant = name == "Log-probs" and _CONSTANT <= counts.sum() == zeros.sum()
    faults = TOKEN_CHECKS[name].findings
    rows = {fault: np.array([fault in (row_faults or ()) for row_faults in of_tokens], bool) for fault in faults}
    unseen = np.array([token.is_unseen for token in recorded.tokens], bool)
    # If at least as many calls have no row as rows have no generation, these rows' ids most likely are not the
    # sampled ones, by which the calls would have been attributed.
    if name == "Ids" and 0 < unseen.sum() <= recorded.lost_calls and not unseen.all():
        rows["retokenized"] |= unseen
    if name == "Prompt":
        placed = [*zip(recorded.batch.tolist(), recorded.tokens, strict=True)]
        asked = {(batch, token.asked) for batch, token in placed if batch >= 0}
        rows["prompt_exchanged"] = np.array(
            [token.sent not in {None, token.asked} and (batch, token.sent) in asked for batch, token in placed], bool
        )
    share = _inserted(recorded)
    faults_of_rows = [Found(fault, of, share if fault in _INSERTED else "") for fault, of in rows.items()]
    faults_of_rows += [Found("logprobs_zero", counts > 0)] * bool(is_constant)
    notes = {"Ids": _drift, "Mask": _masked}
    return Looked(compared, faults_of_rows, note=notes[name](recorded) if name in notes else "")


def _inserted(recorded: Recorded) -> str:
    trained, inserted = (sum(getattr(token, kind) for token in recorded.tokens) for kind in ("trained", "inserted"))
    share = exact_percent(inserted / max(trained, 1))
    return f"Of {trained:,} tokens in training that were compared, no generation sampled {inserted:,} ({share})."


def _masked(recorded: Recorded) -> str:
    whole = sum(token.is_masked for token in recorded.tokens)
    unknown = sum(bool(token.faults) and "Mask" not in token.faults for token in recorded.tokens)
    note = f"Rollouts with whole answers left out by the mask: {whole:,}. " * (whole > 0)
    return (note + f"Rollouts whose mask could not be compared: {unknown:,}." * (unknown > 0)).rstrip()


def _drift(recorded: Recorded) -> str:
    """Say where encoding texts again would give other ids, which is no fault, for a model may sample a word in any
    tokens; or that it may be why no generation is known to be a rollout's.
    """
    if recorded.lost_calls and not any("Context" in token.faults for token in recorded.tokens):
        return (
            f"Model and environment calls that could not be matched to a rollout: {recorded.lost_calls:,}. If they "
            "include these rollouts' generations, the texts were encoded again, with other ids."
        )
    cut = sum(token.is_cut for token in recorded.tokens)
    beginning = f"Rollouts trained on fewer tokens than were sampled: {cut:,}. " * (cut > 0)
    drifts = [token.drift for token in recorded.tokens if token.drift is not None]
    begins = [drift for drift in drifts if drift >= 0]
    if not begins:
        return beginning.rstrip()
    return (
        f"{beginning}Encoding the completions' texts again would change the ids of {len(begins):,} of {len(drifts):,}; "
        f"the median of the first changed token is {int(np.median(begins)) + 1:,}."
    )


_TOKENS = {
    name: Check(name, check.comparison, check.tolerance, partial(_look_at_tokens, name), check.findings)
    for name, check in TOKEN_CHECKS.items()
}
CHECKS: tuple[Check, ...] = (
    _TOKENS.pop("Scored text"),
    advantage_check.CHECK,
    reward_checks.GROUPS,
    reward_checks.SUMS,
    *_TOKENS.values(),
    reward_checks.EVALUATION,
)
"""All checks, in the order of how much a fault spoils: what is learned, from what, and how well."""
