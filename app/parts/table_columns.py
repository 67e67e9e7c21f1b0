"""Defines the columns of the table of rollouts, which of them are shown, and how a choice is written in a URL."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from logs_ui.app.parts.words import ended_by
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.labels import attribute_text
from logs_ui.recorder.queries import rollout_columns
from logs_ui.recorder.queries.filters.fields import FIELDS, NUMERIC
from logs_ui.recorder.queries.filters.fields import Kind as FieldKind
from logs_ui.recorder.queries.filters.terms import print_key
from logs_ui.recorder.queries.rollout_columns import Kind
from logs_ui.recorder.spelling import misspelt, shortened
from logs_ui.recorder.storage.tables import EvaluationRow


@dataclass(frozen=True)
class Column:
    """Describes one column."""

    key: str  # its name in a URL; `rewards.NAME`, `metrics.NAME` and `metadata.NAME` are the run's own
    title: str
    style: str  # the class of its cells
    width: int | None  # in pixels; None for the column that takes the remaining room
    sorts: tuple[str, ...] = ()  # the orders that clicks on its head select, in turn
    hint: str = ""  # its meaning
    shown_as: str = "line"  # the template filter of its value, where the template does not draw the column specially
    attribute: str = ""  # the row's attribute with that value
    label: str = ""

    @property
    def name(self) -> str:
        """Return its name in the list of columns, where the title, which has to fit the column, may be too short."""
        return self.key if "." in self.key else self.label or self.title

    def value(self, row: EvaluationRow) -> Any:
        """Return the row's value; None if it has none."""
        group, dot, name = self.key.partition(".")
        if dot:
            value = (getattr(row, FIELDS[group].among) or {}).get(name)
            return attribute_text(value) if group == "metadata" else value
        if self.key == "cause":
            cause = cause_of(row)
            return None if cause is None else ended_by(cause)
        return getattr(row, self.attribute)


_STYLES = {
    "id": "num id", "status": "status", "stop": "stop", "reward": "num reward", "advantage": "num adv", "task": "task",
    "step": "num step", "generation": "num gen", "turns": "num turns", "tokens": "num tok", "seconds": "num time",
}  # fmt: skip
_SORTS = {
    "id": ("newest", "oldest"),
    "reward": ("lowest-reward", "highest-reward"),
    "tokens": ("longest", "completion_tokens"),
    "seconds": ("slowest", "seconds"),
    "created": ("newest", "oldest"),
}
_SHOWN_AS = {Kind.TEXT: "line", Kind.TIME: "moment", Kind.NUMBER: "number"}


def _make_stored(column: rollout_columns.Column) -> Column:
    """Describe a column that stores its value itself."""
    name, kind = column.name, column.kind
    key = "tokens" if name == "completion_tokens" else column.field or name
    style = _STYLES.get(key, "text" if kind in {Kind.TEXT, Kind.TIME} else "num")
    hint = column.meaning.replace("`", "")
    shown_as = "tokens" if name.endswith("_tokens") else _SHOWN_AS.get(kind, "count")
    field = FIELDS.get(key)
    orders = (
        _orders(key, is_text=kind == Kind.TEXT)
        if field and field.kind in {*NUMERIC, FieldKind.NAME, FieldKind.WORD}
        else ()
    )
    return Column(
        key,
        column.title or name.replace("_", " ").capitalize(),
        style,
        column.width if column.title else 120,
        _SORTS.get(key, orders),
        hint[:1].upper() + hint[1:],
        shown_as,
        name,
        column.label,
    )


def _orders(key: str, *, is_text: bool) -> tuple[str, str]:
    """Return the orders by a column: names and rewards ascending at first, other numbers descending."""
    return (key, f"-{key}") if is_text or "reward" in key.partition(".")[0] else (f"-{key}", key)


