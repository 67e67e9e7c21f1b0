"""Records `LLM.generate` and `LLM.chat` of vLLM's engine in this process, also when TRL's colocate mode calls them.

What is relied on (vLLM 0.32), and what is lost without it:
    vllm.entrypoints.llm.LLM.generate, .chat -> [RequestOutput]   the calls
    LLM.wait_for_completion() -> [RequestOutput]                  the calls of `LLM.enqueue` (0.16 on)
    RequestOutput.prompt_token_ids, .request_id, .outputs         what the model was given
    CompletionOutput.token_ids, .text, .logprobs, .finish_reason  what it answered
    LLM.get_default_sampling_params()                             sampling parameters that the caller did not set

A prompt of embeddings has no ids. Generations that the engine makes in other processes are not seen.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.capture.calls import Generation, answered, generating_strand, generation
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import plain

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_tokens", "min_tokens", "n", "seed", "stop", "stop_token_ids", "ignore_eos",
)  # fmt: skip

Finishes = list[tuple[Any, str | None]]
"""Lists of token ids, the same objects that the seam's caller gets, and why each ended."""


class Seen(NamedTuple):
    """A call that returned, as a seam sees it; see `Generation`."""

    sequences: list[Sequence]
    sampling: dict[str, Any]
    request_id: str | None = None


def install() -> None:
    """Patch `LLM`, now or when vllm is imported."""
    patches.when_imported("vllm.entrypoints.llm", _attach)


def _attach(module: Any) -> None:
    for name in ("generate", "chat", "wait_for_completion"):
        patches.method(module.LLM, name, recorded("vllm", _seen, _finishes))


def recorded(
    seam: str,
    describe: Callable[[Mapping[str, Any], Any, Finishes], Seen],
    finishes: Callable[[Any], Finishes] = lambda _: [],
) -> Callable[[Method], Method]:
    """Return a patch that records each call of a method as one generation, unless it is inside another one.

    `describe` makes the record from the call's arguments by name, its result, and the finishes from inner seams;
    `finishes` returns the ones to report if the method is itself inside a seam.
    """

    def generate(original: Method, *args: Any, **kwargs: Any) -> Any:
        strand = generating_strand()
        if strand is None:
            output = original(*args, **kwargs)
            tell(lambda: finishes(output))
            return output
        with generation(strand, seam) as begun, _hearing() as heard:
            output = original(*args, **kwargs)
        seconds = time.perf_counter() - begun.began
        with guard(f"recording a generation seen at {seam}"), answered(begun):
            # `seen` reads arguments by name, however they were passed.
            bound = inspect.signature(original).bind(*args, **kwargs)
            bound.apply_defaults()
            sequences, sampling, request_id = describe(bound.arguments, output, heard)
            strand.tree.collector.add(
                Generation(begun.order, begun.began, seconds, sequences, sampling, seam, strand, request_id=request_id)
            )
        return output

    return patch(generate)


_listening: dict[Strand, Finishes] = {}


@contextmanager
def _hearing() -> Iterator[Finishes]:
    """Collect how the parts of a generation finished, as the seams inside report it."""
    heard: Finishes = []
    strand = current_strand()
    if strand is None:  # the rollout function has returned in the meantime
        yield heard
        return
    _listening[strand] = heard
    try:
        yield heard
    finally:
        del _listening[strand]


def tell(finishes: Callable[[], Finishes]) -> None:
    """Report from an inner seam why its sequences ended: its caller may not pass that on to the recording seam."""
    with guard("reading why a generation ended"):
        strand = current_strand()
        for above in strand.path if strand is not None and strand.generating else ():
            if above in _listening:
                _listening[above] += finishes()


def sampling_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that are set."""
    values = {name: parameters.get(name) for name in _SAMPLING}
    return {name: plain(value) for name, value in values.items() if value is not None and value != []}


def array_of(ids: Any) -> Ids | None:
    """Copy ids to an array (L,); None stays None."""
    return None if ids is None else np.array(ids, np.int32)


def _seen(arguments: Mapping[str, Any], outputs: Any, _: Finishes) -> Seen:
    requests = _requests(outputs)
    sequences = []
    for request in requests:
        context = array_of(request.prompt_token_ids)
        for answer in request.outputs:
            ids, text = array_of(answer.token_ids), answer.text or None
            sequences.append(Sequence(context, ids, answer.finish_reason, _sampled_logprobs(answer), text))
    return Seen(sequences, _sampling(arguments), requests[0].request_id if len(requests) == 1 else None)


def _finishes(outputs: Any) -> Finishes:
    return [(answer.token_ids, answer.finish_reason) for request in _requests(outputs) for answer in request.outputs]


def _requests(outputs: Any) -> list[Any]:
    """Return the outputs of generations: an engine's queue may hold others."""
    return [output for output in outputs if hasattr(output, "prompt_token_ids") and isinstance(output.outputs, list)]


def _sampled_logprobs(answer: Any) -> NDArray[np.float32] | None:
    """Return (S,) log-probabilities; NaN for a token that is not among those that the engine returned."""
    if answer.logprobs is None:
        return None
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    entries = (position.get(token) for token, position in pairs)
    return np.array([np.nan if entry is None else entry.logprob for entry in entries], np.float32)


def _sampling(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters; if each prompt has its own, those that all have in common."""
    if "sampling_params" not in arguments:
        return {}  # they were passed to `enqueue`
    parameters = arguments["sampling_params"]
    if parameters is None:
        parameters = arguments["self"].get_default_sampling_params()
    several = parameters if isinstance(parameters, Seq) else [parameters]
    every = [sampling_of({name: getattr(sampling, name, None) for name in _SAMPLING}) for sampling in several]
    return {name: value for name, value in every[0].items() if all(sampling.get(name) == value for sampling in every)}
