"""Makes the token view: sampled and inserted tokens as text, and the surprisal of each."""

import base64
import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from sqlalchemy import Connection

from logs_ui.app.pages.rollout.token_text import TokenText, Vocabularies, Vocabulary
from logs_ui.app.parts import safe_text as text
from logs_ui.recorder import queries
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Status

LEVELS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Surprisal (-log p) from which a token gets the next colour; `tokens.js` and `rollout.css` have as many levels."""

_MOST_TOKENS = 65_536  # of the completion
_MOST_OF_PROMPT = 16_384
_MOST_SEGMENTS = 1_000
_ENTER = "↵"
_vocabularies = Vocabularies()

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Logps = NDArray[np.float16]


@dataclass(frozen=True)
class Spelling:
    """Holds tokens as the page shows them, and what its script needs to know of each."""

    text: Markup  # escaped, with labels for invisible characters
    # `ids`, `lengths`, `backs` and `marks`: LEB128 in base64: the token ids; each token's length in `text`, in UTF-16
    # units; how far each starts before its predecessor's end, empty if none does; and, for inserted labels, the
    # distance from the one before and the length, in turns.
    ids: str
    lengths: str
    backs: str
    marks: str


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens that all belong to the prompt, were sampled, or were inserted by the environment."""

    kind: str  # "prompt", "sampled" or "inserted"
    anchor: str  # its id on the page
    turn: int | None  # the model call that this is, or follows; None for the prompt, and if calls cannot be told apart
    first: int  # index of its first token in the prompt or in the completion
    count: int  # number of its tokens, including those not shown
    mean_logp: float | None  # mean of its log-probabilities; None without any
    spelling: Spelling
    logps: str  # of the tokens shown: float16, little-endian, in base64; empty without any


@dataclass(frozen=True)
class TokenView:
    """Holds all segments in order."""

    segments: list[Segment] = field(default_factory=list)
    has_heat: bool = False  # True if any token has a log-probability
    # Each of `LEVELS`, and the number of sampled tokens that reach it; empty without log-probabilities.
    level_counts: tuple[tuple[float, int], ...] = ()
    special_ids: str = ""  # ids, separated by spaces, of special tokens and of ids that the tokenizer lacks
    missing: list[tuple[str, str]] = field(default_factory=list)  # what is not recorded, with the reason and what to do
    hidden_count: int = 0  # number of tokens that are not shown

    @property
    def anchors(self) -> set[str]:
        return {segment.anchor for segment in self.segments}


def make_view(db: Connection, run: Run, rollout: Rollout, turns: int) -> TokenView:
    """Build the view. If as many pieces were sampled as the timeline has model calls, `turns`, each is one call."""
    tokens = rollout.tokens
    if tokens is None:
        return TokenView(missing=[_explain_no_tokens(run, rollout)])
    vocabulary, missing = _vocabulary(db, run)
    logps = tokens.logprobs if tokens.logprobs is not None and np.isfinite(tokens.logprobs).any() else None
    if logps is None:
        missing.append(("No log-probabilities", _NO_LOGPS))
    if tokens.mask is None and turns > 1:
        missing.append(("No mask", _NO_MASK))
    mask = np.ones(len(tokens.completion_ids), bool) if tokens.mask is None else tokens.mask.astype(bool)
    prompt, completion = [], list(_completion(tokens, mask, logps, vocabulary, turns))
    if len(ids := tokens.prompt_ids):
        spelling = _spell(ids[:_MOST_OF_PROMPT], vocabulary)
        prompt.append(Segment("prompt", "tokens-prompt", None, 0, len(ids), None, spelling, ""))
    shown_count = sum(min(segment.count, _MOST_OF_PROMPT) for segment in prompt)
    if completion:
        shown_count += min(completion[-1].first + completion[-1].count, _MOST_TOKENS)
    # In float32, since a float16 of 0.1 is smaller than the level 0.1.
    surprisal = np.zeros(0, np.float32) if logps is None else -logps[mask].astype(np.float32)
    return TokenView(
        segments=[*prompt, *completion],
        has_heat=logps is not None,
        level_counts=() if logps is None else tuple((level, int((surprisal >= level).sum())) for level in LEVELS),
        special_ids=_special_ids(tokens, vocabulary),
        missing=missing,
        hidden_count=len(tokens.prompt_ids) + len(mask) - shown_count,
    )


