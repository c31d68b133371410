"""Drains that administrators began, in a small file of the root, so that a restart keeps them. The
core decides what follows from them.
"""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from ...protocol.api.site_requests import DrainChange
from ...protocol.errors import Refusal
from ...runtime.filesystems import write_atomically
from ..core.interface.drains import SITE, Drain, Drains
from ..core.interface.inputs import DrainsChanged
from ..core.state.configuration import CoreConfig
from ..engine.decision_loop import Engine


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    driver: str
    host: str
    by: str
    at: float
    reason: str = ""


def read(path: Path) -> Drains:
    """Return the drains of the file; none if there is no file. Raises Refusal("badConfig")."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Row])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as e:
        raise Refusal(
            "badConfig", f"{path} cannot be read: {e}; remove it if nothing is to be drained"
        ) from None
    return {(r.driver, r.host): Drain(by=r.by, at=r.at, reason=r.reason) for r in rows}


class SiteDrains:
    """The drains of this supervisor. wall: unix seconds."""

    def __init__(
        self, engine: Engine, path: Path, drains: Drains, wall: Callable[[], float]
    ) -> None:
        self._engine, self._path, self._wall = engine, path, wall
        self.drains = dict(drains)
        #: called with the drains after each change
        self.heard: Callable[[Drains], object] = lambda drains: None
        self._turn = asyncio.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return the drains, that of the site (without driver and host) first."""
        return [msgspec.to_builtins(row) for row in _rows(self.drains)]

    async def change(self, request: DrainChange, by: str) -> None:
        """Begin or end a drain; when this returns, it is on the disk and in effect. Repeating it is
        harmless. Raises Refusal("storageUnavailable").
        """
        where = (request.driver, request.host)
        async with self._turn:
            drains = dict(self.drains)
            if request.drain:
                drains[where] = Drain(by=by, at=self._wall(), reason=request.reason)
            else:
                drains.pop(where, None)
            await asyncio.to_thread(self._write, drains)
            self.drains = drains
            self._engine.tell(DrainsChanged(drains))
            self.heard(drains)

    def _write(self, drains: Drains) -> None:
        try:
            write_atomically(str(self._path), msgspec.json.encode(_rows(drains)), sync=True)
        except OSError as e:
            raise Refusal(
                "storageUnavailable", f"the drain cannot be stored: {e.strerror}"
            ) from None


def _rows(drains: Drains) -> list[_Row]:
    return [
        _Row(driver=driver, host=host, by=d.by, at=d.at, reason=d.reason)
        for (driver, host), d in sorted(drains.items())
    ]


def check(
    policy: CoreConfig, drivers: Collection[str], drains: Drains, request: DrainChange
) -> None:
    """Raise Refusal("notFound") unless the request names the site, one of its hosts, or a host that is
    drained and no longer one of them.
    """
    driver, host = where = (request.driver, request.host)
    known = {p.host for p in policy.hosts(driver)} if driver in drivers else set()
    known |= {n.host for n in policy.nodes.get(driver, ())}
    if where != SITE and host not in known and where not in drains:
        raise Refusal(
            "notFound",
            f"there is no host {ascii(host)[:80]} of driver {ascii(driver)[:40]}",
            {"advice": "'jobscribe pool show' lists the hosts"},
        )
