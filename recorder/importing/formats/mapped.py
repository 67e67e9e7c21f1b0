"""Reads records by a mapping: TOML that names the columns which are fields of a rollout. A mapping is the user's, or
the declaration of a format in `declared/`.

`field = "column"` names one, with dots if it is nested; "column?" may be absent. `[rewards]` has such lines by name,
`[weights]` has numbers, `[constants]` what is the same in all rollouts: `mode = "train"`. `[cut]` cuts further columns
out of one by the named groups of a pattern: `uid.group`. What is mapped to nothing becomes a metric if it is a number,
else metadata. The columns `@path` and `@key` are the file's path and the record's own key.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, ImportOptions, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, file_id, find_files, records_of
from logs_ui.recorder.spelling import misspelt, shortened
from logs_ui.recorder.vocabulary import UNNAMED, Mode, Status, StopReason

_VOCABULARY = tomllib.loads(Path(__file__).with_name("mapping_fields.toml").read_text("utf-8"))
_FIELDS: dict[str, tuple[str, str]] = _VOCABULARY["fields"]
_KINDS: dict[str, Callable[[Any], Any]] = {
    "messages": lambda value: (
        messages if (messages := _values.messages_of(value)) and messages[0].get("content") is not value else None
    ),
    "messages or text": _values.messages_of,
    "an id": lambda value: str(value) if isinstance(value, str | int) else file_id("", value),
    "text": lambda value: str(value) if isinstance(value, str | int | float) else None,
    "a word": lambda value: value if isinstance(value, str) else None,
    "a number": _values.number,
    "a whole number": _values.whole,
    "a list of numbers": lambda value: (
        value if isinstance(value, list) and isinstance(next(iter(value), 0), int | float) else None
    ),
    "a time": lambda value: 0 if value == 0 else _values.micros(value),
    "numbers by name": _values.table_of,
    "a list of words": lambda value: [str(item) for item in value] if isinstance(value, list) else None,
}
_WORDS = {"mode": Mode, "status": Status, "stop_reason": StopReason}
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")
_ABSENT = object()
_MESSAGE_FIELDS = ("messages", "prompt", "completion")
_ANSWERS = ("messages", "completion", "completion_ids")
_MOST = 10_000  # records that a suggestion looks at
_LONG = 300  # characters of a column's name: of longer ones, nested names would take gigabytes
_TABLES = ("rewards", "weights", "constants", "cut")
_REWARD = re.compile(r"(^|[._/])(rewards?|scores?)([._/]|$)|(_reward|_score)$")
_IN_TEXT = "turns and tool calls (in the text of the answer, unless that is ChatML)"
_quote = partial(json.dumps, ensure_ascii=False)


class MappedReader(Reader):
    """Reads records as the mapping says. Making one raises LogsUIError for a mapping that does not fit the files.

    Attributes:
        declared: the mapping of a format of its own; None takes the user's.
        drops: columns that `more` reads, or that say nothing.
    """

    name, title, marks = "map", "a mapping", "any columns, with --map"
    declared: ClassVar[Mapping[str, Any] | None] = None
    drops: ClassVar[Sequence[str]] = ()

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        self._fields: dict[str, Any] = deepcopy(dict(self.declared)) if self.declared is not None else _mapping(options)
        rewards, weights, constants, self._cuts = (self._fields.pop(name, {}) for name in _TABLES)
        self._weights = weights | dict(options.weights)
        self._rewards = rewards | {name: name for name in options.rewards or ()}
        self._constants = {name: _constant(name, value) for name, value in constants.items()}
        # A field may be a formula of columns (see `_parts`): `_uses` has all columns that it takes, `_needed` those to
        # look for.
        parts = {name: _parts(name) for name in (*self._fields.values(), *self._rewards.values())}
        self._formulas = {name: names for name, names in parts.items() if names}  # of columns, by what they are made of
        self._uses = {name: (name, name.removesuffix("?"), *names) for name, names in parts.items()}
        self._needed = [name for name in {*self._cuts, *chain(*self._uses.values())} if name[:1] != "@"]
        self._trained: dict[str, bool] = {}  # by file
        if self.declared is None:
            self._check(options.mapping.name if options.mapping else "", rewards)

    def _check(self, mapping_name: str, rewards: Mapping[str, str]) -> None:
        heads = ((source.file, Head(source.file).record) for source in find_files([self.root]))
        file, first = next(
            ((file, record) for file, record in heads if isinstance(record, dict)), (self.root, dict[str, Any]())
        )
        place = Place(file, "", "", 1)
        columns = self._columns_of(first, place)
        for name, column in [*self._fields.items(), *self._rewards.items()]:
            if first and not column.endswith("?") and column not in columns:
                origin = f"{mapping_name}: {name}" if name in rewards or name in self._fields else "--rewards"
                wrong = f"{origin} = {column!r}, but the first record has no such column"
                raise misspelt("map", wrong, column, [*_columns(first) | columns])
        try:
            list(self.rollouts(first, place))
        except RecordError as error:
            raise LogsUIError(f"{mapping_name} does not fit the first record: {error}. Name another column.") from None
        if self._fields.keys().isdisjoint((*_ANSWERS, "reward")) and not self._rewards:
            raise LogsUIError(f"{mapping_name} names no column with the answer: add one of {', '.join(_ANSWERS)}.")

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        return cls.declared is not None and super().recognizes(head)

    def describe(self, run_id: str | None) -> ImportedRun:
        if self.declared is not None:
            return super().describe(run_id)
        fields = {**self._constants, **self._fields}
        if "group" in fields and fields["group"] in (fields.get("prompt"), fields.get("messages")):
            del fields["group"]  # that is no more than without it
        # Parts of a reward, several or beside a total, of which no weight is known.
        has_parts = len(self._rewards) > ("reward" not in fields) and not self._weights
        names = {*fields, *(["rewards"] if self._rewards else []), *([] if has_parts else ["weights"])}
        return ImportedRun(run_id, lacks=_lacks_of(names))

    def rollouts(self, record: Any, place: Place) -> Iterator[Any]:
        if not isinstance(record, dict):
            raise RecordError("it is not a JSON object")
        columns = self._columns_of(record, place)
        fields = self._fields_of(columns)
        rewards = {
            name: _convert("reward", columns[column], column)
            for name, column in self._rewards.items()
            if column in columns
        }
        # A word of others stays as it is, unless it is ours.
        words = {
            column
            for name, column in self._fields.items()
            if name in _WORDS and columns.get(column) != fields.get(name)
        }
        used = {*self.drops, *chain(*(self._uses[column] for column in columns.keys() & (self._uses.keys() - words)))}
        rest = _values.fields_of(_without(record, used), {}, ())
        more: dict[str, Any] = fields | self.more(record, place)
        if not more["prompt"] and "prompt_ids" in more:
            more.setdefault("task", UNNAMED + file_id("", more["prompt_ids"]))
        tokens = _values.token_arrays(*(more.pop(name, None) for name in _TOKENS))
        key = _values.key_of(more.pop("key", None), place)
        if "finish" in self._fields:  # of the last answer
            earlier = sum(message["role"] == "assistant" for message in more["completion"]) - 1
            more["turns"] = [*[Turn()] * earlier, Turn(finish=more.pop("finish", None))]
        values: dict[str, Any] = {"tokens": tokens, **rest, "rewards": rewards or None, "weights": self._weights}
        values |= more
        values["metrics"] = rest["metrics"] | (more.get("metrics") or {})
        # A total that is mapped stands beside its parts, also where it is null. Where its column is absent, the parts
        # are summed.
        total = self._fields.get("reward")
        if "reward" in more or (total and (total in columns or not rewards)):
            values |= _values.beside_total(more.get("reward"), rewards, self._weights)
            if not values["rewards"]:  # each was scored, also one with null
                values["rewards"] = {"reward": more.get("reward")}
        if values["prompt"]:
            values.setdefault("group", file_id("", values["prompt"]))
        values["is_one_text"] = _IN_TEXT in self.lacks and len(values["completion"]) < 2
        yield ImportedRollout(key, **values)
        texts = (columns[column] for name in _MESSAGE_FIELDS if (column := self._fields.get(name)) in columns)
        if lost := {kind for text in texts for kind in _values.lost_kinds(text)}:
            yield RecordError(f"items of type {', '.join(sorted(lost))[:80]} are left out: they are not messages")

    def _fields_of(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that columns give, prompt and completion among them. Raise RecordError."""
        texts = [columns.get(self._fields.get(name, "")) for name in ("prompt", "completion")]
        halves = _values.conversation(*texts) if all(isinstance(text, str) for text in texts) else {}
        columns_by_field = (
            (name, column) for name, column in self._fields.items() if column in columns and name not in halves
        )
        values = {name: _convert(name, columns[column], column) for name, column in columns_by_field}
        fields = self._constants | halves | {name: value for name, value in values.items() if value is not None}
        if "step" in fields and "advantage" in values and self._is_training(fields, columns["@path"]):
            fields.setdefault("mode", Mode.TRAIN)
        lacking = [column for name, column in self._fields.items() if name in {*_ANSWERS} - {*fields}]
        if self.declared and lacking:
            raise RecordError(f"it lacks {lacking[0]}")
        fields = dict(zip(("prompt", "completion"), _values.halves(fields.pop("messages", [])), strict=True)) | fields
        if fields["completion"] and not any(message.get("content") for message in fields["prompt"]):
            prompt, fields["completion"] = _values.halves(fields["completion"])  # all stands in the completion
            fields["prompt"] = prompt or fields["prompt"]
        return fields

    def _is_training(self, fields: Mapping[str, Any], file: str) -> bool:
        """Return True if any record of a file has an advantage, or a step beyond 0: an evaluation has neither."""
        if fields["step"] or "advantage" in fields:
            return True
        if file not in self._trained:
            step, advantage = self._fields["step"], self._fields["advantage"]
            rows = (row for _, row in records_of(Path(file)) if isinstance(row, dict))
            pairs = ((_values.whole(_column(row, step)), _values.number(_column(row, advantage))) for row in rows)
            self._trained[file] = any(step_number or value is not None for step_number, value in pairs)
        return self._trained[file]

    def more(self, row: Any, place: Place) -> dict[str, Any]:  # noqa: ARG002 - of a subclass
        """Return further fields of a record."""
        return {}

    def _columns_of(self, record: dict[str, Any], place: Place) -> dict[str, Any]:
        """Return the values of the columns that are needed by name, with those that the mapping makes of others."""
        columns = {"@path": _path_of(place.file), "@key": place.key}
        for name in self._needed:
            if (value := _column(record, name)) is not _ABSENT:
                columns[name] = value
        for column, pattern in self._cuts.items():
            columns |= {f"{column}.{name}": part for name, part in _cut(pattern, str(columns.get(column, ""))).items()}
        # A formula with a part that is absent gives no column, unless the part may be absent.
        for formula, parts in self._formulas.items():
            values: list[Any] = [
                columns.get(part, "" if part[:1] == "@" or part[-1:] == "?" else None) for part in parts
            ]
            if formula in columns or None in values:
                continue
            numbers: list[Any] = [*map(_values.number, values[0] if isinstance(values[0], list) else values)]
            if "{" in formula:
                texts = re.split(r"\{.+?\}", formula)
                columns[formula] = "".join(f"{text}{value}" for text, value in zip(texts, [*values, ""], strict=True))
            elif not numbers or None in numbers:
                columns[formula] = values[0]  # which is said to be no number
            else:
                columns[formula] = sum(numbers) if formula.startswith("sum(") else numbers[0] - numbers[1]
        return columns


