"""The tables of what changed in a run, what distinguishes low rollouts from better ones, and where rewards are low."""

from logs_ui.app.parts.figure_table import FigureCell, FigureLine, FigureTable, line
from logs_ui.app.parts.figures import difference
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import Report, links
from logs_ui.recorder.diagnosis.figure_differences import FigureDifference
from logs_ui.recorder.diagnosis.wording import figure, percent

_FIRST = ("solved", "solved (share)", "reward")  # they are shown in any case
_MOST_LINES = 6  # the rest opens at a click
_TABLES = {
    "time": ("What changed", ["First", "Last"], "Change ± std. error"),
    "groups": ("What distinguishes low rollouts", ["Better", "Low"], "Difference ± std. error"),
    "places": ("Where rewards are low", ["Elsewhere", "There"], "Difference ± std. error"),
}


def make_tables(report: Report, run_uid: str) -> list[tuple[str, str, FigureTable]]:
    """Build the tables of the run with that uid, each with its `Contrast.id` and title."""
    tables = []
    for contrast in report.contrasts:
        title, heads, change_title = _TABLES[contrast.id]
        sorted_lines = sorted(contrast.lines, key=lambda pair: pair.name not in _FIRST)
        first_lines = [pair for pair in sorted_lines if pair.is_clear or pair.name in _FIRST][:_MOST_LINES]
        other_lines = [pair for pair in sorted_lines if pair not in first_lines]
        lines = [
            [_line(pair, run_uid, report, is_linked=contrast.id != "groups") for pair in part]
            for part in (first_lines, other_lines)
        ]
        tables.append(
            (
                contrast.id,
                title,
                FigureTable(contrast.description, heads, [change_title], lines=lines[0], more=lines[1]),
            )
        )
    return tables


def _line(pair: FigureDifference, run_uid: str, report: Report, *, is_linked: bool) -> FigureLine:
    write, (first, last) = percent if pair.is_share else figure, report.steps or (0, 0)
    span = f"step:{first if pair.since is None or pair.trend_of_others else pair.since}..{last}"
    place_term = links.tasks([pair.name], pair.place) if pair.place else ""
    name = f"{'solved' if pair.is_share else 'reward'} in {pair.name}" if pair.place else pair.name.removeprefix("the ")
    return FigureLine(
        name=f"{name} ({pair.place})" if pair.place not in {"", "family", "task"} else name,
        is_clear=pair.is_clear,
        values=[FigureCell(write(pair.others)), FigureCell(write(pair.chosen), tone="strong")],
        differences=[FigureCell(difference(pair.chosen - pair.others, pair.error, is_share=pair.is_share))],
        since="" if pair.since is None else f"{pair.since:,}",
        trend=line(pair.trend, pair.since, others=(pair.trend_of_others,) if pair.trend_of_others else ()),
        address=urls.matching(run_uid, " ".join(filter(None, [place_term, report.within, span])))
        if is_linked
        else None,
    )
