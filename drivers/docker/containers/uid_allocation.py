"""Allocates one unix user of the hosts to each of our users, from a reserved range. A number is
never reused.

The numbers are stored in a file, because files of users belong to them. If the file is lost, all
trees need a new owner.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ....protocol.errors import Refusal
from ....runtime.filesystems import write_atomically

#: Lower numbers are system users, including root.
LEAST = 1000
_MOST = 2**31 - 2


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[str, int]


class UnixUsers:
    """The table of unix users. Thread-safe. The group number of a user equals the user number."""

    def __init__(self, file: Path, span: tuple[int, int] | None) -> None:
        """span: first and last number; None: all users share this process's own unix user. Raises
        Refusal("badConfig").
        """
        self._file, self._span = file, span
        self._lock = threading.Lock()
        self._users: dict[str, int] | None = None
        if span is None:
            if os.geteuid() == 0:
                raise Refusal(
                    "badConfig",
                    "the supervisor runs as root, so containers need separate unix users: set unix_users in the pool's file",
                )
        elif os.geteuid() != 0:
            raise Refusal(
                "badConfig",
                f"unix_users is {_format_span(span)}, but only root can change file owners: remove the setting, or run as root",
            )
        elif not LEAST <= span[0] <= span[1] <= _MOST:
            raise Refusal(
                "badConfig",
                f"unix_users is {_format_span(span)}: it must be a first and a last number between {LEAST} and {_MOST}",
            )

    def ids(self, uid: str) -> tuple[int, int]:
        """Return the numbers of user and group. Raises Refusal, and OSError if the file cannot be
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

    def chown(self, path: str, uid: str) -> None:
        """Change the owner of a path to the user. Links are not followed."""
        if self._span is not None:
            os.chown(path, *self.ids(uid), follow_symlinks=False)

    def make_owned_folder(self, path: str, uid: str) -> None:
        """Create a folder that only the user can access. Files that this process created in it
        earlier are given to the user, too.
        """
        number, group = self.ids(uid)
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
                    f"{self._file}, the table of unix users, is damaged ({e}): restore it",
                ) from None
            if len(set(known.values())) != len(known) or min(known.values(), default=LEAST) < LEAST:
                raise Refusal(
                    "badConfig",
                    f"{self._file} assigns one number to two users, or a number below {LEAST}: restore it",
                )
            self._users = known
        return self._users

    def _free(self, users: dict[str, int]) -> int:
        assert self._span is not None
        first, last = self._span
        taken = set(users.values())
        number = next((n for n in range(first, last + 1) if n not in taken), None)
        if number is None:
            sentence = f"all {last - first + 1} unix users of {_format_span(self._span)} are taken: extend unix_users in the pool's file"
            raise Refusal("agentUnavailable", sentence)
        return number


def _format_span(span: tuple[int, int]) -> str:
    return f"{span[0]} to {span[1]}"


def _within(path: str) -> Iterator[tuple[str, int]]:
    """Yield every entry below, as a name and the descriptor of its folder. Links are not
    followed.
    """
    for _, folders, files, fd in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            yield name, fd
