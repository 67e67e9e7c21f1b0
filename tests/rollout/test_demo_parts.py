"""The demo's parts, all real: its tokenizer, its environment behind a WebSocket, and a short training."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logs_ui.rollout.demo.demo import DemoSettings, GuessServer, train_demo
from logs_ui.rollout.evaluations.scoring import EvaluationRow
from tests.support.late import guess_env, guess_model, guess_rollout, torch


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return guess_model.make_tokenizer()


@pytest.fixture(scope="module")
def player(game_url: str) -> Iterator[Any]:
    with guess_env.GuessEnv(base_url=game_url).sync() as client:
        yield client


@dataclass
class Watched:
    """What a training of two steps did."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[int, int, float]] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    trainer: Any = None
    threads_left: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    seen = Watched()

    def listen(rollout_func: Any) -> Any:
        def wrapped(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            output: dict[str, Any] = rollout_func(prompts, trainer)
            seen.trainer = trainer
            seen.outputs.append(output | {"prompts": prompts, "train": trainer.model.training})
            seen.weights.append(next(trainer.model.parameters()).detach().clone())
            return output

        return wrapped

    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("logs_ui.rollout.demo.guess_model.warm_up", partial(guess_model.warm_up, steps=50))  # enough
        train_demo(
            DemoSettings(steps=2, seed=1, output_dir=tmp_path_factory.mktemp("demo")),
            wrap=listen,
            on_step=lambda *step: seen.steps.append(step),
        )
    seen.threads_left = {thread.name for thread in set(threading.enumerate()) - before if "openenv" in thread.name}
    return seen


def test_decoding_gives_back_the_exact_text(tokenizer: Any) -> None:
    texts = [message["content"] for task in guess_env.TASKS for message in guess_rollout.prompt(task)]
    texts += [habit.format(a=7, b=60, c=1) for habit in guess_model.HABITS]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("guess 5", 5),
        (" guess 12\n", 12),
        ("guess", None),
        ("guess five", None),
        ("my guess is 5", None),
        ("guess 5 or 6", None),
        ("", None),
    ],
)
def test_only_the_exact_form_is_a_guess(text: str, guess: int | None) -> None:
    assert guess_rollout.parse_guess(text) == guess
    assert guess_rollout.act(text) == (None if guess is None else guess_env.GuessAction(guess=guess))


def test_an_episode_is_paid_by_the_environment_and_for_its_form() -> None:
    game = guess_rollout.guessing("http://127.0.0.1:9", 0)
    for said, form in (("guess 6", 1.0), ("guess 6 or 7", 0.0), ("guess", 0.0)):
        messages = [
            *guess_rollout.prompt("fair: 4-10"),
            *({"role": "assistant", "content": text} for text in ("guess 5", said)),
        ]
        row = EvaluationRow(guess_rollout.prompt("fair: 4-10"), messages, env_reward=0.9)
        assert game(row) == {"solved": 0.9, "format": form}
    assert game.reward_weights == [1.0, 0.1]


def test_the_same_task_and_seed_give_the_same_secret(player: Any) -> None:
    secrets = []
    for seed in (5, 5, 6, 7, 8, 9):
        player.reset(task="hopeless: 1-60", seed=seed)
        secrets.append(player.state().secret)
    assert secrets[0] == secrets[1]
    assert len(set(secrets)) > 1


def test_hints_narrow_the_range_and_a_later_hit_pays_less(player: Any) -> None:
    opened = player.reset(task="hard: 11-25", seed=1).observation
    assert guess_rollout.observe(opened) is None
    assert (opened.hint, opened.low, opened.high, opened.turns_left) == (None, 11, 25, 3)
    secret = player.state().secret
    below = player.step(guess_env.GuessAction(guess=secret - 1))
    assert (below.observation.hint, below.observation.low, below.reward, below.done) == ("higher", secret, 0.1, False)
    assert guess_rollout.observe(below.observation) == f"higher. 2 left, {secret} to 25"
    hit = player.step(guess_env.GuessAction(guess=secret))
    assert (hit.observation.hint, hit.observation.turns_left, hit.reward, hit.done) == ("correct", 1, 0.8, True)


def test_an_impossible_guess_pays_nothing_and_running_out_of_turns_is_the_players_to_see(player: Any) -> None:
    player.reset(task="easy: 1-3", seed=1)
    results = [player.step(guess_env.GuessAction(guess=60)) for _ in range(3)]
    assert [result.reward for result in results] == [0.0, 0.0, 0.0]
    assert [result.observation.turns_left for result in results] == [2, 1, 0]
    assert not results[-1].done
    assert results[-1].observation.high == 3


def test_an_unknown_task_is_refused(player: Any) -> None:
    with pytest.raises(RuntimeError, match="Unknown task 'nonsense'"):
        player.reset(task="nonsense")


def test_a_server_that_cannot_start_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with GuessServer() as server, pytest.raises(RuntimeError, match="did not start: it ended with status 1") as caught:
        server.wait_until_ready()
    assert "\n" not in str(caught.value)


def test_the_server_ends_when_its_parent_is_killed() -> None:
    script = (
        "import time; from logs_ui.rollout.demo.demo import GuessServer\n"
        "with GuessServer() as server:\n"
        "    print(server._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while _runs(server) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(server)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.exhaustive
def test_the_real_trainer_trains(training: Watched) -> None:
    from trl import GRPOTrainer

    assert type(training.trainer) is GRPOTrainer
    assert training.trainer.reward_func_names == ["solved", "format"]
    assert [step[:2] for step in training.steps] == [(1, 2), (2, 2)]
    assert not torch.equal(training.weights[0], training.weights[-1])
    assert {output["train"] for output in training.outputs} == {True, False}  # evaluations, too
    assert not training.threads_left  # every session was closed


def test_a_step_plays_one_group_of_each_task(training: Watched) -> None:
    assert training.outputs[0]["task"] == [task for task in guess_env.TASKS for _ in range(8)]
    assert training.outputs[0]["prompts"] == [guess_rollout.prompt(task) for task in guess_env.TASKS for _ in range(8)]
