"""The supervisors of a site: one row for each, and who has the lease. Only supervisors with
`store.standby` have rows.

The row of a holder says that it ends by itself when its lease ends (see etc/adr/0046-standby-supervisors.md).
"""

from typing import NamedTuple

import msgspec
import psycopg

from ...runtime.lease_deadline import LeaseDeadline
from ...runtime.store_address import StoreAddress
from .connection import Raw, connect, describe
from .lease_protocol import LEASE_SECS

#: Rows of supervisors that were not seen for this time are removed, in seconds.
FORGET_SECS = 3_600.0

TABLE = b"""
CREATE TABLE IF NOT EXISTS supervisors (
    holder text PRIMARY KEY, about text NOT NULL, proof text NOT NULL, started timestamptz NOT NULL,
    seen timestamptz NOT NULL
)"""
_BEAT = (
    b"INSERT INTO supervisors VALUES (%s, %s, '', clock_timestamp(), clock_timestamp())"
    b" ON CONFLICT (holder) DO UPDATE SET seen = clock_timestamp(), about = excluded.about"
)
_LEASE = (
    b"SELECT l.epoch, l.holder, l.released, extract(epoch FROM l.expires - clock_timestamp())::float8,"
    b" s.about, coalesce(s.proof, ''), extract(epoch FROM clock_timestamp())::float8,"
    b" CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,"
    b" l.position"
    b" FROM lease l LEFT JOIN supervisors s ON s.holder = l.holder"
)
_ALL = (
    b"SELECT s.holder, s.about, extract(epoch FROM s.started)::float8,"
    b" extract(epoch FROM clock_timestamp() - s.seen)::float8, s.holder = l.holder AND NOT l.released,"
    b" l.epoch, extract(epoch FROM l.expires - clock_timestamp())::float8"
    b" FROM supervisors s, lease l ORDER BY 5 DESC, s.seen DESC, s.holder"
)


class About(msgspec.Struct, frozen=True, rename="camel"):
    """A supervisor. addresses: of its listeners, by kind (`api`, `public`, `agents`). relay: path of the
    socket at which its holder takes connections of standbys of the same boot. life: of its process (see
    `life`). clock_ahead: seconds by which its clock was ahead of the database's.
    """

    host: str
    pid: int
    boot_id: str
    version: str
    addresses: dict[str, str]
    relay: str
    life: str = ""
    clock_ahead: float = 0.0


class Claim(NamedTuple):
    """The right to the lease of one process, across its two ways to take it."""

    holder: str
    deadline: LeaseDeadline


