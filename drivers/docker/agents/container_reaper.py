"""What is kept of an agent's container that ended: first the evidence, into the log and the agent's
folder, then it is removed.
"""

import asyncio
import json
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ....protocol.ids import AgentKey, parse_agent_key
from ....protocol.redaction import Redactor
from ....runtime.log.logger import Log
from ... import untrusted_files
from ..containers import exit_status, names
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine

FILE = "container.log"
LINES = 20
#: What the last so many that ended ended of is known without looking.
_REMEMBERED = 2000
#: A record of a file that is read again for one.
_READ_BYTES = 64 * 1024
_LINE_CHARS = 500
#: One that is called dead is looked at again, so often and after so long each time.
_DYING_LOOKS, _DYING_SECS = 10, 0.1


class ContainerReaper:
    """Of agents of one deployment, on all hosts. Nothing of another deployment's is looked at or
    removed.
    """

    def __init__(self, root: Path, deployment: str, log: Log, redactor: Redactor) -> None:
        self._root, self._deployment, self._log, self._redactor = root, deployment, log, redactor
        self._under_way: dict[str, asyncio.Task[str | None]] = {}
        self._told: OrderedDict[str, str] = OrderedDict()
        self._ooms: OrderedDict[str, int] = OrderedDict()
        self._stopped: OrderedDict[str, None] = OrderedDict()

    def oom(self, id_: str) -> None:
        """Memory ran out in this container: somebody was killed, not necessarily its main process."""
        self._ooms[id_] = self._ooms.get(id_, 0) + 1
        _bound(self._ooms)

    def stops(self, id_: str) -> None:
        """We are about to end it."""
        self._stopped[id_] = None
        _bound(self._stopped)

    async def settle(self, engine: HostEngine, id_: str, key: AgentKey | None = None) -> str | None:
        """Why this one is not running, as a sentence, with nothing left of it but the evidence;
        None: it runs. Raises EngineError.

        key: of whom it was, where that is known.
        """
        task = self._under_way.get(id_)
        if (
            task is None or task.done()
        ):  # what is over is not waited for: who asks in a loop would never let the loop go on
            task = self._under_way[id_] = asyncio.get_running_loop().create_task(
                self._settle(engine, id_, key)
            )
            task.add_done_callback(lambda t: self._settled(id_, t))
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settled(self, id_: str, task: asyncio.Task[str | None]) -> None:
        if self._under_way.get(id_) is task:
            del self._under_way[id_]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone

    async def _settle(self, engine: HostEngine, id_: str, key: AgentKey | None) -> str | None:
        said = await inspect(engine, id_)
        for _ in range(_DYING_LOOKS):
            if said is None or said["State"].get("Status") != "dead":
                break
            await asyncio.sleep(
                _DYING_SECS
            )  # somebody removes it just now, or its engine cannot: the next looks tell
            said = await inspect(engine, id_)
        if said is None or not names.is_ours(said["Config"]["Labels"], self._deployment):
            return (
                self._told.get(id_)
                or await asyncio.to_thread(self._written, id_, key)
                or self._unseen(id_)
            )
        if exit_status.running(said["State"]):
            return None
        if id_ not in self._told:
            self._told[id_] = await self._keep(engine, id_, said)
            _bound(self._told)
        try:
            await remove(engine, id_)
        except EngineError as e:  # it has ended all the same; whoever comes by next takes it away
            self._log(
                "container {} on host {} has ended and could not be removed: {}",
                said["Name"].lstrip("/"),
                engine.name,
                e.sentence,
            )
        return self._told.get(id_) or exit_status.REMOVED

    async def _keep(self, engine: HostEngine, id_: str, said: dict[str, Any]) -> str:
        """The evidence: all that an engine knows of the end."""
        state, name, key = (
            said["State"],
            said["Name"].lstrip("/"),
            str(said["Config"]["Labels"].get(names.KEY, "")),
        )
        lines, unread = (
            ([], None) if exit_status.never_started(state) else await self._last_lines(engine, id_)
        )
        stopped, ooms = id_ in self._stopped, self._ooms.get(id_, 0)
        sentence = exit_status.of_agent(
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
            "signal": exit_status.signal_of(state),
            "oomKilled": bool(state.get("OOMKilled")),
            "oomEvents": ooms,
            "error": state.get("Error") or None,
            "startedAt": state.get("StartedAt"),
            "finishedAt": state.get("FinishedAt"),
            "lastLines": lines,
            "unread": unread,
        }
        self._log(
            "container {} on host {} ended: {} (exit code {}, OOMKilled {}, memory ran out {} times{})",
            name,
            engine.name,
            sentence,
            state.get("ExitCode"),
            bool(state.get("OOMKilled")),
            ooms,
            f", error {state['Error']}" if state.get("Error") else "",
        )
        try:
            await asyncio.to_thread(self._write, key, record)
        except (OSError, ValueError) as e:
            self._log(
                "the end of container {} could not be written into its agent's folder: {}",
                name,
                str(e),
            )
        return sentence

    async def _last_lines(self, engine: HostEngine, id_: str) -> tuple[list[str], str | None]:
        """And why there are none to be had."""
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

    def _written(self, id_: str, key: AgentKey | None) -> str | None:
        """What an earlier process of ours wrote of it."""
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
                continue  # the folder is the user's: anything may stand there
        return None

    def _unseen(self, id_: str) -> str:
        return exit_status.of_agent(None, ooms=self._ooms.get(id_, 0), stopped=id_ in self._stopped)


def _bound(known: OrderedDict[str, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
