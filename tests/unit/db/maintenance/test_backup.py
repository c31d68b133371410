"""Backups of a store in use, and restores: complete or without effect, and no id or serial is
issued twice.
"""

import os
import queue
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from event_strategies import JID, UID, life, requested
from kill_points import killed_at_every_step
from store_fixtures import Disk

from jobscribe.db.events.events import SYSTEM, LogSetBack, SupervisorStarted, job_stream
from jobscribe.db.maintenance import backup as backups
from jobscribe.db.maintenance import checkpoints
from jobscribe.db.maintenance.backup import backup, restore
from jobscribe.db.maintenance.compaction import compact
from jobscribe.db.maintenance.verification import check
from jobscribe.db.records.record_files import RecordWriter, catch_up
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Receipt, Write
from jobscribe.protocol.errors import Refusal

JIDS = [f"{UID}-sim{n:05d}-command" for n in range(3)]
DEADLINE = 60.0


def complain(sentence: str) -> None:
    raise AssertionError(sentence)


def fill(root: Path) -> Disk:
    disk = Disk(root)
    disk.append(SYSTEM, [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")])
    for jid in JIDS[:2]:
        disk.tell(
            jid,
            *life(1, jid=jid),
            receipts=(Receipt(uid=UID, req_id="r" + jid[9:17], jid=jid, serial=1, at=1.7e9),),
        )
    return disk


def events(root: Path) -> list[tuple]:
    with sqlite3.connect(f"file:{root}/events.sqlite?mode=ro", uri=True) as c:
        out = c.execute(
            "SELECT position, stream, version, type, checksum FROM events ORDER BY position"
        ).fetchall()
    c.close()
    return out


def records(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (root / "supervisor-job").glob("*.json")}


# ---- backup


def test_a_backup_of_a_store_in_use_is_all_of_one_moment(tmp_path: Path) -> None:
    disk = fill(tmp_path / "root")
    done = backup(tmp_path / "root", tmp_path / "b")
    assert (done.events, done.position, done.size) == (
        13,
        13,
        (tmp_path / "b" / "events.sqlite").stat().st_size,
    )
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["events.sqlite", "head"]
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "b").iterdir()} == {0o600} and (
        tmp_path / "b"
    ).stat().st_mode & 0o777 == 0o700
    disk.tell(JIDS[2], *life(1, jid=JIDS[2]))
    disk.store.close()
    assert events(tmp_path / "b") == events(tmp_path / "root" / "db")[:13]
    assert head_file.read_head(tmp_path / "b") == head_file.DurablePosition(
        13, events(tmp_path / "b")[-1][-1]
    )
    (tmp_path / "empty").mkdir()
    assert backup(tmp_path / "root", tmp_path / "empty").events == 19


