"""Finds rollouts that failed because of the environment, or of the infrastructure that runs it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.card import Card, Outcome, Run, check, needs, quiet
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows, means
from logs_ui.recorder.diagnosis.waterfall import has_cause, judged
from logs_ui.recorder.diagnosis.wording import kind_of, listed, percent
from logs_ui.recorder.vocabulary import Lack, LossCause

_SHARE = 0.05
_OF_TASK = 0.5  # of a task's rollouts, from _ATTEMPTS on [ours]
_ATTEMPTS = 4
_MOSTLY = 0.5  # of the failed rollouts [ours]
_FEW = 2  # rollouts: one alone is an accident
_READ = 32  # rollouts
_LONGEST = 200  # characters of an error that are shown


def _errors(run: Run, rows: Rows) -> tuple[Bools, Bools, Bools]:
    """Return (N,) True for rollouts that an error ended, for others in which a call raised, or one that it made, and
    for those in which all did and that are not solved.
    """
    ended, errors = has_cause(rows, LossCause.INFRASTRUCTURE), rows.facts["env_errors"]
    erred = (errors > 0) & ~ended
    return ended, erred, erred & (errors >= rows.facts["env_steps"]) & ~run.scale.success.solved(rows)


def _check(run: Run) -> Outcome:
    rows, limit = run.rows, run.threshold("infrastructure", _SHARE)
    ended, erred, whole = _errors(run, rows)
    # A single error that the policy recovers from is no fault.
    is_worse = not erred.all() and contrast.gap(run, erred) > 0
    has_error = erred if is_worse else whole
    is_known = run.imported is None or "is_ours" in run.imported  # other files do not say whose an error is
    bad, of_whom = ended | has_error, "an environment error" if is_known else "an error"
    share = float(bad.mean())
    has_task = rows.task >= 0
    tried = np.bincount(rows.task[has_task], minlength=len(rows.tasks))
    failing = (tried >= _ATTEMPTS) & (means(rows.task[has_task], bad[has_task], len(rows.tasks)) >= _OF_TASK)
    dead = [rows.tasks[task] for task in np.flatnonzero(failing).tolist()]
    if bad.sum() < _FEW or (share <= limit and not dead):
        return quiet(share, f"of rollouts failed with {of_whom}", limit, "one rollout may be an accident")
    all_ended, all_erred, all_whole = _errors(run, run.all)
    return Card(
        id="infrastructure",
        title=f"{percent(share)} of rollouts failed with {of_whom}",
        cost=run.cost_of("infrastructure") + contrast.cost(run, has_error),
        evidence=(
            *describe_errors(rows.error[ended].tolist()),
            *_tasks(rows, bad, dead),
            *_describe_received(whole, has_error),
            *_read_errors(run, has_error),
        ),
        suggestion="Read the errors: imported files do not say whether the policy or the environment is at fault."
        if not is_known
        else "Fix the environment, or mask these rollouts; the policy is not at fault."
        + (" If calls raised, first check that the model's arguments are not the reason." if is_worse else ""),
        where=links.selecting(
            rows.id, bad, {"cause:infrastructure": ended & judged(rows), "env_errors>0": rows.facts["env_errors"] > 0}
        ),
        is_part=not has_error.any(),
        **above(run.all.by_step(all_ended | (all_erred if is_worse else all_whole)), limit),
        own=bad,
        is_setup=is_known  # else the model may call it wrongly
        and (bool(dead) or bool((ended | whole).sum() >= _MOSTLY * bad.sum())),
    )


def describe_errors(errors: list[str | None]) -> list[str]:
    """Name the most frequent errors with their messages. Those that differ only in numbers and ids are one kind."""
    kinds: dict[str, Counter[str]] = {}
    for line in (error[:_LONGEST] for error in errors if error):
        kinds.setdefault(kind_of(line), Counter())[line] += 1
    sentences = []
    for texts in sorted(kinds.values(), key=Counter.total, reverse=True)[:3]:
        name, _, message = texts.most_common(1)[0][0].partition(":")
        text = f"{', such as' if len(texts) > 1 else ''}: {message.strip().rstrip('.')}" if message else ""
        sentences.append(f"{name} \u00d7{texts.total():,}{text}.")
    return sentences


def _tasks(rows: Rows, bad: Bools, dead: list[str]) -> list[str]:
    """Name the most affected tasks, those in `dead` first, with how many of their rollouts failed."""
    tried, failed = (Counter(rows.tasks[code] for code in codes if code >= 0) for codes in (rows.task, rows.task[bad]))
    order = sorted(failed, key=lambda name: (name not in dead, -failed[name]))
    worst = [f"{name} ({failed[name]:,} of {tried[name]:,})" for name in order]
    return [f"Affected tasks: {listed(worst)}."] if worst else []


def _describe_received(whole: Bools, has_error: Bools) -> list[str]:
    """Describe the errors that the model received."""
    every, some = int(whole.sum()), int((has_error & ~whole).sum())
    sentences = [f"In {every} rollouts all calls failed."] if every else []
    if some:
        sentences.append(
            f"In {some} rollouts some calls raised, and rollouts with an error do worse than the others. Lost reward "
            "by cause counts them under what ended them, so costs overlap."
        )
    return sentences


def _read_errors(run: Run, has_error: Bools) -> list[str]:
    """Name the errors of calls, at any depth, in some of the rollouts that received them."""
    read = run.sample(np.isin(run.all.id, run.rows.id[has_error]), _READ)
    kinds = describe_errors([error for texts in read.values() for error in _errors_in(texts.actions)])
    return [f"In {len(read)} of those with failed calls that were read: {' '.join(kinds)}"] if kinds else []


def _errors_in(entries: Iterable[Any]) -> Iterator[str]:
    """Yield the errors that `env_errors` counts, and those of calls that a call made."""
    for entry in entries:
        if isinstance(entry, dict):
            if entry.get("error") is not None and entry.get("observation") is None:
                yield str(entry["error"])
            metadata = entry.get("metadata")
            calls = metadata.get("calls") if isinstance(metadata, dict) else None
            yield from _errors_in(calls if isinstance(calls, list) else ())


DIAGNOSTIC = check(
    "infrastructure",
    "Environment and infrastructure",
    "Share of rollouts that ended with an error, a timeout or a full server, or in which every call raised, or "
    "made a call that raised, and that were not solved, above "
    f"{_SHARE:.0%}; or at least {_OF_TASK:.0%} of a task's rollouts, from {_ATTEMPTS} on. Rollouts in which any call "
    "raised count, too, if they do worse than the others.",
    needs("a rollout", lambda run: len(run.rows), Lack.ERRORS),
    _check,
    source="prime-rl; by task: ours",
    needs_calls=True,
)
