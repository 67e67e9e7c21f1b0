from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from logs_ui.recorder.errors import FilterError, LogsUIError
from logs_ui.recorder.queries.filters.filter_chips import filter_parts
from logs_ui.recorder.queries.filters.rollout_filter import (
    RolloutFilter,
    Scored,
    Sort,
    check_known,
    parse_filter,
    parse_where,
    print_filter,
    print_where,
)
from logs_ui.recorder.queries.filters.terms import Range
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.support.exhaustive import examples
from tests.support.terms import TEXTS, terms

NOW = 1_767_261_600_000_000  # 2026-01-01 10:00 UTC
HOUR = 3_600_000_000


def ordered_pair(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.tuples(st.none() | values, st.none() | values).map(
        lambda pair: pair if None in pair or pair[0] <= pair[1] else pair[::-1]
    )


@st.composite
def filters(draw: st.DrawFn) -> RolloutFilter:
    step = draw(ordered_pair(st.integers(0, 2**63 - 1)))
    reward = draw(ordered_pair(st.floats(allow_nan=False, allow_infinity=False)))
    time = draw(ordered_pair(st.integers(0, 250_000_000_000_000_000)))
    made = RolloutFilter(
        evals=tuple(draw(st.lists(TEXTS, max_size=2))),
        modes=tuple(draw(st.lists(st.sampled_from(Mode)))),
        statuses=tuple(draw(st.lists(st.sampled_from(Status)))),
        stop_reasons=tuple(draw(st.lists(st.sampled_from(StopReason), max_size=3))),
        scored=tuple(draw(st.lists(st.sampled_from(Scored)))),
        tasks=tuple(draw(st.lists(TEXTS, max_size=2))),
        group=draw(st.none() | TEXTS),
        step_min=step[0],
        step_max=step[1],
        reward_min=reward[0],
        reward_max=reward[1],
        since=time[0],
        until=time[1],
        sort=draw(st.sampled_from(Sort)),
    )
    try:
        return made.with_terms(*draw(st.lists(terms(), max_size=4)))
    except FilterError:  # they exclude one another
        assume(condition=False)
        raise


def refusal(query: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse_filter(parse_qsl(query, keep_blank_values=True))
    assert isinstance(caught.value, LogsUIError)
    assert "\n" not in str(caught.value)
    return caught.value


@settings(deadline=None, max_examples=examples(60))
@given(filters())
def test_reading_is_the_opposite_of_printing_one_line_that_a_browsers_field_keeps_and_shows(
    where: RolloutFilter,
) -> None:
    assert parse_filter(parse_qsl(urlencode(print_filter(where)))) == where
    assert parse_where(print_where(where)) == replace(where, sort=Sort.NEWEST)
    assert print_where(where).isprintable()
    assert len(print_where(where).splitlines()) <= 1


@settings(deadline=None, max_examples=examples(30))
@given(filters())
def test_taking_all_parts_away_leaves_nothing_but_the_order(where: RolloutFilter) -> None:
    for _ in range(100):
        parts = filter_parts(where)
        if not parts:
            break
        assert all(part.without != where for part in parts)
        where = parts[0].without
    assert where == RolloutFilter(sort=where.sort)


def test_a_filter_of_nothing_has_the_empty_url() -> None:
    assert print_filter(RolloutFilter()) == []
    assert parse_filter([]) == RolloutFilter()
    assert parse_filter([("status", ""), ("step_min", " "), ("group", ""), ("sort", "")]) == RolloutFilter()


def test_every_parameter_is_read() -> None:
    query = (
        "eval=a&eval=b&mode=train&status=error&stop=length&scored=no&task=x&group=g&step_min=1&step_max=9"
        "&reward_min=-0.5&reward_max=1e-3&since=2h&until=2026-01-01T12:30:00%2B01:00&sort=slowest"
    )
    assert parse_filter(parse_qsl(query), now=NOW) == RolloutFilter(
        evals=("a", "b"), modes=("train",), statuses=("error",), stop_reasons=("length",), scored=("no",), tasks=("x",),
        group="g", step_min=1, step_max=9, reward_min=-0.5, reward_max=0.001, since=NOW - 2 * HOUR,
        until=NOW + 1_800_000_000 + HOUR, sort=Sort.SLOWEST,
    )  # fmt: skip


def test_filters_that_mean_the_same_are_equal_and_have_one_url() -> None:
    one = parse_filter(parse_qsl("status=error&status=running&task=b&task=a&reward_min=0.50"))
    other = parse_filter(parse_qsl("reward_min=5e-1&task=a&task=b&task=a&status=running&status=error"))
    assert one == other
    assert hash(one) == hash(other)
    assert print_filter(one) == print_filter(other) == [("where", "status:running,error task:a,b reward>=0.5")]


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("stauts=ok", "stauts", "unknown filter 'stauts': did you mean 'status'?"),
        ("reward=1", "reward", "unknown filter 'reward': did you mean 'reward_m"),
        ("zzzzzz=1", "zzzzzz", "unknown filter 'zzzzzz': choose from eval, mode, status,"),
        ("status=eror", "status", "unknown status 'eror': did you mean 'error'?"),
        ("status=ERROR", "status", "unknown status 'ERROR': did you mean 'error'?"),
        ("mode=xyz", "mode", "unknown mode 'xyz': choose from train, eval"),
        ("stop=lenght", "stop", "unknown stop reason 'lenght': did you mean 'length'?"),
        ("sort=lowest", "sort", "unknown sort 'lowest': did you mean 'lowest-reward'?"),
        ("reward_min=0.9&reward_max=0.1", "reward_min", "reward_min 0.9 is above reward_max 0.1: swap them"),
        ("step_min=9&step_max=1", "step_min", "step_min 9 is above step_max 1: swap them"),
        ("since=1h&until=2h", "since", "swap them"),
        ("step_min=1.5", "step_min", "step_min '1.5' is not a whole number"),
        ("step_min=1_0", "step_min", "step_min '1_0' is not a whole number"),
        ("step_min=٣", "step_min", "is not a whole number"),
        ("reward_min=1_0.5", "reward_min", "reward_min '1_0.5': expected a number such as 0.5"),
        ("step_min=-1", "step_min", "step_min -1 is out of range"),
        ("step_max=99999999999999999999", "step_max", "is out of range"),
        ("reward_min=nan", "reward_min", "reward_min nan is not a finite number"),
        ("reward_max=-inf", "reward_max", "reward_max -inf is not a finite number"),
        ("reward_max=0,5", "reward_max", "reward_max '0,5': expected a number such as 0.5"),
        ("since=yesterday", "since", "since 'yesterday': expected a time such as 2026-01-31T18:00Z"),
        ("since=999999999d", "since", "since is out of range"),
        ("until=2026-13-01", "until", "until '2026-13-01': expected a time"),
        ("group=a&group=b", "group", "group occurs 2 times: use it once"),
    ],
)
def test_a_mistake_names_its_field_and_the_nearest_or_what_to_do(query: str, field: str, message: str) -> None:
    error = refusal(query)
    assert (error.field, message in str(error)) == (field, True)
    assert str(error).endswith(f"did you mean {error.meant!r}?") == (error.meant is not None)
    assert ("did you mean" in message) == (error.meant is not None)


