"""Assign by evidence that makes a row likely, where nothing proves it; `thresholds.py` says how likely.

We also tried constraint propagation over necessary conditions. It was worse: over the patterns of
`benchmarks/attribution.py` (two seeds) 16,203 of 18,878 calls that are right today were found, 377 instead of 240 were
wrong, 69 patterns were worse. No condition is necessary: a fallback is in no answer, an option's index in another
row's.
"""
