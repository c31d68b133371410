"""Placement ahead: plain runs that wait for a slot are placed with their agent, which starts them
as soon as one of its runs ends. So a slot does not stay free for a round trip to the supervisor.

A run that is placed ahead keeps its place in the queue of its slot pool. It has its slot when the
pool grants it, or when its agent reports that it started the run in the slot of an ended one. Only
runs whose turn is next are placed ahead, so a run of another agent that waits is not passed; one
that comes later waits at most for the runs that are with their agents. The number
of these runs is small where runs take long: a stop of one that has not started needs its agent.
"""

from itertools import islice

from ....db.events.events import TaskPlaced, TaskSlotGranted
from ....db.events.state import Run, Task
from ....protocol.ids import AgentKey, Token, op_id
from ..interface import timers
from ..interface.effects import ClearTimer, SetTimer
from ..resources import concurrency_limits
from ..resources.concurrency_limits import RunKey
from ..resources.limit_pools import OpPool, cpu_pool
from ..state import cluster_assignment, user_hours
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from . import dispatch

ROLE, INDEX = "main", 0
#: Limit of runs that are placed ahead with one agent.
MOST = 64
#: Weight of the newest run in the mean duration of an agent's runs.
_WEIGHT = 0.2


def record_duration(view: AgentState, secs: float) -> None:
    """Include the duration of an ended plain run in the mean of its agent."""
    secs = max(secs, 0.001)
    view.run_secs = (
        secs if view.run_secs is None else (1 - _WEIGHT) * view.run_secs + _WEIGHT * secs
    )


def fill(tx: Transaction, key: AgentKey) -> None:
    """Place runs ahead until the agent has enough of them. Refill when half of them have slots."""
    view = tx.world.agent(key)
    most = _most(tx, key, view)
    if len(view.ahead) > most // 2 or most == 0:
        return
    for number, ticket in _next_in_queue(tx, key, view, most):
        run = tx.world.jobs[ticket[0]].run
        assert run is not None and run.serial == ticket[1]
        if not _may_wait(tx, run):
            return
        token = _record(tx, key, ticket, run, ahead=True)
        view.ahead[ticket] = number
        dispatch.launch(tx, key, (token,))


def _may_wait(tx: Transaction, run: Run) -> bool:
    """Return whether the run may wait with its agent. A run that may be held for debugging may not:
    it keeps its slot while it is held. One with a queue limit may not: only the agent would know
    whether the run has started in time. One of a user without hours may not, either.
    """
    limit = run.spec.queue_limit_secs or tx.world.policy.queue_limit_secs
    if run.spec.roles or run.spec.debug_secs is not None or limit:
        return False
    return user_hours.used_up(tx.world, run.spec.uid, run.spec.active_plan, tx.now) is None


def _most(tx: Transaction, key: AgentKey, view: AgentState) -> int:
    """Return how many runs may be placed ahead."""
    if not (view.known and view.runs_ahead) or view.run_secs is None:
        return 0
    if tx.world.drain_of(key.driver, key.host) is not None:
        return 0
    pool = tx.world.slots.pools.get(cpu_pool(key))
    if pool is not None and len(pool.holders) > pool.capacity:
        return 0  # ended runs give their slots back to other shards
    return min(MOST, int(tx.world.policy.ahead_secs * _slots(tx, key) / view.run_secs))


def _slots(tx: Transaction, key: AgentKey) -> int:
    """Return how many plain runs of the agent run at once."""
    world = tx.world
    slots = world.slots_at(key.driver, key.kind, key.host)
    return min(slots, world.policy.runs_at(key.driver, key.kind, None))


def _next_in_queue(
    tx: Transaction, key: AgentKey, view: AgentState, most: int
) -> list[tuple[int, RunKey]]:
    """Return the agent's next waiting runs, with their numbers, up to the first run of another
    agent that waits for the same slots.
    """
    out: list[tuple[int, RunKey]] = []
    left = most - len(view.ahead)
    # a run of this agent that waits for a slot of its user takes a slot of the host next
    for limit in (cpu_pool(key), OpPool(key.driver, key.kind, key.uid, None)):
        for number, ticket in islice(concurrency_limits.turns(tx.world.slots, limit), most + 1):
            if ticket in view.ahead:
                continue
            if ticket not in view.asking or len(out) == left:
                return out
            out.append((number, ticket))
    return out


