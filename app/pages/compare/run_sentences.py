"""Says in a sentence how each run compares with the first one."""

from collections.abc import Mapping, Sequence

from logs_ui.app.pages.compare.run_differences import Comparison, RunSettings
from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.parts.figures import difference
from logs_ui.recorder.diagnosis.wording import listed

_MOST_NAMES = 4  # arguments and sources
_JUDGED_FIGURES = (("solved", "solved"), ("reward", "mean reward"))  # what is to be reached comes first


def compare_run(figures: Mapping[str, Sequence[Estimate | None]], run_index: int, letter: str, steps: str) -> str:
    """Return whether a run is better than the first one, by what is solved, or else by its rewards: "B is better than
    A: solved +30.7 ± 2.4 pp, mean reward +1.22 ± 0.06 (steps 1 to 32)"; "" if there is nothing to compare.
    """
    differences, signs = [], []
    for name, title in _JUDGED_FIGURES:
        cells = figures.get(name, ())
        first, second = (cells[0], cells[run_index]) if cells else (None, None)
        error = second.error_from(first) if first and second else None
        if first is None or second is None or error is None:
            continue
        gain = second.mean - first.mean
        signs.append((gain > 0) - (gain < 0) if second.is_clear else 0)
        differences.append(f"{title} {difference(gain, error, is_share=name == 'solved')}")
    if not differences:
        return ""
    sign = next((sign for sign in signs if sign), 0)
    verdict = {1: "is better than A", -1: "is worse than A", 0: "does not differ from A beyond chance"}[sign]
    return f"{letter} {verdict}: {', '.join(differences)} ({steps})."


def name_differences(arguments: RunSettings, sources: Sequence[Comparison]) -> str:
    """Return what differs in what the runs are made of; "" if nothing is stored to tell."""
    names = [setting.name for setting in arguments.settings if setting.differs]
    names += [
        " ".join(filter(None, (comparison.title.lower(), comparison.name)))
        for comparison in sources
        if comparison.differs
    ]
    if names:
        return f"What differs: {listed(names, _MOST_NAMES)}."
    return "No argument and no source that is stored differs." if arguments.total or sources else ""
