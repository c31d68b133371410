"""Who keeps the agent of a key, where several login nodes share a file system: a lease without any
lock.

    <agent folder>/lease/<number>     one line of JSON, blanks up to a fixed length, always written in place

The highest number is the lease. A number is made exclusively, once, by who takes the lease over
from the one below it; so of many that want it one gets it. Its owner counts it up. Whoever wonders
whether the owner lives looks at his process, or, from another machine, watches the count by his own
monotonic clock: no two clocks are compared. Written in place, because a network file system shows
what was written to a file to whoever opens it afterwards, but may show an old folder for a while.

Standard library only; no file is locked, because that is not to be relied on there.
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

#: Counted up this often; taken for left when it was not for so long (seconds).
RENEW_SECS, LEFT_SECS = 5.0, 30.0
#: A watcher looks this often.
_LOOK_SECS = 0.25
_LINE_BYTES = 1024
#: What a lease's own line may say: it is held; its owner gave it back; somebody asks its owner to
#: end; somebody else has the next one.
HELD, RELEASED, ASKED, TAKEN = "held", "released", "asked", "taken"


class SeenLease:
    """A lease as it lies there. said: empty where its owner has not written it yet."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number, self.raw = number, raw
        try:
            said = json.loads(raw) if raw else {}
        except ValueError:
            said = {}
        self.said: dict[str, Any] = said if isinstance(said, dict) else {}

    @property
    def host(self) -> str:
        return str(self.said.get("host") or "another machine")

    def owner_lives(self) -> bool | None:
        """None: only watching tells."""
        said = self.said
        if said.get("state") == RELEASED:
            return False
        if said.get("life") == processes.life_id():
            return processes.alive(int(said["pid"]), int(said["startTicks"]))
        if said.get("machine") == this_machine() and said.get("bootId") != processes.boot_id():
            return False  # it was started again
        return None

    def is_of(self, handle: dict[str, Any]) -> bool:
        """Was this lease taken by the keeper that the handle names?"""
        return all(
            name not in handle or handle[name] == self.said.get(name)
            for name in ("number", "bootId", "pid", "startTicks")
        )


class Lease:
    """One that this process owns. Raises OSError like any file; then nothing has changed for
    others.
    """

    def __init__(self, folder: str, number: int) -> None:
        self.number = number
        self._folder, self._count, self._state = folder, 0, HELD
        me = os.getpid()
        self.said: dict[str, Any] = {
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
        """Count on. Returns HELD, ASKED (somebody wants its owner to end) or TAKEN (it is not this
        process's any more).
        """
        there = _read(self._path())
        if (there is not None and there.said.get("state") == TAKEN) or max(
            numbers(self._folder), default=0
        ) > self.number:
            return TAKEN
        asked = there is not None and there.said.get("state") == ASKED
        self._count += 1
        self._write()
        return ASKED if asked else HELD

    def release(self) -> None:
        """Whoever comes next need not wait."""
        if self.renew() != TAKEN:
            self._state = RELEASED
            self._write()

    def _path(self) -> str:
        return f"{self._folder}/{self.number}"

    def _write(self) -> None:
        _put(self._path(), {**self.said, "state": self._state, "count": self._count})


def take(folder: str, over: int) -> Lease | None:
    """Become the owner of the lease after number `over`, which nobody owns any more (0: there is
    none). None: somebody was faster.
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
    if before is not None and before.said.get("state") != RELEASED:
        with contextlib.suppress(
            OSError
        ):  # a hint; its owner, if there is one after all, finds the higher number as well
            _put(f"{folder}/{over}", {**before.said, "state": TAKEN})
    for number in numbers(folder):
        if number < over:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{number}")
    return lease


def newest(folder: str) -> SeenLease | None:
    """The lease as it lies there now; None where there was never one."""
    for number in sorted(numbers(folder), reverse=True):
        seen = _read(f"{folder}/{number}")
        if seen is not None:
            return seen
    return None


def lives(
    folder: str,
    left_secs: float = LEFT_SECS,
    *,
    look: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[SeenLease | None, bool]:
    """The newest lease, and does its owner live? Blocks for as long as it takes to tell: at most
    `left_secs` without a sign of life.
    """
    first = newest(folder)
    since = look()
    while True:
        seen = newest(folder)
        if seen is None:
            return None, False
        known = seen.owner_lives()
        if known is not None:
            return seen, known
        if first is None or (seen.number, _count(seen)) != (first.number, _count(first)):
            return seen, True
        if look() - since >= left_secs:
            return seen, False
        pause(_LOOK_SECS)


def ask_to_end(
    folder: str, seen: SeenLease, left_secs: float = LEFT_SECS, patience_secs: float = 30.0
) -> bool:
    """Ask the owner, on another machine, to end; True when it has, or left without a word. Blocks
    for at most both times together.
    """
    until = time.monotonic() + patience_secs + left_secs
    since, last = time.monotonic(), _count(seen)
    while time.monotonic() < until:
        there = newest(folder)
        if there is None or there.number != seen.number or there.owner_lives() is False:
            return True
        if _count(there) != last:
            since, last = time.monotonic(), _count(there)
        elif time.monotonic() - since >= left_secs:
            return True
        if there.said.get("state") == HELD:  # once more, where its owner wrote at the same time
            _put(f"{folder}/{seen.number}", {**there.said, "state": ASKED})
        time.sleep(_LOOK_SECS)
    return False


def numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit()]
    except FileNotFoundError:
        return []


def this_machine() -> str:
    """Names it through its restarts. Two that were made out of one image have different names."""
    try:
        with open("/etc/machine-id", encoding="ascii") as f:
            return f"{os.uname().nodename} {f.read(64).strip()}"
    except (OSError, UnicodeDecodeError):
        return ""


def _count(seen: SeenLease) -> object:
    return seen.said.get("count", seen.raw)


def _put(path: str, said: dict[str, Any]) -> None:
    line = json.dumps(said).encode()
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.pwrite(fd, line.ljust(_LINE_BYTES - 1) + b"\n", 0)
    finally:
        os.close(fd)  # a network file system sends it now at the latest


def _read(path: str) -> SeenLease | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return SeenLease(int(os.path.basename(path)), os.read(fd, 2 * _LINE_BYTES))
    finally:
        os.close(fd)
