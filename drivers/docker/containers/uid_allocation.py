"""Which unix user of the hosts each of our users is: one number each, from a span that nobody else
uses. Never given to a second one.

The numbers stand in a file, for files of users belong to them: whoever loses it has to give every
tree to its user again.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ....protocol.errors import Refusal
from ....runtime.filesystems import write_atomically

#: Below are the systems' own users, 0 among them.
LEAST = 1000
_MOST = 2**31 - 2


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[str, int]


class UnixUsers:
    """Use it from any thread. The numbers of users are those of their groups, too."""

    def __init__(self, file: Path, span: tuple[int, int] | None) -> None:
        """span: first and last; None: all are this process's own user. Raises Refusal("badConfig")."""
        self._file, self._span = file, span
        self._lock = threading.Lock()
        self._users: dict[str, int] | None = None
        if span is None:
            if os.geteuid() == 0:
                raise Refusal(
                    "badConfig",
                    "as root, containers need unix users of their own: set unix_users in the pool's file",
                )
        elif os.geteuid() != 0:
            raise Refusal(
                "badConfig",
                f"unix_users is {_said(span)}, but only root can give files to others: leave it out, or run as root",
            )
        elif not LEAST <= span[0] <= span[1] <= _MOST:
            raise Refusal(
                "badConfig",
                f"unix_users is {_said(span)}: it must be a first and a last number, of {LEAST} to {_MOST}",
            )

    def of(self, uid: str) -> tuple[int, int]:
        """The numbers of user and group. Raises Refusal, and OSError where the file cannot be
        written.
        """
        if self._span is None:
            return os.geteuid(), os.getegid()
        with self._lock:
            users = self._read()
            if uid not in users:
                users = {**users, uid: self._free(users)}
                write_atomically(
                    str(self._file), msgspec.json.encode(_Known(users=users)), 0o600, sync=True
                )
                self._users = users
            return users[uid], users[uid]

    def own(self, path: str, uid: str) -> None:
        """Give what is at this path to the user; of a link, the link itself."""
        if self._span is not None:
            os.chown(path, *self.of(uid), follow_symlinks=False)

    def own_folder(self, path: str, uid: str) -> None:
        """Make a folder that is the user's alone. What this process made in it before it was the
        user's is given away, too.
        """
        number, group = self.of(uid)
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if os.lstat(path).st_uid != number:
                for name, folder in _within(path):
                    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == os.geteuid():
                        os.chown(name, number, group, dir_fd=folder, follow_symlinks=False)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_uid != number:
                os.fchown(fd, number, group)
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    def _read(self) -> dict[str, int]:
        if self._users is None:
            try:
                known = msgspec.json.decode(self._file.read_bytes(), type=_Known).users
            except FileNotFoundError:
                known = {}
            except msgspec.DecodeError as e:
                raise Refusal(
                    "badConfig",
                    f"{self._file} does not say any more which unix users there are ({e}): restore it",
                ) from None
            if len(set(known.values())) != len(known) or min(known.values(), default=LEAST) < LEAST:
                raise Refusal(
                    "badConfig",
                    f"{self._file} gives one number to two users, or one below {LEAST}: restore it",
                )
            self._users = known
        return self._users

    def _free(self, users: dict[str, int]) -> int:
        assert self._span is not None
        first, last = self._span
        taken = set(users.values())
        number = next((n for n in range(first, last + 1) if n not in taken), None)
        if number is None:
            sentence = f"all {last - first + 1} unix users of {_said(self._span)} are taken: make unix_users of the pool's file larger"
            raise Refusal("agentUnavailable", sentence)
        return number


def _said(span: tuple[int, int]) -> str:
    return f"{span[0]} to {span[1]}"


def _within(path: str) -> Iterator[tuple[str, int]]:
    """Everything below, each as a name and the descriptor of the folder that it is in; no link is
    followed.
    """
    for _, folders, files, fd in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            yield name, fd
