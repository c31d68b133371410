"""The status reply of a run, and the sentence that says why it waits. Pure."""

import datetime
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from ....db.events.state import Job, PastRun, Run
from ....db.records.job_record import roles, usage
from ....diagnosis.causes import QueueState
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey, AgentKind
from ....protocol.jobs import debugging
from ....protocol.jobs.status import ACTIVE, PENDING, PURGED, RUNNING
from ..interface import grants
from ..interface.drains import SITE
from ..interface.inputs import Now
from ..resources import concurrency_limits, gang_allocator, host_selection, unschedulable
from ..resources.concurrency_limits import LimitWait, RunKey
from ..resources.gang_allocator import Node
from ..resources.host_selection import HostCapacity
from ..resources.limit_pools import (
    ArrayPool,
    CpuPool,
    JobPool,
    OpPool,
    RunDirPool,
    UserPool,
    UserTotal,
)
from ..runs.termination import canceled_after
from ..state import cluster_assignment, user_hours
from ..state.agent_phase import AgentPhase
from ..state.agent_state import AgentState
from ..state.world import LOCAL, World, owner
from . import batch_status, queue_position

#: Dependencies that are named in a reply.
WAITS_SHOWN = 20
#: Seconds after which a page should ask again.
NEXT_REQUEST_SECS = {"sequential": 1, "parallel": 2}


def missing(jid: str, reason: str) -> dict[str, Any]:
    return {"state": "missing", "computeJid": jid, "reason": reason, "known": True, "over": True}


def status(
    world: World,
    job: Job,
    position: int,
    now: Now,
    *,
    hash_: str | None = None,
    serial: int = 0,
    store_fails_since: float | None = None,
) -> dict[str, Any]:
    """Return the status of a job's run for a caller with this hash and serial. A mismatch is the
    normal answer `missing`.
    """
    run = job.run
    if run is None:
        return missing(job.jid, "noRun")
    if serial not in (0, run.serial):
        past = next((p for p in job.history if p.serial == serial), None)
        return missing(job.jid, "computeJobSerial-mismatch") if past is None else _past(job, past)
    if hash_ is not None and hash_ != run.spec.compute_job_hash:
        return missing(job.jid, "computeJobHash-mismatch")
    return _current(world, job, run, position, now, store_fails_since)


def is_cacheable(world: World, job: Job, reply: dict[str, Any]) -> bool:
    """Return whether this status, apart from the growth of `elapsedTime`, changes only by events of
    the job, progress reports, and reports or the loss of its agents.

    True for a running run that is known, with the start by a monotonic clock. A run that waits is
    described by other runs, and a run in a batch scheduler by the scheduler's reports.
    """
    run = job.run
    return (
        run is not None
        and reply["state"] == RUNNING
        and reply.get("computeJobSerial") == run.serial
        and reply["known"]
        and reply["jobStatusMessage"] is None
        and run.spec.driver not in world.policy.batch
        and any(t.token in world.began for t in run.live_tasks)
    )


