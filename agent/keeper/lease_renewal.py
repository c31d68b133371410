"""Renewal of the keeper's lease.

The keeper and its agent end when another keeper has taken the lease.
"""

from __future__ import annotations

import os
import time

from . import lease as leases
from .loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop.event_loop import Loop

#: Keepers and agents with a lease log to one file (their stdout). It is cut to its last `_LOG_KEPT`
#: bytes when it exceeds `_LOG_BYTES`.
_LOG_BYTES, _LOG_KEPT = 16 << 20, 1 << 20


class LeaseRenewal:
    """Renews a lease periodically.

    end: called once, when another keeper took the lease or asks this one to end.
    """

    def __init__(
        self, lease: leases.Lease, loop: Loop, secs: float, end: Callable[[], None]
    ) -> None:
        self._lease, self._loop, self._secs, self._end = lease, loop, secs, end
        self._ending = self._failing = False

    def start(self) -> None:
        self._loop.call_at("lease", time.monotonic() + self._secs, self._renew)

    def _renew(self) -> None:
        self.start()
        try:
            state = self._lease.renew()
        except OSError as error:  # keep the agent: ending it would not help
            if not self._failing:
                log(f"cannot renew the lease: {error.strerror}; another keeper may take it")
            self._failing = True
            return
        self._failing = False
        if state == leases.TAKEN:
            self._loop.cancel("lease")
        if state != leases.HELD and not self._ending:
            self._ending = True
            log(
                "another keeper has taken the lease; this keeper ends"
                if state == leases.TAKEN
                else "a keeper on another machine asked this keeper to end; it ends"
            )
            self._end()
        _shorten(1)


def _shorten(fd: int) -> None:
    """Cut the log in place: several processes append to it."""
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
    except OSError:  # a terminal, a pipe, or a deleted file
        return
