"""record_verifiers() round a real environment of verifiers, with a server that answers as OpenAI's does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

vf: Any = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")

from logs_ui.recorder import load_run, load_runs, record_verifiers  # noqa: E402
from tests.support.model_server import TOOL_CALL, Reply, chat, chat_choice, model_server, refused  # noqa: E402

KINDS = Path(__file__).parents[2] / "support"


def played(db: Path, *replies: Any, each: int = 2, **agent: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Play each task so often; return the traces and the rows."""
    from verifiers.v1.utils.loaders import load_environment

    plugin = {"id": "verifiers_guess"}
    seat = {"harness": plugin, "runtime": {"type": "subprocess"}, **agent}
    env = load_environment(vf.SingleAgentEnvConfig.model_validate({"taskset": plugin, "agent": seat}))
    assert record_verifiers(env, name="games", db=db) is env
    assert record_verifiers(env, name="twice", db=db) is env
    traces: list[Any] = []

    async def main(url: str) -> None:
        client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="GUESS_KEY")
        async with env.serving():
            for task in env.taskset:
                for slot in env.slots(task, each):
                    traces.extend((await env.run_slot(slot, vf.ModelContext(model="tiny", client=client))).traces)

    with model_server() as server:
        server.gives(*replies)
        asyncio.run(main(server.url))
    return traces, [{str(key): value for key, value in row.items()} for row in load_run(db=db).to_dict("records")]


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(KINDS))
    monkeypatch.setenv("GUESS_KEY", "sk-x")


def test_rollouts_of_an_environment_are_recorded(db: Path) -> None:
    called = chat_choice(tool_calls=[TOOL_CALL], content=None, reasoning_content="Low")
    traces, rows = played(db, chat(called), chat(), chat(), chat(), Reply(refused(), status=400))
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["name"], run["state"], run["recorder_errors"]) == ("games", "finished", 0)
    assert len(rows) == len(traces) == 4
    assert {row["eval_name"] for row in rows} == {"verifiers_guess"}
    assert [row["generation"] for row in rows] == [0, 1, 0, 1]
    groups = [row["group"] for row in rows]
    assert (groups[0], groups[2]) == (groups[1], groups[3])
    assert groups[0] != groups[2]
    for trace, row in zip(traces[:3], rows, strict=False):
        assert (row["status"], row["stop_reason"], row["reward"]) == ("ok", "stop", trace.reward)
        assert row["rewards"] == {name: reward.score for name, reward in trace.rewards.items()}
        assert row["reward_weights"] == {"right": 2.0, "brief": 0.5}
        assert (row["metadata"]["metrics"], row["task"]) == ({"letters": 1}, trace.task.key)
    first = rows[0]
    assert first["messages"] == [
        {"role": "user", "content": "Guess."},
        {"role": "assistant", "content": None, "reasoning_content": "Low", "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "too low", "name": "guess"},
        {"role": "assistant", "content": "4"},
    ]
    (tool,) = [entry for entry in first["actions"] if entry["action"]]
    assert (tool["action"], tool["observation"]) == (TOOL_CALL["function"], "too low")
    assert (first["turns"], first["tool_calls"], first["sampling"]) == (2, 1, {"temperature": 0.5})
    failed = rows[3]
    assert (failed["status"], failed["scored"] is None or failed["reward"] != failed["reward"]) == ("error", True)
    assert failed["error"].startswith("ProviderError: upstream 400")


def test_ids_and_log_probs_of_a_trace_are_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verifiers.v1.env import Env

    play = Env.run_episode

    async def with_ids(env: Any, *args: Any, **kwargs: Any) -> Any:
        """Add what a training client would have added: the engine's ids."""
        episode = await play(env, *args, **kwargs)
        for node, ids, mask in zip(
            episode.traces[0].nodes, ([1, 5], [6, 7, 2], [8, 9], [6, 4, 2]), ([0] * 2, [0, 1, 1]) * 2, strict=True
        ):
            node.token_ids, node.mask, node.logprobs = ids, [bool(one) for one in mask], [-0.5] * sum(mask)
        return episode

    monkeypatch.setattr(Env, "run_episode", with_ids)
    called = chat(chat_choice(tool_calls=[TOOL_CALL], content=None))
    _, rows = played(tmp_path / "a.db", called, chat(), called, chat(), each=1)
    for row in rows:
        assert (row["prompt_ids"].tolist(), row["mask"].tolist()) == ([1, 5, 6], [1, 1, 0, 0, 0, 1, 1])
        assert row["completion_ids"].tolist() == [7, 2, 8, 9, 6, 4, 2]
        assert row["logprobs"].tolist() == [-0.5, -0.5, 0, 0, 0, -0.5, -0.5]


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes an Env of verifiers.v1, not a dict"):
        record_verifiers({})
