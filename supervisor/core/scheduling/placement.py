"""Placement: queues of agents, requests for slots, and the placement of tasks.

A run whose agent is not up waits outside the pools, so that a broken agent of one user blocks no
slot of another. Once the agent is up and synchronised, its runs request their slots in the order of
submission. A run that holds all its slots is placed at once or, with roles, requests the resources
of its roles (`gang_placement`).

Only the first runs of an agent request slots; the others wait behind them. So a new or lost agent,
or a released slot, costs the same for any queue length.
"""

from collections.abc import Iterable
from itertools import islice

from ....db.events.state import Job, Run, Task
from ....protocol.ids import AgentKey, Token
from ....protocol.wire.messages import PortsProbed
from ..interface import timers
from ..interface.effects import ClearTimer, SetTimer
from ..resources import concurrency_limits
from ..resources.concurrency_limits import RunKey
from ..resources.limit_pools import LimitPool, RunDirPool
from ..state import cluster_assignment, user_hours
from ..state.transaction import Transaction
from ..state.world import World
from . import gang_placement, placement_ahead

#: Interval in which runs that wait for hours of their user are looked at: the clock may change.
HOURS_SECS = 600.0
#: Runs of one agent that request slots at once. When half of them are placed, others follow.
ASKING = 128


def enqueue(tx: Transaction, job: Job) -> None:
    """Queue a new run, and ensure that its agent is started."""
    run = job.run
    assert run is not None
    key, number = tx.world.host_assignment.choose(run.spec), tx.world.number(run)
    if key is None:
        tx.world.host_assignment.unassigned[job.jid, run.serial] = number
        return
    last = next(reversed(tx.world.agent(key).queued.values()), number)
    tx.world.enqueue(key, (job.jid, run.serial), number)
    if number < last:
        reorder(tx, key)
    claim_all(tx, key)
    tx.require_agent(key)


def waits(world: World, ticket: RunKey, run: Run) -> bool:
    """Return whether the run is in a queue."""
    view = world.agents.get(world.key_of(run))
    return ticket in world.host_assignment.unassigned or (
        view is not None and ticket in view.queued
    )


def agent_up(tx: Transaction, key: AgentKey) -> None:
    """Continue the runs of an agent that is up and synchronised."""
    gang_placement.agent_up(tx, key)
    _refill(tx, place(tx, placement_ahead.agent_up(tx, key)))
    claim_all(tx, key)


def claim_all(tx: Transaction, key: AgentKey) -> None:
    """Let the oldest queued runs request slots, if the agent is up."""
    view = tx.world.agent(key)
    if not view.known:
        return
    while (free := min(ASKING, len(view.queued)) - len(view.asking)) > 0:
        behind = (
            (ticket, number) for ticket, number in view.queued.items() if ticket not in view.asking
        )
        for ticket, number in list(islice(behind, free)):
            if _waits_for_hours(tx, key, ticket):
                return
            view.asking.add(ticket)
            tx.shortened_windows[key] = None
            pools, account = tx.world.pools_of(key, ticket), tx.world.account_of(ticket)
            portions = tx.world.portions_of(ticket)
            place(
                tx,
                concurrency_limits.request(
                    tx.world.slots, ticket, number, pools, account, portions
                ),
            )


def _waits_for_hours(tx: Transaction, key: AgentKey, ticket: RunKey) -> bool:
    """Return whether the user of a run has used up the hours of the month. Then the run is looked at
    again later.
    """
    if not tx.world.limits_hours:
        return False
    run = tx.world.jobs[ticket[0]].run
    assert run is not None
    used_up = user_hours.used_up(tx.world, key.uid, run.spec.active_plan, tx.now)
    if used_up is None:
        return False
    left = max(0.0, used_up.resets_at - tx.now.wall) + 1.0
    tx.emit(SetTimer(timers.HoursCheck(key), min(left, HOURS_SECS)))
    return True


def gang_backoff_over(tx: Transaction, ticket: RunKey) -> None:
    """Let a gang request its resources again after its pause, or give back its slots if its user
    has used up the hours of the month.
    """
    if ticket in tx.world.gang_backoffs:
        run = tx.world.jobs[ticket[0]].run
        assert run is not None
        key = tx.world.key_of(run)
        if _waits_for_hours(tx, key, ticket):
            withdraw(tx, key, tx.world.agent(key).asking)
        else:
            gang_placement.backoff_over(tx, ticket)


def withdraw_all(tx: Transaction, key: AgentKey) -> None:
    """Take the agent's queued runs out of the pools while it is away."""
    _refill(tx, place(tx, placement_ahead.agent_away(tx, key)))
    withdraw(tx, key, tx.world.agent(key).asking)
    gang_placement.agent_away(tx, key)


