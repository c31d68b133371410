"""The processes that serve the front end: `jobscribe server` (waitress, behind the site's own
reverse proxy), and the child of `jobscribe up`.

The child gets its listening socket from its parent. waitress serves it in a thread, and hands
connections for event streams over to the proxy, which runs in the event loop. The child ends with
its parent, whatever ended the parent.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import msgspec
from waitress.server import create_server

from ...client.transport.address import Source, fixed, in_root
from ...protocol.errors import Refusal
from ...protocol.redaction import Redactor
from ...runtime import processes
from ...runtime.connections.admission import Limits
from ...runtime.connections.http_server import Peers
from ...runtime.log.logger import Log, capture_logging, log_uncaught
from ...service.log.sink import PkdebugSink, open_log
from ...service.settings.loader import load
from ...service.settings.settings import Settings
from ...service.site.secret_rotation import RotatedSecret, opened
from ...service.site.startup_checks import check_server
from ..sign_in.login_sessions import Sessions
from .application import USER, create_app, session_key
from .child_process import Start, bound, url_of
from .peer_gate import PeerGate
from .proxy import Proxy, adopt, server_of
from .waitress_server import guard, user_by

#: Bytes of a response that waitress buffers for a slow reader before its worker waits.
HIGH_WATER = 512 * 1024
#: Maximum number of connections to waitress.
CONNECTIONS = 1024
#: Maximum idle time of a browser's connection to `jobscribe up`, in seconds.
IDLE_SECS = 75.0
DESCRIPTORS = 65_536
TITLE = "jobscribe server"
SWITCH_SECS = 0.0005


def main(settings: Settings, announce: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Calls `announce(url, root)` when requests are answered. Raises
    Refusal before that.
    """
    check_server(settings)
    log, sink = _opened_log(settings)
    app = create_app(settings, _source(settings, log), log, sessions=None)
    s = settings.server
    listening = bound(s.ip, s.port)
    server = _waitress(app, settings, listening)
    limits = settings.limits
    guard(
        server,
        Limits(
            limits.request_secs, limits.body_secs, limits.idle_secs, limits.connections_per_peer
        ),
        Peers(limits.trusted_peers),
        user_by(app, app.extensions[USER], log),
        log,
        CONNECTIONS,
        proxy_header=s.user_header,
    )
    _set_title(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _interrupt())
    url = url_of(s.ip, listening)
    log("server ready at {} root={}", url, settings.root)
    gc.freeze()
    announce(url, settings.root)
    try:
        server.run()
    except SystemExit:
        log("server stopped")
    finally:
        server.close()
        sink.close()


