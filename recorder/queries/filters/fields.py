"""The fields of a rollout that a filter knows: most columns, and what is computed from them or stored elsewhere."""

from dataclasses import dataclass
from enum import Enum, StrEnum

from logs_ui.recorder.queries import rollout_columns
from logs_ui.recorder.queries.rollout_columns import COLUMNS, in_order
from logs_ui.recorder.vocabulary import LossCause


class Scored(StrEnum):
    """Tells if a rollout has a reward. One that has not ended is none of these."""

    YES = "yes"
    """It has a reward."""
    AWAITING = "awaiting"
    """It returned, and the trainer, which is still alive, has not scored it yet."""
    NO = "no"
    """It ended without one: all reward functions returned None, it raised, or the run ended before it was scored."""


class Is(StrEnum):
    """Names marks that users give a rollout."""

    STARRED = "starred"


class Kind(Enum):
    """Names kinds of fields; the value describes what is written after the field's name."""

    WORD = "one of its words"
    NAME = "a name, exactly"
    TEXT = "words, or part of a text"
    WHOLE = "a whole number or a range"
    NUMBER = "a number or a range"
    TIME = "a time or an age"
    ANY = "a name, a number or a range"


NUMERIC = frozenset({Kind.WHOLE, Kind.NUMBER})
COMPARED = NUMERIC | {Kind.ANY}
ALIASES = {
    "tokens": "completion_tokens", "stop_reason": "stop", "eval_name": "eval", "message_count": "messages",
    "duration": "seconds", "rank": "process", "tags": "tag",
}  # fmt: skip
"""Other names of fields: those of DataFrames and of the dashboard's pages."""
SYNONYMS = {
    "stop": {"truncated": "length", "truncation": "length", "env_error": "environment_error"},
    "status": {"failed": "error", "failure": "error", "crashed": "aborted"},
    "cause": {"truncated": "truncation", "length": "truncation"},
}
"""Other words for values, by field."""

SEARCHED = ("text", "assistant", "tool", "prompt")
"""Fields that the full-text index answers: all texts of a rollout, or those of one role."""


@dataclass(frozen=True)
class Field:
    """Describes one field."""

    name: str
    kind: Kind
    meaning: str  # a short description, for the documentation
    example: str  # a term
    words: type[StrEnum] | None = None  # all possible values; None if they are not known beforehand
    column: str | None = None  # the column of EvaluationRow that stores it; None if it is stored elsewhere or computed
    among: str = ""  # the column of EvaluationRow with an object; a key follows the name: `rewards.accuracy`
    optional: bool = False  # a rollout may lack it; `name:none` selects those
    is_many: bool = False  # a rollout may have several

    @property
    def is_keyed(self) -> bool:
        """Return True if a key follows its name: `rewards.accuracy`."""
        return bool(self.among) or self.name == "reward_in"

    @property
    def is_listed(self) -> bool:
        """Return True if many values can be looked up at once; False if each is searched or computed apart."""
        return self.kind != Kind.TEXT and bool(self.column or self.among or self.name == "tag")

    @property
    def label(self) -> str:
        """Return the field's name in messages and on chips."""
        return _LABELS.get(self.name, self.name)


_LABELS = {
    "stop": "stop reason", "rewards": "reward function", "reward_in": "eval or reward function",
    "metrics": "metric", "metadata": "dataset column or metadata",
    "is": "mark",
}  # fmt: skip


def _of_column(column: rollout_columns.Column) -> Field:
    kinds = {rollout_columns.Kind.TEXT: Kind.NAME, rollout_columns.Kind.NUMBER: Kind.NUMBER}
    kind = Kind.WORD if column.words else kinds.get(column.kind, Kind.WHOLE)
    optional = column.optional or column.kind in {rollout_columns.Kind.MAYBE_WHOLE, rollout_columns.Kind.NUMBER}
    name = column.field or column.name
    return Field(name, kind, column.meaning, column.example, column.words, column.name, optional=optional)


