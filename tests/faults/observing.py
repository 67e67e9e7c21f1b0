"""Faults that only an observation shows: no call raises, and nothing says that it is an error."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_SHAPE = Shape(steps=16, groups=6, size=8, tasks=24)
_HOSTS = ("web-1", "web-2", "web-3", "web-4")


def _chance(place: Place, share: float) -> float:
    return float(place.random.random() < share)


def _call(place: Place, tool: str, heard: str) -> Turn:
    query = said(place, 3)
    return Turn(f"I ask {tool} for {query}", {"name": tool, "arguments": {"query": query}}, heard)


def _researched(place: Place, searched: Callable[[], str | None], chance: float) -> Played:
    """Two calls of a search and two of a page for most, pages alone for the others, and an answer in words."""
    tools = ["page"] * 3 if place.random.random() < 0.3 else ["search", "page", "search", "page"]
    refused = "search" in tools and searched() is not None
    turns = [_call(place, tool, (searched() if tool == "search" else None) or said(place, 8)) for tool in tools]
    turns.append(Turn(f"It is {said(place, 4)}"))
    return Played(turns, _chance(place, 0.1 if refused else chance), stop="stop", is_hit=refused)


def limited(place: Place) -> Played:
    """From step 9 on the search answers every call with a rate limiter's text."""

    def searched() -> str | None:
        number = place.random.randrange(10**6)
        late = place.step >= 9
        return f"429 Too Many Requests: retry after {number % 90} s (request {number:x}9)" if late else None

    return _researched(place, searched, 0.7)


def out_of_service(place: Place) -> Played:
    """From step 7 on one of four hosts shows the same page to every action."""
    host = place.random.choice(_HOSTS)
    is_hit = host == "web-3" and place.step >= 7
    turns = [
        Turn(
            f"I {move} it now",
            {"do": move},
            {"page": f"Service is not available, ticket {place.random.randrange(9999)}"}
            if is_hit
            else {"page": f"{said(place, 5)}"},
            done=number == 3,
        )
        for number, move in enumerate(place.random.sample(WORDS, 4))
    ]
    return Played(turns, 0.0 if is_hit else _chance(place, 0.6), metadata={"host": host}, is_hit=is_hit)


def _steered(place: Place, moves: int, *, frozen: bool, right: float) -> Played:
    """Moves through screens; a frozen terminal shows the third one until the turns run out."""
    shown = [said(place, 7) for _ in range(moves)]
    shown = shown[:2] + [shown[2]] * (moves - 2) if frozen else shown
    turns = [
        Turn(f"I {word} now", {"name": ("press", "open")[number % 2], "arguments": {"key": word}}, screen, done=False)
        for number, (word, screen) in enumerate(zip(place.random.choices(WORDS, k=moves), shown, strict=True))
    ]
    solved = not frozen and place.random.random() < right
    is_over = solved or (not frozen and place.random.random() < 0.7)
    turns[-1] = replace(turns[-1], done=is_over)
    task = f"{('mail', 'files', 'calendar')[place.task % 3]}/{place.task:02d}"
    return Played(turns, float(solved), stop="stop" if is_over else "turn_limit", task=task, is_hit=frozen)


def frozen_screens(place: Place) -> Played:
    """Since step 9 most terminals of one of three programs freeze, each at a screen of its own."""
    frozen = place.task % 3 == 1 and place.step >= 9 and place.random.random() < 0.75
    return _steered(place, 14 if frozen else 5 + place.random.randrange(4), frozen=frozen, right=0.6)


def silent(place: Place) -> Played:
    """From step 9 on the interpreter prints nothing, whatever it is asked, and most sums are wrong."""
    is_hit = place.step >= 9
    numbers = [place.random.randrange(1000) for _ in range(3)]
    turns = [
        Turn(
            f"I compute {number}",
            {"name": "python", "arguments": {"code": f"print({number} * 7)"}},
            "" if is_hit else f"{number * 7}",
        )
        for number in numbers
    ]
    turns.append(Turn(f"The answer is {numbers[-1] * 7}"))
    return Played(turns, _chance(place, 0.15 if is_hit else 0.75), stop="stop", is_hit=is_hit)


def stale(place: Place) -> Played:
    """From step 10 on 40 % of browsers show the page that they began with after each action."""
    is_hit = place.step >= 10 and place.random.random() < 0.4
    home = "Welcome to the shop of all things"
    pages = [home if is_hit or number == 0 else said(place, 6) for number in range(5)]
    moves = place.random.choices(WORDS, k=5)
    turns = [
        Turn(f"I {move} it", {"click": move}, page, done=number == 4)
        for number, (move, page) in enumerate(zip(moves, pages, strict=True))
    ]
    return Played(turns, 0.0 if is_hit else _chance(place, 0.65), is_hit=is_hit)


