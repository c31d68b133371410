"""Explains in sentences with numbers why a gang cannot be placed: demand, capacity, host, and
whether the free capacity is fragmented.

No decisions here: `gang_allocator` knows the holders, `bin_packing` finds assignments.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from ....protocol.jobs.roles import FIRST_PORT, LAST_PORT, TaskRole
from . import bin_packing, gpu_types, host_selection, subnets
from .bin_packing import CPU, GPU, MEMORY, PORT, FreeCapacity, Node, RoleDemand, UnplacedTask

#: Hosts named in a sentence before the number of further ones.
NAMED_HOSTS = 3


class UnschedulableReason(msgspec.Struct, frozen=True):
    """Why a gang waits.

    behind: `ahead` earlier gangs wait. insufficient: less is free than requested. fragmented:
    enough is free in total, but not on suitable nodes. ports: only ports are missing.
    """

    code: Literal["behind", "insufficient", "fragmented", "ports"]
    ahead: int
    sentence: str


def behind(ahead: int) -> UnschedulableReason:
    others = "one run that goes" if ahead == 1 else f"{ahead} runs that go"
    return UnschedulableReason("behind", ahead, f"it waits behind {others} first")


def shortage(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]
) -> UnschedulableReason:
    """Return why the first waiting gang does not fit now."""
    if (lack := _type_lacks(demands, capacities)) is not None:
        return UnschedulableReason("insufficient", 0, lack)
    short = [
        resource
        for resource in (CPU, MEMORY, GPU)
        if bin_packing.total(demands, resource) > _sum(capacities, resource)
    ]
    if short:
        return UnschedulableReason(
            "insufficient",
            0,
            "; ".join(_shortage_text(demands, capacities, resource) for resource in short),
        )
    stuck = bin_packing.first_unplaced(demands, capacities)
    if (
        capacities
        and all(s.node.subnets is not None for s in capacities)
        and (stuck is None or len(capacities) > 1)
    ):
        return UnschedulableReason(
            "fragmented", 0, _one_network(demands, capacities, "has room for all of them now")
        )
    if stuck is None:
        return UnschedulableReason(
            "fragmented",
            0,
            f"its {_tasks(demands)} tasks could not be assigned to the hosts yet",
        )
    if bin_packing.pack(bin_packing.without_ports(demands), capacities) is not None:
        return UnschedulableReason("ports", 0, _missing_ports_text(demands, capacities, stuck))
    return UnschedulableReason("fragmented", 0, _fragmented_text(stuck, _tasks(demands)))


def too_much(
    nodes: Sequence[Node], roles: Sequence[TaskRole], plan: str | None = None
) -> str | None:
    """Return why these roles would not fit on idle nodes with every host up, or None if they would."""
    wrong, all_ = _wrong_ports(roles), nodes
    nodes = host_selection.allowed(nodes, plan)
    if wrong or not nodes:
        return wrong or (no_host(plan) if all_ else "there is no host where tasks may run")
    demands, capacities = bin_packing.demands_of(roles), bin_packing.idle_capacities(nodes)
    if bin_packing.pack_onto(demands, capacities, range(len(nodes))) is not None:
        return None
    if lack := _type_lacks(demands, capacities):
        return lack
    for demand in demands:
        if one := _task_too_large(demand, capacities):
            return one
    for resource in (CPU, MEMORY, GPU, PORT):
        if bin_packing.total(demands, resource) > _sum(capacities, resource):
            return _gang_too_large(demands, capacities, resource)
    if crowd := _same_port_too_often(demands, capacities):
        return crowd
    if any(n.subnets is not None for n in nodes) and len(nodes) > 1:
        return _one_network(
            demands, capacities, "has room for all of them, even if nothing else runs"
        )
    if _tasks(demands) > subnets.MEMBERS or bin_packing.pack(demands, capacities) is not None:
        return f"its {_tasks(demands)} tasks share a network of one host, which has addresses for {subnets.MEMBERS}"
    stuck = bin_packing.first_unplaced(demands, capacities)
    return (
        None
        if stuck is None
        else f"if nothing else ran, {_fragmented_text(stuck, _tasks(demands))}"
    )


def _type_lacks(demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]) -> str | None:
    """Return the sentence if no host has the GPUs of a requested type, or too few are free there."""
    for demand in demands:
        if not demand.gpu_type:
            continue
        role, there = (
            f"role {demand.role} asks for GPUs of the type {demand.gpu_type!r}",
            [s for s in capacities if s.has_type(demand)],
        )
        if not there:
            known = gpu_types.described([(s.node.host, s.node.gpu_names) for s in capacities])
            return f"{role}, which no host has; {known}"
        if bin_packing.first_unplaced([demand], there) is not None:
            n = demand.amounts[GPU]
            return (
                f"{role} ({demand.tasks} x {n}): {_free(there, GPU)}; other hosts have other types"
            )
    return None


def no_host(plan: str | None) -> str:
    """Return the sentence for a user for whom no host is available."""
    users = "users without a plan" if plan is None else f"users with the plan {plan!r}"
    return f"no host is available for {users}: all hosts are reserved for other plans"


def _one_network(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity], clause: str
) -> str:
    """Return the sentence for a case in which enough resources are free, but not on one host."""
    asks = [
        _demand_text(demands, resource)
        for resource in (CPU, MEMORY, GPU)
        if bin_packing.total(demands, resource) > _best(capacities, resource).free[resource]
    ]
    full = " (all networks for gangs are in use there)" if all(s.full for s in capacities) else ""
    best = [
        f"{s.node.host} has {', '.join(amount(w, s.free[w]) for w in (CPU, MEMORY, GPU) if bin_packing.total(demands, w))}"
        for s in capacities
    ]
    asked = f"; {asks[0]}" if asks else ""
    return f"its tasks share a network of one host, and no host {clause}{full}{asked} ({_first_few(best)})"


def amount(resource: int, n: int) -> str:
    match resource:
        case bin_packing.CPU:
            return f"{n} core" if n == 1 else f"{n} cores"
        case bin_packing.MEMORY:
            return f"{n} MiB of memory"
        case bin_packing.GPU:
            return f"{n} GPU" if n == 1 else f"{n} GPUs"
        case _:
            return f"{n} port" if n == 1 else f"{n} ports"


def _tasks(demands: Sequence[RoleDemand]) -> int:
    return sum(n.tasks for n in demands)


def _sum(capacities: Sequence[FreeCapacity], resource: int) -> int:
    return sum(s.free[resource] for s in capacities)


def _demand_of_task(demand: RoleDemand) -> str:
    parts = [amount(resource, n) for resource, n in enumerate(demand.amounts) if n]
    if demand.fixed:
        parts.append(_numbers(demand.fixed))
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _numbers(ports: Sequence[int]) -> str:
    """Return `port 8080` or `the ports 8080-8083, 9000` for ascending numbers."""
    runs: list[list[int]] = []
    for p in ports:
        if runs and p == runs[-1][1] + 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"port {text}" if len(ports) == 1 else f"the ports {text}"


def _best(capacities: Sequence[FreeCapacity], resource: int) -> FreeCapacity:
    return max(capacities, key=lambda s: s.free[resource])


def _free(capacities: Sequence[FreeCapacity], resource: int, *, scattered: bool = False) -> str:
    """Return the free amount on the best host and in total."""
    best = _best(capacities, resource)
    here = f"{best.free[resource]} of {best.node.amounts[resource]}"
    if len(capacities) == 1:
        return f"{here} {'is' if best.free[resource] == 1 else 'are'} free on {best.node.host}"
    free = _sum(capacities, resource)
    there = (
        f"{free} {'is' if free == 1 else 'are'} free in all, but on several hosts"
        if scattered
        else (
            f"{free} of {sum(s.node.amounts[resource] for s in capacities)} {'is' if free == 1 else 'are'} free in all"
        )
    )
    return f"the most that one host has free is {here} ({best.node.host}); {there}"


def _demand_text(demands: Sequence[RoleDemand], resource: int) -> str:
    """Return `role worker asks for 12 cores (3 x 4)`; for several roles, their sum and the largest
    one.
    """
    asking = [n for n in demands if n.amounts[resource]]
    most = max(asking, key=lambda n: n.amounts[resource] * n.tasks)
    each = f"{most.tasks} x {most.amounts[resource]}"
    if len(asking) == 1:
        text = f"role {most.role} asks for {amount(resource, bin_packing.total(demands, resource))}"
        return f"{text} ({each})" if most.tasks > 1 else text
    return f"the roles ask for {amount(resource, bin_packing.total(demands, resource))} together (most of it role {most.role}: {each})"


def _shortage_text(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity], resource: int
) -> str:
    if not capacities:
        return "there is no host where tasks may run"
    largest = max(demands, key=lambda n: n.amounts[resource])
    if largest.amounts[resource] > _best(capacities, resource).free[resource]:
        return f"task {largest.role}/0 asks for {amount(resource, largest.amounts[resource])}: {_free(capacities, resource)}"
    return f"{_demand_text(demands, resource)}: {_free(capacities, resource)}"


def _fragmented_text(stuck: UnplacedTask, tasks: int) -> str:
    """Return the sentence for a case in which enough resources are free, but no single host fits
    this task.
    """
    demand, capacities = stuck.demand, stuck.capacities
    first = f"{stuck.placed} of its {tasks} tasks would fit; beside them, " if stuck.placed else ""
    task = f"{first}task {demand.role}/{stuck.index} asks for"
    for resource, n in enumerate(demand.amounts):
        if n > _best(capacities, resource).free[resource]:
            return f"{task} {amount(resource, n)}: {_free(capacities, resource, scattered=_sum(capacities, resource) >= n)}"
    return f"{task} {_demand_of_task(demand)}: no host has all of it free ({_first_few([_free_on_host(demand, s) for s in capacities])})"


def _free_on_host(demand: RoleDemand, capacity: FreeCapacity) -> str:
    """Return the free resources of a host that the task demands, and the holder of fixed ports."""
    has = ", ".join(
        amount(resource, capacity.free[resource]) for resource, n in enumerate(demand.amounts) if n
    )
    return f"{capacity.node.host} has {has}" + (
        f", but {why}" if (why := _port_holder(demand, capacity)) else ""
    )


def _first_few(items: Sequence[str]) -> str:
    more = len(items) - NAMED_HOSTS
    return "; ".join(items[:NAMED_HOSTS]) + (f"; and {more} more" if more > 0 else "")


def _missing_ports_text(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity], stuck: UnplacedTask
) -> str:
    demand = stuck.demand
    if demand.fixed:
        free = sum(all(s.has(p) for p in demand.fixed) for s in stuck.capacities)
        there = f"free on {free} of {len(capacities)} {'host' if len(capacities) == 1 else 'hosts'}"
        why = _first_few(
            [_port_holder(demand, s) or _free_on_host(demand, s) for s in stuck.capacities]
        )
        return (
            f"task {demand.role}/{stuck.index} asks for {_numbers(demand.fixed)}: {there} ({why})"
        )
    if bin_packing.total(demands, PORT) > _sum(capacities, PORT):
        return f"{_demand_text(demands, PORT)}: {_free(capacities, PORT)}{_avoided_ports_text(capacities)}"
    return f"{_fragmented_text(stuck, _tasks(demands))}{_avoided_ports_text(capacities)}"


def _port_holder(demand: RoleDemand, capacity: FreeCapacity) -> str | None:
    """Return the holder of the requested port numbers on this host."""
    for ports, holder in (
        (capacity.held, "another run holds"),
        (capacity.avoided, "something else listens on"),
        (capacity.fixed, "another task of this run has"),
    ):
        if there := [p for p in demand.fixed if p in ports]:
            return f"{holder} {_numbers(there)} on {capacity.node.host}"
    return None


def _avoided_ports_text(capacities: Sequence[FreeCapacity]) -> str:
    n = sum(p in s.avoided and p not in s.held for s in capacities for p in s.node.ports)
    return f"; {n} more are avoided for now, because something else listens there" if n else ""


def _wrong_ports(roles: Sequence[TaskRole]) -> str | None:
    for r in roles:
        for p in r.ports:
            last = p.begin + p.count - 1
            if p.begin and p.begin < FIRST_PORT:
                return f"role {r.name} asks for port {p.begin} ({p.label}): ports below {FIRST_PORT} are reserved for the system"
            if p.begin and last > LAST_PORT:
                return f"role {r.name} asks for the ports {p.begin}-{last} ({p.label}): the highest port is {LAST_PORT}"
        twice = [label for label, n in Counter(p.label for p in r.ports).items() if n > 1]
        if twice:
            return f"role {r.name} names its ports {twice[0]} twice"
        fixed = Counter(n for p in r.ports if p.begin for n in range(p.begin, p.begin + p.count))
        again = [n for n, times in fixed.items() if times > 1]
        if again:
            return f"role {r.name} asks for port {again[0]} under two labels: a task has each port once"
    return None


def _task_too_large(demand: RoleDemand, capacities: Sequence[FreeCapacity]) -> str | None:
    for resource, n in enumerate(demand.amounts):
        best = _best(capacities, resource)
        if n > best.free[resource]:
            there = (
                f"{best.node.host} has {best.free[resource]}"
                if len(capacities) == 1
                else (f"the most that one host has is {best.free[resource]} ({best.node.host})")
            )
            return f"role {demand.role} asks for {amount(resource, n)} for each task: {there}"
    if any(bin_packing.tasks_that_fit(demand, s) for s in capacities):
        return None
    hosts = _first_few([_free_on_host(demand, s) for s in capacities])
    return f"role {demand.role} asks for {_demand_of_task(demand)} for each task: no host has all of it ({hosts})"


def _gang_too_large(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity], resource: int
) -> str:
    best = _best(capacities, resource)
    there = (
        f"{best.node.host} has {best.free[resource]}"
        if len(capacities) == 1
        else (
            f"all {len(capacities)} hosts together have {_sum(capacities, resource)},"
            f" "
            f"the largest of them {best.free[resource]} ({best.node.host})"
        )
    )
    return f"{_demand_text(demands, resource)}: {there}"


def _same_port_too_often(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]
) -> str | None:
    """Return the error if more tasks demand the same port number than there are hosts."""
    tasks: Counter[int] = Counter()
    for n in demands:
        tasks.update(dict.fromkeys(n.fixed, n.tasks))
    overbooked = [p for p in sorted(tasks) if tasks[p] > len(capacities)]
    if not overbooked:
        return None
    port = overbooked[0]
    roles = [f"role {n.role}" for n in demands if port in n.fixed]
    hosts = (
        f"there is one ({capacities[0].node.host})"
        if len(capacities) == 1
        else f"there are {len(capacities)}"
    )
    ask = f"{' and '.join(roles)} {'asks' if len(roles) == 1 else 'ask'} for port {port} for {tasks[port]} tasks"
    return f"{ask}: one task on each host can have it, and of hosts {hosts}"
