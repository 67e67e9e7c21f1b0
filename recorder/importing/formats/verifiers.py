"""Reads what verifiers and prime-rl write: episodes (verifiers 0.3 and newer), traces (0.2), flat results (before).

prime-rl writes a rollout into `all` when it arrives, and into `effective` of this or of a later step once it is trained
on. What is in both is taken from `effective`. What is only in `all` is `filtered` as soon as its step has `effective`;
if a later batch has it after all, that replaces it. So it does not matter which files are complete, or read first.

A trace is a tree of messages: each path from a root to a leaf is a rollout, a sample of prime-rl. A message has the ids
of the tokens that it adds, and streams with a value for each sampled one of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.formats._values import decode_json, messages_of, micros, part, token_arrays
from logs_ui.recorder.importing.reader import (
    ImportedRollout,
    ImportedRun,
    ImportedScalars,
    ImportOptions,
    Reader,
    Turn,
)
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, json_value, records_of
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Dropped, Lack, Mode, Status, StopReason

Json = Mapping[str, Any]

_FOLDER = re.compile(r"step_(\d+)/(train|eval)(?:/(all|effective)/traces|_rollouts(?:_(.+))?)\.jsonl")
_EVALUATIONS = {"results.jsonl", "traces.jsonl"}  # of one evaluation each, if they are in no step's folder
_WINDOW = 32  # steps that a rollout may wait for its batch; prime-rl's max_off_policy_steps is 8
_ABOUT = ({"env_id", "rollouts_per_example"}, {"num_rollouts", "client"})  # metadata.json, and eval.json since 0.2
_LOG = {"step", "time"}  # of a line of prime-rl's metrics.jsonl; what it logs has a name in one of these folders
_LOGGED = ("progress/", "optim/", "perf/", "loss/", "entropy/", "train/", "eval/", "time/")
_NAMES = {"optim/lr": "learning_rate", "optim/grad_norm": "grad_norm", "entropy/all/mean": "entropy"}  # as checks know
_MARKS = ({"traces", "env"}, {"nodes", "task"}, {"example_id", "completion"}, *_ABOUT)
_LACKS: tuple[str, ...] = ("token ids", "log-probs", "advantages", Lack.WEIGHTS)  # of results.jsonl
_STOPS = {  # by the stop condition, in this order
    r"max_turns(_reached)?": StopReason.TURN_LIMIT,
    r"max_.*|prompt_too_long|context_length|compaction_failed|is_truncated": StopReason.LENGTH,
    r".*timeout(_reached)?": StopReason.TIMEOUT,
    r"agent_completed|completed|stop|no_tools_called": StopReason.STOP,
    r"empty_action": StopReason.NO_ACTION,
    r"(provider_|task_|has_)?error": StopReason.EXCEPTION,
    r".*_error": StopReason.ENVIRONMENT_ERROR,
    r".+": StopReason.DONE,  # an environment's own condition
}
_MEANS = {"trainer_logprobs": "trainer_logprob", "reference_logprobs": "reference_logprob", "entropies": "entropy"}
_MEANS |= {"apart": "sampling_logp_difference"}
_USAGE = ("cached_input_tokens", "reasoning_tokens", "cost")
_FIELDS = ("id", "nodes", "calls", "rewards", "reward", "metrics", "stop_condition", "run", "version", "generated")


class VerifiersReader(Reader):
    """Reads files of verifiers and of prime-rl."""

    name, title = "verifiers", "verifiers and prime-rl"
    marks = "JSONL with `traces`, with `nodes`, or with `example_id` and `completion`"
    may_repeat = True

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root.absolute(), options)
        self._read_files = set[Path]()
        self._judged_files = set[Path]()  # those of `all` that were read with `effective`

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        is_log = head.keys >= _LOG and any(key.startswith(_LOGGED) for key in head.keys)
        return is_log or any(head.keys >= names for names in _MARKS)

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout | ImportedScalars]:
        if any(record.keys() >= names for names in (*_ABOUT, _LOG)):  # those are about a run
            yield from self._scalars_of(record, place.file.parent)
            return
        file = place.file.absolute()
        match = _FOLDER.search(file.as_posix())
        step_of_folder, kind, subset, env = match.groups() if match else (0, "eval", None, None)
        run, about = part(record, "run"), {} if match else _settings_beside(file.parent)
        # An evaluation whose files name no run is the run of its file; all else without an id is one run.
        run_id = run.get("id") or (place.id if not match and file.name in _EVALUATIONS else None)
        if run_id not in self.runs:
            self.runs[run_id] = _describe_run(record, about)
        self._read_files.add(file)
        if "completion" in record:
            record = _flat_trace(record, self.options, about)
        work, group = part(run, "work") or run, part(record, "group").get("id") or record.get("group_id")
        policy = part(work, "policy") or {"start": record.get("policy_version")}
        mode, environment = Mode(work.get("type") or record.get("kind") or kind), part(record, "env")
        name = environment.get("name") or environment.get("id") or record.get("env_name") or env or about.get("env_id")
        common: dict[str, Any] = {
            "run": run_id, "mode": mode, "eval_name": name or record["task"].get("type"),
            "policy_step": policy.get("start"),
            "step": _values.step_number(
                next(step for step in (work.get("step"), record.get("eval_step"), step_of_folder) if step is not None)
            ),
        }  # fmt: skip
        if mode is Mode.TRAIN and policy.get("start") is not None:
            # Batch n trains version n - 1.
            reached = int(step_of_folder) - 1 if subset == "effective" else policy.get("end", 0)
            common["staleness"] = max(reached - policy["start"], 0)
        all_file, effective_file = (file.parent.parent / folder / file.name for folder in ("all", "effective"))
        is_judged = subset == "all" and effective_file.is_file()
        # A file counts as read with `effective` if that was there at its first record.
        self._judged_files |= {file} if is_judged and place.number == 1 else set()
        more = {"episode": {key: value for key, value in record.items() if key not in {"traces", "task"}}}
        for trace in record.get("traces", [record]) or [{**record, "traces": None}]:  # an episode without any failed
            if subset == "all" and self._is_taken(file, int(step_of_folder), trace.get("id")):
                continue
            trace = _with_weights(trace, file)  # noqa: PLW2901
            task, agent = trace["task"], part(trace, "agent")
            data = part(task, "data")
            ids = (data.get("name"), data.get("id"), data.get("idx"), task.get("key"), task.get("type"))
            task_id = next((value for value in ids if value is not None), "")
            common["task"] = task_id if isinstance(task_id, str) else f"{common['eval_name']}/{task_id}"
            common["group"] = group or f"{place.id}-{task.get('key') or task_id}"
            # In an episode of several agents each has groups of its own.
            if agent.get("name", "agent") != "agent":
                common["group"] += f"/{agent['name']}"
            is_left_out = is_judged and mode is Mode.TRAIN and agent.get("trainable", True)
            common["dropped"] = Dropped.FILTERED if is_left_out else None
            yield from _rollouts(
                trace, _values.key_of(trace.get("id"), place), common, more if "traces" in record else {}
            )
        # What was read of `all` before its step had `effective` was not known to be left out: it is read again.
        if subset == "effective" and all_file not in self._judged_files and self._is_imported(all_file):
            self._judged_files.add(all_file)
            for number, record_of_all in records_of(all_file):
                with suppress(Exception):  # it is counted where the file is read
                    yield from self.rollouts(record_of_all, place._replace(file=all_file, number=number))

    def _scalars_of(self, record: Json, folder: Path) -> Iterator[ImportedScalars]:
        if not record.keys() >= _LOG:
            return
        file = next(folder.glob("rollouts/step_*/*/*/traces.jsonl"), None)  # whose run the log is
        first = (Head(file).record if file else None) or {}
        self.runs.setdefault(run_id := part(first, "run").get("id"), _describe_run(first, {}))
        values = {_NAMES.get(name, name): value for name, value in record.items() if name not in _LOG}
        yield ImportedScalars(record["step"], values, run_id)

    def _is_imported(self, file: Path) -> bool:
        """Return True if a file is imported, too."""
        return file in self._read_files or (file.is_relative_to(self.root) and file.is_file())

    def _is_taken(self, all_file: Path, first: int, trace: str | None) -> bool:
        """Return True if a trace of `all` is taken from `effective`, of its step or of a later one."""
        for step in range(first, first + _WINDOW):
            file = all_file.parents[3] / f"step_{step}" / all_file.parts[-3] / "effective" / all_file.name
            if not file.is_file():
                return False
            if trace in _trace_ids(file, file.stat().st_ino, file.stat().st_size):
                return self._is_imported(file)
        return False


@lru_cache(2 * _WINDOW)
def _trace_ids(file: Path, _inode: int, _size: int) -> frozenset[str]:
    records = (record for _, record in records_of(file) if isinstance(record, dict))
    return frozenset(trace.get("id") for record in records for trace in record.get("traces", [record]))


def _with_weights(trace: Json, file: Path) -> Json:
    """Return a trace in which a reward function that did not score has the weight that others show."""
    rewards = part({"all": trace.get("rewards")}, "all")
    lacking = (trace.get("rewards") or {}).keys() - rewards
    if not lacking or not file.is_file():
        return trace
    weights, kind = _weights(file, file.stat().st_ino, file.stat().st_size), part(trace, "task").get("type")
    return {**trace, "rewards": {
        name: reward or {"score": None, "weight": weights[kind, name]} if (kind, name) in weights else reward
        for name, reward in trace["rewards"].items()
    }}  # fmt: skip


@lru_cache(2 * _WINDOW)
def _weights(file: Path, _inode: int, _size: int) -> dict[tuple[Any, str], float]:
    """Return the weight of each reward function of a file, by the kind of the task and its name."""
    records = (record for _, record in records_of(file) if isinstance(record, dict))
    traces = (trace for record in records for trace in record.get("traces") or [record] if isinstance(trace, dict))
    return {
        (part(trace, "task").get("type"), name): reward["weight"]
        for trace in traces for name, reward in part(trace, "rewards").items() if part(reward).get("weight") is not None
    }  # fmt: skip


def _settings_beside(folder: Path) -> dict[str, Any]:
    """Return what is beside the results of an evaluation: its description before 0.2, its settings since."""
    files = [folder / "metadata.json", *sorted(folder.glob("configs/resolved/*.json"))]
    for file in (path for path in files if path.is_file()):
        with suppress(ValueError):  # it is damaged, or being written
            return part({"all": json_value(file.read_bytes())}, "all")
    return {}


def _describe_run(first: Json, about: Json) -> ImportedRun:
    trace = (first.get("traces") or [first])[0]
    versions, agent = about.get("version_info") or part(trace, "verifiers"), part(trace, "agent")
    sampling = [call["sampling"] for call in trace.get("calls") or () if call.get("sampling")] or [{}]
    run, lacks = part(first, "run"), _LACKS if "completion" in first else ()
    work = part(run, "work") or run
    is_of_training = run.get("type") == "train" and work.get("type") == "eval"  # whose other records have them
    if not is_of_training and not part(work, "policy") and first.get("policy_version") is None:
        lacks += (Lack.POLICY_VERSIONS,)
    if "completion" in first and first.keys().isdisjoint({"stop_condition", "is_truncated"}):
        lacks += (Lack.STOP_REASONS,)
    return ImportedRun(
        name=run.get("name") or about.get("env_id"),
        model=about.get("model") or (agent.get("config") or agent).get("model"),
        num_generations=about.get("rollouts_per_example") or about.get("num_rollouts"),
        config={**about, **{name: value for name, value in sampling[0].items() if name == "temperature"}},
        versions={f"verifiers {key}": str(value) for key, value in versions.items() if value},
        lacks=lacks,
        ours=part(trace, "info", "logs_ui"),
    )


def _rollouts(trace: Json, key: str, common: Json, more: Json) -> Iterator[ImportedRollout]:
    """Yield a rollout for each path of a trace. The trace does not show what is in `common`; `more` is metadata."""
    nodes, calls, agent = trace.get("nodes") or [], trace.get("calls") or [], part(trace, "agent")
    timing, condition = part(trace, "timing"), trace.get("stop_condition") or ""
    config, played = agent.get("config") or agent, part(timing, "agent") or part(timing, "generation")
    error = None if trace.get("ok") else (trace.get("errors") or [None])[-1]
    name, data, scored = agent.get("name", "agent"), part(trace, "task", "data"), trace.get("rewards") or {}
    rest = {name: value for name, value in trace.items() if name not in _FIELDS and value not in (None, [], {})}
    metrics = {name: value for name, value in rest.items() if type(value) in {int, float}}
    metrics = metrics | (trace.get("metrics") or {})
    unscored = [name for name, value in metrics.items() if value is None]
    failed = [call for call in calls if call.get("error")]
    notes = {name: value for name, value in (("not_scored", unscored), ("failed_calls", failed)) if value}
    # Before 0.3 a reward is a number that has its weight in it.
    rewards = {key: value.get("score") if isinstance(value, Mapping) else value for key, value in scored.items()}
    weights = {key: value.get("weight", 1.0) for key, value in scored.items() if isinstance(value, Mapping)}
    scores = [(score, weights.get(key, 1.0)) for key, score in rewards.items() if score is not None]
    products = [score * weight for score, weight in scores if weight]
    tags = [f"agent:{name}"[:100]] * (name != "agent") + ["not-trainable"] * (agent.get("trainable") is False)
    paths, by_node = list(_paths(nodes)) or [[]], {call.get("node"): call for call in calls}
    opening = [{"role": "system", "content": data.get("system_prompt")}, *(messages_of(data.get("prompt")) or [])]
    for number, path in enumerate(paths):
        path_nodes = [nodes[index] for index in path]
        path_calls = [by_node[index] for index in path if index in by_node]
        start = next((place for place, node in enumerate(path_nodes) if node.get("sampled")), len(path_nodes))
        usage = [call["usage"] for call in path_calls if call.get("usage")]
        stop = next((reason for mark, reason in _STOPS.items() if re.fullmatch(mark, condition)), None)
        # The trace says that it stopped, and its last call that it was cut off there.
        if path_calls and path_calls[-1].get("finish_reason") == "length" and stop in {None, StopReason.STOP}:
            stop = StopReason.LENGTH
        tokens, figures, advantage = _tokens(path_nodes)
        figures |= {
            field: sum(entry.get(field) or 0 for entry in usage)
            for field in _USAGE
            if any(field in entry for entry in usage)
        }
        answers = [index for index in path[start:] if calls and nodes[index]["message"]["role"] == "assistant"]
        sampling = next((call["sampling"] for call in path_calls if call.get("sampling")), config.get("sampling") or {})
        rollout = ImportedRollout(
            key=f"{key}-{number}" if number else key, tokens=tokens, rewards=rewards or None, weights=weights,
            prompt=[_message(node["message"]) for node in path_nodes[:start]]
            or [_message(message) for message in opening if message["content"]],
            completion=[_message(node["message"]) for node in path_nodes[start:]],
            model=next((call["model"] for call in path_calls if call.get("model")), config.get("model")),
            status=Status.ERROR if error else None if trace.get("is_completed", True) or condition else Status.ABORTED,
            stop_reason=StopReason.TIMEOUT if trace.get("is_timeout") else stop,
            error=": ".join(error[field] for field in ("type", "message") if error.get(field)) if error else None,
            reward=trace.get("reward", sum(products) if products else None),
            advantage=part(trace, "info").get("advantage") if advantage is None else advantage,
            prompt_tokens=usage[0]["prompt_tokens"] + (usage[0].get("cached_input_tokens") or 0) if usage else None,
            completion_tokens=sum(entry["completion_tokens"] for entry in usage) if usage else trace.get("generated"),
            turns=[_turn(by_node.get(index, {})) for index in answers],
            sampling={key: value for key, value in sampling.items() if value is not None}, metrics=metrics | figures,
            tags=[*tags, *([f"branch:{number}"] if len(paths) > 1 else [])],
            metadata={**{name: value for name, value in rest.items() if name not in metrics}, **notes, **more},
            created=micros(timing.get("start")), returned=micros(played.get("end")), seconds=_seconds(played), **common,
        )  # fmt: skip
        yield _values.restore_columns(rollout, part(trace, "info", "logs_ui"))


def _flat_trace(record: Json, options: ImportOptions, about: Json) -> dict[str, Any]:
    """Return a RolloutOutput, or a line that datasets wrote, as a trace. `about` describes the evaluation."""
    timing, error, usage = part(record, "timing"), record.get("error"), part(record, "token_usage")
    milliseconds = record.get("generation_ms", timing.get("generation_ms", 0))
    prompt = messages_of(record.get("prompt")) or []
    completion = messages_of(record.get("completion"), "assistant") or []
    metrics = usage | (record.get("metrics") or {})
    names = [name for name in options.rewards or () if name in record or name in metrics]
    parts = {name: metrics.pop(name, record.get(name)) for name in names}
    rewards, weights = _values.beside_total(record.get("reward"), parts, options.weights).values()
    used = {"prompt", "completion", "example_id", *metrics, *parts}
    nodes: list[dict[str, Any]] = [{"message": message} for message in prompt]
    nodes += [{"message": message, "sampled": message["role"] == "assistant"} for message in completion]
    return {
        **{name: value for name, value in record.items() if name not in used},
        "task": {"data": {"id": record.get("example_id")}, "type": record.get("task")},
        "nodes": [{**node, "parent": place - 1 if place else None} for place, node in enumerate(nodes)],
        "rewards": {
            name: {"score": score, "weight": weights.get(name, 1.0)} for name, score in (rewards or {}).items()
        },
        "metrics": metrics,
        "generated": int(usage["output_tokens"]) if "output_tokens" in usage else None,
        "stop_condition": record.get("stop_condition") or ("is_truncated" if record.get("is_truncated") else None),
        "errors": [{"message": error["error_chain_repr"] if isinstance(error, Mapping) else error}] if error else [],
        "timing": {"generation": {"duration": (milliseconds or 0) / 1000}, "start": timing.get("start_time"), **timing},
        "agent": {"model": about.get("model"), "sampling": about.get("sampling_args")} if about else None,
    }


def _message(raw: Json) -> dict[str, Any]:
    """Return a message in OpenAI's form: tool calls are flat in a trace, and JSON in a RolloutOutput."""
    calls = [dict(decode_json(call)) for call in raw.get("tool_calls") or ()]
    for call in calls:
        call["function"] = call.get("function") or {name: call.pop(name) for name in ("name", "arguments")}
        call["type"] = "function"
    return {key: value for key, value in raw.items() if value is not None} | ({"tool_calls": calls} if calls else {})


