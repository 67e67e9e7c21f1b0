"""The view of a filter's rollouts, table or pivot, which is part of the page's address."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import parse_qsl

from sqlalchemy import Connection

from logs_ui.app.parts.table_columns import parse_columns, print_columns
from logs_ui.app.web import urls
from logs_ui.app.web.urls import Pairs
from logs_ui.recorder import queries
from logs_ui.recorder.queries import Dimension, Measure
from logs_ui.recorder.queries.filters.fields import COMPARED, Kind
from logs_ui.recorder.queries.filters.language import split_name
from logs_ui.recorder.queries.filters.rollout_filter import check_word
from logs_ui.recorder.queries.pivot import HIGHEST, LOWEST
from logs_ui.recorder.storage.notes_tables import SavedView
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import StopReason

NAMES = ("view", "rows", "columns", "of", "order", "cols", "col")
"""Parameters of the view; all others belong to the filter."""


class ViewKind(StrEnum):
    """Names the two ways of showing rollouts."""

    TABLE = "table"
    PIVOT = "pivot"


@dataclass(frozen=True)
class View:
    """Describes the view of rollouts: the table's columns, None for the default, and the pivot: see `queries.pivot`."""

    kind: ViewKind = ViewKind.TABLE
    rows: str = Dimension.TASK
    columns: str = Dimension.STEP
    of: str = Measure.REWARD
    order: str = ""
    column_keys: tuple[str, ...] | None = None

    @property
    def is_pivot(self) -> bool:
        return self.kind == ViewKind.PIVOT

    def as_pairs(self, kind: str) -> Pairs:
        """Return the parameters of the same columns and pivot as a table or as a pivot."""
        return print_view(replace(self, kind=ViewKind(kind)))


def split(pairs: Iterable[tuple[str, str]]) -> tuple[Pairs, Pairs]:
    """Split parameters into those of the view and the others."""
    pairs = list(pairs)
    return [pair for pair in pairs if pair[0] in NAMES], [pair for pair in pairs if pair[0] not in NAMES]


def parse_view(pairs: Pairs) -> View:
    """Read the view from parameters. Raise FilterError, which names the nearest word, if one is unknown."""
    values = {name: value for name, value in pairs if value.strip()}
    default = View()
    return View(
        kind=ViewKind(_name("view", values.get("view", default.kind), [*ViewKind])),
        rows=_name("rows", values.get("rows", default.rows), [*Dimension]),
        columns=_name("columns", values.get("columns", default.columns), [*Dimension]),
        of=_name("of", values.get("of", default.of), [*Measure, *(f"stop:{reason}" for reason in StopReason)]),
        order=_name("order", values.get("order", ""), ["", LOWEST, HIGHEST]),
        column_keys=parse_columns(value for name, value in pairs if name in {"cols", "col"}),
    )


def print_view(view: View) -> Pairs:
    """Return the shortest parameters that `parse_view` reads as the same view; a table has none of a pivot."""
    default = View()
    pairs = [("view", view.kind.value)] if view.is_pivot else []
    for name in ("rows", "columns", "of", "order") if view.is_pivot else ():
        value = getattr(view, name)
        pairs += [(name, str(value))] if value != getattr(default, name) else []
    return pairs + ([("cols", print_columns(view.column_keys))] if view.column_keys is not None else [])


def named_views(db: Connection, run: Run) -> list[tuple[SavedView, str]]:
    """Return the saved views of a run, each with its address."""
    return [(saved, address_of(run.uid, saved.query)) for saved in queries.saved_views(db, run.uid)]


def address_of(run_uid: str, query: str) -> str:
    """Return the address of a view that is stored as `query`."""
    pairs = parse_qsl(query)
    # A view without columns has the default ones, and not those that this browser remembers.
    return urls.rollouts(run_uid, view=[*pairs, *([] if "cols" in dict(pairs) else [("choose", "1")])])


def _name(name: str, value: str, words: list[str]) -> str:
    """Return one of these words, or a name of metadata, or for a measure of any stored field of numbers."""
    kinds = {"rows": {Kind.ANY}, "columns": {Kind.ANY}, "of": COMPARED}.get(name, ())
    field = split_name(value)
    if field is None or field[0].kind not in kinds or not (field[0].column or field[0].among):
        check_word(name, f"value of {name}", value, words)
    return value
