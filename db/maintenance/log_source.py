"""The log of a root, as commands read it: in its SQLite file, or in the PostgreSQL schema that the root
names. Both also while a supervisor uses it. Nothing here writes.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import Refusal
from ...runtime.store_address import parsed
from ..sql.log_end import LogPlace
from ..sql.reader import SqlReader
from ..sql.statements import SqlConnection
from ..sqlite.opening import place, repair
from ..sqlite.reader import Reader
from ..sqlite.schema import FILE, known_layout, open_shared
from ..store import head_file
from ..store.database_marker import named_database
from ..store.disk_errors import UNREADABLE, open_refusal
from ..store.head_file import DurablePosition

if TYPE_CHECKING:
    from ..postgres.opening import Site


class LogSource(Protocol):
    """place: its name, advice and errors. folder: of its head file."""

    place: LogPlace
    folder: Path

    def snapshot(self) -> AbstractContextManager[SqlConnection]:
        """Open one state of the log. Raises Refusal."""

    def reader(self) -> AbstractContextManager[SqlReader]:
        """Open a reader of streams and jobs. Raises Refusal."""

    def layout(self, connection: SqlConnection) -> int:
        """Return the layout as the file has it: `sqlite.schema.LAYOUT` has all tables."""

    def faults(self, connection: SqlConnection, end: DurablePosition) -> Iterator[str]:
        """Yield sentences about faults outside of the rows of the log, which ends at `end`."""


def store_path(root: Path) -> Path:
    return root / "db" / FILE


def log_source(root: Path) -> LogSource:
    """Return the log of a root. Raises Refusal for an address that is not one."""
    site = site_of(root)
    return FileSource(store_path(root)) if site is None else DatabaseSource(site)


def site_of(root: Path) -> "Site | None":
    """Return the site in the database that the root names; None for a root with its log in a file.
    Raises Refusal.
    """
    database = named_database(root)
    if database is None:
        return None
    from ..postgres.opening import Site

    if database.root_id is None:
        raise Refusal("notFound", f"{root} has no root.json: put it back, it names the root")
    return Site(parsed(database.url), database.password_file, root / "db", database.root_id)


class FileSource:
    """The log in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path, self.folder, self.place = path, path.parent, place(path)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[SqlConnection]:
        with contextlib.closing(open_file(self._path)) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextlib.contextmanager
    def reader(self) -> Iterator[SqlReader]:
        open_file(self._path).close()
        with contextlib.closing(Reader(self._path)) as reader:
            yield reader

    def layout(self, connection: SqlConnection) -> int:
        assert isinstance(connection, sqlite3.Connection)
        return known_layout(connection, self._path)

    def faults(self, connection: SqlConnection, end: DurablePosition) -> Iterator[str]:
        for (text,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
            if text != "ok":
                yield str(text)


class DatabaseSource:
    """The log in a PostgreSQL schema."""

    def __init__(self, site: "Site") -> None:
        from ..postgres.opening import place as database_place

        self._site, self.folder, self.place = site, site.folder, database_place(site)

    def snapshot(self) -> AbstractContextManager[SqlConnection]:
        from ..postgres.commands.snapshot import snapshot

        return snapshot(self._site)

    @contextlib.contextmanager
    def reader(self) -> Iterator[SqlReader]:
        from ..postgres.reader import Reader as DatabaseReader

        with self.snapshot():
            pass  # says by name what is missing
        with contextlib.closing(DatabaseReader(self._site, lambda: True)) as reader:
            yield reader

    def layout(self, connection: SqlConnection) -> int:
        return 3

    def faults(self, connection: SqlConnection, end: DurablePosition) -> Iterator[str]:
        from ..postgres.commands.snapshot import faults
        from ..postgres.connection import Connection

        assert isinstance(connection, Connection)
        return faults(connection, end)


def opened(root: Path) -> sqlite3.Connection:
    """Open the store's file for reading. Raises Refusal."""
    return open_file(store_path(root))


def open_file(path: Path) -> sqlite3.Connection:
    """Open a store's file for reading. Raises Refusal."""
    if not path.exists():
        mark = head_file.read_head(path.parent)
        if mark is not None and mark != head_file.NOTHING:
            raise Refusal(
                "storeDamaged",
                f"{path} is missing, but position {mark.position} was durable. {repair(path)}",
            )
        raise Refusal("notFound", f"there is no event store at {path}")
    try:
        connection = open_shared(path)
    except UNREADABLE as e:
        raise open_refusal(e, str(path), lambda: repair(path)) from None
    try:
        if not known_layout(connection, path):
            raise Refusal("storeDamaged", f"{path} contains no event store. {repair(path)}")
    except UNREADABLE as e:
        connection.close()
        raise open_refusal(e, str(path), lambda: repair(path)) from None
    except BaseException:
        connection.close()
        raise
    return connection
