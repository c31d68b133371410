"""Contract for exchanging the log file while the store is open. The writer calls it in its thread,
between two commits; `maintenance.online_compaction` implements it.
"""

import sqlite3
from typing import NamedTuple, Protocol

from ..store.contract import Done, Stored
from ..store.head_file import DurablePosition, HeadFile


class Exchanged(NamedTuple):
    """The new file, open for writing. closing: its last event, at `head`."""

    connection: sqlite3.Connection
    head: DurablePosition
    closing: Stored
    kinds: frozenset[tuple[str, int]]


class LogExchange(Protocol):
    def complete(self, old: sqlite3.Connection, log: DurablePosition) -> None:
        """Bring the new file up to `log`, the end of the old one, and close it. Any exception
        leaves the old log in use, unchanged.
        """

    def replace(
        self, old: sqlite3.Connection, head_file: HeadFile, log: DurablePosition
    ) -> Exchanged:
        """Close the old file and put the new one in its place. After an exception the writer
        stops: the next start finds one of the two logs, complete.
        """


class PendingExchange(NamedTuple):
    exchange: LogExchange
    done: Done
