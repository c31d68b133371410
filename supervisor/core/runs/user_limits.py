"""The queue of a new run, and the limits of its user (`protocol.clusters.queues`)."""

import msgspec

from ....db.events.reserved import by_run
from ....protocol.api.requests import RunSpec
from ....protocol.clusters.queues import Queues, UserLimits
from ....protocol.errors import Refusal
from ....protocol.ids import DEFAULT_QUEUE
from ..interface.inputs import Now
from ..state import user_hours
from ..state.world import World


def applied(world: World, spec: RunSpec, now: Now) -> RunSpec:
    """Return the spec with its queue, and with the time limit of its user if it has none. Raises
    Refusal (queueRefused, resourceExceeded, hoursUsedUp, tooManyRuns).
    """
    queues = world.policy.queues
    limits = queues.limits_of(spec.active_plan, spec.uid)
    queue = _queue(queues, spec)
    _check_resources(limits, spec)
    _check_totals(limits, spec)
    hours = user_hours.used_up(world, spec.uid, spec.active_plan, now)
    if hours is not None:
        raise hours.refusal()
    _check_queued(world, limits, spec)
    return msgspec.structs.replace(
        spec,
        # the default queue is not stored: earlier versions can read such a run
        queue=msgspec.UNSET if queue == DEFAULT_QUEUE else queue,
        time_limit_secs=_time_limit(world, limits, spec),
    )


def _queue(queues: Queues, spec: RunSpec) -> str:
    queue = spec.queue or queues.of(spec.uid, spec.active_plan)
    known = queues.all.get(queue)
    if known is None or not known.admits(spec.uid, spec.active_plan):
        own = ", ".join(n for n, q in queues.all.items() if q.admits(spec.uid, spec.active_plan))
        raise Refusal(
            "queueRefused", f"user {spec.uid} has no queue {queue!r}; choose one of: {own}"
        )
    return queue


def _check_resources(limits: UserLimits, spec: RunSpec) -> None:
    for what, most, wanted in (
        ("cores", limits.cores, sum(r.tasks * r.cpu for r in spec.roles)),
        ("GPUs", limits.gpus, sum(r.tasks * r.gpu for r in spec.roles)),
    ):
        if most is not None and wanted > most:
            raise Refusal(
                "resourceExceeded",
                f"its roles request {wanted} {what}; the limit of this user is {most} for one run",
            )


def _check_totals(limits: UserLimits, spec: RunSpec) -> None:
    """Refuse a run that could never start: it needs more than its user may have at a time."""
    reserved = by_run(spec)
    for what, most, wanted in (
        ("cores", limits.total_cores, reserved.cores),
        ("GPUs", limits.total_gpus, reserved.gpus),
        ("MB of memory", limits.total_memory, reserved.mib or 0),
    ):
        if most is not None and wanted > most:
            raise Refusal(
                "resourceExceeded",
                f"it requests {wanted} {what}; all runs of this user together may have {most} at a time",
            )


def _check_queued(world: World, limits: UserLimits, spec: RunSpec) -> None:
    if limits.queued is None:
        return
    waiting = world.waiting_runs(spec.uid)
    if waiting >= limits.queued:
        raise Refusal(
            "tooManyRuns", f"{waiting} runs of this user wait already; the limit is {limits.queued}"
        )


def _time_limit(world: World, limits: UserLimits, spec: RunSpec) -> float | None:
    most = limits.sequential if spec.job_run_mode == "sequential" else limits.parallel
    given = spec.time_limit_secs
    if most is None:
        return given
    if given is None:
        default = world.policy.time_limit_secs
        return most if default is None or default > most else None
    if given > most:
        raise Refusal(
            "resourceExceeded",
            f"the time limit of {given:g} s is more than the {most:g} s that this user may have for a {spec.job_run_mode} run",
        )
    return given
