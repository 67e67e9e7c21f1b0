"""Reads what rollouts measured and which errors they had, merged by what their lines share."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from logs_ui.recorder.action_text import observed_text
from logs_ui.recorder.diagnosis.card import Run, Texts
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, ends

_READ, _LOOKED = 256, 20  # rollouts, about; errors that are compared, the most frequent ones [ours]
_LINES = 50  # errors of a rollout that are compared [ours]
_LEAST, _MOST, _LENGTH = 3, 12, 200  # words of the beginning of a line; characters [ours]
_ERROR = re.compile(r"^(?:\w+>|E )?[^\w\n.]*([\w.]*?(?:Error|Exception)\b[^\n]*)$", re.MULTILINE)
_NAMES, _WORD = {"error", "exception"}, re.compile(r"[^\W\d_]{2}")
_NOTHING = {"none", "null", "false", "no error", "no exception", "ignore", "ok"}
# Words on something that was cut.
_UNIT, _CUT_OFF = r"(?:character|line|token|row|byte)s?", r"(?:truncated|omitted|cut off)"
_CUTS = (
    rf"(?:output|text|page|content|response|result|observation)s? (?:(?:was|were|is|are) )?{_CUT_OFF}"
    rf"|{_UNIT} (?:(?:was|were|are) )?{_CUT_OFF}|truncated (?:to|at|after) \d|\d{{1,9}} more {_UNIT}"
    r"|exceed(?:s|ed)? the (?:limit|maximum|context)|limit reached"
)
_CUT = re.compile(rf"(?:{_CUTS})[^\n\])>]*", re.IGNORECASE)
_QUOTED, _PATH, _MORE = r"""(?<!\w)(['"`])[^\n]*?\1(?!\w)""", r"[\w.~-]*/[\w./~-]*", "\u2026"
_VARYING = re.compile(rf"{_QUOTED}|{_PATH}|(?![\w.]*(?:Error|Exception)\b)[\w#.-]*\d[\w.-]*")


def list_errors(rollout: Texts) -> set[str]:
    """Return the errors in its observations, without signs before them, and those that its actions' metadata names."""
    lines = {line.rstrip() for line in _ERROR.findall(_join_observations(rollout))}
    return lines.union(*(_list_named(action.get("metadata")) for action in rollout.actions))


def _list_named(value: Any) -> Iterator[str]:
    """Yield first lines of texts under the name `error` or `exception`, in dicts and lists of dicts in each other."""
    pending = [value]
    while pending:
        part = pending.pop()
        for name, entry in part.items() if isinstance(part, dict) else ():
            pending += entry if isinstance(entry, list) else [entry]
            line = entry.strip().partition("\n")[0].rstrip() if isinstance(entry, str) and name in _NAMES else ""
            if _WORD.search(line) and line.casefold() not in _NOTHING:
                yield line


def list_cuts(rollout: Texts) -> set[str]:
    """Return what its observations say of something that was cut."""
    return set(_CUT.findall(_join_observations(rollout)))


def _join_observations(rollout: Texts) -> str:
    return "\n".join(observed_text(action.get("observation")) or "" for action in rollout.actions)


def read_columns(run: Run, values: Floats) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return (N,) metrics, and 1 or 0 for each error, by name. NaN but for rollouts of some groups, spread evenly over
    those whose (N,) values differ.
    """
    low, high = ends(run.rows.group, values, len(run.rows.groups.size))
    mixed, ids = np.flatnonzero(high - low > SAME), run.rows.id
    every = int(run.rows.groups.size[mixed].sum() / _READ) + 1
    texts = run.read_texts(ids[np.isin(run.rows.group, mixed[::every]) & np.isfinite(values)].tolist())
    is_read, nothing = np.isin(ids, list(texts)), Texts((), ())
    metrics = {
        f"metrics.{name}": np.array([texts.get(row, nothing).metrics.get(name) for row in ids.tolist()], float)
        for name in sorted({name for rollout in texts.values() for name in rollout.metrics})
    }
    return metrics, {
        f"the share of rollouts with the error \u201c{line}\u201d": np.where(is_read, np.isin(ids, list(of)), np.nan)
        for of, line in merge_errors(texts).items()
    }


def merge_errors(texts: Mapping[int, Texts]) -> dict[frozenset[int], str]:
    """Return the longest beginning of errors by the ids of the rollouts that have it, of the most frequent ones."""
    ids_of = dict[str, set[int]]()
    for row_id, rollout in texts.items():
        for line in sorted(list_errors(rollout))[:_LINES]:
            words = _VARYING.sub(_MORE, line[:_LENGTH]).split()
            for number in range(min(_LEAST, len(words)), min(_MOST, len(words)) + 1):
                more = _MORE * (number < len(words) and words[number - 1] != _MORE)
                ids_of.setdefault(" ".join([*words[:number], *more]), set()).add(row_id)
    longest = {frozenset(ids): line for line, ids in sorted(ids_of.items(), key=lambda pair: len(pair[0]))}
    return dict(sorted(longest.items(), key=lambda pair: -len(pair[0]))[:_LOOKED])
