"""Arrays and groups: many runs of one simulation submitted, counted and canceled by one request.
Nothing of HTTP in it.

A group is no record of its own: it is whatever runs a user has of one simulation, found by the
beginning of their computeJids.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

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

#: Bytes of all runs of an array together, as they are stored.
MAX_STORED = 64 * 1024 * 1024
#: Refused runs that an answer names; of the others it has the number.
NAMED = 100
#: Rows that are read in one go, and for how long the loop may be held by reading how runs ended.
PAGE, HOLD_SECS = 500, 0.005
#: Who waits for the end of a group counts it at most so often.
LOOK_SECS = 0.25
STATUSES = (PENDING, RUNNING, COMPLETED, CANCELED, ERROR, PURGED)
FAILED = (ERROR, CANCELED)
#: A serial that no run has.
_NO_RUN = 2**53


async def submit_array(desk: RunService, request: RunArray) -> dict[str, Any]:
    """All runs of an array, durable. Raises Refusal: where all of them are refused, and where the
    same request is to be sent again.
    """
    indices = parse_indices(request.indices)
    specs = expand(request.run, indices)
    desk.check(specs[0])
    size = len(msgspec.json.encode(specs[-1])) * len(specs)
    if size > MAX_STORED:
        what = (
            f"{len(specs)} runs like this take {size} bytes; the limit of an array is {MAX_STORED}"
        )
        raise Refusal("tooLarge", f"{what}: put what is large into a file, or submit fewer at once")
    answers = await desk.submit_each(
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
        "states": Counter(a["state"] for a in answers if not _is_refusal(a)),
        "refusedCount": len(refused),
        "refused": refused[:NAMED],
    }


async def group(desk: RunService, request: JobGroup) -> dict[str, Any]:
    """How the runs of a simulation stand: at once, or as soon as nothing is left of them (at the
    latest after wait_secs).
    """
    prefix = group_prefix(request.uid, request.simulation_id)
    tallies = await _tallies_over(desk, prefix, request.wait_secs)
    rows, more = _page(desk, prefix, request)
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
        "exits": await _exits(desk, prefix, tallies) if request.limit else None,
        "runs": [told async for told in _told(desk, rows)],
        "next": rows[-1].jid if more else None,
    }


async def cancel_group(desk: RunService, request: GroupCancel) -> dict[str, Any]:
    """Cancel the runs that are asked for; each is canceled durably, or was over. Raises Refusal."""
    store, prefix = desk.engine.store, group_prefix(request.uid, request.simulation_id)
    if not store.tally(prefix):
        raise _nothing(prefix)
    names = _names(request)
    done = store.receipt(request.uid, cancel_receipt(request.req_id)) is not None
    if done:
        rows = [
            r
            async for r in _rows(desk, prefix)
            if _meant(names, r) and _was_asked(desk, request, r)
        ]
        answers: Sequence[dict[str, Any]] = [{"state": r.status} for r in rows]
    else:
        rows = [r async for r in _rows(desk, prefix, tuple(sorted(ACTIVE))) if _meant(names, r)]
        answers = await desk.cancel_each(_cancels(desk, request, rows))
        _raise_for([a for a in answers if _is_refusal(a)])
        # its receipt says that all of it is done: what comes later is not hit when the request is
        # repeated
        await desk.cancel(
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
        "missing": await _missing(desk, prefix, names),
        "repeated": done,
    }


# ---- counting and reading


async def _tallies_over(desk: RunService, prefix: str, wait_secs: float) -> list[JobCount]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_secs
    with desk.watching(prefix[:-1]) as changed:
        while True:
            changed.clear()
            tallies = desk.engine.store.tally(prefix)
            if not tallies:
                raise _nothing(prefix)
            if loop.time() >= deadline or not any(t.busy for t in tallies):
                return tallies
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, deadline - loop.time()))
            except TimeoutError:
                continue
            # of many changes close together, the last is counted
            await asyncio.sleep(max(0.0, min(LOOK_SECS, deadline - loop.time())))


def _page(desk: RunService, prefix: str, request: JobGroup) -> tuple[list[IndexRow], bool]:
    """Rows of the page, and whether more follow."""
    if not request.limit:
        return [], False
    statuses = (
        FAILED
        if request.status == "failed"
        else None
        if request.status is None
        else (request.status,)
    )
    rows = desk.engine.store.group(
        prefix, statuses=statuses, after=request.after, limit=request.limit + 1
    )
    return rows[: request.limit], len(rows) > request.limit


async def _told(desk: RunService, rows: Iterable[IndexRow]) -> AsyncIterator[dict[str, Any]]:
    async for row in gently(rows):
        ended = desk.ends.of(row)
        known = ended.code is not None or ended.signal is not None
        yield {
            "computeJid": row.jid,
            "computeJobSerial": row.serial,
            "index": parse_index(row.jid)[1],
            "state": row.status,
            "over": not row.busy,
            "reason": row.reason,
            "error": ended.error,
            "exit": {"code": ended.code, "signal": ended.signal} if known else None,
            "computeJobQueued": row.queued_at,
            "computeJobStart": row.started_at,
            "computeJobEnd": row.ended_at,
        }


async def _exits(
    desk: RunService, prefix: str, tallies: Iterable[JobCount]
) -> list[dict[str, Any]]:
    """How those that are over ended, counted, the most frequent first."""
    counts: Counter[tuple[str, str | None, int | None, int | None]] = Counter()
    for t in tallies:
        if t.status not in ACTIVE and not exits_differ(t.status, t.reason):
            counts[t.status, t.reason, 0 if t.status == COMPLETED else None, None] += t.count
    if any(exits_differ(t.status, t.reason) for t in tallies):
        async for row in _rows(desk, prefix, (ERROR,)):
            if exits_differ(row.status, row.reason):
                ended = desk.ends.of(row)
                counts[row.status, row.reason, ended.code, ended.signal] += 1
    return [
        {"state": state, "reason": reason, "code": code, "signal": signal, "count": count}
        for (state, reason, code, signal), count in counts.most_common()
    ]


async def _rows(
    desk: RunService, prefix: str, statuses: Sequence[str] | None = None
) -> AsyncIterator[IndexRow]:
    """All rows of a group in order, read page by page."""
    after: str | None = None
    while rows := desk.engine.store.group(prefix, statuses=statuses, after=after, limit=PAGE):
        async for row in gently(rows):
            yield row
        after = rows[-1].jid
        await asyncio.sleep(0)


async def gently(rows: Iterable[IndexRow]) -> AsyncIterator[IndexRow]:
    """The rows, with pauses for others."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECS
    for row in rows:
        yield row
        if loop.time() >= until:
            await asyncio.sleep(0)
            until = loop.time() + HOLD_SECS