def declared_readers() -> list[type[MappedReader]]:
    """Return the readers of the formats that are declarations."""
    classes = []
    for file in sorted(Path(__file__).with_name("declared").glob("*.toml")):
        mapping = tomllib.loads(file.read_text("utf-8"))
        about = mapping.pop("format")
        about["lacks"] = [*_lacks_of({*mapping, "weights"}), *about.get("lacks", ())]
        classes.append(type(file.stem, (MappedReader,), {"name": file.stem, **about, "declared": mapping}))
    return classes


def _lacks_of(fields: set[str]) -> list[str]:
    """Return what a run lacks of which these fields are known."""
    return [lack for lack, names in _VOCABULARY["lacks"].items() if fields.isdisjoint(names)]


def _mapping(options: ImportOptions) -> dict[str, Any]:
    """Return the user's mapping. Raise LogsUIError for one that is none."""
    if options.mapping is None:
        raise LogsUIError("There is no mapping. Add --map mapping.toml; logs-ui import --suggest FILE prints one.")
    mapping_name = options.mapping.name
    wrong = "{} cannot be read as a mapping: {}. logs-ui import --suggest FILE prints one."
    try:
        mapping = tomllib.loads(options.mapping.read_text("utf-8"))
    except (OSError, ValueError) as error:
        fault = " ".join(["it is not valid TOML", *re.findall(r"at line \d+", str(error))])
        raise LogsUIError(wrong.format(mapping_name, fault)) from None
    for name, value in mapping.items():
        kinds: Any = {"weights": (int, float), "constants": object}.get(name, str)
        if name not in _TABLES and not isinstance(value, str):
            raise LogsUIError(f"{mapping_name}: {name} must name a column in quotes, not {value!r}.")
        if name in _TABLES and not (
            isinstance(value, dict) and all(isinstance(entry, kinds) for entry in value.values())
        ):
            what = "numbers" if name == "weights" else "names in quotes"
            raise LogsUIError(wrong.format(mapping_name, f"[{name}] is not a table of {what}"))
    for name in (*(mapping.keys() - {*_TABLES}), *mapping.get("constants", {})):
        if name not in _FIELDS:
            raise misspelt("map", f"{mapping_name}: unknown field {name!r}", name, [*_FIELDS, *_TABLES])
    return mapping


