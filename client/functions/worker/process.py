"""The process of functions as its warm worker sees it, and the reason of its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys

from .call_files import Call
from .call_process import ANSWER, CALL, FUNCTION, REQUEST
from .journal import write_all


class Process:
    """The process that runs the functions. It gets a call only when it has answered the last one."""

    def __init__(self, boot: str, place: str) -> None:
        inner, self._requests = os.pipe2(os.O_CLOEXEC)
        self.answers, outer = os.pipe2(os.O_CLOEXEC)
        words = ["-c", boot, "call_process", str(inner), str(outer), place]
        self._popen = subprocess.Popen([sys.executable, *words], pass_fds=(inner, outer))
        os.close(inner)
        os.close(outer)
        self.ended = os.pidfd_open(self._popen.pid)
        self._known: set[bytes] = set()

    def send(self, call: Call, functions: dict[bytes, bytes]) -> None:
        """Send a call. A process that is gone shows at `ended`."""
        with contextlib.suppress(BrokenPipeError):
            if call.digest not in self._known:
                data = call.digest + functions[call.digest]
                write_all(self._requests, REQUEST.pack(FUNCTION, len(data)) + data)
                self._known.add(call.digest)
            size = len(call.digest) + len(call.data)
            write_all(self._requests, REQUEST.pack(CALL, size) + call.digest + call.data)

    def answer(self) -> tuple[bytes, bytes] | None:
        """Return header and body of the answer; None if the process ended before it was complete."""
        head = self._read(ANSWER.size)
        if head is None:
            return None
        sizes = ANSWER.unpack(head)
        header, body = self._read(sizes[0]), self._read(sizes[1])
        return None if header is None or body is None else (header, body)

    def finish(self, secs: float) -> None:
        """Let the process end by itself. If a function keeps it busy, the keeper of the run ends it."""
        os.close(self._requests)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(secs)

    def end(self) -> int:
        """Wait for the end, and return the exit code, or the negative signal."""
        code = self._popen.wait()
        for fd in (self._requests, self.answers, self.ended):
            os.close(fd)
        return code

    def _read(self, size: int) -> bytes | None:
        """Read all bytes. A child of the function may keep the pipe open after the end."""
        data = bytearray()
        while len(data) < size:
            if not _readable(self.answers, self.ended):
                return None
            piece = os.read(self.answers, min(size - len(data), 1 << 20))
            if not piece:
                return None
            data += piece
        return bytes(data)


def _readable(fd: int, ended: int) -> bool:
    """Wait until a pipe is readable. Return False if the process ended and the pipe is empty."""
    with selectors.PollSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        return fd in {key.fd for key, _ in selector.select()}


def death(code: int, memory: bool) -> str:
    """Return the sentence about the end of the process."""
    if code >= 0:
        return f"the function ended its process with exit code {code}, such as by os._exit"
    import signal

    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    if code == -9 and memory:
        return "the process was killed by SIGKILL because memory ran out"
    return f"the process was killed by {name} while the function ran"


def memory_kills() -> int:
    """Return how many processes the kernel has killed because memory ran out."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
