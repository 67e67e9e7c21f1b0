"""The words that columns may hold, each with its meaning, and the numbers that define them.

Imported by every room: it imports nothing of ours.
"""

from enum import StrEnum

TAG_LENGTH = 100
"""Characters of a tag, a rollout function's or a person's."""


class Mode(StrEnum):
    """Which of the trainer's loops asked for the rollout."""

    TRAIN = "train"
    """The policy is updated with it."""
    EVAL = "eval"
    """Made by `trainer.evaluate()`; no gradient comes of it."""


class Status(StrEnum):
    """Whether a rollout came to an end. Why it ended is its `StopReason`."""

    RUNNING = "running"
    """The rollout function has been called and has not returned."""
    OK = "ok"
    """It returned. That says nothing of its reward."""
    ERROR = "error"
    """The rollout function, or the environment under it, raised."""
    ABORTED = "aborted"
    """The process ended before the rollout did."""


class StopReason(StrEnum):
    """Why a rollout ended, as far as its calls show."""

    DONE = "done"
    """The environment said that the episode is over."""
    STOP = "stop"
    """The model was seen to end its answer, and no environment was involved; or one with tools, and it called none in
    the end."""
    LENGTH = "length"
    """The last generation hit its token limit before the model ended its answer."""
    TURN_LIMIT = "turn_limit"
    """The environment would have gone on; the rollout function did not."""
    NO_ACTION = "no_action"
    """No action was found in the last answer: it was never sent to the environment, or `record(parse=...)` says so."""
    ENVIRONMENT_ERROR = "environment_error"
    """A call to the environment raised."""
    TIMEOUT = "timeout"
    """A call to the environment, or the last one to the model, took too long, and was given up."""
    AT_CAPACITY = "at_capacity"
    """The environment's server had no session left: it serves fewer at once than the rollout function opened."""
    EXCEPTION = "exception"
    """The rollout function raised, returned what the trainer cannot take, or said that the row failed; or the model was
    asked last, and did not answer."""
    ABORTED = "aborted"
    """The process ended in the middle."""
    NOT_RECORDED = "not_recorded"
    """No call was seen that would tell, the end of the last answer was not seen, or calls were that found no row."""


BROKEN = (StopReason.ENVIRONMENT_ERROR, StopReason.TIMEOUT, StopReason.AT_CAPACITY, StopReason.EXCEPTION)
"""Stop reasons that are a fault of the environment or of the rollout function, not of the policy."""

LOOP = 3  # equal actions in a row: diagnosis.md's
REPEATS = 0.5  # share of moves: ours


class LossCause(StrEnum):
    """Why a rollout lost reward, if it did: what ended it; of several, the first of these."""

    INFRASTRUCTURE = "infrastructure"
    """The environment raised, timed out or had no session left, or the rollout function raised."""
    INVALID_REWARD = "invalid_reward"
    """No reward function gave it a number, or one gave NaN or an infinity."""
    PARSE_FAILURE = "parse_failure"
    """No action was found in its last answer."""
    TRUNCATION = "truncation"
    """Its last generation hit the token limit."""
    LOOP = "loop"
    """It did the same again and again, or the turns ran out before the environment was done."""
    NEVER_SUBMITTED = "never_submitted"
    """It ended without a single action in its environment."""
    WRONG_ANSWER = "wrong_answer"
    """It came to its end by itself: what it lost, if any, is for what it answered."""


class Dropped(StrEnum):
    """Why an asynchronous trainer left a rollout, or a part of it, out."""

    STALE = "stale"
    """The policy had gone on by more versions than `max_staleness`."""
    OVERSIZE = "oversize"
    """It did not fit into `token_budget`."""


class RunState(StrEnum):
    """Where a training job stands. A run that is `running` but has not been heard of for long is shown as died."""

    RUNNING = "running"
    """Begun, and not ended that anyone knows of."""
    FINISHED = "finished"
    """The trainer said that training ended."""
    FAILED = "failed"
    """An exception ended it, or the process ended before the trainer said so."""
    INTERRUPTED = "interrupted"
    """Somebody stopped it: Ctrl-C, or an exit in the middle."""


class SourceKind(StrEnum):
    """What a part of a run is, that is stored as text: see `RunSource`."""

    REWARD = "reward_function"
    """One that the trainer scores with; a reward model has a name and no text."""
    ROLLOUT = "rollout_function"
    """What makes the rollouts; of one that this package made, the user's functions in it."""
    ENVIRONMENT = "environment"
    """The class or function that makes environments."""
    CHAT_TEMPLATE = "chat_template"
    """The tokenizer's Jinja template, and the one that the trainer takes in its place where it does."""
    DATASET = "dataset"
    """That is trained on: what is known of it, one fact a line."""
    CHANGED_FILES = "changed_files"
    """Tracked files that differ from the commit: lines added, lines removed and name, one file a line."""
    CHANGES = "changes"
    """How they differ, as `git diff HEAD` says it."""
