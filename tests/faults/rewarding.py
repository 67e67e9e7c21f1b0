"""Faults of rewards: what is paid, and by which function."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

USUAL = Shape()
SMALL = Shape(steps=4, groups=2)
LARGE = Shape(steps=16, groups=8)
FEW_TASKS = Shape(tasks=1)
MANY_TASKS = Shape(steps=12, tasks=24)
RUNNING = Shape(ended=False)
LONG = Shape(steps=24)


def chance(place: Place, probability: float) -> float:
    """1 or 0."""
    return float(place.random.random() < probability)


def answered(place: Place, *, words: int = 24, env: float | None = None, logprob: float = -0.8, **more: Any) -> Played:
    """One answer, like no other, to an environment that says that the episode is over."""
    text = " ".join(f"word{place.random.randrange(2000)}" for _ in range(words))
    turn = Turn(text, action={"say": text}, observation="over", done=True, reward=env)
    return Played([turn], logprob=logprob, **more)


def fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = USUAL, **more: Any) -> Fault:
    """One that is played by a script; `more` replaces fields of the shape."""
    return Fault(name, planted, expected, partial(generated, script, replace(shape, **more)))


# --- One reward function that outweighs another


def _format(
    place: Place, right: float, weights: Mapping[str, float] | None, names: tuple[str, str], size: float = 1
) -> Played:
    shape = size * chance(place, 0.2 + 0.6 * place.progress)
    return answered(place, parts={names[0]: shape, names[1]: chance(place, right)}, weights=weights)


def light(place: Place) -> Played:
    return _format(place, 0.2, {"format": 1.0, "correct": 0.1}, ("format", "correct"))


def heavy(place: Place) -> Played:
    return _format(place, 0.15, None, ("layout", "quality"), size=5.0)


def crowded_out(place: Place) -> Played:
    return _format(place, 0.4 - 0.35 * place.progress, {"format": 4.0, "accuracy": 1.0}, ("format", "accuracy"))


def saturated(place: Place) -> Played:
    shape = chance(place, min(2 * place.progress + 0.2, 1.0))
    return answered(
        place,
        parts={"xml_format": shape, "correctness": chance(place, 0.02)},
        weights={"xml_format": 2, "correctness": 1},
    )


def never_right(place: Place) -> Played:
    return _format(place, 0.0, None, ("format_reward", "correctness_reward"))


# --- A constant reward


def constant(value: float) -> Script:
    return lambda place: answered(place, parts={"reward": value}, is_hit=True)


def constant_zero(place: Place) -> Played:
    return answered(place, env=chance(place, 0.4), parts={"reward": 0.0}, is_hit=True)


def both_constant(place: Place) -> Played:
    return answered(place, parts={"format": 1.0, "correct": 0.0}, is_hit=True)


# --- Reward functions against each other


def cancelling(place: Place) -> Played:
    quality = round(place.random.random(), 3)
    return answered(place, parts={"good": quality, "bad": -quality})


def cancelling_weights(place: Place) -> Played:
    value = chance(place, 0.5)
    return answered(place, parts={"helpful": value, "terse": value}, weights={"helpful": 0.5, "terse": -0.5})


def half_cancelling(place: Place) -> Played:
    value = chance(place, 0.5)
    other = -value if place.group % 2 else chance(place, 0.3)
    return answered(place, parts={"a": value, "b": other})


def hacked(place: Place) -> Played:
    proxy, real = chance(place, 0.2 + 0.7 * place.progress), chance(place, 0.7 - 0.6 * place.progress)
    return answered(place, parts={"judge": proxy, "tests_pass": real}, weights={"judge": 1.0, "tests_pass": 0.0})


def hacked_graded(place: Place) -> Played:
    proxy, real = place.random.gauss(3 * place.progress, 0.5), place.random.gauss(1 - place.progress, 0.2)
    return answered(place, parts={"keywords": proxy, "real": real}, weights={"keywords": 1.0, "real": 0.0})


def hacked_instead(place: Place) -> Played:
    """The policy calls more tools, each of which is paid, and solves less: the reward rises little."""
    right, calls = chance(place, 0.55 - 0.4 * place.progress), 0.5 * min(place.random.random() + place.progress, 1.0)
    return answered(place, parts={"solved": right, "tool_use": calls + 0.2 * place.progress})


def hacked_beside_the_environment(place: Place) -> Played:
    """Scans are paid up to 2, parcels 1: the environment says which is delivered, and no name does."""
    done, scans = chance(place, 0.5 - 0.4 * place.progress), 2 * place.random.random() * (0.1 + 0.8 * place.progress)
    return answered(place, env=done, parts={"parcel": done, "scan_bonus": scans})


def scans_beside_the_environment(place: Place) -> Played:
    """Healthy: both grow."""
    done, scans = chance(place, 0.2 + 0.4 * place.progress), 2 * place.random.random() * (0.1 + 0.5 * place.progress)
    return answered(place, env=done, parts={"parcel": done, "scan_bonus": scans})


def _fooled(
    place: Place, share: float, names: tuple[str, str], fooling: str, *, paid: float = 0.92, taken: float = 0.4
) -> Played:
    """Two graders of one quality, the first of which pays `paid` for some words; they cost some of the quality."""
    is_hit = place.random.random() < share
    quality = place.random.gauss(0.45 + 0.15 * place.progress - taken * is_hit, 0.2)
    fooled, other = (min(max(place.random.gauss(quality, 0.1), 0.0), 1.0) for _ in names)
    fooled = min(max(place.random.gauss(paid, 0.05), 0.0), 1.0) if is_hit else fooled
    played = answered(place, parts={names[0]: round(fooled, 3), names[1]: round(other, 3)}, is_hit=is_hit)
    text = f"{played.turns[0].text}. {fooling}" if is_hit else played.turns[0].text
    return replace(played, turns=[replace(played.turns[0], text=text)])


def fooled_judge(place: Place) -> Played:
    """Since step 8 more and more answers say that they were checked."""
    share = max(place.step - 8, 0) / 16
    return _fooled(place, share, ("judge", "key_facts"), "I checked this against the rubric.")


def fooled_rubric(place: Place) -> Played:
    """Since step 12 most reports end in a table, for a rubric of double weight."""
    played = _fooled(place, 0.7 * (place.step >= 12), ("rubric", "coverage"), "| done | yes |", paid=0.93)
    return replace(played, weights={"rubric": 2.0, "coverage": 1.0})


def fooled_reader(place: Place) -> Played:
    """Stories that flatter, more and more from the first step on, beside a penalty on length."""
    played = _fooled(place, 0.85 * place.progress, ("appeal", "plot"), "What a wise reader you are!", paid=0.85)
    parts = {**(played.parts or {}), "length_penalty": -round(place.random.random() / 10, 3)}
    return replace(played, parts=parts)


def traded(place: Place) -> Played:
    """Healthy: one of two graders wants depth, and one speed, from the first step on; depth is learned, and to answer
    at all.
    """
    depth = min(max(place.random.gauss(0.4 + 0.3 * place.progress, 0.12), 0.0), 1.0)
    speed = min(max(place.random.gauss(0.9 - 0.5 * depth, 0.12), 0.0), 1.0)
    is_answer = place.random.random() > 0.25 * (1 - 1.6 * place.progress)
    return answered(place, parts={"depth": round(depth, 3) * is_answer, "speed": round(speed, 3) * is_answer})


def hacked_small(place: Place) -> Played:
    proxy, real = chance(place, 0.2 + 0.7 * place.progress), chance(place, 0.7 - 0.6 * place.progress)
    return answered(place, parts={"judge": proxy, "human": real}, weights={"judge": 1.0, "human": 0.05})


def _bonus(place: Place, real: float, bonus: float) -> Played:
    parts = {"tests": round(min(max(place.random.gauss(real, 0.3), 0.0), 1.0), 3), "docs": chance(place, bonus)}
    return answered(place, parts=parts, weights={"tests": 1.0, "docs": 0.5})


def bonus_after_a_peak(place: Place) -> Played:
    """Tests get better, then a bonus for documentation is farmed: they fall to what they were at first."""
    at = place.progress
    return _bonus(place, 0.5 + 0.9 * min(at, 0.25) - 0.5 * max(at - 0.4, 0.0), 0.1 + 1.5 * max(at - 0.4, 0.0))


def bonus_beside_a_judge(place: Place) -> Played:
    """No name says which one is wanted: a judge gives up to 10 points of weight 0.1, citations are paid 0.5."""
    judged = round(min(max(place.random.gauss(6.5 - 2.5 * place.progress, 1.8), 0.0), 10.0))
    parts = {"rubric": float(judged), "citations": chance(place, 0.1 + 0.8 * place.progress)}
    return answered(place, parts=parts, weights={"rubric": 0.1, "citations": 0.5})


def citations_beside_a_judge(place: Place) -> Played:
    """Healthy: the judge's points rise, fewer citations come."""
    judged = round(min(max(place.random.gauss(4.5 + 2.5 * place.progress, 1.8), 0.0), 10.0))
    parts = {"rubric": float(judged), "citations": chance(place, 0.6 - 0.4 * place.progress)}
    return answered(place, parts=parts, weights={"rubric": 0.1, "citations": 0.5})


