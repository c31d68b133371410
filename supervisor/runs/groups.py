"""Arrays and groups: submit, count and cancel many runs of one simulation by one request.

A group is not stored: it consists of all runs of one user and simulation, found by the prefix of
their computeJids. HTTP is in `supervisor.api`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from ...db.store.contract import IndexRow, JobCount
from ...protocol.api.job_arrays import (
    Indices,
    expand,
    format_indices,
    group_prefix,
    parse_index,
    parse_indices,
)
from ...protocol.api.requests import GroupCancel, JobGroup, RunArray, RunCancel, RunSimulation
from ...protocol.errors import CODES, Refusal
from ...protocol.ids import derived_id, split_jid
from ...protocol.jobs.status import ACTIVE, CANCELED, COMPLETED, ERROR, PENDING, PURGED, RUNNING
from ..core.interface.inputs import cancel_receipt
from .outcome_cache import exits_differ
from .service import RunService

#: Stored bytes of all runs of an array.
MAX_STORED = 64 * 1024 * 1024
#: Number of refused runs that an answer lists. It counts the others.
NAMED = 100
#: Field of a reply whose user is above the soft disk quota.
_WARNING = "quotaWarning"
#: Number of rows read at once, and the longest time that reading outcomes may block the loop.
PAGE, HOLD_SECS = 500, 0.005
#: Shortest time between two counts of a group that a request waits for.
LOOK_SECS = 0.25
STATUSES = (PENDING, RUNNING, COMPLETED, CANCELED, ERROR, PURGED)
FAILED = (ERROR, CANCELED)
#: Serial that no run has.
_NO_RUN = 2**53

T = TypeVar("T")


async def submit_array(service: RunService, request: RunArray) -> dict[str, Any]:
    """Submit all runs of an array. Return when the decisions are durable.

    Raises Refusal if all runs are refused, or if the same request must be sent again.
    """
    indices = parse_indices(request.indices)
    specs = expand(request.run, indices)
    service.check(specs[0])
    size = len(msgspec.json.encode(specs[-1])) * len(specs)
    if size > MAX_STORED:
        raise Refusal(
            "tooLarge",
            f"{len(specs)} runs of this kind take {size} bytes; the limit of an array is {MAX_STORED}. "
            "Put large values into a file, or submit fewer runs at once",
        )
    answers = await service.submit_each(
        RunSimulation(req_id=f"{request.req_id}.{n}", run=spec)
        for n, spec in zip(indices.numbers, specs, strict=True)
    )
    refused = [
        {"index": n, **a} for n, a in zip(indices.numbers, answers, strict=True) if _is_refusal(a)
    ]
    _raise_for(refused, all_of=len(answers))
    return {
        "state": "ok",
        "group": f"{request.run.uid}-{request.run.simulation_id}",
        "simulationId": request.run.simulation_id,
        "computeModel": request.run.compute_model,
        "indices": format_indices(indices),
        "count": len(answers),
        "accepted": len(answers) - len(refused),
        **next(({_WARNING: a[_WARNING]} for a in answers if _WARNING in a), {}),
        "states": Counter(a["state"] for a in answers if not _is_refusal(a)),
        "refusedCount": len(refused),
        "refused": refused[:NAMED],
    }


async def group(service: RunService, request: JobGroup) -> dict[str, Any]:
    """Return the states of the runs of a simulation, at once or when all are over.

    Waits for `wait_secs` at most. Raises Refusal("notFound") if there are no runs.
    """
    prefix = group_prefix(request.uid, request.simulation_id)
    tallies = await _wait_until_over(service, prefix, request.wait_secs)
    rows, more = _page(service, prefix, request)
    counts = Counter(dict.fromkeys(STATUSES, 0))
    for t in tallies:
        counts[t.status] += t.count
    return {
        "group": prefix[:-1],
        "simulationId": request.simulation_id,
        "total": counts.total(),
        "counts": counts,
        "over": not any(t.busy for t in tallies),
        "busy": sum(t.count for t in tallies if t.busy),
        "exits": await _exits(service, prefix, tallies) if request.limit else None,
        "runs": [run async for run in _described(service, rows)],
        "next": rows[-1].jid if more else None,
    }


async def cancel_group(service: RunService, request: GroupCancel) -> dict[str, Any]:
    """Cancel the requested runs. Return when each cancel is durable. Raises Refusal."""
    store, prefix = service.engine.store, group_prefix(request.uid, request.simulation_id)
    if not store.tally(prefix):
        raise _no_runs(prefix)
    names = _names(request)
    done = store.receipt(request.uid, cancel_receipt(request.req_id)) is not None
    if done:
        rows = [
            r
            async for r in _rows(service, prefix)
            if _matches(names, r) and _was_canceled_before(service, request, r)
        ]
        answers: Sequence[dict[str, Any]] = [{"state": r.status} for r in rows]
    else:
        rows = [
            r async for r in _rows(service, prefix, tuple(sorted(ACTIVE))) if _matches(names, r)
        ]
        answers = await service.cancel_each(_cancels(service, request, rows))
        _raise_for([a for a in answers if _is_refusal(a)])
        # this receipt marks the whole request as done: a repetition does not cancel later runs
        await service.cancel(
            RunCancel(
                req_id=request.req_id,
                uid=request.uid,
                compute_jid=store.group(prefix, limit=1)[0].jid,
                compute_job_serial=_NO_RUN,
            )
        )
    canceled = sum(a["state"] == CANCELED for a in answers)
    return {
        "state": "ok",
        "group": prefix[:-1],
        "asked": len(answers),
        "canceled": canceled,
        "over": len(answers) - canceled,
        "missing": await _missing(service, prefix, names),
        "repeated": done,
    }


# ---- counting and reading


async def _wait_until_over(service: RunService, prefix: str, wait_secs: float) -> list[JobCount]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_secs
    with service.watching(prefix[:-1]) as changed:
        while True:
            changed.clear()
            tallies = service.engine.store.tally(prefix)
            if not tallies:
                raise _no_runs(prefix)
            if loop.time() >= deadline or not any(t.busy for t in tallies):
                return tallies
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, deadline - loop.time()))
            except TimeoutError:
                continue
            # count once for many changes in quick succession
            await asyncio.sleep(max(0.0, min(LOOK_SECS, deadline - loop.time())))


def _page(service: RunService, prefix: str, request: JobGroup) -> tuple[list[IndexRow], bool]:
    """Return the rows of the page, and whether more follow."""
    if not request.limit:
        return [], False
    statuses = (
        FAILED
        if request.status == "failed"
        else None
        if request.status is None
        else (request.status,)
    )
    rows = service.engine.store.group(
        prefix, statuses=statuses, after=request.after, limit=request.limit + 1
    )
    return rows[: request.limit], len(rows) > request.limit


async def _described(
    service: RunService, rows: Iterable[IndexRow]
) -> AsyncIterator[dict[str, Any]]:
    async for row in gently(rows):
        outcome = service.outcomes.get(row)
        known = outcome.code is not None or outcome.signal is not None
        yield {
            "computeJid": row.jid,
            "computeJobSerial": row.serial,
            "index": parse_index(row.jid)[1],
            "state": row.status,
            "over": not row.busy,
            "reason": row.reason,
            "error": outcome.error,
            "exit": {"code": outcome.code, "signal": outcome.signal} if known else None,
            "computeJobQueued": row.queued_at,
            "computeJobStart": row.started_at,
            "computeJobEnd": row.ended_at,
        }


async def _exits(
    service: RunService, prefix: str, tallies: Iterable[JobCount]
) -> list[dict[str, Any]]:
    """Count the outcomes of the runs that are over, the most frequent first."""
    counts: Counter[tuple[str, str | None, int | None, int | None]] = Counter()
    for t in tallies:
        if t.status not in ACTIVE and not exits_differ(t.status, t.reason):
            counts[t.status, t.reason, 0 if t.status == COMPLETED else None, None] += t.count
    if any(exits_differ(t.status, t.reason) for t in tallies):
        async for row in _rows(service, prefix, (ERROR,)):
            if exits_differ(row.status, row.reason):
                outcome = service.outcomes.get(row)
                counts[row.status, row.reason, outcome.code, outcome.signal] += 1
    return [
        {"state": state, "reason": reason, "code": code, "signal": signal, "count": count}
        for (state, reason, code, signal), count in counts.most_common()
    ]


async def _rows(
    service: RunService, prefix: str, statuses: Sequence[str] | None = None
) -> AsyncIterator[IndexRow]:
    """Yield all rows of a group in order, read page by page."""
    after: str | None = None
    while rows := service.engine.store.group(prefix, statuses=statuses, after=after, limit=PAGE):
        async for row in gently(rows):
            yield row
        after = rows[-1].jid
        await asyncio.sleep(0)


async def gently(rows: Iterable[T]) -> AsyncIterator[T]:
    """Yield the rows, with pauses in which the loop serves other requests."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECS
    for row in rows:
        yield row
        if loop.time() >= until:
            await asyncio.sleep(0)
            until = loop.time() + HOLD_SECS


