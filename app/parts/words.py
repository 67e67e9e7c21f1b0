"""Shows the recorder's terms to readers: shorter, with an icon, a colour and an explanation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from logs_ui.recorder.diagnosis import report
from logs_ui.recorder.diagnosis.tables.training_outcome import Outcome
from logs_ui.recorder.diagnosis.waterfall import Cause
from logs_ui.recorder.queries import Dimension, GroupSort, Kind, Measure, RunSummary
from logs_ui.recorder.queries.filters.chips import FilterPart
from logs_ui.recorder.queries.filters.rollout_filter import ByColumn, Order, Scored, Sort, read_sort
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import LossCause, RunState, SentPrompt, Status, StopReason


@dataclass(frozen=True)
class Word:
    """Describes the display of a value, its tone (good, busy, warn, bad or quiet) and its meaning in one sentence."""

    text: str
    icon: str
    tone: str
    meaning: str


STATUSES = {
    Status.OK: Word("ok", "check", "good", "The rollout function returned, whatever the reward is."),
    Status.RUNNING: Word("running", "loader", "busy", "The rollout function was called and has not returned yet."),
    Status.ERROR: Word("error", "circle-x", "bad", "The rollout function or its environment raised an exception."),
    Status.ABORTED: Word("aborted", "power-off", "bad", "The process ended before the rollout did."),
}
SCORED = {
    Scored.YES: Word("scored", "check", "quiet", "The rollout has a reward."),
    Scored.AWAITING: Word("awaiting", "hourglass", "busy", "The rollout returned and is not scored yet."),
    Scored.NO: Word(
        "no reward",
        "circle-slash",
        "warn",
        "All reward functions returned None, the rollout raised, or the run ended before it was scored.",
    ),
}

STOP_REASONS = {
    StopReason.DONE: Word("done", "flag", "quiet", "The environment reported that the episode is over."),
    StopReason.STOP: Word(
        "stop", "check", "quiet", "The model ended its answer: without an environment, or without another tool call."
    ),
    StopReason.LENGTH: Word(
        "length", "scissors", "warn", "The last generation hit its limit, or a tool's answer had no room (no_room:1)."
    ),
    StopReason.TURN_LIMIT: Word(
        "turn limit", "repeat", "warn", "The rollout function stopped before the episode was over."
    ),
    StopReason.NO_ACTION: Word(
        "no action",
        "ban",
        "warn",
        "The last answer was not sent to the environment, usually because no action could be parsed.",
    ),
    StopReason.ENVIRONMENT_ERROR: Word("env error", "globe", "bad", "A call to the environment raised an exception."),
    StopReason.TIMEOUT: Word(
        "timeout", "hourglass", "bad", "A call to the environment or the model took too long and was abandoned."
    ),
    StopReason.AT_CAPACITY: Word("at capacity", "globe", "bad", "The environment's server had no free session."),
    StopReason.EXCEPTION: Word(
        "exception",
        "circle-x",
        "bad",
        "The rollout function raised, returned a value that the trainer cannot use, or its last model call failed.",
    ),
    StopReason.ABORTED: Word("aborted", "power-off", "bad", "The process ended before the rollout did."),
    StopReason.NOT_RECORDED: Word(
        "not recorded", "circle-help", "quiet", "The recorder saw nothing that shows why the rollout ended."
    ),
}

RUN_STATES = {
    RunState.RUNNING: Word("running", "dot", "good", "Sent a heartbeat within the last minute."),
    RunState.FINISHED: Word("finished", "", "quiet", "Ended normally."),
    RunState.FAILED: Word(
        "failed", "circle-x", "bad", "Ended by an exception, or its process exited before the training ended."
    ),
    RunState.INTERRUPTED: Word("interrupted", "power-off", "quiet", "Stopped by a user before its end."),
    "died": Word("crashed", "power-off", "bad", "No heartbeat for more than a minute, and no recorded end."),
}

EVIDENCE = {
    "scope": "Made inside a row_scope() of this row.",
    "context": "The call's prompt ids equal this row's tokens so far, and the sampled ids those that follow.",
    "strand": "Made in the thread or asyncio task that made calls of this row only.",
    "generation": "The environment's steps directly followed generations of this row only.",
    "tokens": "The sampled tokens occur, in order, in this row's completion.",
    "text": "The answers occur, in order, in this row's text. The server returned no token ids.",
    "order": "As many episodes (or asyncio tasks) as rows were left, matched in the order in which they began.",
    "observation": "The observations occur in the next prompts of this row only.",
    "reward": "The environment's reward was returned for this row only.",
    "action": "The actions occur in the answers of this row only.",
    "prompt": "The calls contain this prompt. The function did not return, so rows of a group cannot be told apart.",
    "position": "Matched by position: one step for each row, or a function that did not return.",
}
"""Meaning of the weakest evidence that a row's call attribution rests on."""

