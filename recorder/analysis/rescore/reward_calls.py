"""Calls reward functions on stored rollouts, as TRL's trainer calls them."""

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, Self

from logs_ui.recorder.analysis.rescore.reward_inputs import Inputs
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import error_line

RewardFunction = Callable[..., Any]
"""With TRL's own signature, `f(prompts, completions, **columns)` to a list of floats or None; plain or async."""

MOST_FAILURES = 100
"""A function that fails for this many first rollouts is not called again [ours]: it would fail for the rest."""


class RewardFunctionError(LogsUIError):
    """A reward function cannot be called on these rollouts."""


class Waiting:
    """Runs one event loop for all async functions, as in TRL, in a thread, because a notebook already runs one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "_loop" in self.__dict__:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def result(self, coming: Coroutine[Any, Any, Any]) -> Any:
        """Return or raise what the coroutine returns or raises."""
        return asyncio.run_coroutine_threadsafe(coming, self._loop).result()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        return loop


class AskedFunction:
    """Calls a reward function, and counts its failures."""

    def __init__(self, name: str, function: RewardFunction, waiting: Waiting) -> None:
        self.name = name
        self._function = function
        self._waiting = waiting
        self._asked = self._failed = 0
        self._last = ""

    def scores(self, inputs: Inputs) -> list[float | str]:
        """Return each row's score (NaN for None), or its error in one line.

        If the function raises for a batch, it is called again row by row. Raise RewardFunctionError if it cannot be
        called with these columns, or failed for all of the first `MOST_FAILURES` rollouts.
        """
        if not self._asked:
            self._check_signature(inputs)
        try:
            return self._counted(self._call(inputs))
        except Exception as error:  # noqa: BLE001 - the user's own function
            if len(inputs.prompts) == 1:
                self._last = _describe_error(error, inputs)
                return self._counted([error_line(error)])
        return [score for i in range(len(inputs.prompts)) for score in self.scores(inputs.only(i))]

    def check(self) -> None:
        """Check the function after all rollouts. Raise RewardFunctionError if it failed for all of them."""
        if self._asked and self._asked == self._failed:
            raise RewardFunctionError(f"{self.name}() failed for every rollout. {self._last}")

    def _counted(self, scores: list[float | str]) -> list[float | str]:
        self._asked += len(scores)
        failed = [score for score in scores if isinstance(score, str)]
        self._failed += len(failed)
        self._last = self._last or (failed[0] if failed else "")
        if self._failed >= MOST_FAILURES:
            self.check()
        return scores

    def _call(self, inputs: Inputs) -> list[float | str]:
        returned = self._function(**inputs.arguments())
        scores = list(self._waiting.result(returned) if inspect.iscoroutine(returned) else returned)
        if len(scores) != len(inputs.prompts):
            raise ValueError(f"it returned {len(scores)} rewards for {len(inputs.prompts)} completions")
        return [_number(score) for score in scores]

    def _check_signature(self, inputs: Inputs) -> None:
        arguments = inputs.arguments()
        try:
            inspect.signature(self._function).bind(**arguments)
        except TypeError as error:
            parameters = inspect.signature(self._function).parameters.values()
            plain = [p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
            lacking = [
                p.name for p in parameters if p.name in plain and p.default is p.empty and p.name not in arguments
            ]
            if lacking:
                raise RewardFunctionError(f"{self.name}() needs {_quoted(lacking)}. {_columns(inputs)}") from error
            more = [name for name in arguments if name not in plain]
            raise RewardFunctionError(
                f"{self.name}() does not take {_quoted(more)}, which TRL passes to every reward function: "
                "add **kwargs to its parameters."
            ) from error
        except ValueError:  # one written in C has no signature
            return


def _number(score: Any) -> float | str:
    value = math.nan if score is None else float(score)
    return f"it returned {value}" if math.isinf(value) else value


def _describe_error(error: Exception, inputs: Inputs) -> str:
    """Return the error in one line, with the existing columns if the function asked for a missing one."""
    line = error_line(error)
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    return f"{line}. {_columns(inputs)}" if isinstance(missing, str) and missing not in inputs.columns else line


def _columns(inputs: Inputs) -> str:
    there = _quoted(list(inputs.columns)) or "none"
    return f"Recorded columns: {there}. One that the dataset did not have then cannot be rebuilt."


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
