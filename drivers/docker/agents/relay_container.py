"""The relay of a host: one container of ours that carries on what its agents say, and the volume
with the socket between them.

It outlives supervisors. One that was made with another image, or that would tell agents another
address, is replaced; they dial again.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ....protocol.clusters.container_pool import Pool
from ....protocol.errors import Refusal
from ....runtime.log.logger import Log
from ..containers import exit_status, names, specifications
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine
from ..host.log_drivers import LogDrivers
from ..images.image_store import ImageStore

Address = Callable[[], Mapping[str, Any]]
_PORTS = {"ws": 80, "wss": 443}


class Relay:
    """Of one host. address: what the supervisor's own agents.json says."""

    def __init__(
        self,
        engine: HostEngine,
        images: ImageStore,
        pool: Pool,
        deployment: str,
        address: Address,
        log_drivers: LogDrivers,
        log: Log,
    ) -> None:
        self._engine, self._images, self._pool, self._deployment = engine, images, pool, deployment
        self._address, self._log_drivers, self._log = address, log_drivers, log
        self._lock = asyncio.Lock()
        #: of which image it is, and what it was told, as long as nothing is known to have happened
        #: to it
        self._running: tuple[str, dict[str, Any]] | None = None
        self._image: str | None = None
        #: did anybody need it? Only then it is looked after
        self.wanted = False

    def lost(self) -> None:
        """Something happened to it: look again before it is relied on."""
        self._running = None

    async def ensure(self, image: str | None = None) -> None:
        """It runs, and tells agents the supervisor's address. Raises EngineError, ImageFault and
        Refusal.

        image: the id that it must be of; None: as the last time, for who looks after it now and
        then must not pull each time.
        """
        self.wanted = True
        async with self._lock:
            said = await asyncio.to_thread(told, self._address(), self._pool.supervisor)
            image = image or self._image or await self._images.have(self._pool.image)
            if self._running == (image, said):
                return
            if not await self._is_there(image, said):
                try:
                    await self._make(image, said)
                except EngineError as e:
                    if not self._log_drivers.refused(self._engine.name, e.sentence):
                        raise
                    await self._make(image, said)
            self._running, self._image = (image, said), image

    async def _is_there(self, image: str, said: Mapping[str, Any]) -> bool:
        """As it should be; one that only stands still is started. What is otherwise is taken away."""
        there = await inspect(self._engine, names.relay(self._deployment))
        if there is None:
            return False
        if not names.is_ours(there["Config"]["Labels"], self._deployment, "relay"):
            raise Refusal(
                "agentUnavailable",
                f"host {self._engine.name}: {there['Name']} is no relay of ours: rename or remove it",
            )
        wanted = self._creation(image, said).config
        if (
            there["Image"] == image
            and there["Config"]["Cmd"] == wanted["Cmd"]
            and not exit_status.never_started(there["State"])
        ):
            if exit_status.running(there["State"]) or await self._started_again(there["Id"]):
                return True
        else:
            self._log(
                "host {}: its relay is replaced: it is of another image or for another address",
                self._engine.name,
            )
        await remove(self._engine, there["Id"], force=True)
        return False

    async def _started_again(self, id_: str) -> bool:
        try:
            await self._engine.call("start its relay", lambda c: c.start(id_))
        except EngineError as e:
            if e.code != "refused":
                raise
            # after a crash of the daemon, containerd may hold the id of what ran before for taken,
            # until it is another container's
            self._log(
                "host {}: its relay stood still, cannot be started again and is replaced: {}",
                self._engine.name,
                e.sentence,
            )
            return False
        self._log("host {}: its relay stood still and was started again", self._engine.name)
        return True

    async def _make(self, image: str, said: Mapping[str, Any]) -> None:
        creation, links = self._creation(image, said), names.links(self._deployment)
        labels = {names.DEPLOYMENT: self._deployment}
        await self._engine.call(
            f"make volume {links}", lambda c: c.create_volume(links, labels=labels)
        )
        made = await self._engine.call(
            f"make {creation.name}",
            lambda c: c.create_container_from_config(creation.config, creation.name),
        )
        try:
            self._log("running: {}", specifications.docker_run(creation, self._engine.host))
            await self._engine.call(f"start {creation.name}", lambda c: c.start(made["Id"]))
        except EngineError:
            await remove(self._engine, made["Id"], force=True)
            raise

    def _creation(self, image: str, said: Mapping[str, Any]) -> specifications.Creation:
        return specifications.relay_container(
            name=names.relay(self._deployment),
            image=image,
            said=said,
            labels=names.labels(self._deployment, "relay"),
            network=self._pool.relay_network,
            links=names.links(self._deployment),
            log_driver=self._log_drivers.of(self._engine.name),
        )


def told(address: Mapping[str, Any], supervisor: str | None) -> dict[str, Any]:
    """What a relay is told. supervisor: `host:port`, where that is not in the address of its
    listener.
    """
    url = str(address["agentsUrl"])
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    ca = address.get("agentsCa")
    try:
        pem = Path(ca).read_text() if ca else None
    except OSError as e:
        raise Refusal(
            "agentUnavailable", f"the agents' CA {ca} cannot be read: {e.strerror}"
        ) from None
    return {
        "url": url,
        "connect": supervisor or f"{host}:{parts.port or _PORTS.get(parts.scheme, 443)}",
        "ca": pem,
        **{k: address[k] for k in ("pingSecs", "pingTimeoutSecs") if k in address},
    }
