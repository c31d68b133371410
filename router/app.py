"""Composition root of the router: listeners, secrets, address file, and the end of the process.

No rules live here: `routing` decides, `requests` forwards.
"""

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import tornado.httpserver
from tornado.httputil import HTTPHeaders

from ..client.transport.address import CLIENT_FILE
from ..protocol.api import device_logins
from ..protocol.errors import Refusal
from ..protocol.ids import derived_id
from ..protocol.redaction import Redactor
from ..protocol.version import VERSION
from ..runtime import processes
from ..runtime.connections.http_server import server as http_server
from ..runtime.filesystems import make_folder, write_atomically
from ..runtime.log.logger import capture_logging, log_uncaught
from ..runtime.struct_types import resolve_all
from ..service.log.sink import open_log
from ..service.settings.settings import Settings
from ..service.site import shards, users_file
from ..service.site.secret_rotation import opened
from ..service.site.startup_checks import check
from ..service.systemd import Notifier
from ..supervisor.access.request_rates import RequestRates
from ..supervisor.api.routes import ROUTES
from ..supervisor.process.connection_limits import ConnectionGuard
from ..supervisor.process.counters import Counters
from ..supervisor.process.listeners import (
    ServerCertificate,
    bound,
    certificate,
    pausing_listeners,
    port_of,
)
from ..supervisor.process.site_secrets import LOOK_SECS, SiteSecrets
from ..supervisor.runs.request_validation import MAX_BODY
from .forwarding import Parts, ask
from .metrics import RouterMetrics
from .requests import Router
from .routing import Table
from .senders import Senders
from .shard_addresses import ShardAddresses, no_supervisor
from .upstream import Upstream

Announce = Callable[[dict[str, Any]], None]
TITLE = "jobscribe router"
CLOSE_SECS = 3.0


def main(
    settings: Settings,
    announce: Announce,
    *,
    front: str | None = None,
    notifier: Notifier | None = None,
) -> None:
    """Route requests until SIGTERM or SIGINT. Call `announce({"url", "root", "pid"})` once they are
    accepted. Raise Refusal if the start fails.

    front: address of the front end on this machine, for client.json.
    """
    if settings.shards.count is None:
        raise Refusal(
            "badConfig",
            "a router serves a site with shards, and shards.count is not set: set it, or start a supervisor",
        )
    resolve_all()
    check(settings)
    _check_root(settings.root)
    try:
        shards.make_secrets(settings)
    except OSError as e:
        raise Refusal(
            "badConfig", f"the root {settings.root} cannot be used: {e.strerror}"
        ) from None
    processes.set_title(TITLE, settings.root)
    asyncio.run(_serve(settings, announce, front, notifier or Notifier({})))


def _check_root(root: str) -> None:
    if os.path.exists(os.path.join(root, "db")):
        raise Refusal(
            "badConfig",
            f"the root {root} has the log of a site without shards: use another root for a site with shards, or"
            " remove shards.count and start a supervisor",
        )


async def _serve(
    settings: Settings, announce: Announce, front: str | None, notifier: Notifier
) -> None:
    process = _Process(settings, front)
    try:
        await process.start()
        announce({"url": process.url, "root": settings.root, "pid": os.getpid()})
        gc.freeze()
        await process.stopping.wait()
        notifier.stopping()
    finally:
        await process.close()


