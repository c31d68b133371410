"""Copies of a store: made of one in use, and put in the place of one that is not.

A backup is a folder with a log and its witness, as the store's own folder is; what an upkeep
command kept aside is one, too. The copy is made of one moment of the log, while the supervisor goes
on writing, and is verified before its witness is written: a folder without a witness is a backup
that was not finished.
"""

import contextlib
import shutil
import sqlite3
import time
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...runtime.filesystems import make_folder
from ..sqlite import head_file
from ..sqlite.head_file import NAME, NOTHING, DurablePosition, HeadFile
from ..sqlite.schema import FILE, checksum_at, last_before, open_for_writing
from ..store.disk_errors import UNREADABLE, describe
from . import derived_tables, file_replacement
from .rebuild import copy
from .rollback import set_back, used
from .verification import (
    Problem,
    Progress,
    check_file,
    open_file,
    opened,
    silent,
    standing,
    store_path,
)

#: Pages in one step; between two of them others get a turn.
STEP = 512


class BackedUp(msgspec.Struct, kw_only=True, rename="camel"):
    path: str
    events: int
    position: int
    size: int


class Restored(msgspec.Struct, kw_only=True, rename="camel"):
    """position: up to which the log goes back; lost_up_to: what had been given away since.
    kept_aside: what was there before.
    """

    events: int
    jobs: int
    position: int
    lost_up_to: int
    records_removed: int
    kept_aside: str | None = None


def backup(root: Path, destination: Path, progress: Progress = silent) -> BackedUp:
    """Copy the store, in use or not, into a folder that is new or empty. Raises Refusal, and leaves
    nothing behind then.
    """
    source = opened(root)
    try:
        made = _folder(destination)
    except BaseException:
        source.close()
        raise
    try:
        target = destination / FILE
        _copy(source, target, progress)
        file_replacement.sync(target)
        report = check_file(target, None, progress)
        wrong = [p for p in report.problems if p.where != "witness"]
        if wrong:
            raise Refusal(
                "storeDamaged",
                f"what was copied is not whole ({_said(wrong[0])}); 'jobscribe db check --root {root}' says more",
            )
        position = _witnessed(target)
        return BackedUp(
            path=str(destination),
            events=report.events,
            position=position,
            size=target.stat().st_size,
        )
    except (*UNREADABLE, OSError) as e:
        _remove(destination, made)
        raise Refusal(
            "storageUnavailable", f"{destination} cannot be written: {describe(e)}"
        ) from None
    except BaseException:
        _remove(destination, made)
        raise
    finally:
        source.close()


def restore(
    root: Path,
    source: Path,
    *,
    replace: bool = False,
    now: float | None = None,
    progress: Progress = silent,
) -> Restored:
    """Put a backup in the place of the store of `root`, which need not exist. The backup is
    verified first and stays as it is.

    replace: although there is a store, which is kept aside. Raises Refusal: rootBusy, badRequest,
    storeDamaged, notFound, unknownEvent.
    """
    if not (source / FILE).exists():
        raise Refusal("notFound", f"{source} is no backup: there is no {FILE} in it")
    if head_file.look(source) is None:
        raise Refusal(
            "storeDamaged",
            f"{source} is no whole backup: its witness {NAME!r} is missing or unreadable",
        )
    path = store_path(root)
    there = path.exists() or head_file.look(path.parent) not in (None, NOTHING)
    if there and not replace:
        raise Refusal(
            "badRequest",
            f"there is a store in {path.parent} already; --replace keeps it aside and puts the backup in its place",
        )
    if head_file.held(source):
        raise Refusal(
            "badRequest",
            f"{source} is a store in use, no backup; 'jobscribe db backup' makes one of it",
        )
    if path.exists() and source.resolve() == path.parent.resolve():
        raise Refusal("badRequest", f"{source} is the store itself")
    for folder in (root, path.parent):
        make_folder(str(folder))
    with file_replacement.alone(root, path, "restore the backup") as lock:
        return _restore(root, path, source, lock, time.time() if now is None else now, progress)


def begin(root: Path, *, now: float | None = None) -> None:
    """Put an empty log where none is: what was given away before is not known, and serials rest on
    the clock. Raises Refusal: rootBusy.
    """
    path = store_path(root)
    make_folder(str(path.parent))
    with file_replacement.alone(root, path, "begin it anew") as lock:
        if lock.new:
            lock.reset(*NOTHING)
        new = path.with_name(path.name + ".begun")
        with file_replacement.begun(new) as target:
            end = set_back(
                target,
                NOTHING,
                used(path, lock.mark),
                "restored",
                time.time() if now is None else now,
            )
        file_replacement.replace(root, path, new, lock, end)


