"""Reaper of ended agent containers: stores the evidence in the log and the agent's folder, then
removes the container.
"""

import asyncio
import json
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ....protocol.ids import AgentKey, agent_log_ids, parse_agent_key
from ....protocol.redaction import Redactor
from ....runtime.log.logger import Log
from ... import untrusted_files
from ..containers import exit_status, names
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine

FILE = "container.log"
LINES = 20
#: Number of ended containers whose reason is cached.
_REMEMBERED = 2000
#: Number of bytes at the end of a file that are searched for a record.
_READ_BYTES = 64 * 1024
_LINE_CHARS = 500
#: A container in state `dead` is inspected again: number of times, and pause in seconds.
_DEAD_CHECKS, _DEAD_PAUSE_SECS = 10, 0.1


class ContainerReaper:
    """Reaper for the agents of one deployment, on all hosts. It never touches containers of other
    deployments.
    """

    def __init__(self, root: Path, deployment: str, log: Log, redactor: Redactor) -> None:
        self._root, self._deployment, self._log, self._redactor = root, deployment, log, redactor
        self._running: dict[str, asyncio.Task[str | None]] = {}
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self._ooms: OrderedDict[str, int] = OrderedDict()
        self._stopped: OrderedDict[str, None] = OrderedDict()

    def count_oom(self, id_: str) -> None:
        """Count an OOM event of this container. The killed process is not necessarily its main
        process.
        """
        self._ooms[id_] = self._ooms.get(id_, 0) + 1
        _limit_size(self._ooms)

    def expect_stop(self, id_: str) -> None:
        """Record that the driver is about to stop this container."""
        self._stopped[id_] = None
        _limit_size(self._stopped)

    async def reap(
        self, engine: HostEngine, id_: str, key: AgentKey | None = None, name: str = ""
    ) -> str | None:
        """Remove the container if it has ended, after its evidence is stored. Return a sentence
        that says why it is not running, or None if it runs. Raises EngineError.

        key, name: of the container, if known; it may be gone.
        """
        task = self._running.get(id_)
        # A finished task is not awaited: a caller that polls would never yield to the event loop.
        if task is None or task.done():
            task = self._running[id_] = asyncio.get_running_loop().create_task(
                self._reap(engine, id_, key, name)
            )
            task.add_done_callback(lambda t: self._reaped(id_, t))
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reaped(self, id_: str, task: asyncio.Task[str | None]) -> None:
        if self._running.get(id_) is task:
            del self._running[id_]
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _reap(
        self, engine: HostEngine, id_: str, key: AgentKey | None, name: str
    ) -> str | None:
        container = await inspect(engine, id_)
        for _ in range(_DEAD_CHECKS):
            if container is None or container["State"].get("Status") != "dead":
                break
            # Either the container is being removed, or its engine failed to remove it.
            await asyncio.sleep(_DEAD_PAUSE_SECS)
            container = await inspect(engine, id_)
        if container is None or not names.is_ours(container["Config"]["Labels"], self._deployment):
            return (
                self._reasons.get(id_)
                or await asyncio.to_thread(self._read_stored_reason, id_, key)
                or await self._store_removal(engine, id_, key, name)
            )
        if exit_status.running(container["State"]):
            return None
        if id_ not in self._reasons:
            self._reasons[id_] = await self._store_evidence(engine, id_, container)
            _limit_size(self._reasons)
        try:
            await remove(engine, id_)
        except EngineError as e:  # the next call removes it
            self._log_of(container)(
                "container {} on host {} has ended and could not be removed: {}",
                container["Name"].lstrip("/"),
                engine.name,
                e.sentence,
            )
        return self._reasons.get(id_) or exit_status.REMOVED

    def _log_of(self, container: dict[str, Any]) -> Log:
        """Return a log whose lines carry the ids of the container's agent."""
        key = names.parse_agent_label(container["Config"]["Labels"])
        return self._log if key is None else self._log.bound(**agent_log_ids(key))

    async def _store_evidence(self, engine: HostEngine, id_: str, container: dict[str, Any]) -> str:
        """Store the evidence: everything the engine knows about the end."""
        state, name, key = (
            container["State"],
            container["Name"].lstrip("/"),
            str(container["Config"]["Labels"].get(names.KEY, "")),
        )
        lines, unread = (
            ([], None) if exit_status.never_started(state) else await self._last_lines(engine, id_)
        )
        stopped, ooms = id_ in self._stopped, self._ooms.get(id_, 0)
        sentence = exit_status.agent_exit_reason(
            state, ooms=ooms, stopped=stopped, last_line=lines[-1] if lines else ""
        )
        record = {
            "at": round(time.time(), 3),
            "id": id_,
            "name": name,
            "host": engine.name,
            "sentence": sentence,
            "stopped": stopped,
            "exitCode": state.get("ExitCode"),
            "signal": exit_status.exit_signal(state),
            "oomKilled": bool(state.get("OOMKilled")),
            "oomEvents": ooms,
            "error": state.get("Error") or None,
            "startedAt": state.get("StartedAt"),
            "finishedAt": state.get("FinishedAt"),
            "lastLines": lines,
            "unread": unread,
        }
        log = self._log_of(container)
        log(
            "container {} on host {} ended: {} (exit code {}, OOMKilled {}, memory ran out {} times{})",
            name,
            engine.name,
            sentence,
            state.get("ExitCode"),
            bool(state.get("OOMKilled")),
            ooms,
            f", error {state['Error']}" if state.get("Error") else "",
        )
        await self._try_write(log, key, record)
        return sentence

    async def _store_removal(
        self, engine: HostEngine, id_: str, key: AgentKey | None, name: str
    ) -> str:
        """Store why a container is gone that nobody saw end: the agent's next keeper reports it."""
        sentence = self._unobserved_reason(id_)
        if key is not None and id_ not in self._stopped:
            record = {
                "at": round(time.time(), 3),
                "id": id_,
                "name": name or names.agent(key),
                "host": engine.name,
                "sentence": sentence,
            }
            await self._try_write(self._log.bound(**agent_log_ids(key)), str(key), record)
            self._reasons[id_] = sentence
            _limit_size(self._reasons)
        return sentence

    async def _try_write(self, log: Log, key: str, record: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._write, key, record)
        except (OSError, ValueError) as e:
            log(
                "the end of container {} could not be written into its agent's folder: {}",
                record.get("name", record["id"][:12]),
                str(e),
            )

    async def _last_lines(self, engine: HostEngine, id_: str) -> tuple[list[str], str | None]:
        """Return the last lines of output, and why they could not be read."""
        try:
            raw: bytes = await engine.call(
                f"the last lines of container {id_[:12]}", lambda c: c.logs(id_, tail=LINES)
            )
        except EngineError as e:
            return [], e.sentence
        return [
            self._redactor.text(line)[:_LINE_CHARS]
            for line in raw.decode("utf-8", "replace").splitlines()[-LINES:]
        ], None

    def _write(self, key: str, record: dict[str, Any]) -> None:
        folder = self._root / "agent" / str(parse_agent_key(key))
        untrusted_files.append(folder, FILE, json.dumps(record).encode() + b"\n")

    def _read_stored_reason(self, id_: str, key: AgentKey | None) -> str | None:
        """Return the sentence that an earlier supervisor process stored."""
        if key is None:
            return None
        folder = self._root / "agent" / str(key)
        size = untrusted_files.read(folder, (FILE,), 0, 0)[1]
        data = untrusted_files.read(folder, (FILE,), max(0, size - _READ_BYTES), _READ_BYTES)[0]
        for line in reversed(data.splitlines()):
            try:
                record = json.loads(line)
                if record["id"] == id_:
                    return str(record["sentence"])[: 2 * _LINE_CHARS]
            except (ValueError, TypeError, KeyError):
                continue  # the folder belongs to the user, so its content is untrusted
        return None

    def _unobserved_reason(self, id_: str) -> str:
        return exit_status.agent_exit_reason(
            None, ooms=self._ooms.get(id_, 0), stopped=id_ in self._stopped
        )


def _limit_size(known: OrderedDict[str, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
