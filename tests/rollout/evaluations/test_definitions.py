"""What `@evaluation` takes and refuses, and how a definition is found by its module's name."""

import inspect
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import record
from logs_ui.rollout import EvaluationRow, evaluation, openenv_rollout_func, text_rollout_func
from logs_ui.rollout.evaluations.definitions import find_evaluation
from logs_ui.rollout.evaluations.evaluations import Wiring
from tests.support.evaluations import ROWS, Echo, says, sums, word
from tests.support.late import datasets
from tests.support.model_server import ModelServer
from tests.support.rollouts import Scripted, a_trainer, refusing


def test_an_evaluation_can_be_called_as_the_function_it_was() -> None:
    def right(row: EvaluationRow) -> float:
        """Whether it is right."""
        return float(row.answer == "4")

    one = sums(right)
    row = EvaluationRow("2 + 2", [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}])
    assert (one(row), one.__doc__, one.name) == (1.0, "Whether it is right.", "sums")
    with pytest.raises(KeyError, match="columns are only prompt"):
        row["right"]


@pytest.mark.parametrize(
    ("score", "weights", "message"),
    [
        ("good", None, "returned 'good' as the score sums, which is no number"),
        (math.inf, None, "returned inf"),
        ({"a": 1.0}, None, "name each in @evaluation"),
        (1.0, {"a": 1.0}, "where weights promise a dict with a"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, "returned b, which weights do not name: they name a"),
    ],
)
def test_what_is_no_score_is_told(score: Any, weights: Any, message: str, server: ModelServer) -> None:
    server.gives(*says("1"))
    report = sums(lambda _: score, weights=weights).run(model="tiny", model_url=server.url, limit=1)
    assert message in report.errors[0]


def test_the_wiring_is_that_of_the_rollout_function() -> None:
    functions = (openenv_rollout_func, text_rollout_func)
    parameters = {name for function in functions for name in inspect.signature(function).parameters}
    assert set(Wiring.__annotations__) == parameters - {"env_path", "model", "model_url", "api_key"}


class Client:
    """A class of OpenEnv's clients, as it is told from others."""

    from_docker_image = None


PLAYED = {"base_url": "http://127.0.0.1:1", "act": word}
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dataset": "guess"}, TypeError, "dataset must be a list of dicts or a datasets.Dataset, not str"),
    ({"dataset": []}, ValueError, "The dataset is empty"),
    ({"dataset": ["Guess"]}, TypeError, "Row 0 of the dataset must be a dict"),
    ({"dataset": [{"question": "x"}]}, ValueError, "Row 0 of the dataset has no prompt; it has question"),
    ({"dataset": lambda: datasets.Dataset.from_list([{"question": "x"}])}, ValueError, "The dataset has no prompt"),
    ({"dataset": [{"prompt": "x", "error": 1}]}, ValueError, "has columns with reserved names: error. Rename"),
    (
        {"dataset": [{"prompt": "x", "prompts": 1, "log_metric": 2}]},
        ValueError,
        "reserved names: prompts, log_metric. Rename",
    ),
    ({"dataset": ROWS, "weights": {}}, ValueError, "weights names each score"),
    ({"dataset": ROWS, "act": word, "max_turns": 3}, ValueError, "act, max_turns: only with an environment"),
    ({"dataset": ROWS, "base_url": "http://127.0.0.1:1"}, TypeError, "act must be a function"),
    ({"dataset": ROWS, "environment": Client, "act": word}, ValueError, "Client needs a server"),
    ({"dataset": ROWS, "env_factory": Echo, "act": word}, ValueError, "act: not for text environments"),
    ({"dataset": ROWS, **PLAYED, "system_prompt": "Hear"}, ValueError, "system_prompt: not for OpenEnv's environments"),
    ({"dataset": ROWS, "max_steps": 3}, TypeError, "@evaluation takes no max_steps"),
    ({"dataset": ROWS, "model": "gpt"}, TypeError, "give the model to rollout_func() or run()"),
    ({"dataset": [{"prompt": "x", "task": "a"}], **PLAYED, "tasks": ["b"]}, ValueError, "both name tasks"),
    (
        {"dataset": [{"prompt": "x", "task": "a"}, {"prompt": "x", "task": "b"}], **PLAYED},
        ValueError,
        "Tasks a and b have the same prompt",
    ),
]


