"""Attaches the recorder to other libraries, one file per library."""

from logs_ui.recorder.capture.instruments import (
    concurrency,
    litellm,
    openai,
    openenv,
    transformers,
    trl,
    trl_vllm,
    vllm,
)
from logs_ui.recorder.guard import guard


def install() -> None:
    """Attach to each library, now or when it is imported."""
    with guard("preparing to attach"):
        for library in (trl, transformers, openai, litellm, openenv, concurrency, trl_vllm, vllm):
            library.install()