_OTHERS = (
    Field("error", Kind.TEXT, "part of its error's line, ignoring case; or a failure's stop reason", "error:timeout",
          column="error", optional=True),
    Field("scored", Kind.WORD, "whether it has a reward, or is `awaiting` it: it returned, and the trainer is alive",
          "scored:no", words=Scored),
    Field("rewards", Kind.NUMBER, "one reward function's own value, by its name", "rewards.accuracy<0.5",
          among="rewards", optional=True),
    Field("reward_in", Kind.NUMBER, "the reward, of rollouts of the eval NAME, or that the reward function NAME scored",
          "reward_in.web>=1", optional=True),
    Field("family", Kind.NAME, "the beginning of its task's name", 'family:"webarena/shopping/"'),
    Field("prompt_key", Kind.WHOLE, "the same for equal token ids of the prompt", "prompt_key:17",
          column="prompt_key", optional=True),
    Field("completion_key", Kind.WHOLE, "the same for equal token ids of the completion", "completion_key:17",
          column="completion_key", optional=True),
    Field("cause", Kind.WORD, "what ended it; lost reward is counted under this cause: see docs/diagnosis.md",
          "cause:truncation", words=LossCause, optional=True),
    Field("spread", Kind.NUMBER, "the highest minus the lowest reward of its group", "spread:0", optional=True),
    Field("twins", Kind.WHOLE, "others of its group whose completion is the same, token by token", "twins>0",
          optional=True),
    Field("prompts", Kind.WHOLE, "how many different prompts its group has, by their token ids", "prompts>1"),
    Field("lag", Kind.WHOLE, "`staleness`, or an estimate of it from steps", "lag>=4"),
    Field("since", Kind.TIME, "it began at this time (UTC without an offset) or later", "since:2h",
          column="created"),
    Field("until", Kind.TIME, "it began at this time or earlier; a date means the end of that day",
          "until:2026-11-20T14:00Z", column="created"),
    Field("tag", Kind.NAME, "given by the rollout function, or by a user in the dashboard", "-tag:seen", optional=True,
          is_many=True),
    Field("metrics", Kind.NUMBER, "a metric that the rollout function recorded, by its name", "metrics.progress:0..0.5",
          among="metrics", optional=True),
    Field("metadata", Kind.ANY, "a column of the dataset, or what the rollout function noted, by its name",
          "metadata.difficulty:hard", among="attributes", optional=True),
    Field("is", Kind.WORD, "what a user marked it as", "is:starred", words=Is, is_many=True),
    Field("note", Kind.TEXT, "part of a user's note", 'note:"look again"', optional=True, is_many=True),
    Field("text", Kind.TEXT, "words of its messages and actions; its name may be left out", '"I am sorry"',
          is_many=True),
    Field("assistant", Kind.TEXT, "words that the model wrote: its messages, reasoning, tool calls and actions",
          'assistant:"I am sorry"', is_many=True),
    Field("tool", Kind.TEXT, "words that came back: answers of tools and environments, and their errors",
          "tool:traceback", is_many=True),
    Field("prompt", Kind.TEXT, "words of the messages before the model's first answer", "prompt:django", is_many=True),
)  # fmt: skip
_FIRST = (
    "eval", "mode", "status", "stop", "error", "scored", "task", "family", "group", "model", "step", "policy_step",
    "epoch",
    "generation", "process", "reward", "rewards", "reward_in", "advantage", "rollout_reward", "env_reward_sum",
    "env_reward_last", "turns", "messages", "prompt_tokens", "completion_tokens", "env_tokens", "seconds",
)  # fmt: skip
_LAST = (
    "prompt_key", "completion_key", "staleness", "cause", "spread", "twins", "prompts", "lag", "dropped", "since",
    "until", "tag", "metrics", "metadata", "is", "note", *SEARCHED, "id",
)  # fmt: skip

FIELDS = in_order(
    {field.name: field for field in (*(_of_column(column) for column in COLUMNS if column.example), *_OTHERS)},
    _FIRST,
    _LAST,
)
"""All fields by name, in the order in which the terms of a filter are printed."""