def test_a_very_long_value_does_not_fill_the_message() -> None:
    assert len(str(refusal("status=" + "x" * 100_000))) < 300
    assert len(str(refusal("x" * 100_000 + "=1"))) < 500


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-01T10:00Z", NOW),
        ("2026-01-01T10:00:00", NOW),
        ("2026-01-01 11:00+01:00", NOW),
        ("2026-01-01", NOW - 10 * HOUR),
        ("90s", NOW - 90_000_000),
        ("30m", NOW - HOUR // 2),
        ("1.5h", NOW - HOUR * 3 // 2),
        ("7d", NOW - 7 * 24 * HOUR),
    ],
)
def test_a_time_is_read_from(text: str, moment: int) -> None:
    assert parse_filter([("since", text)], now=NOW).range("since").low == moment


def test_a_form_and_a_line_are_one_filter() -> None:
    pairs = parse_qsl("status=error&reward_max=<0.2&step_min=3&where=turns>2 -tag:seen&sort=slowest")
    where = parse_filter(pairs)
    assert where == replace(parse_where("turns>2 -tag:seen status:error reward<0.2 step>=3"), sort=Sort.SLOWEST)
    assert print_filter(where) == [("where", "status:error step>=3 reward<0.2 turns>2 -tag:seen"), ("sort", "slowest")]
    assert parse_filter([("where", "status:ok,error"), ("status", "error")]).words("status") == ("error",)
    assert refusal("where=status:ok&status=error").field == "status"


