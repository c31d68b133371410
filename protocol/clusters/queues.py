"""The configuration of queues and of users' limits: fields, their forms and defaults.

`service/site/queue_file` reads the file; the core schedules by it.
"""

from typing import Annotated

import msgspec

from ..fields import MEGABYTES, SECONDS, Form
from ..ids import DEFAULT_QUEUE, Uid

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000), Form("a whole number")]
QueueName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z"),
    Form("a small letter, then small letters, digits, _ or -, at most 32"),
]
Plan = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z"), Form("the name of a plan")]
Secs = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400), SECONDS]
#: Sizes of memory and disk in MB (2**20 bytes).
Megabytes = Annotated[int, msgspec.Meta(ge=1, le=2**40), MEGABYTES]
Hours = Annotated[float, msgspec.Meta(ge=0, le=1e9), Form("hours, as a number")]
Gpus = Annotated[int, msgspec.Meta(ge=0, le=100_000), Form("a whole number")]
Share = Annotated[float, msgspec.Meta(gt=0, le=1_000_000), Form("a number")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all parts share; no fields."""


class UserLimits(_Part, frozen=True, kw_only=True):
    """Limits of one user; None: no limit.

    running: concurrent runs with all drivers. queued: runs that wait. cores, gpus: of one run with
    roles. sequential, parallel: run time in seconds of a run of this kind, also the default of its
    time limit. total_*: of all runs that run at a time, memory in MB. core_hours, gpu_hours: in a
    UTC calendar month. disk_*: size of the user's files in MB.
    """

    running: Count | None = None
    queued: Count | None = None
    cores: Count | None = None
    gpus: Gpus | None = None
    sequential: Secs | None = None
    parallel: Secs | None = None
    total_cores: Count | None = None
    total_gpus: Gpus | None = None
    total_memory: Megabytes | None = None
    core_hours: Hours | None = None
    gpu_hours: Hours | None = None
    disk_soft: Megabytes | None = None
    disk_hard: Megabytes | None = None

    def replaced_by(self, other: "UserLimits | None") -> "UserLimits":
        """Return these limits with those that the other ones name."""
        if other is None:
            return self
        given = {f: v for f in other.__struct_fields__ if (v := getattr(other, f)) is not None}
        return msgspec.structs.replace(self, **given)


class Queue(_Part, frozen=True, kw_only=True):
    """share: weight of the queue: what it gets of slots and cores while others wait. borrow: it may
    use what other queues leave idle. users, plans: who may use it; both empty: everybody.
    """

    share: Share = 1.0
    borrow: bool = True
    users: Annotated[tuple[Uid, ...], Form("a list of users, each once", unique=True)] = ()
    plans: Annotated[tuple[Plan, ...], Form("a list of plans, each once", unique=True)] = ()

    def admits(self, uid: str, plan: str | None) -> bool:
        return not (self.users or self.plans) or self.names(uid, plan)

    def names(self, uid: str, plan: str | None) -> bool:
        """Return whether the queue lists this user or plan."""
        return uid in self.users or (plan is not None and plan in self.plans)


class Queues(_Part, frozen=True, kw_only=True):
    """The queues of a site, and the limits of its users. The queue `default` always exists.

    half_life: recent usage counts half after this time. gpu_cores: one GPU counts as this many cores.
    limits: of every user. plans: of users with a plan, users: of single users; each replaces those
    that it names, and those of a user replace those of the plan.
    """

    queues: dict[QueueName, Queue] = {}
    half_life: Annotated[float, msgspec.Meta(ge=60, le=366 * 86_400), SECONDS] = 7 * 86_400.0
    gpu_cores: Annotated[float, msgspec.Meta(ge=0, le=1_000), Form("a number")] = 8.0
    limits: UserLimits = UserLimits()
    plans: dict[Plan, UserLimits] = {}
    users: dict[Uid, UserLimits] = {}

    @property
    def all(self) -> dict[str, Queue]:
        """Return all queues with `default`."""
        return (
            dict(self.queues)
            if DEFAULT_QUEUE in self.queues
            else {DEFAULT_QUEUE: Queue(), **self.queues}
        )

    def of(self, uid: str, plan: str | None) -> str:
        """Return the queue of a user who names none: the first one that lists the user or the plan,
        else `default`.
        """
        return next((n for n, q in self.queues.items() if q.names(uid, plan)), DEFAULT_QUEUE)

    def limits_of(self, plan: str | None, uid: str = "") -> UserLimits:
        """Return the limits of a user with this plan."""
        if not self.plans and not self.users:
            return self.limits
        return self.limits.replaced_by(self.plans.get(plan or "")).replaced_by(self.users.get(uid))

    def any_limit(self, *names: str) -> bool:
        """Return whether somebody has one of these limits."""
        every = (self.limits, *self.plans.values(), *self.users.values())
        return any(getattr(limits, name) is not None for limits in every for name in names)
