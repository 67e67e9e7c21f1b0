"""MiniWoB++'s web pages once more, as sessions of OpenEnv's harness: the model calls tools; `harness_rollout_func()`.

$(.ci/environments miniwob) -m examples.miniwob_server --port 8000
python -m examples.harness --url http://127.0.0.1:8000
logs-ui serve --db examples.db
"""

from typing import Any

from datasets import Dataset
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    HarnessRunLimits,
    ResourceSession,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    ToolResult,
)
from trl import GRPOTrainer

from examples.browsergym import PAGES, TASKS, observe
from examples.miniwob_env import BrowserGymAction, BrowserGymEnv
from examples.settings import arguments, config
from examples.tiny_model import Lesson, call, say, tiny_model
from logs_ui.recorder import record
from logs_ui.rollout import environment_reward, harness_rollout_func

SYSTEM = "Call click with the number of an element."


def click(bid: str) -> str:
    """
    Clicks an element of the page.

    Args:
        bid: The number that stands before it.

    Returns:
        The page as it is then.
    """
    raise NotImplementedError  # what the model is shown; the session sends it to the browser


CLICK = Tool(
    name="click",
    description="Clicks an element of the page.",
    input_schema={
        "type": "object",
        "properties": {"bid": {"type": "string", "description": "The number that stands before it."}},
        "required": ["bid"],
    },
)


class Pages(ResourceSessionFactory):  # type: ignore[misc]  # openenv carries no types
    """A browser of its own for each rollout."""

    def __init__(self, url: str) -> None:
        self._url = url

    def create(self, task: str, seed: int | None = None, episode_id: str | None = None) -> ResourceSession:
        """Opens the task's page."""
        return StepEnvSessionAdapter(
            BrowserGymEnv(base_url=self._url),
            task=task,
            seed=seed,
            episode_id=episode_id,
            tool_specs=[CLICK],
            action_builder=lambda _, arguments: BrowserGymAction(action_str=f"click('{arguments['bid']}')"),
            initial_messages_builder=lambda result, _: [
                say("system", SYSTEM),
                say("user", observe(result.observation)),
            ],
            tool_result_builder=heard,
            reset_kwargs={"task": task},
        )


def heard(name: str, arguments: dict[str, Any], result: Any, state: Any) -> ToolResult:  # noqa: ARG001
    """Returns the model's next message after a click."""
    return ToolResult(observe(result.observation), done=bool(result.done), metadata={"reward": result.reward})


def lessons() -> list[Lesson]:
    """Teaches the model how to call the tool, and nothing about what is right."""
    said: list[Lesson] = []
    for goal, elements in PAGES.items():
        for bid in ("12", "13", "14"):
            asked = [say("system", SYSTEM), say("user", f"{goal}\n\t{elements}")]
            said.append(([*asked, call("click", bid=bid)], [click]))
    return said


def main() -> None:
    """Trains, recorded."""
    chosen = arguments(__doc__, url="of the MiniWoB++ server")
    model, tokenizer = tiny_model(lessons(), steps=200)
    rollout_func = harness_rollout_func(
        session_factory=Pages(chosen.url),
        limits=HarnessRunLimits(max_turns=2, sampling={"max_tokens": 40, "temperature": 1.0}),
        tasks=TASKS,
        missing_reward=0.0,
        concurrency=4,
        max_completion_tokens=192,
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=[environment_reward],
        args=config(chosen.steps),
        train_dataset=Dataset.from_list([{"prompt": [say("user", "Use the page.")]}] * 64),
        processing_class=tokenizer,
        rollout_func=record(rollout_func, eval_name="miniwob-harness", db=chosen.db),
    )
    trainer.train()


if __name__ == "__main__":
    main()