def _completion(
    tokens: Tokens, mask: NDArray[np.bool_], logps: Logps | None, vocabulary: Vocabulary | None, turns: int
) -> Iterator[Segment]:
    """Yield the segments of the completion, up to _MOST_TOKENS and _MOST_SEGMENTS; `mask` is True where sampled."""
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    pieces = [(start, end) for start, end in itertools.pairwise(edges) if start < end]
    has_turns = sum(bool(mask[start]) for start, _ in pieces) == turns
    turn = 0
    for start, end in pieces[:_MOST_SEGMENTS]:
        is_sampled = bool(mask[start])
        turn += is_sampled
        shown_end = min(end, _MOST_TOKENS)
        if start >= shown_end:
            return
        sampled_logps = logps if is_sampled else None  # of what was inserted a trainer writes 0, or anything
        yield Segment(
            kind="sampled" if is_sampled else "inserted",
            anchor=f"tokens-{turn}" if is_sampled else f"tokens-{turn}-answer",
            turn=turn if has_turns and turn else None,
            first=start,
            count=end - start,
            mean_logp=None if sampled_logps is None else _mean_logp(sampled_logps[start:end]),
            spelling=_spell(tokens.completion_ids[start:shown_end], vocabulary),
            logps="" if sampled_logps is None else _base64(sampled_logps[start:shown_end].astype("<f2").tobytes()),
        )


