"""The parts that are files, taken where they can be read. A job may have put anything in their
place: nothing but plain files is read, no link is followed anywhere below the root, and nobody
waits for a pipe.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .parts import Collected, Kind
from .supervisor_parts import folder

#: So much of a file: its end.
FILE_BYTES = 1 << 20
_FILES: tuple[tuple[str, Kind, str], ...] = (
    ("script.sh", "script", "what was executed"),
    ("exit.json", "json", "how it ended"),
    ("exit-code", "text", "its code in the script's own hand"),
    ("signal", "text", "what the shell said of its end"),
    ("start.json", "json", "how it was started"),
    ("stop.json", "json", "why it was to stop"),
    ("termination-message", "text", "its own last words"),
    ("job.json", "json", "what a task is told of the others"),
    ("input.json", "json", "its input"),
    ("report.jsonl", "text", "what it said of itself"),
    ("batch.log", "text", "what Slurm's side wrote"),
    ("batch.sh", "script", "what was given to Slurm"),
)
_SECRET_BYTES = 64 * 1024
_DEPTH = 3
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def collect(root: str, tasks: Sequence[dict[str, Any]], out: Collected) -> None:
    """The files of these tasks."""
    for task in tasks:
        out.working(f"files of attempt {task['attempt']}")
        place = str(task.get("evidence") or "")
        below = _below(root, place)
        if below is None:
            out.lacks(
                f"{folder(task)}/script.sh",
                f"its files are not in this root: {place or 'nobody said where'}, on {task.get('host') or 'no host yet'}",
            )
            continue
        for name, kind, about in _FILES:
            _add(out, root, below / name, f"{folder(task)}/{name}", kind, about)


def secrets(root: str, also: Sequence[str]) -> Iterator[str]:
    """Every secret that can be read in this root, and in these files."""
    for folder_, folders, names in os.walk(os.path.join(root, "secret")):
        if folder_.count("/") - root.count("/") > _DEPTH:
            folders.clear()
        for name in names:
            yield from _secret(os.path.join(folder_, name))
    for path in also:
        yield from _secret(path)


def _secret(path: str) -> Iterator[str]:
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return
    with os.fdopen(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        text = f.read(_SECRET_BYTES).decode("utf-8", "replace").strip()
    yield text
    if "\n" in text:
        yield from (
            line for line in text.splitlines() if len(line) >= 16 and not line.startswith("-----")
        )


def _below(root: str, place: str) -> Path | None:
    path = Path(os.path.normpath(place))
    try:
        below = path.relative_to(os.path.normpath(root))
    except ValueError:
        return None
    return below if place.startswith("/") and ".." not in below.parts and below.parts else None


def _add(
    out: Collected,
    root: str,
    path: Path,
    name: str,
    kind: Kind,
    about: str,
    limit: int = FILE_BYTES,
) -> None:
    try:
        found = _read(root, path, limit)
    except FileNotFoundError:
        return  # most tasks have only some of them
    except OSError as e:
        out.lacks(name, f"{path}: {e.strerror or e}")
        return
    if found is None:
        out.lacks(name, f"{path} is no plain file")
        return
    before, data = found
    if data:
        out.add(
            name, kind, data, about + (f"; {before} bytes before it are left out" if before else "")
        )


def _read(root: str, path: Path, limit: int) -> tuple[int, bytes] | None:
    """(bytes before it, the last `limit` bytes) of a plain file; every step from the root on is
    taken without following a link.
    """
    at = os.open(os.path.realpath(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in path.parts[:-1]:
            inner = os.open(
                step, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at
            )
            os.close(at)
            at = inner
        fd = os.open(path.name, _FLAGS, dir_fd=at)
    finally:
        os.close(at)
    try:
        info = os.fstat(fd)
        if (
            not stat.S_ISREG(info.st_mode) or info.st_nlink != 1
        ):  # another name (a hard link): it may be somebody else's
            return None
        begin = max(0, info.st_size - limit)
        return begin, os.pread(fd, limit, begin)
    finally:
        os.close(fd)
