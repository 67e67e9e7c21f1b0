"""Finds an observation that rollouts suddenly get and that costs reward, though no call raises: a rate limiter's text,
an error page, an empty output, a page that does not change.

No list of such texts is needed: observations are compared by their first words, and long ones by
their last, where a notice stands that something was cut. The policy's own failures are told
apart by what it does: an environment that fails answers otherwise to the kinds of actions that it had answered before.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.action_text import KEY, ending_key, observation_key, observed_text
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, Texts, check, needs, uncovered
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.hacking import find_hacked
from logs_ui.recorder.diagnosis.compared_answers import tail
from logs_ui.recorder.diagnosis.contrast import SURER
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, chance_limit, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.outcome import REWARD, outcome_of
from logs_ui.recorder.diagnosis.references import list_data_kinds
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.tables.action_sample import as_text, kind_names
from logs_ui.recorder.diagnosis.tables.actions import looping
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, listed, percent

_SHARE, _RARER = 0.05, 10  # of the rollouts; times rarer before [ours]
_LOOKED, _READ = 20, 32  # observations that are compared; rollouts of which texts are read
_SAME_ACTIONS, _ALL = 0.8, 0.8  # as many follow kinds of actions of before as usual; of the answers to these [ours]
_CHANCE = 0.01  # that so few rollouts before took such actions, if as many did as have the observation [ours]
_RECUR = 0.5  # of the actions before, at least: where fewer are of kinds that recur, kinds tell little [ours]
_COVERED, _MOST = 0.75, 0.5  # of the rollouts of a group have it; of those that have it are in such groups [ours]
_FIRST = 1  # percentile of the steps at which an observation occurs that counts as its first [ours]
_UNCHANGING = -1  # the key of whatever text is most of what a rollout hears
_NEAR = 2  # steps: observations that began together are one finding
_CALLS = re.compile(r"Traceback \(most recent call last\):.*\n(?=[\w.]+(?:Error|Exception)\b)", re.DOTALL)
_DIGITS = re.compile(r"\w*\d[\w.,]*")
_SHOWN, _MORE, _TRACE = 80, "\u2026", "Traceback \u2026 "  # characters
_RESET = {"name": "reset", "arguments": {}}  # in place of the action that the first observation follows


class Heard(NamedTuple):
    """One kind of observation, or one that is most of what a rollout hears."""

    key: int
    affected: Bools  # (N,) True for rollouts of all steps that have it
    since: int
    chance: float
    cost: float = 0.0  # reward, or outcome, per rollout that has it
    than: str = "others of their groups"  # what its rollouts were compared with


def _check(run: Run) -> Outcome:
    rows, limit = run.all, run.threshold("new_observation", _SHARE)
    if len(rows.steps) < 2:
        return NotJudged("The run has a single step.")
    tasks = rows if tasks_recur(rows) else run.families
    places = [of.task for of in (tasks, run.families) if of is not None] or [rows.eval]
    columns = [codes for _, _, codes in list_data_kinds(run)]
    kinds = [
        _find_begun(rows, frequent, places, columns, limit)
        for frequent in (
            _find_frequent(rows, run.rows, limit, 0),
            _find_frequent(rows, run.rows, limit, 1) if _has_endings(rows) else (),
            _find_unchanging(rows, run.rows, limit),
        )
    ]
    # The first value of which an observation costs something counts, and the first kind that costs it.
    weighed = (
        (
            outcome,
            lost,
            begun,
            [cost for new in begun if (cost := weigh_cost(run, new, begun, tasks, lost)) is not None],
        )
        for outcome, lost in _list_outcomes(run)
        for _, begun in kinds
        if begun
    )
    outcome, lost, begun, costly = next((entry for entry in weighed if entry[3]), ("", run.lost, [], []))
    if not costly:
        compared = sum(count for count, _ in kinds)
        costs = (
            f"Of {compared} frequent beginnings or endings of observations none began during the run and costs reward."
        )
        began = f"No beginning or ending of observations that is frequent was {_RARER} times rarer at first."
        return uncovered(run) or Below(costs if compared else began)
    worst = max(costly, key=lambda heard: heard.cost * heard.affected.sum())
    alike = [heard for heard in costly if abs(heard.since - worst.since) <= _NEAR]
    together = worst._replace(affected=np.logical_or.reduce([heard.affected for heard in alike]))
    whole = weigh_cost(run, together, begun, tasks, lost)
    return _card(run, whole or worst, alike if whole else [worst], limit, outcome)


def _find_begun(
    rows: Rows, frequent: Iterable[tuple[int, Bools]], places: Sequence[Ints], columns: Sequence[Ints], limit: float
) -> tuple[int, list[Heard]]:
    """Return how many observations are compared, and those that began during the run beyond chance."""
    compared, candidates = 0, list[Heard]()
    for key, has_observation in frequent:
        compared += 1
        # Of what only some tasks hear, the share by step may not show the step: then it begins where it first occurs,
        # and chance is that of any of the steps.
        jump, first = (
            above(rows.by_step(has_observation), limit)["since_step"],
            int(np.percentile(rows.step[has_observation], _FIRST)),
        )
        begin = partial(_begin, rows, places, columns, key, has_observation)
        heard = begin(jump) or begin(first, len(rows.steps))
        candidates += [heard] if heard else []
    most = chance_limit([candidate.chance for candidate in candidates] + [1.0] * (compared - len(candidates)))
    return compared, [candidate for candidate in candidates if candidate.chance <= most]


def _list_outcomes(run: Run) -> Iterator[tuple[str, Floats]]:
    """Yield (N,) values of which all rollouts may lose, and a name: "" for the reward, then that of the outcome, which
    the reward may not pay for.
    """
    yield "", np.maximum(losses(run.all, run.scale), 0.0)
    outcome = outcome_of(run)
    if outcome.name != REWARD:
        yield f"share {outcome.name}" if outcome.is_share else outcome.name, -outcome.values
    if (name := find_hacked(run)) is not None:
        yield f"mean {name}", -run.all.values[name]


def _begin(
    rows: Rows, places: Sequence[Ints], columns: Sequence[Ints], key: int, has_observation: Bools, since: int | None,
    tried: int = 1,
) -> Heard | None:  # fmt: skip
    """Return an observation that began at a step; None if that may be chance, or it was not far rarer before in the
    same `places`: (N,) codes of tasks, then of their families, which count where most that have it are at new tasks,
    as do those of the dataset's `columns`. `tried` is the number of steps of which this one was chosen.
    """
    if since is None or since <= rows.steps[0]:
        return None
    late, chance = rows.step >= since, 0.0
    for codes in places:
        same = np.isin(codes, codes[~late])  # other tasks have other observations
        difference = compare(np.where(same, has_observation, np.nan), late, rows.group, codes)
        if difference is None or difference.chance is None or not _is_rarer(difference):
            return None
        chance = max(chance, difference.chance * tried)
        if 2 * (has_observation & late & same).sum() >= (has_observation & late).sum():
            is_known = (np.isin(rows.task, rows.task[~late]) & (rows.task >= 0))[has_observation & late].mean() > _MOST
            is_new = is_known or all(_is_new_within(rows, column, has_observation, late) for column in columns)
            return Heard(key, has_observation, since, chance) if is_new else None
    return None


def _is_new_within(rows: Rows, codes: Ints, has_observation: Bools, late: Bools) -> bool:
    """Return True if late rollouts have an observation far more often with the same value of a column; False if most
    that have it have a value that hardly any group had before, in a column of few values.
    """
    early = ~late & (codes >= 0)
    groups = distinct(codes[early], rows.group[early], count=int(codes.max()) + 1)
    has_few = len(groups) * 2 * LEAST_UNITS <= len(rows.groups.size)
    is_seldom = (codes >= 0) & (groups[codes] < LEAST_UNITS)
    if has_few and is_seldom[has_observation & late].mean() > _MOST:
        return False
    difference = compare(np.where(codes >= 0, has_observation, np.nan), late, rows.group, codes)
    return difference is None or difference.chance is None or _is_rarer(difference)


def _is_rarer(difference: Difference) -> bool:
    return _RARER * difference.others <= difference.chosen


def _has_endings(rows: Rows) -> bool:
    """Return False if some rows were stored before endings had keys."""
    return all(" " in keys for keys in rows.facts["observation_keys"].tolist() if keys)


def _list_keys(rows: Rows, part: int) -> list[str]:
    """Return of each rollout the keys of its observations, one after the other; `part` is 1 for those of endings."""
    parts = [(keys or "").partition(" ")[2 * part] for keys in rows.facts["observation_keys"].tolist()]
    # What `edit` made of them is left out.
    return [keys if keys.isascii() and len(keys) % KEY == 0 else "" for keys in parts]


def _find_frequent(rows: Rows, last: Rows, limit: float, part: int) -> Iterator[tuple[int, Bools]]:
    """Yield those that are frequent in the last steps, and rare in the first ones: their key, and (N,) True for
    rollouts that have it. A key is odd if they are most of what a rollout hears. `part`: see `_list_keys`.
    """
    texts = _list_keys(rows, part)
    # A pair is one number: the index of a rollout in the upper 32 bits, and the four characters of a key in the
    # lower ones. A key that a rollout has twice, as most of what it hears, makes one more pair, with bit 62 set. In
    # `kinds`, that bit is the lowest, and the key is above it.
    at = np.repeat(np.arange(len(rows)), [len(text) // KEY for text in texts])
    pairs, times = np.unique(at << 32 | np.frombuffer("".join(texts).encode(), "<u4"), return_counts=True)
    pairs = np.concatenate([pairs, pairs[times > 1] | 1 << 62])
    del texts, times  # a run has a million pairs
    at = (pairs & ~(1 << 62)) >> 32
    kinds, code = np.unique((pairs & 0xFFFFFFFF) << 1 | pairs >> 62, return_inverse=True)
    first = rows.step <= rows.steps[min(1, len(rows.steps) - 2)]
    of_last, of_first = (
        np.bincount(code[of[at]], minlength=len(kinds)) / max(int(of.sum()), 1)
        for of in (rows.step >= last.steps[0], first)
    )
    frequent = np.flatnonzero((of_last > limit) & (_RARER * of_first <= of_last))
    for place in frequent[np.argsort(-of_last[frequent], kind="stable")][:_LOOKED].tolist():
        has_observation = np.zeros(len(rows), bool)
        has_observation[at[code == place]] = True
        yield int(kinds[place]), has_observation


def _find_unchanging(rows: Rows, last: Rows, limit: float) -> Iterator[tuple[int, Bools]]:
    """Yield (N,) True for rollouts in which most observations are one and the same text, if no text is that of more
    than half of them. Those that repeat their actions are left out, since that explains it.
    """
    texts = _list_keys(rows, 0)
    # The first key comes once more if it stands for most.
    is_unchanging = np.array([len(keys) > KEY and keys[:KEY] == keys[-KEY:] for keys in texts]) & ~looping(rows)
    firsts = Counter(texts[place][:KEY] for place in np.flatnonzero(is_unchanging).tolist())
    is_varied = 2 * max(firsts.values(), default=0) <= firsts.total()
    if is_varied and is_unchanging[rows.step >= last.steps[0]].mean() > limit:
        yield _UNCHANGING, is_unchanging


def weigh_cost(run: Run, heard: Heard, begun: Sequence[Heard], tasks: Rows | None, lost: Floats) -> Heard | None:
    """Return it if its rollouts lose more than those of their groups that have nothing of what has `begun`; where
    groups are all or mostly of one kind, more than earlier ones of the same tasks; if these do not recur, more than
    those with the same value of each column; if there is no column, more than all, if all lose more since; else None.
    All of its rollouts tell if that is chance; the cost is that of those of the last steps, as its share is.
    """
    is_last = run.all.step >= run.rows.steps[0]
    has_observation = heard.affected
    now, others = has_observation[is_last], ~np.logical_or.reduce([other.affected for other in begun])[is_last]
    loss = compare(np.where(now | others, lost[is_last], np.nan), now, run.rows.group, run.rows.group)
    # If most of its rollouts are in groups where hardly any other lacks it, those few tell too little.
    covered = run.rows.group_means(now.astype(float))[run.rows.group][now]
    tells = loss is not None and loss.chance is not None
    within = tells and (is_beyond_chance(loss, SURER, sign=1) or (covered >= _COVERED).mean() < _MOST)
    if within:
        return heard._replace(cost=loss.value) if is_beyond_chance(loss, SURER, sign=1) else None
    late = run.all.step >= heard.since
    if tasks is not None:
        strata = {"of the same tasks" if tasks_recur(run.all) else "of the same families of tasks": tasks.task}
    else:
        mine = heard.affected & late
        strata = {
            f"with the same {field}": codes
            for field, _, codes in list_data_kinds(run)
            if np.isin(codes[mine], codes[~late]).mean() >= _MOST  # values that are all new compare with none
        }
    if not strata:
        if not is_beyond_chance(compare(lost, late, run.all.group), SURER, sign=1):
            return None
        strata = {"of all tasks": np.zeros(len(late), np.int64)}
    losses_of = [(name, _compare_with_before(run, heard.affected, lost, late, codes)) for name, codes in strata.items()]
    known = [(of.value, name) for name, of in losses_of if of is not None]
    if len(known) < len(losses_of) or min(known)[0] <= 0:
        return None
    return heard._replace(cost=min(known)[0], than=f"earlier rollouts {min(known)[1]}")


def _compare_with_before(run: Run, has_observation: Bools, lost: Floats, late: Bools, codes: Ints) -> Difference | None:
    """Compare what the rollouts of the last steps that have an observation lose with all of before, within (N,) codes;
    None if those of all steps lose no more beyond chance.
    """
    among = (has_observation | ~late) & np.isin(codes, np.unique(codes[has_observation & late])) & (codes >= 0)
    if not is_beyond_chance(compare(np.where(among, lost, np.nan), late, run.all.group, codes), SURER, sign=1):
        return None
    among &= ~late | (run.all.step >= run.rows.steps[0])
    return compare(np.where(among, lost, np.nan), late, run.all.group, codes)


def _card(run: Run, worst: Heard, alike: Sequence[Heard], limit: float, outcome: str) -> Outcome:
    """Return the card; `outcome` is what its rollouts lack if they do not lose reward."""
    rows, keys = run.all, {observation.key >> 1 for observation in alike}
    affected = np.logical_or.reduce([observation.affected for observation in alike])
    is_last = rows.step >= run.rows.steps[0]
    before = ~affected & (rows.step < worst.since)
    is_same_task = before & np.isin(rows.task, np.unique(rows.task[affected]))
    now, earlier = (
        list(run.sample(of, _READ).values())
        for of in (affected & is_last, is_same_task if is_same_task.sum() >= _READ else before)
    )
    answers = _Answers.of(now, earlier, keys)
    if not answers.got:
        lacks = f"An observation is new and costs reward, but {len(now)} rollouts that were read do not have it."
        return NotJudged(lacks if now else "The texts of its rollouts cannot be read.")
    mine, rest = float(affected[is_last].mean()), float(affected[rows.step < worst.since].mean())
    quotation = _quote(now, worst.key >> 1) + (f" (or one of {len(keys) - 1} more)" if len(keys) > 1 else "")
    title = f"{quotation} is answered to {percent(mine)} of rollouts"
    if is_unchanging := worst.key == _UNCHANGING:
        title = f"{percent(mine)} of rollouts get mostly one text as observation, not all the same"
    elif all(observation.key & 1 for observation in alike):
        title = f"{quotation} is most of what {percent(mine)} of rollouts get as observations"
    title += f", {percent(rest)} before step {worst.since:,}"
    if answers.share_known < _SAME_ACTIONS * max(answers.share_usual, _RECUR):
        return Below(f"{title}; it follows actions that were not taken before, or ended a rollout without an answer.")
    got, calls, got_before, calls_before = answers.counts
    if 2 * got_before * calls > got * calls_before:
        return Below(f"{title}; {answers.sentence}")
    if 1 - tail(answers.takers_before + 1, len(earlier), mine) < _CHANCE:
        return Below(
            f"{title}; it follows actions that the policy took in {answers.takers_before} of {len(earlier)} rollouts "
            "before that were read."
        )
    # Actions that miss leave a page as it is, too, and what is paid may be what the policy wants to hear.
    is_setup = got >= _ALL * calls and not is_unchanging and not outcome
    if not is_setup and looping(run.rows)[affected[is_last]].mean() >= _ALL:
        return Below(f"{title}; these repeat their actions.")
    weighed = np.where(run.rows.dropped == None, run.rows.advantage, np.nan)[affected[is_last]]  # noqa: E711 - of each
    advantage, trained = mean(weighed), float((np.abs(weighed) > SAME).mean())
    paid = [
        f"{percent(trained)} of them are trained on; their mean advantage is {figure(round(advantage or 0.0, 9))}."
    ] * (trained > 0)
    begun = above(rows.by_step(affected), limit)
    if begun["since_step"] != worst.since:  # see `_check`
        begun |= {"since_step": worst.since, "since_range": None, "half_step": None}
    return Card(
        id="new_observation",
        title=title,
        cost=mine * worst.cost,
        than=worst.than,
        evidence=(
            answers.sentence,
            f"Their {outcome} is {figure(worst.cost)} lower than that of {worst.than}."
            if outcome
            else f"They lose {figure(worst.cost)} more than {worst.than}.",
            *paid,
        ),
        suggestion="Fix what answers so, or end such rollouts with an error and mask them; the policy is not at fault."
        if is_setup
        else "Read what these rollouts did before it: no reward shows its cost, so the policy may have learned it."
        if outcome
        else "Read one, beside an equal action from before: the environment no longer reacts, or the actions miss."
        if is_unchanging
        else "Read it: other calls of the same kind are answered otherwise, so find what these have in common.",
        where=links.ids(rows.id[affected & is_last]),
        **begun,
        own=affected[is_last],
        is_setup=is_setup,
        is_loss=not outcome,
    )


class _Answers(NamedTuple):
    """Counts answers to actions, by kind of action: those with the keys, and all; in rollouts with them, and before."""

    got: Counter[str]
    calls: Counter[str]
    got_before: Counter[str]
    calls_before: Counter[str]
    rollouts: tuple[int, int]
    share_usual: float  # of the actions before, those whose kind was taken twice or more, 0 to 1
    takers_before: int  # of the rollouts before, those that take an action of a kind that gets the keys

    @classmethod
    def of(cls, now: Sequence[Texts], earlier: Sequence[Texts], keys: set[int]) -> "_Answers":
        entries = [[pair for texts in some for pair in _list_answers(texts.actions, keys)] for some in (now, earlier)]
        names = kind_names([action for some in entries for action, _ in some])
        counts, left = list[Counter[str]](), iter(names)
        for some in entries:
            pairs = list(zip(some, left, strict=False))  # the list first: it ends without taking a name
            got = Counter(name for (_, is_so), name in pairs if is_so)
            counts += [got, Counter(name for _, name in pairs)]
        left = iter(names[len(entries[0]) :])
        has_kind = [[next(left) in counts[0] for _ in _list_answers(texts.actions, keys)] for texts in earlier]
        # Guesses of many words are of many kinds, so that some were not taken before, either.
        usual = sum(times for times in counts[3].values() if times > 1) / max(counts[3].total(), 1)
        return cls(counts[0], counts[1], counts[2], counts[3], (len(now), len(earlier)), usual, sum(map(any, has_kind)))

    @property
    def share_known(self) -> float:
        """Return the share of these answers that follow kinds of actions which were taken before, 0 to 1."""
        return sum(n for kind, n in self.got.items() if self.calls_before[kind]) / self.got.total()

    @property
    def counts(self) -> list[int]:
        """Return the four sums over the kinds of actions that get them."""
        return [
            sum(counter[name] for name in self.got)
            for counter in (self.got, self.calls, self.got_before, self.calls_before)
        ]

    @property
    def sentence(self) -> str:
        got, calls, got_before, before = self.counts
        kinds = listed([name for name, _ in sorted(self.got.items(), key=lambda pair: (-pair[1], pair[0]))])
        return (
            f"In {self.rollouts[0]} of them that were read, {got:,} of {calls:,} answers to {kinds} are so (equal "
            f"actions count once); in {self.rollouts[1]} rollouts before, {got_before:,} of {before:,}."
        )


def _list_answers(actions: Sequence[Mapping[str, Any]], keys: set[int]) -> list[tuple[Any, bool]]:
    """Return the actions of a rollout, and if each is answered with one of these keys."""
    heard = Counter(key for action in actions for key in _keys(action.get("observation"))[:1])
    if keys == {_UNCHANGING}:
        keys = {key for key, times in heard.items() if 2 * times > heard.total()}
    entries = _first_sent(actions)
    if entries and actions[-1].get("observation") is None and entries[-1]["action"] == actions[-1].get("action"):
        entries.pop()  # the end: nothing answers it
    return [(entry["action"], not keys.isdisjoint(_keys(entry.get("observation")))) for entry in entries]


def _first_sent(actions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the actions of a rollout without those that repeat one: they say more of the policy."""
    entries: dict[str, Mapping[str, Any]] = {}
    for entry in actions:
        action = entry.get("action") or (None if entry.get("observation") is None else _RESET)
        if action is not None:
            entries.setdefault(as_text(action), {**entry, "action": action})
    return list(entries.values())


