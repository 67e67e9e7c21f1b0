"""Holds ids, masks and log-probs of a rollout against what was sampled, sent, and handed to reward functions."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from logs_ui.recorder.action_text import observed_text
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.snapshot import text_key
from logs_ui.recorder.storage.payload import Tokens, first_answer
from logs_ui.recorder.vocabulary import Handed, SentPrompt, Status


class TokenCheck(NamedTuple):
    """Describes a check as `finding.Check` does; `lacking` is what it needs."""

    comparison: str
    tolerance: str
    lacking: str
    findings: dict[str, str]


TOKEN_CHECKS = {
    "Scored text": TokenCheck(
        "The text that the trainer hands on to reward functions, and what the ids decode to; of parsed messages only "
        "that they are not empty.",
        "exact, also after transformers' clean-up of spaces", "what reward functions were handed, or the tokenizer",
        {"handed_empty": "Reward functions are handed an empty text, though the ids decode to more",
         "handed_other": "Reward functions are handed another text than the ids decode to"},
    ),
    "Prompt": TokenCheck(
        "The beginning of the prompt that the model was sent, and the dataset's prompt; where it is another, all of "
        "it, and the dataset's prompts of the batch.",
        "10 characters; 4 where no more of it is left [ours]", "what prompt was sent",
        {"prompt_exchanged": "The model was sent the prompt of another rollout of its batch",
         "prompt_cut_left": "The prompt is cut at the left: the dataset's beginning is not sent"},
    ),
    "Mask": TokenCheck(
        "The mask, and which tokens the recorded generations sampled; a rollout function may leave out whole answers. "
        "Without recorded ids it is a fault if the mask includes an observation that stands alone, or right behind its "
        "answer, and has more or fewer pieces than there are answers. "
        "Then numbers of tokens are compared: it is a fault if more tokens are trained on than were "
        "sampled, and these are observations (without a tokenizer: are enough to hold the observations).",
        "exact; of numbers 2 tokens per turn", "token ids, or numbers of tokens, of the generations",
        {"mask_length": "There are more or fewer mask values than ids",
         "mask_shifted": "The mask leaves out tokens that the model sampled, and trains on others",
         "mask_missing": "There is no mask, so that training includes tokens that no generation sampled",
         "mask_inserted": "The mask includes tokens that no generation sampled",
         "mask_sampled": "The mask leaves out a part of what the model sampled"},
    ),
    "Ids": TokenCheck(
        "The ids that are trained on, and those that were sampled: a text that is encoded again may have others.",
        "exact", "token ids",
        {"repeated_prompt": "The completion ids begin with the prompt",
         "retokenized": "The ids in training are not those that were sampled: texts may have been encoded again",
         "other_ids": "The ids in training are not those that were sampled"},
    ),
    "Context": TokenCheck(
        "What each generation was shown, and what stands before its tokens in the row.",
        "exact", "token ids of the generations' contexts",
        {"context_prompt": "The model sampled after another prompt than the training row has",
         "context_reasoning": "The model did not see its earlier reasoning when it sampled, but trains with it",
         "context": "The model sampled after another history than the training row has"},
    ),
    "Log-probs": TokenCheck(
        "The sampler's log-probs: 0 or below, as many as ids, and not all of a run 0.",
        "0.001 above 0, for they are kept as float16", "log-probs of the sampler",
        {"logprobs_length": "There are more or fewer log-probs than ids",
         "logprobs_positive": "Log-probs are above 0, which no probability has",
         "logprobs_zero": "All log-probs are 0: they cannot be the sampler's"},
    ),
    "Tools": TokenCheck(
        "The names of tools that the rollout called, or its environment has, and the prompt that the template wrote.",
        "one name is enough", "calls of tools, or an environment with tools",
        {"template_tools": "The prompt names none of the tools: the chat template leaves them out"},
    ),
    "End token": TokenCheck(
        "The last token of an answer with finish reason `stop`, and the special tokens; not where other "
        "stops are set.",
        "exact", "answers with finish reason `stop`, and special tokens",
        {"end_token": "Answers finish with `stop`, but have no end token: the model does not learn to end"},
    ),
}  # fmt: skip

_ROUNDED = 1e-3
# Tokens that end a turn, and those around an observation; characters of a token; share of what was sampled [ours].
_ENDS, _MARKUP, _DENSE, _MORE = 2, 8, 8, 0.1
_STOPS = {"stop", "stop_strings", "stop_token_ids"}  # sampling parameters that end an answer without an end token
_ROLE = re.compile(r"^(?:system|user|assistant|developer)")
_PIECE, _SHORT = 10, 4  # characters of an end of a prompt or of an observation, and those that may be all that is left
_GAP = 20  # characters of the roles between an answer and its observation [ours]
_TAGS, _SPACES = re.compile(r"<[^<>]*>"), re.compile(r"\s+")
# As transformers cleans up what tokenizers decode, where a tokenizer asks for it.
_CLEANED = re.compile(r" ([.?!,]|n't|'m|'s|'ve|'re)| (') ")


@dataclass(frozen=True)
class Sources:
    """Holds what is stored with a run: its tokenizer, None without one; names of tools that each of its environments
    has; the most tokens that a completion may have; and whether TRL itself makes the rollouts. TRL's masks leave out no
    whole answer; those of a rollout function may, such as a planner's.
    """

    tokenizer: Tokenizer | None
    tools: frozenset[str] = frozenset()
    longest: float = math.inf
    is_own: bool = False

    @cached_property
    def special(self) -> frozenset[int]:
        """Return the ids of the special tokens."""
        added = {} if self.tokenizer is None else self.tokenizer.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def decode(self, ids: Any, *, bare: bool = False) -> str:
        """Return the text of ids; without special tokens if `bare`."""
        return "" if self.tokenizer is None else decode(self.tokenizer, ids, bare=bare)


def decode(tokenizer: Tokenizer, ids: Any, *, bare: bool = False) -> str:
    """Return the text of ids; without special tokens if `bare`. Ids below 0, which stand for images, have none."""
    return tokenizer.decode(ids[ids >= 0].tolist(), skip_special_tokens=bare)


@dataclass
class Seen:
    """Holds what a rollout's tokens show: the faults of each check that could be made; `drift` is the place in the
    completion from which encoding its text again gives other ids, -1 without one, None if not known.
    """

    faults: dict[str, list[str]]
    asked: int | None = None  # key of the dataset's prompt
    sent: int | None = None  # key of the prompt that was sent, where that does not hold the dataset's
    drift: int | None = None
    is_cut: bool = False  # True if fewer tokens are trained on than were sampled
    is_unseen: bool = False  # True if no generation is known to be the rollout's
    is_masked: bool = False  # True if the mask leaves out a whole answer
    logprobs: int = 0
    zeros: int = 0  # of these
    trained: int = 0  # tokens, where it is known which of them were sampled
    inserted: int = 0  # of these, that no generation sampled


def token_faults(rollout: Rollout, sources: Sources) -> Seen:
    """Look at a rollout; nothing can be told of one that failed, or that has no ids."""
    tokens = rollout.tokens
    if tokens is None or rollout.row.status != Status.OK or not len(tokens.completion_ids):
        return Seen({})
    seen, notes = Seen({}), rollout.metadata.get("notes") or {}
    generations = [
        entry["generation"] | {"text": entry["text"]} for entry in rollout.own_actions if "generation" in entry
    ]
    generations = [
        generation for generation in generations if "error" not in generation and "waiting" not in generation
    ]
    if sources.tokenizer is not None:
        again = sources.tokenizer.encode(sources.decode(tokens.completion_ids), add_special_tokens=False).ids
        seen.drift = _first_difference(tokens.completion_ids, np.array(again, np.int32))
        _look_at_texts(rollout, tokens, sources, seen)
    _look_at_samples(rollout, tokens, generations, sources, seen)
    sampled_ids = tokens.completion_ids if tokens.mask is None else tokens.completion_ids[tokens.mask == 1]
    ends = [generation for generation in generations if "finish" in generation]
    is_ended = bool(ends) and ends[-1]["finish"] == "stop"
    is_ended &= not _STOPS & {*rollout.sampling, *(ends[-1].get("sampling", {}) if ends else ())}
    is_full = (
        len(tokens.completion_ids) >= sources.longest
    )  # TRL's tool loop cuts there what comes after a tool's answer
    if is_ended and not is_full and sources.special and len(sampled_ids):
        seen.faults["End token"] = [] if int(sampled_ids[-1]) in sources.special else ["end_token"]
    if "logprobs" in notes:
        seen.faults["Log-probs"] = ["logprobs_length"]
    elif tokens.logprobs is not None:
        logprobs = tokens.logprobs if tokens.mask is None else tokens.logprobs[tokens.mask == 1]
        seen.logprobs, seen.zeros = int(np.isfinite(logprobs).sum()), int((logprobs == 0).sum())
        seen.faults["Log-probs"] = ["logprobs_positive"] if (logprobs > _ROUNDED).any() else []
    if "env_mask" in notes:
        seen.faults["Mask"] = ["mask_length"]
    return seen


def _look_at_samples(
    rollout: Rollout, tokens: Tokens, generations: Sequence[Any], sources: Sources, seen: Seen
) -> None:
    """Compare the row with what its generations sampled, and the contexts in which they did."""
    size, inserted = len(tokens.prompt_ids), rollout.row.unsampled_tokens
    is_repeated = size > 1 and np.array_equal(tokens.completion_ids[:size], tokens.prompt_ids)
    is_altered = bool(inserted) and any("altered" in generation or "absent" in generation for generation in generations)
    altered = "other_ids"
    # If encoding the row's own text gives the row's ids, and that text holds all answers, the texts were encoded
    # again.
    if is_altered and seen.drift == -1:
        text = _bare(sources.decode(tokens.completion_ids, bare=True))
        is_said = all(
            _bare(generation["text"] or "") in text
            for generation in generations
            if "altered" in generation or "absent" in generation
        )
        altered = "retokenized" if is_said else altered
    seen.is_cut, seen.is_unseen = any("cut" in generation for generation in generations), not generations
    seen.faults["Ids"] = ["repeated_prompt"] * is_repeated + [altered] * (is_altered and not is_repeated)
    if generations and inserted is None:
        _look_at_counts(rollout, tokens, generations, sources, seen)
    if not generations or inserted is None:
        return
    # `masked` counts the tokens that the mask leaves out of answers that it trains on in part. An answer that is left
    # out as a whole is a fault where TRL itself plays, and is only noted elsewhere.
    left_out = [(generation.get("masked", 0), generation.get("tokens", 0)) for generation in generations]
    seen.inserted = inserted
    seen.trained = len(tokens.completion_ids) if tokens.mask is None else int((tokens.mask == 1).sum())
    masked = sum(count for count, size in left_out if count < size or sources.is_own)
    seen.is_masked = not sources.is_own and any(count >= size > 0 for count, size in left_out)
    fault = "mask_sampled" if not inserted else "mask_shifted" if masked else "mask_inserted"
    fault = "mask_missing" if inserted and tokens.mask is None else fault
    seen.faults["Mask"] = [fault] * ((inserted + masked > 0) and not (is_altered or is_repeated))
    contexts = [generation["context"] for generation in generations if "context" in generation]
    seen.faults["Context"] = []
    if contexts and not is_repeated:
        # If the context first differs within a thought, or where one begins, the chat template left the reasoning
        # out.
        before, after = tokens.completion_ids[: min(contexts) - size], tokens.completion_ids[min(contexts) - size :][:8]
        text = "" if min(contexts) < size else sources.decode(before)
        thinks = text.count("<think>") > text.count("</think>") or sources.decode(after).lstrip().startswith("<think>")
        kind = "context_prompt" if min(contexts) < size else "context_reasoning" if thinks else "context"
        seen.faults["Context"] = [kind]


def _look_at_counts(rollout: Rollout, tokens: Tokens, generations: Sequence[Any], sources: Sources, seen: Seen) -> None:
    """Find what is trained on beyond the turns' numbers of tokens; that is a fault if the environment said it."""
    if tokens.mask is not None and (inserted := _count_observed(rollout, tokens, sources)):
        seen.trained, seen.inserted = int(tokens.mask.sum()), inserted
        seen.faults["Mask"] = ["mask_inserted"]
        return
    counts = [generation["tokens"] for generation in generations if "tokens" in generation]
    if len(counts) < max(rollout.row.turns or 0, 2):
        return  # of a single answer nothing is to be masked
    ids = tokens.completion_ids if tokens.mask is None else tokens.completion_ids[tokens.mask == 1]
    more = len(ids) - sum(counts)
    if abs(more) <= _ENDS * len(counts):
        seen.faults["Mask"] = []
    elif more > 0 and _holds_observations(rollout, ids, more, sources, is_masked=tokens.mask is not None):
        seen.trained, seen.inserted = len(ids), more
        seen.faults["Mask"] = ["mask_missing" if tokens.mask is None else "mask_inserted"]