def _current(
    world: World, job: Job, run: Run, position: int, now: Now, store_fails_since: float | None
) -> dict[str, Any]:
    known, since = knowledge(world, job, run)
    waits, sentence = (None, None) if run.status != PENDING else waiting(world, job, run, now)
    if run.live_tasks:
        waits, sentence = _with_tasks(world, run) or (waits, sentence)
        if run.spec.driver in world.policy.batch:
            sentence = _on_cluster(world, run, waits, sentence)
    if sentence is not None and store_fails_since is not None:
        sentence += f"; nothing can begin or end: the event store cannot be written{_since(store_fails_since)}"
    exit_, diagnosis = run.exit, run.diagnosis
    reply: dict[str, Any] = {
        "state": run.status,
        "computeJid": job.jid,
        "computeJobHash": run.spec.compute_job_hash,
        "computeJobSerial": run.serial,
        "simulationType": run.spec.simulation_type,
        "computeJobQueued": run.queued_at,
        "computeJobStart": run.started_at,
        "computeJobEnd": run.ended_at,
        "elapsedTime": _elapsed(world, run, now),
        "reason": run.reason,
        "error": run.error,
        "queueState": waits,
        "jobStatusMessage": sentence,
        "known": known,
        "since": since,
        "over": not run.busy,
        "exit": msgspec.to_builtins(exit_) if exit_ else None,
        "diagnosis": None if diagnosis is None else msgspec.to_builtins(diagnosis),
        "roles": roles(run),
        "usage": usage(run),
        "waitsFor": [a.compute_jid for a in run.waits_for[:WAITS_SHOWN]],
        "attempt": run.attempt,
        "position": position,
        "canceledAfterSecs": canceled_after(run),
        "nextRequestSeconds": NEXT_REQUEST_SECS[run.spec.job_run_mode] if run.busy else None,
    }
    if run.ending:
        reply["exited"] = next(
            msgspec.to_builtins(t.exited) for t in run.ending if t.exited is not None
        )
    if run.late_stop is not None:
        reply["lateStop"] = {
            "at": run.late_stop.at,
            "by": run.late_stop.by,
            "note": run.late_stop.note,
            "reason": run.late_stop.reason,
        }
    option = (
        debugging.of_envs((run.spec.env, *(r.env for r in run.spec.roles))) if run.busy else None
    )
    if option is not None:
        reply["debugging"] = debugging.warning(option)
    report = batch_status.last_report(world, run)
    if report is not None:
        reply["batch"] = msgspec.to_builtins(report)
    keeper = _keeper(world, run)
    if keeper is not None:
        reply["keeper"] = keeper
    reply["runDir"], reply["runDirOn"] = _directory(world, run, report)
    to = batch_status.sign_in_to(world, run)
    if to is not None:
        reply["signInTo"] = to
    if run.status in ACTIVE:
        reply["nextRequest"] = {
            "computeJobHash": run.spec.compute_job_hash,
            "computeJobSerial": run.serial,
            "computeJobStart": run.started_at,
            "simulationId": run.spec.simulation_id,
            "simulationType": run.spec.simulation_type,
            "report": run.spec.compute_model,
        }
    return reply


def _directory(world: World, run: Run, report: BatchState | None) -> tuple[str | None, str | None]:
    """Return the run directory, and the cluster that holds it (None: the supervisor's file system).
    Both are None before the start and after a purge.
    """
    if run.started_at is None or run.status == PURGED:
        return None, None
    if report is not None:
        # a cluster without its own path shares the supervisor's
        return report.run_dir or run.run_dir, report.cluster
    return (None, None) if run.spec.driver in world.policy.batch else (run.run_dir, None)


def _on_cluster(world: World, run: Run, waits: str | None, sentence: str | None) -> str | None:
    """Return the sentence extended by the state in the batch scheduler."""
    if waits is None:
        return batch_status.running(world, run)
    return (
        f"{sentence}{batch_status.unknown_clause(world, run)}"
        if waits in ("stopping", "ending")
        else sentence
    )


def _past(job: Job, past: PastRun) -> dict[str, Any]:
    """Return the recorded facts of an earlier run."""
    return {
        "state": past.status,
        "computeJid": job.jid,
        "computeJobHash": past.compute_job_hash,
        "computeJobSerial": past.serial,
        "computeJobQueued": past.queued_at,
        "computeJobStart": past.started_at,
        "computeJobEnd": past.ended_at,
        "reason": past.reason,
        "error": past.error,
        "known": True,
        "over": not past.live_tasks,
        "superseded": True,
        "exit": {"code": past.exit_code, "signal": past.exit_signal},
    }


def knowledge(world: World, job: Job, run: Run) -> tuple[bool, float | None]:
    """Return (known, since). Known is false while the agent of a live task cannot be asked, its
    report is not durable yet, or the task's batch scheduler does not answer.
    """
    for task in run.live_tasks:
        if task.held is not None:
            continue
        view, unknown_since = (
            world.agents.get(task.agent_key),
            batch_status.unknown_since(world, (task,)),
        )
        if view is not None and view.keeper is not None:
            return False, view.keeper.since
        if view is None or not view.known:
            return False, min(
                (
                    at
                    for at in (view.unknown_since if view else None, unknown_since)
                    if at is not None
                ),
                default=None,
            )
        if unknown_since is not None:
            return False, unknown_since
        if view.news.get(job.jid, 0) > job.version:
            return False, view.news_since
    return True, None


