"""Connects to a server that speaks OpenAI's HTTP interface, and to one model on it.

It uses the openai package, which retries, and which `record()` records automatically.
"""

import asyncio
import importlib.util
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit, urlunsplit

from logs_ui.recorder.snapshot import visible
from logs_ui.rollout.environments.sources import check_seconds
from logs_ui.rollout.models.backends import GenerationError, Sampling


class Server:
    """A server and a model on it, connected while any row asks: each batch may have an event loop of its own."""

    _slow: ClassVar[str] = "Lower concurrency"
    """What to do about a server that does not answer in time."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        retries: int = 4,
    ) -> None:
        check_seconds("timeout", timeout)
        if importlib.util.find_spec("openai") is None:
            raise ImportError("A model server is asked by the openai package. Install: pip install openai")
        parts = _address(base_url)
        self.base_url = base_url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self.model = model
        self._timeout = timeout
        # Messages show the address without user name, password and query, which may be secrets.
        self._shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], urlsplit(self.base_url).path, "", ""))
        self._options: dict[str, Any] = {
            "api_key": api_key or "none",  # the package asks for one, also where the server does not
            "timeout": None,  # which it would count for each try, and try again; see `explained`
            "default_headers": dict(headers or {}),
            "max_retries": retries,
        }
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None
        self._rows: set[int] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r}, {self.model!r})"

    def enter(self, row: int) -> None:
        """Do the same as `Model.enter`."""
        self._rows.add(row)

    async def leave(self, row: int) -> None:
        """Do the same as `Model.leave`. The connections are closed once no row is left."""
        self._rows.discard(row)
        if not self._rows:
            await self.close()

    async def close(self) -> None:
        """Close the connections, if they belong to this loop."""
        (loop, client), self._client = self._client or (None, None), None
        if client is not None and loop is asyncio.get_running_loop():
            await client.close()

    def connected(self) -> Any:
        """Return the package's client for the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            from openai import AsyncOpenAI

            self._client = loop, AsyncOpenAI(base_url=self.base_url, **self._options)
        return self._client[1]

    async def check_served(self) -> None:
        """Raise GenerationError if the server lists its models and this is none of them."""
        from openai import NotFoundError

        async with self.explained():
            try:
                models = [model.id async for model in self.connected().models.list()]
            except NotFoundError:
                return
        if self.model not in models:
            raise GenerationError(
                f"{self._shown} does not serve {self.model!r}. It serves {visible(', '.join(models)) or 'nothing'}: "
                "name one of these."
            )

    def first_choice(self, completion: Any) -> dict[str, Any]:
        """Return the first choice of a reply, which the package does not check."""
        reply = completion.model_dump(exclude_unset=True, warnings=False) if hasattr(completion, "model_dump") else None
        if not isinstance(reply, dict):
            raise self.error("sent a reply that is not a completion", "Is the address right?")
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise self.error("returned no answer")
        return dict(choices[0])

    @asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """Limit the time of a request, retries included, and turn errors into one line."""
        from openai import APIConnectionError, APIStatusError, OpenAIError

        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise self.error(f"did not answer within {self._timeout:g} s", self._slow) from error
        except APIConnectionError as error:
            cause = _line(error.__cause__ or error)
            raise self.error(f"cannot be reached ({cause})", "Is the server up, and the address right?") from error
        except APIStatusError as error:
            advice = {401: "Set api_key", 403: "Set api_key", 404: "Is the address right? It mostly ends with /v1"}
            refusal = f"refused with status {error.status_code}: {_server_message(error)}"
            raise self.error(refusal, advice.get(error.status_code, "")) from error
        except (OpenAIError, json.JSONDecodeError) as error:
            raise self.error(
                f"sent a reply that is not a completion ({_line(error)})", "Is the address right?"
            ) from error

    def error(self, problem: str, advice: str = "") -> GenerationError:
        """Return one line: which server, what it did, what to do."""
        line = f"The model server {self._shown} {problem}".rstrip(".") + "."
        return GenerationError(f"{line} {advice.rstrip('.')}{'' if advice.endswith('?') else '.'}" if advice else line)


def _address(base_url: Any) -> SplitResult:
    """Return the parts of the address. Raise ValueError if it is none that the package would take."""
    from httpx import URL, InvalidURL

    if isinstance(base_url, str) and base_url.isprintable():
        with suppress(ValueError, InvalidURL):
            parts = urlsplit(base_url)
            URL(base_url)
            if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
                return parts
    text = re.sub(r"//[^/]*@", "//", base_url) if isinstance(base_url, str) else base_url
    raise ValueError(f"base_url must be an address such as http://127.0.0.1:8000/v1, not {text!r}.")


def request(sampling: Sampling, *, wants_token_ids: bool) -> dict[str, Any]:
    """Return arguments for the openai package; parameters that OpenAI does not know go into the body as they are."""
    extra: dict[str, Any] = {"top_k": sampling.top_k, "min_p": sampling.min_p}
    extra["repetition_penalty"] = sampling.repetition_penalty
    if wants_token_ids:
        extra["return_token_ids"] = True
        extra["include_stop_str_in_output"] = True if sampling.stop else None
    arguments: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    body = {name: value for name, value in extra.items() if value is not None}
    return {name: value for name, value in arguments.items() if value is not None} | {"extra_body": body}


def _server_message(error: Any) -> str:
    """Return the server's own words of a refusal, wherever it put them."""
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error") if isinstance(body.get("error"), dict) else body
    return _line(inner.get("message") or error.message if isinstance(inner, dict) else error.message)


def _line(value: object) -> str:
    return visible(value)[:300] or type(value).__name__