def withdraw(tx: Transaction, key: AgentKey, tickets: Iterable[RunKey]) -> None:
    """Withdraw the slot requests of these runs."""
    view = tx.world.agent(key)
    # in one call, so that none of them gets a slot that another one releases
    leaving = sorted(view.asking.intersection(tickets), key=view.queued.__getitem__, reverse=True)
    view.asking.difference_update(leaving)
    for ticket in leaving:
        if (
            ticket in view.queued
        ):  # a gang may have been placed with a slot that another run released
            gang_placement.release(tx, ticket)
    _refill(
        tx,
        place(
            tx,
            concurrency_limits.release_all(
                tx.world.slots, [t for t in leaving if t in view.queued]
            ),
        ),
    )


def reorder(tx: Transaction, key: AgentKey) -> None:
    """Sort the queue after other runs were added. The oldest runs request slots."""
    view = tx.world.agent(key)
    view.queued = dict(sorted(view.queued.items(), key=lambda item: item[1]))
    view.gangs = dict(sorted(view.gangs.items(), key=lambda item: item[1]))
    withdraw(tx, key, view.asking - set(islice(view.queued, ASKING)))
    claim_all(tx, key)


def remove(tx: Transaction, key: AgentKey, ticket: RunKey) -> None:
    """Remove a queued run that was ended."""
    tx.world.dequeue(key, ticket)
    _release(tx, ticket)
    _refill(tx, {key})


def task_ended(tx: Transaction, key: AgentKey, token: Token) -> None:
    """Release the resources of an ended execution, and with the last one of its attempt the slots."""
    view, ticket = tx.world.agent(key), (token.jid, token.serial)
    view.placed.discard(token)
    view.ahead.pop(ticket, None)
    gang_placement.task_ended(tx, key, token)
    if ticket not in tx.world.task_counts:
        successor = tx.successors.pop(token, None)
        if successor is None:
            _release(tx, ticket)
        else:
            gang_placement.release(tx, ticket)
            _refill(tx, place(tx, placement_ahead.hand_over(tx, ticket, successor)))
    tx.shortened_windows[key] = None


def stopped(tx: Transaction, task: Task) -> None:
    """Withdraw the slot request of a placed task that is to be stopped, if it waits for a slot."""
    _refill(tx, place(tx, placement_ahead.stopped(tx, task)))


def probed(tx: Transaction, key: AgentKey, report: PortsProbed) -> None:
    """Handle an agent's report on the ports of a gang."""
    gang_placement.probed(tx, key, report)


def task_started(tx: Transaction, token: Token) -> None:
    """Release the run directory of a started run: it may be read from now on."""
    placement_ahead.started(tx, token)
    run = tx.world.jobs[token.jid].run
    if (
        run is not None
        and run.serial == token.serial
        and cluster_assignment.queue_limit_continues(tx.world.policy, run)
    ):
        tx.emit(ClearTimer(timers.QueueLimit(token.jid, token.serial)))
    _release(tx, (token.jid, token.serial), RunDirPool(token.jid))


def resized(tx: Transaction, limits: list[LimitPool]) -> None:
    """Place the runs that get slots because the capacity of these pools changed."""
    _refill(tx, place(tx, concurrency_limits.resize(tx.world.slots, limits)))


def _release(tx: Transaction, ticket: RunKey, only: LimitPool | None = None) -> None:
    if only is None:
        gang_placement.release(tx, ticket)
    _refill(tx, place(tx, concurrency_limits.release(tx.world.slots, ticket, only)))


def refill_shortened(tx: Transaction) -> None:
    """Let other runs request slots after gangs were placed."""
    keys = list(tx.shortened_queues)
    tx.shortened_queues.clear()
    _refill(tx, keys)


def fill_windows(tx: Transaction) -> None:
    """Place runs ahead with agents whose runs ended or got slots."""
    placement_ahead.record_grants(tx)
    while tx.shortened_windows:
        key = next(iter(tx.shortened_windows))
        del tx.shortened_windows[key]
        placement_ahead.fill(tx, key)
        _refill(tx, {key})


def _refill(tx: Transaction, keys: Iterable[AgentKey]) -> None:
    """Let further runs of these agents request slots."""
    for key in sorted(keys):
        if len(tx.world.agent(key).asking) <= ASKING // 2:
            claim_all(tx, key)


def place(tx: Transaction, tickets: Iterable[RunKey]) -> set[AgentKey]:
    """Place runs that hold all their slots, durably, then launch them; gangs request more. Return
    the agents whose queues became shorter.
    """
    keys: set[AgentKey] = set()
    without_hours: set[AgentKey] = set()
    for ticket in tickets:
        run = tx.world.jobs[ticket[0]].run
        assert run is not None and run.serial == ticket[1]
        agent = placement_ahead.slot_granted(tx, ticket, run)
        if agent is not None:
            keys.add(agent)
        elif _waits_for_hours(tx, tx.world.key_of(run), ticket):
            without_hours.add(tx.world.key_of(run))
        elif run.spec.roles:
            gang_placement.request(tx, ticket)
        else:
            key = tx.world.key_of(run)
            placement_ahead.place(tx, key, ticket, run)
            keys.add(key)
    for key in sorted(without_hours):
        withdraw(tx, key, tx.world.agent(key).asking)
    return keys
