"""Statements on the tables that the shards of a site share, in the schema of the site: grants, as one shard changes
them (`protocol.grants` decides; see etc/adr/0050-grants.md), and revoked API tokens.

Each is a transaction, so a supervisor that is frozen between two of them locks nothing.
"""

from collections.abc import Collection, Mapping

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
INSERT INTO {site}.grant_turn VALUES (0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS {site}.revoked_tokens (id text COLLATE "C" PRIMARY KEY, expires timestamptz NOT NULL)
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
#: No epoch is needed: a revocation is durable in its shard's log before, and final.
_ADD_REVOKED = sql.SQL("""
INSERT INTO {site}.revoked_tokens SELECT id, to_timestamp(expires)
FROM unnest(%s::text[], %s::float8[]) AS t (id, expires) ON CONFLICT DO NOTHING""")
#: Tokens live no longer than the token that created them.
_FORGET_REVOKED = sql.SQL(
    "DELETE FROM {site}.revoked_tokens WHERE expires < now() - interval '1 day'"
)
_REVOKED = sql.SQL("SELECT id FROM {site}.revoked_tokens WHERE id = ANY(%s::text[])")


class Statements:
    """The steps of an exchange on a connection. Raises psycopg.Error."""

    def __init__(self, raw: Raw, address: StoreAddress, shard: Shard) -> None:
        site = shards.site_schema(address, shard)
        names = {"site": sql.Identifier(site), "own": sql.Identifier(address.schema)}
        self._raw, self._shard = raw, shard
        self._read, self._write = _READ.format(**names), _WRITE.format(**names)
        self._add_revoked = _ADD_REVOKED.format(**names)
        self._forget_revoked = _FORGET_REVOKED.format(**names)
        self._revoked = _REVOKED.format(**names)
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

    def revoked(self, own: Mapping[str, float], asked: Collection[str]) -> frozenset[str]:
        """Add revoked tokens of this shard. Return which of the tokens `asked` any shard revoked. own: the
        ends of their lives in unix seconds, by id.
        """
        if own:
            self._raw.execute(self._add_revoked, ([*own], [*own.values()]))
            self._raw.execute(self._forget_revoked)
        if not asked:
            return frozenset()
        return frozenset(id_ for (id_,) in self._raw.execute(self._revoked, (sorted(asked),)))
