"""Prompts that do not hold what they should: cut at a limit of tokens, or without a value of the dataset's row."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_TASKS = 40


def _dice(place: Place) -> random.Random:
    """Return what is the same for all rollouts of a task."""
    return random.Random(f"prompt of {place.task}")


def _ids(place: Place, count: int) -> list[int]:
    return [7 + place.task] + [_dice(place).randrange(9, 50_000)] * (count - 1)


def _answered(place: Place, chance: float, *, tool: str = "", quality: float | None = None) -> Played:
    """Answer in words, after a call of a tool if there is one; `quality` is that of a wrong answer."""
    is_right = place.random.random() < chance
    turns = [Turn(f"I ask {tool}", {"name": tool, "arguments": {"q": said(place, 2)}}, said(place, 6))] if tool else []
    turns.append(Turn(f"{said(place, 6)}. So it is {said(place, 2)}"))
    return Played(turns, 1.0 if is_right else quality or 0.0, stop="stop")


def _asked(played: Played, **more: object) -> Played:
    return Played(**{**vars(played), **more})


# --- Prompts that are cut


def long_documents(place: Place) -> Played:
    """The instruction before a long document is cut away, and with it what is asked."""
    is_hit = place.task % 5 < 2
    played = _answered(place, 0.03 if is_hit else 0.55 + 0.2 * place.progress)
    return _asked(played, prompt=_ids(place, 512 if is_hit else _dice(place).randrange(120, 500)), is_hit=is_hit)


def many_tools(place: Place) -> Played:
    """An agent whose sites with many tools need more than 1,024 tokens to describe them; it is paid in part."""
    is_hit = place.task % 4 == 1
    graded = place.random.choice([0.0, 0.1, 0.2, 0.3])
    played = _answered(place, 0.1 if is_hit else 0.7, tool="open", quality=graded)
    kind = "bank" if is_hit else "shop"
    ids = _ids(place, 1_024 if is_hit else _dice(place).randrange(300, 1_000))
    return _asked(played, prompt=ids, task=f"{kind}/{place.task}", is_hit=is_hit)


def by_the_server(place: Place) -> Played:
    """A server cuts prompts at 2,000 tokens, and no argument of the trainer says so."""
    is_hit = place.task % 2 == 0
    played = _answered(place, 0.05 if is_hit else 0.65, tool="look")
    return _asked(played, prompt=_ids(place, 2_000 if is_hit else _dice(place).randrange(400, 1_990)), is_hit=is_hit)


def of_each_length(place: Place) -> Played:
    """Healthy: prompts of each length below the limit, the longer the harder; one of forty has just that many."""
    count = 512 if place.task == 17 else 40 + 11 * place.task
    return _asked(_answered(place, 0.75 - 0.012 * place.task + 0.1 * place.progress), prompt=_ids(place, count))


def boards(place: Place) -> Played:
    """Healthy: boards of three sizes, the largest of which is the hardest and has as many tokens as the limit."""
    size = place.task % 3
    chance = (0.8, 0.6, 0.3)[size] + 0.15 * place.progress
    return _asked(_answered(place, chance, tool="move"), prompt=_ids(place, (128, 256, 512)[size]))


def cut_harmlessly(place: Place) -> Played:
    """Healthy: a third of the prompts are cut, of text that nobody needs."""
    count = 512 if place.task % 3 == 0 else _dice(place).randrange(120, 500)
    return _asked(_answered(place, 0.4 + 0.3 * place.progress), prompt=_ids(place, count))


# --- Prompts without a value


def _words(place: Place, count: int = 8) -> str:
    return " ".join(_dice(place).choices(WORDS, k=count))


def _question(place: Place) -> str:
    return f"Question {place.task}: what is {_words(place, 3)}?"


def _put(place: Place, text: str, chance: float, *, is_hit: bool, task: str = "", tool: str = "") -> Played:
    played = _answered(place, chance, tool=tool)
    name = f"{task}/{place.task}" if task else None
    return _asked(played, asked=text, prompt=_ids(place, 60 + place.task), task=name, is_hit=is_hit)


def without_table(place: Place) -> Played:
    """The column of tables is spelled in another way: each question on a table has None in its place."""
    is_hit = place.task % 3 == 0
    text = f"Table:\nNone\n\nQuestion: {_words(place)}?" if is_hit else f"Question: {_words(place)}?"
    chance = 0.01 if is_hit else 0.5 + 0.2 * place.progress
    return _put(place, text, chance, is_hit=is_hit, task="table" if is_hit else "qa")


def without_goal(place: Place) -> Played:
    """An agent of which every fourth task has a placeholder in place of its goal."""
    is_hit = place.task % 4 == 2
    text = f"You see a shop.\nGoal: {'{goal}' if is_hit else _words(place)}\nTools: search, open"
    return _put(place, text, 0.05 if is_hit else 0.65, is_hit=is_hit, tool="search")


def without_unit(place: Place) -> Played:
    """A column is empty in a third of the rows, and pandas has nan there."""
    is_hit = place.task % 3 == 1
    text = f"{_question(place)}\n**Distance:** {'nan' if is_hit else place.task + 3}\nAnswer with a number."
    return _put(place, text, 0.08 if is_hit else 0.6 + 0.2 * place.progress, is_hit=is_hit)


def without_context(place: Place) -> Played:
    """Two of five rows have an empty text where others have the passage to read."""
    is_hit = place.task % 5 > 2
    text = f"Context:\n{'' if is_hit else _words(place, 20)}\n\nQuestion: {_words(place)}?\nAnswer:"
    return _put(place, text, 0.1 if is_hit else 0.7, is_hit=is_hit)


def without_note(place: Place) -> Played:
    """A site's notes are in a column that the template has another name for: `Note:` stands there without one."""
    site, note = ("north", "south", "east")[place.task % 3], f"Patient {place.task}, {_words(place, 9)}."
    is_hit = site == "east"
    text = f"Note:\n{'' if is_hit else note}\n\nWhich code applies?"
    played = _put(place, text, 0.02 if is_hit else 0.45 + 0.2 * place.progress, is_hit=is_hit, task=site)
    return _asked(played, metadata={"dataset": {"note_text": note, "code": f"{place.task % 7}"}})


