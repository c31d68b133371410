"""Statements on the table of grants in the schema of a site with shards, as one shard changes it.
`protocol.grants` decides. See etc/adr/0050-grants.md.

Each is a transaction, so a supervisor that is frozen between two of them locks nothing.
"""

from psycopg import sql

from ....protocol.grants import Row, Table, Write
from ....protocol.shards import Shard
from ....runtime.store_address import StoreAddress
from .. import shards
from ..connection import Raw

_TABLES = sql.SQL("""
CREATE TABLE IF NOT EXISTS {site}.grants (
    name text COLLATE "C" NOT NULL, shard integer NOT NULL, granted bigint NOT NULL, used bigint NOT NULL,
    wanted bigint NOT NULL, capacity bigint NOT NULL, epoch bigint NOT NULL, seen timestamptz NOT NULL,
    PRIMARY KEY (name, shard)
);
CREATE TABLE IF NOT EXISTS {site}.grant_turn (turn bigint NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS grant_turn_once ON {site}.grant_turn ((true));
INSERT INTO {site}.grant_turn VALUES (0) ON CONFLICT DO NOTHING
""")
_READ = sql.SQL("""
SELECT t.turn, g.name, g.shard, g.granted, g.used, g.wanted, g.capacity,
    extract(epoch FROM clock_timestamp() - g.seen)::float8
FROM {site}.grant_turn t LEFT JOIN {site}.grants g ON true""")
#: The lease's row is locked, so a takeover waits; the turn's row decides between shards.
_WRITE = sql.SQL("""
WITH mine AS (SELECT 1 FROM {own}.lease WHERE epoch = %s AND NOT released FOR SHARE),
turn AS (UPDATE {site}.grant_turn SET turn = turn + 1 WHERE turn = %s AND EXISTS (SELECT 1 FROM mine) RETURNING 1)
INSERT INTO {site}.grants
SELECT u.name, %s, u.granted, u.used, u.wanted, u.capacity, %s, clock_timestamp() FROM turn,
    unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS u (name, granted, used, wanted, capacity)
ON CONFLICT (name, shard) DO UPDATE SET granted = excluded.granted, used = excluded.used, wanted = excluded.wanted,
    capacity = excluded.capacity, epoch = excluded.epoch, seen = excluded.seen""")


class Statements:
    """The steps of an exchange on a connection. Raises psycopg.Error."""

    def __init__(self, raw: Raw, address: StoreAddress, shard: Shard) -> None:
        site = shards.site_schema(address, shard)
        names = {"site": sql.Identifier(site), "own": sql.Identifier(address.schema)}
        self._raw, self._shard = raw, shard
        self._read, self._write = _READ.format(**names), _WRITE.format(**names)
        with raw.transaction():
            raw.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"jobscribe shards {site}",))
            raw.execute(_TABLES.format(**names))

    def read(self) -> Table:
        rows: dict[str, dict[int, Row]] = {}
        turn = 0
        for turn, name, shard, *row in self._raw.execute(self._read):  # noqa: B007
            if name is not None:
                rows.setdefault(name, {})[shard] = Row(*row)
        return Table(turn, rows)

    def write(self, step: Write, epoch: int) -> bool:
        names, rows = list(step.rows), list(step.rows.values())
        columns = (
            names,
            *([row[n] for row in rows] for n in range(4)),
        )
        values = (epoch, step.turn, self._shard.number, epoch, *columns)
        return bool(self._raw.execute(self._write, values).rowcount)
