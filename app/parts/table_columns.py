"""Defines the columns of the table of rollouts, which of them are shown, and how a choice is written in a URL."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from logs_ui.app.parts.words import ended_by
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.spelling import misspelt, shortened
from logs_ui.recorder.storage.tables import EvaluationRow

_SEPARATOR = ","


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name in a URL; `rewards.NAME` and `metrics.NAME` are the run's own.
        style: the class of its cells.
        width: in pixels; None for the column that takes the remaining room.
        sorts: the orders that clicks on its head select, in turn.
        hint: its meaning.
        shown_as: the template filter that formats its value; None if the template does it.
        attribute: the row's attribute with that value.
    """

    key: str
    title: str
    style: str
    width: int | None
    sorts: tuple[str, ...] = ()
    hint: str = ""
    shown_as: str = ""
    attribute: str = ""

    @property
    def name(self) -> str:
        """Its name in the list of columns: longer than the title, which has to fit the column."""
        return self.key if "." in self.key else _NAMES.get(self.key, self.title)

    def value(self, row: EvaluationRow) -> Any:
        """Returns the row's value; None if it has none."""
        group, dot, name = self.key.partition(".")
        if dot:
            return (getattr(row, group) or {}).get(name)
        if self.key == "cause":
            cause = cause_of(row)
            return None if cause is None else ended_by(cause)
        return getattr(row, self.attribute or self.key)


def _number(key: str, title: str, hint: str, *, width: int = 84, shown_as: str = "number") -> Column:
    return Column(key, title, "num", width, hint=hint, shown_as=shown_as)


_ID = Column("id", "ID", "num id", 76, ("newest", "oldest"))
_KNOWN = (
    Column("status", "Status", "status", 106),
    Column("stop", "Stop", "stop", 100, hint="Why it ended"),
    Column("cause", "Cause", "text", 150, hint="What ended it; Why counts its loss under this cause", shown_as="line"),
    Column("reward", "Reward", "num reward", 70, ("lowest-reward", "highest-reward")),
    Column("bar", "Reward bar", "bar-cell", 72, hint="The reward between the run's lowest and highest"),
    Column("advantage", "Adv.", "num adv", 66, hint="Advantage, as the trainer used it"),
    _number("rollout_reward", "Returned", "The reward that the rollout function returned"),
    _number("env_reward_sum", "Env sum", "Sum of the rewards of the environment's steps"),
    _number("env_reward_last", "Env last", "Reward of the environment's last step that had one"),
    Column("task", "Task", "task", 256, hint="What the dataset calls the prompt's task"),
    Column("eval", "Eval", "text", 130, hint="As given to record()", shown_as="line", attribute="eval_name"),
    Column("tags", "Tags", "tags", 150, hint="Tags of the rollout function and of people; an icon marks a note"),
    Column("mode", "Mode", "text", 60, hint="Training or evaluation", shown_as="line"),
    Column("step", "Step", "num step", 50, hint="Optimizer step under which TRL logs it"),
    _number("policy_step", "Policy", "The trainer's global_step when it was generated", width=64, shown_as="count"),
    _number("epoch", "Epoch", "How far in the dataset training was", width=66),
    Column("generation", "Gen", "num gen", 44, hint="Which completion of its group"),
    _number("process", "Rank", "Rank of the process that made it", width=50, shown_as="count"),
    Column("model", "Model", "text", 170, hint="Name or path of the model that answered", shown_as="line"),
    Column("turns", "Turns", "num turns", 50, hint="How often the model was called"),
    _number("parse_failures", "Unparsed", "Turns whose answer gave no action", width=76, shown_as="count"),
    Column("messages", "Msgs", "num", 54, hint="Messages", shown_as="count", attribute="message_count"),
    _number("prompt_tokens", "Prompt", "Tokens of the prompt", width=66, shown_as="tokens"),
    Column("tokens", "Tokens", "num tok", 60, ("longest",), "Tokens that the model sampled"),
    _number("env_tokens", "Env tok.", "Tokens that the environment inserted", width=68, shown_as="tokens"),
    Column("seconds", "Time", "num time", 66, ("slowest",), "From the first to the last of its calls"),
    Column("created", "Began", "text", 168, ("newest", "oldest"), "When it began", "moment"),
    Column("preview", "Last words or error", "preview", None),
)
_NAMES = {
    "stop": "Stop reason",
    "advantage": "Advantage",
    "rollout_reward": "Returned reward",
    "env_reward_sum": "Env reward, sum",
    "env_reward_last": "Env reward, last",
    "policy_step": "Policy step",
    "generation": "Generation",
    "parse_failures": "Parse failures",
    "messages": "Messages",
    "prompt_tokens": "Prompt tokens",
    "env_tokens": "Env tokens",
}
_BY_KEY = {column.key: column for column in _KNOWN}
DEFAULT = (
    "status", "stop", "reward", "bar", "advantage", "task", "step", "generation", "turns", "tokens", "seconds",
    "preview",
)  # fmt: skip
"""Keys of the columns of who chose none."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes:
        shown: in their order; the id comes first, and always.
        chosen: True if somebody chose them.
        offered: all columns except the id, and if each is shown.
    """

    shown: list[Column]
    chosen: bool
    offered: list[tuple[Column, bool]]

    def has(self, key: str) -> bool:
        """Returns True if the column is shown."""
        return any(column.key == key for column in self.shown)

    @property
    def is_wide(self) -> bool:
        """True if the columns may need more room than a window has."""
        return self.chosen and sum(column.width or 240 for column in self.shown) > 1100


