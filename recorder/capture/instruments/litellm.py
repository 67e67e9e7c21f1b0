"""Records the generations that litellm requests by its own HTTP client, streamed or not.

For other providers, OpenAI's own among them, litellm uses the openai package, which is recorded by itself. A provider's
own form of request, such as Anthropic's, is not read: those calls are passed on.

What is relied on (run on litellm 1.109): `HTTPHandler.post(url, data, json, ..., stream=)` and its async twin make
every such request, and return httpx's response.
"""

import functools
from typing import Any

from logs_ui.recorder.capture.http.exchange import Sent
from logs_ui.recorder.capture.instruments.http_clients import hear_httpx, recorded
from logs_ui.recorder.capture.instruments.patch import patches


def install() -> None:
    """Patch the clients, now or when litellm is imported."""
    patches.when_imported("litellm.llms.custom_httpx.http_handler", _attach)


def _attach(module: Any) -> None:
    for handler in (module.HTTPHandler, module.AsyncHTTPHandler):
        patches.method(handler, "post", functools.partial(recorded, "litellm", sent=_sent, hear=hear_httpx))


def _sent(_handler: Any, url: Any = "", data: Any = None, json: Any = None, *_: Any, **more: Any) -> Sent:
    return "POST", str(url), json or data or more.get("content")
