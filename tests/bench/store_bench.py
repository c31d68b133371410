"""Events per second of the SQLite store for several numbers of batches in flight, next to plain
SQLite on the same disk.

Run as a script; nothing is asserted. The floor writes the same bytes into one table, one synced
transaction per group, with no checksums, versions, index, durable head or second thread.
"""

import argparse
import queue
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from jobscribe.db.events.events import Event, TaskPlaced, encode, job_stream
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, IndexRow, Write
from jobscribe.protocol.ids import AgentKey, Token, op_id


def event(jid: str) -> Event:
    token = Token(jid, 1_700_000_000, 1, "main", 0)
    key = AgentKey("local", "sequential", jid[:8], "localhost")
    return TaskPlaced(at=1_700_000_000.5, token=token, agent_key=key, op_id=op_id(token, "run"))


def batch(jid: str) -> Batch:
    row = IndexRow(
        jid=jid,
        uid=jid[:8],
        status="pending",
        serial=1,
        simulation_type="command",
        kind="sequential",
        driver="local",
        busy=True,
        queued_at=1.0,
        started_at=None,
        ended_at=None,
        reason=None,
    )
    return Batch(writes=(Write(job_stream(jid), 0, (event(jid),)),), index=(row,))


def jids(start: int, count: int) -> list[str]:
    return [f"abcdefgh-{n:08d}-command" for n in range(start, start + count)]


def store_rate(folder: Path, in_flight: int, total: int) -> float:
    """Append from one thread and await acknowledgements, with a fixed number of batches in flight."""
    calls: queue.SimpleQueue = queue.SimpleQueue()
    store = SqliteStore(folder / "db" / "events.sqlite", calls.put)
    batches = [batch(jid) for jid in jids(0, total)]
    told = 0

    def done(result: object) -> None:
        nonlocal told
        if not isinstance(result, Appended):
            raise SystemExit(f"refused: {result}")
        told += 1

    sent, started = 0, time.perf_counter()
    while told < total:
        while sent < total and sent - told < in_flight:
            store.append(batches[sent], done)
            sent += 1
        calls.get()()
    took = time.perf_counter() - started
    store.close()
    return total / took


def floor_rate(folder: Path, group: int, total: int) -> float:
    """Measure plain SQLite: WAL, full sync, executemany."""
    connection = sqlite3.connect(folder / "floor.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE e (position INTEGER PRIMARY KEY, stream TEXT, body TEXT)")
    rows = [
        (n + 1, job_stream(jid), encode(event(jid)).decode())
        for n, jid in enumerate(jids(0, total))
    ]
    started = time.perf_counter()
    for start in range(0, total, group):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO e VALUES (?, ?, ?)", rows[start : start + group])
        connection.execute("COMMIT")
    took = time.perf_counter() - started
    connection.close()
    return total / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    folder = tempfile.mkdtemp(dir=parser.parse_args().folder)
    try:
        print(f"{'in flight':>9} {'events/s':>10} {'floor/s':>10} {'ratio':>6}")
        for in_flight, total in ((1, 1000), (8, 6000), (64, 40_000), (512, 80_000)):
            floor_folder, store_folder = (
                Path(folder, f"{name}{in_flight}") for name in ("floor", "store")
            )
            floor_folder.mkdir()
            floor, rate = (
                floor_rate(floor_folder, in_flight, total),
                store_rate(store_folder, in_flight, total),
            )
            print(f"{in_flight:>9} {rate:>10.0f} {floor:>10.0f} {rate / floor:>6.2f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
