"""A fake Docker daemon: the real interface over a real socket, with simulated containers and with
troubles that tests request.

    fake = FakeDocker(folder)                     # unix socket; FakeDocker(folder, tcp=True, tls=server_context) for TCP on loopback
    fake.trouble("POST /containers/create", "fail", status=500, said="no space left on device", times=1)
    fake.trouble("GET /_ping", "hang")            # until fake.relent()
    fake.finish("srj-p-joe", code=7)              # end its main process
    fake.calls                                    # ["POST /containers/create?name=x", ...] in order

Troubles: fail (status, said), slow (answer after secs), hang (no answer until `relent` or `close`),
disconnect (before the call has an effect), lost (the call has its effect, but the answer is lost).
The pattern is a regular expression, searched for in "METHOD /path?query". The answers are in
fake_docker_api.
"""

import contextlib
import json
import re
import secrets
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fake_docker_api import ROUTES, ApiError


@dataclass
class Container:
    id: str
    name: str
    config: dict[str, Any]
    status: str = "created"
    code: int = 0
    oom: bool = False
    error: str = ""
    started: float = 0.0
    finished: float = 0.0
    #: data received by attach
    stdin: bytes = b""
    #: numbers of the received signals
    signals: list[int] = field(default_factory=list)
    #: the output of `logs`
    logs: bytes = b""

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config.get("Labels") or {})


@dataclass
class _Trouble:
    pattern: re.Pattern[str]
    kind: str
    times: int | None
    status: int
    said: str
    secs: float


class _Lost(Exception):
    pass


