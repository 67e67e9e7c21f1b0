"""One `@evaluation`: run on a model's server, trained on, and run again. All land under the same name.

python -m examples.evaluate_then_train
logs-ui serve --db examples.db

With a server of your own: logs-ui eval examples.evaluate_then_train:sums --base-url http://... --model ... --samples 4
"""

import random

from trl import GRPOTrainer

from examples.settings import arguments, config
from examples.tiny_model import Lesson, say, tiny_model
from examples.tiny_server import NAME, serve
from logs_ui.rollout import EvaluationRow, evaluation

SUMS = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3)]


@evaluation(
    "sums",
    dataset=[{"prompt": [say("user", f"{a}+{b}")], "task": f"sum of {a + b}", "answer": str(a + b)} for a, b in SUMS],
    weights={"right": 1.0, "short": 0.1},
    max_completion_tokens=8,
    sampling={"temperature": 1.0},
)
def sums(row: EvaluationRow) -> dict[str, float]:
    """Scores an answer: 1 if it is right, and 1 if it contains nothing else."""
    words = row.answer.split()
    return {"right": float(row["answer"] in words), "short": float(len(words) == 1)}


def lessons() -> list[Lesson]:
    """Teaches the model how to answer, most often wrongly."""
    dice = random.Random(0)
    said: list[Lesson] = []
    for a, b in SUMS * 4:
        guess = dice.choice([a + b, *range(2, 7)])
        words = dice.choice([f"{guess}", f"it is {guess}"])
        said.append(([say("user", f"{a}+{b}"), say("assistant", words)], []))
    return said


def main() -> None:
    """Evaluates, trains and evaluates, recorded."""
    chosen = arguments(__doc__)
    model, tokenizer = tiny_model(lessons(), steps=200)
    with serve(model, tokenizer) as url:
        before = sums.run(model=NAME, model_url=url, samples=4, name="before training", db=chosen.db)
    print(f"before: {before.mean:.2f} ± {before.stderr:.2f}")
    if chosen.steps:
        trainer = GRPOTrainer(
            model,
            reward_funcs=sums.rewards,
            args=config(chosen.steps, reward_weights=sums.reward_weights, max_completion_length=8),
            train_dataset=sums.dataset,
            processing_class=tokenizer,
            rollout_func=sums.rollout_func(db=chosen.db),
        )
        trainer.train()
    with serve(model, tokenizer) as url:
        after = sums.run(model=NAME, model_url=url, samples=4, name="after training", db=chosen.db)
    print(f"after: {after.mean:.2f} ± {after.stderr:.2f}")


if __name__ == "__main__":
    main()
