"""Text that repeats itself."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import figure, percent

_SHARE = 0.1
_COMPRESSION, _WORDS, _TRIGRAMS = 10.0, 0.25, 0.5


def degenerate(rows: Rows) -> Bools:
    """(N,)"""
    facts = rows.facts
    repeats = (facts["distinct_words"] <= _WORDS) | (facts["trigram_repeats"] >= _TRIGRAMS)
    found: Bools = repeats | (facts["compression"] > _COMPRESSION)
    return found


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("degenerate_text", _SHARE)
    bad = degenerate(rows)
    share = float(bad.mean())
    if share <= limit:
        return None
    lost = run.scale.best - np.nan_to_num(rows.reward)
    gap = float(lost[bad].mean()) - (float(lost[~bad].mean()) if (~bad).any() else 0.0)
    trend = run.all.by_step(degenerate(run.all).astype(float))
    return Card(
        id="degenerate_text",
        title=f"{percent(share)} of rollouts repeat themselves",
        cost=max(share * gap, 0.0),
        evidence=(f"Their text is compressed by {figure(float(np.nanmedian(rows.facts['compression'][bad])))}.",),
        suggestion="Look for a reward that pays for words; lower the learning rate, or add a KL term.",
        where=f"trigram_repeats>={_TRIGRAMS:g}",
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
    )


DIAGNOSTIC = Diagnostic(
    "degenerate_text",
    "Degenerate text",
    f"zlib makes the last 10,000 characters more than {_COMPRESSION:g} times smaller; or from 30 words on at most "
    f"{_WORDS:.0%} of words are distinct, or {_TRIGRAMS:.0%} of three-word runs repeat; in more than {_SHARE:.0%}.",
    "slime, rolloutscope",
    lambda run: None if (~np.isnan(run.rows.facts["compression"])).any() else "messages",
    _look,
)
