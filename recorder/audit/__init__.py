"""Recomputes what a trainer said of its rollouts: pure functions over recorded rows, in numpy.

`recorded_run.py` gathers the rows, with facts that `token_facts.py` finds in their ids; each check holds
one thing against another, and `run_audit.py` has all of them, the worst first.
"""
