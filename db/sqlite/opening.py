"""Opening the store: nothing is taken for granted. What was witnessed as durable must be there, or
the start is refused.

In order: whose it is, the lock, then the layout, the tail of the log against the witness and the
kinds of events in it, first without writing a byte: what is refused is left as it was found. A file
of an older layout gets what it lacks. Then everything that can be read is put on the disk for good
(a killed process may have left it in the page cache) before anything is built on it.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import Refusal
from ...runtime.filesystems import foreign_owner, user_name
from ..events.events import SYSTEM, LogCompacted, LogSetBack, decode, known
from ..store.checksum_chain import START, Broken, Row, follow, stored
from ..store.contract import Stored
from ..store.disk_errors import UNREADABLE, not_opened
from .head_file import NAME, NOTHING, DurablePosition, HeadFile, look
from .migrations import Say, bring_up, quiet
from .schema import (
    ROW_COLUMNS,
    create,
    known_layout,
    last_before,
    open_for_reading,
    open_for_writing,
    rows_after,
)

#: Rows before the witness that are verified at every start.
TAIL = 500


class Opened(NamedTuple):
    """A store that was found whole, up to `head`."""

    connection: sqlite3.Connection
    witness: HeadFile
    head: DurablePosition
    kinds: frozenset[tuple[str, int]]
    #: number of the last receipt
    receipts: int


def repair(path: Path) -> str:
    """What to do about damage."""
    root = path.absolute().parent.parent
    return (
        f"'jobscribe db check --root {root}' says what is wrong; 'jobscribe db restore BACKUP --replace --root {root}' puts back a backup,"
        f" 'jobscribe db repair --root {root}' keeps what is whole"
    )


def open_store(path: Path, say: Say = quiet) -> Opened:
    """The store at `path`, created where nothing ever was. Raises Refusal and has written nothing
    then: rootBusy, storageUnavailable, storeDamaged, unknownEvent, foreignRoot.

    say: told how far it is, should it take long.
    """
    try:
        owned(path.parent)
        if _there(path) and not (path.parent / NAME).exists():
            raise _witness_lost(path)
        _make_folder(path.parent)
        witness = HeadFile(path.parent)
    except OSError as e:
        raise not_opened(e, str(path.parent), lambda: repair(path)) from None
    try:
        return _open(path, witness, say)
    except BaseException:
        witness.close()
        raise


def owned(folder: Path) -> None:
    """Raises Refusal("foreignRoot") where a folder, or the nearest one above it that is there,
    belongs to somebody else.
    """
    there = next((p for p in (folder, folder.parent) if p.exists()), None)
    owner = None if there is None else foreign_owner(str(there))
    if owner is not None:
        raise Refusal(
            "foreignRoot",
            f"{there} belongs to {owner}, and this process runs as {user_name(os.geteuid())}; nothing was written",
        )


def _open(path: Path, witness: HeadFile, say: Say) -> Opened:
    mark = _believed(path, witness)
    _look(path, mark)
    try:
        connection = open_for_writing(path)
    except (*UNREADABLE, OSError) as e:
        raise not_opened(e, str(path), lambda: repair(path)) from None
    try:
        layout = known_layout(connection, path)
        if not layout:
            _refuse_foreign_file(connection, path, mark)
            create(connection)
        head = verify_tail(connection, mark, path)
        kinds = verify_kinds(connection, path)
        receipts = _last_receipt(connection)
        if layout:
            bring_up(connection, layout, say)
        settle(connection, path)
        if head != mark:
            witness.reset(head.position, head.checksum)
    except (*UNREADABLE, OSError) as e:
        connection.close()
        raise not_opened(e, str(path), lambda: repair(path)) from None
    except BaseException:
        connection.close()
        raise
    return Opened(connection, witness, head, kinds, receipts)


def _look(path: Path, mark: DurablePosition) -> None:
    """Everything that can be refused, before anything is written. Raises Refusal."""
    if not _there(path) or _to_be_rolled_back(path):
        return
    index = Path(f"{path}-shm")
    fresh = not index.exists()
    try:
        with contextlib.closing(open_for_reading(path, alone=True)) as connection:
            if known_layout(connection, path):
                verify_tail(connection, mark, path)
                verify_kinds(connection, path)
                _last_receipt(connection)
            else:
                _refuse_foreign_file(connection, path, mark)
    except (Refusal, *UNREADABLE, OSError) as e:
        if fresh:
            # SQLite's own, made anew whenever the file is opened: a refusal leaves the folder as it
            # was
            index.unlink(missing_ok=True)
        if isinstance(e, Refusal):
            raise
        raise not_opened(e, str(path), lambda: repair(path)) from None


def system_events(path: Path) -> list[Stored] | None:
    """The events of the system, read without changing a file. None where they cannot be read:
    opening the store says why.
    """
    if not _there(path) or _to_be_rolled_back(path):
        return None
    index = Path(f"{path}-shm")
    fresh = not index.exists()
    try:
        with contextlib.closing(open_for_reading(path, alone=True)) as connection:
            rows = connection.execute(
                f"SELECT {ROW_COLUMNS} FROM events WHERE stream = ? ORDER BY version", (SYSTEM,)
            ).fetchall()
            return [
                stored(
                    Row(r[0], r[1].decode(), r[2], r[3].decode(), r[4], r[5], r[6].decode(), r[7])
                )
                for r in rows
            ]
    except (Refusal, AttributeError, UnicodeDecodeError, TypeError, *UNREADABLE, OSError):
        return None
    finally:
        if fresh:
            index.unlink(missing_ok=True)


def missing(path: Path) -> bool:
    """Is there no log at `path`, and nothing that says that there was one? Raises OSError."""
    return not _there(path) and look(path.parent) in (None, NOTHING)


def _last_receipt(connection: sqlite3.Connection) -> int:
    ((number,),) = connection.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchall()
    return int(number)


def _refuse_foreign_file(connection: sqlite3.Connection, path: Path, mark: DurablePosition) -> None:
    if mark != NOTHING or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise _damaged(
            path, f"the file holds no event store, but position {mark.position} was durable"
        )


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if folder.stat().st_mode & 0o777 != 0o700:
            folder.chmod(0o700)
    _sync_folder(folder.parent)


def _there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _to_be_rolled_back(path: Path) -> bool:
    """Was the power cut while the first page was written? Until the WAL there is a rollback
    journal, without which it means nothing.

    Who opens the file for writing rolls it back; who only looks cannot.
    """
    return _there(Path(f"{path}-journal"))


def _believed(path: Path, witness: HeadFile) -> DurablePosition:
    """What the witness says; for a new store it is written before the log exists, so a log without
    it has lost it.
    """
    there = _there(path)
    if witness.new and not there:
        try:
            witness.reset(*NOTHING)
            _sync_folder(path.parent)
        except OSError as e:
            raise not_opened(e, str(path.parent / NAME), lambda: repair(path)) from None
        return NOTHING
    if witness.mark is None:
        raise _witness_lost(path)
    if not there and witness.mark != NOTHING:
        raise _damaged(
            path, f"the log is missing, but position {witness.mark.position} was durable"
        )
    return witness.mark


def _witness_lost(path: Path) -> Refusal:
    return _damaged(
        path,
        f"the witness {path.parent / NAME} is missing or unreadable, so nobody can say whether the log is complete",
    )


def _damaged(path: Path, what: str) -> Refusal:
    return Refusal("storeDamaged", f"{path}: {what}. {repair(path)}")


def successor(connection: sqlite3.Connection, mark: DurablePosition) -> DurablePosition | None:
    """The end of a log that took the place of the one that `mark` is of: its last row says so.

    The file is replaced first and the witness after it; a crash between the two leaves a witness of
    the log that was replaced.
    """
    try:
        raw = connection.execute(
            f"SELECT {ROW_COLUMNS} FROM events ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if raw is None or raw[3] not in (b"LogCompacted", b"LogSetBack"):
            return None
        event = decode(raw[3].decode(), raw[4], raw[6])
    except (Refusal, TypeError, *UNREADABLE):
        return None  # not what it should be, which reading the log will tell
    match event:
        case (
            LogCompacted(position=position, checksum=checksum)
            | LogSetBack(witnessed=position, checksum=checksum)
        ):
            names = checksum is not None and (position, checksum) == (
                mark.position,
                mark.checksum.hex(),
            )
            return DurablePosition(raw[0], raw[7]) if names else None
        case _:
            return None


def verify_tail(
    connection: sqlite3.Connection, mark: DurablePosition, path: Path
) -> DurablePosition:
    """The head of the log, after the rows around and behind the witnessed position were verified.
    Raises Refusal.
    """
    taken_over = successor(connection, mark)
    mark = taken_over or mark
    start, previous = (0, START) if taken_over else last_before(connection, mark.position, TAIL)
    head, witnessed = DurablePosition(start, previous), mark.position <= start
    try:
        for row in follow(rows_after(connection, start), previous, start):
            stored(row)
            head = DurablePosition(row.position, row.checksum)
            if row.position == mark.position:
                witnessed = True
                if row.checksum != mark.checksum:
                    raise _other_log(path, mark)
    except Broken as e:
        raise _damaged(path, f"the log is damaged at {e}") from None
    except Refusal as e:
        raise e if e.code != "unknownEvent" else Refusal(e.code, f"{path}: {e.sentence}") from None
    if not witnessed:
        (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
        if last > mark.position:
            raise _other_log(path, mark)
        raise _damaged(
            path,
            f"the log ends at position {last}, but {mark.position} was durable: it was cut, or is an older copy",
        )
    return head


def _other_log(path: Path, mark: DurablePosition) -> Refusal:
    return _damaged(
        path,
        f"position {mark.position} of the log is not what was witnessed here: the file is of another root, or a copy that went on"
        " elsewhere; if the right file is at hand, put that back",
    )


def verify_kinds(connection: sqlite3.Connection, path: Path) -> frozenset[tuple[str, int]]:
    """Types and schemas in the log, all of them known. Raises Refusal."""
    kinds = frozenset(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(kinds, key=repr):
        if not known(type_, schema):
            raise Refusal(
                "unknownEvent",
                f"{path} holds events {type_!r} version {schema}, which this version does not know"
                f" (if none that did has ever run here: 'jobscribe db check --root {path.absolute().parent.parent}')",
            )
    return kinds


def settle(connection: sqlite3.Connection, path: Path) -> None:
    """Everything that can be read now is on the disk when this returns."""
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        # a reader (db check, db export) holds the WAL: sync it where it is
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        _sync_file(Path(f"{path}-wal"))
    _sync_file(path)
    _sync_folder(path.parent)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    _sync_file(folder)
