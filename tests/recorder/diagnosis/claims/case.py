"""A generated run with what is said of it, and the counts that several claims need."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import orjson

from logs_ui.recorder.diagnosis import Card
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.rows.task_names import prompt_task
from tests.faults.columns import columns, diagnosed, stop_reason
from tests.faults.runs import Rollout, Run

SAME = 1e-6


T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    found: dict[Hashable, list[T]] = defaultdict(list)
    for it in items:
        found[key(it)].append(it)
    return list(found.values())


def in_groups(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    return grouped(rollouts, lambda it: (it.step, it.group))


def parts(it: Rollout) -> dict[str, float]:
    """Return what each reward function adds to the reward."""
    weights, values = it.weights or {}, it.values or {}
    return {n: v * weights.get(n, 1.0) for n, v in values.items() if v is not None and np.isfinite(v)}


def reward(it: Rollout) -> float | None:
    return sum(parts(it).values()) if parts(it) else None


def rewards(rollouts: Iterable[Rollout]) -> list[float]:
    return [value for it in rollouts if (value := reward(it)) is not None]


def means(values: Iterable[float | None]) -> str:
    """Return the mean of what is known, as it is printed."""
    return figure(fmean(it for it in values if it is not None))


def values(rollouts: Iterable[Rollout], name: str) -> list[float]:
    return [(it.values or {})[name] for it in rollouts]  # type: ignore[misc]


def is_equal(group: list[Rollout]) -> bool:
    return len(rewards(group)) > 1 and np.ptp(rewards(group)) <= SAME


def error(it: Rollout) -> str | None:
    return f"RuntimeError: {it.raises}" if it.raises else it.turns[-1].error if it.turns else None


def actions(it: Rollout) -> list[Any]:
    return [turn.action for turn in it.turns if turn.action is not None]


def tail(it: Rollout) -> int:
    """Return how many equal actions end it."""
    backwards = actions(it)[::-1]
    return next((n for n, action in enumerate(backwards) if action != backwards[0]), len(backwards))


def repeats(it: Rollout) -> float:
    """Return the share of actions that were taken before at the same observation, or that go round the same few."""
    before = [None, *(turn.observation for turn in it.turns)]
    pairs = {
        (repr(at), repr(turn.action)) for at, turn in zip(before, it.turns, strict=False) if turn.action is not None
    }
    return max(1 - len(pairs) / len(actions(it)), goes_round(actions(it))) if actions(it) else 0.0


def goes_round(taken: list[Any]) -> float:
    """Return the share of the longest stretch that repeats the same two to four actions."""
    stretches = [
        last - first
        for period in (2, 3, 4)
        for first in range(len(taken))
        for last in range(first + 2 * period, len(taken) + 1)
        if all(taken[at] == taken[at + period] for at in range(first, last - period))
        and len(set(map(repr, taken[first:last]))) > 1
    ]
    return max(stretches, default=0) / max(len(taken), 1)


def is_looping(it: Rollout) -> bool:
    return tail(it) >= 3 or repeats(it) > 0.5


def is_cut(it: Rollout) -> bool:
    return it.stop == "length" or any(turn.finish == "length" for turn in it.turns)


def task(it: Rollout) -> str:
    return it.task or prompt_task(orjson.dumps(it.prompt))


def tasks(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    return {task(mine[0]): mine for mine in grouped(rollouts, task)}


def recounted(text: str, entries: Mapping[str, str]) -> str:
    """Return a list of names as it must be, with the names of `text` first: any order of equals is right."""
    first = [re.sub(r" \(.*|\d+ more$", "", it) for it in re.split(", | and ", text)]
    first = [it for it in first if it]
    return listed([*(entries[it] for it in first), *(entries[it] for it in entries if it not in first)])


class Case:
    """A generated run, and what is said of it."""

    def __init__(self, run: Run) -> None:
        self.run, self.report = run, diagnosed(run).report
        assert self.report.steps
        self.last = self.steps(*self.report.steps)
        self.groups = in_groups(self.last)
        self.card: Card

    def steps(self, first: Any, last: Any) -> list[Rollout]:
        return [it for it in self.run.rollouts if int(first) <= it.step <= int(last)]

    @property
    def run_steps(self) -> list[int]:
        return sorted({it.step for it in self.run.rollouts})

    def share(self, is_so: Callable[[Rollout], Any]) -> str:
        return percent(fmean(bool(is_so(it)) for it in self.last))

    @cached_property
    def solved(self) -> Callable[[Rollout], bool]:
        if self.report.scale.success.description == "the environment ended the episode with a reward of 1":
            return lambda it: bool(it.turns) and it.turns[-1].done is True and it.turns[-1].reward == 1
        said = (self.report.scale.success.description or "").removesuffix(", by the function that scores the rollout")
        if self.report.scale.units:  # "web: score ≥ 1; game: not defined"
            evals, _, said = next(part for part in said.split("; ") if "not defined" not in part).partition(": ")
        matches = [re.fullmatch(r"(.+) (\u2265|>) (\S+)", it) for it in said.split(" and ")]
        assert all(matches)
        least = {it[1]: float(it[3]) - SAME * (1 if it[2] == "\u2265" else -1) for it in matches if it}
        return lambda it: (
            (it.eval in evals.split(", ") if self.report.scale.units else True)
            and any(
                ((reward(it) if name == "reward" else (it.values or {}).get(name)) or 0.0) >= value
                for name, value in least.items()
            )
        )

    @cached_property
    def texts(self) -> Mapping[str, Any]:
        """Return what is recorded of the texts of the last steps: counts of words are tested where they are made."""
        rows = columns(self.run)
        return {name: column[rows.step >= self.last[0].step] for name, column in rows.facts.items()}

    @cached_property
    def texts_of(self) -> Mapping[tuple[int, int, int], Mapping[str, Any]]:
        facts = columns(self.run).facts
        names = ("distinct_words", "compression", "trigram_repeats")
        return {
            (it.step, it.group, it.generation): {name: facts[name][place] for name in names}
            for place, it in enumerate(self.run.rollouts)
        }

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Return the ids that the rollouts have in filters, by `id`."""
        return {id(rollout): number for number, rollout in enumerate(self.run.rollouts, 1)}

    def of_card(self) -> list[tuple[Rollout, bool]]:
        """Return the rollouts of the last steps, and whether the card is about them."""
        assert self.card.own is not None
        return list(zip(self.last, self.card.own.tolist(), strict=True))


