"""Reads the arguments with which the releases of TRL call a rollout function. All their differences are in this file.

    trl             called with                        each prompt comes                      completions of it
    0.29.1 and on   (prompts, trainer)                 num_generations times, this rank's     one each time
    0.28, 0.29.0    (prompts, trainer), colocated      num_generations times, this rank's     one each time
                    (prompts, trainer), vLLM's server  num_generations times, all ranks'      one each time
    0.26, 0.27      (prompts, trainer), colocated      num_generations times, this rank's     one each time
                    (prompts, trainer), vLLM's server  once, all ranks'                       num_generations
    0.25            (prompts, args, processing_class)  once, all ranks'                       num_generations

If each prompt comes once, `prompt_ids` has one entry for each prompt, all other lists one for each completion. If the
prompts are those of all ranks, only the main process makes the call. Before 0.29.1 prompts are strings with the
template applied, and without vLLM the function is not called at all. CI trains with 0.25, 0.29.1 and 1.16.
"""

import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import text_key
from logs_ui.recorder.vocabulary import Handed

_ONE_CONTRACT = (0, 29, 1)
_REPEATED_PROMPTS = (0, 28, 0)
_TAGS = ("</think>", "<tool_call>")  # which a parsed answer does not hold
_UNSAID = {"role", "name", "tool_call_id"}  # keys of a message that are not what was said

NO_ROLLOUTS = (
    "record() takes a rollout_func, and this is a reward function. To record a training without a rollout_func, call "
    "record_trainer(trainer)"
)
_NO_TRAINER = "the rollout function was called while no trainer is generating: record such loops with start_run()"


@dataclass(frozen=True)
class Arguments:
    """Describes the arguments of one call of a rollout function."""

    trainer: Any
    prompts: list[Any]  # (N) The prompt of each requested completion
    copies: int  # number of completions that are requested for each prompt that was passed

    def with_each_prompts_ids(self, output: Any) -> Any:
        """Return the function's output with one entry of `prompt_ids` for each completion, as TRL makes it."""
        if self.copies == 1 or not isinstance(output, Mapping) or not isinstance(output.get("prompt_ids"), Sequence):
            return output
        repeated = [ids for ids in output["prompt_ids"] for _ in range(self.copies)]
        return {**output, "prompt_ids": repeated[: len(self.prompts)]}


def read_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], generating: Mapping[Any, int]) -> Arguments:
    """Read the arguments of a call. `generating` are the trainers that are in the middle of a batch, with the number of
    this process's rows.

    Raises:
        AttributeError, IndexError, KeyError: the arguments have none of the shapes above.
        LogsUIError: they are those of a reward function, or no trainer makes the call.
    """
    if "completions" in kwargs:
        raise LogsUIError(NO_ROLLOUTS)
    prompts = args[0] if args else kwargs["prompts"]
    if len(args) > 2 or "processing_class" in kwargs:
        config = args[1] if len(args) > 1 else kwargs["args"]
        trainer = _trainer_of(config, generating)
        if trainer is None:
            raise LogsUIError(_NO_TRAINER)
        once = True
    else:
        trainer = args[1] if len(args) > 1 else kwargs["trainer"]
        once = only_main_calls(trainer) and _trl() < _REPEATED_PROMPTS
    copies = _copies(len(prompts), trainer, generating.get(trainer, 0)) if once else 1
    return Arguments(trainer, [prompt for prompt in prompts for _ in range(copies)], copies)


def is_reward_function(function: Callable[..., Any]) -> bool:
    """Return True if the signature of a function is that of a reward function."""
    try:
        return "completions" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C
        return False


def only_main_calls(trainer: Any) -> bool:
    """Return True if the main process calls the rollout function for all ranks: no rank may wait for another then."""
    calls_one = getattr(trainer, "rollout_func", None) is not None
    return _trl() < _ONE_CONTRACT and calls_one and bool(trainer.use_vllm) and trainer.vllm_mode == "server"


def parses_answers(trainer: Any) -> bool:
    """Return True if the trainer parses answers into messages: GRPO does where the tokenizer says how."""
    tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
    says_how = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
    return hasattr(trainer, "tools") and says_how