def suggestion(file: Path) -> str:
    """Return a mapping for a file, in TOML, with an example of each column; LogsUIError if it has no columns."""
    head = Head(file)
    if not isinstance(head.record, dict):
        fault = head.fault or "it has no records with columns. Name a JSONL, JSON or Parquet file."
        raise LogsUIError(f"{file}: {fault}")
    values, seen, repeated, names_of_all = dict[str, Any](), dict[str, set[Any]](), set[str](), set[str]()
    firsts: dict[str, Any] = {}
    for record in islice((row for _, row in records_of(file) if isinstance(row, dict)), _MOST):
        columns = {name: value for name, value in _columns(record).items() if value is not None}
        firsts, values, names_of_all = firsts or columns, columns | values, names_of_all | _columns(record).keys()
        short = {
            name: value for name, value in columns.items() if isinstance(value, int | float) or len(str(value)) < 300
        }
        repeated |= {name for name, value in short.items() if str(value) in seen.setdefault(name, set())}
        for name, value in short.items():
            seen[name].add(str(value))
    # Each field takes a free column: the first hint of its names that fits decides, so that common names go first.
    chosen: dict[str, str] = {}
    for field, (kind, names) in _FIELDS.items():
        free = [
            column for column in values if column not in chosen.values() and _KINDS[kind](values[column]) is not None
        ]
        fitting = [column for hint in names.split() for column in free if hint in _short_names(column)]
        if field in ("key", "group"):  # what repeats is no key, and what does not is no group
            fitting = [column for column in fitting if (column in repeated) == (field == "group")]
        if field in _WORDS:
            fitting = [
                column for column in fitting if any(_convert(field, value, column) for value in seen.get(column, ()))
            ]
        fitting += [chosen["prompt"]] if field == "group" and "prompt" in chosen else []
        if fitting and (field not in ("prompt", "completion") or "messages" not in chosen):
            chosen[field] = fitting[0]
    free = [column for column in values if column not in chosen.values() and _values.number(values[column]) is not None]
    scores = [column for column in free if _REWARD.search(column)]
    lasts = Counter(column.split(".")[-1] for column in scores)
    rewards = {_quote(last if lasts[last := column.split(".")[-1]] == 1 else column): column for column in scores}

    text = [
        f"# Save this as mapping.toml, correct it, and run: logs-ui import {file.name} --map mapping.toml",
        "# Columns that are not named become metrics, if they are numbers, or metadata.",
    ]
    for title, columns in (("", chosen), ("[rewards]", rewards)):
        text += ["", title] if title and columns else []
        for name, column in columns.items():
            reference = column if column in firsts else f"{column}?"  # it comes later
            text.append(f"{name} = {_quote(reference)}  # {shortened(repr(values[column]))}")
    text += [] if "mode" in chosen else ["", "[constants]", 'mode = "train"  # or "eval"']
    return "\n".join([*_comment_lack_of_answer(chosen), *text, "", *_comment_unchosen(chosen, names_of_all), ""])


