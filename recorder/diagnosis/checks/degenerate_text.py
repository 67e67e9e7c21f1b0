"""Text that repeats itself."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.1
_COMPRESSION, _WORDS, _TRIGRAMS = 10.0, 0.25, 0.5
_SIGNS = (
    ("trigram_repeats", f"trigram_repeats>={_TRIGRAMS:g}"),
    ("distinct_words", f"distinct_words<={_WORDS:g}"),
    ("compression", f"compression>{_COMPRESSION:g}"),
)


def degenerate(rows: Rows) -> Bools:
    """(N,)"""
    found: Bools = np.logical_or.reduce([_has(rows, sign) for sign, _ in _SIGNS])
    return found


def _has(rows: Rows, sign: str) -> Bools:
    values = rows.facts[sign]
    limits = {
        "trigram_repeats": values >= _TRIGRAMS,
        "distinct_words": values <= _WORDS,
        "compression": values > _COMPRESSION,
    }
    found: Bools = limits[sign]
    return found


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("degenerate_text", _SHARE)
    bad = degenerate(rows)
    share = float(bad.mean())
    if share <= limit or contrast.is_fine(run, bad):
        return None
    trend = run.all.by_step(degenerate(run.all).astype(float))
    squeezed, threes = rows.facts["compression"][bad], rows.facts["trigram_repeats"][bad]
    said = [f"Compressed it is {figure(float(np.nanmedian(squeezed)))} times smaller at the median."]
    if (~np.isnan(threes)).any():
        said.append(f"{percent(float(np.nanmedian(threes)))} of its runs of three words were there before.")
    return Card(
        id="degenerate_text",
        title=f"{percent(share)} of rollouts repeat themselves in what they say",
        cost=contrast.cost(run, bad),
        evidence=tuple(said),
        suggestion="Look for a reward that pays for words; lower the learning rate, or add a KL term.",
        where=max(_SIGNS, key=lambda sign: int(_has(rows, sign[0]).sum()))[1],
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=bad,
    )


DIAGNOSTIC = Diagnostic(
    "degenerate_text",
    "Degenerate text",
    f"zlib makes the last 10,000 characters of an answer more than {_COMPRESSION:g} times smaller; or from 30 words on "
    f"at most {_WORDS:.0%} of its words are distinct, or {_TRIGRAMS:.0%} of its three-word runs repeat; in more than "
    f"{_SHARE:.0%} of rollouts, unless they do as well as the others.",
    "slime, rolloutscope",
    lambda run: None if (~np.isnan(run.rows.facts["compression"])).any() else "messages",
    _look,
    limits=SHARE,
    position=170,
    explained_by=(
        "infrastructure",
        "loops",
        "diversity:cold",
        "length",
    ),
    is_behaviour=True,
)
