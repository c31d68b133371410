"""Backup and restore of a store.

A backup is a folder with a log and its head file, like the store's own folder. Folders that
maintenance commands keep aside are backups, too. A backup copies one snapshot of the log while the
supervisor continues to write. It is verified before its head file is written: a folder without a
head file is an unfinished backup.
"""

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...runtime.filesystems import make_folder
from ..sql.statements import SqlConnection, checksum_at, last_before
from ..sqlite.schema import FILE, open_for_writing
from ..store import head_file
from ..store.disk_errors import UNREADABLE, describe
from ..store.head_file import NAME, NOTHING, DurablePosition, HeadFile
from . import derived_tables, file_replacement
from .database.working_copy import changed, copy_log_to_file
from .log_source import log_source, open_file, store_path
from .rebuild import copy
from .rollback import highest_used, record_rollback
from .verification import Problem, Progress, check_file, durable_head, no_progress

#: Pages copied in one step; other connections can work between steps.
STEP = 512


class BackedUp(msgspec.Struct, kw_only=True, rename="camel"):
    path: str
    events: int
    position: int
    size: int


class Restored(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of a restore. position: the end of the restored log. lost_up_to: highest position
    assigned before. kept_aside: folder with the replaced store.
    """

    events: int
    jobs: int
    position: int
    lost_up_to: int
    records_removed: int
    kept_aside: str | None = None


def backup(root: Path, destination: Path, progress: Progress = no_progress) -> BackedUp:
    """Copy the store, even while in use, to a new or empty folder. Raises Refusal and then leaves
    nothing behind.
    """
    with log_source(root).snapshot() as source:
        return _backup(root, source, destination, progress)


def _backup(root: Path, source: SqlConnection, destination: Path, progress: Progress) -> BackedUp:
    made = _folder(destination)
    try:
        target = destination / FILE
        if isinstance(source, sqlite3.Connection):
            _copy(source, target, progress)
            file_replacement.sync(target)
        else:
            copy_log_to_file(source, target, progress)
        report = check_file(target, None, progress)
        wrong = [p for p in report.problems if p.where != "witness"]
        if wrong:
            raise Refusal(
                "storeDamaged",
                f"the copy is damaged ({_problem_text(wrong[0])}); run 'jobscribe db check --root {root}' for details",
            )
        position = _write_head_file(target)
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


def backup_shards(
    roots: Mapping[int, Path], destination: Path, progress: Progress = no_progress
) -> dict[int, BackedUp]:
    """Copy the stores of these shards, one after the other, to the folders `0`, `1`, ... of a new or
    empty folder. Raises Refusal and then leaves nothing behind.
    """
    made = _folder(destination)
    done: dict[int, BackedUp] = {}
    try:
        for k, root in roots.items():
            done[k] = backup(root, destination / str(k), progress)
    except BaseException:
        for k in done:
            _remove(destination / str(k), True)
        _remove(destination, made)
        raise
    return done


def shards_in(source: Path) -> list[int]:
    """Return the shards of a backup of a site; none for any other folder."""
    try:
        return sorted(int(p.name) for p in source.iterdir() if p.name.isdecimal() and p.is_dir())
    except OSError:
        return []


def restore_shards(
    roots: Mapping[int, Path],
    source: Path,
    *,
    replace: bool = False,
    progress: Progress = no_progress,
) -> dict[int, Restored]:
    """Replace the stores of these shards by the backup of their site, one after the other. Nothing
    is changed if it is incomplete, or of other shards. Raises Refusal; `more` has the shards that
    were restored before.
    """
    if shards_in(source) != sorted(roots):
        raise Refusal(
            "badRequest",
            f"{source} has backups of the shards {_numbers(shards_in(source))}, and this root has the shards"
            f" {_numbers(roots)}: choose a backup of this site, or name one shard (--shard K)",
        )
    for k in roots:
        _check_complete(source / str(k))
    done: dict[int, Restored] = {}
    for k, root in roots.items():
        try:
            done[k] = restore(root, source / str(k), replace=replace, progress=progress)
        except Refusal as e:
            before = f"; restored already: shards {_numbers(done)}" if done else ""
            raise Refusal(
                e.code, f"shard {k}: {e.sentence}{before}", {**e.more, "restored": sorted(done)}
            ) from None
    return done


def _numbers(shards: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(shards))) or "(none)"


def restore(
    root: Path,
    source: Path,
    *,
    replace: bool = False,
    now: float | None = None,
    progress: Progress = no_progress,
) -> Restored:
    """Replace the store of `root`, which need not exist, by a backup. The backup is verified first
    and stays unchanged.

    replace: allow an existing store, which is kept aside. Raises Refusal: rootBusy, badRequest,
    storeDamaged, notFound, unknownEvent.
    """
    _check_complete(source)
    done = changed(
        root,
        "restore the backup",
        lambda copy: restore(copy, source, replace=replace, now=now, progress=progress),
        progress,
        new=True,
    )
    if done is not None:
        return done
    path = store_path(root)
    exists = path.exists() or head_file.read_head(path.parent) not in (None, NOTHING)
    if exists and not replace:
        raise Refusal(
            "badRequest",
            f"{path.parent} already contains a store; --replace keeps it aside and restores the backup",
        )
    if head_file.is_locked(source):
        raise Refusal(
            "badRequest",
            f"{source} is a store in use, not a backup; make a backup of it with 'jobscribe db backup'",
        )
    if path.exists() and source.resolve() == path.parent.resolve():
        raise Refusal("badRequest", f"{source} is the store of this root, not a backup")
    for folder in (root, path.parent):
        make_folder(str(folder))
    with file_replacement.exclusive(root, path, "restore the backup") as lock:
        return _restore(root, path, source, lock, time.time() if now is None else now, progress)


def _check_complete(source: Path) -> None:
    if not (source / FILE).exists():
        if shards := shards_in(source):
            raise Refusal(
                "badRequest",
                f"{source} is the backup of a site with shards ({_numbers(shards)}): restore it to the root of that"
                " site, or one of its folders to the root of a shard",
            )
        raise Refusal("notFound", f"{source} is not a backup: it contains no {FILE}")
    if head_file.read_head(source) is None:
        raise Refusal(
            "storeDamaged",
            f"{source} is not a complete backup: its head file {NAME!r} is missing or unreadable",
        )


def create_empty_log(root: Path, *, now: float | None = None) -> None:
    """Create an empty log where none exists. Earlier serials are unknown, so new serials depend on
    the clock alone. Raises Refusal: rootBusy.
    """
    done = changed(
        root,
        "create a new log",
        lambda copy: _create_in(copy, now),
        no_progress,
        new=True,
    )
    if done is not None:
        return
    path = store_path(root)
    make_folder(str(path.parent))
    with file_replacement.exclusive(root, path, "create a new log") as lock:
        if lock.new:
            lock.reset(*NOTHING)
        new = path.with_name(path.name + ".begun")
        with file_replacement.new_store(new) as target:
            end = record_rollback(
                target,
                NOTHING,
                highest_used(path, lock.mark),
                "restored",
                time.time() if now is None else now,
            )
        file_replacement.replace(root, path, new, lock, end)


def _create_in(copy: Path, now: float | None) -> bool:
    if store_path(copy).exists():
        raise Refusal(
            "badRequest", "there is a log in the database; an empty log does not replace it"
        )
    create_empty_log(copy, now=now)
    return True


def _restore(
    root: Path, path: Path, source: Path, lock: HeadFile, now: float, progress: Progress
) -> Restored:
    copied_to = path.with_name("being-restored")
    try:
        _copy_files(source, copied_to)
        old, mark = _verified(copied_to, source, progress)
        try:
            lost = highest_used(path, lock.mark)
            if lock.new:
                # Nothing was ever durable here. Write an empty head file first: otherwise a crash
                # between log file and head file would look like a lost head file.
                lock.reset(*NOTHING)
            new = path.with_name(path.name + ".restored")
            with file_replacement.new_store(new) as target:
                copied = copy(old, target, progress)
                if mark != NOTHING and checksum_at(target, mark.position) != mark.checksum:
                    raise Refusal(
                        "storeDamaged",
                        f"the log in {source} differs from its head file",
                    )
                end = record_rollback(target, copied.head, lost, "restored", now)
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                derived_tables.usage(target, progress)
                jobs = derived_tables.index(target, progress)
        finally:
            old.close()
        # copy instead of link: some data is only in the WAL, and the old file may be unreadable
        aside = (
            file_replacement.keep_aside(path, "before-restore", copy=True)
            if path.exists() or not lock.new
            else None
        )
        if path.exists():
            file_replacement.empty_wal(path, damaged=True)
        file_replacement.replace(root, path, new, lock, end)
    finally:
        shutil.rmtree(copied_to, ignore_errors=True)
    removed = derived_tables.records(root, end.position, progress)
    return Restored(
        events=copied.events,
        jobs=jobs,
        position=copied.head.position,
        lost_up_to=end.position - 1,
        records_removed=removed,
        kept_aside=str(aside) if aside else None,
    )


def _copy_files(source: Path, copied_to: Path) -> None:
    """Copy the backup's files, because SQLite writes beside a file that has a WAL."""
    shutil.rmtree(copied_to, ignore_errors=True)
    copied_to.mkdir(mode=0o700)
    for name in (FILE, FILE + "-wal", NAME):
        if (source / name).exists():
            shutil.copyfile(source / name, copied_to / name)
            (copied_to / name).chmod(0o600)


def _verified(
    copied_to: Path, source: Path, progress: Progress
) -> tuple[sqlite3.Connection, DurablePosition]:
    report = check_file(copied_to / FILE, None, progress)
    wrong = [p for p in report.problems if p.where in ("log", "witness", "stream", "file")]
    if wrong:
        raise Refusal(
            "storeDamaged",
            f"the backup in {source} is damaged ({_problem_text(wrong[0])}); nothing was changed",
        )
    connection, mark = open_file(copied_to / FILE), head_file.read_head(copied_to)
    assert mark is not None
    return connection, durable_head(connection, mark)


def _problem_text(problem: Problem) -> str:
    return (
        problem.what if problem.position is None else f"position {problem.position}: {problem.what}"
    )


# ---- creation of a backup


def _folder(destination: Path) -> bool:
    """Create the folder and return whether it is new. Raises Refusal if it contains files."""
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
                f"{destination} already exists and is not an empty folder; choose a new folder for the backup",
            ) from None
        return False
    return True


def _copy(source: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """Copy a snapshot of the log: one read transaction stays open while the pages are copied. It
    blocks no writer.
    """
    connection = open_for_writing(target)
    try:
        source.execute("SELECT count(*) FROM kinds").fetchone()
        source.backup(
            connection,
            pages=STEP,
            sleep=0.001,
            progress=lambda _, left, of: progress("pages", of - left, of),
        )
        file_replacement.finish(connection)
    finally:
        connection.close()


def _write_head_file(target: Path) -> int:
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
    """Remove the files of a failed backup; the folder was empty before."""
    for name in (FILE, FILE + "-wal", FILE + "-shm", FILE + "-journal", NAME):
        (destination / name).unlink(missing_ok=True)
    if made:
        with contextlib.suppress(OSError):
            destination.rmdir()
