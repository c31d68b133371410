"""A process that `docker exec` starts in a container, in a terminal or with pipes, as the `Terminal`
of a relayed shell.

Docker can neither signal such a process nor does it hang up when its client is gone. So a second
exec, the *guard*, has its standard input connected to this process: at the end of that input it
ends all processes of the terminal, also if the supervisor was killed.
"""

import asyncio
import contextlib
import functools
import select
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ....runtime.shells.session import ShellExit, ShellSession
from .engine import EngineError, HostEngine
from .errors import FOREIGN
from .exec_frames import OutputFrames

#: Bytes of one read of output, and of input that the container has not taken yet.
READ_BYTES, PENDING_BYTES = 64 * 1024, 64 * 1024
#: Maximum bytes of the first line. A longer one is output: the image's /bin/sh did not run the command.
HEAD_BYTES = 4096
#: Time from a hangup until the connection is given up: the image's shell may kill nothing (seconds).
GIVE_UP_SECS = 10.0
#: Characters of stderr of a process with pipes that its end reports.
ERROR_CHARS = 500
#: Tries of a new size: the terminal may not exist yet. Tries to see the exit, which may follow the
#: end of the output. Pause between them (seconds).
_SIZE_TRIES, _EXIT_TRIES, _AGAIN_SECS = 20, 50, 0.1
#: Tells its pid, which is that of the session of its terminal, in the first line.
_COMMAND = 'echo "$$"; exec "$@"'
#: Sends two signals to the session `sid`. It needs only a shell.
_KILL = """\
for signal in HUP KILL; do
  left=
  for p in /proc/[0-9]*; do
    read -r line <"$p/stat" || continue
    set -- ${line##*) }
    [ "$4" = "$sid" ] && [ "$1" != Z ] && left=1 && kill -"$signal" "${p#/proc/}"
  done
  [ -n "$left" ] && [ "$signal" = HUP ] || exit 0
  sleep 2 || :
done 2>/dev/null
"""
#: Reads the session from its input, and kills it when that input ends.
_GUARD = f"read -r sid || exit 0\nwhile read -r _; do :; done\n{_KILL}"


