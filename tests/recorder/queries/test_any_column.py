"""Filters and orders by dataset columns, metadata, reward functions and metrics, on both databases."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from logs_ui.app.web import urls
from logs_ui.recorder import load_run, queries, start_run
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.labels import attributes_in
from logs_ui.recorder.queries.filters.filter_language import mended
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where, print_where, read_sort
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Scalar
from logs_ui.recorder.vocabulary import StopReason
from tests.support import factory
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
    """Make a run of these rows."""
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
    ("where", "message"),
    [
        ("kl<0.1", "kl is logged by step, not by rollout: see the metrics of the Overview"),
        ("level:2", "unknown field 'level': write metadata.level or rewards.level"),
        ("dificulty:hard", "unknown field 'dificulty': did you mean 'difficulty'?"),
        (
            "metadata.dificulty:hard",
            "this run has no dataset column or metadata 'dificulty': did you mean 'difficulty'?",
        ),
    ],
)
def test_a_name_that_the_run_lacks_is_answered(run: tuple[Engine, int], where: str, message: str) -> None:
    with pytest.raises(FilterError) as refused:
        found(run, where)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("turns>1 version:3.9", "turns>1 metadata.extra_info.version:3.9"),
        ("task:django", "task:django*"),
        ("-task:flask", "-task:flask*"),
        ("errors>0", "env_errors>0"),
        ("-truncated:yes", "-stop:length"),
    ],
)
def test_the_line_that_was_meant_is_named_and_works(run: tuple[Engine, int], where: str, meant: str) -> None:
    with pytest.raises(FilterError) as refused:
        found(run, where)
    assert mended(where, refused.value) == meant
    assert f"did you mean {refused.value.meant!r}?" in str(refused.value)
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
    assert attributes_in(about) == {"repo": "a/b", "extra_info.level": 3, "seed": 7, "held_out": True, "nul": "a␀b"}
    assert attributes_in({"dataset": {"patch": "x" * 121}}) is None
    assert attributes_in(None) is None
    returned = {"dataset": {"turns": 3}, "env_reward": 1.0, "error": "E", "turns": 7, "seed": 7}
    assert attributes_in(returned) == {"turns": 3, "seed": 7}  # the others are columns already
    assert len(attributes_in({f"a{i}": i for i in range(900)}) or {}) == 40


def test_a_recorded_rollout_is_found_by_its_dataset(address: Address) -> None:
    with start_run(db=as_text(address)) as run:
        for difficulty in ("easy", "hard"):
            about: Row = {
                "dataset": {"difficulty": difficulty, "prompt": [{"role": "user", "content": "x"}]},
                "seed": 3,
            }
            with run.rollout("What is 1 + 1?", metadata=about) as row:
                row.turn("2")
                row.score(1.0)
    frame = load_run(run.id, as_text(address), where="difficulty:hard")
    assert frame.attributes.tolist() == [{"difficulty": "hard", "seed": 3}]
