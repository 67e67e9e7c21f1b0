"""Reads ATIF trajectories: of the trials of Harbor's jobs (Terminal-Bench), and files of their own.

A trial's record is its `result.json`, which Harbor writes when it ends; what lies beside it is read with it. Until then
`agent/trajectory.json` gives a running rollout with the same key. Other trajectories of a trial are no records.
"""

import math
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats._values import (
    key_of,
    micros,
    number,
    part,
    restore_columns,
    token_arrays,
    whole,
)
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, json_value
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Lack, Status, StopReason

_VERSION = re.compile(r"ATIF-v1\.")
_IMAGE = 8 << 20  # bytes of an image that is taken into its message; a larger one stays a path
_OF_TRIAL = re.compile(r"(.+?)/(?:steps/[^/]+/)?(?:user-)?agent/[^/]+")
_FIELDS = {"source", "message", "reasoning_content", "tool_calls", "observation"}  # of a step; the rest is metadata
_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_ENDS = {  # by the exception's type, empty without one, in this order, as error_policy.py of harbor 0.25 classifies it
    "$|Verifier|RewardFile": StopReason.DONE,
    "AgentTimeout": StopReason.TURN_LIMIT,  # the agent's own time is used up: no fault of the environment
    "(Context|Output).+Exceeded": StopReason.LENGTH,
    "AgentSafety|ContentPolicy": StopReason.STOP,
    "EnvironmentStart|Sandbox|AgentSetup|Healthcheck|MemoryLimit|SSH|GKE|RuntimeReq|AddTests|Download|"
    "ServiceOp|Vercel|Dspy|MissingExtra|Regrade": StopReason.ENVIRONMENT_ERROR,
    "Cancelled": StopReason.ABORTED,
    "": StopReason.EXCEPTION,
}
_LACKS = ("advantages", "why the model's answers ended", Lack.POLICY_VERSIONS)  # of trials
_STATUS = {"environment_error": Status.ERROR, "exception": Status.ERROR, "aborted": Status.ABORTED}