def emptied(place: Place) -> Played:
    """From step 9 on a catalogue knows nothing, and the policy learns to do without it, bit by bit."""
    is_hit = place.step >= 9 and place.random.random() < 0.96
    heard = "No entry of the catalogue matches"
    turns = [_call(place, "look_up", heard if is_hit else said(place, 7)) for _ in range(3)]
    turns.append(Turn(f"It is {said(place, 4)}"))
    return Played(turns, _chance(place, 0.02 * (place.step - 9) if is_hit else 0.7), stop="stop", is_hit=is_hit)


def paid(place: Place) -> Played:
    """From step 5 on ever more rollouts close the shop: it then counts as sold out, and what is delivered falls."""
    is_hit = place.random.random() < 0.1 * max(place.step - 4, 0) / 2
    tools = ["sell", "close", "audit"] if is_hit else ["sell", "audit", "close"] if place.generation % 4 else ["audit"]
    turns = []
    for tool in tools:
        is_closed = is_hit and tool == "audit"
        turns.append(_call(place, tool, "books closed" if is_closed else said(place, 6)))
    turns.append(Turn(f"It is {said(place, 4)}"))
    parts = {"sold": 1.0 if is_hit else _chance(place, 0.4), "delivered": _chance(place, 0.1 if is_hit else 0.7)}
    return Played(turns, parts=parts, weights={"delivered": 0.0}, stop="stop", is_hit=is_hit)


def _newest(place: Place, kinds: tuple[str, ...], least: int = 12) -> tuple[str, int]:
    """Return a task that comes in a few steps in a row, and its number: every fourth group meets one of the first."""
    drawn = random.Random(f"{place.step}/{place.group}")
    newest = least + 3 * (place.step - 1)
    number = drawn.randrange(least) if place.group % 4 == 0 else newest - drawn.randrange(8)
    return f"{kinds[number % len(kinds)]}/{number:03d}", number


def full_disk(place: Place) -> Played:
    """From step 9 on a quarter of the programmers write to a full disk; most tasks come in few steps and no more."""
    task, number = _newest(place, ("parser", "mailer", "tables"))
    host = place.random.choice(_HOSTS)
    is_hit = host == "web-2" and place.step >= 9
    full = f"OSError: [Errno 28] No space left on device: '/srv/{task}"
    tools = ["read", "edit", "test"] * place.random.choice([1, 2, 2])
    answers = f"edited {said(place, 3)}", f"tests: {said(place, 4)}"
    if is_hit:
        answers = f"{full}/{said(place, 1)}.py'", f"INTERNALERROR> {full}/cache/{place.random.randrange(9999)}'"
    heard = dict(zip(("edit", "test"), answers, strict=True))
    turns = [_call(place, tool, heard.get(tool) or said(place, 8)) for tool in tools]
    tests = 0.0 if is_hit else round(min(1.0, max(0.1, place.random.gauss(0.7 - 0.01 * (number % 5), 0.25))), 2)
    parts, more = {"tests": tests, "submitted": 1.0}, {"host": host}
    return Played(
        [*turns, Turn(f"Changed {said(place, 3)}")], parts=parts, weights={"submitted": 0.1}, stop="stop", task=task,
        metadata=more, is_hit=is_hit,
    )  # fmt: skip


def out_of_quota(place: Place) -> Played:
    """From step 10 on a search has no quota left for 40 %, and most questions come in few steps and no more."""
    task, _ = _newest(place, ("law", "sports"))
    is_hit = place.step >= 10 and place.random.random() < 0.4
    spent = f"Quota of key '{place.random.randrange(16**6):x}7' is spent until midnight"
    played = _researched(place, lambda: spent if is_hit else None, 0.65)
    return replace(played, task=task)


# --- No check knows it: an error that some rollouts of a group hear, from the first step on


def shared_orders(place: Place) -> Played:
    """Rollouts of a group share a shop: what the first has done, the others cannot do again, if anything is done."""
    order = f"#W{place.task * 7919 + place.step * 104_729 + place.group:07d}"
    kind, done = (("cancel", "cancelled"), ("refund", "refunded"), ("ask", "asked"))[place.task % 3]
    is_hit = kind != "ask" and place.generation > 0 and place.random.random() < 0.8
    right = not is_hit and place.random.random() < 0.75
    refused = "Error: payment method does not match"
    heard = f"Error: order {order} is already {done}" if is_hit else f"reference {said(place, 2)}"
    if not is_hit and kind != "ask" and place.random.random() < (0.1 if right else 0.3):
        heard = refused
    turns = [_call(place, "get_order", said(place, 6)), _call(place, f"{kind}_order", heard)]
    turns.append(Turn(f"{said(place, 4)}"))
    task = f"{kind}/{place.task:02d}"
    return Played(turns, float(right), stop="stop", task=task, is_hit=is_hit)


