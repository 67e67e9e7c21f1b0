"""Makes text of models, servers and environments safe for one line of a log or a terminal."""

from logs_ui.recorder.snapshot import visible


def one_line(error: BaseException) -> str:
    """Return an exception's type and message."""
    return visible(f"{type(error).__name__}: {error}")
