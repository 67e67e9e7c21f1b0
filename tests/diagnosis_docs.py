"""The tables of docs/diagnosis.md: `python -m tests.diagnosis_docs` writes them anew."""

import importlib
import re
from pathlib import Path

from logs_ui.recorder.diagnosis import CAUSES, DIAGNOSTICS, checks

PAGE = Path(__file__).parent.parent / "docs" / "diagnosis.md"
_ASKS = re.compile(r'threshold\("(\w+)", ([\w.]+)\)')


def thresholds() -> dict[str, float]:
    """What each diagnostic holds its figure against where nobody says otherwise, by id; those without one figure that
    can be set are left out.
    """
    found = {}
    for path in sorted(Path(str(checks.__file__)).parent.glob("*.py")):
        module = importlib.import_module(f"{checks.__name__}.{path.stem}")
        for name, default in _ASKS.findall(path.read_text()):
            found[name] = float(getattr(module, default) if hasattr(module, default) else default)
    return found


def diagnostics_table() -> str:
    """One a row, in the order in which they are made."""
    own = thresholds()
    rows: list[tuple[str, ...]] = [
        (f"`{it.id}`", it.name, it.definition, f"{own[it.id]:g}" if it.id in own else "", it.source)
        for it in DIAGNOSTICS
    ]
    return _table(("id", "name", "what it computes", "threshold", "source of the threshold"), rows)


def causes_table() -> str:
    """One a row, the first that holds first."""
    return _table(("cause", "opens", "is"), [(it.name, f"`cause:{it.id}`", it.meaning) for it in CAUSES])


def written(page: str) -> str:
    """The page with tables as they are now."""
    for name, table in (("diagnostics", diagnostics_table()), ("causes", causes_table())):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{table}\n\n{end}{rest.split(end)[1]}"
    return page


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [list(head), ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
