"""Launch and stop requests for tasks, each with a timer that repeats the request until it is
answered.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ....db.events.state import Run, Stop, Task
from ....protocol.clusters.batch import BatchRequest
from ....protocol.ids import AgentKey, Token
from ....protocol.jobs.roles import TaskPlace, TaskRole
from ....protocol.launch import task_environment
from ....protocol.wire.codec import MAX_KEYS
from ....protocol.wire.messages import (
    AppInput,
    ContainerSpec,
    Shared,
    SlotUse,
    TaskRun,
    TaskSpec,
)
from ..interface import timers
from ..interface.effects import LaunchGang, LaunchTask, SetTimer, StopTask
from ..resources import subnets
from ..state import cluster_assignment
from ..state.agent_state import AgentState
from ..state.transaction import Transaction

#: Interval of repeated stop requests.
REMIND_SECS = 10.0
#: Limits of one launch message of a gang: tasks, characters and names. They are well below the
#: codec's limits, which a single task never exceeds (`role_validation`).
AT_ONCE, MESSAGE_CHARS, MESSAGE_NAMES = 32, 700_000, MAX_KEYS // 2
#: Names of one task besides its variables.
_OTHER_NAMES = 20


def launch(tx: Transaction, key: AgentKey, tokens: Sequence[Token]) -> None:
    """Request the start of these tasks. Idempotent: the task driver starts each token at most once.

    A task without a slot is only announced to its agent, which reports when it starts.
    """
    view = tx.world.agent(key)
    gangs: dict[tuple[str, int, int], list[Token]] = {}
    for token in tokens:
        run = tx.world.jobs[token.jid].run
        assert run is not None
        if run.spec.roles:
            gangs.setdefault((token.jid, token.serial, token.attempt), []).append(token)
        else:
            task = run.find(token)
            assert task is not None
            if task.waits_for_slot and not view.runs_ahead:
                continue
            slot = _slot(view, task, run)
            tx.emit(LaunchTask(key, token, _plain_spec(tx, run, key), slot))
            if slot == "ahead":
                continue
        tx.emit(SetTimer(timers.LaunchDeadline(token), tx.world.policy.op_reply_secs))
    for (jid, _, number), members in gangs.items():
        run = tx.world.jobs[jid].run
        assert run is not None
        _launch_gang(tx, key, run, number, members)


def _slot(view: AgentState, task: Task, run: Run) -> SlotUse | None:
    """Return the part of a plain run in its agent's slots. A run that may be held for debugging has
    none: it keeps its slot after its end.
    """
    if not view.runs_ahead or run.spec.debug_secs is not None:
        return None
    return "ahead" if task.waits_for_slot else "held"


def _plain_spec(tx: Transaction, run: Run, key: AgentKey) -> TaskSpec:
    spec = run.spec
    app = (
        None
        if spec.data is None
        else AppInput(
            simulation_type=spec.simulation_type, compute_model=spec.compute_model, data=spec.data
        )
    )
    return TaskSpec(
        command=spec.command,
        app=app,
        run_dir=run.run_dir,
        env=spec.env,
        wrap=spec.wrap,
        time_limit_secs=_limit(tx, run),
        grace_secs=spec.grace_secs,
        core_bytes=spec.core_bytes,
        batch=_batch_request(tx, run, key.host),
        profile=spec.profile,
        debug_secs=_debug_secs(tx, run),
    )


def _debug_secs(tx: Transaction, run: Run) -> float | msgspec.UnsetType:
    """Return how long a batch scheduler holds the allocation of a failed task. All other resources
    are held by the supervisor alone.
    """
    if run.spec.debug_secs is None or run.spec.driver not in tx.world.policy.batch:
        return msgspec.UNSET
    return min(run.spec.debug_secs, tx.world.policy.debug_secs)


def _batch_request(tx: Transaction, run: Run, host: str) -> BatchRequest | msgspec.UnsetType:
    """Return the batch request of the run, if its driver has a scheduler."""
    return (
        cluster_assignment.batch_request(run.spec, host)
        if run.spec.driver in tx.world.policy.batch
        else msgspec.UNSET
    )


def _launch_gang(
    tx: Transaction, key: AgentKey, run: Run, number: int, tokens: Sequence[Token]
) -> None:
    roles = {role.name: role for role in run.spec.roles}
    shared, runs = _shared(tx, run, tokens[0].jid, number), []
    for token in tokens:
        task = run.find(token)
        assert task is not None
        runs.append(
            TaskRun(
                op_id=task.op_id,
                token=token,
                spec=_task_spec(tx, run, token, roles[token.role], task.place),
            )
        )
    # A batch scheduler starts these tasks together, so they travel in one message of any size
    # (`cluster_assignment.too_large`).
    for together in (
        [tuple(runs)] if key.driver in tx.world.policy.batch else _messages(shared, runs)
    ):
        tx.emit(LaunchGang(key, shared, together))


def _shared(tx: Transaction, run: Run, jid: str, number: int) -> Shared:
    """Return the data shared by all tasks of an attempt on all hosts."""
    known = tx.shared.get((jid, run.serial, number))
    if known is None:
        places = tuple(t.place for a in run.attempts if a.number == number for t in a.tasks)
        known = tx.shared[jid, run.serial, number] = task_environment.shared(
            run.spec, jid, run.serial, number, places
        )
    return known


def _messages(shared: Shared, runs: Sequence[TaskRun]) -> Iterator[tuple[TaskRun, ...]]:
    """Yield groups of tasks that fit into one message."""
    own = len(shared.job) + _chars(shared.env)
    together: list[TaskRun] = []
    chars, names = own, len(shared.env)
    for run in runs:
        size, more = (
            _chars(run.spec.env) + sum(map(len, run.spec.command)),
            len(run.spec.env) + _OTHER_NAMES,
        )
        if together and (
            len(together) == AT_ONCE or chars + size > MESSAGE_CHARS or names + more > MESSAGE_NAMES
        ):
            yield tuple(together)
            together, chars, names = [], own, len(shared.env)
        together.append(run)
        chars, names = chars + size, names + more
    yield tuple(together)


def _chars(env: Mapping[str, str]) -> int:
    return sum(len(k) + len(v) for k, v in env.items())


def _task_spec(
    tx: Transaction, run: Run, token: Token, role: TaskRole, place: TaskPlace
) -> TaskSpec:
    spec = run.spec
    directory = task_dir(run.run_dir, role.name, place.index)
    box = _container(tx, run, role, place) if spec.driver in tx.world.policy.containers else None
    queued = spec.driver in tx.world.policy.batch
    return TaskSpec(
        command=role.command,
        run_dir=directory,
        env=task_environment.without_shared(
            spec, token.jid, run.serial, token.attempt, place, directory
        ),
        wrap=spec.wrap,
        time_limit_secs=_limit(tx, run),
        grace_secs=spec.grace_secs,
        core_bytes=spec.core_bytes,
        memory_bytes=role.memory_mb * 2**20 if box is None else None,
        # only the node of a batch job could check its ports
        ports=tuple(sorted(port for ports in place.ports.values() for port in ports))
        if box is None and not queued
        else (),
        batch=_batch_request(tx, run, place.host),
        box=msgspec.UNSET if box is None else box,
        profile=spec.profile,
        debug_secs=_debug_secs(tx, run),
    )


def _container(tx: Transaction, run: Run, role: TaskRole, place: TaskPlace) -> ContainerSpec:
    """Return the container of one task. Its address is set if its gang has a network on the host."""
    nodes = tx.world.node_pool(run.spec.driver).nodes
    subnet = (
        None if any(n.address == place.address for n in nodes) else subnets.subnet_of(place.address)
    )
    return ContainerSpec(
        image=role.image,
        cpu=role.cpu,
        memory_mb=role.memory_mb,
        shm_mb=role.shm_mb,
        gpus=place.gpus,
        address=None if subnet is None else place.address,
        subnet=subnet,
        volumes=role.volumes,
        keep=run.spec.debug_secs is not None,
        login=run.spec.registry_login,
        ssh_port=place.ports["ssh"][0] if run.spec.ssh else msgspec.UNSET,
    )


def task_dir(run_dir: str, role: str, index: int) -> str:
    """Return the directory of one task of a run with roles, the same in every attempt."""
    return f"{run_dir}/{role}/{index}"


def _limit(tx: Transaction, run: Run) -> float | None:
    limit = run.spec.time_limit_secs
    return limit if limit is not None else tx.world.policy.time_limit_secs


def stop(tx: Transaction, token: Token, wanted: Stop | None) -> None:
    """Request the end of a task. `wanted` is None for a leftover of an older run."""
    task = tx.world.task(token)
    assert task is not None
    reason, grace = (wanted.reason, wanted.grace_secs) if wanted is not None else ("lost", 0.0)
    tx.emit(StopTask(task.agent_key, token, reason, grace))
    tx.emit(SetTimer(timers.StopReminder(token), REMIND_SECS + grace))
