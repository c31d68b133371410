"""Compaction while a supervisor writes to the log.

A process of its own builds the new log beside the old one (`prepare`) and copies what is appended
meanwhile (`catch_up`). The writer of the supervisor then copies the rest between two commits and
exchanges the files (`CompactedLog`). A small file beside the new log says how far it reaches; a new
log without that file is an unfinished one.

A list beside the log names the jobs that the new log has without some of their data
(`trimmed_jobs`): the supervisor reads these again after the exchange, and writes their records.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...runtime import failpoints
from ...runtime.filesystems import write_atomically
from ..events.events import LogCompacted
from ..sql.log_end import successor, verify_kinds
from ..sql.statements import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_KINDS,
    INSERT_NAMES,
    JOB_COLUMNS,
    checksum_at,
    insert,
    rows_after,
)
from ..sql.usage_table import read_usage
from ..sqlite.log_exchange import Exchanged
from ..sqlite.opening import place
from ..sqlite.schema import open_for_writing
from ..store.checksum_chain import Broken, Row, follow, stored
from ..store.disk_errors import UNREADABLE, describe
from ..store.head_file import NOTHING, DurablePosition, HeadFile, read_head
from ..store.name_index import secondary_names
from . import derived_tables, file_replacement, trimmed_jobs
from .compaction import HISTORY, OLDER_THAN_SECS, fold_streams, rules_of, verified
from .log_source import opened, store_path
from .new_log import (
    Compacted,
    Plan,
    chain,
    closing_row,
    copy_kept,
    drop,
    merged_usage,
    rechained,
    same_jobs,
    verify_new,
)
from .verification import Progress, no_progress

#: Positions that the writer copies at most while others wait for their commits.
MOST_WAITING = 2_000
_PAGE = 2_000


class Prepared(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The end of the new log. checksum, new_checksum: hex, of the row at `position` in the old
    and in the new log. result: numbers of events up to there.
    """

    position: int
    checksum: str
    new_checksum: str
    result: Compacted


def new_path(root: Path) -> Path:
    path = store_path(root)
    return path.with_name(path.name + ".compacted")


def prepare(
    root: Path,
    *,
    older_than_secs: float = OLDER_THAN_SECS,
    history: int = HISTORY,
    now: float | None = None,
    progress: Progress = no_progress,
) -> Compacted:
    """Build the new log up to the present end of the log. Arguments as of `compact`. `changed` of the result says whether
    there is one. Raises Refusal.
    """
    rules = rules_of(older_than_secs, history, now)
    new = new_path(root)
    with one_builder(root):
        discard(root)
        with contextlib.closing(opened(root)) as old:
            old.execute("BEGIN")
            mark = read_head(new.parent) or NOTHING
            mark = successor(old, mark) or mark
            head, events = verified(old, mark, store_path(root), progress)
            with contextlib.ExitStack() as unfinished:
                target = unfinished.enter_context(file_replacement.new_store(new))
                plan = fold_streams(old, target, rules, events, progress)
                if not plan.up_to:
                    unfinished.pop_all().close()
                    drop(new)
                    return plan.result(events, events)
                prepared = _build(old, target, plan, head, events, progress)
        _verified_end(new, prepared)
        trimmed_jobs.write(root, prepared.position, plan.trimmed)
        _note(root, prepared)
        catch_up(root, progress)
        return prepared.result


def _build(
    old: sqlite3.Connection,
    target: sqlite3.Connection,
    plan: Plan,
    head: DurablePosition,
    events: int,
    progress: Progress,
) -> Prepared:
    copy_kept(old, target, plan, events, progress)
    chained = chain(target)
    insert(target, INSERT_KINDS, sorted(chained.kinds))
    derived_tables.names(target, progress)
    same_jobs(target, progress)
    return Prepared(
        position=head.position,
        checksum=head.checksum.hex(),
        new_checksum=chained.end.checksum.hex(),
        result=plan.result(events, chained.events + 1),
    )


def catch_up(root: Path, progress: Progress = no_progress) -> int:
    """Copy what was appended to the log since. Return the number of copied events. Raises Refusal:
    notFound without a prepared log.
    """
    copied = 0
    prepared = prepared_log(root)
    with contextlib.closing(opened(root)) as old:
        target = open_for_writing(new_path(root))
        try:
            while rows := _tail(old, prepared, _PAGE):
                target.execute("BEGIN IMMEDIATE")
                prepared = _copy_tail(old, target, prepared, rows)
                target.execute("COMMIT")
                copied += len(rows)
                progress("new events copied", copied, copied)
            file_replacement.finish(target)
        except Broken as e:
            raise Refusal(
                "storeDamaged", f"{store_path(root)}: the log is damaged at {e}"
            ) from None
        finally:
            target.close()
    file_replacement.sync(new_path(root))
    _note(root, prepared)
    return copied