def _comment_lack_of_answer(chosen: Mapping[str, str]) -> list[str]:
    is_lacking = chosen.keys().isdisjoint(_ANSWERS)
    return ['# No column with the answer was found. Name one: completion = "..."'] * is_lacking


def _comment_unchosen(chosen: Mapping[str, str], columns: Iterable[str]) -> list[str]:
    """Return lines about the fields without a column: those that no column has the name of, and others."""
    missing = [
        field for field in _FIELDS if field not in chosen and ("messages" not in chosen or field not in _MESSAGE_FIELDS)
    ]
    names = set[str]().union(*map(_short_names, columns))
    unfit = [field for field in missing if not names.isdisjoint(_FIELDS[field][1].split())]
    lines = ["# No column found for: " + ", ".join(field for field in missing if field not in unfit)]
    return lines + ["# Columns have the names, but other values or another use: " + ", ".join(unfit)] * bool(unfit)


def _short_names(column: str) -> set[str]:
    """Return the names by which a column is known: its own, and those of what it is in."""
    *above, last = column.lower().split(".")
    return {column.lower(), last, *(above[-1:] if last in {"text", "content", "value"} else [])}


def _column(record: dict[str, Any], name: str) -> Any:
    """Return the value of a column, whose name has dots if it is nested, or "?" if it may be absent: _ABSENT then."""
    if name in record:
        return record[name]
    dot = name.find(".")
    while dot > 0:  # names may have dots themselves
        inner = _values.table_of(record.get(name[:dot]))
        if inner and (value := _column(inner, name[dot + 1 :])) is not _ABSENT:
            return value
        dot = name.find(".", dot + 1)
    return _column(record, name[:-1]) if name.endswith("?") else _ABSENT


