"""Fill a root with the log of many finished jobs and some running jobs, as a long-lived supervisor
leaves it.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jobscribe.db.events.events import (
    AttemptEnded,
    JobEvent,
    RunEnded,
    RunRequested,
    TaskEnded,
    TaskPlaced,
    TaskStarted,
    job_stream,
)
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage import increment
from jobscribe.db.events.usage_row import UsageRow
from jobscribe.db.records.record_files import write_marker
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo

USERS = tuple(f"User{n:04d}" for n in range(50))
#: Batches that wait for their commit, which are kept in memory.
IN_FLIGHT = 2_000


def fill(root: Path, finished: int, running: int, users: Sequence[str] = USERS) -> float:
    """Fill the root with jobs of these users, of which every thousandth has failed; return the
    seconds it took.
    """
    began = time.perf_counter()
    root.mkdir(mode=0o700)
    store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    left = threading.Semaphore(IN_FLIGHT)
    for n in range(finished + running):
        uid = users[n % len(users)]
        events = tuple(_events(uid, n, over=n < finished))
        jid = f"{uid}-{n:08d}-command"
        job, usage = Job(jid=jid), list[UsageRow | None]()
        for event in events:
            usage.append(increment(job, event))
            job = evolve(job, event)
        batch = Batch(
            writes=(Write(job_stream(jid), 0, events),),
            index=(index_row(job),),
            usage=tuple(row for row in usage if row is not None),
        )
        left.acquire()
        store.append(batch, lambda result: left.release())
    for _ in range(IN_FLIGHT):
        left.acquire()
    head = store.head()
    store.close()
    records = root / "supervisor-job"
    records.mkdir(mode=0o700)
    write_marker(records, head)
    return time.perf_counter() - began


def _events(uid: str, n: int, over: bool) -> list[JobEvent]:
    at, sid = 1_700_000_000.0 + n, f"{n:08d}"
    jid = f"{uid}-{sid}-command"
    token = Token(jid, int(at), 1, "main", 0)
    spec = RunSpec(
        uid=uid,
        simulation_id=sid,
        driver="local",
        command=("/bin/true", f"--seed={n}"),
        sim_name=f"run {n}",
        compute_job_hash="0" * 32,
    )
    key = AgentKey("local", "sequential", uid, "localhost")
    events: list[JobEvent] = [
        RunRequested(at=at, serial=int(at), spec=spec, run_dir=f"/run/{jid}", req_id=f"req-{sid}"),
        TaskPlaced(at=at, token=token, agent_key=key, op_id=op_id(token, "run")),
        TaskStarted(
            at=at,
            token=token,
            pid=2,
            start_ticks=1,
            started_at=at,
            host="localhost",
            boot_id="an earlier boot",
        ),
    ]
    if over:
        failed, end = n % 1000 == 0, at + 1 + n % 77
        events += [
            TaskEnded(at=end, token=token, exit=ExitInfo(code=int(failed))),
            AttemptEnded(at=end, serial=int(at), attempt=1, reason="exit"),
            RunEnded(
                at=end, serial=int(at), status="error" if failed else "completed", reason="exit"
            ),
        ]
    return events