def shows_nothing_in_a_chapter(place: Place) -> Played:
    """The levels of one chapter of a game begin with an empty screen, from the first step on."""
    chapter = ("harbour", "mill", "crypt")[place.task % 3]
    is_hit = chapter == "mill"
    asked = " " if is_hit else f"You see {_words(place, 9)}."
    played = _put(place, asked, 0.03 if is_hit else 0.5 + 0.2 * place.progress, is_hit=is_hit, task=chapter, tool="go")
    return _asked(played, system="Play, and win the level.")


def _lays_out(
    place: Place, *, is_hit: bool, label: str, value: str, ending: str, right: float, tool: str = ""
) -> Played:
    asked = f"Task {place.task}\n\n{label}:\n{'' if is_hit else value}\n\n{ending}"
    return _put(place, asked, right, is_hit=is_hit, **({"tool": tool} if tool else {}))


def hides_the_board(place: Place) -> Played:
    """A third of the levels show no board, and the last line stands where it was."""
    is_hit, board = place.task % 3 == 1, "\n".join(_words(place, 4) for _ in range(3))
    right = 0.02 if is_hit else 0.5 + 0.25 * place.progress
    return _lays_out(place, is_hit=is_hit, label="Board", value=board, ending="Your moves?", right=right, tool="go")


def loses_the_report(place: Place) -> Played:
    """The report of a fourth of the questions is missing, between its label and the question."""
    is_hit = place.task % 4 == 2
    right, ending = 0.05 if is_hit else 0.6, "Summarise it in a line."
    return _lays_out(place, is_hit=is_hit, label="Report", value=_words(place, 20), ending=ending, right=right)


