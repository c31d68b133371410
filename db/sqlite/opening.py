"""Opening of the store: verifies that no durable event is missing, and otherwise refuses the start.

The order: the owner, the lock, the layout, the tail of the log against the head file, the kinds of
events. These checks write nothing, so a refused store stays unchanged. Then a file of an older
layout is migrated. Finally all readable data is synced to the disk, because a killed process may
have left it in the page cache.
"""

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import Refusal
from ..events.events import SYSTEM
from ..sql.log_end import LogPlace, verify_kinds, verify_tail
from ..sql.statements import ROW_COLUMNS
from ..store.checksum_chain import Row, stored
from ..store.contract import Stored
from ..store.disk_errors import UNREADABLE, open_refusal
from ..store.head_file import NAME, NOTHING, DurablePosition, HeadFile, read_head
from ..store.store_folder import check_owner, make_folder, sync_file, sync_folder
from .migrations import LogMessage, ignore_message, migrate
from .schema import create, known_layout, open_for_reading, open_for_writing, set_back


class Opened(NamedTuple):
    """An open store whose log is complete up to `head`."""

    connection: sqlite3.Connection
    head_file: HeadFile
    head: DurablePosition
    kinds: frozenset[tuple[str, int]]
    #: number of the last receipt
    receipts: int


def repair(path: Path) -> str:
    """Return the advice for a damaged store."""
    root = path.absolute().parent.parent
    return (
        f"'jobscribe db check --root {root}' reports the damage; 'jobscribe db restore BACKUP --replace --root {root}' restores a backup;"
        f" 'jobscribe db repair --root {root}' keeps the intact events"
    )


def place(path: Path) -> LogPlace:
    """Return the log at `path`, for messages."""
    root = path.absolute().parent.parent
    return LogPlace(
        str(path),
        lambda: repair(path),
        f"to go back without the later events, 'jobscribe db restore BACKUP --replace --root {root}'"
        f" restores a backup from before the upgrade. If no later version ever ran here, run"
        f" 'jobscribe db check --root {root}'",
    )


def open_store(path: Path, log: LogMessage = ignore_message) -> Opened:
    """Open the store at `path`; create it if nothing was ever stored there. Raises Refusal without
    writing anything: rootBusy, storageUnavailable, storeDamaged, unknownEvent, foreignRoot.

    log: receives progress messages if opening takes long.
    """
    try:
        check_owner(path.parent)
        if _exists(path) and not (path.parent / NAME).exists():
            raise _head_file_lost(path)
        make_folder(path.parent)
        head_file = HeadFile(path.parent)
    except OSError as e:
        raise open_refusal(e, str(path.parent), lambda: repair(path)) from None
    try:
        return _open(path, head_file, log)
    except BaseException:
        head_file.close()
        raise


def _open(path: Path, head_file: HeadFile, log: LogMessage) -> Opened:
    mark = _durable_head(path, head_file)
    _check_before_writing(path, mark)
    try:
        connection = open_for_writing(path)
    except (*UNREADABLE, OSError) as e:
        raise open_refusal(e, str(path), lambda: repair(path)) from None
    try:
        layout = known_layout(connection, path)
        if not layout:
            _refuse_foreign_file(connection, path, mark)
            create(connection)
        head = verify_tail(connection, mark, place(path))
        kinds = verify_kinds(connection, place(path))
        receipts = _last_receipt(connection)
        if (newer := set_back(connection)) is not None:
            log(f"the event store has the newer layout {newer}, which is compatible: continuing")
        if layout:
            migrate(connection, layout, log)
        sync_all(connection, path)
        if head != mark:
            head_file.reset(head.position, head.checksum)
    except (*UNREADABLE, OSError) as e:
        connection.close()
        raise open_refusal(e, str(path), lambda: repair(path)) from None
    except BaseException:
        connection.close()
        raise
    return Opened(connection, head_file, head, kinds, receipts)


def _check_before_writing(path: Path, mark: DurablePosition) -> None:
    """Run all checks that may refuse the store, before anything is written. Raises Refusal."""
    if not _exists(path) or _has_rollback_journal(path):
        return
    index = Path(f"{path}-shm")
    fresh = not index.exists()
    try:
        with contextlib.closing(open_for_reading(path, alone=True)) as connection:
            if known_layout(connection, path):
                verify_tail(connection, mark, place(path))
                verify_kinds(connection, place(path))
                _last_receipt(connection)
            else:
                _refuse_foreign_file(connection, path, mark)
    except (Refusal, *UNREADABLE, OSError) as e:
        if fresh:
            # SQLite creates this file at each opening: remove it, so that a refusal changes nothing
            index.unlink(missing_ok=True)
        if isinstance(e, Refusal):
            raise
        raise open_refusal(e, str(path), lambda: repair(path)) from None


def system_events(path: Path) -> list[Stored] | None:
    """Return the events of the stream `system` without changing a file. None if they cannot be
    read; opening the store reports the reason.
    """
    if not _exists(path) or _has_rollback_journal(path):
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


def never_used(path: Path) -> bool:
    """Return whether there is no log at `path`, and no head file of an earlier one. Raises OSError."""
    return not _exists(path) and read_head(path.parent) in (None, NOTHING)


def _last_receipt(connection: sqlite3.Connection) -> int:
    ((number,),) = connection.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchall()
    return int(number)


def _refuse_foreign_file(connection: sqlite3.Connection, path: Path, mark: DurablePosition) -> None:
    if mark != NOTHING or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise _damaged(
            path,
            f"the file contains no event store, but position {mark.position} was durable",
        )


def _exists(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _has_rollback_journal(path: Path) -> bool:
    """Return whether the power was cut while the first page was written. The file then has a
    rollback journal, and is not valid without it.

    Only opening for writing can roll it back.
    """
    return _exists(Path(f"{path}-journal"))


def _durable_head(path: Path, head_file: HeadFile) -> DurablePosition:
    """Return the durable head. A new store writes its head file before the log, so a log without a
    head file has lost it.
    """
    exists = _exists(path)
    if head_file.new and not exists:
        try:
            head_file.reset(*NOTHING)
            sync_folder(path.parent)
        except OSError as e:
            raise open_refusal(e, str(path.parent / NAME), lambda: repair(path)) from None
        return NOTHING
    if head_file.mark is None:
        raise _head_file_lost(path)
    if not exists and head_file.mark != NOTHING:
        raise _damaged(
            path, f"the log is missing, but position {head_file.mark.position} was durable"
        )
    return head_file.mark


def _head_file_lost(path: Path) -> Refusal:
    return _damaged(
        path,
        f"the head file {path.parent / NAME} is missing or unreadable, so the log may be incomplete",
    )


def _damaged(path: Path, what: str) -> Refusal:
    return Refusal("storeDamaged", f"{path}: {what}. {repair(path)}")


def sync_all(connection: sqlite3.Connection, path: Path) -> None:
    """Sync everything readable to the disk."""
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        # a reader (db check, db export) blocks truncation: sync the WAL as it is
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        sync_file(Path(f"{path}-wal"))
    sync_file(path)
    sync_folder(path.parent)
