"""A new file takes the place of the log's: alone, in one step, with the old one kept aside. What is
in it, others say.

The order is: marker of the records to 0, file, witness. A crash in between leaves the old log or
the new one, whole: after the file was replaced its last row says which log it took the place of
(see `opening.successor`), and the next opening goes on.
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
from ..sqlite.head_file import NAME, DurablePosition, HeadFile
from ..sqlite.opening import owned
from ..sqlite.schema import create, open_for_writing
from ..store.disk_errors import UNREADABLE, describe


@contextlib.contextmanager
def alone(root: Path, path: Path, doing: str) -> Iterator[HeadFile]:
    """Nobody else has the store open meanwhile. Raises Refusal: rootBusy, foreignRoot,
    networkFileSystem, storageUnavailable.
    """
    owned(path.parent)
    network = network_file_system(str(path.parent))
    if network is not None:
        raise Refusal(
            "networkFileSystem", f"{path.parent} lies on {network}, which cannot keep the log safe"
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
    """The files that SQLite may have beside this one."""
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


@contextlib.contextmanager
def begun(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file at `path`, with the tables of a store and no row; afterwards it is one file,
    without companions, on the disk.
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
    """Everything into the file itself."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()


def empty_wal(path: Path, *, damaged: bool = False) -> None:
    """All of the old log in one file: when it is replaced nothing of it may be in the WAL alone."""
    try:
        connection = open_for_writing(path)
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except UNREADABLE:
        if not damaged:
            raise
        return  # what it looked like is kept aside
    if busy:
        raise Refusal(
            "rootBusy", f"{path} is being read by another process; try again when that is done"
        )
    sync(path)


def keep_aside(path: Path, name: str, *, copy: bool) -> Path:
    """The folder `<name>-<number>` with what is there now. copy: the files are going to be written
    to before they are replaced.

    Without it the log is there under a second name, which costs nothing; one that a crash left
    behind is used again.
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
            pass  # a file system without second names
    shutil.copyfile(source, target)
    target.chmod(0o600)
    sync(target)


def replace(root: Path, path: Path, new: Path, lock: HeadFile, head: DurablePosition) -> None:
    """`new`, which is on the disk and ends at `head`, becomes the log. Raises OSError."""
    if (root / RECORDS).exists():
        # they are of the old log; whatever happens now, the next start looks at all of them
        write_marker(root / RECORDS, 0)
    # the old WAL must not be taken for the new file's: what it held is in the old file, or was kept
    # aside
    for companion in companions(path):
        companion.unlink(missing_ok=True)
    os.replace(new, path)
    sync(path.parent)
    lock.reset(head.position, head.checksum)


def sync(path: Path) -> None:
    """Put a file or a folder on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