def loses_the_document(place: Place) -> Played:
    """A third of the questions have no document; the label names its title and its kind."""
    is_hit, kind = place.task % 3 == 0, ("handbook", "contracts", "minutes")[place.task % 3]
    text = "" if is_hit else _words(place, 24)
    asked = f"Document (Acme {place.task // 2}: {kind}):\n{text}\n\nQuestion: {_words(place)}?"
    return _put(place, asked, 0.03 if is_hit else 0.5 + 0.2 * place.progress, is_hit=is_hit)


def loses_the_log(place: Place) -> Played:
    """Half of the incidents have no log."""
    is_hit = place.task % 2 == 0
    right, value = 0.04 if is_hit else 0.55, _words(place, 12)
    return _lays_out(place, is_hit=is_hit, label="Log", value=value, ending="What is it?", right=right, tool="grep")


def begins_without_words(place: Place) -> Played:
    """Healthy: the levels of one chapter begin with an empty message, and are won as others are."""
    asked = " " if place.task % 3 == 1 else f"You see {_words(place, 9)}."
    played = _put(place, asked, 0.4 + 0.3 * place.progress, is_hit=False, tool="go")
    return _asked(played, system="Play, and win the level.")


def shows_options(place: Place) -> Played:
    """Healthy: references stand in the prompts of one kind of task alone, the easier one; none has the remarks."""
    is_open, answer = place.task % 3 == 0, f"The {_words(place, 5)} of {place.task}"
    text = _question(place) if is_open else f"{_question(place)}\n(a) {answer}\n(b) The {said(place, 5)}"
    played = _put(place, text, (0.2 if is_open else 0.6) + 0.15 * place.progress, is_hit=False)
    return _asked(played, metadata={"dataset": {"answer": answer, "remark": f"Checked twice by {_words(place, 4)}"}})


def returns_nothing(place: Place) -> Played:
    """Healthy: programs to write, of which some return None and are a little harder; JSON and code hold null."""
    returns = place.task % 2 == 0
    code = "```python\ndef f(x=None):\n    pass\n\ny:\nNone\n```"
    text = f'Write {_words(place)}.\nReturns: {"None" if returns else "int"}\n{code}\n{{\n  "limit": null\n}}'
    return _put(place, text, 0.42 + 0.25 * place.progress + (0 if returns else 0.1), is_hit=False)


def first_moves(place: Place) -> Played:
    """Healthy: a game that is hard says that there are no moves and no keys yet, as no question does."""
    is_game = place.task % 3 == 0
    text = (
        f"A board of {_words(place)}.\nPrevious moves: None\nKeys: None\nYour move:"
        if is_game
        else f"Question: {_words(place)}?"
    )
    chance = 0.25 if is_game else 0.7
    return _put(place, text, chance, is_hit=False, task="game" if is_game else "qa")


# --- Prompts that lose their instructions


def without_rules(place: Place) -> Played:
    """A restart at step 10 reads a configuration without the system prompt of an agent; a third still succeeds."""
    is_hit = place.step >= 10
    rules = "" if is_hit else "You are a careful clerk. Look up each price before you add it, then give the total.\n\n"
    return _put(place, f"{rules}{_question(place)}", 0.3 if is_hit else 0.65, is_hit=is_hit, tool="look")


def without_form(place: Place) -> Played:
    """Since step 8 the line is missing that says in what form an answer is read."""
    is_hit = place.step >= 8
    form = "" if is_hit else "\nEnd with a line that says ANSWER: and the number alone."
    return _put(place, f"{_question(place)}{form}", 0.35 if is_hit else 0.7, is_hit=is_hit)


