"""Passes a rollout of `OpenRun` to another process, with what was recorded of it so far.

The process that pickles it packs the rollout as a job, as the helper process gets them; the other one unpacks the job
and goes on with a call of its own.
"""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logs_ui.recorder.capture import instruments
from logs_ui.recorder.capture.calls import CallRecords
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.jobs import ColumnsJob, FinishedJob
from logs_ui.recorder.rows.rollout_call import OpenCall, RolloutCall, RowOptions
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.file_system import network_kind


def pack_open(call: OpenCall, output: Output | None, metadata: bytes, end_columns: dict[str, Any]) -> list[bytes]:
    """Return a rollout, with all that was recorded of it, for a process that goes on with it."""
    # The options hold functions of the user, which have no form on the wire: `OpenRollout.__reduce__` pickles them.
    sent = call.carrying(call.so_far(), texts=True)
    sent.options = RowOptions()
    return Wire().frames(FinishedJob(sent, output, metadata, end_columns, 0))[0]


def pack_ended(call: OpenCall) -> list[bytes]:
    """Return a rollout without its records, for a process that may only score it."""
    sent = call.carrying(CallRecords(), texts=False)
    sent.options, sent.source = RowOptions(), None
    return Wire().frames(ColumnsJob(sent, []))[0]


def unpack(frames: list[bytes], options: RowOptions | None) -> tuple[OpenCall, Any]:
    """Return what `pack_open` or `pack_ended` packed: the call, and the job. `options` is None if the rollout may only
    be scored here.
    """
    wire = Wire()
    job: Any = [wire.job(frame) for frame in frames][-1]
    call = OpenCall(**{name: getattr(job.call, name) for name in RolloutCall.__struct_fields__})
    call.settled, call.options = options is None, options or RowOptions()
    if options is not None:
        call.collector.go_on_from(job.call.calls)
    return call, job


def reach_writer(address: Address, host: str) -> Writer | None:
    """Return the writer of a database that a process of `host` records into; None, and a log line, if there is none."""
    with guard("taking over a rollout"):
        try:
            check_reachable(address, host)
            writer = writer_for(address)
            instruments.install()
        except DatabaseError as error:
            guard.caught("taking over a rollout", error)
            return None
        return writer
    return None


def unreachable_writer(address: Address) -> Any:
    """Return a writer that takes everything, and writes nothing."""
    return SimpleNamespace(put=lambda _: None, flush=lambda _: False, address=address)


def check_reachable(database: Address, host: str) -> None:
    """Raise a DatabaseError if the database is a file on a disk of `host`, and this is another machine."""
    if isinstance(database, Path) and host != socket.gethostname() and network_kind(database) is None:
        raise DatabaseError(
            f"This rollout was started on {host}, in the SQLite file {database}, which {socket.gethostname()} cannot "
            "reach. Record into PostgreSQL: db= or LOGS_UI_DB"
        )
