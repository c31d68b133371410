"""Starts an agent's container: checks for an earlier start, creates the container, and passes the
configuration on its stdin.
"""

import asyncio
import contextlib
import json
import os.path
import socket
import time
from pathlib import Path
from typing import Any

from ....protocol.clusters.container_pool import Pool
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, AgentKind, agent_log_ids, short_agent, short_uid
from ....runtime.log.logger import Log
from ...contracts import AgentSpec, Handle
from ..containers import names, specifications
from ..containers.uid_allocation import UnixUsers
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine
from ..host.errors import FOREIGN
from ..host.log_drivers import LogDrivers
from ..images.image_store import ImageStore
from .container_reaper import ContainerReaper
from .relay_container import Relay
from .repeated_start import start

#: File in which agents in containers read the supervisor's address; the relay writes it.
ADDRESS_FILE = f"{specifications.LINKS}/agents.json"
#: Retries while a container that is being removed still holds its name.
_NAME_TRIES, _NAME_PAUSE = 50, 0.1
#: Limit for opening a spare connection to the host, in seconds.
_AGAIN_SECS = 1.0


class ContainerStarter:
    """Starts agents' containers on one host."""

    def __init__(
        self,
        engine: HostEngine,
        images: ImageStore,
        relay: Relay,
        pool: Pool,
        root: Path,
        user_root: str,
        *,
        deployment: str,
        unix_users: UnixUsers,
        log_drivers: LogDrivers,
        reaper: ContainerReaper,
        agent_settings: dict[str, Any],
        keeper_settings: dict[str, Any],
        log: Log,
    ) -> None:
        self._engine, self._images, self._relay, self._pool = engine, images, relay, pool
        self._root, self._user_root, self._deployment, self._unix_users = (
            root,
            user_root,
            deployment,
            unix_users,
        )
        self._log_drivers, self._reaper = log_drivers, reaper
        self._agent_settings, self._keeper_settings = agent_settings, keeper_settings
        self._log = log

    async def start(self, spec: AgentSpec) -> Handle:
        """Start an agent. The caller serialises the starts of one key. Raises Refusal, EngineError,
        ImageFault and OSError.
        """
        # Concurrently: the three are independent, and each takes a round trip or a disk write.
        running, user, image = await asyncio.gather(
            self._find_earlier_start(spec.key),
            asyncio.to_thread(self._folders, spec.key),
            self._images.ensure(self._pool.image),
            return_exceptions=True,
        )
        if isinstance(running, dict):
            return running
        for outcome in (running, user, image):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(user, tuple) and isinstance(image, str)
        await self._relay.ensure(image)
        try:
            return await self._create_and_start(spec, image, user)
        except EngineError as e:
            if not self._log_drivers.fall_back(self._engine.name, e.sentence):
                raise
            return await self._create_and_start(spec, image, user)

    async def _find_earlier_start(self, key: AgentKey) -> Handle | None:
        """Return the handle of a container that already runs: its start succeeded, but the answer
        was lost. Its agent has one of the accepted tokens.
        """
        filters = names.filters(self._deployment, "agent", key=str(key))
        existing: list[dict[str, Any]] = await self._engine.call(
            f"look for {key}", lambda c: c.containers(all=True, filters=filters)
        )
        for summary in existing:
            if await self._reap_earlier(summary["Id"], key) is None:
                container = await inspect(self._engine, summary["Id"])
                if container is not None:
                    return _handle(
                        key,
                        container["Id"],
                        container["Name"].lstrip("/"),
                        int(container["Config"]["Labels"].get(names.STARTED, 0)),
                    )
        return None

    async def _reap_earlier(self, id_: str, key: AgentKey) -> str | None:
        sentence = await self._reaper.reap(self._engine, id_, key)
        if sentence is not None:
            log = self._log.bound(**agent_log_ids(key))
            log("{}: an earlier container was removed: {}", str(key), sentence)
        return sentence

    def _folders(self, key: AgentKey) -> specifications.User:
        for path in (self._folder(key), self._user_dir(key)):
            self._unix_users.make_owned_folder(path, key.uid)
        return self._unix_users.ids(key.uid)

    async def _create_and_start(
        self, spec: AgentSpec, image: str, user: specifications.User
    ) -> Handle:
        started = time.time()
        creation, container_id = await self._create(spec, image, user, started)
        driver = f"DockerDriver(a={short_agent(spec.agent_id)} k={spec.key.kind} u={short_uid(spec.key.uid)} [])"
        log = self._log.bound(**agent_log_ids(spec.key), agent=spec.agent_id)
        log("{} running: {}", driver, specifications.docker_run(creation, self._engine.host))
        line = json.dumps(self._configuration(spec)).encode() + b"\n"
        try:
            await start(
                self._engine,
                creation.name,
                container_id,
                log,
                lambda c: _start_with_input(c, container_id, line),
            )
        except EngineError as e:
            if e.code in ("refused", "notFound", "conflict"):  # after any other error it may run
                with contextlib.suppress(EngineError):
                    await remove(self._engine, container_id)
            raise
        return _handle(spec.key, container_id, creation.name, int(started))

    async def _create(
        self, spec: AgentSpec, image: str, user: specifications.User, started: float
    ) -> tuple[specifications.Creation, str]:
        """Create the container with the plain name, or with the deployment appended if another
        deployment uses that name.
        """
        suffix: str | None = None
        for n in range(_NAME_TRIES):
            if n > 1:
                await asyncio.sleep(_NAME_PAUSE)
            creation = self._creation(spec, image, user, started, suffix)
            try:
                container_id = await create_container(self._engine, creation)
            except EngineError as e:
                if e.code != "conflict":
                    raise
                suffix = await self._name_taken(spec.key, creation.name, suffix)
                continue
            return creation, container_id
        raise Refusal(
            "agentUnavailable",
            f"host {self._engine.name}: the container name {creation.name} did not become free; find its user with 'docker ps -a'",
        )

    async def _name_taken(self, key: AgentKey, name: str, suffix: str | None) -> str | None:
        """Return the suffix for the next try."""
        existing = await inspect(self._engine, name)
        if existing is None:
            return suffix
        labels = existing["Config"]["Labels"]
        if names.is_ours(labels, self._deployment):
            if await self._reap_earlier(existing["Id"], key) is None:
                sentence = f"host {self._engine.name}: the container name {name} is used by the agent of {labels.get(names.KEY)}"
                raise Refusal("agentUnavailable", sentence)
            return suffix
        if suffix is not None:
            raise Refusal(
                "agentUnavailable",
                f"host {self._engine.name}: the name {name} is used by a container of another owner; remove or rename it",
            )
        log = self._log.bound(**agent_log_ids(key))
        log("{}: the container name {} is used by another deployment", str(key), name)
        return self._deployment

    def _creation(
        self,
        spec: AgentSpec,
        image: str,
        user: specifications.User,
        started: float,
        suffix: str | None,
    ) -> specifications.Creation:
        key = spec.key
        return specifications.agent_container(
            name=names.agent(key, suffix),
            image=image,
            command=["keeper", "--root", str(self._root), "--folder", self._folder(key)],
            labels=names.agent_labels(self._deployment, key, spec.agent_id, started),
            user=user,
            limits=self._pool.sequential
            if key.kind == AgentKind.SEQUENTIAL
            else self._pool.parallel,
            network=self._pool.network,
            folder=self._folder(key),
            user_dir=self._user_dir(key),
            links=names.links(self._deployment),
            log_driver=self._log_drivers.choose(self._engine.name),
        )

    def _configuration(self, spec: AgentSpec) -> dict[str, Any]:
        """Return the keeper's configuration, passed on stdin. The token goes nowhere else."""
        folder = self._folder(spec.key)
        return {
            **self._keeper_settings,
            "root": str(self._root),
            "folder": folder,
            "agent": {
                **self._agent_settings,
                "agentKey": str(spec.key),
                "agentId": spec.agent_id,
                "token": spec.token,
                "addressFile": ADDRESS_FILE,
                "cacheDir": folder,
                "home": self._user_dir(spec.key),
            },
        }

    def _folder(self, key: AgentKey) -> str:
        return str(self._root / "agent" / str(key))

    def _user_dir(self, key: AgentKey) -> str:
        return os.path.join(self._user_root, key.uid)


