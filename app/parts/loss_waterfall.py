"""Draws the waterfall of lost reward: from the best reward down to the mean, one line per cause."""

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from logs_ui.app.parts.charts import Scale
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import Waterfall
from logs_ui.recorder.diagnosis.waterfall import LITTLE

_THIN = 0.6  # of 100: what is nearly nothing can still be seen
_UNSEEN = 5e-4  # and of the best: what is less above it than any figure shows has no bar
ICONS = {
    "infrastructure": "power-off",
    "invalid_reward": "circle-slash",
    "parse_failure": "braces",
    "truncation": "scissors",
    "loop": "repeat",
    "never_submitted": "ban",
    "wrong_answer": "x",
}


class Stair(NamedTuple):
    """Describes one line of the waterfall; positions are in units of a width of 100."""

    id: str  # of its cause; `best`, `above` and `mean` for the other lines
    name: str
    meaning: str
    icon: str
    # The level, for `best` and `mean`; otherwise the change, negative for a loss. None if there is no scale.
    reward: float | None
    share: float | None  # of the whole loss, or of the rollouts if there is no scale; None if it is not a loss
    rollouts: int | None  # number of its rollouts; None for `best`
    start: float
    length: float
    # `before` and `after`: where the previous line ends, and where this one does.
    before: float | None
    after: float
    address: str | None  # of exactly its rollouts


class Fall(NamedTuple):
    """Holds the waterfall."""

    best: float
    mean: float
    lost: float
    above: float  # what rewards above the best add to the mean
    stairs: list[Stair]  # the best reward, the loss of each cause, largest first, and the mean
    zero: float  # position of reward 0
    mean_share: float  # the mean's share of the best; 0 if the mean is not positive
    is_flat: bool  # True if all rewards are equal, so that only rollouts can be counted

    @property
    def is_little(self) -> bool:
        return not self.is_flat and self.lost <= LITTLE * abs(self.best)

    @property
    def is_far_above(self) -> bool:
        return self.above > LITTLE * self.lost

    @property
    def has_mean(self) -> bool:
        """False if no rollout has a reward."""
        return not math.isnan(self.mean)

    @property
    def thin_bars(self) -> list[tuple[Stair | None, float, float]]:
        """All in one line: the mean, as None, and the causes, each with position and width out of 100."""
        mean_width = 100 * min(self.mean_share, 1)
        widths = [mean_width, *((100 - mean_width) * (cause.share or 0.0) for cause in self.causes)]
        ends = accumulate(widths)
        bars = zip((None, *self.causes), ends, widths, strict=True)
        return [(cause, round(end - width, 2), round(width, 2)) for cause, end, width in bars]

    @property
    def causes(self) -> list[Stair]:
        return [stair for stair in self.stairs if stair.share is not None]


def make_fall(fall: Waterfall, source: str, run_uid: str, where: str, rollouts: int) -> Fall:
    """Build the chart of a waterfall of the rollouts that the filter `where` selects; `rollouts` of them have a loss.
    `source` says in words where the best reward comes from.
    """
    changes = [fall.above, *(-share.cost for share in fall.shares)]
    # `ends` are the levels between the lines: the best reward, then after what is above it, then after each cause.
    ends = list(accumulate(changes, initial=1.0 if fall.is_flat else fall.best))
    scale = Scale.over([*ends, 0.0 if fall.is_flat else fall.mean])
    return Fall(
        best=fall.best,
        mean=fall.mean,
        lost=fall.lost,
        above=fall.above,
        stairs=[
            stair._replace(reward=None) if fall.is_flat else stair
            for stair in _stairs(fall, source, run_uid, where, rollouts, ends, scale)
            if stair.share is not None or not fall.is_flat
        ],
        zero=scale.at(0),
        mean_share=max(fall.mean, 0.0) / fall.best if fall.best > 0 and not fall.is_flat else 0.0,
        is_flat=fall.is_flat,
    )


def _stairs(
    fall: Waterfall, source: str, run_uid: str, where: str, rollouts: int, ends: list[float], scale: Scale
) -> Iterator[Stair]:
    zero = scale.at(0)
    yield Stair(
        "best", "Best reward", f"{source[:1].upper()}{source[1:]}.", "flag", fall.best, None, None,
        *_bar(zero, scale.at(fall.best)), None, scale.at(fall.best), None,
    )  # fmt: skip
    if fall.above > _UNSEEN * min(abs(fall.best), 1.0):
        yield Stair(
            "above", "Above the best", "Rewards above the best reward.", "arrow-up", fall.above, None, None,
            *_bar(scale.at(ends[0]), scale.at(ends[1])), scale.at(ends[0]), scale.at(ends[1]),
            urls.matching(run_uid, f"{where} {fall.higher}") if fall.higher else None,
        )  # fmt: skip
    losses = fall.lost + fall.above
    for share, before, after in zip(fall.shares, ends[1:-1], ends[2:], strict=True):
        cause, (start, end) = share.cause, (scale.at(before), scale.at(after))
        yield Stair(
            cause.id, f"{cause.name[:1].upper()}{cause.name[1:]}", cause.meaning, ICONS.get(cause.id, "x"),
            -share.cost, share.cost / losses, share.rollouts, *_bar(start, end), start, end,
            urls.matching(run_uid, f"{where} {share.where}"),
        )  # fmt: skip
    yield Stair(
        "mean", "Mean reward", "Mean over all rollouts; a rollout without a reward counts as 0 here.",
        "activity", fall.mean, None, rollouts, *_bar(zero, scale.at(fall.mean)), scale.at(ends[-1]),
        scale.at(fall.mean), urls.matching(run_uid, f"{where} -cause:none"),
    )  # fmt: skip


def _bar(start: float, end: float) -> tuple[float, float]:
    """Return left end and length; a bar too thin to be seen grows to the left."""
    length = max(abs(end - start), _THIN)
    return round(min(start, end, 100 - length), 2), round(length, 2)
