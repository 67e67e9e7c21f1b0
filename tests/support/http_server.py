"""A server of one function, on a free port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answered = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@contextmanager
def http_server(answer: Callable[[str, dict[str, str], bytes], Answered]) -> Iterator[str]:
    """Yield the address of a server that answers a path, headers with names in small letters, and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            status, headers, body = answer(self.path, given, self.rfile.read(int(given.get("content-length", 0))))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - as the base class names it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
