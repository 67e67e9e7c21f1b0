"""Defines the exceptions that users of logs-ui see. Each message is one line: what, why, and what to do."""


class LogsUIError(Exception):
    """Is the base class of all these errors; the command line prints its message and exits with 1."""


class DatabaseError(LogsUIError):
    """The database cannot be used: not writable, locked, damaged, disk full, ..."""


class NoDatabaseError(DatabaseError):
    """There is nothing to read: no file, or one without tables. Recording creates it."""


class RefusedDatabaseError(DatabaseError):
    """The path can never be used as it is: it is not a database, not one of logs-ui, or written by a newer release."""


class RunNotFoundError(LogsUIError):
    """No run, or more than one, has that id, prefix or name."""


class RolloutNotFoundError(LogsUIError):
    """No rollout has that id."""


class ImageNotFoundError(LogsUIError):
    """No image has that hash."""


class SettingsError(LogsUIError):
    """A setting of the diagnosis is invalid: not a number, out of range, or of an unknown diagnostic."""


class FilterError(LogsUIError):
    """A filter is misspelt or out of range.

    Attributes:
        field: The URL parameter at fault.
        written, meant: The misspelt name or value, and the known word nearest to it, which the message ends with. Both
            are None if none is near.
    """

    def __init__(self, field: str, message: str, *, written: str | None = None, meant: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.written = written
        self.meant = meant
