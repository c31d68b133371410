"""Secret files that can be rotated: reading, rotation, and the values that a running process accepts.

The file itself has the current secret alone, so that every program that reads it keeps working. The
file beside it (`.earlier`) has earlier secrets, each with the time until which it is accepted. This
module knows no listeners and no requests.
"""

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from ...protocol.errors import Refusal
from ...protocol.ids import base62
from ...runtime.filesystems import write_atomically
from .secret_files import read_secret

SUFFIX = ".earlier"
#: Maximum number of earlier secrets in a file.
MOST_EARLIER = 10
#: Limits of the time in which an earlier secret stays accepted, in seconds. Clients look at their
#: files every 10 s, so a shorter time would refuse some of them.
MIN_OVERLAP_SECS, MAX_OVERLAP_SECS = 60.0, 30 * 86400.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"

_T = TypeVar("_T")


class Earlier(NamedTuple):
    """An earlier secret. until: unix seconds; then it is refused."""

    secret: str
    until: float

    def __repr__(self) -> str:
        return f"Earlier(until={self.until:g})"


class SecretValues(NamedTuple):
    """The content of a secret file and of the file beside it. earlier: newest first."""

    current: str
    earlier: tuple[Earlier, ...] = ()

    def __repr__(self) -> str:
        return f"SecretValues({len(self.earlier)} earlier)"

    @property
    def all(self) -> tuple[str, ...]:
        """Every known value, accepted or not, for redaction."""
        return (self.current, *(e.secret for e in self.earlier))

    def accepted(self, now: float) -> tuple[str, ...]:
        """Return the values that are valid at this time (unix seconds), the current one first."""
        return (self.current, *(e.secret for e in self.earlier if e.until > now))


def read(path: str, setting: str, *, owner: int | None = None) -> SecretValues:
    """Read a secret with its earlier values. owner: another unix user who may own the files. Raises
    Refusal("unsafe", "badConfig").

    `rotate` writes the earlier values first, so a reader that starts with the current one never
    misses the value that was replaced.
    """
    current = read_secret(path, setting, owner=owner)
    return SecretValues(current, _read_earlier(path, setting, current, owner))


def rotate(path: str, setting: str, overlap_secs: float, now: float) -> SecretValues:
    """Replace the secret by a new random one. The replaced one is accepted for `overlap_secs` more;
    0: it and all earlier ones are refused at once.

    Returns the values when they are durable. After a failure the file has the old or the new
    content. Raises Refusal (unsafe, badConfig, forbidden), OSError.
    """
    path = os.path.realpath(path)  # a link to the file stays a link
    with _locked(os.path.dirname(path)):
        found = os.stat(path)
        if os.geteuid() not in (0, found.st_uid):
            raise Refusal(
                "forbidden",
                f"{path} belongs to another unix user (uid {found.st_uid}); rotate it as this user or as root",
            )
        before = read(path, setting, owner=found.st_uid)
        new = SecretValues(base62(secrets.token_bytes(43), 43), _retired(before, overlap_secs, now))
        mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
        for target, text in ((path + SUFFIX, _text(new.earlier)), (path, new.current + "\n")):
            write_atomically(target, text.encode(), mode, sync=True, owner=owner)
    return new


def _retired(before: SecretValues, overlap_secs: float, now: float) -> tuple[Earlier, ...]:
    until = float(int(now + overlap_secs))
    kept = [
        e if overlap_secs else e._replace(until=min(e.until, until))
        for e in before.earlier
        if e.secret != before.current
    ]
    if any(e.until > now for e in kept[MOST_EARLIER - 1 :]):
        raise Refusal(
            "badConfig",
            f"{MOST_EARLIER} earlier secrets are still accepted; wait until the first one has expired, or end all with --now",
        )
    return (Earlier(before.current, until), *kept[: MOST_EARLIER - 1])


def _text(earlier: tuple[Earlier, ...]) -> str:
    return "".join(
        f"{e.secret} {datetime.datetime.fromtimestamp(e.until, datetime.UTC):{_TIME}}\n"
        for e in earlier
    )