def child() -> None:
    """Run the front end of `jobscribe up`. Writes to a pipe when it serves."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    settings = load(start.options, file=start.file)
    log, sink = _opened_log(settings)
    try:
        os.umask(0o077)
        _many_descriptors()
        # the loops and the workers share the interpreter: with Python's default a loop would wait
        # up to 5 ms for each worker
        sys.setswitchinterval(SWITCH_SECS)
        processes.set_dumpable(False)
        _set_title(settings)
        sessions = Sessions(Path(settings.root) / "sessions.json")
        app = create_app(
            settings,
            in_root(settings.root),
            log,
            sessions=sessions,
            secrets=_cookie_secrets(settings, log),
        )
        asyncio.run(_serve(settings, start, app, sessions, log))
    finally:
        sink.close()


async def _serve(
    settings: Settings, start: Start, app: flask.Flask, sessions: Sessions, log: Log
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    threading.Thread(
        target=_wait_for_parent_end,
        args=(lambda: loop.call_soon_threadsafe(stopping.set),),
        name="parent",
        daemon=True,
    ).start()
    gate = PeerGate(log)
    proxy = Proxy(
        in_root(settings.root),
        lambda headers: session_key(app, headers.get("Cookie", "")),
        log,
        gate,
    )
    sessions.ended = lambda key: loop.call_soon_threadsafe(proxy.end_streams, key)
    limits = settings.limits
    bounds = Limits(limits.request_secs, limits.body_secs, IDLE_SECS, limits.connections_per_peer)
    streams = server_of(proxy, bounds)
    server = _waitress(app, settings, socket.socket(fileno=start.listen))
    guard(
        server,
        bounds,
        Peers(),
        user_by(app, app.extensions[USER], log),
        log,
        CONNECTIONS,
        admit=gate.check,
        live=lambda *handed: loop.call_soon_threadsafe(adopt, streams, *handed),
    )

    def answer() -> None:
        try:
            server.run()
        finally:  # waitress ended: stop, and the parent starts another front end
            loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=answer, name="waitress", daemon=True).start()
    log("front end ready root={}", settings.root)
    gc.freeze()
    os.write(start.ready, b"1")
    os.close(start.ready)
    await stopping.wait()
    log("front end stopped")


def _many_descriptors() -> None:
    """Raise the limit of file descriptors: each event stream needs two, and without a free one no
    request is answered.
    """
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _wait_for_parent_end(notify: Callable[[], object]) -> None:
    """Call `notify` at the end of standard input. The parent never writes again, so this is the end
    of the parent.

    Reads the descriptor: a blocked read of sys.stdin holds a lock that would abort the interpreter
    at exit.
    """
    while os.read(0, 1):
        continue
    notify()


def _waitress(app: flask.Flask, settings: Settings, listening: socket.socket) -> Any:
    return create_server(
        app,
        sockets=[listening],
        threads=settings.server.threads,
        ident=None,
        outbuf_high_watermark=HIGH_WATER,
        max_request_body_size=settings.limits.upload_bytes + 64 * 1024,
        clear_untrusted_proxy_headers=True,
        # the default, select, fails with descriptors over 1023
        connection_limit=CONNECTIONS,
        asyncore_use_poll=True,
    )


def _source(settings: Settings, log: Log) -> Source:
    url, file = settings.server.supervisor_url, settings.supervisor.server_secret_file
    if url is None:
        return in_root(settings.root)
    if file is None:
        raise Refusal(
            "unsafe",
            "server.supervisor_url needs supervisor.server_secret_file, the secret of that supervisor",
        )
    secret = _followed(file, log)

    def token() -> str:
        secret.look()
        return secret.current

    return fixed(url, token, "frontEnd")


def _followed(file: str, log: Log) -> RotatedSecret:
    """Return the server secret in a file. Raises Refusal."""
    secret = opened("server", file, "supervisor.server_secret_file")

    def heard(changed: RotatedSecret) -> None:
        for value in changed.values.all:
            log.redactor.add(value)
        if changed.problem is None:
            log("a changed server secret is in use")
        else:
            log("secretRefused: {}; the earlier secret stays in use", changed.problem)

    for value in secret.values.all:
        log.redactor.add(value)
    secret.heard = heard
    return secret


def _cookie_secrets(settings: Settings, log: Log) -> Callable[[], tuple[str, ...]] | None:
    """Return a function for the valid server secrets, the current one first. None if the file
    cannot be used, as an unsafe one in the root, which is reported by the supervisor.
    """
    file = settings.supervisor.server_secret_file or os.path.join(settings.root, "secret", "server")
    try:
        secret = _followed(file, log)
    except Refusal:
        return None

    def valid() -> tuple[str, ...]:
        secret.look()
        return secret.accepted()

    return valid


def _opened_log(settings: Settings) -> tuple[Log, PkdebugSink]:
    root = settings.root if os.path.isdir(os.path.join(settings.root, "log")) else None
    log, sink = open_log("server", settings.log, Redactor(), stream=sys.stderr, root=root)
    log_uncaught(log)
    capture_logging(log)
    # waitress warns whenever requests wait for a thread, which is normal
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    return log, sink


def _set_title(settings: Settings) -> None:
    processes.set_title(TITLE, settings.root)


def _interrupt() -> None:
    raise SystemExit