def _restore(
    root: Path, path: Path, source: Path, lock: HeadFile, now: float, progress: Progress
) -> Restored:
    taken = path.with_name("being-restored")
    try:
        _take(source, taken)
        old, mark = _verified(taken, source, progress)
        try:
            lost = used(path, lock.mark)
            if lock.new:
                # nothing was ever durable here: without this a crash between file and witness would
                # look like a lost witness
                lock.reset(*NOTHING)
            new = path.with_name(path.name + ".restored")
            with file_replacement.begun(new) as target:
                copied = copy(old, target, progress)
                if mark != NOTHING and checksum_at(target, mark.position) != mark.checksum:
                    raise Refusal(
                        "storeDamaged", f"the log in {source} is not the one that its witness saw"
                    )
                end = set_back(target, copied.head, lost, "restored", now)
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                jobs = derived_tables.index(target, progress)
        finally:
            old.close()
        # a copy: what is in the old WAL is not in its file, and need not be readable
        aside = (
            file_replacement.keep_aside(path, "before-restore", copy=True)
            if path.exists() or not lock.new
            else None
        )
        if path.exists():
            file_replacement.empty_wal(path, damaged=True)
        file_replacement.replace(root, path, new, lock, end)
    finally:
        shutil.rmtree(taken, ignore_errors=True)
    removed = derived_tables.records(root, end.position, progress)
    return Restored(
        events=copied.events,
        jobs=jobs,
        position=copied.head.position,
        lost_up_to=end.position - 1,
        records_removed=removed,
        kept_aside=str(aside) if aside else None,
    )


def _take(source: Path, taken: Path) -> None:
    """The backup's files, to be read here: where a WAL is among them, SQLite writes beside it."""
    shutil.rmtree(taken, ignore_errors=True)
    taken.mkdir(mode=0o700)
    for name in (FILE, FILE + "-wal", NAME):
        if (source / name).exists():
            shutil.copyfile(source / name, taken / name)
            (taken / name).chmod(0o600)


def _verified(
    taken: Path, source: Path, progress: Progress
) -> tuple[sqlite3.Connection, DurablePosition]:
    report = check_file(taken / FILE, None, progress)
    wrong = [p for p in report.problems if p.where in ("log", "witness", "stream", "file")]
    if wrong:
        raise Refusal(
            "storeDamaged",
            f"the backup in {source} is damaged ({_said(wrong[0])}); nothing was changed",
        )
    connection, mark = open_file(taken / FILE), head_file.look(taken)
    assert mark is not None
    return connection, standing(connection, mark)


def _said(problem: Problem) -> str:
    return (
        problem.what if problem.position is None else f"position {problem.position}: {problem.what}"
    )


# ---- making one


def _folder(destination: Path) -> bool:
    """Is it new? Raises Refusal where there is something in it."""
    try:
        destination.mkdir(mode=0o700, parents=True)
    except (PermissionError, NotADirectoryError) as e:
        raise Refusal(
            "storageUnavailable", f"{destination} cannot be made: {describe(e)}"
        ) from None
    except FileExistsError:
        if not destination.is_dir() or any(destination.iterdir()):
            raise Refusal(
                "badRequest",
                f"{destination} is there already and not an empty folder; a backup wants a new one",
            ) from None
        return False
    return True


def _copy(source: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """One moment of the log: a read that stays open while the pages are copied. It keeps nobody
    from writing.
    """
    connection = open_for_writing(target)
    try:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM kinds").fetchone()
        source.backup(
            connection,
            pages=STEP,
            sleep=0.001,
            progress=lambda _, left, of: progress("pages", of - left, of),
        )
        source.execute("ROLLBACK")
        file_replacement.finish(connection)
    finally:
        connection.close()


def _witnessed(target: Path) -> int:
    with contextlib.closing(open_file(target)) as connection:
        position, checksum = last_before(connection, 2**62)
    mark = HeadFile(target.parent)
    try:
        mark.reset(position, checksum)
    finally:
        mark.close()
    file_replacement.sync(target.parent)
    return int(position)


def _remove(destination: Path, made: bool) -> None:
    """What was written of a backup that failed; the folder was empty before."""
    for name in (FILE, FILE + "-wal", FILE + "-shm", FILE + "-journal", NAME):
        (destination / name).unlink(missing_ok=True)
    if made:
        with contextlib.suppress(OSError):
            destination.rmdir()