def _paths(nodes: Sequence[Json]) -> Iterator[list[int]]:
    parents = [node.get("parent") for node in nodes]
    if any(parent is not None and not 0 <= parent < place for place, parent in enumerate(parents)):
        raise RecordError("it has a message whose parent is not before it")
    # A leaf is the parent of no node.
    for leaf in sorted(set(range(len(nodes))).difference(parents)):
        path = [leaf]
        while (above := parents[path[-1]]) is not None:
            path.append(above)
        yield path[::-1]


def _tokens(nodes: Sequence[Json]) -> tuple[Tokens | None, dict[str, float], float | None]:
    """Return the tokens of a path, means of its streams, and its advantage."""
    ids = [token_id for node in nodes for token_id in node.get("token_ids") or ()]
    mask = np.array([flag for node in nodes for flag in node.get("mask") or ()], bool)
    if len(mask) != len(ids):
        raise RecordError(f"it has {len(ids)} token ids and a mask of {len(mask)}")
    streams: dict[str, Any] = {}  # a value for each sampled token, NaN where there is none
    for name in ("logprobs", "advantages", *_MEANS):
        if any(node.get(name) for node in nodes):
            # A node's stream may be absent or cut: it is filled up to its sampled tokens, so that others keep places.
            counted = ((node.get(name) or [], sum(node.get("mask") or ())) for node in nodes)
            values = [value for stream, count in counted for value in [*stream, *[None] * count][:count]]
            streams[name] = np.array(values, float)
    if {"logprobs", "trainer_logprobs"} <= streams.keys():
        streams["apart"] = np.abs(streams["trainer_logprobs"] - streams["logprobs"])
    finite = {name: values[np.isfinite(values)] for name, values in streams.items() if np.isfinite(values).any()}
    figures = {name: float(finite[stream].mean()) for stream, name in _MEANS.items() if stream in finite}
    advantages = finite.get("advantages", np.array([]))
    if len(set(advantages)) > 1:  # prime-rl's figure of such a sample is the mean of those that are not 0
        figures |= {"advantage_min": float(advantages.min()), "advantage_max": float(advantages.max())}
        advantages = advantages[advantages != 0]
    start = int(mask.argmax()) if mask.any() else len(mask)
    logprobs = np.full(len(ids), np.nan)
    logprobs[mask] = streams.get("logprobs", np.nan)
    sampled = logprobs[start:].tolist() if "logprobs" in streams else None
    tokens = token_arrays(ids[:start], ids[start:], sampled, mask[start:].tolist())
    return tokens, figures, float(advantages.mean()) if len(advantages) else None


def _turn(call: Json) -> Turn:
    tokens, limit = part(call, "usage").get("completion_tokens"), part(call, "sampling").get("max_tokens")
    return Turn(call.get("finish_reason"), _seconds(part(call, "time")), tokens, limit)


def _seconds(span: Json) -> float | None:
    return span["end"] - span["start"] if span.get("start") and span.get("end") else span.get("duration") or None
