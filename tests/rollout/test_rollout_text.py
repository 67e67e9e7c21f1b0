"""`text_rollout_func`: environments and processors as trl-env's users have them, and real trainings."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from logs_ui.recorder import flush, load_run, record
from logs_ui.rollout import environment_reward, text_rollout_func
from logs_ui.rollout.environments import sessions
from logs_ui.rollout.functions.text_rollouts import _Client
from tests.support.changes import wait_until
from tests.support.late import guess_env, guess_rollout
from tests.support.rollouts import FOR_EVER, Scripted, a_trainer, prompts, refusing, script
from tests.support.training import GROUP, ROWS, make_trainer


class Echo:
    """As trl-env's `Env`: pays, in all, 1.0 for each word so far; "stop" ends it."""

    made: ClassVar[list["Echo"]] = []

    def __init__(self) -> None:
        self.reward: float = 0.0
        self.alive = False
        self.seeds: list[Any] = []
        self.heard: list[str] = []
        self.closed = False
        self.thread = threading.current_thread()
        Echo.made.append(self)

    def reset(self, seed: Any) -> tuple["Echo", str]:
        assert threading.current_thread() is self.thread
        self.reward, self.alive = 0.0, True
        self.seeds.append(seed)
        return self, "Find my number"

    def step(self, action: str) -> tuple["Echo", str]:
        assert threading.current_thread() is self.thread, (
            "sqlite's connections and Playwright's browsers are bound to it"
        )
        self.heard.append(action)
        self.reward += 1.0
        self.alive = action != "stop"
        return self, f"lower. {action}"

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        self.closed = True


@pytest.fixture(autouse=True)
def _forget() -> None:
    Echo.made.clear()


def play(
    env: Callable[[], Any], says: Callable[[int, int], str], given: Any = 4, *, budget: int = 200, **settings: Any
) -> tuple[dict[str, Any], Scripted]:
    """What the trainer gets of one batch, and the model."""
    model = Scripted(says)
    rollouts = text_rollout_func(env, model=model, **settings)
    try:
        rows = prompts(given) if isinstance(given, int) else given
        return rollouts(rows, a_trainer(model, generations=2, budget=budget)), model
    finally:
        rollouts.close()


def test_the_trainer_gets_what_the_model_saw_and_sampled() -> None:
    output, model = play(Echo, lambda row, turn: "stop" if turn == row else "guess")
    for row in range(4):
        assert output["prompt_ids"][row] + output["completion_ids"][row] == model.sequences[row]
        assert len(output["completion_ids"][row]) == len(output["env_mask"][row]) == len(output["logprobs"][row])
        assert sum(output["env_mask"][row]) == 2 * (row + 1)
        assert output["step_rewards"][row] == [float(turn) for turn in range(1, row + 2)]
    assert output["env_reward"] == [1.0, 2.0, 3.0, 4.0]  # the environment's own count, not the sum of its counts
    assert (output["turns"], output["error"]) == ([1, 2, 3, 4], [None] * 4)
    assert model.batches == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert {env.closed for env in Echo.made} == {True}


def test_what_the_environment_says_follows_the_prompt_and_the_answers() -> None:
    output, model = play(Echo, script("guess", "stop"), 1, system_prompt="I know")
    given = [{"role": "system", "content": "I know"}, {"role": "user", "content": "Find number 1\n\nFind my number"}]
    template = model.tokenizer.apply_chat_template
    assert output["prompt_ids"] == [template(given, add_generation_prompt=True, return_dict=False)]
    whole = [*given, {"role": "assistant", "content": "guess"}, {"role": "user", "content": "lower. guess"}]
    expected = template(whole, add_generation_prompt=True, tokenize=False)
    said = [*model.tokenizer("stop")["input_ids"], model.tokenizer.eos_token_id]
    assert model.sequences[0] == [*model.tokenizer(expected)["input_ids"], *said]


