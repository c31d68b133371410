"""API tokens of this user for sites: `credentials.json` in the user's configuration folder, for its
owner alone. A token is never an argument and never printed from here.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Refusal

if TYPE_CHECKING:
    from ...client.transport.address import Source

_FILE = "credentials.json"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One login. id, name: of the token. uid: its user. expires_at: unix seconds."""

    token: str
    uid: str
    id: str
    name: str
    expires_at: float

    def __repr__(self) -> str:
        return f"Site({self.id} u={self.uid})"


class _Stored(msgspec.Struct, kw_only=True):
    """The content of the file. default: the site of the last login."""

    default: str | None = None
    sites: dict[str, Site] = {}


def path() -> str:
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "jobscribe", _FILE)


def default_site() -> str | None:
    """Return the site of the last login; None without one. Raises Refusal."""
    return _read().default


def find(site: str) -> Site | None:
    """Return the login at this site. Raises Refusal if the file is unsafe or damaged."""
    return _read().sites.get(site)


def store(site: str, login: Site) -> None:
    """Store a login, which becomes the default. Raises Refusal, OSError."""
    with _changed() as stored:
        stored.sites[site] = login
        stored.default = site


def forget(site: str) -> bool:
    """Remove a login. Return whether there was one. Raises Refusal, OSError."""
    with _changed() as stored:
        found = stored.sites.pop(site, None) is not None
        if stored.default == site:
            stored.default = next(iter(stored.sites), None)
        return found


def source(site: str) -> "Source":
    """Return a source of the address that reads the file each time. It raises ClientError
    (notLoggedIn) without a login.
    """
    from ...client.api.errors import own
    from ...client.transport.address import Address

    def read() -> Address:
        login = find(site)
        if login is None:
            raise own("notLoggedIn", f"you are not logged in at {site}")
        return Address(url=site, token=login.token, uid=login.uid)

    return read


@contextlib.contextmanager
def _changed() -> Iterator[_Stored]:
    """Give the content to change, and write it. One process at a time changes the file."""
    from ...runtime.filesystems import write_atomically

    folder = os.path.dirname(path())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        stored = _read()
        yield stored
        write_atomically(path(), msgspec.json.encode(stored), 0o600, sync=True)
    finally:
        os.close(fd)


def _read() -> _Stored:
    """Return the content; empty if there is no file. Raises Refusal("unsafe", "badConfig")."""
    try:
        fd = os.open(path(), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _Stored()
    except OSError as e:
        raise Refusal("badConfig", f"{path()} cannot be read: {e.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise Refusal(
                "unsafe",
                f"{path()} contains API tokens, but others own it or may read it"
                f" (mode {stat.S_IMODE(found.st_mode):04o})",
                {"advice": f"run: chmod 600 {path()}; revoke tokens that others may have read"},
            )
        try:
            return msgspec.json.decode(file.read(), type=_Stored)
        except msgspec.DecodeError as e:
            raise Refusal(
                "badConfig",
                f"{path()} is damaged: {e}",
                {"advice": "remove it, then run 'jobscribe auth login' again"},
            ) from None
