"""OpenEnv's harness, token-exact: `harness_rollout_func`, and the parts for OpenEnv's own builder."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs_ui.recorder import flush, load_run, record
from logs_ui.rollout import ExactHarnessAdapter, environment_reward, harness_model_step, harness_rollout_func
from logs_ui.rollout.functions.harness_step import HarnessModelStep, tool_calls
from logs_ui.rollout.models.backends import Sampling
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.chat_template import Chat
from tests.end_to_end.test_harness import CheckedGames, Games, feedback_of
from tests.rollout.test_rollout_chat import TEMPLATES, make_tokenizer
from tests.support.exhaustive import cases, examples
from tests.support.late import guess_env, guess_rollout, harness, llm_client
from tests.support.rollouts import FOR_EVER, Scripted, a_trainer, prompts, refusing, script
from tests.support.training import GROUP, ROWS, make_trainer, tool


class Talk:
    """Hears words and pays 1.0 for each; "stop" ends it. Its task says when it breaks."""

    def __init__(self, task: Any, seed: int | None) -> None:
        self.task, self.seed = task, seed
        self.heard: list[str] = []
        self.closed = False
        self.thread = threading.current_thread()
        self._do("create")

    def initial_messages(self) -> Any:
        return [{"role": "user", "content": "guess"}] if isinstance(self.task, str) else [*self.task]

    def list_tools(self) -> Any:
        return [tool("say", "word", "string")]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        assert threading.current_thread() is self.thread
        self._do("call_tool")
        word = arguments["word"]
        self.heard.append(word)
        reward = None if self.task == "pays nothing" else 1.0
        return harness.ToolResult(f"lower. {word}", done=word == "stop", metadata={"reward": reward})

    def verify(self, transcript: Any, final_state: Any = None) -> Any:
        self._do("verify")
        metrics = {"words": len(self.heard), "messages": len(transcript), **final_state["metrics"]}
        return harness.VerifyResult(metrics=metrics)

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        self.closed = True

    def _do(self, call: str) -> None:
        if self.task == f"hangs at {call}":
            time.sleep(FOR_EVER)
        if self.task == f"fails at {call}":
            raise OSError("out of order")


class Talks:
    """A factory; keeps its sessions."""

    def __init__(self) -> None:
        self.made: list[Talk] = []

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Talk:
        self.made.append(Talk(task, seed))
        return self.made[-1]


def word(text: str) -> list[tuple[str, dict[str, str]]]:
    """Any text but "?" is a call."""
    return [] if text == "?" else [("say", {"word": text})]


def play(
    says: Callable[[int, int], str], rows: int = 4, *, budget: int = 200, turns: int = 8, **given: Any
) -> tuple[dict[str, Any], Scripted, Talks]:
    """What the trainer gets of one batch, the model, and the sessions."""
    model, talks = Scripted(says), Talks()
    rollouts = harness_rollout_func(
        session_factory=talks,
        model=model,
        **{"act": word, "result_role": "user", "limits": harness.HarnessRunLimits(max_turns=turns), **given},
    )
    return rollouts(prompts(rows), a_trainer(model, generations=2, budget=budget)), model, talks


def test_the_trainer_gets_what_the_model_saw_and_sampled() -> None:
    output, model, talks = play(lambda row, turn: "stop" if turn == row else "guess")
    for row in range(4):
        assert output["prompt_ids"][row] + output["completion_ids"][row] == model.sequences[row]
        assert len(output["completion_ids"][row]) == len(output["env_mask"][row]) == len(output["logprobs"][row])
        assert sum(output["env_mask"][row]) == 2 * (row + 1)
        assert output["step_rewards"][row] == [1.0] * (row + 1)
    assert (output["turns"], output["error"]) == ([1, 2, 3, 4], [None] * 4)
    assert output["env_reward"] == [1.0] * 4  # the last call's, as OpenEnv has it
    assert [metrics["words"] for metrics in output["verify_metrics"]] == [1, 2, 3, 4]
    assert [metrics["tool_calls"] for metrics in output["verify_metrics"]] == [1, 2, 3, 4]
    assert all(talk.closed for talk in talks.made)


def test_rows_are_generated_for_together_and_no_more_sessions_than_wanted_are_open() -> None:
    _, model, _ = play(lambda row, turn: "stop" if turn == row else "guess", rows=3)
    assert model.batches == [[0, 1, 2], [1, 2], [2]]
    output, model, _ = play(lambda row, turn: "stop" if turn == row % 3 else "guess", rows=7, concurrency=2)
    assert output["turns"] == [1, 2, 3, 1, 2, 3, 1]
    assert max(map(len, model.batches)) == 2


def test_a_group_gets_the_same_seed_and_task() -> None:
    output, _, talks = play(script("stop"), tasks=["easy", "hard"])
    assert output["task"] == ["easy", "easy", "hard", "hard"]
    seeds = {task: {talk.seed for talk in talks.made if talk.task == task} for task in ("easy", "hard")}
    assert [len(of) for of in seeds.values()] == [1, 1]
    assert seeds["easy"] != seeds["hard"]
    _, _, talks = play(script("stop"), seed=None)
    assert {talk.seed for talk in talks.made} == {None}
    assert sorted(talk.task[0]["content"] for talk in talks.made) == [f"Find number {i}" for i in range(1, 5)]


def test_a_factory_that_takes_no_seed_is_given_none() -> None:
    class Old(Talks):
        def create(self, task: Any) -> Talk:  # type: ignore[override]
            return super().create(task)

    model = Scripted(script("stop"))
    rollouts = harness_rollout_func(session_factory=Old(), model=model, act=word)
    assert rollouts(prompts(2), a_trainer(model))["error"] == [None, None]


def test_limits_are_the_harnesss() -> None:
    output, model, _ = play(lambda *_: "guess", turns=3)
    assert output["turns"] == [3] * 4
    assert [mask[-1] for mask in output["env_mask"]] == [1] * 4  # nothing is inserted that nobody would read
    limits = harness.HarnessRunLimits(max_turns=9, max_total_tool_calls=2, sampling={"max_tokens": 5, "top_p": 0.5})
    output, model, talks = play(lambda *_: "guess", limits=limits)
    assert [len(talk.heard) for talk in talks.made] == [2] * 4
    assert {(one.max_tokens, one.top_p) for one in model.samplings} == {(5, 0.5)}


@pytest.mark.parametrize("budget", cases([1, 9, 25, *range(5, 40, 4)], 3))
def test_the_budget_is_never_exceeded(budget: int) -> None:
    for limit in ({"max_completion_tokens": budget}, {"budget": budget}):
        output, model, talks = play(lambda *_: "guess 1 2 3", rows=2, turns=50, **limit)
        assert all(1 <= len(ids) <= budget for ids in output["completion_ids"])
        assert max(model.limits) <= budget
        assert [mask[-1] for mask in output["env_mask"]] == [1, 1]
        assert output["turns"] == [metrics["turns"] for metrics in output["verify_metrics"]]
        if budget > 5:
            assert all(metrics["truncated"] for metrics in output["verify_metrics"])
            assert [metrics["messages"] for metrics in output["verify_metrics"]] == [
                1 + 2 * len(talk.heard) for talk in talks.made
            ]


def test_a_rollout_without_any_reward_has_none_unless_the_user_says_otherwise() -> None:
    output, _, _ = play(script("?"))
    assert (output["env_reward"], output["error"]) == ([None] * 4, [None] * 4)
    output, _, _ = play(script("?"), missing_reward=-1.0)
    assert output["env_reward"] == [-1.0] * 4
    output, _, _ = play(script("stop"), tasks=["pays nothing", "calm"], missing_reward=-1.0)
    assert output["env_reward"] == [-1.0, -1.0, 1.0, 1.0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", ["create", "call_tool", "verify"])
@pytest.mark.parametrize("mood", ["hangs", "fails"])
def test_a_session_that_breaks_costs_its_own_row(mood: str, call: str) -> None:
    output, model, talks = play(script("guess", "stop"), tasks=["calm", f"{mood} at {call}"], timeout=2)
    assert output["env_reward"] == [1.0, 1.0, None, None]
    said = f"did not answer {call}(" if mood == "hangs" else "OSError: out of order"
    assert all(said in error for error in output["error"][2:])
    assert output["error"][:2] == [None, None]
    for row in (2, 3):
        assert output["prompt_ids"][row]
        assert len(output["completion_ids"][row]) == len(output["env_mask"][row]) == len(output["logprobs"][row])
    if call == "create":
        assert output["completion_ids"][2] == [model.tokenizer.eos_token_id]
    else:
        assert sum(output["env_mask"][2]) > 0  # what it had come to
    assert all(talk.closed for talk in talks.made if talk.task == "calm" or mood == "fails")


@pytest.mark.parametrize("call", ["create", "initial_messages"])
def test_a_session_that_cannot_begin_is_made_a_second_time(call: str) -> None:
    class Once(Talk):
        def initial_messages(self) -> Any:
            if call == "initial_messages" and len(talks.made) == 1:
                raise OSError("out of order")
            return super().initial_messages()

    class Onces(Talks):
        calls = 0

        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Talk:
            self.calls += 1
            if call == "create" and self.calls == 1:
                raise OSError("out of order")
            self.made.append(Once(task, seed))
            return self.made[-1]

    before = set(threading.enumerate())
    talks, model = Onces(), Scripted(script("stop"))
    output = harness_rollout_func(session_factory=talks, model=model, act=word)(prompts(1), a_trainer(model))
    assert (output["error"], output["env_reward"], talks.calls) == ([None], [1.0], 2)
    assert all(talk.closed for talk in talks.made)
    assert not any(thread.name == "logs-ui-environment" for thread in set(threading.enumerate()) - before)


def test_a_first_batch_without_any_rollout_ends_the_training() -> None:
    with pytest.raises(RuntimeError, match=r"4 of 4 rollouts failed .*: OSError: out of order"):
        play(script("stop"), tasks=["fails at create"])


def test_what_the_model_calls_wrongly_is_told_to_it() -> None:
    calls = {"4": [("dance", {})], "5": [("say", {"text": "x"})], "6": [("say", {"word": "stop"})]}
    output, model, talks = play(script("4", "5", "6"), 2, act=lambda text: calls[text])
    assert (output["error"], output["turns"]) == ([None, None], [3, 3])
    assert talks.made[0].heard == ["stop"]
    told = model.tokenizer.decode(output["completion_ids"][0])
    assert told.count("<|im_start|>user") == 2
    assert output["step_rewards"][0] == [None, None, 1.0]


def test_a_parser_that_raises_finds_no_call() -> None:
    output, _, _ = play(script("guess"), act=lambda text: [("say", {"word": int(text)})])
    assert (output["turns"], output["error"]) == ([1] * 4, [None] * 4)


def test_a_harness_that_changes_what_was_said_is_refused() -> None:
    class Forgetful(harness.MCPHarnessAdapter):  # type: ignore[misc]
        def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
            return super().run_white_box(lambda messages, *more: model_step(messages[-1:], *more), session, limits)

    with pytest.raises(RuntimeError, match="The harness changed messages that the model has seen already"):
        play(lambda *_: "guess", harness_adapter=Forgetful())


def test_log_probs_may_be_unknown() -> None:
    class Without(Scripted):
        async def answer(self, *args: Any) -> Any:
            answer = await super().answer(*args)
            return Answer(answer.ids, None, answer.finish, answer.text)

    model = Without(script("guess", "stop"))
    given: dict[str, Any] = {"act": word, "result_role": "user"}
    rollouts = harness_rollout_func(session_factory=Talks(), model=model, **given)
    output = rollouts(prompts(2), a_trainer(model))
    assert (output["logprobs"], output["error"]) == (None, [None, None])
    openenvs = harness.build_harness_rollout_func(
        session_factory=Talks(),
        harness_adapter=ExactHarnessAdapter(),
        model_step_builder=harness_model_step(model=Without(script("stop")), **given),
    )
    with pytest.raises(RuntimeError, match="no log-probs"):
        openenvs(prompts(1), a_trainer(model))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"session_factory": 5}, TypeError, "session_factory must have a method create(task=...)"),
    ({"harness_adapter": 5}, TypeError, "harness_adapter must have a method run_white_box()"),
    ({"seed": "abc"}, ValueError, "seed must be a whole number or None, not 'abc'"),
    ({"act": 5}, TypeError, "act must be a function of an answer's text, or None"),
    ({"result_role": "system"}, ValueError, "result_role must be 'tool' or 'user'"),
    ({"timeout": -1}, ValueError, "timeout must be a number of seconds above 0"),
    ({"concurrency": 0}, ValueError, "concurrency must be a whole number from 1"),
    ({"max_completion_tokens": 1.5}, ValueError, "max_completion_tokens must be a whole number from 1"),
    ({"tasks": "easy"}, TypeError, "tasks must be a list of names"),
    ({"limits": {"max_new_tokens": 1}}, ValueError, "sampling has no max_new_tokens; it h"),
    ({"limits": {"seed": 1}}, ValueError, "sampling.seed is for a model's server"),
    ({"api_key": "x"}, ValueError, "only for a model's server"),
]


def test_what_does_not_go_together_is_one_clear_line() -> None:
    for wrong, kind, message in WRONG:
        limits = {"limits": harness.HarnessRunLimits(sampling=wrong["limits"])} if "limits" in wrong else {}
        with refusing(kind, message):
            harness_rollout_func(**{"session_factory": Talks(), **wrong, **limits})


def test_openenvs_builder_is_refused_where_ranks_must_make_the_same_calls() -> None:
    class Shared(Scripted):
        in_step = True

    model = Shared(script("stop"))
    with pytest.raises(RuntimeError, match="use harness_rollout_func"):
        harness_model_step(model=model)(a_trainer(model), None)


def test_tool_calls_are_read_as_qwen_and_hermes_write_them() -> None:
    def read(text: str) -> Sequence[Any]:
        return tool_calls(SimpleNamespace(), [], Answer([1], None, "stop", text))

    one = '<tool_call>\n{"name": "say", "arguments": {"word": "x"}}\n</tool_call>'
    assert read(f"Well. {one} {one}") == [("say", {"word": "x"})] * 2
    assert read(f"<think>{one}</think> no") == []
    assert read('<tool_call>{"name": "say", "arguments": "{}"}</tool_call>') == [("say", {})]
    assert read("nothing") == []


def test_a_tokenizer_that_says_how_answers_are_read_is_asked() -> None:
    from trl.chat_template_utils import add_response_schema

    tokenizer = add_response_schema(make_tokenizer("qwen3"))
    text = '<think>\nlow\n</think>\n\n<tool_call>\n{"name": "say", "arguments": {"word": "x"}}\n</tool_call><|im_end|>'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    context = Chat(tokenizer).prompt_ids([{"role": "user", "content": "Say x."}])
    assert tool_calls(tokenizer, context, Answer(ids, None, "stop", "")) == [("say", {"word": "x"})]


answers = st.lists(st.tuples(st.lists(st.integers(15, 300), min_size=1, max_size=6), st.booleans()), max_size=5)
told = st.text(st.sampled_from("guess 1\n né<|"), min_size=1, max_size=20)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@settings(max_examples=examples(40), deadline=None)
@given(turns=answers, said=told, budget=st.integers(8, 400), calls=st.integers(1, 3))
def test_the_ids_are_those_that_the_model_saw_and_sampled(
    name: str, turns: list[tuple[list[int], bool]], said: str, budget: int, calls: int
) -> None:
    """For every chat template, any number of turns and calls in a turn, whatever the budget: by OpenEnv's own loop."""
    tokenizer, end = make_tokenizer(name), TEMPLATES[name][1]
    seen: list[tuple[list[int], list[int]]] = []

    def ask(context: list[int], sampling: Sampling) -> Answer:
        ids, ends = turns[len(seen)] if len(seen) < len(turns) else ([20], True)
        ids = [*ids, *([tokenizer.convert_tokens_to_ids(end)] if ends else [])][: sampling.max_tokens]
        seen.append((list(context), ids))
        return Answer(ids, [-0.5] * len(ids), "stop", "guess")

    def act(_: str) -> list[tuple[str, dict[str, str]]]:
        return [("say", {"word": said})] * calls

    step = HarnessModelStep(Chat(tokenizer), act, budget, "user", tools_in_prompt=True, ask=ask, has_seed=False)
    session = Talk([{"role": "user", "content": "Guess a number."}], None)
    result = ExactHarnessAdapter().run_white_box(step, session, harness.HarnessRunLimits(max_turns=len(turns) + 1))
    whole = result.prompt_ids + result.completion_ids
    for context, ids in seen:
        assert whole[: len(context) + len(ids)] == context + ids
    assert len(whole) == len(seen[-1][0]) + len(seen[-1][1])
    assert len(result.completion_ids) <= budget
    assert (result.prompt_ids, result.completion_ids) == (step.trajectory.prompt_ids, step.trajectory.completion_ids)
    assert result.logprobs == [-0.5 * mask for mask in step.trajectory.mask]
    assert sum(step.trajectory.mask) == sum(len(ids) for _, ids in seen)
    assert step.turns == result.metrics["turns"] == len(seen)


