"""Packs the payload of one row, as tests store it themselves."""

from typing import Any

from logs_ui.recorder.storage.payload import Tokens, pack, unpacked_content, unpacked_tokens


def pack_content(content: dict[str, Any]) -> bytes:
    """Encode and compress content completely."""
    return pack([unpacked_content(content)])[0]


def pack_tokens(tokens: Tokens) -> bytes:
    return pack([unpacked_tokens(tokens)])[0]
