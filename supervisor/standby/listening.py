"""The listeners of a supervisor that stands by. They are bound before it stands by, and the same
sockets serve after it has taken over.
"""

import contextlib
import socket
from typing import Literal, NamedTuple

from ...service.settings.settings import Settings
from ..process.listeners import Bound, bound, port_of

Kind = Literal["api", "public", "agents"]
KINDS: tuple[Kind, ...] = ("api", "public", "agents")
_SCHEMES = {"api": "http", "public": "https", "agents": "wss"}


class Listening(NamedTuple):
    """public: None without an HTTPS interface. tls: kinds that the holder decrypts."""

    api: Bound
    agents: Bound
    public: Bound | None
    tls: frozenset[Kind]

    def of(self, kind: Kind) -> Bound:
        match kind:
            case "api":
                return self.api
            case "agents":
                return self.agents
            case "public":
                return self.public or []

    def addresses(self, settings: Settings) -> dict[str, str]:
        """Return the addresses for other machines and people. A listener at all addresses of the
        machine has the machine's name.
        """
        s = settings.supervisor
        ips = {"api": s.ip, "agents": s.agents_ip, "public": s.tls_ip}
        out: dict[str, str] = {}
        for kind in KINDS:
            if sockets := self.of(kind):
                host = ips[kind] if ips[kind] not in ("0.0.0.0", "::", "") else socket.getfqdn()
                scheme = "ws" if kind == "agents" and "agents" not in self.tls else _SCHEMES[kind]
                out[kind] = f"{scheme}://{host}:{port_of(sockets)}"
        return out

    def close(self) -> None:
        for kind in KINDS:
            for listener in self.of(kind):
                with contextlib.suppress(OSError):
                    listener.close()


def listen(settings: Settings) -> Listening:
    """Bind all listeners of these settings. Raises Refusal("portTaken")."""
    s = settings.supervisor
    tls: set[Kind] = {"public"} if s.tls_cert is not None else set()
    if s.agents_tls_cert is not None:
        tls.add("agents")
    return Listening(
        bound(s.ip, s.port),
        bound(s.agents_ip, s.agents_port),
        bound(s.tls_ip, s.tls_port) if s.tls_cert is not None else None,
        frozenset(tls),
    )
