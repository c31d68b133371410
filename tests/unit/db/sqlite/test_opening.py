"""Opening a store: exclusive access, correct permissions, only formats that this version
understands, and recovery after a crash at any step of the first opening.
"""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from event_strategies import JID, life, requested
from store_fixtures import Disk, append

from jobscribe.db.events import events
from jobscribe.db.events.events import SupervisorStarted, job_stream
from jobscribe.db.events.job_fold import fold
from jobscribe.db.maintenance.verification import check
from jobscribe.db.sql import log_end, receipt_retention
from jobscribe.db.sqlite import opening, schema, writer
from jobscribe.db.sqlite.schema import LAYOUT
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Appended, Batch, Receipt, Write
from jobscribe.db.store.disk_errors import is_retryable
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.errors import Refusal


def opened(root: Path) -> SqliteStore:
    return SqliteStore(root / "db" / "events.sqlite", lambda call: call())


def test_files_are_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        disk = Disk(tmp_path / "root")
        disk.tell(JID, *life(1))
        files = {f.name: f.stat().st_mode & 0o777 for f in (tmp_path / "root" / "db").iterdir()}
        assert files == dict.fromkeys(
            ("events.sqlite", "events.sqlite-wal", "events.sqlite-shm", "head"), 0o600
        )
        assert (tmp_path / "root" / "db").stat().st_mode & 0o777 == 0o700
        disk.store.close()
    finally:
        os.umask(before)


def test_a_folder_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db").chmod(0o777)
    opened(tmp_path).close()
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o700


