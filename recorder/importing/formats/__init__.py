"""Holds the readers, one file per format."""

from functools import cache
from importlib import import_module

from logs_ui.recorder.importing.reader import Reader

_READERS: tuple[str, ...] = (
    "inspect_logs:InspectReader",
    "harbor:AtifReader",
    "eval_protocol:EvalProtocolReader",
    "mapped:MappedReader",
    "trackio:TrackioReader",
    "trl_completions:TrlReader",
    "verifiers:VerifiersReader",
    "otlp_traces:OtlpReader",
    "flat_dumps:NemoReader",
    "flat_dumps:ArtReader",
)
"""Each reader as `file:Class`, in the order in which they are asked; a format with clearer marks comes first."""


@cache
def readers() -> tuple[type[Reader], ...]:
    """Return the readers, in the order in which they are asked whether a file is theirs."""
    names = [reader.split(":") for reader in _READERS]
    classes = [getattr(import_module(f"{__name__}.{file}"), name) for file, name in names]
    return (*import_module(f"{__name__}.mapped").declared_readers(), *classes)
