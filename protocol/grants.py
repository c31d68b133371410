"""Grants: the parts of a site's limits that its shards have now. How much each may have, and the turn in
which a shard changes its own part. Pure: each generator yields the steps that its caller performs.

The callers are `SiteGrants`, on PostgreSQL, and the simulator, on a simulated table.

See etc/adr/0050-grants.md.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

#: A shard whose rows are older than this is away: the others divide what it does not hold.
AWAY_SECS = 15.0
#: The rows of a shard are written again after this time, also without a change.
REFRESH_SECS = 2.0
#: Tries of one exchange while other shards change the table.
TRIES = 4


class Row(NamedTuple):
    """One limit of one shard. used, wanted: when the row was written. capacity: of the whole site, in
    the settings of the shard. age: seconds since the row was written.
    """

    granted: int
    used: int
    wanted: int
    capacity: int
    age: float = 0.0


#: The rows of one limit, by shard.
Rows = Mapping[int, Row]


class Use(NamedTuple):
    """used: of a limit, by what is placed or reserved. wanted: with what waits for it."""

    used: int
    wanted: int


class Ask(NamedTuple):
    """The state of a limit in a shard, for an exchange. limit: in the shard's memory. used: by decisions
    that are durable or may become durable. wanted: with what waits for this limit alone.
    """

    capacity: int
    limit: int
    used: int
    wanted: int


class Share(NamedTuple):
    """The result for a limit. limit: what the shard may use. granted: its row, which is lowered to the
    limit as runs end. others: use of the other shards, as they wrote it last. short: another shard wants
    more than it has.
    """

    limit: int
    granted: int
    capacity: int
    others: int
    short: bool


class Table(NamedTuple):
    """All rows, by limit. turn: a number that every write changes."""

    turn: int
    rows: Mapping[str, Rows]


class Tell(NamedTuple):
    """Tell the core these limits. Answer: its use when they are in effect and everything it decided
    before is durable; None if it cannot decide now.
    """

    limits: Mapping[str, int]


class Read(NamedTuple):
    """Read the table. Answer: Table; None if the database does not answer."""


class Write(NamedTuple):
    """Write these rows of the shard if the table has this turn and the shard's lease has the epoch of
    the caller. Answer: whether they are written; None if that is unknown.
    """

    turn: int
    rows: Mapping[str, Row]


Step = Tell | Read | Write
Answer = Mapping[str, Use] | Table | bool | None
Exchange = Generator[Step, Answer, Mapping[str, Share] | None]


def part(whole: int, number: int, total: int) -> int:
    """Return the even part of a limit. All parts make the whole."""
    return whole // total + (number < whole % total)


def targets(capacity: int, wanted: Sequence[int]) -> list[int]:
    """Return what each shard may have. Their sum is the capacity.

    A shard has its even part for sure if it wants it, and keeps a quarter of it if it wants nothing.
    What others do not want is divided evenly among those that want more; the rest fills up the parts.
    """
    parts = [part(capacity, n, len(wanted)) for n in range(len(wanted))]
    sure = [min(max(w, p // 4), p) for w, p in zip(wanted, parts, strict=True)]
    left = capacity - sum(sure)
    more = _evenly(left, [max(0, w - s) for w, s in zip(wanted, sure, strict=True)])
    have = [s + m for s, m in zip(sure, more, strict=True)]
    rest = _evenly(left - sum(more), [max(0, p - h) for p, h in zip(parts, have, strict=True)])
    return [h + r for h, r in zip(have, rest, strict=True)]


def _evenly(amount: int, most: Sequence[int]) -> list[int]:
    """Divide an amount evenly, with a limit for each; what is left over by their sum is not given."""
    out, left = [0] * len(most), amount
    order = sorted(range(len(most)), key=lambda n: (most[n], -n))
    for done, n in enumerate(order):
        out[n] = min(most[n], left // (len(order) - done))
        left -= out[n]
    return out


def settle(shard: int, total: int, rows: Rows, ask: Ask) -> tuple[Row, Share]:
    """Return the new row of a shard, and its share. A shard that has no row yet has its even part: it may be
    of a release without grants.
    """
    others = {
        n: rows.get(n) or Row(part(ask.capacity, n, total), 0, 0, ask.capacity)
        for n in range(total)
        if n != shard
    }
    granted = rows[shard].granted if shard in rows else 0
    capacity = min([ask.capacity, *(r.capacity for r in others.values())])
    away = {n for n, row in others.items() if row.age > AWAY_SECS}
    there = [n for n in range(total) if n not in away]
    wants = {n: row.wanted for n, row in others.items()} | {shard: ask.wanted}
    divided = max(0, capacity - sum(others[n].granted for n in away))
    target = dict(zip(there, targets(divided, [wants.get(n, 0) for n in there]), strict=True))
    free = capacity - sum(row.granted for row in others.values())
    most = target[shard]
    new = (
        max(granted, min(most, free))
        if most > granted
        else min(granted, max(most, ask.limit, ask.used))
    )
    short = any(
        row.granted < min(row.wanted, target[n]) for n, row in others.items() if n not in away
    )
    share = Share(
        min(new, most), new, capacity, sum(row.used for row in others.values()), short=short
    )
    return Row(new, ask.used, ask.wanted, ask.capacity), share


def exchange(shard: int, total: int, asks: Mapping[str, Ask]) -> Exchange:
    """Change the rows of a shard. Return its share of each limit; None if nothing is known, and then
    its limits may not be raised.

    A limit in memory is raised only after a write: an earlier write whose outcome is unknown may
    still arrive, and is void from then on.
    """
    for _ in range(TRIES):
        table = yield Read()
        if not isinstance(table, Table):
            return None
        settled = {
            name: settle(shard, total, table.rows.get(name, {}), ask) for name, ask in asks.items()
        }
        shares = {name: share for name, (_, share) in settled.items()}
        if not any(
            shares[name].limit > ask.limit or _is_due(table.rows.get(name, {}).get(shard), row)
            for name, ask in asks.items()
            for row in (settled[name][0],)
        ):
            return shares
        written = yield Write(table.turn, {name: row for name, (row, _) in settled.items()})
        if written is None:
            return None
        if written:
            return shares
    return None


def _is_due(before: Row | None, row: Row) -> bool:
    """Return whether a row is to be written."""
    return (
        before is None
        or before.age >= REFRESH_SECS
        or (before.granted, before.wanted, before.capacity)
        != (row.granted, row.wanted, row.capacity)
    )


class Holder:
    """The grants of one supervisor. capacities: limits of the whole site in its settings, by name."""

    def __init__(self, shard: int, total: int, capacities: Mapping[str, int]) -> None:
        self._shard, self._total, self._capacities = shard, total, dict(capacities)
        #: what the core may use: nothing before the first exchange
        self.limits = dict.fromkeys(capacities, 0)
        #: as of the last exchange that is known, and the use before it
        self.shares: Mapping[str, Share] = {}
        self.use: Mapping[str, Use] = {}

    def turn(self) -> Generator[Step, Answer, None]:
        """Change the shard's rows and the limits of the core. If limits are lowered, the rows follow in
        the same turn, so that other shards may use what this one does not.
        """
        told: Mapping[str, int] = {}
        for _ in range(2):
            use = yield Tell(self.limits)
            if not isinstance(use, Mapping):
                return
            told, self.use = self.limits, use
            shares = yield from exchange(self._shard, self._total, self._asks(use))
            if shares is None:
                return
            self.shares = shares
            self.limits = {name: share.limit for name, share in shares.items()}
            if not any(
                limit < told[name] and shares[name].granted > max(limit, use[name].used)
                for name, limit in self.limits.items()
            ):
                break
        if self.limits != told:
            yield Tell(self.limits)

    def _asks(self, use: Mapping[str, Use]) -> dict[str, Ask]:
        return {
            name: Ask(
                capacity,
                self.limits[name],
                use[name].used,
                max(use[name].used, min(use[name].wanted, capacity)),
            )
            for name, capacity in self._capacities.items()
        }

    def is_due(self, now: Mapping[str, Use]) -> bool:
        """Return whether a turn may change something at once. now: the present use."""
        return any(
            now[name].wanted > share.limit
            or (share.granted > share.limit and now[name].used < self.use[name].used)
            for name, share in self.shares.items()
        )

    def exceeded(self) -> frozenset[str]:
        """Return the limits of which more is used than the shard has."""
        return frozenset(
            name for name, share in self.shares.items() if self.use[name].used > share.granted
        )
