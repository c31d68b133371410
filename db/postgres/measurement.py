"""Measurement of a store in use, on a connection of its own: jobs by state, and bytes."""

import psycopg

from ...runtime.store_address import StoreAddress
from .connection import connect, describe


def measured(
    address: StoreAddress, password_file: str | None
) -> tuple[list[tuple[str, str, str, int]], int]:
    """Return numbers of jobs by driver, kind and status, and the bytes of all tables. Raises OSError."""
    try:
        with connect(address, password_file, reads=True) as raw:
            jobs = raw.execute(
                "SELECT driver, kind, status, count(*) FROM jobs GROUP BY driver, kind, status"
            ).fetchall()
            ((size,),) = raw.execute(
                "SELECT coalesce(sum(pg_total_relation_size(format('%%I.%%I', schemaname, tablename)::regclass)), 0)::bigint"
                " FROM pg_tables WHERE schemaname = %s",
                (address.schema,),
            ).fetchall()
    except psycopg.Error as e:
        raise OSError(describe(e)) from None
    return [(str(d), str(k), str(s), int(n)) for d, k, s, n in jobs], int(size)
