"""Channel over a user's established ssh connection to a login node: commands, and a socket on the
login node that is forwarded to this machine.

Holds no secret. Ends when the host, the network or the keepalive ends it; subscribers are then
called.
"""

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import Callable, Sequence

import asyncssh

from ..login_node.channel import OUT_BYTES, ChannelError, CommandResult
from .prompts import strip_control

#: Maximum number of concurrent commands. sshd allows ten sessions per connection by default
#: (MaxSessions) and refuses more.
_MAX_COMMANDS = 8
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
#: Maximum length of a unix socket's path on Linux (bytes).
_PATH_BYTES = 107
_CLOSE_SECS = 3.0
#: Creates a folder owned by the user with mode 0700, and removes the socket of an earlier
#: connection.
_MAKE_FOLDER = """umask 077
mkdir -p -- "$1" && [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 -- "$1" ||
  { echo "$1 is not a folder of your own" >&2; exit 1; }
if [ -S "$2" ]; then rm -f -- "$2"; fi
[ ! -e "$2" ] || { echo "$2 exists and is not a socket" >&2; exit 1; }"""


class SshChannel:
    """A `Channel` (drivers.sbatch.login_node.channel) over ssh."""

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        user: str,
        host: str,
        through: Sequence[asyncssh.SSHClientConnection] = (),
    ) -> None:
        """through: the connections that carry this one, outermost first; closed with it."""
        self.user, self.host = user, host
        self._connection, self._through = connection, tuple(through)
        self._slots = asyncio.Semaphore(_MAX_COMMANDS)
        self._listeners: dict[str, asyncssh.SSHListener] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._closed = False

    def pkdebug_str(self) -> str:
        return f"SshChannel({self.user}@{self.host}{' closed' if self._closed else ''})"

    @property
    def closed(self) -> bool:
        return self._closed

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Register a function that is called once on the event loop when the connection has ended,
        or soon if it has ended already.
        """
        if self._closed:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._subscribers.append(callback)

    def lost(self) -> None:
        """Mark the channel as closed. Called by the connection when it ends."""
        if self._closed:
            return
        self._closed = True
        subscribers, self._subscribers = self._subscribers, []
        for callback in subscribers:
            asyncio.get_running_loop().call_soon(callback)
        for connection in reversed(self._through):
            connection.close()

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0
    ) -> CommandResult:
        try:
            async with asyncio.timeout(secs):
                async with self._slots:
                    return await self._execute(shlex.join(argv), stdin, argv[0])
        except TimeoutError:
            raise ChannelError(f"{argv[0]} on {self.host} did not end within {secs:g} s") from None

    async def _execute(self, command: str, stdin: bytes, name: str) -> CommandResult:
        if self._closed:
            raise ChannelError(
                f"the ssh connection of {self.user} to {self.host} has ended; sign in again"
            )
        process = None
        try:
            process = await self._start(command)
            out, err = await _communicate(process, stdin)
            await process.wait_closed()
            code = process.returncode
        except (asyncssh.Error, OSError) as e:
            raise ChannelError(self._explain_error(e, name)) from None
        finally:
            if process is not None and process.returncode is None:
                _stop(process)
        if code is None:
            raise ChannelError(
                f"the ssh connection of {self.user} to {self.host} ended "
                f"while {name} was running there"
            )
        return CommandResult(code, out, err)

    async def _start(self, command: str) -> "asyncssh.SSHClientProcess[bytes]":
        """Start a command. Retry a refused session, which has not started: sshd counts a closed
        session for a moment longer than this class.
        """
        for pause in _PAUSES:
            try:
                return await self._connection.create_process(command, encoding=None)
            except asyncssh.ChannelOpenError:
                if self._connection.is_closed():
                    raise
                await asyncio.sleep(pause)
        return await self._connection.create_process(command, encoding=None)

    def _explain_error(self, error: Exception, name: str) -> str:
        if isinstance(error, asyncssh.ChannelOpenError) and not self._connection.is_closed():
            return (
                f"{self.host} opens no session for {name}: {strip_control(error.reason)}; "
                "its sshd may limit sessions (MaxSessions) or logins"
            )
        return (
            f"the ssh connection of {self.user} to {self.host} ended while {name} was running "
            f"there: {strip_control(str(error))}"
        )

    async def forward(self, path: str, host: str, port: int) -> None:
        if len(path.encode()) > _PATH_BYTES:
            raise ChannelError(
                f"{path} is too long for a unix socket ({_PATH_BYTES} bytes); "
                "the operator configures a shorter folder"
            )
        if (old := self._listeners.pop(path, None)) is not None:
            old.close()
            await old.wait_closed()
        result = await self.run(["sh", "-c", _MAKE_FOLDER, "sh", posixpath.dirname(path), path])
        if result.code != 0:
            raise ChannelError(
                f"cannot create a socket at {path} on {self.host}: "
                f"{strip_control(result.err.decode('utf-8', 'replace'))}"
            )
        try:
            listener = await self._connection.forward_remote_path_to_port(path, host, port)
        except (asyncssh.Error, asyncssh.ChannelListenError, OSError):
            raise ChannelError(
                f"{self.host} does not forward the socket {path}; its sshd must allow it "
                "(AllowStreamLocalForwarding, DisableForwarding), or the operator chooses another "
                "`link` in the clusters file",
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
    """Close the connection gracefully, or abort it after a time limit."""
    connection.close()
    try:
        async with asyncio.timeout(_CLOSE_SECS):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()


async def _communicate(
    process: "asyncssh.SSHClientProcess[bytes]", stdin: bytes
) -> tuple[bytes, bytes]:
    writer = asyncio.ensure_future(_write(process.stdin, stdin))
    try:
        out, err = await asyncio.gather(_read_capped(process.stdout), _read_capped(process.stderr))
        return out, err
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def _write(pipe: "asyncssh.SSHWriter[bytes]", data: bytes) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):  # it did not read all input
        for start in range(0, len(data), 1 << 16):
            pipe.write(data[start : start + (1 << 16)])
            await pipe.drain()
        pipe.write_eof()


async def _read_capped(pipe: "asyncssh.SSHReader[bytes]") -> bytes:
    """Read and keep the beginning, as LocalChannel does. The rest is read and dropped, so that the
    command can end.
    """
    kept = bytearray()
    while data := await pipe.read(1 << 16):
        kept += data[: OUT_BYTES - len(kept)]
    return bytes(kept)


def _stop(process: "asyncssh.SSHClientProcess[bytes]") -> None:
    """Stop an unfinished command. sshd forwards the signal if it can; without pipes, most commands
    end by themselves.
    """
    with contextlib.suppress(OSError, asyncssh.Error):
        process.terminate()
    process.close()
