"""`jobscribe job files`, `job get` and `job put`: files of a job's run directory, and local copies."""

import itertools
import time
from typing import Any

import click

from ....client.api.replies import Transfer
from ....protocol.errors import Refusal
from ...session.job_names import resolve_job
from ...session.session import Session, command, session
from ...terminal.quantities import amount, moment
from .selection import local_files, matching_files

_GLOBS = click.argument("globs", nargs=-1, metavar="[GLOB...]")
#: Largest number of listed files, unless --limit changes it.
_LISTED = 10_000


@command()
@click.argument("name", metavar="JOB")
@_GLOBS
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_LISTED,
    metavar="N",
    help=f"Largest number of listed files ({_LISTED}).",
)
def files(name: str, globs: tuple[str, ...], limit: int) -> None:
    """List the files in the run directory of JOB, on any machine: size, time of the last change,
    name.

    GLOB selects files: * and ? match anything except a slash, ** matches any folders, and the name
    of a folder matches everything in it.
    """
    s = session()
    jid = resolve_job(s, name)
    matching = matching_files(s, s.client_for(jid), jid, globs)
    found = list(itertools.islice(matching, limit))
    more = next(matching, None) is not None
    if s.screen.json:
        s.screen.value("jobscribe.job.files/1", {"computeJid": jid, "items": found, "more": more})
    elif found:
        s.screen.table(
            ("SIZE", "CHANGED", "NAME"),
            [[str(f["size"]), moment(f["mtime"]), f["name"]] for f in found],
        )
    else:
        s.screen.message(
            f"no file in the run directory of {jid}"
            + (f" matches {' or '.join(globs)}" if globs else "")
        )
    if more:
        s.screen.message(f"there are more than {limit} files; name some by GLOB, or use --limit")


@command()
@click.argument("name", metavar="JOB")
@_GLOBS
@click.option(
    "-o",
    "--output",
    "folder",
    default=".",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Target folder; created if missing (default: the current one).",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def get(name: str, globs: tuple[str, ...], folder: str, force: bool) -> None:
    """Copy files from the run directory of JOB to a local folder, with the same relative names, and
    print their paths.

    Without GLOB all files are copied; GLOB selects files as in `job files`. Each copy is compared by
    SHA-256. If the copy is interrupted, the same command continues it. Exits with 125 if a file
    could not be copied.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    found = list(matching_files(s, client, jid, globs))
    if not found:
        condition = f" matches {' or '.join(globs)}" if globs else ""
        raise Refusal(
            "notFound",
            f"no file in the run directory of {jid}{condition}",
            {"advice": f"jobscribe job files {jid}{s.supervisor_options()}"},
        )
    copies = _Copies(s, "get", jid, len(found), sum(f["size"] for f in found))
    client.get_files(
        jid,
        [f["name"] for f in found],
        folder,
        replace=force,
        on_progress=copies.progress,
        on_done=copies.done,
    )
    copies.report()


@command()
@click.argument("name", metavar="JOB")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--to",
    "folder",
    default="",
    metavar="DIR",
    help="Folder in the run directory; created if missing (default: the run directory itself).",
)
@click.option("--replace", is_flag=True, help="Replace existing files.")
@click.option("--force", is_flag=True, help="Also while the run is active.")
def put(name: str, paths: tuple[str, ...], folder: str, replace: bool, force: bool) -> None:
    """Copy local files and folders into the run directory of JOB, and print their names there.

    A file appears when it is complete and its SHA-256 is correct. If the copy is interrupted, the
    same command continues it. A folder is copied with its name and everything in it, except links.
    Exits with 125 if a file could not be copied.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    found = local_files(s, paths, folder)
    copies = _Copies(s, "put", jid, len(found))
    client.put_files(
        jid,
        found,
        replace=replace,
        active=force,
        on_progress=copies.progress,
        on_done=copies.done,
    )
    copies.report()


class _Copies:
    """Shows the progress and the results of copies. total: bytes; 0: not known."""

    def __init__(self, s: Session, verb: str, jid: str, count: int, total: int = 0) -> None:
        self._s, self._verb, self._jid, self._count = s, verb, jid, count
        self._total = f" of {amount(total)}" if total else ""
        self._begun = time.monotonic()
        self._copied: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []

    def progress(self, count: int, files: int) -> None:
        self._s.screen.progress(
            f"{files} of {self._count} files, {amount(count)}{self._total} copied",
            time.monotonic() - self._begun,
        )

    def done(self, found: Transfer) -> None:
        screen = self._s.screen
        if found.code:
            screen.message(f"{found.name}: {found.error}")
            self._failed.append({"name": found.name, "code": found.code, "error": found.error})
            return
        item = {"name": found.name, "path": found.path, "size": found.size}
        self._copied.append({**item, "note": found.note} if found.note else item)
        if found.note:
            screen.message(f"{found.name}: {found.note}")
        if not screen.json:
            screen.line(found.path if self._verb == "get" else found.name)

    def report(self) -> None:
        """Print the JSON value. Exit with 125 if a file failed."""
        if self._s.screen.json:
            self._s.screen.value(
                f"jobscribe.job.{self._verb}/1",
                {"computeJid": self._jid, "items": self._copied, "failed": self._failed},
            )
        if self._failed:
            raise SystemExit(125)