unattributed_said = report.unattributed_said

DROPPED = {
    "stale": Word(
        "dropped: stale",
        "circle-slash",
        "warn",
        "Not trained on, or only in part: older than max_staleness policy versions.",
    ),
    "oversize": Word(
        "dropped: oversize", "circle-slash", "warn", "Not trained on, or only in part: did not fit into token_budget."
    ),
    "filtered": Word("dropped: filtered", "circle-slash", "warn", "Not trained on: in the dump of all rollouts only."),
}
"""Rollouts that a trainer dropped."""

SENT_PROMPTS: dict[str, Word] = {
    SentPrompt.EXTENDED: Word(
        "more was sent", "list", "quiet",
        "The model was sent the dataset's prompt and more, such as a list of tools, which chat templates write. "
        "All of it is shown.",
    ),
    SentPrompt.OTHER: Word(
        "other prompt", "triangle-alert", "warn",
        "The model was sent another prompt than the dataset's, or not all of it. What was sent is shown. "
        "Check that rewards judge what was asked: a trainer hands functions the dataset's row.",
    ),
}  # fmt: skip
"""Rollouts whose prompt is not just the dataset's."""

OUTCOMES = {
    Outcome.TRAINED: Word("trained on", "check", "good", "Non-zero advantage, and tokens to train on."),
    Outcome.FAILED_GROUP: Word(
        "zero variance, not solved",
        "circle-x",
        "negative",
        "Advantage 0: all rewards of the group are equal, and the task was not solved.",
    ),
    Outcome.PASSED_GROUP: Word(
        "zero variance, solved",
        "flag",
        "positive",
        "Advantage 0: all rewards of the group are equal, and the task was solved.",
    ),
    Outcome.EQUAL_GROUP: Word(
        "zero variance", "circle-slash", "warn", "Advantage 0: all rewards of the group are equal."
    ),
    Outcome.NO_ADVANTAGE: Word(
        "zero advantage", "circle-slash", "quiet", "Advantage 0, although the rewards of the group differ."
    ),
    Outcome.TRUNCATED: Word(
        "masked: truncated", "scissors", "warn", "Truncated at the token limit, and mask_truncated_completions is on."
    ),
    Outcome.STALE: DROPPED["stale"],
    Outcome.OVERSIZE: DROPPED["oversize"],
    Outcome.FILTERED: DROPPED["filtered"],
    Outcome.UNSAMPLED: Word("nothing sampled", "ban", "warn", "The model sampled no token of the rollout."),
    Outcome.ERRORED: Word("errored", "circle-x", "bad", "Raised or was aborted before it was scored."),
    Outcome.RUN_ENDED: Word("never scored", "hourglass", "bad", "Returned; the run ended before it was scored."),
    Outcome.AWAITED: Word("awaiting", "loader", "busy", "Returned; its reward is not computed yet."),
    Outcome.NO_REWARD: Word("no reward", "circle-slash", "warn", "No reward function gave it a number."),
    Outcome.NOT_RECORDED: Word(
        "no advantage recorded", "circle-help", "quiet", "Scored; the advantage was not recorded."
    ),
}
"""The use of a rollout in training."""

DIMENSIONS = {str(dimension): dimension.value for dimension in Dimension} | {str(Dimension.STOP): "stop reason"}
MEASURES: dict[str, str] = {
    Measure.COUNT: "rollouts",
    Measure.REWARD: "mean reward",
    Measure.TOKENS: "mean tokens",
    Measure.TURNS: "mean turns",
    Measure.SECONDS: "mean duration",
    Measure.TRUNCATED: "share truncated",
    Measure.ERRORS: "share with an error",
    Measure.SOLVED: "share solved",
}

SORTS = {
    Sort.NEWEST: "newest first",
    Sort.OLDEST: "oldest first",
    Sort.LOWEST_REWARD: "lowest reward",
    Sort.HIGHEST_REWARD: "highest reward",
    Sort.LONGEST: "most tokens",
    Sort.SLOWEST: "slowest",
}


GROUP_KINDS = {
    Kind.MIXED: Word(
        "mixed",
        "dot",
        "good",
        "Rewards differ, and so does the outcome where it is known: the group gives a learning signal.",
    ),
    Kind.SAME_OUTCOME: Word(
        "same outcome",
        "activity",
        "quiet",
        "Rewards differ, but all are solved, or none is: only other terms, such as a length penalty, give a signal.",
    ),
    Kind.PASSED: Word("all passed", "check", "positive", "Zero variance, and all are solved: all advantages are 0."),
    Kind.LEVEL: Word(
        "all equal",
        "circle-slash",
        "quiet",
        "Zero variance; some are solved, or solved is not defined: all advantages are 0.",
    ),
    Kind.FAILED: Word("all failed", "circle-x", "negative", "Zero variance, and none is solved: all advantages are 0."),
    Kind.UNSCORED: Word("unscored", "hourglass", "quiet", "Fewer than two of its rollouts have a reward."),
}
GROUP_SORTS = {
    GroupSort.NEWEST: "newest first",
    GroupSort.LOWEST_MEAN: "lowest mean first",
    GroupSort.LARGEST_STD: "largest std first",
    GroupSort.DEAD_FIRST: "zero variance first",
}


