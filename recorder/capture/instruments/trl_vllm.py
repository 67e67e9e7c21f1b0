"""Records generations of TRL's own ways to vLLM: `trainer.vllm_generation`, and the client of its server.

What is relied on (run on trl 0.29.1 and 1.16, read from 0.25 on), and what is lost without it:
    VLLMGeneration.generate -> (prompt_ids, completion_ids, logprobs, ...)   the calls, from 0.28 on; before that a
                                                     trainer calls the engine or the client itself
    VLLMGeneration.mode, .temperature, .max_completion_length, ...   its sampling parameters
    VLLMClient.generate, .chat -> {"prompt_ids": ..., "completion_ids": ..., "logprobs": ...}   the calls
    VLLMClient._post(...) -> a reply of vLLM's, whose lists of ids are the ones that the calls return   why each answer
                                                     ended, from 1.11 on; before that TRL's own server does not say it
    VLLMGeneration.model, .processing_class, .max_completion_length   the same, as far as the ids show it

`VLLMGeneration` gathers the prompts of all ranks and returns to each its slice of the answers: each rank records its
slice. With a server, only the main rank sees why they ended. The HTTP session retries below these seams: a call that
was sent three times is recorded once.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.instruments.vllm import Finishes, Seen, array_of, recorded, sampling_of, tell
from logs_ui.recorder.capture.model_answers import Sequence, end_tokens, finish_of
from logs_ui.recorder.capture.strands import current_strand

_SEAM = "trl-vllm"


def install() -> None:
    """Patch `VLLMGeneration` and `VLLMClient`, now or when they are imported."""
    patches.when_imported("trl.generation.vllm_generation", _attach_generation)
    for home in ("trl.generation.vllm_client", "trl.extras.vllm_client"):  # the latter until trl 0.27
        patches.when_imported(home, _attach_client)


def _attach_generation(module: Any) -> None:
    patches.method(module.VLLMGeneration, "generate", recorded(_SEAM, _generated))


def _attach_client(module: Any) -> None:
    for name in ("generate", "chat"):
        patches.method(module.VLLMClient, name, recorded(_SEAM, _replied))
    patches.method(module.VLLMClient, "_post", _telling)


@patch
def _telling(post: Method, *args: Any, **kwargs: Any) -> Any:
    reply = post(*args, **kwargs)
    tell(lambda: [(choice["token_ids"], choice["finish_reason"]) for choice in reply.get("choices", ())])
    return reply


def _generated(arguments: Mapping[str, Any], output: Any, heard: Finishes) -> Seen:
    """Read a result of `VLLMGeneration`. Ids of the log-probs follow these; in trl 0.28 a dict of other things does."""
    prompts, completions, logprobs, *more = output
    tops = more[0] if more and isinstance(more[0], list) else None
    generation = arguments["self"]
    shared = generation.mode == "server"  # otherwise the engine gets each prompt once for each answer
    parameters = {
        **vars(generation),
        "n": arguments["num_generations"] if shared else 1,
        "max_tokens": generation.max_completion_length,
        **(generation.generation_kwargs or {}),
    }
    ends = end_tokens(getattr(generation, "model", None), getattr(generation, "processing_class", None))
    by_ids = functools.partial(finish_of, ends=ends, limit=parameters["max_tokens"])
    requests = arguments["prompts"]
    if shared and all(isinstance(prompt, list) and isinstance(prompt[0], int) for prompt in requests):
        # The server got the first prompt of each group only. Rows are told apart by the prompts that they train on.
        prompts = requests
    return Seen(_sequences(prompts, completions, logprobs, tops, heard, by_ids), sampling_of(parameters))


def _replied(arguments: Mapping[str, Any], reply: Any, heard: Finishes) -> Seen:
    """Read a result of `VLLMClient`."""
    parts = (reply["prompt_ids"], reply["completion_ids"], reply.get("logprobs"), reply.get("logprob_token_ids"))
    parameters = {**arguments, **(arguments["generation_kwargs"] or {})}
    strand = current_strand()
    ends = end_tokens(None if strand is None else strand.tree.collector.model)
    by_ids = functools.partial(finish_of, ends=ends, limit=parameters.get("max_tokens"))
    return Seen(_sequences(*parts, heard, by_ids), sampling_of(parameters))


def _sequences(
    prompts: Any, completions: Any, logprobs: Any, tops: Any, heard: Finishes, by_ids: Callable[[Any], str | None]
) -> list[Sequence]:
    """Make the sequences of P prompts and their P x n answers; `by_ids` infers the finish if no seam reported it."""
    # Seams inside report the very lists that are returned here: their identity tells which answer a finish is of.
    finishes = {id(ids): finish for ids, finish in heard}
    copies = len(completions) // max(len(prompts), 1)
    contexts = [array_of(prompt) for prompt in prompts]
    return [
        Sequence(
            contexts[i // copies],
            array_of(sampled),
            finishes.get(id(sampled)) or by_ids(sampled),
            None if logprobs is None else _of_sampled(sampled, logprobs[i], None if tops is None else tops[i]),
        )
        for i, sampled in enumerate(completions)
    ]


def _of_sampled(sampled: Any, logprobs: Any, tops: Any) -> NDArray[np.float32]:
    """Return (S,) log-probabilities of the sampled tokens, from one number a token (until trl 0.28), or from those of
    the most probable tokens, whose ids are `tops`. NaN where TRL has None, which it makes of vLLM's NaN.
    """
    if tops is not None:
        tokens = zip(sampled, logprobs, tops, strict=True)
        logprobs = [values[ids.index(token)] if token in ids else None for token, values, ids in tokens]
    return np.array(logprobs, np.float32)
