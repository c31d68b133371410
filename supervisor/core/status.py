"""What people are told about a run: the status reply and the one sentence that says why it waits. Pure."""

import datetime
from typing import Any

import msgspec
from ...db.projection import roles, usage
from ...db.state import Job, PastRun, Run
from ...protocol.status import ACTIVE, PENDING
from . import rooms, slots
from .inputs import Now
from .slots import Ticket, Wait
from .stopping import canceled_after
from .world import AgentView, World, owner

#: Of the runs it waits for, so many are named.
WAITS_SHOWN = 20
#: How soon a page should ask again, seconds.
NEXT_REQUEST_SECS = {"sequential": 1, "parallel": 2}


def missing(jid: str, reason: str) -> dict[str, Any]:
    return {"state": "missing", "computeJid": jid, "reason": reason, "known": True, "over": True}


def status(
    world: World, job: Job, position: int, now: Now, *, hash_: str | None = None, serial: int = 0, store_fails_since: float | None = None,
) -> dict[str, Any]:
    """Status of a job's run for somebody who asked for this hash and serial; a mismatch is the normal answer `missing`."""
    run = job.run
    if run is None:
        return missing(job.jid, "noRun")
    if serial not in (0, run.serial):
        past = next((p for p in job.history if p.serial == serial), None)
        return missing(job.jid, "computeJobSerial-mismatch") if past is None else _past(job, past)
    if hash_ is not None and hash_ != run.spec.compute_job_hash:
        return missing(job.jid, "computeJobHash-mismatch")
    return _current(world, job, run, position, now, store_fails_since)


def _current(world: World, job: Job, run: Run, position: int, now: Now, store_fails_since: float | None) -> dict[str, Any]:
    known, since = knowledge(world, job, run)
    waits, sentence = (None, None) if run.status != PENDING else waiting(world, job, run)
    if run.live_tasks:
        waits, sentence = _with_tasks(run) or (waits, sentence)
    if sentence is not None and store_fails_since is not None:
        sentence += f"; nothing can begin or end: the event store cannot be written{_since(store_fails_since)}"
    exit_, diagnosis = run.exit, run.diagnosis
    reply: dict[str, Any] = {
        "state": run.status, "computeJid": job.jid, "computeJobHash": run.spec.compute_job_hash, "computeJobSerial": run.serial,
        "simulationType": run.spec.simulation_type,
        "computeJobQueued": run.queued_at, "computeJobStart": run.started_at, "computeJobEnd": run.ended_at,
        "elapsedTime": _elapsed(world, run, now), "reason": run.reason, "error": run.error,
        "queueState": waits, "jobStatusMessage": sentence,
        "known": known, "since": since, "over": not run.busy, "exit": msgspec.to_builtins(exit_) if exit_ else None,
        "diagnosis": None if diagnosis is None else msgspec.to_builtins(diagnosis), "roles": roles(run), "usage": usage(run),
        "waitsFor": [a.compute_jid for a in run.waits_for[:WAITS_SHOWN]],
        "attempt": run.attempt, "runDir": run.run_dir, "position": position, "canceledAfterSecs": canceled_after(run),
        "nextRequestSeconds": NEXT_REQUEST_SECS[run.spec.job_run_mode] if run.busy else None,
    }
    if run.status in ACTIVE:
        reply["nextRequest"] = {
            "computeJobHash": run.spec.compute_job_hash, "computeJobSerial": run.serial, "computeJobStart": run.started_at,
            "simulationId": run.spec.simulation_id, "simulationType": run.spec.simulation_type, "report": run.spec.compute_model,
        }
    return reply


def _past(job: Job, past: PastRun) -> dict[str, Any]:
    """An earlier run by its serial: what is kept of it."""
    return {
        "state": past.status, "computeJid": job.jid, "computeJobHash": past.compute_job_hash, "computeJobSerial": past.serial,
        "computeJobQueued": past.queued_at, "computeJobStart": past.started_at, "computeJobEnd": past.ended_at, "reason": past.reason,
        "error": past.error, "known": True, "over": not past.live_tasks, "superseded": True,
        "exit": {"code": past.exit_code, "signal": past.exit_signal},
    }


