"""Faults of what the policy does and of what it does it in: by scripted policies, told to the recorder by hand."""

import math
from collections.abc import Callable, Iterable
from functools import partial

from logs_ui.recorder.vocabulary import Mode
from tests.faults import Fault
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

WORDS = [
    "north", "south", "east", "west", "up", "down", "take", "drop", "open", "close", "look", "push", "pull", "left",
]  # fmt: skip

SHAPES = {
    "32 rollouts": Shape(steps=4, groups=2),
    "8 rollouts": Shape(steps=1, groups=1, size=8),
    "256 rollouts": Shape(steps=8, groups=4, size=8),
    "still running": Shape(ended=False),
    "evaluation": Shape(steps=1, groups=16, mode=Mode.EVAL),
    "one task": Shape(tasks=1),
    "no task": Shape(tasks=0),
    "many tasks": Shape(tasks=16, groups=8),
    "-1 to 1": Shape(low=-1.0),
    "0 to 100": Shape(high=100.0),
    "without tokens": Shape(tokens=False),
}


def said(place: Place, count: int = 6) -> str:
    """Some words of its own."""
    return " ".join(place.random.choices(WORDS, k=count))


def half(place: Place) -> float:
    """Half of the rollouts are worth all."""
    return float(place.random.random() < 0.5)


def well(place: Place, quality: float | None, *, is_hit: bool = False) -> Played:
    """Three moves, and the environment is done."""
    moves = place.random.sample(WORDS, 3)
    turns = [Turn(f"I {move} now", {"do": move}, f"you {move}", done=n == 2) for n, move in enumerate(moves)]
    return Played(turns, quality, is_hit=is_hit)


# --- Causes


def cut_off(place: Place) -> Played:
    """All but a few are cut off before they have said anything of use."""
    if place.random.random() < 0.15:
        return well(place, half(place))
    return Played([Turn(said(place, 12))], 0.0, stop="length", is_hit=True)


def never_parsed(place: Place) -> Played:
    """The environment is there, and hears nothing."""
    return Played([Turn(f"<act>{said(place)}</act>")], 0.0, stop="no_action", is_hit=True)


def half_parsed(place: Place) -> Played:
    """Every second answer."""
    return never_parsed(place) if place.number % 2 else well(place, half(place))


def dies(place: Place) -> Played:
    """On every fourth task, in the middle."""
    if place.group % 4 != 1 and place.task % 4 != 1:
        return well(place, half(place))
    broken = Turn(said(place), {"do": "go"}, error="ConnectionError: the game has gone")
    return Played([Turn(said(place), {"do": "look"}, "a room", done=False), broken], 0.0, is_hit=True)


def raises(place: Place) -> Played:
    """The loop itself raises, and nothing is scored."""
    if place.group % 2:
        return well(place, half(place))
    return Played([Turn(said(place), {"do": "go"}, "a room", done=False)], None, raises="no answer in 5 s", is_hit=True)


def flaky(place: Place) -> Played:
    """Calls raise, with numbers of their own: most rollouts go on and fail, some end."""
    if place.random.random() < 0.7:
        return well(place, half(place))
    number = place.random.randrange(50)
    error = f"TimeoutError: shard {number} gave no reply in {number % 7} s"
    turns = [
        Turn(f"look {said(place)}", {"do": "look"}, "a door", done=False),
        Turn("go in", {"do": "go"}, error=error),
    ]
    if place.random.random() < 0.7:
        turns.append(Turn(f"look {said(place)}", {"do": "look"}, "a room", done=True))
    return Played(turns, 0.0, is_hit=True)


def seldom_parsed(place: Place) -> Played:
    """One answer to four in a row hold no action, before one that does."""
    silent = place.random.randrange(5)
    turns = [Turn(f"<act>{said(place)}</act>") for _ in range(silent)]
    return Played([*turns, *well(place, 0).turns], 0.0 if silent else 1.0, is_hit=silent > 0)


def cut_at_lengths(place: Place) -> Played:
    """One limit for most, and a longer one for some."""
    if place.random.random() < 0.5:
        return well(place, half(place))
    return Played([Turn(said(place, 12 if place.random.random() < 0.7 else 40))], 0.0, stop="length", is_hit=True)


def goes_on(place: Place) -> Played:
    """Most answers end, and then invent the next order, until they are cut off."""
    if place.random.random() < 0.3:
        return well(place, half(place))
    orders = [f"{said(place, 6)}\n<answer>{place.random.randrange(90)}</answer>\n\nUser: {said(place, 5)}"] * 3
    return Played([Turn("\n\n".join(orders[: place.random.randrange(1, 4)]))], 0.0, stop="length", is_hit=True)


