"""Writes rollouts straight into a database, for tests and pictures that need many of them and no training.

python -m tests.support.factory pictures.db     # three runs: a long one, a failed one, one that is under way
"""

import functools
import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import zstandard
from sqlalchemy import Connection, Engine, func, insert, select
from sqlmodel import col
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run, Scalar, StepStatistics, Tokenizer
from logs_ui.recorder.storage.writes.step_writes import write_details
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason
from tests.support.payloads import pack_content, pack_tokens

START_US = 1_767_261_600_000_000  # 2026-01-01 10:00 UTC
STEP_US = 42_000_000
EVAL_EVERY = 10
EVAL_NAME, HELD_OUT = "shell-agent", "shell-agent held-out"
WEIGHTS = {"solved": 1.0, "format": 0.2, "brevity": 0.1}
TASKS = {  # difficulty: the chance to solve it before and after training
    "find the largest file": (0.45, 0.97),
    "count lines over 80 characters": (0.25, 0.85),
    "résumé: Zeilen zählen 素因数": (0.12, 0.6),
    "repair a broken symlink": (0.05, 0.35),
    "recover a deleted branch": (0.0, 0.04),
}
HOSTILE_TASK = "<img src=x onerror=alert(1)>"
HOSTILE_TEXT = (
    "</script><script>alert('owned')</script> {{ 7*7 }} \u202egnitset idib\u202c \x1b[31mred\x1b[0m "
    'zero\u200bwidth\u200d\ufeff NUL:\x00 label:\u2400 =HYPERLINK("http://evil") 👩‍👩‍👧‍👦 Z͑ͫ̓a̴l̶g̷o \r\n\t'
)
THOUGHTS = (
    "The listing shows sizes in bytes, so sorting it numerically in reverse puts the largest first.",
    "Careful: file names may hold spaces. Let me use -print0 and xargs -0 to be safe.",
    "I have not seen that error before. I should look at the directory before I change anything.",
    "That worked. The answer is in the last line of the output, so I can submit it now.",
    "Hmm, wait. Let me check the assumption that hidden files count as well.",
)
COMMANDS = (
    "ls -la",
    "find . -type f -size +10M",
    "du -ah | sort -rh | head -n 5",
    "wc -l *.txt",
    "git reflog",
    "cat notes.md",
)
OUTPUTS = (
    "total 48\n-rw-r--r-- 1 user 10485760 Jan  1 10:02 video.mp4\n-rw-r--r-- 1 user     2048 Jan  1 10:02 notes.md",
    "12M\t.\n10M\t./video.mp4\n1.1M\t./archive/old backup.tar.gz",
    "bash: git: command not found",
    "   81 chapter1.txt\n  214 chapter2.txt\n  295 total",
    "(no output)",
)
SYSTEM = (
    "You are an agent in a Linux shell. Call the tool `run` with one command at a time; call `submit` with the answer."
)
TOOLS_ERRORS = (
    "TimeoutError: the environment did not answer within 30 s",
    "ConnectionError: websocket closed by the server (code 1011)",
    "ValueError: observation is not valid UTF-8",
)


@dataclass(frozen=True)
class _Plan:
    """Properties that the rollouts of one run share."""

    uid: str
    seed: int
    steps: int
    groups: int
    generations: int
    state: str
    created: int
    model: str


