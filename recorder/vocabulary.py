"""Defines the words that columns can hold, with their meanings, and the numbers that define them.

Every room imports it; it imports nothing of this package.
"""

from enum import StrEnum
from typing import NamedTuple

UNNAMED = "prompt-"
"""What the name of a task begins with that is made from its prompt."""

FIRST_PROMPT = "rollouts/first_prompt"
"""The metric of a step that has rollouts with an answer to the first prompt of their group, and not to their own."""

TAG_LENGTH = 100
"""Most characters of a tag, from a rollout function or a person."""


class Mark(NamedTuple):
    """The least value of a solved rollout, in one column.

    Attributes:
        column: named as in filters: `rewards.correct`, `env_success`, `env_reward_last` or `reward`.
        at: the least value.
        eval: the environment whose rollouts it decides on; None for all.
    """

    column: str
    at: float
    eval: str | None = None


class Mode(StrEnum):
    """The loop of the trainer that the rollout was made for."""

    TRAIN = "train"
    """The policy is updated with it."""
    EVAL = "eval"
    """Made by `trainer.evaluate()`; no gradient comes of it."""


class Status(StrEnum):
    """Says if a rollout ended. Its `StopReason` says why."""

    RUNNING = "running"
    """The rollout function has been called and has not returned."""
    OK = "ok"
    """It returned. That says nothing about its reward."""
    ERROR = "error"
    """The rollout function, or the environment under it, raised."""
    ABORTED = "aborted"
    """The process ended before the rollout did."""


class StopReason(StrEnum):
    """Names why a rollout ended, as far as its calls show it."""

    DONE = "done"
    """The environment reported that the episode is over."""
    STOP = "stop"
    """The model ended its answer, and no environment was involved, or its last answer called none of the tools."""
    LENGTH = "length"
    """The last generation hit its token limit before the model ended its answer, or the completion had no room left."""
    TURN_LIMIT = "turn_limit"
    """The environment would have gone on; the rollout function did not."""
    NO_ACTION = "no_action"
    """The last answer has no action: none was sent to the environment, or `record(parse=...)` found none."""
    ENVIRONMENT_ERROR = "environment_error"
    """A call to the environment raised."""
    TIMEOUT = "timeout"
    """A call to the environment, or the last one to the model, timed out."""
    AT_CAPACITY = "at_capacity"
    """The environment's server had no session left: the rollout function opened more than it serves at once."""
    EXCEPTION = "exception"
    """The rollout function raised, returned something that the trainer cannot use, or marked the row as failed; or the
    last call to the model failed."""
    ABORTED = "aborted"
    """The process ended in the middle."""
    NOT_RECORDED = "not_recorded"
    """The calls do not show it: none was recorded, the last answer's end is missing, or calls are unattributed."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r:.80} is no stop reason; use one of: {', '.join(cls)}.")


BROKEN = (StopReason.ENVIRONMENT_ERROR, StopReason.TIMEOUT, StopReason.AT_CAPACITY, StopReason.EXCEPTION)
"""Stop reasons that are a fault of the environment or of the rollout function, not of the policy."""

SCORING = "scoring"
"""The phase of an action that a reward function made; those of the rollout itself have none."""

LOOP = 3  # equal actions in succession; see docs/diagnosis.md
REPEATS = 0.5  # share of actions; the number is ours


class LossCause(StrEnum):
    """The cause that a rollout's lost reward is counted under: the first of these that applies.

    `diagnosis.waterfall` has their meanings and decides in numpy, `queries.sql.computed_fields` in SQL; both use
    this order.
    """

    INFRASTRUCTURE = "infrastructure"
    INVALID_REWARD = "invalid_reward"
    TRUNCATION = "truncation"
    PARSE_FAILURE = "parse_failure"
    LOOP = "loop"
    NEVER_SUBMITTED = "never_submitted"
    WRONG_ANSWER = "wrong_answer"


class Dropped(StrEnum):
    """Names the reason why a trainer left out a rollout, or a part of it."""

    STALE = "stale"
    """The policy was ahead by more versions than `max_staleness`."""
    OVERSIZE = "oversize"
    """It did not fit into `token_budget`."""
    FILTERED = "filtered"
    """It is in the trainer's dump of all rollouts, and not in its dump of those that were trained on."""


class SentPrompt(StrEnum):
    """Tells how far the prompt that was sent to the model is the dataset's."""

    DATASET = "dataset"
    """It is the dataset's, and nothing else."""
    EXTENDED = "extended"
    """It holds the dataset's, and more: in its messages, or in further ones, such as a system message."""
    OTHER = "other"
    """It does not hold all of the dataset's."""


class Handed(StrEnum):
    """Tells in which form reward functions were handed a completion."""

    TEXT = "text"
    """One text: all that was sampled, without special tokens."""
    MESSAGES = "messages"
    """Messages, with what was parsed: reasoning, calls of tools, the tools' answers."""


class Lack(StrEnum):
    """Names what the files of an imported run may not hold, although each row has a value of it: a check that needs it
    is not made.
    """

    ERRORS = "errors"
    """All rollouts count as ended without one."""
    STOP_REASONS = "stop reasons"
    """All are `not_recorded`."""
    POLICY_VERSIONS = "policy versions"
    """`policy_step` is the step."""
    GROUPS = "groups"
    """Rollouts of one prompt at one step are taken for a group; by a mapping without `group`, each rollout is one."""
    TASKS = "task names"
    """Each prompt is taken for a task."""
    WEIGHTS = "reward weights"
    """They are taken as 1, or as 0 beside a total."""


class RunState(StrEnum):
    """Names the state of a training job. One that is `running` without a heartbeat for long is shown as died."""

    RUNNING = "running"
    """It began, and no end was recorded."""
    FINISHED = "finished"
    """The trainer said that training ended."""
    FAILED = "failed"
    """An exception ended it, or the process ended before the trainer said so."""
    INTERRUPTED = "interrupted"
    """It was stopped by Ctrl-C, or by an exit in the middle."""


class SourceKind(StrEnum):
    """The kind of a part of a run that is stored as text: see `RunSource`."""

    REWARD = "reward_function"
    """A reward function of the trainer. A reward model has a name and no text."""
    ROLLOUT = "rollout_function"
    """The rollout function; for one that this package made, the user's functions in it."""
    ENVIRONMENT = "environment"
    """The class or function that makes environments."""
    CHAT_TEMPLATE = "chat_template"
    """The tokenizer's Jinja template, and the one that the trainer uses in its place, if any."""
    DATASET = "dataset"
    """The training dataset: known facts, one per line."""
    CHANGED_FILES = "changed_files"
    """Tracked files that differ from the commit: lines added, lines removed and name, one file per line."""
    CHANGES = "changes"
    """Their differences, as `git diff HEAD` prints them."""
