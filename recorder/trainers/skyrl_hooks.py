"""Records a training of SkyRL from its `TrajectoryLogger`: see docs/recording.md.

What is relied on (skyrl 0.3.0): the arguments of `TrajectoryLogger.log()`, and the keys of `GeneratorOutput`.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from logs_ui.recorder.guard import guard
from logs_ui.recorder.trainers.trainer_samples import record_samples, run_of


def recorded(logger: Any, config: Any) -> Any:
    """Records all that a `TrajectoryLogger` is given before it logs; `config` is the trainer's. Returns the logger."""
    log = logger.log

    @functools.wraps(log)
    def logged(**given: Any) -> None:
        with guard("recording trajectories of SkyRL"):
            trainer, mode = config.trainer, "eval" if given["wandb_key"].endswith("eval") else "train"
            about = {"name": trainer.run_name, "model": trainer.policy.model.path, "tokenizer": given["tokenizer"]}
            run = run_of("skyrl", lambda: {**about, "config": vars(config)})
            run.log(given["global_step"] or 0, given["generator_output"].get("rollout_metrics") or {})
            record_samples(run, given["global_step"] or 0, mode, _samples(config, mode, given))
        log(**given)

    logger.log = logged
    return logger


def _samples(config: Any, mode: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begin, output, prompts = "eval_" if mode == "eval" else "", given["generator_output"], given["prompts"]
    copies, sampling = (getattr(config.generator, begin + it) for it in ("n_samples_per_prompt", "sampling_params"))
    columns = {**output, "rollout_metrics": None, "num_turns": given.get("num_turns_list")}
    # Prompts are those of the last batch if several were sampled, and of trajectories where the samples are steps.
    is_exact = len(prompts) == len(output["response_ids"]) and not config.trainer.algorithm.dynamic_sampling.type
    for i in range(len(output["response_ids"])):
        it = {name: values[i] for name, values in columns.items() if values}
        if not it.get("is_last_step", True):  # its tokens are in the prompt of the trajectory's next step
            continue
        ids, trajectory = it["prompt_token_ids"], it.get("trajectory_ids")
        counted = {"num_turns": it.get("num_turns"), "generation_time": it.get("trajectory_generation_times")}
        yield {
            "prompt": prompts[i] if is_exact else given["tokenizer"].decode(ids), "ids": (ids, it["response_ids"]),
            "mask": it["loss_masks"], "finish": it.get("stop_reasons"), "logprobs": it.get("rollout_logprobs"),
            "rewards": {"reward": np.sum(it["rewards"])}, "sampling": vars(sampling),
            "group": trajectory.instance_id if trajectory else i // copies,
            "extra": {**counted, **(it.get("env_metrics") or {})},
        }  # fmt: skip
