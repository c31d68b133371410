"""Delivery by a command: the message is its standard input, its environment has the most important
fields, and exit code 0 means success.

The command runs in its own session. When it ends or times out, the rest of its process group is
killed. The kill precedes the reap, so that the group number cannot be reused. Only the beginning of
its output is kept; above the limit its pipe is closed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess

from ...protocol.redaction import Redactor
from ...service.site.notification_file import Target
from .sender import DeliveryResult, Notification

#: Maximum bytes of output to read, and to keep for people.
MOST_READ, MOST_SHOWN = 64 * 1024, 2_000
_CHUNK = 16 * 1024
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREFIX = "JOBSCRIBE_NOTIFY_"


class Program:
    """The command of one target."""

    def __init__(self, target: Target, *, redactor: Redactor) -> None:
        self._target, self._redactor = target, redactor
        self._running: set[subprocess.Popen[bytes]] = set()

    def close(self) -> None:
        """Kill all running commands. Pending `send` calls return."""
        for process in self._running:
            _end(process)

    async def send(self, notification: Notification) -> DeliveryResult:
        readable, writable = os.pipe()
        output = _Output(readable)
        try:
            process = self._start(notification, writable)
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
                await _wait_for_exit(process.pid)
        except TimeoutError:
            in_time = False
        finally:
            _end(process)
            await _wait_for_exit(process.pid)
            self._running.discard(process)
            code = process.wait()
            text = self._redactor.text(output.close())
        return self._outcome(code, in_time, output.flooded, text)

    def _start(self, notification: Notification, output: int) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": _PATH,
            "HOME": os.path.expanduser("~"),
            "LANG": "C.UTF-8",
            **{_PREFIX + k: v for k, v in notification.names.items()},
        }
        # A file instead of a pipe: the whole message is written at once, without waiting for the
        # reader.
        given = os.memfd_create("notification", os.MFD_CLOEXEC)
        try:
            os.write(given, notification.body)
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
                f"the command did not end within {self._target.timeout_secs:g} s and was killed",
                text,
            )
        if code == 0:
            return DeliveryResult(True, "the command exited with 0", text)
        how = (
            f"the command was killed by signal {-code}"
            if code < 0
            else f"the command exited with {code}"
        )
        return DeliveryResult(
            False, how + (f" after more than {MOST_READ} bytes of output" if flooded else ""), text
        )


class _Output:
    """Reads the output of a command as it comes, and closes the pipe at the limit."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._loop, self._kept, self._count = asyncio.get_running_loop(), bytearray(), 0
        self.flooded = False
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def close(self) -> str:
        """Return the kept part of the output."""
        while self._read():
            pass
        self._stop()
        return self._kept.decode("utf-8", "replace")

    def _read(self) -> bool:
        """Read once. Return whether more may follow."""
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


async def _wait_for_exit(pid: int) -> None:
    """Wait until this child process has ended. Does not reap the child."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    fd = os.pidfd_open(pid)
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything left in its process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
