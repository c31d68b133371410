"""Opening of the store in PostgreSQL: takes the lease, and verifies that no durable event is missing.
Otherwise it refuses the start; the lease is then released, and nothing else is changed.
"""

import time
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import sql

from ...protocol.errors import Refusal
from ...protocol.shards import Shard
from ...runtime.store_address import StoreAddress, parsed
from ..events.events import SYSTEM
from ..sql.log_end import LogPlace, verify_kinds, verify_tail
from ..sql.statements import ROW_COLUMNS
from ..store.checksum_chain import START, Row, stored
from ..store.contract import Stored
from ..store.database_marker import named_database
from ..store.head_file import NOTHING, DurablePosition, HeadFile, read_head
from ..store.store_folder import check_owner, make_folder, sync_folder
from . import lease, server_identity, shards, supervisors
from .connection import Connection, Raw, connect, refusal
from .lease_protocol import Lease, perform, take
from .schema import LAYOUT, TABLES
from .supervisors import Claim

#: Largest difference between this machine's clock and the database's.
CLOCK_SECS = 600.0
#: How long a start waits for a lease that another supervisor has.
TAKE_SECS = 2.0
ERRORS = (psycopg.Error, UnicodeDecodeError)
#: Before the id of a root in `site`, whose log was moved away.
MOVED = "moved:"


class Site(NamedTuple):
    """The place of a root's log. folder: of the head file, in the root. root_id: its identity. claim:
    of a supervisor that took the lease after it stood by. shard: None for a site without shards.
    """

    address: StoreAddress
    password_file: str | None
    folder: Path
    root_id: str
    claim: Claim | None = None
    shard: Shard | None = None


class Opened(NamedTuple):
    """An open store whose log is complete up to `head`. receipts: number of the last receipt."""

    site: Site
    raw: Raw
    head_file: HeadFile
    head: DurablePosition
    holder: str
    epoch: int
    kinds: frozenset[tuple[str, int]]
    receipts: int


def repair(site: Site) -> str:
    """Return the advice for a damaged store."""
    root = site.folder.parent
    return (
        f"Connect the database that has these events, or restore a backup that has them, to schema"
        f" {site.address.schema}; running jobs continue meanwhile. If they are lost, 'jobscribe db repair --root"
        f" {root}' keeps the intact events, and 'jobscribe db restore BACKUP --replace --root {root}' restores a backup"
    )


def place(site: Site) -> LogPlace:
    """Return the log, for messages."""
    return LogPlace(
        site.address.name,
        lambda: repair(site),
        "to go back without the later events, restore a dump of the schema from before the upgrade (pg_restore)",
        ERRORS,
    )


def open_site(site: Site) -> Opened:
    """Open the store; create its tables if nothing was ever stored there. Raises Refusal: rootBusy,
    storageUnavailable, storeDamaged, unknownEvent, foreignRoot, foreignParts, badConfig.
    """
    try:
        check_owner(site.folder)
        make_folder(site.folder)
        head_file = HeadFile(site.folder, shared=site.claim is not None)
    except OSError as e:
        raise refusal(e, site.address) from None
    try:
        mark = _mark(site, head_file)
        try:
            raw = connect(site.address, site.password_file)
        except (psycopg.Error, OSError) as e:
            raise refusal(e, site.address) from None
        try:
            return _open(site, raw, head_file, mark)
        except ERRORS as e:
            raw.close()
            raise refusal(e, site.address) from None
        except BaseException:
            raw.close()
            raise
    except BaseException:
        head_file.close()
        raise


def _mark(site: Site, head_file: HeadFile) -> DurablePosition:
    if head_file.new:
        head_file.reset(*NOTHING)
        sync_folder(site.folder)
        return NOTHING
    if head_file.mark is None:
        raise place(site).damaged("the head file in the root is unreadable")
    return head_file.mark


def _open(site: Site, raw: Raw, head_file: HeadFile, mark: DurablePosition) -> Opened:
    check_clock(site, raw)
    if not has_tables(raw, site.address.schema):
        if mark != NOTHING:
            raise place(site).damaged(
                f"the schema has no event store, but position {mark.position} was durable"
            )
        create(site, raw)
    check_site(site, raw)
    shards.check(raw, site.address, site.shard)
    server = server_identity.read(raw)
    if (fault := server_identity.fault(site.folder, server, site.address.name)) is not None:
        raise Refusal("foreignParts", fault)
    supervisors.create(raw)
    holder = lease.new_holder() if site.claim is None else site.claim.holder
    deadline = None if site.claim is None else site.claim.deadline
    taken = perform(take(deadline), lambda step: take_lease(site, raw, holder))
    assert isinstance(taken, Lease)
    try:
        head, kinds = _verified(site, raw, taken, mark)
        ((receipts,),) = raw.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchall()
        server_identity.record(site.folder, server)
        if head != mark:
            if deadline is not None:
                deadline.check()  # the head file may be the next holder's by now
            head_file.reset(head.position, head.checksum)
    except BaseException:
        if not raw.closed:
            lease.release(raw, taken.epoch)
        raise
    return Opened(site, raw, head_file, head, holder, taken.epoch, kinds, receipts)


