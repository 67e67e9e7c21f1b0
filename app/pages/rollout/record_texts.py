"""Makes the texts of a rollout that stand in no message: its failure, its metadata, and the whole record."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from logs_ui.app.parts import figures, safe_text, words
from logs_ui.app.parts.timeline import Text
from logs_ui.recorder.analysis.export.exported import iso
from logs_ui.recorder.analysis.rescore.reward_inputs import Rebuilding
from logs_ui.recorder.labels import tags_in
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.payload import first_answer
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Handed

TOKEN_LIST = 4_096
"""Maximum number of token ids in the raw view; longer arrays are shown as their length there, and in full in its plain
text.
"""
_PANELS = ("traceback", "server_log", "dataset_prompt")
"""Metadata that has a panel of its own."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_AS_COLUMNS = {"env_reward": "rollout_reward", "turns": "turns", "error": "error"}
"""Metadata that rollout functions return for reward functions, and the columns with the same values."""


@dataclass(frozen=True)
class Panels:
    """Texts with a panel of their own; None for those that the rollout does not have."""

    traceback: Text | None
    server_log: Text | None  # end of the environment server's log, for a failed rollout that names a log
    dataset_prompt: Text | None  # the dataset's prompt, if another was sent
    metadata: Text | None  # metadata that nothing else on the page shows


def make_panels(rollout: Rollout) -> Panels:
    """Make the panels of a rollout."""
    return Panels(**{name: metadata_text(rollout, name) for name in _PANELS}, metadata=other_metadata(rollout))


def metadata_text(rollout: Rollout, name: str) -> Text | None:
    value = rollout.metadata.get(name)
    return Text(name, safe_text.as_text(value)) if value else None


def find_panel(db: Connection, run: Run, rollout: Rollout, part: str) -> Text | None:
    """Return a text that stands in no message; None if there is none of that name."""
    if part == "handed" and is_parsed(rollout):
        return Text(part, safe_text.as_text(Rebuilding(db, run).handed_text(rollout)))
    return other_metadata(rollout) if part == "metadata" else metadata_text(rollout, part) if part in _PANELS else None


def is_parsed(rollout: Rollout) -> bool:
    """Return True if reward functions were handed one text, of which the messages show several parts."""
    answered = rollout.messages[first_answer(rollout.messages, rollout.row.turns) :]
    first = answered[0] if answered else {}
    is_parted = len(answered) > 1 or first.get("reasoning_content") is not None or bool(first.get("tool_calls"))
    return rollout.row.handed == Handed.TEXT and rollout.tokens is not None and is_parted


def other_metadata(rollout: Rollout) -> Text | None:
    """Return the metadata that nothing else on the page shows; the raw view has all of it."""
    metadata = rollout.metadata
    rewards = [call.get("reward") for call in rollout.own_actions if call.get("turn")]
    is_shown = {
        **dict.fromkeys(_PANELS, True),
        **{name: metadata.get(name) == getattr(rollout.row, column) for name, column in _AS_COLUMNS.items()},
        "step_rewards": metadata.get("step_rewards") == rewards,
        "tags": tags_in(metadata),
        "metrics": list_named_values(metadata.get("metrics")),
        "notes": list_named_values(metadata.get("notes")),
        "attribution": evidence(rollout),
    }
    rest = {name: value for name, value in metadata.items() if not is_shown.get(name) and value not in _EMPTY}
    return Text("metadata", safe_text.as_json(rest)) if rest else None


def record_of(rollout: Rollout, *, token_limit: int | None) -> dict[str, Any]:
    """Return the record as plain values. Arrays longer than `token_limit` are replaced by a note of their length."""

    def ids(values: Any) -> Any:
        if values is None:
            return None
        # A float16 is written with its own few digits, not with those of the double that it becomes.
        short = values.astype(str).astype(float) if values.dtype.kind == "f" else values
        listed: list[float] = short.tolist()
        return (
            listed if token_limit is None or len(listed) <= token_limit else f"{len(listed)} values: see the plain text"
        )

    tokens, row = rollout.tokens, {name: getattr(rollout.row, name) for name in EvaluationRow.model_fields}
    times = {name: row[name] for name in ("created", "returned", "scored", "pruned")}
    whole = {
        **row,
        **{name: None if moment is None else iso(moment) for name, moment in times.items()},
        "messages": rollout.messages,
        "actions": rollout.actions,
        "sampling": rollout.sampling,
        "metadata": rollout.metadata,
        "tokens": None if tokens is None else {name: ids(values) for name, values in vars(tokens).items()},
    }
    tidy: dict[str, Any] = figures.tidy(whole)
    return tidy


def evidence(rollout: Rollout) -> tuple[str, str] | None:
    word = str(rollout.metadata.get("attribution", ""))
    return (word, words.EVIDENCE[word]) if word in words.EVIDENCE else None


def list_named_values(value: Any) -> list[tuple[str, str]]:
    """Return names and values. The value may be anything, since the user's `edit` function may have written it."""
    return [(str(name), safe_text.as_text(item)) for name, item in value.items()] if isinstance(value, dict) else []
