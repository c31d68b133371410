"""The keeper's lease: counted up for as long as there is a keeper, which ends with its agent when
the lease is somebody else's.
"""

from __future__ import annotations

import os
import time

from . import lease as leases
from .loop.log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop.event_loop import Loop

#: Log lines of keepers and agents go to one file there (their stdout); when it has grown so large,
#: only its end is kept.
_LOG_BYTES, _LOG_KEPT = 16 << 20, 1 << 20


class LeaseRenewal:
    """end: called once, when the lease was taken by somebody else, or somebody asks for its end."""

    def __init__(
        self, lease: leases.Lease, loop: Loop, secs: float, end: Callable[[], None]
    ) -> None:
        self._lease, self._loop, self._secs, self._end = lease, loop, secs, end
        self._ending = self._failing = False

    def start(self) -> None:
        self._loop.at("lease", time.monotonic() + self._secs, self._renew)

    def _renew(self) -> None:
        self.start()
        try:
            state = self._lease.renew()
        except OSError as error:  # nobody is better off without an agent because of that
            if not self._failing:
                say(f"the lease cannot be renewed: {error.strerror}; another keeper may take it")
            self._failing = True
            return
        self._failing = False
        if state == leases.TAKEN:
            self._loop.cancel("lease")
        if state != leases.HELD and not self._ending:
            self._ending = True
            say(
                "another keeper has taken the lease; this one ends"
                if state == leases.TAKEN
                else "asked to end from another machine"
            )
            self._end()
        _shorten(1)


def _shorten(fd: int) -> None:
    """Several processes append to this file: it is cut where it lies."""
    try:
        size = os.fstat(fd).st_size
        if size <= _LOG_BYTES:
            return
        path = os.readlink(f"/proc/self/fd/{fd}")
        with open(path, "rb") as f:
            f.seek(size - _LOG_KEPT)
            kept = f.read(_LOG_KEPT)
        os.ftruncate(fd, 0)
        os.write(fd, kept.partition(b"\n")[2])
    except OSError:  # a terminal, a pipe, or a file that is gone
        return
