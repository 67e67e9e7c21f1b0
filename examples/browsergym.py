"""MiniWoB++'s web pages in a real browser, task after task, by `openenv_rollout_func()`.

$(.ci/environments miniwob) -m examples.miniwob_server --port 8000
python -m examples.browsergym --url http://127.0.0.1:8000
logs-ui serve --db examples.db
"""

import re

from datasets import Dataset
from trl import GRPOTrainer

from examples.miniwob_env import BrowserGymAction, BrowserGymEnv, BrowserGymObservation
from examples.settings import arguments, config
from examples.tiny_model import Lesson, say, tiny_model
from logs_ui.recorder import record
from logs_ui.rollout import environment_reward, openenv_rollout_func

SYSTEM = "Answer with one action, such as click('13')."
TASKS = ("click-test", "click-test-2", "focus-text")
PAGES = {
    "Click the button.": "[13] button 'Click Me!'",
    "Click button ONE.": "[13] button 'ONE'\n\t[14] button 'TWO'",
    "Focus into the textbox.": "[12] textbox ''",
}


def observe(observation: BrowserGymObservation) -> str:
    """Returns the model's next message for a page: its goal, and the elements that can be clicked."""
    elements = "\n".join(line for line in observation.text.splitlines() if "[" in line)
    return f"{observation.error}\n{observation.goal}\n{elements}".strip()


def act(text: str) -> BrowserGymAction | None:
    """The first click of an answer; None where there is none."""
    found = re.search(r"click\('\d+'\)", text)
    return BrowserGymAction(action_str=found[0]) if found else None


def lessons() -> list[Lesson]:
    """Teaches the model how to say what to click, and nothing about what is right."""
    said: list[Lesson] = []
    for goal, elements in PAGES.items():
        for bid in ("12", "13", "14"):
            asked = [say("system", SYSTEM), say("user", f"{goal}\n\t{elements}")]
            said.append(([*asked, say("assistant", f"click('{bid}')")], []))
    return said


def main() -> None:
    """Trains, recorded."""
    chosen = arguments(__doc__, url="of the MiniWoB++ server")
    model, tokenizer = tiny_model(lessons())
    rollout_func = openenv_rollout_func(
        environment=BrowserGymEnv,
        base_url=chosen.url,
        observe=observe,
        act=act,
        on_unparsable="retry",
        unparsable_message="Answer like this: click('13')",
        tasks=TASKS,
        max_turns=2,
        concurrency=4,
        request_timeout=60,
        max_completion_tokens=128,
        sampling={"max_tokens": 16, "temperature": 1.0},
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=[environment_reward],
        args=config(chosen.steps),
        train_dataset=Dataset.from_list([{"prompt": [say("system", SYSTEM)]}] * 64),
        processing_class=tokenizer,
        rollout_func=record(rollout_func, eval_name="miniwob", db=chosen.db),
    )
    trainer.train()


if __name__ == "__main__":
    main()
