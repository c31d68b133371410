"""Placement ahead: plain runs that wait for a slot are placed with their agent, which starts them
as soon as one of its runs ends. So a slot does not stay free for a round trip to the supervisor.

A run that is placed ahead keeps its place in the queue of its slot pool. It has its slot when the
pool grants it, or when its agent reports that it started the run in the slot of an ended one. Only
runs that are next in the queue are placed ahead, so no run of another agent is passed. The number
of these runs is small where runs take long: a stop of one that has not started needs its agent.
"""

from ....db.events.events import TaskPlaced
from ....db.events.state import Run
from ....protocol.ids import AgentKey, Token, op_id
from ..interface import timers
from ..interface.effects import ClearTimer
from ..resources import concurrency_limits
from ..resources.concurrency_limits import RunKey
from ..resources.limit_pools import OpPool, cpu_pool
from ..state import cluster_assignment
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from ..state.world import World, pools_of
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
        if run.spec.roles or run.spec.debug_secs is not None:
            return  # it keeps its slot while it is held
        view.ahead[ticket] = number
        _record(tx, key, ticket, run)


def _most(tx: Transaction, key: AgentKey, view: AgentState) -> int:
    """Return how many runs may be placed ahead."""
    if not (view.known and view.runs_ahead) or view.run_secs is None:
        return 0
    return min(MOST, int(tx.world.policy.ahead_secs * _slots(tx, key) / view.run_secs))


def _slots(tx: Transaction, key: AgentKey) -> int:
    """Return how many plain runs of the agent run at once."""
    policy = tx.world.policy
    return min(
        policy.slots_at(key.driver, key.kind, key.host), policy.runs_at(key.driver, key.kind, None)
    )


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
        pool = tx.world.slots.pools.get(limit)
        for number, ticket in [] if pool is None else pool.queue[: most + 1]:
            if ticket in view.ahead:
                continue
            if ticket not in view.asking or len(out) == left:
                return out
            out.append((number, ticket))
    return out


def place(tx: Transaction, key: AgentKey, ticket: RunKey, run: Run) -> None:
    """Place a run that holds its slots, durably, then launch it."""
    _clear_queue_limit(tx, ticket, run)
    _record(tx, key, ticket, run)


def waits(world: World, ticket: RunKey, run: Run) -> bool:
    """Return whether the first attempt of the run waits with its agent for a slot."""
    return len(run.attempts) == 1 and any(
        ticket in view.ahead
        for task in run.live_tasks
        if (view := world.agents.get(task.agent_key)) is not None
    )


def _record(tx: Transaction, key: AgentKey, ticket: RunKey, run: Run) -> None:
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
        ),
    )
    dispatch.launch(tx, key, (token,))


def slot_granted(tx: Transaction, ticket: RunKey, run: Run) -> AgentKey | None:
    """Handle a granted slot of a run that is placed ahead: let its agent start it, unless the agent
    has done so. Return the agent, or None for a run that is not placed.
    """
    for task in run.live_tasks:
        view = tx.world.agent(task.agent_key)
        if view.ahead.pop(ticket, None) is None:
            return None
        tx.shortened_windows[task.agent_key] = None
        _clear_queue_limit(tx, ticket, run)
        if task.pid is None:
            dispatch.launch(
                tx, task.agent_key, (task.token,), again=ticket not in tx.successors.values()
            )
        return task.agent_key
    return None


def started(tx: Transaction, token: Token) -> None:
    """Give slots to a run that its agent started without them: it uses them already."""
    task, run = tx.world.task(token), tx.world.jobs[token.jid].run
    ticket = (token.jid, token.serial)
    view = None if task is None else tx.world.agent(task.agent_key)
    number = None if view is None else view.ahead.pop(ticket, None)
    if number is None or task is None or run is None:
        return
    tx.shortened_windows[task.agent_key] = None
    _clear_queue_limit(tx, ticket, run)
    pools = pools_of(task.agent_key, token.jid, run.spec, tx.world.policy.batch)
    concurrency_limits.force(tx.world.slots, ticket, number, pools)


def agent_up(tx: Transaction, key: AgentKey) -> list[RunKey]:
    """Let the runs that wait with the agent request slots again. Return those that hold them."""
    ahead = tx.world.agent(key).ahead
    return [t for ticket in sorted(ahead, key=ahead.__getitem__) for t in request(tx, key, ticket)]


def request(tx: Transaction, key: AgentKey, ticket: RunKey) -> list[RunKey]:
    """Let a run that waits with the agent request slots, unless it does. Return it if it now holds
    them.
    """
    number = tx.world.agent(key).ahead.get(ticket)
    run = tx.world.jobs[ticket[0]].run if number is not None else None
    if number is None or run is None or run.serial != ticket[1]:
        return []
    pools = pools_of(key, ticket[0], run.spec, tx.world.policy.batch)
    return concurrency_limits.request(tx.world.slots, ticket, number, pools)


def agent_away(tx: Transaction, key: AgentKey) -> list[RunKey]:
    """Withdraw the requests of the runs that wait with the agent: it blocks no slot of others.
    Return the other runs that now hold their slots.
    """
    return concurrency_limits.release_all(tx.world.slots, list(tx.world.agent(key).ahead))


def _clear_queue_limit(tx: Transaction, ticket: RunKey, run: Run) -> None:
    limited = run.spec.queue_limit_secs or tx.world.policy.queue_limit_secs
    if limited and not cluster_assignment.queue_limit_continues(tx.world.policy, run):
        tx.emit(ClearTimer(timers.QueueLimit(*ticket)))
