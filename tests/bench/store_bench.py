"""Events per second of the SQLite store for several numbers of batches in flight, next to plain
SQLite on the same disk, and to the store in PostgreSQL if --postgres names a database
(`etc/engines/postgres.sh start DIR` prints one).

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

from local_site import jobscribe

from jobscribe.db.events.events import Event, TaskPlaced, encode, job_stream
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, EventStore, IndexRow, Write
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.runtime.store_address import parsed


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


def store_rate(folder: Path, in_flight: int, total: int, url: str | None = None) -> float:
    """Append from one thread and await acknowledgements, with a fixed number of batches in flight."""
    calls: queue.SimpleQueue = queue.SimpleQueue()
    store: EventStore
    if url is None:
        store = SqliteStore(folder / "db" / "events.sqlite", calls.put)
    else:
        from jobscribe.db.postgres.opening import Site
        from jobscribe.db.postgres.store import PostgresStore

        store = PostgresStore(Site(parsed(url), None, folder / "pg", "bench"), calls.put)
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


def job_rate(root: Path, count: int, *settings: str) -> float:
    """Return the `/bin/true` jobs per second of a whole site with these settings."""
    with jobscribe(root, *settings) as ours:
        ours.wait(ours.submit(["/bin/true"]))
        started = time.perf_counter()
        replies = [ours.submit(["/bin/true"]) for _ in range(count)]
        for reply in replies:
            ours.wait(reply)
        return count / (time.perf_counter() - started)


def compare_jobs(folder: str, url: str, count: int) -> None:
    """Print the job rates of three turns."""
    print(f"{'jobs/s':>9} {'postgres':>10} {'ratio':>6}")
    for turn in range(3):
        ours = job_rate(Path(folder, f"s{turn}"), count)
        address = f"{url}&schema=bench_jobs_{time.time_ns() % 10**9}"
        other = job_rate(Path(folder, f"p{turn}"), count, f"store.url={address}")
        print(f"{ours:>9.0f} {other:>10.0f} {other / ours:>6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--postgres", help="URL of a PostgreSQL database; makes schemas bench_N")
    parser.add_argument("--jobs", type=int, default=500, help="jobs of each turn on PostgreSQL")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        print(
            f"{'in flight':>9} {'events/s':>10} {'floor/s':>10} {'ratio':>6} {'postgres':>10} {'to SQLite':>9}"
        )
        for in_flight, total in ((1, 1000), (8, 6000), (64, 40_000), (512, 80_000)):
            floor_folder, store_folder = (
                Path(folder, f"{name}{in_flight}") for name in ("floor", "store")
            )
            floor_folder.mkdir()
            floor, rate = (
                floor_rate(floor_folder, in_flight, total),
                store_rate(store_folder, in_flight, total),
            )
            line = f"{in_flight:>9} {rate:>10.0f} {floor:>10.0f} {rate / floor:>6.2f}"
            if options.postgres:
                url = f"{options.postgres}&schema=bench_{in_flight}_{time.time_ns() % 10**9}"
                other = store_rate(store_folder, in_flight, total, url)
                line += f" {other:>10.0f} {other / rate:>9.2f}"
            print(line)
        if options.postgres:
            compare_jobs(folder, options.postgres, options.jobs)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
