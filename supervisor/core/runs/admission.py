"""Decides run requests: a new run, join the live run, reuse the finished run, or a refusal.

A request is *valid* for the existing run if its hash is equal and its serial is absent or equal.
Live and not valid: refused, another run is active. Live and valid: joined. Completed and valid:
reused, unless `forceRun`. Everything else becomes a new run, with a serial that no other run of
this job ever had.
"""

import hashlib

import msgspec

from ....db.events.events import RunRequested
from ....db.events.state import Job, Run
from ....db.store.contract import Receipt
from ....protocol.api.requests import RunSimulation, RunSpec
from ....protocol.errors import Refusal
from ....protocol.ids import compute_jid
from ....protocol.jobs.status import COMPLETED, PURGED
from ..interface.effects import ReplyStatus
from ..interface.inputs import Submit
from ..resources import gang_allocator, host_selection, unschedulable
from ..scheduling import placement
from ..state import cluster_assignment
from ..state.configuration import CoreConfig
from ..state.transaction import Transaction
from ..state.world import owner
from . import dependencies, termination, user_limits


def submit(tx: Transaction, input_: Submit) -> None:
    """Decide one run request. Raise Refusal."""
    request = input_.request
    spec = with_hash(request.run)
    jid = compute_jid(spec.uid, spec.simulation_id, spec.compute_model)
    if input_.known is not None:
        _reply_known(tx, input_, jid)
        return
    if input_.taken:
        raise Refusal(
            "conflict",
            f"reqId {request.req_id} was used for a cancel; a new request needs a new reqId",
        )
    job = tx.world.jobs.get(jid) or Job(jid=jid)
    run = job.run
    if run is not None and request.only_new is True and run.status != PURGED:
        raise Refusal(
            "nameTaken",
            f"you have a job with the name {spec.sim_name!a} already: {jid}, which is {run.status}",
        )
    if run is not None and _answered_by(run, request, spec):
        tx.emit(ReplyStatus(input_.handle, jid, run.serial))
        _receipt(tx, request.req_id, jid, run.serial)
        return
    if (
        spec.driver in tx.world.policy.batch
        and cluster_assignment.cluster(tx.world.policy, spec) is None
    ):
        raise Refusal(
            "batchRefused", cluster_assignment.unknown_cluster_error(tx.world.policy, spec)
        )
    if input_.refused is not None:
        raise input_.refused
    reason = _too_much(tx.world.policy, spec)
    if reason is not None:
        raise Refusal("resourceExceeded", reason)
    spec = user_limits.applied(tx.world, spec, tx.now)
    waits = dependencies.unfinished(tx, spec, jid)
    serial = max((run.serial if run else 0) + 1, int(tx.now.wall), tx.world.policy.serial_floor)
    tx.record(
        jid,
        RunRequested(
            at=tx.now.wall,
            serial=serial,
            spec=spec,
            run_dir=input_.run_dir,
            req_id=request.req_id,
            mono=tx.now.mono,
            boot_id=tx.now.boot_id,
            waits_for=waits,
        ),
    )
    _receipt(tx, request.req_id, jid, serial)
    tx.emit(ReplyStatus(input_.handle, jid, serial))
    job = tx.world.jobs[jid]
    termination.arm(tx, job)
    if waits:
        dependencies.wait(tx, (jid, serial), waits)
        return
    placement.enqueue(tx, job)


def _too_much(policy: CoreConfig, spec: RunSpec) -> str | None:
    """Return why the run would not fit even on idle hosts, or None."""
    if not host_selection.allowed(policy.hosts(spec.driver), spec.active_plan):
        return unschedulable.no_host(spec.active_plan)
    if not spec.roles:
        return None
    if spec.driver in policy.batch:
        return cluster_assignment.too_large(spec)
    return gang_allocator.too_much(policy.nodes.get(spec.driver, ()), spec.roles, spec.active_plan)


def _reply_known(tx: Transaction, input_: Submit, jid: str) -> None:
    known = input_.known
    assert known is not None
    if known[0] != jid:
        raise Refusal(
            "conflict",
            f"reqId {input_.request.req_id} was used for another job before; a new request needs a new reqId",
        )
    tx.emit(ReplyStatus(input_.handle, jid, known[1]))


def _answered_by(run: Run, request: RunSimulation, spec: RunSpec) -> bool:
    valid = run.spec.compute_job_hash == spec.compute_job_hash and request.compute_job_serial in (
        0,
        run.serial,
    )
    if run.active:
        if not valid:
            raise Refusal("anotherRun", "another browser is running the simulation")
        if request.force_run:
            raise Refusal(
                "anotherRun",
                "the simulation is running already; refresh, and cancel it before forcing a new run",
            )
        return True
    return valid and run.status == COMPLETED and not request.force_run


def _receipt(tx: Transaction, req_id: str, jid: str, serial: int) -> None:
    tx.receipts.append(
        Receipt(uid=owner(jid), req_id=req_id, jid=jid, serial=serial, at=tx.now.wall)
    )


def with_hash(spec: RunSpec) -> RunSpec:
    """Return `spec` with a computeJobHash: the caller's, or a digest of the inputs that determine
    the result.
    """
    if spec.compute_job_hash is not None:
        return spec
    matters: tuple[object, ...] = (
        spec.simulation_type,
        spec.compute_model,
        spec.command,
        spec.wrap,
        sorted(spec.env.items()),
    )
    if spec.data is not None:
        matters = (*matters, spec.data)
    if spec.roles:
        matters = (*matters, spec.roles)
    if isinstance(spec.profile, str):
        matters = (*matters, {"profile": spec.profile})
    digest = hashlib.blake2b(
        msgspec.json.encode(matters, order="deterministic"), digest_size=16
    ).hexdigest()
    return msgspec.structs.replace(spec, compute_job_hash=digest)
