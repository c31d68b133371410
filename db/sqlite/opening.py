"""Opening of the store: verifies that no durable event is missing, and otherwise refuses the start.

The order: the owner, the lock, the layout, the tail of the log against the head file, the kinds of
events. These checks write nothing, so a refused store stays unchanged. Then a file of an older
layout is migrated. Finally all readable data is synced to the disk, because a killed process may
have left it in the page cache.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import Refusal
from ...protocol.version import VERSION
from ...runtime.filesystems import foreign_owner, user_name
from ..events.events import SYSTEM, LogCompacted, LogSetBack, decode, known
from ..store.checksum_chain import START, Broken, Row, follow, stored
from ..store.contract import Stored
from ..store.disk_errors import UNREADABLE, open_refusal
from .head_file import NAME, NOTHING, DurablePosition, HeadFile, read_head
from .migrations import LogMessage, ignore_message, migrate
from .schema import (
    ROW_COLUMNS,
    create,
    known_layout,
    last_before,
    open_for_reading,
    open_for_writing,
    rows_after,
    set_back,
)

#: Rows before the durable head that are verified at every start.
TAIL = 500


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


def open_store(path: Path, log: LogMessage = ignore_message) -> Opened:
    """Open the store at `path`; create it if nothing was ever stored there. Raises Refusal without
    writing anything: rootBusy, storageUnavailable, storeDamaged, unknownEvent, foreignRoot.

    log: receives progress messages if opening takes long.
    """
    try:
        check_owner(path.parent)
        if _exists(path) and not (path.parent / NAME).exists():
            raise _head_file_lost(path)
        _make_folder(path.parent)
        head_file = HeadFile(path.parent)
    except OSError as e:
        raise open_refusal(e, str(path.parent), lambda: repair(path)) from None
    try:
        return _open(path, head_file, log)
    except BaseException:
        head_file.close()
        raise


def check_owner(folder: Path) -> None:
    """Raise Refusal("foreignRoot") if the folder, or its parent if the folder does not exist,
    belongs to another user.
    """
    existing = next((p for p in (folder, folder.parent) if p.exists()), None)
    owner = None if existing is None else foreign_owner(str(existing))
    if owner is not None:
        raise Refusal(
            "foreignRoot",
            f"{existing} belongs to {owner}, but this process runs as {user_name(os.geteuid())}; nothing was written",
        )


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
        head = verify_tail(connection, mark, path)
        kinds = verify_kinds(connection, path)
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
                verify_tail(connection, mark, path)
                verify_kinds(connection, path)
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


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if folder.stat().st_mode & 0o777 != 0o700:
            folder.chmod(0o700)
    _sync_folder(folder.parent)


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
            _sync_folder(path.parent)
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


def successor(connection: sqlite3.Connection, mark: DurablePosition) -> DurablePosition | None:
    """Return the end of a log that replaced the log with the durable head `mark`; None if it did
    not. Its last row names the replaced log.

    The log file is replaced before the head file. A crash between the two leaves the head file of
    the replaced log.
    """
    try:
        raw = connection.execute(
            f"SELECT {ROW_COLUMNS} FROM events ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if raw is None or raw[3] not in (b"LogCompacted", b"LogSetBack"):
            return None
        event = decode(raw[3].decode(), raw[4], raw[6])
    except (Refusal, TypeError, *UNREADABLE):
        return None  # a damaged row; reading the log reports it
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
    """Return the head of the log, after verifying the rows around and behind the durable head.
    Raises Refusal.
    """
    replacement = successor(connection, mark)
    mark = replacement or mark
    start, previous = (0, START) if replacement else last_before(connection, mark.position, TAIL)
    head, reached = DurablePosition(start, previous), mark.position <= start
    try:
        for row in follow(rows_after(connection, start), previous, start):
            stored(row)
            head = DurablePosition(row.position, row.checksum)
            if row.position == mark.position:
                reached = True
                if row.checksum != mark.checksum:
                    raise _other_log(path, mark)
    except Broken as e:
        raise _damaged(path, f"the log is damaged at {e}") from None
    except Refusal as e:
        if e.code != "unknownEvent":
            raise
        verify_kinds(connection, path)  # names the first such event
        raise _unreadable(connection, path, f"{path}: {e.sentence}") from None
    if not reached:
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
        f"position {mark.position} of the log has a checksum that differs from the head file: the log belongs to another root, or is a copy"
        " that was continued elsewhere; put the right file back if you have it",
    )


def verify_kinds(connection: sqlite3.Connection, path: Path) -> frozenset[tuple[str, int]]:
    """Return the types and schemas in the log, all of them known. Raises Refusal."""
    kinds = frozenset(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(kinds, key=repr):
        if not known(type_, schema):
            row = connection.execute(
                "SELECT position FROM events WHERE type = ? AND schema = ? ORDER BY position LIMIT 1",
                (type_, schema),
            ).fetchone()
            first = "" if row is None else f" (the first at position {row[0]})"
            raise _unreadable(
                connection,
                path,
                f"{path} contains events {type_!r} version {schema}, which this version does not know{first}",
            )
    return kinds


def _unreadable(connection: sqlite3.Connection, path: Path, sentence: str) -> Refusal:
    """Return the refusal of a log with events of a later version, with the remedies."""
    root = path.absolute().parent.parent
    try:
        row = connection.execute(
            "SELECT json_extract(body, '$.version') FROM events WHERE stream = ? AND type = ?"
            " ORDER BY version DESC LIMIT 1",
            (SYSTEM, "SupervisorStarted"),
        ).fetchone()
    except UNREADABLE:
        row = None
    last = f"jobscribe {row[0]}" if row and isinstance(row[0], str) else "an unknown version"
    return Refusal(
        "unknownEvent",
        f"{sentence}; {last} ran here last, this is jobscribe {VERSION}. Nothing was changed. Start"
        " a version that knows them; to go back without the later events, 'jobscribe db restore BACKUP"
        f" --replace --root {root}' restores a backup from before the upgrade. If no later version"
        f" ever ran here, run 'jobscribe db check --root {root}'",
    )


def sync_all(connection: sqlite3.Connection, path: Path) -> None:
    """Sync everything readable to the disk."""
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        # a reader (db check, db export) blocks truncation: sync the WAL as it is
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