def knowledge(world: World, job: Job, run: Run) -> tuple[bool, float | None]:
    """(known, since): false while a live task's agent is not there to be asked, or what it said is not durable yet."""
    for task in run.live_tasks:
        if task.held is not None:
            continue
        view = world.agents.get(task.agent_key)
        if view is None or view.phase != "up" or not view.synced:
            return False, view.unknown_since if view else None
        if view.news.get(job.jid, 0) > job.version:
            return False, view.news_since
    return True, None


def waiting(world: World, job: Job, run: Run) -> tuple[str, str]:
    """(queueState, sentence with numbers) of a pending run."""
    ticket = (job.jid, run.serial)
    if run.live_tasks:
        return "starting", "its agent was asked to start it"
    if run.waits_for:
        named, count = run.waits_for[0].compute_jid, len(run.waits_for)
        return "dependency", f"waiting for the end of {f'{count} other runs: the first is ' if count > 1 else ''}{named}"
    key = world.key_of(run)
    view = world.agents.get(key)
    if run.retry is not None and (view is None or ticket not in view.queued):
        at = run.retry.at + run.retry.delay_secs
        return "retry_wait", f"attempt {run.attempt} ended ({run.retry.reason}); attempt {run.attempt + 1} follows{_since(at, 'at')}"
    if view is None or view.phase != "up" or not view.synced:
        return "agent", _agent_sentence(world, view, str(key)) + _before_it(view, ticket)
    wait = slots.wait_of(world.slots, ticket)
    if wait is not None:
        return _slot_sentence(world, job, wait)
    if run.spec.roles and ticket in view.asking:
        return _gang_sentence(world, run, ticket)
    if ticket in view.queued:
        # those before it ask for slots; what they wait for, it will wait for
        first = next(iter(view.queued))
        held = slots.wait_of(world.slots, first)
        ahead = _place(view, ticket)
        return "op_slot", f"waiting behind other runs of this user, {_first_waits(held)} ({ahead} ahead)"
    return "starting", "it is being placed"


def _with_tasks(run: Run) -> tuple[str, str] | None:
    """What is to be said of a run because of its live tasks."""
    if not run.active:
        return "stopping", "its processes are being ended" + _since(run.stop.at if run.stop else None)
    held = [t for t in run.live_tasks if t.held is not None]
    if held:
        task, more = held[0], f" and {len(held) - 1} more" if len(held) > 1 else ""
        assert task.held is not None and task.exit is not None
        until = _since(task.held.at + task.held.secs, "until")
        return "debug_hold", f"{task.token.role}/{task.token.index}{more} failed ({task.exit.sentence()}) and can be looked at{until}"
    decided = run.attempts[-1].decided
    if decided is not None:
        return "stopping", f"{len(run.live_tasks)} tasks are being stopped: {decided.reason}"
    return None


def _gang_sentence(world: World, run: Run, ticket: Ticket) -> tuple[str, str]:
    """Of a run with roles that has its slots."""
    if ticket in world.held_off:
        reason, until = world.held_off[ticket]
        return "resources", f"{reason}; it asks again{_since(until, 'at')}"
    hold = world.holds.get(ticket)
    if hold is not None:
        away = sorted(str(key) for key in {world.key_at(run.spec, place.host) for place in hold.places} - hold.free - hold.probes.keys())
        if away:
            return "agent", f"it has everything it asks for and waits for {', '.join(away)}"
        return "ports", "it has everything it asks for; its agent looks whether its ports are free"
    lack = rooms.wait_of(world.room(run.spec.driver), ticket)
    if lack is not None:
        return "ports" if lack.code == "ports" else "resources", lack.sentence
    return "starting", "it is being placed"


