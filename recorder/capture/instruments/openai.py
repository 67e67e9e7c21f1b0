"""Records the generations that clients of the openai package request, by any of their methods, streamed or not.

What is relied on (run on openai 1.60, 2.0 and 3.52): `SyncAPIClient.request(cast_to, options, ...)` and its async twin
make every request, with the client's retries; `options` has `method`, `url`, `json_data` and `extra_json`; a stream has
its `response` and a raw response its `http_response`, both of httpx. `request` calls `_process_response(response=)`,
which raises if `parse()` refuses the answer. Without the latter, such an answer is recorded as a call that failed.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from logs_ui.recorder.capture.environment_call import recorded_function
from logs_ui.recorder.capture.http.exchange import Exchange, Sent
from logs_ui.recorder.capture.instruments.http_clients import hear_httpx, recorded
from logs_ui.recorder.capture.instruments.patch import patches
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.guard import guard


def install() -> None:
    """Patch the clients, now or when openai is imported."""
    patches.when_imported("openai._base_client", _attach)


def _attach(module: Any) -> None:
    for client in (module.SyncAPIClient, module.AsyncAPIClient):
        patches.method(client, "request", functools.partial(recorded, "openai", sent=_sent, hear=_hear))
        patches.method(client, "_process_response", _refusing)


def _sent(_client: Any, _cast_to: Any = None, options: Any = None, *_: Any, **__: Any) -> Sent:
    body = getattr(options, "json_data", None) or getattr(options, "content", None)
    if isinstance(body, dict):
        body = {**body, **(getattr(options, "extra_json", None) or {})}
    return str(getattr(options, "method", "")).upper(), str(getattr(options, "url", "")), body


def _hear(exchange: Exchange, result: Any, /, **_: Any) -> None:
    """Take a reply that the client has read; otherwise follow a stream, or a raw response that may be one.

    `client.post` returns what its `cast_to=` names: a model, a dict, a text, or httpx's response.
    """
    whole = result.model_dump(exclude_unset=True, warnings=False) if hasattr(result, "model_dump") else result
    if isinstance(whole, dict):
        exchange.replied(whole)
        return
    response = getattr(result, "response", None) or getattr(result, "http_response", None)
    response = result if response is None and hasattr(result, "is_closed") else response
    if response is not None:
        hear_httpx(exchange, response)
        return
    if isinstance(result, str):
        exchange.heard(result.encode(errors="replace"))
    exchange.end()  # otherwise the client returned something that is no reply


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what makes the client's result of a reply, so that a reply that it refuses is recorded."""

    @contextmanager
    def around(*_: Any, response: Any = None, **__: Any) -> Iterator[Callable[[Any], Any]]:
        try:
            yield lambda result: result
        except Exception:
            strand = current_strand()
            with guard("reading a reply that its client refuses"):
                # The refused reply belongs to the request that was made in this strand. It can be recorded only if all
                # of it was read.
                for exchange in () if strand is None else tuple(strand.tree.collector.unfinished):
                    if exchange.inside is strand and response.is_closed:
                        hear_httpx(exchange, response)
            raise

    return recorded_function(original, around)
