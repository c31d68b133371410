"""The move of a stopped root's log from its SQLite file into PostgreSQL. Jobs continue meanwhile.

The order: verify the file, copy it in one transaction, name the database in the root, set the file
aside. A crash in between leaves the root with the file or with the database, each complete.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Refusal
from ..sqlite.schema import open_for_reading
from ..store.head_file import NOTHING
from .file_replacement import companions, exclusive
from .log_source import store_path
from .verification import Progress, check, durable_head, no_progress

if TYPE_CHECKING:
    from ..postgres.opening import Site


class Moved(msgspec.Struct, kw_only=True, rename="camel"):
    """events: number of events. store: the new place. aside: folder with the previous file."""

    events: int
    store: str
    aside: str


def move_to_postgres(
    root: Path, site: "Site", name: Callable[[], None], progress: Progress = no_progress
) -> Moved:
    """Move the log. name: names the database in the root, durably. Raises Refusal; then the file is
    still the log.
    """
    from ..postgres.copying import copy_log

    path = store_path(root)
    if not path.exists():
        raise Refusal("notFound", f"there is no event store at {path}")
    with exclusive(root, path, "move the log") as lock:
        report = check(root, progress)
        if not report.ok:
            raise Refusal(
                "storeDamaged",
                f"{path} is damaged: {report.problems[0].what}; see 'jobscribe db check --root {root}'",
            )
        connection = open_for_reading(path)
        try:
            head = durable_head(connection, lock.mark or NOTHING)
            events = copy_log(site, connection, head, progress)
        finally:
            connection.close()
        lock.reset(*head)
        name()
        aside = _set_aside(path)
    return Moved(events=events, store=site.address.name, aside=str(aside))


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.parent / f"before-move-{number}").exists():
        number += 1
    aside.mkdir(0o700)
    for file in (path, *companions(path)):
        if file.exists():
            os.rename(file, aside / file.name)
    return aside
