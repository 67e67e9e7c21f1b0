"""Faults of tasks, groups and updates, and runs in which all is well."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from logs_ui.recorder.vocabulary import FIRST_PROMPT
from tests.faults import Fault
from tests.faults.rewarding import FEW_TASKS, LARGE, LONG, MANY_TASKS, RUNNING, SMALL, USUAL, answered, chance, fault
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape

SAMPLING = "sampling/sampling_logp_difference/mean"
RATIO = "sampling/importance_sampling_ratio/mean"
TOO_HARD = Shape(steps=60, groups=8, size=8, tasks=40)
KEPT = Shape(steps=24, groups=8, tasks=0)
MOVING = {"learning_rate": 1e-5, "grad_norm": 0.4}


def half(place: Place) -> Played:
    """Right as often as wrong."""
    return answered(place, parts={"correct": chance(place, 0.5)})


def rarely(place: Place) -> Played:
    """Nearly always wrong."""
    return answered(place, parts={"correct": chance(place, 0.15)})


# --- Tasks


def _is_hard(place: Place, share: float) -> bool:
    """Of its group; the same for all of a group."""
    return (place.step * 7 + place.group * 3) % 10 < 10 * share


def _mixed(place: Place, share: float, rates: tuple[float, float] = (0.9, 0.1)) -> Played:
    is_hard = _is_hard(place, share)
    right = chance(place, rates[is_hard])
    name = f"{'hard' if is_hard else 'easy'} {place.task % 3}"
    return answered(place, parts={"correct": right}, task=name, is_hit=is_hard)


def suddenly_harder(place: Place) -> Played:
    return _mixed(place, float(place.progress > 0.5))


def harder_and_harder(place: Place) -> Played:
    return _mixed(place, place.progress)


def easier_and_easier(place: Place) -> Played:
    return _mixed(place, 1 - place.progress, (0.9, 0.3))


def graded_harder(place: Place) -> Played:
    played = _mixed(place, place.progress)
    mean = 20.0 if "hard" in (played.task or "") else 80.0
    return replace(played, parts={"score": place.random.gauss(mean, 10)})


def some_unsolvable(place: Place) -> Played:
    is_hit = place.task % 2 == 1
    return answered(place, parts={"correct": 0.0 if is_hit else chance(place, 0.6)}, is_hit=is_hit)


def unsolvable_out_of_turns(place: Place) -> Played:
    if place.task % 2 == 0:
        return answered(place, parts={"correct": chance(place, 0.8)})
    played = answered(place, parts={"correct": 0.0}, is_hit=True)
    return replace(played, turns=[replace(turn, done=False) for turn in played.turns], stop="turn_limit")


def too_hard(place: Place) -> Played:
    """Three quarters of the tasks, those of the highest ratings, cannot be solved, and some of the others hardly."""
    is_hit = place.task % 4 != 1
    right = 0.0 if is_hit else chance(place, 0.02 * 2 ** (place.task // 4 % 5))
    rating = (2400 if is_hit else 1200) + 100 * (place.task % 10)
    return answered(place, parts={"correct": right}, metadata={"rating": rating})


def hard(place: Place) -> Played:
    """Tasks are of all degrees of difficulty, and some have no success yet."""
    rate = (0.6, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.04, 0.02, 0.01)[place.task % 10]
    return answered(place, parts={"correct": chance(place, rate * (1 + place.progress))})


def all_unsolvable(place: Place) -> Played:
    return answered(place, env=0.0, parts={"correct": 0.0}, is_hit=True)


def forgets(place: Place) -> Played:
    lost = place.task == 1 and place.progress > 0.4
    return answered(place, parts={"correct": 0.0 if lost else chance(place, 0.6)}, is_hit=lost)


def falls(place: Place) -> Played:
    """From step 13 on fewer tasks are solved; later one that nearly always was is hardly solved any more."""
    usual = 0.55 if place.step < 13 else 0.3
    right = (0.9 if place.step < 16 else 0.05) if place.task == 1 else usual
    return answered(place, parts={"correct": chance(place, right)}, is_hit=place.step >= 13)


# --- Groups


def prompts_mixed(place: Place) -> Played:
    task = place.generation % 2
    return answered(
        place, parts={"correct": chance(place, 0.2 + 0.5 * task)}, prompt=[1, task, place.step], is_hit=True
    )


def tasks_mixed(place: Place) -> Played:
    task = f"task {(place.task + place.generation) % 4}"
    return answered(place, parts={"correct": chance(place, 0.4)}, task=task, is_hit=True)


def another_groups_prompt(place: Place) -> Played:
    """All of a step answer the prompt of its first group."""
    return answered(place, parts={"correct": chance(place, 0.3)}, prompt=[1, place.step], is_hit=place.group > 0)


def begins_anywhere(place: Place) -> Played:
    """Each reset draws one of three beginnings, of which the first is the easiest."""
    begun = place.random.randrange(3)
    return answered(
        place, parts={"correct": chance(place, 0.6 - 0.2 * begun)}, prompt=[1, place.task, begun], is_hit=True
    )


def sampled_for_the_first(place: Place) -> Played:
    """The same, where half of the rollouts have another prompt than the first of their group."""
    return replace(begins_anywhere(place), is_hit=place.generation % 2 > 0)


# --- Updates


def collapses(place: Place) -> Played:
    width = 0.4 if place.step < 20 else 0.04
    return answered(
        place,
        parts={"score": 0.5 - 0.2 * place.progress + place.random.uniform(-width, width)},
        is_hit=place.step >= 20,
    )


def diverges(place: Place) -> Played:
    """From step 20 on the policy samples any words, and hardly ever the right ones."""
    is_hit = place.step >= 20
    return answered(
        place,
        parts={"score": chance(place, 0.02 if is_hit else 0.5)},
        logprob=-5 - place.random.random() if is_hit else -0.5 - 0.1 * place.random.random(),
        is_hit=is_hit,
    )


def diverges_at_length(place: Place) -> Played:
    """From step 20 on the policy samples more and more words, and any; a judge gives them nothing."""
    is_hit = place.step >= 20
    words = round(20 + place.random.random() * (12 + 60 * is_hit) + 4 * max(place.step - 19, 0))
    judged = place.random.choice([0.0, 0.3, 0.6, 1.0]) * (1 - is_hit)
    return answered(
        place, words=words, parts={"judge": judged, "length_penalty": -words / 200},
        logprob=-5 - place.random.random() if is_hit else -0.5 - 0.1 * place.random.random(), is_hit=is_hit,
    )  # fmt: skip


def dies_out(place: Place) -> Played:
    right = chance(place, 0.5) if place.step < 20 else 0.0
    return answered(place, parts={"score": right}, is_hit=place.step >= 20)


def older(steps: int) -> Script:
    """As `half`, by a policy of so many steps before."""
    return lambda place: replace(half(place), policy_step=place.step - steps, is_hit=True)


def frozen(place: Place) -> Played:
    """Since step 11 all rollouts are of the policy of step 9, as those of step 10."""
    return replace(half(place), policy_step=min(place.step - 1, 9), is_hit=place.step > 10)


def graded_as_ever(place: Place) -> Played:
    return answered(place, parts={"score": place.random.gauss(0.5, 0.15)})


def agent_as_ever(place: Place) -> Played:
    """An agent of three to eight calls, solved as often as not."""
    calls = 3 + place.random.randrange(6)
    turns = [
        Turn(f"call {place.random.randrange(2000)}", {"run": f"ls {place.random.randrange(99)}"}, "some files")
        for _ in range(calls)
    ]
    return Played(turns, quality=chance(place, 0.5))


def shorter_and_level(place: Place) -> Played:
    words = int(60 - 30 * place.progress + place.random.randrange(15))
    return answered(place, words=words, parts={"correct": chance(place, 0.5)})


def grows(last: float) -> dict[str, Callable[[float], float]]:
    """Return a KL to the reference that grows from nearly 0."""
    return {"kl": lambda progress: 0.001 + last * progress**2}


def drifts(last: float, first: float = 0.004) -> dict[str, Callable[[float], float]]:
    """Return a mismatch that grows in waves from a value to another one."""
    return {SAMPLING: lambda progress: first + (last - first) * progress + 0.02 * last * math.sin(40 * progress)}


def sampled_by(script: Script, apart: Callable[[Place, int], float]) -> Script:
    """With the mean |Δ log p| of each rollout, which one of three samplers played: `apart` returns it."""

    def play_it(place: Place) -> Played:
        number = place.random.randrange(3)
        difference = apart(place, number)
        metrics = {"sampling_logp_difference": difference * place.random.uniform(0.8, 1.2)}
        more = {"sampler": f"s{number}", "metrics": metrics}
        return replace(script(place), metadata=more, is_hit=difference > 0.05)

    return play_it


def keeps_weights(place: Place, number: int) -> float:
    """Return the difference of the samplers, one of which has kept its weights since step 9."""
    return 0.004 + (0.02 * max(place.step - 8, 0) if number == 1 else 0.0)


def stays_behind(place: Place) -> Played:
    """One of two samplers has kept the policy of step 8."""
    is_hit = place.number % 2 == 1 and place.step > 8
    return replace(half(place), metadata={"sampler": f"gpu-{place.number % 2}"}, is_hit=is_hit,
                   policy_step=8 if is_hit else place.step - 1)  # fmt: skip


def stale(versions: Callable[[Place], int], script: Script = half) -> Script:
    """With rollouts that are so many versions old when they are trained on, as an asynchronous trainer tells."""
    return lambda place: replace(script(place), staleness=versions(place), is_hit=versions(place) >= 4)


# --- All is well


def learns(place: Place) -> Played:
    return answered(place, parts={"correct": chance(place, 0.25 + 0.6 * place.progress)})


def learns_slowly(place: Place) -> Played:
    return answered(place, parts={"correct": chance(place, 0.4 + 0.1 * place.progress)})


def two_that_matter(place: Place) -> Played:
    right, shape = (chance(place, 0.3 + 0.5 * place.progress) for _ in range(2))
    return answered(place, parts={"correct": right, "format": shape}, weights={"correct": 1.0, "format": 0.5})


def small_style(place: Place) -> Played:
    right = chance(place, 0.3 + 0.5 * place.progress)
    return answered(place, parts={"correct": right, "style": 0.1 * place.random.random()})


def longer_unpaid(place: Place) -> Played:
    words = int(15 + 50 * place.progress + place.random.randrange(15))
    return answered(place, words=words, parts={"correct": chance(place, 0.3 + 0.5 * place.progress)})


def shorter_and_better(place: Place) -> Played:
    words = int(60 - 30 * place.progress + place.random.randrange(15))
    return answered(place, words=words, parts={"correct": chance(place, 0.3 + 0.5 * place.progress)})


def agrees(place: Place) -> Played:
    env = chance(place, 0.3 + 0.5 * place.progress)
    return answered(place, env=env, parts={"solved": env, "format": max(env, chance(place, 0.7))})


def watched(place: Place) -> Played:
    """A function of weight 0 that rises with the reward."""
    right = chance(place, 0.3 + 0.5 * place.progress)
    return answered(place, parts={"correct": right, "seen": right}, weights={"correct": 1.0, "seen": 0.0})


def costs_tokens(place: Place) -> Played:
    """A small penalty that grows with success."""
    right = chance(place, 0.3 + 0.5 * place.progress)
    return answered(place, parts={"correct": right, "tokens": -0.05 * place.progress - 0.01 * place.random.random()})


def scores(low: float, high: float) -> Script:
    def play_it(place: Place) -> Played:
        quality = min(max(place.random.gauss(0.35 + 0.4 * place.progress, 0.2), 0.0), 1.0)
        return answered(place, parts={"score": low + quality * (high - low)})

    return play_it


def _healthy(name: str, planted: str, script: Script, shape: Shape = USUAL, **more: Any) -> Fault:
    return fault(f"healthy policy: {name}", planted, None, script, shape, **more)


FAULTS: tuple[Fault, ...] = (
    fault("harder mix", "easy tasks in the first half, hard ones in the second", "task_mix", suddenly_harder),
    fault("harder mix: gradual", "more and more hard tasks", "task_mix", harder_and_harder, LARGE),
    fault("harder mix: long", "the same, over 24 steps", "task_mix", harder_and_harder, LONG),
    fault("harder mix: graded", "the same, of rewards around 80 and 20", "task_mix", graded_harder, LARGE),
    fault("harder mix: running", "the same, while it runs", "task_mix", suddenly_harder, RUNNING),
    fault("unsolvable tasks", "half of the tasks cannot be solved", "never_solved", some_unsolvable),
    fault("unsolvable tasks: many", "the same, of 24 tasks", "never_solved", some_unsolvable, MANY_TASKS, groups=12),
    fault("unsolvable tasks: turns", "they run out of turns", "never_solved", unsolvable_out_of_turns, LARGE),
    fault("unsolvable tasks: all", "the environment rewards nothing", "never_solved", all_unsolvable, RUNNING),
    fault("unsolvable tasks: most", "three of four cannot be solved", "never_solved", too_hard, TOO_HARD),
    fault("forgotten task", "one of four tasks is not solved any more", "forgotten", forgets, LONG),
    fault("forgotten task: large", "the same, of 512 rollouts", "forgotten", forgets, LARGE),
    fault("wrong grouping", "each group contains two prompts", "wiring", prompts_mixed),
    fault("wrong grouping: small", "the same, of 32 rollouts", "wiring", prompts_mixed, SMALL, tasks=0),
    fault("wrong grouping: tasks", "each group holds four tasks; no ids", "wiring", tasks_mixed, LARGE, tokens=False),
    fault("wrong grouping: shifted", "all answer the first group's prompt", "wiring", another_groups_prompt, LARGE),
    fault("unseeded resets", "rollouts of a group begin with different observations", "unseeded", begins_anywhere),
    fault("unseeded resets: one task", "the same, of one task", "unseeded", begins_anywhere, LARGE, tasks=1),
    fault(
        "server's prompts",
        "a vLLM server is asked for the first prompt of each group",
        "first_prompt",
        sampled_for_the_first,
        scalars={FIRST_PROMPT: 0.5},
    ),
    fault("log-prob mismatch", "log-probs differ by 0.3 nats per token", "mismatch", half, scalars={SAMPLING: 0.3}),
    fault("log-prob mismatch: slight", "0.08 nats a token", "mismatch", rarely, LARGE, scalars={SAMPLING: 0.08}),
    fault("log-prob mismatch: ratio", "ratios of 0.1", "mismatch", rarely, SMALL, scalars={RATIO: 0.1}),
    fault(
        "old weights of one sampler",
        "one of three samplers has kept its weights",
        "mismatch",
        sampled_by(half, keeps_weights),
        KEPT,
        scalars={SAMPLING: lambda progress: 0.004 + 0.0067 * max(23 * progress - 7, 0)},
    ),
    fault(
        "old weights of one sampler: versions",
        "one of two has kept its weights",
        "mismatch",
        stays_behind,
        KEPT,
        scalars={SAMPLING: lambda progress: 0.004 + 0.01 * max(23 * progress - 7, 0)},
    ),
    fault(
        "healthy policy: samplers",
        "three samplers that are alike",
        None,
        sampled_by(learns, lambda place, number: 0.004),
        scalars={SAMPLING: 0.004},
    ),
    fault("log-prob mismatch: entropy", "0.8 nats against 2.4", "mismatch", half, RUNNING, scalars={"entropy": 2.4}),
    fault("old weights sampled", "the KL grows to 0.8 and nothing else", "mismatch", half, KEPT, scalars=grows(0.8)),
    fault(
        "old weights sampled: graded",
        "the KL jumps to 0.6 halfway",
        "mismatch",
        graded_as_ever,
        KEPT,
        scalars={"kl": lambda progress: 0.6 if progress >= 0.5 else 0.002},
    ),
    fault("old weights sampled: agent", "the same, of agents", "mismatch", agent_as_ever, KEPT, scalars=grows(0.5)),
    fault("weights never sent", "the mismatch grows from 0", "mismatch", half, KEPT, scalars=drifts(0.27)),
    fault(
        "weights never sent: graded",
        "the same, of graded rewards",
        "mismatch",
        graded_as_ever,
        KEPT,
        scalars=drifts(0.1, 0.0) | {RATIO: lambda progress: 1 - 0.3 * progress},
    ),
    fault("weights never sent: agent", "the same, of agents", "mismatch", agent_as_ever, KEPT, scalars=drifts(0.4)),
    fault(
        "log-prob mismatch: grows as it learns",
        "the mismatch grows from 0, and the policy that samples learns",
        "mismatch",
        learns,
        KEPT,
        scalars=drifts(0.27),
    ),
    fault("log-prob mismatch: grows by half", "from 0.2 to 0.3", "mismatch", half, KEPT, scalars=drifts(0.3, 0.2)),
    fault("stale policy", "rollouts of a policy nine steps older", "staleness", older(9), LARGE),
    fault("stale policy: asynchronous", "six versions behind", "staleness", stale(lambda _: 6)),
    fault(
        "stale policy: running",
        "some eight versions behind",
        "staleness",
        stale(lambda place: 4 + place.number % 8),
        RUNNING,
    ),
    fault("stale policy: reused", "a batch for 32 steps", "staleness", half, config={"steps_per_generation": 32}),
    fault(
        "stale policy: frozen",
        "the sampler gets no weights any more",
        "staleness",
        frozen,
        LONG,
        scalars={SAMPLING: lambda progress: 0.02 + 0.4 * max(progress - 0.4, 0.0)},
    ),
    fault("no update", "a learning rate of 0", "no_update", half, scalars={"learning_rate": 0.0, "grad_norm": 0.5}),
    fault(
        "no update: gradient", "a gradient norm of 0", "no_update", rarely, LARGE, scalars=MOVING | {"grad_norm": 0.0}
    ),
    fault(
        "no update: arguments", "a learning rate of 0, nothing logged", "no_update", half, config={"learning_rate": 0}
    ),
    fault("no update: KL", "a KL of 0", "no_update", half, RUNNING, scalars=MOVING | {"kl": 0.0}),
    fault("diverges", "from step 20 on the policy samples any words", "diversity", diverges, LONG, steps=30),
    fault(
        "diverges: at length",
        "from step 20 on the policy samples any words, and a penalty of length is all that is paid",
        "diversity",
        diverges_at_length,
        LONG,
        steps=30,
        scalars={
            "train/grad_norm": lambda progress: 0.4 if progress < 0.65 else 900 * progress,
            "kl": lambda progress: 0.01 + 0.1 * progress + (200 * progress if progress > 0.65 else 0),
            "learning_rate": 2e-4,
        },
    ),
    fault("signal cliff", "the spread of rewards falls to a tenth", "signal_cliff", collapses, LONG),
    fault("signal cliff: nothing left", "no rollout is right any more", "signal_cliff", dies_out, LONG, tasks=0),
    _healthy("learning", "Healthy: the policy learns", learns),
    _healthy("small", "it learns, in 32 rollouts", learns, SMALL),
    _healthy("large", "it learns, in 512 rollouts", learns, LARGE),
    _healthy("slow", "it hardly learns", learns_slowly, LARGE),
    _healthy("one task", "it learns one task", learns, FEW_TASKS),
    _healthy("many tasks", "it learns 24 tasks", learns, MANY_TASKS),
    _healthy("hard", "tasks of all degrees of difficulty", hard, TOO_HARD, steps=9),
    _healthy("running", "it learns, while it runs", learns, RUNNING),
    _healthy("two functions", "two reward functions that both matter", two_that_matter, LARGE),
    _healthy("style", "a small reward for style", small_style, LARGE),
    _healthy("longer", "answers grow and are not paid for it", longer_unpaid, LARGE),
    _healthy("shorter", "answers become shorter and better", shorter_and_better, LARGE),
    _healthy("easier", "more and more easy tasks", easier_and_easier, LARGE),
    _healthy(
        "same mix", "easy and hard tasks, as many all the time", lambda place: _mixed(place, 0.5, (0.9, 0.3)), LARGE
    ),
    _healthy("KL", "the KL grows as it learns", learns, KEPT, scalars=grows(0.8)),
    _healthy("KL, shorter", "the KL grows and answers become shorter", shorter_and_level, KEPT, scalars=grows(0.8)),
    _healthy("mismatch", "the mismatch grows and stays small", learns, KEPT, scalars=drifts(0.03)),
    _healthy("KL, small", "the KL stays small, and rewards are level", half, KEPT, scalars=grows(0.03)),
    _healthy("environment", "environment and reward function agree", agrees, LARGE),
    _healthy("watched", "a function of weight 0 that rises, too", watched, LARGE),
    _healthy("penalty", "a small penalty that grows with success", costs_tokens, LARGE),
    _healthy("asynchronous", "one version behind", stale(lambda _: 1, learns)),
    _healthy("scalars", "a trainer that moves and agrees", learns, scalars=MOVING | {SAMPLING: 0.01, "entropy": 0.8}),
    _healthy("graded", "graded rewards", scores(0, 1), LARGE),
    _healthy("negative", "rewards from \u221210 to \u22125", scores(-10, -5), LARGE),
    _healthy("huge", "rewards up to 1,000", scores(0, 1000), MANY_TASKS),
    _healthy("long", "graded rewards over 24 steps", scores(0, 1), LONG),
)
UNEXPLAINED = (fault("falls", "all tasks are solved less, one later and further", None, falls, LONG, groups=8, size=8,
                     tasks=24),)  # fmt: skip
