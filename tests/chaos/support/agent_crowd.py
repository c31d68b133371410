"""Many idle agents in this process: instances of the product's own link, with nothing to run."""

import asyncio
import threading
from typing import Any

import socket_close
from known_agents import alive_of, token_of
from supervisor_process import SupervisorProcess

from jobscribe.agent.session.websocket import Link
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.wire.messages import Snapshot


class Crowd:
    """All agents, on an event loop in a separate thread."""

    def __init__(self, site: SupervisorProcess, keys: list[AgentKey]) -> None:
        self._site, self._file, self._keys = site, site.root / "agents.json", keys
        self.up: set[AgentKey] = set()
        self.ups = 0
        self.lines: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._over = asyncio.Event()

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._live())

    async def _live(self) -> None:
        before = socket_close.watched(self._loop)
        tasks = [self._loop.create_task(self._agent(key).run()) for key in self._keys]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket_close.said(before)

    def _agent(self, key: AgentKey) -> Link:
        def up() -> None:
            self.up.add(key)
            self.ups += 1
            link.send(Snapshot(number=1, page=0, last=True, executions=()))

        link = Link(
            self._file,
            str(key),
            token_of(key),
            alive_of(self._site, key),
            self._log,  # type: ignore[arg-type]
            on_up=up,
            on_message=lambda _: None,
            on_down=lambda: self.up.discard(key),
        )
        return link

    def _log(self, text: str, *args: Any, **_: Any) -> None:
        self.lines.append(text.format(*args))


def metrics(site: SupervisorProcess) -> Any:
    return site.ask("GET", "/api/metrics").json()


def settled(site: SupervisorProcess, agents: int, snapshots_until_now: int) -> bool:
    """Return whether so many agents are connected and have sent their snapshots."""
    return metrics(site)["hub"]["connections"] == agents and snapshots(site) >= snapshots_until_now


def snapshots(site: SupervisorProcess) -> int:
    return site.logged().count("opName=snapshot")
