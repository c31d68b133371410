"""Liveness: whatever is not over must have an agent, a timer or an unfinished verb that will
advance it.

This check is separate from the final checks, because it finds a hang at the step where it begins.
"""

from typing import TYPE_CHECKING

from jobscribe.db.events.state import Job, Run, Task
from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.resources.concurrency_limits import RunKey
from jobscribe.supervisor.core.resources.limit_pools import RunDirPool
from jobscribe.supervisor.core.scheduling import placement
from jobscribe.supervisor.core.state import cluster_assignment
from jobscribe.supervisor.core.state.agent_state import AgentState

if TYPE_CHECKING:
    from sim_supervisor import Supervisor


def owed(supervisor: "Supervisor", job: Job) -> str | None:
    """Return an inconsistency in the state of this job, as a sentence. Call it only when no commit
    is pending.
    """
    run = job.run
    if (
        run is not None
        and run.active
        and not run.live_tasks
        and (why := _waits(supervisor, job.jid, run))
    ):
        return why
    for task in job.live_tasks():
        if (
            why := _held(supervisor, task)
            if task.held is not None
            else _task(supervisor, job, task)
        ):
            return why
    return None


def unmoved(supervisor: "Supervisor") -> str | None:
    """Check needed agents and pending notifications of ends; return the first problem."""
    world = supervisor.engine.world
    for key, view in world.agents.items():
        if view.needed and (why := moved(supervisor, key, view)):
            return why
    for jid in world.followers:
        job = world.jobs.get(jid)
        if (job is None or not job.busy) and timers.FollowerCheck(jid) not in supervisor.timers:
            return f"{jid} is over, some wait for it, and nobody tells them"
    return None


def _waits(supervisor: "Supervisor", jid: str, run: Run) -> str | None:
    """Check a run without placed tasks: what it waits for, and what will wake it up."""
    world, pending, ticket = supervisor.engine.world, supervisor.timers, (jid, run.serial)
    if run.spec.queue_limit_secs and not run.attempts and timers.QueueLimit(*ticket) not in pending:
        return f"{ticket} has a queue limit, and no timer"
    if run.waits_for:
        return _others(supervisor, ticket, run)
    if ticket in world.host_assignment.unassigned:
        return f"{ticket} has no host, and there is one"
    key = world.key_of(run)
    view = world.agents.get(key)
    if view is None or ticket not in view.queued:
        return (
            None
            if run.retry is not None and timers.AttemptRetry(*ticket) in pending
            else f"{ticket} waits, and is in no queue"
        )
    claim = world.slots.claims.get(ticket)
    if (
        run.spec.roles
        and not world.policy.batch
        and ticket in view.asking
        and claim is not None
        and claim.held == len(claim.pools)
        and (why := _gang(supervisor, ticket, run))
    ):
        return why
    if timers.HoursCheck(key) in pending:
        supervisor.time.saw("a run waited for hours of its user")
        return moved(supervisor, key, view)
    return _asking(supervisor, key, view) or moved(supervisor, key, view)


def _others(supervisor: "Supervisor", ticket: RunKey, run: Run) -> str | None:
    """Check the dependencies of a run: each end will come, or has come and a timer will report it."""
    world = supervisor.engine.world
    for after in run.waits_for:
        if ticket not in world.followers.get(after.compute_jid, {}).get(
            after.compute_job_serial, {}
        ):
            return f"{ticket} waits for {after}, and is not among those who are told"
        there = world.jobs.get(after.compute_jid)
        if (there is None or not there.busy) and timers.FollowerCheck(
            after.compute_jid
        ) not in supervisor.timers:
            return f"{ticket} waits for {after}, which is over, and nobody tells it"
    return None


