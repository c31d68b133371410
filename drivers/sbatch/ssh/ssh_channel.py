"""A user's ssh connection to a login node, once it stands: commands, and a socket there that leads
back here.

It knows no secret. It is gone when the host, the network or the keepalive says so, and whoever
wants to know is told.
"""

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import Callable, Sequence

import asyncssh

from ..login_node.channel import OUT_BYTES, ChannelError, Ran
from .prompts import plain

#: Commands at once; sshd's own limit for a connection is ten (MaxSessions), and it refuses the
#: next.
_AT_ONCE = 8
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
#: a unix socket's address has no more room on Linux
_PATH_BYTES = 107
_CLOSE_SECS = 3.0
#: A folder that is the user's own and nobody else's, where no socket of an earlier connection is in
#: the way.
_MAKE_ROOM = """umask 077
mkdir -p -- "$1" && [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 -- "$1" ||
  { echo "$1 is not a folder of your own" >&2; exit 1; }
if [ -S "$2" ]; then rm -f -- "$2"; fi
[ ! -e "$2" ] || { echo "$2 is in the way" >&2; exit 1; }"""


class SshChannel:
    """A Channel (drivers.sbatch.channel) over ssh."""

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        user: str,
        host: str,
        through: Sequence[asyncssh.SSHClientConnection] = (),
    ) -> None:
        """through: the connections that carry this one, outermost first; they are closed with it."""
        self.user, self.host = user, host
        self._connection, self._through = connection, tuple(through)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._listeners: dict[str, asyncssh.SSHListener] = {}
        self._told: list[Callable[[], None]] = []
        self._closed = False

    def pkdebug_str(self) -> str:
        return f"SshChannel({self.user}@{self.host}{' closed' if self._closed else ''})"

    @property
    def closed(self) -> bool:
        return self._closed

    def when_closed(self, tell: Callable[[], None]) -> None:
        """Called once, on the loop, when the connection has ended, whoever ended it; soon, if it
        has already.
        """
        if self._closed:
            asyncio.get_running_loop().call_soon(tell)
        else:
            self._told.append(tell)

    def lost(self) -> None:
        """The connection has ended: told by it."""
        if self._closed:
            return
        self._closed = True
        told, self._told = self._told, []
        for tell in told:
            asyncio.get_running_loop().call_soon(tell)
        for connection in reversed(self._through):
            connection.close()

    async def run(self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0) -> Ran:
        try:
            async with asyncio.timeout(secs):
                async with self._slots:
                    return await self._executed(shlex.join(argv), stdin, argv[0])
        except TimeoutError:
            raise ChannelError(f"{argv[0]} on {self.host} did not end within {secs:g} s") from None

    async def _executed(self, command: str, stdin: bytes, name: str) -> Ran:
        if self._closed:
            raise ChannelError(
                f"the ssh connection of {self.user} to {self.host} has ended; sign in again"
            )
        process = None
        try:
            process = await self._begun(command)
            out, err = await _spoken(process, stdin)
            await process.wait_closed()
            code = process.returncode
        except (asyncssh.Error, OSError) as e:
            raise ChannelError(self._broken(e, name)) from None
        finally:
            if process is not None and process.returncode is None:
                _ended(process)
        if code is None:
            raise ChannelError(
                f"the ssh connection of {self.user} to {self.host} ended while {name} was running there"
            )
        return Ran(code, out, err)

    async def _begun(self, command: str) -> "asyncssh.SSHClientProcess[bytes]":
        """sshd counts a session until it has looked after it, a moment longer than we do; what it
        refuses it has not begun.
        """
        for pause in _PAUSES:
            try:
                return await self._connection.create_process(command, encoding=None)
            except asyncssh.ChannelOpenError:
                if self._connection.is_closed():
                    raise
                await asyncio.sleep(pause)
        return await self._connection.create_process(command, encoding=None)

    def _broken(self, error: Exception, name: str) -> str:
        if isinstance(error, asyncssh.ChannelOpenError) and not self._connection.is_closed():
            return f"{self.host} opens no session for {name}: {plain(error.reason)}; sshd there may limit sessions (MaxSessions) or logins"
        return f"the ssh connection of {self.user} to {self.host} ended while {name} was running there: {plain(str(error))}"

    async def forward(self, path: str, host: str, port: int) -> None:
        if len(path.encode()) > _PATH_BYTES:
            raise ChannelError(
                f"{path} is too long for a unix socket ({_PATH_BYTES} bytes); the operator names a shorter folder"
            )
        if (old := self._listeners.pop(path, None)) is not None:
            old.close()
            await old.wait_closed()
        made = await self.run(["sh", "-c", _MAKE_ROOM, "sh", posixpath.dirname(path), path])
        if made.code != 0:
            raise ChannelError(
                f"no socket can be made at {path} on {self.host}: {plain(made.err.decode('utf-8', 'replace'))}"
            )
        try:
            listener = await self._connection.forward_remote_path_to_port(path, host, port)
        except (asyncssh.Error, asyncssh.ChannelListenError, OSError):
            raise ChannelError(
                f"{self.host} does not forward the socket {path}; its sshd has to allow it (AllowStreamLocalForwarding, "
                "DisableForwarding), or the clusters' file says another link",
            ) from None
        self._listeners[path] = listener

    async def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for connection in (self._connection, *reversed(self._through)):
            await closed(connection)
        self.lost()


async def closed(connection: asyncssh.SSHClientConnection) -> None:
    """Says good-bye; where nobody answers, it is cut."""
    connection.close()
    try:
        async with asyncio.timeout(_CLOSE_SECS):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()


async def _spoken(process: "asyncssh.SSHClientProcess[bytes]", stdin: bytes) -> tuple[bytes, bytes]:
    writing = asyncio.ensure_future(_written(process.stdin, stdin))
    try:
        out, err = await asyncio.gather(_capped(process.stdout), _capped(process.stderr))
        return out, err
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _written(pipe: "asyncssh.SSHWriter[bytes]", data: bytes) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):  # it did not want all of it
        for start in range(0, len(data), 1 << 16):
            pipe.write(data[start : start + (1 << 16)])
            await pipe.drain()
        pipe.write_eof()


async def _capped(pipe: "asyncssh.SSHReader[bytes]") -> bytes:
    """The beginning, as LocalChannel keeps it; what comes then is read and dropped, so that it
    ends.
    """
    kept = bytearray()
    while data := await pipe.read(1 << 16):
        kept += data[: OUT_BYTES - len(kept)]
    return bytes(kept)


def _ended(process: "asyncssh.SSHClientProcess[bytes]") -> None:
    """Nobody waits for it any more. sshd passes the signal on if it can; without pipes most end by
    themselves.
    """
    with contextlib.suppress(OSError, asyncssh.Error):
        process.terminate()
    process.close()
