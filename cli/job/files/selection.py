"""Selection of files: of a run directory by globs, and of local files and folders for `job put`."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import Refusal
from ...session.session import Session

if TYPE_CHECKING:
    from ....client.sync_client import Client


def matching_files(
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


def local_files(s: Session, paths: Sequence[str], folder: str) -> dict[str, str]:
    """Return the local file of each name in the run directory. Folders are read with everything in
    them, links in them are left out. Raises Refusal.
    """
    prefix = folder.strip("/").removeprefix("./")
    found: dict[str, str] = {}
    for path in paths:
        for inner in _below(path):
            local = os.path.join(path, inner) if inner else path
            if os.path.islink(local) and inner:
                s.screen.message(f"{local} is a link and was left out")
                continue
            base = os.path.basename(os.path.abspath(path))
            name = "/".join(part for part in (prefix, base, inner) if part and part != ".")
            if name in found:
                raise Refusal("badRequest", f"{found[name]} and {local} would both become {name}")
            found[name] = local
    return found


def _below(path: str) -> Iterator[str]:
    """Yield the files in a folder, relative to it; "" for a file."""
    if not os.path.lexists(path):
        raise Refusal("notFound", f"there is no file {path}")
    if not os.path.isdir(path):
        yield ""
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), path).replace(os.sep, "/")