def make_run(
    engine: Engine,
    *,
    uid: str = "20260101-100000-abcd",
    name: str | None = None,
    steps: int = 12,
    groups_per_step: int = 3,
    generations: int = 4,
    seed: int = 0,
    state: str = RunState.RUNNING,
    created: int = START_US,
    heartbeat: int | None = None,
    parent: str | None = None,
    model: str = "Qwen/Qwen3-0.6B",
    project: str | None = None,
) -> int:
    """Writes a run and its rollouts, the same for the same arguments, and returns the run's id.

    A running run ends with rollouts that still run or await their rewards, a failed one with aborted ones. The first
    rollout is the hostile one. Every tenth step is followed by an evaluation.
    """
    plan = _Plan(uid, seed, steps, groups_per_step, generations, state, created, model)
    made = [pair for step in range(1, steps + 1) for pair in _step(plan, step)]
    ended = created + steps * STEP_US
    run = {
        "uid": uid, "name": name or uid, "parent": parent, "project": project, "state": state,
        "created": created,
        "heartbeat": ended if heartbeat is None else heartbeat,
        "finished": None if state == RunState.RUNNING else ended,
        "model": model, "max_steps": steps if state == RunState.FINISHED else steps * 2, "num_generations": generations,
        "host": "trainer-0", "pid": 4242,
        "git_commit": "0f1e2d3c4b5a69788796a5b4c3d2e1f001234567", "git_dirty": seed % 2 == 1,
        "tokenizer": _tokenizer()[1],
        "config": {"learning_rate": 1e-6, "num_generations": generations, "beta": 0.0, "seed": seed},
        "versions": {"python": "3.11.9", "trl": "1.16.0", "torch": "2.9.0", "vllm": "0.22.1"},
        "changed": steps, "recorder_errors": 0, "dropped": 0, "unattributed_calls": 0,
    }  # fmt: skip
    with engine.begin() as connection:
        _store_tokenizer(connection)
        run_id = insert_run(connection, run)
        _store_rows(connection, run_id, made)
        connection.execute(insert(StepStatistics), _statistics(run_id, [row for row, _ in made]))
        write_details(connection, Batch(), {uid: run_id}, created)
        if figures := _scalars(run_id, plan, [row for row, _ in made]):
            connection.execute(insert(Scalar), figures)
    return run_id


def make_run_at(address: Address, **settings: Any) -> int:
    """Write a run into the database at that address, as `make_run` does, and leave it closed."""
    with disposed(writing_engine(address)) as engine:
        return make_run(engine, **settings)


def insert_run(connection: Connection, run: dict[str, Any]) -> int:
    """Writes the run's own row, and returns its id."""
    key = connection.execute(insert(Run), run).inserted_primary_key
    assert key is not None
    return int(key[0])


ROW = {
    "eval_name": "e", "mode": Mode.TRAIN, "step": 1, "policy_step": 0, "group": "g", "generation": 0, "process": 0,
    "created": 1, "changed": 1, "status": Status.OK, "message_count": 0,
}  # fmt: skip
"""What each row has at least."""


def insert_rows(connection: Connection, rows: Sequence[dict[str, Any]], uid: str = "r", **run: Any) -> int:
    """Write a finished run of exactly these rows, each completed by `ROW`; return the run's id."""
    plain = {"uid": uid, "name": uid, "created": 0, "heartbeat": 0, "state": RunState.FINISHED, "changed": 1}
    run_id = insert_run(connection, plain | {"config": {}, "versions": {}} | run)
    made = [ROW | {"run_id": run_id, "uid": str(place)} | row for place, row in enumerate(rows)]
    if made:
        connection.execute(insert(EvaluationRow), made)
    return run_id


def _store_tokenizer(connection: Connection) -> None:
    data, digest = _tokenizer()[0].to_str().encode(), _tokenizer()[1]
    if connection.scalar(select(col(Tokenizer.hash)).where(col(Tokenizer.hash) == digest)) is None:
        connection.execute(insert(Tokenizer), {"hash": digest, "data": zstandard.compress(data)})


