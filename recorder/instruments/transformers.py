"""transformers: `model.generate`, as rollout functions call it on the policy."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.calls import (
    Begun,
    CallLog,
    Generation,
    Ids,
    Sequence,
    answered,
    failed,
    generating,
    generating_strand,
)
from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments.patch import patches

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "do_sample",
    "max_new_tokens",
    "max_length",
)


def install() -> None:
    """Patches `GenerationMixin.generate`, now or when transformers is imported."""
    patches.when_imported(
        "transformers.generation.utils",
        lambda module: patches.method(module.GenerationMixin, "generate", _recorded),
    )


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        strand = generating_strand()
        if strand is None or not _is_policy(strand.tree.log, self):
            return original(self, *args, **kwargs)
        log = strand.tree.log
        begun = log.begin(strand, "generation", seam="transformers")
        try:
            with generating():
                output = original(self, *args, **kwargs)
        except BaseException as error:
            with guard("recording that a generation failed"):
                log.add(failed(begun, error))
            raise
        with guard("recording a generation of transformers"), answered(begun):
            _add(log, begun, self, args, kwargs, output)
        return output

    return generate


def _is_policy(log: CallLog, model: Any) -> bool:
    """Whether it is the trainer's model, and no judge. Wrapped or unwrapped, that is the one with the same parameters;
    a wrapper may add some of its own.
    """
    with guard("telling the trainer's model from others"):
        if log.model is None or model is log.model:
            return True
        first = next(iter(getattr(model, "parameters", tuple)()), None)
        return any(parameter is first for parameter in log.model.parameters())
    return True


def _add(log: CallLog, begun: Begun, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    seconds = time.perf_counter() - begun.began
    inputs = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
    if inputs is None:
        return  # generated from embeddings: there are no ids to record
    settings = _settings(model, args, kwargs)
    given = inputs.detach().cpu().numpy().astype(np.int32)
    contexts = _contexts(given, kwargs.get("attention_mask"))
    produced = getattr(output, "sequences", output).detach().cpu().numpy()[:, given.shape[1] :].astype(np.int32)
    copies = len(produced) // len(given)  # num_return_sequences
    limit = settings["max_new_tokens"] or (settings["max_length"] or 0) - given.shape[1]
    lengths, ended = _lengths(produced, _ids(settings["eos_token_id"]), settings["pad_token_id"])
    sequences = []
    for i, length in enumerate(lengths):
        sampled = produced[i, :length].copy()  # not a view, which would keep the whole batch alive
        finish = "length" if not ended[i] and length >= limit > 0 else "stop"
        sequences.append(Sequence(contexts[i // copies], sampled, finish))
    sampling = {name: settings[name] for name in _SAMPLING if settings[name] is not None}
    log.add(Generation(begun.order, begun.began, seconds, sequences, sampling, strand=begun.strand))


def _settings(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword, else the call's generation config, else the model's: as `generate` resolves them."""
    config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
    sources = [source for source in (config, model.generation_config) if source is not None]
    found = {}
    for name in (*_SAMPLING, "eos_token_id", "pad_token_id"):
        candidates = [kwargs.get(name), *(getattr(source, name, None) for source in sources)]
        found[name] = next((value for value in candidates if value is not None), None)
    return found


def _contexts(given: Ids, mask: Any) -> list[Ids]:
    """Of each of the (N, L) inputs: those that the attention mask keeps. Most often they stand together, and slicing
    takes a third of the time of choosing.
    """
    kept = np.ones(given.shape, np.bool_) if mask is None else mask.detach().cpu().numpy().astype(np.bool_)
    counts = kept.sum(axis=1).tolist()
    if not (kept[:, 1:] < kept[:, :-1]).any():  # padded on the left, or not at all
        return [row[len(row) - count :].copy() for row, count in zip(given, counts, strict=True)]
    return [row[own] for row, own in zip(given, kept, strict=True)]


def _ids(eos: Any) -> set[int]:
    if eos is None:
        return set()
    return set(eos) if isinstance(eos, list | tuple) else {int(eos)}


def _lengths(answers: Any, eos: set[int], pad: int | None) -> tuple[list[int], list[bool]]:
    """Of each of the (N, L) answers: how many ids were sampled, up to and with the first end token, and whether there
    is one; else those before the padding at the end.
    """
    count, length = answers.shape
    ends = np.zeros(answers.shape, np.bool_)
    for end in eos:  # a few: np.isin() takes three times as long
        ends |= answers == end
    kept = np.ones(answers.shape, bool) if pad is None else answers != pad
    # With a column more, the first of it counts where no other does.
    to_end = np.column_stack([ends, np.ones(count, bool)]).argmax(1) + 1
    to_padding = length - np.column_stack([kept[:, ::-1], np.ones(count, bool)]).argmax(1)
    ended: NDArray[np.bool_] = np.any(ends, axis=1)
    return np.where(ended, to_end, to_padding).tolist(), ended.tolist()
