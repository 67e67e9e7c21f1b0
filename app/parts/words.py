"""The recorder's words as the pages say them: shorter, with an icon, and explained where the pointer rests."""

from dataclasses import dataclass, replace

from logs_ui.recorder.diagnosis import report
from logs_ui.recorder.diagnosis.tables.training_outcome import Outcome
from logs_ui.recorder.diagnosis.waterfall import Cause
from logs_ui.recorder.queries import Dimension, GroupSort, Kind, Measure, RunSummary
from logs_ui.recorder.queries.filters.filter_chips import FilterPart
from logs_ui.recorder.queries.filters.rollout_filter import Scored, Sort
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import LossCause, RunState, Status, StopReason


@dataclass(frozen=True)
class Word:
    """How a value is shown.

    Attributes:
        tone: class of its colour: good, busy, warn, bad or quiet.
        meaning: one sentence.
    """

    text: str
    icon: str
    tone: str
    meaning: str


STATUSES = {
    Status.OK: Word("ok", "check", "good", "The rollout function returned. That says nothing of the reward."),
    Status.RUNNING: Word("running", "loader", "busy", "The rollout function has been called and has not returned."),
    Status.ERROR: Word("error", "circle-x", "bad", "The rollout function, or the environment under it, raised."),
    Status.ABORTED: Word("aborted", "power-off", "bad", "The process ended before the rollout did."),
}
SCORED = {
    Scored.YES: Word("scored", "check", "quiet", "It has a reward."),
    Scored.AWAITING: Word("awaiting", "hourglass", "busy", "It returned, and has not been scored yet."),
    Scored.NO: Word(
        "not scored",
        "circle-slash",
        "warn",
        "It has no reward: all reward functions returned None, it raised, or the run ended before it was scored.",
    ),
}

STOP_REASONS = {
    StopReason.DONE: Word("done", "flag", "quiet", "The environment said that the episode is over."),
    StopReason.STOP: Word("stop", "check", "quiet", "The model ended its answer, and no environment was involved."),
    StopReason.LENGTH: Word("length", "scissors", "warn", "The last generation hit its token limit: it is truncated."),
    StopReason.TURN_LIMIT: Word(
        "turn limit", "repeat", "warn", "The environment would have gone on; the rollout function did not."
    ),
    StopReason.NO_ACTION: Word(
        "no action",
        "ban",
        "warn",
        "The last answer was never sent to the environment: most often no action could be parsed.",
    ),
    StopReason.ENVIRONMENT_ERROR: Word("env error", "globe", "bad", "A call to the environment raised."),
    StopReason.TIMEOUT: Word(
        "timeout", "hourglass", "bad", "A call to the environment or the model took too long, and was given up."
    ),
    StopReason.AT_CAPACITY: Word(
        "at capacity", "globe", "bad", "The environment's server had no session left: it serves fewer at once."
    ),
    StopReason.EXCEPTION: Word(
        "exception",
        "circle-x",
        "bad",
        "The rollout function raised, returned what the trainer cannot take, or its last call to the model failed.",
    ),
    StopReason.ABORTED: Word("aborted", "power-off", "bad", "The process ended in the middle."),
    StopReason.NOT_RECORDED: Word("not recorded", "circle-help", "quiet", "Nothing was seen that would tell."),
}

RUN_STATES = {
    RunState.RUNNING: Word("running", "dot", "good", "Heard of within the last minute."),
    RunState.FINISHED: Word("finished", "", "quiet", "It said that it ended."),
    RunState.FAILED: Word("failed", "circle-x", "bad", "An exception ended it, or its process ended first."),
    RunState.INTERRUPTED: Word("interrupted", "power-off", "quiet", "Somebody stopped it before its end."),
    "died": Word(
        "died", "power-off", "bad", "It never said that it ended, and was not heard of for more than a minute."
    ),
}

EVIDENCE = {
    "scope": "Made inside this row's own scope.",
    "context": "The model was given exactly this row's tokens so far, and sampled exactly those that follow.",
    "strand": "Made in the task or thread of this row's calls, and of no other's.",
    "generation": "The environment's steps came right after generations of this row alone.",
    "tokens": "What was sampled stands, in order, in this row's completion.",
    "text": "What was answered stands, in order, in this row's text: the server returned no token ids.",
    "order": "As many episodes, or tasks, as rows were left, in the order in which they began.",
    "observation": "What the environment showed stands in what the model was given next in this row alone.",
    "reward": "The reward that the environment gave was returned for this row alone.",
    "action": "What was sent to the environment stands in the answers of this row alone.",
    "prompt": "What the model was given holds this prompt. The function did not return: rows of a group are alike.",
    "position": "By position alone: one step for each row, or a function that did not return.",
}
"""What the weakest evidence that a row's calls rest on means."""

unattributed_said = report.unattributed_said

DROPPED = {
    "stale": Word(
        "dropped: stale",
        "circle-slash",
        "warn",
        "Not trained on, or only in part: the policy had gone on by more versions than max_staleness.",
    ),
    "oversize": Word(
        "dropped: oversize", "circle-slash", "warn", "Not trained on, or only in part: it did not fit token_budget."
    ),
}
"""What became of a rollout in the trainer's process, where that trains while others are made."""

