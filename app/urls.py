"""Addresses of the pages. A filter is part of its page's address, in its shortest form.

Behind a proxy that serves the dashboard under a path of its own, every address begins with that path: `under`.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.filters import RolloutFilter, print_filter
from logs_ui.recorder.queries import Cursor

Pairs = list[tuple[str, str]]

_prefix: ContextVar[str] = ContextVar("prefix", default="")


def under(prefix: str) -> None:
    """Makes the addresses of this request begin with a path, which begins with a slash and ends without."""
    _prefix.set(prefix)


def home(seen: str = "") -> str:
    """The list of runs."""
    return with_query("/", [("seen", seen)] if seen else [])


def at(path: str) -> str:
    """A path of ours as the browser has to ask for it."""
    return _prefix.get() + path


def rollouts(run: str, chosen: RolloutFilter | None = None, *, after: Cursor | None = None) -> str:
    """The rollouts of a run, or the page of them that begins after a cursor."""
    pairs = print_filter(chosen) if chosen else []
    return with_query(f"/runs/{_segment(run)}", [*pairs, *([("after", print_cursor(after))] if after else [])])


def rollouts_where(run: str, **parts: Any) -> str:
    """The rollouts of a run that have one thing in common."""
    return rollouts(run, RolloutFilter(**parts))


def narrowed(run: str, chosen: RolloutFilter, **parts: Any) -> str:
    """The same filter with some parts set anew."""
    return rollouts(run, replace(chosen, **parts))


def live(run: str, chosen: RolloutFilter, since_id: int, seen: str) -> str:
    """What has become new beside a page of rollouts."""
    extra = [("newest", str(since_id)), ("seen", seen)]
    return with_query(f"/runs/{_segment(run)}/live", [*print_filter(chosen), *extra])


def rollout(run: str, row: int, chosen: RolloutFilter | None = None, *, view: str = "timeline", seen: str = "") -> str:
    """One rollout, seen from within a filter."""
    pairs = print_filter(chosen) if chosen else []
    if view != "timeline":
        pairs.append(("view", view))
    return with_query(f"/runs/{_segment(run)}/rollouts/{row}", [*pairs, *([("seen", seen)] if seen else [])])


def overview(run: str, *, search: str = "", seen: str = "") -> str:
    """What a run is and how it goes, or what of it holds `search`."""
    pairs = [(name, value) for name, value in (("q", search), ("seen", seen)) if value]
    return with_query(f"/runs/{_segment(run)}/overview", pairs)


def text(run: str, row: int, part: str) -> str:
    """One text of a rollout, by itself and whole."""
    return at(f"/runs/{_segment(run)}/rollouts/{row}/text/{_segment(part)}")


def image(image_hash: str) -> str:
    """An image of any observation."""
    return at(f"/images/{_segment(image_hash)}")


def with_query(path: str, pairs: Iterable[tuple[str, str]]) -> str:
    query = urlencode(list(pairs), quote_via=quote, safe=":/")
    return at(f"{path}?{query}" if query else path)


def print_cursor(cursor: Cursor) -> str:
    return f"{'none' if cursor.key is None else repr(cursor.key)}~{cursor.id}"


def parse_cursor(written: str) -> Cursor:
    """Raises FilterError."""
    key, _, row = written.partition("~")
    try:
        cursor = Cursor(None if key == "none" else _number(key), int(_number(row)))
    except ValueError:
        message = f"after {written[:40]!r} is not a place in the table: begin with its first page"
        raise FilterError("after", message) from None
    return cursor


def _number(written: str) -> float | int:
    """An integer stays one: ids and token counts are compared as such."""
    value: float | int
    try:
        value = int(written)
    except ValueError:
        value = float(written)
    if not -(2**63) <= value < 2**63:  # neither NaN nor what a database cannot hold
        raise ValueError(written)
    return value


def _segment(value: str) -> str:
    return quote(value, safe="")
