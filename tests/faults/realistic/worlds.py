"""Environments: a web of 3,000 tasks, a shaped game, contests trained asynchronously, and a mix of three."""

from functools import cache
from random import Random

from tests.faults.realistic import Realistic, Rollout, Truth, Turn
from tests.faults.realistic.agents import OUT_OF_MEMORY, runs
from tests.faults.realistic.generating import Place, Shape, generate, observed
from tests.faults.realistic.questions import reasoned
from tests.faults.runs import Run

FAMILIES = {"shopping_admin": 0.6, "shopping": 0.55, "reddit": 0.5, "gitlab": 0.45, "map": 0.4}
WEB_TASKS, WEB_SINCE, REGRESSED_FAMILY = 3_000, 21, "shopping_admin"
SHAPED_TASKS, SHAPED_SINCE = {f"cooking/{n}-items": 0.75 - 0.06 * n for n in range(1, 9)}, 11
SHAPED_FORGOTTEN = ("cooking/1-items", "cooking/2-items")
STALE_SINCE, MAX_STALENESS = 8, 8
MIX_CUT_SINCE, MIX_UNSCORED_SINCE, MIX_STARVED = 9, 8, "code/0003"


@cache
def web_tasks() -> list[tuple[str, str]]:
    """Return 3,000 tasks and their families, in the order in which they are met."""
    each = WEB_TASKS // len(FAMILIES)
    tasks = [(f"webarena/{family}/{number:04}", family) for family in FAMILIES for number in range(each)]
    Random("webarena").shuffle(tasks)
    return tasks


def web(place: Place, causes: frozenset[str]) -> Rollout:
    """Two or three clicks on one of 3,000 tasks, each met once or twice."""
    dice = place.random
    task, family = web_tasks()[place.number % WEB_TASKS]
    chance = FAMILIES[family] * (0.85 + 0.3 * place.progress)
    mine = set()
    if "forgotten" in causes and family == REGRESSED_FAMILY and place.step >= WEB_SINCE:
        chance = 0.0
        mine.add("forgotten")
    turns = [
        Turn(
            f"I open it. click({number})",
            f"click({number})",
            f"page {dice.randrange(10_000)}",
            done=False,
            tokens=9,
            heard=6,
        )
        for number in dice.sample(range(900), dice.randrange(1, 3))
    ]
    if "parse_failures" in causes and dice.random() < 0.45:  # the answer has no action; the loop sends a default one
        chance = 0.05
        mine.add("parse_failures")
        turns = [
            Turn(f"I would now look at page {dice.randrange(900)}.", "noop()", "nothing happened", done=False, tokens=9,
                 heard=6, is_fallback=True)
            for _ in turns
        ]  # fmt: skip
    solved = dice.random() < chance
    answer = f"stop({dice.randrange(900)})"
    turns.append(Turn(f"It is this. {answer}", answer, {"success": solved}, done=True, reward=float(solved), tokens=8))
    prompt = [{"role": "user", "content": f"Task {task}: act by click(id) or stop(answer)."}]
    values: dict[str, float | None] = {"success": float(solved), "format": 1.0 if "parse_failures" not in mine else 0.0}
    return Rollout(task, prompt, turns, values, solved, family=family, causes=frozenset(mine))


