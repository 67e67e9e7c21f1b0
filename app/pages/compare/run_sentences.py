"""Says in a sentence how each run compares with the first one."""

from collections.abc import Mapping, Sequence

from logs_ui.app.pages.compare.run_differences import Comparison, RunSettings
from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.parts.figures import difference
from logs_ui.recorder.diagnosis.wording import listed

_NAMED = 4  # arguments and sources
_JUDGED = (("solved", "solved"), ("reward", "mean reward"))  # what is to be reached comes first


def compared(figures: Mapping[str, Sequence[Estimate | None]], run: int, letter: str, steps: str) -> str:
    """Return whether a run is better than the first one, by what is solved, or else by its rewards: "B is better than
    A: solved +30.7 ± 2.4 pp, mean reward +1.22 ± 0.06 (steps 1 to 32)"; "" if there is nothing to compare.
    """
    said, signs = [], []
    for name, title in _JUDGED:
        cells = figures.get(name, ())
        first, other = (cells[0], cells[run]) if cells else (None, None)
        error = other.error_from(first) if first and other else None
        if first is None or other is None or error is None:
            continue
        by = other.mean - first.mean
        signs.append((by > 0) - (by < 0) if other.is_clear else 0)
        said.append(f"{title} {difference(by, error, is_share=name == 'solved')}")
    if not said:
        return ""
    sign = next((it for it in signs if it), 0)
    judged = {1: "is better than A", -1: "is worse than A", 0: "does not differ from A beyond chance"}[sign]
    return f"{letter} {judged}: {', '.join(said)} ({steps})."


def differing(arguments: RunSettings, sources: Sequence[Comparison]) -> str:
    """Return what differs in what the runs are made of; "" if nothing is stored to tell."""
    names = [it.name for it in arguments.shown if it.differs]
    names += [" ".join(filter(None, (it.title.lower(), it.name))) for it in sources if it.differs]
    if names:
        return f"What differs: {listed(names, _NAMED)}."
    return "No argument and no source that is stored differs." if arguments.total or sources else ""
