"""The tables in docs/ that come from code: `python -m tests.doc_tables` writes them anew."""

import importlib
import re
from enum import StrEnum
from pathlib import Path

from logs_ui.recorder.analysis.frames import RUN_COLUMNS
from logs_ui.recorder.analysis.rescore.rescore import RESCORED_COLUMNS
from logs_ui.recorder.audit.run_audit import CHECKS
from logs_ui.recorder.diagnosis import CAUSES, DIAGNOSTICS, checks
from logs_ui.recorder.queries.filters.fields import FIELDS, Field
from logs_ui.recorder.queries.rollout_columns import COLUMNS, Column

_DOCS = Path(__file__).parent.parent / "docs"
DIAGNOSIS = _DOCS / "diagnosis.md"
PAGES = [DIAGNOSIS, *(_DOCS / name for name in ("audit.md", "checks.md", "filters.md", "pandas.md", "rescore.md"))]
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
        (f"[`{it.id}`](checks.md#{it.id})", it.name, f"{own[it.id]:g}" if it.id in own else "", it.source)
        for it in DIAGNOSTICS
    ]
    return _table(("id", "name", "threshold", "source of the threshold"), rows)


def definitions() -> str:
    """One section a diagnostic: a list of its cases, if they are numbered, and each alternative as a paragraph."""
    sections = []
    for it in DIAGNOSTICS:
        first, *cases = re.split(r" ?\(\d\) ", it.definition)
        lines = [first, *(f"{number}. {case}" for number, case in enumerate(cases, 1))]
        apart = "\n\n   " if cases else "\n\n"
        paragraphs = [re.sub(r"(?<=\.) (?=Or\b|If nothing)", apart, line) for line in lines if line]
        sections.append("\n\n".join([f"## `{it.id}`", f"**{it.name}**", *paragraphs]))
    return "\n\n".join(sections)


def audit_table() -> str:
    """One check a row, with its findings, in the order in which they are listed."""
    rows: list[tuple[str, ...]] = [
        (it.name, it.comparison, it.tolerance, "<br>".join(f"`{name}`: {title}" for name, title in it.findings.items()))
        for it in CHECKS
    ]
    return _table(("check", "what is compared", "tolerance", "findings"), rows)


def causes_table() -> str:
    """One a row, the first that holds first."""
    return _table(("cause", "opens", "is"), [(it.name, f"`cause:{it.id}`", it.meaning) for it in CAUSES])


def fields_table() -> str:
    """One a row, in the order in which the terms of a filter are printed."""
    rows: list[tuple[str, ...]] = [
        (f"`{it.name}.NAME`" if it.is_keyed else f"`{it.name}`", _taken_by(it), it.meaning, f"`{it.example}`")
        for it in FIELDS.values()
    ]
    return _table(("name", "takes", "is", "for example"), rows)


def columns_table(columns: tuple[Column, ...]) -> str:
    """One a row, in the order of a DataFrame."""
    rows: list[tuple[str, ...]] = [
        (f"`{it.name}`", ": ".join([it.kind, *_words(it.words)]), it.meaning) for it in columns
    ]
    return _table(("column", "type", "is"), rows)


def _taken_by(field: Field) -> str:
    return "; ".join([*(_words(field.words) or [field.kind.value]), *(["`none`"] if field.optional else [])])


def _words(words: type[StrEnum] | None) -> list[str]:
    """The words in one text; nothing without any."""
    return [", ".join(f"`{word.value}`" for word in words)] if words else []


def written(page: str) -> str:
    """The page with tables as they are now."""
    tables = {
        "diagnostics": diagnostics_table(),
        "definitions": definitions(),
        "audit": audit_table(),
        "causes": causes_table(),
        "fields": fields_table(),
        "columns": columns_table(COLUMNS),
        "run columns": columns_table(RUN_COLUMNS),
        "rescored columns": columns_table(RESCORED_COLUMNS),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin in page:
            before, rest = page.split(begin)
            page = f"{before}{begin}\n{table}\n\n{end}{rest.split(end)[1]}"
    return page


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [list(head), ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
