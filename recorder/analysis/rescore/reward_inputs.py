"""Rebuilds the arguments that TRL's trainer passed to a reward function, from stored rollouts.

As trl 1.16 calls one (`GRPOTrainer._calculate_rewards`):
    f(prompts=, completions=, completion_ids=, **columns, trainer_state=, log_extra=, log_metric=, environments=)
        columns        the dataset's columns, and the fields that the rollout function returned besides tokens, which
            take precedence
        completions    messages if the prompt is messages, a text if it is a text
            with a rollout function, and without tools: all tokens of the completion decoded as one assistant message,
            without special tokens, but with the environment's text
            with tools, as with an `environment_factory`: the messages of the model and the tools
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args

import orjson
from tokenizers import Tokenizer

from logs_ui.recorder import queries
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries import Database, Rollout
from logs_ui.recorder.storage.payload import first_answer
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Handed, SourceKind

PromptForm = Literal["messages", "text"]
"""The form of the dataset's prompts: lists of messages, or texts."""

_OURS = ("dataset", "dataset_prompt", "attribution", "traceback", "server_log", "notes")
"""Keys of a row's metadata that are not fields which the rollout function returned."""
_NOT_COLUMNS = ("prompt", "completion", "completion_ids", "prompts", "completions")

Message = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """Holds the arguments for N rollouts of one step, in the order of their groups."""

    prompts: list[Any]  # (N) messages, or texts
    completions: list[Any]  # (N) messages, or texts
    # (N) tokens of the completion, the model's and the environment's; empty if not recorded.
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]  # (N) values by name; None if a row lacks a column
    # Its `global_step`, `epoch` and `max_steps` at that time; nothing else of it is recorded.
    trainer_state: SimpleNamespace

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by name. What a function logs is ignored."""
        return {
            "prompts": self.prompts,
            "completions": self.completions,
            "completion_ids": self.completion_ids,
            **self.columns,
            "trainer_state": self.trainer_state,
            "log_extra": _log_nothing,
            "log_metric": _log_nothing,
        }

    def only(self, i: int) -> "Inputs":
        """Return the arguments for row `i` alone."""
        row = slice(i, i + 1)
        columns = {name: values[row] for name, values in self.columns.items()}
        return Inputs(self.prompts[row], self.completions[row], self.completion_ids[row], columns, self.trainer_state)


class Rebuilding:
    """Rebuilds the arguments of one run's reward functions."""

    def __init__(self, db: Database, run: Run, form: PromptForm | None = None) -> None:
        """`form` None infers the form of the prompts from the tokens: see `is_text`. Raise LogsUIError."""
        if form is not None and form not in get_args(PromptForm):
            raise LogsUIError(f"Prompts are messages or text, not {form!r}.")
        kinds = {source.kind for source in queries.run_sources(db, [run.id or 0]).get(run.id or 0, [])}
        source = queries.tokenizer_json(db, run.tokenizer) if run.tokenizer else None
        self._max_steps = run.max_steps
        self._form = form
        self._tokenizer = None if source is None else Tokenizer.from_buffer(source)
        self._is_whole = SourceKind.ROLLOUT in kinds
        self._has_environment = SourceKind.ENVIRONMENT in kinds and not self._is_whole
        special = self._tokenizer.get_added_tokens_decoder() if self._tokenizer else {}
        self._special = {index for index, token in special.items() if token.special}

    def inputs(self, rollouts: Sequence[Rollout]) -> Inputs:
        """Return the arguments for rollouts of one step that all have messages."""
        split = [(rollout, *self._split(rollout)) for rollout in rollouts]
        sample, prompt, _ = next((parts for parts in split if parts[0].tokens), split[0])
        is_text = self._form == "text" if self._form else self.is_text(sample, prompt)  # TRL, too, looks at one of them
        columns = [_columns(rollout.metadata) for rollout in rollouts]
        names = dict.fromkeys(name for row in columns for name in row)
        first = rollouts[0].row
        state = SimpleNamespace(global_step=first.policy_step, epoch=first.epoch, max_steps=self._max_steps)
        return Inputs(
            prompts=[_text_of(prompt) if is_text else prompt for _, prompt, _ in split],
            completions=[self._completion(rollout, answer, is_text=is_text) for rollout, _, answer in split],
            completion_ids=[
                [] if rollout.tokens is None else rollout.tokens.completion_ids.tolist() for rollout in rollouts
            ],
            columns={name: [row.get(name) for row in columns] for name in names},
            trainer_state=state,
        )

    def is_text(self, rollout: Rollout, prompt: Sequence[Message]) -> bool:
        """Return True if the prompt was a text: one user message, whose tokens have no chat template around it."""
        if len(prompt) != 1 or prompt[0].get("role") != "user" or self._tokenizer is None or rollout.tokens is None:
            return False
        text, ids = _text_of(prompt), rollout.tokens.prompt_ids.tolist()
        without_special = ids[next((i for i, token in enumerate(ids) if token not in self._special), len(ids)) :]
        if self._tokenizer.encode(text, add_special_tokens=False).ids == without_special:
            return True
        # The same text may have been tokenised in other pieces.
        return self._tokenizer.decode(without_special, skip_special_tokens=False).strip() == text.strip()

    def handed_text(self, rollout: Rollout) -> str:
        """Return the text that reward functions were handed of a rollout whose `handed` is `TEXT`."""
        completion = self._completion(rollout, self._split(rollout)[1], is_text=True)
        return completion if isinstance(completion, str) else _text_of(completion)

    def _split(self, rollout: Rollout) -> tuple[list[Message], list[Message]]:
        """Split the messages into the prompt, as TRL passed it, and what followed. That is the dataset's, whatever a
        rollout function sent; with an environment also what it showed first, but no tools that a template wrote.
        """
        first = first_answer(rollout.messages, rollout.row.turns)
        prompt, of_dataset = rollout.messages[:first], rollout.metadata.get("dataset_prompt")
        if isinstance(of_dataset, list):
            rest = [message for message in prompt if message.get("role") != "system"]
            system = [message for message in of_dataset if message.get("role") == "system"]
            prompt = [*system, *rest] if self._has_environment else of_dataset
        return prompt, rollout.messages[first:]

    def _completion(self, rollout: Rollout, answered: Sequence[Message], *, is_text: bool) -> str | list[Message]:
        """Return the decoded tokens as TRL does; what was answered, if tokens or tokenizer were not recorded."""
        is_whole = rollout.row.handed == Handed.TEXT if rollout.row.handed else is_text or self._is_whole
        if self._tokenizer is None or rollout.tokens is None or not is_whole:
            return _text_of(answered) if is_text else _with_tools(answered)
        whole = self._tokenizer.decode(rollout.tokens.completion_ids.tolist(), skip_special_tokens=True)
        return whole if is_text else [{"role": "assistant", "content": whole}]


