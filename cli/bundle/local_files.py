"""Parts read from files of the root. A job may have replaced these files: only plain files are
read, links below the root are never followed, and opening a pipe never blocks.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .parts import Collected, Kind
from .supervisor_parts import folder

#: Maximum size per file; the end is kept.
FILE_BYTES = 1 << 20
_FILES: tuple[tuple[str, Kind, str], ...] = (
    ("script.sh", "script", "the executed script"),
    ("exit.json", "json", "the exit"),
    ("exit-code", "text", "the exit code written by the script"),
    ("signal", "text", "the shell's message about the end"),
    ("wait-status.json", "json", "the exit recorded without a keeper"),
    ("start.json", "json", "the start parameters"),
    ("stop.json", "json", "the reason of a stop"),
    ("termination-message", "text", "the termination message of the task"),
    ("job.json", "json", "data about the other tasks"),
    ("input.json", "json", "the input"),
    ("report.jsonl", "text", "reports of the task"),
    ("batch.log", "text", "output of the Slurm batch script"),
    ("batch.sh", "script", "the script submitted to Slurm"),
)
_SECRET_BYTES = 64 * 1024
_DEPTH = 3
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def collect(root: str, tasks: Sequence[dict[str, Any]], out: Collected) -> None:
    """Add the files of these tasks."""
    for task in tasks:
        out.working(f"files of attempt {task['attempt']}")
        path = str(task.get("evidence") or "")
        below = _relative_path(root, path)
        if below is None:
            out.lacks(
                f"{folder(task)}/script.sh",
                f"its files are not in this root: {path or 'unknown path'}, on {task.get('host') or 'no host yet'}",
            )
            continue
        for name, kind, about in _FILES:
            _add(out, root, below / name, f"{folder(task)}/{name}", kind, about)


def secrets(root: str, also: Sequence[str]) -> Iterator[str]:
    """Yield every readable secret of this root and of the files in `also`."""
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
    if path.endswith(".earlier"):  # secrets with their times, see service/site/secret_rotation.py
        yield from (line.split(" ")[0] for line in text.splitlines())
        return
    yield text
    if "\n" in text:
        yield from (
            line for line in text.splitlines() if len(line) >= 16 and not line.startswith("-----")
        )


def _relative_path(root: str, text: str) -> Path | None:
    path = Path(os.path.normpath(text))
    try:
        below = path.relative_to(os.path.normpath(root))
    except ValueError:
        return None
    return below if text.startswith("/") and ".." not in below.parts and below.parts else None


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
        return  # most tasks have only some of these files
    except OSError as e:
        out.lacks(name, f"{path}: {e.strerror or e}")
        return
    if found is None:
        out.lacks(name, f"{path} is not a plain file")
        return
    before, data = found
    if data:
        out.add(name, kind, data, about + (f"; {before} earlier bytes omitted" if before else ""))


def _read(root: str, path: Path, limit: int) -> tuple[int, bytes] | None:
    """Return (bytes before, last `limit` bytes) of a plain file, or None for any other file. Opens
    each path component below the root without following links.
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
        # A file with a second hard link may belong to another user.
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            return None
        begin = max(0, info.st_size - limit)
        return begin, os.pread(fd, limit, begin)
    finally:
        os.close(fd)
