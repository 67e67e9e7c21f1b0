"""Reads dumps of NeMo-RL and ART: one record a rollout."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from logs_ui.recorder.importing.formats._values import conversation, decode_json, halves, part, token_arrays
from logs_ui.recorder.importing.formats.mapped import MappedReader
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedScalars, ImportOptions, Turn
from logs_ui.recorder.importing.source_files import Place, RecordError
from logs_ui.recorder.vocabulary import Dropped, Lack, Mode

_DIFFERENCE = "sampling/sampling_logp_difference/mean"  # TRL's name, which checks know
_ROLES = "roles of trained messages (inferred from the loss mask)"


class NemoReader(MappedReader):
    """Reads `train_data_step{n}.jsonl`, and `val_data_step{n}.jsonl`, which has messages in place of tokens."""

    name, title = "nemo-rl", "NeMo-RL"
    marks = "JSONL with `content`, `rewards` and `idx`"
    lacks = (*(lack for lack in Lack if lack != Lack.WEIGHTS), _ROLES)
    _lists = ("token_ids", "token_loss_mask", "generation_logprobs", "prev_logprobs", "advantages")
    _others = ("content", "rewards", "filtered_rewards", "input_lengths", "sample_loss_mask", "idx")
    declared: ClassVar = {}
    drops = (*_lists, *_others)

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        self._apart: dict[int, Any] = {}  # by step: the sum of its differences, and the number of their tokens

    def rollouts(self, record: Any, place: Place) -> Iterator[Any]:
        # Each value is a list of one; where dynamic sampling left out a sample, the values of what was kept are empty.
        values = {
            key: (value or [None])[0] if isinstance(value, list) and len(value) < 2 else value
            for key, value in record.items()
        }
        (rollout,) = super().rollouts(values, place)
        total, count = self._apart.get(rollout.step, (0.0, 0))
        yield from [rollout, ImportedScalars(rollout.step, {_DIFFERENCE: total / count})] if count else [rollout]

    def more(self, row: Any, place: Place) -> dict[str, Any]:
        match, texts = re.search(r"_data_step(\d+)\.jsonl", place.file.name), row.get("content") or []
        step, reward = int(match[1]) if match else 0, row.get("filtered_rewards", row["rewards"])
        fields = {"step": step, "reward": None if reward is None else float(reward)}
        if not texts:
            raise RecordError("it has only the reward of a sample that dynamic sampling left out")
        if row.get("token_ids") is None:
            return fields | dict(zip(("prompt", "completion"), halves(texts), strict=True))
        ids, *lists = (row[name][: row["input_lengths"]] for name in self._lists)
        mask, sampled, trained, advantages = (np.array(values, float) for values in lists)
        is_sampled = mask > 0
        # The number of answers: of places where the mask goes from 0 to 1.
        answers = int(np.diff(is_sampled.astype(int), prepend=0).clip(0).sum())
        texts = [texts] if isinstance(texts, str) else texts
        first = max(len(texts) - 2 * answers + int(is_sampled[-1]), 0)  # from the first answer on they alternate
        # The first of several texts before the first answer is the system's, the others are the user's.
        roles = [*(["system"] if first > 1 else []), *["user"] * first][:first] + ["assistant", "user"] * len(texts)
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        start = int(is_sampled.argmax()) if answers else len(ids)
        is_known = answers > 0 and trained.any()  # all 0 if the trainer did not compute them
        differences = np.abs(trained - sampled)[is_sampled & is_known]
        self._apart[step] = np.add(self._apart.get(step, (0.0, 0)), (differences.sum(), len(differences)))
        logprobs = np.where(is_sampled, sampled, np.nan)[start:].tolist()
        return fields | {
            "mode": Mode.TRAIN, "prompt": messages[:first], "completion": messages[first:],
            "metrics": {"sampling_logp_difference": float(differences.mean())} if is_known else {},
            "advantage": float(advantages[is_sampled].mean()) if answers else None,
            "dropped": Dropped.FILTERED if row.get("sample_loss_mask") == 0 else None,
            "tokens": token_arrays(ids[:start], ids[start:], logprobs, is_sampled[start:].tolist()),
        }  # fmt: skip


class ArtReader(MappedReader):
    """Reads `trajectories/{train,val}/{step}.parquet`. Of version 2 the trajectory's JSON is read."""

    name, title = "art", "ART"
    marks = "Parquet with `group_index`, `group_metadata`, `messages` and `reward`"
    lacks = ("token ids", "log-probs", "advantages", Lack.TASKS, "reward functions")
    _json = ("tools", "logs", "group_metadata", "group_metrics", "group_logs")
    _whole = ("final_policy_version", "additional_histories")
    _others = ("format_version", "group_json", "trajectory_json", "messages", "metrics", "metadata")
    declared: ClassVar = {
        "group": "group_index", "generation": "trajectory_index", "reward": "reward", "step": "@path.step",
        "mode": "@path.mode", "constants": {"mode": "eval"},
        "cut": {"@path": r"/((?P<mode>train)|[^/]*)/((?P<step>\d+)\.)?[^/]*$"},
    }  # fmt: skip
    drops = (*_json, *_others)

    def rollouts(self, record: Any, place: Place) -> Iterator[Any]:
        # A group may have exceptions only.
        rollouts = [] if record["reward"] is None else [*super().rollouts(record, place)]
        about = {} if record.get("trajectory_index") else decode_json(record.get("group_json")) or {}
        fields = self._fields_of(self._columns_of(record, place))
        common: dict[str, Any] = {name: fields[name] for name in ("mode", "step", "group") if name in fields}
        common |= {"prompt": rollouts[0].prompt if rollouts else [], "completion": []}
        if None not in self.runs:
            described_run = self.describe(None)
            never = (Lack.ERRORS, Lack.POLICY_VERSIONS, Lack.STOP_REASONS)  # in version 1
            self.runs[None] = replace(
                described_run, lacks=(*described_run.lacks, *(() if record.get("trajectory_json") else never))
            )
        texts = [f"{exception['type']}: {exception['message']}" for exception in about.get("exceptions", ())]
        yield from rollouts
        yield from (ImportedRollout(f"{place.key}-{i}", error=error, **common) for i, error in enumerate(texts))

    def more(self, row: Any, place: Place) -> dict[str, Any]:  # noqa: ARG002 - as of others
        whole = decode_json(row.get("trajectory_json")) or {}
        entries = whole.get("messages_and_choices") or row["messages"] or []
        answers = [entry for entry in entries if "finish_reason" in entry]
        first = next(
            (i for i, entry in enumerate(entries) if "finish_reason" in entry or entry.get("trainable")), len(entries)
        )
        if calls := part(whole, "exchanges").get("chat_completions"):  # the last one repeats what was said before it
            answers = [call["response"]["choices"][0] for call in calls]
            first, entries = len(calls[0]["request"]["messages"]), [*calls[-1]["request"]["messages"], answers[-1]]
        if not entries:
            raise RecordError("it has no messages, and no exchanges of chat completions, the only API that is read")
        messages = [entry.get("message", entry) for entry in entries]
        messages = [
            {**message, "tool_calls": decode_json(message.get("tool_calls")), "trainable": None} for message in messages
        ]
        metadata = {name: whole[name] for name in self._whole if name in whole}
        metadata |= {name: decode_json(row[name]) for name in self._json if row.get(name)}
        metadata = metadata | (decode_json(row["metadata"]) or {})
        return conversation(messages[:first], messages[first:]) | {
            "policy_step": whole.get("initial_policy_version"), "metadata": metadata,
            "model": calls[0]["request"].get("model") if calls else None,
            "turns": [Turn(finish=answer["finish_reason"]) for answer in answers],
            "metrics": decode_json(row["metrics"]) or {},
        }  # fmt: skip
