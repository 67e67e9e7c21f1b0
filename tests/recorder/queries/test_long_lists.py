"""Lists of very many values select what their few matching values do, on both databases."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, insert, update
from sqlmodel import col

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import newest_groups, page
from logs_ui.recorder.queries.filters.rollout_filter import parse_where, print_where
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag
from tests.support.exhaustive import cases
from tests.support.factory import make_run_at
from tests.support.postgres import DATABASES, fresh_database

ODD = ",".join(str(it) for it in range(1_000_001, 1_003_001, 2))
NAMES = ",".join(f"t{it}" for it in range(1_000))
FRACTIONS = ",".join(f"{it}.5" for it in range(1_000, 2_000))
VALUES = ",".join(str(it) for it in range(100_001, 101_001, 2))
SPANS = ",".join(f"{it}000..{it}500" for it in range(1_000, 2_000))


@pytest.fixture(scope="module", params=DATABASES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with fresh_database(request.param, tmp_path_factory.mktemp("lists")) as address:
        row = EvaluationRow
        make_run_at(address, steps=3)
        with disposed(writing_engine(address)) as engine, engine.begin() as db:
            db.execute(update(row).where(col(row.id) < 9).values(attributes={"difficulty": 0.12}))
            db.execute(update(row).where(col(row.id) == 9).values(attributes={"difficulty": "x"}))
            db.execute(insert(RowTag), [{"run_id": 1, "row_id": 4, "tag": "seen"}])
        with disposed(reading_engine(address)) as engine:
            yield engine


def ids(engine: Engine, where: str) -> list[int]:
    return [row.id or 0 for row in page(engine, 1, parse_where(where), limit=1_000).rows]


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
    assert not newest_groups(filled, 1, parse_where(f"{field}:{VALUES}"), ()).groups


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
    assert [it.id for it in newest_groups(filled, 1, parse_where(many), ()).groups]
