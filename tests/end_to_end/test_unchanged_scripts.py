"""`logs-ui run` on a script that says nothing of logs-ui, and trains once in each way: what the trainer computed, noted
by the script itself, is what was recorded, and Why speaks of it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import load_run, load_runs
from tests.app.commands.test_run_command import environment
from tests.support.command import LOGS_UI

COMMON = """
import copy, functools, inspect, json, random, sys, types
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from examples.settings import config
from examples.tiny_model import answer, call, say, tiny_model

kind, noted = "", {}

def noting(base):
    class Noting(base):
        def _generate_and_score_completions(self, inputs):
            scored = super()._generate_and_score_completions(inputs)
            noted["advantages"] += scored["advantages"].tolist()
            return scored
    return Noting

def length(completions, completion_ids, **_):
    noted["ids"] += [list(ids) for ids in completion_ids]
    noted["texts"] += [completion[-1]["content"] for completion in completions]
    values = [len(str(completion)) / 100 for completion in completions]
    noted["rewards"] += [{"length": value} for value in values]
    return values

def other(completions, **_):
    values = [None if random.random() < 0.3 else random.random() for _ in completions]
    for row, value in zip(noted["rewards"][-len(values):], values):
        row["other"] = value
    return values

def add(left: int, right: int) -> int:
    '''
    Adds.

    Args:
        left: A number.
        right: Another.
    '''
    return left + right

@functools.cache
def taught(with_tools):
    return tiny_model(lessons(with_tools), steps=80)

def lessons(with_tools):
    dice, taught = random.Random(0), []
    for _ in range(100):
        left, right = dice.randrange(5), dice.randrange(5)
        asked = say("user", f"What is {left} + {right}?")
        if with_tools:
            done = [call("add", left=left, right=right), answer("add", str(left + right)), say("assistant", "ok")]
            taught.append(([asked, *done], [add]))
        else:
            taught.append(([asked, say("assistant", str(dice.randrange(9)))], []))
    return taught

def train(trainer_class=GRPOTrainer, config=config(3), **more):
    noted.update(texts=[], ids=[], rewards=[], advantages=[])
    model, tokenizer = copy.deepcopy(taught("tools" in more))
    rows = [{"prompt": [say("user", f"What is {n % 5} + {n // 5}?")]} for n in range(25)]
    more.setdefault("reward_funcs", [length, other])
    dataset = Dataset.from_list(rows)
    trainer = noting(trainer_class)(model=model, processing_class=tokenizer, args=config, train_dataset=dataset, **more)
    trainer.train()
    json.dump(noted, open(f"noted-{kind}.json", "w"))
"""

SCRIPTS = {
    "plain": "train(config=config(3, reward_weights=[1.0, 0.5]))",
    "tools": "train(tools=[add], config=config(3, max_completion_length=200))",
    "rloo": """
chosen = ["output_dir", "max_steps", "per_device_train_batch_size", "num_generations", "max_completion_length"]
chosen += ["save_strategy", "use_cpu", "bf16", "gradient_checkpointing"]
train(RLOOTrainer, RLOOConfig(report_to="none", beta=0.0, **{name: getattr(config(3), name) for name in chosen}))
""",
    "environment in a reward function": """
from examples.echo_env import EchoAction, EchoEnv, serve
with serve() as url:
    client = EchoEnv(base_url=url).sync()
    client.connect()
    def played(completions, **_):
        values = []
        for completion in completions:
            client.reset()
            values.append(client.step(EchoAction(message=completion[-1]["content"])).reward)
        for row, value in zip(noted["rewards"][-len(values):], values):
            row["played"] = value
        return values
    train(reward_funcs=[length, played])
    client.close()
""",
    # the last: it replaces TRL's trainer
    "unsloth": """
text = inspect.getsource(inspect.getmodule(GRPOTrainer)).replace("class GRPOTrainer(", "class _UnslothGRPOTrainer(")
module = sys.modules["UnslothGRPOTrainer"] = types.ModuleType("UnslothGRPOTrainer")
module.__package__ = "trl.trainer"
exec(compile(text, "UnslothGRPOTrainer.py", "exec"), vars(module))
class UnslothGRPOTrainer(module._UnslothGRPOTrainer):
    pass
import trl
trl.GRPOTrainer = trl.trainer.GRPOTrainer = trl.trainer.grpo_trainer.GRPOTrainer = UnslothGRPOTrainer
train(trl.GRPOTrainer)
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script leaves: the database, and what it noted."""
    folder = tmp_path_factory.mktemp("unchanged")
    parts = [f"kind = {kind!r}\n{text}" for kind, text in SCRIPTS.items()]
    (folder / "train.py").write_text("\n".join([COMMON, *parts]))
    command: list[Any] = [LOGS_UI, "run", "--db", "a.db", "train.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # the first waits for all
@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_unchanged_script_is_recorded_completely(kind: str, folder: Path) -> None:
    db = folder / "a.db"
    noted: dict[str, Any] = json.loads((folder / f"noted-{kind}.json").read_text())
    runs = load_runs(db=db)
    assert len(runs) == len(SCRIPTS)
    run = runs.iloc[len(SCRIPTS) - 1 - list(SCRIPTS).index(kind)]  # the latest first
    rows = load_run(run.run, db=db)
    assert (len(rows), run.state, run.recorder_errors, run.unattributed_calls) == (24, "finished", 0, 0)
    assert (rows.status == "ok").all()
    assert [list(ids) for ids in rows.completion_ids] == noted["ids"]
    assert [messages[-1]["content"] for messages in rows.messages] == noted["texts"]
    assert list(rows.rewards) == [pytest.approx(row) for row in noted["rewards"]]
    assert list(rows.advantage) == pytest.approx(noted["advantages"])
    assert rows.reward_weights[0] == {
        name: 0.5 if kind == "plain" and name == "other" else 1.0 for name in rows.rewards[0]
    }
    if kind == "tools":
        called = [action for actions in rows.actions for action in actions if action["action"]]
        assert called
        for action in called:
            assert action["action"]["name"] == "add"
            if action["action"]["arguments"].keys() == {"left", "right"}:
                assert str(action["observation"]) == str(sum(action["action"]["arguments"].values()))
            else:
                assert action["error"].startswith("TypeError")
    if kind.startswith("environment"):
        for actions, messages, rewards in zip(rows.actions, rows.messages, rows.rewards, strict=True):
            (step,) = [one for one in actions if one.get("phase") == "scoring" and one["action"]]
            assert step["action"]["message"] == messages[-1]["content"]
            assert step["reward"] == pytest.approx(rewards["played"])
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{run.run}/why").text
    assert "Mean reward" in page
    assert "24 rollouts" in page