def _gang(supervisor: "Supervisor", ticket: RunKey, run: Run) -> str | None:
    """Check a gang that has its slots and waits for other resources."""
    world, pending = supervisor.engine.world, supervisor.timers
    room = world.node_pool(run.spec.driver)
    claim = room.claims.get(ticket)
    hold = world.holds.get(ticket)
    if ticket in world.gang_backoffs:
        return (
            None
            if timers.ReservationRetry(*ticket) in pending and claim is None
            else f"{ticket} was held off with {claim}, and is forgotten"
        )
    if claim is None or (hold is None) != (not claim.placements):
        return f"{ticket} has its slots, of the room {claim}, and of the holds {hold}"
    if hold is not None and timers.ReservationDeadline(*ticket) not in pending:
        return f"{ticket} has everything, and nobody sees to it that it is placed"
    for place in hold.places if hold is not None else ():
        key = world.key_at(run.spec, place.host)
        view = world.agents.get(key)
        if view is None or (key not in hold.free and ticket not in view.holding):
            return f"{ticket} waits for {key}, which does not know"
        if key not in hold.free and (why := moved(supervisor, key, view)):
            return why
    if (
        hold is None
        and any(b.avoided for b in room.usage.values())
        and timers.NodePoolRetry(run.spec.driver) not in pending
    ):
        return f"{ticket} waits in a room where ports are avoided, and nobody will look again"
    return None


def _held(supervisor: "Supervisor", task: Task) -> str | None:
    view = supervisor.engine.world.agents.get(task.agent_key)
    if timers.DebugHoldDeadline(task.token) not in supervisor.timers:
        return f"{task.token} is kept for debugging, and its time will never end"
    in_batch = task.agent_key.driver in supervisor.engine.world.policy.batch
    if view is not None and (task.token in view.placed) != in_batch:  # it watches the allocation
        return f"{task.token} is kept for debugging, and its agent is asked about it"
    return _holdings(supervisor, task)


