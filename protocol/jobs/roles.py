"""Runs of more than one task: the roles, what each task needs, when an attempt is decided, what is
tried again, what comes first.

Shapes only; what they lead to is decided in `supervisor/core`. Memory is counted in MiB (2**20
bytes), CPU in cores, time in seconds.
"""

from typing import Annotated, Literal

import msgspec

from ..ids import Arg, ComputeJid, EnvName, Host, Role

#: Tasks of one run, and ports of all of them together: what their environments name has to fit into
#: one message.
MAX_TASKS, MAX_ROLES, MAX_PORTS = 1_000, 100, 4_000
#: Ports that every task has, whether or not its role asks for them.
IMPLIED_PORTS = ("http", "ssh")
#: Ports below this belong to the machine.
FIRST_PORT, LAST_PORT = 1024, 65_535

PortNumber = Annotated[int, msgspec.Meta(ge=1, le=LAST_PORT)]
#: `[registry[:port]/]name[:tag][@sha256:...]`; whether there is one is found out on the host.
Image = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}\Z")]
#: One role's tasks count towards these; None: never.
Threshold = Annotated[int, msgspec.Meta(ge=1, le=MAX_TASKS)] | None


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all share: nothing but their form."""


class Port(_Part, frozen=True, kw_only=True):
    """Ports of each task of a role, under one label. begin: the first of `count` in a row; 0: any
    that are free.
    """

    label: Role
    count: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    begin: Annotated[int, msgspec.Meta(ge=0, le=LAST_PORT)] = 0


class TaskRole(_Part, frozen=True, kw_only=True):
    """Tasks that run the same command, each with an index of its own, from 0.

    cpu, memory_mb, gpu: of each task, held for it on its host. image, volumes: of its container,
    with drivers that have some. min_failed: so many failed tasks of this role fail the attempt;
    min_succeeded: so many that succeeded make it succeed.
    """

    name: Role
    tasks: Annotated[int, msgspec.Meta(ge=1, le=MAX_TASKS)] = 1
    command: Annotated[tuple[Arg, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    env: dict[EnvName, Arg] = {}
    cpu: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    memory_mb: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 100
    shm_mb: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 64
    gpu: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 0
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=100)] = ()
    image: Image | None = None
    volumes: Annotated[tuple[Arg, ...], msgspec.Meta(max_length=100)] = ()
    min_failed: Threshold = 1
    min_succeeded: Threshold = None

    def all_ports(self) -> tuple[Port, ...]:
        """The ports of each of its tasks: those it asks for, in this order, then the implied ones
        it does not name.
        """
        named = {p.label for p in self.ports}
        return (*self.ports, *(Port(label=label) for label in IMPLIED_PORTS if label not in named))


class Retry(_Part, frozen=True, kw_only=True):
    """What is tried again, as a whole new attempt. -1: without end.

    count: after failures of unknown kind (an ordinary exit code); platform: after what the platform
    did (a lost machine, a signal from outside, ports that were taken). conflict_secs: the shortest
    wait after resources could not be had in time.
    """

    count: Annotated[int, msgspec.Meta(ge=-1, le=1_000)] = 0
    platform: Annotated[int, msgspec.Meta(ge=-1, le=1_000)] = 3
    conflict_secs: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0


class After(_Part, frozen=True, kw_only=True):
    """This run waits for the end of another one of the same user. on: it completed, ended in
    whatever way, or did not complete.

    serial 0: the run that is there when this one is accepted.
    """

    compute_jid: ComputeJid
    compute_job_serial: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    on: Literal["ok", "any", "failed"] = "ok"


class TaskPlace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where one task of an attempt is, and what it has there. address: what its peers connect to.
    ports: by label, in order.
    """

    role: Role
    index: int
    host: Host
    address: str
    ports: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()