def test_what_does_not_go_together_is_one_clear_line() -> None:
    for settings, kind, message in WRONG:
        dataset = settings["dataset"]
        with refusing(kind, message):
            evaluation("wrong", **{**settings, "dataset": dataset() if callable(dataset) else dataset})(lambda _: 0.0)


def test_a_definition_has_a_name_and_a_plain_function() -> None:
    async def score(row: EvaluationRow) -> float:
        return 0.0

    with pytest.raises(TypeError, match="An evaluation has a name"):
        evaluation(lambda _: 0.0, dataset=ROWS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plain function"):
        evaluation("wrong", dataset=ROWS)(score)  # type: ignore[arg-type]
    for settings in ({"samples": 0}, {"limit": 0}, {"concurrency": True}):
        with pytest.raises(ValueError, match="must be a whole number from 1"):
            sums().run(model="tiny", model_url="http://127.0.0.1:9", **settings)


MODULE = """
from logs_ui.rollout import evaluation

@evaluation("one", dataset=[{"prompt": "x"}])
def one(row):
    return 1.0

@evaluation("two", dataset=[{"prompt": "x"}], environment=dict, act=str, max_turns=2)
def two(row):
    return 1.0
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "defined_here", raising=False)
    (tmp_path / "defined_here.py").write_text(MODULE)
    return tmp_path


def test_env_path_finds_the_definition(modules: Path) -> None:
    model = Scripted(lambda *_: "guess")
    rollouts = openenv_rollout_func(env_path="defined_here:one", model=model)
    assert record(rollouts).__name__ == "one"
    output = rollouts([[{"role": "user", "content": "x"}]], a_trainer(model))
    rollouts.close()
    assert (output["turns"], output["error"], output["env_reward"]) == ([1], [None], [None])
    (reward,) = find_evaluation("defined_here:one").rewards
    given = {name: output[name] for name in ("completion_ids", "turns", "error")}
    assert reward(prompts=["x"], completions=["guess"], **given) == [1.0]
    with pytest.raises(ValueError, match="set base_url, max_turns in the @evaluation"):
        openenv_rollout_func(env_path="defined_here:two", base_url="http://127.0.0.1:1", max_turns=5)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("defined_here", "defined_here has several evaluations: one, two. Name one, such as defined_here:one"),
        ("defined_here:three", "defined_here has no evaluation three: it has one, two"),
        ("defined_there", "There is no module defined_there"),
        ("defined_here.deeper:one", "There is no module defined_here.deeper"),
        ("json", "json has no @evaluation"),
        ("defined_here.py", "is no module: write it as in an import"),
        ("", "is no module"),
    ],
)
def test_a_definition_that_is_not_there_says_what_is(modules: Path, path: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        find_evaluation(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("line", ["import not_installed_at_all", "1 / 0", "x = ("])
def test_a_module_that_breaks_says_where(modules: Path, line: str) -> None:
    name = f"broken_{abs(hash(line))}"
    (modules / f"{name}.py").write_text(f"\n\n{line}\n")
    with pytest.raises(ValueError, match=rf"{name} cannot be imported.*Error") as raised:
        find_evaluation(name)
    assert "3" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_only_definition_needs_no_name(modules: Path) -> None:
    (modules / "lonely.py").write_text(MODULE.partition('@evaluation("two"')[0] + "\nalias = one\n")
    assert find_evaluation("lonely").name == "one"


def test_a_module_that_ends_the_program_is_told_in_a_line(modules: Path) -> None:
    (modules / "ending.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ValueError, match=r"Importing ending raised SystemExit.*__main__"):
        find_evaluation("ending")