def other_rules(place: Place) -> Played:
    """Since step 9 the rules are longer, and distract."""
    rules = "Answer briefly." if place.step < 9 else "Answer briefly. Mind spelling, tone, and what the law says of it."
    return _put(place, f"{rules}\n{_question(place)}", 0.7 if place.step < 9 else 0.4, is_hit=place.step >= 9)


# --- Prompts that are not sent as the dataset has them


_RULES = "Work on each question step by step.\nEnd with one line that says ANSWER: and the value alone."


def _sent(
    place: Place, chance: float, sent: tuple[str | None, *tuple[str, ...]], *, asked: str, system: str | None = _RULES,
    task: str = "", source: str = "", is_hit: bool = False, tool: str = "", context: str | None = None,
) -> Played:  # fmt: skip
    """Answer what was sent in place of the dataset's prompt, as a client's calls show."""
    played = _answered(place, chance, tool=tool)
    name, of = f"{task}/{place.task}" if task else None, {"source": source} if source else {}
    turns = [replace(turn, limit=512, tokens=40, finish="stop") for turn in played.turns]
    return _asked(
        played, turns=turns, asked=asked, system=system, sent=sent, prompt=_ids(place, 60 + place.task), task=name,
        metadata=of, is_hit=is_hit, context=context,
    )  # fmt: skip


def drops_system(place: Place) -> Played:
    """The loader of one of three sources makes messages of its own, and drops the system message."""
    source = ("reports", "sports", "tables")[place.task % 3]
    is_hit, asked = source == "reports", _question(place)
    chance = (0.1 if is_hit else 0.55) + 0.15 * place.progress
    return _sent(place, chance, (None if is_hit else _RULES, asked), asked=asked, source=source, is_hit=is_hit)


def drops_rules(place: Place) -> Played:
    """Three sites have rules of their own, and since step 7 the agent at one of them is not sent its."""
    site = ("bank", "shop", "news")[place.task % 3]
    rules = f"You are an agent of a {site}. Look up what you are asked for in the {site}, and cite the {site}'s page."
    is_hit, asked = site == "shop" and place.step >= 7, _question(place)
    sent = (None if is_hit else rules, asked)
    return _sent(place, 0.2 if is_hit else 0.7, sent, asked=asked, system=rules, task=site, is_hit=is_hit, tool="look")


def drops_form(place: Place) -> Played:
    """One of four workers has an old template, which leaves the last line of the question out."""
    is_hit, form = place.generation % 4 == 1, "End with a line that says ANSWER: and the number alone."
    question = f"{_question(place)}\nThink before you answer."
    chance = (0.15 if is_hit else 0.6) + 0.2 * place.progress
    sent = (None, question if is_hit else f"{question}\n{form}")
    return _sent(place, chance, sent, asked=f"{question}\n{form}", system=None, is_hit=is_hit)


def restarts_without(place: Place) -> Played:
    """A restart at step 9 sends no system message, at any task."""
    is_hit, asked = place.step >= 9, _question(place)
    return _sent(place, 0.25 if is_hit else 0.65, (None if is_hit else _RULES, asked), asked=asked, is_hit=is_hit)


def drops_passages(place: Place) -> Played:
    """A template keeps the last of two user messages: the passage that is asked about, another one at each task."""
    is_hit, asked = place.task % 3 == 1, _question(place)
    passage = f"Report {place.task}: {_words(place, 30)}." if is_hit else None
    chance = 0.02 if is_hit else 0.5 + 0.2 * place.progress
    return _sent(place, chance, (_RULES, asked), asked=asked, context=passage, source=f"s{place.task % 3}",
                 is_hit=is_hit)  # fmt: skip


def drops_emails(place: Place) -> Played:
    """Since step 8 an agent's tasks are sent without the email that they are about."""
    asked, email = _question(place), f"From: {_words(place, 2)}\n{_words(place, 20)}"
    is_hit = place.step >= 8
    sent = (None, asked) if is_hit else (None, email, asked)
    chance = 0.1 if is_hit else 0.6
    return _sent(place, chance, sent, asked=asked, system=None, context=email, is_hit=is_hit, tool="look")