# ---- canceling


def _names(request: GroupCancel) -> frozenset[str] | frozenset[int] | None:
    """Return the requested models or indices; None for all. Raises Refusal("badRequest")."""
    if request.indices is not None and request.models is not None:
        raise Refusal("badRequest", "a cancel takes `indices` or `models`, not both")
    if request.models is not None:
        return frozenset(request.models)
    if request.indices is None:
        return None
    indices: Indices = parse_indices(request.indices)
    if indices.at_once is not None:
        raise Refusal(
            "badRequest", "the indices of a cancel take no %; only a submission has a limit at once"
        )
    return frozenset(indices.numbers)


def _matches(names: frozenset[str] | frozenset[int] | None, row: IndexRow) -> bool:
    return names is None or split_jid(row.jid)[2] in names or parse_index(row.jid)[1] in names


def _cancels(
    service: RunService, request: GroupCancel, rows: Sequence[IndexRow]
) -> Iterator[RunCancel]:
    """Yield the cancels, waiting runs first and the newest first.

    Canceling a running run first would let a waiting one start.
    """
    waiting, others = (
        [r for r in reversed(rows) if r.status == PENDING],
        [r for r in rows if r.status != PENDING],
    )
    for row in (*waiting, *others):
        if _has_status(service, row, request.status):
            yield RunCancel(
                req_id=_req_id(request, row.jid),
                uid=request.uid,
                compute_jid=row.jid,
                compute_job_serial=row.serial,
                reason=request.reason,
            )


