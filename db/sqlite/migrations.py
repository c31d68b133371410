"""Migration of a store file from an older layout to the current one, in one transaction. After a
kill at any moment the file has either layout, never a mixture.
"""

import sqlite3
import time
from collections.abc import Callable

from ..sql.name_table import write_names
from ..sql.usage_table import write_usage
from .schema import LAYOUT, NAMES_TABLE, USAGE_TABLE, make_tables

#: Receives a progress sentence while a slow operation runs.
LogMessage = Callable[[str], None]
#: Time before the first progress message, and between two of them.
SLOW_SECS = 2.0


def ignore_message(sentence: str) -> None:
    """Ignore the message."""


def migrate(connection: sqlite3.Connection, layout: int, log: LogMessage = ignore_message) -> None:
    """Migrate a file of `layout` to the current layout. Raises sqlite3.Error without changes."""
    if layout == LAYOUT:
        return
    logged_at = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal logged_at
        if time.monotonic() >= logged_at + SLOW_SECS:
            logged_at = time.monotonic()
            log(
                f"migrating the event store of an earlier version: {what} of {done} of {total} events"
            )

    connection.execute("BEGIN IMMEDIATE")
    try:
        # an older version may have written the log since the tables were
        if layout < 2:
            make_tables(connection, "DROP TABLE IF EXISTS names;" + NAMES_TABLE)
            write_names(connection, progress)
        make_tables(connection, "DROP TABLE IF EXISTS usage;" + USAGE_TABLE)
        write_usage(connection, progress)
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
