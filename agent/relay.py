"""The relay of one host: forwards bytes between agents without a network and the supervisor's
listener.

    python -m jobscribe.agent.relay JSON          {"url", "connect": "host:port", "ca": PEM or null, "pingSecs", "pingTimeoutSecs"}

Agents find the relay's socket, and the URL to dial through it, in FOLDER (a volume that they see
read-only). The relay does not interpret the bytes: with `wss` the agents verify the certificate
against the host in `url`, end to end. Jobs can open the socket as well as agents, so each Unix user
has limits on connections and dials, and buffers are bounded.

Optional in the JSON: "folder"; "connections" and "connectionsOfUser": limits on open connections,
in total and per Unix user. SIGTERM ends it. Standard library only; runs as process 1, without
capabilities, on a read-only root.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..protocol.redaction import Redactor
from ..runtime.filesystems import write_atomically
from ..runtime.log.destinations import Stream
from ..runtime.log.logger import Direct, Log

FOLDER = "/run/jobscribe"
ADDRESS, CA, SOCKET = "agents.json", "ca.pem", "link.sock"
CONNECTIONS, CONNECTIONS_OF_USER = 1024, 32
#: Time (seconds) in which a user's used-up quota of dials refills; until then dials are refused.
REFILL_SECS = 8.0
DIAL_SECS = 10.0
#: Seconds until the supervisor's first byte, and until the end of a half-closed connection.
FIRST_BYTE_SECS, HALF_SECS = 15.0, 30.0
#: Size of a read, and of the write buffer above which reading from the other side pauses.
READ_BYTES, WAITING_BYTES = 32 * 1024, 32 * 1024
#: Interval (seconds) of log lines that count repeated events.
SAY_SECS = 10.0
#: Time to flush the last bytes of a closing connection (seconds).
_LAST_SECS = 5.0
_BACKLOG = 256
_SPARE_DESCRIPTORS = 32
_PEER = struct.Struct("3i")
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

#: One buffer serves all connections: there is one thread, and data is copied before the next read.
_BUFFER = bytearray(READ_BYTES)


class Settings:
    """The settings in the JSON argument. Raises ValueError."""

    def __init__(self, text: str) -> None:
        try:
            fields = json.loads(text)
        except ValueError as e:
            raise ValueError(f"the argument is not JSON: {e}") from None
        if not isinstance(fields, dict):
            raise ValueError("the argument is not a JSON object")
        self.folder = str(fields.get("folder", FOLDER))
        host, _, port = str(fields.get("connect", "")).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f'"connect" must be host:port, not {fields.get("connect")!a}')
        self.host, self.port = host.strip("[]"), int(port)
        self.url, self.ca = fields.get("url"), fields.get("ca")
        if not isinstance(self.url, str) or not self.url.startswith(("ws://", "wss://")):
            raise ValueError(f'"url" must be a websocket URL, not {self.url!a}')
        if not isinstance(self.ca, str | None):
            raise ValueError('"ca" must be a PEM text or null')
        self.pace = {k: fields[k] for k in ("pingSecs", "pingTimeoutSecs") if k in fields}
        self.limit, self.user_limit = (
            _count(fields, "connections", CONNECTIONS),
            _count(fields, "connectionsOfUser", CONNECTIONS_OF_USER),
        )

    def address(self) -> dict[str, Any]:
        """Return the address file for agents, in the form of the supervisor's own."""
        ca = None if self.ca is None else f"{self.folder}/{CA}"
        return {
            "agentsUrl": self.url,
            "agentsCa": ca,
            "link": f"{self.folder}/{SOCKET}",
            **self.pace,
        }


def _count(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f'"{name}" must be a number above 0, not {value!a}')
    return value