Count = Callable[..., tuple[str | None, ...]]
"""Returns what the groups of a sentence's pattern must be, of a case and these groups: see `test_claims.pattern`."""


def place(case: Case, _share: str, names: str, _rest: str) -> tuple[str, ...]:
    inside = set(re.split(", | and ", names))
    shares = (fmean(own for it, own in case.of_card() if (task(it) in inside) is is_in) for is_in in (True, False))
    return percent(next(shares)), names, percent(next(shares))


def errors(case: Case, name: str, _count: str, message: str) -> tuple[str, ...]:
    rollouts = ends_compared(case)[0] if case.card.is_of_evaluations else case.last
    known = [text for it in rollouts if (text := error(it)) and alike(text) == alike(f"{name}: {message}")]
    return name, f"{len(known):,}", message if f"{name}: {message}" in known else ""


def alike(text: str) -> str:
    """Return an error without its numbers."""
    return re.sub(r"\d+", "0", text)


def failed(it: Rollout) -> bool:
    return bool(it.raises) or any(turn.error for turn in it.turns)


def covariance(rollouts: Iterable[Rollout], name: str) -> float:
    """Return a function's share of the variance of the reward within groups."""
    shares = {"reward": 0.0, name: 0.0}
    for group in (it for it in in_groups(rollouts) if rewards(it)):
        whole = np.array([reward(it) or 0.0 for it in group])
        own = np.array([parts(it).get(name, 0.0) for it in group])
        shares["reward"] += float(((whole - whole.mean()) ** 2).sum())
        shares[name] += float(((own - own.mean()) * (whole - whole.mean())).sum())
    return shares[name] / shares["reward"]


def part(rollouts: Iterable[Rollout], name: str) -> str:
    share = covariance(rollouts, name)
    if share < -SAME:
        return "opposes it"
    return "none" if share < SAME else "all" if share > 1 + SAME else percent(share)


def hears_error(it: Rollout, line: str) -> bool:
    """Return whether an observation has a line that is like this one, but for what an ellipsis stands for."""
    like = re.escape(line).replace("\u2026", ".*").replace(r"\ .*", ".*")
    return any(re.search(like, told(turn.observation)) for turn in it.turns)


def within(
    groups: Iterable[list[Rollout]], chosen: Callable[[Rollout], bool], value: Callable[[Rollout], float]
) -> Any:
    """Return the means of the chosen rollouts, and of the others of their groups, each group by what it tells."""
    sums, whole = [0.0, 0.0], 0.0
    for group in groups:
        sides = [[value(it) for it in group if chosen(it) is side] for side in (True, False)]
        if all(sides):
            weight = len(sides[0]) * len(sides[1]) / len(group)
            sums = [total + weight * fmean(side) for total, side in zip(sums, sides, strict=True)]
            whole += weight
    return [total / whole for total in sums]