class Seen(NamedTuple):
    """The lease. expires_in: seconds. about: the holder's row; None if it does not stand by. timeline: of
    the server, which gets a new one when it stops being a replica. position: of the end of the log.
    """

    epoch: int
    holder: str
    free: bool
    expires_in: float
    about: About | None
    proof: str
    clock: float
    timeline: str
    released: bool
    position: int


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A supervisor as it is listed. seen_secs_ago: its last sign. epoch, lease_ends_in_secs: of the
    holder.
    """

    role: str
    host: str
    pid: int
    version: str
    addresses: dict[str, str]
    started_at: float
    seen_secs_ago: float
    clock_ahead_secs: float
    epoch: int | None = None
    lease_ends_in_secs: float | None = None


class Served(msgspec.Struct, frozen=True, rename="camel"):
    """The lease of a shard. owner: `HOST:PID`; None if none serves. addresses: of the owner, if it may
    stand by. lease_ends_in_secs: negative after its end. standbys: `HOST:PID`. lag_secs: since the last sign of the
    standby that gave none for the longest time.
    """

    owner: str | None
    addresses: dict[str, str]
    epoch: int | None
    lease_ends_in_secs: float | None
    standbys: tuple[str, ...]
    lag_secs: float | None


def create(raw: Raw) -> None:
    """Create the table if it is missing. Raises psycopg.Error."""
    row = raw.execute("SELECT to_regclass('supervisors') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        with raw.transaction():
            # without a lock, IF NOT EXISTS fails when two sessions create the table at once
            raw.execute(
                "SELECT pg_advisory_xact_lock(hashtext('jobscribe ' || current_schema() || ' supervisors'))"
            )
            raw.execute(TABLE)


def replace(raw: Raw, holder: str, about: About) -> None:
    """Forget earlier processes with the listeners of this one."""
    raw.execute(
        "DELETE FROM supervisors WHERE about::json->>'host' = %s AND about::jsonb->'addresses' = %s::jsonb"
        " AND holder <> %s AND holder <> (SELECT holder FROM lease)",
        (about.host, msgspec.json.encode(about.addresses).decode(), holder),
    )


def beat(raw: Raw, holder: str, about: About) -> None:
    """Record that this supervisor lives, and forget those that have been gone for long."""
    raw.execute(_BEAT, (holder, msgspec.json.encode(about).decode()))
    raw.execute(
        b"DELETE FROM supervisors WHERE seen < clock_timestamp() - %s * interval '1 second'"
        b" AND holder <> (SELECT holder FROM lease)",
        (FORGET_SECS,),
    )


def prove(raw: Raw, holder: str, proof: str) -> None:
    """Record the hash of the text that the holder wrote into the shared folder."""
    raw.execute("UPDATE supervisors SET proof = %s WHERE holder = %s", (proof, holder))


def look(raw: Raw) -> Seen:
    """Return the state of the lease. Raises psycopg.Error."""
    row = raw.execute(_LEASE).fetchone()
    assert row is not None
    epoch, holder, released, left, about, proof, clock, timeline, position = row
    known = None if about is None else msgspec.json.decode(about, type=About)
    free = released or left <= 0
    return Seen(epoch, holder, free, left, known, proof, clock, timeline, released, position)


def listed(address: StoreAddress, password_file: str | None) -> list[Member]:
    """Return all supervisors of a site, on a connection of its own. Raises OSError."""
    try:
        with connect(address, password_file, reads=True) as raw:
            row = raw.execute("SELECT to_regclass('supervisors') IS NOT NULL").fetchone()
            return members(raw) if row is not None and row[0] else []
    except psycopg.Error as e:
        raise OSError(describe(e)) from None


def served(address: StoreAddress, password_file: str | None) -> tuple[Served | None, list[Member]]:
    """Return the lease of a log, None without a log, and all its supervisors. Raises OSError."""
    try:
        with connect(address, password_file, reads=True) as raw:
            row = raw.execute(
                "SELECT to_regclass('lease') IS NOT NULL, to_regclass('supervisors') IS NOT NULL"
            ).fetchone()
            if row is None or not row[0]:
                return None, []
            lease = raw.execute(
                "SELECT epoch, holder, released, extract(epoch FROM expires - clock_timestamp())::float8"
                " FROM lease"
            ).fetchone()
            assert lease is not None
            epoch, holder, released, left = lease
            found = members(raw) if row[1] else []
            return summary(epoch, holder, released, left, found), found
    except psycopg.Error as e:
        raise OSError(describe(e)) from None


def summary(epoch: int, holder: str, released: bool, left: float, found: list[Member]) -> Served:
    """Return the lease with its standbys. holder: see `lease.new_holder`."""
    # `HOST pid PID TOKEN`; a host has no spaces
    host, _, rest = holder.partition(" pid ")
    serves = bool(holder) and not released and left > 0
    standbys = [m for m in found if m.role == "standby"]
    return Served(
        f"{host}:{rest.partition(' ')[0]}" if serves else None,
        next((m.addresses for m in found if m.role == "serving"), {}) if serves else {},
        epoch if serves else None,
        left if serves else None,
        tuple(f"{m.host}:{m.pid}" for m in standbys),
        max((m.seen_secs_ago for m in standbys), default=None),
    )


def members(raw: Raw) -> list[Member]:
    """Return all supervisors, the holder first. Raises psycopg.Error."""
    found = []
    for holder, about, started, ago, serves, epoch, left in raw.execute(_ALL).fetchall():
        a = msgspec.json.decode(about, type=About)
        if serves and left <= 0:
            role = "expired"
        elif serves:
            # the holder gives its sign of life with the lease
            role, ago = "serving", max(0.0, LEASE_SECS - left)
        else:
            role = "standby" if ago < LEASE_SECS else "away"
        found.append(
            Member(
                role,
                a.host,
                a.pid,
                a.version,
                a.addresses,
                started,
                ago,
                a.clock_ahead,
                epoch if serves else None,
                left if serves else None,
            )
        )
        assert holder
    return found