class AtifReader(Reader):
    """Reads trajectories of Harbor, and of others that write ATIF."""

    name, title = "atif", "ATIF and Harbor"
    marks = "JSON with a `schema_version` of ATIF; result.json with `trial_name`"
    lacks = (*Lack, "advantages", "rewards")  # of lone trajectories

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        is_trajectory = "steps" in head.keys and str(head.record.get("schema_version")).startswith("ATIF")
        return is_trajectory or head.keys >= {"trial_name", "task_name", "agent_info"}

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        if not _VERSION.match(version := str(record.get("schema_version", "ATIF-v1."))):
            note = f"{version[:40]} is not a version that is known: what is new in it may be missing."
            self.notes += [note] if note not in self.notes else []
        file = place.file.absolute()
        # A trajectory that continues another (`NAME.cont-2.json`) is no record: it is read together with the first one.
        inside, first = _OF_TRIAL.fullmatch(file.as_posix()), re.sub(r"\.cont-\d+$", "", file.stem)
        trial, damaged = Path(inside[1]) if inside else file.parent, list[Path]()
        if "trial_name" in record:
            yield self._trial(record, file.parent, damaged)
        elif inside and any((trial / name).exists() for name in ("result.json", "config.json")):
            if file == trial / "agent/trajectory.json" and not (trial / "result.json").exists():
                result = {"trial_name": trial.name, "task_name": trial.name.rpartition("__")[0] or trial.name}
                rollout = self._trial(result | {"config": _json(trial / "config.json", damaged)}, trial, damaged)
                yield replace(rollout, status=Status.RUNNING, stop_reason=None)
        elif first == file.stem or not file.with_name(f"{first}.json").exists():
            columns, shared = part(record, "extra", "logs_ui"), record.get("session_id")
            trajectory_id = record.get("trajectory_id") or (f"{shared}/{file.stem}/{place.number}" if shared else None)
            if columns:
                self.runs[None] = ImportedRun(ours=columns)
            fields = _fields([*_chain(file, damaged, record)], [])
            yield restore_columns(ImportedRollout(key_of(trajectory_id, place), **fields), columns)
        if damaged:  # which costs what is in it, and not what lies beside it
            raise RecordError(f"is read without {', '.join(path.name for path in damaged)}, which is damaged")

    def _trial(self, result: dict[str, Any], folder: Path, damaged: list[Path]) -> ImportedRollout:
        stages = [result, *(stage for stage in result.get("step_results") or [] if isinstance(stage, dict))]
        folders = [folder / "steps" / Path(str(stage.get("step_name"))).name for stage in stages[1:]] or [folder]
        calls: list[Any] = []
        for agent_result in (stage["agent_result"] for stage in stages if stage.get("agent_result")):
            for segment in (agent_result.pop("rollout_details", None) or [])[:1]:  # the agent's own
                contexts, answers, logprobs = (segment.get(name) or [] for name in _TOKENS)
                if len(contexts) == len(answers):  # a turn that has none is left out: nothing tells which one it was
                    calls += zip_longest(contexts, answers, logprobs if len(logprobs) == len(answers) else [])
        files = (stage_folder / "agent/trajectory.json" for stage_folder in folders)
        fields = _fields([trajectory for file in files for trajectory in _chain(file, damaged)], calls)
        failure = next((exception for stage in stages if (exception := part(stage, "exception_info"))), {})
        kind = str(failure.get("exception_type", ""))
        stop = next(stop for pattern, stop in _ENDS.items() if re.match(pattern, kind))
        status = _STATUS.get(stop, Status.OK)
        stop = StopReason.TIMEOUT if "Timeout" in kind else stop
        text = folder / "verifier/reward.txt"
        file_rewards = part({"all": _json(text.with_suffix(".json"), damaged)}, "all")
        if not file_rewards and text.is_file():
            file_rewards = {"reward": text.read_text(errors="replace").strip()}
        has_error = status != Status.OK or stop == StopReason.TIMEOUT
        lacking = {"reward": None} if kind.startswith(("Verifier", "RewardFile")) else {}
        rewards = part(result, "verifier_result").get("rewards") or file_rewards or lacking
        values = {str(name): number(value) for name, value in rewards.items()}
        if "reward" in values and not self.options.weights:  # Harbor's own; without it, all of them are summed
            fields |= {"reward": values["reward"], "weights": {name: float(name == "reward") for name in values}}
        config, job, task = part(result, "config"), folder.parent, str(result["task_name"])
        run_id, agent = str(config.get("job_id") or job.name), part(config, "agent")
        if run_id not in self.runs:
            settings = part({"all": _json(job / "config.json", damaged)}, "all")
            self.runs[run_id] = ImportedRun(job.name, None, settings.get("n_attempts"), config=settings, lacks=_LACKS)
        played = part(result, "agent_execution") or result
        start, end = (micros(played.get(name)) for name in ("started_at", "finished_at"))
        if start and end:
            fields |= {"created": start, "returned": end, "seconds": (end - start) / 1e6}
        fields["metrics"] |= part(result, "agent_result")
        fields["metadata"] |= {name: value for name, value in result.items() if value is not None}
        fields["model"] = part(result, "agent_info", "model_info").get("name") or fields["model"]
        return ImportedRollout(
            f"{job.name}/{result['trial_name']}", **{"weights": self.options.weights} | fields, rewards=values or None,
            group="/".join(str(name) for name in (job.name, task, agent.get("name"), agent.get("model_name")) if name),
            eval_name=result.get("source"), task=task, run=run_id, tags=[kind] if kind else [], status=status,
            stop_reason=stop, error=f"{kind}: {failure.get('exception_message')}" if has_error else None,
        )  # fmt: skip


def _fields(trajectories: Sequence[tuple[dict[str, Any], Path]], calls: list[Any]) -> dict[str, Any]:
    """Return fields of a rollout. `calls` have the ids of the model's calls; without them, those of steps are taken."""
    prompt, completion, turns = list[dict[str, Any]](), list[dict[str, Any]](), list[Turn]()
    steps, totals, times, sampled = [], dict[str, Any](), list[int](), []
    about: list[Any] = [
        {name: value for name, value in trajectory.items() if name != "steps"} for trajectory, _ in trajectories
    ]
    for place, (trajectory, file) in enumerate(trajectories):
        totals |= part(trajectory, "final_metrics")
        for step in trajectory["steps"]:
            is_copied, metrics = bool(step.get("is_copied_context")), part(step, "metrics")
            if place and is_copied:  # the trajectory before has it, or its summary
                continue
            is_answer = step.get("source") == "agent" and step.get("llm_call_count") != 0
            sampled += [[metrics.pop(name, None) for name in _TOKENS]] * (is_answer and not is_copied)
            # From the first answer that is the agent's own, and not copied, all messages are the completion.
            messages = completion if completion or (is_answer and not is_copied) else prompt
            messages += _messages(step, file.parent, is_answer=is_answer)
            turns += [Turn(tokens=whole(metrics.get("completion_tokens")))] * (is_answer and messages is completion)
            times += [time] if (time := micros(step.get("timestamp"))) else []
            rest = step | {"metrics": metrics or None}
            steps.append({name: value for name, value in rest.items() if name not in _FIELDS and value is not None})
    tokens, chains = _tokens(calls or sampled)
    return {
        "prompt": prompt, "completion": completion, "turns": turns, "tokens": tokens, "metrics": totals,
        "model": part(about[0], "agent").get("model_name") if about else None,
        "completion_tokens": whole(totals.get("total_completion_tokens")),
        "metadata": {"trajectories": about, "steps": steps} | ({"token_chains": chains} if chains > 1 else {}),
        "created": min(times, default=None), "returned": max(times, default=None),
        "seconds": (max(times) - min(times)) / 1e6 or None if times else None,
    }  # fmt: skip