class _Process:
    """All objects of one router process."""

    def __init__(self, settings: Settings, front: str | None) -> None:
        self._settings, self._front, self.url = settings, front, ""
        self._public: dict[str, str] = {}
        self.stopping = asyncio.Event()
        self._redactor = Redactor()
        self._secrets = _secrets(settings, self._redactor)
        make_folder(os.path.join(settings.root, "log"))
        self._log, self._sink = open_log(
            "router",
            settings.log,
            self._redactor,
            stream=sys.stdout,
            file=os.path.join(
                settings.root, "log", f"router-{settings.supervisor.port or os.getpid()}.log"
            ),
        )
        log_uncaught(self._log)
        self._undo_logging = capture_logging(self._log)
        self._counters = Counters()
        self._upstream = Upstream()
        self._addresses = ShardAddresses(settings)
        limits = settings.limits
        senders = Senders(
            self._secrets,
            users_file.load(settings.auth.users),
            RequestRates(limits.token_requests_per_sec, limits.token_burst, time.monotonic),
            lambda shard, headers: ask(self._parts, shard, "/api/whoami", headers),
            self._addresses.total,
            time.monotonic,
        )
        self._parts = Parts(
            Table(ROUTES),
            senders,
            self._addresses,
            self._upstream,
            self._secrets.server,
            self._log,
            RouterMetrics(self._addresses.total),
            page=_device_page(settings.server.public_url or front),
        )
        self._router = Router(self._parts, {"/livez": self._livez, "/readyz": self._readyz})
        self._guard = ConnectionGuard(limits, self._counters, self._log)
        self._servers: list[tornado.httpserver.HTTPServer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        s = self._settings.supervisor
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        tls = certificate("https", s.tls_cert, s.tls_key)
        api = bound(s.ip, s.port)
        self.url = f"http://{s.ip}:{port_of(api)}"
        self._listen(api, None)
        if tls is not None:
            public = bound(s.tls_ip, s.tls_port)
            self._public = {"public": f"https://{s.tls_ip}:{port_of(public)}"}
            self._listen(public, tls)
        self._publish()
        self._tasks.append(asyncio.ensure_future(self._follow(tls)))
        self._log(
            "router ready at {} root={} shards={}",
            self.url,
            self._settings.root,
            self._addresses.total,
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for server in self._servers:
            server.stop()
            # a request whose client or supervisor hangs does not delay the end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECS):
                    await server.close_all_connections()
        self._upstream.close()
        self._log("router stopped")
        self._undo_logging()
        self._sink.close()

    def _listen(self, sockets: Any, tls: ServerCertificate | None) -> None:
        server = http_server(
            self._guard.before(self._router, "refused"),
            tls=None if tls is None else tls.context,
            body=MAX_BODY,
        )
        server.add_sockets(
            pausing_listeners(
                sockets,
                lambda what, detail: self._log("{}: {}", what, detail),
                self._guard.make_room,
            )
        )
        self._servers.append(server)

    async def _follow(self, tls: ServerCertificate | None) -> None:
        """Use rotated secrets and renewed certificates, and replace the address of a router that ended."""
        while True:
            await asyncio.sleep(LOOK_SECS)
            self._secrets.look()
            with contextlib.suppress(OSError):
                if not _is_published(self._settings.root, self._secrets.server.current):
                    self._publish()
            if tls is not None:
                try:
                    tls.refresh()
                except Refusal as e:
                    self._log("{}; the earlier one stays in use", e.sentence)

    def _publish(self) -> None:
        """Write the address for clients on this machine. Raises OSError."""
        content = {
            "url": self.url,
            "token": self._secrets.server.current,
            "uid": _uid(self._settings.root),
            "pid": os.getpid(),
            "front": self._front,
            "shards": self._addresses.total,
            **self._public,
        }
        path = os.path.join(self._settings.root, CLIENT_FILE)
        write_atomically(path, msgspec.json.encode(content), 0o600, sync=True)

    # ---- own answers

    async def _livez(self) -> dict[str, Any]:
        """Return that the process lives."""
        return {"state": "ok"}

    async def _readyz(self) -> dict[str, Any]:
        """Return whether requests are served. Shards that do not serve are named."""
        found = await asyncio.gather(
            *(
                ask(self._parts, shard, "/readyz", HTTPHeaders())
                for shard in range(self._addresses.total)
            )
        )
        missing = [k for k, answer in enumerate(found) if answer is None or answer.code != 200]
        if len(missing) == len(found):
            raise no_supervisor(missing)
        return {
            "state": "ok",
            "version": VERSION,
            "shards": len(found),
            **({"missing": missing} if missing else {}),
        }


def _secrets(settings: Settings, redactor: Redactor) -> SiteSecrets:
    s, root = settings.supervisor, settings.root
    files = {"server": s.server_secret_file, "metrics": s.metrics_secret_file}
    found = SiteSecrets(
        **{
            name: opened(
                name,
                file or shards.secret_file(root, name),
                f"supervisor.{name}_secret_file" if file else f"secret/{name}",
            )
            for name, file in files.items()
        }
    )

    def heard(_: object) -> None:
        for secret in found:
            for value in secret.values.all:
                redactor.add(value)

    heard(None)
    for secret in found:
        secret.heard = heard
    return found


def _device_page(front: str | None) -> str | None:
    return None if front is None else f"{front.rstrip('/')}/{device_logins.PAGE}"


class _Published(msgspec.Struct):
    pid: int
    token: str


def _is_published(root: str, token: str) -> bool:
    """Return whether the address file names a router that lives, with the secret in use."""
    try:
        found = msgspec.json.decode((Path(root) / CLIENT_FILE).read_bytes(), type=_Published)
    except (OSError, msgspec.DecodeError):
        return False
    return found.token == token and os.path.exists(f"/proc/{found.pid}")


def _uid(root: str) -> str:
    """Return the uid of this process's unix user, as the command line uses it."""
    key = Path(shards.secret_file(root, shards.UID_KEY)).read_bytes()
    return derived_id(str(os.getuid()).encode(), key=hashlib.sha256(key).digest())[:8]
