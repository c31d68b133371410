"""The keys of a job file: each with its form, its limits, and the names that other systems use for
it. docs/jobs.md explains them.

Rules about several keys are in `description`, `role_rules` and `batch_rules`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from ...protocol import durations
from ...protocol.api.job_arrays import Indices, parse_indices
from ...protocol.api.requests import MAX_LOGINS, DebugSecs, GraceSecs, Limit
from ...protocol.clusters.batch import BatchRequest
from ...protocol.errors import Refusal
from ...protocol.fields import MEGABYTES, Form, InvalidForm, megabytes, seconds
from ...protocol.ids import ComputeJid, Driver, EnvName, Role
from ...protocol.jobs.profiling import ProfileOption
from ...protocol.jobs.roles import (
    MAX_ROLES,
    Cores,
    Gpus,
    GpuType,
    Mib,
    PortBegin,
    PortCount,
    Retry,
    TaskCount,
)
from ...protocol.jobs.status import Kind
from ..fields import shown
from .container_rules import IMAGE_FORM, MAX_VOLUMES, VOLUME_FORM, image_problem, volume_problem

MAX_JOBS, MAX_AFTER, MAX_WORDS, MAX_LABELS = 1_000, 1_000, 10_000, 100
#: Maximum bytes of one word of a command, and of the value of a variable: the limit of the
#: operating system.
MAX_WORD_BYTES = 128 * 1024 - 1

_AFTER = "the name of a job, or an object with job and on"
_NAME = "a letter, then letters, digits or _, at most 32, because variables contain it"
_TIME = Form(durations.FORM, seconds)


def program_word(value: Any) -> str:
    """Parse a word of a command, or the value of a variable, from a text or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return str(value)
    if not isinstance(value, str):
        how = f"; put it in quotes: '{shown(value)}'" if isinstance(value, bool | float) else ""
        raise InvalidForm(f"it is {shown(value)}", f"a text{how}")
    if "\0" in value:
        raise InvalidForm("it contains a NUL", "a text without NUL; programs cannot receive one")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidForm(
            "it contains half of a character (a lone surrogate)", "a text in valid Unicode"
        ) from None
    if size > MAX_WORD_BYTES:
        raise InvalidForm(
            f"it has {len(value)} characters",
            f"at most {MAX_WORD_BYTES} bytes; put longer data into a file",
        )
    return value


