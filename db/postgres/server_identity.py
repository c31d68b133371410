"""The server that served a root last: PostgreSQL's system identifier and timeline, in a file of the root. A primary
that was replaced by its replica and still runs is on an earlier timeline of the same system; its log is refused.

The file is shared by all supervisors of a site, as the root is.
"""

from pathlib import Path

import msgspec

from ...runtime.filesystems import write_atomically
from .connection import Raw

FILE = "store.server"
_READ = (
    b"SELECT system_identifier::text, CASE WHEN NOT pg_is_in_recovery()"
    b" THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END"
    b" FROM pg_control_system()"
)


class Server(msgspec.Struct, frozen=True):
    """system: identifier of the cluster, which its replicas share. timeline: it grows when a replica is
    promoted.
    """

    system: str
    timeline: int


def read(raw: Raw) -> Server | None:
    """Return the server of a connection; None for a replica, which takes no writes. Raises psycopg.Error."""
    row = raw.execute(_READ).fetchone()
    assert row is not None
    return None if row[1] is None else Server(*row)


def known(folder: Path) -> Server | None:
    """Return the server that served last; None if it is not known."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Server)
    except (OSError, msgspec.DecodeError):
        return None


def fault(folder: Path, found: Server | None, name: str) -> str | None:
    """Return the sentence for a server that was replaced; None for another one. name: of the log."""
    last = known(folder)
    if (
        last is None
        or found is None
        or last.system != found.system
        or found.timeline >= last.timeline
    ):
        return None
    return (
        f"the server of {name} is on timeline {found.timeline}, but this site was served on timeline {last.timeline}"
        f" of the same system {found.system} since: a replica was promoted, and this former primary still takes"
        " writes. Stop it, and let store.url name the present primary. If an earlier state was restored on purpose,"
        f" remove {folder / FILE}"
    )


def record(folder: Path, found: Server | None) -> None:
    """Record that this server serves the root. Raises OSError."""
    last = known(folder)
    if found is None or last == found:
        return
    if last is not None and last.system == found.system and last.timeline > found.timeline:
        return
    write_atomically(str(folder / FILE), msgspec.json.encode(found), sync=True)
