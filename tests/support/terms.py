"""Makes terms of the filter language with hypothesis."""

from typing import Any

from hypothesis import strategies as st

from logs_ui.recorder.queries.filters.fields import COMPARED, FIELDS, NUMERIC, Field, Kind
from logs_ui.recorder.queries.filters.terms import Range, Term

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "none", "AND", "-x", "a,b", 'a "b" \\', "\n", "\u202e", " ", "a:b", "<1", "1..2", "x*", "#1", "(a", "a~b",
        "3.10", "and", "",
    ]
)  # fmt: skip
_WORDS = TEXTS.map(lambda text: f"w{text}")


@st.composite
def terms(draw: st.DrawFn) -> Term:
    """Return a strategy for terms of any field."""
    field = draw(st.sampled_from([field for field in FIELDS.values() if field.kind != Kind.TIME]))
    key = draw(TEXTS.filter(bool)) if field.is_keyed else None
    negated = draw(st.booleans())
    values = st.lists(_value(field), min_size=1, max_size=3).map(tuple)
    if field.kind in COMPARED:
        values |= _numbers(field).map(lambda it: (Range(low=it, above=True),))
        values |= _numbers(field).map(lambda it: (Range(high=it, below=True),))
    return Term(field.name, draw(values), key, negated)


def _value(field: Field) -> st.SearchStrategy[Any]:
    absent = st.none() if field.optional else st.nothing()
    if field.kind in NUMERIC:
        ends = st.tuples(_numbers(field), _numbers(field)).map(sorted)
        return absent | ends.map(lambda it: Range(*it)) | _numbers(field).map(lambda it: Range(it, it))
    if field.words is not None:
        return absent | st.sampled_from([word.value for word in field.words])
    if field.kind == Kind.ANY:
        ends = st.tuples(_numbers(field), _numbers(field)).map(sorted)
        return absent | TEXTS | ends.map(lambda it: Range(*it))
    return absent | (_WORDS if field.kind == Kind.TEXT else TEXTS)


def _numbers(field: Field) -> st.SearchStrategy[Any]:
    if field.kind == Kind.WHOLE:
        return st.integers(0, 2**63 - 1)
    return st.floats(allow_nan=False, allow_infinity=False)
