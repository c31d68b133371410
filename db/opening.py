"""Opening the store: nothing is taken for granted. What was witnessed as durable must be there, or the start is refused.

In order: the lock, the file, the tail of the log against the witness, the kinds of events in it; then everything that can
be read is put on the disk for good (a killed process may have left it in the page cache) before anything is built on it.
"""

import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ..protocol.errors import Refusal
from .chain import START, Broken, follow, stored
from .events import known
from .faults import UNREADABLE, not_opened
from .schema import checksum_at, create, known_layout, open_for_writing, rows_after
from .witness import NAME, NOTHING, Mark, Witness

#: Rows before the witness that are verified at every start.
TAIL = 500


class Opened(NamedTuple):
    """A store that was found whole, up to `head`."""

    connection: sqlite3.Connection
    witness: Witness
    head: Mark
    kinds: frozenset[tuple[str, int]]
    #: number of the last receipt
    receipts: int


def repair(path: Path) -> str:
    """What to do about damage."""
    root = path.absolute().parent.parent
    return (
        f"'jobscribe db check --root {root}' says how far the log is whole; restore a backup, "
        f"or keep what is whole with 'jobscribe db rebuild --root {root} --cut-after POSITION'"
    )


def open_store(path: Path) -> Opened:
    """The store at `path`, created where nothing ever was. Raises Refusal: rootBusy, storageUnavailable, storeDamaged, unknownEvent."""
    try:
        _make_folder(path.parent)
        witness = Witness(path.parent)
    except OSError as e:
        raise not_opened(e, str(path.parent), lambda: repair(path)) from None
    try:
        return _open(path, witness)
    except BaseException:
        witness.close()
        raise


def _open(path: Path, witness: Witness) -> Opened:
    mark = _believed(path, witness)
    try:
        connection = open_for_writing(path)
    except (*UNREADABLE, OSError) as e:
        raise not_opened(e, str(path), lambda: repair(path)) from None
    try:
        if not known_layout(connection, path):
            if mark != NOTHING or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise _damaged(path, f"the file is empty, but position {mark.position} was durable")
            create(connection)
        head = verify_tail(connection, mark, path)
        kinds = verify_kinds(connection, path)
        ((receipts,),) = connection.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchall()
        _settle(connection, path)
        if head != mark:
            witness.reset(head.position, head.checksum)
    except (*UNREADABLE, OSError) as e:
        connection.close()
        raise not_opened(e, str(path), lambda: repair(path)) from None
    except BaseException:
        connection.close()
        raise
    return Opened(connection, witness, head, kinds, receipts)


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        folder.chmod(0o700)
    _sync_folder(folder.parent)


def _believed(path: Path, witness: Witness) -> Mark:
    """What the witness says; for a new store it is written before the log exists, so a log without it has lost it."""
    there = path.exists() and path.stat().st_size > 0
    if witness.new and not there:
        try:
            witness.reset(*NOTHING)
            _sync_folder(path.parent)
        except OSError as e:
            raise not_opened(e, str(path.parent / NAME), lambda: repair(path)) from None
        return NOTHING
    if witness.mark is None:
        raise _damaged(path, f"the witness {path.parent / NAME} is missing or unreadable, so nobody can say whether the log is complete")
    if not there and witness.mark != NOTHING:
        raise _damaged(path, f"the log is missing, but position {witness.mark.position} was durable")
    return witness.mark


def _damaged(path: Path, what: str) -> Refusal:
    return Refusal("storeDamaged", f"{path}: {what}. {repair(path)}")


def verify_tail(connection: sqlite3.Connection, mark: Mark, path: Path) -> Mark:
    """The head of the log, after the rows around and behind the witnessed position were verified. Raises Refusal."""
    start = max(0, mark.position - TAIL)
    previous = START if start == 0 else checksum_at(connection, start)
    head, witnessed = Mark(start, previous), mark.position <= start
    try:
        for row in follow(rows_after(connection, start), previous, start):
            stored(row)
            head = Mark(row.position, row.checksum)
            if row.position == mark.position:
                witnessed = True
                if row.checksum != mark.checksum:
                    raise Broken(row.position, "its checksum is not the one that was witnessed")
    except Broken as e:
        raise _damaged(path, f"the log is damaged at {e}") from None
    if not witnessed:
        (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
        raise _damaged(path, f"the log ends at position {last}, but {mark.position} was durable")
    return head


def verify_kinds(connection: sqlite3.Connection, path: Path) -> frozenset[tuple[str, int]]:
    """Types and schemas in the log, all of them known. Raises Refusal."""
    kinds = frozenset(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(kinds, key=repr):
        if not known(type_, schema):
            raise Refusal(
                "unknownEvent", f"{path} holds events {type_!r} version {schema}, which this version does not know"
                f" (if none that did has ever run here: 'jobscribe db check --root {path.absolute().parent.parent}')",
            )
    return kinds


def _settle(connection: sqlite3.Connection, path: Path) -> None:
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
