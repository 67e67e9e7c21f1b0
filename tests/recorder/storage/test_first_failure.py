"""Several ranks end one run: it shows what failed first, in whatever order their processes write."""

from itertools import permutations

from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import RunChange
from tests.support.changes import begun, stored, write

BOOM = ("failed", 50, "ValueError: boom", "of the cause")
LATER = ("failed", 70, "OSError: disk full", "of another rank")
STOPPED = ("interrupted", 60, "KeyboardInterrupt", "of a rank that was stopped")
FINISHED = ("finished", 80, None, None)
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5"
)
NCCL = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error"
STORE = "DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed."
HTTP = "ConnectionResetError: [Errno 104] Connection reset by peer"
End = tuple[str, int, str | None, str | None]


def ended(end: End, uid: str = "r") -> RunChange:
    state, finished, error, traceback = end
    why = {} if error is None else {"error": error, "traceback": traceback}
    return RunChange(uid, {"state": state, "finished": finished, "heartbeat": finished, **why})


def follow_on(error: str, finished: int = 55) -> End:
    return ("failed", finished, error, "of a consequence")


# What each rank ended with, and what the run shows.
ENDS: list[tuple[tuple[End, ...], End]] = [
    ((BOOM, LATER, STOPPED), BOOM),
    ((BOOM, follow_on(GLOO), FINISHED), BOOM),
    ((BOOM, follow_on(NCCL), follow_on(GLOO, 54)), BOOM),
    ((BOOM, follow_on(GLOO, 49)), BOOM),  # of a host whose clock is behind
    ((BOOM, follow_on(STORE, 50)), BOOM),
    ((follow_on(GLOO, 55), follow_on(NCCL, 57)), follow_on(GLOO, 55)),  # nobody saw the cause
    ((follow_on(HTTP, 40), follow_on(GLOO)), follow_on(HTTP, 40)),  # of an environment
    ((STOPPED, follow_on(GLOO, 62), FINISHED), STOPPED),
    ((FINISHED, ("finished", 80, None, None)), FINISHED),
]


def test_the_first_failure_is_what_a_run_shows(address: Address) -> None:
    writer = begun(address)
    orders = [(order, shown) for ends, shown in ENDS for order in permutations(ends)]
    for number, (order, _) in enumerate(orders):
        uid = f"r{number:02}"
        write(writer, RunChange(uid, {"name": "r", "created": 1, "heartbeat": 1}), *(ended(end, uid) for end in order))
    shown_by_run = stored(address, "select state, finished, error, traceback from run where uid <> 'r' order by uid")
    assert shown_by_run == [shown for _, shown in orders]


def test_why_a_training_was_stopped_stays(address: Address) -> None:
    writer = begun(address, RunChange("r", {"error": "stopped by a card"}))
    write(writer, ended(FINISHED))
    assert stored(address, "select state, error from run") == [("finished", "stopped by a card")]
