"""Starting an agent's container: what of an earlier start is there, the container, and its
configuration by its stdin.
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
from ....protocol.ids import AgentKey, short_agent, short_uid
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

#: Where agents in containers read the supervisor's address; their relay writes it.
ADDRESS_FILE = f"{specifications.LINKS}/agents.json"
#: A container that somebody removes just now has its name for a moment longer.
_NAME_TRIES, _NAME_PAUSE = 50, 0.1
#: A connection to the host takes at most so long here; whoever needs it tries longer.
_AGAIN_SECS = 1.0


class ContainerStarter:
    """Of one host."""

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
        remains: ContainerReaper,
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
        self._log_drivers, self._remains = log_drivers, remains
        self._agent_settings, self._keeper_settings = agent_settings, keeper_settings
        self._log = log

    async def start(self, spec: AgentSpec) -> Handle:
        """One start of a key at a time. Raises Refusal, EngineError, ImageFault and OSError."""
        # at once: none of them depends on another, and each takes a round trip or a write to the
        # disk
        running, user, image = await asyncio.gather(
            self._of_earlier_start(spec.key),
            asyncio.to_thread(self._folders, spec.key),
            self._images.have(self._pool.image),
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
            return await self._made(spec, image, user)
        except EngineError as e:
            if not self._log_drivers.refused(self._engine.name, e.sentence):
                raise
            return await self._made(spec, image, user)

    async def _of_earlier_start(self, key: AgentKey) -> Handle | None:
        """One that runs is of a start whose outcome nobody heard of: its agent has one of the
        tokens that are still accepted.
        """
        filters = names.filters(self._deployment, "agent", key=str(key))
        there: list[dict[str, Any]] = await self._engine.call(
            f"look for {key}", lambda c: c.containers(all=True, filters=filters)
        )
        for summary in there:
            if await self._settled(summary["Id"], key) is None:
                said = await inspect(self._engine, summary["Id"])
                if said is not None:
                    return _handle(
                        key,
                        said["Id"],
                        said["Name"].lstrip("/"),
                        int(said["Config"]["Labels"].get(names.STARTED, 0)),
                    )
        return None

    async def _settled(self, id_: str, key: AgentKey) -> str | None:
        sentence = await self._remains.settle(self._engine, id_, key)
        if sentence is not None:
            self._log(
                "{}: what was left of an earlier container was removed: {}",
                str(key),
                sentence,
                uid=key.uid,
            )
        return sentence

    def _folders(self, key: AgentKey) -> specifications.User:
        for path in (self._folder(key), self._user_dir(key)):
            self._unix_users.own_folder(path, key.uid)
        return self._unix_users.of(key.uid)

    async def _made(self, spec: AgentSpec, image: str, user: specifications.User) -> Handle:
        started = time.time()
        creation, made = await self._create(spec, image, user, started)
        driver = f"DockerDriver(a={short_agent(spec.agent_id)} k={spec.key.kind} u={short_uid(spec.key.uid)} [])"
        self._log(
            "{} running: {}",
            driver,
            specifications.docker_run(creation, self._engine.host),
            uid=spec.key.uid,
            agent=spec.agent_id,
        )
        line = json.dumps(self._configuration(spec)).encode() + b"\n"
        try:
            await self._engine.call(f"start {creation.name}", lambda c: _begin(c, made, line))
        except EngineError as e:
            if e.code in ("refused", "notFound", "conflict"):  # after any other it may well run
                with contextlib.suppress(EngineError):
                    await remove(self._engine, made)
            raise
        return _handle(spec.key, made, creation.name, int(started))

    async def _create(
        self, spec: AgentSpec, image: str, user: specifications.User, started: float
    ) -> tuple[specifications.Creation, str]:
        """With the plain name, or, where another deployment has it, with ours behind it."""
        suffix: str | None = None
        for n in range(_NAME_TRIES):
            if n > 1:
                await asyncio.sleep(_NAME_PAUSE)
            creation = self._creation(spec, image, user, started, suffix)
            try:
                made = await make(self._engine, creation)
            except EngineError as e:
                if e.code != "conflict":
                    raise
                suffix = await self._name_taken(spec.key, creation.name, suffix)
                continue
            return creation, made
        raise Refusal(
            "agentUnavailable",
            f"host {self._engine.name}: the name {creation.name} did not become free; look who has it",
        )

    async def _name_taken(self, key: AgentKey, name: str, suffix: str | None) -> str | None:
        """What to put behind the name for the next try."""
        there = await inspect(self._engine, name)
        if there is None:
            return suffix
        labels = there["Config"]["Labels"]
        if names.is_ours(labels, self._deployment):
            if await self._settled(there["Id"], key) is None:
                sentence = f"host {self._engine.name}: the name {name} is taken by the agent of {labels.get(names.KEY)}"
                raise Refusal("agentUnavailable", sentence)
            return suffix
        if suffix is not None:
            raise Refusal(
                "agentUnavailable",
                f"host {self._engine.name}: the name {name} is taken by somebody else's container: remove it",
            )
        self._log(
            "{}: the name {} is taken by another deployment's container",
            str(key),
            name,
            uid=key.uid,
        )
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
            limits=self._pool.sequential if key.kind == "sequential" else self._pool.parallel,
            network=self._pool.network,
            folder=self._folder(key),
            user_dir=self._user_dir(key),
            links=names.links(self._deployment),
            log_driver=self._log_drivers.of(self._engine.name),
        )

    def _configuration(self, spec: AgentSpec) -> dict[str, Any]:
        """What the keeper is told on stdin. The only place that the token goes to."""
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


async def make(engine: HostEngine, creation: specifications.Creation) -> str:
    """The id of the new container. Raises EngineError, with code `conflict` where the name is
    taken.
    """
    made = await engine.call(
        f"make {creation.name}",
        lambda c: c.create_container_from_config(creation.config, creation.name),
    )
    return str(made["Id"])


def _handle(key: AgentKey, id_: str, name: str, started: int) -> Handle:
    return {
        "host": key.host,
        "id": id_,
        "name": name,
        "startedAt": started,
        "kind": key.kind,
        "key": str(key),
    }


def _begin(client: Any, id_: str, line: bytes) -> None:
    """In one go, and attached before it starts: so no keeper ever waits for a line that nobody
    writes.

    The connection that this takes is made anew at once: the next one who starts an agent would have
    to wait for that.
    """
    attached = client.attach_socket(id_, params={"stdin": 1, "stream": 1})
    connection = getattr(attached, "_sock", attached)  # with TLS it is the connection itself
    try:
        client.start(id_)
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # it has ended already: that is found out, with its reason
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
    finally:
        attached._response.close()
        attached.close()
        connection.close()
    with contextlib.suppress(*FOREIGN):
        client.get(f"{client.base_url}/_ping", timeout=_AGAIN_SECS)
