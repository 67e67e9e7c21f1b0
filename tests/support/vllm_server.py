"""Starts a real vLLM server on the CPU, in the environment it needs, with a tiny model that is made on the spot."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.environments import python_of
from tests.support.late import guess_model, torch, transformers

NAME = "guess"
LENGTH = 256
_START_SECONDS = 240.0
_OPTIONS = ("--enforce-eager", "--dtype", "float32", "--max-model-len", str(LENGTH), "--served-model-name", NAME)
VARIABLES = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # TRL asks for the server's settings
}
_SERVE = """
import os, runpy, signal, sys, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""


@dataclass
class Served:
    """A server, and the weights that it was started with."""

    url: str
    model: Any
    tokenizer: Any

    def logprobs(
        self, context: Sequence[int], sampled: Sequence[int], *, temperature: float = 1.0, top_k: int | None = None
    ) -> list[float]:
        """Return (S,) log-probs of `sampled` after `context`, computed by transformers."""
        with torch.no_grad():
            logits = self.model(torch.tensor([[*context, *sampled]])).logits[0, len(context) - 1 : -1] / temperature
        if top_k is not None:
            logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
        values: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist()
        return values


@contextmanager
def vllm_server(*options: str) -> Iterator[Served]:
    """Serves `NAME`. `options` are the server's own."""
    python = python_of("vllm")
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = _save_model(Path(folder))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [python, "-c", _SERVE, "--model", folder, "--host", "127.0.0.1", "--port", str(port)]
        variables = os.environ | VARIABLES
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # the environment was installed without
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen(
                [*command, *_OPTIONS, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=variables,
                cwd=folder,
                start_new_session=True,  # with its engine, a group of processes that ends as one
            )
            try:
                _wait(server, f"http://127.0.0.1:{port}/health", log)
                yield Served(f"http://127.0.0.1:{port}/v1", model, tokenizer)
            finally:
                _end(server)


def _save_model(folder: Path) -> tuple[Any, Any]:
    """Return a model as the demo's, but with heads of a size that vLLM's attention takes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = guess_model.make_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = transformers.Qwen3ForCausalLM(config)
    guess_model.warm_up(model, tokenizer, seed=0, steps=150)
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _wait(server: subprocess.Popen[bytes], url: str, log: Any) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(OSError), direct.open(url, timeout=5):
            return
        time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"vLLM's server did not start: {log.read().decode(errors='replace')[-3000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
