"""Rollouts written straight into a database, for tests and pictures that need many and no training."""
