"""Access to the event store of this command line's root, and output shared by the `db` commands."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ..session.session import Session

#: Arguments: unit, number done, total.
Progress = Callable[[str, int, int], None]


shard_option = click.option(
    "--shard",
    type=click.IntRange(0),
    metavar="K",
    help="Only this shard, of a site with shards. Default: all.",
)


def store_root(s: Session) -> Path:
    """Return the root directory, whose log may be in a database. Raises Refusal if this user cannot
    read its store, and for the root of a site with shards.
    """
    from ...protocol.errors import Refusal

    root = _root(s)
    if (root / "shards").is_dir():
        raise Refusal(
            "badRequest",
            f"{root} is the root of a site with shards, each with a store of its own: name the root of one shard,"
            f" --root {root / 'shards' / '0'}",
        )
    return _readable(root)


def store_roots(
    s: Session, shard: int | None, *, also: Collection[int] = ()
) -> list[tuple[int | None, Path]]:
    """Return the roots of this shard or of all shards, with their numbers; of a site without shards its
    root, without one. also: shards that count without a log. Raises Refusal.
    """
    from ...protocol.errors import Refusal

    root = _root(s)
    folder = root / "shards"
    if not folder.is_dir():
        if shard is not None:
            raise Refusal(
                "badRequest",
                f"{root} is not the root of a site with shards: leave --shard out",
            )
        return [(None, _readable(root))]
    found = sorted(
        int(p.name)
        for p in folder.iterdir()
        if p.name.isdecimal() and (int(p.name) in also or _is_used(p))
    )
    if shard is not None and shard not in found:
        raise Refusal("notFound", f"the site in {root} has no shard {shard} on this machine")
    numbers = found if shard is None else [shard]
    return [(k, _readable(folder / str(k))) for k in numbers]


def _is_used(root: Path) -> bool:
    """Return whether the root of a shard ever had a log: a start that was refused leaves one without."""
    from ...db.store.database_marker import named_database
    from ...db.store.head_file import NAME, NOTHING, read_head

    if named_database(root) is not None or (root / "db/events.sqlite").exists():
        return True
    try:
        return (root / "db" / NAME).exists() and read_head(root / "db") != NOTHING
    except OSError:
        return True  # the command says why it cannot be read


def head_of(shard: int | None) -> str:
    """Return the begin of a line about a shard."""
    return "" if shard is None else f"shard {shard}: "


def of_site(results: Mapping[int | None, Any]) -> Any:
    """Return the result for a root, or for a site with shards an object with that of each."""
    return results.get(None, {"shards": {str(k): result for k, result in results.items()}})


def _root(s: Session) -> Path:
    if s.options.get("url"):
        raise click.UsageError("this command reads the store's files: give --root instead of --url")
    return Path(s.root)


def _readable(root: Path) -> Path:
    from ...protocol.errors import Refusal

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
    with locked(store_root(s)) as root:
        yield root


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Hold the lock of this root. Raises Refusal."""
    from ...protocol.errors import Refusal
    from ...supervisor.process.root_directory import RootDirectory

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
