"""The environment of a task of a run with roles: the `PAI_*` variables, and `job.json` with the
same data for programs.

Pure. `shared` returns what all tasks of an attempt have in common (the addresses of all tasks),
`own` the variables of one task. Formats follow the OpenPAI guides, with the names of newer scripts
beside the older ones. Host lists are complete and ordered by index, because all tasks are placed
before any is started.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..api.requests import RunSpec
from ..ids import Token
from ..jobs.roles import TaskPlace, TaskRole
from ..wire.messages import Shared

#: Variables that a run may set in its `env`, with their defaults.
GIVEN = {
    "PAI_DATA_DIR": "",
    "PAI_OUTPUT_DIR": "",
    "PAI_CODE_DIR": "",
    "PAI_DEFAULT_FS_URI": "file:///",
    "PAI_JOB_VC_NAME": "default",
}
#: Number of variables per run, per role and per task, excluding those that exist once per task or
#: per port label.
_OF_RUN, _OF_ROLE, _OWN = 17, 5, 18
#: Role names with this prefix, or with a number between underscores, may give two variables the
#: same name.
_DOUBTFUL = re.compile(r"(PORT_LIST|RESOURCE|MIN|TASK_COUNT|TASK_ROLE)_|.*_\d+_")

Pairs = Iterator[tuple[str, str]]


def shared(
    spec: RunSpec, jid: str, serial: int, attempt: int, places: Sequence[TaskPlace]
) -> Shared:
    """Return the variables and the `job.json` that all tasks share. places: one for each task, in
    any order. Raises ValueError if a place or a port is missing.
    """
    ordered = _in_order(spec.roles, places)
    pairs = [*_run_pairs(spec, jid, serial, attempt), *_peer_pairs(spec.roles, ordered)]
    env = dict(pairs)
    if len(env) != len(pairs):
        raise ValueError(f"two variables have the same name: {find_name_conflict(spec.roles)}")
    return Shared(env=env, job=_job_json(spec, jid, serial, attempt, ordered))


def own(spec: RunSpec, jid: str, serial: int, attempt: int, place: TaskPlace) -> dict[str, str]:
    """Return the variables of the task at this place, without the shared ones. Raises ValueError if
    the run has no such task.
    """
    role = next(
        (r for r in spec.roles if r.name == place.role and 0 <= place.index < r.tasks), None
    )
    if role is None:
        raise ValueError(f"the run has no task {place.role} {place.index}")
    index = str(place.index)
    current = "PAI_CURRENT_TASK_ROLE_"
    env = {
        current + "NAME": role.name,
        current + "TASK_COUNT": str(role.tasks),
        current + "CPU_COUNT": str(role.cpu),
        current + "MEM_MB": str(role.memory_mb),
        current + "SHM_MB": str(role.shm_mb),
        current + "GPU_COUNT": str(role.gpu),
        current + "MIN_FAILED_TASK_COUNT": _count(role.min_failed),
        current + "MIN_SUCCEEDED_TASK_COUNT": _count(role.min_succeeded),
        current + "CURRENT_TASK_INDEX": index,
        "PAI_TASK_INDEX": index,
        "PAI_TASK_ROLE_INDEX": index,
        "PAI_CONTAINER_ID": Token(jid, serial, attempt, role.name, place.index).name,
        "PAI_CONTAINER_HOST_IP": place.address,
        "PAI_CURRENT_CONTAINER_IP": place.address,
        "CUDA_VISIBLE_DEVICES": ",".join(place.gpus),
    }
    ports = {label: ",".join(map(str, numbers)) for label, numbers in _ports(role, place)}
    env["PAI_CONTAINER_HOST_PORT_LIST"] = ";".join(
        f"{label}:{numbers}" for label, numbers in ports.items()
    )
    env |= {f"PAI_CONTAINER_HOST_{label}_PORT_LIST": numbers for label, numbers in ports.items()}
    env["PAI_CONTAINER_HOST_PORT"] = str(place.ports["http"][0])
    env["PAI_CONTAINER_SSH_PORT"] = str(place.ports["ssh"][0])
    return env


def without_shared(
    spec: RunSpec, jid: str, serial: int, attempt: int, place: TaskPlace, directory: str
) -> dict[str, str]:
    """Return all variables of the task that are not shared: those of run and role, and its own.
    directory: its own one.
    """
    own_ = own(spec, jid, serial, attempt, place)
    role = next(r for r in spec.roles if r.name == place.role)
    return {**spec.env, **role.env, **own_, "PAI_WORK_DIR": directory}


def find_name_conflict(roles: Sequence[TaskRole]) -> str | None:
    """Return the name of a variable to which two roles would give different values, or None."""
    if not any(_DOUBTFUL.match(r.name) for r in roles):
        return None
    places = tuple(
        TaskPlace(
            role=r.name,
            index=i,
            host="x",
            address="x",
            ports={p.label: (1,) * p.count for p in r.all_ports()},
        )
        for r in roles
        for i in range(r.tasks)
    )
    seen: set[str] = set()
    for name, _ in _peer_pairs(roles, _in_order(roles, places)):
        if name in seen:
            return name
        seen.add(name)
    return None


def max_variables(roles: Sequence[TaskRole]) -> int:
    """Return the number of variables, shared and own, of a task of the role that has the most."""
    peers = sum(_OF_ROLE + r.tasks * (1 + 2 * len(r.all_ports())) for r in roles)
    return _OF_RUN + peers + max(_OWN + len(r.all_ports()) for r in roles)


def job_name(spec: RunSpec) -> str:
    return spec.sim_name or spec.simulation_id


def _in_order(roles: Sequence[TaskRole], places: Sequence[TaskPlace]) -> dict[str, list[TaskPlace]]:
    """Return the places of each role, by index."""
    found = {(p.role, p.index): p for p in places}
    wanted = [(r.name, i) for r in roles for i in range(r.tasks)]
    if len(found) != len(places) or len(wanted) != len(places) or found.keys() != set(wanted):
        raise ValueError(f"{len(places)} places do not match the {len(wanted)} tasks")
    return {r.name: [found[r.name, i] for i in range(r.tasks)] for r in roles}


def _run_pairs(spec: RunSpec, jid: str, serial: int, attempt: int) -> Pairs:
    name = job_name(spec)
    yield "PAI_JOB_NAME", name
    yield "PAI_FRAMEWORK_NAME", f"{spec.uid}~{name}"
    yield "FRAMEWORK_NAME", f"{spec.uid}~{name}"
    yield "PAI_USER_NAME", spec.uid
    yield "PAI_USERNAME", spec.uid
    yield "APP_ID", f"{jid}-{serial}-{attempt}"
    for variable, default in GIVEN.items():
        yield variable, spec.env.get(variable, default)
    roles = spec.roles
    names = ",".join(r.name for r in roles)
    yield "PAI_JOB_TASK_COUNT", str(sum(r.tasks for r in roles))
    yield "PAI_JOB_TASK_ROLE_COUNT", str(len(roles))
    yield "PAI_TASK_ROLE_COUNT", str(len(roles))
    yield "PAI_JOB_TASK_ROLE_LIST", names
    yield "PAI_TASK_ROLE_LIST", names
    yield (
        "PAI_TASK_ROLE_INSTANCES",
        ",".join(f"{r.name}:{i}" for r in roles for i in range(r.tasks)),
    )


def _peer_pairs(roles: Sequence[TaskRole], places: dict[str, list[TaskPlace]]) -> Pairs:
    for role in roles:
        name = role.name
        yield f"PAI_TASK_ROLE_TASK_COUNT_{name}", str(role.tasks)
        yield f"PAI_RESOURCE_{name}", f"{role.gpu},{role.cpu},{role.memory_mb},{role.shm_mb}"
        yield f"PAI_MIN_FAILED_TASK_COUNT_{name}", _count(role.min_failed)
        yield f"PAI_MIN_SUCCEEDED_TASK_COUNT_{name}", _count(role.min_succeeded)
        hosts = []
        for place in places[name]:
            yield f"PAI_HOST_IP_{name}_{place.index}", place.address
            for label, numbers in _ports(role, place):
                joined = ",".join(map(str, numbers))
                yield f"PAI_{name}_{place.index}_{label}_PORT", joined
                yield f"PAI_PORT_LIST_{name}_{place.index}_{label}", joined
            hosts.append(f"{_for_port(place.address)}:{place.ports['http'][0]}")
        yield f"PAI_TASK_ROLE_{name}_HOST_LIST", ",".join(hosts)


def _ports(role: TaskRole, place: TaskPlace) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Return the ports of a place in the order of the role's labels."""
    asked = role.all_ports()
    if len(place.ports) != len(asked) or any(
        len(place.ports.get(p.label, ())) != p.count for p in asked
    ):
        raise ValueError(
            f"the place of {role.name} {place.index} lacks ports that its role requests"
        )
    return [(p.label, place.ports[p.label]) for p in asked]