def test_completions_of_a_prompt_get_the_same_seed_and_environments_are_kept() -> None:
    model = Scripted(script("stop"))
    rollouts = text_rollout_func(Echo, model=model)
    for _ in range(2):
        rollouts(prompts(4), a_trainer(model, generations=2))
    seeds = [seed for env in Echo.made for seed in env.seeds]
    assert len(Echo.made) == 4
    assert len(set(seeds)) == 4
    assert sorted(seeds) == sorted(sorted(set(seeds)) * 2)
    rollouts.close()
    play(Echo, script("stop"), 1, seed=None)
    assert Echo.made[-1].seeds == [None]


def test_the_prompt_can_be_the_seed() -> None:
    """As in trl-env, whose models do not see it."""
    output, model = play(Echo, script("stop"), ["level 3", "level 4"], seed="prompt", system_prompt="I know")
    assert sorted(env.seeds[0] for env in Echo.made) == ["level 3", "level 4"]
    text = model.tokenizer.decode(output["prompt_ids"][0])
    assert "level" not in text
    assert text.count("<|im_start|>") == 3
    assert "task" not in output
    play(Echo, script("stop"), prompts(1), seed="prompt")
    assert Echo.made[-1].seeds == ["Find number 1"]


def test_a_text_alone_will_do_and_an_environment_may_hand_on_to_another() -> None:
    class Plain(Echo):
        def reset(self, seed: Any = None) -> Any:
            return super().reset(seed)[1]

        def step(self, action: str) -> Any:
            following = Plain()
            following.reward, following.alive = self.reward + 2, self.reward < 4
            return following, "next"

    output, _ = play(Plain, lambda *_: "guess", 1)
    assert (output["step_rewards"], output["error"]) == ([[2.0, 4.0, 6.0]], [None])


class ChatML:
    """A processor as trl-env's own are: its texts hold special tokens."""

    read: ClassVar[list[str]] = []

    def init_system_input(self, prompt: str) -> str:
        return f"<|im_start|>system\n{prompt}<|im_end|>\n"

    def append_user_input(self, prompt: str) -> str:
        return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        ChatML.read.append(completion)
        *reason, answer = completion.split("<|im_end|>", maxsplit=1)[0].split(":")
        return "".join(reason), answer.strip()


def test_a_processor_writes_the_conversation_and_reads_the_answers() -> None:
    ChatML.read.clear()
    output, model = play(
        Echo, script("my:guess", "maybe"), ["1"], processor=ChatML(), system_prompt="I know", seed="prompt", max_turns=2
    )
    assert Echo.made[0].heard == ["guess", "maybe"]
    assert [text.endswith("<|im_end|>") for text in ChatML.read] == [True, True]
    whole = model.tokenizer.decode(output["prompt_ids"][0] + output["completion_ids"][0])
    assert whole == (
        "<|im_start|>system\nI know<|im_end|>\n<|im_start|>user\nFind my number<|im_end|>\n<|im_start|>assistant\n"
        f"{ChatML.read[0]}<|im_start|>user\nlower. guess<|im_end|>\n<|im_start|>assistant\n{ChatML.read[1]}"
    )
    assert output["prompt_ids"][0] + output["completion_ids"][0] == model.sequences[0]


def test_an_answer_that_was_cut_off_is_ended_before_the_environment_speaks() -> None:
    settings: dict[str, Any] = {"processor": ChatML(), "seed": "prompt", "sampling": {"max_tokens": 2}, "max_turns": 2}
    output, model = play(Echo, lambda *_: "guess 1 2 3", ["1"], **settings)
    (ids,), (mask,) = output["completion_ids"], output["env_mask"]
    assert mask[:3] == [1, 1, 0]
    assert ids[2] == model.tokenizer.eos_token_id


def test_a_processor_and_a_prompt_with_an_answer_in_it_do_not_go_together() -> None:
    shots = [[*prompts(1)[0], {"role": "assistant", "content": "guess 4"}]]
    output, _ = play(Echo, script("stop"), shots, processor=ChatML())
    assert "Leave processor out" in output["error"][0]