# ---- canceling


def _names(request: GroupCancel) -> frozenset[str] | frozenset[int] | None:
    """The models or the indices that are meant; None for all. Raises Refusal."""
    if request.indices is not None and request.models is not None:
        raise Refusal("badRequest", "a cancel takes `indices` or `models`, not both")
    if request.models is not None:
        return frozenset(request.models)
    if request.indices is None:
        return None
    indices: Indices = parse_indices(request.indices)
    if indices.at_once is not None:
        raise Refusal(
            "badRequest", "the indices of a cancel have no % behind them: that is for a submission"
        )
    return frozenset(indices.numbers)


def _meant(names: frozenset[str] | frozenset[int] | None, row: IndexRow) -> bool:
    return names is None or split_jid(row.jid)[2] in names or parse_index(row.jid)[1] in names


def _cancels(
    desk: RunService, request: GroupCancel, rows: Sequence[IndexRow]
) -> Iterator[RunCancel]:
    """Those that wait come first, the last of them first of all: canceling what runs would only
    have others begin.
    """
    waiting, others = (
        [r for r in reversed(rows) if r.status == PENDING],
        [r for r in rows if r.status != PENDING],
    )
    for row in (*waiting, *others):
        if _still(desk, row, request.status):
            yield RunCancel(
                req_id=_req_id(request, row.jid),
                uid=request.uid,
                compute_jid=row.jid,
                compute_job_serial=row.serial,
                reason=request.reason,
            )


def _still(desk: RunService, row: IndexRow, status: str | None) -> bool:
    """Is the run as it is asked for, by all that was decided until now?"""
    if status is None:
        return True
    job = desk.engine.world.jobs.get(row.jid)
    return (
        job is not None
        and job.run is not None
        and job.run.serial == row.serial
        and job.run.status == status
    )


def _req_id(request: GroupCancel, jid: str) -> str:
    """Of the cancel of one run: derived, so that repeating the request repeats it."""
    return f"{request.req_id}.{derived_id(jid.encode(), key=b'jobscribe group')[:20]}"


def _was_asked(desk: RunService, request: GroupCancel, row: IndexRow) -> bool:
    return (
        desk.engine.store.receipt(request.uid, cancel_receipt(_req_id(request, row.jid)))
        is not None
    )


async def _missing(
    desk: RunService, prefix: str, names: frozenset[str] | frozenset[int] | None
) -> int:
    """How many of the names that were given no run has."""
    if names is None:
        return 0
    there: set[str | int | None] = set()
    async for row in _rows(desk, prefix):
        there |= {split_jid(row.jid)[2], parse_index(row.jid)[1]}
    return len(names - there)


# ---- refusals


def _nothing(prefix: str) -> Refusal:
    return Refusal("notFound", f"there are no runs of simulation {prefix.split('-')[1]}")


def _is_refusal(answer: dict[str, Any]) -> bool:
    return "code" in answer


def _raise_for(refused: Sequence[dict[str, Any]], all_of: int | None = None) -> None:
    """Raises the refusal of one that may be accepted when the request is sent again; or the first,
    when there is nothing else.
    """
    for answer in refused:
        if CODES[answer["code"]].retry or len(refused) == all_of:
            raise Refusal(answer["code"], answer["error"])