OUTCOMES = {
    Outcome.TRAINED: Word("trained on", "check", "good", "Its advantage is not 0, and it has tokens to train on."),
    Outcome.FAILED_GROUP: Word(
        "dead group, not solved",
        "circle-x",
        "negative",
        "Its advantage is 0: all of its group were rewarded alike, below what counts as solved.",
    ),
    Outcome.PASSED_GROUP: Word(
        "dead group, solved",
        "flag",
        "positive",
        "Its advantage is 0: all of its group were rewarded alike, and solved their task.",
    ),
    Outcome.NO_ADVANTAGE: Word(
        "zero advantage", "circle-slash", "quiet", "Its advantage is 0, though the rewards of its group differ."
    ),
    Outcome.TRUNCATED: Word(
        "masked: truncated", "scissors", "warn", "Cut off at the token limit, and mask_truncated_completions is on."
    ),
    Outcome.STALE: DROPPED["stale"],
    Outcome.OVERSIZE: DROPPED["oversize"],
    Outcome.UNSAMPLED: Word("nothing sampled", "ban", "warn", "None of its tokens was sampled by the model."),
    Outcome.NOTHING_RETURNED: Word(
        "nothing returned", "power-off", "bad", "It ended before it returned anything to train on."
    ),
    Outcome.RUN_ENDED: Word("never scored", "hourglass", "bad", "The run ended before it was scored."),
    Outcome.AWAITED: Word("awaiting", "loader", "busy", "It returned, and awaits its reward."),
    Outcome.NOT_RECORDED: Word("no advantage recorded", "circle-help", "quiet", "Its advantage is not recorded."),
}
"""What training made of a rollout."""

DIMENSIONS = {
    Dimension.TASK: "task",
    Dimension.STEP: "step",
    Dimension.EVAL: "eval",
    Dimension.STOP: "stop reason",
    Dimension.STATUS: "status",
    Dimension.MODE: "mode",
    Dimension.TAG: "tag",
    Dimension.MODEL: "model",
    Dimension.AGE: "policy age",
}
MEASURES = {
    Measure.COUNT: "rollouts",
    Measure.REWARD: "mean reward",
    Measure.TOKENS: "mean tokens",
    Measure.TURNS: "mean turns",
    Measure.SECONDS: "mean time",
    Measure.TRUNCATED: "share truncated",
    Measure.ERRORS: "share of errors",
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
    Kind.MIXED: Word("mixed", "dot", "good", "Rewards differ: this group teaches."),
    Kind.PASSED: Word(
        "all passed", "check", "positive", "All rewards are alike, at the run's highest: its advantages are 0."
    ),
    Kind.LEVEL: Word(
        "all alike",
        "circle-slash",
        "quiet",
        "All rewards are alike, between the run's lowest and highest: its advantages are 0.",
    ),
    Kind.FAILED: Word(
        "all failed",
        "circle-x",
        "negative",
        "All rewards are alike, at 0 or less, or at the run's lowest: its advantages are 0.",
    ),
    Kind.UNSCORED: Word("not scored", "hourglass", "quiet", "Fewer than two of its rollouts have a reward."),
}
GROUP_SORTS = {
    GroupSort.NEWEST: "newest first",
    GroupSort.LOWEST_MEAN: "lowest mean first",
    GroupSort.LARGEST_SPREAD: "largest spread first",
    GroupSort.DEAD_FIRST: "dead first",
}


def status(row: EvaluationRow, state: str) -> Word:
    """What a row's status column says: a rollout that returned may still await its reward, or get none.

    Args:
        row: any.
        state: of its run: one that is over scores nothing more.
    """
    if row.status == Status.OK and row.reward is None:
        awaited = row.scored is None and state == RunState.RUNNING
        return SCORED[Scored.AWAITING if awaited else Scored.NO]
    return status_word(row.status)


def status_word(value: str) -> Word:
    return next((word for name, word in STATUSES.items() if name == value), _unknown(value))


def stop_reason(value: str) -> Word:
    word = next((word for name, word in STOP_REASONS.items() if name == value), _unknown(value))
    return replace(word, meaning=f"{word.meaning} In filters and DataFrames: {value}.")


def filter_part(part: FilterPart) -> str:
    """What the chip of a filter's part says: the same words as the table."""
    match part.name, part.value:
        case "status", str(value):
            return f"status: {status_word(value).text}"
        case "stop", str(value):
            return f"stop: {stop_reason(value).text}"
        case "scored", str(value):
            return SCORED[Scored(value)].text
    return part.label


def ended_by(cause: Cause) -> str:
    """What ended a rollout, of which it is not said whether it lost anything."""
    return "came to its end" if cause.id == LossCause.WRONG_ANSWER else cause.name


NOT_GIVEN = "This reward function gave nothing: it does not count."

PARTING = (
    "The first turn whose actions differ: what was sent to the environment; of a turn that sent nothing the tool "
    "calls, and without these the text of the answer. Where one has ended, it is the turn that it lacks."
)


def group_kind(value: str) -> Word:
    return GROUP_KINDS[Kind(value)]


def run_state(value: str) -> Word:
    return next((word for name, word in RUN_STATES.items() if name == value), _unknown(value))


def planned_steps(summary: RunSummary) -> int | None:
    """How many steps its training is to have; None where the trainer did not say, and of an evaluation, whose
    `max_steps` are another's. The trainer writes -1 for "by epochs".
    """
    if summary.is_evaluation:
        return None
    run = summary.run
    configured = run.config.get("max_steps")
    return run.max_steps or (configured if isinstance(configured, int) and configured > 0 else None)


def is_settled(row: EvaluationRow) -> bool:
    """Whether nothing more is to come for it. A process that fell silent, and told of no end, may be heard of again."""
    return row.scored is not None or (row.status == Status.ABORTED and row.returned is not None)


def after(sort: Sort, offered: tuple[str, ...]) -> Sort:
    """The order that a click on a column's head asks for: its first, then its others in turn."""
    if sort not in offered:
        return Sort(offered[0])
    return Sort(offered[(offered.index(sort) + 1) % len(offered)]) if len(offered) > 1 else Sort.NEWEST


def _unknown(value: str) -> Word:
    return Word(value, "circle-help", "quiet", "Written by another version of logs-ui.")
