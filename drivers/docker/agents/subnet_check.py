"""Finds networks of a host whose addresses overlap with the subnets of gangs."""

from ipaddress import IPv4Network
from typing import Any

from ..containers import names
from ..host.engine import HostEngine


async def subnet_conflicts(engine: HostEngine, subnets: str, deployment: str) -> list[str]:
    """Return a sentence for each foreign network on this host that overlaps with `subnets`. Raises
    EngineError.
    """
    listed: list[dict[str, Any]] = await engine.call("list networks", lambda c: c.networks())
    return [
        f"its network {n['Name']} uses {c['Subnet']}, part of the pool's taskSubnets {subnets}: a gang with these addresses cannot "
        "start; remove the network ('docker network rm'), or change `taskSubnets` of the pool"
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
        return False  # IPv6, or the format of another network driver


def subnet_configs(network: dict[str, Any]) -> list[dict[str, Any]]:
    return (network.get("IPAM") or {}).get("Config") or []