def form_of(completion: Any, *, is_parsed: bool) -> Handed:
    """Return `TEXT` for a text, and for one message that has nothing else. If it is parsed, then only if tags are left
    in it: TRL decodes what it cannot parse.
    """
    if isinstance(completion, str):
        return Handed.TEXT
    is_bare = len(completion) == 1 and completion[0].keys() <= {"role", "content"}
    is_text = is_bare and (not is_parsed or any(tag in str(completion[0].get("content")) for tag in _TAGS))
    return Handed.TEXT if is_text else Handed.MESSAGES


def handed_columns(completion: Any, *, is_parsed: bool) -> dict[str, Any]:
    """Return the columns that say what reward functions were handed; `completion` is None for a text not seen. A text
    that a parser left has no key: it may have lost a part.
    """
    if completion is None:
        return {"handed": Handed.TEXT}
    form = form_of(completion, is_parsed=is_parsed)
    is_whole = form == Handed.MESSAGES or not is_parsed
    return {"handed": form, "handed_key": text_key(_text_of(completion)) if is_whole else None}


def _text_of(completion: Any) -> str:
    """Return the text of a completion; of messages all that the model said."""
    if isinstance(completion, str):
        return completion
    answers = [message for message in completion if message.get("role", "assistant") == "assistant"]
    parts = [part for message in answers for name, part in message.items() if part and name not in _UNSAID]
    # A content with images is a list of pieces, of which only the texts were said.
    texts = [piece["text"] for part in parts if isinstance(part, list) for piece in part if piece.get("text")]
    return "".join(map(str, texts or parts))


def tokens_of_generated(generated: Sequence[Any]) -> dict[str, Any]:
    """Return what a trainer's `_generate` returned in a rollout function's form.

    GRPO 1.8 on      prompt_ids, completion_ids, tool_mask, completions, logprobs, ...
    GRPO 0.26 on     prompt_ids, completion_ids, tool_mask, completions, number of tokens, logprobs, ...
    GRPO 0.24, 0.25  prompt_ids, completion_ids, number of tokens, logprobs, ...
    RLOO             prompt_ids, completion_ids, ...; none of the others
    """
    prompt_ids, completion_ids, *rest = generated
    has_mask = len(rest) > 3
    # Between the completions and the log-probabilities there may be the number of tokens, which is no list.
    logprobs = next((part for part in rest[2:4] if isinstance(part, list)), None) if has_mask else None
    if len(rest) == 3:
        logprobs = rest[1]
    mask = rest[0] if has_mask else None
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": mask}


def tokens_of_scored(scored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of a scored batch in a rollout function's form, for releases before 0.24."""
    prompts = zip(scored["prompt_ids"].tolist(), scored["prompt_mask"].tolist(), strict=True)
    completions = zip(scored["completion_ids"].tolist(), scored["completion_mask"].tolist(), strict=True)
    return {
        "prompt_ids": [[token for token, is_own in zip(*row, strict=True) if is_own] for row in prompts],
        # A truncated completion that the loss leaves out (`mask_truncated_completions`) has no 1 in its mask. It is as
        # long as completions can be, so that it has no padding.
        "completion_ids": [ids[: sum(mask)] if any(mask) else ids for ids, mask in completions],
        "logprobs": None,
    }


def _trainer_of(args: Any, generating: Mapping[Any, int]) -> Any:
    """Return the trainer with these arguments, or the only trainer that is generating; None without either."""
    trainers = [trainer for trainer in generating if trainer.args is args] or list(generating)
    return trainers[0] if len(trainers) == 1 else None


def _copies(prompts: int, trainer: Any, rows: int) -> int:
    """Return the number of completions for each prompt, from all ranks' rows or else the trainer's setting."""
    total = rows * int(trainer.accelerator.num_processes)
    return total // prompts if prompts and total and total % prompts == 0 else int(trainer.num_generations)


@functools.cache
def _trl() -> tuple[int, ...]:
    """Return the version of TRL; that of today's shape if it is not installed."""
    try:
        numbers = importlib.metadata.version("trl").split(".")[:3]
    except importlib.metadata.PackageNotFoundError:
        return _ONE_CONTRACT
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)