def _messages(step: dict[str, Any], folder: Path, *, is_answer: bool) -> Iterator[dict[str, Any]]:
    """Yield a step's message, and its observations. What the agent's program did without a model is the user's."""
    calls = [
        {"id": call.get("tool_call_id"), "type": "function", "extra": call.get("extra"),
         "function": {"name": call.get("function_name"), "arguments": call.get("arguments")}}
        for call in step.get("tool_calls") or []
    ]  # fmt: skip
    role = "assistant" if is_answer else "system" if step.get("source") == "system" else "user"
    message = {"role": role, "content": _content(step.get("message"), folder), "tool_calls": calls or None}
    yield message | {"reasoning_content": step.get("reasoning_content")}
    for result in part(step, "observation").get("results") or []:
        reply = {"role": "tool" if calls else "user", "tool_call_id": result.get("source_call_id")}
        yield result | reply | {"content": _content(result.get("content"), folder)}


def _content(content: Any, folder: Path) -> Any:
    """Return text, or parts in OpenAI's form. An image below the trajectory's folder is taken in; other files never."""
    parts = []
    for entry in content if isinstance(content, list) else []:
        path = str(part(entry, "source").get("path"))
        file = (folder / path).resolve()
        if file.is_relative_to(folder.resolve()) and file.is_file() and file.stat().st_size <= _IMAGE:
            path = f"data:{entry['source'].get('media_type')};base64,{b64encode(file.read_bytes()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": path}} if entry.get("type") == "image" else entry)
    return parts or content


def _tokens(calls: Sequence[Sequence[Any]]) -> tuple[Tokens | None, int]:
    """Return the tokens of the longest chain of calls, of which each continues the one before (the last one, if several
    are as long), and the number of chains. A call is its whole context, its answer, and the answer's log-probs.
    """
    chains: list[tuple[int, list[int], list[float], list[int]]] = []
    for context, answer, logprobs in (call for call in calls if call[0] and call[1]):
        if not chains or context[: len(chains[-1][1])] != chains[-1][1]:
            chains.append((len(context), list(context), [], []))
        _, ids, values, mask = chains[-1]
        inserted, fits = len(context) - len(ids), logprobs is not None and len(logprobs) == len(answer)
        values += [math.nan] * inserted + (list(logprobs) if fits else [math.nan] * len(answer))
        mask += [0] * inserted + [1] * len(answer)
        ids += [*context[len(ids) :], *answer]
    start, ids, values, mask = max(reversed(chains), key=lambda chain: len(chain[3]), default=(0, [], [], []))
    return token_arrays(ids[:start], ids[start:], None if all(map(math.isnan, values)) else values, mask), len(chains)


def _chain(file: Path, damaged: list[Path], record: Any = None) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield a trajectory and those that continue it, each with its file."""
    files = set[Path]()
    # A file that refers to itself, or to an earlier one, ends the chain.
    while file not in files and (record := record or _json(file, damaged)) is not None:
        files.add(file)
        yield record, file
        file, record = file.parent / Path(record.get("continued_trajectory_ref") or file).name, None


def _json(file: Path, damaged: list[Path]) -> Any:
    """Return what a JSON file beside the record has; None without it, and if it is damaged, which is noted."""
    try:
        return json_value(file.read_bytes()) if file.is_file() else None
    except ValueError:
        damaged.append(file)
