"""One task of a job file on this machine: what `job simulate` starts. Needs no supervisor.

Command, environment, `job.json` and container are made by the functions that the drivers use.
"""

import base64
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

import msgspec

from ...protocol.api.job_arrays import expand
from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.errors import Refusal
from ...protocol.ids import Token, compute_jid
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.registry_login import PUBLIC, RegistryLogin
from ...protocol.jobs.roles import TaskPlace, TaskRole
from ...protocol.launch import job_script, task_environment
from ...protocol.wire.messages import ContainerSpec, TaskSpec
from ...runtime.execution import folder as evidence_folder
from ...schema.fields import quoted
from ...schema.jobs.description import JobDescription
from .job_document import JobDocument

#: The user and the simulation of simulated runs; no real one has them.
_UID = _SID = "simulate"
_ADDRESS = "127.0.0.1"
_MAIN = "main"
_DOCKER = "unix:///var/run/docker.sock"
#: The name of Docker's own registry in its client's configuration.
_DOCKER_HUB = "https://index.docker.io/v1/"
#: Variables of a job with folders; tasks write to the last one.
_FOLDERS = ("PAI_DATA_DIR", "PAI_CODE_DIR", "PAI_OUTPUT_DIR")
#: Names of files beside the evidence of a task in a container.
_WRAPPER, _WRAPPER_TEXT = (
    "wrapper.sh",
    'exec 3>&2\ncd "$(dirname "$0")" && exec /bin/sh ./script.sh\n',
)
#: Exit code of `docker run` if it could not start the container.
_NOT_STARTED = 125


class Folder(NamedTuple):
    """A folder or file of this machine that a task in a container sees under the same path."""

    path: str
    writable: bool


class Task(NamedTuple):
    """A task to start. root: the run directory, which is the user's own in a container. env: without
    that of the login. notes: parts of the job that have no effect here, as sentences. logins: for the
    registries of images.
    """

    name: str
    token: Token
    spec: TaskSpec
    env: dict[str, str]
    root: str
    directory: str
    image: str | None
    job: str | None
    notes: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    logins: tuple[RegistryLogin, ...] = ()


class Outcome(NamedTuple):
    task: Task
    exit: ExitInfo

    @property
    def shell_code(self) -> int:
        return 128 + self.exit.signal if self.exit.signal else self.exit.code or 0


def prepare(
    document: JobDocument,
    job: str | None,
    role: str | None,
    index: int | None,
    folder: str | None,
    *,
    containers: bool,
) -> Task:
    """Return the task that these options name, and create its directory. Raises Refusal."""
    spec = _spec(_job(document, job), index)
    if role is not None and role not in [r.name for r in spec.roles]:
        known = ", ".join(r.name for r in spec.roles) or "none, so leave out --role"
        raise Refusal("badRequest", f"the job has no role {quoted(role)}; its roles are: {known}")
    root = os.path.abspath(folder or tempfile.mkdtemp(prefix="jobscribe-simulate-"))
    if not spec.roles:
        return plain_task(spec, root)._replace(notes=_notes(spec))
    chosen = next(r for r in spec.roles if role in (None, r.name))
    if (index or 0) >= chosen.tasks:
        raise Refusal(
            "badRequest",
            f"role {chosen.name} has no task {index}; give --index 0 to {chosen.tasks - 1}",
        )
    places = local_places(spec.roles)
    place = next(p for p in places if (p.role, p.index) == (chosen.name, index or 0))
    _check_ports(chosen, place)
    task = role_task(spec, chosen, place, places, root, containers=containers)
    return task._replace(
        notes=_notes(spec) + _role_notes(chosen, task),
        folders=_folders(document, spec, chosen),
        logins=tuple(document.credentials.values()),
    )


def run_task(task: Task, *, to_stderr: bool) -> Outcome:
    """Run the task to its end; its output is that of this process. Raises Refusal."""
    os.makedirs(task.directory, exist_ok=True)
    if task.job is not None:
        with open(f"{task.directory}/{evidence_folder.JOB}", "w", encoding="utf-8") as f:
            f.write(task.job)
    out = sys.stderr if to_stderr else None
    return Outcome(task, _run_in_container(task, out) if task.image else _run(task, out))


