"""Records `model.generate` and `model.generate_batch` of transformers, when a rollout calls them on the policy.

What is relied on (transformers 5.2 to 5.23), and what is lost without it:
    GenerationMixin.generate(inputs, generation_config, ...) -> (N, prompt and answer) ids, or .sequences    the calls
    ContinuousMixin.generate_batch(inputs, generation_config, ...) -> {id: .prompt_ids, .generated_tokens}   those calls
    model.generation_config             the calls: end and padding tokens, and sampling parameters, may be only there
    model.parameters()                  calls of the policy through a wrapper
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.capture.calls import Collector, Generation, answered, generating_strand, generation
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.model_answers import Sequence, TokenBatch, finish_of
from logs_ui.recorder.guard import guard

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample", "max_new_tokens", "max_length",
)  # fmt: skip
_STOPS = ("stopping_criteria", "custom_generate", "stop_strings", "max_time")


def install() -> None:
    """Patch the methods, now or when transformers is imported."""
    patches.when_imported(
        "transformers.generation.utils", lambda module: patches.method(module.GenerationMixin, "generate", _recorded)
    )
    patches.when_imported(
        "transformers.generation.continuous_batching.continuous_api",
        lambda module: patches.method(module.ContinuousMixin, "generate_batch", _recorded_batch),
    )


def _around(read: Callable[..., Any], generate: Method, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    strand = generating_strand()
    if strand is None or not _is_policy(strand.tree.collector, model):
        return generate(model, *args, **kwargs)
    with generation(strand, "transformers") as begun:
        output = generate(model, *args, **kwargs)
    with guard("recording a generation of transformers"), answered(begun):
        seconds, settings = time.perf_counter() - begun.began, _settings(model, args, kwargs)
        sequences = read(settings, output, *args, **kwargs)
        sampling = {name: settings[name] for name in _SAMPLING if settings[name] is not None}
        if sequences is not None:
            record = Generation(begun.order, begun.began, seconds, sequences, sampling, strand=strand)
            strand.tree.collector.add(record)
    return output


def _each_sequence(settings: dict[str, Any], output: dict[Any, Any], /, *_: Any, **__: Any) -> list[Sequence]:
    """Read what `generate_batch` returns."""
    ends, limit = _ends(settings["eos_token_id"]), settings["max_new_tokens"]
    return [
        Sequence(
            np.array(answer.prompt_ids, np.int32),
            np.array(ids := answer.generated_tokens, np.int32),
            finish_of(ids, ends, limit),
        )
        for answer in output.values()
    ]


def _is_policy(collector: Collector, model: Any) -> bool:
    """Return True if it is the trainer's model. Either may be wrapped, and have further parameters: it is enough if the
    first parameter of the model is one of the trainer's.
    """
    with guard("comparing a model with the trainer's"):
        if collector.model is None or model is collector.model:
            return True
        first = next(iter(getattr(model, "parameters", tuple)()), None)
        return any(parameter is first for parameter in collector.model.parameters())
    return True


def _token_batch(
    settings: dict[str, Any], output: Any, /, inputs: Any = None, *rest: Any, attention_mask: Any = None, **more: Any
) -> TokenBatch | None:
    """Read what `generate` returns. None if it generated from embeddings: there are no ids to record."""
    inputs = more.get("input_ids", inputs)
    if inputs is None:
        return None
    prompts, length = _array(inputs).astype(np.int32), inputs.shape[1]
    answers = _array(getattr(output, "sequences", output))[:, length:].astype(np.int32)
    limit = settings["max_new_tokens"] or (settings["max_length"] or 0) - length
    # Without other stops an answer that has no end token goes up to the limit: then even padding was sampled.
    is_stopped = bool(rest[1:]) or any(settings[name] for name in _STOPS)
    is_full = settings["eos_token_id"] is not None and answers.shape[1] == limit and not is_stopped
    return TokenBatch(
        prompts,
        None if attention_mask is None else _array(attention_mask).astype(np.bool_),
        answers,
        _ends(settings["eos_token_id"]),
        None if is_full else settings["pad_token_id"],
        limit,
    )


def _array(tensor: Any) -> NDArray[Any]:
    """Return a numpy array, which shares the memory of a tensor on the CPU."""
    array: NDArray[Any] = tensor.numpy(force=True)
    return array


def _settings(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Resolve settings as `generate` does: a keyword, else the call's generation config, else the model's."""
    config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
    settings: dict[str, Any] = {}
    for name in (*_SAMPLING, *_STOPS, "eos_token_id", "pad_token_id"):
        model_config = getattr(model, "generation_config", None)
        values = (kwargs.get(name), getattr(config, name, None), getattr(model_config, name, None))
        settings[name] = next((value for value in values if value is not None), None)
    return settings


def _ends(eos: Any) -> tuple[int, ...]:
    return () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


_recorded = patch(partial(_around, _token_batch))
_recorded_batch = patch(partial(_around, _each_sequence))
