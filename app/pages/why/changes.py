"""The tables of what changed in a run, what distinguishes low rollouts from better ones, and where rewards are low."""

from logs_ui.app.parts.figure_table import FigureCell, FigureLine, FigureTable, line
from logs_ui.app.parts.figures import difference
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import Report, links
from logs_ui.recorder.diagnosis.figure_differences import FigureDifference
from logs_ui.recorder.diagnosis.wording import figure, percent

_FIRST = ("solved", "solved (share)", "reward")  # they are shown in any case
_SHOWN = 6  # the rest opens at a click
_TABLES = {
    "time": ("What changed", ["First", "Last"], "Change ± std. error"),
    "groups": ("What distinguishes low rollouts", ["Better", "Low"], "Difference ± std. error"),
    "places": ("Where rewards are low", ["Elsewhere", "There"], "Difference ± std. error"),
}


def make_tables(report: Report, run: str) -> list[tuple[str, str, FigureTable]]:
    """Build the tables of the run with that uid, each with its `Contrast.id` and title."""
    tables = []
    for it in report.contrasts:
        title, heads, by = _TABLES[it.id]
        ordered = sorted(it.lines, key=lambda each: each.name not in _FIRST)
        shown = [each for each in ordered if each.is_clear or each.name in _FIRST][:_SHOWN]
        more = [each for each in ordered if each not in shown]
        lines = [[_line(each, run, report, is_linked=it.id != "groups") for each in part] for part in (shown, more)]
        tables.append((it.id, title, FigureTable(it.description, heads, [by], lines=lines[0], more=lines[1])))
    return tables


def _line(it: FigureDifference, run: str, report: Report, *, is_linked: bool) -> FigureLine:
    write, (first, last) = percent if it.is_share else figure, report.steps or (0, 0)
    span = f"step:{first if it.since is None or it.trend_of_others else it.since}..{last}"
    of_place = links.tasks([it.name], it.place) if it.place else ""
    name = f"{'solved' if it.is_share else 'reward'} in {it.name}" if it.place else it.name.removeprefix("the ")
    return FigureLine(
        name=f"{name} ({it.place})" if it.place not in {"", "family", "task"} else name,
        is_clear=it.is_clear,
        values=[FigureCell(write(it.others)), FigureCell(write(it.chosen), tone="strong")],
        differences=[FigureCell(difference(it.chosen - it.others, it.error, is_share=it.is_share))],
        since="" if it.since is None else f"{it.since:,}",
        trend=line(it.trend, it.since, others=(it.trend_of_others,) if it.trend_of_others else ()),
        address=urls.matching(run, " ".join(filter(None, [of_place, report.within, span]))) if is_linked else None,
    )