_COMPUTED = (
    Column(
        "cause",
        "Cause",
        "text",
        150,
        ("cause", "-cause"),
        hint="What ended it; the page Why counts its lost reward under this cause",
    ),
    Column("bar", "Reward bar", "bar-cell", 72, hint="The reward between the run's lowest and highest"),
    Column("tags", "Tags", "tags", 150, hint="Tags of the rollout function and of people; an icon marks a note"),
    Column("reference", "Reference", "reference", 150, hint="The dataset's answer: see Settings of this run, on Why"),
    Column("answer", "Final answer or error", "answer", None, hint="The end of its last message, without reasoning"),
    Column("preview", "Last message or error", "preview", None),
)
_BY_KEY = rollout_columns.in_order(
    {
        column.key: column
        for column in (
            *(_make_stored(stored) for stored in rollout_columns.COLUMNS if stored.title or stored.example),
            *_COMPUTED,
        )
    },
    first=(
        "id", "status", "stop", "cause", "reward", "bar", "advantage", "rollout_reward", "env_reward_sum",
        "env_reward_last", "reference", "answer", "task", "eval", "tags", "mode", "step", "policy_step", "epoch",
        "generation", "process", "model", "turns", "parse_failures", "messages", "prompt_tokens", "tokens",
        "env_tokens",
    ),
    last=("seconds", "created", "preview"),
)  # fmt: skip
_ID = _BY_KEY.pop("id")
_PLACES = {key: place * 10 for place, key in enumerate(_BY_KEY)}
DEFAULT = (
    "status", "stop", "reward", "bar", "advantage", "task", "step", "generation", "turns", "tokens", "seconds",
    "preview",
)  # fmt: skip
"""Keys of the columns of who chose none."""
WITH_ANSWERS = ("status", "stop", "reward", "bar", "advantage", "reference", "answer", *DEFAULT[5:-1])
"""The same in a run whose dataset has reference answers."""


@dataclass(frozen=True)
class Columns:
    """Holds the columns of a table."""

    visible: list[Column]  # in their order; the id comes first, and always
    chosen: bool  # somebody chose them
    offered: list[tuple[Column, bool]]  # all columns except the id, and if each is shown

    def has(self, key: str) -> bool:
        """Return True if the column is shown."""
        return any(column.key == key for column in self.visible)

    @property
    def is_wide(self) -> bool:
        """True if the columns may need more room than a window has."""
        return self.chosen and sum(column.width or 240 for column in self.visible) > 1100


def parse_columns(written: Iterable[str]) -> tuple[str, ...] | None:
    """Return keys, in the table's order, from the values of a URL's parameter; None for the default columns. Raise
    FilterError, which names the nearest column, if there is no such one.
    """
    keys = {unquote(key) for value in written for key in value.split(",") if key}
    for key in sorted(keys):
        if key not in _BY_KEY and not (key.startswith(("rewards.", "metrics.", "metadata.")) and key.partition(".")[2]):
            raise misspelt("cols", f"there is no column {shortened(key)!r}", key, list(_BY_KEY))
    columns = tuple(sorted(keys, key=_order))
    return columns or None


def print_columns(keys: Sequence[str]) -> str:
    return ",".join(quote(key, safe=" /:") if "," in key or "%" in key else key for key in keys)


def make_columns(
    keys: tuple[str, ...] | None, lines: Iterable[EvaluationRow], *, is_evaluation: bool, has_steps: bool,
    usual: tuple[str, ...] = DEFAULT,
) -> Columns:  # fmt: skip
    """Return the columns of one run's table: those of the chosen keys, or the `usual` for None. Offered are also the
    reward functions, metrics and metadata that occur in its lines. An evaluation has no advantages.
    """
    values = {
        f"{group}.{name}": value
        for row in lines
        for group in ("rewards", "metrics", "metadata")
        for name, value in (getattr(row, FIELDS[group].among) or {}).items()
    }
    texts = {key for key, value in values.items() if isinstance(value, str | bool)}
    absent = (set() if has_steps else {"step"}) | ({"advantage"} if is_evaluation else set())
    chosen = keys if keys is not None else tuple(key for key in usual if key not in absent)
    every = sorted({*_BY_KEY, *values, *chosen}, key=_order)
    return Columns(
        visible=[_ID, *(_column(key, texts) for key in chosen)],
        chosen=keys is not None,
        offered=[(_column(key, texts), key in chosen) for key in every],
    )


def _column(key: str, text_keys: Collection[str]) -> Column:
    group, separator, name = key.partition(".")
    if not separator:
        return _BY_KEY[key]
    meaning, is_text = FIELDS[group].meaning.removesuffix(", by its name"), key in text_keys
    field = f"{group}.{print_key(name)}{':text' * is_text}"
    orders = _orders(field, is_text=is_text)
    hint = f"{meaning[:1].upper()}{meaning[1:]}: {name}"
    return Column(
        key, name, "text" if is_text else "num", 100, orders, hint, "line" if group == "metadata" else "number"
    )


def _order(key: str) -> tuple[int, str]:
    """Put a reward function's column next to the reward, and metrics after them."""
    group = key.partition(".")[0]
    return _PLACES.get(key, _PLACES["env_reward_last"] + (1 if group == "rewards" else 2)), key
