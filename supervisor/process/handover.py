"""The handover of a site to a standby, on request: the supervisor that serves stops, releases its lease
and ends with an exit code after which it is started again and stands by.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from ...protocol.errors import Refusal
from .event_log import SupervisorSeen

#: Exit code of a process that serves no more and may be started again (EX_TEMPFAIL of sysexits.h).
EXIT_AGAIN = 75
#: Time for the answer to be sent before this supervisor stops, in seconds.
ANSWER_SECS = 0.05


def name_of(host: str, pid: int) -> str:
    return f"{host}:{pid}"


class Handover:
    """seen: returns the supervisors of the site, and may wait for the database; None unless supervisors
    stand by. stop: stops this process.
    """

    def __init__(
        self, seen: Callable[[], list[SupervisorSeen] | None], stop: Callable[[], object]
    ) -> None:
        self._seen, self._stop = seen, stop
        self.name = name_of(socket.gethostname(), os.getpid())
        #: the handover has begun
        self.begun = False

    async def rows(self) -> list[dict[str, Any]]:
        """Return the supervisors of the site, the one that serves first; none unless they stand by. Raises
        Refusal.
        """
        return [
            {
                "name": name_of(s.host, s.pid),
                "role": s.role,
                "host": s.host,
                "pid": s.pid,
                "seenSecsAgo": s.seen_secs_ago,
                "clockAheadSecs": s.clock_ahead,
                "epoch": s.epoch,
                "leaseEndsInSecs": s.lease_ends_in,
            }
            for s in await self._read() or ()
        ]

    async def check(self, name: str) -> bool:
        """Return whether this supervisor is the one with this name (`HOST:PID`, or `HOST` if it has one
        supervisor) and can hand over; False if another one has that name, so there is nothing to do.
        Raises Refusal.
        """
        rows = await self._listed()
        known = [s for s in rows if name in (s.host, name_of(s.host, s.pid))]
        if len(known) > 1:
            names = " and ".join(name_of(s.host, s.pid) for s in known)
            raise Refusal("badRequest", f"{name} has several supervisors: name {names}")
        if not known:
            raise Refusal("notFound", f"no supervisor of this site has the name {name}")
        if name_of(known[0].host, known[0].pid) != self.name:
            return False
        if all(s.role != "standby" for s in rows):
            raise Refusal(
                "conflict",
                "no other supervisor stands by, so none would serve the site; start one first",
            )
        return True

    def begin(self) -> None:
        """Stop this supervisor as soon as the answer was sent."""
        if not self.begun:
            self.begun = True
            asyncio.get_running_loop().call_later(ANSWER_SECS, self._stop)

    async def _read(self) -> list[SupervisorSeen] | None:
        try:
            return await asyncio.to_thread(self._seen)
        except OSError as e:
            raise Refusal("storageUnavailable", f"the supervisors cannot be read: {e}") from None

    async def _listed(self) -> list[SupervisorSeen]:
        rows = await self._read()
        if rows is None:
            raise Refusal(
                "badRequest",
                "this site has one supervisor: store.standby is not set (docs/store.md)",
            )
        return rows


#: Of a supervisor that has no database.
ALONE = Handover(lambda: None, lambda: None)
