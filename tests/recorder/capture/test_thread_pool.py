"""multiprocessing's ThreadPool: each item has a strand of its own, and all else is as it was."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import flush, load_run, start_run, trace_env
from logs_ui.recorder.capture.calls import Collector, collecting
from logs_ui.recorder.capture.instruments import concurrency
from logs_ui.recorder.capture.strands import Strand, current_strand

ITEMS = range(6)
Place = tuple[Any, Strand | None]


def at(item: int, more: int = 0) -> Place:
    return item + more, current_strand()


@pytest.mark.parametrize(
    "give",
    [
        pytest.param(lambda pool: pool.map(at, ITEMS, chunksize=4), id="map"),
        pytest.param(lambda pool: pool.map(at, iter(ITEMS)), id="map of an iterator"),
        pytest.param(lambda pool: pool.map_async(at, ITEMS).get(), id="map_async"),
        pytest.param(lambda pool: pool.starmap(at, [(i - 1, 1) for i in ITEMS]), id="starmap"),
        pytest.param(lambda pool: pool.starmap_async(at, ([i] for i in ITEMS), chunksize=3).get(), id="starmap_async"),
        pytest.param(lambda pool: list(pool.imap(at, ITEMS)), id="imap"),
        pytest.param(lambda pool: list(pool.imap(at, ITEMS, chunksize=2)), id="imap in chunks"),
        pytest.param(lambda pool: sorted(pool.imap_unordered(at, ITEMS), key=lambda one: one[0]), id="imap_unordered"),
        pytest.param(lambda pool: [pool.apply(at, (i - 2,), {"more": 2}) for i in ITEMS], id="apply"),
        pytest.param(lambda pool: [one.get() for one in [pool.apply_async(at, (i,)) for i in ITEMS]], id="apply_async"),
    ],
)
def test_each_item_has_a_strand_of_its_own_in_their_order(give: Callable[[ThreadPool], list[Place]]) -> None:
    concurrency.install()
    log = Collector()
    with ThreadPool(2) as pool:
        with collecting(log):
            results = give(pool)
        outside = give(pool)
    assert [number for number, _ in results] == [number for number, _ in outside] == [*ITEMS]
    numbers = [strand.number for _, strand in results if strand is not None and strand.tree is log.tree]
    assert len(set(numbers)) == 6
    assert numbers == sorted(numbers)
    assert {strand for _, strand in outside} == {None}


def test_what_an_item_raises_and_what_is_no_list_is_told_as_ever() -> None:
    concurrency.install()
    with collecting(Collector()), ThreadPool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.map(lambda item: 1 // item, [0])
        with pytest.raises(TypeError, match="not iterable"):
            pool.map(at, 3)  # type: ignore[arg-type]
        failures: list[BaseException] = []
        pool.apply_async(at, ("x",), {"more": 1}, error_callback=failures.append).wait(60)
    assert [type(failure) for failure in failures] == [TypeError]


def test_a_pool_of_processes_passes_through() -> None:
    concurrency.install()
    with collecting(Collector()), multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert pool.apply(divmod, (7, 2)) == (3, 1)


def test_what_a_rollout_gives_to_a_pool_is_its_own_whoever_started_the_threads(tmp_path: Path) -> None:
    tool = trace_env(lambda number: number + 1)
    run = start_run("pool", db=tmp_path / "a.db")
    with ThreadPool(1) as before:
        for i in range(2):
            with run.rollout("p") as row, ThreadPool(2) as own:
                own.map(tool, [i, i + 10])
                before.apply(tool, (i + 20,))
                row.score(rewards={"solved": 1.0})
    run.finish()
    flush()
    rows = load_run(db=tmp_path / "a.db")
    assert [{step["observation"] for step in row} for row in rows["actions"]] == [{1, 11, 21}, {2, 12, 22}]
