"""Leases of this machine's ports to simulations.

A simulation keeps its ports until it releases them or its lease expires. The leases are in one
small file, written atomically. Before a port is leased, it is tested for use by other programs.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ...protocol.api.requests import GlobalResources
from ...protocol.errors import Refusal
from ...protocol.ids import Sid, SimulationType, Uid
from ...runtime.filesystems import write_atomically

#: Range of leased ports, below the ephemeral ports of Linux.
PORTS = range(20_000, 30_000)
#: Largest number of ports of one user, over all simulations.
PER_USER = 64
IP = "127.0.0.1"
_POINTS = ("lease.written", "lease.renamed")


class Lease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """until: unix seconds."""

    uid: Uid
    simulation_type: SimulationType
    simulation_id: Sid
    ports: tuple[int, ...]
    until: float


class Leases:
    """The port leases of this process. Raises Refusal("badConfig") if its file is damaged."""

    def __init__(
        self,
        path: Path,
        wall: Callable[[], float],
        *,
        lease_secs: float,
        ports: Sequence[int] = PORTS,
    ) -> None:
        self._path, self._wall, self._secs, self._ports = path, wall, lease_secs, ports
        self._leases = {_owner(lease): lease for lease in self._read()}
        # files of a process that was killed while it wrote
        for leftover in path.parent.glob(f"{path.name}.*.new"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        self._next = 0
        self._turn = asyncio.Lock()

    async def ask(self, request: GlobalResources) -> dict[str, object]:
        """Lease, renew or release ports. Return {"ports", "ip", "until"}; the lease is durable.

        Raises Refusal (tooManyRequests, storageUnavailable).
        """
        async with self._turn:
            return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: GlobalResources) -> dict[str, object]:
        now = self._wall()
        owner = (request.uid, request.simulation_type, request.simulation_id)
        kept = {o: lease for o, lease in self._leases.items() if lease.until > now}
        mine = kept.pop(owner, None)
        if request.release:
            if len(kept) != len(self._leases):
                self._write(kept)
            return {"ports": [], "ip": IP, "until": None}
        held = mine.ports if mine is not None else ()
        taken = {p for lease in kept.values() for p in lease.ports} | set(held)
        ports = held + self._free(request.ports - len(held), taken)
        if (
            sum(len(lease.ports) for o, lease in kept.items() if o[0] == request.uid) + len(ports)
            > PER_USER
        ):
            raise Refusal(
                "tooManyRequests", f"a user may lease {PER_USER} ports at once; release some first"
            )
        kept[owner] = Lease(
            uid=owner[0],
            simulation_type=owner[1],
            simulation_id=owner[2],
            ports=ports,
            until=now + self._secs,
        )
        self._write(kept)
        return {"ports": list(ports[: request.ports]), "ip": IP, "until": kept[owner].until}

    def _free(self, n: int, taken: set[int]) -> tuple[int, ...]:
        """Return `n` ports that are neither leased nor in use, the least recently released first."""
        found: list[int] = []
        for step in range(len(self._ports)):
            if len(found) >= n:
                break
            port = self._ports[(self._next + step) % len(self._ports)]
            if port not in taken and _usable(port):
                found.append(port)
        if len(found) < n:
            raise Refusal(
                "tooManyRequests",
                f"fewer than {n} ports are free from {self._ports[0]} to {self._ports[-1]}; try again later",
            )
        if found:
            self._next = (self._ports.index(found[-1]) + 1) % len(self._ports)
        return tuple(found)

    def _read(self) -> list[Lease]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Lease])
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refusal(
                "badConfig",
                f"{self._path} is damaged ({e}); delete it, which ends all port leases",
            ) from None
        except OSError as e:
            raise Refusal("badConfig", f"{self._path} cannot be read: {e.strerror}") from None

    def _write(self, leases: dict[tuple[str, str, str], Lease]) -> None:
        try:
            write_atomically(
                str(self._path),
                msgspec.json.encode(list(leases.values())),
                sync=True,
                points=_POINTS,
            )
        except OSError as e:
            raise Refusal(
                "storageUnavailable", f"the port lease cannot be stored: {e.strerror}"
            ) from None
        self._leases = leases


def _owner(lease: Lease) -> tuple[str, str, str]:
    return lease.uid, lease.simulation_type, lease.simulation_id


def _usable(port: int) -> bool:
    """Return whether a program could listen on this port now, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError as e:
            if e.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