def loops(place: Place) -> Played:
    """The same action until it is stopped."""
    if place.random.random() < 0.3:
        return well(place, half(place))
    turns = [Turn("I push", {"do": "push"}, f"nothing happens, {n}", done=False) for n in range(8)]
    return Played(turns, 0.0, is_hit=True)


def back_and_forth(place: Place) -> Played:
    """Two actions in turn, while the observation counts the turns."""
    if place.random.random() < 0.2:
        return well(place, half(place))
    moves = ["left", "right"] * 3
    turns = [Turn(f"{said(place, 3)} {move}", {"do": move}, f"turn {n}", done=False) for n, move in enumerate(moves)]
    return Played(turns, 0.0, is_hit=True)


def alike(place: Place) -> Played:
    """A group says one thing; what it gets follows from that."""
    words = " ".join(WORDS[(place.step * 7 + place.group * 3 + n) % len(WORDS)] for n in range(8))
    return Played([Turn(words)], float((place.step + place.group) % 3 == 0), logprob=-0.002, is_hit=True)


def unscored(place: Place) -> Played:
    """No reward function gives it a number."""
    return well(place, None, is_hit=True)


def some_unscored(place: Place) -> Played:
    """Of every fourth rollout."""
    is_hit = place.number % 4 == 0
    return well(place, None if is_hit else half(place), is_hit=is_hit)


def nan(place: Place) -> Played:
    """A reward that is no number, of every third rollout."""
    is_hit = place.number % 3 == 0
    return well(place, math.nan if is_hit else half(place), is_hit=is_hit)


def infinite(place: Place) -> Played:
    """The logarithm of 0 for one rollout of fifteen, while the others learn."""
    is_hit = place.number % 15 == 3
    right = float(place.random.random() < 0.2 + 0.6 * place.progress)
    return well(place, -math.inf if is_hit else right, is_hit=is_hit)


def idle(place: Place) -> Played:
    """Most only talk, where others act."""
    if place.random.random() < 0.3:
        return well(place, half(place) or half(place))
    return Played([Turn(f"I think that {said(place, 10)}")], 0.0, stop="stop", is_hit=True)


SINCE = 9
"""The step since which answers of others are invented."""


def _invents(place: Place, invented: str, most: float) -> Played:
    """Looks things up, and then answers; more and more invent what is looked up, and mostly err."""
    begun = max(place.step - SINCE + 1, 0) / 8
    is_hit = place.random.random() < (min(begun, 1.0) * most if begun else 0.01)
    right = float(place.random.random() < (0.12 if is_hit else 0.65))
    looked = [Turn(f"I look at {said(place, 3)}.", {"look": n}, f"It is {place.random.randrange(90)}.") for n in (1, 2)]
    answer = f"So the answer is {place.random.randrange(90)}."
    last = f"I look once more.\n{invented.format(place.random.randrange(90))}\n{answer}" if is_hit else answer
    return Played([*looked, Turn(last)], right, stop="stop", is_hit=is_hit)


def invents_tool(place: Place) -> Played:
    return _invents(place, "<tool_response>\n{}\n</tool_response>\nThat looks right.", 0.5)


def invents_user(place: Place) -> Played:
    return _invents(place, "\nUser: It is {}, I think.\n", 0.7)


def invents_turn(place: Place) -> Played:
    return _invents(place, "<|im_start|>tool\n{}<|im_end|>", 0.4)


def whole_transcript(place: Place) -> Played:
    """The last message holds all that was said, whatever it is worth."""
    answer = "\n".join(f"I look.\n<tool_response>{place.random.randrange(90)}</tool_response>" for _ in range(3))
    return Played([Turn(f"{answer}\n{said(place)}")], float(place.random.random() < 0.3 + 0.4 * place.progress))


def _calls(place: Place, written: str) -> Played:
    """Six of ten write a call that nothing executes, where others act."""
    if place.random.random() < 0.4:
        return well(place, half(place) or half(place))
    return Played([Turn(written.replace("WORD", place.random.choice(WORDS)))], 0.0, stop="stop", is_hit=True)


def unnamed_call(place: Place) -> Played:
    return _calls(place, 'I look.\n<tool_call>\n{"tool": "look_up", "arguments": {"item": "WORD"}}\n</tool_call>')


def broken_call(place: Place) -> Played:
    return _calls(place, '<tool_call>{"name": "look_up", "arguments": {"item": "WORD}}</tool_call>')


