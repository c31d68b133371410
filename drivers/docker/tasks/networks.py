"""Networks of gangs: one bridge for all tasks of an attempt, created with the first task and
removed after the last.

A daemon may list removed containers as members of a network for a while, and after a crash for
ever. The scheduler gives the addresses of such a network to the next gang, which then removes the
network first.
"""

import asyncio
import time
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ....runtime.log.logger import Log
from ..agents.subnet_check import subnet_configs
from ..containers import names, specifications
from ..host.container_calls import inspect
from ..host.engine import EngineError, HostEngine
from .state import TaskState

#: Pauses before each retry to remove a network in use, in seconds. After that, members without a
#: container are disconnected by force.
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


class SubnetTaken(Exception):
    """Another network on that host uses the addresses of a gang."""

    def __init__(self, subnet: str, error: EngineError) -> None:
        super().__init__(subnet)
        self.sentence = f"another network of that host uses the subnet {subnet}: {error.sentence}"


class GangNetworks:
    """The networks of one deployment, on all hosts."""

    def __init__(self, deployment: str, log: Log) -> None:
        self._deployment, self._log = deployment, log
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ensure(self, task: TaskState, engine: HostEngine) -> None:
        """Create the network of this task if it does not exist. Raises EngineError, SubnetTaken."""
        assert task.request is not None
        name, subnet = task.request.network, task.box.subnet
        if name is None or subnet is None:
            return
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            if await engine.call(
                f"look for network {name}", lambda c: c.networks(filters={"name": [f"^{name}$"]})
            ):
                return
            labels = names.network_labels(self._deployment, task.place.key, task.token, time.time())
            body = specifications.network_body(name=name, subnet=subnet, labels=labels)
            try:
                await self._make(name, body, engine)
            except SubnetTaken:
                await self._remove_stale(subnet, engine)
                # Try again even if no network was removed: the other one may be gone meanwhile.
                await self._make(name, body, engine)

    async def remove(self, name: str, engine: HostEngine) -> bool:
        """Remove a network. Return False if it is in use or the host cannot be reached; the next
        sweep tries again.
        """
        for pause in (*PAUSES, None):
            try:
                if pause is None:
                    await self._disconnect_missing(name, engine)
                await engine.call(f"remove network {name}", lambda c: c.remove_network(name))
                return True
            except EngineError as e:
                if e.code == "notFound":
                    return True
                if e.code != "refused" or pause is None:
                    self._log.trace(
                        "network {} on host {} could not be removed: {}",
                        name,
                        engine.name,
                        e.sentence,
                    )
                    return False
                await asyncio.sleep(pause)
        raise AssertionError("the last one returns")

    async def list_networks(self, engine: HostEngine) -> list[dict[str, Any]]:
        """Return the networks of this deployment, as the daemon lists them. Raises EngineError."""
        filters = names.filters(self._deployment, "network")
        listed: list[dict[str, Any]] = await engine.call(
            "list networks", lambda c: c.networks(filters=filters)
        )
        return listed

    # ---- inside

    async def _make(self, name: str, body: dict[str, Any], engine: HostEngine) -> None:
        try:
            await engine.call(f"make network {name}", lambda c: _post(c, "/networks/create", body))
        except EngineError as e:
            if "overlaps" in e.sentence or "Pool" in e.sentence:
                raise SubnetTaken(body["IPAM"]["Config"][0]["Subnet"], e) from None
            if e.code != "conflict":
                raise

    async def _remove_stale(self, subnet: str, engine: HostEngine) -> None:
        """Remove our networks that have these addresses. The scheduler has assigned the addresses
        anew, so no task uses them.
        """
        left = [
            n["Name"]
            for n in await self.list_networks(engine)
            if any(c.get("Subnet") == subnet for c in subnet_configs(n))
        ]
        for name in left:
            self._log(
                "network {} on host {} belongs to an ended gang and blocks a subnet: it is removed",
                name,
                engine.name,
            )
        await asyncio.gather(*(self.remove(name, engine) for name in left))

    async def _disconnect_missing(self, name: str, engine: HostEngine) -> None:
        """Disconnect members whose container no longer exists. Existing containers stay, in any
        state. Raises EngineError.
        """
        network: dict[str, Any] = await engine.call(
            f"inspect network {name}", lambda c: c.inspect_network(name)
        )
        for member in [
            str(endpoint.get("Name") or "")
            for endpoint in (network.get("Containers") or {}).values()
        ]:
            if member and await inspect(engine, member) is None:
                self._log(
                    "{} is a member of network {} on host {} without a container: it is disconnected",
                    member,
                    name,
                    engine.name,
                )
                await engine.call(
                    f"take {member} out of network {name}",
                    partial(_disconnect, member=member, network=name),
                )


def _disconnect(client: Any, *, member: str, network: str) -> None:
    client.disconnect_container_from_network(member, network, force=True)


def _post(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client._result(client._post_json(client._url(path), data=body), json=True)
