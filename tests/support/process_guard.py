"""Enforce the marker `process`: only a test with this marker starts a child process or binds a TCP
port of a given number.

`make check` runs the tests without the marker, so it needs no real process. A fake server in the
test's own process may listen on a port that the kernel chooses: nobody else has that port. The
guard is an audit hook of the interpreter: it sees these calls wherever they come from, also from a
library.
"""

import socket
import sys
from typing import Any

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_WATCHED = _STARTS | {"socket.bind"}


class ProcessStarted(Exception):
    """A test without the marker `process` started a process or took a given TCP port."""


class ProcessGuard:
    """Watches the tests of this process. Only one may exist: an audit hook cannot be removed."""

    def __init__(self) -> None:
        self._test, self._calls = "", list[str]()
        sys.addaudithook(self._audit)

    def watch(self, test: str) -> None:
        """Forbid processes and given TCP ports in this test, until the next call; an empty name allows
        everything.
        """
        self._test = test

    def calls(self) -> list[str]:
        """Return the forbidden calls since the last call, also those whose exception was caught."""
        made, self._calls = self._calls, []
        return made

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._test or event not in _WATCHED:  # no name is left when Python ends
            return
        if event == "socket.bind" and not _takes_port(*args):
            return
        call = " ".join((event, *(repr(arg) for arg in args[-1:] if event == "socket.bind")))
        self._calls.append(call)
        raise ProcessStarted(f"{self._test} has no marker `process`: {call}")


def _takes_port(sock: socket.socket, address: Any) -> bool:
    """Return whether this is a TCP port of a given number."""
    return (
        sock.family in (socket.AF_INET, socket.AF_INET6)
        and sock.type == socket.SOCK_STREAM
        and address[1] != 0
    )