def _notes(spec: RunSpec) -> tuple[str, ...]:
    out = []
    if isinstance(spec.batch, BatchRequest):
        out.append("the request to the cluster (batch), with modules and setup, has no effect here")
    if spec.ssh:
        out.append("ssh has no effect here: no sshd is started, and no other task runs")
    return tuple(out)


def _folders(document: JobDocument, spec: RunSpec, role: TaskRole) -> tuple[Folder, ...]:
    """Return the folders and files that the command of a task names and its job provides."""
    if document.openpai is not None:
        known = [Folder(p.value, p.use == "outputDir") for p in document.openpai.paths]
    else:
        known = [Folder(spec.env.get(name, ""), name == _FOLDERS[-1]) for name in _FOLDERS]
    named = "\n".join((*role.command, *spec.env.values()))
    used = [f for f in known if f.path.startswith("/") and f.path in named]
    return (*used, *(Folder(path, True) for path in role.volumes if path.startswith("/")))


def _role_notes(role: TaskRole, task: Task) -> tuple[str, ...]:
    out = []
    if volumes := [v for v in role.volumes if not (task.image and v.startswith("/"))]:
        out.append(f"volumes are not mounted here: {', '.join(volumes)}")
    if role.gpu:
        out.append("CUDA_VISIBLE_DEVICES names GPUs that this machine may not have")
    if role.image and not task.image:
        out.append(f"the image {role.image} is not used")
    return tuple(out)


def _job(document: JobDocument, name: str | None) -> JobDescription:
    jobs = document.description.jobs
    if name is None and len(jobs) == 1:
        return jobs[0]
    found = next((job for job in jobs if job.name == name), None)
    if found is None:
        known = ", ".join(job.name for job in jobs[:20])
        what = "the file has several jobs" if name is None else f"there is no job {quoted(name)}"
        raise Refusal("badRequest", f"{what}; give --job with one of: {known}")
    return found


def _spec(job: JobDescription, index: int | None) -> RunSpec:
    """Return the run, or one run of an array."""
    spec = msgspec.structs.replace(job.spec, uid=_UID, simulation_id=_SID, after=())
    if job.indices is None:
        return spec
    numbers = job.indices.numbers
    if index is not None and not spec.roles and index not in numbers:
        raise Refusal("badRequest", f"the array has no run {index}; it has {job.indices}")
    which = numbers.index(index) if index is not None and index in numbers else 0
    return expand(spec, job.indices)[which]


def _jid(spec: RunSpec) -> str:
    return compute_jid(spec.uid, spec.simulation_id, spec.compute_model)


def plain_task(spec: RunSpec, root: str, serial: int = 1, attempt: int = 1) -> Task:
    """Return the task of a run without roles."""
    token = Token(_jid(spec), serial, attempt, _MAIN, 0)
    task = _task_spec(spec, spec.command, root, spec.env)
    return Task(_MAIN, token, task, dict(spec.env), root, root, None, None)


def _check_ports(role: TaskRole, place: TaskPlace) -> None:
    from ...agent.host.port_probe import ports_in_use

    fixed = [n for p in role.ports if p.begin for n in place.ports[p.label]]
    if busy := ports_in_use(fixed):
        raise Refusal("portTaken", f"port {busy[0]} is in use on this machine")


def role_task(
    spec: RunSpec,
    role: TaskRole,
    place: TaskPlace,
    places: Sequence[TaskPlace],
    root: str,
    serial: int = 1,
    attempt: int = 1,
    *,
    containers: bool,
) -> Task:
    """Return the task of a role at this place. places: of all tasks."""
    jid, index, directory = _jid(spec), place.index, f"{root}/{role.name}/{place.index}"
    shared = task_environment.shared(spec, jid, serial, attempt, places)
    env = {
        **shared.env,
        **task_environment.without_shared(spec, jid, serial, attempt, place, directory),
    }
    image = role.image if containers else None
    box = ContainerSpec(
        image=image,
        cpu=role.cpu,
        memory_mb=role.memory_mb,
        shm_mb=role.shm_mb,
        gpus=place.gpus,
        volumes=role.volumes,
    )
    task = msgspec.structs.replace(_task_spec(spec, role.command, directory, env), box=box)
    token = Token(jid, serial, attempt, role.name, index)
    return Task(f"{role.name}/{index}", token, task, env, root, directory, image, shared.job)


