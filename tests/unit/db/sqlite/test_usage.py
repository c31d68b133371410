"""The usage in a store is the sum over its log after every operation: commits that fail, restarts,
compaction, rebuild, repair, backup, and the upgrade of files of earlier layouts.
"""

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import UID, ended, life, placed, requested, started, token
from store_fixtures import Disk, append, evolved
from usage_fold import usage_of

from jobscribe.db.events.events import RunEnded, job_stream
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage_row import ALL_MONTHS, DAY, HOUR, UsageRow, day_of, merged, month_of
from jobscribe.db.maintenance import backup, compaction, rebuild, repair
from jobscribe.db.maintenance.verification import check
from jobscribe.db.sql import usage_table
from jobscribe.db.sqlite import writer
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, EventStore, Write
from jobscribe.db.store.failing_store import Faults
from jobscribe.db.store.job_index import index_row
from jobscribe.db.store.memory_store import MemoryStore

JIDS = [f"{UID}-simAAA0{n}-command" for n in range(5)]
T = 1.7e9
EVER = (0.0, 1e12)


def run(serial: int, jid: str, at: float = T, secs: float = 2.0, **fields: object) -> list:
    t = token(serial, jid=jid)
    exit_ = {"started_at": at, "ended_at": at + secs, "user_secs": secs, "system_secs": 0.5}
    return [
        requested(serial, at, jid, **fields),
        placed(t, at),
        started(t, at),
        ended(t, at + secs, **exit_),
        RunEnded(at=at + secs, serial=serial, status="completed", reason="exit"),
    ]


def months(rows: list[UsageRow]) -> dict:
    return merged(rows, ALL_MONTHS)


