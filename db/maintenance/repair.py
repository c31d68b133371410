"""Repair of a damaged store: report the intact and the lost events, then keep the intact ones and
continue from there.

`examine` only reads. `repair` keeps all old files aside, keeps the events of each stream that
`salvage` selects, rebuilds everything derived, and records the rollback in the log.
"""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ..records.record_files import FOLDER as RECORDS
from ..sql.log_end import verify_kinds
from ..sqlite.opening import place
from ..sqlite.schema import known_layout, open_for_reading
from ..store import head_file
from ..store.checksum_chain import Row
from ..store.disk_errors import UNREADABLE
from ..store.head_file import NOTHING, DurablePosition
from . import derived_tables, file_replacement
from .database.working_copy import changed, examined
from .log_source import open_file, store_path
from .rebuild import Copied, rebuild, store_rows
from .rollback import highest_used, record_rollback
from .salvage import Loss, Survey, kept, survey
from .verification import Progress, check_file, no_progress

#: Jobs and streams listed by name; others are only counted.
NAMED = 20


class Damage(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of `examine`. cut: events or the head file are lost; otherwise only derived data is
    wrong.

    kept_events: number of events kept. kept_up_to: nothing is lost up to this position. lost_up_to:
    last position ever assigned. jobs_lost: number of jobs that lose events. named: some of these
    jobs. losses: losses of some streams. reasons: sentences.
    """

    path: str
    reasons: list[str]
    cut: bool
    kept_events: int
    kept_up_to: int
    lost_up_to: int
    jobs_lost: int = 0
    named: list[str] = []
    losses: list[Loss] = []

    @property
    def nothing(self) -> bool:
        return not self.reasons


class Repaired(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of a repair. kept_aside: folder with the old files, if events were dropped."""

    events: int
    jobs: int
    kept_aside: str | None = None


def examine(root: Path, progress: Progress = no_progress) -> Damage:
    """Report the damage and the events that `repair` would keep. Raises Refusal: notFound;
    unknownEvent for a store of a newer version, which is not damaged.
    """
    found_in = examined(root, lambda copy: examine(copy, progress), progress)
    if found_in is not None:
        return msgspec.structs.replace(found_in[1], path=found_in[0])
    path = store_path(root)
    mark = head_file.read_head(path.parent)
    if not path.exists() and mark in (None, NOTHING):
        raise Refusal("notFound", f"there is no event store at {path}")
    _refuse_newer(path)
    report = check_file(path, root / RECORDS, progress)
    reasons = [
        f"{p.where}" + ("" if p.position is None else f" at position {p.position}") + f": {p.what}"
        for p in report.problems
    ]
    if report.more_problems:
        reasons.append(f"and {report.more_problems} more")
    cut = any(p.where in ("log", "witness") for p in report.problems) or _unreadable(path)
    lost = highest_used(path, mark)
    damage = Damage(
        path=str(path),
        reasons=reasons,
        cut=cut,
        kept_events=report.events,
        kept_up_to=report.whole_up_to,
        lost_up_to=max(lost.position, report.whole_up_to),
    )
    if cut:
        found = _survey(path, mark)
        jobs = [x.stream.removeprefix("job/") for x in found.losses if x.stream.startswith("job/")]
        damage.kept_events, damage.jobs_lost, damage.named, damage.losses = (
            found.events,
            len(jobs),
            jobs[:NAMED],
            found.losses[:NAMED],
        )
    return damage


def repair(root: Path, *, now: float | None = None, progress: Progress = no_progress) -> Repaired:
    """Keep the intact events. Raises Refusal: rootBusy while the store is in use; notFound;
    unknownEvent.
    """
    done = changed(
        root, "repair it", lambda copy: repair(copy, now=now, progress=progress), progress
    )
    if done is not None:
        return done
    path = store_path(root)
    damage = examine(root, progress)
    if not damage.cut:
        rebuilt = rebuild(root, progress)
        return Repaired(events=rebuilt.events, jobs=rebuilt.jobs)
    with file_replacement.exclusive(root, path, "repair it") as lock:
        aside = file_replacement.keep_aside(path, "before-repair", copy=True)
        if path.exists():
            file_replacement.empty_wal(path, damaged=True)
        lost, old = highest_used(path, lock.mark), _opened(path)
        new = path.with_name(path.name + ".repaired")
        try:
            with file_replacement.new_store(new) as target:
                copied = (
                    Copied(NOTHING, 0)
                    if old is None
                    else store_rows(_kept(old, lock.mark), target, damage.kept_events, progress)
                )
                at = time.time() if now is None else now
                end = record_rollback(
                    target, copied.head, lost, "repaired", at, whole=damage.kept_up_to
                )
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                derived_tables.usage(target, progress)
                jobs = derived_tables.index(target, progress)
        finally:
            if old is not None:
                old.close()
        file_replacement.replace(root, path, new, lock, end)
        derived_tables.records(root, end.position, progress)
    return Repaired(events=copied.events, jobs=jobs, kept_aside=str(aside))


def _kept(old: sqlite3.Connection, mark: DurablePosition | None) -> Iterator[Row]:
    return kept(old, mark, survey(old, mark))


def _survey(path: Path, mark: DurablePosition | None) -> Survey:
    connection = _opened(path)
    if connection is None:
        return Survey(events=0, losses=[], cuts={})
    try:
        return survey(connection, mark)
    finally:
        connection.close()


def _refuse_newer(path: Path) -> None:
    """Raise Refusal for a store of a newer version, so that it is not cut."""
    try:
        connection = open_for_reading(path)
    except UNREADABLE:
        return
    try:
        if known_layout(connection, path):
            verify_kinds(connection, place(path))
    except UNREADABLE:
        return
    finally:
        connection.close()


def _opened(path: Path) -> sqlite3.Connection | None:
    """Open the file; None if it contains no store."""
    try:
        return open_file(path)
    except Refusal as e:
        if e.code in ("storeDamaged", "notFound"):
            return None
        raise


def _unreadable(path: Path) -> bool:
    connection = _opened(path)
    if connection is not None:
        connection.close()
    return connection is None
