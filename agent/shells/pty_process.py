"""A process in a pseudo terminal of its own, as the `Terminal` of a relayed shell. Linux only."""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from signal import Signals

from ...runtime.child_processes import signal_group
from ...runtime.shells.session import ShellExit, ShellSession

#: Maximum bytes of a read from the terminal, and of input that the terminal has not taken yet.
READ_BYTES, PENDING_BYTES = 64 * 1024, 64 * 1024
#: After the shell has exited, wait this long for output of processes that it left behind; after a
#: hangup, wait this long before SIGKILL (seconds).
LAST_OUTPUT_SECS, HANGUP_SECS = 0.2, 2.0
#: Reads that empty the terminal's buffer at the end: it has 68 KiB, and a read returns 4 KiB.
LAST_READS = 20
#: A session leader that opens a terminal gets it as its controlling terminal, which job control and
#: Ctrl-C need.
_IN_TERMINAL = 'exec <>"$1" >&0 2>&0 && shift && exec "$@"'


class PtyProcess:
    """A process in a pseudo terminal. Create it with `spawn`."""

    def __init__(self, master: int, process: Process, session: ShellSession) -> None:
        self._master, self._process, self._session = master, process, session
        self._loop = asyncio.get_running_loop()
        self._pending = bytearray()
        self._open, self._drained = True, asyncio.Event()
        self._reading = False
        #: set while output is read, and after the end
        self._unpaused = asyncio.Event()
        self.pause(False)
        self.ended = self._loop.create_task(self._wait())

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        rows: int,
        cols: int,
        session: ShellSession,
    ) -> "PtyProcess":
        """Start the process. Raises OSError."""
        master, slave = os.openpty()
        try:
            os.set_blocking(master, False)
            _set_size(master, rows, cols)
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _IN_TERMINAL, "sh", os.ttyname(slave), *argv),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd="/",
                env=dict(env),
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return cls(master, process, session)

    # ---- Terminal

    def write(self, data: bytes) -> int:
        accepted = data[: PENDING_BYTES - len(self._pending)]
        if self._open and accepted:
            self._pending += accepted
            self._flush()
        return len(accepted)

    def resize(self, rows: int, cols: int) -> None:
        if self._open:
            with contextlib.suppress(OSError):
                _set_size(self._master, rows, cols)

    def pause(self, paused: bool) -> None:
        if paused and self._open:
            self._unpaused.clear()
        else:
            self._unpaused.set()
        if not self._open or self._reading is not paused:
            return
        if paused:
            self._loop.remove_reader(self._master)
        else:
            self._loop.add_reader(self._master, self._read)
        self._reading = not paused

    def hang_up(self) -> None:
        """The kernel sends SIGHUP to the session of a terminal that is closed."""
        self._close()

    # ---- inside

    def _read(self) -> bool:
        """Pass on output. Return whether there may be more."""
        try:
            data = os.read(self._master, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process has the terminal open
            data = b""
        if data:
            self._session.received(data)
        else:
            self._close()
        return self._open

    def _flush(self) -> None:
        try:
            n = os.write(self._master, self._pending)
        except BlockingIOError:
            n = 0
        except OSError:
            self._pending.clear()
            n = 0
        del self._pending[:n]
        if self._pending:
            self._loop.add_writer(self._master, self._flush)
        else:
            self._loop.remove_writer(self._master)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._unpaused.set()
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._drained.set()
            self._loop.call_later(HANGUP_SECS, self._kill)

    def _kill(self) -> None:
        if self._process.returncode is None:
            signal_group(self._process, Signals.SIGKILL)

    async def _wait(self) -> None:
        code = await self._process.wait()
        if self._open:
            await self._unpaused.wait()  # its user has not read all output yet
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), LAST_OUTPUT_SECS)
        for _ in range(LAST_READS):
            if self._open and not self._read():
                break
        self._close()
        self._session.ended(ShellExit(code=code) if code >= 0 else ShellExit(signal=-code))


def _set_size(fd: int, rows: int, cols: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
