"""One file of a run directory to a local folder. An interrupted copy continues where it is correct."""

from collections.abc import Callable, Iterator

from ..api.errors import ClientError, refused
from ..api.replies import Transfer
from . import local_files
from .blocks import Verdict, plain_parts, ranges, resume_at, verdict
from .local_files import PartFile
from .remote import Remote

#: How often a copy continues after a lost connection, and begins again after a change of the file.
MAX_CUTS, MAX_CHANGES = 5, 1


class Cut(Exception):
    """The content ended early: the file changed, or the connection was lost."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(error.sentence)
        self.error = error


class Download:
    """Copies files of one job to a folder. moved: called with each number of copied bytes; an
    exception of it ends the copy.
    """

    def __init__(
        self, remote: Remote, folder: str, moved: Callable[[int], object], *, replace: bool
    ) -> None:
        self._remote, self._folder, self._moved, self._replace = remote, folder, moved, replace

    def copy(self, name: str, path: str) -> Transfer:
        """Raises ClientError, OSError."""
        *folders, leaf = plain_parts(name)
        with local_files.folder(self._folder, folders) as parent:
            if not self._replace and local_files.exists(parent, leaf):
                return self._compared(parent, leaf, name, path)
            part = PartFile(parent, leaf)
            try:
                grown = self._complete(name, part) == "grown"
                size = part.size
                part.publish(replace=self._replace)
            except FileExistsError:
                raise _taken(path) from None
            except BaseException:
                part.remove_if_empty()
                raise
            finally:
                part.close()
        note = f"a program continues this file; its first {size} bytes were copied" if grown else ""
        return Transfer(name=name, path=path, size=size, note=note)

    def _complete(self, name: str, part: PartFile) -> Verdict:
        """Fill the part. Raises ClientError."""
        cuts = changes = 0
        while True:
            try:
                found = self._fill(name, part)
            except Cut as e:
                cuts += 1
                if cuts > MAX_CUTS:
                    raise refused(
                        "conflict",
                        f"the file could not be read completely: {e.error.sentence}. The next copy continues with the part that is here",
                    ) from None
                continue
            if found != "changed":
                return found
            changes += 1
            if changes > MAX_CHANGES:
                raise refused(
                    "conflict",
                    f"the file changed during the copy, {changes} times; copy it when its program has written it",
                )

    def _fill(self, name: str, part: PartFile) -> Verdict:
        """Copy what is missing, then compare. Raises ClientError, Cut."""
        remote = self._remote
        kept = 0
        if before := part.size:
            found = (remote.digest(name, *block) for block in ranges(before))
            mine = (local_files.digest(part.fd, *block) for block in ranges(before))
            kept = resume_at(zip(mine, found, strict=False), before)
        with remote.open(name, kept) as file:
            size = at = kept
            size += file.length
            part.truncate(kept)
            source = file.pieces()
            while (data := _next(source)) is not None:
                part.write(data, at)
                at += len(data)
                self._moved(len(data))
        return verdict(
            [local_files.digest(part.fd, *block) for block in ranges(size)],
            [remote.digest(name, *block) for block in ranges(size)],
            size,
        )

    def _compared(self, parent: int, leaf: str, name: str, path: str) -> Transfer:
        """Return the existing file as a copy if it is one. Raises ClientError."""
        try:
            with local_files.opened(leaf, parent) as fd:
                size = local_files.size(fd)
                if equal(self._remote, name, fd, size):
                    return Transfer(name=name, path=path, size=size, note="it is here already")
        except OSError:
            pass
        raise _taken(path)


def equal(remote: Remote, name: str, fd: int, size: int) -> bool:
    """Return whether a local file of this size equals a file of the run. Raises ClientError."""
    if remote.digest(name, 0, 0).size != size:
        return False
    found = [remote.digest(name, *block) for block in ranges(size)]
    return (
        verdict([local_files.digest(fd, *block) for block in ranges(size)], found, size) == "same"
    )


def _next(source: Iterator[bytes]) -> bytes | None:
    try:
        return next(source, None)
    except ClientError as e:
        raise Cut(e) from None


def _taken(path: str) -> ClientError:
    return refused("conflict", f"{path} exists; --force replaces it (in Python: `replace`)")
