"""The fields of a rollout that a filter knows: one table for the language, its suggestions and its documentation."""

from dataclasses import dataclass
from enum import Enum, StrEnum

from logs_ui.recorder.vocabulary import Dropped, LossCause, Mode, Status, StopReason


class Scored(StrEnum):
    """Tells if a rollout has a reward. One that has not ended is none of these."""

    YES = "yes"
    """It has a reward."""
    AWAITING = "awaiting"
    """It returned, and the trainer, which is still alive, has not scored it yet."""
    NO = "no"
    """It ended without one: all reward functions returned None, it raised, or the run ended before it was scored."""


class Is(StrEnum):
    """Marks that readers give a rollout."""

    STARRED = "starred"


class Kind(Enum):
    """Kinds of fields; the value describes what is written after the field's name."""

    WORD = "one of its words"
    NAME = "a name, exactly"
    TEXT = "words, or part of a text"
    WHOLE = "a whole number or a range"
    NUMBER = "a number or a range"
    TIME = "a time or an age"


NUMERIC = frozenset({Kind.WHOLE, Kind.NUMBER})


@dataclass(frozen=True)
class Field:
    """Describes one field.

    Attributes:
        meaning: a short description, for the documentation.
        example: a term.
        words: all possible values; None if they are not known beforehand.
        column: the column of EvaluationRow that stores it; None if it is stored elsewhere or computed.
        optional: True if a rollout may lack it; `name:none` selects those.
        has_key: True if the name is followed by one that the run defines, as in `rewards.accuracy`.
        is_many: True if a rollout may have several.
    """

    name: str
    kind: Kind
    meaning: str
    example: str
    words: type[StrEnum] | None = None
    column: str | None = None
    optional: bool = False
    has_key: bool = False
    is_many: bool = False

    @property
    def label(self) -> str:
        """The field's name in messages and on chips."""
        return _LABELS.get(self.name, self.name)


_LABELS = {"stop": "stop reason", "rewards": "reward function", "metrics": "metric", "is": "mark"}


def _whole(name: str, meaning: str, example: str, *, column: str | None = None, optional: bool = False) -> Field:
    return Field(name, Kind.WHOLE, meaning, example, column=column or name, optional=optional)


def _number(name: str, meaning: str, example: str) -> Field:
    return Field(name, Kind.NUMBER, meaning, example, column=name, optional=True)


