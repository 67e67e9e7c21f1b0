"""Reads pages as a person does: their sentences and their tables, without drawings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_UNSEEN = {"script", "style", "head", "template", "svg", "dialog"}
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
_BLOCKS = {
    "p", "li", "tr", "h1", "h2", "h3", "h4", "div", "section", "dl", "dd", "dt", "table", "ul", "summary", "header",
}  # fmt: skip


@dataclass
class Table:
    """The cells of a table, as texts; `rows` includes its head."""

    rows: list[list[str]] = field(default_factory=list)

    def column(self, *beginnings: str) -> int | None:
        """Return the index of the first column whose head begins so; None without one."""
        for row in self.rows[:2]:
            for beginning in beginnings:
                for index, cell in enumerate(row):
                    if cell.casefold().startswith(beginning.casefold()):
                        return index
        return None

    def by_name(self) -> dict[str, list[str]]:
        """Return its lines by their first cell that is not empty."""
        return {next(filter(None, row), ""): row for row in self.rows if any(row)}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.unseen = 0
        self.lines: list[str] = [""]
        self.tables: list[Table] = []
        self.open: list[Table] = []
        self.in_cell = 0
        self.after_bdi = False  # the two parts of a name that is cut in its middle

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN or self.unseen:
            self.unseen += tag not in _VOID
            return
        if tag == "table":
            table = Table()
            self.tables.append(table)
            self.open.append(table)
        elif tag == "tr" and self.open:
            self.open[-1].rows.append([])
        elif tag in {"td", "th"} and self.open and self.open[-1].rows:
            self.open[-1].rows[-1].append("")
            self.in_cell += 1
        if tag in _BLOCKS:
            self.lines.append("")
        elif not (tag == "bdi" and self.after_bdi):
            self.handle_data(" ")
        self.after_bdi = False

    def handle_endtag(self, tag: str) -> None:
        if self.unseen:
            self.unseen -= 1
            return
        if tag == "table" and self.open:
            self.open.pop()
        elif tag in {"td", "th"} and self.in_cell:
            self.in_cell -= 1
        if tag in _BLOCKS:
            self.lines.append("")
        elif tag != "bdi":
            self.handle_data(" ")
        self.after_bdi = tag == "bdi"

    def handle_data(self, data: str) -> None:
        if self.unseen:
            return
        if self.after_bdi:
            data = f" {data}"
        self.after_bdi = False
        self.lines[-1] += data
        if self.in_cell and self.open and self.open[-1].rows and self.open[-1].rows[-1]:
            self.open[-1].rows[-1][-1] += data


def _tidy(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def read(html: str) -> tuple[str, list[Table]]:
    """Return a page's text, a line per block, and its tables."""
    reader = _Reader()
    reader.feed(html)
    tables = [Table([[_tidy(cell) for cell in row] for row in table.rows if row]) for table in reader.tables]
    return "\n".join(filter(None, map(_tidy, reader.lines))), tables


def with_columns(tables: list[Table], *heads: str) -> Iterator[Table]:
    """Yield the tables that have all of these columns."""
    return (table for table in tables if all(table.column(head) is not None for head in heads))
