"""Addresses of gangs that have a network of their own on one host: a block of 1024 addresses for
each, by its number among those of a host.

Of a block the first address is the network's, the second its gateway's, the last its broadcast's;
tasks have those between.
"""

from collections.abc import Container
from functools import cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network

_BITS, _SIZE, _FIRST = 22, 1 << 10, 2
#: Tasks that one block has addresses for.
MEMBERS = _SIZE - _FIRST - 1


@cache
def _network(subnets: str) -> IPv4Network:
    return IPv4Network(subnets)


def blocks(subnets: str) -> int:
    """How many there are; none where they would be smaller than a block."""
    return _network(subnets).num_addresses // _SIZE


def free_block(subnets: str | None, held: Container[int]) -> int | None:
    """The lowest one that nobody holds."""
    return (
        None
        if subnets is None
        else next((n for n in range(blocks(subnets)) if n not in held), None)
    )


def address(subnets: str, block: int, member: int) -> str:
    """Of the task with this number, from 0, in this block."""
    return str(_network(subnets)[block * _SIZE + _FIRST + member])


def block_of(subnets: str, address_: str) -> int | None:
    """The block that an address belongs to; None: to none of these."""
    try:
        there = IPv4Address(address_)
    except AddressValueError:
        return None
    network = _network(subnets)
    return (int(there) - int(network.network_address)) // _SIZE if there in network else None


def subnet_of(address_: str) -> str | None:
    """The block around an address, as `10.208.0.0/22`; None: it is none."""
    try:
        return str(IPv4Network((address_, _BITS), strict=False))
    except AddressValueError:
        return None
