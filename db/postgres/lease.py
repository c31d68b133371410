"""The lease of a site: one row with the epoch of the supervisor that may write, and the head of the
log. `lease_protocol` decides; here are the statements. See etc/adr/0042-postgresql.md.

An epoch is taken once. Its session holds an advisory lock, so that others see when it is gone.
"""

import os
import secrets
import socket
import zlib

from ...protocol.errors import Refusal
from ..store.head_file import DurablePosition
from .connection import Raw
from .lease_protocol import LEASE_SECS, Lease, may_take, may_take_again

_EXPIRES = b"clock_timestamp() + %s * interval '1 second'"
#: Raises division by zero, without effect, unless the epoch has the lease and the log is at this head.
FENCE = (
    b"WITH mine AS (UPDATE lease SET position = %s, checksum = %s, expires = " + _EXPIRES + b""
    b" WHERE epoch = %s AND position = %s AND checksum = %s RETURNING 1) SELECT 1 / count(*) FROM mine"
)


def new_holder() -> str:
    """Return a name for this process that no other one has."""
    return f"{socket.gethostname()} pid {os.getpid()} {secrets.token_hex(6)}"


def take(raw: Raw, holder: str, schema: str, name: str, dead: str | None = None) -> Lease:
    """Take the next epoch. Raises Refusal("rootBusy") while another supervisor has the lease.

    A holder with a row in `supervisors` may act until its lease ends, also if its session is gone.
    dead: a holder whose process has certainly ended.
    """
    with raw.transaction():
        row = raw.execute(
            "SELECT epoch, holder, released, expires <= clock_timestamp(),"
            " EXISTS (SELECT 1 FROM supervisors s WHERE s.holder = lease.holder) FROM lease FOR UPDATE"
        ).fetchone()
        assert row is not None
        epoch, other, released, expired, acts = row
        gone = not acts and _is_gone(raw, schema, epoch)
        if not may_take(holder, other, released=released, expired=expired, gone=gone, dead=dead):
            raise Refusal(
                "rootBusy",
                f"another supervisor serves the site in {name}: {other.rpartition(' ')[0]}. Stop it first;"
                f" if it is gone, its lease ends within {LEASE_SECS:g} s",
            )
        return _next(raw, holder, schema)


def take_again(raw: Raw, holder: str, schema: str) -> Lease | None:
    """Take the next epoch on a new connection of the same holder; None if it lost the lease. Waits
    for the end of a commit of the old connection, and no later one can succeed.
    """
    with raw.transaction():
        row = raw.execute("SELECT holder, released FROM lease FOR UPDATE").fetchone()
        assert row is not None
        mine = may_take_again(holder, row[0], released=row[1])
        return _next(raw, holder, schema) if mine else None


def renew(raw: Raw, epoch: int) -> bool:
    """Renew the lease; return False if another holder has it."""
    return bool(
        raw.execute(
            b"UPDATE lease SET expires = " + _EXPIRES + b" WHERE epoch = %s", (LEASE_SECS, epoch)
        ).rowcount
    )


def release(raw: Raw, epoch: int) -> None:
    raw.execute("UPDATE lease SET released = true WHERE epoch = %s", (epoch,))


def _next(raw: Raw, holder: str, schema: str) -> Lease:
    row = raw.execute(
        b"UPDATE lease SET epoch = epoch + 1, holder = %s, released = false, expires = "
        + _EXPIRES
        + b" RETURNING epoch, position, checksum",
        (holder, LEASE_SECS),
    ).fetchone()
    assert row is not None
    raw.execute("SELECT pg_advisory_lock_shared(%s, %s)", (_key(schema), _of(row[0])))
    return Lease(row[0], DurablePosition(row[1], bytes(row[2])))


def _is_gone(raw: Raw, schema: str, epoch: int) -> bool:
    """Return whether the session that took the epoch has ended."""
    row = raw.execute(
        "SELECT pg_try_advisory_xact_lock(%s, %s)", (_key(schema), _of(epoch))
    ).fetchone()
    return row is not None and bool(row[0])


def _key(schema: str) -> int:
    return zlib.crc32(f"jobscribe {schema}".encode()) - 2**31


def _of(epoch: int) -> int:
    return epoch % 2**31
