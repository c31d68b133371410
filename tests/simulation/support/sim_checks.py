"""Checks of the guarantees: whenever a status becomes durable, after every step, and at the end of
a life.
"""

import itertools
from typing import TYPE_CHECKING

from sim_execution_checks import ExecutionChecks
from sim_liveness import owed, unmoved
from sim_time import BEGIN

from jobscribe.db.events.events import RunRequested, job_stream
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job, Run, Task
from jobscribe.db.events.usage import increment
from jobscribe.db.events.usage_row import ALL_MONTHS, merged
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.status import PURGED
from jobscribe.supervisor.core.interface.timers import AgentTimer, SnapshotDeadline
from jobscribe.supervisor.core.resources import concurrency_limits, gang_allocator
from jobscribe.supervisor.core.resources.concurrency_limits import RunKey
from jobscribe.supervisor.core.resources.limit_pools import RunDirPool, UserTotal
from jobscribe.supervisor.core.runs.reconciler import RESTARTED
from jobscribe.supervisor.core.state.world import World
from jobscribe.supervisor.core.status.run_status import status

if TYPE_CHECKING:
    from sim_machine import Process
    from sim_supervisor import Supervisor
    from simulator import Simulator

#: Steps between two comparisons of the world with the log.
FOLD_EVERY = 150
#: Steps between two checks of single jobs, in turn: pending actions and reported status.
LOOK_EVERY = 3
#: Maximum time after the last fault for which an execution may be unknown: the longest pause
#: between two attempts to start its agent.
UNKNOWN_SECS = 75.0


