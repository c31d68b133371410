"""Throttling of sign-ins with exponential backoff, against password guessing and locked accounts.

Sites lock an account after a few wrong answers. So this module counts wrong answers in a row for
each user and for each unix user name. From the third one on, the next attempt must wait, twice as
long each time. A user who once signed in under a name is not delayed by failures of other users
with that name. Pure except for its clock.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

#: Number of refusals in a row without a delay.
FREE = 2
FIRST_SECS, LONGEST_SECS = 60.0, 3600.0
#: Older refusals do not count.
FORGOTTEN_SECS = 2 * LONGEST_SECS
#: Largest number of names in memory; beyond it the oldest are dropped.
MOST = 10_000


class _Refused(NamedTuple):
    """times: number in a row. last: time of the last one. until: time of the next allowed attempt."""

    times: int
    last: float
    until: float


class SignInThrottle:
    """now: monotonic clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rows: dict[Hashable, _Refused] = {}
        self._proved: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        return len(self._rows) + len(self._proved)

    def wait_secs(self, uid: str, username: str) -> float:
        """Return the seconds this user must wait before the next attempt as this unix user."""
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
            # re-insert: the newest entries are last
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
        """Return whether this user has signed in as this unix user before."""
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
    """Return the account of a name: `Joe`, `joe` and `joe@example.org` may be the same one."""
    return username.partition("@")[0].lower()


def _shorten(remembered: dict[Hashable, _Refused] | dict[tuple[str, str], None]) -> None:
    while len(remembered) > MOST:
        del remembered[next(iter(remembered))]  # type: ignore[arg-type]
