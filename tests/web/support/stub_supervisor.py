"""A supervisor with scripted answers over real HTTP, for answers that a real supervisor does not
give on demand.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from jobscribe.client.transport.address import Address
from jobscribe.protocol.errors import Refusal

TOKEN = "Vq3nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A"
#: Status, headers and body. A body in pieces needs an explicit Content-Length. An explicit
#: Content-Length may be larger than the body.
Answer = tuple[int, dict[str, str], bytes | Iterable[bytes]]


class StubSupervisor:
    """`answers`: path to a JSON value, an Answer, a Refusal, or a function of the request body that
    returns one of these.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.queries: list[str] = []
        self.connections: list[socket.socket] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        # ignore errors of clients that are gone
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.address = Address(url=self.url, token=TOKEN, uid="AnnAnn01")

    def sent(self, path: str) -> list[Any]:
        """Return the bodies of all requests to this path."""
        return [body for at, body in self.requests if at == path]

    def close(self) -> None:
        """Stop listening and cut every connection, as a killed process does."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)


def raw(value: Any, body: Any = None) -> Answer:
    match value:
        case Refusal():
            return value.http, {}, json.dumps(value.body()).encode()
        case tuple():
            return value
        case _ if callable(value):
            return raw(value(body))
        case bytes():
            return 200, {}, value
        case _:
            return 200, {}, json.dumps(value).encode()


def _handler(stub: StubSupervisor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            stub.connections.append(self.request)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = urlsplit(self.path).path
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._say(raw(Refusal("unauthenticated", "the secret is missing or wrong")))
                return
            stub.bodies.append(body)
            said = json.loads(body) if body[:1] == b"{" else None
            stub.requests.append((path, said))
            stub.queries.append(urlsplit(self.path).query)
            stub.headers.append(dict(self.headers))
            known: Callable[..., Any] | Any = stub.answers.get(
                path, Refusal("notFound", f"there is nothing at {path}")
            )
            self._say(raw(known, said))

        do_GET = do_PUT = do_DELETE = do_POST

        def _say(self, answer: Answer) -> None:
            status, headers, body = answer
            self.send_response(status)
            length = {"Content-Length": str(len(body))} if isinstance(body, bytes) else {}
            for name, value in (length | headers).items():
                self.send_header(name, value)
            self.end_headers()
            for piece in [body] if isinstance(body, bytes) else body:
                self.wfile.write(piece)
            if "Content-Length" in headers:
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            return

    return Handler