class FakeDocker:
    """A fake Docker daemon.

    `on_start` is called in the server's thread with each container that starts. It may call
    `finish` for a container that ends at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        api: str = "1.41",
        least_api: str = "1.12",
        tcp: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.api, self.least_api, self.version = api, least_api, "20.10.24"
        self.containers: dict[str, Container] = {}
        self.networks: dict[str, dict[str, Any]] = {}
        #: network name -> names of removed containers whose endpoints are left in the network
        self.left_ends: dict[str, list[str]] = {}
        self.volumes: dict[str, dict[str, Any]] = {}
        #: reference -> image id. `pullable`: the id that a pull returns, or the error with which it
        #: fails.
        self.images: dict[str, str] = {"lab:1": "sha256:" + "1" * 64}
        self.pullable: dict[str, str | Exception] = {}
        #: (reference, X-Registry-Auth) of each pull
        self.pulls: list[tuple[str, str | None]] = []
        self.info: dict[str, Any] = {
            "ServerVersion": self.version,
            "NCPU": 8,
            "MemTotal": 16 << 30,
            "OSType": "linux",
            "LoggingDriver": "json-file",
            "Plugins": {"Log": ["json-file", "journald", "local", "none"]},
            "SecurityOptions": ["name=seccomp,profile=default"],
        }
        self.calls: list[str] = []
        #: (call, body) of each call with a body
        self.bodies: list[tuple[str, Any]] = []
        self.on_start: Callable[[Container], None] = lambda c: None
        self.events: list[dict[str, Any]] = []
        #: seconds that the daemon's clock is ahead
        self.clock_ahead = 0.0
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.closed = False
        self._troubles: list[_Trouble] = []
        self._release = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._folder, self._tcp, self._tls = folder, tcp, tls
        self._port = 0
        self._serve()

    # ---- controls for tests

    def trouble(
        self,
        pattern: str,
        kind: str,
        *,
        times: int | None = None,
        status: int = 500,
        said: str = "it does not work",
        secs: float = 0.5,
    ) -> None:
        """Add a trouble for the matching calls; `times` limits their number."""
        assert kind in ("fail", "slow", "hang", "disconnect", "lost"), kind
        with self.lock:
            self._troubles.append(_Trouble(re.compile(pattern), kind, times, status, said, secs))

    def relent(self) -> None:
        """Remove all troubles and answer the hanging calls."""
        with self.lock:
            self._troubles.clear()
            self._release.set()
            self._release = threading.Event()

    def close(self) -> None:
        """Stop the daemon: connections break, containers stay."""
        with self.lock:
            self.closed = True
            self._release.set()
            self._release = threading.Event()
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self.break_connections()
        self._thread.join(5)

    def reopen(self) -> None:
        """Restart the daemon at the same address."""
        self._serve()

    def break_connections(self) -> None:
        """Break all open connections."""
        with self.lock:
            sockets, self._sockets = self._sockets, set()
        for s in sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def get(self, ref: str) -> Container:
        """Return the container with this name or id; raise KeyError."""
        with self.lock:
            for c in self.containers.values():
                if ref in (c.id, c.name) or (len(ref) >= 12 and c.id.startswith(ref)):
                    return c
        raise KeyError(ref)

    def finish(self, ref: str, code: int = 0, *, oom: bool = False) -> None:
        """End the main process of a running container."""
        with self.lock:
            c = self.get(ref)
            if c.status != "running":
                return
            c.status, c.code, c.oom, c.finished = "exited", code, oom, time.time()
            if oom:
                self.happened(c, "oom")
            self.happened(c, "die", exitCode=str(code))

    def vanish(self, ref: str) -> None:
        """Remove the container, as an administrator would."""
        with self.lock:
            c = self.get(ref)
            self.finish(ref, 137)
            del self.containers[c.id]
            self.happened(c, "destroy")

    def called(self, pattern: str) -> list[str]:
        with self.lock:
            return [c for c in self.calls if re.search(pattern, c)]

    def emit(
        self,
        action: str,
        labels: dict[str, str],
        *,
        kind: str = "container",
        at: float | None = None,
    ) -> None:
        """Emit an event for an unknown object."""
        self._put(kind, action, secrets.token_hex(32), {**labels, "name": "x"}, at)

    # ---- the daemon

    def happened(self, c: Container, action: str, **more: str) -> None:
        self._put(
            "container",
            action,
            c.id,
            {**c.labels, "name": c.name, "image": c.config.get("Image", ""), **more},
            None,
        )

    def made(self, name: str, config: dict[str, Any]) -> Container:
        c = Container(secrets.token_hex(32), name, config)
        self.containers[c.id] = c
        self.happened(c, "create")
        return c

    def _put(
        self, kind: str, action: str, ident: str, attributes: dict[str, str], at: float | None
    ) -> None:
        nanos = int((time.time() + self.clock_ahead if at is None else at) * 1e9)
        with self.lock:
            self.events.append(
                {
                    "Type": kind,
                    "Action": action,
                    "status": action,
                    "id": ident,
                    "time": nanos // 10**9,
                    "timeNano": nanos,
                    "scope": "local",
                    "Actor": {"ID": ident, "Attributes": attributes},
                }
            )
            self.changed.notify_all()

    def trouble_of(self, call: str) -> _Trouble | None:
        with self.lock:
            for t in self._troubles:
                if t.times != 0 and t.pattern.search(call):
                    if t.times is not None:
                        t.times -= 1
                    return t
        return None

    def hang(self, secs: float | None = None) -> None:
        with self.lock:
            release = self._release
        release.wait(secs)

    def _serve(self) -> None:
        self.closed = False
        fake = self

        class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128
            address_family = socket.AF_INET if self._tcp else socket.AF_UNIX

            def finish_request(self, request: Any, client_address: Any) -> None:
                if fake._tls is not None:
                    request = fake._tls.wrap_socket(request, server_side=True)
                with fake.lock:
                    fake._sockets.add(request)
                try:
                    super().finish_request(request, client_address)
                finally:
                    with fake.lock:
                        fake._sockets.discard(request)
                    request.close()

            def handle_error(self, request: Any, client_address: Any) -> None:
                return

        if self._tcp:
            self._server: Any = Server(("127.0.0.1", self._port), _handler(fake))
            self._port = self._server.server_address[1]
            self.address = f"tcp://127.0.0.1:{self._port}"
        else:
            path = self._folder / "docker.sock"
            path.unlink(missing_ok=True)
            self._server = Server(str(path), _handler(fake))
            self.address = f"unix://{path}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()


def _handler(fake: FakeDocker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "here"

        def log_message(self, *_: Any) -> None:
            return

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(
                time.time() + fake.clock_ahead if timestamp is None else timestamp
            )

        def do_any(self) -> None:
            path = re.sub(r"^/v[0-9.]+(?=/)", "", self.path)
            call = f"{self.command} {path}"
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            body = (
                json.loads(raw)
                if raw and "json" in (self.headers.get("Content-Type") or "")
                else raw
            )
            with fake.lock:
                fake.calls.append(call)
                if raw:
                    fake.bodies.append((call, body))
            try:
                self.troubled(call, path, body)
            except (_Lost, OSError):
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_any

        def troubled(self, call: str, path: str, body: Any) -> None:
            t = fake.trouble_of(call)
            kind = t.kind if t is not None else ""
            try:
                if t is not None:
                    match kind:
                        case "fail":
                            raise ApiError(t.status, t.said)
                        case "slow":
                            fake.hang(t.secs)
                        case "hang":
                            fake.hang()
                        case "disconnect":
                            raise _Lost
                if fake.closed:
                    raise _Lost
                parts = urlsplit(path)
                query = {k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
                self.answer(unquote(parts.path), query, body, lost=kind == "lost")
            except ApiError as e:
                self.reply(e.status, {"message": e.said})
            except KeyError as e:
                self.reply(404, {"message": f"No such container: {e.args[0]}"})

        def answer(self, path: str, query: dict[str, str], body: Any, lost: bool) -> None:
            for method, pattern, work in ROUTES:
                m = re.fullmatch(pattern, path)
                if m and method == self.command:
                    said = work(fake, self, m.groups(), query, body)
                    if lost:
                        raise _Lost
                    if said is not None:
                        self.reply(*said)
                    return
            raise ApiError(404, f"page not found: {self.command} {path}")

        def reply(self, status: int, said: Any = None) -> None:
            data = (
                b""
                if said is None
                else said
                if isinstance(said, bytes)
                else json.dumps(said).encode()
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def begin_stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def piece(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    return Handler


@contextlib.contextmanager
def fake_docker(folder: Path, **more: Any) -> Iterator[FakeDocker]:
    """Yield a daemon, and close it at the end."""
    fake = FakeDocker(folder, **more)
    try:
        yield fake
    finally:
        fake.relent()
        fake.close()
