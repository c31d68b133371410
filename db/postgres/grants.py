"""The table of grants in the schema of a site with shards, as one shard changes it. `protocol.grants`
decides; here are the statements. See etc/adr/0050-grants.md.

Each statement is a transaction, so a supervisor that is frozen between two of them locks nothing. The
connection is not that of the log: a commit waits for no other shard.
"""

import functools
import queue
import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from ...protocol.grants import Read, Row, Table, Write
from ...protocol.shards import Shard
from ...runtime.store_address import StoreAddress
from ..store.contract import Deliver
from . import shards
from .connection import Raw, connect

#: A closed table waits this long for an exchange.
CLOSE_SECS = 2.0
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
Done = Callable[[Table | bool | None], None]


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


class GrantTable:
    """The grants of a shard, in a thread of their own. epoch: of the shard's lease, as the writer of the
    log has it now.
    """

    def __init__(
        self,
        address: StoreAddress,
        password_file: str | None,
        shard: Shard,
        epoch: Callable[[], int],
        deliver: Deliver,
    ) -> None:
        self._address, self._password_file, self._shard = address, password_file, shard
        self._epoch, self._deliver = epoch, deliver
        self._raw: Raw | None = None
        self._statements: Statements | None = None
        self._asked: queue.SimpleQueue[tuple[Read | Write, Done] | None] = queue.SimpleQueue()
        # a database that does not answer does not delay the end of the process
        self._thread = threading.Thread(target=self._run, daemon=True, name="jobscribe grants")
        self._thread.start()

    def perform(self, step: Read | Write, done: Done) -> None:
        """Perform a step. `done` gets its answer: None if the outcome is unknown."""
        self._asked.put((step, done))

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(CLOSE_SECS)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._deliver(functools.partial(asked[1], self._performed(asked[0])))
        if self._raw is not None:
            self._raw.close()

    def _performed(self, step: Read | Write) -> Table | bool | None:
        try:
            if self._raw is None or self._statements is None or self._raw.closed:
                self._raw = connect(self._address, self._password_file)
                self._statements = Statements(self._raw, self._address, self._shard)
            if isinstance(step, Read):
                return self._statements.read()
            return self._statements.write(step, self._epoch())
        except (psycopg.Error, OSError):
            # the writer of the log reports a database that is away
            if self._raw is not None:
                self._raw.close()
            return None