def status(row: EvaluationRow, state: str) -> Word:
    """Return the word of a row's status: a rollout that returned may still await its reward, or get none. A run
    that is over, by its `state`, scores nothing more.
    """
    if row.status == Status.OK and row.reward is None:
        awaited = row.scored is None and state == RunState.RUNNING
        return SCORED[Scored.AWAITING if awaited else Scored.NO]
    return status_word(row.status)


def ending(row: EvaluationRow, state: str) -> Word:
    """Return the word of why a row ended if it has a reward, else that of its status."""
    is_scored = row.status == Status.OK and row.reward is not None
    return stop_reason(row.stop_reason) if row.stop_reason and is_scored else status(row, state)


def status_word(value: str) -> Word:
    return _of(STATUSES, value)


def stop_reason(value: str) -> Word:
    word = _of(STOP_REASONS, value)
    return replace(word, meaning=f"{word.meaning} In filters and DataFrames: {value}.")


def filter_part(part: FilterPart) -> str:
    """Return the text of a filter's chip, in the words of the table."""
    match part.name, part.value:
        case "status", str(value):
            return f"status: {status_word(value).text}"
        case "stop", str(value):
            return f"stop: {stop_reason(value).text}"
        case "scored", str(value):
            return SCORED[Scored(value)].text
    return part.label


ENDED = Word("ended normally", "", "quiet", "Nothing else ended it, or it is not recorded why it ended.")


def ended_by(cause: Cause) -> str:
    """Return the word of a cause for a rollout that may have lost nothing."""
    return ENDED.text if cause.id == LossCause.WRONG_ANSWER else cause.name


NOT_GIVEN = "The reward function returned None or NaN: it does not count."
ODD = "Not a finite number: TRL leaves NaN out of the sum, and an infinity breaks the training"

PARTING = (
    "The first turn at which the actions differ. If nothing was sent to the environment, tool calls are compared; "
    "without tool calls, the answers' texts. A rollout that ended earlier differs at its first missing turn."
)


def run_state(value: str) -> Word:
    return _of(RUN_STATES, value)


def trouble(run: Run) -> str:
    """Return what recording a run met first of all; empty if nothing went wrong."""
    if run.recorder_errors or run.dropped or run.dropped_payloads or run.last_recorder_error:
        return "Recorder errors"
    if run.unattributed_calls or run.unattributed_scoring:
        return "Unattributed calls"
    return "Sampling was not seen" if run.unseen_sampling else ""


def planned_steps(summary: RunSummary) -> int | None:
    """Return the planned number of steps; None if unknown, and for an evaluation, whose `max_steps` belong to another
    run. The trainer writes -1 for "by epochs".
    """
    if summary.is_evaluation:
        return None
    run = summary.run
    configured = run.config.get("max_steps")
    return run.max_steps or (configured if isinstance(configured, int) and configured > 0 else None)


def is_settled(row: EvaluationRow) -> bool:
    """Return True if nothing more will change. A row aborted only because its process went silent may come back."""
    return row.scored is not None or (row.status == Status.ABORTED and row.returned is not None)


def measure(name: str) -> str:
    """Return the name of a pivot's measure."""
    if name.startswith("stop:"):
        return f"share {_of(STOP_REASONS, name.removeprefix('stop:')).text}"
    return MEASURES.get(name, f"mean {name}")


def order(sort: Order) -> str:
    """Return the name of an order."""
    way = "descending" if isinstance(sort, ByColumn) and sort.descending else "ascending"
    return f"{sort.name}, {way}" if isinstance(sort, ByColumn) else SORTS[sort]


def rises(sort: Order) -> bool:
    """Return True if an order has the lowest on top."""
    return not sort.descending if isinstance(sort, ByColumn) else sort in {Sort.OLDEST, Sort.LOWEST_REWARD}


def after(sort: Order, offered: tuple[str, ...]) -> Order:
    """Return the order after a click on a column's head: its first, then its others in turn."""
    return read_sort(offered[(offered.index(sort.value) + 1) % len(offered)] if sort.value in offered else offered[0])


def _of(vocabulary: Mapping[Any, Word], value: str) -> Word:
    return vocabulary.get(value) or Word(value, "circle-help", "quiet", "Written by another version of logs-ui.")
