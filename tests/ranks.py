"""Two ranks on the CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_on_two_ranks(script: str, folder: Path, *arguments: object) -> None:
    """Runs a script in a process for each, with these arguments; it is written into the folder."""
    path = folder / "rank.py"
    path.write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    done = subprocess.run(
        [*command, str(path), *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path]),
            "GLOO_SOCKET_IFNAME": "lo",
            "ACCELERATE_USE_CPU": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
