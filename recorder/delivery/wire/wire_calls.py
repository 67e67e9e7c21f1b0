"""The calls that were seen while a rollout function ran, as what MessagePack holds, and back."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from logs_ui.recorder.capture.calls import CallLog, EnvironmentCall, Generation, Note, TokenBatch
from logs_ui.recorder.capture.calls import Sequence as Answer
from logs_ui.recorder.capture.observed_images import Images
from logs_ui.recorder.capture.strands import Strand, StrandTree
from logs_ui.recorder.snapshot import is_shallow, snapshot
from logs_ui.recorder.storage.changes import StoredImage
from logs_ui.recorder.vocabulary import StopReason

_of_generation = attrgetter("order", "began", "seconds", "seam", "error", "request_id", "asked", "reason")
_of_answer = attrgetter("finish", "text", "messages", "reply", "prompt_tokens", "completion_tokens")
_of_environment_call = attrgetter(
    *("order", "began", "seconds", "client", "kind", "sent", "reward", "done", "metadata", "error", "within", "reason")
)


def sent_calls(log: CallLog) -> list[Any]:
    """Strands, generations, environment calls, notes."""
    strands: dict[int, list[Any]] = {}
    generations = [
        [
            _of_generation(call), _sent_answers(call.sequences), _sent_sampling(call.sampling),
            _sent_strand(call.strand, strands),
        ]
        for call in log.generations
    ]  # fmt: skip
    environment_calls = [_sent_environment_call(call, strands) for call in log.environment_calls]
    notes = [[call.order, call.kind, call.values, _sent_strand(call.strand, strands)] for call in log.notes]
    return [list(strands.values()), generations, environment_calls, notes]


def _sent_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """As it is stored: MessagePack writes some of what JSON lacks, as dates and sets, in words of its own."""
    if not sampling or is_shallow(sampling):
        return sampling
    told: dict[str, Any] = orjson.loads(snapshot(sampling))
    return told


def received_calls(sent: list[Any]) -> CallLog:
    strands, generations, environment_calls, notes = sent
    log = CallLog()
    known = _received_strands(strands, log.tree)
    for (order, began, seconds, *further), answers, sampling, strand in generations:
        seam, error, request_id, asked, reason = further
        sequences = _received_answers(answers)
        of_strand = known.get(strand)
        log.generations.append(
            Generation(
                order, began, seconds, sequences, sampling, seam, of_strand, error, request_id, asked, _reason(reason)
            )
        )
    log.environment_calls.extend([_received_environment_call(call, known) for call in environment_calls])
    log.notes.extend([Note(order, kind, values, known.get(strand)) for order, kind, values, strand in notes])
    return log


def _sent_answers(answers: Sequence[Answer]) -> list[Any] | dict[str, Any]:
    """A batch as it is: its sequences are made where it is received."""
    if type(answers) is not TokenBatch:
        return list(map(_sent_answer, answers))
    arrays = {name: getattr(answers, name) for name in ("given", "kept", "answers")}
    sent = {name: None if array is None else [array.shape, array.tobytes()] for name, array in arrays.items()}
    return sent | {"ends": answers.ends, "pad": answers.pad, "limit": answers.limit}


def _received_answers(sent: list[Any] | dict[str, Any]) -> Sequence[Answer]:
    if isinstance(sent, list):
        return list(map(_received_answer, sent))
    kinds = {"given": np.int32, "kept": np.bool_, "answers": np.int32}
    arrays = {
        name: None if sent[name] is None else np.frombuffer(sent[name][1], kind).reshape(sent[name][0])
        for name, kind in kinds.items()
    }
    return TokenBatch(**arrays, ends=tuple(sent["ends"]), pad=sent["pad"], limit=sent["limit"])  # type: ignore[arg-type]


def _sent_answer(answer: Answer) -> list[Any]:
    context, sampled, logprobs = answer.context, answer.sampled, answer.logprobs
    if context is None and sampled is None and logprobs is None:  # as of a server that returns text alone
        return [_of_answer(answer), None]
    return [_of_answer(answer), [_bytes(context), _bytes(sampled), None if logprobs is None else logprobs.tobytes()]]


def _received_answer(sent: list[Any]) -> Answer:
    (finish, *rest), arrays = sent
    if arrays is None:
        return Answer(None, None, finish, None, *rest)
    context, sampled, logprobs = arrays
    probabilities = None if logprobs is None else np.frombuffer(logprobs, np.float32)
    return Answer(_ids(context), _ids(sampled), finish, probabilities, *rest)


def _sent_environment_call(call: EnvironmentCall, strands: dict[int, list[Any]]) -> list[Any]:
    observation, images = call.observation, None
    if call.images is not None and observation is not None:
        observation = call.images.json(observation)
        images = [[image.hash, image.media_type, image.width, image.height, image.data] for image in call.images.found]
    return [_of_environment_call(call), observation, _sent_strand(call.strand, strands), images]


def _received_environment_call(sent: list[Any], strands: dict[int | None, Strand]) -> EnvironmentCall:
    (order, began, seconds, client, kind, was_sent, *further), observation, strand, images = sent
    reward, done, metadata, error, within, reason = further
    known = None
    if images is not None and observation is not None:
        known = Images.known(observation, [StoredImage(*image) for image in images])
    return EnvironmentCall(
        order, began, seconds, client, kind, was_sent, observation, reward, done, metadata, error,
        strands.get(strand), within, known, _reason(reason),
    )  # fmt: skip


def _reason(name: str | None) -> StopReason | None:
    return None if name is None else StopReason(name)


def _sent_strand(strand: Strand | None, strands: dict[int, list[Any]]) -> int | None:
    """Its number; it and those above it are in `strands` then, parents first."""
    if strand is None:
        return None
    if strand.number not in strands:
        parent = _sent_strand(strand.parent, strands)
        marks = strand.generating, strand.call, strand.is_stray, strand.is_unseen
        strands[strand.number] = [strand.number, parent, strand.row, *marks]
    return strand.number


def _received_strands(sent: list[Any], tree: StrandTree) -> dict[int | None, Strand]:
    strands: dict[int | None, Strand] = {}
    for number, parent, *marks in sent:
        strands[number] = Strand(tree, strands.get(parent), number, *marks)
    return strands


def _bytes(ids: NDArray[np.int32] | None) -> bytes | None:
    return None if ids is None else ids.astype(np.int32, copy=False).tobytes()


def _ids(data: bytes | None) -> NDArray[np.int32] | None:
    return None if data is None else np.frombuffer(data, np.int32)