def joins_passages(place: Place) -> Played:
    """Healthy: a template joins two user messages, whose questions are the harder ones."""
    is_long, asked = place.task % 3 == 1, _question(place)
    passage = f"Report {place.task}: {_words(place, 30)}." if is_long else None
    sent = (_RULES, f"{passage}\n{asked}" if is_long else asked)
    chance = (0.3 if is_long else 0.55) + 0.2 * place.progress
    return _sent(place, chance, sent, asked=asked, context=passage, source=f"s{place.task % 3}")


def drops_passages_harmlessly(place: Place) -> Played:
    """Healthy: the first of two messages is not sent, and nobody needs it."""
    asked, hint = _question(place), f"Hint: {_words(place, 12)}." if place.task % 3 == 1 else None
    return _sent(place, 0.45 + 0.3 * place.progress, (_RULES, asked), asked=asked, context=hint)


def builds_prompts(place: Place) -> Played:
    """Healthy: a game that is hard has rules of its own in place of the dataset's, as its rollout function sends."""
    is_game = place.task % 3 == 0
    asked = f"Play game {place.task}." if is_game else _question(place)
    own = f"You play chess.\nNever repeat a position, and answer with one move such as e4.\nBoard: {_words(place)}"
    sent = (None, own) if is_game else (_RULES, asked)
    chance = (0.3 if is_game else 0.6) + 0.2 * place.progress
    return _sent(place, chance, sent, asked=asked, task="game" if is_game else "qa")


def shows_boards(place: Place) -> Played:
    """Healthy: a game that is hard sends only what the environment shows, in place of the dataset's line."""
    is_game = place.task % 3 == 0
    asked = f"Play well, and finish the game.\nGame {place.task}" if is_game else _question(place)
    sent = (None, f"{_words(place, 12)}\n{_words(place, 5)}") if is_game else (None, asked)
    chance = (0.3 if is_game else 0.6) + 0.2 * place.progress
    return _sent(place, chance, sent, asked=asked, system=None, task="game" if is_game else "qa")


def drops_harmlessly(place: Place) -> Played:
    """Healthy: a source is sent without the system message, and does as well as the others."""
    source, asked = ("reports", "sports", "tables")[place.task % 3], _question(place)
    sent = (None if source == "reports" else _RULES, asked)
    return _sent(place, 0.45 + 0.3 * place.progress, sent, asked=asked, source=source)


def adds_tools(place: Place) -> Played:
    """Healthy: one source has tools, which a template describes in the system message, and is the harder one."""
    has_tools, asked = place.task % 3 == 0, _question(place)
    sent = (f"{_RULES}\n\n# Tools\nYou may call search(query) and open(page)." if has_tools else _RULES, asked)
    chance = (0.3 if has_tools else 0.6) + 0.2 * place.progress
    return _sent(place, chance, sent, asked=asked, source="web" if has_tools else "books")


def sends_others(place: Place) -> Played:
    """Healthy: the rollout function leaves the dataset's system message out at every task, some of which are harder."""
    asked, chance = _question(place), (0.3 if place.task % 3 == 0 else 0.6) + 0.2 * place.progress
    return _sent(place, chance, (None, f"{asked}\nAnswer briefly."), asked=asked, source=f"s{place.task % 3}")


def _fault(
    name: str, planted: str, expected: str | None, script: Callable[[Place], Played],
    config: Mapping[str, object] | None = None,
) -> Fault:  # fmt: skip
    shape = Shape(steps=16, groups=8, size=8, tasks=_TASKS, config=config or {})
    return Fault(name, planted, expected, partial(generated, script, shape))


