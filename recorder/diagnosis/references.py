"""Tells the forms of references and answers, and which column of a dataset has the references."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from logs_ui.recorder.diagnosis.answers import rank_of
from logs_ui.recorder.diagnosis.card import NotJudged, Run
from logs_ui.recorder.diagnosis.places import MACHINE, list_kinds
from logs_ui.recorder.diagnosis.rollout_rows import Ints, Rows, distinct
from logs_ui.recorder.vocabulary import Status

_EPSILON = Fraction(1, 10**12)
_END = 300  # characters of an answer that may hold a reference
_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
_UNIT = r"[^\W\d_]\S*(?: [^\W\d_]+)?|[%\u00b0\u20ac\u00a3$]\S*"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
KINDS = {
    "has a thousands separator": r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?",
    "is an integer": r"[-+]?\d+",
    "has decimals": r"[-+]?\d*\.\d+",
    "is a fraction": r"[-+]?(?:\d+\s*/\s*\d+|\\d?frac\{\d+\}\{\d+\})",
    "is a time with AM or PM": r"\d{1,2}:\d{2}(?::\d{2})?\s*[AaPp]\.?[Mm]\.?",
    "is a date in words": rf"(?i:(?:\d{{1,2}}(?:st|nd|rd|th)?\.?\s(?:of\s)?)?(?:{_MONTHS})[a-z]*\W{{1,2}}"
    r"(?:\d{1,2}(?:st|nd|rd|th)?,?\s)?\d{4})",
    "is a date in digits": r"\d{4}-\d{1,2}-\d{1,2}",
    "has a unit": rf"(?:[$\u20ac\u00a3]\s*{_NUMBER}|{_NUMBER}\s*(?:{_UNIT}))",
    "is a list": r"[\[({].*[,;].*[\])}]|[^,;]+(?:[,;][^,;]+)+",
    "is an expression": r".*(?:\\|\d\s*[-+*^=]|[*^=]).*",
    "is a text": r".*",
}
"""The kinds of references, the first that fits whole: a verb, and what it fits."""
_WORDS = {"is a list", "is an expression", "is a text", "is a date in words", "is a date in digits"}
"""Kinds of which a number is not all."""
_KINDS = [(name, re.compile(pattern, re.DOTALL)) for name, pattern in KINDS.items()]
_VALUES = re.compile(r"(?<![\w.,])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?|(?<![\w.])-?\.\d+")
_UPRIGHT = re.compile(r"\\(?:text|textrm|mathrm|mathbf|mathit|operatorname|rm)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[ ,;:!]|\\q?quad\b|~|\\(?=[%$])")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::\d{2})?(?:\s*([ap])\.?m\.?)?", re.IGNORECASE)
_NOT_OF_DATE = {"st", "nd", "rd", "th", "of"}
# Of the last sentence: a few words, and what begins with a digit.
_AFTER_WORDS = re.compile(
    r"(?:.*[.!?;]\s)?(?:[^\W\d_]{1,20} ){1,3}([-+\u2212$\u20ac\u00a3]?\d[^.!?;]*(?:\.\d[^.!?;]*)?)"
)
_MARK = re.compile(r"(?<!\d):|:(?!\d)|=|\bis\b")
_MINUS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"))  # signs that stand for it
_OPERATORS = "+-*/^<>="
_AROUND = " .*`$\"'\n\t"
_FRACTION = re.compile(r"\\d?frac\{(-?\d+)\}\{(\d+)\}")


def kind_of(reference: str) -> str:
    """Return the kind of a reference, a key of KINDS.

    >>> kind_of("1,250"), kind_of("12 km"), kind_of("3, 4 and 5")
    ('has a thousands separator', 'has a unit', 'is a list')
    """
    bare = re.sub(r"^\$(.*)\$$", r"\1", reference.strip()).translate(_MINUS)  # in LaTeX
    return next(name for name, pattern in _KINDS if pattern.fullmatch(bare))


def holds(answer: str, reference: str) -> bool:
    """Return True if the end of an answer holds the reference in any form: as a number, or its letters and digits.

    >>> holds("So it is 1250.", "1,250"), holds("So it is 7/17.", "0.4117647058823529"), holds("It is 12500.", "1,250")
    (True, True, False)
    """
    end, numbers = answer[-_END:], _values(reference)
    if len(numbers) == 1 and kind_of(reference) not in _WORDS:
        return any(are_equal(numbers[0], number) for number in _values(end))
    return _squeeze(reference) in _squeeze(end)


def are_equal(a: Fraction, b: Fraction) -> bool:
    """Return True for numbers that are equal, or fractions that a float of all its digits cannot tell apart."""
    if 1 in {a.denominator, b.denominator}:
        return a == b
    return abs(a - b) <= abs(b) * _EPSILON


def plain(answer: str, *, is_line: bool = False) -> str:
    r"""Return an answer in a form in which equal answers are equal; of a line, what comes after its last mark or `is`.

    >>> plain("1,250.0"), plain("Therefore the answer is B.", is_line=True), plain(r"New~York "), plain(r"3\,\rm{J}")
    ('1250', 'b', 'newyork', '3')
    >>> plain("2x + 1"), plain("WHERE a >= 3;"), plain("twenty-one")
    ('2x+1', 'wherea>=3', 'twentyone')
    >>> plain("9:05 PM"), plain("Answer: 21:05", is_line=True)
    ('21h05', '21h05')
    >>> plain("7th of March 1931"), plain("Mar. 7, 1931"), plain("1931-03-07")
    ('1931y3m7', '1931y3m7', '1931y3m7')
    """
    text = bare(_SPACES.sub(" ", _UPRIGHT.sub(r"\1", bare(answer, is_line=is_line))))
    if time := _TIME.fullmatch(text):
        hour, minute, half = time.groups()
        return f"{int(hour) % 12 + 12 * (half.lower() == 'p') if half else int(hour)}h{minute}"
    if date := _read_date(text):
        return date
    values, kind = _values(text), kind_of(text)
    if len(values) == 1 and kind not in _WORDS:
        return str(values[0])
    return _squeeze(text.translate(_MINUS), kept=_OPERATORS if kind == "is an expression" else "<>")


def bare(answer: str, *, is_line: bool = False) -> str:
    """Return an answer as it is written, without marks around it; of a line, what comes after its last mark or `is`, or
    after a few words, if it begins with a digit.

    >>> bare("**1,250**."), bare("Therefore the answer is B.", is_line=True), bare("ARRIVAL 14:35", is_line=True)
    ('1,250', 'B', '14:35')
    """
    text = (_MARK.split(answer)[-1] if is_line else answer).strip(_AROUND)
    whole = answer.strip(_AROUND)
    after = _AFTER_WORDS.fullmatch(whole) if is_line and kind_of(text) == "is a text" else None
    return after[1] if after else text


def _read_date(text: str) -> str | None:
    """Return a date in one form; None for another text, and for numbers whose order may differ."""
    kind = kind_of(text)
    words = [word for word in re.findall(r"[0-9]+|[^\W\d_]+", text) if word.casefold() not in _NOT_OF_DATE]
    if kind not in {"is a date in digits", "is a date in words"} or len(words) != 3:
        return None
    if kind == "is a date in digits":
        year, month, day = map(int, words)
        return f"{year}y{month}m{day}"
    (name,) = (word for word in words if not word.isdigit())
    day, year = (int(word) for word in words if word.isdigit())
    return f"{year}y{_MONTHS.index(name[:3].capitalize()) // 4 + 1}m{day}"


def _values(text: str) -> list[Fraction]:
    plain_text = _FRACTION.sub(r"\1/\2", text.translate(_MINUS))
    numbers = (number.replace(",", "").replace(" ", "") for number in _VALUES.findall(plain_text))
    return [Fraction(number) for number in numbers if not re.search(r"/0*$", number)]


def _squeeze(text: str, kept: str = "") -> str:
    return "".join(character for character in text.casefold() if character.isalnum() or character in kept)


def list_data_kinds(run: Run) -> list[tuple[str, Sequence[str], Ints]]:
    """Return what `places.list_kinds` does of the data alone: without evals, machines and references."""
    reference = reference_column(run.all, run.labels_of_all, run.settings.reference)
    return [kind for kind in list_kinds(run) if kind[0] not in {"eval", reference} and not MACHINE.search(kind[0])]


def reference_column(rows: Rows, labels: Mapping[str, Sequence[str | None]], chosen: str | None = None) -> str | None:
    """Return the name of the column that most rollouts have of those that are named like a reference answer, or of
    the chosen one alone, and that is the same within each group, but for rollouts that raised; None if there is none.
    """
    candidates = dict[str, tuple[int, int]]()
    for name, values in labels.items():
        codes = np.unique([value or "" for value in values], return_inverse=True)[1]
        count = sum(value is not None for value in values)
        bare = name.removeprefix("metadata.")
        is_named = rank_of(bare) is not None if chosen is None else bare == chosen
        is_known = np.array([value is not None for value in values]) | (rows.status != Status.ERROR)
        is_alike = (distinct(rows.group[is_known], codes[is_known], count=len(rows.groups.size)) <= 1).all()
        if is_named and is_alike and 2 * count >= len(rows):
            candidates[name] = count, -(rank_of(bare) or 0)
    return max(candidates, key=candidates.__getitem__, default=None)


def tell_lack(run: Run) -> NotJudged:
    """Return the outcome of a check without such a column."""
    name = run.settings.reference or "like a reference answer"
    return NotJudged(f"No column that is named {name} is in most rollouts and the same within groups: set reference.")