def _read_earlier(path: str, setting: str, current: str, owner: int | None) -> tuple[Earlier, ...]:
    path += SUFFIX
    if not os.path.lexists(path):
        return ()
    rows = read_secret(path, setting, several=True, owner=owner).splitlines()
    try:
        found = tuple(_parsed(row) for row in rows)
    except ValueError:
        raise Refusal(
            "badConfig",
            f"{path} is damaged; remove it (earlier secrets are then refused), or run 'jobscribe secret rotate' again after that",
        ) from None
    # a rotation that was interrupted has listed the secret that is still the current one
    return tuple(e for e in found if e.secret != current)


def _parsed(row: str) -> Earlier:
    """Parse a line. Raises ValueError."""
    secret, until = row.split()
    at = datetime.datetime.strptime(until, _TIME).replace(tzinfo=datetime.UTC)
    return Earlier(secret, at.timestamp())


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Let one process at a time rotate secrets in this folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def fingerprint(secret: str) -> str:
    """Return a name of a secret that does not reveal it."""
    return hashlib.sha256(b"jobscribe secret\0" + secret.encode()).hexdigest()[:16]


class RotatedSecret:
    """The values of one secret that this process accepts. It follows the file: `look` reads it if
    it has changed, and an unknown value is a reason to look at once.

    name: for logs. wall: unix seconds. For use in several threads: each change is one assignment.
    """

    def __init__(
        self,
        name: str,
        values: SecretValues,
        path: str | None = None,
        setting: str = "",
        wall: Callable[[], float] = time.time,
        seen: tuple[object, ...] = (),
    ) -> None:
        """seen: state of the file before it was read."""
        self.name, self.path = name, path
        self._setting, self._wall = setting, wall
        self._values, self._seen = values, seen
        #: Why the file cannot be used now; None if it can.
        self.problem: str | None = None
        #: Called after the file changed, also if it cannot be used.
        self.heard: Callable[[RotatedSecret], object] = lambda secret: None
        #: Called when an earlier secret was presented.
        self.used_earlier: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"RotatedSecret({self.name})"

    @property
    def current(self) -> str:
        return self._values.current

    @property
    def values(self) -> SecretValues:
        return self._values

    def accepted(self) -> tuple[str, ...]:
        """Return the valid values, the current one first."""
        return self._values.accepted(self._wall())

    def look(self) -> bool:
        """Read the file if it has changed. Return whether the values are others now. A file that
        cannot be used changes nothing but `problem`.
        """
        state = state_of(self.path)
        if self.path is None or state == self._seen:
            return False
        before, self._seen = self._values, state
        try:
            self._values = read(self.path, self._setting)
            self.problem = None
        except Refusal as e:
            self.problem = e.sentence
        self.heard(self)
        return self._values != before

    def holder(self, authorization: str) -> str | None:
        """Return the fingerprint of the secret in an `Authorization` header, None if it is not
        valid. All valid values are compared, each in constant time.
        """
        given = authorization.encode()
        found = self._match(given)
        return self._match(given) if found is None and self.look() else found

    def knows(self, mark: str) -> bool:
        """Return whether the secret with this fingerprint is still valid."""
        return mark in map(fingerprint, self.accepted())

    def try_all(self, action: Callable[[tuple[str, ...]], _T]) -> _T:
        """Call `action` with the valid values; once more if it raises Refusal and the file has
        changed.
        """
        try:
            return action(self.accepted())
        except Refusal:
            if not self.look():
                raise
            return action(self.accepted())

    def _match(self, given: bytes) -> str | None:
        found = None
        for secret in self.accepted():
            if hmac.compare_digest(given, b"Bearer " + secret.encode()):
                found = secret
        if found is None:
            return None
        if found != self.current:
            self.used_earlier()
        return fingerprint(found)


def opened(
    name: str, path: str, setting: str, wall: Callable[[], float] = time.time
) -> RotatedSecret:
    """Return the secret in a file. Raises Refusal("unsafe", "badConfig")."""
    seen = state_of(path)
    return RotatedSecret(name, read(path, setting), path, setting, wall, seen)


def fixed(value: str) -> RotatedSecret:
    """Return a secret without a file."""
    return RotatedSecret("fixed", SecretValues(value))


def state_of(path: str | None) -> tuple[object, ...]:
    """Return values that change with the files; shorter if one is missing."""
    out: list[object] = []
    for each in () if path is None else (path, path + SUFFIX):
        with contextlib.suppress(OSError):
            found = os.stat(each)
            out.append((each, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode))
    return tuple(out)
