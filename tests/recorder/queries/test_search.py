"""Full-text search: what is found, what is not yet, and what the index does where the database is no longer its own."""

import fcntl
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, delete, event, func, insert, select, update
from sqlmodel import col

from logs_ui.recorder import load_run, queries
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.queries.search.dialects import texts_of
from logs_ui.recorder.queries.search.full_text import contains, planning, search_state
from logs_ui.recorder.queries.search.hits import hits as hits_of
from logs_ui.recorder.queries.search.index import SearchIndex, catch_up
from logs_ui.recorder.queries.search.words import words_of
from logs_ui.recorder.queries.sql.selection import Use, conditions
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.search_tables import TOKENIZER
from logs_ui.recorder.storage.sidecars import SEARCH
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.vocabulary import RunState
from tests.support import factory
from tests.support.payloads import pack_content

NOW = time.time_ns() // 1000


@dataclass
class Place:
    """A database, and how its texts are indexed and searched."""

    address: Address
    writing: Engine

    @property
    def path(self) -> Path:
        assert isinstance(self.address, Path)
        return self.address

    def run(self, uid: str = "run", *, state: str = RunState.RUNNING, heard: int | None = None) -> int:
        """Heard of just now, where nothing else is said: this file was read long before its last test runs."""
        heard = time.time_ns() // 1000 if heard is None else heard
        run = {"uid": uid, "name": uid, "created": NOW, "heartbeat": heard, "state": state}
        with self.writing.begin() as connection:
            return factory.insert_run(connection, run)

    def rollout(
        self, run: int, text: Any, *, changed: int = 1, scored: int | None = NOW, turns: int | None = None,
        **payload: Any,
    ) -> int:  # fmt: skip
        messages = [{"role": "assistant", "content": text}]
        with self.writing.begin() as connection:
            number = int(connection.scalar(select(func.max(col(EvaluationRow.id)))) or 0) + 1
            row = {"id": number, "run_id": run, "uid": str(number), "changed": changed, "scored": scored}
            row |= {"turns": turns, "reward": None if scored is None else 1.0}
            connection.execute(insert(EvaluationRow), factory.ROW | row)
            content = pack_content({"messages": messages, **payload})
            connection.execute(insert(RolloutPayload), {"row_id": number, "content": content})
            connection.execute(update(Run).where(col(Run.id) == run).values(changed=changed))
        return int(number)

    def rollouts(self, run: int, texts: Sequence[str], *, at_once: int = 10_000) -> set[int]:
        """The first of all, in one transaction; `changed` grows by one with each `at_once`."""
        shared = factory.ROW | {"run_id": run, "scored": NOW, "reward": 1.0}
        ids = range(1, len(texts) + 1)
        rows = [shared | {"id": it, "uid": str(it), "changed": (it - 1) // at_once} for it in ids]
        said = [pack_content({"messages": [{"role": "assistant", "content": text}]}) for text in texts]
        with self.writing.begin() as connection:
            connection.execute(insert(EvaluationRow), rows)
            connection.execute(
                insert(RolloutPayload), [{"row_id": it, "content": text} for it, text in zip(ids, said, strict=True)]
            )
            connection.execute(update(Run).where(col(Run.id) == run).values(changed=(len(texts) - 1) // at_once))
        return set(ids)

    def fill(self, **wanted: Any) -> bool:
        with disposed(reading_engine(self.address)) as engine:
            return SearchIndex(self.address, engine.begin).fill(**wanted)

    def found(self, run: int, where: str) -> set[int]:
        with disposed(reading_engine(self.address)) as engine:
            page = queries.page(engine, run, parse_where(where), limit=1000)
        return {row.id or 0 for row in page.rows}

    def state(self, run: int) -> tuple[int, bool]:
        with disposed(reading_engine(self.address)) as engine, engine.connect() as connection:
            it = search_state(connection, run)
        return it.indexed, it.behind


@pytest.fixture
def place(address: Address) -> Iterator[Place]:
    with disposed(writing_engine(address)) as engine:
        yield Place(address, engine)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Place]:
    """For what only a file can suffer, or SQLite alone does."""
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        yield Place(tmp_path / "runs.db", engine)


@pytest.fixture
def _three_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.search.full_text._FEW", 3)


@contextmanager
def reading(place: Place) -> Iterator[Connection]:
    with disposed(reading_engine(place.address)) as engine, engine.connect() as connection:
        yield connection


def hits(connection: Connection, text: str) -> set[int]:
    """Whatever FTS5, or PostgreSQL, makes of it."""
    return set(connection.scalars(select(col(EvaluationRow.id)).where(contains(text, 1))))


def test_whatever_was_said_in_a_rollout_is_found(place: Place) -> None:
    run = place.run()
    call = {"id": "call_7", "type": "function", "function": {"name": "search_web", "arguments": '{"q": "kiwi"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Peel the Äpfel"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hmm, plums", "tool_calls": [call]},
    ]
    action = {"text": "press", "action": {"button": "cherry"}, "observation": {"stdout": ["fig", {"more": "lime"}]}}
    row = place.rollout(run, "", messages=messages, actions=[action, {"error": "TimeoutError: date"}])
    place.rollout(run, "nothing of that")
    place.fill()
    for word in ("peel", "ÄPFEL", "apfel", "plums", "search_web", "kiwi", "press", "cherry", "fig", "lime", "date"):
        assert place.found(run, word) == {row}, word
    for name in ("reasoning", "stdout", "button", "call_7", "function"):  # names of fields are no text
        assert place.found(run, name) == set(), name


def test_words_phrases_and_beginnings(place: Place) -> None:
    run = place.run()
    one = place.rollout(run, "the quick brown fox")
    two = place.rollout(run, "a brown quick dog, foxes")
    place.fill()
    assert place.found(run, "quick brown") == {one, two}
    assert place.found(run, '"quick brown"') == {one}
    assert place.found(run, "fox*") == {one, two}
    assert place.found(run, '"brown fo*"') == {one}
    assert place.found(run, "quick -fox") == {two}
    assert place.found(run, "text:fox,dog") == {one, two}


@pytest.mark.exhaustive
def test_words_are_searched_for_in_what_one_role_wrote(place: Place) -> None:
    run = place.run()
    call = {"function": {"name": "bash", "arguments": '{"command": "git grep kiwi"}'}}
    messages = [
        {"role": "system", "content": "Use plums."},
        {"role": "assistant", "content": "an example of the prompt"},
        {"role": "user", "content": "Peel the Äpfel"},
        {"role": "assistant", "content": "I look first", "reasoning_content": "hmm, plums", "tool_calls": [call]},
        {"role": "tool", "content": "fig.py: lime"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "lime it is"},
    ]
    actions = [
        {"turn": 0, "observation": "Peel the Äpfel", "error": "ValueError: reset"},
        {"turn": 1, "text": "I look first", "action": {"press": "cherry"}, "observation": "Äpfel", "error": "date"},
        {"turn": 2, "generation": {"error": "refused"}},
        {"turn": 2, "phase": "scoring", "action": "judge it", "observation": "seven"},
    ]
    one = place.rollout(run, "", messages=messages, actions=actions, turns=2)
    two = place.rollout(run, "", messages=[{"role": "user", "content": "lime"}])  # never answered
    place.fill()
    found = {
        "assistant": ("plums", "kiwi", "bash", '"look first"', "lime", "cherry", "loo*", '"grep ki*"'),
        "tool": ("lime", '"go on"', "date", "reset", "fig*", "apfel"),
        "prompt": ("plums", "example", '"use plums"', "apfel"),
    }
    words = {*(word for of_role in found.values() for word in of_role), "refused", "judge", "seven"}
    for word in words:
        assert one in place.found(run, word), word
        for role, of_role in found.items():
            assert (one in place.found(run, f"{role}:{word}")) == (word in of_role), (role, word)
    assert place.found(run, "lime") == {one, two}
    assert place.found(run, "prompt:lime") == {two}
    assert place.found(run, "prompt:plums assistant:plums -tool:plums,seven") == {one}
    assert place.found(run, "assistant:kiwi,nothing") == {one}
    assert place.found(run, '"prompt peel"') == {one}  # two texts of one role
    assert place.found(run, '"is fig"') == set()  # two roles


def test_the_place_of_the_words_is_that_which_the_index_found(place: Place) -> None:
    run = place.run()
    messages = [
        {"role": "user", "content": "Fix the cache"},
        {"role": "assistant", "content": "I e\u0301tudie\n Läs  CACHE, and caches\x1b[31m <b>"},
        {"role": "user", "content": "no such cache"},
        {"role": "assistant", "content": "done"},
    ]
    row = place.rollout(run, "", messages=messages, turns=2)
    place.fill()
    with disposed(reading_engine(place.address)) as engine:
        for where, column, words, before in (
            ("cache", "assistant", "CACHE", "Läs  "), ("assistant:cache*", "assistant", "CACHE", "Läs  "),
            ("tool:cache", "tool", "cache", "such "), ('prompt:"THE cache"', "prompt", "the cache", "Fix "),
            ("Étudie", "assistant", "e\u0301tudie", "I "), ('"las cache"', "assistant", "Läs  CACHE", "\n "),
            ("-tool:nothing assistant:nothing,caches", "assistant", "caches", "and "), ("b", "assistant", "b", "<"),
        ):  # fmt: skip
            assert place.found(run, where) == {row}, where
            hit = hits_of(engine, parse_where(where), [row])[row]
            assert (hit.column, hit.words) == (column, words), where
            assert hit.before.endswith(before), where
        assert hits_of(engine, parse_where("-cache status:ok"), [row]) == {}
        assert hits_of(engine, parse_where("cache"), [row], seconds=-1) == {}


def test_fifty_rollouts_of_an_agent_all_have_their_place(on_disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = on_disk.run()
    rows = [on_disk.rollout(run, "words") for _ in range(50)]
    on_disk.fill()
    clock = count(0.0, 0.06)  # ten rollouts of 80,000 characters take as long
    monkeypatch.setattr("logs_ui.recorder.queries.search.hits.time.monotonic", lambda: next(clock))
    with disposed(reading_engine(on_disk.address)) as engine:
        assert hits_of(engine, parse_where("words"), rows).keys() == {*rows}


def test_an_index_of_an_earlier_format_is_not_read_and_made_anew(on_disk: Place) -> None:
    run = on_disk.run()
    row = on_disk.rollout(run, "words")
    on_disk.fill()
    with sqlite3.connect(SEARCH.path(on_disk.path)) as index:
        index.execute("DROP TABLE texts")
        index.execute("CREATE VIRTUAL TABLE texts USING fts5(body, content='')")
        index.execute("INSERT INTO texts (rowid, body) VALUES (?, 'words')", [row])
        index.execute("UPDATE source SET format = 1")
    index.close()
    assert on_disk.found(run, "assistant:words") == on_disk.found(run, "words") == set()
    assert on_disk.state(run) == (0, True)
    on_disk.fill()
    assert on_disk.found(run, "assistant:words") == on_disk.found(run, "words") == {row}


def test_no_text_is_an_error(place: Place) -> None:
    run = place.run()
    texts = ['"', '""', "a AND", "NEAR(a b)", "body:x", "x^2", "*", "-", "(", "a + b", "\0", "'; DROP TABLE texts"]
    texts += ["😀", "{a}", "a & b | !c", "x:*", "<->", "\\'"]
    rows = place.rollouts(run, [f"before {text} after" for text in texts])
    place.fill()
    with reading(place) as connection:
        for text in texts:
            assert hits(connection, text) <= rows
    assert place.found(run, "before") == place.found(run, "after") == rows


HOSTILE = (
    "the quick brown fox jumps", "The QUICK, brown-fox", "/usr/local/lib/python3.11/site.py", "a.b@example.org wrote",
    "http://example.org/a?b=c&d=1,234.5e-6", "ÄPFEL und Öl, äpfel", "a\u0308pfel e\u0301", "\u0301lone mark",
    "İstanbul \u0131I", "ǅ ǆ Ǆ ß ẞ ﬁ ﬀ", "日本語 の テキスト", "素因数ab", "नमस्ते दुनिया", "שָׁלוֹם עולם",
    "x\u200by x\u200dz",
    "snake_case camelCase", "don't can\u2019t", "1,000.50 3rd", "\ue000private\ue001 use", "😀grin👩\u200d👩 face",
    "'; DROP TABLE texts; --", "a:b & c | !d <-> e", "\\ back\\slash", "tab\tnew\nline\x00nul\x1funit",
    "\u2003em space\u3000wide", "½ ② Ⅷ ٣", "word " * 600 + "end of words", "ha " * 1000,
    " ".join(f"n{i}" for i in range(17_000)), "y" * 3000 + " after", "ŷ" * 900 + "z", "", " ", "Ωmega ωMEGA",
    "\U0001d49cbc 𐐀deseret 𐐨",
)  # fmt: skip
QUERIES = (
    "quick", "QUICK BROWN", "brown fox", "fox*", "brown fo*", "usr local", "lib/python3.11", "site.py",
    "a.b@example.org", "example", "1", "234.5e", "5e-6", "c&d=1,234", "äpfel", "apfel", "Apfel*", "ol", "e", "é",
    "lone mark", "istanbul", "i", "dž", "ǆ", "ss", "ß", "fi", "ﬁ", "日本", "日本語", "日*", "素因数",
    "素因数ab", "नमस्ते",
    "नमसत", "שלום", "שָׁלוֹם", "x y", "xy", "x z", "snake", "snake_case", "case*", "camelcase", "don t", "dont",
    "don't", "can", "1,000", "1000", "3rd", "3*", "\ue000private", "private", "grin", "😀grin", "grin👩", "drop table",
    "b & c", "d <-> e", "back\\slash", "line\x00nul", "unit", "em space", "space wide", "½", "②", "ⅷ", "٣", "3",
    "word word", "end of words", "words end", "ha ha ha ha", "n0", "n16999", "n254 n255 n256",
    "n15998 n15999 n16000 n16001", "n16380 n16381 n16382 n16383 n16384", "n1*", "y*", "y" * 3000, "y" * 2999,
    "y" * 3001, "y" * 300 + "*", "ŷ" * 900 + "z",
    "ŷ" * 900, "ωmega", "Ω*", "𐐀deseret", "*", "", " ", "'", "\\", ":*",
    "a:*", " ".join(f"n{i}" for i in range(250, 350)), "the", "quick fox",
)  # fmt: skip


@pytest.mark.exhaustive
def test_both_databases_find_the_same(postgres_url: URL, tmp_path: Path) -> None:
    rng = random.Random(7)
    alphabet = "aAbä\u0308ß1٣-_'\\日😀\u200b \u00a0é.İ"
    made = ["".join(rng.choices(alphabet, k=rng.randrange(1, 30))) for _ in range(60)]
    asked = [
        *QUERIES,
        *("".join(rng.choices(alphabet, k=rng.randrange(1, 5))) + rng.choice(("", "*")) for _ in range(150)),
    ]
    found = []
    for address in (tmp_path / "runs.db", postgres_url):
        place = Place(address, writing_engine(address))
        run = place.run()
        place.rollouts(run, [*HOSTILE, *made])
        place.fill()
        place.writing.dispose()
        with reading(place) as connection:
            found.append({text: hits(connection, text) for text in asked})
    assert found[0] == found[1]
    assert sum(len(ids) for ids in found[0].values()) > 500  # some of them at all


def test_each_character_is_folded_as_fts5_folds_it_within_a_text() -> None:
    """What is asked of FTS5 once for each character must not depend on where it stands."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5(body, tokenize='{TOKENIZER}')")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5vocab(texts, instance)")
    rng = random.Random(3)
    codes = [
        rng.choice((rng.randrange(32, 0x250), rng.randrange(0x250, 0xD800), rng.randrange(0x300, 0x370)))
        for _ in range(9000)
    ]
    text = "".join(map(chr, codes))
    connection.execute("INSERT INTO texts VALUES (?)", [text])
    expected = [word for (word,) in connection.execute("SELECT term FROM words ORDER BY offset")]
    assert words_of(text) == [word if len(word) <= 400 else words_of(word)[0] for word in expected]


def test_a_rollout_is_found_once_it_is_scored_and_its_text_is_final(place: Place) -> None:
    run = place.run()
    early = place.rollout(run, "draft", changed=1, scored=None)
    place.rollout(run, "other", changed=2)
    place.fill()
    assert place.found(run, "draft") == set()
    assert place.state(run) == (1, False)
    with place.writing.begin() as connection:
        content = pack_content({"messages": [{"role": "assistant", "content": "final"}]})
        connection.execute(update(RolloutPayload).where(col(RolloutPayload.row_id) == early).values(content=content))
        connection.execute(update(EvaluationRow).where(col(EvaluationRow.id) == early).values(scored=NOW, changed=3))
        connection.execute(update(Run).values(changed=3))
    assert place.state(run) == (1, True)
    place.fill()
    assert place.found(run, "final") == {early}
    assert place.found(run, "draft") == set()
    assert place.state(run) == (2, False)


def test_rollouts_that_will_never_be_scored_are_found_when_their_run_is_silent(place: Place) -> None:
    now = time.time_ns() // 1000
    run = place.run(heard=now - 300_000_000)
    rows = {place.rollout(run, "lost words", scored=None) for _ in range(3)}
    place.fill()
    assert place.found(run, "lost") == set()
    with place.writing.begin() as connection:
        connection.execute(update(Run).values(heartbeat=now - 620_000_000))
    place.fill()
    place.fill()
    assert place.found(run, "lost") == rows
    assert place.state(run) == (3, False)


def test_filling_goes_on_where_it_was_stopped_and_takes_nothing_twice(place: Place) -> None:
    run = place.run()
    rows = place.rollouts(run, [f"common word{i}" for i in range(450)], at_once=90)
    steps: list[int] = []
    assert place.fill(grown=steps.append, stopped=lambda: len(steps) == 1)
    assert sum(steps) == place.state(run)[0] == 200
    place.fill(grown=steps.append)
    place.fill(grown=steps.append)
    assert steps[:3] == [200, 200, 50]
    assert sum(steps) == 450
    assert place.found(run, "common") == rows


def test_long_texts_are_read_one_by_one_and_none_of_them_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.search.index._CHARACTERS", 1_000)
    monkeypatch.setattr("logs_ui.recorder.queries.search.index._USUAL", 20)
    run = place.run(state=RunState.FINISHED)
    rows = place.rollouts(run, [f"short {number}" for number in range(12)] + ["long " * 150] * 18)
    read: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "rollout_payload" in statement and "evaluation_row.id IN" in statement:
            read.append(len(parameters))

    event.listen(Engine, "before_cursor_execute", count)
    try:
        assert place.fill()
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert sum(read) <= 30 + 10
    assert max(read) > 1
    assert place.found(run, "short") | place.found(run, "long") == rows


def test_a_rollout_of_many_megabytes_does_not_hold_up_the_others(place: Place) -> None:
    run = place.run()
    small = place.rollout(run, "small one", changed=1)
    large = place.rollout(run, "needle " + "hay " * 1_100_000, changed=1)
    last = place.rollout(run, "last one", changed=1)
    steps: list[int] = []
    place.fill(grown=steps.append)
    assert [step for step in steps if step] == [2, 1]
    assert place.found(run, "needle") == {large}
    assert place.found(run, "one") == {small, last}


@contextmanager
def filling(place: Place) -> Iterator[None]:
    """As another process does."""
    if isinstance(place.address, URL):
        with place.writing.begin() as other:
            assert texts_of(place.address).is_alone(other)
            yield
        return
    path = SEARCH.path(place.path)
    with path.with_name(path.name + "-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_only_one_fills_and_the_others_read(place: Place) -> None:
    run = place.run()
    place.rollout(run, "word")
    place.fill()
    with filling(place):
        place.rollout(run, "another", changed=2)
        assert place.fill() is False
        assert len(place.found(run, "word")) == 1
        assert place.state(run) == (1, True)
    assert place.fill() is True
    assert place.state(run) == (2, False)


def test_several_that_want_it_filled_at_once_do_no_harm(place: Place) -> None:
    run = place.run()
    rows = place.rollouts(run, [f"word {i}" for i in range(300)])

    def want() -> None:
        with disposed(reading_engine(place.address)) as engine:
            catch_up(place.address, engine, run, lambda _done, _total: None)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.found(run, "word") == rows
    assert place.state(run) == (300, False)


def test_filling_never_takes_the_writers_lock(on_disk: Place) -> None:
    run = on_disk.run()
    row = on_disk.rollout(run, "word")
    with on_disk.writing.begin():  # BEGIN IMMEDIATE: whoever would write now has to wait for 30 s
        assert on_disk.fill()
    assert on_disk.found(run, "word") == {row}


def test_an_index_of_another_database_is_made_anew(on_disk: Place, tmp_path: Path) -> None:
    run = on_disk.run("old")
    on_disk.rollout(run, "old words")
    on_disk.fill()
    on_disk.writing.dispose()
    for file in tmp_path.glob("runs.db*"):
        file.unlink()
    time.sleep(0.001)
    other = Place(on_disk.path, writing_engine(on_disk.path))
    run = other.run("new")
    row = other.rollout(run, "new words")
    assert other.found(run, "old") == set()  # before anybody has filled it
    assert other.state(run) == (0, True)
    other.fill()
    assert other.found(run, "words") == {row}
    assert other.found(run, "old") == set()
    other.writing.dispose()


def test_an_index_of_runs_that_are_gone_is_made_anew(place: Place) -> None:
    gone = place.run("gone")
    place.rollout(gone, "gone words")
    place.fill()
    with place.writing.begin() as connection:
        for table in (RolloutPayload, EvaluationRow, Run):
            connection.execute(delete(table))
    run = place.run("next")
    row = place.rollout(run, "next words")
    assert row == 1  # the number that the other one had
    place.fill()
    assert place.found(run, "words") == {row}
    assert place.found(run, "gone") == set()


def test_a_database_that_was_set_back_is_indexed_anew(on_disk: Place, tmp_path: Path) -> None:
    run = on_disk.run()
    on_disk.rollout(run, "first", changed=1)
    on_disk.writing.dispose()
    shutil.copy(on_disk.path, tmp_path / "copy")
    later = Place(on_disk.path, writing_engine(on_disk.path))
    later.rollout(run, "undone", changed=2)
    later.fill()
    later.writing.dispose()
    for file in tmp_path.glob("runs.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy", on_disk.path)
    back = Place(on_disk.path, writing_engine(on_disk.path))
    back.fill()
    assert back.found(run, "undone") == set()
    assert len(back.found(run, "first")) == 1
    back.writing.dispose()


@pytest.mark.usefixtures("_three_are_many")
def test_words_that_most_rollouts_have_are_collected_once(on_disk: Place) -> None:
    run = on_disk.run()
    rows = {on_disk.rollout(run, f"common n{i} {'odd' if i % 2 else 'even'}") for i in range(12)}
    on_disk.fill()
    with disposed(reading_engine(on_disk.path)) as engine:
        with engine.connect() as connection:
            for _ in range(2):
                with planning(connection):
                    assert {it.id for it in queries.page(connection, run, parse_where("common")).rows} == rows
                    both = queries.page(connection, run, parse_where("common even -n4 odd*"))
                    assert both.rows == []
                    assert queries.count(connection, run, parse_where("common even")).value == 6
                    assert queries.count(connection, run, parse_where("-common")).value == 0
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.connection.driver_connection.execute("CREATE TABLE main.x (y)")  # type: ignore[union-attr]
        with engine.connect() as connection:  # what grows meanwhile is seen by the next who asks
            on_disk.rollout(run, "common late", changed=2)
            on_disk.fill()
            with planning(connection):
                assert queries.count(connection, run, parse_where("common")).value == 13


@pytest.mark.exhaustive
def test_a_server_looks_words_up_in_the_index_however_common(postgres_url: URL) -> None:
    place = Place(postgres_url, writing_engine(postgres_url))
    run = place.run()
    place.rollouts(run, [f"common n{i} " + " ".join(f"w{i}x{j}" for j in range(600)) for i in range(60)])
    place.fill()
    with place.writing.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    place.writing.dispose()
    with reading(place) as connection, planning(connection):
        asked = select(func.count()).where(*conditions(run, parse_where("-common"), Use.NUMBER))
        literal = asked.compile(connection, compile_kwargs={"literal_binds": True})
        steps = connection.exec_driver_sql(f"EXPLAIN {literal}".replace("%", "%%")).scalars().all()
        assert any("texts_words" in step for step in steps), steps
        assert queries.count(connection, run, parse_where("-common")).value == 0
    with reading(place) as connection, planning(connection):  # and nothing of it outlives the transaction
        assert connection.exec_driver_sql("SHOW enable_seqscan").scalar() == "on"


def test_the_smaller_side_leads(on_disk: Place) -> None:
    run = on_disk.run()
    for i in range(9):
        on_disk.rollout(run, f"common n{i}")
    on_disk.fill()
    with disposed(reading_engine(on_disk.path)) as engine:

        def plan(where: str) -> str:
            with planning(connection):
                selected = select(func.count()).where(*conditions(run, parse_where(where), Use.NUMBER))
            literal = selected.compile(connection, compile_kwargs={"literal_binds": True})
            steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {literal}".replace("%", "%%"))
            return next(str(step.detail) for step in steps if "evaluation_row" in step.detail)

        with engine.connect() as connection:
            assert "INTEGER PRIMARY KEY" in plan("n3")
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("logs_ui.recorder.queries.search.full_text._FEW", 3)
                assert "run_id=?" in plan("common")
                assert "INTEGER PRIMARY KEY" in plan("n3 common")


@pytest.mark.usefixtures("_three_are_many")
def test_words_are_looked_for_only_where_the_rows_lie(on_disk: Place) -> None:
    run = on_disk.run()
    rows = on_disk.rollouts(run, [f"common n{i}" for i in range(40)])
    on_disk.fill()
    engine = reading_engine(on_disk.path)
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: said.append(args[2]))
    with engine.connect() as connection, planning(connection):
        found = queries.page_in_time(connection, run, parse_where("common"), limit=7, seconds=0.0)
        assert [it.id for it in found.rows] == sorted(rows, reverse=True)[:7]
        window = queries.count(connection, run, parse_where("common"), span=(11, 20))
        assert window == queries.Count(10, exact=False)
        assert queries.count(connection, run, parse_where("common step:1..2")).value == 40
        assert queries.count(connection, run, parse_where("common step:2..3")).value == 0
    asked = [statement for statement in said if "MATCH" in statement and "LIMIT ?)" not in statement]
    assert len(asked) == 4
    assert all("search.texts.rowid BETWEEN" in statement for statement in asked), "no list of all that have the word"
    engine.dispose()


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [0, 2_000])
def test_a_beginning_finds_what_its_words_find(on_disk: Place, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("logs_ui.recorder.queries.search.full_text._BEGINNINGS", most)
    on_disk.rollouts(on_disk.run(), HOSTILE)
    on_disk.fill()
    asked = {*QUERIES, *(f"{text}*" for text in QUERIES if len(text) < 100)}
    with reading(on_disk) as connection:
        alone = {text: hits(connection, text) for text in asked}
        with planning(connection):
            assert {text: hits(connection, text) for text in asked} == alone
    assert alone["fox*"]


@pytest.mark.usefixtures("_three_are_many")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        (lambda i: f"it {('decodes', 'decoded')[i % 2]} n{i}", "deco*"),
        (lambda i: " ".join(f"it co{30 * i + j:x}" for j in range(30)), "co*"),
    ],
    ids=["of two words", "of many words"],
)
def test_a_beginning_is_sought_only_where_the_rows_lie(on_disk: Place, text: Callable[[int], str], where: str) -> None:
    run = on_disk.run()
    rows = on_disk.rollouts(run, [text(i) for i in range(40)])
    on_disk.fill()
    with reading(on_disk) as connection, planning(connection):
        for line in (where, f'"it {where}"'):
            found = queries.page_in_time(connection, run, parse_where(line), limit=7, seconds=0.0)
            assert [it.id for it in found.rows] == sorted(rows, reverse=True)[:7]
        assert queries.count(connection, run, parse_where(where), span=(11, 20)) == queries.Count(10, exact=False)
        lists = connection.exec_driver_sql("SELECT name FROM temp.sqlite_master WHERE name LIKE 'hits!_%' ESCAPE '!'")
        assert lists.all() == [], "no list of all that begin so"


@pytest.mark.usefixtures("_three_are_many")
def test_the_list_of_a_common_word_is_of_one_run(on_disk: Place) -> None:
    first, second = on_disk.run("first"), on_disk.run("second")
    for run in (first, second):
        for _ in range(5):
            on_disk.rollout(run, "common")
    on_disk.fill()
    with disposed(reading_engine(on_disk.path)) as engine, engine.connect() as connection, planning(connection):
        for run in (first, second):
            assert queries.count(connection, run, parse_where("common")).value == 5
        names = connection.exec_driver_sql("SELECT name FROM temp.sqlite_master WHERE type = 'table'").scalars().all()
        kept = [connection.exec_driver_sql(f"SELECT count(*) FROM temp.{name}").scalar() for name in names]  # noqa: S608
    assert kept == [5, 5]


def test_pandas_waits_for_the_index_beside_the_database_which_it_needs_only_for_words(on_disk: Place) -> None:
    run = on_disk.run()
    row = on_disk.rollout(run, "look here")
    on_disk.rollout(run, "not there")
    index = on_disk.path.with_name("runs.search.db")
    assert list(load_run("run", db=on_disk.path, where='"look here"')["id"]) == [row]
    index.write_bytes(b"somebody else's" * 1000)
    with pytest.raises(DatabaseError, match=r"runs\.search\.db is not an SQLite database"):
        load_run("run", db=on_disk.path, where="look")
    assert len(load_run("run", db=on_disk.path)) == 2


def test_on_a_network_the_index_has_no_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    db = tmp_path / "a.db"
    with texts_of(db).opened() as engine:
        assert engine is not None
    with sqlite3.connect(SEARCH.path(db)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()
