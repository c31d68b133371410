"""Job configurations of OpenPAI, version 1 (JSON): their keys, and the job description for one."""

from typing import Annotated, Any

import msgspec

from ...protocol.fields import Form, InvalidForm
from ...protocol.ids import Role
from ...protocol.jobs.roles import MAX_ROLES, Cores, Gpus, Mib, PortBegin, PortCount, TaskCount
from ..fields import Findings, member, quoted, shown
from ..jobs.keys import program_word
from ..structs import Place, convert
from . import task_script
from .draft import Draft, LoginSource, Options
from .task_script import Folders
from .values import (
    ROLE_NAME,
    check_folder,
    job_name,
    note_image,
    note_installs,
    note_shell,
    put_gpu_type,
    put_ssh,
    retries,
    scalar,
    storages,
)

#: Keys of a job description, with their names here.
WORDS = {
    "name": "jobName",
    "env": "jobEnvs",
    "queue": "virtualCluster",
    "roles": "taskRoles",
    "tasks": "taskNumber",
    "cpu": "cpuNumber",
    "memory": "memoryMB",
    "shm": "shmMB",
    "gpu": "gpuNumber",
    "ports": "portList",
    "begin": "beginAt",
    "count": "portNumber",
    "minFailed": "minFailedTaskCount",
    "minSucceeded": "minSucceededTaskCount",
}
#: OpenPAI keeps the container of a failed task for a week.
_DEBUG = "7d"
_MEMORY = Annotated[
    int,
    msgspec.Meta(ge=100),
    Form("a whole number of MB", aliases=("memory", "memoryMb")),
]


