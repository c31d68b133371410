"""The settings of one shard, from those of its site: root, schema, listeners, and its even part of each limit
that spans users. Shards lend each other amounts at run time (`Settings.site_limits`). Only `make_secrets` writes a file.

Limits of one user need no part: a user is in one shard.
"""

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from ...protocol.clusters.cluster import Clusters
from ...protocol.clusters.container_pool import Pool
from ...protocol.errors import Refusal
from ...protocol.ids import base62
from ...protocol.shards import Shard
from ...runtime.filesystems import make_folder, write_atomically
from ..settings.settings import ResourceSettings, Settings, SlotSettings

#: Folder of the shards in the root of a site.
FOLDER = "shards"
#: Secret from which the uid of local commands is derived.
UID_KEY = "uid"
_T = TypeVar("_T")


def root_of(root: str, number: int) -> str:
    """Return the root of a shard of the site with this root."""
    return os.path.join(root, FOLDER, str(number))


def of_shard(settings: Settings) -> Settings:
    """Return the settings of the shard that they name; unchanged without shards. Raises Refusal:
    badConfig, for a limit that cannot be divided.
    """
    shard = settings.shard
    if settings.shards.count is None:
        if os.path.isdir(os.path.join(settings.root, FOLDER)):
            raise Refusal(
                "badConfig",
                f"the root {settings.root} is of a site with shards: set shards.count, or use another root",
            )
        return settings
    if shard is None:
        raise Refusal(
            "badConfig",
            f"the site has {settings.shards.count} shards: name one of them (--shard 0, or --set shards.number=0), or"
            " start all of them on this machine with 'jobscribe up'",
        )
    root = root_of(settings.root, shard.number)
    s, store = settings.supervisor, settings.store
    assert store.url is not None  # required by the settings
    tls_port = settings.shards.tls_port
    origins = settings.origins
    return dataclasses.replace(
        settings,
        root=root,
        user_root=os.path.join(settings.user_root, FOLDER, str(shard.number))
        if "user_root" in origins
        else "",
        supervisor=dataclasses.replace(
            s,
            ip="127.0.0.1",
            # the setting is the router's
            port=0,
            tls_port=s.tls_port if tls_port is None else _port(tls_port, shard),
            tls_cert=None if tls_port is None else s.tls_cert,
            tls_key=None if tls_port is None else s.tls_key,
            agents_port=_port(s.agents_port, shard),
            agents_others=tuple(_shifted(address, shard) for address in s.agents_others),
            server_secret_file=s.server_secret_file
            or (secret_file(settings.root, "server") if s.development else None),
            metrics_secret_file=s.metrics_secret_file or secret_file(settings.root, "metrics"),
        ),
        site_limits=_site_limits(settings),
        slots=_slots(settings, shard),
        resources=_resources(settings, shard),
        store=dataclasses.replace(store, url=with_schema(store.url, shard.number)),
    )


def numbered(settings: Settings, number: int) -> Settings:
    """Return the settings of this shard, from those of its site. Raises Refusal: badConfig."""
    return of_shard(
        dataclasses.replace(settings, shards=dataclasses.replace(settings.shards, number=number))
    )


def problems(settings: Settings) -> Iterator[Refusal]:
    """Yield what prevents the division of a site's limits into shards."""
    if settings.shards.count is not None and settings.shards.number is None:
        try:
            numbered(settings, 0)
        except Refusal as e:
            yield e


def secret_file(root: str, name: str) -> str:
    """Return the path of a secret that all shards share, where no setting names another one."""
    return os.path.join(root, "secret", name)


def make_secrets(settings: Settings) -> None:
    """Create the secrets that all shards share, where no setting names another file. Raises OSError."""
    s = settings.supervisor
    names = [UID_KEY]
    if s.metrics_secret_file is None:
        names.append("metrics")
    if s.server_secret_file is None and s.development:
        names.append("server")
    for name in names:
        path = secret_file(settings.root, name)
        make_folder(settings.root)
        make_folder(os.path.dirname(path))
        if os.path.exists(path):
            continue
        # of several processes that start at once, the first one decides
        own = f"{path}.{os.getpid()}"
        write_atomically(own, base62(secrets.token_bytes(43), 43).encode(), sync=True)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(own, path)
        finally:
            os.unlink(own)


