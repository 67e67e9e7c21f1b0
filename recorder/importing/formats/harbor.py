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

from logs_ui.recorder.importing.formats._values import key_of, micros, number, part, restored, token_arrays, whole
from logs_ui.recorder.importing.imported import ImportedRollout, ImportedRun, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, json_value
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Lack, Status, StopReason

_VERSION = re.compile(r"ATIF-v1\.")
_IMAGE = 8 << 20  # bytes of an image that is taken into its message; a larger one stays a path
_OF_TRIAL = re.compile(r"(.+?)/(?:steps/[^/]+/)?(?:user-)?agent/[^/]+")
_SHOWN = {"source", "message", "reasoning_content", "tool_calls", "observation"}  # of a step; the rest is metadata
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
        inside, first = _OF_TRIAL.fullmatch(file.as_posix()), re.sub(r"\.cont-\d+$", "", file.stem)
        trial, damaged = Path(inside[1]) if inside else file.parent, list[Path]()
        if "trial_name" in record:
            yield self._trial(record, file.parent, damaged)
        elif inside and any((trial / name).exists() for name in ("result.json", "config.json")):
            if file == trial / "agent/trajectory.json" and not (trial / "result.json").exists():
                begun = {"trial_name": trial.name, "task_name": trial.name.rpartition("__")[0] or trial.name}
                running = self._trial(begun | {"config": _json(trial / "config.json", damaged)}, trial, damaged)
                yield replace(running, status=Status.RUNNING, stop_reason=None)
        elif first == file.stem or not file.with_name(f"{first}.json").exists():
            own, shared = part(record, "extra", "logs_ui"), record.get("session_id")
            named = record.get("trajectory_id") or (f"{shared}/{file.stem}/{place.number}" if shared else None)
            if own:
                self.runs[None] = ImportedRun(ours=own)
            yield restored(ImportedRollout(key_of(named, place), **_fields([*_chain(file, damaged, record)], [])), own)
        if damaged:  # which costs what is in it, and not what lies beside it
            raise RecordError(f"is read without {', '.join(it.name for it in damaged)}, which is damaged")

    def _trial(self, result: dict[str, Any], folder: Path, damaged: list[Path]) -> ImportedRollout:
        stages = [result, *(one for one in result.get("step_results") or [] if isinstance(one, dict))]
        folders = [folder / "steps" / Path(str(one.get("step_name"))).name for one in stages[1:]] or [folder]
        calls: list[Any] = []
        for used in (one["agent_result"] for one in stages if one.get("agent_result")):
            for segment in (used.pop("rollout_details", None) or [])[:1]:  # the agent's own
                contexts, answers, known = (segment.get(name) or [] for name in _TOKENS)
                if len(contexts) == len(answers):  # a turn that has none is left out: nothing tells which one it was
                    calls += zip_longest(contexts, answers, known if len(known) == len(answers) else [])
        found = _fields([one for at in folders for one in _chain(at / "agent/trajectory.json", damaged)], calls)
        failure = next((failed for one in stages if (failed := part(one, "exception_info"))), {})
        kind = str(failure.get("exception_type", ""))
        stop = next(stop for pattern, stop in _ENDS.items() if re.match(pattern, kind))
        status = _STATUS.get(stop, Status.OK)
        stop = StopReason.TIMEOUT if "Timeout" in kind else stop
        text = folder / "verifier/reward.txt"
        written = part({"all": _json(text.with_suffix(".json"), damaged)}, "all")
        if not written and text.is_file():
            written = {"reward": text.read_text(errors="replace").strip()}
        has_error = status != Status.OK or stop == StopReason.TIMEOUT
        lacking = {"reward": None} if kind.startswith(("Verifier", "RewardFile")) else {}
        rewards = part(result, "verifier_result").get("rewards") or written or lacking
        values = {str(name): number(value) for name, value in rewards.items()}
        if "reward" in values and not self.options.weights:  # Harbor's own; without it, all of them are summed
            found |= {"reward": values["reward"], "weights": {name: float(name == "reward") for name in values}}
        config, job, task = part(result, "config"), folder.parent, str(result["task_name"])
        run, agent = str(config.get("job_id") or job.name), part(config, "agent")
        if run not in self.runs:
            settings = part({"all": _json(job / "config.json", damaged)}, "all")
            self.runs[run] = ImportedRun(job.name, None, settings.get("n_attempts"), config=settings, lacks=_LACKS)
        played = part(result, "agent_execution") or result
        begun, ended = (micros(played.get(at)) for at in ("started_at", "finished_at"))
        if begun and ended:
            found |= {"created": begun, "returned": ended, "seconds": (ended - begun) / 1e6}
        found["metrics"] |= part(result, "agent_result")
        found["metadata"] |= {name: value for name, value in result.items() if value is not None}
        found["model"] = part(result, "agent_info", "model_info").get("name") or found["model"]
        return ImportedRollout(
            f"{job.name}/{result['trial_name']}", **{"weights": self.options.weights} | found, rewards=values or None,
            group="/".join(str(one) for one in (job.name, task, agent.get("name"), agent.get("model_name")) if one),
            eval_name=result.get("source"), task=task, run=run, tags=[kind] if kind else [], status=status,
            stop_reason=stop, error=f"{kind}: {failure.get('exception_message')}" if has_error else None,
        )  # fmt: skip


