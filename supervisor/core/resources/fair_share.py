"""Fair share: which account gets the next free slot or resources. Pure and deterministic.

An account is a user within a queue. Its usage is the time for which it held cores, in core-seconds,
and decays: after `half_life_secs` it counts half. Among the accounts that wait, the queue with the
smallest part of its share in use goes first, and within the queue the account with the least usage.
Ties go to the run that was submitted first. What an account holds now counts with the time since it
holds it, and at least with the mean of the account, so that no account takes many slots at once
while others wait.

Usage is stored as of one reference time, so that time changes no stored value and no order.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ....protocol.ids import DEFAULT_QUEUE

#: (number, ticket)
_Waiting = tuple[int, Any]
#: Weight of the newest holding in the mean of an account.
_WEIGHT = 0.2
#: Core-seconds of a holding of an account without ended ones.
FIRST_MEAN = 1.0
#: Least core-seconds of a holding: also a run that ends at once had its turn.
LEAST = 0.01
#: The reference time moves after this many half-lives; accounts below this usage are forgotten.
_MOVE_AFTER, _FORGET_BELOW = 64.0, LEAST


class Account(NamedTuple):
    """A user within a queue."""

    queue: str
    uid: str


class QueueRule(msgspec.Struct, frozen=True, kw_only=True):
    """share: weight of the queue. borrow: it may use what other queues leave idle."""

    share: float = 1.0
    borrow: bool = True


class ShareRules(msgspec.Struct, frozen=True, kw_only=True):
    """gpu_cores: one GPU counts as this many cores."""

    half_life_secs: float = 7 * 86_400.0
    gpu_cores: float = 8.0
    queues: dict[str, QueueRule] = msgspec.field(
        default_factory=lambda: {DEFAULT_QUEUE: QueueRule()}
    )

    def name_of(self, queue: str) -> str:
        """Return the queue, or the default queue for one that is no longer configured."""
        return queue if queue in self.queues else DEFAULT_QUEUE

    def entitled(self, queue: str, capacity: int) -> int:
        """Return how much of a capacity belongs to a queue; at least 1."""
        total = sum(rule.share for rule in self.queues.values())
        return max(1, round(capacity * self._rule(queue).share / total))

    def may_use(self, queue: str, in_use: int, capacity: int) -> bool:
        """Return whether the queue may use one more of this capacity."""
        return self._rule(queue).borrow or in_use < self.entitled(queue, capacity)

    def share(self, queue: str) -> float:
        return self._rule(queue).share

    def _rule(self, queue: str) -> QueueRule:
        return self.queues.get(queue) or _DEFAULT_RULE


_DEFAULT_RULE = QueueRule()


class AccountUsage(msgspec.Struct):
    """used: core-seconds of ended holdings, as of the reference time. mean: of one holding. cores,
    since: of the current holdings, the sum of their cores, and of each one's cores times its start.
    """

    used: float = 0.0
    mean: float = FIRST_MEAN
    cores: float = 0.0
    since: float = 0.0


class Holding(NamedTuple):
    account: Account
    cores: float
    #: monotonic time
    since: float


class Used(NamedTuple):
    """Usage of an account before a restart. age: seconds since then. holdings: their number."""

    age: float
    core_secs: float
    holdings: int


class FairShare(msgspec.Struct):
    """The usage of all accounts. now, reference: monotonic time; the owner advances `now`."""

    rules: ShareRules
    now: float = 0.0
    reference: float = 0.0
    accounts: dict[Account, AccountUsage] = msgspec.field(default_factory=dict)
    holdings: dict[Hashable, Holding] = msgspec.field(default_factory=dict)

    def begin(self, name: Hashable, account: Account, cores: float, ago: float = 0.0) -> None:
        """Count a holding from now, or from `ago` seconds before. Repeating it is harmless."""
        if name in self.holdings:
            return
        since = self.now - ago
        self.holdings[name] = Holding(account, cores, since)
        usage = self.accounts.setdefault(account, AccountUsage())
        usage.cores += cores
        usage.since += cores * since

    def end(self, name: Hashable) -> None:
        """Charge an ended holding to its account."""
        holding = self.holdings.pop(name, None)
        if holding is None:
            return
        account, cores, since = holding
        usage, secs = self.accounts[account], max(LEAST, cores * (self.now - since))
        usage.cores -= cores
        usage.since -= cores * since
        usage.mean = (1 - _WEIGHT) * usage.mean + _WEIGHT * secs if usage.used else secs
        self.charge(account, secs)

    def charge(self, account: Account, core_secs: float) -> None:
        """Add usage as of now."""
        self._move_reference()
        usage = self.accounts.setdefault(account, AccountUsage())
        usage.used += core_secs * self._scale()

    def restore(self, account: Account, used: Iterable[Used]) -> None:
        """Charge what an account used before a restart."""
        core_secs = holdings = 0.0
        for age, secs, count in used:
            weight = 2.0 ** (-age / self.rules.half_life_secs)
            core_secs += weight * secs
            holdings += weight * count
        self.charge(account, core_secs)
        if holdings:
            self.accounts[account].mean = max(LEAST, core_secs / holdings)

    def usage(self, account: Account) -> float:
        """Return the decayed usage in core-seconds, without current holdings."""
        usage = self.accounts.get(account)
        return 0.0 if usage is None else usage.used / self._scale()

    def level(self, account: Account, now: float | None = None) -> float:
        """Return the usage that decides the order: the decayed usage and the current holdings. now:
        another time for these.
        """
        usage = self.accounts.get(account)
        if usage is None:
            return 0.0
        now = self.now if now is None else now
        running = max(usage.cores * now - usage.since, usage.cores * usage.mean)
        return usage.used / self._scale() + running

    def mean(self, account: Account) -> float:
        """Return the core-seconds of an average holding."""
        usage = self.accounts.get(account)
        return FIRST_MEAN if usage is None else usage.mean

    def first(
        self,
        waiting: Mapping[Account, int],
        in_use: Mapping[str, int],
        capacity: int,
        more: Mapping[Account, float] = {},
    ) -> Account | None:
        """Return the account that is next, or None if no waiting queue may use more.

        waiting: number of the first run of each account. in_use: of this capacity, by queue. more:
        usage to add to that of some accounts.
        """
        among: Iterable[Account] = waiting
        if len(self.rules.queues) > 1:
            queues = {
                account.queue
                for account in waiting
                if self.rules.may_use(account.queue, in_use.get(account.queue, 0), capacity)
            }
            if not queues:
                return None
            chosen = min(
                queues,
                key=lambda q: (
                    in_use.get(q, 0) / self.rules.share(q),
                    min(n for account, n in waiting.items() if account.queue == q),
                ),
            )
            among = [account for account in waiting if account.queue == chosen]
        elif len(waiting) == 1:
            return next(iter(waiting))
        return min(
            among,
            key=lambda account: (self.level(account) + more.get(account, 0.0), waiting[account]),
        )

    def turns(
        self, lines: Mapping[Account, Sequence[_Waiting]], in_use: Mapping[str, int], capacity: int
    ) -> Iterator[_Waiting]:
        """Yield (number, ticket) of waiting runs in the order in which they would get what becomes
        free from now on, if each of them takes the mean of its account.
        """
        uses, more, at = dict(in_use), dict[Account, float](), dict.fromkeys(lines, 0)
        while True:
            waiting = {a: lines[a][n][0] for a, n in at.items() if n < len(lines[a])}
            account = self.first(waiting, uses, capacity, more) if waiting else None
            if account is None:
                return
            yield lines[account][at[account]]
            at[account] += 1
            more[account] = more.get(account, 0.0) + self.mean(account)
            uses[account.queue] = uses.get(account.queue, 0) + 1

    def before(self, account: Account, own: int, lengths: Mapping[Account, int]) -> int:
        """Return about how many runs of other accounts go before a run of `account` that has `own`
        earlier runs of its account before it. lengths: waiting runs of the other accounts.
        """
        total = 0
        level = self._settled(account) + own * self.mean(account)
        rivals = {a: n for a, n in lengths.items() if a.queue == account.queue}
        for rival, length in rivals.items():
            behind = (level - self._settled(rival)) / self.mean(rival)
            total += min(length, max(0, math.ceil(behind)))
        share = self.rules.share(account.queue)
        for queue in {a.queue for a in lengths} - {account.queue}:
            length = sum(n for a, n in lengths.items() if a.queue == queue)
            total += min(length, round((own + total) * self.rules.share(queue) / share))
        return total

    def _settled(self, account: Account) -> float:
        """Return the level without the time that current holdings have used so far: it changes only
        when something happens.
        """
        usage = self.accounts.get(account)
        return 0.0 if usage is None else usage.used / self._scale() + usage.cores * usage.mean

    def _scale(self) -> float:
        return float(2.0 ** ((self.now - self.reference) / self.rules.half_life_secs))

    def _move_reference(self) -> None:
        """Express usage as of now, before the scale becomes too large for a float."""
        if self.now - self.reference <= _MOVE_AFTER * self.rules.half_life_secs:
            return
        scale, self.reference = self._scale(), self.now
        for account, usage in list(self.accounts.items()):
            usage.used /= scale
            if usage.used < _FORGET_BELOW and not usage.cores:
                del self.accounts[account]
