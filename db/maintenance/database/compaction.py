"""Compaction of a log in PostgreSQL while a supervisor writes to it.

A process of its own copies one state of the log into a file, shortens it there as
`online_compaction` does, and copies the result into tables beside the log (`prepare`). It adds what is
appended meanwhile (`catch_up`). The writer of the supervisor adds the rest, and exchanges the tables in one
transaction (`DatabaseExchange`).
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ....protocol.errors import Refusal
from ....runtime.filesystems import make_folder
from ...events.events import SYSTEM, LogCompacted, encode, schema_of, type_of
from ...sql.log_end import LogPlace, verify_kinds
from ...sql.statements import SqlConnection, checksum_at, last_before, rows_after
from ...sql.usage_table import read_usage
from ...sqlite.schema import open_for_reading
from ...store.checksum_chain import START, Broken, Row, follow, row, stored
from ...store.head_file import DurablePosition, HeadFile
from ...store.name_index import secondary_names
from .. import online_compaction, trimmed_jobs
from ..compaction import HISTORY, OLDER_THAN_SECS
from ..file_replacement import sync
from ..log_source import log_source, site_of, store_path
from ..new_log import Compacted, merged_usage, rechained
from ..online_compaction import MOST_WAITING, Prepared, new_path, one_builder, prepared_log
from ..verification import Progress, no_progress
from .working_copy import copy_log_to_file

if TYPE_CHECKING:
    from ...postgres.connection import Connection, Raw
    from ...postgres.log_exchange import Exchanged
    from ...postgres.opening import Site

#: Folder in the store's folder, with a copy of the log as in a root.
FOLDER = "compacting"
_PAGE = 2_000


class _Note(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far the new log reaches. kinds: of its events."""

    prepared: Prepared
    kinds: tuple[tuple[str, int], ...]


def prepare(
    root: Path,
    *,
    older_than_secs: float = OLDER_THAN_SECS,
    history: int = HISTORY,
    progress: Progress = no_progress,
    keep: bool = True,
) -> Compacted:
    """Build the new log up to the present end of the log. Arguments as of `compact`. keep: keep a backup of the log as it was.
    `changed` of the result says whether there is a new log. Raises Refusal.
    """
    site, copy = _site(root), root / "db" / FOLDER
    make_folder(str(root / "db"))
    with one_builder(root), _emptied(copy):
        with log_source(root).snapshot() as source:
            copy_log_to_file(source, store_path(copy), progress)
        with contextlib.closing(open_for_reading(store_path(copy))) as file:
            end = last_before(file, 2**62)
        with contextlib.closing(HeadFile(copy / "db")) as head:
            head.reset(*end)
        done = online_compaction.prepare(
            copy, older_than_secs=older_than_secs, history=history, progress=progress
        )
        if not done.changed:
            return done
        for jids in trimmed_jobs.read(copy).values():
            trimmed_jobs.write(root, end[0], jids)
        with _written(site) as raw:
            _stage(raw, copy, progress)
        if keep:
            done.kept_aside = str(_kept(copy, root / "db"))
    catch_up(root, progress)
    return done


def catch_up(root: Path, progress: Progress = no_progress) -> int:
    """Add to the new log what was appended to the log since. Return the number of events. Raises
    Refusal: notFound without a new log.
    """
    from ...postgres.connection import Connection

    added = 0
    with _written(_site(root)) as raw:
        while True:
            with raw.transaction():
                note = _note(raw)
                after = _added(Connection(raw), note)
            copied = after.prepared.position - note.prepared.position
            added += copied
            progress("new events copied", added, added)
            if not copied:
                return added


def discard(root: Path) -> None:
    """Remove a new log that is not in use. Raises Refusal."""
    from ...postgres.log_exchange import drop_tables

    with _written(_site(root)) as raw:
        drop_tables(raw)


