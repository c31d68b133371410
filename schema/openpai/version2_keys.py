"""The keys of OpenPAI's protocol version 2, each with its form and limits."""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from ...protocol.fields import Form, InvalidForm
from ...protocol.ids import Role
from ...protocol.jobs.roles import MAX_ROLES, Cores, Gpus, Mib, PortCount, TaskCount
from ..fields import shown
from .values import ROLE_NAME, retries

_NAME = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,255}\Z"),
    Form("letters, digits and . _ -, at most 255"),
]
_INSTANCES = Annotated[int, msgspec.Meta(ge=-1), Form("1 to the instances, or -1 for never")]
_ROLE = Annotated[Role, Form(f"the name of a role: {ROLE_NAME}")]
SECRET_FORM = "{file: PATH}, where PATH is a file that only you can read"


def _version(value: Any) -> int:
    if str(value) != "2":
        raise InvalidForm(f"it is {shown(value)}")
    return 2


class Secret(NamedTuple):
    """A secret: the file that has it, or its value. Its text does not show the value."""

    file: str = ""
    value: str = ""

    def __repr__(self) -> str:
        return f"Secret({self.file})"


def _secret(value: Any) -> Secret:
    """Return a secret. The value never appears in a message."""
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).isprintable():
        return Secret(value=str(value))
    path = value.get("file") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        raise InvalidForm("a secret in this file would be stored with the job", SECRET_FORM)
    return Secret(path)


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all objects share; no fields."""


class AuthKeys(_Keys, frozen=True, kw_only=True):
    """Credentials for a registry. registryuri: Docker's own, if absent."""

    username: Any = None
    password: Any = None
    registryuri: Any = None


#: Events before and after the commands of a role, in the words of two versions of OpenPAI's runtime.
STARTS, ENDS = ("taskStarts", "containerStarts"), ("taskSucceeds", "containerEnds")
_POLICY = Annotated[Literal["", "ignore", "fail"], Form("`ignore` or `fail`")]


class CallbackKeys(_Keys, frozen=True, kw_only=True):
    event: Annotated[
        Literal["taskStarts", "containerStarts", "taskSucceeds", "containerEnds"],
        Form("`taskStarts` or `taskSucceeds`"),
    ]
    commands: tuple[str, ...] = ()


class CommandKeys(_Keys, frozen=True, kw_only=True):
    callbacks: tuple[CallbackKeys, ...] = ()
    pre_commands: tuple[str, ...] = ()
    post_commands: tuple[str, ...] = ()


class PluginKeys(_Keys, frozen=True, kw_only=True):
    """The plugin `cmd` in `extras`. taskroles: for these roles only."""

    plugin: str = "cmd"
    parameters: CommandKeys = CommandKeys()
    taskroles: tuple[str, ...] = ()
    failure_policy: _POLICY = ""


class PrerequisiteKeys(_Keys, frozen=True, kw_only=True):
    """protocol_version, version, contributor and description are for people and templates."""

    protocol_version: Annotated[int, Form("2", _version)] = 2
    name: _NAME
    type: Literal["dockerimage", "data", "script", "output"]
    uri: Annotated[str | tuple[str, ...], Form("a text, or a list of texts")] = ""
    auth: AuthKeys | None = None
    version: Any = None
    contributor: Any = None
    description: Any = None
    plugin: str = ""
    callbacks: tuple[CallbackKeys, ...] = ()
    require: tuple[str, ...] = ()
    failure_policy: _POLICY = ""


class CompletionKeys(_Keys, frozen=True, kw_only=True):
    min_failed_instances: _INSTANCES | None = 1
    min_succeeded_instances: _INSTANCES | None = None


class ResourceKeys(_Keys, frozen=True, kw_only=True):
    cpu: Cores
    memory_mb: Mib = msgspec.field(name="memoryMB")
    gpu: Gpus = 0
    ports: dict[Annotated[Role, Form(f"a label: {ROLE_NAME}")], PortCount] = {}


class ContainerKeys(_Keys, frozen=True, kw_only=True):
    shm_mb: Mib | None = msgspec.field(name="shmMB", default=None)
    infiniband: bool = False


class RoleKeys(_Keys, frozen=True, kw_only=True):
    instances: TaskCount = 1
    completion: CompletionKeys = CompletionKeys()
    task_retry_count: Annotated[int, msgspec.Meta(ge=-1)] = 0
    docker_image: str
    data: str = ""
    output: str = ""
    script: str = ""
    prerequisites: tuple[str, ...] = ()
    resource_per_instance: ResourceKeys
    extra_container_options: ContainerKeys = ContainerKeys()
    commands: Annotated[
        tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000), Form("a list of commands")
    ]


class DeploymentRoleKeys(_Keys, frozen=True, kw_only=True):
    pre_commands: tuple[str, ...] = ()
    post_commands: tuple[str, ...] = ()


class DeploymentKeys(_Keys, frozen=True, kw_only=True):
    name: _NAME
    task_roles: dict[str, DeploymentRoleKeys] = {}
    version: Any = None
    contributor: Any = None
    description: Any = None


class DefaultKeys(_Keys, frozen=True, kw_only=True):
    virtual_cluster: str = ""
    deployment: str = ""


class JobKeys(_Keys, frozen=True, kw_only=True):
    """A configuration. `version`, `contributor` and `description` are for people."""

    protocol_version: Annotated[int, Form("2", _version)]
    name: _NAME
    type: Literal["job"] = "job"
    version: Any = None
    contributor: Any = None
    description: Any = None
    prerequisites: tuple[PrerequisiteKeys, ...] = ()
    parameters: dict[str, Any] = {}
    secrets: dict[
        Annotated[
            str,
            msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z"),
            Form("the name of a secret: letters, digits and _, not a digit first"),
        ],
        Annotated[Secret, Form(SECRET_FORM, _secret)],
    ] = {}
    job_retry_count: Annotated[
        int, msgspec.Meta(ge=-1, le=1_000), Form("a whole number, -1 for no limit", retries)
    ] = 0
    task_roles: Annotated[
        dict[_ROLE, RoleKeys],
        msgspec.Meta(min_length=1, max_length=MAX_ROLES),
        Form(f"an object of 1 to {MAX_ROLES} roles: name: {{instances, commands, ...}}"),
    ]
    deployments: tuple[DeploymentKeys, ...] = ()
    defaults: DefaultKeys = DefaultKeys()
    extras: dict[str, Any] = {}
