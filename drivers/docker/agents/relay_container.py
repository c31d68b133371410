"""The relay of a host: one container that forwards the agents' connections to the supervisor, and
the volume with their socket.

It outlives supervisors. A relay with another image or supervisor address is replaced; agents then
reconnect.
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
from .repeated_start import start

Address = Callable[[], Mapping[str, Any]]
_PORTS = {"ws": 80, "wss": 443}


class Relay:
    """The relay of one host. address: returns the content of the supervisor's agents.json."""

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
        #: image and settings of the running relay; None if it must be checked again
        self._running: tuple[str, dict[str, Any]] | None = None
        self._image: str | None = None
        #: whether any agent has needed the relay; without one it is not kept running
        self.wanted = False

    def invalidate(self) -> None:
        """Forget the state of the relay, so that it is checked before the next use."""
        self._running = None

    async def ensure(self, image: str | None = None) -> None:
        """Make sure that the relay runs and gives agents the supervisor's address. Raises
        EngineError, ImageFault and Refusal.

        image: the required image id; None: the last one, so that periodic checks do not pull an
        image.
        """
        self.wanted = True
        async with self._lock:
            settings = await asyncio.to_thread(
                relay_settings, self._address(), self._pool.supervisor
            )
            image = image or self._image or await self._images.ensure(self._pool.image)
            if self._running == (image, settings):
                return
            if not await self._is_running(image, settings):
                try:
                    await self._make(image, settings)
                except EngineError as e:
                    if not self._log_drivers.fall_back(self._engine.name, e.sentence):
                        raise
                    await self._make(image, settings)
            self._running, self._image = (image, settings), image

    async def _is_running(self, image: str, settings: Mapping[str, Any]) -> bool:
        """Return whether the relay runs with this image and settings. A stopped one is started, an
        unsuitable one removed.
        """
        container = await inspect(self._engine, names.relay(self._deployment))
        if container is None:
            return False
        if not names.is_ours(container["Config"]["Labels"], self._deployment, "relay"):
            raise Refusal(
                "agentUnavailable",
                f"host {self._engine.name}: the container {container['Name']} is not a relay of this deployment; rename or remove it",
            )
        wanted = self._creation(image, settings).config
        if (
            container["Image"] == image
            and container["Config"]["Cmd"] == wanted["Cmd"]
            and not exit_status.never_started(container["State"])
        ):
            if exit_status.running(container["State"]) or await self._restart(container["Id"]):
                return True
        else:
            self._log(
                "host {}: the relay is replaced, because its image or address has changed",
                self._engine.name,
            )
        await remove(self._engine, container["Id"], force=True)
        return False

    async def _restart(self, id_: str) -> bool:
        try:
            await self._engine.call("start its relay", lambda c: c.start(id_))
        except EngineError as e:
            if e.code != "refused":
                raise
            # after a crash of the daemon, containerd may consider the id of the old container
            # taken; a new container has a new id
            self._log(
                "host {}: the relay had stopped, cannot be restarted and is replaced: {}",
                self._engine.name,
                e.sentence,
            )
            return False
        self._log("host {}: the relay had stopped and was restarted", self._engine.name)
        return True

    async def _make(self, image: str, settings: Mapping[str, Any]) -> None:
        creation, links = self._creation(image, settings), names.links(self._deployment)
        labels = {names.DEPLOYMENT: self._deployment}
        await self._engine.call(
            f"make volume {links}", lambda c: c.create_volume(links, labels=labels)
        )
        created = await self._engine.call(
            f"make {creation.name}",
            lambda c: c.create_container_from_config(creation.config, creation.name),
        )
        try:
            self._log("running: {}", specifications.docker_run(creation, self._engine.host))
            await start(self._engine, creation.name, created["Id"], self._log)
        except EngineError:
            await remove(self._engine, created["Id"], force=True)
            raise

    def _creation(self, image: str, settings: Mapping[str, Any]) -> specifications.Creation:
        return specifications.relay_container(
            name=names.relay(self._deployment),
            image=image,
            settings=settings,
            labels=names.labels(self._deployment, "relay"),
            network=self._pool.relay_network,
            links=names.links(self._deployment),
            log_driver=self._log_drivers.choose(self._engine.name),
        )


def relay_settings(address: Mapping[str, Any], supervisor: str | None) -> dict[str, Any]:
    """Return the settings of a relay. supervisor: `host:port`, if that differs from the address of
    the listener.
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
