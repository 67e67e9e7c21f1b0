"""Writes numbers and lists for sentences."""

import math
import re

_LONGEST = 40  # characters of the name of a place
_NUMBER = re.compile(r"\w*\d[\w-]*")  # a number or an id


def figure(value: float | None) -> str:
    """Return a short number, with U+2212 for minus; "unknown" for None and NaN."""
    if value is None or math.isnan(value):
        return "unknown"
    return (f"{value:z,.0f}" if 100 <= abs(value) < 1e9 else f"{value:z.3g}").replace("-", "\u2212")


def percent(share: float) -> str:
    """Return whole per cents; 0% and 100% only if they are exact, but for what adding up rounds."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 - 1e-9 else f"{share:z.0%}"


def exact_percent(share: float) -> str:
    """Return per cents with one decimal, if there is one: `4.7%`, `5%`."""
    if 0 < share < 0.0005 or 0.9995 < share < 1:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{share:.1%}".replace(".0%", "%")


def kind_of(error: str) -> str:
    """Return an error without its numbers and ids: those that differ only in these are of one kind."""
    return _NUMBER.sub("0", error)


def listed(names: list[str], most: int = 3) -> str:
    """Return names as in `a, b and 4 more`."""
    if len(names) <= most:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def list_places(names: list[str], column: str = "") -> str:
    """Return the names of places like `listed`, each cut to one short line, after the name of their column, unless
    they begin with it.

        >>> list_places(["Level 4", "Level 5"], "metadata.level"), list_places([" ", "b" * 50], "src")
        ('Level 4 and Level 5', 'src (blank) and bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb…')
    """
    lines = [" ".join(name.split()) or "(blank)" for name in names]
    last = column.rpartition(".")[2].lower()
    before = "" if all(line.lower().startswith(last) for line in lines) else f"{column} "
    return before + listed([line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1].rstrip()}…" for line in lines])
