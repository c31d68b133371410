"""File names of a run directory, page by page and sorted: regular files only; links are not
followed.

Each folder is opened relative to its parent, as in `run_directory`. Memory is bounded by the
entries of single folders.
"""

import os
import stat
from collections.abc import Iterator

from ...protocol.errors import Refusal
from ...protocol.wire.messages import FileList, ListedFile, ListFiles
from .run_directory import OWN, open_run_dir

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Limit of name length, as in requests for files.
NAME_CHARS = 1024
#: Limits: entries of one folder, nesting depth.
MOST_ENTRIES, MOST_DEPTH = 200_000, 64


def list_files(op: ListFiles) -> FileList:
    """Answer a request; blocks. Raises Refusal: badRequest, notFound, forbidden, agentUnavailable,
    tooLarge.
    """
    walk = _Walk(op.after.split("/") if op.after else [])
    fd = open_run_dir(op.run_dir)
    try:
        files: list[ListedFile] = []
        skipped = 0
        for file in walk.files(fd, ""):
            if len(files) == op.limit:
                return FileList(op_id=op.op_id, files=tuple(files), more=True, skipped=skipped)
            files.append(file)
            skipped = walk.skipped
        return FileList(op_id=op.op_id, files=tuple(files), more=False, skipped=walk.skipped)
    finally:
        os.close(fd)


class _Walk:
    """after: path components of the last file of the previous page."""

    def __init__(self, after: list[str]) -> None:
        self._after, self.skipped = after, 0

    def files(self, fd: int, folder: str, depth: int = 0) -> Iterator[ListedFile]:
        """Yield the files below this folder, sorted. fd: its descriptor; folder: its path with a
        trailing slash, "" for the run directory.
        """
        # if the previous page ended inside this folder, skip the files listed then
        after = (
            self._after[depth]
            if self._after[:depth] == folder.split("/")[:-1] and depth < len(self._after)
            else ""
        )
        for name, is_folder in _entries(fd, folder or "the run directory"):
            if name < after or name == OWN:
                continue
            path = folder + name
            if not is_folder:
                if name != after or depth < len(self._after) - 1:
                    yield from self._file(fd, name, path)
            elif depth + 1 < MOST_DEPTH and len(path) < NAME_CHARS:
                yield from self._folder(fd, name, path, depth)
            else:
                self.skipped += 1

    def _folder(self, fd: int, name: str, path: str, depth: int) -> Iterator[ListedFile]:
        try:
            inner = os.open(name, _FOLDER, dir_fd=fd)
        except OSError:  # it was removed, replaced by a link, or may not be read
            self.skipped += 1
            return
        try:
            yield from self.files(inner, path + "/", depth + 1)
        finally:
            os.close(inner)

    def _file(self, fd: int, name: str, path: str) -> Iterator[ListedFile]:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            path.encode()
        except (OSError, UnicodeEncodeError):
            self.skipped += 1
            return
        if not stat.S_ISREG(status.st_mode) or len(path) > NAME_CHARS:
            self.skipped += 1
            return
        yield ListedFile(path, status.st_size, status.st_mtime)


def _entries(fd: int, shown: str) -> list[tuple[str, bool]]:
    """Return (name, is a folder) of each entry, sorted by name."""
    found: list[tuple[str, bool]] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if len(found) == MOST_ENTRIES:
                    raise Refusal(
                        "tooLarge",
                        f"{ascii(shown)[:100]} has more than {MOST_ENTRIES} entries; put them into several folders",
                    )
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
    except OSError as e:
        raise Refusal(
            "agentUnavailable", f"cannot list {ascii(shown)[:100]}: {e.strerror}"
        ) from None
    return sorted(found)
