"""Where a finding is: named if nearly all of its rollouts are there, and hardly any of the others."""

from collections.abc import Callable

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.task_families import families
from logs_ui.recorder.diagnosis.wording import list_places
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from tests.recorder.diagnosis.test_diagnosis import card, rows_of

COUNT = 960
PLACE = np.arange(COUNT)
KIND = PLACE // 4 % 4  # of a group
DICE = np.random.default_rng(3).uniform(size=COUNT)


def truncated(share: np.ndarray, tasks: list[str], **labels: list[str | None]) -> Report:
    cut = share > DICE
    stops, reward = np.where(cut, "length", "done"), np.where(cut, 0.0, PLACE % 2)
    return diagnose_rows(
        rows_of(COUNT, steps=12, task=tasks, stop_reason=stops, truncated_turns=cut.astype(float), reward=reward),
        read_labels=lambda rows: {name: [values[it - 1] for it in rows.id] for name, values in labels.items()},
    )


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        pytest.param(
            [f"task {it}" for it in KIND], "By tasks: 60% of the rollouts in task 1, 1% elsewhere.", id="task"
        ),
        pytest.param(
            [f"{['shop', 'map', 'qa', 'game'][it]}/{place // 4}" for place, it in enumerate(KIND)],
            "By families of tasks: 60% of the rollouts in map/, 1% elsewhere.",
            id="family",
        ),
    ],
)
def test_a_finding_of_one_place_says_so(tasks: list[str], said: str) -> None:
    assert card(truncated(np.where(KIND == 1, 0.6, 0.01), tasks), "truncation").evidence[-1] == said


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"level": [f"{it}" for it in KIND]}, "By level: 60% of the rollouts in 1, 1% elsewhere."),
        (
            {"env_host": ["b" if kind == 1 else "ac"[place % 2] for place, kind in enumerate(KIND)]},
            "in b, 1% elsewhere.",
        ),
        ({"score": [f"{kind + place % 2 / 2}" for place, kind in enumerate(KIND)]}, None),  # varies within groups
        ({"seed": [f"{place // 4}" for place in PLACE]}, None),  # too few groups of each
        ({"level": [None] * COUNT}, None),
    ],
)
def test_a_finding_of_some_values_of_a_column_says_so(labels: dict[str, list[str | None]], said: str | None) -> None:
    tasks = [f"task {place // 4 % 60}" for place in PLACE]
    evidence = card(truncated(np.where(KIND == 1, 0.6, 0.01), tasks, **labels), "truncation").evidence
    assert evidence[-1].endswith(said) if said else not any(it.startswith("By ") for it in evidence)


@pytest.mark.parametrize("share", [np.full(COUNT, 0.3), np.where(KIND == 1, 0.6, 0.2)], ids=["even", "half as often"])
def test_a_finding_that_is_elsewhere_too_names_no_place(share: np.ndarray) -> None:
    evidence = card(truncated(share, [f"task {it}" for it in KIND]), "truncation").evidence
    assert not any(it.startswith("By ") for it in evidence)


@pytest.mark.exhaustive
def test_of_an_even_share_no_place_is_named_by_chance() -> None:
    named = 0
    for seed in range(40):
        share = np.where(np.random.default_rng(seed).uniform(size=COUNT) < 0.2, 1.0, 0.0)
        report = truncated(share, [f"task {place // 4 % 30}" for place in PLACE])
        named += any(it.startswith("By ") for it in card(report, "truncation").evidence)
    assert named == 0


def test_names_of_different_depth_have_families_of_their_own_depth() -> None:
    names = [f"{kind}/{number}" for kind in ("web/shop", "web/map", "qa") for number in range(9)]
    assert dict.fromkeys(families(names) or []) == dict.fromkeys(["web/shop/", "web/map/", "qa/"])


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        *(
            (name, True)
            for name in ("env_host", "gpu_id", "worker_3", "vllmServerUrl", "node", "node_rank", "endpoints")
        ),
        *(
            (name, False)
            for name in ("server_errors", "gpu_hours", "ghost", "final_node", "reciprocal_rank", "observer")
        ),
    ],
)
def test_what_a_rollout_did_on_a_machine_is_no_machine(name: str, is_named: bool) -> None:  # noqa: FBT001 - of a table
    """All rollouts with 1 fail: a fault of the set-up if that is a machine."""
    lost = PLACE % 4 == 1
    labels = {f"metadata.{name}": np.where(lost, "1", "2").tolist()}
    report = diagnose_rows(
        rows_of(COUNT, steps=12, reward=np.where(lost, 0.0, DICE > 0.5)),
        read_labels=lambda rows: {it: [values[number - 1] for number in rows.id] for it, values in labels.items()},
    )
    assert ("worse_place" in {it.id for it in report.cards}) is is_named


def test_a_column_whose_name_has_a_space_is_a_filter() -> None:
    lost = PLACE % 4 == 1
    values = np.where(lost, "a b", "c").tolist()
    report = diagnose_rows(
        rows_of(COUNT, steps=12, reward=np.where(lost, 0.0, DICE > 0.5)),
        read_labels=lambda rows: {"metadata.env host": [values[it - 1] for it in rows.id]},
    )
    found = card(report, "worse_place")
    assert "env host" in {term.key for term in parse_where(found.where).terms}
    assert not any(sentence.startswith("By metadata") for sentence in found.evidence)


