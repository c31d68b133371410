"""Runs with several tasks: their roles, resources per task, completion policy, retries and
dependencies.

Shapes only; `supervisor/core` makes the decisions. Memory is MiB (2**20 bytes), CPUs are cores,
times are seconds.
"""

from typing import Annotated, Literal

import msgspec

from ..fields import SECONDS, Form
from ..ids import Arg, ComputeJid, EnvName, Host, Role

#: Limits of one run: tasks, roles, and ports of all tasks together. The environment names all of
#: them and must fit into one message.
MAX_TASKS, MAX_ROLES, MAX_PORTS = 1_000, 100, 4_000
#: Port labels that every task has, in addition to those of its role.
IMPLIED_PORTS = ("http", "ssh")
#: Range of ports that a role may request; lower ports belong to the system.
FIRST_PORT, LAST_PORT = 1024, 65_535

PortNumber = Annotated[int, msgspec.Meta(ge=1, le=LAST_PORT)]
#: `[registry[:port]/]name[:tag][@sha256:...]`. The host checks whether the image exists.
Image = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}\Z"),
    Form("the name of an image: [registry[:port]/]name[:tag][@sha256:...]"),
]
TaskCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_TASKS)]
Cores = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Mib = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Gpus = Annotated[int, msgspec.Meta(ge=0, le=1_000)]
#: Words of the names that NVIDIA's library gives to GPUs; types with commas between them: one of them.
GpuType = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._,+/-]{0,127}\Z"),
    Form("a type such as A100, or several: V100,A100"),
]
Retries = Annotated[int, msgspec.Meta(ge=-1, le=1_000)]
PortCount = Annotated[int, msgspec.Meta(ge=1, le=256)]
#: First of consecutive ports; 0: any free ports.
PortBegin = Annotated[int, msgspec.Meta(ge=0, le=LAST_PORT)]
#: Number of tasks of one role that decides the attempt; None: the role decides nothing.
Threshold = Annotated[int, msgspec.Meta(ge=1, le=MAX_TASKS)] | None


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all parts share; no fields."""


class Port(_Part, frozen=True, kw_only=True):
    """Ports of each task of a role, under one label. begin: the first of `count` consecutive ports;
    0: any free ports.
    """

    label: Role
    count: PortCount = 1
    begin: PortBegin = 0


class TaskRole(_Part, frozen=True, kw_only=True):
    """Tasks that run the same command. Each has an index, starting at 0.

    cpu, memory_mb, gpu: reserved for each task on its host. image, volumes: of the task's
    container, with drivers that use containers. min_failed: the attempt fails when this many tasks
    of the role failed. min_succeeded: the attempt succeeds when this many succeeded. gpu_type: the
    tasks run on hosts whose GPUs have this type.
    """

    name: Role
    tasks: TaskCount = 1
    command: Annotated[tuple[Arg, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    env: dict[EnvName, Arg] = {}
    cpu: Cores = 1
    memory_mb: Mib = 100
    shm_mb: Mib = 64
    gpu: Gpus = 0
    gpu_type: GpuType | msgspec.UnsetType = msgspec.UNSET
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=100)] = ()
    image: Image | None = None
    volumes: Annotated[tuple[Arg, ...], msgspec.Meta(max_length=100)] = ()
    min_failed: Threshold = 1
    min_succeeded: Threshold = None

    def all_ports(self) -> tuple[Port, ...]:
        """Return the ports of each task: the requested ones in order, then the implied ones that
        the role does not name.
        """
        named = {p.label for p in self.ports}
        return (*self.ports, *(Port(label=label) for label in IMPLIED_PORTS if label not in named))


class Retry(_Part, frozen=True, kw_only=True):
    """Retry policy. A retry is a new attempt of the whole run. -1: unlimited.

    count: retries after failures of the program (an ordinary exit code). platform: retries after
    failures of the platform (a lost machine, a signal from outside, ports in use). conflict_secs:
    the minimum wait after resources were not available in time.
    """

    count: Annotated[Retries, Form(aliases=("retryCount",))] = 0
    platform: Annotated[Retries, Form(aliases=("maxPlatformRetries",))] = 3
    conflict_secs: Annotated[float, msgspec.Meta(gt=0, le=86_400), SECONDS] = 600.0


class After(_Part, frozen=True, kw_only=True):
    """A dependency: the run waits for the end of another run of the same user. on: that run must
    complete (`ok`), end in any way (`any`), or not complete (`failed`).

    serial 0: the run of that job that exists when this run is accepted.
    """

    compute_jid: ComputeJid
    compute_job_serial: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    on: Literal["ok", "any", "failed"] = "ok"


class TaskPlace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The placement of one task of an attempt. address: host to which other tasks connect. ports:
    by label, in order.
    """

    role: Role
    index: int
    host: Host
    address: str
    ports: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()
