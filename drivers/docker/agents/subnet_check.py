"""Networks of a host whose addresses overlap with those that gangs are given."""

from ipaddress import IPv4Network
from typing import Any

from ..containers import names
from ..host.engine import HostEngine


async def in_the_way(engine: HostEngine, subnets: str, deployment: str) -> list[str]:
    """Sentences about networks of others on this host that have addresses of these; none: gangs can
    have all. Raises EngineError.
    """
    listed: list[dict[str, Any]] = await engine.call("list networks", lambda c: c.networks())
    return [
        f"its network {n['Name']} has {c['Subnet']}, out of the pool's taskSubnets {subnets}: a gang that is given these addresses cannot "
        "start; remove it ('docker network rm'), or give the pool other `taskSubnets`"
        for n in listed
        if not names.is_ours(n.get("Labels"), deployment, "network")
        for c in subnet_configs(n)
        if _overlap(c.get("Subnet"), subnets)
    ]


def _overlap(one: str | None, other: str) -> bool:
    try:
        return one is not None and IPv4Network(one, strict=False).overlaps(
            IPv4Network(other, strict=False)
        )
    except ValueError:
        return False  # IPv6, or words of another network driver


def subnet_configs(network: dict[str, Any]) -> list[dict[str, Any]]:
    return (network.get("IPAM") or {}).get("Config") or []
