"""Finds tasks that are never solved for the form in which their reference is written, such as `1,250` for `1250`."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import last_text, rank_of
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.measures import tried
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.wording import listed, percent
from logs_ui.recorder.vocabulary import Status

_NEVER, _OTHERS = 0.01, 0.15  # of the rollouts are solved: of these tasks at most, of others at least
_TASKS, _ROLLOUTS, _CHANCE = 5, 30, 0.01  # at least; that so many tasks are unsolved by chance, at most
_HOLD, _READ, _END = 0.1, 64, 300  # of the answers hold the reference; rollouts that are read; characters of an answer
_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
_UNIT = r"[^\W\d_]\S*(?: [^\W\d_]+)?|[%\u00b0\u20ac\u00a3$]\S*"
KINDS = {
    "has a thousands separator": r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?",
    "is an integer": r"[-+]?\d+",
    "has decimals": r"[-+]?\d*\.\d+",
    "is a fraction": r"[-+]?(?:\d+\s*/\s*\d+|\\d?frac\{\d+\}\{\d+\})",
    "has a unit": rf"(?:[$\u20ac\u00a3]\s*{_NUMBER}|{_NUMBER}\s*(?:{_UNIT}))",
    "is a list": r"[\[({].*[,;].*[\])}]|[^,;]+(?:[,;][^,;]+)+",
    "is an expression": r".*(?:\\|\d\s*[-+*^=]|[*^=]).*",
    "is a text": r".*",
}
"""The kinds of references, the first that fits whole: a verb, and what it fits."""
_KINDS = [(name, re.compile(pattern, re.DOTALL)) for name, pattern in KINDS.items()]
_VALUES = re.compile(r"(?<![\w.,])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?|(?<![\w.])-?\.\d+")
_UPRIGHT = re.compile(r"\\(?:text|textrm|mathrm|mathbf|mathit|operatorname|rm)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[ ,;:!]|\\q?quad\b|~|\\(?=[%$])")
_FRACTION = re.compile(r"\\d?frac\{(-?\d+)\}\{(\d+)\}")


def kind_of(reference: str) -> str:
    """Return the kind of a reference, a key of KINDS.

    >>> kind_of("1,250"), kind_of("12 km"), kind_of("3, 4 and 5")
    ('has a thousands separator', 'has a unit', 'is a list')
    """
    bare = re.sub(r"^\$(.*)\$$", r"\1", reference.strip())  # in LaTeX
    return next(name for name, pattern in _KINDS if pattern.fullmatch(bare))


def holds(answer: str, reference: str) -> bool:
    """Return True if the end of an answer holds the reference in any form: as a number, or its letters and digits.

    >>> holds("So it is 1250.", "1,250"), holds("So it is 0.75.", "3/4"), holds("It is 12500.", "1,250")
    (True, True, False)
    """
    end, numbers = answer[-_END:], _values(reference)
    if len(numbers) == 1 and kind_of(reference) not in {"is a list", "is an expression", "is a text"}:
        return numbers[0] in _values(end)
    return _squeeze(reference) in _squeeze(end)


def plain(answer: str, *, is_line: bool = False) -> str:
    r"""Return an answer in a form in which equal answers are equal; of a line, what comes after its last mark or `is`.

    >>> plain("1,250.0"), plain("Therefore the answer is B.", is_line=True), plain(r"New~York "), plain(r"3\,\rm{J}")
    ('1250', 'b', 'newyork', '3')
    """
    text = bare(_SPACES.sub(" ", _UPRIGHT.sub(r"\1", bare(answer, is_line=is_line))))
    values = _values(text)
    is_number = len(values) == 1 and kind_of(text) not in {"is a list", "is an expression", "is a text"}
    return str(values[0]) if is_number else _squeeze(text)


def bare(answer: str, *, is_line: bool = False) -> str:
    """Return an answer as it is written, without marks around it; of a line, what comes after its last mark or `is`.

    >>> bare("**1,250**."), bare("Therefore the answer is B.", is_line=True)
    ('1,250', 'B')
    """
    text = re.split(r"[:=]|\bis\b", answer)[-1] if is_line else answer
    return text.strip(" .*`$\"'\n\t")


def _values(text: str) -> list[Fraction]:
    numbers = (number.replace(",", "").replace(" ", "") for number in _VALUES.findall(_FRACTION.sub(r"\1/\2", text)))
    return [Fraction(number) for number in numbers if not re.search(r"/0*$", number)]


def _squeeze(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _check(run: Run) -> Outcome:
    success, limit = run.scale.success, run.threshold("never_matches", _NEVER)
    if not success.is_defined:
        return SOLVED_UNDEFINED
    unsolved = _find_unsolved(run)
    if unsolved.sum() < _TASKS:
        return Below(f"{unsolved.sum()} tasks were never solved: too few to compare forms of references.")
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


def reference_column(rows: Rows, labels: Mapping[str, Sequence[str | None]], chosen: str | None = None) -> str | None:
    """Return the name of the column that most rollouts have of those that are named like a reference answer, or of
    the chosen one alone, and that is the same within each group, but for rollouts that raised; None if there is none.
    """
    candidates = dict[str, tuple[int, int]]()
    for name, values in labels.items():
        codes = np.unique([value or "" for value in values], return_inverse=True)[1]
        count = sum(value is not None for value in values)
        bare = name.removeprefix("metadata.")
        is_named = rank_of(bare) is not None if chosen is None else bare == chosen
        is_known = np.array([value is not None for value in values]) | (rows.status != Status.ERROR)
        is_alike = (distinct(rows.group[is_known], codes[is_known], count=len(rows.groups.size)) <= 1).all()
        if is_named and is_alike and 2 * count >= len(rows):
            candidates[name] = count, -(rank_of(bare) or 0)
    return max(candidates, key=candidates.__getitem__, default=None)


def tell_lack(run: Run) -> NotJudged:
    """Return the outcome of a check without such a column."""
    name = run.settings.reference or "like a reference answer"
    return NotJudged(f"No column that is named {name} is in most rollouts and the same within groups: set reference.")


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