class DatabaseExchange:
    """The exchange of the log for the prepared one. Used once, in the writer's thread."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.result: Compacted | None = None

    def replace(
        self,
        connection: "Connection",
        log: DurablePosition,
        fence: Callable[[DurablePosition], None],
    ) -> "Exchanged":
        from ...postgres.log_exchange import Exchanged, add_rows, lock_log, put_in_place
        from ...postgres.opening import ERRORS

        raw = connection.raw
        note = _note(raw)
        place = LogPlace("the new log", lambda: "Compact again", "", ERRORS)
        prepared = note.prepared
        if checksum_at(connection, prepared.position) != bytes.fromhex(prepared.checksum):
            raise Refusal("badRequest", "the new log was made from another log; compact again")
        if log.position - prepared.position > MOST_WAITING:
            raise Refusal("conflict", "the new log is too far behind the log")
        lock_log(raw)
        while note.prepared.position < log.position:
            note = _added(connection, note)
        if note.prepared.checksum != log.checksum.hex():
            raise Refusal("internal", "the end of the log was not found")
        closing = self._closing(connection, log, note.prepared)
        head = DurablePosition(closing.position, closing.checksum)
        kinds = frozenset(note.kinds) | {(closing.type, closing.schema)}
        fence(head)
        add_rows(raw, [closing], ())
        put_in_place(raw, kinds)
        verify_kinds(connection, place)  # its builder may be of a newer version
        self.result = note.prepared.result
        return Exchanged(head, stored(closing), kinds)

    def _closing(self, connection: SqlConnection, log: DurablePosition, prepared: Prepared) -> Row:
        event = LogCompacted(
            at=self._now,
            position=log.position,
            checksum=log.checksum.hex(),
            events_before=prepared.result.events_before,
            events_after=prepared.result.events_after,
            jobs_folded=prepared.result.jobs_folded,
            usage=merged_usage(read_usage(connection)),
        )
        (version,) = connection.execute(
            "SELECT coalesce(max(version), 0) FROM events_new WHERE stream = ?", (SYSTEM,)
        ).fetchone()
        return row(
            bytes.fromhex(prepared.new_checksum),
            log.position + 1,
            SYSTEM,
            version + 1,
            type_of(event),
            schema_of(event),
            event.at,
            encode(event),
        )


# ---- inside


def _site(root: Path) -> "Site":
    site = site_of(root)
    if site is None:
        raise Refusal("badRequest", f"the event log of {root} is not in a database")
    return site


@contextlib.contextmanager
def _written(site: "Site") -> Iterator["Raw"]:
    """Open a connection that may write tables beside the log. Raises Refusal."""
    from ...postgres.connection import connect, refusal
    from ...postgres.opening import ERRORS, check_site

    try:
        with connect(site.address, site.password_file, bounded=False) as raw:
            check_site(site, raw)
            yield raw
    except (*ERRORS, OSError) as e:
        raise refusal(e, site.address) from None
    except Broken as e:
        raise Refusal("storeDamaged", f"{site.address.name}: the log is damaged at {e}") from None


@contextlib.contextmanager
def _emptied(copy: Path) -> Iterator[None]:
    shutil.rmtree(copy, ignore_errors=True)
    make_folder(str(copy / "db"))
    try:
        yield
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _kept(copy: Path, folder: Path) -> Path:
    """Keep the copied log as a backup beside the store; return its folder."""
    online_compaction.discard(copy)
    number = 1
    while (target := folder / f"before-compaction-{number}").exists():
        number += 1
    os.rename(copy / "db", target)
    sync(folder)
    return target


def _note(raw: "Raw") -> _Note:
    from ...postgres.log_exchange import note

    text = note(raw)
    if text is None:
        raise Refusal("notFound", "there is no complete new log; compact again")
    return msgspec.json.decode(text, type=_Note)


def _write_note(raw: "Raw", note: _Note) -> None:
    from ...postgres.log_exchange import write_note

    write_note(raw, msgspec.json.encode(note).decode())


def _stage(raw: "Raw", copy: Path, progress: Progress) -> None:
    """Copy the new log in a file into tables beside the log, in one transaction."""
    from ...postgres.log_exchange import add_rows, make_tables

    prepared, done = prepared_log(copy), 0
    with contextlib.closing(open_for_reading(new_path(copy))) as file, raw.transaction():
        make_tables(raw)
        rows = follow(rows_after(file, 0), START, 0)
        for page in _pages(rows):
            add_rows(raw, page, ())
            done += len(page)
            progress("events staged", done, prepared.result.events_after)
        for names in _pages(file.execute("SELECT name, what, stream FROM names")):
            add_rows(raw, (), names)
        kinds = file.execute("SELECT type, schema FROM kinds").fetchall()
        _write_note(raw, _Note(prepared=prepared, kinds=tuple(sorted(kinds))))


def _pages(rows: Iterable[Any]) -> Iterator[Sequence[Any]]:
    page: list[Any] = []
    for one in rows:
        page.append(one)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _added(connection: "Connection", note: _Note) -> _Note:
    """Add the next rows of the log to the new log, within a transaction; return its new note."""
    from ...postgres.log_exchange import add_rows

    old = note.prepared
    raws = rows_after(connection, old.position, None, _PAGE)
    rows = list(follow(raws, bytes.fromhex(old.checksum), old.position))
    if not rows:
        return note
    new = rechained(rows, DurablePosition(old.position, bytes.fromhex(old.new_checksum)))
    names = [n for r in rows for n in secondary_names(r.stream, stored(r).event)]
    add_rows(connection.raw, new, [(n.name, n.what, n.stream) for n in names])
    numbers = old.result
    prepared = Prepared(
        position=rows[-1].position,
        checksum=rows[-1].checksum.hex(),
        new_checksum=new[-1].checksum.hex(),
        result=msgspec.structs.replace(
            numbers,
            events_before=numbers.events_before + len(rows),
            events_after=numbers.events_after + len(rows),
        ),
    )
    kinds = {*note.kinds, *((r.type, r.schema) for r in rows)}
    later = _Note(prepared=prepared, kinds=tuple(sorted(kinds)))
    _write_note(connection.raw, later)
    return later
