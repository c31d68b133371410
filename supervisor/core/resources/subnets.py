"""Addresses of gangs with their own network on one host: a block of 1024 addresses each, identified
by its number on the host.

The first address of a block is the network's, the second the gateway's, the last the broadcast
address. Tasks use the others.
"""

from collections.abc import Container
from functools import cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network

_BITS, _SIZE, _FIRST = 22, 1 << 10, 2
#: Number of tasks that fit into one block.
MEMBERS = _SIZE - _FIRST - 1


@cache
def _network(subnets: str) -> IPv4Network:
    return IPv4Network(subnets)


def blocks(subnets: str) -> int:
    """Return the number of blocks; 0 if the network is smaller than a block."""
    return _network(subnets).num_addresses // _SIZE


def free_block(subnets: str | None, held: Container[int]) -> int | None:
    """Return the lowest free block, or None."""
    return (
        None
        if subnets is None
        else next((n for n in range(blocks(subnets)) if n not in held), None)
    )


def address(subnets: str, block: int, member: int) -> str:
    """Return the address of the task with this number (from 0) in this block."""
    return str(_network(subnets)[block * _SIZE + _FIRST + member])


def block_of(subnets: str, address_: str) -> int | None:
    """Return the block of an address, or None if it is in none."""
    try:
        there = IPv4Address(address_)
    except AddressValueError:
        return None
    network = _network(subnets)
    return (int(there) - int(network.network_address)) // _SIZE if there in network else None


def subnet_of(address_: str) -> str | None:
    """Return the block around an address, as `10.208.0.0/22`, or None if it is no address."""
    try:
        return str(IPv4Network((address_, _BITS), strict=False))
    except AddressValueError:
        return None
