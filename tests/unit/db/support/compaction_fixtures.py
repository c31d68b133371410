"""A store with jobs, agents and system events of different ages, for tests of compactions."""

import sqlite3
from pathlib import Path

from event_strategies import JID, KEY, UID, life, placed, requested, started, token
from store_fixtures import Disk

from jobscribe.db.events.events import (
    SYSTEM,
    AgentStarted,
    AgentStartRequested,
    RunPurged,
    SupervisorStarted,
    SupervisorStopped,
    agent_stream,
    job_stream,
)
from jobscribe.db.maintenance import compaction
from jobscribe.db.store.contract import Receipt, Stored

T = 1.7e9
NOW = T + 100 * compaction.DAY
JIDS = [f"{UID}-sim{n:05d}-command" for n in range(6)]
AGENT = agent_stream(KEY)


def stored(events: list, stream: str = job_stream(JID), first: int = 1) -> list[Stored]:
    return [Stored(n, stream, n - first + 1, e) for n, e in enumerate(events, first)]


def starts(count: int, at: float = T) -> list:
    out: list = []
    for n in range(1, count + 1):
        out += [
            AgentStartRequested(at=at + n, agent_key=KEY, token_hash=f"{n:064d}", attempt=n),
            AgentStarted(at=at + n, agent_key=KEY, handle={"pid": n}),
        ]
    return out


def fill(root: Path, *, open_end: bool = True) -> Disk:
    """Create six jobs (ended long ago; with many runs; purged; ended yesterday; running; compacted
    twice by the tests), an agent and system events.
    """
    disk = Disk(root)
    system = [
        SupervisorStarted(at=T, session=1, pid=1, boot_id="b", version="9"),
        SupervisorStopped(at=T + 1, session=1, reason="x"),
    ]
    disk.append(SYSTEM, system)
    disk.append(AGENT, starts(5))
    disk.tell(
        JIDS[0],
        *life(1, T, JIDS[0]),
        receipts=(Receipt(uid=UID, req_id="request-old", jid=JIDS[0], serial=1, at=NOW - 100),),
    )
    for serial in range(1, 15):
        disk.tell(JIDS[1], *life(serial, T + serial, JIDS[1]))
    for serial in (1, 2):
        disk.tell(JIDS[2], *life(serial, T + serial, JIDS[2]))
    disk.tell(JIDS[2], RunPurged(at=T + 50, serial=2))
    disk.append(
        SYSTEM, [SupervisorStarted(at=NOW - 100, session=2, pid=1, boot_id="b", version="9")]
    )
    disk.tell(
        JIDS[3],
        *life(1, NOW - compaction.DAY, JIDS[3]),
        receipts=(Receipt(uid=UID, req_id="request-1", jid=JIDS[3], serial=1, at=NOW - 50),),
    )
    t = token(1, jid=JIDS[4])
    if open_end:
        disk.tell(JIDS[4], requested(1, T, JIDS[4]), placed(t, T), started(t, T))
    return disk


def rows(root: Path, what: str = "position, stream, version, type") -> list[tuple]:
    with sqlite3.connect(root / "db" / "events.sqlite") as c:
        out = c.execute(f"SELECT {what} FROM events ORDER BY position").fetchall()
    c.close()
    return out
