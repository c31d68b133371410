"""The audit trail: requests for another user are recorded durably before they take effect. The trail
is never loaded; it is read in pages.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from ...db.events.events import AUDIT, ActedForUser, AuditEvent, ShellClosed
from ...db.store.contract import Stored
from ..engine.decision_loop import Engine
from .principal import Principal
from .streams import StreamWriter

#: A repeated read of the same data is recorded once in this time (seconds), for this number of
#: different reads.
READ_SECS, MAX_READS = 3600.0, 10_000
#: Events that one page examines at most.
MAX_PAGE = 1000


class Act(NamedTuple):
    """A request that names another user. action: name of the route. reads: it changes nothing."""

    subject: str
    action: str
    jid: str | None
    peer: str
    reads: bool


class AuditTrail:
    """wall: unix seconds."""

    def __init__(self, engine: Engine, wall: Callable[[], float]) -> None:
        self._engine, self._wall = engine, wall
        self._writer = StreamWriter(engine, AUDIT)
        self._reads: OrderedDict[tuple[str, str, str, str, str | None], float] = OrderedDict()

    def sizes(self) -> dict[str, int]:
        return {"auditedReads": len(self._reads)}

    async def record(self, actor: Principal, act: Act) -> None:
        """Return when the request is on record. Raises Refusal; the request must then not be done.

        A page that polls would fill the log, so a read is recorded once in READ_SECS.
        """
        now = self._wall()
        read = (actor.name, actor.role, act.subject, act.action, act.jid)
        if act.reads and 0 <= now - self._reads.get(read, -READ_SECS) < READ_SECS:
            return
        await self._writer.append(
            ActedForUser(
                at=now,
                actor=actor.name,
                actor_role=actor.role,
                subject=act.subject,
                action=act.action,
                jid=act.jid,
                peer=act.peer,
                outcome="allowed",
            )
        )
        if act.reads:
            self._reads[read] = now
            self._reads.move_to_end(read)
            if len(self._reads) > MAX_READS:
                self._reads.popitem(last=False)

    async def append(self, event: AuditEvent) -> None:
        """Return when the event is durable. Raises Refusal."""
        await self._writer.append(event)

    def page(
        self,
        after: int,
        limit: int,
        since_secs: float | None,
        actor: str | None,
        before: int | None = None,
    ) -> tuple[list[Stored], int | None]:
        """Return the matching ones of the next `limit` events after this version, oldest first, and
        the version after which the next page begins (None at the end). before: newest first, of the
        events before this version (0: the newest), and the `before` of the next page.
        """
        since = None if since_secs is None else self._wall() - since_secs
        if before is not None:
            return self._newest(before, min(limit, MAX_PAGE), since, actor)
        events = self._engine.store.read(AUDIT, after, min(limit, MAX_PAGE))
        found = [s for s in events if _matches(s, since, actor)]
        full = len(events) == min(limit, MAX_PAGE)
        return found, events[-1].version if full else None

    def _newest(
        self, before: int, limit: int, since: float | None, actor: str | None
    ) -> tuple[list[Stored], int | None]:
        store = self._engine.store
        last = store.version(AUDIT) if before == 0 else before - 1
        first = max(0, last - limit)
        events = store.read(AUDIT, first, last - first) if last > first else []
        found = [s for s in reversed(events) if _matches(s, since, actor)]
        return found, first + 1 if first else None


def _matches(stored: Stored, since: float | None, actor: str | None) -> bool:
    event = stored.event
    if not isinstance(event, AuditEvent) or (since is not None and event.at < since):
        return False
    return actor is None or (not isinstance(event, ShellClosed) and event.actor == actor)
