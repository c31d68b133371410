"""Rules for a request to a cluster that hold for every cluster. Pure.

All values are texts of users. Other modules check whether partition and account exist. Here are the
checks for values that could inject script lines, repeat an option that jobscribe sets, or
contradict each other.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...protocol.clusters.batch import BatchRequest
from ...protocol.jobs.roles import TaskRole
from ..fields import Findings, quoted
from ..structs import Place, convert, shared
from .keys import BatchKeys

DIRECTIVE_FORM = "an option of sbatch without its dashes, such as exclusive or reservation=maint, of those that the cluster allows"
SETUP_FORM = "lines of sh, at most 8192 characters"
_UNSAID = "jobscribe sets it"
#: Options of sbatch that are set by another key, or only by jobscribe.
RESERVED = {
    "account": "`account`",
    "array": "`array` of a job file, or `job submit --array`",
    "batch": _UNSAID,
    "bb": _UNSAID,
    "bbf": _UNSAID,
    "chdir": _UNSAID,
    "clusters": "`cluster`",
    "comment": _UNSAID,
    "constraint": "`constraint`",
    "cpus-per-task": "`cores`",
    "dependency": "`after`",
    "error": _UNSAID,
    "export": "`env`",
    "export-file": "`env`",
    "get-user-env": "`setup`",
    "gid": _UNSAID,
    "gpus": "`gpus`",
    "gpus-per-node": "`gpus`",
    "gpus-per-socket": "`gpus`",
    "gpus-per-task": "`gpus`",
    "help": _UNSAID,
    "hold": _UNSAID,
    "ignore-pbs": _UNSAID,
    "input": _UNSAID,
    "job-name": "the run's name",
    "kill-on-invalid-dep": _UNSAID,
    "licenses": "`licenses`",
    "mem": "`memory`",
    "mem-per-cpu": "`memory`",
    "mem-per-gpu": "`memory`",
    "no-requeue": _UNSAID,
    "nodes": "`nodes`",
    "ntasks": "`tasks`",
    "ntasks-per-node": "`tasksPerNode`",
    "open-mode": _UNSAID,
    "output": _UNSAID,
    "parsable": _UNSAID,
    "partition": "`partition`",
    "qos": "`qos`",
    "quiet": _UNSAID,
    "requeue": "`retry`",
    "script": _UNSAID,
    "signal": "`signalSecs`",
    "test-only": _UNSAID,
    "time": "the run's time limit",
    "uid": _UNSAID,
    "umask": "`setup`",
    "usage": _UNSAID,
    "verbose": _UNSAID,
    "version": _UNSAID,
    "wait": _UNSAID,
    "wrap": _UNSAID,
}
#: Fields that determine the size of an allocation; roles determine it themselves.
SIZES = ("nodes", "tasks", "tasks_per_node", "cores", "memory_mb", "gpus")
LAYOUT = ("nodes", "tasks", "tasks_per_node")
_UNSEEN = re.compile(r"[^\t\n -~\xa1-\ud7ff\ue000-\U0010ffff]")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*SBATCH\b")


def batch_request(keys: BatchKeys, place: Place) -> BatchRequest:
    """Return the request of a job file, whose place is that of the key `batch`."""
    before = place.findings.count
    if place.valid("directives"):
        for directive in keys.directives:
            if problem := directive_problem(directive):
                place.error("directives", problem, DIRECTIVE_FORM)
    if problem := setup_problem(keys.setup):
        place.error("setup", problem, SETUP_FORM)
    asked = BatchRequest(**shared(keys, BatchRequest))
    if place.findings.count == before and place.valid(""):
        for sentence in contradictions(asked):
            place.error("", sentence, "sizes that fit together")
    return asked


def batch_options(options: Mapping[str, object]) -> tuple[BatchRequest, Findings]:
    """Parse the keys of `batch` that are options of the command line."""
    findings = Findings()
    place = Place(options, "", findings)
    return batch_request(convert(BatchKeys, options, findings), place), findings


def directive_name(directive: str) -> str:
    return directive.partition("=")[0]


def directive_problem(directive: str) -> str | None:
    """Return why no cluster may allow this directive; None if one may."""
    name = directive_name(directive)
    # sbatch accepts any unambiguous prefix of an option name
    meant = (
        name
        if name in RESERVED
        else next((other for other in RESERVED if other.startswith(name)), None)
    )
    if meant is not None:
        what = (
            f"{quoted(name)} is not for directives"
            if meant == name
            else f"sbatch may read {quoted(name)} as {meant}"
        )
        return f"{what}: {RESERVED[meant] if RESERVED[meant] == _UNSAID else f'use {RESERVED[meant]} instead'}"
    return None


def setup_problem(setup: str) -> str | None:
    """Return why these lines cannot run before the command; None if they can."""
    if "\r" in setup:
        return "its lines end with CR LF (Windows), which sh cannot read: use LF line ends"
    if bad := _UNSEEN.search(setup):
        return f"it contains the character {quoted(bad[0])} in line {setup.count(chr(10), 0, bad.start()) + 1}"
    for number, line in enumerate(setup.split("\n"), 1):
        if _DIRECTIVE.match(line):
            return f"line {number} begins with #SBATCH, which has no effect there: use the matching key, or `directives`"
    return None


def contradictions(wishes: BatchRequest) -> Iterator[str]:
    """Yield a sentence for each contradiction in the request, whatever the cluster has."""
    nodes, tasks, per_node = wishes.nodes, wishes.tasks, wishes.tasks_per_node
    if nodes is not None and tasks is not None and tasks < nodes:
        yield f"{nodes} `nodes` are more than {tasks} `tasks`; ask for at most as many nodes as tasks"
    if (
        nodes is not None
        and tasks is not None
        and per_node is not None
        and tasks > nodes * per_node
    ):
        yield f"{tasks} `tasks` do not fit on {nodes} `nodes` with {per_node} `tasksPerNode` (at most {nodes * per_node})"
    names = [directive_name(d) for d in wishes.directives]
    if again := next((n for n in names if names.count(n) > 1), None):
        yield f"`directives` name {quoted(again)} twice; give each once"
    if again := next((m for m in wishes.modules if wishes.modules.count(m) > 1), None):
        yield f"`modules` name {quoted(again)} twice; give each once"


def with_defaults(
    asked: BatchRequest, defaults: BatchRequest, *, sizes: bool = True
) -> BatchRequest:
    """Fill the request with defaults. sizes: False if something else determines the size.

    nodes, tasks and tasksPerNode belong together: a request for one of them gets no default for the
    others. Directives are merged.
    """
    own = {
        name: value
        for name in asked.__struct_fields__
        if (value := getattr(asked, name)) not in (None, (), "")
    }
    left = set() if sizes else set(SIZES)
    if any(name in own for name in LAYOUT):
        left |= set(LAYOUT)
    given = {
        name: getattr(defaults, name) for name in defaults.__struct_fields__ if name not in left
    }
    names = {directive_name(d) for d in asked.directives}
    own["directives"] = (
        *(d for d in defaults.directives if directive_name(d) not in names),
        *asked.directives,
    )
    return BatchRequest(**{**given, **own})


def tasks_of(wishes: BatchRequest) -> int:
    """Return the number of tasks, counted as sbatch does."""
    return (
        wishes.tasks
        if wishes.tasks is not None
        else (wishes.nodes or 1) * (wishes.tasks_per_node or 1)
    )


def nodes_of(wishes: BatchRequest, cores_per_node: int | None) -> int:
    """Return the minimum number of nodes."""
    if wishes.nodes is not None:
        return wishes.nodes
    fit = None if cores_per_node is None else max(1, cores_per_node // (wishes.cores or 1))
    per_node = min((n for n in (wishes.tasks_per_node, fit) if n is not None), default=None)
    return 1 if per_node is None else math.ceil(tasks_of(wishes) / per_node)


class NodeLimits(NamedTuple):
    """Resources of one node, and the maximum number of nodes of a run; None if unknown."""

    cores: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    nodes: int | None = None


def gang_request(
    roles: Sequence[TaskRole], asked: BatchRequest, room: NodeLimits
) -> tuple[BatchRequest, list[str]]:
    """Return the shared allocation for all tasks of these roles, and sentences about parts of the
    request that contradict the roles.

    On one node the allocation is the sum of all tasks, as one task of sbatch. On several nodes,
    each node has resources for `tasksPerNode` of the largest task, so that tasks can run on any
    node. Without requested nodes, it is the smallest number of nodes that may suffice.
    """
    count = sum(r.tasks for r in roles)
    most = min(count, room.nodes or count)
    nodes = min(
        asked.nodes or next((n for n in range(1, most + 1) if _fits(_share(roles, n), room)), most),
        count,
    )
    cores, memory_mb, gpus = _share(roles, nodes)
    per_node = None if nodes == 1 else math.ceil(count / nodes)
    made = replace(
        asked,
        nodes=nodes,
        tasks=nodes * (per_node or 1),
        tasks_per_node=per_node,
        cores=max(asked.cores or 1, cores if per_node is None else max(r.cpu for r in roles)),
        memory_mb=memory_mb if asked.memory_mb is None else asked.memory_mb,
        gpus=(gpus or None) if asked.gpus is None else asked.gpus,
    )
    wrong = []
    if (asked.nodes or 0) > count:
        wrong.append(
            f"{asked.nodes} `nodes` are more than the {count} tasks of all roles; ask for at most {count}"
        )
    if asked.tasks not in (None, count, made.tasks):
        wrong.append(f"`tasks` is {asked.tasks}, but the roles have {count} tasks; leave it out")
    if asked.tasks_per_node not in (None, made.tasks_per_node):
        wrong.append(
            "`tasksPerNode` is for runs without roles; tasks of roles are spread evenly over the nodes; leave it out"
        )
    for name, has, needs in (("memory", asked.memory_mb, memory_mb), ("gpus", asked.gpus, gpus)):
        if has is not None and has < needs:
            wrong.append(
                f"`{name}` of a node is {has}, and the tasks of the roles need {needs} on it together; leave it out"
            )
    return made, wrong


def _share(roles: Sequence[TaskRole], nodes: int) -> tuple[int, int, int]:
    """Return cores, memory (MB) and GPUs that each of `nodes` nodes needs."""
    if nodes == 1:
        return (
            sum(r.tasks * r.cpu for r in roles),
            sum(r.tasks * r.memory_mb for r in roles),
            sum(r.tasks * r.gpu for r in roles),
        )
    per_node = math.ceil(sum(r.tasks for r in roles) / nodes)
    return (
        per_node * max(r.cpu for r in roles),
        per_node * max(r.memory_mb for r in roles),
        per_node * max(r.gpu for r in roles),
    )


def _fits(share: tuple[int, int, int], room: NodeLimits) -> bool:
    return all(has is None or needs <= has for needs, has in zip(share, room[:3], strict=True))