@lru_cache(64)
def _path_of(file: Path) -> str:
    return file.absolute().as_posix()


@lru_cache(64)
def _cut(pattern: str, text: str) -> dict[str, str]:
    """Return what the named groups of a pattern match."""
    parts = re.search(pattern, text)
    return {name: part for name, part in parts.groupdict().items() if part is not None} if parts else {}


def _columns(record: dict[str, Any], depth: int = 8) -> dict[str, Any]:
    """Return the values of all columns by name, nested ones with dots, but for long names, and those TOML lacks."""
    columns = {name: value for name, value in record.items() if name.isprintable() and len(name) < _LONG}
    nested = {
        name: _columns(table, depth - 1)
        for name, value in columns.items()
        if depth and (table := _values.table_of(value))
    }
    return columns | {f"{name}.{inner}": value for name, table in nested.items() for inner, value in table.items()}


def _without(record: dict[str, Any], used: Container[str]) -> dict[str, Any]:
    """Return a record without the columns that were used, also nested ones."""
    rest = {name: value for name, value in record.items() if name not in used}
    for name, value in rest.items():
        if isinstance(value, dict) and any(f"{name}.{inner}" in used for inner in value):
            rest[name] = {inner: part for inner, part in value.items() if f"{name}.{inner}" not in used}
    return rest


def _parts(column: str) -> list[str]:
    """Return the columns that one is made of: "a - b", "sum(a)", "{a}-{b}"."""
    if "{" in column:
        return re.findall(r"\{(.+?)\}", column)
    return re.findall(r"^sum\((.+)\)$", column) or (column.split(" - ") if column.count(" - ") == 1 else [])


def _constant(field: str, value: Any) -> Any:
    """Return a field's value that a mapping gives. Raise LogsUIError for a word that is none of ours."""
    word = _convert(field, value, "[constants]")
    if word is None:
        words = ", ".join(_WORDS.get(field, ()))
        raise LogsUIError(f"[constants] {field} = {value!r:.80} is not one of its words: {words}.")
    return word


def _convert(field: str, value: Any, column: str) -> Any:
    """Return a field's value; None for null, and for a word that is none of ours. Raise RecordError."""
    if value is None or field in _WORDS:
        word = str(value).lower()
        synonyms = ((choice, _VOCABULARY["words"].get(choice, "").split()) for choice in _WORDS.get(field, ()))
        return next((choice for choice, names in synonyms if word == choice or word in names), None)
    kind = _FIELDS[field][0]
    result = _values.messages_of(value, "assistant") if field == "completion" else _KINDS[kind](value)
    if result is None:
        raise RecordError(f"{field} must be {kind}, and {column.removesuffix('?')} has {shortened(repr(value))}")
    return result
