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
    """Return the root directory. Raises Refusal if this user cannot read its store."""
    from ...protocol.errors import Refusal
    from ...supervisor.process.event_log import address_of

    if s.options.get("url"):
        raise click.UsageError("this command reads the store's files: give --root instead of --url")
    root = Path(s.root)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.listdir(root / "db")
        except PermissionError:
            raise Refusal(
                "foreignRoot",
                f"the event store in {root} cannot be read: it belongs to another user",
            ) from None
    address = address_of(root)
    if address is not None:
        raise Refusal(
            "badRequest",
            f"the event store of {root} is in {address}, and this command reads a SQLite file: use pg_dump and"
            " pg_restore for backups, 'jobscribe trace' and the API for histories (see docs/store.md)",
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
