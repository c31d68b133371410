"""The promises that a supervisor made, extracted from its trace, and the check that a root keeps
them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strace_calls import Call, data_of, path_of

from jobscribe.db.events.events import RunRequested, TaskPlaced, job_stream
from jobscribe.db.maintenance.verification import check
from jobscribe.db.records.record_files import FOLDER, RecordWriter, catch_up
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Stored

#: A `run` message to an agent, and the beginning of the token in it: a jid and an unsigned number
#: of four bytes.
_ORDER = re.compile(rb"\xa3run.*?([A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[a-z]+)\xce(.{4})", re.DOTALL)


class Job(NamedTuple):
    jid: str
    serial: int


class DurabilityOracle:
    """All promises made up to a moment."""

    def __init__(self) -> None:
        #: highest event position that was sent to a client
        self.position = 0
        #: position in the head file: written last, and when its last sync began and returned
        self.noted = self._syncing = self.synced = 0
        #: runs that were acknowledged to a client
        self.runs: set[Job] = set()
        #: runs that an agent was ordered to start
        self.orders: set[Job] = set()
        #: size and digest by file name
        self.uploads: dict[str, tuple[int, str]] = {}
        #: leases by simulation, in request order
        self.ports: list[tuple[int, ...]] = []
        self.answers = 0

    def __bool__(self) -> bool:
        return bool(self.answers or self.orders)

    def watch_head(self, call: Call, returned: bool) -> None:
        """Record writes and syncs of the head file, which promise its position without a word."""
        if call.name not in ("pwrite64", "fdatasync") or not path_of(call.args[0]).endswith(
            "/db/head"
        ):
            return
        if call.name == "pwrite64" and returned:
            self.noted = int.from_bytes(data_of(call.args[1])[8:16], "big")
        elif not returned:
            self._syncing = self.noted
        elif call.result == 0:
            self.synced = self._syncing

    def hear(self, call: Call) -> bool:
        """Record the promises that a call begins to send. Return False if it makes none."""
        if call.name != "sendto" or path_of(call.args[0]):
            return False
        data = data_of(call.args[1])
        if data.startswith(b"HTTP/1.1 200 ") and b"application/json" in data:
            self._answer(json.loads(data.split(b"\r\n\r\n", 1)[1]))
            return True
        orders = {
            Job(jid.decode(), int.from_bytes(serial, "big")) for jid, serial in _ORDER.findall(data)
        }
        self.orders |= orders
        return bool(orders)

    def _answer(self, said: Mapping[str, Any]) -> None:
        self.answers += 1
        self.position = max(self.position, said.get("position") or said.get("head") or 0)
        if "computeJobSerial" in said:
            self.runs.add(Job(said["computeJid"], said["computeJobSerial"]))
        if "sha256" in said:
            self.uploads[said["name"]] = said["size"], said["sha256"]
        if said.get("ports"):
            self.ports.append(tuple(said["ports"]))


def keep_them(
    root: Path, promised: DurabilityOracle, requests: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[str, int]:
    """Check that a supervisor that starts on this root finds all promised data. requests: reqId by
    jid. Return the additional data found.

    The store must open: an honest disk is never a reason to refuse it.
    """
    if not root.exists():
        assert not promised, "the root is gone"
        return {}
    for name in ("client.json", "agents.json", "leases.json"):
        if (root / name).exists():
            json.loads((root / name).read_bytes())
    for name, secret in secrets.items():
        file = root / "secret" / name
        assert file.exists() or not promised, f"the secret {name} is gone"
        assert not file.exists() or file.read_text() == secret, (
            f"the secret {name} became {file.read_bytes()!r}"
        )
    if promised.ports:
        leased = [
            tuple(lease["ports"]) for lease in json.loads((root / "leases.json").read_bytes())
        ]
        assert set(promised.ports) <= set(leased), (promised.ports, leased)
    for name, (size, digest) in promised.uploads.items():
        (found,) = root.glob(f"user/*/*/lib/{name}")
        content = found.read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, digest), name
    if not (root / "db").exists():
        assert not promised, "the store is gone"
        return {}
    mark = head_file.read_head(root / "db")
    # what was told is in the log; the head file follows it within a moment
    assert not promised.position or (mark is not None and mark.position >= promised.synced), (
        mark,
        promised.synced,
    )
    return _recovered(root, promised, requests)


def _recovered(
    root: Path, promised: DurabilityOracle, requests: Mapping[str, str]
) -> dict[str, int]:
    complaints: list[str] = []
    store = SqliteStore(root / "db" / "events.sqlite", _at_once)
    try:
        head = store.head()
        assert head >= promised.position, (
            f"position {promised.position} was told, and the log ends at {head}"
        )
        events = store.read_all(limit=100_000)
        assert [s.position for s in events] == list(range(1, head + 1))
        _has(events, promised)
        for run in promised.runs:
            if run.jid in requests:
                receipt = store.receipt(run.jid[:8], requests[run.jid])
                assert receipt is not None and (receipt.jid, receipt.serial) == run, (run, receipt)
        records = RecordWriter(root / FOLDER, complaints.append, every=0.0)
        catch_up(store, records)
        records.close()
    finally:
        store.close()
    report = check(root)
    assert report.ok and not report.records_behind and not complaints, (report, complaints)
    return {"events": head, "jobs": report.jobs}


def _has(events: list[Stored], promised: DurabilityOracle) -> None:
    requested = {(s.stream, s.event.serial) for s in events if isinstance(s.event, RunRequested)}
    placed = {
        Job(s.event.token.jid, s.event.token.serial)
        for s in events
        if isinstance(s.event, TaskPlaced)
    }
    lost = {run for run in promised.runs if (job_stream(run.jid), run.serial) not in requested}
    assert not lost, f"acknowledged and lost: {lost}"
    assert promised.orders <= placed, f"ordered and not on record: {promised.orders - placed}"


def _at_once(call: Callable[[], None]) -> None:
    call()