def _count_observed(rollout: Rollout, tokens: Tokens, sources: Sources) -> int:
    """Return how many tokens of observations a mask includes that splits the completion into more pieces than there are
    answers, where a piece is an observation; or into fewer, where one follows its answer within a piece.
    """
    turns, heard = rollout.row.turns or 0, dict[str, tuple[str, str]]()
    if tokens.mask is None or sources.tokenizer is None or not turns:
        return 0
    for entry in rollout.own_actions:
        if len(bare := _bare(text := observed_text(entry["observation"]) or "")) >= _PIECE:
            heard[bare] = text, re.escape(_bare(entry["text"] or ""))
    cuts = np.flatnonzero(np.diff(tokens.mask)) + 1
    split = zip(np.split(tokens.completion_ids, cuts), np.split(tokens.mask, cuts), strict=True)
    pieces = [_bare(sources.decode(ids, bare=True)) for ids, mask in split if mask[0] == 1]
    trained = [heard[piece][0] for piece in pieces if piece in heard] * (len(pieces) > turns)
    for bare, (text, answer) in heard.items() if len(pieces) < turns else ():
        is_behind = re.compile(f"{answer}.{{,{_GAP}}}{re.escape(bare)}").search
        trained += [text] * (len(answer) >= _PIECE and any(map(is_behind, pieces)))
    return sum(len(sources.tokenizer.encode(text, add_special_tokens=False).ids) for text in trained)