def _command_line(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidForm(f"it is {shown(value)}")
    if not value.strip():
        raise InvalidForm("it is empty")
    return program_word(value)


def _array(value: Any) -> Indices:
    try:
        return parse_indices(value) if isinstance(value, str) else _invalid()
    except Refusal as e:
        raise InvalidForm(e.sentence) from None


def _invalid() -> Any:
    raise InvalidForm


def _bytes(value: Any) -> int:
    return megabytes(value) * 2**20


def _files(value: Any) -> tuple[str, ...]:
    """Return the names of files with credentials. Other values do not appear in a message."""
    items = value if isinstance(value, list) else [value]
    names = [v.get("file") if isinstance(v, dict) and len(v) == 1 else None for v in items]
    if not 0 < len(names) <= MAX_LOGINS or not all(
        isinstance(n, str) and n and n.isprintable() for n in names
    ):
        raise InvalidForm("it is no reference to a file; credentials in it would be stored")
    return tuple(dict.fromkeys(map(str, names)))


def _without(problem: Callable[[str], str | None]) -> Callable[[Any], str]:
    """Return a parser of texts in which this function finds no problem."""

    def read(value: Any) -> str:
        found = problem(value) if isinstance(value, str) else f"it is {shown(value)}"
        if found is not None:
            raise InvalidForm(found)
        return str(value)

    return read


ArgWord = Annotated[str, Form("a text", program_word)]
Image = Annotated[str, Form(IMAGE_FORM, _without(image_problem), ("dockerImage",))]
Env = Annotated[
    dict[EnvName, ArgWord],
    Form("an object: NAME: value", aliases=("environment", "jobEnvs")),
]
_Line = Annotated[str, Form(read=_command_line)]
_Words = Annotated[
    tuple[ArgWord, ...],
    msgspec.Meta(min_length=1, max_length=MAX_WORDS),
    Form(f"a text for /bin/bash -c, or a list of 1 to {MAX_WORDS} words"),
]
_COMMAND = "a text for /bin/bash -c, or a list of words"
Command = Annotated[_Line | _Words, Form(_COMMAND, aliases=("cmd",))]
#: The number of tasks is checked by `role_rules`; -1 and null mean never.
_Threshold = Annotated[int, Form("1 to the number of tasks, or null for never")]


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all objects of a job file share; no fields."""


class Ports(_Keys, frozen=True, kw_only=True):
    """The ports of one label."""

    begin: Annotated[PortBegin, Form(aliases=("beginAt", "start", "first"))] = 0
    count: Annotated[PortCount, Form(aliases=("portNumber", "number"))] = 1


class RoleKeys(_Keys, frozen=True, kw_only=True):
    """A role. Fields with the name of a field of `TaskRole` are copied. shm `None`: 64 MB, or the
    memory if that is less.
    """

    tasks: Annotated[TaskCount, Form(aliases=("taskNumber", "instances", "count", "replicas"))] = 1
    command: Annotated[Command, Form(aliases=("cmd", "commands"))]
    env: Env = {}
    cpu: Annotated[Cores, Form(aliases=("cpuNumber", "cpus", "cores"))] = 1
    memory_mb: Annotated[Mib, MEGABYTES, Form(aliases=("memoryMB", "mem"))] = msgspec.field(
        name="memory", default=100
    )
    shm: Annotated[Mib, MEGABYTES, Form(aliases=("shmMB",))] | None = None
    gpu: Annotated[Gpus, Form(aliases=("gpuNumber", "gpus"))] = 0
    gpu_type: GpuType | None = None
    ports: Annotated[
        dict[
            Annotated[Role, Form(f"a label: {_NAME}")],
            Annotated[
                PortCount | Ports, Form("a count, 1 to 256, or an object with begin and count")
            ]
            | None,
        ],
        msgspec.Meta(max_length=MAX_LABELS),
        Form(
            f"an object of at most {MAX_LABELS} labels: label: count, or label: {{begin, count}}",
            aliases=("portList", "port"),
        ),
    ] = {}
    image: Annotated[Image, Form(aliases=("dockerImage", "docker", "container"))] | None = None
    volumes: Annotated[
        tuple[Annotated[str, Form(VOLUME_FORM, _without(volume_problem))], ...],
        msgspec.Meta(max_length=MAX_VOLUMES),
        Form(
            f"a list of names and paths, at most {MAX_VOLUMES}",
            aliases=("volume", "mounts", "storages"),
        ),
    ] = ()
    min_failed: (
        Annotated[_Threshold, Form(aliases=("minFailedTaskCount", "minFailedInstances"))] | None
    ) = 1
    min_succeeded: (
        Annotated[_Threshold, Form(aliases=("minSucceededTaskCount", "minSucceededInstances"))]
        | None
    ) = None


class BatchKeys(BatchRequest, frozen=True, kw_only=True):
    """A request to a cluster: the fields of `BatchRequest`, with the memory also as a text."""

    memory_mb: Annotated[Mib, MEGABYTES, Form(aliases=("mem", "memoryMb"))] | None = msgspec.field(
        name="memory", default=None
    )


class Dependency(_Keys, frozen=True, kw_only=True):
    """A dependency: on a job of this file, by its name, or on another run, by its computeJid."""

    job: Annotated[str, Form("the name of a job here, or a computeJid", aliases=("name",))]
    on: Annotated[Literal["ok", "any", "failed"], Form(aliases=("when",))] = "ok"


class JobKeys(_Keys, frozen=True, kw_only=True):
    """A job. It has a command or roles. Fields with the name of a field of `RunSpec` are copied."""

    name: Annotated[
        str,
        msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,255}\Z"),
        Form("letters, digits and . _ -, at most 255", aliases=("jobName", "simName")),
    ]
    unique: bool = False
    kind: Annotated[Kind, Form(aliases=("jobRunMode",))] | None = None
    driver: (
        Annotated[
            Driver,
            Form(
                "a small letter, then small letters or digits, at most 16; the usual one is local"
            ),
        ]
        | None
    ) = None
    image: Image | None = None
    command: Command | None = None
    roles: (
        Annotated[
            dict[Annotated[Role, Form(f"the name of a role: {_NAME}")], RoleKeys],
            msgspec.Meta(min_length=1, max_length=MAX_ROLES),
            Form(
                f"an object of 1 to {MAX_ROLES} roles: name of the role: {{tasks, command, ...}}",
                aliases=("taskRoles",),
            ),
        ]
        | None
    ) = None
    env: Env = {}
    retry: Annotated[
        Retry,
        Form(
            "an object with count, platform and conflictSecs",
            aliases=("retryCount", "jobRetryCount", "retries"),
        ),
    ] = Retry()
    debug_secs: Annotated[DebugSecs, _TIME, Form(aliases=("isDebug", "debugSecs"))] | None = (
        msgspec.field(name="debug", default=None)
    )
    ssh: Annotated[bool, Form("true or false")] = False
    time_limit_secs: Annotated[Limit, _TIME, Form(aliases=("timeLimitSecs", "time"))] | None = (
        msgspec.field(name="timeLimit", default=None)
    )
    queue_limit_secs: Annotated[Limit, _TIME, Form(aliases=("queueLimitSecs",))] | None = (
        msgspec.field(name="queueLimit", default=None)
    )
    grace_secs: Annotated[GraceSecs, _TIME, Form(aliases=("graceSecs",))] = msgspec.field(
        name="grace", default=3.0
    )
    profile: (
        Annotated[
            ProfileOption, Form("cpu, mem or gpu, or one of these with its tool, as in mem=memray")
        ]
        | None
    ) = None
    core_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50), Form(MEGABYTES.right, _bytes)] = (
        msgspec.field(name="core", default=0)
    )
    after: Annotated[
        tuple[Annotated[str | Dependency, Form(_AFTER)], ...],
        msgspec.Meta(max_length=MAX_AFTER),
        Form(
            f"a list of at most {MAX_AFTER} names, or objects with job and on",
            aliases=("dependsOn", "dependencies", "needs"),
        ),
    ] = ()
    queue: (
        Annotated[
            str,
            msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z"),
            Form("the name of a queue: a small letter, then small letters, digits, _ or -"),
        ]
        | None
    ) = None
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000), Form("a whole number")] | None = None
    array: (
        Annotated[
            Indices,
            Form(
                "indices as a text, such as '0-9,20,30-40:2%5' (%5: five at once)",
                _array,
                ("indices",),
            ),
        ]
        | None
    ) = None
    data_dir: ArgWord | None = None
    output_dir: ArgWord | None = None
    code_dir: ArgWord | None = None
    virtual_cluster: Annotated[ArgWord, Form(aliases=("partition",))] | None = None
    registry_auth: Annotated[
        tuple[str, ...],
        Form(
            f"{{file: PATH}}, or a list of 1 to {MAX_LOGINS} of these",
            _files,
            ("authFile", "auth", "imagePullSecrets"),
        ),
    ] = ()
    cloned_from: Annotated[ComputeJid, Form("the computeJid of a job of yours")] | None = None
    batch: (
        Annotated[
            BatchKeys,
            Form(
                "the request to the cluster: an object with partition, nodes, ...",
                aliases=("sbatch", "slurm"),
            ),
        ]
        | None
    ) = None


class JobList(_Keys, frozen=True, kw_only=True):
    """A description of several jobs, which are converted one by one."""

    jobs: Annotated[
        tuple[Any, ...],
        msgspec.Meta(min_length=1, max_length=MAX_JOBS),
        Form(f"a list of jobs, 1 to {MAX_JOBS}"),
    ]