def _task_spec(
    spec: RunSpec, command: Sequence[str], directory: str, env: Mapping[str, str]
) -> TaskSpec:
    return TaskSpec(
        command=tuple(command),
        run_dir=directory,
        env=dict(env),
        wrap=spec.wrap,
        time_limit_secs=spec.time_limit_secs,
        grace_secs=spec.grace_secs,
        core_bytes=spec.core_bytes,
    )


def local_places(roles: Sequence[TaskRole]) -> tuple[TaskPlace, ...]:
    """Return places for all tasks on this machine, with free ports."""
    taken: set[int] = {
        p.begin + n for r in roles for p in r.ports if p.begin for n in range(p.count)
    }
    return tuple(
        TaskPlace(
            role=r.name,
            index=i,
            host=socket.gethostname(),
            address=_ADDRESS,
            ports={
                p.label: tuple(range(p.begin, p.begin + p.count))
                if p.begin
                else _free_ports(p.count, taken)
                for p in r.all_ports()
            },
            gpus=tuple(map(str, range(r.gpu))),
        )
        for r in roles
        for i in range(r.tasks)
    )


def _free_ports(count: int, taken: set[int]) -> tuple[int, ...]:
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as s:
            s.bind((_ADDRESS, 0))
            port: int = s.getsockname()[1]
        if port not in taken:
            found.append(port)
            taken.add(port)
    return tuple(found)


def _run(task: Task, out: TextIO | None) -> ExitInfo:
    """Run the task as a child process; end what it leaves."""
    login = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    identity = job_script.identity_variables(task.token, task.directory, task.directory)
    env = {**job_script.job_environment(login), **task.env, **identity}
    try:
        child = subprocess.Popen(
            [*task.spec.wrap, *_command(task.spec)],
            cwd=task.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            start_new_session=True,
        )
    except OSError as e:
        # as a shell reports it
        code = 127 if isinstance(e, FileNotFoundError) else 126
        return ExitInfo(code=code, source="start")
    stopped = _wait(child, task.spec)
    _signal(child, signal.SIGKILL)
    if child.returncode < 0:
        return ExitInfo(signal=-child.returncode, stop_reason=stopped)
    return ExitInfo(code=child.returncode, stop_reason=stopped)


def _command(spec: TaskSpec) -> tuple[str, ...]:
    """Return the command, as an agent on this machine starts it."""
    if spec.command[:2] == job_script.TEXT and not os.access(job_script.TEXT[0], os.X_OK):
        return ("/bin/sh", *spec.command[1:])
    return spec.command


def _wait(child: "subprocess.Popen[bytes]", spec: TaskSpec) -> str | None:
    """Wait for the end; stop the task at its time limit or at an interrupt. Return the reason."""
    try:
        child.wait(spec.time_limit_secs)
        return None
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as e:
        _signal(child, signal.SIGTERM)
        try:
            child.wait(spec.grace_secs)
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGKILL)
            child.wait()
        return "cancel" if isinstance(e, KeyboardInterrupt) else "timeLimit"


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


# ---- in a container


