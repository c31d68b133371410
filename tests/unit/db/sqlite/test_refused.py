"""Stores that must not be opened: each refusal says what to do, and leaves every byte unchanged."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import JID, UID, life
from store_fixtures import Disk

from jobscribe.db.events import events
from jobscribe.db.events.events import SYSTEM, SupervisorStarted
from jobscribe.db.maintenance import backup, compaction, rebuild, repair
from jobscribe.db.maintenance.verification import check
from jobscribe.db.records.record_files import RecordWriter, catch_up, record_path
from jobscribe.db.store import head_file
from jobscribe.protocol.errors import CODES, Refusal
from jobscribe.supervisor.process.root_directory import RootDirectory


def complain(sentence: str) -> None:
    raise AssertionError(sentence)


def state(root: Path) -> dict[str, tuple]:
    """Return everything about a folder that a write would change."""
    return {
        str(p.relative_to(root)): (
            p.stat().st_mode,
            p.stat().st_mtime_ns,
            p.stat().st_size,
            p.read_bytes() if p.is_file() else b"",
        )
        for p in [root, *root.rglob("*")]
        if p.name != "events.sqlite-shm" and not (p.is_dir() and (p / "events.sqlite-wal").exists())
    }


def sql(root: Path, statement: str) -> None:
    with sqlite3.connect(root / "db" / "events.sqlite") as c:
        # looks like a newer version's file, not like damage: the WAL stays in place
        c.execute("PRAGMA wal_autocheckpoint = 0")
        c.execute(statement)
        c.commit()
        keep = {
            e: Path(f"{root}/db/events.sqlite{e}").read_bytes()
            for e in ("", "-wal")
            if Path(f"{root}/db/events.sqlite{e}").exists()
        }
    c.close()
    if keep.get("-wal"):
        for end, data in keep.items():
            Path(f"{root}/db/events.sqlite{end}").write_bytes(data)


def fill(root: Path, jobs: int = 2, session: int = 1) -> Disk:
    disk = Disk(root)
    disk.append(
        SYSTEM, [SupervisorStarted(at=1.0, session=session, pid=1, boot_id="b", version="9")]
    )
    writer = RecordWriter(root / "supervisor-job", complain)
    for n in range(jobs):
        jid = f"{UID}-sim{n:05d}-command"
        disk.tell(jid, *life(session, jid=jid))
    catch_up(disk.store, writer)
    writer.close()
    return disk


def of_another_root(root: Path, jobs: int) -> None:
    disk = fill(root.with_name("another"), jobs, session=2)
    disk.store.close()
    for end in ("-wal", "-shm"):
        Path(f"{root}/db/events.sqlite{end}").unlink(missing_ok=True)
    shutil.copy(disk.path, root / "db" / "events.sqlite")


def another_witness(root: Path) -> None:
    disk = fill(root.with_name("another"), session=2)
    disk.store.close()
    shutil.copy(root.with_name("another") / "db" / "head", root / "db" / "head")


def newer_event(root: Path) -> None:
    with pytest.MonkeyPatch.context() as newer:
        newer.setitem(events.VERSIONS, "SupervisorStarted", 2)
        newer.setitem(events.UPCASTERS, ("SupervisorStarted", 1), lambda data: data)
        disk = Disk(root)
        disk.versions[SYSTEM] = 1
        disk.append(SYSTEM, [SupervisorStarted(at=2.0, session=2, pid=1, boot_id="b", version="9")])
        disk.store.close()


STORES: list[tuple[str, Callable[[Path], object], str, str]] = [
    (
        "of a newer layout",
        lambda r: sql(r, "PRAGMA user_version = 4"),
        "unknownEvent",
        r"layout 4; this version knows layouts up to 3",
    ),
    (
        "with a newer version of an event",
        newer_event,
        "unknownEvent",
        "'SupervisorStarted' version 2, which this version does not know",
    ),
    (
        "with a kind of event nobody knows",
        lambda r: sql(r, "INSERT INTO kinds VALUES ('JobPromoted', 1)"),
        "unknownEvent",
        "'JobPromoted' version 1",
    ),
    (
        "of another root, longer",
        lambda r: of_another_root(r, 5),
        "storeDamaged",
        "position 13 .* differs from the head file: the log belongs to another root",
    ),
    (
        "of another root, as long",
        lambda r: of_another_root(r, 2),
        "storeDamaged",
        "position 13 .* differs from the head file: the log belongs to another root",
    ),
    (
        "of another root, shorter",
        lambda r: of_another_root(r, 1),
        "storeDamaged",
        "ends at position 7, but 13 was durable: it was cut, or is an older copy",
    ),
    (
        "without its witness",
        lambda r: (r / "db" / "head").unlink(),
        "storeDamaged",
        "head is missing or unreadable",
    ),
    ("with the witness of another log", another_witness, "storeDamaged", "jobscribe db repair"),
    (
        "that was cut",
        lambda r: sql(r, "DELETE FROM events WHERE position > 9"),
        "storeDamaged",
        "ends at position 9, but 13 was durable",
    ),
    (
        "that is something else",
        lambda r: (r / "db" / "events.sqlite").write_text("nonsense" * 9999),
        "storeDamaged",
        "jobscribe db restore",
    ),
    (
        "that is not there any more",
        lambda r: (r / "db" / "events.sqlite").unlink(),
        "storeDamaged",
        "is missing, but position 13 was durable",
    ),
]


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize(
    ("spoil", "code", "says"), [s[1:] for s in STORES], ids=[s[0] for s in STORES]
)
def test_a_store_that_must_not_be_opened_is_refused_and_left_as_it_was(
    tmp_path: Path, spoil: Callable[[Path], object], code: str, says: str, killed: bool
) -> None:
    disk = fill(tmp_path / "made")
    if not killed:
        disk.store.close()
    root = shutil.copytree(tmp_path / "made", tmp_path / "root")
    disk.store.close()
    for leftover in root.rglob("*-shm"):
        leftover.unlink()
    if killed and says.startswith("is missing"):
        (root / "db" / "events.sqlite-wal").unlink()
    spoil(root)
    before = state(root)
    for _ in range(2):
        with pytest.raises(Refusal, match=says) as refused:
            Disk(root)
        assert refused.value.code == code and CODES[code].advice
        assert str(root) in refused.value.sentence
        assert state(root) == before
        assert not head_file.is_locked(root / "db"), "and let go of"


def test_a_root_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    fill(root).store.close()
    source = tmp_path / "b"
    backup.backup(root, source)
    before = state(root)
    if os.geteuid() == 0:
        os.chown(root, 65534, 65534)
        os.chown(root / "db", 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for opens in (
        Disk,
        lambda r: RootDirectory(str(r)),
        rebuild.rebuild,
        compaction.compact,
        repair.repair,
        lambda r: backup.restore(r, source, replace=True),
    ):
        with pytest.raises(Refusal, match=r"foreignRoot.*belongs to \w+.*this process runs as \w+"):
            opens(root)
        assert state(root) == before
    # reading changes nothing
    assert check(root).ok


def test_a_new_root_may_lie_in_a_folder_of_somebody_else(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    Disk(tmp_path / "root").store.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"computeJid": "EPRSuser-sim0',
        b"\xff\xfe\x00",
        b"[]",
        b'{"position": 7, "status": "promoted"}',
    ],
)
def test_a_record_is_a_projection_and_never_believed(tmp_path: Path, content: bytes) -> None:
    """Truncated, with an unknown status, or not a record at all: a start ignores it, the check
    reports it, and a rebuild repairs it.
    """
    disk = fill(tmp_path)
    jid = f"{UID}-sim00000-command"
    path = record_path(tmp_path / "supervisor-job", jid)
    right = path.read_bytes()
    disk.store.close()
    path.write_bytes(content)
    report = check(tmp_path)
    assert [(p.where, jid in p.what) for p in report.problems] == [("record", True)], report
    disk.open()
    writer = RecordWriter(tmp_path / "supervisor-job", complain)
    catch_up(disk.store, writer)
    assert disk.store.jobs(status="completed")[-1].jid == jid
    disk.jobs[JID] = disk.jobs[jid]
    disk.tell(jid, *life(2, jid=jid))
    writer.mark(disk.jobs[jid], disk.store.head(), 1.7e9 + 1)
    writer.close()
    disk.store.close()
    assert check(tmp_path).ok, "its next event writes it anew"
    path.write_bytes(content)
    rebuild.rebuild(tmp_path)
    assert check(tmp_path).ok and path.read_bytes() != right
