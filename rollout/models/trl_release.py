"""Which release of TRL is installed."""

import importlib.metadata


def trl_is_before(major: int, minor: int) -> bool:
    """Whether it is older than that release."""
    numbers = importlib.metadata.version("trl").split(".")[:2]
    return [int(number) for number in numbers] < [major, minor]