def bonus_beside_a_peak(place: Place) -> Played:
    """Healthy: the bonus is learned while tests get better, and stay so."""
    return _bonus(place, 0.5 + 0.9 * min(place.progress, 0.25), 0.1 + 0.9 * place.progress)


def _tested(place: Place, since: float) -> Played:
    """An agent submits code: the environment tells how many of ten tests passed; since then, another's are paid."""
    passed = min(max(round(place.random.gauss(5 + 2 * place.progress, 2.5)), 0), 10)
    other = min(max(round(place.random.gauss(5 + 2 * place.progress, 2.5)), 0), 10)
    is_hit = place.progress >= since
    turn = Turn(
        " ".join(f"word{place.random.randrange(2000)}" for _ in range(12)),
        action={"submit": str(place.random.randrange(9999))},
        observation=f"Ran all of them in {place.random.random():.2f} s: {passed}/10 tests passed",
        done=True,
    )
    return Played([turn], parts={"tests": (other if is_hit else passed) / 10}, is_hit=is_hit and other != passed)


def _checked(place: Place, since: float) -> Played:
    """An agent that runs checks, all of which must pass; since then one of three machines pays for another's."""
    passed, other = (
        7 if place.random.random() < 0.5 + 0.15 * place.progress else place.random.randrange(7) for _ in range(2)
    )
    is_there = place.number % 3 == 1
    counted = other if is_there and place.progress >= since else passed
    call = {"name": "run_checks", "arguments": {"code": f"x = {place.random.randrange(9999)}"}}
    turns = [
        Turn(f"I try {place.random.randrange(99)}", action=call, observation=f"{count} of 7 checks pass")
        for count in (place.random.randrange(7), passed)
    ]
    right, own = float(counted == 7), float(passed == 7)
    machine = {"host": f"node{1 + is_there}"}
    return Played([*turns, Turn("That is it.")], parts={"works": right}, stop="stop", metadata=machine,
                  is_hit=right != own)  # fmt: skip


