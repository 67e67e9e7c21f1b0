"""Defines the thresholds of inference, each with its unit and its reason. All were set on the patterns of the tests."""

CHANCE = 1 / 500
"""Probability. What is less likely than this by accident counts as evidence: one wrong batch in some 500."""

MOST = 0.75
"""Share of values. Actions come from answers, and observations go into contexts, if so many are found there: parsers
fail on some answers, and long observations are cut.
"""

NEARLY_ALL = 0.9
"""Share of episodes that must find a row of their own before actions or observations tell rows apart: an index into a
list of options occurs in some row's answer by accident, but not in nearly every one's.
"""

SAMPLED_VALUES = 8
"""Values of one JSON path to look for in texts, before the path counts as one that has nothing to do with them."""

SAMPLED_EPISODES = 32
"""Episodes to check when verifying an assignment made by other evidence."""

LEAST_CHARACTERS = 8
"""Characters that an observation needs to be found in no context by accident."""

DISTINCT_REWARDS = 3
"""Different rewards in a batch from which on they tell rows apart; so do any but -1, 0 and 1, which most rows share."""

STANDARD_DEVIATIONS = 3.5
"""Distance above the mean of shuffled pairings: the normal distribution's chance of it is about 1 in 4,000."""

FEW_ROWS = 12
"""Rows up to which the best pairing is not far above the others; it must then be better than each of many shuffles."""

SHUFFLES_OF_FEW = 500
"""Shuffles of few rows: the inverse of `CHANCE`."""

SHUFFLES = 20, 200
"""Least and most shuffles of more rows."""

LOOKUPS = 40_000
"""Environment calls to look at in all shuffles of one batch, about 0.1 s: large batches need fewer shuffles, too."""
