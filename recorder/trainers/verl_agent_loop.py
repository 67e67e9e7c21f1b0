"""Plays rollouts of verl, and passes on what only a loop sees: `default_agent_loop=logs_ui_tool_agent`.

What is relied on (verl 0.9.1): the methods below, an instance for each rollout, and `extras`, which verl leaves empty.
"""

import time
from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from logs_ui.recorder.guard import guard


@register("logs_ui_tool_agent")
class RecordedToolAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """Plays a rollout as verl's class does, and adds its calls and the limit that ended it to the output."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        self._began, self._seen = time.perf_counter(), dict[str, Any](calls=[], limit=None)
        output = await super().run(*args, **kwargs)
        with guard("passing on a rollout of verl"):  # reward functions get `extras` in the dataset's `extra_info`
            if "extras" not in {**(kwargs.get("extra_info") or {}), **output.extra_fields}:
                output.extra_fields["extras"] = {"logs_ui": self._seen}
        return output

    async def _handle_generating_state(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        # The items of a tuple are evaluated in order: the clock is read before the call.
        began, state = time.perf_counter(), await super()._handle_generating_state(data, *args, **kwargs)
        with guard("passing on a turn of verl"):
            self._seen["calls"].append([began - self._began, time.perf_counter() - began, None, None])
            self._seen["limit"] = None
            if len(data.response_mask) < self.response_length and data.messages[-1]["role"] != "assistant":
                # verl did not read it: it is the last turn that a limit allows. It may be an answer, or call tools.
                tools = [tool.tool_schema for tool in data._active_tools.values()]  # noqa: SLF001
                _, refused = await self.tool_parser.extract_tool_calls(data.response_ids, tools)
                self._seen["limit"] = "turn_limit" if refused else None
        return state

    async def _call_tool(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        began, answer = time.perf_counter(), await super()._call_tool(call, *args, **kwargs)
        with guard("passing on a tool call of verl"):
            made = {"name": call.name, "arguments": call.arguments}, answer[0].text
            self._seen["calls"].append([began - self._began, time.perf_counter() - began, *made])
            self._seen["limit"] = "length"  # unless the model is asked again: there is no room for the tools' answers
        return answer
