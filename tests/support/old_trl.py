"""Makes tool calls work with TRL 0.29, which has Qwen3's chat template in other words, and reads calls by
a `response_schema` of the tokenizer's. transformers knows those up to 5.14. From 5.15 on it has its `response_template`
in their place, which TRL 0.29 does not set: there it fails at the first call, with "This tokenizer does not have a
`response_template`".
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

IS_OLD = not (Path(find_spec("trl").origin).parent / "chat_templates").is_dir()  # type: ignore[union-attr, arg-type]

_THINKS = r"""
        {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' """
_THINKS = _THINKS.strip("\n") + r"+ content.lstrip('\n') }}"
_ENDS = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"


@contextmanager
def templates() -> Iterator[None]:
    """Lets `examples.tiny_model` find its template in TRL 0.29, too."""
    with pytest.MonkeyPatch.context() as patched:
        if IS_OLD:
            patched.setattr("examples.tiny_model.template", lambda _: _instruct())
        yield


def readable(tokenizer: Any) -> Any:
    """Lets TRL 0.29 read the calls that its model makes; newer releases know the template."""
    if IS_OLD:
        tokenizer.response_schema = importlib.import_module("trl.chat_template_utils").qwen3_schema
    return tokenizer


def _instruct() -> str:
    """Return TRL 0.29's Qwen3 template in the form of later releases: no thinking, marks around answers."""
    text: str = importlib.import_module("trl.chat_template_utils").qwen3_training_chat_template
    assert text.count(_THINKS) == text.count(_ENDS) == 1
    said = "        {{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- content }}"
    return text.replace(_THINKS, said).replace(_ENDS, _ENDS.replace("\n", "\n{%- endgeneration %}\n", 1))
