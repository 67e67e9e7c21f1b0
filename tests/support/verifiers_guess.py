"""A taskset and a harness of verifiers, loaded by this file's name: a game that a chat loop plays in this process."""

from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness", "GuessTaskset"]


class GuessData(vf.TaskData):  # type: ignore[misc]
    answer: int = 4


class GuessTask(vf.Task[GuessData]):  # type: ignore[misc]
    @vf.reward(weight=2.0)  # type: ignore[untyped-decorator]
    async def right(self, trace: Any) -> float:
        return float(str(self.data.answer) in trace.last_reply)

    @vf.reward(weight=0.5)  # type: ignore[untyped-decorator]
    async def brief(self, trace: Any) -> float:
        return 1.0

    @vf.metric  # type: ignore[untyped-decorator]
    async def letters(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class GuessTaskset(vf.Taskset[GuessTask]):  # type: ignore[misc]
    def load(self) -> list[GuessTask]:
        return [GuessTask(GuessData(prompt="Guess.", answer=number), self.config.task) for number in (4, 5)]


class ChatConfig(vf.HarnessConfig):  # type: ignore[misc]
    pass


class ChatHarness(vf.Harness[ChatConfig]):  # type: ignore[misc]
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as client:
            while messages[-1]["role"] != "assistant":
                body = {"model": ctx.model, "messages": messages, "temperature": 0.5}
                reply = await client.post(f"{endpoint}/chat/completions", json=body)
                reply.raise_for_status()
                messages.append(reply.json()["choices"][0]["message"])
                calls = messages[-1].get("tool_calls") or ()
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": "too low"} for call in calls]
        return ProgramResult(exit_code=0, stdout="", stderr="")
