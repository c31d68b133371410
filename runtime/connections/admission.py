"""Connection admission: deadlines, and a limit of unauthenticated connections for each peer. Pure:
uses no sockets and gets the time as an argument.

A peer is a unix user of this machine or an address of another machine. A connection is
unauthenticated until one of its requests was authenticated. Only unauthenticated connections count
against a peer's limit, and they are closed first when file descriptors run short.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

Reason = Literal["perPeer", "strangers", "descriptors", "headers", "body", "idle"]
#: Limit of unauthenticated connections of all peers together, because their headers take memory.
MAX_UNAUTHENTICATED = 512
#: File descriptors reserved for the owner and for everything except connections: this fraction of
#: all, within these bounds.
SPARE_PART, SPARE_LEAST, SPARE_MOST = 8, 64, 256
#: Interval of deadline checks in seconds. A pause of more than twice this means that the process
#: was stopped.
SWEEP_SECS = 0.5

_SENTENCES: dict[Reason, str] = {
    "perPeer": "the peer had {most} unauthenticated connections",
    "strangers": "there were {most} unauthenticated connections",
    "descriptors": "nearly all file descriptors are in use",
    "headers": "no complete request arrived within {secs:g} s",
    "body": "no more of the request arrived within {secs:g} s",
    "idle": "no request arrived within {secs:g} s",
}


class Limits(NamedTuple):
    """Timeouts in seconds: for an unauthenticated request; between bytes of a body; between
    requests. per_peer: unauthenticated connections of one peer.
    """

    request_secs: float = 10.0
    body_secs: float = 30.0
    idle_secs: float = 300.0
    per_peer: int = 256


class Peer(NamedTuple):
    """own: root or the supervisor's unix user. trusted: a site's own proxy, which serves many
    people.
    """

    name: str
    own: bool = False
    trusted: bool = False


class TrackedConnection:
    """One connection. `close` closes it at once; `closed` returns whether it is closed."""

    __slots__ = ("_admission", "busy", "close", "closed", "deadline", "known", "peer", "why")

    def __init__(
        self,
        admission: "Admission",
        peer: Peer,
        close: Callable[[], object],
        closed: Callable[[], bool],
    ) -> None:
        self._admission, self.peer, self.close, self.closed = admission, peer, close, closed
        self.known = self.busy = False
        self.why: Reason = "headers"
        self.deadline: float | None = None

    def waiting(self) -> None:
        """Wait for the next request."""
        self.busy = False
        limits = self._admission.limits
        self._due(
            "idle" if self.known else "headers",
            limits.idle_secs if self.known else limits.request_secs,
        )

    def authenticated(self) -> None:
        """Mark the connection as authenticated: it no longer counts against limits, and stays open
        while it is used.
        """
        if not self.known:
            self.known = True
            self._admission._remove_unauthenticated(self)
        if self.busy:
            self.deadline = None

    def reading(self) -> None:
        """Wait for more of the body."""
        limits = self._admission.limits
        if self.known:
            self._due("body", limits.body_secs)
        elif self.why != "body":  # one deadline for the whole body of an unauthenticated request
            self._due("body", limits.request_secs)

    def answering(self) -> None:
        """Record that the request is complete. The answer to an unauthenticated request has a
        deadline, too.
        """
        self.busy = True
        if self.known:
            self.deadline = None
        else:
            self._due("idle", self._admission.limits.idle_secs)

    def _due(self, why: Reason, secs: float) -> None:
        self.why, self.deadline = why, self._admission.now + secs


class Admission:
    """All connections of one process. ended(reason, sentence): called for each connection closed
    here.
    """

    def __init__(self, limits: Limits, now: float, ended: Callable[[Reason, str], None]) -> None:
        self.limits, self._ended = limits, ended
        self._seen, self.now = now, 0.0  # `now` counts only the time in which this process ran
        self._all: dict[TrackedConnection, None] = {}
        #: by peer, oldest first
        self._unauthenticated: dict[Peer, dict[TrackedConnection, None]] = {}
        self._count = 0
        #: accepted while descriptors were scarce
        self._scarce: list[TrackedConnection] = []

    def __len__(self) -> int:
        return len(self._all)

    def sizes(self) -> dict[str, int]:
        return {
            "connections": len(self._all),
            "strangers": self._count,
            "peers": len(self._unauthenticated),
        }

    def enter(
        self, peer: Peer, close: Callable[[], object], closed: Callable[[], bool], *, scarce: bool
    ) -> TrackedConnection | None:
        """Admit a new connection, and close others if there are too many. Return None if the new
        one must be closed.

        scarce: descriptors are short, so each new connection requires closing another. This
        continues while an unauthenticated connection that was admitted in this way is open: the
        next connection gets the low descriptor of a closed one, although descriptors are still
        short.
        """
        self._scarce = [e for e in self._scarce if not (e.known or e.closed())]
        if (scarce or self._scarce) and not self.make_room() and not peer.own:
            self._report("descriptors", peer)
            return None
        same_peer = self._unauthenticated.get(peer, {})
        if not (peer.own or peer.trusted) and len(same_peer) >= self.limits.per_peer:
            self._end(next(iter(same_peer)), "perPeer")
        if self._count >= MAX_UNAUTHENTICATED:
            self._end(self._oldest_of_largest_peer(), "strangers")
        entry = TrackedConnection(self, peer, close, closed)
        self._all[entry] = None
        self._unauthenticated.setdefault(peer, {})[entry] = None
        self._count += 1
        if scarce:
            self._scarce.append(entry)
        entry.waiting()
        return entry

    def leave(self, entry: TrackedConnection) -> None:
        """Remove a closed connection. Idempotent."""
        if entry in self._all:
            del self._all[entry]
            self._remove_unauthenticated(entry)

    def make_room(self) -> bool:
        """Close one connection: an unauthenticated one of the peer with the most, else an idle one
        of another user than the owner. Return whether one was closed.
        """
        if self._count:
            self._end(self._oldest_of_largest_peer(), "descriptors")
            return True
        idle: dict[Peer, list[TrackedConnection]] = {}
        for entry in self._all:
            if not entry.busy and not entry.peer.own:
                idle.setdefault(entry.peer, []).append(entry)
        if not idle:
            return False
        self._end(
            max(idle.values(), key=lambda entries: (not entries[0].peer.trusted, len(entries)))[0],
            "descriptors",
        )
        return True

    def sweep(self, now: float) -> None:
        """Close connections past their deadline. now: monotonic seconds. Call this every
        SWEEP_SECS. Between two calls, read what has arrived: a call counts at most half a
        deadline, so no request is lost because the process was stopped while it arrived.
        """
        limits = self.limits
        shortest = min(limits.request_secs, limits.body_secs, limits.idle_secs)
        self.now += min(now - self._seen, 2 * SWEEP_SECS, shortest / 2)
        self._seen = now
        for entry in list(self._all):
            if entry.closed():
                self.leave(entry)
            elif entry.deadline is not None and entry.deadline <= self.now:
                self._end(entry, entry.why)

    def _oldest_of_largest_peer(self) -> TrackedConnection:
        """Return the oldest unauthenticated connection of the peer with the most. The site's
        proxies come after other peers, the owner last.
        """
        peer = max(
            self._unauthenticated,
            key=lambda p: (not p.own, not p.trusted, len(self._unauthenticated[p])),
        )
        return next(iter(self._unauthenticated[peer]))

    def _remove_unauthenticated(self, entry: TrackedConnection) -> None:
        same_peer = self._unauthenticated.get(entry.peer)
        if same_peer is not None and entry in same_peer:
            del same_peer[entry]
            self._count -= 1
            if not same_peer:
                del self._unauthenticated[entry.peer]

    def _end(self, entry: TrackedConnection, why: Reason) -> None:
        self.leave(entry)
        if entry.closed():
            return
        entry.close()
        self._report(why, entry.peer, entry.known)

    def _report(self, why: Reason, peer: Peer, known: bool = False) -> None:
        limits = self.limits
        secs = {
            "headers": limits.request_secs,
            "body": limits.body_secs if known else limits.request_secs,
            "idle": limits.idle_secs,
        }
        most = limits.per_peer if why == "perPeer" else MAX_UNAUTHENTICATED
        self._ended(
            why,
            f"a connection of {peer.name} was closed: "
            + _SENTENCES[why].format(most=most, secs=secs.get(why, 0.0)),
        )


def is_scarce(descriptor: int, limit: int) -> bool:
    """Return whether this descriptor, the lowest free one, is in the reserved range. limit:
    RLIMIT_NOFILE.
    """
    return descriptor >= limit - min(SPARE_MOST, max(SPARE_LEAST, limit // SPARE_PART))
