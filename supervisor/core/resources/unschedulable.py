"""Explains in sentences with numbers why a gang cannot be placed: demand, capacity, host, and
whether the free capacity is fragmented.

No decisions here: `gang_allocator` knows the holders, `bin_packing` finds assignments.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from ....protocol.jobs.roles import FIRST_PORT, LAST_PORT, TaskRole
from . import bin_packing, host_selection, subnets
from .bin_packing import CPU, GPU, MEMORY, PORT, FreeCapacity, Node, RoleDemand, UnplacedTask

#: Hosts named in a sentence before the number of further ones.
NAMED_HOSTS = 3


class UnschedulableReason(msgspec.Struct, frozen=True):
    """Why a gang waits.

    behind: `ahead` earlier gangs wait. insufficient: less is free than requested. fragmented:
    enough is free, but not where it is needed. ports: only ports are missing.
    """

    code: Literal["behind", "insufficient", "fragmented", "ports"]
    ahead: int
    sentence: str


def behind(ahead: int) -> UnschedulableReason:
    others = "one run that was submitted" if ahead == 1 else f"{ahead} runs that were submitted"
    return UnschedulableReason("behind", ahead, f"it waits behind {others} before it")


def lack(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> UnschedulableReason:
    """Return why the first waiting gang does not fit now."""
    short = [
        what for what in (CPU, MEMORY, GPU) if bin_packing.asked(needs, what) > _sum(spaces, what)
    ]
    if short:
        return UnschedulableReason(
            "insufficient", 0, "; ".join(_too_little(needs, spaces, what) for what in short)
        )
    stuck = bin_packing.stuck(needs, spaces)
    if (
        spaces
        and all(s.node.subnets is not None for s in spaces)
        and (stuck is None or len(spaces) > 1)
    ):
        return UnschedulableReason(
            "fragmented", 0, _one_network(needs, spaces, "has room for all of them now")
        )
    if stuck is None:
        return UnschedulableReason(
            "fragmented",
            0,
            f"no way was found yet to share its {_tasks(needs)} tasks out among the hosts",
        )
    if bin_packing.pack(bin_packing.without_ports(needs), spaces) is not None:
        return UnschedulableReason("ports", 0, _ports_wanting(needs, spaces, stuck))
    return UnschedulableReason("fragmented", 0, _scattered(stuck, _tasks(needs)))


def too_much(
    nodes: Sequence[Node], roles: Sequence[TaskRole], plan: str | None = None
) -> str | None:
    """Return why these roles would not fit on idle nodes with every host up, or None if they would."""
    wrong, all_ = _wrong_ports(roles), nodes
    nodes = host_selection.allowed(nodes, plan)
    if wrong or not nodes:
        return wrong or (no_host(plan) if all_ else "there is no host where tasks may run")
    needs, spaces = bin_packing.needs_of(roles), bin_packing.empty(nodes)
    if bin_packing.seat(needs, spaces, range(len(nodes))) is not None:
        return None
    for need in needs:
        if one := _task_too_large(need, spaces):
            return one
    for what in (CPU, MEMORY, GPU, PORT):
        if bin_packing.asked(needs, what) > _sum(spaces, what):
            return _gang_too_large(needs, spaces, what)
    if crowd := _same_port_too_often(needs, spaces):
        return crowd
    if any(n.subnets is not None for n in nodes) and len(nodes) > 1:
        return _one_network(needs, spaces, "has room for all of them, even if nothing else runs")
    if _tasks(needs) > subnets.MEMBERS or bin_packing.pack(needs, spaces) is not None:
        return f"its {_tasks(needs)} tasks share a network of one host, which has addresses for {subnets.MEMBERS}"
    stuck = bin_packing.stuck(needs, spaces)
    return None if stuck is None else f"if nothing else ran, {_scattered(stuck, _tasks(needs))}"


def no_host(plan: str | None) -> str:
    """Return the sentence for a user for whom no host is available."""
    whose = "users without a plan" if plan is None else f"users with the plan {plan!r}"
    return f"there is no host for {whose}: all are kept for those with others"


def _one_network(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity], what: str) -> str:
    """Return the sentence for enough free resources that are not on one host."""
    asks = [
        _who_asks(needs, what_)
        for what_ in (CPU, MEMORY, GPU)
        if bin_packing.asked(needs, what_) > _best(spaces, what_).free[what_]
    ]
    full = " (all networks for gangs are in use there)" if all(s.full for s in spaces) else ""
    best = [
        f"{s.node.host} has {', '.join(amount(w, s.free[w]) for w in (CPU, MEMORY, GPU) if bin_packing.asked(needs, w))}"
        for s in spaces
    ]
    asked = f"; {asks[0]}" if asks else ""
    return f"its tasks share a network of one host, and no host {what}{full}{asked} ({_first_few(best)})"


def amount(what: int, n: int) -> str:
    match what:
        case bin_packing.CPU:
            return f"{n} core" if n == 1 else f"{n} cores"
        case bin_packing.MEMORY:
            return f"{n} MiB of memory"
        case bin_packing.GPU:
            return f"{n} GPU" if n == 1 else f"{n} GPUs"
        case _:
            return f"{n} port" if n == 1 else f"{n} ports"


def _tasks(needs: Sequence[RoleDemand]) -> int:
    return sum(n.tasks for n in needs)


def _sum(spaces: Sequence[FreeCapacity], what: int) -> int:
    return sum(s.free[what] for s in spaces)


def _all_of(need: RoleDemand) -> str:
    parts = [amount(what, n) for what, n in enumerate(need.amounts) if n]
    if need.fixed:
        parts.append(_numbers(need.fixed))
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _numbers(ports: Sequence[int]) -> str:
    """Return `port 8080` or `the ports 8080-8083, 9000` for ascending numbers."""
    runs: list[list[int]] = []
    for p in ports:
        if runs and p == runs[-1][1] + 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    told = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"port {told}" if len(ports) == 1 else f"the ports {told}"


def _best(spaces: Sequence[FreeCapacity], what: int) -> FreeCapacity:
    return max(spaces, key=lambda s: s.free[what])


def _free(spaces: Sequence[FreeCapacity], what: int, *, scattered: bool = False) -> str:
    """Return the free amount on the best host and in total."""
    best = _best(spaces, what)
    here = f"{best.free[what]} of {best.node.amounts[what]}"
    if len(spaces) == 1:
        return f"{here} {'is' if best.free[what] == 1 else 'are'} free on {best.node.host}"
    free = _sum(spaces, what)
    there = (
        f"{free} {'is' if free == 1 else 'are'} free in all, but on several hosts"
        if scattered
        else (
            f"{free} of {sum(s.node.amounts[what] for s in spaces)} {'is' if free == 1 else 'are'} free in all"
        )
    )
    return f"the most that one host has free is {here} ({best.node.host}); {there}"


def _who_asks(needs: Sequence[RoleDemand], what: int) -> str:
    """Return `role worker asks for 12 cores (3 x 4)`; for several roles, their sum and the largest
    one.
    """
    asking = [n for n in needs if n.amounts[what]]
    most = max(asking, key=lambda n: n.amounts[what] * n.tasks)
    each = f"{most.tasks} x {most.amounts[what]}"
    if len(asking) == 1:
        told = f"role {most.role} asks for {amount(what, bin_packing.asked(needs, what))}"
        return f"{told} ({each})" if most.tasks > 1 else told
    return f"the roles ask for {amount(what, bin_packing.asked(needs, what))} together (most of it role {most.role}: {each})"


def _too_little(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity], what: int) -> str:
    if not spaces:
        return "there is no host where tasks may run"
    largest = max(needs, key=lambda n: n.amounts[what])
    if largest.amounts[what] > _best(spaces, what).free[what]:
        return f"task {largest.role}/0 asks for {amount(what, largest.amounts[what])}: {_free(spaces, what)}"
    return f"{_who_asks(needs, what)}: {_free(spaces, what)}"


def _scattered(stuck: UnplacedTask, tasks: int) -> str:
    """Return the sentence for enough free resources that do not fit this task on any one host."""
    need, spaces = stuck.need, stuck.spaces
    first = f"{stuck.seated} of its {tasks} tasks would fit; beside them, " if stuck.seated else ""
    task = f"{first}task {need.role}/{stuck.index} asks for"
    for what, n in enumerate(need.amounts):
        if n > _best(spaces, what).free[what]:
            return f"{task} {amount(what, n)}: {_free(spaces, what, scattered=_sum(spaces, what) >= n)}"
    return f"{task} {_all_of(need)}: no host has all of it free ({_first_few([_there(need, s) for s in spaces])})"


def _there(need: RoleDemand, space: FreeCapacity) -> str:
    """Return the free resources of a host that the task needs, and the holder of fixed ports."""
    has = ", ".join(amount(what, space.free[what]) for what, n in enumerate(need.amounts) if n)
    return f"{space.node.host} has {has}" + (
        f", but {why}" if (why := _who_has(need, space)) else ""
    )


def _first_few(told: Sequence[str]) -> str:
    more = len(told) - NAMED_HOSTS
    return "; ".join(told[:NAMED_HOSTS]) + (f"; and {more} more" if more > 0 else "")


def _ports_wanting(
    needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity], stuck: UnplacedTask
) -> str:
    need = stuck.need
    if need.fixed:
        free = sum(all(s.has(p) for p in need.fixed) for s in stuck.spaces)
        there = f"free on {free} of {len(spaces)} {'host' if len(spaces) == 1 else 'hosts'}"
        why = _first_few([_who_has(need, s) or _there(need, s) for s in stuck.spaces])
        return f"task {need.role}/{stuck.index} asks for {_numbers(need.fixed)}: {there} ({why})"
    if bin_packing.asked(needs, PORT) > _sum(spaces, PORT):
        return f"{_who_asks(needs, PORT)}: {_free(spaces, PORT)}{_left_alone(spaces)}"
    return f"{_scattered(stuck, _tasks(needs))}{_left_alone(spaces)}"


def _who_has(need: RoleDemand, space: FreeCapacity) -> str | None:
    """Return the holder of the requested port numbers on this host."""
    for ports, who in (
        (space.held, "another run holds"),
        (space.avoided, "something else listens on"),
        (space.fixed, "another task of this run has"),
    ):
        if there := [p for p in need.fixed if p in ports]:
            return f"{who} {_numbers(there)} on {space.node.host}"
    return None


def _left_alone(spaces: Sequence[FreeCapacity]) -> str:
    n = sum(p in s.avoided and p not in s.held for s in spaces for p in s.node.ports)
    return f"; {n} more are left alone for now, because something else listens there" if n else ""


def _wrong_ports(roles: Sequence[TaskRole]) -> str | None:
    for r in roles:
        for p in r.ports:
            last = p.begin + p.count - 1
            if p.begin and p.begin < FIRST_PORT:
                return f"role {r.name} asks for port {p.begin} ({p.label}): ports below {FIRST_PORT} belong to the machine"
            if p.begin and last > LAST_PORT:
                return f"role {r.name} asks for the ports {p.begin}-{last} ({p.label}): the last port there is has the number {LAST_PORT}"
        twice = [label for label, n in Counter(p.label for p in r.ports).items() if n > 1]
        if twice:
            return f"role {r.name} names its ports {twice[0]} twice"
        fixed = Counter(n for p in r.ports if p.begin for n in range(p.begin, p.begin + p.count))
        again = [n for n, times in fixed.items() if times > 1]
        if again:
            return f"role {r.name} asks for port {again[0]} under two labels: a task has each port once"
    return None


def _task_too_large(need: RoleDemand, spaces: Sequence[FreeCapacity]) -> str | None:
    for what, n in enumerate(need.amounts):
        best = _best(spaces, what)
        if n > best.free[what]:
            there = (
                f"{best.node.host} has {best.free[what]}"
                if len(spaces) == 1
                else (f"the most that one host has is {best.free[what]} ({best.node.host})")
            )
            return f"role {need.role} asks for {amount(what, n)} for each task: {there}"
    if any(bin_packing.room_for(need, s) for s in spaces):
        return None
    hosts = _first_few([_there(need, s) for s in spaces])
    return (
        f"role {need.role} asks for {_all_of(need)} for each task: no host has all of it ({hosts})"
    )


def _gang_too_large(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity], what: int) -> str:
    best = _best(spaces, what)
    there = (
        f"{best.node.host} has {best.free[what]}"
        if len(spaces) == 1
        else (
            f"all {len(spaces)} hosts together have {_sum(spaces, what)}, the largest of them {best.free[what]} ({best.node.host})"
        )
    )
    return f"{_who_asks(needs, what)}: {there}"


def _same_port_too_often(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> str | None:
    """Return the error if more tasks need the same port number than there are hosts."""
    tasks: Counter[int] = Counter()
    for n in needs:
        tasks.update(dict.fromkeys(n.fixed, n.tasks))
    crowded = [p for p in sorted(tasks) if tasks[p] > len(spaces)]
    if not crowded:
        return None
    port = crowded[0]
    who = [f"role {n.role}" for n in needs if port in n.fixed]
    hosts = (
        f"there is one ({spaces[0].node.host})" if len(spaces) == 1 else f"there are {len(spaces)}"
    )
    ask = f"{' and '.join(who)} {'asks' if len(who) == 1 else 'ask'} for port {port} for {tasks[port]} tasks"
    return f"{ask}: one task on each host can have it, and of hosts {hosts}"
