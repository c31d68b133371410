"""How soon somebody who was refused may try again: nobody's account is locked, nor guessed at,
through us. Pure but for its clock.

Sites lock an account after a few wrong answers. So wrong answers are counted here, too, for who
asks and for whom is asked, and from the third one in a row the next try has to wait: each time
twice as long. Who has proved once that a user name is his own is not held back by what strangers
did with it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

#: Refusals in a row that cost nothing but themselves.
FREE = 2
FIRST_SECS, LONGEST_SECS = 60.0, 3600.0
#: Refusals of so long ago count no more.
FORGOTTEN_SECS = 2 * LONGEST_SECS
#: Names that are remembered at once; beyond that the oldest ones are forgotten.
MOST = 10_000


class _Refused(NamedTuple):
    """times: in a row. last: when the last one was. until: when the next try is allowed."""

    times: int
    last: float
    until: float


class SignInThrottle:
    """now: seconds of a clock that is never set back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rows: dict[Hashable, _Refused] = {}
        self._proved: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        return len(self._rows) + len(self._proved)

    def wait_secs(self, uid: str, username: str) -> float:
        """How long this user has to wait before the next try as this unix user; 0: not at all."""
        now = self._now()
        return max(
            [
                0.0,
                *(
                    row.until - now
                    for name in self._names(uid, username)
                    if (row := self._row(name)) is not None
                ),
            ]
        )

    def refused(self, uid: str, username: str) -> None:
        now = self._now()
        for name in (("uid", uid), ("name", folded(username))):
            before = self._row(name)
            count = 1 if before is None else before.times + 1
            wait = (
                0.0
                if count <= FREE
                else min(FIRST_SECS * 2 ** min(count - FREE - 1, 20), LONGEST_SECS)
            )
            # the newest stand at the end
            self._rows.pop(name, None)
            self._rows[name] = _Refused(count, now, now + wait)
        _shorten(self._rows)

    def succeeded(self, uid: str, username: str) -> None:
        for name in (("uid", uid), ("name", folded(username))):
            self._rows.pop(name, None)
        self._proved.pop((uid, folded(username)), None)
        self._proved[uid, folded(username)] = None
        _shorten(self._proved)

    def is_own(self, uid: str, username: str) -> bool:
        """Has this user signed in as this unix user before?"""
        return (uid, folded(username)) in self._proved

    def _names(self, uid: str, username: str) -> Iterable[Hashable]:
        yield "uid", uid
        if not self.is_own(uid, username):
            yield "name", folded(username)

    def _row(self, name: Hashable) -> _Refused | None:
        row = self._rows.get(name)
        if row is not None and self._now() - row.last >= FORGOTTEN_SECS:
            del self._rows[name]
            return None
        return row


def folded(username: str) -> str:
    """The account that a name stands for: `Joe`, `joe` and `joe@example.org` may be the same one."""
    return username.partition("@")[0].lower()


def _shorten(remembered: dict[Hashable, _Refused] | dict[tuple[str, str], None]) -> None:
    while len(remembered) > MOST:
        del remembered[next(iter(remembered))]  # type: ignore[arg-type]
