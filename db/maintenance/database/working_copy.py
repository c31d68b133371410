"""Commands that change a log in PostgreSQL: they change a copy of it in a file, which then replaces the
log in one transaction. So they are the commands for files, with all of their checks.

The copy is `<root>/db/working`, with a log and a head file as in a root. The site is held meanwhile:
no supervisor can start. The transaction ends before the head file of the root is written, as in
`file_replacement`.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ....protocol.errors import Refusal
from ....runtime.filesystems import make_folder
from ...events.events import LogCompacted, decode
from ...records.record_files import FOLDER as RECORDS
from ...records.record_files import write_marker
from ...sql.statements import SqlConnection, last_before
from ...sqlite.schema import open_for_reading
from ...store.head_file import NOTHING, DurablePosition, HeadFile
from ..file_replacement import exclusive, new_store, sync
from ..log_source import site_of, store_path
from ..verification import Progress

if TYPE_CHECKING:
    from ...postgres.commands.holding import Held

FOLDER = "working"
T = TypeVar("T")


def working_path(root: Path) -> Path:
    return root / "db" / FOLDER


def changed(
    root: Path,
    doing: str,
    change: Callable[[Path], T],
    progress: Progress,
    *,
    new: bool = False,
    unless: Callable[[T], bool] = lambda _: False,
) -> T | None:
    """Apply `change` to a root whose log is in PostgreSQL; None for another root. change: gets the
    folder of the copy, as a root. doing: for messages. new: there may be no log. unless: the result
    of a change that changed nothing. Raises Refusal.
    """
    site = site_of(root)
    if site is None:
        return None
    from ...postgres.commands.holding import hold

    with exclusive(root, store_path(root), doing) as lock, hold(site) as held:
        if held.empty and not new and lock.mark in (None, NOTHING):
            raise Refusal("notFound", f"there is no event store in {site.address.name}")
        with _copied(root, held, lock, progress) as copy:
            result = change(copy)
            return result if unless(result) else _put_back(root, copy, held, lock, result, progress)


def examined(root: Path, look: Callable[[Path], T], progress: Progress) -> tuple[str, T] | None:
    """Return the name of a log in PostgreSQL, and what `look` says about a copy of it; None for
    another root. Changes nothing. Raises Refusal.
    """
    site = site_of(root)
    if site is None:
        return None
    from ...postgres.commands.holding import hold

    with (
        exclusive(root, store_path(root), "examine it") as lock,
        hold(site) as held,
        _copied(root, held, lock, progress) as copy,
    ):
        return site.address.name, look(copy)


def copy_log_to_file(source: SqlConnection, path: Path, progress: Progress) -> None:
    """Copy a log in PostgreSQL to a new file, which is synced and not verified."""
    from ...postgres.commands.copying import copy_to_file

    with new_store(path) as target:
        copy_to_file(source, target, progress)


@contextlib.contextmanager
def _copied(root: Path, held: "Held", lock: HeadFile, progress: Progress) -> Iterator[Path]:
    from ...postgres.commands.snapshot import snapshot

    copy = working_path(root)
    shutil.rmtree(copy, ignore_errors=True)
    make_folder(str(copy / "db"))
    try:
        if not held.empty:
            with snapshot(held.site) as source:
                copy_log_to_file(source, store_path(copy), progress)
        if lock.mark is not None:
            with contextlib.closing(HeadFile(copy / "db")) as head:
                head.reset(*lock.mark)
        make_folder(str(root / RECORDS))
        os.symlink(root / RECORDS, copy / RECORDS)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _put_back(
    root: Path, copy: Path, held: "Held", lock: HeadFile, result: T, progress: Progress
) -> T:
    """Replace the log by the changed copy. Its records are those of the root. Return the result with
    the final path of the replaced log.
    """
    from ...postgres.commands.copying import replace_log

    path = store_path(copy)
    # a start after a crash from here on writes all records again
    write_marker(root / RECORDS, 0)
    with contextlib.closing(open_for_reading(path)) as source:
        position, checksum = last_before(source, 2**62)
        end = DurablePosition(position, checksum)
        if _compacted(source) == held.head:
            # from here on the head file names exactly the log that the closing event names
            lock.reset(*held.head)
        replace_log(held, source, end, progress)
    lock.reset(*end)
    write_marker(root / RECORDS, end.position)
    for aside in (copy / "db").glob("before-*"):
        kept = _keep(aside, root / "db")
        if isinstance(result, msgspec.Struct) and "kept_aside" in result.__struct_fields__:
            result = msgspec.structs.replace(result, kept_aside=str(kept))
    return result


def _compacted(source: SqlConnection) -> DurablePosition | None:
    """Return the end of the log that a compaction replaced, if the last event is its closing one."""
    row = source.execute(
        "SELECT type, schema, body FROM events ORDER BY position DESC LIMIT 1"
    ).fetchone()
    if row is None or row[0] != "LogCompacted":
        return None
    event = decode(row[0], row[1], row[2].encode())
    if isinstance(event, LogCompacted) and event.checksum is not None:
        return DurablePosition(event.position, bytes.fromhex(event.checksum))
    return None


def _keep(aside: Path, folder: Path) -> Path:
    """Move a folder with the replaced log beside the store, under the next free number; return it."""
    name, number = aside.name.rpartition("-")[0], 1
    while (target := folder / f"{name}-{number}").exists():
        number += 1
    os.rename(aside, target)
    sync(folder)
    return target
