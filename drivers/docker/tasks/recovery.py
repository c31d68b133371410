"""Recovers a user's tasks on a host that has come up: compares the ledger with the containers of
the place.
"""

import asyncio
import time
from typing import Any

from ....protocol.ids import execution_log_ids
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.container_calls import remove
from ..host.engine import HostEngine
from .ledger import LedgerEntry
from .state import ContainerPlace, TaskState

NEVER_MADE = "the supervisor was restarted before its container was created"


class Recovery:
    def __init__(self, driver: DockerDriver) -> None:
        self._driver = driver

    async def load(self, place: ContainerPlace, engine: HostEngine) -> str:
        """Load all tasks of this place into its state. Return an id for the life of its host.
        Raises EngineError and OSError.
        """
        filters = names.filters(self._driver.deployment, "task", key=str(place.key))
        entries = await asyncio.to_thread(_entries, place)
        info: dict[str, Any] = await engine.call("ask what it is", lambda c: c.info())
        listed: list[dict[str, Any]] = await engine.call(
            "list its tasks", lambda c: c.containers(all=True, filters=filters)
        )
        containers = {
            token: summary
            for summary in listed
            if (token := names.parse_token_label(summary.get("Labels"))) is not None
        }
        ours = {e.token for e in entries} | place.tasks.keys()
        for token in containers.keys() - ours:
            # Its end was acknowledged, and the supervisor stopped before it removed the container.
            log = place.log.bound(**execution_log_ids(token))
            log(
                "container {} of {} is an orphan and is removed",
                containers[token]["Id"][:12],
                str(token),
            )
            await remove(engine, containers[token]["Id"], force=True)
        for entry in entries:
            if entry.token in place.tasks:
                continue
            if entry.settled is not None:
                place.kept[entry.token] = entry.settled, entry.container
            elif (
                entry.token not in containers
                and entry.container is None
                and entry.exit is None
                and entry.stop is None
            ):
                # Only recorded containers are started, so nothing has run. A repeated request
                # starts from the beginning.
                await asyncio.to_thread(place.files.release_token, entry.token)
            else:
                place.tasks[entry.token] = await self._task(
                    place, entry, containers.get(entry.token)
                )
        return str(info.get("ID") or place.key.host)

    async def _task(
        self, place: ContainerPlace, entry: LedgerEntry, summary: dict[str, Any] | None
    ) -> TaskState:
        task = TaskState(place, entry.token)
        task.claim(entry.request)
        task.container = entry.container or (summary["Id"] if summary is not None else None)
        # A created container may be started. A missing one must count as started.
        task.start_requested = summary is None or summary.get("State") != "created"
        if entry.stop is not None:
            task.life.resume_stop(
                entry.stop.reason,
                entry.stop.grace,
                time.monotonic(),
                signaled=entry.stop.signaled and task.start_requested,
            )
        if entry.exit is not None:
            task.finish(entry.exit)
        elif task.container is None:
            exit_ = task.never_started(NEVER_MADE)
            await asyncio.to_thread(place.files.note_exit, task.token, exit_)
            task.finish(exit_)
        elif entry.container is None:
            await asyncio.to_thread(place.files.note_container, task.token, task.container)
        return task


def _entries(place: ContainerPlace) -> list[LedgerEntry]:
    place.files.make()
    return place.files.entries()
