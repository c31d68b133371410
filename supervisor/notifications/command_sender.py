"""Telling by a command: the message on its standard input, names in its environment, an exit of 0
for yes.

It is a session of its own, and what is left of its process group when it is over, or its time is,
is ended: before it is reaped, so that the group's number is still its own. Of its output the
beginning is kept; one that goes on and on gets a broken pipe.
"""

import asyncio
import contextlib
import os
import signal
import subprocess

from ...protocol.redaction import Redactor
from ...service.site.notification_file import Target
from .sender import DeliveryResult, Notification

#: Of its output, so much is read, and so much kept to be shown.
MOST_READ, MOST_SHOWN = 64 * 1024, 2_000
_CHUNK = 16 * 1024
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREFIX = "JOBSCRIBE_NOTIFY_"


class Program:
    """One target's."""

    def __init__(self, target: Target, *, redactor: Redactor) -> None:
        self._target, self._redactor = target, redactor
        self._running: set[subprocess.Popen[bytes]] = set()

    def close(self) -> None:
        """Those that run are ended; who waits for them has an answer."""
        for process in self._running:
            _end(process)

    async def send(self, letter: Notification) -> DeliveryResult:
        readable, writable = os.pipe()
        output = _Output(readable)
        try:
            process = self._start(letter, writable)
        except OSError as e:
            output.close()
            return DeliveryResult(
                False, f"{self._target.command[0]} cannot be started: {e.strerror}"
            )
        finally:
            os.close(writable)
        self._running.add(process)
        in_time = True
        try:
            async with asyncio.timeout(self._target.timeout_secs):
                await _over(process.pid)
        except TimeoutError:
            in_time = False
        finally:
            _end(process)
            await _over(process.pid)
            self._running.discard(process)
            code = process.wait()
            text = self._redactor.text(output.close())
        return self._outcome(code, in_time, output.flooded, text)

    def _start(self, letter: Notification, output: int) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": _PATH,
            "HOME": os.path.expanduser("~"),
            "LANG": "C.UTF-8",
            **{_PREFIX + k: v for k, v in letter.names.items()},
        }
        # a file and no pipe: it ends by itself, and nobody has to wait until it is read
        given = os.memfd_create("notification", os.MFD_CLOEXEC)
        try:
            os.write(given, letter.body)
            os.lseek(given, 0, os.SEEK_SET)
            return subprocess.Popen(
                self._target.command,
                stdin=given,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(given)

    def _outcome(self, code: int, in_time: bool, flooded: bool, text: str) -> DeliveryResult:
        if not in_time:
            return DeliveryResult(
                False,
                f"it was not over within {self._target.timeout_secs:g} s, and was ended",
                text,
            )
        if code == 0:
            return DeliveryResult(True, "it exited with 0", text)
        how = f"it was ended by signal {-code}" if code < 0 else f"it exited with {code}"
        return DeliveryResult(
            False, how + (f", after more than {MOST_READ} bytes of output" if flooded else ""), text
        )


class _Output:
    """Reads what a command writes as it comes, and closes its end at the limit."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._loop, self._kept, self._count = asyncio.get_running_loop(), bytearray(), 0
        self.flooded = False
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def close(self) -> str:
        """What it wrote, as far as it is kept."""
        while self._read():
            pass
        self._stop()
        return self._kept.decode("utf-8", "replace")

    def _read(self) -> bool:
        """May there be more?"""
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        self._count += len(data)
        self._kept += data[: max(0, MOST_SHOWN - len(self._kept))]
        self.flooded = self._count > MOST_READ
        if not data or self.flooded:
            self._stop()
        return self._fd is not None

    def _stop(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


async def _over(pid: int) -> None:
    """Returns when this child of ours runs no more. It is not reaped."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    fd = os.pidfd_open(pid)
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and whatever it left behind in its group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
