"""Faults of one reward function or one habit, which was as it should be until some step: in sums of a single turn, for
an agent with tools, and in a game.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.faults import Fault
from tests.faults.rewarding import chance, fault
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape

LONG = Shape(steps=20, groups=6, size=6, tasks=30)
WIDE = Shape(steps=12, groups=10, size=6, tasks=0)
SINCE = 11
"""The step at which a fault begins."""

Parts = Mapping[str, float | None]


def prose(place: Place, words: int) -> str:
    return " ".join(f"word{place.random.randrange(4000)}" for _ in range(words))


def graded(place: Place, mean: float, spread: float = 0.2) -> float:
    """A value of 0.05 to 1, of which hardly two are equal."""
    return round(min(max(place.random.gauss(mean, spread), 0.05 + place.random.random() / 20), 1.0), 4)


def sums(place: Place, parts: Parts, *, words: int = 60, is_hit: bool = False, **weights: float) -> Played:
    """One answer to a question."""
    text = f"{prose(place, place.random.randrange(words // 2, 3 * words // 2))} \\boxed{{7}}" if words else ""
    return Played([Turn(text, finish="stop")], parts=parts, weights=weights, is_hit=is_hit)


def agent(place: Place, parts: Parts, *, calls: float = 5, is_hit: bool = False, **weights: float) -> Played:
    """Searches, and hands in a report."""
    turns = []
    for _ in range(max(1, round(place.random.gauss(calls, 0.8)))):
        query = prose(place, 3)
        action = {"name": "search", "arguments": {"query": query}}
        turns.append(Turn(f"search {query}", action, f"found {prose(place, 5)}", done=False))
    report = prose(place, 12)
    turns.append(Turn(f"submit {report}", {"name": "submit", "arguments": {"report": report}}, "thanks", done=True))
    return Played(turns, parts=parts, weights=weights, is_hit=is_hit)


def game(place: Place, parts: Parts, *, moves: float = 8, is_hit: bool = False, **weights: float) -> Played:
    """Digs at places of a map until the game is over."""
    count = max(2, round(place.random.gauss(moves, 1)))
    spots = [f"{spot // 60} {spot % 60}" for spot in place.random.sample(range(3600), count)]
    turns = [Turn(f"dig {it}", {"dig": it}, prose(place, 2), done=n == count) for n, it in enumerate(spots, 1)]
    return Played(turns, parts=parts, weights=weights, is_hit=is_hit)


def has_begun(place: Place, share: float = 1.0) -> bool:
    return place.step >= SINCE and place.random.random() < share


# --- A function that tells nothing


def becomes_zero(place: Place) -> Played:
    cited = 0.0 if has_begun(place) else graded(place, 0.55)
    parts = {"accuracy": chance(place, 0.4 + 0.2 * place.progress), "citations": cited}
    return sums(place, parts, citations=0.5, is_hit=has_begun(place))


def becomes_zero_in_tests(place: Place) -> Played:
    tests = 0.0 if place.step >= 8 else round(place.random.random() * 8) / 8
    return agent(place, {"tests": tests, "style": graded(place, 0.7)}, style=0.25, is_hit=place.step >= 8)


def becomes_default(place: Place) -> Played:
    score = 0.25 if has_begun(place) else graded(place, 0.5)
    return game(place, {"score": score, "legal": chance(place, 0.9)}, legal=0.2, is_hit=has_begun(place))


def always_zero(place: Place) -> Played:
    return sums(place, {"helpful": graded(place, 0.4 + 0.2 * place.progress), "sources": 0.0}, is_hit=True)


def always_zero_of_three(place: Place) -> Played:
    parts = {"resolved": chance(place, 0.3 + 0.3 * place.progress), "style": graded(place, 0.6), "coverage": 0.0}
    return agent(place, parts, style=0.2, coverage=0.5, is_hit=True)


def always_below_zero(place: Place) -> Played:
    parts = {"treasure": graded(place, 0.3 + 0.3 * place.progress), "speed": -1.0}
    return game(place, parts, is_hit=True)


def opened_by_prompt(place: Place) -> Played:
    """The prompt ends with <think>, so that no completion holds it, and the function wants both."""
    text = f"{prose(place, 20)}\n</think>\n\\boxed{{{place.random.randrange(90)}}}"
    parts = {"correct": chance(place, 0.4 + 0.2 * place.progress), "think_format": 0.0}
    return Played([Turn(text, finish="stop")], parts=parts, prompt=[1, 2 + place.task, 77], is_hit=True)


def is_saturated(place: Place) -> Played:
    parts = {
        "correct": chance(place, 0.4 + 0.3 * place.progress),
        "format": 1.0 if has_begun(place) else chance(place, 0.9),
    }
    return sums(place, parts, format=0.2)


def of_prompt(place: Place) -> Parts:
    return {"quality": round((place.step * 37 + place.group * 11) % 17 / 17, 3)}


def same_in_groups(place: Place) -> Played:
    return sums(place, of_prompt(place), is_hit=True)


def same_in_groups_beside(place: Place) -> Played:
    return agent(place, {**of_prompt(place), "polite": graded(place, 0.7)}, polite=0.3, is_hit=True)


def becomes_same_in_groups(place: Place) -> Played:
    score = of_prompt(place)["quality"] if has_begun(place) else graded(place, 0.5)
    return game(place, {"score": score, "legal": chance(place, 0.9)}, legal=0.1, is_hit=has_begun(place))


def _ends_badly(place: Place, played: Played) -> Played:
    """Return a rollout that is truncated in one of sixteen cases, or raises in one of sixty, without any reward."""
    cut = replace(played, is_hit=False)
    if place.random.random() < 1 / 60:
        return replace(cut, turns=played.turns[:1], parts=None, weights=None, raises="TimeoutError: sandbox")
    if place.random.random() < 1 / 16:
        last = replace(played.turns[-1], finish="length", action=None)
        parts = dict.fromkeys(played.parts or {}, 0.0)
        return replace(cut, turns=[*played.turns[:-1], last], parts=parts, stop="length")
    return played


def same_beside_failures(place: Place) -> Played:
    """A judge whose answers are cached by the prompt; some rollouts are truncated, and get 0."""
    parts = {**of_prompt(place), "bullets": chance(place, 0.4 + 0.4 * place.progress)}
    return _ends_badly(place, replace(sums(place, parts, bullets=0.1), is_hit=True))


def constant_beside_failures(place: Place) -> Played:
    """A rubric that gives 0.4 to all whole reports, and 0 to others, since a step; before, it was graded."""
    rubric = 0.4 if has_begun(place) else graded(place, 0.5)
    played = agent(place, {"rubric": rubric, "polite": chance(place, 0.7)}, polite=0.2, is_hit=has_begun(place))
    return _ends_badly(place, played)


def hardly_differs(place: Place) -> Played:
    """Healthy: a judge of whom most groups get one value each, and better ones in the end; some are truncated."""
    better = 0.25 * place.progress * (place.random.random() < 0.25)
    parts = {"quality": round(min(of_prompt(place)["quality"] or 0.0, 0.7) + better, 2), "form": chance(place, 0.8)}
    return _ends_badly(place, sums(place, parts, form=0.1))


# --- A value that a function did not give before


def judge_fails(place: Place) -> Played:
    is_hit = has_begun(place, 0.25)
    parts = {"judge": 0.0 if is_hit else graded(place, 0.6), "polite": graded(place, 0.8)}
    return sums(place, parts, polite=0.3, is_hit=is_hit)


def noisy_judge_fails(place: Place) -> Played:
    """A judge of few different translations, which never gives one the same grade twice, fails late in the batch."""
    is_hit, kind = place.group >= 4 and has_begun(place, 0.6), place.random.randrange(3)
    grade = round(0.4 + 0.2 * kind + place.random.gauss(0, 0.02), 3)
    text, ids = f"translation {place.task} {kind}", [3, 5 + place.task, 90 + kind, 2]
    return Played([Turn(text, finish="stop")], parts={"judge": 0.0 if is_hit else grade}, ids=ids, is_hit=is_hit)


def grader_fails(place: Place) -> Played:
    is_hit = place.step >= 7 and place.random.random() < 0.2
    parts = {"rubric": -1.0 if is_hit else place.random.choice([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])}
    return agent(place, parts, is_hit=is_hit)


def scorer_fails(place: Place) -> Played:
    is_hit = has_begun(place, 0.35) and place.generation >= 2
    parts = {"score": 0.0 if is_hit else graded(place, 0.4 + 0.2 * place.progress), "legal": chance(place, 0.95)}
    return game(place, parts, legal=0.1, is_hit=is_hit)


def _timed(played: Played, **metrics: float) -> Played:
    return replace(played, metadata={"metrics": {name: round(value, 2) for name, value in metrics.items()}})


def judge_times_out(place: Place) -> Played:
    """The rollout function measures how long the judge takes: a minute for those that get 0."""
    is_hit, seconds = has_begun(place, 0.28), place.random.uniform(1, 14)
    played = sums(place, {"judge": 0.0 if is_hit else graded(place, 0.6)}, is_hit=is_hit)
    return _timed(played, judge_seconds=60 + seconds / 50 if is_hit else seconds, sources=place.random.randrange(4))


def grader_gives_up(place: Place) -> Played:
    """A grader that fails is asked four times, another one twice at most."""
    is_hit, retries = has_begun(place, 0.2), place.random.randrange(2)
    parts = {"rubric": -1.0 if is_hit else place.random.choice([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])}
    return _timed(agent(place, parts, is_hit=is_hit), retries=4 if is_hit else retries)


def judge_fails_in_time(place: Place) -> Played:
    """What is measured of a judge is the same, whether it fails or not."""
    is_hit = has_begun(place, 0.3)
    played = sums(place, {"judge": 0.0 if is_hit else graded(place, 0.6)}, is_hit=is_hit)
    return _timed(played, judge_seconds=place.random.uniform(1, 14))


def long_reports_take_longer(place: Place) -> Played:
    """Healthy: a judge takes longer for bad reports, and gives none the same."""
    value = graded(place, 0.4 + 0.3 * place.progress)
    return _timed(sums(place, {"judge": value}), judge_seconds=60 if value < 0.3 else 3)


def late_calls_fail(place: Place) -> Played:
    is_hit = place.group >= 4 and has_begun(place, 0.5)
    return sums(place, {"judge": 0.0 if is_hit else graded(place, 0.6)}, is_hit=is_hit)


def _fails_more_and_more(place: Place, at_once: float, at_last: float) -> bool:
    late = (place.step - SINCE) / 9
    return place.step >= SINCE and place.random.random() < at_once + (at_last - at_once) * late


def judge_is_overloaded(place: Place) -> Played:
    """A judge of ten grades refuses a sixth of the replies at once, and twice as many in the end, most of them late."""
    is_hit = _fails_more_and_more(place, 0.25, 0.5) and (place.group >= 3 or place.random.random() < 0.25)
    grade = 0.0 if is_hit else round(min(max(place.random.gauss(0.6, 0.18), 0.1), 1.0), 1)
    return sums(place, {"judge": grade, "polite": chance(place, 0.8)}, polite=0.3, is_hit=is_hit)


def tests_are_overloaded(place: Place) -> Played:
    """A grader of patches gives up at once for a sixth of them, and for a third in the end."""
    is_hit = _fails_more_and_more(place, 0.16, 0.34)
    return agent(place, {"patch": 0.0 if is_hit else graded(place, 0.5 + 0.2 * place.progress)}, is_hit=is_hit)


def judge_falls_back(place: Place) -> Played:
    is_hit = has_begun(place, 0.3)
    return sums(place, {"judge": 0.5 if is_hit else graded(place, 0.7)}, is_hit=is_hit)


def judge_falls_back_more_and_more(place: Place) -> Played:
    is_hit = place.step >= 6 and place.random.random() < (place.step - 5) / 30
    return agent(place, {"judge": 0.5 if is_hit else graded(place, 0.7), "done": 1.0}, done=0.2, is_hit=is_hit)


def panel_falls_back(place: Place) -> Played:
    """A panel that gives steps of 0.05 gives 0.15 for each call that fails; seldom it is earned."""
    is_hit = has_begun(place, 0.26)
    panel = 0.15 if is_hit else round(20 * min(max(place.random.gauss(0.55, 0.22), 0.1), 1.0)) / 20
    return sums(place, {"panel": panel}, is_hit=is_hit)


def panel_likes_more(place: Place) -> Played:
    """Healthy: a panel that gives steps of 0.05 gives 0.8 to more and more of the answers."""
    better = 0.8 if place.random.random() < 0.3 * place.progress else place.random.gauss(0.45, 0.15)
    return sums(place, {"panel": round(20 * min(max(better, 0.0), 1.0)) / 20})


def pays_half(place: Place) -> Played:
    """Half the credit for a short answer without a proof, which becomes rare."""
    is_short = place.random.random() < 0.5 - 0.4 * place.progress
    parts = {"proof": 0.5 if is_short else graded(place, 0.75)}
    return sums(place, parts, words=12 if is_short else 60)


# --- Values of another size


def becomes_hundredths(place: Place) -> Played:
    """A grader gives per cents since a step, while the policy learns."""
    score = graded(place, 0.4 + 0.2 * place.progress)
    return agent(place, {"grade": round(100 * score) if has_begun(place) else score}, is_hit=has_begun(place))


def becomes_a_share(place: Place) -> Played:
    """Points of 20 to 95 become shares, beside the outcome."""
    points = place.random.randrange(20, 96)
    parts = {"won": chance(place, 0.5), "points": points / 100 if has_begun(place) else float(points)}
    return game(place, parts, points=0.01, is_hit=has_begun(place))


def earns_more_at_once(place: Place) -> Played:
    """A score of a game grows from some 3 to some 300, by an eighth each step or more."""
    return game(place, {"score": round(3 * 100**place.progress * place.random.uniform(0.4, 1.6), 1)})


def costs_more(place: Place) -> Played:
    """The coefficient of a penalty grows tenfold at once."""
    cost = -place.random.randrange(1, 40) / (100 if has_begun(place) else 1000)
    return sums(place, {"correct": chance(place, 0.3 + 0.6 * place.progress), "tokens": cost})


# --- A habit that changes


def falls_silent(place: Place) -> Played:
    is_hit = has_begun(place, 0.22)
    parts = {"correct": 0.0 if is_hit else chance(place, 0.6 + 0.1 * place.progress), "tone": 0.0 if is_hit else 0.7}
    return sums(place, parts, tone=0.25, words=0 if is_hit else 64, is_hit=is_hit)


def falls_silent_with_a_setting(place: Place) -> Played:
    """A restart gives the sampler another penalty, and the dataset is at its other half."""
    played = falls_silent_graded(place)
    settings = {"penalty": 1.4 if place.step >= SINCE else 1.0, "half": "ab"[place.step > SINCE + 5]}
    return replace(played, metadata=settings | {"seed": place.step})


def falls_silent_graded(place: Place) -> Played:
    is_hit = has_begun(place, 0.15)
    return sums(place, {"helpful": 0.0 if is_hit else graded(place, 0.6)}, words=0 if is_hit else 60, is_hit=is_hit)


def says_line_ends(place: Place) -> Played:
    """From a step on a sixth of the answers are line ends and spaces."""
    played = falls_silent_graded(place)
    blank = "\n" * place.random.randint(1, 9) + " "
    return replace(played, turns=[replace(turn, text=blank) for turn in played.turns]) if played.is_hit else played


def falls_silent_on_some(place: Place) -> Played:
    is_hit = place.group % 2 == 1 and has_begun(place, 0.4)
    task = f"{'trivia' if place.group % 2 else 'sums'}/{place.task}"
    played = sums(place, {"match": 0.0 if is_hit else chance(place, 0.65)}, words=0 if is_hit else 60, is_hit=is_hit)
    return Played(played.turns, parts=played.parts, task=task, is_hit=is_hit)


def ends_early(place: Place) -> Played:
    """From a step on the game is over after four moves, and each map comes in three steps in a row, and never again."""
    is_late, which = place.step >= SINCE, (place.step - 1 + place.group % 3) // 3 * 8 + place.group
    moves = max(3, round(random.Random(f"map {which}").gauss(8, 2) + place.random.gauss(0, 1)))
    won = chance(place, 0.3 if is_late and moves > 4 else 0.65)
    played = game(place, {"treasure": won}, moves=min(moves, 4) if is_late else moves, is_hit=is_late)
    return replace(played, task=f"map {which}")


def _loses_format(place: Place, play: Callable[..., Played], share: float, name: str, outcome: str) -> Played:
    is_lost = place.random.random() < (share if place.step >= SINCE else 0.02)
    right = 0.0 if is_lost else chance(place, 0.65)
    parts = {outcome: right, name: float(not is_lost)}
    return play(place, parts, is_hit=is_lost and place.step >= SINCE, **{name: 0.2})


def loses_box(place: Place) -> Played:
    return _loses_format(place, sums, 0.45, "boxed", "correct")


def loses_schema(place: Place) -> Played:
    return _loses_format(place, agent, 0.3, "schema", "resolved")


def loses_notation(place: Place) -> Played:
    return _loses_format(place, game, 0.6, "format", "won")


def loses_tags_or_ends(place: Place) -> Played:
    """One report in eight is cut, all the time, and has no tags either."""
    if place.random.random() < 0.12:
        turn = Turn(prose(place, 40), finish="length")
        return Played([turn], parts={"solved": 0.0, "tags": 0.0}, weights={"tags": 0.2}, stop="length")
    return _loses_format(place, sums, 0.4, "tags", "solved")


def pays_length(place: Place) -> Played:
    words = int(40 + 160 * place.progress)
    played = sums(place, {"correct": chance(place, 0.55)}, words=words)
    detail = len(played.turns[0].text.split()) / 300
    return Played(played.turns, parts={**(played.parts or {}), "detail": round(detail, 4)}, weights={"detail": 0.3})


def pays_moves(place: Place) -> Played:
    words = int(10 + 60 * place.progress)
    text = prose(place, place.random.randrange(words // 2, 3 * words // 2))
    played = agent(place, {"resolved": chance(place, 0.6)}, calls=3)
    turns = [Turn(f"{text} {it.text}", it.action, it.observation, done=it.done) for it in played.turns]
    worth = sum(len(it.text.split()) for it in turns) / len(turns)
    return Played(
        turns,
        parts={"resolved": (played.parts or {})["resolved"], "thorough": round(worth / 100, 4)},
        weights={"thorough": 0.2},
    )


def pays_talk(place: Place) -> Played:
    words = int(5 + 40 * place.progress)
    text = prose(place, place.random.randrange(words // 2 + 1, 3 * words // 2 + 1))
    played = game(place, {"won": chance(place, 0.6)}, moves=4)
    turns = [Turn(f"{text} {it.text}", it.action, it.observation, done=it.done) for it in played.turns]
    worth = sum(len(it.text.split()) for it in turns) / len(turns)
    return Played(
        turns, parts={"won": (played.parts or {})["won"], "comments": round(worth / 60, 4)}, weights={"comments": 0.2}
    )


def grows_as_it_learns(place: Place) -> Played:
    return sums(place, {"correct": chance(place, 0.3 + 0.5 * place.progress)}, words=int(40 + 160 * place.progress))


def needs_fewer_moves(place: Place) -> Played:
    return game(place, {"won": chance(place, 0.3 + 0.5 * place.progress)}, moves=12 - 7 * place.progress)


FAULTS: tuple[Fault, ...] = (
    fault("dead function", "one of two functions gives 0 from a step on", "constant_function", becomes_zero, LONG),
    fault("dead function: tools", "the tests do, beside a style", "constant_function", becomes_zero_in_tests, LONG),
    fault("dead function: game", "a score stays at 0.25", "constant_function", becomes_default, WIDE, steps=20),
    fault("function at 0", "a function that gives 0 to every rollout", "constant_function", always_zero, LONG),
    fault("function at 0: tools", "one of three does", "constant_function", always_zero_of_three, WIDE),
    fault("function at 0: game", "one gives \u22121", "constant_function", always_below_zero, LONG, ended=False),
    fault("same in groups", "the reward depends on the prompt alone", "constant_function", same_in_groups, LONG),
    fault("same in groups: tools", "one of two functions does", "constant_function", same_in_groups_beside, WIDE),
    fault("same in groups: game", "from a step on", "constant_function", becomes_same_in_groups, LONG),
    fault("same in groups: cut", "the same, beside truncated ones", "constant_function", same_beside_failures, LONG),
    fault("dead function: cut", "the same, beside truncated ones", "constant_function", constant_beside_failures, LONG),
    fault("hardly different", "Healthy: most groups get one value each", None, hardly_differs, LONG, groups=12),
    fault("failing judge", "from a step on a judge's failures are paid 0", "new_value", judge_fails, LONG),
    fault("failing judge: noisy", "those of a judge that differs are", "new_value", noisy_judge_fails, LONG),
    fault("failing judge: tools", "those of a grader from 2 to 8 are paid \u22121", "new_value", grader_fails, WIDE),
    fault("failing judge: game", "a scorer fails for later rollouts of a group", "new_value", scorer_fails, LONG),
    fault("failing judge: batch", "those of its later calls are", "new_value", late_calls_fail, LONG),
    fault("failing judge: timeout", "those of a judge that takes a minute are", "new_value", judge_times_out, LONG),
    fault("failing judge: retries", "a grader gives up after four calls", "new_value", grader_gives_up, LONG),
    fault("failing judge: in time", "failures that take no longer", "new_value", judge_fails_in_time, LONG),
    fault("slow judge", "Healthy: a judge takes longer for bad reports", None, long_reports_take_longer, LONG),
    fault("failing judge: overload", "more and more of them are, from many on", "new_value", judge_is_overloaded, LONG),
    fault("failing judge: patches", "the same of a grader of patches", "new_value", tests_are_overloaded, LONG),
    fault("failing judge: half", "a judge's failures are paid 0.5", "new_value", judge_falls_back, LONG),
    fault("failing judge: ramp", "ever more of them are", "new_value", judge_falls_back_more_and_more, LONG),
    fault("failing judge: panel", "a panel's are 0.15", "new_value", panel_falls_back, LONG, groups=8, size=8),
    fault("likely value", "Healthy: a panel gives 0.8 more often", None, panel_likes_more, LONG, groups=8, size=8),
    fault("another scale", "a grader gives per cents from a step on", "new_value", becomes_hundredths, LONG),
    fault("another scale: game", "points become shares", "new_value", becomes_a_share, LONG),
    fault("growing score", "Healthy: a score grows a hundredfold, step by step", None, earns_more_at_once, LONG),
    fault("growing penalty", "Healthy: a penalty grows tenfold at once", None, costs_more, LONG),
    fault("half credit", "Healthy: answers that are paid exactly half become rare", None, pays_half, LONG),
    fault("silence", "from a step on a fifth of the answers are empty", "empty_answers", falls_silent, LONG),
    fault("silence: graded", "the same, of a graded reward", "empty_answers", falls_silent_graded, WIDE, steps=20),
    fault("silence: setting", "the same, when a setting changes", "empty_answers", falls_silent_with_a_setting, LONG),
    fault("silence: line ends", "from a step on answers are white space", "empty_answers", says_line_ends, LONG),
    fault("silence: some tasks", "on one of two families", "empty_answers", falls_silent_on_some, LONG),
    fault("ends early", "an environment ends episodes earlier, of maps that seldom recur", "task_mix", ends_early,
          Shape(steps=40, groups=8, size=6)),
    fault("lost format", "from a step on answers lose their box", "lost_format", loses_box, LONG),
    fault("lost format: tools", "reports lose their schema", "lost_format", loses_schema, WIDE, steps=20),
    fault("lost format: game", "moves lose their notation", "lost_format", loses_notation, LONG),
    fault("lost format: cut", "reports lose their tags, beside some that are cut", "lost_format", loses_tags_or_ends,
          WIDE, steps=20),
    fault("paid for length", "answers grow for a small bonus, and none is better", "length", pays_length, LONG),
    fault("paid for length: tools", "turns do", "length", pays_moves, WIDE),
    fault("paid for length: game", "comments do", "length", pays_talk, LONG, ended=False),
    fault("function at its best", "Healthy: one function is at its best", None, is_saturated, LONG),
    fault("longer answers", "Healthy: answers grow, and get better", None, grows_as_it_learns, LONG),
    fault("fewer moves", "Healthy: a game is won in fewer moves", None, needs_fewer_moves, WIDE),
    fault("function at 0: opened tag", "the prompt opens the tag that it looks for", "constant_function",
          opened_by_prompt, LONG),
)  # fmt: skip

UNEXPLAINED: tuple[Fault, ...] = (
    fault("ends early: short run", "an environment ends episodes earlier", None, ends_early,
          Shape(steps=20, groups=6, size=6)),
)  # fmt: skip
