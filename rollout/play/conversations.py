"""Prompts that are texts, as the user's messages: servers of chat models make that of them, so a training does too."""

from collections.abc import Mapping, Sequence
from typing import Any

from logs_ui.rollout.play.chat_template import Message, Prompt
from logs_ui.rollout.play.evaluation_dataset import Prompts


class Conversations(Prompts):
    """A dataset's, all of them messages."""

    def rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """As of `Prompts`."""
        return [_row(row) for row in super().rows(limit)]

    def for_trainer(self) -> Any:
        """As of `Prompts`."""
        if not hasattr(self.source, "column_names"):
            return Prompts(self.rows()).for_trainer()
        first: dict[str, Any] = next(iter(self.source), {})
        return self.source.map(_row) if isinstance(first.get("prompt"), str) else self.source


def conversation(prompt: Prompt) -> Sequence[Message]:
    """A dataset's prompt, or one of a trainer's whose dataset is another."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "prompt": conversation(row["prompt"])}