def _keys(observation: Any) -> list[int]:
    """Return the key of an observation as a number, and that of its ending, if it has one."""
    text = observed_text(observation)
    keys = () if text is None else (observation_key(text), ending_key(text))
    return [int.from_bytes(key.encode(), "little") for key in keys if key is not None]


def _quote(read: Sequence[Texts], key: int) -> str:
    """Return the first observation of that key, in quotation marks: as far as all of them that were read begin alike
    but for numbers, or end alike, if it is the key of an ending; the most frequent exception of tracebacks; words for
    one without text.
    """
    every = (action.get("observation") for texts in read for action in texts.actions)
    every_keys = [(told, keys) for told in every if key in (keys := _keys(told))]
    texts = [_CALLS.sub(_TRACE, observed_text(told) or "") for told, _ in every_keys]
    heard = [" ".join(text.split()) for text in texts]
    if every_keys and every_keys[0][1][0] != key:
        return _quote_ending(heard)
    text, more = next(iter(heard), ""), ""
    words = [_DIGITS.sub("0", line).split() for line in heard]
    alike = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))))
    if text.startswith(_TRACE):
        text, more = Counter(heard).most_common(1)[0][0], " or another exception" * (len(set(heard)) > 1)
    elif 0 < alike < len(text.split()):
        text = " ".join(text.split()[:alike]) + _MORE
    return f"\u201c{text if len(text) <= _SHOWN else text[:_SHOWN] + _MORE}\u201d{more}" if text else "An empty text"