def test_the_exact_adapter_refuses_prompts_that_were_tokenised_anew() -> None:
    contexts = iter([[1, 2], [1, 2, 4, 5]])

    def step(*_: Any) -> Any:
        return harness.ModelStepResult(
            llm_client.LLMResponse("", [llm_client.ToolCall("1", "say", {"word": "x"})]), next(contexts), [3], [-0.5]
        )

    with pytest.raises(ValueError, match="build it with harness_model_step"):
        ExactHarnessAdapter().run_white_box(step, Talk("calm", None))


def guess(text: str) -> list[tuple[str, dict[str, int]]]:
    number = guess_rollout.parse_guess(text)
    return [] if number is None else [("guess", {"number": number})]


def limits() -> Any:
    return harness.HarnessRunLimits(max_turns=guess_env.TURNS, sampling={"max_tokens": 8})


@pytest.mark.versions
@pytest.mark.exhaustive
@pytest.mark.parametrize("factory", [Games, CheckedGames])
def test_a_real_training_is_recorded_with_every_call(game_url: str, tmp_path: Path, factory: type[Games]) -> None:
    rollouts = harness_rollout_func(
        session_factory=factory(game_url), act=guess, result_role="user", limits=limits(), missing_reward=0.0
    )
    trainer = make_trainer(record(rollouts), tmp_path, reward_funcs=[environment_reward], warm=200, max_steps=3)
    trainer.train()
    flush()
    rows = load_run()
    assert len(rows) == 3 * ROWS
    assert set(rows["status"]) == {"ok"}
    assert set(rows["eval_name"]) == {factory.__name__}
    assert rows["turns"].max() > 1
    assert rows["reward"].tolist() == pytest.approx(rows["rollout_reward"].tolist())
    for i, row in enumerate(rows.to_dict("records")):
        assert row["generation"] == i % GROUP
        assert row["turns"] == row["metadata"]["turns"]
        turns = [action for action in row["actions"] if action["turn"] > 0]
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"]
        called = [action for action in turns if action["action"] is not None]
        assert [action["reward"] for action in called] == pytest.approx(row["metadata"]["step_rewards"])
        for action in called:
            assert action["action"] == {
                "name": "guess",
                "arguments": {"number": guess_rollout.parse_guess(action["text"])},
            }
            (step,) = action["metadata"]["calls"]
            told = None if action["done"] else feedback_of(step["observation"])
            assert action["observation"] == told
        assert row["metadata"]["notes"]["harness"]["tool_calls"] == len(called)
        assert row["metadata"]["notes"]["ended"] in {"done", "no_tool_call", "max_turns"}
        assert row["metadata"]["verify_metrics"]["tries"] == len(called)


