"""The event log of a root, in its SQLite file or in PostgreSQL (`store.url`).

A root with its log in PostgreSQL has a file that names it, so that neither a supervisor nor a
command takes it for a root without a log. This module imports psycopg only for such roots.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...db.maintenance.log_source import store_path
from ...db.sqlite.opening import never_used, system_events
from ...db.sqlite.store import SqliteStore
from ...db.store.contract import Deliver, EventStore, Stored
from ...db.store.database_marker import name_database, named_database
from ...db.store.group_commit import Point
from ...db.store.head_file import NOTHING, read_head
from ...protocol.errors import Refusal
from ...protocol.shards import Shard
from ...runtime.store_address import StoreAddress, parsed

if TYPE_CHECKING:
    from ...db.postgres.opening import Site
    from ...db.postgres.site_tables.tables import SiteTables
    from ...db.postgres.supervisors import Claim
    from ...service.settings.settings import Settings

LogMessage = Callable[[str], None]


class SupervisorSeen(NamedTuple):
    """One supervisor of a site. role: `serving`, `standby` or `away`. seen_secs_ago: its last sign.
    clock_ahead: of the database's, in seconds. epoch, lease_ends_in: of the holder; seconds.
    """

    role: str
    host: str
    pid: int
    seen_secs_ago: float
    clock_ahead: float
    epoch: int | None = None
    lease_ends_in: float | None = None


class LogSize(NamedTuple):
    """jobs: numbers of jobs by driver, kind and status. supervisors: None unless they stand by."""

    jobs: list[tuple[str, str, str, int]]
    size: int
    supervisors: list[SupervisorSeen] | None = None


class EventLog:
    """The log in the root's SQLite file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: of a supervisor that took the lease after it stood by
        self.claim: Claim | None = None

    def check(self) -> None:
        """Raise Refusal if the root's log is elsewhere."""
        url = address_of(self._root)
        if url is not None:
            raise Refusal(
                "badConfig",
                f"the event log of {self._root} is in {url}, but store.url is not set: set it",
            )

    def never_used(self) -> bool:
        """Return whether there was never a log. Raises OSError, Refusal."""
        return never_used(store_path(self._root))

    def system_events(self) -> list[Stored] | None:
        """Return the events of the stream `system`; None if they cannot be read."""
        return system_events(store_path(self._root))

    def open(self, root_id: str, deliver: Deliver, point: Point, log: LogMessage) -> EventStore:
        """Open the store. Raises Refusal."""
        return SqliteStore(store_path(self._root), deliver, point=point, log=log)

    def site_tables(self, store: EventStore, deliver: Deliver) -> "SiteTables | None":
        """Return the tables that shards share; None for a site without shards."""
        return None

    def site(self, root_id: str) -> "Site":
        """Return the place of a log that several supervisors reach."""
        raise AssertionError("store.standby needs store.url")

    def measure(self) -> LogSize | None:
        """Count jobs and bytes; None where the file is measured. Raises OSError."""
        return None

    def supervisors(self) -> list[SupervisorSeen] | None:
        """Return the supervisors of the site, the one that serves first; None unless they stand by. Waits
        for the database. Raises OSError.
        """
        return None


class PostgresLog(EventLog):
    """The log in a PostgreSQL schema."""

    def __init__(
        self, root: Path, url: str, password_file: str | None, shard: Shard | None = None
    ) -> None:
        super().__init__(root)
        self._shard = shard
        self._url, self._password_file = url, password_file
        self._address: StoreAddress = parsed(url)

    def check(self) -> None:
        if not never_used(store_path(self._root)) and address_of(self._root) is None:
            raise Refusal(
                "badConfig",
                f"the event log of {self._root} is in {store_path(self._root)}, but store.url names a database:"
                " remove store.url, or use another root",
            )
        other = address_of(self._root)
        if other is not None and parsed(other).schema != self._address.schema:
            raise Refusal(
                "badConfig",
                f"the event log of {self._root} is in {other}, but store.url has the schema {self._address.schema}:"
                " set the right one",
            )

    def never_used(self) -> bool:
        return read_head(self._root / "db") in (None, NOTHING) and self.system_events() is None

    def system_events(self) -> list[Stored] | None:
        from ...db.postgres.opening import system_events as read

        return read(self._address, self._password_file)

    def open(self, root_id: str, deliver: Deliver, point: Point, log: LogMessage) -> EventStore:
        from ...db.postgres.store import PostgresStore

        store = PostgresStore(self.site(root_id), deliver, point=point)
        name_database(self._root, self._url, self._password_file)
        log(f"the event store is in {self._address.name} head={store.head()}")
        return store

    def measure(self) -> LogSize | None:
        from ...db.postgres.reader import measured

        jobs, size = measured(self._address, self._password_file)
        return LogSize(jobs, size, self.supervisors())

    def supervisors(self) -> list[SupervisorSeen] | None:
        if self.claim is None:
            return None
        from ...db.postgres.supervisors import listed

        return [
            SupervisorSeen(
                m.role,
                m.host,
                m.pid,
                m.seen_secs_ago,
                m.clock_ahead_secs,
                m.epoch,
                m.lease_ends_in_secs,
            )
            for m in listed(self._address, self._password_file)
        ]

    def site_tables(self, store: EventStore, deliver: Deliver) -> "SiteTables | None":
        from ...db.postgres.site_tables.tables import SiteTables
        from ...db.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        if self._shard is None:
            return None
        return SiteTables(
            self._address, self._password_file, self._shard, lambda: store.epoch, deliver
        )

    def site(self, root_id: str) -> "Site":
        from ...db.postgres.opening import Site

        return Site(
            self._address, self._password_file, self._root / "db", root_id, self.claim, self._shard
        )


def event_log(root: Path, settings: "Settings") -> EventLog:
    """Return the log of these settings. Raises Refusal if the root's log is elsewhere."""
    s = settings.store
    log = (
        EventLog(root)
        if s.url is None
        else PostgresLog(root, s.url, s.password_file, settings.shard)
    )
    log.check()
    return log


def address_of(root: Path) -> str | None:
    """Return the address of the root's database; None for a root with its log in a file."""
    database = named_database(root)
    return None if database is None else database.url
