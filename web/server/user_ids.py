"""Maps user names of a site to uids: assigned once, never to a second name, and stored in a file
that its processes share.
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

#: Maximum length of a user name.
MOST_CHARS = 256


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uids: dict[str, str]


class UserIds:
    """Maps names to uids; safe for threads and for several processes on one file. Names are
    case-sensitive: `Bob` is not `bob`.

    A uid is derived from its name. So a lost file yields the same uids again, except for names
    whose uids collided.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._lock = Path(path), threading.Lock()
        self._uids: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the uid of a name: 8 letters or digits, durable on return.

        Raises Refusal("badRequest") for an invalid name, Refusal("storageUnavailable") if the file
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

    def known(self, name: str) -> str | None:
        """Return the uid of a name; None if it has none. Raises Refusal("storageUnavailable")."""
        with self._lock:
            if name not in self._uids:
                self._uids = self._read()
            return self._uids.get(name)

    def all(self) -> dict[str, str]:
        """Return the uids of all names, in the order of their first requests. Raises
        Refusal("storageUnavailable").
        """
        with self._lock:
            self._uids = self._read()
            return dict(self._uids)

    def name(self, uid: str) -> str | None:
        """Return the name of a uid; None if unassigned. Raises Refusal("storageUnavailable")."""
        with self._lock:
            if uid not in self._uids.values():
                self._uids = self._read()
            return next((name for name, given in self._uids.items() if given == uid), None)

    def user(
        self, names: "Callable[[flask.Request], str | None]"
    ) -> "Callable[[flask.Request], str | None]":
        """Return a hook that maps the name returned by `names` to a uid, for
        `create_blueprint(user=...)`.
        """

        def user(request: "flask.Request") -> str | None:
            name = names(request)
            return None if name is None else self.of(name)

        return user

    def _given(self, name: str) -> dict[str, str]:
        """Assign a uid to this name if it has none. Return all uids."""
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
            # starting with an empty file could assign one user's uid to another
            raise Refusal(
                "storageUnavailable",
                f"{self._path} is not a valid file of uids: {e}; restore it from a backup",
            ) from None


def _free(name: str, taken: set[str]) -> str:
    n = 0
    while (uid := derived_id(f"{n}|{name}".encode(), key=b"jobscribe user name")[:8]) in taken:
        n += 1
    return uid
