"""Compares the installed release of TRL."""

import importlib.metadata


def trl_is_before(major: int, minor: int) -> bool:
    """Returns True if the installed release is older than that one."""
    numbers = importlib.metadata.version("trl").split(".")[:2]
    return [int(number) for number in numbers] < [major, minor]
