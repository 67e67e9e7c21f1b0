"""Everything that logs-ui raises at its users.

LogsUIError
├── DatabaseError        the database cannot be used: not one of ours, newer, not writable, disk full, ...
├── RunNotFoundError     no run has that id, prefix or name, or several have
├── RolloutNotFoundError no rollout has that id
└── FilterError          a filter that is misspelt or out of range

Each message is one line: what, why, and what to do.
"""


class LogsUIError(Exception):
    """Base of all; the command line prints its message and exits with 1."""


class DatabaseError(LogsUIError):
    """The database cannot be used."""


class RunNotFoundError(LogsUIError):
    """No run, or more than one, answers to what was asked."""


class RolloutNotFoundError(LogsUIError):
    """No rollout has that id."""


class FilterError(LogsUIError):
    """A filter is misspelt or out of range.

    Attributes:
        field: the URL parameter at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