def waiting(world: World, job: Job, run: Run, now: Now) -> tuple[QueueState, str]:
    """Return (queueState, sentence with numbers) of a pending run."""
    ticket = (job.jid, run.serial)
    queued = run.spec.driver in world.policy.batch
    if run.live_tasks:
        return (
            batch_status.queued(world, run)
            if queued
            else _placed_ahead(world, job, run, ticket)
            or ("starting", "its agent was asked to start it")
        )
    if ticket in world.host_assignment.unassigned and queued:
        return (
            "no_host",
            f"{cluster_assignment.unknown_cluster_error(world.policy, run.spec)}: it waits until there is one, or until it is canceled",
        )
    if ticket in world.host_assignment.unassigned:
        return "no_host", unschedulable.no_host(run.spec.active_plan)
    if run.waits_for:
        named, count = (
            run.waits_for[0].compute_jid,
            len({(a.compute_jid, a.compute_job_serial) for a in run.waits_for}),
        )
        return (
            "dependency",
            f"waiting for the end of {f'{count} other runs: the first is ' if count > 1 else ''}{named}",
        )
    key = world.key_of(run)
    view = world.agents.get(key)
    if run.retry is not None and (view is None or ticket not in view.queued):
        at = run.retry.at + run.retry.delay_secs
        return (
            "retry_wait",
            f"attempt {run.attempt} ended ({run.retry.reason}); attempt {run.attempt + 1} follows{_since(at, 'at')}",
        )
    drained = _drained(world, run, key.host)
    if drained is not None:
        return "drained", drained
    if view is None or not view.known:
        if (key.driver, key.host) in world.host_assignment.down:
            return (
                "host_down",
                f"no host is available: {_down(world, run, world.policy.hosts(key.driver))}"
                + _before_it(view, ticket),
            )
        if view is not None and view.phase == AgentPhase.SIGNED_OUT:
            return "sign_in", batch_status.sign_in(view, key) + _before_it(view, ticket)
        if view is not None and view.phase == AgentPhase.CROWDED:
            return "agent_memory", _memory_sentence(world, key) + _before_it(view, ticket)
        return "agent", _agent_sentence(world, view, str(key)) + _before_it(view, ticket)
    wait = concurrency_limits.wait_of(world.slots, ticket)
    if wait is not None:
        # a run may have been placed since by a decision that is not durable yet
        return _slot_sentence(world, job, wait, ticket)
    if run.spec.roles and ticket in view.asking:
        return _gang_sentence(world, run, ticket)
    if ticket in view.queued:
        hours = user_hours.used_up(world, key.uid, run.spec.active_plan, now)
        if hours is not None:
            return "user_limit", f"waiting for hours: {hours.sentence}{_before_it(view, ticket)}"
        # it will need the slots that the earlier runs wait for
        before = queue_position.of_user(view, view.queued[ticket])
        return (
            "op_slot",
            f"waiting behind other runs of this user, {_first_waits(world, view)} ({before} of them ahead)",
        )
    return "starting", "it is being placed"


def _drained(world: World, run: Run, host: str) -> str | None:
    """Return the sentence for a run that nothing but the end of a drain can start, or None."""
    if not world.drains:
        return None
    driver, plan = run.spec.driver, run.spec.active_plan
    batch = driver in world.policy.batch
    pool = world.node_pools.get(driver) if run.spec.roles and not batch else None
    places = world.policy.hosts(driver) if pool is None else pool.nodes
    hosts = [host] if batch else [p.host for p in host_selection.allowed(places, plan)]
    found = [world.drain_of(driver, h) for h in hosts]
    if not found or found[0] is None or None in found:
        return None
    drain = found[0]
    get = "get" if hosts[1:] else "gets"
    what = "this site starts" if SITE in world.drains else f"{', '.join(hosts[:3])} {get}"
    reason = f": {drain.reason}" if drain.reason else ""
    return f"{what} no new runs until an administrator ends the drain{_since(drain.at)}{reason}"


def _placed_ahead(
    world: World, job: Job, run: Run, ticket: RunKey
) -> tuple[QueueState, str] | None:
    """Return (queueState, sentence) of a run that waits with its agent for a slot, or None."""
    view = world.agents.get(run.live_tasks[0].agent_key)
    if view is None or ticket not in view.ahead:
        return None
    placed = "placed with the agent, starts next"
    wait = concurrency_limits.wait_of(world.slots, ticket)
    if wait is None:
        return "agent", f"{placed}: {_agent_sentence(world, view, str(view.record.key))}"
    state, sentence = _slot_sentence(world, job, wait, ticket)
    return state, f"{placed}: {sentence}"


