"""The move of a stopped root's log from its SQLite file into PostgreSQL, or back. Jobs continue
meanwhile.

The order: verify the log, copy it completely, then name the database in the root, or forget it. That
one step moves the ownership: a supervisor serves what the root names, and refuses the other one. At
last the old log is set aside, or marked in the database.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Refusal
from ...protocol.shards import Shard
from ...runtime.filesystems import write_atomically
from ..sql.statements import last_before
from ..sqlite.schema import open_for_reading
from ..store.database_marker import forget_database
from ..store.group_commit import Point, no_fault
from ..store.head_file import NOTHING, DurablePosition
from .database.working_copy import copy_log_to_file
from .file_replacement import companions, exchange, exclusive
from .log_source import site_of, store_path
from .verification import Progress, check, check_file, durable_head, no_progress

if TYPE_CHECKING:
    from ...runtime.store_address import StoreAddress
    from ..postgres.opening import Site


#: In the store's folder while the log of a shard moves: number and count of shards, as JSON.
MOVING_SHARD = "moving-shard.json"


class Moved(msgspec.Struct, kw_only=True, rename="camel"):
    """events: number of events. store: the new place. aside: folder with the previous file; None for
    one in a database, which stays as a copy that is not used.
    """

    events: int
    store: str
    aside: str | None


def move_to_postgres(
    root: Path, site: "Site", name: Callable[[], None], progress: Progress = no_progress
) -> Moved:
    """Move the log. name: names the database in the root, durably. Raises Refusal; then the file is
    still the log.
    """
    from ..postgres.commands.copying import copy_log

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


def move_to_file(root: Path, progress: Progress = no_progress, point: Point = no_fault) -> Moved:
    """Move the log back into the root's file. point: fault hook. Raises Refusal; then the database is
    still the log.
    """
    site = site_of(root)
    if site is None:
        raise Refusal("badRequest", f"the event log of {root} is not in a database")
    from ..postgres.commands.holding import hold, mark_moved
    from ..postgres.commands.snapshot import snapshot

    path = store_path(root)
    new = path.with_name(path.name + ".moving")
    with exclusive(root, path, "move the log") as lock, hold(site, moved=True) as held:
        with snapshot(site, moved=True) as source:
            copy_log_to_file(source, new, progress)
        point("copied")
        try:
            events = _verified(new, held.head, site.address.name, progress)
        except BaseException:
            new.unlink()
            raise
        # complete, but not the log of the root yet
        exchange(path, new, lock, held.head)
        point("replaced")
        forget_database(root)
        point("forgotten")
        mark_moved(held)
    return Moved(events=events, store=str(path), aside=None)


def move_shard(
    root: Path,
    number: int,
    address: "StoreAddress",
    password_file: str | None,
    name: Callable[[], None],
    progress: Progress = no_progress,
    point: Point = no_fault,
) -> Moved | None:
    """Move the log of a shard from its database to another one, through the file of its root. An interrupted
    move continues when it is repeated. Return None if the log is there already. name: see `move_to_postgres`.
    Raises Refusal.
    """
    from ..postgres.opening import Site
    from ..postgres.shards import recorded

    note = store_path(root).with_name(MOVING_SHARD)
    site = site_of(root)
    if site is not None:
        if (site.address.name, site.address.schema) == (address.name, address.schema):
            note.unlink(missing_ok=True)
            return None
        try:
            shard = recorded(site.address, site.password_file)
        except OSError as e:
            raise Refusal(
                "storageUnavailable", f"{site.address.name} cannot be used: {e}"
            ) from None
        if shard is None or shard.number != number:
            raise Refusal(
                "foreignParts",
                f"{site.address.name}, which {root} names, is not the log of shard {number}",
            )
        write_atomically(str(note), msgspec.json.encode(shard), sync=True)
        move_to_file(root, progress)
        point("in file")
    try:
        shard = Shard(*msgspec.json.decode(note.read_bytes(), type=tuple[int, int]))
    except (FileNotFoundError, msgspec.DecodeError):
        raise Refusal(
            "foreignParts",
            f"{root} has no log in a database, as a shard has: 'jobscribe db check' says more",
        ) from None
    root_id = msgspec.json.decode((root / "root.json").read_bytes(), type=_Identity).id
    target = Site(address, password_file, root / "db", root_id, shard=shard)
    done = move_to_postgres(root, target, name, progress)
    note.unlink()
    return done


class _Identity(msgspec.Struct):
    id: str


def _verified(new: Path, head: DurablePosition, name: str, progress: Progress) -> int:
    """Verify the copy, also against the head file of the root. Return the number of events."""
    report = check_file(new, None, progress)
    with contextlib.closing(open_for_reading(new)) as connection:
        end = last_before(connection, 2**62)
    if report.ok and end == head:
        return report.events
    what = report.problems[0].what if report.problems else "its lease names another end"
    raise Refusal(
        "storeDamaged",
        f"{name} is damaged: {what}; see 'jobscribe db check --root {new.parent.parent}'. Nothing was changed",
    )


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.parent / f"before-move-{number}").exists():
        number += 1
    aside.mkdir(0o700)
    for file in (path, *companions(path)):
        if file.exists():
            os.rename(file, aside / file.name)
    return aside
