"""The shard of a store: which part of a site's users its schema has. `SCHEMA_K.shard` names the shard,
and `SCHEMA.shards` the number of all shards of the site.

Sites without shards have neither table.
"""

import psycopg
from psycopg import sql

from ...protocol.errors import Refusal
from ...protocol.shards import Shard
from ...runtime.store_address import StoreAddress
from .connection import Raw, connect, describe

_TABLE = b"CREATE TABLE shard (number integer NOT NULL, count integer NOT NULL)"


def site_schema(address: StoreAddress, shard: Shard) -> str:
    """Return the schema of the whole site."""
    return address.schema.removesuffix(f"_{shard.number}")


def record(raw: Raw, address: StoreAddress, shard: Shard) -> None:
    """Record the shard of a new store, within the transaction that creates it. Raises Refusal."""
    schema = sql.Identifier(whole := site_schema(address, shard))
    raw.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"jobscribe shards {whole}",))
    if _exists(raw, f"{whole}.site"):
        raise Refusal(
            "badConfig",
            f"schema {whole} has the log of a site without shards: set another schema in store.url (schema=NAME)"
            " for a site with shards, or remove shards.count",
        )
    raw.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    if not _exists(raw, f"{whole}.shards"):
        raw.execute(sql.SQL("CREATE TABLE {}.shards (count integer NOT NULL)").format(schema))
        raw.execute(sql.SQL("INSERT INTO {}.shards VALUES (%s)").format(schema), (shard.total,))
    row = raw.execute(sql.SQL("SELECT count FROM {}.shards").format(schema)).fetchone()
    if row is None or row[0] != shard.total:
        raise _other_count(address, None if row is None else row[0], shard)
    raw.execute(_TABLE)
    raw.execute("INSERT INTO shard VALUES (%s, %s)", tuple(shard))


def check(raw: Raw, address: StoreAddress, shard: Shard | None) -> None:
    """Raise Refusal unless the store is that of this shard; None: of a site without shards."""
    row = (
        raw.execute("SELECT number, count FROM shard").fetchone()
        if _exists(raw, f"{address.schema}.shard")
        else None
    )
    found = None if row is None else Shard(*row)
    if found == shard:
        return
    if found is None:
        raise Refusal(
            "foreignParts",
            f"{address.name} is the log of a site without shards: set another schema in store.url (schema=NAME),"
            " or remove shards.count",
        )
    if shard is None:
        raise Refusal(
            "foreignParts",
            f"{address.name} is the log of {found.name}: set shards.count to {found.total}, and start the supervisor"
            f" with --shard {found.number} and the root of the site",
        )
    if found.number == shard.number:
        raise _other_count(address, found.total, shard)
    raise Refusal(
        "foreignParts",
        f"{address.name} is the log of {found.name}, not of {shard.name}: set another schema in store.url"
        " (schema=NAME)",
    )


def recorded(address: StoreAddress, password_file: str | None) -> Shard | None:
    """Return the shard whose log is here; None for that of a site without shards. Raises OSError."""
    try:
        with connect(address, password_file, reads=True) as raw:
            if not _exists(raw, f"{address.schema}.shard"):
                return None
            row = raw.execute("SELECT number, count FROM shard").fetchone()
            return None if row is None else Shard(*row)
    except psycopg.Error as e:
        raise OSError(describe(e)) from None


def refuse_whole(raw: Raw, address: StoreAddress) -> None:
    """Raise Refusal for a site without shards in the schema of a site with shards."""
    if _exists(raw, f"{address.schema}.shards"):
        raise Refusal(
            "badConfig",
            f"{address.name} belongs to a site with shards: set shards.count, or another schema in store.url"
            " (schema=NAME)",
        )


def _other_count(address: StoreAddress, found: int | None, shard: Shard) -> Refusal:
    return Refusal(
        "badConfig",
        f"the site of {address.name} has {found} shards, and shards.count is {shard.total}: set it to {found}. The"
        " number of shards cannot be changed, because users would have to move to other shards; for another number"
        " start a new site",
    )


def _exists(raw: Raw, table: str) -> bool:
    row = raw.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return row is not None and bool(row[0])
