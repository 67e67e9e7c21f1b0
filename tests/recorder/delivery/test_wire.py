"""A job that goes to the helper process arrives there with the same values, to the bit."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs_ui.recorder.capture.rollout_output import Output, checked_output
from logs_ui.recorder.delivery.helper import pipe
from logs_ui.recorder.delivery.wire.arrays import extended, plain_array, received_output, sent_output
from logs_ui.recorder.storage.payload import Tokens

ENCODER = msgspec.msgpack.Encoder(enc_hook=plain_array)
DECODER = msgspec.msgpack.Decoder(Output, ext_hook=extended)

WHOLE = st.integers(-200, 200) | st.integers(-(2**31) - 2, 2**31 + 1) | st.booleans()
FLOATS = st.floats() | st.sampled_from([-0.0, 5e-324, -1e300])
ODD = WHOLE | FLOATS | st.none() | st.lists(FLOATS | st.none(), max_size=2)


def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=20)


def output_of(ids: list[Any], logprobs: Any, mask: Any) -> Output:
    returned = {"prompt_ids": [[1]], "completion_ids": [[*ids, 7]], "logprobs": logprobs, "env_mask": mask}
    return checked_output(returned, 1)


def by_wire(output: Output) -> Output:
    return received_output(DECODER.decode(ENCODER.encode(sent_output(output))))


def bits(output: Output) -> Any:
    """All of row 0's arrays, and their lengths; what its ids raise where they are none."""
    try:
        tokens = output.tokens(0)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)
    arrays = [getattr(tokens, name) for name in Tokens.__dataclass_fields__]
    return [None if array is None else (array.dtype, array.shape, array.tobytes()) for array in arrays], output.lengths(
        0
    )


@given(rows(WHOLE), st.none() | rows(FLOATS) | rows(ODD), st.none() | rows(st.integers(0, 1)) | rows(ODD))
def test_every_row_arrives_as_the_arrays_that_it_would_be_here(
    ids: list[Any], logprobs: list[Any] | None, mask: list[Any] | None
) -> None:
    given = (None if row is None else [(row * 21 + [0.5])[: len(ids) + 1]] for row in (logprobs, mask))
    here = output_of(ids, *given)
    assert bits(by_wire(here)) == bits(here)


@given(rows(ODD))
def test_ids_that_are_none_arrive_as_they_are(ids: list[Any]) -> None:
    here = output_of(ids, [[0.5]], None)
    assert bits(by_wire(here)) == bits(here)


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("value", [0.25, float("nan"), True, 127, 128, -1, None])
def test_lists_of_any_length_arrive_whole(count: int, value: Any) -> None:
    here = output_of([3] * (count - 1), [[value] * count], [[value] * count])
    assert bits(by_wire(here)) == bits(here)


def test_a_nan_keeps_its_bits() -> None:
    odd = np.array([0xFFF8_0000_0000_1234, 0x7FF4_0000_0000_0001], np.uint64).view(np.float64).tolist()
    here = output_of([3], [odd], None)
    rows_there = by_wire(here).logprobs
    assert rows_there is not None
    assert rows_there[0].tobytes() == np.array(odd).tobytes()


def test_arrays_arrive_with_their_type() -> None:
    arrays = [np.arange(3, dtype=dtype) for dtype in (np.int64, np.uint16, np.float32, np.float16)]
    here = Output(arrays[:1], arrays[1:2], arrays[2:3], arrays[3:], b"{}", frozenset(), 0)
    there = by_wire(here)
    assert there.logprobs is not None
    assert there.env_mask is not None
    received = [there.prompt_ids[0], there.completion_ids[0], there.logprobs[0], there.env_mask[0]]
    assert [(array.dtype, array.tobytes()) for array in received] == [(it.dtype, it.tobytes()) for it in arrays]


def test_what_is_no_row_at_all_arrives_too() -> None:
    here = Output([(1,)], [()], [()], [(None, "x")], b"{}", frozenset({"a"}), 5)
    there = by_wire(here)
    assert (there.completion_ids[0].tolist(), there.logprobs, there.env_mask) == ([], [()], [(None, "x")])
    assert (there.others, there.lists, there.size) == (here.others, here.lists, here.size)


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 70_000, 5], [300_000], [9, 600_000, 3, 262_144, 1, 1]])
def test_frames_arrive_whole_and_in_order(sizes: list[int]) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    here, there = Pipe()

    def send() -> None:
        pipe.send(here, ("parcel", 1), frames)
        pipe.send(here, ["counts"])

    with here, there, ThreadPoolExecutor(1) as sender:
        sending = sender.submit(send)
        assert pipe.received(there) == ["parcel", 1, *frames]
        assert pipe.received(there) == ["counts"]
        sending.result()


def test_numbers_that_take_as_many_bytes_as_floats_are_none() -> None:
    """MessagePack sends a whole number beyond 32 bits in nine bytes, as it does a float."""
    output = output_of([1], [[0.5, 2**40]], None)
    assert bits(by_wire(output)) == bits(output)