@pytest.mark.process
def test_a_store_is_open_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(Refusal, match="rootBusy"):
        opened(tmp_path)
    code = "import sys, pathlib; from jobscribe.db.sqlite.store import SqliteStore; SqliteStore(pathlib.Path(sys.argv[1]), print)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    other = subprocess.run(
        [sys.executable, "-c", code, str(disk.path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert other.returncode == 1 and "rootBusy" in other.stderr
    disk.tell(JID, *life(1))
    assert head_file.is_locked(tmp_path / "db")
    disk.store.close()
    assert not head_file.is_locked(tmp_path / "db")
    opened(tmp_path).close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    receipt = Receipt(uid="EPRSuser", req_id="request-1", jid=JID, serial=1, at=1.0)
    disk.tell(JID, *life(1), receipts=(receipt,))
    before = (disk.store.read_all(), disk.store.jobs(), disk.store.head())
    for _ in range(3):
        disk.store.close()
        disk.open()
        assert (disk.store.read_all(), disk.store.jobs(), disk.store.head()) == before
        assert disk.store.receipt("EPRSuser", "request-1") == receipt
    disk.tell(JID, *life(2))
    assert disk.store.head() == 12
    disk.store.close()


def test_after_a_close_everything_is_in_one_file(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.tell(JID, *life(1))
    disk.store.close()
    assert sorted(f.name for f in (tmp_path / "db").iterdir()) == ["events.sqlite", "head"]


def test_a_wal_is_brought_home_when_it_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobscribe.db.sqlite.writer.CHECKPOINT_IDLE", 50)
    disk = Disk(tmp_path)
    sizes = []
    for serial in range(1, 100):
        disk.tell(JID, *life(serial))
        sizes.append((tmp_path / "db" / "events.sqlite-wal").stat().st_size)
    assert max(sizes) < 400_000, "the WAL goes on growing"
    disk.store.close()
    assert check(tmp_path).ok


# ---- formats that this version does not know


def test_an_event_of_a_newer_version_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "TAIL", 2)
    disk = Disk(tmp_path)
    with monkeypatch.context() as newer:
        newer.setitem(events.VERSIONS, "SupervisorStarted", 2)
        disk.append(
            "system", [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")]
        )
        for serial in range(1, 5):
            disk.tell(JID, *life(serial))
        disk.store.close()
        disk.open().close()
    for _ in range(2):
        with pytest.raises(Refusal, match="'SupervisorStarted' version 2") as refused:
            opened(tmp_path)
        assert refused.value.code == "unknownEvent"


@pytest.mark.parametrize("tail", [2, 500], ids=["far back", "near the end"])
def test_the_refusal_names_the_event_its_position_the_version_that_wrote_it_and_the_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    """The store goes back to an older version until the first event that this one cannot read."""
    monkeypatch.setattr(log_end, "TAIL", tail)
    disk = Disk(tmp_path)
    disk.append("system", [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9.1")])
    disk.tell(JID, *life(1))
    with monkeypatch.context() as newer:
        newer.setitem(events.VERSIONS, "RunEnded", 7)
        first = disk.store.head() + len(life(2))
        for serial in range(2, 5):
            disk.tell(JID, *life(serial))
        disk.store.close()
    before = disk.path.read_bytes()
    with pytest.raises(Refusal) as refused:
        opened(tmp_path)
    sentence = refused.value.sentence
    assert refused.value.code == "unknownEvent" and "'RunEnded' version 7" in sentence
    assert f"position {first}" in sentence and "jobscribe 9.1 ran here last" in sentence
    assert f"'jobscribe db restore BACKUP --replace --root {tmp_path}'" in sentence
    assert disk.path.read_bytes() == before


def test_a_newer_layout_that_is_compatible_is_opened_and_set_back(tmp_path: Path) -> None:
    """The newer version derives its tables again afterwards, because it sees the older layout."""
    disk = Disk(tmp_path)
    disk.tell(JID, *life(1))
    disk.store.close()
    change(
        disk.path,
        f"PRAGMA user_version = {LAYOUT + 2}",
        "CREATE TABLE compatible (layout INTEGER NOT NULL)",
        f"INSERT INTO compatible VALUES ({LAYOUT})",
        "CREATE TABLE later (position INTEGER)",
    )
    assert check(tmp_path).ok
    said: list[str] = []
    store = SqliteStore(disk.path, lambda call: call(), log=said.append)
    assert said == [
        f"the event store has the newer layout {LAYOUT + 2}, which is compatible: continuing"
    ]
    store.close()
    disk.open()
    disk.tell(JID, *life(2))
    disk.store.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as c:
        assert c.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
    assert check(tmp_path).ok


@pytest.mark.parametrize("oldest", [str(LAYOUT + 1), "'3'", "NULL"])
def test_a_newer_layout_for_later_versions_only_is_refused(tmp_path: Path, oldest: str) -> None:
    disk = Disk(tmp_path)
    disk.store.close()
    change(
        disk.path,
        f"PRAGMA user_version = {LAYOUT + 1}",
        "CREATE TABLE compatible (layout)",
        f"INSERT INTO compatible VALUES ({oldest})",
    )
    before = disk.path.read_bytes()
    with pytest.raises(Refusal, match=f"layout {LAYOUT + 1}.*restore a backup"):
        opened(tmp_path)
    assert disk.path.read_bytes() == before


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as c:
        for statement in statements:
            c.execute(statement)
        c.commit()


def test_a_newer_layout_is_refused_and_not_touched(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.store.close()
    with sqlite3.connect(disk.path) as c:
        c.execute("PRAGMA user_version = 4")
    c.close()
    before = disk.path.read_bytes()
    with pytest.raises(Refusal, match="layout 4"):
        opened(tmp_path)
    assert disk.path.read_bytes() == before


def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    for spoil in ("PRAGMA user_version = 1", "CREATE TABLE theirs (x)"):
        root = tmp_path / spoil[:6]
        Disk(root).store.close()
        (root / "db" / "events.sqlite").unlink()
        with sqlite3.connect(root / "db" / "events.sqlite") as c:
            c.execute(spoil)
        c.close()
        with pytest.raises(Refusal, match="storeDamaged"):
            opened(root)
    root = tmp_path / "text"
    Disk(root).store.close()
    (root / "db" / "events.sqlite").write_text("not a database at all\n" * 1000)
    with pytest.raises(Refusal, match="storeDamaged"):
        opened(root)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, "storageUnavailable"),
        (sqlite3.SQLITE_FULL, "storageUnavailable"),
        (sqlite3.SQLITE_CORRUPT, "storeDamaged"),
        (sqlite3.SQLITE_NOTADB, "storeDamaged"),
        (sqlite3.SQLITE_IOERR_SHORT_READ, "storeDamaged"),
    ],
)
def test_a_disk_that_fails_is_told_from_a_file_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, refusal: str
) -> None:
    def settle(*_: object) -> None:
        raise _sqlite_error(code)

    with monkeypatch.context() as m:
        m.setattr(opening, "sync_all", settle)
        with pytest.raises(Refusal, match=refusal):
            opened(tmp_path)
    opened(tmp_path).close()


# ---- the first opening


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize(
    "step",
    [
        (opening, "make_folder"),
        (head_file.HeadFile, "reset"),
        (opening, "open_for_writing"),
        (opening, "create"),
        (opening, "verify_tail"),
        (opening, "sync_all"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_first_opening_that_was_killed_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[object, str], after: bool
) -> None:
    owner, name = step
    real = getattr(owner, name)

    def killed(*args: object) -> None:
        made = real(*args) if after else None
        if isinstance(made, sqlite3.Connection):
            made.close()  # as the kernel does
        raise Killed

    with monkeypatch.context() as m:
        m.setattr(owner, name, killed)
        with pytest.raises(Killed):
            opened(tmp_path)
    disk = Disk(tmp_path)
    disk.tell(JID, *life(1))
    disk.store.close()
    assert check(tmp_path).ok


def test_a_first_opening_that_lost_its_power_is_begun_again(tmp_path: Path) -> None:
    """The first page is written under a rollback journal: while the journal exists, the page has no
    meaning.
    """
    elsewhere = sqlite3.connect(tmp_path / "events.sqlite", isolation_level=None)
    elsewhere.execute("PRAGMA cache_size = 2")
    elsewhere.execute("BEGIN")
    elsewhere.execute("CREATE TABLE t (x)")
    elsewhere.executemany(
        "INSERT INTO t VALUES (?)", [("x" * 4000,)] * 50
    )  # more than the cache holds: the journal is synced, pages are written
    journal, pages = (
        (tmp_path / "events.sqlite-journal").read_bytes(),
        (tmp_path / "events.sqlite").read_bytes(),
    )
    elsewhere.close()
    assert journal and pages
    disk = Disk(tmp_path / "root")
    disk.store.close()
    for file in (tmp_path / "root" / "db").iterdir():
        if file.name.startswith("events.sqlite"):
            file.unlink()
    (tmp_path / "root" / "db" / "events.sqlite").write_bytes(bytes(512) + pages[512:])
    (tmp_path / "root" / "db" / "events.sqlite-journal").write_bytes(journal)
    again = Disk(tmp_path / "root")
    again.tell(JID, requested(1))
    assert again.store.head() == 1
    again.store.close()


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal, match="storageUnavailable"):
        opened(tmp_path / "file")


# ---- error classification


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "right"),
    [
        (_sqlite_error(sqlite3.SQLITE_FULL), True),
        (_sqlite_error(sqlite3.SQLITE_READONLY), True),
        (_sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), True),
        (_sqlite_error(sqlite3.SQLITE_IOERR_WRITE), True),
        (_sqlite_error(sqlite3.SQLITE_NOMEM), True),
        (_sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), False),
        (_sqlite_error(sqlite3.SQLITE_IOERR_DIR_FSYNC), False),
        (_sqlite_error(sqlite3.SQLITE_IOERR_READ), False),
        (_sqlite_error(sqlite3.SQLITE_IOERR), False),
        (_sqlite_error(sqlite3.SQLITE_CORRUPT), False),
        (_sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE), False),
        (sqlite3.ProgrammingError("x"), False),
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EIO, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_only_errors_that_leave_the_log_as_it_was_may_pass(error: Exception, right: bool) -> None:
    assert is_retryable(error) is right


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO events",
        "INSERT OR REPLACE INTO jobs",
        "INSERT OR REPLACE INTO receipts",
        "INSERT INTO kinds",
    ],
)
@pytest.mark.parametrize("passes", [True, False])
def test_a_transaction_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, passes: bool
) -> None:
    disk = Disk(tmp_path)
    disk.tell(JID, requested(1))
    real = writer.insert

    def insert(connection: sqlite3.Connection, statements: dict[int, str], rows: list) -> None:
        real(connection, statements, rows)
        if statements[1].startswith(statement):
            raise _sqlite_error(sqlite3.SQLITE_FULL if passes else sqlite3.SQLITE_IOERR_READ)

    receipt = Receipt(uid="EPRSuser", req_id="request-2", jid=JID, serial=2, at=1.0)
    batch = Batch(
        writes=(Write(job_stream(JID), 1, (requested(2),)),),
        index=(index_row(fold(JID, [requested(1), requested(2)])),),
        receipts=(receipt,),
    )
    before = (disk.store.read_all(), disk.store.jobs())
    with monkeypatch.context() as m:
        m.setattr(writer, "insert", insert)
        refused = append(disk.store, disk.calls, batch)
    assert isinstance(refused, Refusal) and refused.code == "storageUnavailable"
    assert (disk.store.read_all(), disk.store.jobs()) == before and disk.store.receipt(
        "EPRSuser", "request-2"
    ) is None
    if passes:
        disk.store.resume()
        assert append(disk.store, disk.calls, batch) == Appended(2, 2)
    else:
        with pytest.raises(Refusal, match="storageUnavailable"):
            disk.store.resume()
    disk.store.close()
    disk.open()
    assert disk.store.head() == (2 if passes else 1)
    disk.store.close()
    assert check(tmp_path).ok