class Relay:
    """All connections of one host."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.settings, self._log = settings, log
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit = max(1, min(settings.limit, (descriptors - _SPARE_DESCRIPTORS) // 2))
        self._open: set[_Connection] = set()
        self._shares: dict[int, _Share] = {}
        self._sums: dict[str, int] = {}
        self._count_timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, then write the address file for the agents. Raises OSError."""
        folder = self.settings.folder
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Side(self), sock=_listen(folder)
        )
        if self.settings.ca is not None:
            write_atomically(f"{folder}/{CA}", self.settings.ca.encode(), 0o644)
        write_atomically(f"{folder}/{ADDRESS}", json.dumps(self.settings.address()).encode(), 0o644)
        self._log(
            "relay from {} to {} port {} ({}); at most {} connections, {} of a unix user",
            f"{folder}/{SOCKET}",
            self.settings.host,
            self.settings.port,
            self.settings.url,
            self._limit,
            self.settings.user_limit,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.end()
        if self._count_timer is not None:
            self._count_timer.cancel()
        self._log_counts()

    def accept(self, near: "_Side") -> None:
        """Forward a new connection, or refuse it if a limit is reached."""
        assert near.transport is not None
        user = _peer(near.transport)
        share = self._shares.setdefault(user, _Share(self.settings.user_limit))
        refusal = None
        if len(self._open) >= self._limit:
            refusal = f"all {self._limit} connections are in use"
        elif share.open >= self.settings.user_limit:
            refusal = f"unix user {user} has {self.settings.user_limit} connections, its limit"
        elif not share.may_dial(time.monotonic()):
            refusal = f"unix user {user} dials more often than {share.rate:g} times a second"
        if refusal is not None:
            self.log_counted("refused: " + refusal)
            near.transport.abort()
            self._forget(user)
            return
        share.open += 1
        self._open.add(_Connection(self, user, near))

    def closed(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self._shares[connection.user].open -= 1
        self._forget(connection.user)

    def log_counted(self, sentence: str) -> None:
        """Log an event: the first at once, repeated ones as a count every SAY_SECS."""
        self._sums[sentence] = self._sums.get(sentence, 0) + 1
        if self._count_timer is None:
            self._log_counts()
            self._count_timer = asyncio.get_running_loop().call_later(
                SAY_SECS, self._log_counts_again
            )

    def _log_counts(self) -> None:
        for sentence, count in self._sums.items():
            self._log("{}{}", sentence, "" if count == 1 else f" ({count} times)")
        self._sums.clear()

    def _log_counts_again(self) -> None:
        self._count_timer = None
        if self._sums:
            self._log_counts()
            self._count_timer = asyncio.get_running_loop().call_later(
                SAY_SECS, self._log_counts_again
            )

    def _forget(self, user: int) -> None:
        """Drop the share of a user without connections and with a full quota of dials."""
        for known in [user] if len(self._shares) < 1000 else list(self._shares):
            if self._shares[known].idle(time.monotonic()):
                del self._shares[known]


class _Share:
    """Connections and dial quota of one Unix user."""

    def __init__(self, limit: int) -> None:
        self.open, self._limit = 0, float(limit)
        self.rate = limit / REFILL_SECS
        self._dials, self._at = self._limit, time.monotonic()

    def may_dial(self, now: float) -> bool:
        self._fill(now)
        if self._dials < 1:
            return False
        self._dials -= 1
        return True

    def idle(self, now: float) -> bool:
        self._fill(now)
        return self.open == 0 and self._dials == self._limit

    def _fill(self, now: float) -> None:
        self._dials = min(self._limit, self._dials + (now - self._at) * self.rate)
        self._at = now


class _Connection:
    """One connection: the agent's side (near) and the supervisor's (far)."""

    def __init__(self, relay: Relay, user: int, near: "_Side") -> None:
        self._relay, self.user, self._near = relay, user, near
        self._far: _Side | None = None
        self._ended = False
        loop = asyncio.get_running_loop()
        near.connection = self
        # no data is read before the supervisor is connected; some Python versions ignore a pause
        # in the turn that made the connection
        loop.call_soon(near.pause)
        self._timer = loop.call_later(FIRST_BYTE_SECS, self._timed_out)
        self._dialing: asyncio.Task[None] | None = loop.create_task(self._dial())

    async def _dial(self) -> None:
        settings = self._relay.settings
        far = _Side(None)
        far.connection, far.other = self, self._near
        try:
            async with asyncio.timeout(DIAL_SECS):
                await asyncio.get_running_loop().create_connection(
                    lambda: far, settings.host, settings.port
                )
        except (OSError, TimeoutError) as e:
            late = isinstance(e, TimeoutError) and not e.errno
            why = (
                f"no answer within {DIAL_SECS:g} s"
                if late
                else os.strerror(e.errno)
                if e.errno and e.errno > 0
                else str(e)
            )
            self._relay.log_counted(
                f"the supervisor at {settings.host} port {settings.port} cannot be reached: {why}"
            )
            self.end()
            return
        assert far.transport is not None
        if self._ended:
            far.transport.abort()
            return
        sock = far.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._far, self._dialing = far, None
        self._near.other = far
        self._near.resume()

    def first_byte(self, side: "_Side") -> None:
        """Handle the first byte of a side. Once the supervisor answers, the client has proved that
        it speaks the protocol, so its time limit ends.
        """
        if side is not self._near and not self._near.eof and not side.eof:
            self._timer.cancel()

    def _timed_out(self) -> None:
        self._relay.log_counted(
            f"ended: the supervisor did not answer unix user {self.user} within {FIRST_BYTE_SECS:g} s"
        )
        self.end()

    def half_closed(self) -> None:
        """Handle EOF of one side: the other may finish."""
        if self._near.eof and self._far is not None and self._far.eof:
            self.end()
            return
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(HALF_SECS, self.end)

    def end(self) -> None:
        """Close both sides; buffered bytes are still written, for a limited time."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        if self._dialing is not None and self._dialing is not asyncio.current_task():
            self._dialing.cancel()
        for side in (self._near, self._far):
            if side is not None:
                side.finish()
        self._relay.closed(self)


class _Side(asyncio.BufferedProtocol):
    """One end of a connection. The near one is accepted and registers itself with the relay."""

    def __init__(self, relay: Relay | None) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.connection: _Connection | None = None
        self.other: _Side | None = None
        self.eof = False
        self._has_sent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        if self._relay is not None:
            self._relay.accept(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if not self._has_sent and self.connection is not None:
            self._has_sent = True
            self.connection.first_byte(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(bytes(memoryview(_BUFFER)[:nbytes]))

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume()

    def eof_received(self) -> bool:
        self.eof = True
        if (
            self.other is not None
            and self.other.transport is not None
            and not self.other.transport.is_closing()
        ):
            with contextlib.suppress(OSError):
                self.other.transport.write_eof()
        if self.connection is not None:
            self.connection.half_closed()
        return True  # keeps the other direction open

    def connection_lost(self, exc: Exception | None) -> None:
        if self.connection is not None:
            self.connection.end()

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing() and not self.eof:
            self.transport.resume_reading()

    def finish(self) -> None:
        transport = self.transport
        if transport is None:
            return
        transport.close()
        if transport.get_write_buffer_size():  # do not wait forever for a peer that does not read
            asyncio.get_running_loop().call_later(_LAST_SECS, transport.abort)


def _listen(folder: str) -> socket.socket:
    """Listen on a new socket that replaces an earlier relay's. Every Unix user may connect."""
    path = f"{folder}/{SOCKET}"
    fresh = f"{folder}/.{SOCKET}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(fresh)
        os.chmod(fresh, 0o666)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        os.rename(fresh, path)
    except OSError:
        sock.close()
        raise
    return sock


def _peer(transport: asyncio.Transport) -> int:
    """Return the Unix user of the other end."""
    raw = transport.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size
    )
    return int(_PEER.unpack(raw)[1])


async def serve(settings: Settings, log: Log) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the folder cannot be used."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    # process 1 gets no signal without a handler
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    relay = Relay(settings, log)
    await relay.start()
    await over.wait()
    log("ends by signal")
    relay.close()


def main() -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o022)  # agents of any Unix user must be able to read the written files
    log = Log("relay", Redactor([]), Direct(Stream(sys.stdout)))
    try:
        if len(sys.argv) != 2:
            raise ValueError("usage: python -m jobscribe.agent.relay JSON")
        settings = Settings(sys.argv[1])
    except ValueError as e:
        log("jobscribe relay: {}", str(e))
        return 2
    try:
        asyncio.run(serve(settings, log))
    except OSError as e:
        log("jobscribe relay: cannot use {}: {}", settings.folder, str(e))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