def _holds_observations(rollout: Rollout, ids: Any, more: int, sources: Sources, *, is_masked: bool) -> bool:
    """Return True if these ids hold what the environment said before the last answer, besides all answers."""
    actions, last = rollout.own_actions, rollout.row.turns or 0
    heard = [_bare(observed_text(entry["observation"]) or "") for entry in actions if 0 < entry["turn"] < last]
    if sources.tokenizer is None:
        least = max(_MARKUP * len(heard), sum(map(len, heard)) / _DENSE, _MORE * (len(ids) - more))
        return any(heard) and not is_masked and more >= least
    text = _bare(sources.decode(ids, bare=True))
    for entry in actions:
        text = text.replace(_bare(entry["text"] or ""), "", 1)
    return any(heard) and all(observation in text for observation in heard)


def _look_at_texts(rollout: Rollout, tokens: Tokens, sources: Sources, seen: Seen) -> None:
    """Compare decoded ids with what reward functions were handed, with the dataset's prompt, and with tools' names."""
    faults = seen.faults
    text, prompt, key = (
        sources.decode(tokens.completion_ids, bare=True),
        sources.decode(tokens.prompt_ids),
        rollout.row.handed_key,
    )
    if key is not None:
        is_empty = key == text_key("") and bool(_TAGS.sub("", text).strip())
        keys = {text_key(text), text_key(_CLEANED.sub(r"\1\2", text))}
        is_other = not is_empty and rollout.row.handed == Handed.TEXT and key not in keys
        faults["Scored text"] = ["handed_empty"] * is_empty + ["handed_other"] * is_other
    dataset_prompt = rollout.metadata.get("dataset_prompt")
    dataset_texts = [
        part
        for part in map(_content, [dataset_prompt] if isinstance(dataset_prompt, str) else dataset_prompt or ())
        if part
    ]
    if rollout.row.sent_prompt is not None:
        faults["Prompt"] = []
        messages = rollout.messages[: first_answer(rollout.messages, rollout.row.turns)]
        sent_key = text_key("".join(map(_content, messages)))
        seen.asked = text_key("".join(dataset_texts)) if dataset_texts else sent_key
        seen.sent = sent_key if rollout.row.sent_prompt == SentPrompt.OTHER else None
    if rollout.row.sent_prompt == SentPrompt.OTHER and dataset_texts:
        # A prompt that is cut begins in the midst of the dataset's, and ends as it does.
        sent = _ROLE.sub("", _bare(sources.decode(tokens.prompt_ids, bare=True)))
        is_within = sent[:_PIECE] in "".join(dataset_texts)[1:] and dataset_texts[-1][-_PIECE:] in sent
        is_end = any(sent.startswith(dataset_texts[-1][-size:]) for size in range(_SHORT, _PIECE + 1))
        faults["Prompt"] = ["prompt_cut_left"] * ((is_within or is_end) and not sent.startswith(dataset_texts[0]))
    actions = [entry["action"] for entry in rollout.own_actions if entry["turn"] and isinstance(entry["action"], dict)]
    names = sources.tools | {str(action["name"]) for action in actions if action.keys() == {"name", "arguments"}} - {
        "get_reward"
    }
    if names:
        faults["Tools"] = [] if any(name in prompt for name in names) else ["template_tools"]


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return _SPACES.sub("", str(content or ""))


def _bare(text: str) -> str:
    return _SPACES.sub("", _TAGS.sub("", text))


def _first_difference(ids: Any, others: Any) -> int:
    size = min(len(ids), len(others))
    differ = np.flatnonzero(ids[:size] != others[:size])
    if len(differ):
        return int(differ[0])
    return -1 if len(ids) == len(others) else size