def _port(port: int, shard: Shard) -> int:
    return port + shard.number if port else 0


def _shifted(address: str, shard: Shard) -> str:
    """Return the address of another supervisor's listener for agents, whose port is that of shard 0."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + shard.number}"


def with_schema(url: str, number: int) -> str:
    """Return the address of the shard's schema, whose name ends with its number."""
    head, _, query = url.partition("?")
    words = [w for w in query.split("&") if w]
    schema = next((w for w in words if w.startswith("schema=")), "schema=jobscribe")
    rest = [w for w in words if not w.startswith("schema=")]
    return f"{head}?{'&'.join([*rest, f'{schema}_{number}'])}"


def _site_limits(settings: Settings) -> dict[str, int]:
    """Return the limits of this machine of which shards lend each other parts."""
    s, r = settings.slots, settings.resources
    if "local" not in settings.drivers.use:
        return {}
    return {
        "slots.local_sequential": s.local_sequential,
        "slots.local_parallel": s.local_parallel,
        "resources.local_cpu": r.local_cpu,
        "resources.local_memory_mb": r.local_memory_mb,
    }


def _slots(settings: Settings, shard: Shard) -> SlotSettings:
    s = settings.slots
    if "local" not in settings.drivers.use:
        return s
    parts = {
        name: _part(f"slots.{name}", getattr(s, name), shard)
        for name in ("local_sequential", "local_parallel")
    }
    # a user alone on the site may use what other shards do not need
    return dataclasses.replace(s, **parts)


def _resources(settings: Settings, shard: Shard) -> ResourceSettings:
    r = settings.resources
    if "local" not in settings.drivers.use:
        return r
    first, last = r.local_ports
    ports = last - first + 1
    _part("resources.local_ports", ports, shard)
    begin = first + sum(Shard(k, shard.total).part(ports) for k in range(shard.number))
    return dataclasses.replace(
        r,
        local_cpu=_part("resources.local_cpu", r.local_cpu, shard),
        local_memory_mb=_part("resources.local_memory_mb", r.local_memory_mb, shard),
        local_ports=(begin, begin + shard.part(ports) - 1),
    )


def _part(name: str, whole: int, shard: Shard) -> int:
    if whole < shard.total:
        raise Refusal(
            "badConfig",
            f"{name} is {whole}, and each of {shard.total} shards needs at least 1: raise it to {shard.total} or more",
        )
    return shard.part(whole)


def in_turn(items: Sequence[_T], shard: Shard | None) -> tuple[_T, ...]:
    """Return the items that this shard has: each belongs to one shard, in turn."""
    return tuple(items) if shard is None else tuple(items[shard.number :: shard.total])


def pool_of(pool: Pool, shard: Shard | None) -> Pool:
    """Return the pool with the hosts and unix users of this shard. Raises Refusal."""
    if shard is None:
        return pool
    hosts = tuple(
        host
        for n, host in enumerate(pool.hosts)
        if (n % shard.total if host.shard is None else host.shard) == shard.number
    )
    far = [h.name for h in pool.hosts if h.shard is not None and h.shard >= shard.total]
    if far:
        raise Refusal(
            "badConfig",
            f"the hosts {', '.join(far)} of docker.pool name a shard that the site does not have: it has the shards 0"
            f" to {shard.total - 1}",
        )
    if not hosts:
        raise Refusal(
            "badConfig",
            f"docker.pool has no host for {shard.name}: name more hosts, or set their field shard",
        )
    users = pool.unix_users
    if users is not None:
        first, last = users
        size = last - first + 1
        _part("unixUsers of docker.pool", size, shard)
        begin = first + sum(Shard(k, shard.total).part(size) for k in range(shard.number))
        users = (begin, begin + shard.part(size) - 1)
    return msgspec.structs.replace(pool, hosts=hosts, unix_users=users)


def clusters_of(clusters: Clusters, shard: Shard | None) -> Clusters:
    """Return the clusters with this shard's part of their runs. Raises Refusal."""
    if shard is None:
        return clusters
    return msgspec.structs.replace(
        clusters,
        clusters=tuple(
            msgspec.structs.replace(
                c, runs=_part(f"runs of cluster {c.name} in sbatch.clusters", c.runs, shard)
            )
            for c in clusters.clusters
        ),
    )
