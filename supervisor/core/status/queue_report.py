"""The queues, the turns of their users, and what drivers have in use, for people. Pure.

The sentences of single runs are in `run_status`. Rows name users only as far as the caller asks.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ....db.events.reserved import by_run
from ....db.events.state import Job
from ....protocol.clusters.queues import UserLimits
from ....protocol.ids import AgentKind
from ..interface import grants
from ..interface.inputs import Now
from ..resources.fair_share import Account
from ..resources.limit_pools import CpuPool
from ..state import user_hours
from ..state.world import World

_KINDS = (AgentKind.SEQUENTIAL, AgentKind.PARALLEL)


class Counted(msgspec.Struct):
    """Active runs of one account. cores, gpus, memory_mb: reserved by those that run."""

    waiting: int = 0
    running: int = 0
    cores: int = 0
    gpus: int = 0
    memory_mb: int = 0


class ActiveRuns(msgspec.Struct):
    """Active runs by account, and of the users in `about` (None: all) the plans and those that wait."""

    about: frozenset[str] | None = None
    counted: dict[Account, Counted] = {}
    plans: dict[str, str | None] = {}
    waiting: list[tuple[int, float, str]] = []

    def add(self, world: World, jobs: Iterable[Job]) -> None:
        for job in jobs:
            run = job.run
            if run is None or not run.active:
                continue
            account = world.account_of((job.jid, run.serial))
            counted = self.counted.setdefault(account, Counted())
            shown = self.about is None or account.uid in self.about
            if shown:
                self.plans[account.uid] = run.spec.active_plan
            if any(not t.waits_for_slot for t in run.live_tasks):
                reserved = by_run(run.spec)
                counted.running += 1
                counted.cores += reserved.cores
                counted.gpus += reserved.gpus
                counted.memory_mb += reserved.mib or 0
                continue
            counted.waiting += 1
            if shown:
                self.waiting.append((-(run.spec.priority or 0), run.queued_at, job.jid))


def queue_rows(world: World, found: ActiveRuns, uid: str | None) -> list[dict[str, Any]]:
    """Return each queue with its totals. mine: the user may use it (None: no single user asks)."""
    queues, rules = world.policy.queues, world.slots.fair.rules
    shares = sum(rule.share for rule in rules.queues.values())
    out = []
    for name, queue in queues.all.items():
        own = [c for account, c in found.counted.items() if account.queue == name]
        row: dict[str, Any] = {
            "queue": name,
            "share": queue.share,
            "part": queue.share / shares,
            "borrow": queue.borrow,
            "open": not (queue.users or queue.plans),
            "mine": None if uid is None else queue.admits(uid, found.plans.get(uid)),
            "waiting": sum(c.waiting for c in own),
            "running": sum(c.running for c in own),
            "cores": sum(c.cores for c in own),
            "gpus": sum(c.gpus for c in own),
        }
        if uid is None:
            row |= {"users": list(queue.users), "plans": list(queue.plans)}
        out.append(row)
    return out


def account_rows(
    world: World, found: ActiveRuns, uid: str | None, now: Now
) -> list[dict[str, Any]]:
    """Return the accounts, the next one first in each queue. usedCoreSecs: decayed usage, which with
    what the account holds now gives `level`: the lowest level gets the next free slot.
    """
    fair = world.slots.fair
    accounts = {a for a in (*fair.accounts, *found.counted) if uid in (None, a.uid)}
    rows = []
    for account in sorted(accounts, key=lambda a: (a.queue, fair.level(a, now.mono), a.uid)):
        counted = found.counted.get(account, Counted())
        rows.append(
            {
                "queue": account.queue,
                "uid": account.uid,
                "usedCoreSecs": fair.usage(account),
                "level": fair.level(account, now.mono),
                "waiting": counted.waiting,
                "running": counted.running,
                "cores": counted.cores,
                "gpus": counted.gpus,
                "memoryMb": counted.memory_mb,
            }
        )
    return rows


def slot_rows(world: World, drivers: Iterable[str]) -> list[dict[str, Any]]:
    """Return the slots for runs without roles, of each host or cluster, and the runs that wait for one. total: that
    this shard may use now; where other shards use the others, siteTotal and siteUsed are of the site.
    """
    policy, rows = world.policy, []
    for driver in drivers:
        for place in policy.hosts(driver):
            for kind in _KINDS:
                total = world.slots_at(driver, kind, place.host)
                if place.slots and kind not in place.slots:
                    continue
                pool = world.slots.pools.get(CpuPool(driver, kind, place.host))
                used = 0 if pool is None else len(pool.holders)
                rows.append(
                    {
                        "driver": driver,
                        "host": place.host,
                        "kind": kind,
                        "batch": driver in policy.batch,
                        "used": used,
                        "total": total,
                        "waiting": 0 if pool is None else sum(map(len, pool.lines.values())),
                        **_of_site(world, grants.slots_name(driver, kind, place.host), used),
                    }
                )
    return rows


def _of_site(world: World, name: str, used: int) -> dict[str, int]:
    """Return the slots of the site and their use, {} unless shards share them."""
    grant = world.grants.get(name)
    return {} if grant is None else {"siteTotal": grant.capacity, "siteUsed": used + grant.others}


def limit_rows(world: World, found: ActiveRuns, uid: str, now: Now) -> list[dict[str, Any]]:
    """Return the limits of a user and what counts for each now (None: they are of a single run)."""
    limits = world.policy.queues.limits_of(found.plans.get(uid), uid)
    own = [c for account, c in found.counted.items() if account.uid == uid]
    hours = world.hours.of(uid, now.wall) if world.limits_hours else None
    running = user_hours.running_secs(world, uid, now) if hours is not None else (0.0, 0.0)
    used: dict[str, float | None] = {
        "running": sum(c.running for c in own),
        "queued": sum(c.waiting for c in own),
        "totalCores": sum(c.cores for c in own),
        "totalGpus": sum(c.gpus for c in own),
        "totalMemory": sum(c.memory_mb for c in own),
        "coreHours": None if hours is None else (hours.core_ms / 1000 + running[0]) / 3600,
        "gpuHours": None if hours is None else (hours.gpu_ms / 1000 + running[1]) / 3600,
    }
    return [
        {"limit": name, "most": most, "used": used.get(name)}
        for name, most in given(limits).items()
    ]


def given(limits: UserLimits) -> dict[str, Any]:
    """Return the limits that are set, by their names in the file of queues."""
    return {name: most for name, most in msgspec.to_builtins(limits).items() if most is not None}


def title_of(job: Job) -> str:
    """Return the name of a job's run, else its command or app."""
    assert job.run is not None
    spec = job.run.spec
    command = " ".join(spec.command or (spec.roles[0].command if spec.roles else ()))
    return (spec.sim_name or command or spec.simulation_type)[:200]