def _fields(trajectories: Sequence[tuple[dict[str, Any], Path]], calls: list[Any]) -> dict[str, Any]:
    """Return fields of a rollout. `calls` have the ids of the model's calls; without them, those of steps are taken."""
    prompt, completion, turns = list[dict[str, Any]](), list[dict[str, Any]](), list[Turn]()
    steps, totals, times, sampled = [], dict[str, Any](), list[int](), []
    about: list[Any] = [{name: value for name, value in one.items() if name != "steps"} for one, _ in trajectories]
    for place, (trajectory, file) in enumerate(trajectories):
        totals |= part(trajectory, "final_metrics")
        for step in trajectory["steps"]:
            is_copied, used = bool(step.get("is_copied_context")), part(step, "metrics")
            if place and is_copied:  # the trajectory before has it, or its summary
                continue
            is_answer = step.get("source") == "agent" and step.get("llm_call_count") != 0
            sampled += [[used.pop(name, None) for name in _TOKENS]] * (is_answer and not is_copied)
            said = completion if completion or (is_answer and not is_copied) else prompt
            said += _messages(step, file.parent, is_answer=is_answer)
            turns += [Turn(tokens=whole(used.get("completion_tokens")))] * (is_answer and said is completion)
            times += [at] if (at := micros(step.get("timestamp"))) else []
            rest = step | {"metrics": used or None}
            steps.append({name: value for name, value in rest.items() if name not in _SHOWN and value is not None})
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
        {"id": one.get("tool_call_id"), "type": "function", "extra": one.get("extra"),
         "function": {"name": one.get("function_name"), "arguments": one.get("arguments")}}
        for one in step.get("tool_calls") or []
    ]  # fmt: skip
    role = "assistant" if is_answer else "system" if step.get("source") == "system" else "user"
    said = {"role": role, "content": _content(step.get("message"), folder), "tool_calls": calls or None}
    yield said | {"reasoning_content": step.get("reasoning_content")}
    for one in part(step, "observation").get("results") or []:
        told = {"role": "tool" if calls else "user", "tool_call_id": one.get("source_call_id")}
        yield one | told | {"content": _content(one.get("content"), folder)}


def _content(said: Any, folder: Path) -> Any:
    """Return text, or parts in OpenAI's form. An image below the trajectory's folder is taken in; other files never."""
    parts = []
    for one in said if isinstance(said, list) else []:
        path = str(part(one, "source").get("path"))
        file = (folder / path).resolve()
        if file.is_relative_to(folder.resolve()) and file.is_file() and file.stat().st_size <= _IMAGE:
            path = f"data:{one['source'].get('media_type')};base64,{b64encode(file.read_bytes()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": path}} if one.get("type") == "image" else one)
    return parts or said


def _tokens(calls: Sequence[Sequence[Any]]) -> tuple[Tokens | None, int]:
    """Return the tokens of the longest chain of calls, of which each continues the one before (the last one, if several
    are as long), and the number of chains. A call is its whole context, its answer, and the answer's log-probs.
    """
    chains: list[tuple[int, list[int], list[float], list[int]]] = []
    for context, answer, logprobs in (call for call in calls if call[0] and call[1]):
        if not chains or context[: len(chains[-1][1])] != chains[-1][1]:
            chains.append((len(context), list(context), [], []))
        _, ids, known, mask = chains[-1]
        inserted, fits = len(context) - len(ids), logprobs is not None and len(logprobs) == len(answer)
        known += [math.nan] * inserted + (list(logprobs) if fits else [math.nan] * len(answer))
        mask += [0] * inserted + [1] * len(answer)
        ids += [*context[len(ids) :], *answer]
    start, ids, known, mask = max(reversed(chains), key=lambda chain: len(chain[3]), default=(0, [], [], []))
    return token_arrays(ids[:start], ids[start:], None if all(map(math.isnan, known)) else known, mask), len(chains)


def _chain(file: Path, damaged: list[Path], record: Any = None) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield a trajectory and those that continue it, each with its file."""
    seen = set[Path]()
    while file not in seen and (record := record or _json(file, damaged)) is not None:
        seen.add(file)
        yield record, file
        file, record = file.parent / Path(record.get("continued_trajectory_ref") or file).name, None


def _json(file: Path, damaged: list[Path]) -> Any:
    """Return what a JSON file beside the record has; None without it, and if it is damaged, which is noted."""
    try:
        return json_value(file.read_bytes()) if file.is_file() else None
    except ValueError:
        damaged.append(file)
