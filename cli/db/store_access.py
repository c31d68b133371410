"""Access to the event store of this command line's root, and output shared by the `db` commands."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..session.session import Session

#: Arguments: unit, number done, total.
Progress = Callable[[str, int, int], None]


def store_root(s: Session) -> Path:
    """Return the root directory, whose log may be in a database. Raises Refusal if this user cannot
    read its store.
    """
    from ...protocol.errors import Refusal

    if s.options.get("url"):
        raise click.UsageError("this command reads the store's files: give --root instead of --url")
    root = Path(s.root)
    if (root / "shards").is_dir():
        raise Refusal(
            "badRequest",
            f"{root} is the root of a site with shards, each with a store of its own: name the root of one shard,"
            f" --root {root / 'shards' / '0'}",
        )
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.listdir(root / "db")
        except PermissionError:
            raise Refusal(
                "foreignRoot",
                f"the event store in {root} cannot be read: it belongs to another user",
            ) from None
    return root


def file_root(s: Session) -> Path:
    """Return the root directory of a log in a file. Raises Refusal also for a log in a database."""
    from ...db.store.database_marker import named_database
    from ...protocol.errors import Refusal

    root = store_root(s)
    database = named_database(root)
    if database is not None:
        raise Refusal(
            "badRequest",
            f"the event store of {root} is in {database.url}, and this command is for a store in a file:"
            " 'jobscribe db move --to-file' moves the log into one (see docs/store.md)",
        )
    return root


@contextlib.contextmanager
def locked_root(s: Session) -> Iterator[Path]:
    """Hold the lock of an existing root, so that no supervisor can start in it. Raises Refusal."""
    from ...protocol.errors import Refusal
    from ...supervisor.process.root_directory import RootDirectory

    path = store_root(s)
    if not path.is_dir():
        raise Refusal("notFound", f"the root {path} does not exist")
    root = RootDirectory(str(path))
    try:
        yield root.path
    finally:
        root.close()


def progress_reporter(s: Session) -> Progress:
    """Return a function that shows progress on the screen."""
    begun = time.monotonic()

    def report(unit: str, done: int, total: int) -> None:
        s.screen.progress(f"{done} of {total} {unit}", time.monotonic() - begun)

    return report


def print_result(s: Session, schema: str, lines: list[str], value: Any) -> None:
    """Print `value` as JSON with --json, otherwise the lines."""
    if s.screen.json:
        import msgspec

        s.screen.value(schema, msgspec.to_builtins(value))
        return
    for line in lines:
        s.screen.line(line)