def _job_json(
    spec: RunSpec, jid: str, serial: int, attempt: int, places: dict[str, list[TaskPlace]]
) -> str:
    """Write one line for each task, so that people can read the file, too."""
    job = {
        "name": job_name(spec),
        "user": spec.uid,
        "computeJid": jid,
        "serial": serial,
        "virtualCluster": _given(spec, "PAI_JOB_VC_NAME"),
    }
    roles = [_role_json(r) for r in spec.roles]
    tasks = [place for r in spec.roles for place in places[r.name]]
    return (
        f'{{\n  "job": {_text(job)},\n  "attempt": {attempt},\n'
        f'  "roles": {_lines(roles)},\n  "tasks": {_lines(tasks)}\n}}\n'
    )


def _role_json(role: TaskRole) -> dict[str, object]:
    return {
        "name": role.name,
        "tasks": role.tasks,
        "cpu": role.cpu,
        "memoryMb": role.memory_mb,
        "shmMb": role.shm_mb,
        "gpu": role.gpu,
        "ports": role.all_ports(),
        "minFailed": role.min_failed,
        "minSucceeded": role.min_succeeded,
    }


def _lines(rows: Sequence[object]) -> str:
    return "[\n" + ",\n".join(f"    {_text(row)}" for row in rows) + "\n  ]"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _given(spec: RunSpec, name: str) -> str:
    return spec.env.get(name, GIVEN[name])


def _for_port(address: str) -> str:
    """Return an address as it is written before a colon and a port."""
    return f"[{address}]" if ":" in address else address


def _count(threshold: int | None) -> str:
    return "" if threshold is None else str(threshold)
