"""The SQLite file: tables, pragmas, and how it is opened. `sql.statements` has the statements.

`events` is the log. `jobs`, `receipts`, `names`, `usage` and `kinds` are derived from it and written
in the same transaction. Layout 1 had no `names`, layout 2 no `usage`: opening for writing adds the
tables (see `migrations`).

A later layout may be compatible with this one: the table `compatible` then holds the oldest layout
whose versions may write the file. Such a version sets the file's layout back to its own, and the
later version derives its tables again when it opens the file.
"""

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path

from ...protocol.errors import Refusal
from ..events.usage_row import KEY
from ..sql.statements import USAGE_FIELDS

FILE = "events.sqlite"
#: Value of `PRAGMA user_version`.
LAYOUT = 3
#: Identifies the file for file(1) and people; no code depends on it.
APPLICATION_ID = 0x6A736372

_TABLES = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY, stream TEXT NOT NULL, version INTEGER NOT NULL, type TEXT NOT NULL, schema INTEGER NOT NULL,
    at REAL NOT NULL, body TEXT NOT NULL, checksum BLOB NOT NULL, UNIQUE (stream, version)
);
CREATE TABLE jobs (
    jid TEXT PRIMARY KEY, uid TEXT NOT NULL, status TEXT NOT NULL, serial INTEGER NOT NULL, simulation_type TEXT NOT NULL,
    kind TEXT NOT NULL, driver TEXT NOT NULL, busy INTEGER NOT NULL, queued_at REAL NOT NULL, started_at REAL, ended_at REAL,
    reason TEXT, position INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_position ON jobs (position);
CREATE INDEX jobs_uid ON jobs (uid, position);
CREATE INDEX jobs_active ON jobs (position) WHERE status IN ('pending', 'running');
CREATE TABLE receipts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, req_id TEXT NOT NULL, jid TEXT NOT NULL, serial INTEGER NOT NULL,
    at REAL NOT NULL, UNIQUE (uid, req_id)
);
CREATE TABLE kinds (type TEXT NOT NULL, schema INTEGER NOT NULL, PRIMARY KEY (type, schema)) WITHOUT ROWID;
"""
#: Added by layout 2.
NAMES_TABLE = """
CREATE TABLE names (name TEXT NOT NULL, what TEXT NOT NULL, stream TEXT NOT NULL, PRIMARY KEY (name, what, stream)) WITHOUT ROWID;
"""
#: Added by layout 3. One column for each field of a row.
USAGE_TABLE = f"""
CREATE TABLE usage (
    {", ".join(f"{c} {'INTEGER' if c not in KEY or c == 'start' else 'TEXT'} NOT NULL" for c in USAGE_FIELDS)},
    PRIMARY KEY ({", ".join(KEY)})
) WITHOUT ROWID;
"""

_HAS_COMPATIBLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'compatible'"


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file in WAL mode with full sync; create it with mode 0600 if missing. Raises
    sqlite3.Error, OSError, Refusal.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=64
    )
    try:
        # the writer makes checkpoints and checks their errors; SQLite ignores errors in its own
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        known_layout(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise Refusal(
                "storageUnavailable", f"{path} cannot be put into WAL mode; it is in mode {mode}"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(
    path: Path, *, alone: bool = False, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open the file read-only, while other processes may write. Raises sqlite3.Error.

    alone: no other process has the file open. If there is also no WAL, SQLite creates no files
    beside it.
    """
    still = alone and not _wal_of(path)
    mode = "?immutable=1" if still else "?mode=ro"
    connection = sqlite3.connect(
        path.absolute().as_uri() + mode,
        uri=True,
        isolation_level=None,
        timeout=5.0,
        factory=factory,
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


class _SharedConnection(sqlite3.Connection):
    """Holds a shared lock on the folder of the file until it is closed."""

    folder_fd = -1

    def close(self) -> None:
        super().close()
        fd, self.folder_fd = self.folder_fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if self.folder_fd >= 0:
            os.close(self.folder_fd)


def open_shared(path: Path) -> sqlite3.Connection:
    """Open the file read-only, and keep the store's writer from replacing it meanwhile: SQLite's
    files beside the log would then belong to another log. Raises sqlite3.Error, OSError.
    """
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a backup on a network file system, which nobody writes
            fcntl.flock(fd, fcntl.LOCK_SH)
        connection = open_for_reading(path, factory=_SharedConnection)
    except BaseException:
        os.close(fd)
        raise
    assert isinstance(connection, _SharedConnection)
    connection.folder_fd = fd
    return connection


def _wal_of(path: Path) -> int:
    """Return the size of the WAL file; 0 if missing."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def known_layout(connection: sqlite3.Connection, path: Path) -> int:
    """Return the layout of the file, 0 for an empty file; LAYOUT for a newer, compatible one. Raises
    Refusal for a newer layout that is not compatible. Does not verify that the file is a store.
    """
    layout = _layout(connection)
    oldest = layout
    if layout > LAYOUT and connection.execute(_HAS_COMPATIBLE).fetchone()[0]:
        (oldest,) = connection.execute("SELECT max(layout) FROM compatible").fetchone()
    if layout > LAYOUT and not (isinstance(oldest, int) and oldest <= LAYOUT):
        raise Refusal(
            "unknownEvent",
            f"{path} has layout {layout}; this version knows layouts up to {LAYOUT}. Start the"
            " version of jobscribe that wrote it, or restore a backup from before the upgrade",
        )
    return min(layout, LAYOUT)


def set_back(connection: sqlite3.Connection) -> int | None:
    """Set a newer, compatible layout back to LAYOUT, before anything is written. Return the newer
    layout; None if there was none. Raises sqlite3.Error.
    """
    layout = _layout(connection)
    if layout <= LAYOUT:
        return None
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
    return layout


def _layout(connection: sqlite3.Connection) -> int:
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    return int(layout)


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, all or none. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        make_tables(connection, _TABLES + NAMES_TABLE + USAGE_TABLE)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def make_tables(connection: sqlite3.Connection, statements: str) -> None:
    """Create tables within the caller's transaction, which `executescript` would commit."""
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement)