def _store_rows(connection: Connection, run_id: int, made: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    first = int(connection.scalar(select(func.max(col(EvaluationRow.id)))) or 0) + 1
    rows = [row | {"id": id_, "run_id": run_id} for id_, (row, _) in enumerate(made, first)]
    payloads = [payload | {"row_id": id_} for id_, (_, payload) in enumerate(made, first)]
    connection.execute(insert(EvaluationRow), rows)
    connection.execute(insert(RolloutPayload), payloads)
    if connection.dialect.name == "postgresql":  # which takes the next ids from where it left off itself
        connection.execute(select(func.setval("evaluation_row_id_seq", rows[-1]["id"])))


def make_tokenizer() -> FastTokenizer:
    """Store the tokenizer of all runs that are made here."""
    return _tokenizer()[0]


@functools.cache
def _tokenizer() -> tuple[FastTokenizer, str]:
    """Train a small byte-level tokenizer; return it, and the hash of its JSON."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SYSTEM, *THOUGHTS, *COMMANDS, *OUTPUTS, *TASKS], trainer)
    return tokenizer, hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _step(plan: _Plan, step: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the (row, payload) pairs of one step's training batch, and of the evaluation after it if there is one."""
    made = [pair for index in range(plan.groups) for pair in _group(plan, step, Mode.TRAIN, index)]
    if step % EVAL_EVERY == 0:
        made += [pair for index in range(2) for pair in _group(plan, step, Mode.EVAL, index)]
    return made


def _group(plan: _Plan, step: int, mode: Mode, index: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rng = random.Random(f"{plan.seed}/{mode}/{step}/{index}")
    hostile = mode == Mode.TRAIN and step == 1 and index == 0
    task = HOSTILE_TASK if hostile else rng.choice(list(TASKS))
    # An evaluation's prompts differ from call to call as well: the call is the step's ordinal in its own loop.
    group = f"{plan.uid}/{mode.value}/{step if mode == Mode.TRAIN else step // EVAL_EVERY}/{index}"
    made = []
    for generation in range(plan.generations):
        row, content, tokens = _rollout(plan, rng, step, task, hostile=hostile and generation == 0)
        row |= {
            "uid": f"{group}/{generation}", "mode": mode, "eval_name": EVAL_NAME if mode == Mode.TRAIN else HELD_OUT,
            "step": step, "policy_step": step - 1, "epoch": round(step / 50, 4), "group": group,
            "generation": generation, "process": generation * 2 // plan.generations, "changed": step,
            "model": plan.model, "created": plan.created + (step - 1) * STEP_US + index * 1_000,
        }  # fmt: skip
        _finish(plan, rng, row, last=step == plan.steps and mode == Mode.TRAIN)
        finished = row["returned"] is not None
        made.append((row, {"content": pack_content(content), "tokens": pack_tokens(tokens) if finished else None}))
    _advantages([row for row, _ in made])
    return made


def _rollout(
    plan: _Plan, rng: random.Random, step: int, task: str, *, hostile: bool
) -> tuple[dict[str, Any], dict[str, Any], Tokens]:
    """Return the row and payload of one episode, as known when the rollout function returns."""
    before, after = TASKS.get(task, (0.2, 0.9))
    solved = rng.random() < before + (after - before) * step / max(plan.steps, 40)
    stop = StopReason.DONE if solved else rng.choice(_FAILURES)
    turns = rng.randint(2, 4) if solved else rng.randint(1, 6)
    messages, actions = _episode(rng, task, turns, stop, hostile=hostile)
    error = rng.choice(TOOLS_ERRORS) if stop in {StopReason.ENVIRONMENT_ERROR, StopReason.EXCEPTION} else None
    metadata: dict[str, Any] = {"attribution": "rollout id in the call", "seed": rng.randint(0, 9999)}
    if error:
        metadata["traceback"] = f'Traceback (most recent call last):\n  File "train.py", line 31, in rollout\n{error}'
    tokens = _tokens(rng, messages)
    row = {
        "task": task, "status": Status.ERROR if error else Status.OK, "stop_reason": stop, "error": error,
        "rewards": _rewards(rng, len(actions), stop, solved=solved), "reward_weights": WEIGHTS, "rollout_reward": None,
        "env_reward_sum": sum(action["reward"] or 0.0 for action in actions), "env_reward_last": actions[-1]["reward"],
        "message_count": len(messages), "turns": turns, "prompt_tokens": len(tokens.prompt_ids),
        "completion_tokens": int(tokens.mask.sum()) if tokens.mask is not None else len(tokens.completion_ids),
        "env_tokens": int((1 - tokens.mask).sum()) if tokens.mask is not None else 0,
        "seconds": round(sum(action["seconds"] for action in actions) + turns * rng.uniform(0.3, 2.0), 3),
        "preview": _last_words(messages)[-120:],
    }  # fmt: skip
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "model": plan.model}
    return row, {"messages": messages, "actions": actions, "sampling": sampling, "metadata": metadata}, tokens


_FAILURES = (
    *[StopReason.DONE] * 6,
    *[StopReason.LENGTH] * 4,
    *[StopReason.TURN_LIMIT] * 3,
    *[StopReason.NO_ACTION] * 3,
    StopReason.STOP,
    StopReason.ENVIRONMENT_ERROR,
    StopReason.EXCEPTION,
)


def _episode(
    rng: random.Random, task: str, turns: int, stop: StopReason, *, hostile: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Task: {task}. Work in /home/user."},
    ]
    actions = [_action(0, None, "A fresh shell in /home/user.", None, rng)]
    for turn in range(1, turns + 1):
        last = turn == turns
        command = rng.choice(COMMANDS)
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "run", "arguments": json.dumps({"command": command})},
        }
        text = HOSTILE_TEXT * (60 if last else 1) if hostile else rng.choice(THOUGHTS)
        message = {
            "role": "assistant",
            "content": text,
            "reasoning_content": rng.choice(THOUGHTS),
            "tool_calls": [call],
        }
        messages.append(message)
        if last and stop in {StopReason.LENGTH, StopReason.NO_ACTION, StopReason.STOP}:
            del message["tool_calls"]
            break
        output = HOSTILE_TEXT if hostile else rng.choice(OUTPUTS)
        action = _action(turn, command, output, rng.choice((-0.1, 0.0, 0.1)), rng)
        action["done"] = last and stop == StopReason.DONE
        actions.append(action)
        if last and stop == StopReason.ENVIRONMENT_ERROR:
            action |= {"observation": None, "reward": None, "error": TOOLS_ERRORS[0]}
            break
        messages.append({"role": "tool", "name": "run", "tool_call_id": call["id"], "content": output})
    return messages, actions