def _agent_sentence(world: World, view: AgentView | None, key: str) -> str:
    if view is None:
        return f"its agent is not there yet ({key})"
    tries = f"try {view.failures + 1} of {world.policy.agent_start_tries}"
    starting = "is being started" if view.record.starting or view.record.handle else "is to be started again"
    said = {
        "starting": f"its agent {starting}, {tries}",
        "finding": "its agent is being looked for", "absent": "its agent is not there yet",
        "away": "its agent lives but is not connected", "stopping": f"its agent did not connect and is being ended, {tries}",
        "up": "its agent is telling what it runs",
    }[view.phase]
    failure = view.record.last_failure
    return f"{said}{_since(view.since)} ({key})" + (f"; last failure: {failure}" if failure else "")


def _before_it(view: AgentView | None, ticket: Ticket) -> str:
    ahead = 0 if view is None or ticket not in view.queued else _place(view, ticket)
    return f"; {ahead} of this user's runs are ahead" if ahead else ""


def _place(view: AgentView, ticket: Ticket) -> int:
    """Runs of the same agent that were submitted earlier and wait, too."""
    return next(n for n, queued in enumerate(view.queued) if queued == ticket)


def _first_waits(wait: Wait | None) -> str:
    match wait.pool.split("/", 1)[0] if wait is not None else "":
        case "op":
            return "the first of which wait for a run of theirs to end"
        case "cpu":
            return "the first of which wait for CPU resources"
        case _:
            return "the first of which are being placed"


def _slot_sentence(world: World, job: Job, wait: Wait) -> tuple[str, str]:
    numbers = f"{wait.in_use} of {wait.capacity} in use, {wait.ahead} ahead"
    longest = _longest(world, wait)
    since = "" if longest is None else ", the longest" + _since(longest).removeprefix(",")
    match wait.pool.split("/", 1)[0]:
        case "op":
            held = f": {len(wait.holders)} hold what one user may have{since}"
            return "op_slot", f"waiting for another run of this user to end{held} ({numbers})"
        case "array":
            return "array_slot", f"waiting for its turn in its array, of which {wait.capacity} run at once ({numbers})"
        case "cpu":
            mine = sum(owner(jid) == owner(job.jid) for jid, _ in wait.holders)
            held = f": {mine} runs of this user and {len(wait.holders) - mine} of others have them{since}"
            return "cpu_slot", f"waiting for CPU resources{held} ({numbers})"
        case _:
            ended = max((p.ended_at for p in job.history if p.live_tasks and p.ended_at is not None), default=None)
            return "run_dir", "waiting for the earlier run of this simulation to be ended" + _since(ended)


def _longest(world: World, wait: Wait) -> float | None:
    """Start of the one that runs longest of those that have what is waited for."""
    runs = [(world.jobs[jid].run, serial) for jid, serial in wait.holders if jid in world.jobs]
    return min((r.started_at for r, serial in runs if r is not None and r.serial == serial and r.started_at is not None), default=None)


def _since(at: float | None, word: str = "since") -> str:
    """A moment and no span of time: a page that follows it is told again only when something changes."""
    return "" if at is None else f", {word} " + datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _elapsed(world: World, run: Run, now: Now) -> float | None:
    """Seconds that it took or runs: by the clock of the machine where it runs, and never by two settings of one wall clock."""
    if run.started_at is None:
        return None
    exit_ = run.exit
    if len(run.attempts) == 1 and not run.spec.roles and exit_ is not None and exit_.started_at is not None and exit_.ended_at is not None:
        return max(0.0, exit_.ended_at - exit_.started_at)
    began = [world.began[t.token] for t in run.live_tasks if t.token in world.began]
    if began and run.ended_at is None:
        return max(0.0, now.mono - min(began))
    return max(0.0, (run.ended_at or now.wall) - run.started_at)