def near(texts: Iterable[str], values: Iterable[float]) -> list[str]:
    """Return the texts where a sample may have them and all have these values, else the values."""
    pairs = zip(texts, values, strict=True)
    return [
        text if abs(float(text.removesuffix("%")) / (100 if "%" in text else 1) - value) < 0.1 + 0.1 * abs(value)
        else f"{value}"
        for text, value in pairs
    ]  # fmt: skip


def out_of_turns(it: Rollout) -> bool:
    return stop_reason(it) == "turn_limit"


def cancels(group: list[Rollout]) -> bool:
    columns_of = zip(*(parts(it).values() for it in group), strict=True)
    return is_equal(group) and any(np.ptp(column) > SAME for column in columns_of)


def logged(case: Case, name: str) -> float:
    """Return the largest value of the last steps; the mean of what is an average already is that of one value."""
    points = [value for step, value in case.run.scalars.get(name, {}).items() if step >= case.last[0].step]
    return max(points) if points else float(case.run.config[name])


def surprise(case: Case, *, per_rollout: bool = False) -> float:
    """Return the mean of -log p over the sampled tokens; or of the means of the last step's rollouts."""
    kept = [it.tokens.logprobs for it in case.last if it.tokens is not None and it.tokens.logprobs is not None]
    if per_rollout:
        kept = [it.tokens.logprobs for it in case.steps(case.last[-1].step, case.last[-1].step) if it.tokens]  # type: ignore[misc]
        return fmean(-float(np.nanmean(it)) for it in kept)
    return -float(np.nanmean(np.concatenate(kept)))