def _asking(supervisor: "Supervisor", key: AgentKey, view: AgentState) -> str | None:
    """Check that the oldest runs ask for slots when their agent is up: all, or more than half of
    the limit.
    """
    claims = supervisor.engine.world.slots.claims
    oldest = set(list(view.queued)[: len(view.asking)])
    if view.asking != oldest or not all(t in claims for t in view.asking):
        return f"{view.asking} of {key} ask for slots, {oldest} are the oldest, and {list(claims)} hold or wait"
    if (
        view.phase == "up"
        and view.synced
        and len(view.asking) < min(len(view.queued), placement.ASKING // 2 + 1)
    ):
        return f"{len(view.asking)} of {len(view.queued)} runs of {key} ask for slots, and it is up"
    return None


def _task(supervisor: "Supervisor", job: Job, task: Task) -> str | None:
    world, token = supervisor.engine.world, task.token
    view = world.agents.get(task.agent_key)
    ticket = (token.jid, token.serial)
    if view is None or token not in view.placed:
        return f"{token} may live, and its agent does not have it"
    if why := _holdings(supervisor, task):
        return why
    # for an earlier run, it is unknown whether tasks that are over had started
    attempt = (
        job.run.attempts[-1].tasks if job.run is not None and job.run.serial == token.serial else ()
    )
    if (
        attempt
        and not task.waits_for_slot
        and (RunDirPool(token.jid) in world.slots.claims[ticket].pools)
        == any(t.pid is not None for t in attempt)
    ):
        return f"{token} with pid {task.pid} holds {world.slots.claims[ticket].pools}"
    if why := moved(supervisor, task.agent_key, view):
        return why
    if view.phase != "up" or not view.synced:
        return None
    run = job.run
    wanted = (
        run is not None
        and run.serial == token.serial
        and run.stop is None
        and run.attempts[-1].decided is None
    )
    if task.exited is not None:
        left = [
            t
            for t in (timers.TimeLimit(token), timers.StopReminder(token))
            if t in supervisor.timers
        ]
        return f"{token} has exited, and timers for its end are left: {left}" if left else None
    if not wanted and timers.StopReminder(token) not in supervisor.timers:
        return f"{token} is to be stopped, and nobody asks for it again"
    own_limit = (
        run is not None
        and run.spec.queue_limit_secs
        and cluster_assignment.in_scheduler_queue(world.policy, run)
    )
    if wanted and own_limit and timers.QueueLimit(*ticket) not in supervisor.timers:
        return f"{token} waits in the queue of its cluster, has a queue limit, and no timer"
    if (
        wanted
        and task.pid is None
        and not task.waits_for_slot
        and timers.LaunchDeadline(token) not in supervisor.timers
    ):
        return f"{token} is to start, and nobody asks what became of it"
    if (
        wanted
        and task.pid is not None
        and run is not None
        and run.spec.time_limit_secs
        and timers.TimeLimit(token) not in supervisor.timers
    ):
        return f"{token} has a time limit, and no timer"
    return None


def _holdings(supervisor: "Supervisor", task: Task) -> str | None:
    """Check that a task that may live or is held has its resources."""
    world, token = supervisor.engine.world, task.token
    ticket = (token.jid, token.serial)
    if task.waits_for_slot:
        return None if task.pid is None else f"{token} runs, and is to wait for a slot"
    claim = world.slots.claims.get(ticket)
    if claim is None or claim.held != len(claim.pools):
        return f"{token} may live, and holds {claim}"
    if task.ports and not world.policy.batch:
        seats = world.node_pool(task.agent_key.driver).claims.get(ticket)
        if seats is None or seats.placements.get((token.role, token.index)) != task.place:
            return f"{token} may live on {task.place}, and has {seats}"
    return None


def _crowded(supervisor: "Supervisor", key: AgentKey) -> str | None:
    """Check an agent that waits for memory: idle agents must leave until it fits, beside those with
    executions that wait too.
    """
    host_assignment = supervisor.engine.world.host_assignment
    lacking = host_assignment.missing_mb(key) + host_assignment.reserved_mb(key)
    if lacking <= 0:
        return f"{key} waits for memory, and there is some"
    lacking -= sum(map(host_assignment.agent_mb, host_assignment.leaving_agents(key)))
    if (
        lacking > 0
        and sum(map(host_assignment.agent_mb, host_assignment.idle_agents(key))) >= lacking
    ):
        return f"{key} waits for {lacking} MiB, and nobody needs {host_assignment.idle_agents(key)}"
    return None


def moved(supervisor: "Supervisor", key: AgentKey, view: AgentState) -> str | None:
    """Check what will bring up an agent that is needed."""
    pending, attempt = supervisor.timers, view.record.attempt
    match view.phase:
        case "up":
            link = supervisor.links.get(key)
            if link is None or link.epoch != view.epoch:
                return f"{key} is up on connection {view.epoch:x}, and the live one is {link.epoch if link else None}"
            if not view.synced and timers.SnapshotDeadline(key, view.epoch) not in pending:
                return f"{key} is connected, and nobody asks for its snapshot"
        case "finding" if not supervisor.driver.busy.get(key):
            return f"{key} is being looked for, by nobody"
        case "starting" if (
            timers.AgentStartDeadline(key, attempt) not in pending
            and timers.AgentStartRetry(key, attempt) not in pending
        ):
            return f"{key} is being started, and nothing comes of it"
        case "stopping" if timers.AgentStartDeadline(key, attempt) not in pending:
            return f"{key} is being ended, and nothing comes of it"
        case "away" if timers.AgentReturnDeadline(key) not in pending:
            return f"{key} is away, and nobody looks for it"
        case "leaving" if timers.AgentLeaveDeadline(key) not in pending:
            return f"{key} is to go and needed, and nothing comes of it"
        case "signed_out" if (key.uid, key.host) in supervisor.driver.sign_ins.there:
            return f"{key} waits for a sign-in, and its user is signed in"
        case "crowded" if why := _crowded(supervisor, key):
            return why
        case "absent" if (key.driver, key.host) not in supervisor.engine.world.host_assignment.down:
            return f"{key} is needed, and nobody sees to it"
    return None
