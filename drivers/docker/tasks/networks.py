"""Networks of gangs: one bridge for all tasks of an attempt, made by who comes first, taken away
when the last is over.

A daemon may say for a while that somebody is in one whose containers are removed already, and after
a crash for good. The addresses of such a network are given to the next gang all the same, so
whoever needs them takes it away first.
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

#: A network that is still in use is asked for again after so long each time; then who is not there
#: any more is taken out by force.
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


class SubnetTaken(Exception):
    """The addresses of a gang belong to somebody else on that host."""

    def __init__(self, subnet: str, error: EngineError) -> None:
        super().__init__(subnet)
        self.sentence = (
            f"the subnet {subnet} is used by something else on that host: {error.sentence}"
        )


class GangNetworks:
    """Of one deployment, on all hosts."""

    def __init__(self, deployment: str, log: Log) -> None:
        self._deployment, self._log = deployment, log
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def have(self, task: TaskState, engine: HostEngine) -> None:
        """The one of this task is there. Raises EngineError, SubnetTaken."""
        assert task.asked is not None
        name, subnet = task.asked.network, task.box.subnet
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
                await self._drop_left(subnet, engine)
                await self._make(
                    name, body, engine
                )  # also where nothing was left: it may have gone meanwhile

    async def drop(self, name: str, engine: HostEngine) -> bool:
        """Take it away. False: somebody is in it, or the host cannot be asked; the next sweep comes
        by.
        """
        for pause in (*PAUSES, None):
            try:
                if pause is None:
                    await self._free(name, engine)
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

    async def of_deployment(self, engine: HostEngine) -> list[dict[str, Any]]:
        """As the daemon lists them. Raises EngineError."""
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

    async def _drop_left(self, subnet: str, engine: HostEngine) -> None:
        """Those of ours that have these addresses: who was given them anew knows that no task of
        theirs is left.
        """
        left = [
            n["Name"]
            for n in await self.of_deployment(engine)
            if any(c.get("Subnet") == subnet for c in subnet_configs(n))
        ]
        for name in left:
            self._log(
                "network {} on host {} is left of a gang that is over, and in the way: it is removed",
                name,
                engine.name,
            )
        await asyncio.gather(*(self.drop(name, engine) for name in left))

    async def _free(self, name: str, engine: HostEngine) -> None:
        """Take out of it whoever the daemon has no container of any more; one that is there stays,
        whatever it does. Raises EngineError.
        """
        said: dict[str, Any] = await engine.call(
            f"inspect network {name}", lambda c: c.inspect_network(name)
        )
        for who in [
            str(endpoint.get("Name") or "") for endpoint in (said.get("Containers") or {}).values()
        ]:
            if who and await inspect(engine, who) is None:
                self._log(
                    "{} is in network {} on host {} and has no container: it is taken out",
                    who,
                    name,
                    engine.name,
                )
                await engine.call(
                    f"take {who} out of network {name}", partial(_take_out, who=who, network=name)
                )


def _take_out(client: Any, *, who: str, network: str) -> None:
    client.disconnect_container_from_network(who, network, force=True)


def _post(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client._result(client._post_json(client._url(path), data=body), json=True)
