"""What an operator does about a damaged store: look what is whole, say what is lost, then keep the whole part and go on from it.

`examine` only looks. `repair` keeps all old files aside, cuts the log behind its whole part, makes everything anew that is
derived from it, and says in the log that it was set back.
"""

import sqlite3
import time
from pathlib import Path

import msgspec

from ..protocol.errors import Refusal
from . import deriving, replacing, witness
from .chain import Broken
from .faults import UNREADABLE
from .inspection import EVERY, Progress, check_file, open_file, silent, store_path, whole_rows
from .opening import verify_kinds
from .rebuilding import Copied, copy, rebuild
from .records import FOLDER as RECORDS
from .schema import known_layout, open_for_reading
from .setting_back import set_back, used
from .witness import NOTHING

#: Jobs that are named; more are counted.
NAMED = 20


class Damage(msgspec.Struct, kw_only=True, rename="camel"):
    """What `examine` found. cut: the log itself has to be cut (or trusted without its witness); otherwise only what is derived is wrong.

    kept_events, kept_up_to: the whole part; jobs_lost: those known to have changed behind it (named: some of them). reasons: sentences.
    """

    path: str
    reasons: list[str]
    cut: bool
    kept_events: int
    kept_up_to: int
    lost_up_to: int
    jobs_lost: int = 0
    named: list[str] = []

    @property
    def nothing(self) -> bool:
        return not self.reasons


class Repaired(msgspec.Struct, kw_only=True, rename="camel"):
    """What was done. kept_aside: the folder with the old files, where the log was cut."""

    events: int
    jobs: int
    kept_aside: str | None = None


def examine(root: Path, progress: Progress = silent) -> Damage:
    """What is wrong and what would be kept. Raises Refusal: notFound; unknownEvent for a store of a newer version, which is not damaged."""
    path = store_path(root)
    mark = witness.look(path.parent)
    if not path.exists() and mark in (None, NOTHING):
        raise Refusal("notFound", f"there is no event store at {path}")
    _refuse_newer(path)
    report = check_file(path, root / RECORDS, progress)
    reasons = [f"{p.where}" + ("" if p.position is None else f" at position {p.position}") + f": {p.what}" for p in report.problems]
    if report.more_problems:
        reasons.append(f"and {report.more_problems} more")
    cut = any(p.where in ("log", "witness") for p in report.problems) or _unreadable(path)
    lost = used(path, mark)
    jobs, named = _jobs_behind(path, report.whole_up_to) if cut else (0, [])
    return Damage(
        path=str(path), reasons=reasons, cut=cut, kept_events=report.events, kept_up_to=report.whole_up_to,
        lost_up_to=max(lost.position, report.whole_up_to), jobs_lost=jobs, named=named,
    )


def repair(root: Path, *, now: float | None = None, progress: Progress = silent) -> Repaired:
    """Keep what is whole. Raises Refusal: rootBusy while the store is in use; notFound; unknownEvent."""
    path = store_path(root)
    damage = examine(root, progress)
    if not damage.cut:
        rebuilt = rebuild(root, progress)
        return Repaired(events=rebuilt.events, jobs=rebuilt.jobs)
    with replacing.alone(root, path, "repair it") as lock:
        aside = replacing.keep_aside(path, "before-repair", copy=True)
        if path.exists():
            replacing.empty_wal(path, damaged=True)
        lost, up_to, old = used(path, lock.mark), _whole(path, progress), _opened(path)
        new = path.with_name(path.name + ".repaired")
        try:
            with replacing.begun(new) as target:
                copied = Copied(NOTHING, 0) if old is None else copy(old, target, up_to, progress)
                end = set_back(target, copied.head, lost, "repaired", time.time() if now is None else now)
                deriving.receipts(old, target)
                deriving.names(target, progress)
                jobs = deriving.index(target, progress)
        finally:
            if old is not None:
                old.close()
        replacing.replace(root, path, new, lock, end)
        deriving.records(root, end.position, progress)
    return Repaired(events=copied.events, jobs=jobs, kept_aside=str(aside))


def _refuse_newer(path: Path) -> None:
    """A store of a newer version must not be cut for being one."""
    try:
        connection = open_for_reading(path)
    except UNREADABLE:
        return
    try:
        if known_layout(connection, path):
            verify_kinds(connection, path)
    except UNREADABLE:
        return
    finally:
        connection.close()


def _opened(path: Path) -> sqlite3.Connection | None:
    """The file, where it is a store at all."""
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


def _whole(path: Path, progress: Progress) -> int:
    """Position up to which the log is whole."""
    connection, last, count = _opened(path), 0, 0
    if connection is None:
        return 0
    try:
        for row in whole_rows(connection):
            last, count = row.position, count + 1
            if count % EVERY == 0:
                progress("events", count, count)
    except Broken:
        pass  # that is what was asked
    finally:
        connection.close()
    return last


def _jobs_behind(path: Path, position: int) -> tuple[int, list[str]]:
    """Jobs that, as far as the index can be read, changed behind this position."""
    connection = _opened(path)
    if connection is None:
        return 0, []
    try:
        rows = connection.execute("SELECT jid FROM jobs WHERE position > ? ORDER BY position DESC", (position,)).fetchall()
    except UNREADABLE:
        return 0, []
    finally:
        connection.close()
    return len(rows), [str(jid) for (jid,) in rows[:NAMED]]


