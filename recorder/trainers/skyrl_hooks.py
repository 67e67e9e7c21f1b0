"""Records a training of SkyRL from its `TrajectoryLogger`: see docs/recording.md.

What is relied on (skyrl 0.3.0): the arguments of `TrajectoryLogger.log()`, and the keys of `GeneratorOutput`.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from logs_ui.recorder.guard import guard
from logs_ui.recorder.trainers.samples import record_samples, run_of


def recorded(logger: Any, config: Any) -> Any:
    """Record all that a `TrajectoryLogger` is given before it logs; `config` is the trainer's. Return the logger."""
    log = logger.log

    @functools.wraps(log)
    def logged(**arguments: Any) -> None:
        with guard("recording trajectories of SkyRL"):
            trainer, mode = config.trainer, "eval" if arguments["wandb_key"].endswith("eval") else "train"
            about = {"name": trainer.run_name, "model": trainer.policy.model.path, "tokenizer": arguments["tokenizer"]}
            run = run_of("skyrl", lambda: {**about, "config": vars(config)})
            run.log(arguments["global_step"] or 0, arguments["generator_output"].get("rollout_metrics") or {})
            record_samples(run, arguments["global_step"] or 0, mode, _samples(config, mode, arguments))
        log(**arguments)

    logger.log = logged
    return logger


def _samples(config: Any, mode: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begin, output, prompts = "eval_" if mode == "eval" else "", arguments["generator_output"], arguments["prompts"]
    copies, sampling = (getattr(config.generator, begin + name) for name in ("n_samples_per_prompt", "sampling_params"))
    # Each column has a value for each sample, except for the metrics of the whole batch, which are left out.
    columns = {**output, "rollout_metrics": None, "num_turns": arguments.get("num_turns_list")}
    # Prompts are those of the last batch if several were sampled, and of trajectories where the samples are steps.
    is_exact = len(prompts) == len(output["response_ids"]) and not config.trainer.algorithm.dynamic_sampling.type
    for i in range(len(output["response_ids"])):
        sample = {name: values[i] for name, values in columns.items() if values}
        if not sample.get("is_last_step", True):  # its tokens are in the prompt of the trajectory's next step
            continue
        ids, trajectory = sample["prompt_token_ids"], sample.get("trajectory_ids")
        counted = {"num_turns": sample.get("num_turns"), "generation_time": sample.get("trajectory_generation_times")}
        yield {
            "prompt": prompts[i] if is_exact else arguments["tokenizer"].decode(ids),
            "ids": (ids, sample["response_ids"]), "mask": sample["loss_masks"], "finish": sample.get("stop_reasons"),
            "logprobs": sample.get("rollout_logprobs"), "rewards": {"reward": np.sum(sample["rewards"])},
            "sampling": vars(sampling), "group": trajectory.instance_id if trajectory else i // copies,
            "extra": {**counted, **(sample.get("env_metrics") or {})},
        }  # fmt: skip
