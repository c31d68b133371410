"""A pool of container hosts, as its file describes it: shapes and defaults only. Sizes are MiB
(2**20 bytes), CPUs are cores.

How the file is read is `service/pool_file`'s business, what is made of it the Docker driver's.
"""

from typing import Annotated, Literal

import msgspec

from ..ids import Host

#: What a task or agent may be told to connect to: nothing, or a network of that host by its name
#: (`bridge`, `host` is refused).
Network = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")]
Mib = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Cores = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all share: nothing but their form."""


class Limits(_Part, frozen=True, kw_only=True):
    """What one container may use. cpus: of all its processes together; nofile: descriptors of each
    process.

    runs: of an agent: so many runs at once share its container.
    """

    cpus: Cores = 1
    memory_mb: Mib = 1024
    shm_mb: Mib = 64
    tmp_mb: Mib = 256
    pids: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 512
    nofile: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)] = 4096
    runs: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class Volume(_Part, frozen=True, kw_only=True):
    """A directory of the hosts that tasks may name. target: where containers see it."""

    source: Annotated[str, msgspec.Meta(pattern=r"^/[^\0:]*\Z")]
    target: Annotated[str, msgspec.Meta(pattern=r"^/[^\0:]*\Z")]
    read_only: bool = True


class PoolHost(_Part, frozen=True, kw_only=True):
    """One host. address: `tcp://ip:port`, or `unix:///path` for this machine's own daemon. tls:
    folder of cacert, cert, key (.pem).

    cpu, memory_mb, gpus, ports: for tasks in containers of their own. agents_mb: memory for agents'
    containers beside those. sequential, parallel: runs at once in agents. plans: only runs of users
    with these plans come here; none: everybody else's.
    """

    name: Host
    address: str
    tls: str | None = None
    cpu: Cores
    memory_mb: Mib
    agents_mb: Mib | None = None
    gpus: tuple[str, ...] = ()
    ports: tuple[int, int] = (30_000, 32_767)
    sequential: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    parallel: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    labels: dict[str, str] = {}
    plans: tuple[str, ...] = ()


class Pool(_Part, frozen=True, kw_only=True):
    """Everything about the hosts of a deployment. image: has jobscribe's agent; tasks without an
    image of their own run in it, too.

    supervisor: `host:port` by which the hosts reach the supervisor's listener for agents, where it
    is not the listener's own address. unix_users: first and last number of the unix users that
    containers run as, one for each user; None: as the supervisor's own. task_subnets: addresses for
    gangs, a /22 for each; the same ones on every host. registries: file with credentials, 0600.
    log_driver `auto`: journald where the host has it. keep_failed_secs: containers of failed tasks
    stay so long; 0: not at all. agent_idle_secs: an agent that nobody needs is ended after so long.
    """

    hosts: Annotated[tuple[PoolHost, ...], msgspec.Meta(min_length=1, max_length=1_000)]
    image: str
    sequential: Limits = Limits()
    parallel: Limits = Limits(cpus=2, memory_mb=2048, pids=2048)
    #: pids, descriptors and /tmp of tasks in containers of their own; their CPUs, memory and shm
    #: stand in their role
    tasks: Limits = Limits(pids=4096, tmp_mb=1024)
    network: Network = "none"
    relay_network: Network = "host"
    supervisor: str | None = None
    unix_users: tuple[int, int] | None = None
    task_subnets: str = "10.208.0.0/12"
    volumes: dict[str, Volume] = {}
    pull: Literal["missing", "always", "never"] = "missing"
    pull_secs: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    registries: str | None = None
    log_driver: Literal["auto", "journald", "json-file", "local", "none"] = "auto"
    keep_failed_secs: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0
    agent_idle_secs: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] = 1800.0
    call_secs: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 20.0