def _with_tasks(world: World, run: Run) -> tuple[QueueState, str] | None:
    """Return (queueState, sentence) that follows from the run's live tasks, or None."""
    if run.ending:
        return "ending", _ending(world, run)
    if not run.active:
        return "stopping", "its processes are being stopped" + _since(
            run.stop.at if run.stop else None
        )
    held = [t for t in run.live_tasks if t.held is not None]
    if held:
        task, more = held[0], f" and {len(held) - 1} more" if len(held) > 1 else ""
        assert task.held is not None and task.exit is not None
        until = _since(task.held.at + task.held.secs, "until")
        return (
            "debug_hold",
            f"{task.token.role}/{task.token.index}{more} failed ({task.exit.sentence()}) and can be inspected{until}",
        )
    decided = run.attempts[-1].decided
    if decided is not None:
        return "stopping", f"{len(run.live_tasks)} tasks are being stopped: {decided.reason}"
    return None


def _ending(world: World, run: Run) -> str:
    """Return the sentence for a run with an ended command that is not cleaned up: the exit, and the
    reason to wait.
    """
    task = next(t for t in run.ending if t.exited is not None)
    assert task.exited is not None
    more = f", and those of {len(run.ending) - 1} more tasks," if len(run.ending) > 1 else ""
    since = _since(task.exited.ended_at)
    if run.spec.driver in world.policy.batch:
        waits = (
            f"waiting for Slurm to finish the job (its epilog, or a slurmstepd that hangs){since}"
        )
    elif task.agent_key.kind == AgentKind.CONTAINER:
        waits = f"waiting until its container is removed{since}"
    else:
        waits = f"waiting until no process of it is left{since}"
    late = run.late_stop
    too_late = (
        ""
        if late is None
        else f"; {late.by} asked for its end ({late.reason}) after that, which does not change its result"
    )
    return f"its command{more} ended: {task.exited.sentence()}; {waits}{too_late}"


def _gang_sentence(world: World, run: Run, ticket: RunKey) -> tuple[QueueState, str]:
    """Return (queueState, sentence) of a run with roles that holds its slots."""
    if ticket in world.gang_backoffs:
        reason, until = world.gang_backoffs[ticket]
        return "resources", f"{reason}; it tries again{_since(until, 'at')}"
    hold = world.holds.get(ticket)
    if hold is not None:
        away = sorted(
            str(key)
            for key in {world.key_at(run.spec, place.host) for place in hold.places}
            - hold.free
            - hold.probes.keys()
        )
        if away:
            return "agent", f"it holds all its resources and waits for {', '.join(away)}"
        return (
            "ports",
            "it holds all its resources; its agent is checking whether its ports are free",
        )
    pool = world.node_pool(run.spec.driver)
    wait = gang_allocator.wait_of(pool, ticket)
    if wait is not None:
        down, all_ = (
            _down(world, run, pool.nodes),
            {n.host for n in host_selection.allowed(pool.nodes, run.spec.active_plan)},
        )
        if down and all_ <= pool.down:
            return "host_down", f"no host is available: {down}"
        if wait.code == "behind":
            wait = unschedulable.behind(queue_position.for_nodes(world, run.spec.driver, ticket))
        shared = ""
        if wait.code in ("insufficient", "fragmented") and run.spec.driver == LOCAL:
            shared = _shared(world, grants.CPU, "cores") + _shared(world, grants.MEMORY, "MiB")
        return "ports" if wait.code == "ports" else "resources", wait.sentence + shared + (
            f"; {down}" if down else ""
        )
    return "starting", "it is being placed"


def _down(world: World, run: Run, places: Sequence[HostCapacity] | Sequence[Node]) -> str:
    """Return which allowed hosts are down, why, and since when."""
    driver, down = run.spec.driver, world.host_assignment.down
    may = [
        p.host
        for p in host_selection.allowed(places, run.spec.active_plan)
        if (driver, p.host) in down
    ]
    clauses = [
        f"{h} is down{_since(down[driver, h].since)} ({down[driver, h].detail})"
        for h in may[: unschedulable.NAMED_HOSTS]
    ]
    return "; ".join(clauses) + (
        f"; and {len(may) - len(clauses)} more are" if len(may) > len(clauses) else ""
    )


def _memory_sentence(world: World, key: AgentKey) -> str:
    """Return the sentence for a host without memory for the agent."""
    agents, used = world.host_assignment.memory_in_use(key)
    place = world.policy.place(key.driver, key.host)
    there = f"{used} of {place.memory_mb if place is not None else 0} MiB"
    by = f"{agents} agent" if agents == 1 else f"{agents} agents"
    needs = f"its agent needs {world.host_assignment.agent_mb(key)} MiB"
    return f"the memory of host {key.host} is used by {by} ({there}), and {needs}: it waits until one is gone"


