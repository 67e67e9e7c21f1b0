"""The filter language, in a line and in a URL: what it means and refuses, and what could be written at a cursor."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from logs_ui.recorder.errors import FilterError, LogsUIError
from logs_ui.recorder.queries.filters.chips import filter_parts
from logs_ui.recorder.queries.filters.fields import COMPARED, FIELDS, NUMERIC, Field, Kind
from logs_ui.recorder.queries.filters.language import mended, parse_terms, place_at, without
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
from logs_ui.recorder.queries.filters.terms import Range, Term
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.support.exhaustive import examples

NOW = 1_767_261_600_000_000  # 2026-01-01 10:00 UTC


def refusal(text: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse_where(text)
    assert "\n" not in str(caught.value)
    return caught.value


@settings(deadline=None, max_examples=examples(200))
@example("!-b:,{", 5)
@given(st.text(alphabet='ab1 .,:<>=!-"\\\n{u}_é') | st.text(), st.integers(0, 20))
def test_any_text_is_read_or_refused_and_has_a_place_at_any_cursor(text: str, at: int) -> None:
    place = place_at(text, min(at, len(text)))
    assert 0 <= place.start <= place.end <= len(text)
    try:
        read = parse_where(text)
    except FilterError as refused:
        mistake = str(refused)
        without(text, refused.field)
    else:
        mistake = "none"
        assert parse_where(print_where(read)) == read
    assert 0 < len(mistake) < 600


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_the_example_of_each_field_is_a_term_of_it(field: Field) -> None:
    (term,) = parse_terms(field.example)
    assert term.field == field.name
    printed = print_where(parse_where(field.example, now=NOW))
    assert field.kind == Kind.TIME or parse_where(printed) == parse_where(field.example)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (
            'reward<0.2 status:error step:100..200 task:"click-test" -tag:seen text:"sorry"',
            "status:error task:click-test step:100..200 reward<0.2 -tag:seen sorry",
        ),
        ("status=error", "status:error"),
        ("status!=ok", "-status:ok"),
        ("-status!=ok", "status:ok"),
        ("reward < 0.5", "reward<0.5"),
        ("status: error , ok", "status:ok,error"),
        ("rewards.accuracy<0.5 rewards.accuracy>=0.1", "rewards.accuracy>=0.1 rewards.accuracy<0.5"),
        ('rewards."my reward":1', 'rewards."my reward":1'),
        ("step:100..", "step>=100"),
        ("step>99 step<=200", "step:100..200"),
        ("step:5,7..9", "step:5,7..9"),
        ("reward:..0.5", "reward<=0.5"),
        ("reward>=-0.5 reward<1e-3 reward<=7", "reward>=-0.5 reward<0.001"),
        ("turns:none,3,5..8", "turns:3,5..8,none"),
        ('task:none task:"none"', None),
        ('task:"none"', 'task:"none"'),
        ("status:ok,error status:error,aborted", "status:error"),
        ("tag:a tag:b", "tag:a tag:b"),
        ('foo "a b" -"x y" -bar', 'foo "a b" -"x y" -bar'),
        (r'"say \"hi\" C:\\x \n \u{202e} \d"', r'"say \"hi\" C:\\x \n \u{202e} \\d"'),
        ("text:a,b", "text:a,b"),
        ("a,b", "a,b"),
        ("since:2h", "since:2026-01-01T08:00Z"),
        ("-since:2026-01-01T08:00Z", "until:2026-01-01T07:59:59.999999Z"),
        ("since:2h since:1h", "since:2026-01-01T09:00Z"),
        ("is:starred note:none -is:starred", "-is:starred is:starred note:none"),
        ("  ", ""),
        ("stop:truncated", "stop:length"),
        ("stop:truncation", "stop:length"),
        ('stop:"turn limit"', "stop:turn_limit"),
        ("status:failed", "status:error"),
        ("tokens>5k", "completion_tokens>5000"),
        ("seconds<1.5k", "seconds<1500"),
        ("step:10\u201312", "step:10..12"),
        ("step:10...12", "step:10..12"),
        ("reward:0.1-0.5", "reward:0.1..0.5"),
        ("reward==1", "reward:1"),
        ("status==ok", "status:ok"),
        ("#1558", "id:1558"),
        ("-#1558", "-id:1558"),
        ('"#1558" "a~b"', '"#1558" "a~b"'),
        ("task:django*", "family:django"),
        ("task!=django*", "-family:django"),
        ('task:"django*"', 'task:"django*"'),
        ("status:ok AND sorry", "status:ok sorry"),
        ("turns>3 and not status:ok", "-status:ok turns>3"),
        ("cats and dogs or not", 'cats "and" dogs "or" "not"'),
        ("metadata.difficulty:hard,easy", "metadata.difficulty:easy,hard"),
        ("metadata.level>=3 metadata.level<5", "metadata.level>=3 metadata.level<5"),
        ("metadata.level:0..1e+16", "metadata.level:0..1e+16"),
        ('metadata.level:"3..5"', 'metadata.level:"3..5"'),
        ("metadata.version:3.10", "metadata.version:3.10"),
    ],
)
def test_a_line_is_read_and_printed(text: str, printed: str | None) -> None:
    if printed is None:
        parse_where(text)
    else:
        assert print_where(parse_where(text, now=NOW)) == printed


def test_what_a_filters_own_fields_can_say_stands_there() -> None:
    text = "status:error eval:a step>3 step<=9 reward>=0 reward<1 group:g task:x,y turns>2"
    assert parse_where(text) == RolloutFilter(
        statuses=("error",),
        evals=("a",),
        step_min=4,
        step_max=9,
        reward_min=0,
        group="g",
        tasks=("x", "y"),
        terms=(Term("turns", (Range(low=2, above=True),)), Term("reward", (Range(high=1, below=True),))),
    )


@pytest.mark.parametrize(
    ("text", "field", "message", "meant"),
    [
        ("stauts:ok", "stauts", "stauts:ok: unknown field 'stauts': did you mean 'status'?", "status:ok"),
        ("ok -statsu:ok", "statsu", "-statsu:ok: unknown field", "ok -status:ok"),
        ("status:ok,eror", "status", "status:ok,eror: unknown status 'eror': did you mean 'error'?", "status:ok,error"),
        ("step:3 stop=lenght x", "stop", "did you mean 'length'?", "step:3 stop=length x"),
        ("is:stared", "is", "is:stared: unknown mark 'stared': did you mean 'starred'?", "is:starred"),
        ("http://x", "http", "unknown field 'http'", "text://x"),
        ("ok step:>=100", "step", "step:>=100: >= after a colon: did you mean 'step>=100'?", "ok step>=100"),
        ("-rewards.fine:<0.5", "rewards", "did you mean 'rewards.fine<0.5'?", "-rewards.fine<0.5"),
        ("step:>=x", "step", "did you mean 'step>=x'?", "step>=x"),
        ("task:'a b' ok", "where", "'a b': use double quotes: did you mean \"a b\"?", 'task:"a b" ok'),
        ("task:x,'y'", "where", "'y': use double quotes: did you mean y?", "task:x,y"),
        ("'I am sorry'", "where", 'did you mean "I am sorry"?', '"I am sorry"'),
        ("(status:ok)", "where", "terms cannot be grouped", "status:ok"),
        ("step:3 (status:ok OR status:error)", "where", "(status:ok: terms cannot", "step:3 status:ok,error"),
        ("!status:ok x", "where", "!status:ok: write - to negate a term: did you mean '-status:ok'?", "-status:ok x"),
        ("!(status:ok)", "where", "terms cannot be grouped", "-status:ok"),
        ("task~django", "where", "task~django: ~ is not an operator: did you mean 'task:django*'?", "task:django*"),
        ("note~look", "where", "~ is not an operator: did you mean 'note:look'?", "note:look"),
        ("status:ok or status:error", "where", "did you mean 'status:ok,error'?", "status:ok,error"),
        ("ok errors>0", "errors", "unknown field 'errors': did you mean 'env_errors'?", "ok env_errors>0"),
        ("truncated:yes x", "truncated", "did you mean 'stop:length'?", "stop:length x"),
        ("truncated:no", "truncated", "did you mean 'stop:length'?", "-stop:length"),
        ("-truncated:1", "truncated", "did you mean 'stop:length'?", "-stop:length"),
        ("mode:xyz", "mode", "mode:xyz: unknown mode 'xyz': choose from train, eval", None),
    ],
)
def test_a_misspelt_term_names_the_nearest(text: str, field: str, message: str, meant: str | None) -> None:
    mistake = refusal(text)
    assert mistake.field == field
    assert message in str(mistake)
    assert mended(text, mistake) == meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("status:ok status:error", "status:ok and status:error exclude one another: for either, write status:ok,error"),
        ("group:a group:b", "group:a and group:b exclude one another: for either, write group:a,b"),
        ("reward>0.5 reward<0.2", "reward>0.5 and reward<0.2 exclude one another"),
        ("turns>=5 turns:1..3", "exclude one another"),
        ("step>3 step<4", "exclude one another"),
        ("reward<0,5", "reward<0,5: reward '0,5': expected a number such as 0.5"),
        ("reward:nan", "reward nan is not a finite number"),
        ("turns:1.5", "turns '1.5' is not a whole number"),
        ("step:9..1", "step:9..1: step 9 is above 1: swap them"),
        ("step:..", "step:..: step needs a value"),
        ("status<ok", "status<ok: status does not support <: write for example status:error"),
        ("rewards<1", "rewards<1: rewards needs the name of one of them, for example rewards.accuracy<0.5"),
        ("status.x:ok", "status has no parts: leave out .x"),
        ("status:", "status:: status needs a value"),
        ("status:,ok", "status needs a value"),
        ('task:"abc', '"abc: the opening quote has no closing quote'),
        ('task:"a"b', "put a space after the closing quote"),
        ('task:a"b"', "put a space after the closing quote"),
        ("status:ok or turns>3", "name:one,other accepts either, of one field: apply status:ok and turns>3 apart"),
        ("kl < 0.1 OR", "unknown field 'kl'"),
        (":ok", ":ok: no field's name before the sign"),
        ("1<2", "1<2: no field's name before the sign"),
        ("-", "a minus alone"),
        ('note:" "', "note needs words to search for"),
        ("!!!", "text '!!!' has no letter and no digit"),
        ("eval:none", "every rollout has a value for eval"),
        ("since:yesterday", "since:yesterday: since 'yesterday': expected a time such as 2026-01-31T18:00Z"),
        ("since:2026-02-01 until:2026-01-01", "swap them"),
        ("since>2h", "since does not support >"),
        ("since:1h,2h", "since takes one time"),
        (" ".join(f"turns:{i},{i + 2}" for i in range(200)), "this filter has 200 terms; at most 100 are possible"),
    ],
)
def test_what_cannot_be_meant_says_why(text: str, message: str) -> None:
    assert message in str(refusal(text))


def test_an_apostrophe_is_no_quote() -> None:
    for text in ("don't", "'tis so", "the dogs' bone", "task:o'neill"):
        assert parse_where(text)


def test_a_very_long_line_or_name_does_not_fill_the_message() -> None:
    names = ",".join(f"task-{it}" for it in range(200))
    exclusive = f"task:{names} task:{names.replace('k', 'K')}"
    for text in ("x" * 100_000 + ":1", "status:" + "x" * 100_000, '"' + "x" * 100_000, "id:" + "9" * 4_000, exclusive):
        assert len(str(refusal(text))) < 500
    assert len(str(refused_query("x" * 100_000 + "=1"))) < 500


def test_what_python_cannot_write_down_is_refused() -> None:
    cases: list[tuple[str, tuple[Any, ...], str, bool]] = [
        ("reward", (Range(0, 1, above=True),), "write two terms", True),
        ("reward", (Range(0, 1, above=True), Range(5, 5)), "write two terms", False),
        ("status", (), "needs a value", False), ("reward", ("high",), "takes a number or a range", False),
    ]  # fmt: skip
    for field, values, message, negated in cases:
        with pytest.raises(FilterError, match=message):
            Term(field, values, negated=negated)


@pytest.mark.parametrize(
    ("text", "expects", "written", "field", "negated"),
    [
        ("|", "name", "", None, False),
        ("status:ok |", "name", "", None, False),
        ("sta|", "name", "sta", None, False),
        ("status:ok -ta|g:x", "name", "ta", None, True),
        ("status:|", "value", "", "status", False),
        ("status: |", "value", "", "status", False),
        ("status:ok,|", "value", "", "status", False),
        ("-status:o|k reward<1", "value", "o", "status", True),
        ('task:"find th|', "value", "find th", "task", False),
        ('task:"find th|e file" step:3', "value", "find th", "task", False),
        ('"find th|', "other", "find th", None, False),
        ("reward<0|", "other", "0", "reward", False),
        ("rewards.ac|", "name", "rewards.ac", None, False),
    ],
)
def test_what_is_written_at_the_cursor(text: str, expects: str, written: str, field: str | None, negated: bool) -> None:  # noqa: FBT001
    at = text.index("|")
    place = place_at(text.replace("|", ""), at)
    assert (place.expects, place.written, place.field, place.negated) == (expects, written, field, negated)


def test_a_completion_takes_the_place_of_what_was_written_there() -> None:
    for text, cursor, kept in (
        ("-sta|tus:ok x", "-[]:ok x", ":ok x"),
        ('task:"fi|nd the" x', "task:[] x", " x"),
        ("status:ok,er|r x", "status:ok,[] x", " x"),
        ("a b|", "a []", "a "),
    ):
        plain = text.replace("|", "")
        place = place_at(plain, text.index("|"))
        assert plain[: place.start] + "[]" + plain[place.end :] == cursor
        assert place.beside == kept


def test_the_terms_of_a_field_can_be_left_out() -> None:
    assert without("a status:eror -status:ok rewards.x<1 b", "status") == "a rewards.x<1 b"
    assert without("a status:eror b", "text") == "status:eror"
    assert without('a "b', "where") == ""


def test_the_lines_in_the_docs_can_be_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
    (table,) = re.findall(r"\| written \| means \|\n\| --- \| --- \|\n(.*?)\n\n", page, re.DOTALL)
    written = [term for row in table.splitlines() for term in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(written) > 10
    for line in [*written, *re.findall(r"where[= ][\"'](.*?)[\"']", page), *re.findall(r"```\n(.*?)\n```", page)]:
        if line not in {"<=", ">", ">="}:
            parse_where(line)


HOUR = 3_600_000_000
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "none", "AND", "-x", "a,b", 'a "b" \\', "\n", "\u202e", " ", "a:b", "<1", "1..2", "x*", "#1", "(a", "a~b",
        "3.10", "and", "",
    ]
)  # fmt: skip


@st.composite
def terms(draw: st.DrawFn) -> Term:
    """Of any field."""
    field = draw(st.sampled_from([field for field in FIELDS.values() if field.kind != Kind.TIME]))
    key = draw(TEXTS.filter(bool)) if field.is_keyed else None
    negated = draw(st.booleans())
    values = st.lists(value_of(field), min_size=1, max_size=3).map(tuple)
    if field.kind in COMPARED:
        values |= numbers_of(field).map(lambda it: (Range(low=it, above=True),))
        values |= numbers_of(field).map(lambda it: (Range(high=it, below=True),))
    return Term(field.name, draw(values), key, negated)


def value_of(field: Field) -> st.SearchStrategy[Any]:
    absent = st.none() if field.optional else st.nothing()
    spans = st.tuples(numbers_of(field), numbers_of(field)).map(sorted).map(lambda it: Range(*it))
    if field.kind in NUMERIC:
        return absent | spans | numbers_of(field).map(lambda it: Range(it, it))
    if field.words is not None:
        return absent | st.sampled_from([word.value for word in field.words])
    if field.kind == Kind.ANY:
        return absent | TEXTS | spans
    return absent | (TEXTS.map(lambda text: f"w{text}") if field.kind == Kind.TEXT else TEXTS)


def numbers_of(field: Field) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**63 - 1) if field.kind == Kind.WHOLE else st.floats(allow_nan=False, allow_infinity=False)


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


def refused_query(query: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse_filter(parse_qsl(query, keep_blank_values=True))
    assert isinstance(caught.value, LogsUIError)
    assert "\n" not in str(caught.value)
    return caught.value


@settings(deadline=None, max_examples=examples(60))
@given(filters())
def test_reading_is_the_opposite_of_printing_one_line_for_a_browsers_field(where: RolloutFilter) -> None:
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
        ("status=ERROR", "status", "unknown status 'ERROR': did you mean 'error'?"),
        ("sort=lowest", "sort", "unknown sort 'lowest': did you mean 'lowest-reward'?"),
        ("reward_min=0.9&reward_max=0.1", "reward_min", "reward_min 0.9 is above reward_max 0.1: swap them"),
        ("step_min=9&step_max=1", "step_min", "step_min 9 is above step_max 1: swap them"),
        ("since=1h&until=2h", "since", "swap them"),
        ("step_min=1_0", "step_min", "step_min '1_0' is not a whole number"),
        ("step_min=٣", "step_min", "is not a whole number"),
        ("reward_min=1_0.5", "reward_min", "reward_min '1_0.5': expected a number such as 0.5"),
        ("step_min=-1", "step_min", "step_min -1 is out of range"),
        ("step_max=99999999999999999999", "step_max", "is out of range"),
        ("reward_max=-inf", "reward_max", "reward_max -inf is not a finite number"),
        ("since=999999999d", "since", "since is out of range"),
        ("until=2026-13-01", "until", "until '2026-13-01': expected a time"),
        ("group=a&group=b", "group", "group occurs 2 times: use it once"),
    ],
)
def test_a_mistake_names_its_field_and_the_nearest_or_what_to_do(query: str, field: str, message: str) -> None:
    error = refused_query(query)
    assert (error.field, message in str(error)) == (field, True)
    assert str(error).endswith(f"did you mean {error.meant!r}?") == (error.meant is not None)
    assert ("did you mean" in message) == (error.meant is not None)


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
    assert refused_query("where=status:ok&status=error").field == "status"


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
    check_known(parse_where("-tag:other tag:none group:g"), known)  # a tag that none shall have need not be there
    check_known(parse_where(text), {})  # nothing is asked about
    with pytest.raises(FilterError) as caught:
        check_known(parse_where(text), known)
    assert (caught.value.field, str(caught.value)) == (field, message)
