"""Defines the exceptions that users of logs-ui see. Each message is one line: what, why, and what to do."""


class LogsUIError(Exception):
    """Is the base class of all these errors; the command line prints its message and exits with 1.

    Examples:
        The other errors are caught in the same way, the more special ones first:

        >>> from logs_ui.recorder import DatabaseError, LogsUIError, load_run
        >>> try:
        ...     rows = load_run("latest", db="runs.db")
        ... except DatabaseError as error:
        ...     print("Nothing was recorded:", error)
        ... except LogsUIError as error:  # such as RunNotFoundError
        ...     print(error)
        Nothing was recorded: There is no database at runs.db. ...
    """


class DatabaseError(LogsUIError):
    """The database cannot be used: not writable, locked, damaged, disk full, ... See the example of `LogsUIError`."""


class NoDatabaseError(DatabaseError):
    """There is nothing to read: no file, or one without tables. Recording creates it."""


class RefusedDatabaseError(DatabaseError):
    """The path can never be used as it is: it is not a database, not one of logs-ui, or written by a newer release."""


class RunNotFoundError(LogsUIError):
    """No run, or more than one, has that id, prefix or name. See the example of `LogsUIError`."""


class RolloutNotFoundError(LogsUIError):
    """No rollout has that id. It is caught as in the example of `LogsUIError`."""


class ImageNotFoundError(LogsUIError):
    """No image has that hash. See the example of `LogsUIError`."""


class SettingsError(LogsUIError):
    """A setting of the diagnosis is invalid: not a number, out of range, or of an unknown diagnostic.

    Examples:
        >>> from logs_ui.recorder import Settings, SettingsError
        >>> try:
        ...     Settings(max_reward="high")
        ... except SettingsError as error:
        ...     print(error)
        max_reward must be a finite number, not 'high'.
    """


class FilterError(LogsUIError):
    """A filter is misspelt or out of range.

    Attributes:
        field: The URL parameter at fault.
        written, meant: The misspelt name or value, and the known word nearest to it, which the message ends with. Both
            are None if none is near.

    Examples:
        >>> from logs_ui.recorder import FilterError, load_run, start_run
        >>> start_run(db="runs.db").finish()
        >>> try:
        ...     load_run("latest", db="runs.db", where="status=eror")
        ... except FilterError as error:
        ...     print(error.field, error.written, error.meant)
        status eror error
    """

    def __init__(self, field: str, message: str, *, written: str | None = None, meant: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.written = written
        self.meant = meant
