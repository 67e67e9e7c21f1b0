"""Generates as a `trl.GRPOTrainer` (0.29.1 and later) does: with transformers, or by its `vllm_generation`."""

import copy
import importlib.metadata
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from logs_ui.rollout.models.backends import GenerationError, Sampling
from logs_ui.rollout.models.token_episode import Answer

_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def engine_of(trainer: Any) -> "Engine":
    """Return the engine that matches how the trainer itself generates."""
    return _VLLM(trainer) if trainer.use_vllm else _Transformers(trainer)


class Engine(ABC):
    """Generates for a batch."""

    in_step: bool  # True if all ranks must make the same calls, each with as many rows

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._ends = _end_ids(trainer, self._tokenizer)
        self.stand_in = [next(iter(self._ends), 0)]  # a context for rows that only fill up the number

    @abstractmethod
    def generate(
        self, contexts: list[list[int]], limits: list[int], sampling: Sampling
    ) -> Sequence[Answer | GenerationError]:
        """Return an answer to each of the N contexts, with at most as many tokens as its limit, or why it cannot be
        trained on. `sampling.max_tokens` is at least the largest limit, and equal on all ranks.
        """

    def enter_thread(self) -> None:
        """Select CUDA's current device, which each thread has for itself."""
        if self._trainer.accelerator.device.type == "cuda":
            import torch

            torch.cuda.set_device(self._trainer.accelerator.device)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        from accelerate.utils import gather_object

        gathered: list[Any] = gather_object([value])
        return gathered

    @property
    def _is_distributed(self) -> bool:
        return int(self._trainer.accelerator.num_processes) > 1

    @property
    def _is_sharded(self) -> bool:
        """Return True if a rank needs the others to use the weights."""
        kind = self._trainer.accelerator.distributed_type
        return self._is_distributed and getattr(kind, "value", kind) in {"FSDP", "DEEPSPEED"}

    def _answer(self, ids: list[int], logprobs: list[float] | None, limit: int, stop: Sequence[str]) -> Answer:
        # One call generates for all rows up to the largest limit, so that an answer may be longer than its own
        # limit. It has ended by its last token or a stop text, or because something else ended it before its limit.
        cut = len(ids) > limit
        ids, logprobs = ids[:limit], None if logprobs is None else logprobs[:limit]
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        whole = self._tokenizer.decode(ids) if stop else ""
        ended = bool(ids) and (ids[-1] in self._ends or any(stop_text in whole for stop_text in stop))
        return Answer(ids, logprobs, "stop" if ended or (len(ids) < limit and not cut) else "length", text)


class _Transformers(Engine):
    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.in_step = self._is_sharded

    def generate(self, contexts: list[list[int]], limits: list[int], sampling: Sampling) -> list[Answer]:
        import torch
        from transformers import StoppingCriteriaList

        device, pad = self._trainer.accelerator.device, self._tokenizer.pad_token_id
        # Contexts are padded on the left, so that the sampled tokens of all rows begin in the same column.
        padding = [max(map(len, contexts)) - len(context) for context in contexts]
        ids = torch.tensor([[pad] * n + context for n, context in zip(padding, contexts, strict=True)], device=device)
        mask = torch.tensor([[0] * n + [1] * (ids.shape[1] - n) for n in padding], device=device)
        watch = _Watch(limits, self._ends, self._stop_check(sampling.stop, ids.shape[1]), ids.device)
        with self._unwrapped() as model, torch.no_grad():
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=self._config(sampling),
                stopping_criteria=StoppingCriteriaList([watch]),
            )
        sampled = output.sequences[:, ids.shape[1] :].tolist()
        logprobs = torch.stack(watch.logprobs, dim=1).tolist()
        return [
            self._answer(sampled[i][:length], logprobs[i][:length], limits[i], sampling.stop)
            for i, length in enumerate(watch.lengths.tolist())
        ]

    def _config(self, sampling: Sampling) -> Any:
        """Return the trainer's configuration, with what `sampling` sets."""
        config = copy.deepcopy(self._trainer.generation_config)
        for name, value in _set(sampling).items():
            setattr(config, name, value)
        if config.top_k is not None and config.top_k < 0:  # off, as vLLM writes it
            config.top_k = 0
        if config.temperature == 0:
            config.do_sample, config.temperature = False, 1.0
        config.max_new_tokens = sampling.max_tokens
        # `_Watch` reads the scores of each step, which transformers keeps only if it is asked to.
        config.return_dict_in_generate = config.output_scores = config.disable_compile = True
        return config

    def _stop_check(self, stop: Sequence[str], start: int) -> Callable[[Any], list[bool]] | None:
        """Return a criterion that tells which rows, sampled from `start` on, just ended with one of the texts. The
        library's own cannot read every tokenizer, and also counts the prompt.
        """
        if not stop:
            return None
        length = (
            max(len(stop_text.encode()) for stop_text in stop) + 3
        )  # tokens: of a byte at least, the first in a character

        def check(ids: Any) -> list[bool]:
            texts = self._tokenizer.batch_decode(ids[:, start:][:, -length:].tolist())
            return [any(stop_text in text for stop_text in stop) for text in texts]

        return check

    @contextmanager
    def _unwrapped(self) -> Iterator[Any]:
        """Return the model to generate with, unwrapped as the trainer does."""
        from trl.models import unwrap_model_for_generation

        trainer = self._trainer
        options = {
            "gather_deepspeed3_params": trainer.args.ds3_gather_for_generation,
            "generation_kwargs": trainer.generation_kwargs,
            "gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs,
        }
        parameters = inspect.signature(unwrap_model_for_generation).parameters  # the last one not until trl 1.10
        options = {name: value for name, value in options.items() if name in parameters}
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **options) as model,
            self._whole_weights(),
        ):
            yield model

    def _whole_weights(self) -> AbstractContextManager[Any]:
        """Gather the root module's weights, which the first version of FSDP shards outside of `forward`."""
        plugin = getattr(self._trainer.accelerator.state, "fsdp_plugin", None)
        if plugin is None or getattr(plugin, "fsdp_version", 1) != 1:
            return nullcontext()
        from torch.distributed.fsdp import FullyShardedDataParallel

        summoned: AbstractContextManager[Any] = FullyShardedDataParallel.summon_full_params(
            self._trainer.model_wrapped, recurse=False
        )
        return summoned