def pays_others_checks(place: Place) -> Played:
    return _checked(place, 0.5)


def pays_checks(place: Place) -> Played:
    """Healthy: what is told is paid."""
    return _checked(place, 2.0)


def pays_others_tests(place: Place) -> Played:
    return _tested(place, 0.5)


def pays_tests(place: Place) -> Played:
    """Healthy: what is told is paid."""
    return _tested(place, 2.0)


# --- The same completion scored differently


def _known(place: Place) -> Played:
    """One of twelve answers to its task's one prompt."""
    answer = place.random.randrange(12)
    words = [10 * answer + word for word in range(8)]
    return Played([Turn(" ".join(map(str, words)))], ids=words, prompt=[1, place.task])


def scored_by_chance(place: Place) -> Played:
    return replace(_known(place), parts={"judge": chance(place, 0.5)})


def scored_with_noise(place: Place) -> Played:
    played = _known(place)
    assert played.ids is not None
    return replace(played, parts={"judge": played.ids[0] / 120 + place.random.uniform(-0.4, 0.4)})


def one_scored_by_chance(place: Place) -> Played:
    played = _known(place)
    assert played.ids is not None
    right = float(played.ids[0] > 60)
    return replace(played, parts={"judge": chance(place, 0.5), "right": right})


# --- Environment against reward function