def parse_columns(written: Iterable[str]) -> tuple[str, ...] | None:
    """Returns keys, in the table's order, from the values of a URL's parameter; None for the default columns.

    Raises:
        FilterError: there is no such column; the message names the nearest.
    """
    keys = {unquote(key) for value in written for key in value.split(_SEPARATOR) if key}
    for key in sorted(keys):
        if key not in _BY_KEY and not (key.startswith(("rewards.", "metrics.")) and key.partition(".")[2]):
            raise misspelt("cols", f"there is no column {shortened(key)!r}", key, list(_BY_KEY))
    found = tuple(sorted(keys, key=_order))
    return None if not found or found == DEFAULT else found


def print_columns(keys: Sequence[str]) -> str:
    return _SEPARATOR.join(quote(key, safe=" /:") if "," in key or "%" in key else key for key in keys)


def make_columns(
    keys: tuple[str, ...] | None,
    rewards: Sequence[str],
    metrics: Sequence[str],
    *,
    is_evaluation: bool,
    has_steps: bool,
) -> Columns:
    """Returns the columns of one run's table.

    Args:
        keys: the chosen ones; None for the default.
        rewards: names of the run's reward functions.
        metrics: names of metrics that its rollout function reports.
        is_evaluation: True if the run has no advantages.
        has_steps: True if its rollouts belong to steps.
    """
    own = [f"rewards.{name}" for name in rewards] + [f"metrics.{name}" for name in metrics]
    absent = (set() if has_steps else {"step"}) | ({"advantage"} if is_evaluation else set())
    shown = keys if keys is not None else tuple(key for key in DEFAULT if key not in absent)
    every = sorted({*_BY_KEY, *own, *shown}, key=_order)
    return Columns(
        shown=[_ID, *(_column(key) for key in shown)],
        chosen=keys is not None,
        offered=[(_column(key), key in shown) for key in every],
    )


def _column(key: str) -> Column:
    group, dot, name = key.partition(".")
    if not dot:
        return _BY_KEY[key]
    hint = "The reward function's own value" if group == "rewards" else "Noted by the rollout function"
    return _number(key, name, f"{hint}: {name}", width=100)


def _order(key: str) -> tuple[int, str]:
    """Puts a reward function's column next to the reward, and metrics after them."""
    places = {column.key: place * 10 for place, column in enumerate(_KNOWN)}
    group = key.partition(".")[0]
    return places.get(key, places["env_reward_last"] + (1 if group == "rewards" else 2)), key