class Attachment:
    """A connection to a process in a container, taken over from the docker package."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        # with TLS, the docker package returns the connection itself
        self.connection: Any = getattr(attached, "_sock", attached)
        self.connection.setblocking(False)
        #: output that arrived together with the headers
        self.early = b""
        with contextlib.suppress(OSError, AttributeError):
            self.early = bytes(attached._response.raw._fp.fp.peek())

    def send(self, data: bytes) -> int:
        """Return how many bytes were sent. Raises OSError."""
        try:
            return int(self.connection.send(data))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the docker package may have more references to it
            self.connection.shutdown(socket.SHUT_RDWR)
        for part in (self._attached._response, self._attached, self.connection):
            with contextlib.suppress(OSError, *FOREIGN):
                part.close()


class ExecTerminal:
    """A process in a container. Create it with `start`. frames: separates the output of pipes; a
    terminal has none. Bytes pass through pipes unchanged, and stderr is reported at the end only.

    One thread does the input and output, because two must not use one TLS connection.
    """

    def __init__(
        self,
        engine: HostEngine,
        container: str,
        exec_id: str,
        attachment: Attachment,
        guard: Attachment,
        session: ShellSession,
        frames: OutputFrames | None = None,
    ) -> None:
        self._engine, self._container, self._id, self._session = engine, container, exec_id, session
        self._attachment, self._guard = attachment, guard
        self._frames, self._errors = frames, b""
        self._loop = asyncio.get_running_loop()
        #: the first line of output, as far as it has arrived; None after it
        self._head: bytes | None = b""
        self._hung_up = self._given_up = False
        self._sid: str | None = None
        self._size: tuple[int, int] | None = None
        self._work: set[asyncio.Task[None]] = set()
        #: guards what the thread shares with the event loop
        self._lock = threading.Lock()
        self._pending, self._paused, self._open = bytearray(), False, True
        self._taken = threading.Event()
        self._waked, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self.ended = asyncio.Event()
        threading.Thread(target=self._relay, name="docker-shell", daemon=True).start()

    @classmethod
    async def start(
        cls,
        engine: HostEngine,
        container: str,
        command: Sequence[str],
        env: Mapping[str, str],
        session: ShellSession,
        *,
        tty: bool = True,
    ) -> "ExecTerminal":
        """Start the command in a running container as its user, in a terminal or with pipes. Raises
        EngineError.
        """

        def work(client: Any) -> tuple[str, Attachment, Attachment]:
            _, guard = _exec(client, container, ("/bin/sh", "-c", _GUARD), {}, tty=False)
            try:
                whole = ("/bin/sh", "-c", _COMMAND, "sh", *command)
                return *_exec(client, container, whole, env, tty=tty), guard
            except BaseException:
                guard.close()
                raise

        exec_id, attachment, guard = await engine.call(f"open a shell in {container[:12]}", work)
        frames = None if tty else OutputFrames()
        return cls(engine, container, exec_id, attachment, guard, session, frames)

    # ---- Terminal

    def write(self, data: bytes) -> int:
        with self._lock:
            accepted = data[: PENDING_BYTES - len(self._pending)]
            self._pending += accepted
        self._wake()
        return len(accepted)

    def resize(self, rows: int, cols: int) -> None:
        idle, self._size = self._size is None, (rows, cols)
        if idle:
            self._spawn(self._apply_size())

    def pause(self, paused: bool) -> None:
        with self._lock:
            self._paused = paused and not self._hung_up
        self._wake()

    def hang_up(self) -> None:
        """Also read what nobody asks for any more: the end of the output is the end of the shell."""
        if not self._hung_up:
            self._hung_up = True
            self._loop.call_later(GIVE_UP_SECS, self._give_up)
        self.pause(False)
        if self._sid is not None:
            self._spawn(self._kill(self._sid))

    # ---- on the event loop

    def _give_up(self) -> None:
        self._given_up = True
        self._wake()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _received(self, data: bytes) -> None:
        if self._frames is not None:
            data, errors = self._frames.feed(data)
            self._errors = (self._errors + errors)[-ERROR_CHARS:]
        if self._head is not None:
            self._head += data
            first, newline, data = self._head.partition(b"\n")
            if not newline and len(first) < HEAD_BYTES:
                self._taken.set()
                return
            self._head = None
            if newline and first.strip().isdigit():
                self._sid = first.strip().decode()
                with contextlib.suppress(OSError):
                    self._guard.send(first.strip() + b"\n")
                if self._hung_up:
                    self.hang_up()
            else:  # an error of the container's runtime
                data = first + newline + data
        if data and not self._hung_up:
            self._session.received(data)
        self._taken.set()

    async def _kill(self, sid: str) -> None:
        """End the session. The end of the guard's input would do it too, but an end that follows
        soon after the session's id may overtake it in the engine.
        """
        command = ("/bin/sh", "-c", f"sid=$1\n{_KILL}", "sh", sid)
        try:
            await self._engine.call(
                "hang up a shell", functools.partial(_run, self._container, command)
            )
        except EngineError:
            self._guard.close()

    async def _apply_size(self) -> None:
        for _ in range(_SIZE_TRIES):
            size = self._size
            if size is None or self.ended.is_set():
                break
            resize = functools.partial(_resize, self._id, *size)
            try:
                await self._engine.call("resize a shell", resize)
                if self._size == size:
                    break
            except EngineError:
                await asyncio.sleep(_AGAIN_SECS)
        self._size = None

    async def _end(self) -> None:
        """Report the exit after the end of the output."""
        exit_ = ShellExit(detail="the connection to the shell is lost")
        try:
            for _ in range(_EXIT_TRIES):
                found = await self._engine.call(
                    "inspect a shell", lambda c: c.exec_inspect(self._id)
                )
                if not found.get("Running") and found.get("ExitCode") is not None:
                    said = self._errors.decode("utf-8", "replace").strip()
                    exit_ = ShellExit(code=int(found["ExitCode"]), detail=said)
                    break
                await asyncio.sleep(_AGAIN_SECS)
        except EngineError as e:
            exit_ = ShellExit(detail=e.sentence)
        finally:
            self._guard.close()
            self._session.ended(exit_)
            self.ended.set()

    # ---- in the thread

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _relay(self) -> None:
        try:
            if self._attachment.early:
                self._pass_on(self._attachment.early)
            while self._step():
                pass
        except OSError:
            pass  # the connection is lost; its end is reported below
        except RuntimeError:
            return  # the event loop is closed: the process ends
        finally:
            self._attachment.close()
            self._waked.close()
            self._waker.close()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._spawn(self._end()))

    def _step(self) -> bool:
        """Send and receive what is possible. Return False at the end of the output, or if it is given
        up. Raises OSError, and RuntimeError if the event loop is closed.
        """
        if self._given_up:
            return False
        connection = self._attachment.connection
        with self._lock:
            # the terminal's echo of early input would come before the first line
            typed = b"" if self._head is not None else bytes(self._pending[:READ_BYTES])
            paused = self._paused
        wanted = (0 if paused else select.POLLIN) | (select.POLLOUT if typed else 0)
        buffered = not paused and isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
        poll = select.poll()
        poll.register(self._waked, select.POLLIN)
        if wanted:
            poll.register(connection, wanted)
        ready = dict(poll.poll(0 if buffered else None))
        if self._waked.fileno() in ready:
            self._waked.recv(4096)
        if typed and ready.get(connection.fileno(), 0) & ~select.POLLIN:
            sent = self._attachment.send(typed)
            with self._lock:
                del self._pending[:sent]
        if buffered or (not paused and ready.get(connection.fileno(), 0) & ~select.POLLOUT):
            try:
                data = connection.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            if not data:
                return False
            self._pass_on(data)
        return True

    def _pass_on(self, data: bytes) -> None:
        """Pass on output, and wait until the event loop has it."""
        self._taken.clear()
        self._loop.call_soon_threadsafe(self._received, data)
        self._taken.wait()


def _exec(
    client: Any, container: str, command: Sequence[str], env: Mapping[str, str], *, tty: bool
) -> tuple[str, Attachment]:
    made = client.exec_create(
        container, list(command), stdin=True, tty=tty, environment=dict(env), workdir="/"
    )
    return made["Id"], Attachment(client.exec_start(made["Id"], tty=tty, socket=True))


def _run(container: str, command: Sequence[str], client: Any) -> None:
    client.exec_start(client.exec_create(container, list(command), workdir="/")["Id"], detach=True)


def _resize(exec_id: str, rows: int, cols: int, client: Any) -> None:
    client.exec_resize(exec_id, rows, cols)