def windows(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the first steps and as many last ones, or the first and the last third of a short run."""
    steps = sorted({it.step for it in case.run.rollouts})
    count = len({it.step for it in case.last})
    count = count if 2 * count <= len(steps) else max(len(steps) // 3, 1)
    return case.steps(steps[0], steps[count - 1]), case.steps(steps[-count], steps[-1])


def length(it: Rollout) -> float:
    assert it.tokens is not None
    ids = it.tokens.completion_ids if it.tokens.mask is None else it.tokens.completion_ids[it.tokens.mask != 0]
    return len(ids) / max(len(it.turns), 1)


def weight(case: Case, name: str) -> float:
    return (case.last[0].weights or {}).get(name, 1.0)


def completion(it: Rollout) -> Hashable:
    return it.tokens and tuple(it.tokens.completion_ids.tolist())


def ended(it: Rollout) -> bool:
    """Return whether nothing but its reward says that a rollout went wrong."""
    odd = (
        {"length", "no_action", "turn_limit"}
        if not is_looping(it)
        else {"length", "no_action", "turn_limit", "not_recorded"}
    )
    is_idle = not actions(it) and any(turn.is_move for turn in it.turns)
    return not (error(it) or reward(it) is None or str(stop_reason(it)) in odd or is_idle)


def best_of(case: Case, it: Rollout) -> float:
    return next((unit.best for unit in case.report.scale.units if unit.name == it.eval), case.report.scale.best)


def short(case: Case, it: Rollout) -> float:
    """Return the reward that a rollout lost."""
    return max(best_of(case, it) - (reward(it) or 0.0), 0.0)


def share_of_others(it: Rollout) -> float | None:
    """Return the share of the answers' letters whose name in Unicode does not begin with LATIN."""
    letters = [letter for turn in it.turns for letter in turn.text if letter.isalpha()]
    return fmean(not unicodedata.name(letter).startswith("LATIN") for letter in letters) if letters else None


def is_solved(case: Case, it: Rollout) -> float | None:
    """Return None for a rollout of an eval in which solved is not defined."""
    success = case.report.scale.success
    known = {mark.eval for mark in success.marks} if case.report.scale.units else {it.eval}
    return float(success.is_defined and case.solved(it)) if it.eval in known else None


def figures(case: Case, it: Rollout) -> dict[str, float]:
    """Return what differences may name, of one rollout."""
    texts = case.texts_of[it.step, it.group, it.generation]
    tokens = float("nan") if it.tokens is None else length(it) * max(len(it.turns), 1)
    return {
        **(it.values or {}),
        "reward": reward(it),
        "tokens per turn": tokens / max(len(it.turns), 1),
        "sampled tokens": tokens,
        "turns": len(it.turns),
        "environment steps": len(actions(it)),
        "tool calls": sum(isinstance(sent, dict) and sent.keys() == {"name", "arguments"} for sent in actions(it)),
        "tool calls without an environment step": 0.0,  # in these runs each action has its turn, and is sent
        "failed actions": sum(turn.error is not None for turn in it.turns),
        "the share of different words": texts["distinct_words"],
        "the repetitiveness (compression ratio)": texts["compression"],
        "the share of three-word sequences that repeat": texts["trigram_repeats"],
        "the share of letters that are not Latin": share_of_others(it),
        "solved (share)": is_solved(case, it),
        "turn limit (share)": float(out_of_turns(it)),
        "truncated (share)": float(it.stop == "length"),
        "no action parsed (share)": float(it.turns[-1].action is None and it.stop == "no_action"),
    }


def compared(
    case: Case, name: str, chosen: list[Rollout], others: list[Rollout], stratum: Callable[[Rollout], Hashable]
) -> tuple[str, str]:
    """Return the two means of a figure, over the strata that both sides have, each weighted by what it tells."""
    sums, whole = [0.0, 0.0], 0.0
    # In the order of the rollouts: sums in the order of a set differ in their last bit, and round otherwise.
    for code in dict.fromkeys(stratum(it) for it in chosen):
        each = [[figures(case, it).get(name) for it in side if stratum(it) == code] for side in (chosen, others)]
        sides = [[value for value in side if value is not None] for side in each]
        if all(sides):
            weight = len(sides[0]) * len(sides[1]) / (len(sides[0]) + len(sides[1]))
            sums, whole = (
                [total + weight * fmean(side) for total, side in zip(sums, sides, strict=True)],
                whole + weight,
            )
    shown = percent if name.endswith("(share)") or name.startswith("the share of ") else figure
    return shown(sums[0] / whole), shown(sums[1] / whole)


def kind_of(it: Rollout) -> str:
    return it.metadata.get("kind") or task(it).partition("/")[0]


def place_in(text: str) -> Callable[[Rollout], str]:
    """Return what names the place of a rollout: a column's value if the text names one, else a family."""
    name = "".join(re.findall(r"metadata\.(\S+)", text)[:1])
    return (lambda it: f"metadata.{name} {it.metadata[name]}") if name else (lambda it: f"{kind_of(it)}/")


def first(it: Rollout) -> str:
    return it.turns[0].text


def read_evenly(case: Case, count: int) -> list[Rollout]:
    """Return so many rollouts of all steps, at equal distances."""
    return sample(case.run.rollouts, count)


def sample(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    last = len(rollouts) - 1
    return [rollouts[place] for place in sorted({int(last * it / (count - 1)) for it in range(count)})]


def has_habit(it: Rollout, habit: str) -> bool:
    """Return whether a rollout does what a title says."""
    tools = [action["name"] for action in actions(it) if isinstance(action, dict) and "arguments" in action]
    if habit.startswith("never begin"):
        return not any(str(action).startswith(re.findall("\u201c(.*)\u201d", habit)[0]) for action in actions(it))
    if "\u201c" not in habit:
        kind, tool = ("call ", "begin with a call of ", "end with a call of "), habit.rpartition(" ")[2]
        chosen = (tools, tools[:1], tools[-1:])
        return tool in next(of for of, begin in zip(chosen, kind, strict=True) if habit.startswith(begin))
    phrase, _, where = habit.removeprefix("have \u201c").partition("\u201d in ")
    if where == "the prompt":
        return phrase in re.sub(r"\W+", " ", " ".join(str(message["content"]) for message in it.sent or it.prompt))
    if where == "an observation":
        heard_last = [leaves(turn.observation)[:200] for turn in it.turns if turn.is_move][-8:]
        return any(f" {phrase} " in f" {re.sub(chr(92) + 'W+', ' ', text)} " for text in heard_last)
    spoken = [it.turns[-1].text] if where == "the last answer" else list(map(leaves, actions(it)))
    words = (re.sub(r"\W+", " ", re.split("</think>", text)[-1][:1000]) for text in spoken)
    return any(f" {phrase} " in f" {text} " for text in words)


def leaves(value: Any) -> str:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return (
        value if isinstance(value, str) else " ".join(leaves(it) for it in parts if isinstance(it, str | dict | list))
    )


def ends_compared(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts of the last evaluations, at most three, and those of the training near them."""
    steps = sorted({it.step for it in case.run.evaluation})[-3:]
    near = {step + away for step in steps for away in range(-2, 3)}
    return [it for it in case.run.evaluation if it.step in steps], [it for it in case.run.rollouts if it.step in near]


def told(observation: Any) -> str:
    """Return the text of an observation."""
    return str(next(iter(observation.values())) if isinstance(observation, dict) else observation)


def about(part: str, whole: str, share: float) -> tuple[str, str]:
    """Return both numbers if a sample may have them where all have that share."""
    near = 0.0 if share in (0.0, 1.0) else 0.15
    return (part if abs(int(part) / int(whole) - share) <= near else f"{share:.0%}"), whole


SPEAKS = "an answer that writes a tool's or a user's turn"


KINDS = {
    **dict.fromkeys(("<tool_response>", "\nUser:", "<|im_start|>"), SPEAKS),
    '{"tool"': 'a call without "name"', '"name": "look_up", "arguments": {"item": ': "a call whose JSON is broken",
    **dict.fromkeys(('": "src/', '"SELECT '), "a whole call with raw line breaks in its strings"),
    **dict.fromkeys(('"open_page"', '"order"'), "a whole call"), '"}\n</tool_call>': "a call whose JSON is broken",
    "\nAction: open[": "a call in another form", "<function=": "a call in another form",
}  # fmt: skip


def kind_read(text: str) -> str:
    kind = next((kind for part, kind in KINDS.items() if part in text), "text without a call")
    return kind if text.strip() else "no text"


def kinds_read(rollouts: Iterable[Rollout]) -> Counter[str]:
    """Count the kinds of last answers in 200 of the rollouts, evenly spread."""
    last = [it.turns[-1].text if it.turns else "" for it in rollouts]
    return Counter(kind_read(last[at]) for at in sorted({int(at) for at in np.linspace(0, len(last) - 1, 200)}))


ANSWER = (
    r"boxed\{((?:[^{}]|\{[^{}]*\})*)\}|<(?:answer|final)>(.*?)</"
    r"|(?:Final answer:|The answer is|Answer:|Balance =|Species:) (.*)|```sql\n(.*);\n```"
)


def given(it: Rollout) -> str:
    return answer_in(it.turns[-1].text)


@cache
def answer_in(text: str) -> str:
    match = re.search(ANSWER, text)
    return valued(next(filter(None, match.groups())) if match else "")


def valued(answer: str) -> str:
    answer = re.sub(r"\\(?:text|mathrm)\{(\w+)\}", r"\1", re.sub(r"\\[ ,]|~", " ", answer))
    answer = answer.replace("\u2212", "-")
    for form in ("%d %B %Y", "%Y-%m-%d"):
        with suppress(ValueError):
            return str(datetime.strptime(f"{answer} +0000", f"{form} %z").date())
    if time := re.fullmatch(r"(\d+):(\d+)( [AP]M)?", answer):
        hour = int(time[1]) if time[3] is None else int(time[1]) % 12 + 12 * ("P" in time[3])
        return f"{hour} h {time[2]}"
    if parts_of := re.fullmatch(r"(\d+)/(\d+)|\\d?frac\{(\d+)\}\{(\d+)\}", answer):
        up, down = filter(None, parts_of.groups())
        return valued(str(int(up) / int(down)))
    number = re.fullmatch(r"([\d,.]+\d)( \D*)?", answer)
    bare = re.sub(
        r"[^\w<>=]" if answer.startswith("SELECT") else r"\W",
        "",
        re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", answer),
    ).lower()
    return f"{float(number[1].replace(',', '')):.10g}" if number else bare


def target(it: Rollout) -> str:
    """Return a reference as it is written, whatever its column is named."""
    return str(
        next((it.metadata[name] for name in ("answer", "closing_balance", "species") if name in it.metadata), "")
    )


def right(it: Rollout) -> str:
    return valued(target(it))


def spread_of(case: Case) -> list[Rollout]:
    """Return the rollouts of all steps that are read."""
    every = case.run.rollouts
    return [every[place] for place in np.unique(np.linspace(0, len(every) - 1, 300).astype(int))]


def in_line(messages: Iterable[Mapping[str, Any]], role: str = "") -> str:
    return " ".join(" ".join(str(it["content"]).split()) for it in messages if role in {"", it["role"]})


def loses_more(case: Case, name: str) -> float:
    """Return how much more those that are hit lose, per rollout: within tasks each one counts by what it tells."""
    hits, is_of_tasks = [it for it in case.last if it.is_hit], name == "others at the same tasks"
    others = [it for it in (case.run.rollouts if is_of_tasks else case.last) if not it.is_hit]
    total = weights = 0.0
    for of in dict.fromkeys(task(it) if is_of_tasks else "" for it in hits):
        mine, rest = ([short(case, it) for it in side if not of or task(it) == of] for side in (hits, others))
        weight = len(mine) * len(rest) / (len(mine) + len(rest))
        total, weights = total + weight * (fmean(mine) - fmean(rest)) if weight else total, weights + weight
    return total / weights