def stored_usage(root: Path) -> list[UsageRow]:
    with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
        return usage_table.read_usage(c)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a closed store with runs of two users, queues and times."""
    disk = Disk(tmp_path / "root")
    disk.tell(JIDS[0], *run(1, JIDS[0]), *run(2, JIDS[0], T + 40 * DAY, queue="night"))
    disk.tell(JIDS[1], *life(1, T + 1, JIDS[1]))
    disk.tell(JIDS[2], *run(1, JIDS[2], T + 41 * DAY, 70.0))
    disk.tell(JIDS[3], *run(1, JIDS[3], T + 41 * DAY)[:3])
    disk.store.close()
    return disk.root


def sql(root: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
        for statement in statements:
            c.execute(statement)
        c.commit()


# ---- exactly once


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_after_any_history_with_failing_commits_the_usage_is_the_sum_over_the_log(
    kind: str, tmp_path: Path
) -> None:
    for seed in range(12):
        chance, faults = random.Random(seed), Faults()
        place = tmp_path / str(seed)
        disk = Disk(place, point=faults) if kind == "sqlite" else None
        store: EventStore = disk.store if disk else MemoryStore(lambda call: call(), point=faults)
        jobs: dict[str, Job] = {}
        versions: dict[str, int] = {}
        for serial in range(1, 40):
            jid = chance.choice(JIDS)
            events = run(serial, jid, T + chance.random() * 20 * DAY, chance.random())
            events = events[: chance.randrange(1, 6)] + events[3:] * chance.randrange(2)
            job, usage = evolved(jobs.get(jid, Job(jid=jid)), events)
            batch = Batch(
                # a wrong version is a conflict: the batch is refused alone
                writes=(
                    Write(
                        job_stream(jid),
                        versions.get(jid, 0) + (chance.random() < 0.1),
                        tuple(events),
                    ),
                ),
                index=(index_row(job),),
                usage=usage,
            )
            if chance.random() < 0.3:
                faults.fail(at="taken")
            result = append(store, disk.calls, batch) if disk else _append_in_memory(store, batch)
            faults.mend()
            if isinstance(result, Appended):
                jobs[jid], versions[jid] = job, versions.get(jid, 0) + len(events)
            elif result.code == "storageUnavailable":
                store.resume()
            if chance.random() < 0.15:
                if disk:
                    store.close()
                    store = disk.open()
                else:
                    store = store.crash()
        right = usage_of(store.read_all(0, 10**6))
        assert right and months(store.usage(*EVER)) == months(right.values()), seed
        store.close()
        if disk:
            assert check(place).problems == []


def _append_in_memory(store: EventStore, batch: Batch) -> object:
    results: list[object] = []
    store.append(batch, results.append)
    return results[0]


@pytest.mark.parametrize("step", ["insert", "insert_usage"])
def test_a_disk_that_is_full_in_the_middle_of_a_commit_undoes_events_and_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    disk = Disk(tmp_path)
    disk.tell(JIDS[0], *run(1, JIDS[0]))
    before, head = disk.store.usage(*EVER), disk.store.head()
    job, usage = evolved(disk.jobs[JIDS[0]], run(2, JIDS[0]))
    batch = Batch(
        writes=(Write(job_stream(JIDS[0]), 5, tuple(run(2, JIDS[0]))),),
        index=(index_row(job),),
        usage=usage,
    )

    def full(*arguments: object) -> None:
        raise _full()

    with monkeypatch.context() as m:
        m.setattr(writer, step, full)
        assert not isinstance(append(disk.store, disk.calls, batch), Appended)
    disk.store.resume()
    assert (disk.store.usage(*EVER), disk.store.head()) == (before, head)
    assert isinstance(append(disk.store, disk.calls, batch), Appended)
    assert months(disk.store.usage(*EVER)) == months([*before, *usage])
    disk.store.close()
    assert check(tmp_path).problems == []


# ---- maintenance


def test_every_operation_keeps_it(root: Path, tmp_path: Path) -> None:
    right = stored_usage(root)
    assert len({r.queue for r in right}) == 2 and check(root).ok
    rebuild.rebuild(root)
    assert months(stored_usage(root)) == months(right) and check(root).ok
    backup.backup(root, tmp_path / "copy")
    backup.restore(tmp_path / "new", tmp_path / "copy")
    assert months(stored_usage(tmp_path / "new")) == months(right) and check(tmp_path / "new").ok
    (root / "db" / "head").unlink()
    repair.repair(root)
    assert months(stored_usage(root)) == months(right) and check(root).ok


def test_compaction_keeps_the_usage_of_what_it_removes(root: Path) -> None:
    right = months(stored_usage(root))
    for now in (T + 45 * DAY, T + 90 * DAY, T + 91 * DAY):
        compaction.compact(root, now=now, history=0)
        assert months(stored_usage(root)) == right and check(root).problems == []
        rebuild.rebuild(root)
        assert months(stored_usage(root)) == right and check(root).ok
    # the run that was live at the compaction ends after it
    disk = Disk(root)
    t = token(1, jid=JIDS[3])
    job = Job(jid=JIDS[3])
    for event in (s.event for s in disk.store.read(job_stream(JIDS[3]))):
        job, _ = evolved(job, [event])
    disk.jobs[JIDS[3]] = job
    disk.versions[job_stream(JIDS[3])] = job.version
    disk.tell(JIDS[3], ended(t, T + 92 * DAY, started_at=T, ended_at=T + 3))
    disk.store.close()
    after = months(stored_usage(root))
    assert sum(r.executions for r in after.values()) == 1 + sum(
        r.executions for r in right.values()
    )
    assert check(root).ok
    compaction.compact(root, now=T + 200 * DAY)
    rebuild.rebuild(root)
    assert months(stored_usage(root)) == after and check(root).ok


def test_a_compaction_of_an_earlier_version_names_no_usage_and_hides_none(root: Path) -> None:
    right = months(stored_usage(root))
    compaction.compact(root, now=T + 45 * DAY)
    with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
        position, usage = usage_table._compacted(c, 2**62)
        assert position and months(list(usage)) == right
        # an event of version 1 has no usage: what the log still has is counted
        c.execute(
            "UPDATE events SET schema = 1, body = json_remove(body, '$.usage') WHERE type = 'LogCompacted'"
        )
        assert usage_table._compacted(c, 2**62) == (0, ())
        left = usage_table.usage_of_log(c, lambda *_: None)
    assert {k[2:] for k in left} < {k[2:] for k in right} or sum(
        r.executions for r in left.values()
    ) < sum(r.executions for r in right.values())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM usage WHERE queue = 'night'",
        "UPDATE usage SET core_ms = core_ms + 1 WHERE queue = 'night'",
        "UPDATE usage SET wall_ms = 'x' WHERE queue = 'night'",
        "INSERT INTO usage SELECT start, span, 'stranger', queue, driver, kind, simulation_type,"
        " 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM usage WHERE queue = 'night'",
    ],
)
def test_check_reports_a_sum_that_is_wrong_and_rebuild_mends_it(root: Path, statement: str) -> None:
    right = months(stored_usage(root))
    sql(root, statement)
    assert any(p.where == "index" and "usage" in p.what for p in check(root).problems)
    rebuild.rebuild(root)
    assert months(stored_usage(root)) == right and check(root).ok


@pytest.mark.parametrize("layout", [1, 2])
def test_a_store_of_an_earlier_layout_gets_its_usage_when_it_is_opened(
    root: Path, tmp_path: Path, layout: int
) -> None:
    right = months(stored_usage(root))
    dropped = ["DROP TABLE names"] if layout == 1 else []
    sql(root, "DROP TABLE usage", *dropped, f"PRAGMA user_version = {layout}")
    assert check(root).ok, "looking changes nothing"
    shutil.copytree(root, tmp_path / "other")
    compaction.compact(tmp_path / "other", now=T + 90 * DAY)
    assert months(stored_usage(tmp_path / "other")) == right, "compacted before it was opened"
    store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    assert months(store.usage(*EVER)) == right
    store.close()
    assert check(root).ok


@pytest.mark.parametrize("layout", [1, 2])
def test_tables_that_an_older_version_did_not_write_are_derived_again(
    root: Path, layout: int
) -> None:
    """After a return to an older layout its tables are still there, without later events."""
    right = months(stored_usage(root))
    sql(root, "UPDATE usage SET wall_ms = wall_ms + 7", f"PRAGMA user_version = {layout}")
    if layout == 1:
        sql(root, "DELETE FROM names")
    SqliteStore(root / "db" / "events.sqlite", lambda call: call()).close()
    assert months(stored_usage(root)) == right and check(root).ok


# ---- periods


def test_old_periods_are_merged_when_a_day_begins(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for day in range(0, 121, 4):
        for hour in (0, 5):
            jid = f"{UID}-sim{day:03d}{hour:02d}-command"
            disk.tell(jid, *run(1, jid, T + day * DAY + hour * HOUR))
    right = usage_of(disk.store.read_all(0, 10**6))
    disk.store.close()
    rows = stored_usage(tmp_path)
    newest = max(r.start for r in rows)
    assert {r.span for r in rows} == {"hour", "day", "month"}
    for r in rows:
        due = (
            "month"
            if r.start < month_of(newest - 92 * DAY)
            else "day"
            if r.start < day_of(newest - 8 * DAY)
            else "hour"
        )
        assert r.span == due
    assert months(rows) == months(right.values()) and check(tmp_path).ok


def test_a_merge_that_fails_changes_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    disk.tell(JIDS[0], *run(1, JIDS[0]))
    real: Callable = usage_table.insert_usage

    def full(connection: sqlite3.Connection, rows: list) -> None:
        if not any(r.start >= T + 20 * DAY for r in rows):
            raise _full()
        real(connection, rows)

    with monkeypatch.context() as m:
        m.setattr(usage_table, "insert_usage", full)
        disk.tell(JIDS[1], *run(1, JIDS[1], T + 20 * DAY))
        disk.tell(JIDS[2], *run(1, JIDS[2], T + 20 * DAY))
        assert {r.span for r in disk.store.usage(*EVER)} == {"hour"}
    disk.tell(JIDS[4], *run(1, JIDS[4], T + 20 * DAY))
    disk.tell(JIDS[3], *run(1, JIDS[3], T + 20 * DAY))
    disk.store.close()
    assert {r.span for r in stored_usage(tmp_path)} == {"hour", "day"} and check(tmp_path).ok


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error