@pytest.mark.parametrize(
    ("answer", "action"), [(" guess 5\n", "guess 5"), ("<think>1</think> 2", "2"), ("1</think>2", "2")]
)
def test_an_action_is_what_follows_the_thinking(answer: str, action: str) -> None:
    play(Echo, script(answer), 1, max_turns=1)
    assert Echo.made[0].heard == [action]


def test_unfinished_thinking_is_no_action() -> None:
    output, _ = play(Echo, script("<think> maybe"), 1)
    assert (output["turns"], output["env_reward"], output["step_rewards"]) == ([1], [0.0], [[]])
    output, _ = play(Echo, script("<think> maybe", "stop"), 1, on_unparsable="retry")
    assert output["env_reward"] == [1.0]


class Mishap(Echo):
    """Does what its seed says."""

    def reset(self, seed: Any) -> Any:
        self.mood = seed
        self._do("reset")
        result = super().reset(seed)
        self.alive = seed != "is dead at reset"
        return result

    def step(self, action: str) -> Any:
        self._do("step")
        return None if self.mood == "says nothing" else super().step(action)

    def _do(self, call: str) -> None:
        if self.mood == f"hangs at {call}":
            time.sleep(FOR_EVER)
        if self.mood == f"fails at {call}":
            raise StopIteration
        if self.mood == f"exits at {call}":
            raise SystemExit(1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("hangs at step", "did not answer step() within 2 s"),
        ("hangs at reset", "did not answer reset() within 2 s"),
        ("fails at step", "StopIteration()"),
        ("fails at reset", "StopIteration()"),
        ("exits at step", "SystemExit(1)"),
        ("is dead at reset", "not alive after its reset"),
        ("says nothing", "step() gives a text, or (env, text), not NoneType"),
    ],
)
def test_an_environment_that_breaks_costs_its_own_row(monkeypatch: pytest.MonkeyPatch, mood: str, said: str) -> None:
    monkeypatch.setattr(sessions, "_CLOSE_SECONDS", 0.1)
    output, model = play(Mishap, script("guess", "stop"), ["calm", mood, "calm"], seed="prompt", timeout=2)
    assert output["env_reward"] == [2.0, None, 2.0]
    assert said in output["error"][1]
    assert "\n" not in output["error"][1]
    assert output["prompt_ids"][1]
    assert output["completion_ids"][1]
    if mood.endswith("reset"):
        assert output["completion_ids"][1] == [model.tokenizer.eos_token_id]


def test_a_row_that_never_began_needs_no_prompt_that_its_template_takes() -> None:
    model = Scripted(script("stop"))
    model.tokenizer.chat_template = "{{ messages[0].nothing.at_all }}" + model.tokenizer.chat_template
    rollouts = text_rollout_func(Mishap, model=model, seed="prompt")
    trainer = a_trainer(model)
    trainer.chat_template_kwargs = {}
    output = rollouts(["calm", "fails at reset"], trainer)
    assert output["prompt_ids"][1] == [model.tokenizer.eos_token_id]
    rollouts.close()


def threads() -> int:
    return sum(thread.name == "logs-ui-environment" for thread in threading.enumerate())


def test_an_environment_that_cannot_be_made_leaves_no_thread() -> None:
    before, ok = threads(), iter([True] * 4 + [False] * 8)

    class Rare(Echo):
        def __init__(self) -> None:
            if not next(ok):
                raise OSError("no display")
            super().__init__()

        def step(self, action: str) -> Any:
            raise OSError("broke")

    model = Scripted(script("stop"))
    rollouts = text_rollout_func(Rare, model=model)
    for _ in range(2):
        with suppress(RuntimeError):
            rollouts(prompts(4), a_trainer(model, generations=2))
    assert next(ok, None) is None
    rollouts.close()
    wait_until(lambda: threads() == before)


