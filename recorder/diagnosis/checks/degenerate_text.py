"""Finds answers whose text repeats itself."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, above
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.1
_COMPRESSION, _WORDS, _TRIGRAMS = 10.0, 0.25, 0.5


def _signs(rows: Rows) -> dict[str, Bools]:
    """(N,) rollouts that show each sign of repetition, by the filter that selects them."""
    return {
        f"trigram_repeats>={_TRIGRAMS:g}": rows.facts["trigram_repeats"] >= _TRIGRAMS,
        f"distinct_words<={_WORDS:g}": rows.facts["distinct_words"] <= _WORDS,
        f"compression>{_COMPRESSION:g}": rows.facts["compression"] > _COMPRESSION,
    }


def _look(run: Run) -> Card | None:
    rows, limit, signs = run.rows, run.threshold("degenerate_text", _SHARE), _signs(run.rows)
    bad: Bools = np.logical_or.reduce(list(signs.values()))
    share = float(bad.mean())
    if share <= limit or contrast.is_fine(run, bad):
        return None
    compression, repeats = rows.facts["compression"][bad], rows.facts["trigram_repeats"][bad]
    evidence = [f"Median compression ratio: {figure(float(np.nanmedian(compression)))}."]
    if (~np.isnan(repeats)).any():
        evidence.append(f"Median share of repeated three-word sequences: {percent(float(np.nanmedian(repeats)))}.")
    return Card(
        id="degenerate_text",
        title=f"{percent(share)} of rollouts repeat their own text",
        cost=contrast.cost(run, bad),
        evidence=tuple(evidence),
        suggestion="Look for a reward that grows with the number of words; lower the learning rate, or add a KL term.",
        where=max(signs, key=lambda sign: int(signs[sign].sum())),
        **above(run.all.by_step(np.logical_or.reduce(list(_signs(run.all).values()))), limit),
        own=bad,
    )


DIAGNOSTIC = Diagnostic(
    "degenerate_text",
    "Degenerate text",
    f"zlib makes the last 10,000 characters of an answer more than {_COMPRESSION:g} times smaller; or, from 30 words "
    f"on, at most {_WORDS:.0%} of its words are distinct, or {_TRIGRAMS:.0%} of its three-word sequences repeat; in "
    f"more than {_SHARE:.0%} of rollouts, unless they do as well as the others.",
    "slime, rolloutscope",
    lambda run: None if (~np.isnan(run.rows.facts["compression"])).any() else "messages",
    _look,
    limits=SHARE,
    position=170,
    explained_by=("infrastructure", "loops", "diversity:cold", "length"),
    is_behaviour=True,
)
