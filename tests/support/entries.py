"""Numbers of entries, as tests write them."""

from logs_ui.recorder.storage.changes import EntryNumber


def nth(number: int) -> EntryNumber:
    """The entry of that number, of a process that writes itself."""
    return EntryNumber(n=number)
