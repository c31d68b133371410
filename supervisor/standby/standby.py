"""A supervisor that stands by: it accepts connections, passes them to the holder of the lease, and
returns when it has the lease itself.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ...db.postgres.lease import new_holder
from ...db.postgres.lease_protocol import LEASE_SECS, MARGIN_SECS
from ...db.postgres.opening import Site
from ...db.postgres.supervisors import About, Claim, Seen
from ...protocol.errors import Refusal
from ...protocol.redaction import Redactor
from ...protocol.version import VERSION
from ...runtime.clock import boot_id
from ...runtime.lease_deadline import LeaseDeadline
from ...service.log.sink import open_log
from ...service.settings.settings import Settings
from ...service.systemd import Notifier
from ..process import site_secrets
from ..process.connection_limits import ConnectionGuard
from ..process.counters import Counters
from ..process.event_log import EventLog
from ..process.handover import EXIT_AGAIN
from ..process.listeners import PAUSE_SECS
from ..process.root_directory import RootDirectory
from . import answers
from .answers import HEALTH
from .forwarding import Forwarder
from .listening import KINDS, Kind, Listening, listen
from .lookout import Behind, Lookout, News, Taken, Unknown, life
from .passing import FOLDER, Passer

#: A connection whose client sends nothing is passed on after this time.
PEEK_SECS = 1.0
#: Connections accepted in one iteration of the event loop.
_ACCEPTED = 16


class Place(NamedTuple):
    """The site of a standby supervisor, with its claim to the lease. about: names its listeners."""

    site: Site
    claim: Claim
    about: About
    listening: Listening


class Standby:
    """One time of standing by. `wait` may be called once."""

    def __init__(
        self,
        settings: Settings,
        root: RootDirectory,
        place: Place,
        wall: Callable[[], float],
        notifier: Notifier,
        ready: Callable[[], object],
    ) -> None:
        """ready: called once when another supervisor serves the site and this one stands by."""
        redactor = Redactor()
        self._secrets = site_secrets.load(settings, root, redactor, wall)
        self._log, self._sink = open_log("supervisor", settings.log, redactor, stream=sys.stdout)
        self._place, self._notifier, self._ready = place, notifier, ready
        self._local = "local" in settings.drivers.use
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bool] = self._loop.create_future()
        self._counters = Counters()
        self._server = answers.server(
            ConnectionGuard(settings.limits, self._counters, self._log),
            self._secrets,
            self.health,
            self._why,
            self._counters.add,
        )
        self._seen: Seen | None = None
        self._problem: str | None = "its database was not asked yet"
        self._failing = False
        self._passer: Passer | None = None
        self._forwarder = Forwarder()
        self._peeked: dict[socket.socket, asyncio.TimerHandle] = {}

    async def wait(self) -> bool:
        """Return True when this process has the lease, False when it is to stop. Raises Refusal."""
        place = self._place
        lookout = Lookout(place.site, place.claim, place.about, self._told, local=self._local)
        for kind in KINDS:
            for listener in self._place.listening.of(kind):
                self._loop.add_reader(listener, self._accept, kind, listener)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._settle, False)
        lookout.start()
        try:
            return await self._done
        finally:
            await asyncio.to_thread(lookout.stop)
            await self._close()

    def health(self) -> dict[str, Any]:
        """Return the body of `/health`."""
        seen, holder = self._seen, None
        if seen is not None and seen.about is not None:
            holder = {
                "host": seen.about.host,
                "pid": seen.about.pid,
                "addresses": seen.about.addresses,
            }
        lag = None if seen is None else max(0.0, LEASE_SECS - seen.expires_in)
        epoch = None if seen is None else seen.epoch
        return answers.report(holder, epoch, lag, self._problem, failing=self._failing)

    # ---- the lease

    def _told(self, news: News) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._hear, news)

    def _hear(self, news: News) -> None:
        self._secrets.look()
        self._notifier.alive()
        match news:
            case Taken():
                self._settle(True)
            case Refusal():
                if not self._done.done():
                    self._done.set_exception(news)
            case Unknown():
                if self._problem != news.why:
                    self._log("the lease cannot be read: {}", news.why)
                self._problem, self._failing = news.why, False
            case Behind():
                if self._problem != news.why:
                    self._log("the lease is not taken: {}", news.why)
                self._problem, self._failing = news.why, True
                self._ready()
            case Seen():
                self._follow(news)

    def _follow(self, seen: Seen) -> None:
        before, self._seen, self._problem = self._seen, seen, None
        self._failing = False
        if before is None or before.holder != seen.holder:
            self._drop_passer()
            name = (
                "another supervisor"
                if seen.about is None
                else f"{seen.about.host} pid {seen.about.pid}"
            )
            self._log("stands by: {} serves the site, epoch {}", name, seen.epoch)
            self._notifier.status(f"stands by for {name}")
            self._ready()
        if (
            seen.about is not None
            and seen.about.boot_id == self._place.about.boot_id
            and self._passer is None
        ):
            self._passer = Passer(seen.about.relay)

    def _settle(self, taken: bool) -> None:
        if not self._done.done():
            self._done.set_result(taken)

    def _why(self) -> str:
        if self._seen is None or self._problem is not None:
            return self._problem or "its database was not asked yet"
        about = self._seen.about
        if about is None:
            return "the one that has the lease does not stand by"
        where = ", ".join(about.addresses[k] for k in ("public", "api") if k in about.addresses)
        return f"{about.host} has the lease ({where}); use its address"

    # ---- connections

    def _accept(self, kind: Kind, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as e:
                self._pause(kind, listener, e)
                return
            connection.setblocking(False)
            if kind == "api":
                self._peek(connection)
            else:
                self._hand_over(kind, connection)

    def _pause(self, kind: Kind, listener: socket.socket, error: OSError) -> None:
        """Accept nothing for a while: descriptors or memory are short."""
        self._log("connections wait: {}", error.strerror)
        self._loop.remove_reader(listener)
        self._loop.call_later(PAUSE_SECS, self._resume, kind, listener)

    def _resume(self, kind: Kind, listener: socket.socket) -> None:
        if not self._done.done():
            self._loop.add_reader(listener, self._accept, kind, listener)

    def _peek(self, connection: socket.socket) -> None:
        """Wait for the first bytes of a connection, which stay in it."""
        self._loop.add_reader(connection, self._peeked_at, connection)
        self._peeked[connection] = self._loop.call_later(PEEK_SECS, self._peeked_at, connection)

    def _peeked_at(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._peeked.pop(connection).cancel()
        try:
            head = connection.recv(len(HEALTH) + 1, socket.MSG_PEEK)
        except BlockingIOError:
            head = b"?"
        except OSError:
            head = b""
        if not head:
            connection.close()
        elif head.startswith(HEALTH) and head[len(HEALTH) :] in (b" ", b"?"):
            self._answer(connection)
        else:
            self._hand_over("api", connection)

    def _hand_over(self, kind: Kind, connection: socket.socket) -> None:
        seen = self._seen
        if self._passer is not None and self._passer.passed(kind, connection):
            self._counters.add("passed." + kind)
            return
        far = None if seen is None or seen.about is None else seen.about
        if kind in self._place.listening.tls:
            if far is not None and kind in far.addresses and self._passer is None:
                self._counters.add("forwarded." + kind)
                self._forwarder.forward(connection, far.addresses[kind])
            else:
                connection.close()
        elif kind == "api":
            self._answer(connection)
        else:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._server._handle_connection(connection, connection.getpeername())

    def _drop_passer(self) -> None:
        if self._passer is not None:
            self._passer.close()
            self._passer = None

    async def _close(self) -> None:
        for kind in KINDS:
            for listener in self._place.listening.of(kind):
                self._loop.remove_reader(listener)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
        for connection, timer in list(self._peeked.items()):
            timer.cancel()
            self._loop.remove_reader(connection)
            connection.close()
        self._peeked.clear()
        self._drop_passer()
        await self._forwarder.close()
        await self._server.close_all_connections()
        self._sink.close()


async def stand_by(
    settings: Settings,
    root: RootDirectory,
    events: EventLog,
    root_id: str,
    wall: Callable[[], float],
    notifier: Notifier,
    ready: Callable[[str], object],
) -> Place | None:
    """Stand by until this process has the lease. Return None if it is told to stop. Raises Refusal.

    ready: called with the address of this supervisor when another one serves.
    """
    listening = listen(settings)
    try:
        name = secrets.token_hex(4)
        about = About(
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            version=VERSION,
            addresses=listening.addresses(settings),
            relay=str(root / FOLDER / name),
            life=life(os.getpid()),
        )
        claim = Claim(new_holder(), LeaseDeadline(LEASE_SECS, MARGIN_SECS, _end))
        events.claim = claim
        place = Place(events.site(root_id), claim, about, listening)
        with root.alone():  # the first start of a root writes its secrets
            standby = Standby(
                settings, root, place, wall, notifier, lambda: ready(about.addresses["api"])
            )
        if await standby.wait():
            return place
    except BaseException:
        listening.close()
        raise
    listening.close()
    return None


def _end(late: float) -> None:
    """End this process, as kill -9 does: another supervisor may serve the site."""
    text = f"the lease of the site ended {late:.1f} s ago: this supervisor ends, and may be started again\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(EXIT_AGAIN)
