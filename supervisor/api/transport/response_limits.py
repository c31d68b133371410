"""Limits of answers that clients have not read yet: memory and time."""

import asyncio
from collections import Counter
from collections.abc import Callable

import tornado.iostream

from ....protocol.errors import Refusal

#: Limit of unread bytes of all users, and of one user.
IN_ALL, PER_USER = 256 * 1024 * 1024, 64 * 1024 * 1024
#: Answers up to this size are not counted.
SMALL = 64 * 1024
#: A client that does not read its answer within this time is cut off.
STALL_SECS = 60.0
#: Interval between two checks of unread answers.
_CHECK_SECS = 0.5


class ResponseLimits:
    """The unread answers of this process. stalled: called for each client that is cut off."""

    def __init__(
        self, *, in_all: int = IN_ALL, per_user: int = PER_USER, stall_secs: float = STALL_SECS
    ) -> None:
        self._in_all, self._per_user, self._stall_secs = in_all, per_user, stall_secs
        self._of: Counter[str] = Counter()
        self._sum = 0
        self._watched: dict[tornado.iostream.IOStream, tuple[str, int, float]] = {}
        self._checking = False
        self.stalled: Callable[[], None] = lambda: None

    def sizes(self) -> dict[str, int]:
        return {"answers": len(self._watched), "bytes": self._sum, "users": len(self._of)}

    def check(self, owner: str, size: int) -> None:
        """Check that an answer of this size is within the limits. Raises Refusal("tooManyRequests")."""
        if size <= SMALL:
            return
        if self._of.get(owner, 0) + size > self._per_user or self._sum + size > self._in_all:
            self._forget_read()
        mine = self._of.get(owner, 0)
        if mine + size > self._per_user or self._sum + size > self._in_all:
            whose, unread = (
                ("of this user", mine)
                if mine + size > self._per_user
                else ("of all users", self._sum)
            )
            raise Refusal(
                "tooManyRequests",
                f"{unread} bytes of answers {whose} have not been read yet; there is no memory for {size} more",
            )

    def watch(self, stream: tornado.iostream.IOStream, owner: str, size: int) -> None:
        """Count an answer of `size` bytes until it is read, and close its stream after the limit."""
        if stream.closed() or not stream.writing():
            return
        loop = asyncio.get_running_loop()
        self._forget(stream)
        counted = size if size > SMALL else 0
        self._watched[stream] = owner, counted, loop.time() + self._stall_secs
        if counted:
            self._sum += counted
            self._of[owner] += counted
        if not self._checking:
            self._checking = True
            loop.call_later(_CHECK_SECS, self._check_all)

    def _forget_read(self) -> None:
        for stream in [s for s in self._watched if s.closed() or not s.writing()]:
            self._forget(stream)

    def _check_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._forget_read()
        for stream, (_, _, until) in list(self._watched.items()):
            if loop.time() >= until:
                self._forget(stream)
                stream.close()
                self.stalled()
        self._checking = bool(self._watched)
        if self._checking:
            loop.call_later(_CHECK_SECS, self._check_all)

    def _forget(self, stream: tornado.iostream.IOStream) -> None:
        owner, counted, _ = self._watched.pop(stream, ("", 0, 0.0))
        if counted:
            self._sum -= counted
            self._of[owner] -= counted
            if not self._of[owner]:
                del self._of[owner]