GROUP = PLACE // 4


@pytest.mark.parametrize(
    ("rank", "column", "task", "is_judged"),
    [
        (GROUP % 4, "rank", GROUP, True),  # tasks come once
        (GROUP % 4, "metadata.host", GROUP, False),  # it may be a property of the task
        (GROUP % 4, "metadata.host", GROUP % 7, True),  # each of seven tasks comes on all
        (GROUP % 4, "rank", GROUP % 4, False),  # each rank has a task of its own
        (GROUP % 4, "rank", GROUP % 8, False),
    ],
)
def test_machines_that_play_whole_groups_compare_where_tasks_come_on_several(
    rank: np.ndarray,
    column: str,
    task: np.ndarray,
    is_judged: bool,  # noqa: FBT001 - of a table
) -> None:
    right = np.where(rank == 1, 0.0, DICE > 0.2)
    rows = rows_of(COUNT, steps=12, reward=right, task=[f"task {it}" for it in task])
    report = diagnose_rows(rows, read_labels=lambda some: {column: [str(rank[it - 1]) for it in some.id]})
    assert ("worse_place" in {it.id for it in report.cards}) is is_judged
    if is_judged:
        assert (card(report, "worse_place").began, report.verdict.id) == ("from the first step on", "setup")


def site_report(rename: Callable[[int, int], str | None], column: str = "metadata.host") -> Report:
    """Return the report on four sites of 160 tasks of their own, of which one is hard; they come once in the last 10 of
    40 steps. `rename` gives the host of a site at a step.
    """
    group, step = np.arange(2560) // 8, np.arange(2560) // 64
    site = group % 4
    task = [
        f"{(place // 4 % 40 * 4 + of) * 7919 % 100_003}q"
        for place, of in zip(group.tolist(), site.tolist(), strict=True)
    ]
    right = np.random.default_rng(0).uniform(size=2560) < np.array([0.8, 0.7, 0.6, 0.3])[site]
    hosts = [rename(*of) for of in zip(site.tolist(), step.tolist(), strict=True)]
    return diagnose_rows(
        rows_of(2560, steps=40, group=group, reward=right.astype(float), task=task),
        read_labels=lambda rows: {column: [hosts[it - 1] for it in rows.id]},
    )


@pytest.mark.parametrize(
    "rename",
    [
        lambda site, step: f"site{site}:{8000 if step < 10 else 8001}",
        lambda site, step: None if step < 10 else f"site{site}",
    ],
    ids=["renamed", "known later"],
)
def test_hosts_with_tasks_of_their_own_are_not_compared(rename: Callable[[int, int], str | None]) -> None:
    assert "worse_place" not in {it.id for it in site_report(rename).cards}


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_whose_shard_is_harder_is_no_fault_of_the_set_up(seed: int) -> None:
    group = PLACE // 8
    right = np.array([0.8, 0.7, 0.6, 0.3])[group % 4] * (0.6 + 0.4 * PLACE / COUNT)
    reward = (np.random.default_rng(seed).uniform(size=COUNT) < right).astype(float)
    report = diagnose_rows(
        rows_of(COUNT, steps=12, group=group, reward=reward, task=[f"task {it}" for it in group]),
        read_labels=lambda rows: {"rank": [str((it - 1) // 8 % 4) for it in rows.id]},
    )
    assert "or its tasks are harder" in card(report, "worse_place").suggestion
    assert report.verdict.id != "setup"


def test_of_many_unsolved_values_the_largest_are_named() -> None:
    """Every second of 40 values of a column is never solved; every fourth has 32 rollouts, the others have 16."""
    value = np.tile(np.concatenate([np.repeat(np.arange(40), 4), np.repeat(np.arange(0, 40, 4), 4)]), 4)
    task = [f"{of} {place // 4}" for place, of in enumerate(value.tolist())]
    report = diagnose_rows(
        rows_of(len(value), steps=8, reward=np.where(value % 2, 1.0, 0.0), task=task),
        read_labels=lambda rows: {"metadata.source": [f"s{value[it - 1]:02d}" for it in rows.id]},
    )
    title = (
        "None of the 256 rollouts of metadata.source s00, s04, s08 and 5 more (64 tasks) was solved; elsewhere 59% were"
    )
    assert report.cards[0].title == title


def test_names_of_places_are_short_and_on_one_line() -> None:
    assert list_places(["Level 4", "level 5"], "metadata.level") == "Level 4 and level 5"
    assert list_places(["Level 4", "none"], "metadata.level") == "metadata.level Level 4 and none"
    assert list_places(["a\n  b", "word " * 300, "c", "d"]) == f"a b, {'word ' * 7}word\u2026, c and 1 more"


def test_a_title_bounds_the_names_of_its_places() -> None:
    value = PLACE // 4 % 4
    names = ["a", "b", "c", "<script>\n" + "word " * 300]
    report = diagnose_rows(
        rows_of(COUNT, steps=12, reward=np.where(value < 3, DICE > 0.4, 0.0), task=[f"q{it // 4}" for it in PLACE]),
        read_labels=lambda rows: {"metadata.source": [names[value[it - 1]] for it in rows.id]},
    )
    assert "of metadata.source <script> word word word word word word\u2026 (60 tasks)" in report.cards[0].title
    assert max(map(len, (report.verdict.said, report.cards[0].suggestion))) < 300
