"""Login sessions of the front end, stored on the server, so that a sign-out ends them. It holds no
passwords and does not check users.

The browser has a random token; the file has its digest. Changes are durable when a method returns,
and survive a restart.
"""

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...runtime.filesystems import write_atomically

SESSION_SECS = 30 * 86400
#: Maximum number of sessions; further sign-ins end the oldest ones.
MOST = 1000
#: Maximum number of sessions of one user; further sign-ins end this user's oldest one.
MOST_EACH = 50


class Session(msgspec.Struct, frozen=True):
    """A signed-in user. begun, until: unix seconds. Sessions of earlier versions have neither `begun`
    nor `browser`.
    """

    uid: str
    name: str
    until: float
    begun: float = 0.0
    browser: str = ""


class Sessions:
    """Sessions of a process, for all threads. path: its file; None stores nothing. A damaged file
    counts as empty: users sign in again. secs: lifetime of a session.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        most: int = MOST,
        secs: float = SESSION_SECS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._most, self._secs, self._wall = path, most, secs, wall
        self._lock = threading.Lock()
        self._rows = self._read()
        #: Called with the key of a session that was signed out, in any thread.
        self.ended: Callable[[str], object] = lambda key: None

    def open(self, uid: str, name: str, browser: str = "") -> str:
        """Return the token of a new session. Raises Refusal("storageUnavailable")."""
        token, now = secrets.token_urlsafe(32), self._wall()
        with self._lock:
            rows = {k: s for k, s in self._rows.items() if s.until > now}
            own = [k for k, s in rows.items() if s.uid == uid]
            for key in own[: max(0, len(own) + 1 - MOST_EACH)]:
                del rows[key]
            for key in list(rows)[: max(0, len(rows) + 1 - self._most)]:
                del rows[key]
            rows[key_of(token)] = Session(uid, name, now + self._secs, now, browser)
            self._write(rows)
            self._rows = rows
        return token

    def of(self, token: object) -> Session | None:
        """Return the session of this token; None if it has ended or never existed."""
        found = self._rows.get(key_of(token)) if isinstance(token, str) else None
        return found if found is not None and found.until > self._wall() else None

    def of_user(self, uid: str) -> dict[str, Session]:
        """Return the sessions of this user that have not ended, by key."""
        now = self._wall()
        return {k: s for k, s in self._rows.items() if s.uid == uid and s.until > now}

    def end(self, token: object) -> None:
        """End the session of this token, as `end_key`."""
        if isinstance(token, str):
            self.end_key(key_of(token))

    def end_key(self, key: str) -> None:
        """End the session, if there is one. After Refusal("storageUnavailable") it has ended only
        until the next restart.
        """
        if key not in self._rows:
            return
        with self._lock:
            self._rows = {k: s for k, s in self._rows.items() if k != key}
            self.ended(key)
            self._write(self._rows)

    def _read(self) -> dict[str, Session]:
        if self._path is None:
            return {}
        for leftover in self._path.parent.glob(
            f"{self._path.name}.*.new"
        ):  # left by a process that was killed while writing
            with contextlib.suppress(OSError):
                leftover.unlink()
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Session])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def _write(self, rows: dict[str, Session]) -> None:
        if self._path is None:
            return
        try:
            write_atomically(str(self._path), msgspec.json.encode(rows), sync=True)
        except OSError as e:
            raise Refusal(
                "storageUnavailable", f"the session cannot be stored: {e.strerror}"
            ) from None


def key_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