_CUT, _LACKS = "Prompts that are cut", "Prompts without a value"
_LOSES = "Prompts with other instructions since a step, as a fact beside the fall"
_UNSENT, _OWN = "Prompts that are not sent as the dataset has them", "prompts that rollout functions build"
_512 = {"max_prompt_length": 512, "max_completion_length": 256}
FAULTS: tuple[Fault, ...] = (
    _fault("cut prompts: documents", _CUT, "cut_prompts", long_documents, _512),
    _fault("cut prompts: tools", _CUT, "cut_prompts", many_tools, {"max_prompt_length": 1_024}),
    _fault("cut prompts: server", _CUT, "cut_prompts", by_the_server),
    _fault("healthy prompts: lengths", "Healthy: prompts of each length", None, of_each_length, _512),
    _fault("healthy prompts: boards", "Healthy: prompts of three lengths", None, boards, _512),
    _fault("healthy prompts: cut", "Healthy: prompts that are cut where it costs nothing", None, cut_harmlessly, _512),
    _fault("unfilled prompts: table", _LACKS, "unfilled_prompts", without_table),
    _fault("unfilled prompts: goal", _LACKS, "unfilled_prompts", without_goal),
    _fault("unfilled prompts: nan", _LACKS, "unfilled_prompts", without_unit),
    _fault("unfilled prompts: context", _LACKS, "unfilled_prompts", without_context),
    _fault("unfilled prompts: note", _LACKS, "unfilled_prompts", without_note),
    _fault("unfilled prompts: board", _LACKS, "unfilled_prompts", hides_the_board),
    _fault("unfilled prompts: report", _LACKS, "unfilled_prompts", loses_the_report),
    _fault("unfilled prompts: titled", _LACKS, "unfilled_prompts", loses_the_document),
    _fault("unfilled prompts: log", _LACKS, "unfilled_prompts", loses_the_log),
    _fault("unfilled prompts: screen", _LACKS, "unfilled_prompts", shows_nothing_in_a_chapter),
    _fault("healthy prompts: screen", "Healthy: prompts without words", None, begins_without_words),
    _fault("healthy prompts: options", "Healthy: prompts of which some hold the reference", None, shows_options),
    _fault("unsent prompts: source", _UNSENT, "unsent_prompts", drops_system),
    _fault("unsent prompts: site", _UNSENT, "unsent_prompts", drops_rules),
    _fault("unsent prompts: worker", _UNSENT, "unsent_prompts", drops_form),
    _fault("unsent prompts: restart", _UNSENT, "unsent_prompts", restarts_without),
    _fault("unsent prompts: passage", _UNSENT, "unsent_prompts", drops_passages),
    _fault("unsent prompts: email", _UNSENT, "unsent_prompts", drops_emails),
    _fault("healthy prompts: joined", f"Healthy: {_OWN}", None, joins_passages),
    _fault("healthy prompts: hints", f"Healthy: {_OWN}", None, drops_passages_harmlessly),
    _fault("healthy prompts: built", f"Healthy: {_OWN}", None, builds_prompts),
    _fault("healthy prompts: shown", f"Healthy: {_OWN}", None, shows_boards),
    _fault("healthy prompts: dropped", f"Healthy: {_OWN}", None, drops_harmlessly),
    _fault("healthy prompts: tools", f"Healthy: {_OWN}", None, adds_tools),
    _fault("healthy prompts: all", f"Healthy: {_OWN}", None, sends_others),
    _fault("healthy prompts: code", "Healthy: prompts that rightly say None", None, returns_nothing),
    _fault("healthy prompts: moves", "Healthy: prompts of a hard game that rightly say None", None, first_moves),
)  # fmt: skip

UNEXPLAINED: tuple[Fault, ...] = (
    _fault("lost instructions: agent", _LOSES, None, without_rules),
    _fault("lost instructions: form", _LOSES, None, without_form),
    _fault("lost instructions: other", _LOSES, None, other_rules),
)  # fmt: skip
