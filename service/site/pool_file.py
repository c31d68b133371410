"""The file of a pool of container hosts (YAML, `docker.pool`). All problems are reported together,
with their lines.

`protocol.clusters.container_pool` declares the fields, and `pool_rules` the rules.
"""

import os
from collections.abc import Sequence

import msgspec

from ...protocol.clusters.container_pool import Pool, PoolHost
from ...protocol.errors import Refusal
from ...schema.structs import Place
from . import site_file
from .pool_rules import check


def load(path: str, own: Sequence[str] = ()) -> Pool:
    """Return the pool in this file. own: folders of the supervisor, which no volume may contain.
    Raises Refusal with all problems.
    """
    pool, found = read(path, own)
    if pool is None:
        raise site_file.combined(path, found)
    return pool


def read(path: str, own: Sequence[str] = ()) -> tuple[Pool | None, list[Refusal]]:
    """Return the pool, or all problems of the file."""

    def complete_and_check(pool: Pool, place: Place) -> Pool:
        pool = _complete(pool)
        check(pool, place, own)
        return pool

    return site_file.read(path, "docker.pool", Pool, complete_and_check)


def _complete(pool: Pool) -> Pool:
    """Give each host its folder of certificates."""
    return msgspec.structs.replace(pool, hosts=tuple(_host(h, pool.tls_dir) for h in pool.hosts))


def _host(host: PoolHost, tls_dir: str | None) -> PoolHost:
    if tls_dir is None or host.tls is not None or not host.address.startswith("tcp:"):
        return host
    return msgspec.structs.replace(host, tls=os.path.join(tls_dir, host.name))
