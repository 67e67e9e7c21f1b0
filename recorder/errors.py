"""Everything that logs-ui raises at its users.

LogsUIError
├── DatabaseError            the database cannot be used: not writable, locked, damaged, disk full, ...
│   ├── NoDatabaseError      there is none yet, or it is empty
│   └── RefusedDatabaseError it never can be: not one of ours, newer, a folder, ...
├── RunNotFoundError         no run has that id, prefix or name, or several have
├── RolloutNotFoundError     no rollout has that id
├── ImageNotFoundError       no image has that hash
├── SettingsError            a setting of the diagnosis that cannot be
└── FilterError              a filter that is misspelt or out of range

Each message is one line: what, why, and what to do.
"""


class LogsUIError(Exception):
    """Base of all; the command line prints its message and exits with 1."""


class DatabaseError(LogsUIError):
    """The database cannot be used."""


class NoDatabaseError(DatabaseError):
    """There is nothing to read: no file, or one without tables. Recording makes it."""


class RefusedDatabaseError(DatabaseError):
    """The path can never be used as it is, however often it is tried: not a database, somebody else's, or newer."""


class RunNotFoundError(LogsUIError):
    """No run, or more than one, answers to what was asked."""


class RolloutNotFoundError(LogsUIError):
    """No rollout has that id."""


class ImageNotFoundError(LogsUIError):
    """No image has that hash."""


class SettingsError(LogsUIError):
    """A setting of the diagnosis that cannot be: no number, an unknown diagnostic, ..."""


class FilterError(LogsUIError):
    """A filter is misspelt or out of range.

    Attributes:
        field: the URL parameter at fault.
        written, meant: what is misspelt, a parameter's name or its value, and the known word nearest to it, which the
            message ends with; None where none is near.
    """

    def __init__(self, field: str, message: str, *, written: str | None = None, meant: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.written = written
        self.meant = meant
