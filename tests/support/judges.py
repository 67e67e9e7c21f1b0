"""Reward models that note what they give."""

from typing import Any

from tests.support.late import transformers


def judge_of(config: Any) -> tuple[Any, list[float]]:
    """Return a reward model named `Judge`, of random weights, and the list of all rewards that it gives."""
    rewards: list[float] = []

    class Judge(transformers.Qwen3ForSequenceClassification):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            rewards.extend(output.logits[:, 0].tolist())
            return output

    return Judge(config), rewards
