"""Lists the figures of rollouts that the diagnosis compares: over time, within groups, and with the reward."""

from collections.abc import Callable
from typing import NamedTuple

from logs_ui.recorder.diagnosis.measures import lengths, sampled
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows


class Feature(NamedTuple):
    """Describes one figure of a rollout."""

    name: str  # a noun, to follow a number
    values: Callable[[Rows], Floats]  # returns (N,); NaN where it is not known


def _fact(name: str) -> Callable[[Rows], Floats]:
    return lambda rows: rows.facts[name]


TOKENS = "tokens per turn"
FEATURES = (
    Feature(TOKENS, lengths),
    Feature("sampled tokens", sampled),
    Feature("turns", lambda rows: rows.turns),
    Feature("seconds", lambda rows: rows.seconds),
    Feature("environment steps", _fact("env_steps")),
    Feature("failed actions", _fact("env_errors")),
    Feature("tool calls", _fact("tool_calls")),
    Feature("the share of distinct words", _fact("distinct_words")),
    Feature("the share of repeated word sequences", _fact("trigram_repeats")),
    Feature("the compression ratio of the text", _fact("compression")),
)
