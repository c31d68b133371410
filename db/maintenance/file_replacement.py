"""Replacement of the log file in one atomic step, under the lock, with the old file kept aside.
Other modules fill the new file.

The order: set the marker of the records to 0, replace the log file, write the head file. A crash in
between leaves the old log or the new one, complete: the last row of the new log names the log it
replaced (see `log_end.successor`), and the next opening continues.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ...protocol.errors import Refusal
from ...runtime.filesystems import network_file_system
from ..records.record_files import FOLDER as RECORDS
from ..records.record_files import write_marker
from ..sqlite.schema import create, open_for_writing
from ..store.disk_errors import UNREADABLE, describe
from ..store.group_commit import Point, no_fault
from ..store.head_file import NAME, DurablePosition, HeadFile
from ..store.store_folder import check_owner


@contextlib.contextmanager
def exclusive(root: Path, path: Path, doing: str) -> Iterator[HeadFile]:
    """Hold the lock of the store. Raises Refusal: rootBusy, foreignRoot, networkFileSystem,
    storageUnavailable.
    """
    check_owner(path.parent)
    network = network_file_system(str(path.parent))
    if network is not None:
        raise Refusal(
            "networkFileSystem",
            f"{path.parent} is on {network}, where the log is not safe; move the root to a local disk",
        )
    try:
        lock = HeadFile(path.parent)
    except Refusal:
        raise Refusal(
            "rootBusy",
            f"the store in {path.parent} is in use; stop the supervisor of {root}, then {doing}",
        ) from None
    except OSError as e:
        raise Refusal(
            "storageUnavailable", f"{path.parent} cannot be locked: {describe(e)}"
        ) from None
    try:
        yield lock
    except (*UNREADABLE, OSError) as e:
        raise Refusal("storageUnavailable", f"{path}: cannot {doing}: {describe(e)}") from None
    finally:
        lock.close()


def companions(path: Path) -> list[Path]:
    """Return the files that SQLite may keep beside this file."""
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


@contextlib.contextmanager
def new_store(path: Path) -> Iterator[sqlite3.Connection]:
    """Create a new store file at `path` without rows. On exit it is one synced file without
    companions; on an exception it is removed.
    """
    for leftover in (path, *companions(path)):
        leftover.unlink(missing_ok=True)
    connection = open_for_writing(path)
    try:
        create(connection)
        yield connection
        finish(connection)
    except BaseException:
        connection.close()
        for leftover in (path, *companions(path)):
            leftover.unlink(missing_ok=True)
        raise
    connection.close()
    sync(path)


def finish(connection: sqlite3.Connection) -> None:
    """Move everything from the WAL into the file itself."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()


def empty_wal(path: Path, *, damaged: bool = False) -> None:
    """Move the WAL of the old log into its file, because the WAL is deleted when the file is
    replaced. damaged: ignore an unreadable file.
    """
    try:
        connection = open_for_writing(path)
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except UNREADABLE:
        if not damaged:
            raise
        return  # a copy of the files was kept aside before
    if busy:
        raise Refusal(
            "rootBusy", f"{path} is being read by another process; try again when it has finished"
        )
    sync(path)


def keep_aside(path: Path, name: str, *, copy: bool) -> Path:
    """Keep the current files in a new folder `<name>-<number>` and return it. copy: the files will
    be written to before they are replaced.

    Without `copy` the log gets a hard link, which costs no space. A folder that a crash left behind
    is used again.
    """
    number = 1
    while (aside := path.with_name(f"{name}-{number}")).exists():
        if (
            not copy
            and path.exists()
            and (aside / path.name).exists()
            and (aside / path.name).samefile(path)
        ):
            break
        number += 1
    aside.mkdir(mode=0o700, exist_ok=True)
    for source in (path, *companions(path), path.with_name(NAME)):
        if source.exists():
            _keep(source, aside / source.name, copy=copy or source.name == NAME)
    sync(aside)
    sync(path.parent)
    return aside


def _keep(source: Path, target: Path, *, copy: bool) -> None:
    if not copy:
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # a file system without hard links
    shutil.copyfile(source, target)
    target.chmod(0o600)
    sync(target)


def replace(root: Path, path: Path, new: Path, lock: HeadFile, head: DurablePosition) -> None:
    """Replace the log by `new`, which is synced and ends at `head`. Raises OSError."""
    if (root / RECORDS).exists():
        # records describe the old log; after a crash the next start checks all of them
        write_marker(root / RECORDS, 0)
    exchange(path, new, lock, head)


def exchange(
    path: Path, new: Path, lock: HeadFile, head: DurablePosition, point: Point = no_fault
) -> None:
    """Replace the log by `new`, which has the same jobs. point: fault hook. Raises OSError."""
    # SQLite must not apply the old WAL to the new file; its content is in the old file or was kept
    # aside
    for companion in companions(path):
        companion.unlink(missing_ok=True)
    os.replace(new, path)
    sync(path.parent)
    point("replaced")
    lock.reset(head.position, head.checksum)


def sync(path: Path) -> None:
    """Sync a file or a folder to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
