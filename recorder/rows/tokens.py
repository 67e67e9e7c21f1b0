"""Finds the tokens and log-probs of rows, and decodes the tokens of many rows together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.storage.payload import Tokens


def spelling_of(call: RolloutCall) -> chat_parser.Spelling | None:
    """Return a spelling with the texts of all recorded answers, decoded together, and without the stop text where the
    server left it out; None without a tokenizer.
    """
    if call.source is None:
        return None
    spelling = None
    with guard("spelling answers"):
        spelling = chat_parser.Spelling(call.source.tokenizer)
        answers = [
            (generation.sampling.get("stop"), sequence)
            for generation in call.calls.generations
            for sequence in generation.sequences
        ]
        spelling.learn([answer.sampled for _, answer in answers if answer.sampled is not None], [])
        for stop, answer in answers:
            if stop and answer.sampled is not None and answer.text is not None and answer.finish == "stop":
                whole = spelling.of(answer.sampled)
                # The ids include the stop text, which the server left out of its own text: the answer is cut at the
                # stop text that gives the server's text.
                ends = [whole.rfind(text) for text in ([stop] if isinstance(stop, str) else stop) if text in whole]
                spelling.cut(
                    answer.sampled, next((whole[:end] for end in ends if whole[:end].endswith(answer.text)), whole)
                )
    return spelling


def spell_rows(
    spelling: chat_parser.Spelling | None, rows: Sequence[RowCalls], tokens: Sequence[Tokens | None]
) -> None:
    """Decode the rows' completions together, for `encoded`. Do nothing without a spelling."""
    if spelling is None:
        return
    spans: dict[bool, list[Ids]] = {True: [], False: []}
    for row, arrays in zip(rows, tokens, strict=True):
        for sampled, ids in () if arrays is None else chat_parser.spans(arrays.completion_ids, known_mask(row, arrays)):
            spans[sampled].append(ids)
    spelling.learn(spans[True], spans[False])


def unfinished_tokens(row: RowCalls) -> Tokens | None:
    """Return the tokens of a row whose function returned none, from the longest chain of its generations, the last of
    several: the first context is the prompt, and what follows is the completion. Tokens of calls outside the chain are
    left out, such as a planner's before the actor's, or those before a context window moved on. None if the server
    returned no ids.
    """
    in_chain = [turn for turn in row.turns if turn.start is not None]
    if not in_chain:
        return None
    context, sampled, start = in_chain[-1].sequence.context, in_chain[-1].sequence.sampled, in_chain[-1].start
    if context is None or sampled is None or start is None:
        return None
    prompt = len(context) - start
    completion: Ids = np.concatenate([context[prompt:], sampled])
    return Tokens(context[:prompt], completion, None, _mask(row, completion))


def all_sampled(row: RowCalls) -> dict[str, int]:
    """Return the column of tokens sampled in all calls of such a row; nothing if the count of a call is not known."""
    counts = [sequence.tokens for turn in row.turns for sequence in (turn.sequence, *turn.others)]
    recorded = [count for count in counts if count is not None]
    return {"completion_tokens": sum(recorded)} if recorded and len(recorded) == len(counts) else {}


def joined_turns(row: RowCalls, tokens: Tokens) -> list[tuple[Ids, Ids]]:
    """Return prompts and answers of the row's turns if its prompt is those of all of them; nothing otherwise."""
    arrays = [(turn.sequence.context, turn.sequence.sampled) for turn in row.turns]
    pairs = [(context, sampled) for context, sampled in arrays if context is not None and sampled is not None]
    if len(pairs) < max(2, len(arrays)) or sum(len(context) for context, _ in pairs) != len(tokens.prompt_ids):
        return []
    return pairs if np.array_equal(np.concatenate([context for context, _ in pairs]), tokens.prompt_ids) else []


def known_mask(row: RowCalls, tokens: Tokens) -> NDArray[np.uint8] | None:
    """Return the mask that the function returned, else one inferred from the turns; None if there is neither."""
    if tokens.mask is None and row.turns and all(turn.start is not None for turn in row.turns):
        return _mask(row, tokens.completion_ids)
    return tokens.mask