def _has_status(service: RunService, row: IndexRow, status: str | None) -> bool:
    """Return whether the run has this status by the latest decisions, durable or not."""
    if status is None:
        return True
    job = service.engine.world.jobs.get(row.jid)
    return (
        job is not None
        and job.run is not None
        and job.run.serial == row.serial
        and job.run.status == status
    )


def _req_id(request: GroupCancel, jid: str) -> str:
    """Return the reqId of one run's cancel, derived so that a repeated request has the same one."""
    return f"{request.req_id}.{derived_id(jid.encode(), key=b'jobscribe group')[:20]}"


def _was_canceled_before(service: RunService, request: GroupCancel, row: IndexRow) -> bool:
    return (
        service.engine.store.receipt(request.uid, cancel_receipt(_req_id(request, row.jid)))
        is not None
    )


async def _missing(
    service: RunService, prefix: str, names: frozenset[str] | frozenset[int] | None
) -> int:
    """Count the requested names that match no run."""
    if names is None:
        return 0
    found: set[str | int | None] = set()
    async for row in _rows(service, prefix):
        found |= {split_jid(row.jid)[2], parse_index(row.jid)[1]}
    return len(names - found)


# ---- refusals


def _no_runs(prefix: str) -> Refusal:
    return Refusal("notFound", f"there are no runs of simulation {prefix.split('-')[1]}")


def _is_refusal(answer: dict[str, Any]) -> bool:
    return "code" in answer


def _raise_for(refused: Sequence[dict[str, Any]], all_of: int | None = None) -> None:
    """Raise the first refusal that a retry may avoid, or the first one if all runs were refused."""
    for answer in refused:
        if CODES[answer["code"]].retry or len(refused) == all_of:
            raise Refusal(answer["code"], answer["error"])
