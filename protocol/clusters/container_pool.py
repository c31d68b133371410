"""The configuration of a pool of container hosts: fields, their forms and defaults. Sizes are MiB
(2**20 bytes), CPUs are cores.

`service/site/pool_file` reads the file; the Docker driver uses it.
"""

from typing import Annotated, Literal

import msgspec

from ..fields import PORTS, SECONDS, Address, Form, Word, number_range, word
from ..ids import Host
from ..shards import MOST

#: The network of a container: none, or a named network of its host (`bridge`; `host` is refused).
Network = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z"),
    Form("none, or the name of a network of the hosts"),
]
Mib = Annotated[int, msgspec.Meta(ge=1, le=2**40), Form("a whole number of MiB")]
Cores = Annotated[int, msgspec.Meta(ge=1, le=100_000), Form("a whole number of cores")]
Runs = Annotated[int, msgspec.Meta(ge=1, le=10_000), Form("a whole number of concurrent runs")]
Gpu = Annotated[
    str,
    msgspec.Meta(pattern=r"^([0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,100})\Z"),
    Form("the number or UUID of a GPU", word),
]
Plan = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z"), Form("the name of a plan")]
VolumeName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z"),
    Form("letters, digits and . _ -, at most 63"),
]
_MOUNT = msgspec.Meta(pattern=r"^/[^\0:]*\Z")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all parts share; no fields."""


class Limits(_Part, frozen=True, kw_only=True):
    """Resource limits of one container. cpus: for all processes together. nofile: file descriptors
    of each process.

    runs: maximum number of concurrent runs in an agent's container.
    """

    cpus: Cores = 1
    memory_mb: Mib = 1024
    shm_mb: Mib = 64
    tmp_mb: Mib = 256
    pids: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 512
    nofile: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)] = 4096
    runs: Runs = 1


class Volume(_Part, frozen=True, kw_only=True):
    """A directory of the hosts that tasks may mount. target: its path in containers."""

    source: Annotated[str, _MOUNT, Form("an absolute path on the hosts, without ':'")]
    target: Annotated[str, _MOUNT, Form("an absolute path in containers, without ':'")]
    read_only: bool = True


class PoolHost(_Part, frozen=True, kw_only=True):
    """One host of the pool. address: `tcp://ip:port`, or `unix:///path` for the daemon of this
    machine. tls: directory with the files cacert, cert and key (.pem).

    cpu, memory_mb, gpus, ports: capacity for tasks in containers of their own. gpu_type: name of
    its GPUs; "": as NVIDIA's library names them, if it is this machine. agents_mb:
    additional memory for agents' containers. sequential, parallel: concurrent runs in agents.
    plans: only users with one of these plans use this host; empty: for users with a plan that no
    host lists. shard: the only shard of the site that uses this host; None: the shards have hosts in turn.
    """

    name: Annotated[Host, Form("letters, digits, . and -")]
    address: Annotated[str, Form("tcp://ip:port, or unix:///path for this machine's own daemon")]
    tls: (
        Annotated[str, Form("a folder with cacert.pem, cert.pem and key.pem", path=True)] | None
    ) = None
    cpu: Cores
    memory_mb: Mib
    agents_mb: Mib | None = None
    gpus: Annotated[tuple[Gpu, ...], Form("a list of GPUs, each once", unique=True)] = ()
    gpu_type: Annotated[str, msgspec.Meta(max_length=128), Form("the name of its GPUs")] = ""
    ports: Annotated[tuple[int, int], PORTS] = (30_000, 32_767)
    sequential: Runs = 1
    parallel: Runs = 1
    labels: dict[str, Word] = {}
    plans: tuple[Plan, ...] = ()
    shard: Annotated[int, msgspec.Meta(ge=0, lt=MOST), Form("the number of a shard")] | None = None


class Pool(_Part, frozen=True, kw_only=True):
    """The container hosts of a deployment and their common settings. image: contains jobscribe's
    agent; also the default image of tasks.

    tls_dir: the hosts without `tls` have their certificates in its subfolders, by name. supervisor:
    `host:port` at which the hosts reach the supervisor's listener for agents, if it is not the
    listener's own address. unix_users: first and last number of the unix users that containers run
    as, one per user; None: the supervisor's own user. task_subnets: address range for gangs, one
    /22 each, the same on every host. registries: file with credentials, mode 0600. log_driver
    `auto`: journald if the host has it. keep_failed_secs: how long containers of failed tasks are
    kept; 0: removed at once. agent_idle_secs: an unused agent is ended after this time.
    """

    hosts: Annotated[tuple[PoolHost, ...], msgspec.Meta(min_length=1, max_length=1_000)]
    image: Annotated[
        str,
        msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z"),
        Form("the name of an image with jobscribe's agent, as built by etc/docker/build.sh"),
    ]
    tls_dir: Annotated[str, Form("a folder with one folder for each host", path=True)] | None = None
    sequential: Limits = Limits()
    parallel: Limits = Limits(cpus=2, memory_mb=2048, pids=2048)
    #: pids, descriptors and /tmp of task containers; CPUs, memory and shm are fields of the role
    tasks: Limits = Limits(pids=4096, tmp_mb=1024)
    network: Network = "none"
    relay_network: Annotated[Network, Form("host, or the name of a network of the hosts")] = "host"
    supervisor: Address | None = None
    unix_users: (
        Annotated[
            tuple[int, int],
            Form(
                "the first and last number of unused unix user ids, as in 200000-265535",
                number_range,
            ),
        ]
        | None
    ) = None
    task_subnets: Annotated[
        str, Form("a private IPv4 network of at least a /22, as in 10.208.0.0/12")
    ] = "10.208.0.0/12"
    volumes: dict[VolumeName, Volume] = {}
    pull: Literal["missing", "always", "never"] = "missing"
    pull_secs: Annotated[float, msgspec.Meta(gt=0, le=86_400), SECONDS] = 600.0
    registries: (
        Annotated[str, Form("a file with credentials that only its owner can read", path=True)]
        | None
    ) = None
    log_driver: Literal["auto", "journald", "json-file", "local", "none"] = "auto"
    keep_failed_secs: Annotated[float, msgspec.Meta(ge=0, le=31_536_000), SECONDS] = 0.0
    agent_idle_secs: Annotated[float, msgspec.Meta(gt=0, le=31_536_000), SECONDS] = 1800.0
    call_secs: Annotated[float, msgspec.Meta(gt=0, le=3600), SECONDS] = 20.0
