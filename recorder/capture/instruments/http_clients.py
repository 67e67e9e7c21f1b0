"""Records the generations that one client of requests, httpx or aiohttp requests. Only clients that the user passes are
traced; no class is patched.

What is relied on: a `requests.Session` and an `httpx.Client` send everything by their `send`, an
`aiohttp.ClientSession` by its `_request`.
"""

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

import orjson
import wrapt

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall, recorded_function
from logs_ui.recorder.capture.http.exchange import Exchange, Sent, begin
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.guard import guard

C = TypeVar("C")
Call = Callable[..., Any]

_MARK = "__logs_ui_replaced__"
_ABSENT = object()


def trace_client(client: C) -> C:
    """Record the generations that an HTTP client requests from a server during a recorded rollout.

    It records vLLM's and OpenAI's chat completions, completions and responses, streamed or not, vLLM's "tokens in,
    tokens out", and TRL's older `/generate/` and `/chat/`. Other requests of the client are passed on. Requests and
    replies are not changed. A streamed reply is recorded once it was read. Clients of the openai package are recorded
    without this function.

    Args:
        client: A `requests.Session`, `httpx.Client`, `httpx.AsyncClient` or `aiohttp.ClientSession`, or an object with
            methods `post(url, ...)` or `request(method, url, ...)` that take `json=` and return an object with
            `content`. Only this object is changed, not its class.

    Returns:
        The same client. `untrace_client` undoes it.

    Raises:
        TypeError: `client` is no such client, or attributes of it cannot be set.

    Examples:
        >>> import httpx
        >>> from logs_ui.recorder import load_run, start_run, trace_client
        >>> client = trace_client(httpx.Client(base_url="http://127.0.0.1:8000/v1"))
        >>> request = {"model": "my-model", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout(request["messages"]) as row:
        ...         reply = client.post("/chat/completions", json=request)
        >>> load_run(run.id, db="runs.db").messages[0][-1]["content"]
        '5'
    """
    replacements = _replacements(client)
    if not replacements:
        description = f"a {type(client).__name__}"
        if isinstance(client, type | ModuleType):
            description = f"{client.__name__}, which others use too"
        raise TypeError(
            f"trace_client() takes an HTTP client with a method post or request, not {description}. "
            "Make a client, such as requests.Session() or httpx.Client(), and pass that."
        )
    # The mark on each replacement keeps what the instance had under this name, so that `untrace_client` can restore it.
    for name, make in replacements.items():
        before = vars(client).get(name, _ABSENT)
        if hasattr(before, _MARK):
            continue
        replacement = make(getattr(client, name))
        setattr(replacement, _MARK, before)
        vars(client)[name] = replacement  # not setattr: aiohttp warns about that
    return client


def untrace_client(client: C) -> C:
    """Undo `trace_client`. A client that is not traced is not changed.

    Args:
        client: The client that was passed to `trace_client`.

    Returns:
        The same client.

    Examples:
        >>> import requests
        >>> from logs_ui.recorder import trace_client, untrace_client
        >>> session = trace_client(requests.Session())
        >>> untrace_client(session) is session
        True
    """
    attributes = getattr(client, "__dict__", {})
    for name, value in list(attributes.items()):
        before = getattr(value, _MARK, value)
        if before is _ABSENT:
            del attributes[name]
        else:
            attributes[name] = before
    return client


def hear_httpx(exchange: Exchange, response: Any, /, **_: Any) -> None:
    """Take a reply of httpx that was read already; otherwise follow what the user reads of it."""
    encoded = response.headers.get("content-encoding")
    # `content` is decoded; the parts of a stream are heard as they arrive, still compressed.
    if response.is_closed:
        exchange.answers(response.status_code)
        exchange.heard(response.content)
        exchange.end()
        return
    exchange.answers(response.status_code, functools.partial(_decoded, type(response), encoded) if encoded else None)
    response.stream = _HeardStream(response.stream, exchange)


def _decoded(kind: Any, encoding: str, data: bytes) -> bytes:
    """Decode with the client library itself."""
    content: bytes = kind(200, headers={"content-encoding": encoding}, content=data).content
    return content