def _run_in_container(task: Task, out: TextIO | None) -> ExitInfo:
    """Run the task in its image with `docker`, isolated and limited as the Docker driver does."""
    evidence = f"{task.directory}/.jobscribe"
    # an earlier simulation in this directory left an exit code
    shutil.rmtree(evidence, ignore_errors=True)
    os.makedirs(evidence)
    script = job_script.script(task.token, task.spec, {}, evidence)
    for name, text in ((_WRAPPER, _WRAPPER_TEXT), (evidence_folder.SCRIPT, script)):
        with open(f"{evidence}/{name}", "w", encoding="utf-8") as f:
            f.write(text)
    name = f"jobscribe-simulate-{os.getpid()}"
    _make_outputs(task)
    words = docker_words(task, name, evidence)
    _pull(task, words)
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
        )
    except OSError as e:
        raise Refusal(
            "notHere", f"docker cannot be started: {e.strerror}; install it, or give --no-image"
        ) from None
    try:
        stopped = _wait_for_container(child, words, name, task.spec)
        memory = _docker(words, "inspect", "-f", "{{.State.OOMKilled}}", name).strip() == "true"
    finally:
        _docker(words, "rm", "-f", name)
    if evidence_folder.written_code(evidence) is None and child.returncode == _NOT_STARTED:
        raise Refusal("notHere", "docker did not start the container; see its message above")
    facts = evidence_folder.from_code(evidence, child.returncode)
    return ExitInfo(
        code=facts.get("code"),
        signal=facts.get("signal"),
        out_of_memory=True if memory else None,
        stop_reason=stopped,
        source="engine",
    )


def _make_outputs(task: Task) -> None:
    """Create the folders that a task writes, as it does itself without a container."""
    for folder in task.folders:
        if folder.writable:
            with contextlib.suppress(OSError):  # then the task says that it cannot
                os.makedirs(folder.path, exist_ok=True)


def _pull(task: Task, words: Sequence[str]) -> None:
    """Pull an image for whose registry the job has credentials. They are in no argument, and removed
    after the pull. Raises Refusal.
    """
    from ...drivers.docker.images.registry_credentials import parse_image

    image = parse_image(task.image or "")
    login = next((o for o in task.logins if image and o.registry == image.registry), None)
    if login is None or image is None:
        return
    auth = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
    registry = _DOCKER_HUB if login.registry == PUBLIC else login.registry
    with tempfile.TemporaryDirectory(prefix="jobscribe-login-") as folder:  # for this user alone
        with open(f"{folder}/config.json", "w", encoding="utf-8") as f:
            json.dump({"auths": {registry: {"auth": auth}}}, f)
        docker, *address = words[: words.index("run")]
        ended = subprocess.run(
            [docker, "--config", folder, *address, "pull", image.full],
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        said = ended.stderr.strip().rpartition("\n")[2][:300]
        raise Refusal("notHere", f"docker cannot pull {image.full}: {said}")


def docker_words(task: Task, name: str, evidence: str) -> list[str]:
    """Return the words of `docker run` for this task, in the foreground."""
    from ...drivers.docker.containers.specifications import docker_run, task_container
    from ...protocol.clusters.container_pool import Pool, PoolHost, Volume

    box = task.spec.box
    assert isinstance(box, ContainerSpec) and task.image is not None
    address = os.environ.get("DOCKER_HOST", _DOCKER)
    host = PoolHost(name="here", address=address, cpu=box.cpu, memory_mb=box.memory_mb)
    volumes = {
        f.path: Volume(source=f.path, target=f.path, read_only=not f.writable)
        for f in task.folders
        if os.path.exists(f.path)
    }
    pool = Pool(hosts=(host,), image=task.image, volumes=volumes)
    creation = task_container(
        pool,
        name=name,
        image=task.image,
        box=msgspec.structs.replace(box, volumes=tuple(volumes)),
        token=task.token,
        labels={},
        user=(os.getuid(), os.getgid()),
        evidence=evidence,
        user_dir=task.root,
        log_driver="none",
    )
    words = shlex.split(docker_run(creation, host))
    # in the foreground, so that the output of the task appears here
    words.remove("-d")
    return words


def _wait_for_container(
    child: "subprocess.Popen[bytes]", words: Sequence[str], name: str, spec: TaskSpec
) -> str | None:
    try:
        child.wait(spec.time_limit_secs)
        return None
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as e:
        _docker(words, "stop", "-t", f"{spec.grace_secs:.0f}", name)
        child.wait()
        return "cancel" if isinstance(e, KeyboardInterrupt) else "timeLimit"


def _docker(run: Sequence[str], *words: str) -> str:
    """Run a command of docker for the host of this `docker run`. Return its output."""
    begin = list(run[: run.index("run")])
    ended = subprocess.run([*begin, *words], capture_output=True, text=True, check=False)
    return ended.stdout