_FACTS = (
    _whole("env_steps", "actions that were sent to the environment", "env_steps:0", optional=True),
    _whole("env_errors", "actions that the environment answered with an error", "env_errors>0", optional=True),
    _whole("tool_calls", "tool calls in the model's messages", "tool_calls:0", optional=True),
    Field("first_action", Kind.NAME, "the first action that was sent, 120 characters", 'first_action:"look"',
          column="first_action", optional=True),
    Field("last_action", Kind.NAME, "the last action that was sent, 120 characters", 'last_action:"look"',
          column="last_action", optional=True),
    _whole("action_streak", "most equal actions in a row", "action_streak>=3", optional=True),
    _number("repeats", "share of the actions that were taken before at the same observation", "repeats>0.5"),
    _whole("parse_failures", "turns whose answer gave no action", "parse_failures>0", optional=True),
    _whole("parse_streak", "most turns without an action in a row", "parse_streak>=3", optional=True),
    _whole("parse_tail", "turns without an action in a row at the end", "parse_tail>0", optional=True),
    _whole("truncated_turns", "generations that hit the token limit", "truncated_turns>0", optional=True),
    _number("compression", "how many times smaller zlib, or zstd below 5, makes its last 10,000 characters",
            "compression>10"),
    _number("distinct_words", "share of its words that are different, from 30 words on", "distinct_words<0.25"),
    _number("trigram_repeats", "share of its three-word sequences that occurred before, from 30 words on",
            "trigram_repeats>0.5"),
    _number("mean_logprob", "mean over the log-probs of what the model sampled", "mean_logprob>-0.02"),
    _whole("prompt_key", "the same for equal token ids of the prompt", "prompt_key:17", optional=True),
    _whole("completion_key", "the same for equal token ids of the completion", "completion_key:17", optional=True),
    _whole("staleness", "policy versions between sampling and asynchronous training", "staleness>1",
           optional=True),
)  # fmt: skip
_TABLE = (
    Field("eval", Kind.NAME, "as given to `record()`", "eval:guess", column="eval_name"),
    Field(
        "mode", Kind.WORD, "training or evaluation", "mode:eval",
        words=Mode, column="mode",
    ),
    Field(
        "status", Kind.WORD, "whether it came to an end", "status:error,aborted",
        words=Status, column="status",
    ),
    Field(
        "stop", Kind.WORD, "why it ended", "stop:length",
        words=StopReason, column="stop_reason", optional=True,
    ),
    Field(
        "error", Kind.TEXT, "part of its error's line, ignoring case; or a failure's stop reason",
        "error:timeout", column="error", optional=True,
    ),
    Field(
        "scored", Kind.WORD, "whether it has a reward, or is `awaiting` it: it returned, and the trainer is alive",
        "scored:no", words=Scored,
    ),
    Field(
        "task", Kind.NAME, "what the dataset calls the prompt's task", 'task:"click-test"',
        column="task", optional=True,
    ),
    Field("group", Kind.NAME, "the same for all completions of one prompt in one batch", "group:...", column="group"),
    Field("model", Kind.NAME, "name or path of the model that answered", "model:Qwen/Qwen3-0.6B",
          column="model", optional=True),
    _whole("step", "the optimizer step under which the trainer logs the batch", "step:100..200"),
    _whole("policy_step", "the trainer's `global_step` when it was generated", "policy_step>=100"),
    _number("epoch", "how far in the dataset training was", "epoch<1"),
    _whole("generation", "which completion of its group, from 0", "generation:0"),
    _whole("process", "rank of the process that made it", "process:0"),
    _number("reward", "weighted sum over the reward functions", "reward<0.2"),
    Field("rewards", Kind.NUMBER, "one reward function's own value, by its name", "rewards.accuracy<0.5",
          optional=True, has_key=True),
    _number("advantage", "as the trainer used it", "advantage>1"),
    _number("rollout_reward", "the reward that the rollout function returned", "rollout_reward:none"),
    _number("env_reward_sum", "sum of the rewards of the environment's steps", "env_reward_sum>0"),
    _number("env_reward_last", "reward of the environment's last step that had one", "env_reward_last:1"),
    _whole("turns", "how often the model was called", "turns>=8", optional=True),
    _whole("messages", "number of messages", "messages>20", column="message_count"),
    _whole("prompt_tokens", "length of the prompt", "prompt_tokens>1000", optional=True),
    _whole("completion_tokens", "tokens that the model sampled", "completion_tokens>4000", optional=True),
    _whole("env_tokens", "tokens that the environment put into the completion", "env_tokens>0", optional=True),
    _number("seconds", "from the first to the last of its own calls", "seconds>60"),
    *_FACTS,
    Field("cause", Kind.WORD, "what ended it; lost reward is counted under this cause: see docs/diagnosis.md",
          "cause:truncation", words=LossCause, optional=True),
    Field("spread", Kind.NUMBER, "the highest minus the lowest reward of its group", "spread:0", optional=True),
    Field("twins", Kind.WHOLE, "others of its group whose completion is the same, token by token", "twins>0",
          optional=True),
    Field("prompts", Kind.WHOLE, "how many different prompts its group has, by their token ids", "prompts>1"),
    Field("lag", Kind.WHOLE, "`staleness`, or else the steps between sampling and training", "lag>=4"),
    Field("dropped", Kind.WORD, "why an asynchronous trainer left it out", "dropped:stale",
          words=Dropped, column="dropped", optional=True),
    Field("since", Kind.TIME, "it began at this time (UTC without an offset) or later", "since:2h",
          column="created"),
    Field("until", Kind.TIME, "it began at this time or earlier; a date means the end of that day",
          "until:2026-11-20T14:00Z", column="created"),
    Field("tag", Kind.NAME, "given by the rollout function or by a reader", "-tag:seen", optional=True, is_many=True),
    Field("metrics", Kind.NUMBER, "a figure that the rollout function noted, by its name", "metrics.progress:0..0.5",
          optional=True, has_key=True),
    Field("is", Kind.WORD, "what a reader marked it as", "is:starred", words=Is, is_many=True),
    Field("note", Kind.TEXT, "part of the note that a reader wrote", 'note:"look again"', optional=True, is_many=True),
    Field("text", Kind.TEXT, "words of its messages and actions; its name may be left out", '"I am sorry"',
          is_many=True),
    _whole("id", "the rollout's, as in the dashboard's addresses", "id:17"),
)  # fmt: skip

FIELDS = {field.name: field for field in _TABLE}
"""All fields by name, in the order in which the terms of a filter are printed."""
