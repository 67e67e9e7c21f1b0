"""Finds completions that stand beside another prompt of their step: they have its words, or its reference."""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.answers import text_of
from logs_ui.recorder.diagnosis.card import Card, Run, Texts
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.compared_answers import CHANCE, ENOUGH, read_answers, tail
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.places import MACHINE, list_kinds
from logs_ui.recorder.diagnosis.prompt_changes import prompt_of
from logs_ui.recorder.diagnosis.references import reference_column
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows
from logs_ui.recorder.diagnosis.wording import list_places, percent

_READ, _LEAST = 1_200, 8  # rollouts that are read, in whole steps; steps of the whole run, at least [ours]
_LONG, _COMMON = 4_000, 0.2  # characters of a text; of the prompts have a word that tells nothing of a task [ours]
_SHARE, _MOST = 0.2, 0.5  # of the rollouts match another task; of those that match any task [ours]
_SHIFTS, _AS_OFTEN = 4, 1 / 3  # other steps; of the share, at most, that matches a task of these [ours]
_NEARLY_ALL = 0.9  # of such rollouts are in the place that is named [ours]
_WORDS = "completions have more words of another prompt of their step than of their own"
_ANSWERS = "wrong answers equal the reference of another task of their step"

DEFINITION = (
    f"Or: of all rollouts, or those of a machine, at least {_SHARE:.0%} match "
    f"another task of their step rather than their own, {_MOST:.0%} of those that match any, and those of "
    f"{ENOUGH} or more groups most often. A rollout matches the task whose reference is its final answer, or of whose "
    f"prompt it has the most words, of those in at most {_COMMON:.0%} of the prompts. At most a third as many match "
    f"tasks of other steps, with a probability below {CHANCE:.0%} of so many by chance, corrected for the number of "
    f"places. Some {_READ:,} rollouts of whole steps are read."
)


class _Matched(NamedTuple):
    """Says of R rollouts which tasks they match: of their own step, and of K other steps."""

    clause: str
    rows: Rows
    own: Bools  # (R) True if it matches its own task
    other: NDArray[np.bool_]  # (1 + K, R) True if it matches another task of each of these steps more

    @property
    def likely(self) -> Bools:
        """(R) True if it matches another task of its step, or none in a group in which most that match do: wrong
        answers are no task's reference.
        """
        is_other, is_own = self.other[0], self.own & ~self.other[0]
        balance = np.bincount(self.rows.group, is_other.astype(float) - is_own)
        return np.asarray(is_other | (~is_own & (balance[self.rows.group] > 0)), bool)

    def tell(self, of: Bools) -> str:
        """Return how many of (R) some rollouts match another task, as in `12 of 20`; right answers do not count."""
        return f"{(self.other[0] & of).sum():,} of {(of & ~(self.own & (self.clause == _ANSWERS))).sum():,}"