def _mean_logp(logps: Logps) -> float | None:
    finite = logps[np.isfinite(logps)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


def _spell(ids: Ids, vocabulary: Vocabulary | None) -> Spelling:
    token_text = _spell_as_numbers(ids) if vocabulary is None else vocabulary.spell(ids.tolist())
    written, places, marks = _label_invisible(token_text)
    starts, ends = places[token_text.starts], places[token_text.ends]
    backs = np.concatenate(([0], ends))[:-1] - starts
    return Spelling(
        text=Markup(html.escape(written, quote=False)),  # noqa: S704 - it is escaped; a quote needs six bytes elsewhere
        ids=_pack(ids.astype(np.uint32)),
        lengths=_pack(ends - starts),
        backs=_pack(backs) if backs.any() else "",
        marks=_pack(marks),
    )


def _spell_as_numbers(ids: Ids) -> TokenText:
    """Spell ids as numbers, for a run without a tokenizer."""
    words = [f"{token} " for token in ids.tolist()]
    sizes = np.array([len(word) for word in words], np.int64)
    ends = np.cumsum(sizes)
    return TokenText("".join(words), ends - sizes, ends)


def _label_invisible(token_text: TokenText) -> tuple[str, Numbers, Numbers]:
    """Replace invisible characters by labels, and mark tokens that are only line ends with an arrow.

    Return the text; (c + 1,) the positions of the c characters and of the end, in UTF-16 units; and the labels and
    arrows as in `Spelling.marks`.
    """
    letters = np.frombuffer(token_text.text.encode("utf-32-le"), np.uint32)
    widths = np.where(letters > 0xFFFF, 2, 1).astype(np.int64)
    instead = dict(text.labels(token_text.text))
    for index in _find_line_ends(token_text, letters).tolist():
        instead[index] = f"{_ENTER}\n"
    pieces, at = [], 0
    for index, label in sorted(instead.items()):
        pieces += [token_text.text[at:index], label]
        widths[index] = len(label)
        at = index + 1
    places = np.concatenate(([0], np.cumsum(widths)))
    marked = places[sorted(instead)] if instead else np.zeros(0, np.int64)
    sizes = [len(label.rstrip("\n")) for _, label in sorted(instead.items())]
    marks = np.column_stack((np.diff(marked, prepend=0), sizes)).ravel() if instead else marked
    return "".join([*pieces, token_text.text[at:]]), places, marks


def _find_line_ends(token_text: TokenText, letters: NDArray[np.uint32]) -> Numbers:
    """Return the starts of tokens that consist of line ends only."""
    count = np.concatenate(([0], np.cumsum(letters == ord("\n"))))
    sizes = token_text.ends - token_text.starts
    return np.unique(token_text.starts[(sizes > 0) & (count[token_text.ends] - count[token_text.starts] == sizes)])


def _pack(values: NDArray[np.integer]) -> str:
    """Encode values as LEB128: seven bits per byte, lowest first, the eighth bit set if more follow."""
    numbers = values.astype(np.uint64)[:, None]
    shifts = np.arange(5, dtype=np.uint64) * np.uint64(7)
    parts = ((numbers >> shifts) & np.uint64(127)).astype(np.uint8)
    used = (numbers >> shifts) > 0
    used[:, 0] = True
    parts[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    return _base64(parts[used].tobytes())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _special_ids(tokens: Tokens, vocabulary: Vocabulary | None) -> str:
    if vocabulary is None:
        return ""
    present = np.unique(np.concatenate((tokens.prompt_ids, tokens.completion_ids))).tolist()
    return " ".join(str(token) for token in present if token in vocabulary.special or not vocabulary.has(token))


_NO_LOGPS = """No finite log-probabilities were recorded, so tokens are not coloured. A rollout function returns them as
`logprobs`, one for each token of the completion; with an openai client pass logprobs=True."""
_NO_MASK = """No `env_mask` was recorded, so the trainer (and this page) treats every token as sampled. If the
environment inserted tokens, a rollout function returns a mask: 1 for a sampled token, 0 for an inserted one."""
_NO_TOKENIZER = """The run has no tokenizer of the `tokenizers` library. start_run() takes one as `tokenizer`; record()
uses the trainer's processing_class. The token ids are shown instead."""
_ELSEWHERE = "The run's tokenizer is missing in this database: copy the table `tokenizer` too"
_ONLY_TEXT = """No token IDs recorded: the client returned text only. Return `prompt_ids` and `completion_ids` from the
rollout function; with an openai client and vLLM pass extra_body={"return_token_ids": True}."""


def _vocabulary(db: Connection, run: Run) -> tuple[Vocabulary | None, list[tuple[str, str]]]:
    """Return the run's tokenizer, or why there is none."""
    name = run.tokenizer
    if name is None:
        return None, [("No tokenizer", _NO_TOKENIZER)]
    try:
        return _vocabularies.get(name, lambda: _read_tokenizer(db, name)), []
    except LogsUIError as error:
        return None, [("No tokenizer", f"{error}. The token ids are shown instead.")]


def _read_tokenizer(db: Connection, name: str) -> bytes:
    source = queries.tokenizer_json(db, name)
    if source is None:
        raise LogsUIError(_ELSEWHERE)
    return source


def _explain_no_tokens(run: Run, rollout: Rollout) -> tuple[str, str]:
    if rollout.row.pruned is not None:
        return "Tokens were pruned", "logs-ui prune deleted messages and tokens and kept the figures."
    if rollout.row.status == Status.RUNNING:
        return "No tokens yet", "Tokens are recorded when the rollout function returns."
    if rollout.row.status != Status.OK:
        return "No tokens", "The rollout ended before its function returned any."
    if rollout.row.completion_tokens and run.dropped_payloads:
        lost = f"{run.dropped_payloads:,} rollouts of this run"
        return "No tokens", f"{lost} lost texts and tokens to a full queue. A larger LOGS_UI_QUEUE_MB lets more wait."
    return "No tokens", _ONLY_TEXT