class Checks:
    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self.machine, self.clients = (
            sim,
            sim.time,
            sim.machine,
            sim.clients,
        )
        self.executions = ExecutionChecks(sim)
        self.final: dict[tuple[str, int], str] = {}
        self.serials: dict[str, int] = {}
        #: tasks whose end is durable
        self.ended: dict[Token, float] = {}
        self.calm_since: float | None = None
        self._next = self._decisions = 0

    @property
    def supervisor(self) -> "Supervisor":
        return self.sim.supervisor

    # ---- a status became durable

    def projected(self, job: Job) -> None:
        self.time.say(
            "durable",
            job.jid,
            job.run.serial if job.run else None,
            job.status,
            job.run.reason if job.run else None,
        )
        run = job.run
        if run is None:
            return
        key = (job.jid, run.serial)
        if run.serial < self.serials.get(job.jid, 0):
            self.sim.broken(f"{job.jid}: serial {run.serial} came after {self.serials[job.jid]}")
        self.serials[job.jid] = run.serial
        self._final(key, run)
        if key in self.clients.canceled and run.status in ("pending", "running"):
            self.sim.broken(f"G13: {key} is {run.status} after an acknowledged cancel")
        processes = {
            p.token: p
            for a in run.attempts
            for t in a.tasks
            if (p := self.machine.by_token.get(str(t.token))) is not None
        }
        self._status(key, run, list(processes.values()))
        for attempt in run.attempts:
            for task in attempt.tasks:
                self._task(task, processes.get(str(task.token)))
        for past in job.history:
            purged = past.status == PURGED and (job.jid, past.serial) in self.clients.purged
            if self.final.get((job.jid, past.serial), past.status) != past.status and not purged:
                self.sim.broken(
                    f"{job.jid}/{past.serial} was {self.final[job.jid, past.serial]}, its history says {past.status}"
                )

    def _final(self, key: tuple[str, int], run: Run) -> None:
        before = self.final.get(key)
        if (
            before is not None
            and before != run.status
            and not (run.status == PURGED and key in self.clients.purged)
        ):
            self.sim.broken(f"{key} was {before} and became {run.status}")
        if not run.active:
            self.final[key] = run.status

    def _status(self, key: tuple[str, int], run: Run, processes: "list[Process]") -> None:
        """Check that the status matches the machine."""
        now = self.time.now
        match run.status, run.reason:
            case "running", _ if not processes:
                self.sim.broken(f"{key} is running and no process ever was")
            case "completed", _ if not run.spec.roles and not any(
                p.ended is not None and p.truth == (0, None) for p in processes
            ):
                self.sim.broken(f"{key} is completed, but the machine says {processes}")
            case _, "queueLimit":
                waited, limit = (
                    self.machine.home.mono - (run.queued_mono or 0.0),
                    run.spec.queue_limit_secs or 0.0,
                )
                # a job that the cluster starts at this very moment is stopped at once
                if processes and not self.sim.policy.batch:
                    self.sim.broken(f"{key} was canceled by its queue limit, and it ran")
                if run.queued_boot_id == self.machine.home.boot_id and waited < limit - 0.01:
                    self.sim.broken(f"{key} waited {waited:.1f} s, and its queue limit is {limit}")
                self._once("a run was canceled by its queue limit", key)
            case _, "timeLimit":
                limit = run.spec.time_limit_secs or 0.0
                if not any((p.ended or now) - p.started >= limit - 0.01 for p in processes):
                    self.sim.broken(
                        f"{key} was canceled by its time limit of {limit} s, but {processes}"
                    )
                by_supervisor = run.stop is not None
                self._once(
                    "a run was ended by its time limit, by the "
                    + ("supervisor" if by_supervisor else "keeper"),
                    key,
                )
            case _, "startFailed" | "agentStartFailed" if any(
                p.gang.endswith(f"/{run.attempt}") for p in processes
            ):
                if not run.spec.roles and run.attempts[-1].retry is None:
                    self.sim.broken(f"{key} is {run.reason}, but it ran: {processes}")
            case _, "lost" | "agentStartFailed":
                self._once(f"a run ended with the reason {run.reason}", key)
            case _:
                pass

    def _once(self, what: str, key: tuple[str, int]) -> None:
        if (what, key) not in self.sim.seen:
            self.sim.seen.add((what, key))
            self.time.saw(what)

    def _task(self, task: Task, p: "Process | None") -> None:
        if task.batch is not None and task.batch.job_id is None:
            self.sim.broken(f"{task.token} was submitted, and there is no number")
        if task.pid is not None and (
            p is None or (p.pid != task.pid and not (task.pid == 0 and self.sim.policy.batch))
        ):
            self.sim.broken(f"{task.token} is pid {task.pid} in the books, and {p} on the machine")
        if task.exit is None or task.token in self.ended:
            return
        self.ended[task.token] = self.time.now
        if task.exit.detail == RESTARTED:
            self.time.saw("a task was placed before a reboot, and nobody knows whether it started")
        if p is None:
            canceled_there = (
                isinstance(task.exit.batch, BatchState) and task.exit.batch.state == "CANCELLED"
            )
            if task.exit.source not in ("start", "lost") and not canceled_there:
                self.sim.broken(f"{task.token} never ran, and ended with {task.exit}")
        elif p.ended is None:
            self.sim.broken(f"{task.token} is over in the books, and it runs: {task.exit}")
        elif task.exit.source == "start":
            self.sim.broken(
                f"G4: {task.token} ran, and the books say that it never started: {task.exit.detail}"
            )
        elif task.exit.source == "lost":
            if p.written is not None:
                self.sim.broken(
                    f"G4: {task.token} left its exit behind, and is called lost: {task.exit.detail}"
                )
        elif (task.exit.code, task.exit.signal) != p.truth:
            self.sim.broken(f"G4: {task.token} ended with {p.truth}, the log says {task.exit}")
        elif task.exit.source == "script":
            self.time.saw("an end was taken from its evidence")

    # ---- after every step

    def step(self) -> None:
        self.executions.step()
        supervisor = self.supervisor
        for number, until in self.clients.calls.items():
            if (
                self.time.now > max(until, supervisor.well_since + 3.0)
                and not supervisor.life.frozen
            ):
                self.sim.broken(
                    f"G11: call {number} had to be over {self.time.now - until:.1f} s ago"
                )
            break
        if not supervisor.awake:
            return
        engine = supervisor.engine
        well = supervisor.well_since if supervisor.commit_secs < 0.01 else self.time.now
        for handle, (_, until) in supervisor.replies.items():
            if self.time.now > max(until, well + 6.0):
                self.sim.broken(
                    f"G11: request {handle} has waited for its answer since {until - BEGIN:.1f} s"
                )
            break
        world = engine.world
        if supervisor.decisions != self._decisions:
            self._decisions = supervisor.decisions
            if wrong := concurrency_limits.violations(world.slots):
                self.sim.broken(f"slots: {wrong}")
            for driver, room in world.node_pools.items():
                if wrong := gang_allocator.violations(room):
                    self.sim.broken(f"the room of {driver}: {wrong}")
        if engine.paused or engine._suspect or engine._pending:
            return
        if world.jobs and self.time.steps % LOOK_EVERY == 0:
            self._next += 1
            jid = next(itertools.islice(world.jobs, self._next % len(world.jobs), None))
            self._told_truly(world, world.jobs[jid])
            if why := owed(supervisor, world.jobs[jid]) or unmoved(supervisor):
                self.sim.broken(why)
        if self.time.steps % FOLD_EVERY == 0:
            self._as_folded(world)

    def _told_truly(self, world: World, job: Job) -> None:
        """Check the reported status of an active job."""
        said = status(world, job, 1, self.supervisor.now_of_checks())
        run = job.run
        if run is None or said["state"] != run.status:
            self.sim.broken(f"{job.jid} is told as {said['state']}")
            return
        if said["state"] == "pending" and not (said["queueState"] and said["jobStatusMessage"]):
            self.sim.broken(f"why {job.jid} waits is not told: {said}")
        if said["state"] == "pending" or said["queueState"] == "debug_hold":
            self._once(f"it was told: {said['queueState']}", (job.jid, run.serial))
        if (
            said["state"] == "pending"
            and (wait := concurrency_limits.wait_of(world.slots, (job.jid, run.serial))) is not None
        ):
            pool = world.slots.pools[wait.pool]
            queue, rules = world.account_of((job.jid, run.serial)).queue, world.slots.fair.rules
            may = rules.may_use(queue, pool.in_use.get(queue, 0), pool.capacity)
            total = isinstance(wait.pool, UserTotal)
            fits = wait.in_use + wait.wanted <= wait.capacity
            in_use = pool.used if total else len(pool.holders)
            if wait.in_use != in_use or (fits and not wait.ahead and may):
                self.sim.broken(f"{job.jid} is said to wait for {wait}, and {pool}")
        if said["state"] == "pending" and said["queueState"] == "slurm" and "batch" not in said:
            self.sim.broken(f"{job.jid} is told to be in a queue, and not in which: {said}")
        if any(
            t.token in world.batch and world.batch[t.token].unknown_since is not None
            for t in run.live_tasks
            if t.held is None
        ):
            self._once("it was not known, for a scheduler did not answer", (job.jid, run.serial))
            if said["known"]:
                self.sim.broken(f"{job.jid} is told as known, and its scheduler does not answer")
        if (
            not said["known"]
            and self.calm_since is not None
            and self.time.now > self.calm_since + UNKNOWN_SECS
        ):
            self.sim.broken(
                f"{job.jid} is still not known about, {self.time.now - self.calm_since:.0f} s after the storm"
            )

    def _as_folded(self, world: World) -> None:
        """Check that the live world equals a fold of the log: jobs, queues, placements and claims."""
        engine = self.supervisor.engine
        fresh = World(engine.policy)
        jobs = []
        for jid in engine.store.busy_jids():
            entry, requested = engine._read(jid)
            jobs.append((entry.job, requested))
        fresh.restore(jobs, [])
        for job, _ in jobs:
            if world.jobs.get(job.jid) != job:
                self.sim.broken(f"G8: {job.jid} is not what its events add up to")
        for key, view in fresh.agents.items():
            live = world.agents.get(key)
            # with several hosts, a queued run may be assigned to another one
            mine, theirs = (
                self._at_first(world, _queued(world, key)),
                self._at_first(world, _queued(fresh, key)),
            )
            if mine.keys() != theirs.keys() or (live.placed if live else set()) != view.placed:
                self.sim.broken(f"G8: {key} has {live}, its events add up to {view}")
            if sorted(mine, key=mine.__getitem__) != sorted(theirs, key=theirs.__getitem__):
                self.sim.broken(f"G8: the queue of {key} is in another order than its events")
        for ticket, claim in fresh.slots.claims.items():
            live_claim = world.slots.claims.get(ticket)
            if any(ticket in view.ahead for view in world.agents.values()):
                continue  # it requests its slots when its agent is up
            # for an earlier run, it is unknown whether a task that is over had started
            run = world.jobs[ticket[0]].run
            but = set() if run is not None and run.serial == ticket[1] else {RunDirPool(ticket[0])}
            if (
                live_claim is None
                or not set(live_claim.pools[: live_claim.held]) ^ set(claim.pools) <= but
            ):
                self.sim.broken(f"G8: {ticket} holds {live_claim}, its events add up to {claim}")
        for ticket, tally in world.task_counts.items():
            run, anew = world.jobs[ticket[0]].run, fresh.task_counts.get(ticket)
            if (
                anew is None
                or anew.live != tally.live
                or (run is not None and run.serial == ticket[1] and anew != tally)
            ):
                self.sim.broken(f"G8: {tally} of {ticket} are counted, its events add up to {anew}")
        if fresh.followers != world.followers:
            self.sim.broken(
                f"G8: {world.followers} wait for others, their events add up to {fresh.followers}"
            )
        for driver, room in world.node_pools.items():
            seated = {
                ticket: claim.placements
                for ticket, claim in room.claims.items()
                if claim.placements and ticket not in world.holds
            }
            placed = {
                ticket: claim.placements for ticket, claim in fresh.node_pool(driver).claims.items()
            }
            if seated != placed:
                self.sim.broken(
                    f"G8: with {driver}, {seated} have room, their events add up to {placed}"
                )

    def _at_first(self, world: World, queued: dict[RunKey, int]) -> dict[RunKey, int]:
        """Return the queue without retried or dependent runs: these join later, behind all queued
        runs.
        """
        runs = {ticket: world.jobs[ticket[0]].run for ticket in queued}
        return {
            t: n
            for t, n in queued.items()
            if (run := runs[t]) is not None and not run.attempts and not run.spec.after
        }

    # ---- final checks

    def reckon(self) -> None:
        events = self.supervisor.store.read_all(0, 1_000_000)
        folded: dict[str, Job] = {}
        requested: set[tuple[str, int]] = set()
        used = []
        for stored in events:
            if stored.stream.startswith("job/"):
                jid = stored.stream.removeprefix("job/")
                before = folded.get(jid) or Job(jid=jid)
                used.append(increment(before, stored.event))
                folded[jid] = evolve(before, stored.event)
                if isinstance(stored.event, RunRequested):
                    requested.add((jid, stored.event.serial))
        sums = merged((row for row in used if row is not None), ALL_MONTHS)
        if merged(self.supervisor.store.usage(0, 1e12), ALL_MONTHS) != sums:
            self.sim.broken("the usage is not what the events add up to")
        for asked in (*self.clients.runs, *self.clients.cancels, *self.clients.releases):
            if not asked.over:
                self.sim.broken(f"G11: {asked.req_id} was never answered")
            if asked.serial is not None and (asked.jid, asked.serial) not in requested:
                self.sim.broken(
                    f"G1: {asked.req_id} was acknowledged, and its run is not in the log"
                )
        for p in self.machine.live.values():
            self.sim.broken(f"G13, G14: {p.token} still runs")
        for jid, job in folded.items():
            self._over(jid, job)
        self._nothing_left()

    def _over(self, jid: str, job: Job) -> None:
        if job.busy:
            self.sim.broken(f"G14: {jid} never ended: {job.run}")
        durable = self.supervisor.engine.durable(jid)
        if (
            durable is None
            or durable.job != job
            or durable.position != self.supervisor.store.read(job_stream(jid))[-1].position
        ):
            self.sim.broken(f"G8: {jid}: the fold is not the live state")
        if job.run is not None:
            for attempt in job.run.attempts:
                for task in attempt.tasks:
                    self._task(task, self.machine.by_token.get(str(task.token)))

    def _nothing_left(self) -> None:
        """G19."""
        supervisor, engine = self.supervisor, self.supervisor.engine
        world = engine.world
        left: dict[str, object] = {
            "jobs": dict(world.jobs),
            "claims": world.slots.claims,
            "pools": world.slots.pools,
            "pending": engine._pending,
            "began": getattr(world, "began", {}),
            "requests": engine._requests,
            "replies": supervisor.replies,
            "calls": self.clients.calls,
            "timers": [
                t
                for t in supervisor.timers
                if not isinstance(t, AgentTimer) or isinstance(t, SnapshotDeadline)
            ],
            "views": [
                (str(k), v) for k, v in world.agents.items() if v.needed or v.asking or v.snapshot
            ],
            "rooms": [
                r
                for r in world.node_pools.values()
                if r.claims
                or r.queue
                or any(b.cpu or b.memory_mb or b.gpus or b.ports for b in r.usage.values())
            ],
            "homes": [
                x
                for x in (
                    world.host_assignment.hosts,
                    world.host_assignment.unassigned,
                    world.host_assignment.waiting_for_memory,
                    world.host_assignment._waiting,
                )
                if x
            ],
            "batch": world.batch,
            "holds": world.holds,
            "tallies": world.task_counts,
            "held off": world.gang_backoffs,
            "followers": world.followers,
            "asked": [link.asked for link in supervisor.links.values() if link.asked],
            "sockets": [
                e
                for e, link in supervisor.sockets.items()
                if supervisor.links.get(link.key) is not link
            ],
        }
        for keeper in self.machine.live_keepers():
            left[f"keeper of {keeper.key}"] = [e.name for e in keeper.table.known.values()]
            if keeper.agent is not None:
                left[f"agent of {keeper.key}"] = [
                    str(e.token) for e in keeper.agent.session.executions()
                ] + list(keeper.agent.calls)
        for what, is_left in left.items():
            if is_left:
                self.sim.broken(f"G19: left in memory: {what}: {is_left}")


def _queued(world: World, key: AgentKey) -> dict[RunKey, int]:
    """Return the queues of one user's agents of a kind, on all hosts."""
    views = [
        v
        for k, v in world.agents.items()
        if (k.driver, k.kind, k.uid) == (key.driver, key.kind, key.uid)
    ]
    return {ticket: number for v in views for ticket, number in v.queued.items()}
