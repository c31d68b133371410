"""Finding out what is there of a user's tasks on a host that has come up: the ledger against the
containers of this place.
"""

import asyncio
import time
from typing import Any

from ....protocol.jobs.exit_info import ExitInfo
from ....runtime.log.logger import Log
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.container_calls import remove
from ..host.engine import HostEngine
from .ledger import LedgerEntry
from .state import ContainerPlace, TaskState

NEVER_MADE = "the supervisor was restarted before its container was made"


class Recovery:
    def __init__(self, driver: DockerDriver, log: Log) -> None:
        self._driver, self._log = driver, log

    async def known(self, place: ContainerPlace, engine: HostEngine) -> str:
        """Everything of this place is in it afterwards. What names the life of its host. Raises
        EngineError, and OSError.
        """
        filters = names.filters(self._driver.deployment, "task", key=str(place.key))
        entries = await asyncio.to_thread(_entries, place)
        info: dict[str, Any] = await engine.call("ask what it is", lambda c: c.info())
        listed: list[dict[str, Any]] = await engine.call(
            "list its tasks", lambda c: c.containers(all=True, filters=filters)
        )
        there = {
            token: summary
            for summary in listed
            if (token := names.token_of(summary.get("Labels"))) is not None
        }
        ours = {e.token for e in entries} | place.tasks.keys()
        for token in there.keys() - ours:
            # its end was settled, and the supervisor was ended before it had removed it
            self._log(
                "container {} of {} is nobody's any more and is removed",
                there[token]["Id"][:12],
                str(token),
                jid=token.jid,
            )
            await remove(engine, there[token]["Id"], force=True)
        for entry in entries:
            if entry.token in place.tasks:
                continue
            if entry.settled is not None:
                place.kept[entry.token] = entry.settled, entry.container
            elif (
                entry.token not in there
                and entry.container is None
                and entry.exit is None
                and entry.stop is None
            ):
                # only what is noted is ever started: nothing of it ran, and who asks again begins
                # anew
                await asyncio.to_thread(place.files.give_back, entry.token)
            else:
                place.tasks[entry.token] = await self._task(place, entry, there.get(entry.token))
        return str(info.get("ID") or place.key.host)

    async def _task(
        self, place: ContainerPlace, entry: LedgerEntry, summary: dict[str, Any] | None
    ) -> TaskState:
        task = TaskState(place, entry.token)
        task.asked, task.stop, task.exit = entry.asked, entry.stop, entry.exit
        task.container = entry.container or (summary["Id"] if summary is not None else None)
        if entry.stop is not None:
            task.kill_at = time.monotonic() + entry.stop.grace
        if task.exit is not None:
            task.over.set()
        elif task.container is None:
            reason = None if task.stop is None else task.stop.reason
            task.exit = ExitInfo(
                source="start", detail=NEVER_MADE, stop_reason=reason, ended_at=time.time()
            )
            await asyncio.to_thread(place.files.note_exit, task.token, task.exit)
            task.over.set()
        else:
            # made and not started it may be started; one that is gone was started, for all that is
            # known
            task.begun = summary is None or summary.get("State") != "created"
            if entry.container is None and task.container is not None:
                await asyncio.to_thread(place.files.note_container, task.token, task.container)
        return task


def _entries(place: ContainerPlace) -> list[LedgerEntry]:
    place.files.make()
    return place.files.entries()