def call_in_another_form(place: Place) -> Played:
    return _calls(place, "I open it.\nAction: open[WORD]")


def unread_call(place: Place) -> Played:
    """Calls are written as XML, of which the server reads none; a few, in some of the tasks, as it expects."""
    train = f"ICE {place.random.randrange(90)}"
    if place.random.random() < 0.12:
        call = Turn(f"I book {train}.", {"name": "book", "arguments": {"train": train}}, "booked")
        return Played([call, Turn("It is booked.")], 1.0, stop="stop")
    written = f"<tool_call>\n<function=book>\n<parameter=train>\n{train}\n</parameter>\n</function>\n</tool_call>"
    return Played([Turn(f"{said(place, 4)}\n{written}")], 0.0, stop="stop", is_hit=True)


def out_of_turns(place: Place) -> Played:
    """Sensible moves, and too few of them, on all tasks."""
    if place.random.random() < 0.25:
        return well(place, 1.0)
    moves = place.random.sample(WORDS, 5)
    turns = [Turn(f"I {move}", {"do": move}, f"you {move}", done=False) for move in moves]
    return Played(turns, 0.0, is_hit=True)


def babbles(place: Place) -> Played:
    """The same words over and over, until the limit."""
    if place.random.random() < 0.25:
        return well(place, half(place))
    return Played([Turn(f"{said(place, 3)} " * 40)], 0.0, stop="length" if place.number % 2 else "stop", is_hit=True)


def hopeless(place: Place) -> Played:
    """Half of the tasks cannot be solved; their episodes end all the same."""
    is_hit = place.task % 2 == 1
    return well(place, 0.0 if is_hit else half(place), is_hit=is_hit)


def hopeless_until_the_end(place: Place) -> Played:
    """Half of the tasks cannot be solved, and only a solution ends an episode."""
    if place.task % 2 == 0 and place.random.random() < 0.85:
        return well(place, 1.0 if place.random.random() < 0.7 else 0.0)
    moves = place.random.sample(WORDS, 5)
    turns = [Turn(f"I {move}", {"do": move}, f"you {move}", done=False) for move in moves]
    return Played(turns, 0.0, is_hit=place.task % 2 == 1)


# --- Healthy


def fifty(place: Place) -> Played:
    """Half of it is solved, on all tasks."""
    return well(place, half(place))


def rising(place: Place) -> Played:
    """From a third to nearly all."""
    return well(place, float(place.random.random() < 0.35 + 0.6 * place.progress))


def graded(place: Place) -> Played:
    """Rewards of any size, rising."""
    return well(place, min(1.0, max(0.0, place.random.gauss(0.3 + 0.5 * place.progress, 0.15))))


def solved(place: Place) -> Played:
    """It rises, and stays at the best."""
    return well(place, 1.0 if place.progress > 0.4 else half(place))


def few_errors(place: Place) -> Played:
    """Two of a hundred break, three are cut off, four are not parsed; the rest is as in `fifty`."""
    chance = place.random.random()
    if chance < 0.02:
        return Played([Turn(said(place), {"do": "go"}, error="ConnectionError: gone")], 0.0)
    if chance < 0.05:
        return Played([Turn(said(place, 12))], 0.0, stop="length")
    return Played([Turn(said(place))], 0.0, stop="no_action") if chance < 0.09 else well(place, half(place))


def declined(place: Place) -> Played:
    """Each of two reward functions answers for its own tasks alone."""
    mine = place.task % 2 == 0
    return Played(well(place, 0).turns, parts={"a": half(place) if mine else None, "b": None if mine else half(place)})


def same_words(place: Place) -> Played:
    """Answers are one of three, and the task says which one is right."""
    answer = place.random.randrange(3)
    return Played([Turn(f"answer {answer}")], float(answer == place.task % 3), stop="stop")


def _of(name: str, planted: str, expected: str | None, script: Script, shapes: Iterable[str]) -> list[Fault]:
    return [Fault(f"{name}: {it}", planted, expected, partial(generated, script, SHAPES[it])) for it in shapes]