def _last_words(messages: list[dict[str, Any]]) -> str:
    own = [str(message["content"]) for message in messages if message["role"] == "assistant"]
    return " ".join(own[-1].replace("\x00", "\u2400").split())


def _action(turn: int, command: str | None, output: str, reward: float | None, rng: random.Random) -> dict[str, Any]:
    return {
        "turn": turn, "text": command, "action": None if command is None else {"command": command},
        "observation": {"stdout": output, "exit_code": 0}, "reward": reward, "done": False,
        "metadata": {"cwd": "/home/user"}, "seconds": round(rng.uniform(0.01, 0.4), 4), "error": None,
    }  # fmt: skip


def _tokens(rng: random.Random, messages: list[dict[str, Any]]) -> Tokens:
    prompt: list[int] = []
    completion: list[int] = []
    mask: list[int] = []
    for message in messages:
        own = message["role"] == "assistant"
        text = f"{message.get('reasoning_content', '')}{message['content']}" if own else message["content"]
        head, body = _encoded(f"<|im_start|>{message['role']}\n"), _encoded(f"{text}<|im_end|>")
        if message["role"] in {"system", "user"}:
            prompt += head + body
        else:
            completion += head + body
            mask += [0] * len(head) + [int(own)] * len(body)
    noise = np.random.default_rng(rng.randrange(2**32)).exponential(0.4, len(completion))
    # The environment's tokens were never sampled: the trainer sees a log-probability of 0 for them.
    logprobs = np.where(np.array(mask, bool), -noise, 0.0).astype(np.float16)
    return Tokens(np.array(prompt, np.int32), np.array(completion, np.int32), logprobs, np.array(mask, np.uint8))


@functools.lru_cache(4_096)
def _encoded(text: str) -> list[int]:
    """Return the ids of a text. A few texts make all messages, and to encode them was half of a run's time."""
    ids: list[int] = _tokenizer()[0].encode(text).ids
    return ids


def _rewards(rng: random.Random, actions: int, stop: StopReason, *, solved: bool) -> dict[str, float | None]:
    format_ = -1.0 if stop in {StopReason.NO_ACTION, StopReason.LENGTH} else rng.choice((0.5, 1.0))
    return {
        "solved": float(solved),
        "format": format_,
        "brevity": None if stop == StopReason.LENGTH else round(-0.25 * actions - rng.random(), 3),
    }