def _log_nothing(*_: Any, **__: Any) -> None:
    """Replace the trainer's `log_extra` and `log_metric`."""


def _columns(metadata: Mapping[str, Any]) -> dict[str, Any]:
    dataset = metadata.get("dataset")
    columns = dict(dataset) if isinstance(dataset, dict) else {}
    returned = {name: value for name, value in metadata.items() if name not in _OURS}
    return {name: value for name, value in (columns | returned).items() if name not in _NOT_COLUMNS}


def _text_of(messages: Sequence[Message]) -> str:
    return "\n".join(str(message.get("content") or "") for message in messages)


def _with_tools(messages: Sequence[Message]) -> list[Message]:
    """Return messages as TRL has them: arguments of calls as dicts, tool messages with the tool's name, and no empty
    reasoning.
    """
    called: list[str] = []
    rebuilt = []
    for stored in messages:
        message = {name: value for name, value in stored.items() if name != "reasoning_content" or value}
        if message.get("tool_calls"):
            calls = [_call(call) for call in message["tool_calls"]]
            called = [str(call["function"].get("name")) for call in calls]
            rebuilt.append(message | {"tool_calls": calls})
        elif message.get("role") == "tool" and "name" not in message and called:
            rebuilt.append({"role": "tool", "name": called.pop(0), "content": message.get("content")})
        else:
            rebuilt.append(message)
    return rebuilt


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return {"type": "function", "function": {"name": "", "arguments": {}}}
    arguments = function.get("arguments")
    return {"type": "function", "function": {**function, "arguments": _parse_arguments(arguments)}}


def _parse_arguments(arguments: Any) -> Any:
    try:
        return orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return arguments