def find_mixed(run: Run) -> Card | None:
    """Return the card if completions match another task of their step, and not their own."""
    steps, size = run.all.steps, -(-len(run.rows) // len(run.rows.steps))
    if len(run.rows.steps) < 2 or size > _READ:
        return None
    newest = run.rows.steps[-max(_READ // size, 2) :]
    measures = _match(run, newest)
    place = next(filter(None, (_find_place(run, measures, matched) for matched in measures)), None)
    if place is None:
        return None
    which, where, inside = place
    matched, insides = measures[which], [inside[np.isin(run.all.id, of.rows.id)] for of in measures]
    affected = matched.likely & insides[which]
    spread_steps = steps[np.unique(np.linspace(0, len(steps) - 1, max(_READ // size, _LEAST)).astype(int))]
    spread = _match(run, spread_steps)[which]
    of = inside[np.isin(run.all.id, spread.rows.id)]
    since = above(spread.rows.where(of).by_step(spread.other[0, of]), _SHARE)
    if since["since_step"] is not None:  # steps before that were not read may have been so, too
        first, last = since["since_range"] or (since["since_step"],) * 2
        since["since_range"] = int(max(spread_steps[spread_steps < first], default=first - 1)) + 1, last
    early = of & (spread.rows.step < (since["since_step"] or 0))
    by_chance, hits = percent(float(matched.other[1:, insides[which]].mean())), matched.rows.id[affected]
    more = [
        f"{other.tell(there)} {other.clause}."
        for other, there in zip(measures, insides, strict=True)
        if other is not matched and other.other[0, there].mean() >= _SHARE
    ]
    is_all = len(newest) == len(run.rows.steps)
    return Card(
        id="wiring",
        title=f"{where}{matched.tell(insides[which])} {matched.clause}",
        cost=contrast.spread(run) * float(affected.mean()),
        evidence=(
            *[f"Before step {since['since_step']:,}: {spread.tell(early)} that were read there."] * bool(early.any()),
            *[f"Elsewhere: {matched.tell(~insides[which])}."] * bool(where),
            f"With tasks of other steps in their place, {by_chance} of the rollouts would match another.",
            *more,
        ),
        suggestion="Look at how completions and rewards are put beside their prompts, as after a gather or a sort: use "
        "an index, not the order in which they come."
        + " If the dataset is read in order, its references may be shifted instead."
        * (matched.clause == _ANSWERS and not more),
        where=ids(hits),
        **({"own": np.isin(run.rows.id, hits)} if is_all else {"share": float(affected.mean())}),
        **since,
        measure="such rollouts",
        is_setup=True,
        is_loss=False,
        explains=("worse_place", "final_answers", "disagreement", "constant_function"),
    )


def _find_place(run: Run, measures: list[_Matched], matched: _Matched) -> tuple[int, str, Bools] | None:
    """Return the place in `measures`, the words of a title and (N,) True for the rollouts of all machines, or of those
    alone that hold nearly all that match another task. None if these are few, or have the words of their own prompts.
    """
    machines = [kind for kind in list_kinds(run) if MACHINE.search(kind[0])]
    count = 1 + sum(len(names) for _, names, _ in machines)
    is_read, of_words = (np.isin(run.all.id, of.rows.id) for of in (matched, measures[-1]))
    own_words, places = measures[-1].own & ~measures[-1].other[0], list[tuple[int, int, str, Bools]]()
    for field, names, codes in [("", [""], np.zeros(len(run.all), np.int64)), *machines]:
        sure = [code for code in range(len(names)) if _is_mixed(matched, codes[is_read] == code, count)]
        inside, where = np.isin(codes, sure), f"In {list_places([names[code] for code in sure], field)}, "
        if sure and own_words[inside[of_words]].mean() < _MOST:
            mine = inside[is_read]
            places.append((int(matched.other[0, mine].sum()), int(mine.sum()), field and where, inside))
    least = _NEARLY_ALL * max((hits for hits, *_ in places), default=0)
    purest = min((of for of in places if of[0] >= least), key=lambda of: of[1], default=None)
    return None if purest is None else ([of is matched for of in measures].index(True), *purest[2:])


def _match(run: Run, steps: Ints) -> list[_Matched]:
    """Return what final answers of these steps match, if there are references, and what the words of completions do."""
    rows = run.all.where(np.isin(run.all.step, steps))
    texts = dict(run.read_texts(rows.id.tolist()))
    column = reference_column(run.rows, run.labels, run.settings.reference)
    rows = rows.where(np.isin(rows.id, list(texts)))
    read = [texts[row] for row in rows.id.tolist()]
    prompts = [_list_words(prompt_of(text)[-_LONG:]) for text in read]
    first = np.unique(rows.group, return_index=True)[1]
    counts = Counter(word for row in first for word in prompts[row])
    common = {word for word, number in counts.items() if number > max(_COMMON * len(first), 1)}
    spoken = [_list_words(_join_answers(text)[:_LONG]) for text in read]
    by_words = _match_tasks(_WORDS, rows, spoken, [prompt - common for prompt in prompts])
    if column is None:
        return [by_words]
    answers = read_answers(run, rows, column, texts)
    pairs = ([{text} for text in side] for side in (answers.answer, answers.reference))
    return [_match_tasks(_ANSWERS, answers.rows, *pairs), by_words]


def _join_answers(texts: Texts) -> str:
    answers = [message for message in texts.messages if message.get("role") == "assistant"]
    return "\n".join(f"{message.get('reasoning_content') or ''}\n{text_of(message)}" for message in answers)


def _list_words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]{2,}", text.casefold()))


def _match_tasks(clause: str, rows: Rows, spoken: list[set[str]], tasks: list[set[str]]) -> _Matched:
    """Compare (R) what rollouts say with (R) what is known of their tasks, and of the other tasks of each step."""
    step, first = np.unique(rows.step, return_inverse=True)[1], np.unique(rows.group, return_index=True)[1]
    count = int(step.max(initial=0)) + 1
    of_step = [[tasks[row] for row in first[step[first] == at]] for at in range(count)]
    own = np.array([len(words & task) for words, task in zip(spoken, tasks, strict=True)], np.int64)
    most = [
        [max((len(spoken[row] & task) for task in of_step[at] if task != tasks[row]), default=0) for row, at in places]
        for shift in range(min(_SHIFTS, count - 1) + 1)
        for places in [list(enumerate(((step + shift) % count).tolist()))]
    ]
    return _Matched(clause, rows, own > 0, np.array(most, np.int64) > own)


def _is_mixed(matched: _Matched, inside: Bools, count: int) -> bool:
    """Return True if rollouts `inside` match another task of their step too often; `count`: of places compared."""
    other, group = matched.other[:, inside], np.unique(matched.rows.group[inside], return_inverse=True)[1]
    own = matched.own[inside] & ~other
    if len(np.unique(group)) < ENOUGH or other[0].mean() < _SHARE or other[0].sum() < _MOST * (own | other)[0].sum():
        return False
    is_hit = np.array([np.bincount(group, balance) > 0 for balance in other.astype(float) - own])
    hits, of, chance = int(is_hit[0].sum()), is_hit.shape[1], float(is_hit[1:].mean())
    is_rare = other[1:].mean() <= _AS_OFTEN * other[0].mean()
    return bool(hits >= ENOUGH and is_rare and tail(hits, of, chance) * count <= CHANCE)
