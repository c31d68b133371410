"""The lease of a site as its holder takes and keeps it: who may take it, from when a renewal counts,
and what follows a lost connection. No I/O: each function yields the steps that its caller performs.

The callers are `Writer` and `Lookout`, on PostgreSQL, and the simulator, on a simulated database. The
caller sends the answer of each step into the generator. See etc/adr/0046-standby-supervisors.md.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from ...runtime.lease_deadline import LeaseDeadline
from ..store.head_file import DurablePosition

#: A lease that was not renewed for this time may be taken, and the interval of its renewals.
LEASE_SECS, RENEW_SECS = 6.0, 1.5
#: A holder with `store.standby` stops acting this long before the end of its lease.
MARGIN_SECS = 1.0
#: Wait between two tries to connect while an outcome is unknown.
RETRY_SECS = 0.2


class Lease(NamedTuple):
    """epoch: of this holder. head: the end of the log when it was taken."""

    epoch: int
    head: DurablePosition


# ---- steps


class Take(NamedTuple):
    """Take the next epoch if `may_take`. Answer: Lease; None while another holder has it; Lost."""


class Connect(NamedTuple):
    """Connect again. Answer: True; Lost."""


class TakeAgain(NamedTuple):
    """Take the next epoch on a new connection if `may_take_again`: no commit of the old connection can
    succeed later. Answer: Lease; None if another holder has it; Lost, also after other failures.
    """


class Renew(NamedTuple):
    """Renew the lease of this epoch. Answer: whether it has the lease; Lost."""

    epoch: int


class Commit(NamedTuple):
    """Commit a group that follows `head`, if this epoch has the lease. Answer: True if it is in the
    log; Lost. Every other failure ends the commit, and nothing of the group is in the log.
    """

    epoch: int
    head: DurablePosition


class Find(NamedTuple):
    """Read whether the group is in the log. Answer: bool; Lost."""


class Pause(NamedTuple):
    """Wait, and go on with the answer None; end here if the caller gives up."""

    secs: float


class Lost(NamedTuple):
    """The connection is lost: it is unknown whether the step was performed."""


T = TypeVar("T")
Step = Take | Connect | TakeAgain | Renew | Commit | Find | Pause
Answer = Lease | Lost | bool | None
Steps = Generator[Step, Answer, T]


def perform(steps: Steps[T], act: Callable[[Step], Answer]) -> T:
    """Perform all steps with a function that waits for their answers, and return the result."""
    answer: Answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as e:
            result: T = e.value
            return result
        answer = act(step)


# ---- who may take it


def may_take(
    by: str, holder: str, *, released: bool, expired: bool, gone: bool, dead: str | None = None
) -> bool:
    """Return whether `by` may take the lease of `holder`.

    gone: the session of a holder without `store.standby` has ended. Others may act without a session
    until their lease ends. dead: a holder whose process has certainly ended.
    """
    return released or expired or gone or holder in (by, dead)


class Timeline:
    """The server whose lease a standby sees. An asynchronous replica that took over may have an older
    lease than its holder knows, so a free lease on it counts only after the longest time for which that
    holder may act. now: seconds.
    """

    def __init__(self) -> None:
        self._seen: str | None = None
        self._since = 0.0

    def settled(self, timeline: str, *, released: bool, now: float) -> bool:
        """Return whether a lease that is free on this timeline may be taken."""
        if timeline != self._seen:
            first, self._seen = self._seen is None, timeline
            self._since = now - LEASE_SECS if first and released else now
        return now - self._since >= LEASE_SECS


def may_take_again(by: str, holder: str, *, released: bool) -> bool:
    return holder == by and not released


# ---- the holder


def take(deadline: LeaseDeadline | None) -> Steps[Answer]:
    """Take the lease for the first time. Return the answer of the step."""
    sent = _now(deadline)
    taken = yield Take()
    if isinstance(taken, Lease):
        _extend(deadline, sent)
    return taken


class LeaseHolder:
    """The lease of one process, after it was taken. deadline: of a holder with `store.standby`."""

    def __init__(self, epoch: int, deadline: LeaseDeadline | None) -> None:
        self.epoch, self.deadline = epoch, deadline
        #: another holder has the lease
        self.lost = False

    def take_again(self) -> Steps[Answer]:
        """Connect again, and take the next epoch. Return the answer of the last step."""
        if isinstance((yield Connect()), Lost):
            return Lost()
        sent = _now(self.deadline)
        taken = yield TakeAgain()
        if isinstance(taken, Lease):
            _extend(self.deadline, sent)
            self.epoch = taken.epoch
        elif taken is None:
            self.lost = True
        return taken

    def renew(self) -> Steps[None]:
        sent = _now(self.deadline)
        kept = yield Renew(self.epoch)
        if kept is True:
            _extend(self.deadline, sent)
        elif kept is False:
            self.lost = True

    def commit(self, head: DurablePosition) -> Steps[bool]:
        """Commit a group that follows `head`. Return whether it is in the log; if the connection is
        lost, this waits for the database.
        """
        sent = _now(self.deadline)
        answer = yield Commit(self.epoch, head)
        if isinstance(answer, Lost):
            return (yield from self.outcome())
        _extend(self.deadline, sent)
        return True

    def outcome(self) -> Steps[bool]:
        """Return whether the transaction of a lost connection is in the log. It is read after the next
        epoch was taken, or by a holder that lost the lease: nothing can arrive later.
        """
        connected = False
        while True:
            if not connected:
                connected = not isinstance((yield from self.take_again()), Lost)
            if connected:
                found = yield Find()
                if not isinstance(found, Lost):
                    return bool(found)
                connected = False
            yield Pause(RETRY_SECS)


def _now(deadline: LeaseDeadline | None) -> float:
    return 0.0 if deadline is None else deadline.now()


def _extend(deadline: LeaseDeadline | None, sent: float) -> None:
    if deadline is not None:
        deadline.extend(sent)