class _HeardStream(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """The body of a reply of httpx, whose parts are recorded as they are read."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        super().__init__(stream)
        self._self_exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        return self._self_exchange.passing(self.__wrapped__)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._self_exchange.passing_async(self.__wrapped__)


def _reading(name: str) -> Any:
    """Return a method that reads as the wrapped reader's does, and takes what it returns."""

    async def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._self_exchange.reading():
            part = await getattr(self.__wrapped__, name)(*args, **kwargs)
        self._self_hear(part[0] if name == "readchunk" else part)
        return part

    return read


def _iterating(name: str) -> Any:
    def iterate(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(type(self.__wrapped__), name)(self, *args, **kwargs)

    return iterate


class _HeardReader(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """The body of a reply of aiohttp, whose parts are recorded as they are read."""

    def __init__(self, reader: Any, exchange: Exchange) -> None:
        super().__init__(reader)
        self._self_exchange = exchange

    read, readany, readline, readuntil = map(_reading, ("read", "readany", "readline", "readuntil"))
    readexactly, readchunk = map(_reading, ("readexactly", "readchunk"))

    def read_nowait(self, *args: Any, **kwargs: Any) -> bytes:
        part: bytes = self.__wrapped__.read_nowait(*args, **kwargs)
        self._self_hear(part)
        return part

    # The iterators read through the object that they are made with: this one, and not the wrapped one.
    __aiter__, iter_any, iter_chunked, iter_chunks = map(
        _iterating, ("__aiter__", "iter_any", "iter_chunked", "iter_chunks")
    )

    def _self_hear(self, part: bytes) -> None:
        with guard("listening to a server's reply"):
            self._self_exchange.heard(part)
            if self.__wrapped__.at_eof():
                self._self_exchange.end()


def _hear_requests(exchange: Exchange, response: Any, /, client: Any, **kwargs: Any) -> None:
    """Follow what the user reads of a stream: all ways except `raw` go through `iter_content`."""
    exchange.answers(response.status_code)
    if not kwargs.get("stream", client.stream):
        exchange.heard(response.content)
        exchange.end()
        return
    iterate = response.iter_content

    @functools.wraps(iterate)
    def iter_content(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return exchange.passing(iterate(*args, **kwargs), response.encoding or "utf-8")

    response.iter_content = iter_content


def _hear_aiohttp(exchange: Exchange, response: Any, /, **_: Any) -> None:
    exchange.answers(response.status)
    response.content = _HeardReader(response.content, exchange)


def _hear_alike(exchange: Exchange, response: Any, /, **kwargs: Any) -> None:
    content = None if kwargs.get("stream") else getattr(response, "content", None)
    status = getattr(response, "status_code", None)
    exchange.answers(status if isinstance(status, int) else 200)
    exchange.heard(content if isinstance(content, bytes) else b"")
    exchange.end()


def _prepared(request: Any = None, **_: Any) -> Sent:
    """Read a prepared request of requests or httpx."""
    try:
        body = getattr(request, "content", None) or getattr(request, "body", None)
    except RuntimeError:  # the body is a stream that was not read: it is not JSON
        body = None
    return str(getattr(request, "method", "")), str(getattr(request, "url", "")), body


def _sent(method: str = "", url: object = "", **kwargs: Any) -> Sent:
    body = next((kwargs[name] for name in ("json", "data", "content") if kwargs.get(name) is not None), None)
    return str(method).upper(), str(url), body


_LIBRARIES = (
    ("requests", "Session", "send", _prepared, _hear_requests),
    ("httpx", "Client", "send", _prepared, hear_httpx),
    ("httpx", "AsyncClient", "send", _prepared, hear_httpx),
    ("httpx2", "Client", "send", _prepared, hear_httpx),  # the openai package has it since 3.0
    ("httpx2", "AsyncClient", "send", _prepared, hear_httpx),
    ("aiohttp", "ClientSession", "_request", _sent, _hear_aiohttp),
)


def _replacements(client: object) -> dict[str, Callable[[Call], Call]]:
    """Return what makes the replacement of each method, by its name; {} if this is not a client."""
    if isinstance(client, type | ModuleType):
        return {}
    for library, name, method, sent, hear in _LIBRARIES:
        kind = getattr(sys.modules.get(library), name, None)
        if isinstance(kind, type) and isinstance(client, kind):
            return {method: functools.partial(recorded, "http", sent=sent, hear=functools.partial(hear, client=client))}
    # Any object with methods named like those of requests.
    methods: dict[str, Callable[..., Sent]] = {"post": functools.partial(_sent, "POST"), "request": _sent}
    return {
        name: functools.partial(recorded, "http", sent=sent, hear=_hear_alike)
        for name, sent in methods.items()
        if callable(getattr(client, name, None)) and hasattr(client, "__dict__")
    }


def _request(method: str, url: str, body: Any) -> dict[str, Any]:
    with suppress(ValueError, TypeError):  # it is no JSON, or not text
        body = orjson.loads(body)
    sent = body.decode(errors="replace") if isinstance(body, bytes) else body
    return {"name": f"{method} {url.partition('?')[0]}", "arguments": {"body": sent}}


def _reply(response: Any) -> Answer:
    """Read a reply that was received whole: others belong to the user, who reads them later."""
    status = getattr(response, "status_code", getattr(response, "status", None))
    content = getattr(response, "_content", None)  # of requests and httpx, once it was read
    text = content.decode(errors="replace") if isinstance(content, bytes) else None
    return Answer({"status": status} | ({} if text is None else {"text": text}))


def recorded(seam: str, original: Call, sent: Callable[..., Sent], hear: Callable[..., None]) -> Call:
    """Wrap a client's method or coroutine method so that its requests for generations are recorded.

    `sent` returns what is sent, from the call's arguments; `hear` takes the result, and follows an unread reply.
    """

    @contextmanager
    def around(*args: Any, **kwargs: Any) -> Iterator[Call]:
        exchange = begin(seam, functools.partial(sent, *args, **kwargs))
        if exchange is None:
            strand = current_strand()
            if strand is None or not strand.tree.collector.functions:
                yield lambda response: response
                return
            # A reward function asks a judge or a sandbox, in whatever form.
            with RecordedCall("tool", None, lambda: _request(*sent(*args, **kwargs)), _reply) as answered:
                yield answered
            return
        response: Any = None

        def came_back(result: Any) -> Any:
            nonlocal response
            response = result
            return result

        with exchange.asking():
            yield came_back
        with guard("listening to a server's reply"):
            hear(exchange, response, **kwargs)

    return recorded_function(original, around)