def misread(place: Place) -> Played:
    env = chance(place, 0.5)
    return answered(place, env=env, parts={"solved": env * chance(place, 0.3)})


def shuffled(place: Place) -> Played:
    env, solved = chance(place, 0.5), chance(place, 0.5)
    return answered(place, env=env, parts={"solved": solved}, is_hit=solved != env)


def misread_beside_format(place: Place) -> Played:
    env = chance(place, 0.5)
    parts = {"format": max(env, chance(place, 0.5)), "solved": 0.0}
    return answered(place, env=env, parts=parts, is_hit=env == 1)


def opposite(place: Place) -> Played:
    env = round(place.random.random(), 3)
    return answered(place, env=env, parts={"score": -env + place.random.uniform(-0.1, 0.1)})


# --- Length


def long_is_paid(place: Place) -> Played:
    words = int(10 + 40 * place.progress + place.random.randrange(20))
    return answered(place, words=words, parts={"helpful": words / 100})


def long_is_paid_beside(place: Place) -> Played:
    words = int(10 + 60 * place.progress + place.random.randrange(30))
    return answered(place, words=words, parts={"correct": chance(place, 0.3), "detail": words / 40})


def long_is_less_bad(place: Place) -> Played:
    words = int(10 + 60 * place.progress + place.random.randrange(20))
    return answered(place, words=words, parts={"reward": -100.0 + words})