def discard(root: Path) -> None:
    """Remove a new log that is not in use."""
    _note_path(root).unlink(missing_ok=True)
    drop(new_path(root))


def clear_leftovers(root: Path) -> None:
    """Remove new logs that a killed process left. Called by the owner of the store at its start."""
    with contextlib.suppress(Refusal), one_builder(root):  # or somebody builds one now
        discard(root)
        drop(_exchanging_path(root))


def _exchanging_path(root: Path) -> Path:
    path = store_path(root)
    return path.with_name(path.name + ".exchanging")


class CompactedLog:
    """The exchange of the log for a prepared one. Used once, in the writer's thread."""

    def __init__(self, root: Path, now: float, *, keep: bool) -> None:
        """keep: keep the old log aside."""
        self._root, self._now, self._keep = root, now, keep
        self._path, self._new = store_path(root), _exchanging_path(root)
        self._folder = -1
        self._closing: Row | None = None
        self._kinds: frozenset[tuple[str, int]] = frozenset()
        self.result: Compacted | None = None

    def complete(self, old: sqlite3.Connection, log: DurablePosition) -> None:
        prepared = prepared_log(self._root)
        if checksum_at(old, prepared.position) != bytes.fromhex(prepared.checksum):
            raise Refusal("badRequest", "the new log was made from another log; compact again")
        if log.position - prepared.position > MOST_WAITING:
            raise Refusal("conflict", "the new log is too far behind the log")
        self._take_folder()
        try:
            self._move_wal(old)
            # from here on the new file belongs to this process: its builder does not find it
            drop(self._new)
            _note_path(self._root).unlink()
            os.rename(new_path(self._root), self._new)
            try:
                self._close_log(old, log, prepared)
                file_replacement.sync(self._new)
            except BaseException:
                drop(self._new)
                raise
        except BaseException:
            self._release_folder()
            raise
        failpoints.reached("compaction.completed")

    def replace(
        self, old: sqlite3.Connection, head_file: HeadFile, log: DurablePosition
    ) -> Exchanged:
        assert self._closing is not None and self.result is not None
        try:
            closing = self._closing
            end = DurablePosition(closing.position, closing.checksum)
            old.close()
            # from here on the head file names exactly the log that the closing event names
            head_file.reset(log.position, log.checksum)
            if self._keep:
                aside = file_replacement.keep_aside(self._path, "before-compaction", copy=False)
                self.result.kept_aside = str(aside)
            failpoints.reached("compaction.marked")
            file_replacement.exchange(self._path, self._new, head_file, end, _reached)
            failpoints.reached("compaction.exchanged")
            return Exchanged(open_for_writing(self._path), end, stored(closing), self._kinds)
        finally:
            self._release_folder()

    # ---- inside

    def _take_folder(self) -> None:
        """Lock out other readers of the file. Raises Refusal while there are some."""
        self._folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release_folder()
            raise Refusal(
                "conflict", f"{self._path} is being read by another process, for example a backup"
            ) from None

    def _release_folder(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _move_wal(self, old: sqlite3.Connection) -> None:
        """Make the old file complete without its WAL, which does not survive the exchange."""
        busy, _, _ = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Refusal("conflict", f"{self._path} is being read; try again")
        file_replacement.sync(self._path)

    def _close_log(self, old: sqlite3.Connection, log: DurablePosition, prepared: Prepared) -> None:
        """Copy the rest of the log and everything that is derived from it, and close the new log."""
        target = open_for_writing(self._new)
        try:
            verify_kinds(target, place(self._new))  # its builder may be of a newer version
            target.execute("BEGIN IMMEDIATE")
            while rows := _tail(old, prepared, _PAGE):
                prepared = _copy_tail(old, target, prepared, rows)
            if (prepared.position, prepared.checksum) != (log.position, log.checksum.hex()):
                raise Refusal("internal", "the end of the log was not found")
            self._finish(old, target, log, prepared)
            target.execute("COMMIT")
            file_replacement.finish(target)
        finally:
            target.close()

    def _finish(
        self,
        old: sqlite3.Connection,
        target: sqlite3.Connection,
        log: DurablePosition,
        prepared: Prepared,
    ) -> None:
        _copy_receipts(old, target)
        usage = read_usage(old)
        derived_tables.usage_rows(target, usage)
        event = LogCompacted(
            at=self._now,
            position=log.position,
            checksum=log.checksum.hex(),
            events_before=prepared.result.events_before,
            events_after=prepared.result.events_after,
            jobs_folded=prepared.result.jobs_folded,
            usage=merged_usage(usage),
        )
        end = DurablePosition(prepared.position, bytes.fromhex(prepared.new_checksum))
        self._closing = closing_row(target, end, event)
        insert(target, INSERT_EVENTS, [self._closing])
        insert(target, INSERT_KINDS, [(self._closing.type, self._closing.schema)])
        self._kinds = frozenset(target.execute("SELECT type, schema FROM kinds").fetchall())
        self.result = prepared.result


def _reached(point: str) -> None:
    failpoints.reached(f"compaction.{point}")


# ---- the rest of the log


def _tail(old: sqlite3.Connection, prepared: Prepared, limit: int) -> list[Row]:
    """Return the next rows after those in the new log. Raises Broken."""
    raws = rows_after(old, prepared.position, None, limit)
    return list(follow(raws, bytes.fromhex(prepared.checksum), prepared.position))


def _copy_tail(
    old: sqlite3.Connection, target: sqlite3.Connection, prepared: Prepared, rows: list[Row]
) -> Prepared:
    """Append these rows and what is derived from them, within the caller's transaction."""
    end = DurablePosition(prepared.position, bytes.fromhex(prepared.new_checksum))
    new = rechained(rows, end)
    insert(target, INSERT_EVENTS, new)
    insert(target, INSERT_KINDS, sorted({(r.type, r.schema) for r in rows}))
    names = [n for r in rows for n in secondary_names(r.stream, stored(r).event)]
    insert(target, INSERT_NAMES, [(n.name, n.what, n.stream) for n in names])
    jobs = {r.stream.removeprefix("job/") for r in rows if r.stream.startswith("job/")}
    insert(
        target,
        INSERT_JOBS,
        old.execute(
            f"SELECT {JOB_COLUMNS} FROM json_each(?) AS s CROSS JOIN jobs ON jid = s.value",
            (msgspec.json.encode(sorted(jobs)).decode(),),
        ).fetchall(),
    )
    numbers = prepared.result
    return Prepared(
        position=rows[-1].position,
        checksum=rows[-1].checksum.hex(),
        new_checksum=new[-1].checksum.hex(),
        result=msgspec.structs.replace(
            numbers,
            events_before=numbers.events_before + len(rows),
            events_after=numbers.events_after + len(rows),
        ),
    )


def _copy_receipts(old: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy all receipts with their numbers, by which the writer knows their age."""
    rows = old.execute("SELECT number, uid, req_id, jid, serial, at FROM receipts").fetchall()
    target.executemany("INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?)", rows)
    for (seq,) in old.execute("SELECT seq FROM sqlite_sequence WHERE name = 'receipts'").fetchall():
        target.execute("DELETE FROM sqlite_sequence WHERE name = 'receipts'")
        target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('receipts', ?)", (seq,))


# ---- the note


def _note_path(root: Path) -> Path:
    new = new_path(root)
    return new.with_name(new.name + ".json")


def _note(root: Path, prepared: Prepared) -> None:
    write_atomically(str(_note_path(root)), msgspec.json.encode(prepared), sync=True)


def prepared_log(root: Path) -> Prepared:
    try:
        return msgspec.json.decode(_note_path(root).read_bytes(), type=Prepared)
    except (OSError, msgspec.DecodeError):
        raise Refusal("notFound", f"there is no complete new log at {new_path(root)}") from None


def _verified_end(new: Path, prepared: Prepared) -> None:
    if verify_new(new) != (prepared.position, bytes.fromhex(prepared.new_checksum)):
        raise Refusal("storageUnavailable", f"{new} does not end as it was written")


@contextlib.contextmanager
def one_builder(root: Path) -> Iterator[None]:
    """Refuse a second compaction of the same log at the same time. Raises Refusal: rootBusy."""
    path = new_path(root)
    lock = path.with_name(path.name + ".lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise Refusal("storageUnavailable", f"{lock} cannot be opened: {describe(e)}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refusal("rootBusy", f"another process compacts the log of {root}") from None
    except (*UNREADABLE, OSError) as e:
        raise Refusal("storageUnavailable", f"{path} cannot be written: {describe(e)}") from None
    finally:
        os.close(fd)
