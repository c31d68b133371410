"""From the layout of an older version to this one's, in one transaction: killed at any moment, the
file is of the one or of the other.
"""

import sqlite3
import time
from collections.abc import Callable

from .name_table import write_names
from .schema import LAYOUT, NAMES_TABLE, make_tables

#: Receives a sentence now and then while something takes long.
Say = Callable[[str], None]
#: From so long on it is said how far it has come, and so often.
SLOW_SECS = 2.0


def quiet(sentence: str) -> None:
    """Of somebody who does not listen."""


def bring_up(connection: sqlite3.Connection, layout: int, say: Say = quiet) -> None:
    """Make a file of `layout` one of this version's. Raises sqlite3.Error, and has changed nothing
    then.
    """
    if layout == LAYOUT:
        return
    said = time.monotonic()

    def progress(_: str, done: int, of: int) -> None:
        nonlocal said
        if time.monotonic() >= said + SLOW_SECS:
            said = time.monotonic()
            say(
                f"the event store of an earlier version gets its index of names: {done} of {of} events"
            )

    connection.execute("BEGIN IMMEDIATE")
    try:
        make_tables(connection, NAMES_TABLE)
        write_names(connection, progress)
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
