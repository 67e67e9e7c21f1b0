"""Finds tasks that are never solved for the form in which their reference is written, such as `1,250` for `1250`."""

from collections.abc import Sequence

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import last_text
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.measures import tried
from logs_ui.recorder.diagnosis.references import KINDS, holds, kind_of, reference_column, tell_lack
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows
from logs_ui.recorder.diagnosis.wording import listed, percent

_NEVER, _OTHERS = 0.01, 0.15  # of the rollouts are solved: of these tasks at most, of others at least
_TASKS, _ROLLOUTS, _CHANCE = 5, 30, 0.01  # at least; that so many tasks are unsolved by chance, at most
_HOLD, _READ = 0.1, 64  # of the answers hold the reference; rollouts that are read


def _check(run: Run) -> Outcome:
    success, limit = run.scale.success, run.threshold("never_matches", _NEVER)
    if not success.is_defined:
        return SOLVED_UNDEFINED
    unsolved = _find_unsolved(run)
    if unsolved.sum() < _TASKS:
        return Below(f"Tasks never solved: {unsolved.sum()}, too few to compare forms of references.")
    column = reference_column(run.rows, run.labels, run.settings.reference)
    if column is None:
        return tell_lack(run)
    references = run.labels_of_all[column]
    kinds = {
        reference: kind_of(reference) for reference in set(references) if reference is not None and reference.strip()
    }
    rows, kind = run.all, np.array([kinds.get(reference or "") for reference in references], object)
    is_known, units = tried(rows, run.scale) & (kind != None), _units(rows)  # noqa: E711 - of each
    won = success.solved(rows)
    by_kind = {name: is_known & (kind == name) for name in KINDS}
    for name, mine in by_kind.items():
        others = is_known & ~mine
        tasks, rest = np.unique(units[mine]), np.unique(units[others])
        if len(tasks) < _TASKS or mine.sum() < _ROLLOUTS or won[mine].mean() > limit:
            continue
        # This is the probability that all of these tasks are unsolved if each is as often unsolved as the other
        # tasks are, times the number of kinds that are looked at.
        chance = (
            float(unsolved[rest].mean()) ** len(tasks) * sum(some.any() for some in by_kind.values())
            if len(rest)
            else 1
        )
        if chance <= _CHANCE and won[others].mean() >= _OTHERS:
            return _card(run, column, references, name, mine, others)
    return Below(f"No kind of reference, as {column.removeprefix('metadata.')} has it, is never matched.")


def _units(rows: Rows) -> Ints:
    """Return (N,) codes of tasks; of groups, if any rollout has no task."""
    return rows.task if (rows.task >= 0).all() else rows.group


def _find_unsolved(run: Run) -> Bools:
    """Return (U,) True for tasks, or groups, that were tried and never solved."""
    rows = run.all
    units, is_known = _units(rows), np.isfinite(rows.reward)
    count = int(units.max(initial=-1)) + 1
    wins = np.bincount(units[is_known], run.scale.success.solved(rows)[is_known], count)
    return np.asarray((np.bincount(units[is_known], minlength=count) > 0) & (wins == 0), bool)


def _card(run: Run, column: str, references: Sequence[str | None], name: str, mine: Bools, others: Bools) -> Outcome:
    rows, won = run.all, run.scale.success.solved(run.all)
    is_last = rows.step >= run.rows.steps[0]
    affected, rest = mine[is_last], others[is_last]
    if not affected.any():
        return Below(f"No reference of the last steps {name}; none that does was ever matched.")
    (read, holding), (read_others, holding_others) = (
        _count_holding(run, references, side & ~won & is_last) for side in (mine, others)
    )
    tasks, examples = len(np.unique(_units(rows)[mine])), list(dict.fromkeys(np.array(references, object)[mine]))[:3]
    title = (
        f"{won[mine].sum():,} of {mine.sum():,} answers to the {tasks:,} tasks whose reference {name} count as right"
    )
    sentence = f"Of other tasks {percent(float(won[others].mean()))} do ({run.scale.success.description})."
    texts = f"Of {read:,} of their answers that were read, {holding:,} end with the reference, in some form"
    texts += f"; of {read_others:,} to other tasks that do not count, {holding_others:,}" * (read_others > 0)
    by_chance = holding_others / max(read_others, 1)
    if read and holding < max(_HOLD, 2 * by_chance) * read:
        return Below(f"{title}. {sentence} {texts}: the tasks may just be hard.")
    extra = max(float(run.lost[affected].mean() - run.lost[rest].mean()), 0.0) if rest.any() else 0.0
    return Card(
        id="never_matches",
        title=title,
        cost=extra * float(affected.mean()),
        than="other tasks" if rest.any() else "",
        evidence=(sentence, f"References, as {column} has them: {listed(examples)}.", *([f"{texts}."] if read else [])),
        suggestion="Call the reward function by hand with a right answer to one of these tasks: it may read references "
        "of this form otherwise than answers.",
        where=links.ids(run.rows.id[affected]),
        own=affected,
        is_setup=read > 0,
    )


def _count_holding(run: Run, references: Sequence[str | None], of: Bools) -> tuple[int, int]:
    """Return how many answers of some rollouts were read, and how many end with their reference."""
    read, reference = run.sample(of, _READ), dict(zip(run.all.id.tolist(), references, strict=True))
    answers = {row: text for row, texts in read.items() if (text := last_text(texts.messages))}
    return len(answers), sum(holds(answer, reference[row] or "") for row, answer in answers.items())


DIAGNOSTIC = check(
    "never_matches",
    "Answers that never match",
    f"Tasks whose reference is of a kind ({', '.join(KINDS)}) of which at most {_NEVER:.0%} of the rollouts are solved "
    f"over the whole run, in {_TASKS} or more tasks and {_ROLLOUTS} or more rollouts, while of others {_OTHERS:.0%} "
    f"are, if the chance that so many tasks are unsolved is below {_CHANCE:.0%}. The reference is the column of the "
    "dataset that is set, else the one that is named like it: answer, target, solution, reference, ground_truth, "
    f"gts, label, gold. Silent if under {_HOLD:.0%} of their answers end with the reference in any form, or hardly "
    "more than of those to other tasks that do not count.",
    needs("a reward", lambda run: np.isfinite(run.rows.reward)),
    _check,
)
