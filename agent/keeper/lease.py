"""The lease of an agent key, for login nodes that share a file system.

    <agent folder>/lease/<number>     one line of JSON, padded to a fixed length, always written in place

The highest number is the current lease. A keeper takes over by creating the next number with
O_EXCL, so exactly one of several candidates succeeds. The owner renews the lease by increasing its
count. To check whether the owner lives, a candidate looks at its process, or, from another machine,
watches the count by its own monotonic clock. Clocks of two machines are never compared.

Files are written in place: a network file system shows new content to processes that open the file
afterwards, but may show an old directory for a while. File locks are not used: they are unreliable
there. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from ...runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Seconds between renewals; seconds without renewal after which a lease counts as abandoned.
RENEW_SECS, LEFT_SECS = 5.0, 30.0
#: Poll interval of a watcher (seconds).
_LOOK_SECS = 0.25
_LINE_BYTES = 1024
#: States in a lease file: held by its owner; released by its owner; its owner is asked to end; the
#: next number has been taken.
HELD, RELEASED, ASKED, TAKEN = "held", "released", "asked", "taken"


class SeenLease:
    """A lease as read from its file. fields: empty if its owner has not written it yet."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number, self.raw = number, raw
        try:
            fields = json.loads(raw) if raw else {}
        except ValueError:
            fields = {}
        self.fields: dict[str, Any] = fields if isinstance(fields, dict) else {}

    @property
    def host(self) -> str:
        return str(self.fields.get("host") or "another machine")

    def is_owner_alive(self) -> bool | None:
        """Return whether the owner lives, or None if only watching the count can tell."""
        fields = self.fields
        if fields.get("state") == RELEASED:
            return False
        if fields.get("life") == processes.life_id():
            return processes.alive(int(fields["pid"]), int(fields["startTicks"]))
        if fields.get("machine") == this_machine() and fields.get("bootId") != processes.boot_id():
            return False  # that machine was rebooted
        return None

    def belongs_to(self, handle: dict[str, Any]) -> bool:
        """Return whether the keeper named by `handle` took this lease."""
        return all(
            name not in handle or handle[name] == self.fields.get(name)
            for name in ("number", "bootId", "pid", "startTicks")
        )


class Lease:
    """A lease owned by this process. Methods raise OSError; the file is then unchanged."""

    def __init__(self, folder: str, number: int) -> None:
        self.number = number
        self._folder, self._count, self._state = folder, 0, HELD
        me = os.getpid()
        self.fields: dict[str, Any] = {
            "number": number,
            "pid": me,
            "startTicks": processes.start_ticks(me),
            "bootId": processes.boot_id(),
            "life": processes.life_id(),
            "machine": this_machine(),
            "host": os.uname().nodename,
            "startedAt": time.time(),
        }

    def renew(self) -> str:
        """Increase the count.

        Returns HELD, ASKED (another process wants the owner to end) or TAKEN (this process has lost
        the lease).
        """
        current = _read(self._path())
        if (current is not None and current.fields.get("state") == TAKEN) or max(
            numbers(self._folder), default=0
        ) > self.number:
            return TAKEN
        asked = current is not None and current.fields.get("state") == ASKED
        self._count += 1
        self._write()
        return ASKED if asked else HELD

    def release(self) -> None:
        """Mark the lease as released, so that the next owner need not wait."""
        if self.renew() != TAKEN:
            self._state = RELEASED
            self._write()

    def _path(self) -> str:
        return f"{self._folder}/{self.number}"

    def _write(self) -> None:
        _write_line(self._path(), {**self.fields, "state": self._state, "count": self._count})


def take(folder: str, over: int) -> Lease | None:
    """Take the lease after number `over`, which is abandoned (0: there is no lease yet).

    Returns None if another process took it first.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if max(numbers(folder), default=0) != over:
        return None
    lease = Lease(folder, over + 1)
    try:
        os.close(
            os.open(
                f"{folder}/{over + 1}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        )
    except FileExistsError:
        return None
    lease._write()
    before = _read(f"{folder}/{over}")
    if before is not None and before.fields.get("state") != RELEASED:
        # only a hint: a former owner that still lives also finds the higher number
        with contextlib.suppress(OSError):
            _write_line(f"{folder}/{over}", {**before.fields, "state": TAKEN})
    for number in numbers(folder):
        if number < over:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{number}")
    return lease


def newest(folder: str) -> SeenLease | None:
    """Return the current lease, or None if there has never been one."""
    for number in sorted(numbers(folder), reverse=True):
        seen = _read(f"{folder}/{number}")
        if seen is not None:
            return seen
    return None


def check_owner(
    folder: str,
    left_secs: float = LEFT_SECS,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[SeenLease | None, bool]:
    """Return the current lease and whether its owner lives.

    Blocks until this is certain: at most `left_secs` without a renewal.
    """
    first = newest(folder)
    since = clock()
    while True:
        seen = newest(folder)
        if seen is None:
            return None, False
        known = seen.is_owner_alive()
        if known is not None:
            return seen, known
        if first is None or (seen.number, _count(seen)) != (first.number, _count(first)):
            return seen, True
        if clock() - since >= left_secs:
            return seen, False
        pause(_LOOK_SECS)


def ask_to_end(
    folder: str, seen: SeenLease, left_secs: float = LEFT_SECS, patience_secs: float = 30.0
) -> bool:
    """Ask the owner, on another machine, to end.

    Returns True when the owner has ended or its lease has expired. Blocks for at most
    `patience_secs + left_secs`.
    """
    until = time.monotonic() + patience_secs + left_secs
    since, last = time.monotonic(), _count(seen)
    while time.monotonic() < until:
        current = newest(folder)
        if current is None or current.number != seen.number or current.is_owner_alive() is False:
            return True
        if _count(current) != last:
            since, last = time.monotonic(), _count(current)
        elif time.monotonic() - since >= left_secs:
            return True
        if current.fields.get("state") == HELD:  # ask again: the owner may have overwritten it
            _write_line(f"{folder}/{seen.number}", {**current.fields, "state": ASKED})
        time.sleep(_LOOK_SECS)
    return False


def numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit()]
    except FileNotFoundError:
        return []


def this_machine() -> str:
    """Return a name of this machine that survives reboots.

    Holds the host name too: two machines made from one image may share their machine id.
    """
    try:
        with open("/etc/machine-id", encoding="ascii") as f:
            return f"{os.uname().nodename} {f.read(64).strip()}"
    except (OSError, UnicodeDecodeError):
        return ""


def _count(seen: SeenLease) -> object:
    return seen.fields.get("count", seen.raw)


def _write_line(path: str, fields: dict[str, Any]) -> None:
    line = json.dumps(fields).encode()
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.pwrite(fd, line.ljust(_LINE_BYTES - 1) + b"\n", 0)
    finally:
        os.close(fd)  # a network file system sends the data no later than here


def _read(path: str) -> SeenLease | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return SeenLease(int(os.path.basename(path)), os.read(fd, 2 * _LINE_BYTES))
    finally:
        os.close(fd)
