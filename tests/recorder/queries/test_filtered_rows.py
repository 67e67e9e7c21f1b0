"""What terms select: dataset columns, metadata, reward functions, very long lists and findings, on both databases."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update
from sqlmodel import col

from logs_ui.app.web import urls
from logs_ui.recorder import Card, FilterError, Settings, diagnose, load_run, queries, start_run
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.labels import attributes_in
from logs_ui.recorder.queries.filters.language import mended, with_findings
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where, print_where, read_sort
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Scalar
from logs_ui.recorder.vocabulary import StopReason
from tests.support import factory
from tests.support.exhaustive import cases
from tests.support.postgres import DATABASES, fresh_database

COUNT = 240
Row = dict[str, Any]


def rows_of() -> list[Row]:
    draw = random.Random(7)

    def attributes(number: int) -> Row | None:
        if number % 11 == 0:
            return None
        found: Row = {
            "difficulty": draw.choice(["easy", "hard", 'very "hard"']), "level": draw.choice([1, 2, 2.5, "2", "x", 10]),
            "extra_info.version": draw.choice(["3.9", "3.10", 3.1]), "held_out": draw.choice([True, False]),
        }  # fmt: skip
        return {name: value for name, value in found.items() if draw.random() < 0.9}

    return [
        {
            "step": number // 24, "policy_step": number // 24, "group": f"r/train/{number // 4}", "created": number,
            "stop_reason": StopReason.DONE,
            "reward": number % 3 / 2, "scored": 1, "task": draw.choice(["django-1", "flask-2", None]),
            "rewards": {"tests_passed": draw.choice([0.0, 1.0, None]), "my style": 0.5, "level": 0.0},
            "metrics": {"patch_lines": draw.choice([3.0, 70.0, None])} if number % 5 else None,
            "turns": draw.choice([None, 1, 2, 40]), "advantage": draw.choice([None, -1.5, 0.0, 0.25]),
            "completion_tokens": draw.choice([100, 6_000]), "attributes": attributes(number),
        }
        for number in range(COUNT)
    ]  # fmt: skip


@contextmanager
def run_of(address: Address, rows: list[Row]) -> Iterator[tuple[Engine, int]]:
    with disposed(writing_engine(address)) as engine:
        with engine.begin() as connection:
            run_id = factory.insert_rows(connection, rows)
        yield engine, run_id


@pytest.fixture(scope="module", params=DATABASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, int]]:
    folder = tmp_path_factory.mktemp("columns")
    with fresh_database(request.param, folder) as address, run_of(address, rows_of()) as (engine, run_id):
        with engine.begin() as connection:
            logged = [{"run_id": run_id, "step": step, "name": "train/kl", "value": 0.1} for step in (1, 2)]
            connection.execute(insert(Scalar), logged)
        yield engine, run_id


def found(run: tuple[Engine, int], where: str) -> list[EvaluationRow]:
    engine, run_id = run
    chosen = parse_where(queries.in_full(engine, run_id, where))
    queries.check_names(engine, run_id, chosen)
    rows = queries.page(engine, run_id, chosen, limit=COUNT + 1).rows
    assert queries.count(engine, run_id, chosen).value == len(rows)
    return rows


def of(row: EvaluationRow, name: str) -> Any:
    return (row.attributes or {}).get(name)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize(
    ("where", "is_right"),
    [
        ("metadata.difficulty:hard", lambda it: of(it, "difficulty") == "hard"),
        ("difficulty:hard", lambda it: of(it, "difficulty") == "hard"),
        ('difficulty:easy,"very \\"hard\\""', lambda it: of(it, "difficulty") in {"easy", 'very "hard"'}),
        ("-difficulty:hard", lambda it: of(it, "difficulty") != "hard"),
        ("difficulty:none", lambda it: of(it, "difficulty") is None),
        ("metadata.level>=2", lambda it: is_number(of(it, "level")) and of(it, "level") >= 2),
        ("metadata.level:1..2.5", lambda it: is_number(of(it, "level")) and of(it, "level") <= 2.5),
        ("metadata.level:2", lambda it: of(it, "level") in {2, "2"}),
        ("metadata.level:x", lambda it: of(it, "level") == "x"),
        ("extra_info.version:3.10", lambda it: of(it, "extra_info.version") in {"3.10", 3.1}),
        ("held_out:true", lambda it: of(it, "held_out") is True),
        ("tests_passed:0", lambda it: (it.rewards or {}).get("tests_passed") == 0),
        ("patch_lines>50", lambda it: ((it.metrics or {}).get("patch_lines") or 0) > 50),
        (
            "tokens>5000 and difficulty:hard",
            lambda it: it.completion_tokens == 6_000 and of(it, "difficulty") == "hard",
        ),
        ("task:django*", lambda it: (it.task or "").startswith("django")),
        ("group:24", lambda it: 21 <= (it.id or 0) <= 24),
        ("-group:24", lambda it: not 21 <= (it.id or 0) <= 24),
        ("#24", lambda it: it.id == 24),
    ],
)
def test_a_filter_selects_the_rows_that_python_selects(
    run: tuple[Engine, int], where: str, is_right: Callable[[EvaluationRow], bool]
) -> None:
    rows = queries.page(*run, RolloutFilter(), limit=COUNT + 1).rows
    wanted = [row.id for row in rows if is_right(row)]
    assert [row.id for row in found(run, where)] == wanted
    assert wanted


@pytest.mark.parametrize(
    ("where", "message", "meant"),
    [
        ("kl<0.1", "kl is logged by step, not by rollout: see the metrics of the Overview", None),
        ("level:2", "unknown field 'level': write metadata.level or rewards.level", None),
        ("dificulty:hard", "unknown field 'dificulty': did you mean 'difficulty'?", "difficulty:hard"),
        (
            "metadata.dificulty:hard",
            "this run has no dataset column or metadata 'dificulty': did you mean 'difficulty'?",
            "metadata.difficulty:hard",
        ),
        (
            "turns>1 version:3.9",
            "unknown field 'version': did you mean 'metadata.extra_info.version'?",
            "turns>1 metadata.extra_info.version:3.9",
        ),
        ("task:django", "this run has no task 'django': did you mean 'django*'?", "task:django*"),
        ("-task:flask", "this run has no task 'flask': did you mean 'flask*'?", "-task:flask*"),
    ],
)
def test_a_name_that_the_run_lacks_is_answered_with_the_line_that_was_meant(
    run: tuple[Engine, int], where: str, message: str, meant: str | None
) -> None:
    with pytest.raises(FilterError) as refused:
        found(run, where)
    assert str(refused.value) == message
    assert mended(where, refused.value) == meant
    if meant:
        found(run, meant)


def test_the_full_name_is_what_is_printed(run: tuple[Engine, int]) -> None:
    full = queries.in_full(*run, '-difficulty:hard x "difficulty:hard" patch_lines > 50 status:ok')
    assert full == '-metadata.difficulty:hard x "difficulty:hard" metrics.patch_lines > 50 status:ok'
    assert print_where(parse_where(full)).startswith("status:ok metrics.patch_lines>50 -metadata.difficulty:hard")


def test_whole_numbers_of_metadata_are_compared_exactly(address: Address) -> None:
    ids = [*range(10_000_000, 10_000_300), 2**60, 2**60 + 1]
    rows = [{"attributes": {"id": number, "part": part}} for number, part in zip(ids, [0.1 + 0.2] * 302, strict=True)]
    with run_of(address, rows) as made:

        def number(where: str) -> int:
            return queries.count(*made, parse_where(where)).value

        assert number("metadata.id:10000150") == 1
        assert number("metadata.id!=10000150") == 301
        assert number("metadata.id>10000150 metadata.id<=10000299") == 149
        assert number("metadata.id>=10000150 metadata.id<10000299") == 149
        assert number(f"metadata.id:{2**60 + 1}") == 1
        assert number("metadata.part:0.3") == 302
        assert number("metadata.part>0.3") == 0
        assert number("metadata.part:0.3000001") == 0


ORDERS: dict[str, Callable[[EvaluationRow], Any]] = {
    "turns": lambda it: it.turns,
    "-turns": lambda it: it.turns,
    "-advantage": lambda it: it.advantage,
    "task": lambda it: it.task,
    "-step": lambda it: it.step,
    "-status": lambda it: it.status,
    "stop": lambda it: it.stop_reason,
    "cause": lambda it: None if (cause := cause_of(it)) is None else cause.id.value,
    "rewards.tests_passed": lambda it: (it.rewards or {}).get("tests_passed"),
    '-rewards."my style"': lambda it: (it.rewards or {}).get("my style"),
    "-metrics.patch_lines": lambda it: (it.metrics or {}).get("patch_lines"),
    "-metadata.level": lambda it: of(it, "level") if is_number(of(it, "level")) else None,
    "metadata.difficulty:text": lambda it: of(it, "difficulty"),
    "-metadata.held_out:text": lambda it: (
        str(of(it, "held_out")).lower() if "held_out" in (it.attributes or {}) else None
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_pages_of_any_order_have_each_row_once(run: tuple[Engine, int], order: str) -> None:
    key, chosen = ORDERS[order], RolloutFilter(sort=order)
    assert chosen.sort.value == order
    rows: list[EvaluationRow] = []
    after = None
    while True:
        page = queries.page(*run, chosen, after=after, limit=37)
        rows += page.rows
        if (after := page.next) is None:
            break
    every = queries.page(*run, RolloutFilter(), limit=COUNT + 1).rows  # newest first, which ties keep
    known = sorted((it for it in every if key(it) is not None), key=key, reverse=order.startswith("-"))
    if order.startswith("-"):
        known.sort(key=lambda it: -(it.id or 0))
        known.sort(key=key, reverse=True)
    assert [it.id for it in rows] == [it.id for it in [*known, *(it for it in every if key(it) is None)]]
    beside = queries.neighbours(*run, chosen, rows[100])
    assert (beside.previous, beside.next, beside.position) == (rows[99].id, rows[101].id, 101)


@pytest.mark.parametrize("order", ["metadata.x:text", "-metadata.x:text", "metadata.x", "-metadata.x"])
def test_pages_by_numbers_as_text_have_each_row_once(address: Address, order: str) -> None:
    values = [0.1 + 0.2, 1e-07, 1e16, 2**60, 2**60 + 1, 1e-07, "b", True, None, 3.0, -0.0]
    with run_of(address, [{"attributes": {"x": value}} for value in values]) as made:
        chosen, rows, after = RolloutFilter(sort=order), [], None
        for _ in values:
            page = queries.page(*made, chosen, after=after, limit=1)
            rows += page.rows
            after = page.next and urls.parse_cursor(urls.print_cursor(page.next))
        assert after is None
        assert {it.id for it in rows} == {*range(1, len(values) + 1)}
        for place, row in enumerate(rows):
            beside = queries.neighbours(*made, chosen, row)
            ids = [None, *(it.id for it in rows), None]
            assert (beside.previous, beside.next) == (ids[place], ids[place + 2])


def test_an_unknown_order_names_the_nearest() -> None:
    assert read_sort("-tokens").value == "-completion_tokens"
    for written, message in (("turnz", "did you mean 'turns'?"), ("-metadata", "unknown sort '-metadata'")):
        with pytest.raises(FilterError, match="unknown sort") as refused:
            read_sort(written)
        assert message in str(refused.value)


def test_what_is_short_of_dataset_notes_and_metadata_is_kept() -> None:
    about = {
        "dataset": {"repo": "a/b", "patch": "x" * 121, "tests": ["a"], "extra_info": {"level": 3, "deep": {"er": 1}}},
        "notes": {"seed": 7, "repo": "not this"},
        "attribution": "context", "tags": ["t"], "metrics": {"m": 1}, "traceback": "T", "held_out": True,
        "nan": float("nan"), "nothing": None, "nul": "a\0b", "huge": 10**400,
    }  # fmt: skip
    assert attributes_in(about) == {
        "repo": "a/b", "extra_info.level": 3, "extra_info.deep.er": 1, "seed": 7, "held_out": True, "nul": "a␀b",
    }  # fmt: skip
    nested = {"env": {"sql": {"last": {"error": "lost", "too": {"deep": 1}}}}, "split": "train"}
    assert list((attributes_in(nested) or {}).items()) == [("split", "train"), ("env.sql.last.error", "lost")]
    assert attributes_in({"dataset": {"patch": "x" * 121}}) is None
    assert attributes_in(None) is None
    returned = {"dataset": {"turns": 3}, "env_reward": 1.0, "error": "E", "turns": 7, "seed": 7}
    assert attributes_in(returned) == {"turns": 3, "seed": 7}  # the others are columns already
    assert len(attributes_in({f"a{i}": i for i in range(900)}) or {}) == 40


ODD = ",".join(str(it) for it in range(1_000_001, 1_003_001, 2))
NAMES = ",".join(f"t{it}" for it in range(1_000))
FRACTIONS = ",".join(f"{it}.5" for it in range(1_000, 2_000))
VALUES = ",".join(str(it) for it in range(100_001, 101_001, 2))
SPANS = ",".join(f"{it}000..{it}500" for it in range(1_000, 2_000))


@pytest.fixture(scope="module", params=DATABASES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with fresh_database(request.param, tmp_path_factory.mktemp("lists")) as address:
        row = EvaluationRow
        factory.make_run_at(address, steps=3)
        with disposed(writing_engine(address)) as engine, engine.begin() as db:
            db.execute(update(row).where(col(row.id) < 9).values(attributes={"difficulty": 0.12}))
            db.execute(update(row).where(col(row.id) == 9).values(attributes={"difficulty": "x"}))
            db.execute(insert(RowTag), [{"run_id": 1, "row_id": 4, "tag": "seen"}])
        with disposed(reading_engine(address)) as engine:
            yield engine


def ids(engine: Engine, where: str) -> list[int]:
    return [row.id or 0 for row in queries.page(engine, 1, parse_where(where), limit=1_000).rows]


@pytest.mark.parametrize("number", ["3,5..3", "3,x", "3,99999999999999999999", "5..3,3"])
def test_a_mistake_in_a_long_list_is_the_one_of_a_short_list(number: str) -> None:
    said = []
    for where in (f"step:{ODD},{number}", f"step:{number}"):
        with pytest.raises(FilterError) as mistake:
            parse_where(where)
        said.append(str(mistake.value).partition(": ")[2])
    assert said[0] == said[1]


def test_a_long_list_ends_where_a_short_one_does() -> None:
    assert print_where(parse_where(f"-id:{ODD} reward:1")) == f"reward:1 -id:{ODD}"
    assert print_where(parse_where(f"id:{ODD} , 7")) == f"id:7,{ODD}"
    assert print_where(parse_where(f"id!={ODD}")) == f"-id:{ODD}"


@pytest.mark.parametrize("field", ["error", "family", "note", "twins"])
def test_a_list_that_has_to_be_searched_value_by_value_is_bounded(field: str) -> None:
    with pytest.raises(FilterError, match=f"{field} takes at most 500 values: each is searched apart"):
        parse_where(f"{field}:{VALUES},1,3")


@pytest.mark.parametrize("field", cases(["error", "family", "note", "twins"], 1))
def test_as_many_as_its_bound_allows_are_searched(filled: Engine, field: str) -> None:
    assert not queries.newest_groups(filled, 1, parse_where(f"{field}:{VALUES}"), ()).groups


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("id:3,1,2", "id:1..3"),
        ("-step:1..5,7,6,9", "-step:1..7,9"),
        ("step:..3,2..4,9..,7", "step:..4,7,9.."),
        ("step:..5,3..", "step:..5,3.."),
        ("reward:1,2", "reward:1,2"),
        ("reward:0..0.5,0.25..1", "reward:0..1"),
        ("metadata.level:1,2", "metadata.level:1,2"),
    ],
)
def test_ranges_that_overlap_are_joined_and_so_are_neighbours(text: str, printed: str) -> None:
    assert print_where(parse_where(text)) == printed


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ("id:3,7", f"id:3,7,{ODD}"),
        ("-id:3,7", f"-id:3,7,{ODD}"),
        ("id:3..5,30..", f"id:3..5,{ODD},2000000..,30.."),
        ("step:1,3", f"step:1,3,{SPANS}"),
        ("-step:1,3", f"-step:1,3,{SPANS}"),
        ("turns:none,2", f"turns:none,2,{ODD}"),
        ("reward:none,1.3", f"reward:none,1.3,{FRACTIONS}"),
        ("-reward:0..1", f"-reward:0..0.5,0.2..1,{FRACTIONS}"),
        ("rewards.solved:0", f"rewards.solved:0,{FRACTIONS}"),
        ("-rewards.solved:none,1", f"-rewards.solved:none,1,{FRACTIONS}"),
        ('task:"count lines over 80 characters"', f'task:"count lines over 80 characters",{NAMES}'),
        ('-task:"count lines over 80 characters"', f'-task:"count lines over 80 characters",{NAMES}'),
        ("metadata.difficulty:0.12,x", f"metadata.difficulty:0.12,x,{FRACTIONS},{NAMES}"),
        ("-tag:none", f"-tag:none,{NAMES}"),
        ("tag:seen", f"tag:seen,{NAMES}"),
        ("group:5,20", f"group:5,20,{ODD},{NAMES}"),
        ("-group:5,20", f"-group:5,20,{ODD},{NAMES}"),
        ("id:3,7 step:1", f"id:3,7,{ODD} step:1,{ODD} -task:{NAMES}"),
    ],
)
def test_a_long_list_selects_what_its_matching_values_select(filled: Engine, few: str, many: str) -> None:
    assert ids(filled, many) == ids(filled, few)
    assert 0 < len(ids(filled, many)) < len(ids(filled, ""))
    assert [it.id for it in queries.newest_groups(filled, 1, parse_where(many), ()).groups]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    db = str(tmp_path_factory.mktemp("findings") / "runs.db")
    with start_run(db=db) as run:
        for i in range(200):
            with run.rollout("What is 1 + 1?", task="sum", metadata={"dataset": {"odd": i % 2}}) as row:
                row.turn("no idea", finish="length" if i % 2 else "stop")
                row.score(0.0 if i % 2 else 1.0)
    return run.id, db


def test_a_finding_and_a_recorded_dataset_column_open_their_rollouts(recorded: tuple[str, str]) -> None:
    run, db = recorded
    frame = load_run(run, db)
    cut = set(frame["id"][frame["stop_reason"] == "length"])
    assert len(cut) == 100
    for line, expected in (
        ("finding:truncation", cut),
        ("finding=truncation reward>0.5", set()),
        ("-finding:truncation", set(frame["id"]) - cut),
        ("finding!=truncation", set(frame["id"]) - cut),
        ("metadata.odd:1", cut),
    ):
        assert set(load_run(run, db, where=line)["id"]) == expected, line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("finding:truncated", "this run has no finding 'truncated': did you mean 'truncation'?"),
        ("finding:unseeded", "unseeded is no finding of this run: "),
        ("finding:truncation,loops", "write it with one id, as in finding:truncation"),
        ("finding>truncation", "write it with one id, as in finding:truncation"),
    ],
)
def test_a_wrong_finding_is_refused_in_one_line(recorded: tuple[str, str], line: str, message: str) -> None:
    with pytest.raises(FilterError, match=re.escape(message)):
        load_run(recorded[0], recorded[1], where=line)


def test_without_a_run_it_is_told_that_one_is_needed() -> None:
    with pytest.raises(FilterError, match="finding:loops: only the diagnosis of one run knows its findings: name the"):
        parse_where("finding:loops")


LONG = "id:" + ",".join(str(it) for it in range(1, 400, 2))


@pytest.mark.parametrize(
    ("line", "opened", "printed"),
    [
        ("finding:loops", "stop:length step:3", "stop:length step:3"),
        ("-finding:loops", "-reward>=1", "reward>=1"),
        ("reward<1 finding:loops", LONG, "reward<1 finding:loops"),
        ("-finding:loops", LONG, "-finding:loops"),
        ('"finding:loops"', LONG, '"finding:loops"'),
    ],
)
def test_a_long_finding_is_printed_by_its_id(line: str, opened: str, printed: str) -> None:
    assert print_where(parse_where(with_findings(line, lambda _: opened))) == printed


def test_several_terms_cannot_be_negated_together() -> None:
    with pytest.raises(
        FilterError, match="-finding:loops: it has 2 terms, which cannot be negated together: stop:length"
    ):
        with_findings("-finding:loops", lambda _: "stop:length step:3")


def test_a_report_prints_the_id_of_a_long_filter(recorded: tuple[str, str]) -> None:
    run, db = recorded
    long = Card("truncation", "Many", 0.5, (), "Read them.", LONG)
    by_own, by_others = diagnose(run, db), diagnose(run, db, settings=Settings(max_reward=2.0))
    assert by_own.where_of(long) == "finding:truncation"
    for report, card in ((by_others, long), (by_own, replace(long, by_user=True)), (by_own, by_own.cards[0])):
        assert report.where_of(card) == card.where
