"""Pools of concurrency limits, one frozen struct each. `LimitPool` is the union.

A pool is its own identity: equal pools are one pool. Pools of different types are never equal. The
sizes of pools are not here, because they depend on the configuration (`World`).
"""

from typing import Literal

import msgspec

from ....protocol.ids import AgentKey, AgentKind


class JobPool(msgspec.Struct, frozen=True, tag=True):
    """The job itself: one run of it at a time, until all tasks of the run have ended."""

    jid: str


class ArrayPool(msgspec.Struct, frozen=True, tag=True):
    """An array: the runs of one simulation, of which `at_once` may run at once."""

    uid: str
    simulation_id: str
    at_once: int


class UserPool(msgspec.Struct, frozen=True, tag=True):
    """All runs of a user, of which `at_once` may run at once."""

    uid: str
    at_once: int


class UserTotal(msgspec.Struct, frozen=True, tag=True):
    """The sum of one resource over all runs of a user. A run takes an amount from this pool; the user's
    plan sets the size of the pool (`concurrency_limits.Portion`). Memory is in MB.
    """

    uid: str
    resource: Literal["cores", "gpus", "memory"]


class OpPool(msgspec.Struct, frozen=True, tag=True):
    """The runs of one user with this driver and agent kind. host: a cluster, None for all hosts."""

    driver: str
    kind: AgentKind
    uid: str
    host: str | None


class RunDirPool(msgspec.Struct, frozen=True, tag=True):
    """The run directory of a job, until the run has started."""

    jid: str


class CpuPool(msgspec.Struct, frozen=True, tag=True):
    """The slots for plain runs of this kind on this host, or in the queue of this cluster."""

    driver: str
    kind: AgentKind
    host: str


LimitPool = JobPool | ArrayPool | UserPool | UserTotal | OpPool | RunDirPool | CpuPool


def cpu_pool(key: AgentKey) -> CpuPool:
    """Return the pool that a plain run of this agent needs."""
    return CpuPool(key.driver, key.kind, key.host)


def without_slots(pools: tuple[LimitPool, ...]) -> tuple[LimitPool, ...]:
    """Return the pools that a run keeps while it waits with its agent: its job and its array."""
    return tuple(p for p in pools if isinstance(p, JobPool | ArrayPool))