def _make_web(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    shape = Shape(40, 80, 2, {"success": 1.0, "format": 0.1}, {"learning_rate": 1e-6, "num_generations": 2})
    return generate(run, shape, lambda place: web(place, causes))


# --- Shaped rewards of an environment


def shaped(place: Place, causes: frozenset[str]) -> Rollout:
    """A game that pays for each right step, and for success 0.75 in all, or 1 if it is quick."""
    dice = place.random
    task = list(SHAPED_TASKS)[place.number % len(SHAPED_TASKS)]
    chance, mine = SHAPED_TASKS[task] * (0.9 + 0.3 * place.progress), set()
    if "forgotten" in causes and task in SHAPED_FORGOTTEN and place.step >= SHAPED_SINCE:
        chance = 0.0
        mine.add("forgotten")
    solved = dice.random() < chance
    number = dice.randrange(5, 12)
    is_quick = solved and number <= 5
    rewards = [round(dice.choice((0.0, 0.05, 0.05)), 2) for _ in range(number)]
    turns = [
        Turn(
            f"I {verb}.", f"{verb} {dice.randrange(50)}", f"You {verb}. {reasoned(dice, 20)}", False, reward, tokens=12
        )
        for reward, verb in zip(rewards, dice.choices(("take", "cut", "open", "fry", "look"), k=number), strict=True)
    ]
    whole = (1.0 if is_quick else 0.75) if solved else min(sum(rewards), 0.45)
    feedback = "Correct!" if solved else "The meal is burnt."
    turns.append(
        Turn(
            "I serve it.",
            "serve",
            {"feedback": feedback, "success": solved},
            True,
            round(whole - sum(rewards), 4),
            tokens=6,
        )
    )
    prompt = [{"role": "user", "content": f"{task}: cook the meal of the recipe."}]
    values: dict[str, float | None] = {"environment_reward": round(whole, 4)}
    return Rollout(task, prompt, turns, values, solved, family="cooking", causes=frozenset(mine))


def _make_shaped(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    shape = Shape(22, 4, 8, {"environment_reward": 1.0}, {"learning_rate": 1e-6, "num_generations": 8})
    return generate(run, shape, lambda place: shaped(place, causes))


# --- Trained asynchronously


def contest(place: Place, causes: frozenset[str]) -> Rollout:
    """A program for one of 20 contests; the policy may be older than the one that is trained."""
    dice = place.random
    task = f"livecodebench/{place.number % 20 * 13:04}"
    staleness, is_late = dice.choice((0, 0, 1, 1, 2)), "staleness" in causes and place.step >= STALE_SINCE
    mine = set()
    if is_late and dice.random() < 0.75:
        staleness = dice.randrange(5, 11)
        mine.add("staleness")
    gain = 0.25 * place.progress if not is_late else -0.1
    solved = dice.random() < Random(task).uniform(0.25, 0.65) + gain
    passed = 1.0 if solved else round(dice.randrange(10) / 10, 1)
    text = f"```python\n# {reasoned(dice, 40)}\nprint(sum(map(int, input().split())))\n```"
    prompt = [{"role": "user", "content": f"Contest {task}: write a program."}]
    values: dict[str, float | None] = {"all_passed": float(solved), "share_passed": passed}
    return Rollout(
        task, prompt, [Turn(text, tokens=dice.randrange(50, 140))], values, solved, family="livecodebench",
        staleness=staleness, dropped=staleness > MAX_STALENESS, nll=0.8, causes=frozenset(mine),
    )  # fmt: skip


def _make_contest(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    config = {"learning_rate": 1e-6, "max_staleness": MAX_STALENESS, "num_generations": 8}
    shape = Shape(20, 4, 8, {"all_passed": 1.0, "share_passed": 0.3}, config)
    return generate(run, shape, lambda place: contest(place, causes))


# --- A mix of three, each with its own reward function


def mixed(place: Place, causes: frozenset[str]) -> Rollout:
    """Mathematics, code and web in turn; a function returns None for what is not its own."""
    dice, family = place.random, ("math", "code", "web")[place.number % 3]
    number = place.number // 3 % 8
    task, mine = f"{family}/{number:04}", set()
    solved = dice.random() < Random(task).uniform(0.35, 0.7) + 0.15 * place.progress
    values: dict[str, float | None] = {"math_correct": None, "code_tests": None, "web_success": None}
    prompt = [{"role": "user", "content": f"{task}: solve it."}]
    words = dice.randrange(40, 90)
    turns = [Turn(f"{reasoned(dice, words)} so it is {number}", tokens=words)]
    raises = None
    if family == "math":
        if "truncation" in causes and place.step >= MIX_CUT_SINCE and dice.random() < 0.75:
            mine.add("truncation")
            solved = False
            turns = [Turn(reasoned(dice, 128), tokens=128, finish="length")]
        values["math_correct"] = float(solved)
    elif family == "code":
        if "infrastructure" in causes and task == MIX_STARVED and dice.random() < 0.7:
            mine.add("infrastructure")
            raises, solved = OUT_OF_MEMORY, False
        tests = {"tests": "passed" if solved else "failed"}
        turns = [Turn(f"{reasoned(dice, words)}", {"name": "run_tests", "arguments": {}}, tests, tokens=words)]
        is_unscored = "invalid_reward" in causes and place.step >= MIX_UNSCORED_SINCE and dice.random() < 0.5
        mine |= {"invalid_reward"} if is_unscored else set()
        values["code_tests"] = None if is_unscored else float(solved)
    else:
        clicks = [
            Turn(f"click({n})", f"click({n})", observed(dice, 500), False, tokens=8) for n in dice.sample(range(90), 4)
        ]
        turns = [*clicks, Turn("stop()", "stop()", {"success": solved}, True, float(solved), tokens=4)]
        values["web_success"] = float(solved)
    given = None if raises else values
    return Rollout(task, prompt, turns, given, solved, family=family, raises=raises, causes=frozenset(mine))


def _make_mixed(run: Realistic, causes: frozenset[str] = frozenset()) -> tuple[Run, Truth]:
    weights = {"math_correct": 1.0, "code_tests": 1.0, "web_success": 1.0}
    shape = Shape(20, 6, 6, weights, {"learning_rate": 1e-6, "max_completion_length": 128, "num_generations": 6})
    return generate(run, shape, lambda place: mixed(place, causes))


RUNS = (
    *runs(_make_web,
          ("web-healthy", "Healthy: 3,000 web tasks, each met once or twice", None),
          ("web-regressed", "One of five families of 3,000 tasks is not solved any more from step 21 on", "forgotten",
           WEB_SINCE),
          ("web-noop", "Answers without an action; the loop sends `noop()` instead", "parse_failures")),
    *runs(_make_shaped,
          ("shaped-healthy", "Healthy: shaped rewards; the environment says what is correct", None),
          ("shaped-regressed", "Two of eight recipes are not solved any more from step 11 on", "forgotten",
           SHAPED_SINCE)),
    *runs(_make_contest,
          ("async-healthy", "Healthy: an asynchronous run", None),
          ("async-stale", "From step 8 on most rollouts are five or more versions old", "staleness", STALE_SINCE)),
    *runs(_make_mixed,
          ("mix-healthy", "Healthy: mathematics, code and web, each with its own reward function", None),
          ("mix-unscored", "From step 8 on the code's function returns None for half of its rollouts",
           "invalid_reward", MIX_UNSCORED_SINCE),
          ("mix-two", "Mathematics is cut off from step 9 on, and one code task's containers run out of memory",
           "truncation", MIX_CUT_SINCE, {"infrastructure": None})),
)  # fmt: skip
