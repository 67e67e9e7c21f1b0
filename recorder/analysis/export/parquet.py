"""Writes rollouts to Parquet, by Arrow tables that are made column by column.

pyarrow is imported where it is used, because recording, inside the training process, does not need it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import orjson

from logs_ui.recorder.analysis.frames import ARRAYS, Rows, arrow_types
from logs_ui.recorder.queries.rollout_columns import Column, Kind

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[[Rows], None]

_OWN = frozenset({"error", "note", "messages", "actions", "metadata"})
"""Texts that few rollouts share: a Parquet dictionary would save nothing."""


@contextmanager
def parquet_writer(file: BinaryIO, columns: tuple[Column, ...], group_bytes: int = 0) -> Iterator[Write]:
    """Yield a function that writes rows. Calls are collected into row groups of at least `group_bytes` of Arrow data.

    pyarrow keeps some 100 kB per row group until the file is closed, so a large run needs large groups.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns)
    leaves = {
        column.name: f"{column.name}.list.element" if column.kind in ARRAYS else column.name for column in columns
    }
    shared = [leaf for name, leaf in leaves.items() if name not in _OWN]
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=shared) as writer:

        def write(rows: Rows) -> None:
            waiting.append(_table(rows, columns, schema))
            if sum(table.nbytes for table in waiting) >= group_bytes:
                write_group()

        def write_group() -> None:
            writer.write_table(pa.concat_tables(waiting))
            waiting.clear()

        yield write
        if waiting:
            write_group()


def _schema(columns: tuple[Column, ...]) -> "pa.Schema":
    import pyarrow as pa

    types = arrow_types() | {
        Kind.NESTED: pa.string(),
        Kind.IDS: pa.list_(pa.int32()),
        Kind.LOGPROBS: pa.list_(pa.float32()),
        Kind.MASK: pa.list_(pa.uint8()),
    }
    return pa.schema([pa.field(column.name, types[column.kind]) for column in columns])


def _table(rows: Rows, columns: tuple[Column, ...], schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    arrays = []
    for column, field in zip(columns, schema, strict=True):
        values = [row[column.name] for row in rows]
        if column.kind == Kind.NESTED:
            values = [
                None if value is None else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) for value in values
            ]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
