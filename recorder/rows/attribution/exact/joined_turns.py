"""Find rows whose function returned the prompts of all turns one after the other, and so the answers.

TRL's examples did so up to 0.29, as OpenEnv's harness does. If the ids of several calls make up exactly a row's prompt
and its completion, these are its turns.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens
from logs_ui.recorder.rows.attribution.prefixes import bytes_of

Part = tuple[Generation, Sequence]


def take_joined(chains: Seq[Chain], tokens: Seq[RowTokens]) -> tuple[list[Chain], dict[int, Chain]]:
    """Return the chains without the turns of such rows, and these turns as one chain by the index of the row."""
    by_context: dict[bytes, list[Part]] = defaultdict(list)
    for part in (part for chain in chains if chain.row is None for part in chain.parts):
        if context := bytes_of(part[1].context):
            by_context[context].append(part)
    lengths = sorted({len(context) for context in by_context})
    used: set[int] = set()
    joined: dict[int, Chain] = {}
    for index, row in enumerate(tokens):
        parts = _turns_of(row, by_context, lengths, used)
        if parts:
            used.update(id(sequence) for _, sequence in parts)
            joined[index] = Chain(None, index, True, parts)
    if not joined:
        return list(chains), joined
    rest: list[Chain] = []
    for chain in chains:
        is_left = [id(sequence) not in used for _, sequence in chain.parts]
        rest += [chain] if all(is_left) else [piece for piece, left in zip(chain.split(), is_left, strict=True) if left]
    return rest, joined


def _turns_of(row: RowTokens, by_context: Mapping[bytes, Seq[Part]], lengths: Seq[int], used: set[int]) -> list[Part]:
    """Return the row's turns in the order in which they were asked; none if they are fewer than two."""
    # Each turn takes its context from the beginning of what is left of the prompt, and its answer from the
    # beginning of what is left of the completion. Of several that fit, the earliest is taken.
    prompt, completion, turns = row.prompt_data, row.data[len(row.prompt_data) :], list[Part]()
    while prompt:
        fitting = [
            (generation, sequence)
            for length in lengths[: bisect_right(lengths, len(prompt))]
            for generation, sequence in by_context.get(prompt[:length], ())
            if id(sequence) not in used and (not turns or generation.order > turns[-1][0].order)
            and (answer := bytes_of(sequence.sampled)) and completion.startswith(answer)
        ]  # fmt: skip
        if not fitting:
            return []
        turns.append(min(fitting, key=lambda part: part[0].order))
        prompt = prompt[len(bytes_of(turns[-1][1].context) or b"") :]
        completion = completion[len(bytes_of(turns[-1][1].sampled) or b"") :]
    return turns if len(turns) > 1 and not completion else []
