"""Dependencies: runs that start after the end of other runs.

A waiting run is in no queue. The end of a run is handled in a decision of its own, for a limited
number of followers at a time, so that a chain of ten thousand runs does not take one long decision.
After a restart, all runs with followers are checked again.
"""

from itertools import islice

import msgspec

from ....db.events.events import DependencyEnded, RunEnded
from ....db.events.state import Job, PastRun, Run
from ....protocol.api.requests import RunSpec
from ....protocol.errors import Refusal
from ....protocol.jobs.roles import After
from ....protocol.jobs.status import CANCELED, COMPLETED, ERROR, PURGED
from ..interface import timers
from ..interface.effects import ClearTimer, SetTimer
from ..resources.concurrency_limits import RunKey
from ..scheduling import placement
from ..state.transaction import Transaction
from ..state.world import owner

#: Followers of one run that are handled in one decision.
AT_ONCE = 128


def unfinished(tx: Transaction, spec: RunSpec, jid: str) -> tuple[After, ...]:
    """Return the dependencies that have not ended yet, each with its serial. Raise Refusal if a
    dependency can no longer be fulfilled.
    """
    waits: list[After] = []
    for after in spec.after:
        job = tx.world.jobs.get(after.compute_jid)
        if after.compute_jid == jid:
            raise Refusal("badRequest", f"{jid} cannot wait for itself")
        if job is None or job.run is None or owner(job.jid) != spec.uid:
            raise Refusal("notFound", f"there is no job {after.compute_jid} to wait for")
        pinned = msgspec.structs.replace(
            after, compute_job_serial=after.compute_job_serial or job.run.serial
        )
        found = _ended(job, pinned.compute_job_serial)
        if found is None:
            waits.append(pinned)
        elif not _fulfilled(pinned, found):
            sentence = f"it is to run after {after.compute_jid} ({_condition(pinned)}), which has ended already: {found}"
            raise Refusal("dependencyNever", sentence)
    return tuple({(a.compute_jid, a.compute_job_serial, a.on): a for a in waits}.values())


def wait(tx: Transaction, ticket: RunKey, waits: tuple[After, ...]) -> None:
    """Record that the run waits for these."""
    tx.world.wait_for(ticket, waits)


def forget(tx: Transaction, ticket: RunKey, waits: tuple[After, ...]) -> None:
    """Remove these dependencies of the run."""
    for after in waits:
        serials = tx.world.followers.get(after.compute_jid, {})
        tickets = serials.get(after.compute_job_serial, {})
        tickets.pop(ticket, None)
        if serials and not tickets:
            serials.pop(after.compute_job_serial, None)
            if not serials:
                del tx.world.followers[after.compute_jid]


def schedule_followers(tx: Transaction) -> None:
    """Schedule `follow` for jobs that ended in this decision and have followers."""
    for jid in sorted(tx.touched.keys() & tx.world.followers.keys()):
        if any(_ended(tx.touched[jid], serial) is not None for serial in tx.world.followers[jid]):
            tx.emit(SetTimer(timers.FollowerCheck(jid), 0.0))


def schedule_all(tx: Transaction) -> None:
    """Schedule `follow` for all jobs with followers, after a restart."""
    for jid in tx.world.followers:
        tx.emit(SetTimer(timers.FollowerCheck(jid), 0.0))


def follow(tx: Transaction, jid: str) -> None:
    """Handle ended runs of this job for their followers, up to a limit."""
    job = tx.world.jobs.get(jid) or Job(jid=jid)
    left = AT_ONCE
    for serial in list(tx.world.followers.get(jid, {})):
        found = _ended(job, serial)
        if found is None:
            continue
        # a follower that was handled for an earlier run may have dropped its other dependencies
        tickets = list(islice(tx.world.followers.get(jid, {}).get(serial, {}), left))
        left -= len(tickets)
        for ticket in tickets:
            _handle_end(tx, ticket, jid, serial, found)
        if left == 0:
            tx.emit(SetTimer(timers.FollowerCheck(jid), 0.0))
            return


def _handle_end(tx: Transaction, ticket: RunKey, jid: str, serial: int, found: str) -> None:
    """Handle the end of a run for one follower, which may depend on it in several ways."""
    run = tx.world.jobs[ticket[0]].run
    assert run is not None and run.serial == ticket[1]
    waits = [a for a in run.waits_for if (a.compute_jid, a.compute_job_serial) == (jid, serial)]
    forget(tx, ticket, tuple(waits))
    _record_end(
        tx,
        ticket,
        run.waits_for,
        jid,
        serial,
        found,
        fulfilled=all(_fulfilled(a, found) for a in waits),
    )


def _record_end(
    tx: Transaction,
    ticket: RunKey,
    waited: tuple[After, ...],
    jid: str,
    serial: int,
    found: str,
    *,
    fulfilled: bool,
) -> None:
    own, own_serial = ticket
    job = tx.record(
        own,
        DependencyEnded(
            at=tx.now.wall,
            serial=own_serial,
            compute_jid=jid,
            compute_job_serial=serial,
            status=found,
        ),
    )
    run = job.run
    assert run is not None
    if not fulfilled:
        forget(tx, ticket, waited)
        tx.emit(ClearTimer(timers.QueueLimit(own, own_serial)))
        tx.record(
            own, RunEnded(at=tx.now.wall, serial=own_serial, status=CANCELED, reason="dependency")
        )
    elif not run.waits_for:
        placement.enqueue(tx, job)


def _ended(job: Job, serial: int) -> str | None:
    """Return the final status of this run, or None before its end. A run that is no longer recorded
    returns "forgotten".
    """
    run = job.run
    if run is not None and run.serial == serial:
        if run.busy:
            return None
        return _before_purge(run)
    past = next((p for p in job.history if p.serial == serial), None)
    if past is None:
        return "forgotten"
    return None if past.live_tasks else _before_purge(past)


def _before_purge(run: Run | PastRun) -> str:
    """Return the final status, for a purged run the one before the purge."""
    if run.status != PURGED:
        return run.status
    if run.error is None and run.reason == "exit":
        return COMPLETED
    return ERROR if run.error is not None else CANCELED


def _fulfilled(after: After, found: str) -> bool:
    """Return whether this status fulfils the dependency."""
    match after.on:
        case "ok":
            return found == COMPLETED
        case "failed":
            return found in (ERROR, CANCELED)
        case _:
            return True


def _condition(after: After) -> str:
    return {"ok": "if it completes", "failed": "if it does not complete", "any": "however it ends"}[
        after.on
    ]
