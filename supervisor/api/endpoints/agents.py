"""Agents: their states and logs, requests to stop one, and debuggers of jobs behind them."""

from typing import Any

from ....protocol.api.requests import (
    AgentList,
    AgentLogs,
    AgentStop,
    DebugAttach,
    DebugIo,
    DebugList,
)
from ....protocol.errors import Refusal
from ...agents.debugging import Debugging
from ...agents.logs import AgentLogReader
from ..transport.request_handler import Handler


async def agents(h: Handler) -> Any:
    request: AgentList = h.parsed(AgentList)
    return {"state": "ok", "agents": _books(h).rows(request.uid)}


async def agent_stop(h: Handler) -> Any:
    request: AgentStop = h.parsed(AgentStop)
    key = _books(h).find(request.agent, request.uid)
    await h.runs.stop_agent(key)
    return {"state": "ok", "agent": str(key)}


async def agent_logs(h: Handler) -> Any:
    request: AgentLogs = h.parsed(AgentLogs)
    books = _books(h)
    key = books.find(request.agent, request.uid)
    piece = await books.read(key, request)
    return {
        "state": "ok",
        "agent": str(key),
        "part": request.part,
        "text": piece.text,
        "offset": piece.offset,
        "nextOffset": piece.next_offset,
        "size": piece.size,
        "where": piece.where,
        "sentence": piece.sentence,
    }


def _books(h: Handler) -> AgentLogReader:
    return AgentLogReader(h.runs, h.runs.outputs.hub)


async def debug_list(h: Handler) -> Any:
    return await _debugging(h).stops(h.parsed(DebugList))


async def debug_attach(h: Handler) -> Any:
    request: DebugAttach = h.parsed(DebugAttach)
    h.log_call("debugAttach", request.compute_jid, request.uid, jid=request.compute_jid)
    return await _debugging(h).attach(request, h.principal, h.peer)


async def debug_io(h: Handler) -> Any:
    return await _debugging(h).io(h.parsed(DebugIo))


def _debugging(h: Handler) -> Debugging:
    if h.services.debugging is None:
        raise Refusal("forbidden", "remote debugging is turned off at this site")
    return h.services.debugging
