"""Modules that take seconds to import, each imported where a test first uses one: every process collects every file."""

import gc
import inspect
import sys
from importlib import import_module
from typing import Any
from unittest.mock import patch


class _Late:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of its own in all that a test file has
            raise AttributeError(attribute)
        before = len(sys.modules)
        if "openenv" in self._name and "gradio" not in sys.modules:
            # Which OpenEnv imports. For each of 80 components whose file is known it looks for a stub that is to be
            # written, which takes half of its seven seconds.
            with patch.object(inspect, "getfile", side_effect=OSError):
                import_module("gradio")
        value = getattr(import_module(self._name), attribute)
        if len(sys.modules) > before + 100:
            gc.collect()
            gc.freeze()  # each training begins with a collection, which would look at all that was imported
        return value


accelerate: Any = _Late("accelerate")
async_grpo: Any = _Late("trl.experimental.async_grpo")
async_grpo_trainer: Any = _Late("trl.experimental.async_grpo.async_grpo_trainer")
async_rollout_worker: Any = _Late("trl.experimental.async_grpo.async_rollout_worker")
datasets: Any = _Late("datasets")
harness: Any = _Late("openenv.core.harness")
llm_client: Any = _Late("openenv.core.llm_client")
online_dpo: Any = _Late("trl.experimental.online_dpo")
mcp_types: Any = _Late("openenv.core.env_server.mcp_types")
openenv: Any = _Late("openenv.core")
torch: Any = _Late("torch")
transformers: Any = _Late("transformers")
trl: Any = _Late("trl")

tiny_model: Any = _Late("examples.tiny_model")
miniwob_env: Any = _Late("examples.miniwob_env")
guess_env: Any = _Late("logs_ui.rollout.demo.guess_env")
guess_model: Any = _Late("logs_ui.rollout.demo.guess_model")
guess_rollout: Any = _Late("logs_ui.rollout.demo.guess_rollout")