def test_a_strict_end_and_an_inclusive_one_are_told_apart() -> None:
    assert parse_filter([("reward_min", ">0.1"), ("reward_max", "0.5")]) == parse_where("reward>0.1 reward<=0.5")
    assert parse_filter([("reward_max", "<0.2")]) != parse_filter([("reward_max", "0.2")])
    assert parse_where("reward<0.2").with_parts(reward_max=0.3) == RolloutFilter(reward_max=0.3)
    assert parse_filter([("reward_max", "0.2"), ("where", "reward<0.2")]) == parse_where("reward<0.2")


def test_until_a_date_includes_that_day() -> None:
    assert parse_filter([("until", "2026-01-01")]).range("until").high == NOW + 14 * HOUR - 1
    assert parse_filter([("since", "2026-01-01"), ("until", "2026-01-01")]).range("since").low == NOW - 10 * HOUR


def test_a_filter_made_in_python_is_checked_as_well() -> None:
    with pytest.raises(FilterError, match="did you mean 'error'"):
        RolloutFilter(statuses=("eror",))
    with pytest.raises(FilterError, match="swap them"):
        RolloutFilter(reward_min=1, reward_max=0)
    with pytest.raises(FilterError, match="not a number"):
        RolloutFilter(step_min="many")  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="not valid Unicode"):
        RolloutFilter(tasks=("\udc80",))


def test_a_filter_takes_what_a_notebook_has_at_hand() -> None:
    """A single word, a list, numpy's numbers: SQLite would refuse the last, and find nothing for the first."""
    where = RolloutFilter(statuses="error", tasks=["b", "a"], step_min=np.int64(3), reward_max=np.float32(0.5))  # type: ignore[arg-type]
    assert where == RolloutFilter(statuses=("error",), tasks=("a", "b"), step_min=3, reward_max=0.5)
    assert type(where.range("step").low) is int
    assert type(where.range("reward").high) is float


def test_each_part_is_said_in_words() -> None:
    line = "eval:a status:ok,error stop:length task:a,none group:r/train/1/0 step:5 reward:-0.5..0.5 turns>3 -tag:seen"
    where = replace(parse_where(f"{line} since:2026-01-01T10:00Z"), sort=Sort.LONGEST)
    parts = filter_parts(where)
    assert [(part.name, part.label) for part in parts] == [
        ("eval", "eval: a"), ("status", "status: ok"), ("status", "status: error"), ("stop", "stop reason: length"),
        ("task", "task: a or none"), ("group", "group: r/train/1/0"), ("step", "step 5"),
        ("reward", "reward from -0.5"), ("reward", "reward up to 0.5"), ("turns", "turns above 3"),
        ("since", "since 2026-01-01 10:00 UTC"), ("tag", "not tag: seen"),
    ]  # fmt: skip
    assert parts[1].without.words("status") == ("error",)
    assert parts[6].without.range("step") == Range()
    assert parts[7].without.range("reward") == Range(high=0.5)
    assert all(part.without.sort == Sort.LONGEST for part in parts)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("task:resume", "task", "this run has no task 'resume': did you mean 'résumé'?"),
        ("-task:resume", "task", "this run has no task 'resume': did you mean 'résumé'?"),
        ("task:none,mase", "task", "this run has no task 'mase': did you mean 'maze'?"),
        ("eval:x", "eval", "this run has no eval 'x': choose from main"),
        ("rewards.acuracy<1", "rewards", "this run has no reward function 'acuracy': did you mean 'accuracy'?"),
        ("metrics.x:none", "metrics", "this run has no metric 'x': there are none yet"),
        ("tag:sen", "tag", "this run has no tag 'sen': did you mean 'seen'?"),
    ],
)
def test_a_term_that_names_what_the_run_does_not_have_names_the_nearest(text: str, field: str, message: str) -> None:
    known = {"eval": ["main"], "task": ["maze", "résumé"], "rewards": ["accuracy"], "metrics": [], "tag": ["seen"]}
    check_known(parse_where("eval:main task:maze,résumé"), known)
    check_known(parse_where(text), {})  # nothing is asked about
    with pytest.raises(FilterError) as caught:
        check_known(parse_where(text), known)
    assert (caught.value.field, str(caught.value)) == (field, message)


def test_a_tag_that_no_rollout_shall_have_need_not_be_there() -> None:
    check_known(parse_where("-tag:seen tag:none group:g"), {"tag": []})
