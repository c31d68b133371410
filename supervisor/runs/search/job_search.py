"""Search of jobs for pages: filters, words, several orders, and pages of any of them.

The index of jobs is read in windows from the newest change on. Between two windows the event loop
serves other requests. So a search needs no index of its own, and no job costs more to store
(etc/adr/0038-pages.md).
"""

import asyncio
import heapq
import math
import re
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec

from ....db.store.contract import IndexRow, RowFilter
from ....db.store.job_index import fits
from ....protocol.api.requests import JobSearch
from ....protocol.errors import Refusal
from ..groups import gently
from ..service import RunService
from .command_summaries import Summary

#: Rows of a window. A search by words reads an event of each row, and one by queue folds each job.
WINDOW, DEEP_WINDOW = 1000, 250
#: Time that a window should take at most, in seconds: stored requests may be large.
SLOW_SECS = 0.03
#: Rows of the smallest window.
LEAST_WINDOW = 10
#: Time after which a search answers with what it has found.
SEARCH_SECS = 3.0

#: Quotes separate words, because a command is shown with the quotes of a shell and stored without.
_BETWEEN_WORDS = re.compile(r"[\s'\"]+")
_JID = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}")

#: Place of a row in an order: its value there, then its jid.
Place = tuple[float, str]


async def search_jobs(
    runs: RunService, request: JobSearch, now: float, users: Collection[str] = ()
) -> dict[str, Any]:
    """Return a page of jobs. users: only of these; empty: of all that the request names.
    `searchedUntil` is set if the time was not enough for all jobs: the jobs whose latest change is
    older than this position are missing. Raises Refusal (badRequest).
    """
    among = tuple(sorted(users))
    if request.sort == "changed" and not request.ascending:
        found, next_, left = await _newest(runs, request, among)
    else:
        found, next_, left = await _sorted(runs, request, now, among)
    jobs = [
        {**msgspec.to_builtins(row), "state": row.status, **runs.summaries.get(row)._asdict()}
        async for row in gently(found)
    ]
    return {"jobs": jobs, "next": next_, "searchedUntil": left}


async def _newest(
    runs: RunService, request: JobSearch, users: tuple[str, ...]
) -> tuple[list[IndexRow], str | None, int | None]:
    """Return the newest changes; stops with the first window that completes the page."""
    before = None if not request.cursor else _position(request.cursor)
    found: list[IndexRow] = []
    async for rows, left in _windows(runs, request, before, users):
        found += rows
        if len(found) >= request.limit:
            more = len(found) > request.limit or left is not None
            page = found[: request.limit]
            return page, str(page[-1].position) if more else None, None
        before = left
    return found, None if before is None else str(before), before


async def _sorted(
    runs: RunService, request: JobSearch, now: float, users: tuple[str, ...]
) -> tuple[list[IndexRow], str | None, int | None]:
    """Return the first rows after the cursor in another order, for which all rows are read."""
    after = None if not request.cursor else _place(request.cursor)
    sign = 1.0 if request.ascending else -1.0
    best: list[tuple[Place, IndexRow]] = []
    left: int | None = None
    async for rows, before in _windows(runs, request, None, users):
        left = before
        places = [((sign * _value(r, request, now), r.jid), r) for r in rows]
        best += [p for p in places if after is None or p[0] > after]
        best = heapq.nsmallest(request.limit + 1, best, key=lambda p: p[0])
    page = best[: request.limit]
    next_ = f"{page[-1][0][0]!r}:{page[-1][0][1]}" if len(best) > request.limit else None
    return [row for _, row in page], next_, left


async def _windows(
    runs: RunService, request: JobSearch, before: int | None, users: tuple[str, ...]
) -> AsyncIterator[tuple[list[IndexRow], int | None]]:
    """Yield the rows of each window that fit, and the position where the next window begins. Ends
    early after SEARCH_SECS.
    """
    words = tuple(dict.fromkeys(w for w in _BETWEEN_WORDS.split(request.text) if w))
    wanted = RowFilter(
        uid=request.uid,
        users=users,
        statuses=tuple(request.states),
        drivers=request.drivers,
        types=request.apps,
        reasons=request.causes,
        since=request.since,
        until=request.until,
        words=words,
        queues=request.queues,
    )
    if len(words) == 1 and _JID.fullmatch(words[0]):
        # the one job with this id, without a search
        exact = [r for r in runs.engine.store.find_jobs(words[0], 1) if r.jid == words[0]]
        if exact and fits(exact[0], RowFilter(uid=request.uid, users=users)):
            summary = runs.summaries.get(exact[0])
            yield [r for r in exact if fits(r, wanted) and _fits(r, summary, request, words)], None
            return
    deep = bool(words or request.queues)
    window = most = DEEP_WINDOW if deep else WINDOW
    ends = time.monotonic() + SEARCH_SECS
    while True:
        begun = time.monotonic()
        rows, before = runs.engine.store.scan_jobs(wanted, before=before, window=window)
        window = _next_window(window, most, time.monotonic() - begun)
        if deep:
            rows = [
                r async for r in gently(rows) if _fits(r, runs.summaries.get(r), request, words)
            ]
        yield rows, before
        if before is None or time.monotonic() >= ends:
            return
        await asyncio.sleep(0)


def _next_window(window: int, most: int, secs: float) -> int:
    """Return the rows of the next window: half after a slow one, twice as many after a fast one."""
    if secs > SLOW_SECS:
        return max(window // 2, min(window, LEAST_WINDOW))
    return min(window * 2, most) if secs < SLOW_SECS / 4 else window


def _fits(row: IndexRow, summary: Summary, request: JobSearch, words: tuple[str, ...]) -> bool:
    text = f"{row.jid} {summary.name or ''} {summary.command or ''}".casefold()
    return (not request.queues or summary.queue in request.queues) and all(
        word.casefold() in text for word in words
    )


def _value(row: IndexRow, request: JobSearch, now: float) -> float:
    match request.sort:
        case "changed":
            return float(row.position)
        case "submitted":
            return row.queued_at
        case "started":
            return row.started_at or 0.0
        case "ended":
            return row.ended_at or 0.0
        case "duration":
            # negative: a job that has not started comes after all others
            started = row.started_at
            return -1.0 if started is None else max(0.0, (row.ended_at or now) - started)


def _position(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise Refusal("badRequest", "cursor must be `next` of the previous page")
    return int(cursor)


def _place(cursor: str) -> Place:
    value, _, jid = cursor.partition(":")
    try:
        place = float(value), jid
    except ValueError:
        place = math.nan, jid
    if not math.isfinite(place[0]):
        raise Refusal("badRequest", "cursor must be `next` of the previous page")
    return place