# ---- receipts


def test_receipts_are_kept_for_a_day_of_real_time(tmp_path: Path) -> None:
    now = [0.0]
    disk = Disk(tmp_path, monotonic=lambda: now[0])
    hour = 3600.0

    def at(hours: float, wall: float) -> list[int]:
        """Write one receipt at this time; return the numbers of the receipts still stored."""
        now[0] = hours * hour
        n = len(disk.versions)
        disk.append(
            f"s{n}",
            [SupervisorStarted(at=1.0, session=n, pid=1, boot_id="b", version="9")],
            receipts=(Receipt(uid="u", req_id=f"r{n}", jid=JID, serial=n, at=wall),),
        )
        # pruning runs after the acknowledgements: the next append waits for it
        disk.append("tick", [SupervisorStarted(at=1.0, session=n, pid=1, boot_id="b", version="9")])
        return [i for i in range(len(disk.versions)) if disk.store.receipt("u", f"r{i}")]

    assert at(0, 1e9) == [0]
    assert at(2, 1e9 + 30 * 86400) == [0, 2], "a clock that jumps forgets nothing"
    assert at(23, 1e9) == [0, 2, 3]
    assert at(27, 1e9)[-2:] == [3, 4]
    assert at(60, 1e9) == [5], "what is old enough goes"
    disk.store.close()


def test_what_an_earlier_process_left_is_pruned_by_its_time(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    old, young = (
        Receipt(uid="u", req_id=f"r{t}", jid=JID, serial=1, at=float(t)) for t in (1000, 80_000)
    )
    disk.append(
        "a",
        [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")],
        receipts=(old, young),
    )
    disk.store.close()
    now = [0.0]
    disk.options["monotonic"] = lambda: now[0]
    disk.open()
    now[0] = receipt_retention.EVERY_SECS + 1
    new = Receipt(uid="u", req_id="new", jid=JID, serial=1, at=100_000.0)
    for n in range(3):
        disk.append(
            "b",
            [SupervisorStarted(at=1.0, session=n, pid=1, boot_id="b", version="9")],
            receipts=(new,),
        )
    assert [disk.store.receipt("u", r.req_id) for r in (old, young, new)] == [None, young, new]
    disk.store.close()


def test_the_tables_are_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_TABLES", schema._TABLES + "CREATE TABLE events (x);")
    connection = sqlite3.connect(tmp_path / "x", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        schema.create(connection)
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    connection.close()
