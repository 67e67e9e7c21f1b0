"""Writes recorded rollouts as other trainers write theirs: the files that `import_run()` reads."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from logs_ui.recorder import export_run, load_scalars


def as_verifiers(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """Episodes of verifiers, by our own export, which its reader has checked."""
    export_run(rows.run.iloc[0], "verifiers", folder / "traces.jsonl", db=db)


def as_atif(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """Trajectories, by our own export."""
    export_run(rows.run.iloc[0], "atif", folder, db=db)


def as_eval_protocol(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """Rows of Eval Protocol, by our own export."""
    export_run(rows.run.iloc[0], "eval-protocol", folder / "rows.jsonl", db=db)


def as_trl(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """`completions_*.parquet` of `log_completions`, a file a step, and the log that names the reward functions."""
    names = sorted({name for given in rows.rewards for name in given or ()})
    for step, found in _steps(rows[rows["mode"] == "train"]):
        columns = {
            "step": [step] * len(found),
            "prompt": [json.dumps(_halves(row)[0]) for row in found],
            "completion": [_text(_halves(row)[1]) for row in found],
            **{
                name: pa.array([_number((row["rewards"] or {}).get(name)) for row in found], "float64")
                for name in names
            },
            "advantage": pa.array([_number(row["advantage"]) for row in found], "float64"),
        }
        (folder / "completions").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / "completions" / f"completions_{step:05d}.parquet")
    log: list[dict[str, Any]] = []
    for step, found in _steps(rows[rows["mode"] == "train"]):
        parts = {name: _mean([(row["rewards"] or {}).get(name) for row in found]) for name in names}
        means = {f"rewards/{name}/mean": value for name, value in parts.items()}
        log.append({"step": step, **means, "reward": _mean([row["reward"] for row in found])})
    state = {"global_step": int(rows.step.max()), "log_history": log}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def as_verl(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """JSONL of `trainer.rollout_data_dir`, with the reward functions as extra columns."""
    for step, found in _steps(rows[rows["mode"] == "train"]):
        with (folder / f"{step}.jsonl").open("w") as file:
            for row in found:
                prompt, completion = _halves(row)
                record = {"input": _text(prompt), "output": _text(completion), "gts": None, "score": _reward(row)}
                uid = f"{row['group']}_{row['generation']}_0"
                file.write(json.dumps({**record, "step": step, **(row["rewards"] or {}), "uid": uid}) + "\n")


def as_nemo(rows: pd.DataFrame, db: Path, folder: Path) -> None:
    """`train_data_step{n}.jsonl` of NeMo-RL, of the rollouts that have token ids."""
    scalars = load_scalars(rows.run.iloc[0], db).to_dict("index")
    for step, found in _steps(rows[rows["mode"] == "train"]):
        with (folder / f"train_data_step{step}.jsonl").open("w") as file:
            for index, row in enumerate(row for row in found if row["completion_ids"] is not None):
                prompt, completion = list(row["prompt_ids"]), list(row["completion_ids"])
                asked, answered = _halves(row)
                mask, said = [1] * len(completion), [_text(answered)]
                if row["mask"] is not None and _answers(answered) == int(np.diff(row["mask"], prepend=0).clip(0).sum()):
                    mask, said = list(map(int, row["mask"])), [str(it.get("content") or "") for it in answered]
                end = len(mask) - mask[::-1].index(1)  # what follows the last answer is a message of its own there
                mask, completion = mask[:end], completion[:end]
                logprobs = [0.0] * end if row["logprobs"] is None else row["logprobs"][:end].tolist()
                before = [0.0] * len(prompt)
                # The recording has no log-probs of the trainer; without their difference it did not compute them.
                apart = _number(scalars.get(step, {}).get("sampling/sampling_logp_difference/mean"))
                trained = [0.0 if apart is None else it + apart for it in logprobs]
                record = {
                    "content": [*(str(message.get("content") or "") for message in asked), *said],
                    "rewards": [_reward(row)], "idx": [index], "sample_loss_mask": [1.0],
                    "input_lengths": [len(prompt) + len(completion)], "token_ids": [*map(int, prompt + completion)],
                    "token_loss_mask": [0] * len(prompt) + mask,
                    "advantages": before + [(_number(row["advantage"]) or 0.0) * it for it in mask],
                    "generation_logprobs": before + logprobs, "prev_logprobs": before + trained,
                }  # fmt: skip
                file.write(json.dumps(record) + "\n")


SHAPES: dict[str, Callable[[pd.DataFrame, Path, Path], None]] = {
    "verifiers": as_verifiers,
    "atif": as_atif,
    "eval-protocol": as_eval_protocol,
    "trl": as_trl,
    "verl": as_verl,
    "nemo-rl": as_nemo,
}


def _steps(rows: pd.DataFrame) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for step, found in rows.sort_values(["step", "group", "generation"]).groupby("step", sort=True):
        yield int(str(step)), [{str(key): value for key, value in row.items()} for row in found.to_dict("records")]


def _halves(row: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The messages before the first answer, and from there on."""
    first = next((i for i, it in enumerate(row["messages"]) if it["role"] == "assistant"), len(row["messages"]))
    return row["messages"][:first], row["messages"][first:]


def _text(messages: list[Any]) -> str:
    """What verl decodes: bare roles between the messages, and none before the first answer."""
    said = [f"{it['role']}\n{it.get('content') or ''}" for it in messages]
    return "\n".join(said).removeprefix("assistant\n")


def _answers(messages: list[Any]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _reward(row: dict[str, Any]) -> float | None:
    """NaN where a function returned it: these trainers sum without asking."""
    return math.nan if "nan" in (row["odd_rewards"] or {}).values() else _number(row["reward"])


def _mean(values: list[Any]) -> float:
    known = [number for value in values if (number := _number(value)) is not None]
    return sum(known) / max(len(known), 1)


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) or not np.isfinite(value) else float(value)
