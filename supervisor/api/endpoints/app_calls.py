"""Calls of apps, files of runs, sessions, leased ports and the names of apps."""

import asyncio
import contextlib
from email.utils import formatdate
from typing import Any

import tornado.iostream

from ....protocol.api.requests import (
    BeginSession,
    CallRequest,
    GlobalResources,
    RunFile,
    RunFileDigest,
    RunFiles,
)
from ....protocol.errors import Refusal
from ...agents.calls import API_NAMES, OpenFile, about
from ...files.user_library import etag
from ..transport.request_handler import Handler


async def call(h: Handler) -> Any:
    request: CallRequest = h.parsed(CallRequest)
    op, h.owner = h.services.calls.new_op(), request.uid
    h.log_call(API_NAMES[request.job_cmd], about(request), request.uid, op, request.compute_jid)
    answering = asyncio.ensure_future(h.services.calls.call(request, op))
    h.on_gone = answering.cancel
    try:
        return await answering
    except asyncio.CancelledError:
        # the client is gone
        h.runs.counters.add("callAbandoned")
        return None


async def begin_session(h: Handler) -> Any:
    request: BeginSession = h.parsed(BeginSession)
    h.log_call("beginSession", request.uid, request.uid)
    h.services.calls.begin_session(request)
    return {"state": "ok"}


async def run_file(h: Handler) -> None:
    request: RunFile = h.parsed(RunFile)
    h.log_call("runFile", request.compute_jid, request.uid, jid=request.compute_jid)
    await send_file(
        h, await h.services.calls.open_file(request), f"a file of {request.compute_jid}"
    )


async def run_files(h: Handler) -> Any:
    request: RunFiles = h.parsed(RunFiles)
    h.log_call("listFiles", request.compute_jid, request.uid, jid=request.compute_jid)
    serial, found = await h.services.calls.list_files(request)
    return {
        "computeJid": request.compute_jid,
        "computeJobSerial": serial,
        "skipped": found.skipped,
        "files": [{"name": f.name, "size": f.size, "mtime": f.mtime} for f in found.files],
        "next": found.files[-1].name if found.more and found.files else None,
    }


async def run_file_digest(h: Handler) -> Any:
    request: RunFileDigest = h.parsed(RunFileDigest)
    h.log_call("runFileDigest", request.compute_jid, request.uid, jid=request.compute_jid)
    found = await h.services.calls.digest(request)
    return {
        "name": request.name,
        "offset": request.offset,
        "length": found.length,
        "sha256": found.sha256,
        "size": found.size,
        "etag": etag(found.size, found.mtime_ns),
    }


async def send_file(h: Handler, file: OpenFile, what: str) -> None:
    """Send a file as fast as the client reads. Raises Refusal before the first byte only.

    what: the file, for the log.
    """
    h.set_header("Content-Type", "application/octet-stream")
    h.set_header("Content-Length", str(file.length))
    h.set_header("X-Jobscribe-Size", str(file.size))
    h.set_header("ETag", etag(file.size, file.mtime_ns))
    h.set_header("Last-Modified", formatdate(file.mtime_ns / 1e9, usegmt=True))
    async with contextlib.aclosing(file.chunks) as chunks:
        try:
            async for data in chunks:
                h.write(data)
                await h.send()
        except tornado.iostream.StreamClosedError:
            return
        except Refusal as e:
            # the client has a part already, so the connection must end visibly
            h.runs.counters.add("refused." + e.code)
            h.log("cannot read {} to its end: {}", what, e.sentence)
            h.cut()
            return
    h.finish()


async def global_resources(h: Handler) -> Any:
    request: GlobalResources = h.parsed(GlobalResources)
    h.log_call("globalResources", f"{request.uid}-{request.simulation_id}", request.uid)
    if request.simulation_type not in h.runs.apps:
        raise Refusal(
            "unknownApp",
            f"unknown app {request.simulation_type!r}; choose one of: {', '.join(h.runs.apps)}",
        )
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    return await h.services.leases.ask(request)


async def apps(h: Handler) -> Any:
    """Return the installed apps, with their models and fields."""
    return {"apps": list(h.runs.apps)}
