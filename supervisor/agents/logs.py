"""Which agents there are, how they stand, where their logs lie, and what these say: for `jobscribe
agent`.

A log is read from the agent's folder here; on a cluster through the agent itself while it is
connected, else from the copies that were made of it when it was started. What is read is redacted
once more, and bounded.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...drivers import untrusted_files
from ...protocol.api.requests import AgentLogs
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, base62, parse_agent_key, short_agent
from ...protocol.wire.messages import FileChunk, ReadFile
from ..connections.hub import Hub
from ..core.state.agent_state import AgentState
from ..runs.service import RunService

ANSWER_SECS = 10.0
_ADVICE = {
    "advice": "'jobscribe agent list' shows which there are (--all-users: those of everybody)"
}
#: Of the rotated files the newest few are looked at, and of each so many bytes, where the life
#: before the last is asked for.
ROTATED, MOST_BYTES = 3, 8 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9]{4}")
_JID = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-\w+", re.ASCII)
#: The first line of each life of an agent.
_BEGINS = re.compile(rb"^[^\n]*agent/main\.py:\d+:_compose[^\n]*\bagent \S+ starts\b", re.MULTILINE)


class Piece(NamedTuple):
    """offset, size: of the file. where: what was read. sentence: why there is nothing, where there
    is nothing.
    """

    text: str
    offset: int
    next_offset: int
    size: int
    where: str
    sentence: str = ""


class AgentLogReader:
    """Reads what the supervisor knows of its agents. Holds nothing."""

    def __init__(self, desk: RunService, hub: Hub) -> None:
        self._desk, self._hub = desk, hub
        self._folders = Path(desk.evidence_root)

    def rows(self, uid: str | None) -> list[dict[str, Any]]:
        """Of this user, or of everybody."""
        return [self._row(key) for key in sorted(self._keys()) if uid in (None, key.uid)]

    def find(self, name: str, uid: str | None) -> AgentKey:
        """By its key, the four characters of its id that logs show, or a job of it. Raises Refusal.

        More of an id is a secret, which is not to be found out by asking.
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
                f"an agent is named by its key, by four characters of its id, or by a job; got {ascii(name)[:60]}",
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
                "badRequest", f"{name} begins the ids of several: {', '.join(map(str, found[:5]))}"
            )
        return found[0]

    async def read(self, key: AgentKey, request: AgentLogs) -> Piece:
        """Raises Refusal where it cannot be read just now."""
        if key.kind == "container":
            raise Refusal(
                "notFound",
                f"{key} is no agent: its tasks have containers of their own. Their output: jobscribe job logs JOB",
            )
        name = f"{request.part}.log"
        if request.previous:
            return await self._previous(key, name)
        for source, where in self._sources(key, name):
            size = (await source(name, 0, 1))[1]
            if size == 0:
                continue
            offset = max(0, size - request.tail) if request.tail else min(request.offset, size)
            if request.offset > size:  # it was rotated meanwhile
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
        """What the life before the last one said; of a keeper, which marks no beginnings, what was
        rotated.
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
                    f"{where}, its life before the last start",
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
            f"there is no earlier life of {key} in its {name}: it was started once, or the lines before are gone",
        )

    def _sources(self, key: AgentKey, name: str) -> list[tuple[Any, str]]:
        """Readers of a file in the agent's folder, and what to call it: here, or through the agent
        where only it can look.
        """
        folder = str((self._desk.engine.agent_record(key).handle or {}).get("folder") or "")
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
        """What was kept of it, and of its start, when it was last started on its cluster."""
        if key.driver != "sbatch":
            return None
        folder = Path(self._desk.user_root) / key.uid / "agent-sbatch" / key.host
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
            return Piece("", 0, 0, 0, "", said + "a keeper writes only when something went wrong")
        where = {
            "docker": f"its container says more; on host {key.host} type: docker logs {self._container(key)}",
            "sbatch": "it is not connected, and no copy was made yet: it was never started, or its user has to sign in",
        }
        gone = (
            "it is up, so somebody removed the file"
            if key in self._hub.connections
            else "it was never started, or its file was removed"
        )
        return Piece("", 0, 0, 0, "", said + where.get(key.driver, gone))

    def _container(self, key: AgentKey) -> str:
        handle = self._desk.engine.agent_record(key).handle or {}
        return str(handle.get("name") or handle.get("container") or "CONTAINER")

    def _keys(self) -> set[AgentKey]:
        """Those that the supervisor has to do with, and those that were there once: their folders
        are.
        """
        keys = set(self._desk.engine.world.agents) | set(self._hub.connections)
        for name in _listed(self._folders):
            try:
                keys.add(parse_agent_key(name))
            except Refusal:  # something else that lies there
                continue
        return keys

    def _of_job(self, jid: str) -> AgentKey:
        run = self._desk.job(jid.split("-", 1)[0], jid).job.run
        for attempt in reversed(run.attempts if run is not None else ()):
            task = attempt.telling or (attempt.tasks[0] if attempt.tasks else None)
            if task is not None:
                return task.agent_key
        raise Refusal(
            "notFound",
            f"no agent has had {jid} yet: `jobscribe job why {jid}` says what it waits for",
        )

    def _row(self, key: AgentKey) -> dict[str, Any]:
        view: AgentState | None = self._desk.engine.world.agents.get(key)
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
            "phase": view.phase if view is not None else "absent",
            "since": view.since if view is not None else None,
            "version": alive.version if alive is not None else None,
            "pid": alive.pid if alive is not None else None,
            "lastError": view.record.last_failure if view is not None else None,
            "jobs": sorted({t.jid for t in view.placed}) if view is not None else [],
            "log": self._log(key, folder),
        }

    def _log(self, key: AgentKey, folder: str | None) -> str | None:
        """Where it lies, with the cluster before it where that is; None where there is none."""
        if key.driver == "sbatch":
            return f"{key.host}:{folder}/agent.log" if folder else None
        path = self._folders / str(key) / "agent.log"
        return str(path) if os.path.lexists(path) else None

    def _shown(self, data: bytes) -> str:
        return self._desk.log.redactor.text(data.decode("utf-8", "replace"))


def _whole_lines(data: bytes, *, cut_before: bool, cut_after: bool) -> tuple[int, int]:
    """From where to where whole lines go: half of one could hold half of a secret, which nobody
    knows.
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