def _command(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidForm(
            "it is empty" if isinstance(value, str) else f"it is {shown(value)}",
            "the command as a text",
        )
    return program_word(value)


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Encoding that all objects share; no fields."""


class PortKeys(_Keys, frozen=True, kw_only=True):
    label: Annotated[Role, Form(f"a label: {ROLE_NAME}")]
    begin_at: PortBegin = 0
    port_number: PortCount = 1


class RoleKeys(_Keys, frozen=True, kw_only=True):
    name: Annotated[Role, Form(f"the name of a role: {ROLE_NAME}")]
    task_number: Annotated[TaskCount, Form(aliases=("tasks", "instances"))] = 1
    cpu_number: Annotated[Cores, Form(aliases=("cpu", "cpus", "cores"))] = 1
    memory_mb: _MEMORY = msgspec.field(name="memoryMB", default=100)
    shm_mb: Mib | None = msgspec.field(name="shmMB", default=None)
    gpu_number: Annotated[Gpus, Form(aliases=("gpu", "gpus"))] = 0
    port_list: Annotated[tuple[PortKeys, ...], Form(aliases=("ports",))] = ()
    command: Annotated[str, Form("the command as a text", _command)]
    min_failed_task_count: (
        Annotated[int, msgspec.Meta(ge=1), Form(aliases=("minFailed",))] | None
    ) = 1
    min_succeeded_task_count: (
        Annotated[int, msgspec.Meta(ge=1), Form(aliases=("minSucceeded",))] | None
    ) = None


class JobKeys(_Keys, frozen=True, kw_only=True):
    """A configuration. Texts may be empty, which means absent."""

    job_name: Annotated[
        str,
        msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,255}\Z"),
        Form("letters, digits and . _ -, at most 255", job_name, ("name",)),
    ]
    image: str
    auth_file: str = ""
    data_dir: str = ""
    output_dir: str = ""
    code_dir: str = ""
    virtual_cluster: str = ""
    task_roles: Annotated[
        tuple[RoleKeys, ...],
        msgspec.Meta(min_length=1, max_length=MAX_ROLES),
        Form(f"a list of 1 to {MAX_ROLES} roles", aliases=("roles",)),
    ]
    gpu_type: str = ""
    retry_count: Annotated[
        int,
        msgspec.Meta(ge=-1, le=1_000),
        Form("a whole number, -1 for no limit, at most 1,000", retries),
    ] = 0
    job_envs: Annotated[
        dict[str, Any], Form("an object: NAME: value", aliases=("env", "environment"))
    ] = {}
    extras: dict[str, Any] = {}
    kill_all_on_completed_task_number: int | None = None


def draft_of(data: object, findings: Findings, options: Options) -> Draft:
    """Return the job description of a configuration. Records its problems."""
    place = Place(data, "", findings)
    keys, draft = convert(JobKeys, data, findings), Draft(WORDS)
    tries = (keys.retry_count, "retryCount")
    draft.put_common(keys.job_name, options, tries, keys.virtual_cluster, "virtualCluster")
    _variables(keys, draft, place)
    folders = _folders(keys, draft, place, options)
    _login(keys, draft, place, options)
    _note_ignored(keys, place)
    _roles(keys, draft, place, folders, options)
    return draft


def _variables(keys: JobKeys, draft: Draft, place: Place) -> None:
    """Convert `jobEnvs`. Two of its names are switches of OpenPAI and stay variables, too."""
    envs = place.within("jobEnvs")
    draft.begin(["env"], "jobEnvs")
    draft.put(["env", "PAI_DEFAULT_FS_URI"], "file://", "jobEnvs")
    for name, value in keys.job_envs.items():
        try:
            draft.put(["env", name], scalar(value), member("jobEnvs", name))
        except InvalidForm as e:
            envs.error(name, str(e), e.right)
    if (debug := keys.job_envs.get("isDebug")) is True:
        draft.put(["debug"], _DEBUG, "jobEnvs.isDebug")
    elif debug not in (None, False):
        envs.error("isDebug", f"it is {shown(debug)}", "true or false, without quotes")
    if keys.job_envs.get("paiAzRDMA") is True:
        envs.findings.warning("jobEnvs.paiAzRDMA", "jobscribe does not set up RDMA", "leave it out")


def _login(keys: JobKeys, draft: Draft, place: Place, options: Options) -> None:
    """Convert `authFile`, which whoever submits the job reads."""
    if not keys.auth_file or not options.containers:
        return
    file = task_script.local_path(keys.auth_file, _known(keys, options))
    if not task_script.is_local(file) or not file.isprintable():
        place.error(
            "authFile",
            f"{quoted(file)} is no file that jobscribe reads",
            "the absolute path of a file of yours on the machine where you submit",
        )
        return
    draft.logins.append(LoginSource("authFile", file, file))
    draft.put_logins()


def _known(keys: JobKeys, options: Options) -> dict[str, str]:
    """Return the variables that OpenPAI replaces in paths."""
    return {
        "PAI_DEFAULT_FS_URI": "file://",
        "PAI_JOB_NAME": keys.job_name,
        "PAI_USER_NAME": options.user,
        "PAI_USERNAME": options.user,
    }


def _folders(keys: JobKeys, draft: Draft, place: Place, options: Options) -> Folders:
    known = _known(keys, options)
    found = {
        key: check_folder(draft, place, key, key, task_script.local_path(value, known))
        if value
        else ""
        for key, value in (
            ("dataDir", keys.data_dir),
            ("outputDir", keys.output_dir),
            ("codeDir", keys.code_dir),
        )
    }
    for key, folder in found.items():
        if folder:
            draft.put([key], folder, key)
    return Folders(found["dataDir"], found["outputDir"], found["codeDir"])


def _note_ignored(keys: JobKeys, place: Place) -> None:
    warning = place.findings.warning
    if keys.gpu_type and not any(role.gpu_number for role in keys.task_roles):
        warning("gpuType", "no role has GPUs", "`gpuNumber` of a role")
    if keys.kill_all_on_completed_task_number:
        warning(
            "killAllOnCompletedTaskNumber",
            "it is obsolete and has no effect",
            "`minSucceededTaskCount` of a role",
        )


def _roles(keys: JobKeys, draft: Draft, place: Place, folders: Folders, options: Options) -> None:
    draft.begin(["roles"], "taskRoles")
    volumes = storages(place.within("extras"), options)
    put_ssh(draft, place.within("extras"), options)
    if options.containers:
        draft.put(["ssh"], True, "taskRoles")  # OpenPAI starts sshd in tasks of all images with it
    before = task_script.lines(folders)
    first: dict[str, str] = {}
    if not options.containers and keys.image:
        note_image(place.findings, "image", keys.image)
    for role, here in zip(keys.task_roles, place.each("taskRoles"), strict=False):
        if not role.name:
            continue
        if first.setdefault(role.name, here.path) != here.path:
            here.error("name", f"{first[role.name]} has the same name", "a unique name")
            continue
        _role(role, draft, here, before)
        note_shell(place.findings, member(here.path, "command"), role.command)
        put_gpu_type(draft, place, role.name, keys.gpu_type, role.gpu_number)
        if options.containers:
            note_installs(place.findings, member(here.path, "command"), role.command)
            draft.put(["roles", role.name, "image"], keys.image, "image")
            draft.put(["roles", role.name, "volumes"], volumes, "extras")


def _role(role: RoleKeys, draft: Draft, here: Place, before: str) -> None:
    top = ["roles", role.name]
    draft.begin(top, here.path)
    for key, name, value in (
        ("tasks", "taskNumber", role.task_number),
        ("cpu", "cpuNumber", role.cpu_number),
        ("memory", "memoryMB", role.memory_mb),
        ("gpu", "gpuNumber", role.gpu_number),
        ("command", "command", before + role.command if role.command else "true"),
        ("minFailed", "minFailedTaskCount", role.min_failed_task_count),
        ("minSucceeded", "minSucceededTaskCount", role.min_succeeded_task_count),
    ):
        draft.put([*top, key], value, member(here.path, name))
    if role.shm_mb is not None:
        draft.put([*top, "shm"], role.shm_mb, member(here.path, "shmMB"))
    labels: set[str] = set()
    for port, at in zip(role.port_list, here.each("portList"), strict=False):
        if port.label in labels:
            at.error("label", f"the label {quoted(port.label)} occurs twice", "each label once")
        elif port.label:
            label = [*top, "ports", port.label]
            draft.begin(label, at.path)
            draft.put([*label, "begin"], port.begin_at, member(at.path, "beginAt"))
            draft.put([*label, "count"], port.port_number, member(at.path, "portNumber"))
        labels.add(port.label)