@pytest.mark.timeout(120)
def test_an_environment_that_hangs_is_closed_once_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_CLOSE_SECONDS", 0.1)
    before = threads()

    class Slow(Echo):
        def step(self, action: str) -> Any:
            time.sleep(1.5)
            return super().step(action)

    model = Scripted(script("stop"))
    rollouts = text_rollout_func(Slow, model=model, timeout=0.3)
    with suppress(RuntimeError):
        rollouts(prompts(2), a_trainer(model, generations=2))
    rollouts.close()
    assert not any(env.closed for env in Echo.made)
    wait_until(lambda: all(env.closed for env in Echo.made) and threads() == before)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"env_factory": Echo()}, TypeError, "or its class, not an instance of Echo"),
    ({"processor": Echo()}, TypeError, "has no init_system_input, append_user_input, parse_agent_output"),
    ({"seed": "level 1"}, ValueError, "seed must be a whole number, 'prompt' or None"),
    ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0"),
    ({"max_turns": 0}, ValueError, "max_turns must be a whole number from 1"),
    ({"max_turns": None}, ValueError, "max_turns must be a whole number from 1"),
    ({"on_unparsable": "noop"}, ValueError, "needs noop_action"),
    ({"reward": "mean"}, ValueError, "reward must be 'sum', 'last' or a function"),
    ({"model_url": "http://127.0.0.1:1/v1"}, ValueError, "model_url needs model"),
    ({"sampling": {"heat": 1}}, ValueError, "sampling has no heat"),
]


def test_what_does_not_go_together_is_one_clear_line() -> None:
    for settings, kind, message in WRONG:
        with refusing(kind, message):
            text_rollout_func(**{"env_factory": Echo, **settings})


class Guess:
    """The demo's game as a text environment, lenient: a model that has learnt little is heard too."""

    def __init__(self) -> None:
        self._game = guess_env.GuessEnvironment()
        self.reward, self.alive = 0.0, False

    def reset(self, seed: int) -> tuple["Guess", str]:
        self._game.reset(task="easy: 1-3", seed=seed)
        self.reward, self.alive = 0.0, True
        return self, "3 guesses, 1 to 3"

    def step(self, action: str) -> tuple["Guess", str]:
        number = re.search(r"\d+", action)
        if number is None:
            self.alive = False
            return self, "That is no guess"
        heard = self._game.step(guess_env.GuessAction(guess=int(number[0])))
        self.reward += heard.reward
        self.alive = not heard.done and heard.turns_left > 0
        return self, guess_rollout.feedback(heard)


@pytest.mark.versions
def test_a_real_training_is_recorded_with_every_step(tmp_path: Path) -> None:
    rollouts = text_rollout_func(Guess, max_turns=3, sampling={"max_tokens": 8})
    trainer = make_trainer(record(rollouts), tmp_path, reward_funcs=[environment_reward])
    trainer.train()
    rollouts.close()
    flush()
    rows = load_run()
    assert len(rows) == 2 * ROWS
    assert set(rows["status"]) == {"ok"}
    assert set(rows["eval_name"]) == {"Guess"}
    assert rows["turns"].max() > 1
    assert rows["reward"].tolist() == pytest.approx(rows["rollout_reward"].tolist())
    for row in rows.to_dict("records"):
        steps = [action for action in row["actions"] if action["turn"] > 0]
        assert [step["reward"] for step in steps] == pytest.approx(row["metadata"]["step_rewards"])
        assert [step["action"] for step in steps] == [step["text"].strip() for step in steps]
        assert all(isinstance(step["observation"], str) for step in steps)
        assert row["stop_reason"] in {"done", "turn_limit"}
    for _, group in rows.groupby("group"):
        assert len(group) == GROUP
        assert len({actions[0]["metadata"]["reset"]["seed"] for actions in group["actions"]}) == 1


def test_an_environment_may_say_that_it_has_nothing_to_close() -> None:
    class Open(Echo):
        close: Any = None

    client = asyncio.run(_Client.opened(Open))
    asyncio.run(client.close())
