"""Answers that their clients have not taken yet: how much memory they may have together, and how
long they are waited for.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import tornado.iostream

from ....protocol.errors import Refusal

#: Bytes of all answers, and of those that one user asked for.
IN_ALL, PER_USER = 256 * 1024 * 1024, 64 * 1024 * 1024
#: Smaller ones are not counted.
SMALL = 64 * 1024
#: Who does not take what is sent within this time is cut off.
STALL_SECS = 60.0
#: Pause between two looks at who has not taken his answer.
_LOOK_SECS = 0.5


class ResponseLimits:
    """One per process. stalled: told of each client that was cut off."""

    def __init__(
        self, *, in_all: int = IN_ALL, per_user: int = PER_USER, stall_secs: float = STALL_SECS
    ) -> None:
        self._in_all, self._per_user, self._stall_secs = in_all, per_user, stall_secs
        self._of: Counter[str] = Counter()
        self._sum = 0
        self._watched: dict[tornado.iostream.IOStream, tuple[str, int, float]] = {}
        self._looking = False
        self.stalled: Callable[[], None] = lambda: None

    def sizes(self) -> dict[str, int]:
        return {"answers": len(self._watched), "bytes": self._sum, "users": len(self._of)}

    def check(self, owner: str, size: int) -> None:
        """May there be another answer of this size? Raises Refusal("tooManyRequests")."""
        if size <= SMALL:
            return
        if self._of.get(owner, 0) + size > self._per_user or self._sum + size > self._in_all:
            self._sweep()  # some may have been taken since the last look
        mine = self._of.get(owner, 0)
        if mine + size > self._per_user or self._sum + size > self._in_all:
            whose, held = (
                ("of this user", mine) if mine + size > self._per_user else ("in all", self._sum)
            )
            raise Refusal(
                "tooManyRequests",
                f"answers of {held} bytes {whose} have not been taken yet; there is no room for {size} more",
            )

    def watch(self, stream: tornado.iostream.IOStream, owner: str, size: int) -> None:
        """An answer of `size` bytes was written to this stream. Who does not take it in time is cut
        off.
        """
        if stream.closed() or not stream.writing():
            return
        loop = asyncio.get_running_loop()
        self._forget(stream)
        counted = size if size > SMALL else 0
        self._watched[stream] = owner, counted, loop.time() + self._stall_secs
        if counted:
            self._sum += counted
            self._of[owner] += counted
        if not self._looking:
            self._looking = True
            loop.call_later(_LOOK_SECS, self._look)

    def _sweep(self) -> None:
        for stream in [s for s in self._watched if s.closed() or not s.writing()]:
            self._forget(stream)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep()
        for stream, (_, _, until) in list(self._watched.items()):
            if loop.time() >= until:
                self._forget(stream)
                stream.close()
                self.stalled()
        self._looking = bool(self._watched)
        if self._looking:
            loop.call_later(_LOOK_SECS, self._look)

    def _forget(self, stream: tornado.iostream.IOStream) -> None:
        owner, counted, _ = self._watched.pop(stream, ("", 0, 0.0))
        if counted:
            self._sum -= counted
            self._of[owner] -= counted
            if not self._of[owner]:
                del self._of[owner]