def _agent_sentence(world: World, view: AgentState | None, key: str) -> str:
    if view is None:
        return f"its agent is not started yet ({key})"
    tries = f"try {view.failures + 1} of {world.policy.agent_start_tries}"
    starting = (
        "is being started"
        if view.record.starting or view.record.handle
        else "will be started again"
    )
    if view.keeper is not None:
        return f"{keeper_sentence(view)} ({key})"
    text = {
        AgentPhase.STARTING: f"its agent {starting}, {tries}",
        AgentPhase.FINDING: "its agent is being located",
        AgentPhase.ABSENT: "its agent is not started yet",
        AgentPhase.AWAY: "its agent is alive but not connected"
        + (f" ({view.away})" if view.away else ""),
        AgentPhase.STOPPING: f"its agent did not connect and is being stopped, {tries}",
        AgentPhase.UP: "its agent is reporting its tasks",
        AgentPhase.LEAVING: "its idle agent is being stopped and will be started again",
        AgentPhase.CROWDED: "its agent waits for memory",
    }[view.phase]
    failure = view.record.last_failure
    return f"{text}{_since(view.since)} ({key})" + (f"; last failure: {failure}" if failure else "")


def keeper_sentence(view: AgentState) -> str:
    """Return the sentence for a keeper that does not answer."""
    assert view.keeper is not None
    stopped = "; a signal has stopped it" if view.keeper.stopped else ""
    return f"its keeper, pid {view.keeper_pid} on {view.host}, does not answer{_since(view.keeper.since)}{stopped}"


def _keeper(world: World, run: Run) -> dict[str, Any] | None:
    """Return the first unresponsive keeper of the run's agents."""
    keys = [t.agent_key for t in run.live_tasks if t.held is None] or (
        [world.key_of(run)] if run.status == PENDING else []
    )
    for view in (world.agents.get(key) for key in keys):
        if view is not None and view.keeper is not None:
            return {
                "pid": view.keeper_pid,
                "host": view.host,
                "since": view.keeper.since,
                "stopped": view.keeper.stopped,
                "sentence": keeper_sentence(view),
            }
    return None


def _before_it(view: AgentState | None, ticket: RunKey) -> str:
    before = (
        0
        if view is None or ticket not in view.queued
        else queue_position.of_user(view, view.queued[ticket])
    )
    return (
        f"; {before} of this user's runs {'is' if before == 1 else 'are'} ahead" if before else ""
    )


def _first_waits(world: World, view: AgentState) -> str:
    first = next(iter(view.queued))
    wait = concurrency_limits.wait_of(world.slots, first)
    if wait is None and first in view.gangs:
        return "the first of which wait for the resources of their roles"
    if wait is None:
        return "the first of which are being placed"
    match wait.pool:
        case OpPool() | UserPool() | UserTotal():
            return "the first of which wait for another run of the user to end"
        case CpuPool():
            return "the first of which wait for CPU resources"
        case ArrayPool():
            return "the first of which wait for their turn in an array"
        case JobPool() | RunDirPool():
            return "the first of which wait for an earlier run of the same simulation to end"
        case _:
            assert_never(wait.pool)


def _slot_sentence(
    world: World, job: Job, wait: LimitWait, ticket: RunKey
) -> tuple[QueueState, str]:
    number = world.slots.claims[ticket].number
    numbers = f"{wait.in_use} of {wait.capacity} in use, {queue_position.for_slot(world, wait, ticket, number)} ahead"
    longest = _longest(world, wait)
    since = "" if longest is None else ", the longest" + _since(longest).removeprefix(",")
    match wait.pool:
        case OpPool():
            held = f": {len(wait.holders)} hold what one user may have{since}"
            return "op_slot", f"waiting for another run of this user to end{held} ({numbers})"
        case UserPool():
            return (
                "user_limit",
                f"waiting for another run of this user to end: {wait.capacity} may run at once{since} ({numbers})",
            )
        case UserTotal(resource=resource):
            return "user_limit", _total_sentence(wait, resource, since)
        case ArrayPool():
            return (
                "array_slot",
                f"waiting for its turn in its array, of which {wait.capacity} run at once ({numbers})",
            )
        case CpuPool(driver=driver, kind=kind, host=host):
            shared = _shared(world, grants.slots_name(driver, kind, host), "slots")
            own = sum(owner(jid) == owner(job.jid) for jid, _ in wait.holders)
            held = f": {own} runs of this user and {len(wait.holders) - own} of others have them{since}"
            if driver in world.policy.batch:
                return (
                    "cpu_slot",
                    f"waiting until fewer runs are in the queue of {host} or run there{held} ({numbers}){shared}",
                )
            where = f" on {host}" if len(world.policy.hosts(driver)) > 1 else ""
            turns = _turns(world, wait.pool, ticket) + shared
            return "cpu_slot", f"waiting for CPU resources{where}{held} ({numbers}){turns}"
        case JobPool() | RunDirPool():
            ended = max(
                (p.ended_at for p in job.history if p.live_tasks and p.ended_at is not None),
                default=None,
            )
            return "run_dir", "waiting for the earlier run of this simulation to end" + _since(
                ended
            )
        case _:
            assert_never(wait.pool)


