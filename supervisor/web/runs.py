"""Runs: asked for, told about, canceled, listed, explained."""

import asyncio
import os
from typing import Any

from ...db.events import job_stream
from ...db.story import story
from ...protocol.requests import JobList, JobLog, JobStory, JobTasks, RunCancel, RunRelease, RunSimulation, RunStatusRequest, Trace
from ..log_lines import lines
from ..trace import about, trace
from .events import told
from .handler import Handler


async def run_simulation(h: Handler) -> Any:
    request: RunSimulation = h.parsed(RunSimulation)
    spec = request.run
    h.log_request("runSimulation", request, f"{spec.uid}-{spec.simulation_id}-{spec.compute_model}")
    return await h.desk.submit(request)


async def run_many(h: Handler) -> Any:
    request = await h.parsed_runs()
    h.desk.log("class=ServerReq api=api_runMany reqId={} runs={}", request.req_id, len(request.runs))
    replies = await h.desk.submit_many(request)
    return {"state": "ok", "runs": replies}


async def run_status(h: Handler) -> Any:
    return await h.desk.status(h.parsed(RunStatusRequest))


async def run_cancel(h: Handler) -> Any:
    request: RunCancel = h.parsed(RunCancel)
    h.log_request("runCancel", request, request.compute_jid)
    return await h.desk.cancel(request)


async def run_release(h: Handler) -> Any:
    request: RunRelease = h.parsed(RunRelease)
    h.log_request("runRelease", request, request.compute_jid)
    return await h.desk.release(request)


async def job_tasks(h: Handler) -> Any:
    return h.desk.tasks(h.parsed(JobTasks))


async def job_list(h: Handler) -> Any:
    request: JobList = h.parsed(JobList)
    rows = h.desk.engine.store.jobs(
        uid=request.uid, status=request.status, active=request.active, before=request.before, limit=request.limit,
    )
    return {"jobs": rows, "next": rows[-1].position if len(rows) == request.limit else None}


async def job_log(h: Handler) -> Any:
    request: JobLog = h.parsed(JobLog)
    h.owner = request.uid
    chunk, token = await h.desk.read_log(request)
    h.services.unsent.check(h.owner, len(chunk.data))
    h.set_header("Content-Type", "application/octet-stream")
    for name, value in (("Offset", chunk.offset), ("Next-Offset", chunk.next_offset), ("Dropped", chunk.dropped)):
        h.set_header("X-Jobscribe-" + name, str(value))
    if token is not None:
        # the run's latest attempt, and the task that stands for it, may be others by the next piece
        for name, said in (("Attempt", token.attempt), ("Role", token.role), ("Index", token.index)):
            h.set_header("X-Jobscribe-" + name, str(said))
    h.set_header("X-Jobscribe-End", "true" if chunk.end else "false")
    h.end(chunk.data)


async def job_story(h: Handler) -> Any:
    request: JobStory = h.parsed(JobStory)
    h.desk.job(request.uid, request.compute_jid)
    events = h.desk.engine.store.read(job_stream(request.compute_jid))
    return {"computeJid": request.compute_jid, "events": [told(e) for e in events], "lines": story(events)}


async def job_why(h: Handler) -> Any:
    return h.desk.why(h.parsed(RunStatusRequest))


async def trace_id(h: Handler) -> Any:
    request: Trace = h.parsed(Trace)
    answer = trace(h.desk.engine.store, request.id, request.uid)
    job = about(answer) if request.logs else None
    if job is not None:
        # the logs of a root lie beside the folders of its agents; reading them may take a while
        found, gaps = await asyncio.to_thread(lines, os.path.dirname(h.desk.evidence_root), job)
        answer |= {"lines": [line._asdict() for line in found], "gaps": gaps}
    return answer
