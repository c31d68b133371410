"""One local file to a run directory. An interrupted upload of the same content continues."""

import os
import time
from collections.abc import Callable, Iterator

from ..api.errors import ClientError, refused
from ..api.replies import Transfer
from . import local_files
from .blocks import plain_parts
from .download import equal
from .remote import Remote

#: How often an upload continues after a lost connection, and the pause before it, times its number.
MAX_CUTS, PAUSE_SECS = 5, 0.5
#: After a cut, the supervisor has stored everything when it names the same position again after this
#: time.
SETTLE_SECS = 0.2
_CUTS = frozenset({"unreachable", "tooManyRequests", "agentUnavailable", "deadline"})


class Upload:
    """Sends files to the run directory of one job. moved: as in `Download`."""

    def __init__(
        self,
        remote: Remote,
        moved: Callable[[int], object],
        *,
        replace: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._remote, self._moved, self._replace, self._sleep = remote, moved, replace, sleep

    def copy(self, name: str, path: str) -> Transfer:
        """Raises ClientError, OSError."""
        plain_parts(name)
        with local_files.opened(path) as fd:
            before = os.fstat(fd)
            size = before.st_size
            if self._is_there(name, fd, size):
                return Transfer(name=name, path=path, size=size, note="it is there already")
            try:
                self._send(name, local_files.digest(fd, 0, size), fd, size)
            except ClientError as e:
                now = os.fstat(fd)
                if (now.st_size, now.st_mtime_ns) == (size, before.st_mtime_ns):
                    raise
                raise refused(
                    "conflict", f"{path} changed while it was read ({e.sentence}); send it again"
                ) from None
        return Transfer(name=name, path=path, size=size)

    def _is_there(self, name: str, fd: int, size: int) -> bool:
        """Return whether the run has this file with this content. Raises ClientError."""
        try:
            if equal(self._remote, name, fd, size):
                return True
        except ClientError as e:
            if e.code != "notFound":
                raise
            return False
        if self._replace:
            return False
        raise refused(
            "conflict",
            f"{name} exists in the run directory with other content; --replace replaces it (in Python: `replace`)",
        )

    def _send(self, name: str, sha256: str, fd: int, size: int) -> None:
        """Send the file, and continue after cuts. If the supervisor stores more of what it received
        before a cut after it was asked how much it has, the next bytes are a conflict.
        """
        cuts = 0
        while True:
            offset = self._remote.received(name, sha256, size)
            while cuts and offset != (later := self._received_later(name, sha256, size)):
                offset = later
            try:
                self._remote.put(name, sha256, size, offset, self._pieces(fd, offset, size))
                return
            except ClientError as e:
                late = cuts > 0 and e.code == "conflict"
                cuts += 1
                if cuts > MAX_CUTS or not (late or e.code in _CUTS):
                    raise
                if (late or e.code == "unreachable") and self._is_complete(name, fd, size):
                    return
                if late and self._remote.received(name, sha256, size) <= offset:
                    raise
            self._sleep(PAUSE_SECS * cuts)

    def _received_later(self, name: str, sha256: str, size: int) -> int:
        self._sleep(SETTLE_SECS)
        return self._remote.received(name, sha256, size)

    def _is_complete(self, name: str, fd: int, size: int) -> bool:
        """Return whether only the answer was lost."""
        try:
            return equal(self._remote, name, fd, size)
        except ClientError as e:
            if e.code != "notFound":
                raise
            return False

    def _pieces(self, fd: int, offset: int, end: int) -> Iterator[bytes]:
        for data in local_files.pieces(fd, offset, end):
            yield data
            self._moved(len(data))
