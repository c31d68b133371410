"""Runs: submit, describe, cancel, list and explain them; their output, shells, history and trace."""

import asyncio
import os
from typing import Any

import msgspec

from ....db.events.events import RunPurged, TaskEnded, TaskHeld, job_stream
from ....db.events.job_fold import without_quotes
from ....db.records.event_text import story
from ....db.store.contract import IndexRow, Stored
from ....protocol.api import cursors
from ....protocol.api.requests import (
    JobCore,
    JobList,
    JobLog,
    JobSearch,
    JobStory,
    JobTag,
    JobTasks,
    RunCancel,
    RunPurge,
    RunRelease,
    RunSimulation,
    RunStatusRequest,
    ShellOpen,
    ShellUse,
    Trace,
)
from ....protocol.errors import Refusal
from ...access.principal import check_scope
from ...diagnosis.missing_output import missing_output
from ...runs.groups import gently
from ...runs.search.job_search import search_jobs
from ...runs.search.tagged_jobs import tagged_jobs
from ...runs.shells import DISABLED, Shells
from ...tracing.log_search import lines
from ...tracing.report import line_items, log_query, trace, with_image_pulls
from ..transport.request_handler import Handler
from .event_stream import event_body
from .run_purge import purge
from .sign_in import with_sign_in


async def run_simulation(h: Handler) -> Any:
    request: RunSimulation = h.parsed(RunSimulation)
    spec = request.run
    jid = f"{spec.uid}-{spec.simulation_id}-{spec.compute_model}"
    h.log_request("runSimulation", request, jid)
    return with_sign_in(h, await h.runs.submit(request), spec.uid, jid)


async def run_many(h: Handler) -> Any:
    request = await h.parsed_runs()
    h.log("class=ServerReq api=api_runMany reqId={} runs={}", request.req_id, len(request.runs))
    replies = await h.runs.submit_many(request)
    return {"state": "ok", "runs": replies}


def run_status(h: Handler) -> Any:
    """Return the reply, or a coroutine that waits for it."""
    request: RunStatusRequest = h.parsed(RunStatusRequest)
    if request.wait_secs:
        return _status_later(h, request)
    return with_sign_in(h, h.runs.status_now(request), request.uid, request.compute_jid)


async def _status_later(h: Handler, request: RunStatusRequest) -> dict[str, Any]:
    return with_sign_in(h, await h.runs.status(request), request.uid, request.compute_jid)


async def run_cancel(h: Handler) -> Any:
    request: RunCancel = h.parsed(RunCancel)
    h.log_request("runCancel", request, request.compute_jid)
    return await h.runs.cancel(request)


async def run_release(h: Handler) -> Any:
    request: RunRelease = h.parsed(RunRelease)
    h.log_request("runRelease", request, request.compute_jid)
    return await h.runs.release(request)


async def run_purge(h: Handler) -> Any:
    request: RunPurge = h.parsed(RunPurge)
    h.log_request("runPurge", request, request.compute_jid)
    return await purge(h.runs, request)


async def job_tag(h: Handler) -> Any:
    request: JobTag = h.parsed(JobTag)
    h.services.access.rates.tags(request.uid)
    h.log_request("jobTag", request, request.compute_jid)
    return {"computeJid": request.compute_jid, "tags": await h.runs.tag(request)}


async def job_tasks(h: Handler) -> Any:
    return h.runs.tasks(h.parsed(JobTasks))


async def job_list(h: Handler) -> Any:
    request: JobList = h.parsed(JobList)
    if isinstance(request.cursor, str):
        request = msgspec.structs.replace(request, before=cursors.position(request.cursor))
    tags: dict[str, Any] = {}
    if isinstance(request.tags, tuple):
        found = await tagged_jobs(h.runs.engine, request, request.tags)
        rows, tags = [f.row for f in found], {f.row.jid: f.tags for f in found}
    else:
        rows = _page(h, request)
    jobs = []
    async for row in gently(rows):
        # `status` of the row is the former name of `state`
        more = _summary(h, row) if request.commands is True else {}
        more |= {"tags": tags[row.jid]} if row.jid in tags else {}
        jobs.append({**msgspec.to_builtins(row), "state": row.status, **more})
    after = rows[-1].position if len(rows) == request.limit else None
    return {"jobs": jobs, "next": after, "cursor": cursors.text(after)}


def _summary(h: Handler, row: IndexRow) -> dict[str, Any]:
    summary = h.runs.summaries.get(row)
    return {"command": summary.command, "name": summary.name}


