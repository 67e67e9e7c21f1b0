"""Implements `logs-ui run`, which records what a program trains without a change to it.

The program takes this process's place (`exec`), so that its PID, signals, exit code, stdin and everything that it sees
of itself are as without it. A hook in PYTHONPATH attaches the recorder, in it and in all Python processes that it
starts: see `run_hook/`.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from logs_ui.app.commands.run_hook import logs_ui_run_hook as hook
from logs_ui.app.commands.terminal import Database, err
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address, as_text, database_address
from logs_ui.recorder.storage.portable import IS_WINDOWS

_HOOK = Path(hook.__file__)


def run(
    program: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="The script, or after -- a command, and its arguments."),
    ],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in `python -m`.")] = False,  # noqa: FBT002 - a flag
    eval_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the environment, benchmark or dataset of the rollouts.")
    ] = None,
    project: Annotated[str | None, typer.Option(metavar="NAME", help="Project of the runs.")] = None,
    db: Database = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the dashboard until the program ends.")] = False,  # noqa: FBT002 - a flag
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the dashboard; 0 picks a free one.")
    ] = 0,
) -> None:
    """Run a script, a module (-m), or any command (after --), and record TRL's GRPO, RLOO, OnlineDPO and AsyncGRPO
    trainers in it.

    The program behaves as without logs-ui run: its arguments, input, output, signals and exit code are the same.
    Processes that it starts are recorded too, such as the ranks of `accelerate launch`. Options come before the script.
    """
    if IS_WINDOWS:
        raise LogsUIError("logs-ui run needs Linux, macOS or WSL. On Windows, call record_trainer() in the script.")
    from logs_ui.recorder.delivery.writer import check_settings
    from logs_ui.recorder.storage.database import refuse_hopeless

    # The parser takes the `--` away, so it is looked for among the arguments of this process, right before the
    # program.
    is_command = sys.argv[-len(program) - 1] == "--" and not module
    command = program if is_command else [sys.executable, *(["-m"] if module else []), *program]
    if not is_command and not module and not Path(program[0]).exists() and shutil.which(program[0]):
        raise LogsUIError(
            f"{program[0]} is a command, not a Python script. Put -- before it: logs-ui run -- {program[0]} ..."
        )
    check_settings()
    address = database_address(db)
    refuse_hopeless(address)
    variables = {
        "LOGS_UI_DB": as_text(address) if db or "LOGS_UI_DB" in os.environ else None,
        "LOGS_UI_PROJECT": project,
    }
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    file, events_path = tempfile.mkstemp(prefix="logs-ui-run-")
    os.close(file)
    try:
        _stay_beside(events_path, address if serve else None, port)
        os.environ |= {hook.VARIABLE: f"{os.getpid()}:{events_path}", hook.EVAL_NAME: eval_name or ""}
        path = [str(_HOOK.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        for ignored in {"SIGPIPE", "SIGXFSZ"} & set(dir(signal)):  # by Python: a program would go on to ignore them
            signal.signal(getattr(signal, ignored), signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - the user's command
    except OSError as error:
        raise LogsUIError(f"{command[0]} cannot be started: {error.strerror}") from error
    finally:
        Path(events_path).unlink(missing_ok=True)


def _stay_beside(events_path: str, dashboard_db: "Address | None", port: int) -> None:
    """Start a process that watches the program, is no child of it, and gets no signal from its terminal. It reports
    for a program that is no Python, or was killed; and serves the dashboard of that database. Raise LogsUIError.
    """
    root = os.getpid()
    read_end, write_end = os.pipe()
    # The process forks twice, and the child ends at once: so the grandchild, which watches, is no child of the
    # program. The pipe brings the dashboard's address or an error; without a dashboard it just closes.
    if starter := os.fork():
        os.close(write_end)
        os.waitpid(starter, 0)
        with os.fdopen(read_end) as pipe:
            message = pipe.read()
        if dashboard_db and not message.startswith("http://"):
            raise LogsUIError(message or "The dashboard did not start.")
        if dashboard_db:
            err.print(f"logs-ui: dashboard at {message}", soft_wrap=True, markup=False)
        return
    try:
        os.setsid()
        if os.fork():
            return
        with Path(os.devnull).open("r+") as null_device:
            os.dup2(null_device.fileno(), 0)
            os.dup2(null_device.fileno(), 1)
        if dashboard_db is None:  # a small Python, which imports nothing
            os.execv(sys.executable, [sys.executable, "-I", "-S", str(_HOOK), str(root), events_path])  # noqa: S606
        from logs_ui.app.commands.serve import BackgroundServer

        with BackgroundServer(dashboard_db, port=port) as server:
            os.write(write_end, server.url.encode())
            os.close(write_end)
            hook.watch(root, events_path)
    except LogsUIError as error:
        os.write(write_end, str(error).encode())
    finally:
        os._exit(0)
