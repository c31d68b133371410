"""`jobscribe job files` and `job get`: files of a job's run directory, and local copies."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import Refusal
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import moment

if TYPE_CHECKING:
    from ...client.sync_client import Client
    from ...client.transport.connection import FileReader

_GLOBS = click.argument("globs", nargs=-1, metavar="[GLOB...]")
#: Error codes that concern one file; the other files can still be copied.
_FILE_ERRORS = frozenset({"notFound", "forbidden", "conflict", "badRequest", "tooLarge"})


@command()
@click.argument("name", metavar="JOB")
@_GLOBS
def files(name: str, globs: tuple[str, ...]) -> None:
    """List the files in the run directory of JOB, on any machine: size, time of the last change,
    name.

    GLOB selects files: * and ? match anything except a slash, ** matches any folders, and the name
    of a folder matches everything in it.
    """
    s = session()
    jid = resolve_job(s, name)
    found = list(_matching_files(s, s.client_for(jid), jid, globs))
    if s.screen.json:
        s.screen.value("jobscribe.job.files/1", {"computeJid": jid, "items": found})
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

    Without GLOB all files are copied; GLOB selects files as in `job files`. Exits with 125 if a
    file could not be copied.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    found = list(_matching_files(s, client, jid, globs))
    if not found:
        condition = f" matches {' or '.join(globs)}" if globs else ""
        raise Refusal(
            "notFound",
            f"no file in the run directory of {jid}{condition}",
            {"advice": f"jobscribe job files {jid}{s.supervisor_options()}"},
        )
    copied, failed = _Copier(s, client, jid, folder, force).copy_all(found)
    if s.screen.json:
        s.screen.value(
            "jobscribe.job.get/1", {"computeJid": jid, "items": copied, "failed": failed}
        )
    if failed:
        raise SystemExit(125)


def _matching_files(
    s: Session, client: "Client", jid: str, globs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    wanted = [_compile(glob) for glob in globs]
    begun, count = time.monotonic(), 0
    for count, file in enumerate(client.files(jid), 1):
        s.screen.progress(f"{count} files listed", time.monotonic() - begun)
        if not wanted or any(w.fullmatch(file["name"]) for w in wanted):
            yield file


def _compile(glob: str) -> "re.Pattern[str]":
    try:
        return re.compile(_pattern(glob))
    except re.error as e:
        raise click.BadParameter(
            f"{glob!r} is not a pattern of file names: {e}", param_hint="GLOB"
        ) from None


def _pattern(glob: str) -> str:
    """Return the glob as a regular expression for file names."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^/\]]+\])", glob.removeprefix("./").rstrip("/"))
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out = []
    for n, part in enumerate(parts):
        if n % 2 == 0:
            out.append(re.escape(part))
        elif part in wildcards:
            out.append(wildcards[part])
        else:
            inside = part[1:-1].replace("\\", "\\\\")
            out.append(
                "(?!/)["
                + ("^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^", 1))
                + "]"
            )
    return "(?s:" + "".join(out) + ")(?:/.*)?"


class _Copier:
    """Copies files one after another. Each file is copied completely or not at all."""

    def __init__(self, s: Session, client: "Client", jid: str, folder: str, force: bool) -> None:
        self._s, self._client, self._jid, self._folder, self._force = s, client, jid, folder, force
        self._begun, self._bytes = time.monotonic(), 0

    def copy_all(
        self, files: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the copied files, and the failed ones with errors. Raises ClientError if the
        supervisor is unavailable.
        """
        from ...client.api.errors import ClientError

        copied, failed = [], []
        for n, file in enumerate(files, 1):
            path = os.path.join(self._folder, file["name"])
            try:
                size = self._copy(file["name"], path, f"file {n} of {len(files)}, {file['name']}")
            except (Refusal, ClientError) as e:
                if isinstance(e, ClientError) and e.code not in _FILE_ERRORS:
                    raise
                self._s.screen.message(f"{file['name']}: {e.sentence}")
                failed.append({"name": file["name"], "code": e.code, "error": e.sentence})
                continue
            copied.append({"name": file["name"], "path": path, "size": size})
            if not self._s.screen.json:
                self._s.screen.line(path)
        return copied, failed

    def _copy(self, name: str, path: str, label: str) -> int:
        """Copy one file and return its size. Raises Refusal, ClientError."""
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise Refusal(
                "badRequest", "the file name is not a plain relative path; nothing was written"
            )
        if not self._force and os.path.lexists(path):
            raise Refusal("conflict", f"{path} exists; --force replaces it")
        part = f"{path}.{os.getpid()}.part"
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(part, "xb") as out, self._client.open_file(self._jid, name) as file:
                for piece in self._pieces(file):
                    out.write(piece)
                    self._bytes += len(piece)
                    self._s.screen.progress(
                        f"{label}: {self._bytes / 1e6:.1f} MB copied in total",
                        time.monotonic() - self._begun,
                    )
            os.replace(part, path)
            return file.length
        except OSError as e:
            raise Refusal("badRequest", f"{path} cannot be written: {e.strerror}") from None
        finally:
            if os.path.lexists(part):
                os.unlink(part)

    def _pieces(self, file: "FileReader") -> Iterator[bytes]:
        """Yield the content. Raises Refusal if the file ends early: the next file shows whether the
        supervisor is unavailable.
        """
        from ...client.api.errors import ClientError

        try:
            yield from file.pieces()
        except ClientError as e:
            raise Refusal(
                "conflict",
                f"the file could not be read completely, and nothing was stored: {e.sentence}",
            ) from None