def _shared(world: World, name: str, unit: str) -> str:
    """Return what this shard may use of a limit that it shares with others, as a clause; "" if it does not."""
    if name not in world.policy.moving:
        return ""
    grant = world.grants.get(name)
    if grant is None:
        return f"; this shard has not agreed with the others yet on its part of the site's {unit}"
    return (
        f"; this shard may use {grant.limit} of the site's {grant.capacity} {unit} now, and other shards use"
        f" {grant.others}"
    )


def _total_sentence(wait: LimitWait, resource: str, since: str) -> str:
    """Return the sentence for a run that waits for a total of its user."""
    unit = {"cores": "cores", "gpus": "GPUs", "memory": "MB of memory"}[resource]
    if wait.wanted > wait.capacity:
        return (
            f"it needs {wait.wanted} {unit}, and all runs of this user together may have {wait.capacity}"
            " at a time: it waits until the limit is raised, or until it is canceled"
        )
    return (
        f"waiting until runs of this user release {unit}: all of them together may have {wait.capacity}"
        f" at a time, {len(wait.holders)} runs hold {wait.in_use}, and it needs {wait.wanted}{since} ({wait.ahead} ahead)"
    )


def _turns(world: World, pool: CpuPool, ticket: RunKey) -> str:
    """Return how this run's user takes turns with the others that wait."""
    fair, account = world.slots.fair, world.account_of(ticket)
    line = world.slots.pools[pool]
    others = len({a.uid for a in queue_position.rivals(world, pool, ticket)})
    out = ""
    if len(fair.rules.queues) > 1:
        entitled = fair.rules.entitled(account.queue, line.capacity)
        out = f"; queue {account.queue} has {line.in_use.get(account.queue, 0)} of its {entitled} slots"
        if not fair.rules.may_use(account.queue, line.in_use.get(account.queue, 0), line.capacity):
            out += " and may not use more"
    if others:
        used = fair.usage(account) / 3600
        who = "1 other user waits" if others == 1 else f"{others} other users wait"
        out += f"; {who}, too; whoever used less goes first (this user: {used:.2f} core hours)"
    return out


def _longest(world: World, wait: LimitWait) -> float | None:
    """Return the earliest start among the holders of the awaited slots."""
    runs = [(world.jobs[jid].run, serial) for jid, serial in wait.holders if jid in world.jobs]
    return min(
        (
            r.started_at
            for r, serial in runs
            if r is not None and r.serial == serial and r.started_at is not None
        ),
        default=None,
    )


def _since(at: float | None, word: str = "since") -> str:
    """Return a point in time, not a duration, so that subscribers get an update only when something
    changes.
    """
    return (
        ""
        if at is None
        else f", {word} "
        + datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def _elapsed(world: World, run: Run, now: Now) -> float | None:
    """Return the run time in seconds, by the clock of the machine that runs it, never by the
    difference of two wall clocks.
    """
    if run.started_at is None:
        return None
    exit_ = run.exit
    if (
        len(run.attempts) == 1
        and not run.spec.roles
        and exit_ is not None
        and exit_.started_at is not None
        and exit_.ended_at is not None
    ):
        return max(0.0, exit_.ended_at - exit_.started_at)
    exited = [t.exited for t in run.ending if t.exited is not None]
    if len(exited) == 1 and exited[0].started_at is not None and exited[0].ended_at is not None:
        return max(0.0, exited[0].ended_at - exited[0].started_at)
    began = [world.began[t.token] for t in run.live_tasks if t.token in world.began]
    if began and run.ended_at is None:
        return max(0.0, now.mono - min(began))
    return max(0.0, (run.ended_at or now.wall) - run.started_at)
