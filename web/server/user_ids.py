"""The uid of each user name of a site: given once, never to a second name, and kept in a file that
its processes share.
"""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import derived_id
from ...runtime.filesystems import write_atomically

if TYPE_CHECKING:
    import flask

#: Characters of a user name.
MOST_CHARS = 256


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uids: dict[str, str]


class UserIds:
    """Use it from any thread, and any number of them on one file. A name is what it is, letter by
    letter: `Bob` is not `bob`.

    A uid is derived from its name, so a file that was lost gives the same uids again, except where
    two names collided.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._lock = Path(path), threading.Lock()
        self._uids: dict[str, str] = {}

    def of(self, name: str) -> str:
        """8 letters or digits, durable when this returns.

        Raises Refusal("badRequest") for what is no name, Refusal("storageUnavailable") if the file
        cannot be read or written.
        """
        if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARS or not name.isprintable():
            raise Refusal(
                "badRequest",
                f"a user name is 1 to {MOST_CHARS} printable characters; got {ascii(name)[:60]}",
            )
        with self._lock:
            if name not in self._uids:
                self._uids = self._given(name)
            return self._uids[name]

    def name(self, uid: str) -> str | None:
        """Whose uid it is; None for nobody's. Raises Refusal("storageUnavailable")."""
        with self._lock:
            if uid not in self._uids.values():
                self._uids = self._read()
            return next((name for name, given in self._uids.items() if given == uid), None)

    def user(
        self, names: "Callable[[flask.Request], str | None]"
    ) -> "Callable[[flask.Request], str | None]":
        """A hook that says the uid of whom `names` names, for `create_blueprint(user=...)`."""

        def user(request: "flask.Request") -> str | None:
            name = names(request)
            return None if name is None else self.of(name)

        return user

    def _given(self, name: str) -> dict[str, str]:
        """All uids, this name's among them, which is given one if it has none."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(f"{self._path}.lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                uids = self._read()
                if name not in uids:
                    uids[name] = _free(name, set(uids.values()))
                    write_atomically(
                        str(self._path), msgspec.json.encode(_Known(uids=uids)), 0o600, sync=True
                    )
                return uids
        except OSError as e:
            raise Refusal(
                "storageUnavailable",
                f"the uids of users cannot be kept in {self._path}: {e.strerror}",
            ) from None

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Known).uids
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise Refusal(
                "storageUnavailable",
                f"the uids of users cannot be read from {self._path}: {e.strerror}",
            ) from None
        except msgspec.DecodeError as e:
            # to begin anew would give somebody's jobs to somebody else
            raise Refusal(
                "storageUnavailable",
                f"{self._path} does not hold uids of users: {e}; restore it from a backup",
            ) from None


def _free(name: str, taken: set[str]) -> str:
    n = 0
    while (uid := derived_id(f"{n}|{name}".encode(), key=b"jobscribe user name")[:8]) in taken:
        n += 1
    return uid