@pytest.mark.timeout(240)
def test_backups_of_a_store_that_is_being_written_are_whole_and_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer continues while pages are copied; each backup is a complete prefix of the log, and
    newer than the previous backup.
    """
    monkeypatch.setattr(backups, "STEP", 3)
    calls: queue.Queue = queue.Queue()
    store = SqliteStore(tmp_path / "root" / "db" / "events.sqlite", calls.put)
    stop, appended, during = threading.Event(), [0], []

    def write() -> None:
        version = 0
        while not stop.is_set():
            results: list = []
            store.append(backups_batch(version), results.append)
            while not results:
                calls.get(timeout=DEADLINE)()
            assert not isinstance(results[0], Refusal), results
            version += 20
            appended[0] = version

    def progress(what: str, done: int, of: int) -> None:
        if what == "pages":
            during.append((len(made), appended[0]))
            # pages are copied in no time where files lie in memory
            over = time.monotonic() + DEADLINE
            while during[-1][1] == appended[0] and len(made) == 3 and time.monotonic() < over:
                time.sleep(0.001)

    made: list[int] = []
    writer = threading.Thread(target=write)
    writer.start()
    try:
        while len(made) < 4:
            before = appended[0]
            done = backup(tmp_path / "root", tmp_path / f"b{len(made)}", progress)
            assert done.position >= before
            made.append(done.position)
    finally:
        stop.set()
        writer.join(DEADLINE)
        store.close()
    log = events(tmp_path / "root" / "db")
    for n, position in enumerate(made):
        assert events(tmp_path / f"b{n}") == log[:position]
    assert made == sorted(made)
    went_on = [
        max(v for n, v in during if n == number) > min(v for n, v in during if n == number)
        for number in range(4)
    ]
    assert any(went_on), "nothing was written while pages were copied"


def backups_batch(version: int):
    from jobscribe.db.store.contract import Batch

    return Batch(
        writes=(
            Write(
                "s",
                version,
                tuple(
                    SupervisorStarted(at=1.0, session=n, pid=1, boot_id="b", version="x" * 300)
                    for n in range(20)
                ),
            ),
        )
    )


def test_what_is_there_already_is_not_overwritten(tmp_path: Path) -> None:
    fill(tmp_path / "root").store.close()
    for name in ("file", "full"):
        if name == "file":
            (tmp_path / name).write_text("mine")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "events.sqlite").write_text("an unfinished one")
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        with pytest.raises(Refusal, match=r"badRequest.*not an empty folder"):
            backup(tmp_path / "root", tmp_path / name)
        assert {p: p.read_bytes() for p in before} == before
    with pytest.raises(Refusal, match="notFound"):
        backup(tmp_path / "none", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_backup_of_a_damaged_log_fails_and_leaves_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "root").store.close()
    with sqlite3.connect(tmp_path / "root" / "db" / "events.sqlite") as c:
        c.execute("UPDATE events SET at = at + 1 WHERE position = 7")
    c.close()
    with pytest.raises(Refusal, match=r"storeDamaged.*position 7.*jobscribe db check"):
        backup(tmp_path / "root", tmp_path / "b")
    assert not (tmp_path / "b").exists()


# ---- restore


def test_a_restored_store_is_what_it_was_and_gives_away_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "root"
    disk = fill(root)
    backup(root, tmp_path / "b")
    # after the backup: a new job, and a job whose serials are ahead of the clock
    disk.tell(JIDS[2], *life(5_000_000_000, jid=JIDS[2]))
    disk.tell(JIDS[0], *life(2, jid=JIDS[0]))
    writer = RecordWriter(root / "supervisor-job", complain)
    catch_up(disk.store, writer)
    writer.close()
    with pytest.raises(Refusal, match=r"rootBusy.*in use"):
        restore(root, tmp_path / "b", replace=True)
    disk.store.close()
    untouched = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(Refusal, match=r"badRequest.*--replace"):
        restore(root, tmp_path / "b")
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == untouched
    source = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "b").iterdir()}
    done = restore(root, tmp_path / "b", replace=True, now=1.8e9)
    assert (done.events, done.jobs, done.position, done.lost_up_to, done.records_removed) == (
        13,
        2,
        13,
        25,
        1,
    )
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "b").iterdir()} == source
    assert done.kept_aside is not None and len(events(Path(done.kept_aside))) == 25
    assert set(records(root)) == {f"{jid}.json" for jid in JIDS[:2]}
    report = check(root)
    assert report.ok and report.records_behind == 0, report
    disk.open()
    (_, last) = system = disk.store.read(SYSTEM)
    assert last.position == 26 and disk.store.head() == 26
    assert isinstance(last.event, LogSetBack) and (last.event.position, last.event.lost_up_to) == (
        13,
        25,
    )
    assert checkpoints.serial_floor(system) == 5_000_000_001 and checkpoints.is_rolled_back(system)
    assert disk.store.receipt(UID, "rsim00000") is not None
    disk.jobs.clear()
    disk.tell(JIDS[2], requested(1, jid=JIDS[2])) if disk.versions.pop(
        job_stream(JIDS[2])
    ) else None
    assert disk.store.head() == 27
    disk.store.close()
    assert check(root).ok


def test_a_backup_makes_a_new_root(tmp_path: Path) -> None:
    fill(tmp_path / "root").store.close()
    backup(tmp_path / "root", tmp_path / "b")
    done = restore(tmp_path / "new" / "root", tmp_path / "b")
    assert done.kept_aside is None and (done.position, done.lost_up_to) == (13, 13)
    new = tmp_path / "new" / "root"
    assert check(new).ok and set(records(new)) == {f"{jid}.json" for jid in JIDS[:2]}
    assert new.stat().st_mode & 0o777 == (new / "db").stat().st_mode & 0o777 == 0o700
    assert sorted(
        p.name for p in (new / "db").iterdir() if p.suffix != ".sqlite-shm" and p.stat().st_size
    ) == ["events.sqlite", "head"]


def test_what_upkeep_kept_aside_can_be_put_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root).store.close()
    before = events(root / "db")
    done = compact(root, now=2e9)
    assert done.kept_aside is not None
    again = restore(root, Path(done.kept_aside), replace=True)
    assert events(root / "db")[:13] == before and again.position == 13 and again.lost_up_to == 14
    assert check(root).ok


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda b: (b / "head").unlink(), "not a complete backup"),
        (lambda b: (b / "events.sqlite").unlink(), "is not a backup"),
        (lambda b: os.truncate(b / "events.sqlite", 8192), "is damaged"),
        (lambda b: (b / "events.sqlite").write_text("nonsense" * 1000), "is damaged"),
        (
            lambda b: change(b, "UPDATE events SET at = at + 1 WHERE position = 5"),
            "is damaged .position 5",
        ),
        (lambda b: change(b, "DELETE FROM events WHERE position > 10"), "is damaged .position 13"),
        (lambda b: change(b, "PRAGMA user_version = 4"), "layout 4"),
    ],
)
def test_a_backup_that_is_not_whole_is_refused_and_nothing_is_changed(
    tmp_path: Path, spoil, what: str
) -> None:
    root = tmp_path / "root"
    fill(root).store.close()
    backup(root, tmp_path / "b")
    spoil(tmp_path / "b")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(Refusal, match=what):
        restore(root, tmp_path / "b", replace=True)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "events.sqlite") as c:
        c.execute(statement)
    c.close()


def test_a_store_in_use_is_no_backup(tmp_path: Path) -> None:
    disk = fill(tmp_path / "root")
    with pytest.raises(Refusal, match=r"store in use.*jobscribe db backup"):
        restore(tmp_path / "other", tmp_path / "root" / "db")
    disk.store.close()
    with pytest.raises(Refusal, match="is the store of this root"):
        restore(tmp_path / "root", tmp_path / "root" / "db", replace=True)


def test_a_store_that_cannot_be_read_any_more_is_replaced_as_well(tmp_path: Path) -> None:
    root = tmp_path / "root"
    disk = fill(root)
    backup(root, tmp_path / "b")
    disk.tell(JIDS[2], *life(1, jid=JIDS[2]))
    disk.store.close()
    for spoil in (
        lambda db: (db / "events.sqlite").write_text("nonsense" * 5000),
        lambda db: (db / "events.sqlite").unlink(),
        lambda db: (db / "head").unlink(),
    ):
        place = shutil.copytree(root, tmp_path / "place")
        spoil(place / "db")
        done = restore(place, tmp_path / "b", replace=True)
        assert done.lost_up_to >= (
            13 if not (Path(done.kept_aside or "") / "head").exists() else 19
        )
        report = check(place)
        assert report.ok and report.records_behind == 0, report
        Disk(place).store.close()
        shutil.rmtree(place)


@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("there", [True, False])
def test_a_restore_killed_at_any_step_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, there: bool
) -> None:
    root = tmp_path / "root"
    disk = fill(root)
    backup(root, tmp_path / "b")
    disk.tell(JIDS[2], *life(1, jid=JIDS[2]))
    left = tmp_path / "left"
    if there:
        shutil.copytree(root, left)
    else:
        left.mkdir(mode=0o700)
    disk.store.close()
    outcomes = set()

    def healed(place: Path) -> None:
        if (place / "db" / "events.sqlite").exists():
            report = check(place)
            assert report.ok, report
            opened = Disk(place)
            last = type(opened.store.read_all(0, 1000)[-1].event).__name__
            outcomes.add((opened.store.head(), last))
            opened.store.close()
        restore(place, tmp_path / "b", replace=True)
        report = check(place)
        assert (
            report.ok and report.records_behind == 0 and not list((place / "db").glob("being-*"))
        ), report

    assert (
        killed_at_every_step(
            left, tmp_path / "place", lambda p: restore(p, tmp_path / "b", replace=True), healed
        )
        > 10
    )
    assert outcomes == ({(19, "RunEnded"), (20, "LogSetBack")} if there else {(14, "LogSetBack")})


@pytest.mark.parametrize("jid", [JID])
def test_a_backup_of_a_log_that_was_killed_has_what_is_in_its_wal(tmp_path: Path, jid: str) -> None:
    disk = fill(tmp_path / "root")
    disk.tell(jid, *life(1))
    shutil.copytree(tmp_path / "root", tmp_path / "left")
    disk.store.close()
    assert backup(tmp_path / "left", tmp_path / "b").events == 19
    # a plain copy of a folder, with its WAL, is also a valid backup
    assert restore(tmp_path / "new", tmp_path / "left" / "db").events == 19