class _Watch:
    """A stopping criterion that ends each row at its own limit, and collects log-probs at each step."""

    def __init__(
        self, limits: list[int], ends: set[int], stop: Callable[[Any], list[bool]] | None, device: Any
    ) -> None:
        import torch

        self._limits = torch.tensor(limits, device=device)
        self._ends = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self._stop = stop
        self.logprobs: list[Any] = []  # one tensor (N) per step
        self.lengths = torch.zeros_like(self._limits)  # (N) sampled tokens, once a row has ended

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        token = input_ids[:, -1:]
        self.logprobs.append(scores[-1].log_softmax(-1).gather(-1, token).squeeze(-1))
        scores[-1].untyped_storage().resize_(0)  # those of all steps would be N x T x V numbers
        step = len(self.logprobs)
        done = (self._limits <= step) | torch.isin(token.squeeze(-1), self._ends)
        if self._stop is not None:
            done = done | torch.tensor(self._stop(input_ids), device=done.device)
        self.lengths = torch.where((self.lengths == 0) & done, step, self.lengths)
        return done


class _VLLM(Engine):
    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._generation = trainer.vllm_generation
        # Ranks that share one vLLM have to call it together.
        shared = self._generation.mode == "server" or int(self._generation.tensor_parallel_size) > 1
        self.in_step = self._is_distributed and (shared or self._is_sharded)

    def generate(
        self, contexts: list[list[int]], limits: list[int], sampling: Sampling
    ) -> Sequence[Answer | GenerationError]:
        with self._sampled_by(sampling):
            _, completions, logprobs, tops, *_ = self._generation.generate(contexts, None, 1)
        answers = []
        for i, ids in enumerate(completions):
            values = None if logprobs is None else _of_sampled(ids, logprobs[i], tops[i])
            answers.append(_learnable(self._answer(list(ids), values, limits[i], sampling.stop)))
        return answers

    @contextmanager
    def _sampled_by(self, sampling: Sampling) -> Iterator[None]:
        """Set `generation_kwargs`, which take precedence over all other settings, in both modes and all versions."""
        before = self._generation.generation_kwargs
        stop = {"stop": list(sampling.stop), "include_stop_str_in_output": True} if sampling.stop else {}
        options = {**_set(sampling), **stop, "max_tokens": sampling.max_tokens}
        self._generation.generation_kwargs = {**(before or {}), **options}
        try:
            yield
        finally:
            self._generation.generation_kwargs = before


def trl_is_before(major: int, minor: int) -> bool:
    """Return True if the installed release of TRL is older than that one."""
    numbers = importlib.metadata.version("trl").split(".")[:2]
    return [int(number) for number in numbers] < [major, minor]


def _set(sampling: Sampling) -> dict[str, float]:
    values = {name: getattr(sampling, name) for name in _SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _of_sampled(ids: Sequence[int], logprobs: Sequence[Any], tops: Sequence[Any]) -> list[float]:
    """Return the (S,) log-probs of the sampled tokens, out of those of each token and its most probable rivals."""
    of_tokens = (values[names.index(token)] for token, values, names in zip(ids, logprobs, tops, strict=True))
    return [math.nan if value is None else value for value in of_tokens]  # TRL writes None for NaN


def _learnable(answer: Answer) -> Answer | GenerationError:
    """Return an error if a log-prob is NaN: TRL before 1.11 takes it into the loss of the whole batch."""
    if answer.logprobs is None or not any(map(math.isnan, answer.logprobs)) or not trl_is_before(1, 11):
        return answer
    return GenerationError(
        "vLLM's log-probs contain NaN, and TRL before 1.11 would train on them: pip install -U trl. "
        "Often the model's numbers overflow: load it in bfloat16"
    )


def _end_ids(trainer: Any, tokenizer: Any) -> set[int]:
    """Return all ids that end an answer."""
    configs = [getattr(trainer, "generation_config", None), getattr(trainer.model, "generation_config", None)]
    settings = [tokenizer.eos_token_id, *(getattr(config, "eos_token_id", None) for config in configs)]
    return {
        int(end) for ids in settings if ids is not None for end in (ids if isinstance(ids, list | tuple) else [ids])
    }
