"""Recomputes what a trainer said of its rollouts: pure functions over recorded rows, in numpy.

`recorded_run.py` gathers the rows, with the faults that `token_faults.py` finds in their ids. Each check compares two
recorded things, and `run_audit.py` has all checks, the worst first.
"""