def lacking(site: Site, position: int) -> str | None:
    """Return the sentence for a log that ends before the head file of the root, if it does.
    position: of its end.
    """
    mark = read_head(site.folder)
    if mark is None or position >= mark.position:
        return None
    return (
        f"the log in {site.address.name} lacks commits: it ends at position {position}, but"
        f" {mark.position} was durable. {repair(site)}"
    )


def lost_commits(root: Path) -> str | None:
    """Return the same for the database that a root names; None also for a root without one, and for a
    database that does not answer.
    """
    named = named_database(root)
    if named is None:
        return None
    site = Site(parsed(named.url), named.password_file, root / "db", named.root_id or "")
    try:
        with connect(site.address, site.password_file, reads=True) as raw:
            row = raw.execute("SELECT position FROM lease").fetchone()
    except (*ERRORS, OSError):
        return None
    return None if row is None else lacking(site, row[0])


def take_lease(site: Site, raw: Raw, holder: str) -> Lease:
    """Take the lease. The server notices the end of a killed holder a little later."""
    deadline = time.monotonic() + TAKE_SECS
    while True:
        try:
            return lease.take(raw, holder, site.address.schema, site.address.name)
        except Refusal:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _verified(
    site: Site, raw: Raw, taken: Lease, mark: DurablePosition
) -> tuple[DurablePosition, frozenset[tuple[str, int]]]:
    connection = Connection(raw)
    head = verify_tail(connection, mark, place(site))
    if head != taken.head:
        raise place(site).damaged(
            f"the log ends at position {head.position}, but its lease names position {taken.head.position}"
        )
    return head, verify_kinds(connection, place(site))


def check_clock(site: Site, raw: Raw) -> None:
    row = raw.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    apart = abs(row[0] - time.time())
    if apart > CLOCK_SECS:
        raise Refusal(
            "badConfig",
            f"the clock of {site.address.name} differs from this machine's by {apart:.0f} s: correct the wrong one"
            " (for example with NTP); times of jobs and the lease depend on them",
        )


def has_tables(raw: Raw, schema: str) -> bool:
    row = raw.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.site",)).fetchone()
    return row is not None and bool(row[0])


def create(site: Site, raw: Raw) -> None:
    """Create the tables, all or none. Raises Refusal if the schema has other ones."""
    with raw.transaction():
        # another supervisor may begin at the same time
        raw.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"jobscribe {site.address.schema}",)
        )
        if has_tables(raw, site.address.schema):
            return
        if site.shard is None:
            shards.refuse_whole(raw, site.address)
        row = raw.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = %s", (site.address.schema,)
        ).fetchone()
        if row is not None and row[0]:
            raise Refusal(
                "badConfig",
                f"{site.address.name} has tables that are no event store: choose another schema",
            )
        raw.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(site.address.schema))
        )
        raw.execute(TABLES)
        raw.execute("INSERT INTO site VALUES (%s, %s, %s)", (site.root_id, LAYOUT, LAYOUT))
        raw.execute("INSERT INTO lease VALUES (0, '', true, clock_timestamp(), 0, %s)", (START,))
        if site.shard is not None:
            shards.record(raw, site.address, site.shard)


def check_site(site: Site, raw: Raw, *, moved: bool = False) -> None:
    """Raise Refusal for tables of another root, or of a later layout. moved: accept a log of this root
    that was moved away.
    """
    ((root_id, layout, compatible),) = raw.execute(
        "SELECT root_id, layout, compatible FROM site"
    ).fetchall()
    if layout > LAYOUT and compatible > LAYOUT:
        raise Refusal(
            "unknownEvent",
            f"{site.address.name} has layout {layout}; this version knows layouts up to {LAYOUT}. Start the"
            " version of jobscribe that wrote it, or restore a dump from before the upgrade",
        )
    if root_id == MOVED + site.root_id:
        if moved:
            return
        raise Refusal(
            "foreignParts",
            f"the log in {site.address.name} was moved to the file of its root, and is an old copy: remove"
            " store.url; 'jobscribe db move URL' moves the log back into it",
        )
    if root_id != site.root_id:
        raise Refusal(
            "foreignParts",
            f"{site.address.name} is the log of another root ({root_id}) than this one ({site.root_id}):"
            " set another schema in store.url (schema=NAME), or start the root that it belongs to",
        )


def system_events(address: StoreAddress, password_file: str | None) -> list[Stored] | None:
    """Return the events of the stream `system`; None if there is no log. Changes nothing. Raises
    Refusal.
    """
    try:
        with connect(address, password_file, reads=True) as raw:
            if not has_tables(raw, address.schema):
                return None
            rows = Connection(raw).execute(
                f"SELECT {ROW_COLUMNS} FROM events WHERE stream = ? ORDER BY version", (SYSTEM,)
            )
            return [
                stored(
                    Row(r[0], r[1].decode(), r[2], r[3].decode(), r[4], r[5], r[6].decode(), r[7])
                )
                for r in rows
            ] or None
    except (*ERRORS, OSError) as e:
        raise refusal(e, address) from None