def _quote_ending(heard: Sequence[str]) -> str:
    """Return in quotation marks how the first of these texts ends, as far as all end alike but for numbers."""
    words = [_DIGITS.sub("0", line).split()[::-1] for line in heard]
    alike = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))))
    ending = " ".join(heard[0].split()[-max(alike, 1) :])
    return f"\u201c{_MORE}{ending[-_SHOWN:]}\u201d"


DIAGNOSTIC = check(
    "new_observation",
    "New observation",
    "Share of rollouts with an observation, by its first words without numbers (or its last, if it is long), above "
    f"{_SHARE:.0%} in the last steps, if it was {_RARER} times rarer before a step at the same tasks, beyond chance "
    "(and in the same families, and with the same value of each column, where most that have it are at new tasks; not "
    f"if most have a value that fewer than {LEAST_UNITS} groups had before, in a column of few values), and "
    "its rollouts lose more than others of their groups (if most of its rollouts are in groups of which "
    f"{_COVERED:.0%} have it: than earlier rollouts of the same tasks; of the same families, or with the same value of "
    "each column, if tasks do not recur; of all tasks, if there are none of these and all lose more since), with a "
    f"probability below {SURER:.1%} of that by chance; or, where they lose no reward, reach less of the outcome, or of "
    "the function that `hacking` names. "
    "Silent if it follows kinds of actions that were not taken, or not answered, before, or in so few rollouts that "
    f"the probability of it is below {_CHANCE:.0%} if as many took them; and if it follows repeated ones. If no "
    "observation is found so, rollouts are looked at in which most observations are one and the same text, a different "
    "one in different rollouts, and which do not repeat their actions.",
    needs("observations", lambda run: run.has_observations),
    _check,
    needs_calls=True,
)