async def job_search(h: Handler) -> Any:
    request: JobSearch = h.parsed(JobSearch)
    sender = h.principal
    # a request without a user is about all whom the sender may see
    everybody = request.uid is not None or sender.all_users
    users = () if everybody else {*sender.members, sender.name}
    # the user who searches; the front end names its user in the request
    with h.runs.searches.hold(sender.uid or request.uid or sender.name):
        return await search_jobs(h.runs, request, h.runs.now().wall, users)


def _page(h: Handler, request: JobList) -> list[IndexRow]:
    return h.runs.engine.store.jobs(
        uid=request.uid,
        status=request.status,
        active=request.active,
        before=request.before,
        limit=request.limit,
    )


async def job_core(h: Handler) -> Any:
    request: JobCore = h.parsed(JobCore)
    h.owner = request.uid
    h.log_call("jobCore", request.compute_jid, request.uid, jid=request.compute_jid)
    data, size = await h.runs.read_core(request)
    h.services.unsent.check(h.owner, len(data))
    h.set_header("Content-Type", "application/octet-stream")
    h.set_header("X-Jobscribe-Size", str(size))
    h.end(data)


async def job_log(h: Handler) -> Any:
    request: JobLog = h.parsed(JobLog)
    h.owner = request.uid
    chunk, token = await h.runs.read_log(request)
    h.services.unsent.check(h.owner, len(chunk.data))
    h.set_header("Content-Type", "application/octet-stream")
    for name, value in (
        ("Offset", chunk.offset),
        ("Next-Offset", chunk.next_offset),
        ("Dropped", chunk.dropped),
    ):
        h.set_header("X-Jobscribe-" + name, str(value))
    if token is not None:
        # the client asks for the same task again, even if a new attempt starts meanwhile
        for name, part in (
            ("Serial", token.serial),
            ("Attempt", token.attempt),
            ("Role", token.role),
            ("Index", token.index),
        ):
            h.set_header("X-Jobscribe-" + name, str(part))
    h.set_header("X-Jobscribe-End", "true" if chunk.end else "false")
    if not chunk.data and chunk.next_offset == 0 and (chunk.end or not request.wait_secs):
        job = h.runs.job(request.uid, request.compute_jid).job
        task = None if job.run is None or token is None else job.run.find(token)
        h.set_header("X-Jobscribe-Note", missing_output(job, task, request.stream).header())
    h.end(chunk.data)


async def job_story(h: Handler) -> Any:
    request: JobStory = h.parsed(JobStory)
    h.runs.job(request.uid, request.compute_jid)
    events = h.runs.engine.store.read(job_stream(request.compute_jid))
    purged = {e.event.serial for e in events if isinstance(e.event, RunPurged)}
    return {
        "computeJid": request.compute_jid,
        "events": [event_body(_without_output(e, purged)) for e in events],
        "lines": story(events),
    }


def _without_output(stored: Stored, purged: set[int]) -> Stored:
    """Return the event; for a purged run, without the output that it quotes."""
    event = stored.event
    if isinstance(event, TaskEnded | TaskHeld) and event.token.serial in purged:
        return msgspec.structs.replace(stored, event=without_quotes(event))
    return stored


async def job_why(h: Handler) -> Any:
    return h.runs.why(h.parsed(RunStatusRequest))


async def trace_id(h: Handler) -> Any:
    request: Trace = h.parsed(Trace)
    if request.logs:
        check_scope(h.principal, "debug")
    answer = trace(h.runs.engine.store, request.id, request.uid, h.services.known)
    what = log_query(answer, h.services.known) if request.logs else None
    if what is not None:
        # the log writer may be behind, and reading log files takes a while
        await asyncio.to_thread(h.services.logs_written)
        found, gaps = await asyncio.to_thread(lines, os.path.dirname(h.runs.evidence_root), what)
        answer |= {
            "lines": line_items(found, answer),
            "gaps": gaps,
            "waits": with_image_pulls(found, answer["waits"]),
        }
    return answer


async def shell_open(h: Handler) -> Any:
    request: ShellOpen = h.parsed(ShellOpen)
    h.services.access.rates.shell(request.uid)
    h.log_call("shellOpen", request.compute_jid, request.uid, jid=request.compute_jid)
    return await _shells(h).open(h.principal, h.peer, request)


async def shell_use(h: Handler) -> Any:
    request: ShellUse = h.parsed(ShellUse)
    h.owner = request.uid
    return await _shells(h).use(request)


def _shells(h: Handler) -> Shells:
    if h.services.shells is None:
        raise Refusal("forbidden", DISABLED)
    return h.services.shells