async def create_container(engine: HostEngine, creation: specifications.Creation) -> str:
    """Create a container and return its id. Raises EngineError, with code `conflict` if the name is
    taken.
    """
    created = await engine.call(
        f"create_container {creation.name}",
        lambda c: c.create_container_from_config(creation.config, creation.name),
    )
    return str(created["Id"])


def _handle(key: AgentKey, id_: str, name: str, started: int) -> Handle:
    return {
        "host": key.host,
        "id": id_,
        "name": name,
        "startedAt": started,
        "kind": key.kind,
        "key": str(key),
    }


def _start_with_input(client: Any, id_: str, line: bytes) -> None:
    """Start the container and write its configuration. The attachment comes first, so that no
    keeper waits for a line in vain.

    Attaching uses up the connection; a new one is opened now, to save time at the next start.
    """
    attached = client.attach_socket(id_, params={"stdin": 1, "stream": 1})
    # with TLS, attach_socket returns the connection itself
    connection = getattr(attached, "_sock", attached)
    try:
        client.start(id_)
        # If the container has ended already, the reaper reports the reason.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
    finally:
        attached._response.close()
        attached.close()
        connection.close()
    with contextlib.suppress(*FOREIGN):
        client.get(f"{client.base_url}/_ping", timeout=_AGAIN_SECS)
