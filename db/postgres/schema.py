"""The tables of a site: those of the SQLite store, and `site` and `lease` with one row each.

Text is in the collation C: prefixes and orders are then those of SQLite.
"""

from ..events.usage_row import KEY, LARGEST, MOST, SUMS
from ..sql.statements import USAGE_COLUMNS, USAGE_FIELDS

#: The layout of these tables, in `site`.
LAYOUT = 1
_TEXT = 'text COLLATE "C"'
_TEXT_KEY = frozenset(KEY) - {"start"}

TABLES = f"""
CREATE TABLE site (root_id text NOT NULL, layout integer NOT NULL, compatible integer NOT NULL);
CREATE TABLE lease (
    epoch bigint NOT NULL, holder text NOT NULL, released boolean NOT NULL, expires timestamptz NOT NULL,
    position bigint NOT NULL, checksum bytea NOT NULL
);
CREATE UNIQUE INDEX site_once ON site ((true));
CREATE UNIQUE INDEX lease_once ON lease ((true));
CREATE TABLE events (
    position bigint PRIMARY KEY, stream {_TEXT} NOT NULL, version bigint NOT NULL, type {_TEXT} NOT NULL, schema bigint NOT NULL,
    at double precision NOT NULL, body {_TEXT} NOT NULL, checksum bytea NOT NULL, UNIQUE (stream, version)
);
CREATE TABLE jobs (
    jid {_TEXT} PRIMARY KEY, uid {_TEXT} NOT NULL, status {_TEXT} NOT NULL, serial bigint NOT NULL, simulation_type {_TEXT} NOT NULL,
    kind {_TEXT} NOT NULL, driver {_TEXT} NOT NULL, busy smallint NOT NULL, queued_at double precision NOT NULL,
    started_at double precision, ended_at double precision, reason {_TEXT}, position bigint NOT NULL
);
CREATE INDEX jobs_position ON jobs (position);
CREATE INDEX jobs_uid ON jobs (uid, position);
CREATE INDEX jobs_active ON jobs (position) WHERE status IN ('pending', 'running');
CREATE TABLE receipts (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, uid {_TEXT} NOT NULL, req_id {_TEXT} NOT NULL, jid {_TEXT} NOT NULL,
    serial bigint NOT NULL, at double precision NOT NULL, UNIQUE (uid, req_id)
);
CREATE TABLE kinds (type {_TEXT} NOT NULL, schema bigint NOT NULL, PRIMARY KEY (type, schema));
CREATE TABLE names (
    name {_TEXT} NOT NULL, what {_TEXT} NOT NULL, stream {_TEXT} NOT NULL, PRIMARY KEY (name, what, stream)
);
CREATE TABLE usage (
    {", ".join(f"{c} {_TEXT if c in _TEXT_KEY else 'bigint'} NOT NULL" for c in USAGE_FIELDS)},
    PRIMARY KEY ({", ".join(KEY)})
);
""".encode()

_JOB = (
    "jid",
    "uid",
    "status",
    "serial",
    "simulation_type",
    "kind",
    "driver",
    "busy",
    "queued_at",
    "started_at",
    "ended_at",
    "reason",
    "position",
)


def _rows(*types: str) -> str:
    """Return the rows of parameters that are one array for each column."""
    return f"SELECT * FROM unnest({', '.join(f'%s::{t}[]' for t in types)})"


INSERT_EVENTS = f"INSERT INTO events {_rows('bigint', 'text', 'bigint', 'text', 'bigint', 'float8', 'text', 'bytea')}".encode()
INSERT_JOBS = (
    f"INSERT INTO jobs ({', '.join(_JOB)}) "
    + _rows(
        *("text",) * 3, "bigint", *("text",) * 3, "smallint", *("float8",) * 3, "text", "bigint"
    )
    + " ON CONFLICT (jid) DO UPDATE SET "
    + ", ".join(f"{c} = excluded.{c}" for c in _JOB[1:])
).encode()
INSERT_RECEIPTS = (
    "INSERT INTO receipts (uid, req_id, jid, serial, at) "
    + _rows("text", "text", "text", "bigint", "float8")
    # a receipt with the same key gets a new number
    + " ON CONFLICT (uid, req_id) DO UPDATE SET number = DEFAULT, jid = excluded.jid, serial = excluded.serial, at = excluded.at"
).encode()
INSERT_KINDS = f"INSERT INTO kinds {_rows('text', 'bigint')} ON CONFLICT DO NOTHING".encode()
INSERT_NAMES = f"INSERT INTO names {_rows('text', 'text', 'text')} ON CONFLICT DO NOTHING".encode()
INSERT_USAGE = (
    f"INSERT INTO usage ({USAGE_COLUMNS}) "
    + _rows(*("text" if c in _TEXT_KEY else "bigint" for c in USAGE_FIELDS))
    + f" ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET "
    + ", ".join(
        [f"{c} = least(usage.{c} + excluded.{c}, {MOST})" for c in SUMS]
        + [f"{c} = greatest(usage.{c}, excluded.{c})" for c in LARGEST]
    )
).encode()
VERSIONS = b"SELECT stream, max(version) FROM events WHERE stream = ANY(%s::text[]) GROUP BY stream"
#: Numbers of columns of a group, in the order of its statement.
GROUP_COLUMNS = (8, len(_JOB), 5, 3, len(USAGE_FIELDS), 2)


def group_statement(fence: bytes) -> bytes:
    """Return the statement that commits a group: the fence, and the rows of all tables, with their
    columns as arrays. The fence runs first, because the result needs nothing else.
    """
    inserts = (
        INSERT_EVENTS,
        INSERT_JOBS,
        INSERT_RECEIPTS,
        INSERT_NAMES,
        INSERT_USAGE,
        INSERT_KINDS,
    )
    mine, _, result = fence.rpartition(b" SELECT ")
    added = b"".join(b", t%d AS (%s)" % (n, insert) for n, insert in enumerate(inserts))
    return mine + added + b" SELECT " + result