@pytest.mark.versions
@pytest.mark.exhaustive
def test_openenvs_own_builder_trains_on_what_was_seen_and_is_recorded(game_url: str, tmp_path: Path) -> None:
    rollout_func = harness.build_harness_rollout_func(
        session_factory=Games(game_url),
        harness_adapter=ExactHarnessAdapter(),
        model_step_builder=harness_model_step(act=guess, result_role="user"),
        limits=limits(),
    )
    returned: list[dict[str, Any]] = []
    recorded = record(rollout_func, eval_name="harness")

    def noting(prompts: Any, trainer: Any) -> Any:
        returned.append(recorded(prompts, trainer))
        return returned[-1]

    make_trainer(noting, tmp_path, reward_funcs=[environment_reward], warm=300).train()
    flush()
    rows = load_run()
    assert len(rows) == 2 * ROWS
    assert set(rows["status"]) == {"ok"}
    assert rows["turns"].max() > 1
    prompts = [ids for output in returned for ids in output["prompt_ids"]]
    for row, ids in zip(rows.to_dict("records"), prompts, strict=True):
        assert row["metadata"]["attribution"] == "scope"
        assert "prompt_ids" not in row["metadata"]["notes"]  # the recorder's word for joined prompts
        assert [message["role"] for message in row["messages"][:2]] == ["system", "user"]
        assert list(row["prompt_ids"]) == ids
        assert row["turns"] == row["metadata"]["notes"]["harness"]["turns"]