def _finish(plan: _Plan, rng: random.Random, row: dict[str, Any], *, last: bool) -> None:
    """Set times, reward and state: a running run's last step is half done, a failed run's was cut off."""
    values = row["rewards"]
    if row["status"] == Status.ERROR and rng.random() < 0.5:  # every reward function returned None
        row["rewards"] = values = dict.fromkeys(values)
    known = [value * WEIGHTS[name] for name, value in values.items() if value is not None]
    row["reward"] = round(sum(known), 6) if known else None
    row["returned"] = row["created"] + int((row["seconds"] + 0.1) * 1e6)
    row["scored"] = row["created"] + STEP_US // 2
    if not last or plan.state == RunState.FINISHED:
        return
    row |= {"reward": None, "rewards": None, "scored": None}
    cut = dict.fromkeys(("returned", "error", "prompt_tokens", "completion_tokens", "env_tokens", "seconds"))
    if plan.state == RunState.FAILED:
        row |= cut | {"status": Status.ABORTED, "stop_reason": StopReason.ABORTED}
    elif rng.random() < 0.5:
        row |= cut | {"status": Status.RUNNING, "stop_reason": None}


def _advantages(rows: list[dict[str, Any]]) -> None:
    known = [row["reward"] for row in rows if row["reward"] is not None]
    for row in rows:
        reward = row["reward"]
        row["advantage"] = None if reward is None else round((reward - mean(known)) / (pstdev(known) + 1e-4), 6)


def _statistics(run_id: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        steps.setdefault((row["mode"], row["eval_name"], row["step"]), []).append(row)
    return [
        {
            "run_id": run_id, "mode": mode, "eval_name": eval_name, "step": step, "rollouts": len(group),
            "scored": sum(row["reward"] is not None for row in group),
            "reward_sum": sum(row["reward"] for row in group if row["reward"] is not None),
            "errors": sum(row["status"] == Status.ERROR for row in group),
            "truncated": sum(row["stop_reason"] == StopReason.LENGTH for row in group),
        }
        for (mode, eval_name, step), group in steps.items()
    ]  # fmt: skip


def _scalars(run_id: int, plan: _Plan, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rng = random.Random(plan.seed)
    found: list[dict[str, Any]] = []
    for step in range(1, plan.steps + 1):
        rewards = [row["reward"] for row in rows if row["step"] == step and row["mode"] == Mode.TRAIN]
        rewards = [reward for reward in rewards if reward is not None]
        if not rewards:  # the last step of a run that did not finish: the trainer has not logged it
            continue
        figures = {
            "reward": mean(rewards), "reward_std": pstdev(rewards), "loss": rng.gauss(0.0, 0.02),
            "entropy": 1.4 - 0.6 * step / plan.steps,
            "kl": None if step == 1 else abs(rng.gauss(0.001, 0.0005)) * step, "grad_norm": abs(rng.gauss(0.4, 0.1)),
            "learning_rate": 1e-6 * (1 - step / (plan.steps + 1)), "step_time": rng.uniform(38, 45),
        }  # fmt: skip
        found += [{"run_id": run_id, "step": step, "name": name, "value": value} for name, value in figures.items()]
    return found


def make_pictures(path: Path) -> None:
    """Write three runs: 60 steps of 24 rollouts, finished; a failed one; one under way, alive now."""
    engine = writing_engine(path)
    now = time.time_ns() // 1000
    shapes: list[dict[str, Any]] = [
        {"uid": "main-x7kq", "name": "shell-agent grpo lr=1e-6", "steps": 60, "groups_per_step": 3, "seed": 1,
         "state": RunState.FINISHED, "created": now - 26 * 3_600_000_000},
        {"uid": "failed-p2vd", "name": "shell-agent grpo lr=1e-4", "steps": 9, "groups_per_step": 2, "seed": 2,
         "state": RunState.FAILED, "created": now - 5 * 3_600_000_000},
        {"uid": "live-m4tz", "name": "shell-agent grpo, resumed", "steps": 14, "groups_per_step": 2, "seed": 3,
         "state": RunState.RUNNING, "created": now - 14 * STEP_US, "heartbeat": now, "parent": "main-x7kq"},
    ]  # fmt: skip
    for shape in shapes:
        make_run(engine, generations=8, **shape)
    engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.factory PATH")
    make_pictures(Path(sys.argv[1]))
