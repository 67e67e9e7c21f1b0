"""Turns prompts that are texts into user messages, in trainings as servers of chat models do in evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

from logs_ui.rollout.play.chat_template import Message, Prompt
from logs_ui.rollout.play.evaluation_dataset import Prompts


class Conversations(Prompts):
    """A dataset's prompts, all of them as messages."""

    def rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Does the same as `Prompts.rows`."""
        return [_row(row) for row in super().rows(limit)]

    def for_trainer(self) -> Any:
        """Does the same as `Prompts.for_trainer`."""
        if not hasattr(self.source, "column_names"):
            return Prompts(self.rows()).for_trainer()
        first: dict[str, Any] = next(iter(self.source), {})
        return self.source.map(_row) if isinstance(first.get("prompt"), str) else self.source


def conversation(prompt: Prompt) -> Sequence[Message]:
    """Returns the messages of one prompt, from this dataset or from a trainer that has another."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "prompt": conversation(row["prompt"])}