def place(tx: Transaction, key: AgentKey, ticket: RunKey, run: Run) -> None:
    """Place a run that holds its slots, durably, then launch it."""
    limited = run.spec.queue_limit_secs or tx.world.policy.queue_limit_secs
    if limited and not cluster_assignment.queue_limit_continues(tx.world.policy, run):
        tx.emit(ClearTimer(timers.QueueLimit(*ticket)))
    dispatch.launch(tx, key, (_record(tx, key, ticket, run, ahead=False),))


def _record(tx: Transaction, key: AgentKey, ticket: RunKey, run: Run, *, ahead: bool) -> Token:
    jid, serial = ticket
    token = Token(jid, serial, run.attempt + 1, ROLE, INDEX)
    view = tx.world.agent(key)
    tx.world.dequeue(key, ticket)
    view.placed.add(token)
    tx.record(
        jid,
        TaskPlaced(
            at=tx.now.wall,
            token=token,
            agent_key=key,
            op_id=op_id(token, "run"),
            boot_id=view.boot_id or None,
            ahead=ahead,
        ),
    )
    return token


def slot_granted(tx: Transaction, ticket: RunKey, run: Run) -> AgentKey | None:
    """Handle a granted slot of a run that is placed ahead: let its agent start it. Return the
    agent, or None for a run that is not placed.
    """
    for task in run.live_tasks:
        key = task.agent_key
        del tx.world.agent(key).ahead[ticket]
        tx.shortened_windows[key] = None
        tx.record(ticket[0], TaskSlotGranted(at=tx.now.wall, token=task.token))
        dispatch.launch(tx, key, (task.token,))
        return key
    return None


def hand_over(tx: Transaction, ended: RunKey, token: Token) -> list[RunKey]:
    """Give the slots of an ended run to the run that its agent has started instead. Return the
    other runs that now hold theirs.
    """
    task = tx.world.task(token)
    if task is None or not task.waits_for_slot:
        return concurrency_limits.release(tx.world.slots, ended)
    ticket = _leave_window(tx, task)
    tx.started_ahead[token] = None
    return concurrency_limits.hand_over(
        tx.world.slots, ended, ticket, tx.world.pools_of(task.agent_key, ticket)
    )


def started(tx: Transaction, token: Token) -> None:
    """Give slots to a run that its agent started without them: it uses them already."""
    task = tx.world.task(token)
    if task is None or not task.ahead:
        return
    pools = tx.world.pools_of(task.agent_key, (token.jid, token.serial))
    ticket = _leave_window(tx, task)
    if not concurrency_limits.holds(tx.world.slots, ticket, pools):
        concurrency_limits.force(tx.world.slots, ticket, pools)


def record_grants(tx: Transaction) -> None:
    """Record the slots of runs that their agents have started, and whose start is not known yet."""
    for token in tx.started_ahead:
        task = tx.world.task(token)
        if task is not None and task.waits_for_slot:
            tx.record(token.jid, TaskSlotGranted(at=tx.now.wall, token=token))
            tx.emit(SetTimer(timers.LaunchDeadline(token), tx.world.policy.op_reply_secs))


def stopped(tx: Transaction, task: Task) -> list[RunKey]:
    """Withdraw the slot request of a run that is to end without a start. Return the other runs that
    now hold their slots.
    """
    if not task.waits_for_slot:
        return []
    return concurrency_limits.reduce_all(tx.world.slots, [_leave_window(tx, task)])


def agent_up(tx: Transaction, key: AgentKey) -> list[RunKey]:
    """Let the runs that wait with the agent request slots again. Return those that hold them."""
    return [
        granted
        for ticket in list(tx.world.agent(key).ahead)
        for granted in concurrency_limits.extend(
            tx.world.slots, ticket, tx.world.pools_of(key, ticket)
        )
    ]


def agent_away(tx: Transaction, key: AgentKey) -> list[RunKey]:
    """Withdraw the requests of the runs that wait with the agent: it blocks no slot of others.
    Return the other runs that now hold their slots.
    """
    return concurrency_limits.reduce_all(tx.world.slots, list(tx.world.agent(key).ahead))


def _leave_window(tx: Transaction, task: Task) -> RunKey:
    ticket = (task.token.jid, task.token.serial)
    tx.world.agent(task.agent_key).ahead.pop(ticket, None)
    tx.shortened_windows[task.agent_key] = None
    return ticket