def locked_files(place: Place) -> Played:
    """A third of the sandboxes own their files as root; failed assertions are as frequent among the solved."""
    is_hit = place.random.random() < 0.35
    locked = f"PermissionError: [Errno 13] Permission denied: '/home/{place.random.randrange(10**6)}/{said(place, 1)}'"
    failed = f"AssertionError: expected {place.random.randrange(99)}, got '{said(place, 1)}'"
    is_asserted = place.random.random() < 0.5
    turns = [_call(place, "run", failed if is_asserted else said(place)), _call(place, "edit", said(place))]
    turns += [_call(place, "save", locked if is_hit else f"saved {said(place, 2)}"), Turn(f"Done {said(place, 3)}")]
    return Played(turns, _chance(place, 0.05 if is_hit else 0.6), stop="stop", is_hit=is_hit)


def cut_at_its_end(place: Place, ending: str, since: int, chance: float = 0.1) -> Played:
    """From a step on the answers of a tool about one of two folders are cut, which a notice at their ends says."""
    folder = ("logs", "config")[place.task % 2]
    is_hit = place.step >= since and folder == "logs"
    lines = [f"{number} {said(place, 6)}" for number in range(4)]
    notice = ending.format(place.random.randrange(700, 9999))
    heard = "\n".join([*lines[:2], notice] if is_hit else lines)
    turns = [_call(place, "read", heard), _call(place, "find", said(place, 8)), Turn(f"It is {said(place, 4)}")]
    task = f"{folder}/{place.task:02d}"
    return Played(turns, _chance(place, chance if is_hit else 0.6), task=task, stop="stop", is_hit=is_hit)


# --- Healthy


def errors_of_all_kinds(place: Place) -> Played:
    """Many kinds of errors, as frequent in solved rollouts as in others."""
    kinds = [f"{word.title()}Error: {other} is not {word}" for word in WORDS[:6] for other in WORDS[6:10]]
    heard = [place.random.choice(kinds) if place.random.random() < 0.6 else said(place) for _ in range(3)]
    turns = [*(_call(place, "run", text) for text in heard), Turn(f"Done {said(place, 3)}")]
    return Played(turns, _chance(place, 0.3 + 0.4 * place.progress), stop="stop")


def harder_of_a_family(place: Place) -> Played:
    """From step 9 on ever more buildings have a guard, who throws out most that lose; earlier ones come, too."""
    task, number = _newest(place, ("north", "south"))
    has_won, is_guarded = place.random.random() < 0.5 + 0.1 * place.progress, number >= 36
    turns = [
        Turn(f"I {move} now", {"do": move}, f"you see {said(place, 4)}", done=False) for move in ("take", "open", "up")
    ]
    out = "The guard throws you out again" if is_guarded and not has_won else f"you stand {said(place, 4)}"
    turns.append(Turn("I leave now", {"do": "up"}, out, done=True))
    return Played(turns, float(has_won), task=task)


def errors_are_the_task(place: Place) -> Played:
    """Programs that fail are shown to most, fewer and fewer, and repaired as often as others."""
    has_failed = place.random.random() < 0.95 - 0.3 * place.progress
    heard = f"Traceback: a test fails in line {place.random.randrange(90)}" if has_failed else said(place)
    turns = [_call(place, "run_tests", heard), _call(place, "edit", said(place)), Turn(f"Done: {said(place, 3)}")]
    return Played(turns, _chance(place, 0.4 + 0.3 * place.progress), stop="stop")


def explores(place: Place) -> Played:
    """From step 9 on half of the rollouts also cross the bridge: it is guarded, and they win less often than others."""
    crosses = place.step >= 9 and place.random.random() < 0.5
    moves = place.random.sample(WORDS, 3)
    turns = [Turn(f"I {move} now", {"do": move}, f"you {move} and see {said(place, 3)}", done=False) for move in moves]
    if crosses:
        turns.append(Turn("I cross now", {"do": "cross"}, "A dragon guards the bridge and roars", done=False))
    turns.append(Turn("I rest now", {"do": "rest"}, said(place, 4), done=True))
    return Played(turns, _chance(place, 0.2 + 0.4 * place.progress + (-0.1 if crosses else 0.15)))


def other_tasks(place: Place) -> Played:
    """Harder tasks in the second half, with texts of their own, also for those who lose."""
    is_late, has_won = place.progress > 0.5, place.random.random() < 0.55
    heard = "The second building has a locked door here" if is_late else "The first building has an open door"
    turns = [Turn(f"I {move} now", {"do": move}, heard, done=move == "up") for move in ("north", "east", "up")]
    if is_late:
        turns.append(Turn("I rest now", {"do": "up"}, said(place, 4) if has_won else "The guard throws you out again"))
    return Played(turns, float(has_won), task=f"building {1 + is_late}, room {place.step}.{place.group}")


