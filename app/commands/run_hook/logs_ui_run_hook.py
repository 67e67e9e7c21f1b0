"""The hook of `logs-ui run`: waits in each Python process for TRL's trainers, and has all of them recorded.

`sitecustomize.py` starts it before the program, in environments that may have no logs-ui, and where most programs never
import TRL: it imports nothing then but what Python itself has loaded. Processes share a file to which each appends what
it came to, a line each. From it the first process, or a watcher if that is no Python, tells at the end why nothing was
recorded.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "LOGS_UI_HOOK"
"""Environment variable: PID of the first process, a colon, and the path of the file that all processes append to."""

EVAL_NAME = "LOGS_UI_HOOK_EVAL_NAME"
"""Environment variable: the option `eval_name` of all recordings; empty for none."""

_REASONS = (
    ("recorded", ""),
    ("failed", "the recorder did not start ({})"),
    ("trained", "{} trained, but sampled no completions"),
    ("other", "logs-ui does not record {}: it records GRPO, RLOO, OnlineDPO and AsyncGRPO trainers"),
    ("trl", "TRL's trainers were imported, but neither train() nor evaluate() of one was called"),
    ("python", "TRL's trainers were never imported"),
    ("", "no Python 3.11 or later was started that logs-ui can reach (python -I, -E and -S cannot be reached)"),
)
"""What a process comes to, and why nothing is recorded if none came further; the furthest first."""


def start() -> None:
    """Begin to wait for TRL, if `logs-ui run` started this process."""
    root, _, events_path = os.environ.get(VARIABLE, "").partition(":")
    if not root:
        return
    note("python")
    sys.meta_path.insert(0, _AtTrl())
    if os.getpid() == int(root):
        # Registered first, it runs last; in a forked child it does nothing.
        atexit.register(lambda: report(events_path) if os.getpid() == int(root) else None)


def note(line: str) -> None:
    """Append a line to the file that all processes share; do nothing once that was read."""
    try:
        file = os.open(os.environ.get(VARIABLE, "").partition(":")[2], os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{line}\n".encode())
        os.close(file)
    except OSError:
        pass


def watch(root: int, events_path: str) -> None:
    """Wait for the end of the first process, and do then what it could not do itself: see `report`."""
    import select as waiting

    selects: Any = waiting  # each system has its own functions
    try:
        if hasattr(os, "pidfd_open"):
            selects.select([os.pidfd_open(root)], [], [])
        else:
            end = selects.kevent(root, selects.KQ_FILTER_PROC, selects.KQ_EV_ADD, selects.KQ_NOTE_EXIT)
            selects.kqueue().control([end], 1)
    except OSError:  # it has ended
        pass
    report(events_path)


def report(events_path: str) -> None:
    """Print why nothing was recorded, unless something was. Only the first call does, of all processes."""
    try:
        # A file can be renamed only once, so that a single process goes on, whichever comes first.
        os.rename(events_path, events_path + ".read")
        with open(events_path + ".read", encoding="utf-8") as file:
            lines = file.read().splitlines()
        os.remove(events_path + ".read")
    except OSError:
        return
    details_by_kind: dict[str, list[str]] = {}
    for line in lines:
        kind, _, detail = line.partition(" ")
        details_by_kind.setdefault(kind, []).append(detail)
    kind, reason_form = next(
        (kind, reason_form) for kind, reason_form in _REASONS if kind in details_by_kind or not kind
    )
    if reason_form:
        reason = reason_form.format(", ".join(dict.fromkeys(details_by_kind.get(kind, ()))))
        sys.stderr.write(f"logs-ui: nothing was recorded: {reason}.\n")


class _AtTrl:
    """A finder of modules that finds none, and attaches the recorder right before TRL's trainers are imported: other
    packages look for `trl`, and do not import it.
    """

    waits = True

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if self.waits and name == "trl.trainer":
            self.waits = False
            _attach()


def _attach() -> None:
    """Record every trainer of this process from now on; say in a line why, if it cannot."""
    note("trl")
    try:
        from logs_ui.recorder.api.record_trainer import record_every_trainer, samples_completions
        from logs_ui.recorder.capture.instruments import trl

        def begins(trainer: Any) -> None:
            note(f"{'trained' if samples_completions(trainer) else 'other'} {type(trainer).__name__}")

        trl.at_start(begins)
        record_every_trainer(eval_name=os.environ.get(EVAL_NAME) or None)
        sys.excepthook = _without_our_frames(sys.excepthook)
    except Exception as error:  # noqa: BLE001 - the program must run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in {"logs_ui", "logs_ui.recorder"}
        reason = f"{sys.executable} has TRL, but no logs-ui: install it there" if is_missing else reason
        note(f"failed {reason}")
        sys.stderr.write(f"logs-ui: process {os.getpid()} is not recorded: {reason}\n")


def _without_our_frames(excepthook: Any) -> Any:
    """Return an excepthook to which tracebacks come as they are where nothing is recorded."""
    ours = (os.path.dirname(__file__), os.path.dirname(str(sys.modules["logs_ui.recorder"].__file__)))

    def hook(kind: Any, error: Any, _: Any) -> Any:
        # Causes, contexts and the members of a group have tracebacks of their own, from which our frames are taken
        # as well.
        waiting, seen = [error], set()
        while waiting:
            exception = waiting.pop()
            if exception is None or id(exception) in seen:
                continue
            seen.add(id(exception))
            frames, trace = [], exception.__traceback__
            while trace is not None:
                frames += [] if trace.tb_frame.f_code.co_filename.startswith(ours) else [trace]
                trace = trace.tb_next
            for outer, inner in zip(frames, [*frames[1:], None], strict=True):
                outer.tb_next = inner
            exception.__traceback__ = frames[0] if frames else None
            waiting += [exception.__cause__, exception.__context__]
            waiting += exception.exceptions if isinstance(exception, BaseExceptionGroup) else ()
        return excepthook(kind, error, error.__traceback__)

    return hook


if __name__ == "__main__":  # the process beside a program
    watch(int(sys.argv[1]), sys.argv[2])
