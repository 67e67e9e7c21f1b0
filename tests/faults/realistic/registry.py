"""All runs of the second shelf."""

from tests.faults.realistic import Realistic, agents, questions, worlds

RUNS: tuple[Realistic, ...] = (*agents.RUNS, *questions.RUNS, *worlds.RUNS)