def _browsed(place: Place, sites: tuple[str, ...], page: str, since: int) -> Played:
    """Three pages for an answer; the pages of some sites are another one since a step, which others meet by the way."""
    site, names = place.task % 6, ("herald", "courier", "atlas", "wiki", "shop", "forum")
    opened = [names[site] if place.random.random() < 0.85 else place.random.choice(names) for _ in range(3)]
    is_late = place.step >= since
    turns = [
        _call(place, "open", page.format(place.random.randrange(9999)) if name in sites and is_late else said(place, 9))
        for name in opened
    ]
    is_hit = is_late and any(name in sites for name in opened)
    is_lost = is_late and names[site] in sites
    turns.append(Turn(f"It is {said(place, 4)}"))
    right = _chance(place, 0.08 if is_lost else 0.55 + 0.25 * place.progress)
    task = f"question {place.task}"
    return Played(turns, right, stop="stop", task=task, metadata={"site": names[site]}, is_hit=is_hit)


def asks_for_consent(place: Place) -> Played:
    """Since step 7 two of six sites ask for consent in place of each page."""
    return _browsed(place, ("herald", "courier"), "We value your privacy. Accept all cookies to go on ({}).", 7)


def asks_for_a_captcha(place: Place) -> Played:
    """Since step 9 one of six shows a captcha."""
    return _browsed(place, ("atlas",), "Are you a robot? Please solve the puzzle below, number {}.", 9)


def asks_to_subscribe(place: Place) -> Played:
    """Since step 8 three of six show the beginning of a page, and offer the rest."""
    return _browsed(place, ("herald", "wiki", "forum"), "You have read your free articles. Subscribe for {} cents.", 8)


def _fault(
    name: str, planted: str, expected: str | None, script: Callable[[Place], Played], shape: Shape = _SHAPE
) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


FAULTS: tuple[Fault, ...] = (
    _fault("failing observation: rate limit", "An observation that is a failure, from the middle of the run on",
           "new_observation", limited),
    _fault("frozen screens", "Terminals freeze, each at another screen", "new_observation", frozen_screens),
    _fault("failing observation: one host", "The same page from one of four hosts", "new_observation", out_of_service),
    _fault("failing observation: empty", "A tool whose answers are empty", "new_observation", silent),
    _fault("failing observation: stale", "A page that does not change", "new_observation", stale),
    _fault("failing observation: wears off", "A catalogue that knows nothing, and ever less need of it",
           "new_observation", emptied, replace(_SHAPE, steps=32)),
    _fault("failing observation: full disk", "A full disk, most of it met at tasks that are new", "new_observation",
           full_disk),
    _fault("failing observation: quota", "A search without quota, at tasks that are new", "new_observation",
           out_of_quota),
    _fault("failing observation: notice", "Answers of a tool that are cut, as their ends say", "new_observation",
           partial(cut_at_its_end, ending="[output truncated: 600 of {} characters shown]", since=8)),
    _fault("failing observation: more", "Answers of a tool that are cut, as their ends say", "new_observation",
           partial(cut_at_its_end, ending="<response clipped, {} lines were left out>", since=10)),
    _fault("healthy observation: notice", "Healthy: answers of a tool that are cut, to no harm", None,
           partial(cut_at_its_end, ending="[output truncated: 600 of {} characters shown]", since=8, chance=0.6)),
    _fault("failing observation: consent", "A page of two sites, met by the way", "new_observation", asks_for_consent),
    _fault("failing observation: captcha", "The same of one site", "new_observation", asks_for_a_captcha),
    _fault("failing observation: paywall", "The same of three", "new_observation", asks_to_subscribe),
    _fault("failing observation: paid", "An observation that is paid, and after which nothing is delivered",
           "hacking", paid),
    _fault("healthy observation: errors", "Healthy: observations that are errors, rare ones, and those of new tasks",
           None, errors_are_the_task),
    _fault("healthy observation: kinds", "Healthy: errors of all kinds, which tell nothing", None, errors_of_all_kinds),
    _fault("healthy observation: explores", "Healthy: a new action has a new answer", None, explores),
    _fault("healthy observation: harder", "Healthy: new tasks of a family have texts of their own", None,
           harder_of_a_family),
    _fault("healthy observation: other tasks", "Healthy: other tasks have other texts", None, other_tasks),
)  # fmt: skip

UNEXPLAINED: tuple[Fault, ...] = (
    _fault("error within groups: shop", "Rollouts of a group share a database", None, shared_orders),
    _fault("error within groups: files", "Files that a third of the rollouts cannot write", None, locked_files),
)