def _mask(row: RowCalls, completion: Ids) -> NDArray[np.uint8]:
    """Return the (C,) mask: 1 at tokens that a turn sampled, whose end token a new tokenisation may have dropped."""
    mask = np.zeros(len(completion), np.uint8)
    for turn in row.turns:
        if turn.start is not None and turn.sequence.sampled is not None:
            end = turn.start + len(turn.sequence.sampled)
            is_whole = np.array_equal(completion[turn.start : end], turn.sequence.sampled)
            mask[turn.start : end if is_whole else end - 1] = 1  # without its end token
    return mask


def trained_otherwise(turn: Turn, tokens: Tokens) -> dict[str, Any]:
    """Compare a turn as the row's tokens have it with how it was sampled: nothing where they are alike, or where ids
    are not known. `masked`: how many of its tokens the mask leaves out; `altered`: True if its ids are others; `cut`:
    how many of its last tokens the completion lacks; `absent`: True if the completion does not hold it; `context`: the
    place in the prompt and completion at which its context was another.
    """
    sampled, context, start = turn.sequence.sampled, turn.sequence.context, turn.start
    if sampled is None or (start is not None and start > len(tokens.completion_ids)):
        return {}
    if start is None:
        return {"absent": True}
    differences: dict[str, Any] = {}
    trained = tokens.completion_ids[start : start + len(sampled)]
    # Its end token may be another, or missing.
    shared = len(trained) - (len(trained) == len(sampled) and trained[-1:].tolist() != sampled[-1:].tolist())
    if not np.array_equal(trained[:shared], sampled[:shared]):
        differences["altered"] = True
    elif (cut := len(sampled) - len(trained)) > 1:
        differences["cut"] = cut
    elif tokens.mask is not None and (masked := int(np.count_nonzero(tokens.mask[start : start + shared] == 0))):
        differences["masked"] = masked
    if context is not None:
        before = np.concatenate([tokens.prompt_ids, tokens.completion_ids[:start]])
        size = min(len(before), len(context))
        differ = np.flatnonzero(before[:size] != context[:size])
        if len(differ) or len(before) != len(context):
            differences["context"] = int(differ[0]) if len(differ) else size
    return differences


def unsampled(row: RowCalls, tokens: Tokens | None) -> dict[str, int]:
    """Return the column of tokens that are the model's by their mask, and that no generation sampled; nothing if none
    was seen, or one without ids.
    """
    if tokens is None or not (row.turns or row.failures) or any(turn.sequence.sampled is None for turn in row.turns):
        return {}
    others = _mask(row, tokens.completion_ids) == 0
    is_masked = tokens.mask is not None and len(tokens.mask) == len(others)
    return {"unsampled_tokens": int(np.count_nonzero(others & (tokens.mask == 1) if is_masked else others))}


def with_logprobs(row: RowCalls, tokens: Tokens | None) -> Tokens | None:
    """Return the tokens with the log-probs of the row's turns, and NaN at all tokens that no turn sampled. Tokens that
    have log-probs stay as they are; so do all if no turn has any.
    """
    if tokens is None or tokens.logprobs is not None or not row.turns:
        return tokens
    ids = tokens.completion_ids
    logprobs = None
    for turn in row.turns:
        sampled, recorded, start = turn.sequence.sampled, turn.sequence.logprobs, turn.start
        if recorded is None or sampled is None or start is None or len(recorded) != len(sampled):
            continue
        returned = ids[start : start + len(sampled)]
        length = len(returned)  # less if the row's end cut it off
        if length == len(sampled) and not np.array_equal(returned, sampled):
            length -= 1  # without its end token
        if not length or not np.array_equal(returned[:length], sampled[:length]):
            continue  # the function returned other ids there
        if logprobs is None:
            logprobs = np.full(len(ids), np.nan, np.float16)
        with np.errstate(over="ignore"):  # float16 has no number below -65,504: such a log-prob becomes -inf
            logprobs[start : start + length] = recorded[:length]
    return tokens if logprobs is None else replace(tokens, logprobs=logprobs)
