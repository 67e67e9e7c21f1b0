"""Names the folder in which entries wait for a database, for those that write spools, and those that find one."""

import hashlib
import os
import re
from pathlib import Path

import platformdirs

from logs_ui.recorder.storage.address import Address, db_option

FOLDER_VARIABLE = "LOGS_UI_SPOOL"
"""Environment variable with a folder, in which each database gets a folder of its own."""


def spool_folder(address: Address) -> Path:
    """Return the folder of a database's spools, which need not exist: in LOGS_UI_SPOOL if that is set, else beside an
    SQLite file, or in this user's data folder for PostgreSQL. No password is part of its name.
    """
    chosen = os.environ.get(FOLDER_VARIABLE) or None
    if isinstance(address, Path):
        if chosen is None:
            return address.absolute().with_name(f"{address.name}-spool")
        identity, name = os.path.realpath(address), address.name
    else:
        identity = f"{address.host or ''}:{address.port or 5432}/{address.database or ''}" + "".join(
            f"?{key}={address.query[key]}" for key in ("host", "port", "dbname", "service") if key in address.query
        )
        name = re.sub(r"[^\w.-]+", "-", f"{address.host or 'postgres'}-{address.database or ''}", flags=re.ASCII)
    parent = (
        Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "spool"
        if chosen is None
        else Path(chosen).expanduser().absolute()
    )
    return parent / f"{name[:60]}-{hashlib.sha256(identity.encode(errors='surrogateescape')).hexdigest()[:12]}"


def what_to_do_first(address: Address) -> str:
    """Return a hint for a database that holds nothing yet: entries may wait for it on disk."""
    folder = spool_folder(address)
    if any(folder.glob("*.spool")):
        return f"Recorded rollouts wait in {folder}. Store them with: logs-ui db ingest{db_option(address)}"
    return "Record a training into it first, or name another database (--db, db= or LOGS_UI_DB)."
