"""The list of agents, their states and their logs, for `jobscribe agent`.

A log is read from the agent's folder on this machine. On a cluster, a connected agent reads it;
otherwise the copies from the last start are read. Output is redacted again and its size is limited.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...drivers import untrusted_files
from ...protocol.api.requests import AgentLogs
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, AgentKind, base62, parse_agent_key, short_agent
from ...protocol.wire.messages import FileChunk, ReadFile
from ..connections.hub import Hub
from ..core.state.agent_phase import AgentPhase
from ..core.state.agent_state import AgentState
from ..runs.service import RunService

ANSWER_SECS = 10.0
_ADVICE = {"advice": "'jobscribe agent list' lists agents (--all-users: of all users)"}
#: Number of rotated files to search for the previous process of an agent, and the maximum bytes to
#: read of each.
ROTATED, MOST_BYTES = 3, 8 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9]{4}")
_JID = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-\w+", re.ASCII)
#: The first log line of each agent process. Earlier versions log it in `main.py`.
_BEGINS = re.compile(
    rb"^[^\n]*agent/(?:main|process)\.py:\d+:\w+[^\n]*\bagent \S+ starts\b", re.MULTILINE
)


class Piece(NamedTuple):
    """A piece of a log. offset, size: bytes in the file. where: name of the source. sentence: the
    reason if there is no text.
    """

    text: str
    offset: int
    next_offset: int
    size: int
    where: str
    sentence: str = ""


class AgentLogReader:
    """Reads the supervisor's data about agents. Has no state of its own."""

    def __init__(self, runs: RunService, hub: Hub) -> None:
        self._runs, self._hub = runs, hub
        self._folders = Path(runs.evidence_root)

    def rows(self, uid: str | None) -> list[dict[str, Any]]:
        """Return one row for each agent of this user, or of all users (None)."""
        return [self._row(key) for key in sorted(self._keys()) if uid in (None, key.uid)]

    def find(self, name: str, uid: str | None) -> AgentKey:
        """Find an agent by its key, by the four characters of its id that logs show, or by one of
        its jobs. Raises Refusal.

        No more characters of an id are accepted: an id is a secret, and requests must not help to
        guess it.
        """
        keys = sorted(self._keys())
        if "@" in name:
            found = [key for key in (parse_agent_key(name),) if key in keys]
        elif _JID.fullmatch(name):
            found = [self._of_job(name)]
        elif _ID.fullmatch(name):
            found = [
                key
                for key in keys
                if uid in (None, key.uid) and short_agent(self._hub.agent_id(key)) == name
            ]
        else:
            raise Refusal(
                "badRequest",
                f"give an agent's key, four characters of its id, or a job; got {ascii(name)[:60]}",
            )
        found = [key for key in found if uid in (None, key.uid)]
        if not found:
            raise Refusal(
                "notFound",
                f"there is no agent {name[:100]}" + ("" if uid is None else f" of user {uid}"),
                _ADVICE,
            )
        if len(found) > 1:
            raise Refusal(
                "badRequest", f"{name} matches several agents: {', '.join(map(str, found[:5]))}"
            )
        return found[0]

    async def read(self, key: AgentKey, request: AgentLogs) -> Piece:
        """Return a piece of the agent's log. Raises Refusal if the log cannot be read now."""
        if key.kind == AgentKind.CONTAINER:
            raise Refusal(
                "notFound",
                f"{key} is not an agent: its tasks run in their own containers. To read their output: jobscribe job logs JOB",
            )
        name = f"{request.part}.log"
        if request.previous:
            return await self._previous(key, name)
        for source, where in self._sources(key, name):
            size = (await source(name, 0, 1))[1]
            if size == 0:
                continue
            offset = max(0, size - request.tail) if request.tail else min(request.offset, size)
            if request.offset > size:  # rotated meanwhile
                offset = 0
            data, size = await source(name, offset, request.limit)
            begin, end = _whole_lines(
                data,
                cut_before=request.tail > 0 and offset > 0,
                cut_after=offset + len(data) < size,
            )
            return Piece(self._shown(data[begin:end]), offset + begin, offset + end, size, where)
        return await self._nothing(key, name)

    async def _previous(self, key: AgentKey, name: str) -> Piece:
        """Return the log of the agent's previous process. A keeper's log marks no starts: return
        its rotated files.
        """
        for source, where in self._sources(key, name):
            text = b""
            for number in range(ROTATED, -1, -1):
                part = f"{name}.{number}" if number else name
                size = (await source(part, 0, 1))[1]
                text += (
                    await _whole(source, part, min(size, MOST_BYTES), max(0, size - MOST_BYTES))
                    if size
                    else b""
                )
            begins = [m.start() for m in _BEGINS.finditer(text)]
            if len(begins) > 1:
                life = text[begins[-2] : begins[-1]][-512 * 1024 :]
                return Piece(
                    self._shown(life),
                    0,
                    len(life),
                    len(life),
                    f"{where}, the process before the last start",
                )
        copies = await self._copies(key)
        if copies is not None:
            return copies
        return Piece(
            "",
            0,
            0,
            0,
            "",
            f"{name} of {key} has no lines of an earlier process: the agent started once, or the older lines were removed",
        )

    def _sources(self, key: AgentKey, name: str) -> list[tuple[Any, str]]:
        """Return (reader, source name) of a log file in the agent's folder, on this machine or
        through the connected agent.
        """
        folder = str((self._runs.engine.agent_record(key).handle or {}).get("folder") or "")
        if key.driver != "sbatch":
            here = self._folders / str(key)
            return [
                (
                    lambda part, offset, limit: asyncio.to_thread(
                        untrusted_files.read, here, (part,), offset, limit
                    ),
                    str(here / name),
                )
            ]
        if folder and key in self._hub.connections:
            return [
                (
                    lambda part, offset, limit: self._far(key, folder, part, offset, limit),
                    f"{key.host}:{folder}/{name}",
                )
            ]
        return []

    async def _far(
        self, key: AgentKey, folder: str, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        op = ReadFile(
            op_id=base62(os.urandom(32), 32),
            run_dir=folder,
            name=name,
            offset=offset,
            limit=min(limit, 512 * 1024),
        )
        try:
            piece = await self._hub.ask(key, op, ANSWER_SECS, FileChunk)
        except Refusal as e:
            if e.code not in ("notFound", "forbidden", "badRequest"):
                raise
            return b"", 0
        return piece.data, piece.size

    async def _copies(self, key: AgentKey) -> Piece | None:
        """Return the newest log copy that a start of the agent on its cluster saved."""
        if key.driver != "sbatch":
            return None
        folder = Path(self._runs.user_root) / key.uid / "agent-sbatch" / key.host
        names = await asyncio.to_thread(_listed, folder)
        for kind in ("-remote.log", "-start.log"):
            for name in [n for n in names if n.endswith(kind)][-1:]:
                data, size = await asyncio.to_thread(
                    untrusted_files.read, folder, (name,), 0, 512 * 1024
                )
                if data:
                    return Piece(self._shown(data), 0, len(data), size, str(folder / name))
        return None

    async def _nothing(self, key: AgentKey, name: str) -> Piece:
        copies = await self._copies(key)
        if copies is not None:
            return copies
        said = f"there is no {name} of {key} here: "
        if name == "keeper.log":
            return Piece("", 0, 0, 0, "", said + "a keeper writes only about errors")
        where = {
            "docker": f"see its container; on host {key.host} type: docker logs {self._container(key)}",
            "sbatch": "the agent is not connected, and there is no copy yet: it never started, or its user has to sign in",
        }
        gone = (
            "the agent is up, so the file was removed"
            if key in self._hub.connections
            else "the agent never started, or its file was removed"
        )
        return Piece("", 0, 0, 0, "", said + where.get(key.driver, gone))

    def _container(self, key: AgentKey) -> str:
        handle = self._runs.engine.agent_record(key).handle or {}
        return str(handle.get("name") or handle.get("container") or "CONTAINER")

    def _keys(self) -> set[AgentKey]:
        """Return the keys of all known agents and of agents that have a folder."""
        keys = set(self._runs.engine.world.agents) | set(self._hub.connections)
        for name in _listed(self._folders):
            try:
                keys.add(parse_agent_key(name))
            except Refusal:  # not an agent's folder
                continue
        return keys

    def _of_job(self, jid: str) -> AgentKey:
        run = self._runs.job(jid.split("-", 1)[0], jid).job.run
        for attempt in reversed(run.attempts if run is not None else ()):
            task = attempt.telling or (attempt.tasks[0] if attempt.tasks else None)
            if task is not None:
                return task.agent_key
        raise Refusal(
            "notFound",
            f"{jid} is not assigned to an agent yet; `jobscribe job why {jid}` shows what it waits for",
        )

    def _row(self, key: AgentKey) -> dict[str, Any]:
        view: AgentState | None = self._runs.engine.world.agents.get(key)
        connection = self._hub.connections.get(key)
        alive = connection.alive if connection is not None else None
        folder = (view.record.handle or {}).get("folder") if view is not None else None
        return {
            "agent": str(key),
            "agentId": short_agent(self._hub.agent_id(key)),
            "uid": key.uid,
            "driver": key.driver,
            "kind": key.kind,
            "host": alive.host if alive is not None else key.host,
            "phase": view.phase if view is not None else AgentPhase.ABSENT,
            "since": view.since if view is not None else None,
            "version": alive.version if alive is not None else None,
            "pid": alive.pid if alive is not None else None,
            "heartbeatSecs": None
            if connection is None
            else asyncio.get_running_loop().time() - connection.heard,
            "lastError": view.record.last_failure if view is not None else None,
            "jobs": sorted({t.jid for t in view.placed}) if view is not None else [],
            "log": self._log(key, folder),
        }

    def _log(self, key: AgentKey, folder: str | None) -> str | None:
        """Return the path of the agent's log (`CLUSTER:PATH` on a cluster), or None."""
        if key.driver == "sbatch":
            return f"{key.host}:{folder}/agent.log" if folder else None
        path = self._folders / str(key) / "agent.log"
        return str(path) if os.path.lexists(path) else None

    def _shown(self, data: bytes) -> str:
        return self._runs.log.redactor.text(data.decode("utf-8", "replace"))


def _whole_lines(data: bytes, *, cut_before: bool, cut_after: bool) -> tuple[int, int]:
    """Return the range of whole lines. A part of a line could contain a part of a secret, which
    redaction cannot recognise.
    """
    begin = data.find(b"\n") + 1 if cut_before else 0
    end = data.rfind(b"\n") + 1 if cut_after else len(data)
    return (begin, end) if begin < end else (0, len(data))


async def _whole(source: Any, name: str, size: int, offset: int) -> bytes:
    out = b""
    while len(out) < size:
        data = (await source(name, offset + len(out), 512 * 1024))[0]
        if not data:
            break
        out += data
    return out


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