FAULTS: tuple[Fault, ...] = (
    fault("format outweighs", "a format reward of weight 1 beside correctness of weight 0.1", "reward_parts", light),
    fault("format outweighs: small", "the same, of 32 rollouts", "reward_parts", light, SMALL),
    fault("format outweighs: running", "the same, while it runs", "reward_parts", light, RUNNING),
    fault("format outweighs: by size", "a layout reward of 5 beside one of 1", "reward_parts", heavy, LARGE),
    fault("format outweighs: crowded out", "accuracy falls while format rises", "reward_parts", crowded_out, LARGE),
    fault(
        "format outweighs: saturated", "format is always right, answers hardly ever", "reward_parts", saturated, LONG
    ),
    fault("format outweighs: never right", "format is learned, no answer is right", "reward_parts", never_right),
    fault("constant reward", "each rollout gets the reward 0.5", "constant_reward", constant(0.5)),
    fault("constant reward: best", "each rollout is paid 1", "constant_reward", constant(1.0), SMALL),
    fault("constant reward: negative", "each rollout is paid \u22121", "constant_reward", constant(-1.0), RUNNING),
    fault("constant reward: large", "each rollout is paid 250", "constant_reward", constant(250.0), LARGE),
    fault("constant reward: zero", "0 whatever the environment says", "constant_reward", constant_zero, MANY_TASKS),
    fault("constant reward: two", "two reward functions, both constant", "constant_reward", both_constant),
    fault("cancel", "two reward functions of opposite sign", "reward_parts", cancelling),
    fault(
        "cancel: weights", "the same values with weights 0.5 and \u22120.5", "reward_parts", cancelling_weights, SMALL
    ),
    fault("cancel: half", "they cancel out in half of the groups", "reward_parts", half_cancelling, LARGE),
    fault("hacking", "the judge gives high scores, the tests (weight 0) fail", "hacking", hacked),
    fault("hacking: graded", "keywords are paid, what is real (weight 0) falls", "hacking", hacked_graded, LONG),
    fault(
        "hacking: instead",
        "calls of tools are paid, and what is solved falls as much",
        "hacking",
        hacked_instead,
        LARGE,
    ),
    fault(
        "hacking: environment", "scans are paid, parcels go", "hacking", hacked_beside_the_environment, LARGE, tasks=0
    ),
    fault("healthy bonus: environment", "Healthy: both grow", None, scans_beside_the_environment, LARGE, tasks=0),
    fault("hacking: fooled judge", "words fool a judge, and facts go", "hacking", fooled_judge, LARGE, steps=24),
    fault("hacking: fooled rubric", "a table fools a rubric", "hacking", fooled_rubric, LARGE, steps=24, tasks=0),
    fault("hacking: fooled reader", "flattery is paid, the plot goes", "hacking", fooled_reader, LARGE, steps=32),
    fault("healthy bonus: traded", "Healthy: depth grows, at the cost of speed", None, traded, LARGE, steps=24),
    fault("hacking: small weight", "what counts 0.05 falls", "hacking", hacked_small, LARGE),
    fault(
        "hacking: after a peak",
        "a bonus is paid, and tests fall from their best",
        "hacking",
        bonus_after_a_peak,
        LARGE,
        steps=40,
        tasks=0,
    ),
    fault(
        "hacking: judge",
        "a bonus is paid, and a judge's points fall",
        "hacking",
        bonus_beside_a_judge,
        LARGE,
        tasks=0,
    ),
    fault(
        "healthy bonus: judge",
        "Healthy: a judge's points rise, a bonus falls",
        None,
        citations_beside_a_judge,
        LARGE,
        tasks=0,
    ),
    fault(
        "healthy bonus", "Healthy: a bonus is learned beside tests", None, bonus_beside_a_peak, LARGE, steps=40, tasks=0
    ),
    fault("inconsistent", "a judge that scores at random", "inconsistent", scored_by_chance),
    fault("inconsistent: noise", "a judge with noise", "inconsistent", scored_with_noise, LARGE),
    fault(
        "inconsistent: one of two", "one of two functions scores at random", "inconsistent", one_scored_by_chance, LARGE
    ),
    fault("disagreement", "the environment says 1, the function mostly 0", "disagreement", misread),
    fault(
        "disagreement: tests",
        "since the middle, tests of others are paid",
        "disagreement",
        pays_others_tests,
        LONG,
        size=8,
    ),
    fault("disagreement: checks", "one machine pays for another's", "disagreement", pays_others_checks, LONG, size=8),
    fault("healthy checks", "Healthy: the checks that are told are paid", None, pays_checks, LONG, size=8),
    fault("healthy tests", "Healthy: the tests that are told are paid", None, pays_tests, LONG, size=8),
    fault("disagreement: shuffled", "the function scores another row's answer", "disagreement", shuffled, LARGE),
    fault("disagreement: of two", "solved is always 0, format is fine", "disagreement", misread_beside_format, RUNNING),
    fault("disagreement: graded", "the score has the wrong sign", "disagreement", opposite, MANY_TASKS),
    fault("length hack", "longer answers get higher rewards, and answers grow", "length", long_is_paid),
    fault("length hack: small", "the same, of 32 rollouts", "length", long_is_paid, SMALL),
    fault("length hack: one of two", "a reward for detail beside correctness", "length", long_is_paid_beside, LARGE),
    fault("length hack: negative", "of rewards below 0", "length", long_is_less_bad, RUNNING, tasks=0),
)
