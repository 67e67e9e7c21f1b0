"""Records a training of slime, or of its fork miles, from its hooks for logging: see docs/recording.md.

What is relied on (slime 624b824, miles 31f1ca9): the fields of `slime.utils.types.Sample`, and `args` as attributes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logs_ui.recorder.api.start_run import OpenRun
from logs_ui.recorder.guard import guard
from logs_ui.recorder.trainers.samples import record_samples, run_of

_FINISHES = {"completed": "stop", "truncated": "length", "aborted": "abort", "failed": "error"}
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_response_len"}
_DATASET = ("label", "index", "rollout_id", "weight_versions", "train_metadata", "session_id", "routing_key", "adapter")


def log_rollout(
    step: int, args: Any, samples: Sequence[Any], metrics: Any = None, seconds: float | None = None
) -> bool:
    """Record all samples of a rollout. Return False: the trainer's own logging goes on."""
    with guard("recording a rollout of slime"):
        _run(args).log(step, {**(metrics or {}), "rollout_time": seconds})
        record_samples(_run(args), step, "train", _samples(args, samples))
    return False


def log_eval(step: int, args: Any, data: Mapping[str, Any], metrics: Any = None) -> bool:
    """Record the samples of an evaluation, by dataset. Return False: the trainer's own logging goes on."""
    with guard("recording an evaluation of slime"):
        _run(args).log(step, metrics or {})
        for name, result in data.items():
            record_samples(_run(args), step, "eval", _samples(args, result.get("samples") or (), name))
    return False


def _run(args: Any) -> OpenRun:
    model = args.hf_checkpoint
    about = {"name": vars(args).get("wandb_group"), "model": model, "config": vars(args)}
    return run_of("slime", lambda: about | {"tokenizer": _tokenizer(Path(model) / "tokenizer.json")})


def _tokenizer(file: Path) -> Any:
    """Return the tokenizer; None if the model is not in a local folder: the text that slime decoded serves then."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file)) if file.exists() else None


def _samples(args: Any, samples: Sequence[Any], eval_name: str | None = None) -> Iterator[dict[str, Any]]:
    has, prefix = vars(args), "eval_" if eval_name else "rollout_"
    key = (eval_name and has.get("eval_reward_key")) or has.get("reward_key") or "reward"
    versions = [
        [int(version) for version in sample.weight_versions or () if str(version).isdigit()] for sample in samples
    ]
    newest = max(map(max, filter(None, versions)), default=0)  # the hook is not told the trainer's own version
    for sample, made in zip(samples, versions, strict=True):
        with guard("recording a sample of slime"):
            extra = dict(sample.reward) if isinstance(sample.reward, Mapping) else {key: sample.reward}
            counts = {**vars(sample.spec_info), **vars(sample.prefix_cache_info), "remove_sample": sample.remove_sample}
            extra["non_generation_time"] = sample.non_generation_time
            begin = len(sample.tokens) - sample.response_length
            dataset = (sample.metadata or {}) | {
                name: value for name in _DATASET if (value := getattr(sample, name, None)) is not None
            }
            yield {
                "prompt": sample.prompt, "ids": (sample.tokens[:begin], sample.tokens[begin:]),
                "mask": sample.loss_mask, "logprobs": sample.rollout_log_probs, "text": sample.response,
                "finish": _FINISHES.get(sample.status.value),
                "rewards": {key: extra.pop(key, None)}, "group": sample.group_index, "eval_name": eval_name,
                "policy_step": min(made, default=None), "staleness": newest - min(made) if made else None,
                "sampling": {ours: has.get(prefix + theirs) for ours, theirs in _SAMPLING.items()},
                "extra": {**extra, **{name: count for name, count in counts.items() if count}, "dataset": dataset},
            }  # fmt: skip