_TASKS = ("256 rollouts", "still running", "many tasks", "-1 to 1", "0 to 100", "without tokens")
_LONG = ("256 rollouts", "still running", "many tasks", "no task", "-1 to 1", "0 to 100", "without tokens")
_PLANTED: tuple[tuple[str, str, str | None, Callable[[Place], Played], Iterable[str]], ...] = (
    ("completion limit", "Answers are cut off at a completion limit that is too short", "truncation", cut_off, SHAPES),
    ("broken parser", "No answer is ever parsed", "parse_failures", never_parsed, SHAPES),
    ("half a parser", "Every second answer is not parsed", "parse_failures", half_parsed, SHAPES),
    ("environment dies", "The environment dies on some tasks", "infrastructure", dies, SHAPES),
    ("loop raises", "The rollout's own loop raises in every second group", "infrastructure", raises, SHAPES),
    ("loops", "The policy repeats the same actions", "loops", loops, SHAPES),
    ("back and forth", "The policy alternates between two actions", "loops", back_and_forth, SHAPES),
    ("cold", "Temperature near zero: a group's completions are equal", "diversity", alike, SHAPES),
    ("no reward", "The reward function returns None", "invalid_reward", unscored, SHAPES),
    ("some no reward", "The reward function returns None for a quarter of the rollouts", "invalid_reward",
     some_unscored, SHAPES),
    ("NaN", "The reward function returns NaN for a third of the rollouts", "invalid_reward", nan, SHAPES),
    ("idle", "The policy answers with text only and never acts", "never_acted", idle, SHAPES),
    ("unnamed call", "Calls whose JSON has no name", "never_acted", unnamed_call, ("32 rollouts", "256 rollouts")),
    ("broken call", "Calls whose JSON is broken", "never_acted", broken_call, ("256 rollouts", "many tasks")),
    ("other call", "Calls in another form", "never_acted", call_in_another_form, ("256 rollouts", "still running")),
    ("out of turns", "Too few turns are allowed", "turn_limit", out_of_turns, SHAPES),
    ("babble", "The text repeats itself", "degenerate_text", babbles, SHAPES),
    ("unsolvable", "Half of the tasks cannot be solved", "never_solved", hopeless, _TASKS),
    ("unsolvable, endless", "Half of the tasks cannot be solved, and run out of turns", "never_solved",
     hopeless_until_the_end, _TASKS),
    ("healthy, half", "Healthy: half of the rollouts are solved", None, fifty, SHAPES),
    ("healthy, rising", "Healthy: rewards rise", None, rising, _LONG),
    ("healthy, graded", "Healthy: graded rewards rise", None, graded, SHAPES),
    ("healthy, solved", "Healthy: solved, and it remains solved", None, solved, _LONG),
    ("healthy, errors", "Healthy: a few errors", None, few_errors, ("256 rollouts", "many tasks")),
    ("healthy, two functions", "Healthy: each reward function scores only its own tasks", None, declined, _TASKS),
    ("healthy, short answers", "Healthy: answers of one word", None, same_words, SHAPES),
    ("flaky calls", "A third of the rollouts meet a call that raises, and fail", "infrastructure", flaky, _TASKS),
    ("seldom parsed", "Most rollouts begin with answers that hold no action", "parse_failures", seldom_parsed, _TASKS),
    ("two limits", "Half of the answers are cut off, at two lengths", "truncation", cut_at_lengths, _TASKS),
    ("no end", "Answers go on after their end until they are cut off", "truncation", goes_on, _TASKS),
)  # fmt: skip


def _faults(
    number: int, name: str, planted: str, expected: str | None, script: Script, shapes: Iterable[str]
) -> list[Fault]:
    """In every other shape, so that two faults share all of them between them."""
    return _of(name, planted, expected, script, list(shapes)[number % 2 :: 2])


_INVENTED = "More and more rollouts invent what others say"

FAULTS: tuple[Fault, ...] = (
    *(fault for it in enumerate(_PLANTED) for fault in _faults(it[0], *it[1])),
    Fault("unread call", "Calls as XML, which nothing reads", "never_acted",
          partial(generated, unread_call, Shape(steps=20, groups=6, tasks=30))),
    Fault("infinite", "The reward function returns an infinity for one rollout of fifteen", "invalid_reward",
          partial(generated, infinite, Shape(steps=24, groups=6, size=8, tasks=12))),
    Fault("invented answers: user", _INVENTED, "invented_observations",
          partial(generated, invents_user, Shape(steps=20, groups=8, tasks=0, ended=False))),
    Fault("invented answers: tool", _INVENTED, "new_habit",
          partial(generated, invents_tool, Shape(steps=24, groups=6, size=8, tasks=30))),
    Fault("invented answers: turn", _INVENTED, "new_habit",
          partial(generated, invents_turn, Shape(steps=30, groups=8, size=8, tasks=0))),
    Fault("healthy, transcripts", "Healthy: each last message holds what tools answered", None,
          partial(generated, whole_transcript, Shape(steps=24, groups=6, tasks=30))),
)  # fmt: skip
