"""Records a training of verl: `VERL_USE_EXTERNAL_MODULES=logs_ui.recorder.trainers.verl_hooks`, see docs/recording.md.

verl imports this file in each of its processes. What is relied on (verl 0.9.1): in both trainers `fit()`,
`_log_rollout_data(batch, ...)` once a step; the names of a batch's tensors.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from logs_ui.recorder.api.start_run import OpenRun
from logs_ui.recorder.capture.instruments.patch import patch, patches
from logs_ui.recorder.guard import guard
from logs_ui.recorder.trainers.samples import end_run, record_samples, run_of

_TENSORS = ("prompts", "responses", "loss_mask", "rollout_log_probs", "advantages", "rm_scores")
_DATASET = ("data_source", "reward_model", "extra_info", "ability")
_OTHERS = ("raw_prompt", "extra_fields", "num_turns", "agent_name", "tools_kwargs")
_LEFT_OUT = ("multi_modal_inputs", "raw_prompt_ids", "reward_extra_info", "uid")
_LOOP = "logs_ui.recorder.trainers.verl_agent_loop"
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "response_length"}


def _run(trainer: Any) -> OpenRun:
    config, plain = trainer.config, sys.modules["omegaconf"].OmegaConf.to_container
    about = {"name": config.trainer.experiment_name, "model": config.actor_rollout_ref.model.path}
    return run_of("verl", lambda: {**about, "config": plain(config, resolve=True), "tokenizer": trainer.tokenizer})


def _logged(original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    with guard("recording a batch of verl"):
        rows = _queued(batch) if hasattr(batch, "partition_id") else _sent(batch)
        record_samples(_run(trainer), trainer.global_steps, "train", (_sample(trainer, row) for row in rows))
    return original(trainer, batch, *args, **kwargs)


def _sample(trainer: Any, fields: dict[str, Any]) -> dict[str, Any]:
    rollout, ids = trainer.config.actor_rollout_ref.rollout, (fields.pop("prompts"), fields.pop("responses"))
    made, prompt, mask = fields.pop("min_global_steps", None), fields.pop("raw_prompt", None), fields.pop("loss_mask")
    # The advantage of the sample is the mean over the tokens that are trained on.
    trained = [advantage for advantage, is_ours in zip(fields.pop("advantages", ()), mask, strict=False) if is_ours]
    dataset = {name: fields.pop(name) for name in _DATASET if fields.get(name) is not None}
    is_ours = isinstance(extras := fields.get("extras"), dict) and "logs_ui" in extras  # from `verl_agent_loop`
    seen: dict[str, Any] = fields.pop("extras")["logs_ui"] if is_ours else {"calls": [], "limit": None}
    return {
        "prompt": trainer.tokenizer.decode(ids[0]) if prompt is None else prompt, "ids": ids, "mask": mask,
        "logprobs": fields.pop("rollout_log_probs", None), "rewards": {"score": sum(fields.pop("rm_scores"))},
        "advantage": sum(trained) / len(trained) if trained else None, "eval_name": dataset.get("data_source"),
        "finish": _finish(ids[1], rollout.response_length, trainer.tokenizer), "group": fields.get("uid"),
        "sampling": {ours: rollout.get(theirs) for ours, theirs in _SAMPLING.items()}, "policy_step": made,
        "calls": sorted(seen["calls"], key=lambda call: call[0]), "stop": seen["limit"],
        "staleness": None if made is None else max(trainer.global_steps - 1 - made, 0),
        **({"generation": fields.pop("session")} if "session" in fields else {}),
        "extra": {name: value for name, value in fields.items() if name not in _LEFT_OUT} | {"dataset": dataset},
    }  # fmt: skip


def _finish(response: Any, limit: int, tokenizer: Any) -> str | None:
    """Return why a response ended; None where the batch does not show it: it was aborted, or ran out of turns."""
    if len(response) >= limit:
        return "length"
    return "stop" if len(response) and response[-1] == getattr(tokenizer, "eos_token_id", None) else None


def _sent(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the samples of a `DataProto`, without padding."""
    width, others = batch.batch["prompts"].shape[1], batch.non_tensor_batch
    names = {"loss_mask": "response_mask", "rm_scores": "token_level_scores"}
    tensors = {name: batch.batch.get(names.get(name, name)) for name in _TENSORS[1:]}
    # The attention mask has the padded prompts, `width` columns, and then the padded responses.
    for i, is_kept in enumerate(batch.batch["attention_mask"].bool()):
        fields = {name: tensor[i][is_kept[width:]].tolist() for name, tensor in tensors.items() if tensor is not None}
        prompt = batch.batch["prompts"][i][is_kept[:width]].tolist()
        yield {**{name: values[i] for name, values in others.items()}, **fields, "prompts": prompt}


def _queued(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the samples that a `KVBatchMeta` names, from TransferQueue."""
    get, names = sys.modules["transfer_queue"].kv_batch_get, [*_TENSORS, *_DATASET, *_OTHERS]
    data = get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    fields = {name: data.get(name) for name in set(data.keys())}  # data[name] would be a list of a tensordict's own
    columns = {name: column.unbind() if name in _TENSORS else column.tolist() for name, column in fields.items()}
    for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        sample = {name: column[i].tolist() if name in _TENSORS else column[i] for name, column in columns.items()}
        # Keys are "uid_session_output".
        more, (uid, session, output) = sample.pop("extra_fields", None) or {}, key.rsplit("_", 2)
        sample |= {**more, **(more.get("reward_extra_info") or {}), "min_global_steps": tag.get("min_global_steps")}
        if not tag.get("is_padding"):  # a session may have several outputs
            yield {**sample, "uid": uid, "session": int(session), "output": int(output)}


def _fitted(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(trainer, *args, **kwargs)
    finally:
        end_run("verl", sys.exc_info()[1])


def _attach(module: Any) -> None:
    trainer = getattr(module, "RayPPOTrainer", None) or module.PPOTrainer
    for name, around in {"fit": _fitted, "_log_rollout_data": _logged}.items():
        patches.method(trainer, name, patch(around))


for _module in ("verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"):
    patches.when_imported(_module, _attach)
patches.when_imported("verl.experimental.agent_loop.tool_agent_loop", lambda _: importlib.import_module(_LOOP))
