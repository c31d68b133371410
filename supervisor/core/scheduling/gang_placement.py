"""Gang placement: all tasks of one attempt of a run with roles get their resources before any is
placed.

Two phases. First the gang reserves everything: its slots (`concurrency_limits`), then cores,
memory, GPUs and ports of all tasks at once (`gang_allocator`). Then, when all its agents are up and
report its ports free, all tasks are placed in one transaction and launched afterwards. So the host
lists are complete before anything starts.

Ports of containers are not checked, because each container has its own. With a batch scheduler,
ports are not checked either, because only the nodes could check them, and every gang fits
(`cluster_assignment`). A gang that cannot be completed releases everything and waits, with a
reason. A reservation is a notice, not an event: after a restart everything is reserved again.
"""

from collections.abc import Iterable

from ....db.events.events import TaskPlaced
from ....db.events.state import Run, Task
from ....protocol.ids import AgentKey, AgentKind, Token, derived_id, op_id
from ....protocol.jobs.roles import TaskPlace
from ....protocol.wire.messages import PortsProbed
from ..interface import timers
from ..interface.effects import CheckPorts, ClearTimer, SetTimer
from ..resources import gang_allocator
from ..resources.concurrency_limits import RunKey
from ..resources.gang_allocator import AVOID_BLOCK_SECS, AVOID_SECS, Allocation
from ..state import cluster_assignment, user_hours
from ..state.transaction import Transaction
from ..state.world import GangReservation
from . import dispatch

#: Added to the time until avoided ports are tried again, so that they are available by then.
_SLACK_SECS = 1.0
#: Interval in which the order of waiting gangs is looked at again.
TURN_SECS = 10.0


def request(tx: Transaction, ticket: RunKey) -> None:
    """Request the resources of the roles of a run that holds its slots."""
    run = _run(tx, ticket)
    key = tx.world.key_of(run)
    if key.driver in tx.world.policy.batch:
        seed = f"{ticket[0]}/{ticket[1]}/{run.attempt + 1}"
        granted(
            tx, [(ticket, cluster_assignment.places(tx.world.policy, run.spec, key.host, seed))]
        )
        return
    view = tx.world.agent(key)
    pool = tx.world.node_pool(run.spec.driver)
    granted(
        tx,
        gang_allocator.request(
            pool,
            ticket,
            view.queued[ticket],
            run.spec.roles,
            tx.now.mono,
            run.spec.active_plan,
            tx.world.account_of(ticket),
            _limit_secs(tx, run),
        ),
    )
    if not pool.retries and gang_allocator.is_contended(pool):
        pool.retries = True
        tx.emit(SetTimer(timers.NodePoolRetry(run.spec.driver), TURN_SECS))


def granted(tx: Transaction, grants: Iterable[Allocation]) -> None:
    """Reserve the granted placements and check the agents and ports."""
    for ticket, places in grants:
        run = _run(tx, ticket)
        number = tx.world.agent(tx.world.key_of(run)).queued[ticket]
        tx.world.holds[ticket] = GangReservation(number=number, places=places, since=tx.now.mono)
        tx.emit(SetTimer(timers.ReservationDeadline(*ticket), tx.world.policy.op_reply_secs))
        _advance(tx, ticket)


def agent_up(tx: Transaction, key: AgentKey) -> None:
    """Continue the gangs that waited for this agent."""
    for ticket in sorted(tx.world.agent(key).holding):
        if (hold := tx.world.holds.get(ticket)) is not None:
            hold.probes.pop(key, None)
            _advance(tx, ticket)


def agent_away(tx: Transaction, key: AgentKey) -> None:
    """Drop the port checks of an agent that is away, and ask its driver for its state again."""
    view = tx.world.agent(key)
    for ticket in sorted(view.holding):
        hold = tx.world.holds[ticket]
        hold.probes.pop(key, None)
        hold.free.discard(key)
        tx.require_agent(key)


def release(tx: Transaction, ticket: RunKey) -> None:
    """Release everything that the gang holds or waits for."""
    if tx.world.gang_backoffs.pop(ticket, None) is not None:
        tx.emit(ClearTimer(timers.ReservationRetry(*ticket)))
    _drop_reservation(tx, ticket)
    for pool in tx.world.node_pools.values():
        granted(tx, gang_allocator.release(pool, ticket, tx.now.mono))


def task_ended(tx: Transaction, key: AgentKey, token: Token) -> None:
    """Release the resources of an ended task, also of an earlier run."""
    pool = tx.world.node_pools.get(key.driver)
    if pool is not None:
        granted(
            tx,
            gang_allocator.release(
                pool, (token.jid, token.serial), tx.now.mono, (token.role, token.index)
            ),
        )


def avoid_network(tx: Transaction, task: Task) -> None:
    """Avoid the addresses of a task whose network could not be created because another network uses
    them.
    """
    driver = task.agent_key.driver
    gang_allocator.avoid_block(
        tx.world.node_pool(driver), task.agent_key.host, task.address, tx.now.mono
    )
    tx.emit(SetTimer(timers.NodePoolRetry(driver), AVOID_BLOCK_SECS + _SLACK_SECS))


def host_down(tx: Transaction, driver: str, host: str) -> None:
    """Let unplaced gangs with reservations on this host release everything and request other
    placements.
    """
    if driver in tx.world.policy.batch:
        return  # the run names its cluster, so no other host is possible
    pool = tx.world.node_pool(driver)
    for ticket in sorted(tx.world.holds):
        hold = tx.world.holds.get(ticket)
        if (
            hold is None
            or _run(tx, ticket).spec.driver != driver
            or not any(p.host == host for p in hold.places)
        ):
            continue
        _drop_reservation(tx, ticket)
        granted(tx, gang_allocator.requeue(pool, ticket, tx.now.mono))


def probed(tx: Transaction, key: AgentKey, report: PortsProbed) -> None:
    """Handle an agent's report on the ports of a gang."""
    holding = tx.world.agent(key).holding
    ticket = next((t for t in holding if tx.world.holds[t].probes.get(key) == report.op_id), None)
    if ticket is None:
        return
    hold = tx.world.holds[ticket]
    del hold.probes[key]
    own = {port for place in hold.places if place.host == key.host for port in _ports(place)}
    busy = sorted(own & set(report.busy))
    if busy:
        _replace_ports(tx, ticket, key, busy)
        return
    hold.free.add(key)
    _advance(tx, ticket)


def deadline(tx: Transaction, ticket: RunKey) -> None:
    """Check a gang again that holds all resources and is not placed. After a longer time, release
    all resources for a while.
    """
    hold = tx.world.holds.get(ticket)
    if hold is None:
        return
    if tx.now.mono - hold.since < tx.world.policy.hold_secs:
        hold.probes.clear()
        tx.emit(SetTimer(timers.ReservationDeadline(*ticket), tx.world.policy.op_reply_secs))
        _advance(tx, ticket)
        return
    late = sorted(str(key) for key in _agents(tx, _run(tx, ticket), hold) - hold.free)
    back_off(
        tx,
        ticket,
        f"it held all its resources, but {', '.join(late)} did not answer within {tx.world.policy.hold_secs:g} s",
    )


def back_off(tx: Transaction, ticket: RunKey, reason: str, secs: float | None = None) -> None:
    """Release everything, and request it again later. secs: another pause than that of the site."""
    secs = tx.world.policy.hold_again_secs if secs is None else secs
    release(tx, ticket)
    tx.world.gang_backoffs[ticket] = (reason, tx.now.wall + secs)
    tx.emit(SetTimer(timers.ReservationRetry(*ticket), secs))


def backoff_over(tx: Transaction, ticket: RunKey) -> None:
    """Request the resources again after the pause."""
    if tx.world.gang_backoffs.pop(ticket, None) is not None:
        request(tx, ticket)


def retry_pool(tx: Transaction, driver: str) -> None:
    """Try the waiting gangs again: ports and addresses that were avoided may be free, and with time it
    may be the turn of another user. Set the timer for the next retry.
    """
    pool = tx.world.node_pool(driver)
    granted(tx, gang_allocator.retry(pool, tx.now.mono))
    avoided = gang_allocator.next_retry(pool)
    pool.retries = gang_allocator.is_contended(pool)
    waits = [TURN_SECS] if pool.retries else []
    if avoided is not None:
        waits.append(max(0.0, avoided - tx.now.mono) + _SLACK_SECS)
    if waits:
        tx.emit(SetTimer(timers.NodePoolRetry(driver), min(waits)))


# ---- inside


def _limit_secs(tx: Transaction, run: Run) -> float | None:
    """Return the longest time for which the run holds resources; None if it has no end or may be
    held for debugging.
    """
    limit = run.spec.time_limit_secs or tx.world.policy.time_limit_secs
    return None if limit is None or run.spec.debug_secs else limit + run.spec.grace_secs


def _run(tx: Transaction, ticket: RunKey) -> Run:
    run = tx.world.jobs[ticket[0]].run
    assert run is not None and run.serial == ticket[1]
    return run


def _ports(place: TaskPlace) -> tuple[int, ...]:
    return tuple(port for ports in place.ports.values() for port in ports)


def _agents(tx: Transaction, run: Run, hold: GangReservation) -> set[AgentKey]:
    return {tx.world.key_at(run.spec, place.host) for place in hold.places}


def _advance(tx: Transaction, ticket: RunKey) -> None:
    """Ensure that all agents are up and the ports checked. Then place the gang."""
    hold, run = tx.world.holds[ticket], _run(tx, ticket)
    for key in sorted(_agents(tx, run, hold) - hold.free):
        view = tx.world.agent(key)
        view.holding.add(ticket)
        if not view.known:
            tx.require_agent(key)
        elif key.kind == AgentKind.CONTAINER or key.driver in tx.world.policy.batch:
            hold.free.add(key)
        elif key not in hold.probes:
            hold.tries += 1
            hold.probes[key] = derived_id(
                f"{ticket}|{hold.number}|{hold.tries}".encode() + tx.now.entropy,
                key=b"jobscribe probe",
            )
            ports = sorted(
                port for place in hold.places if place.host == key.host for port in _ports(place)
            )
            tx.emit(CheckPorts(key, hold.probes[key], tuple(ports)))
    if not _agents(tx, run, hold) - hold.free:
        _place(tx, ticket, run, hold)


def _replace_ports(tx: Transaction, ticket: RunKey, key: AgentKey, busy: list[int]) -> None:
    """Replace ports on which other processes listen."""
    hold, run = tx.world.holds[ticket], _run(tx, ticket)
    pool = tx.world.node_pool(run.spec.driver)
    places, grants = gang_allocator.ports_taken(pool, ticket, {key.host: busy}, tx.now.mono)
    # also if the gang got other ports: another gang may wait for these
    tx.emit(SetTimer(timers.NodePoolRetry(run.spec.driver), AVOID_SECS + _SLACK_SECS))
    if places is not None:
        hold.places = places
        _advance(tx, ticket)
    else:
        _drop_reservation(tx, ticket)
    granted(tx, grants)


def _drop_reservation(tx: Transaction, ticket: RunKey) -> None:
    hold = tx.world.holds.pop(ticket, None)
    if hold is not None:
        tx.emit(ClearTimer(timers.ReservationDeadline(*ticket)))
        for key in _agents(tx, _run(tx, ticket), hold):
            tx.world.agent(key).holding.discard(ticket)


def _place(tx: Transaction, ticket: RunKey, run: Run, hold: GangReservation) -> None:
    """Place all tasks, durably, then launch them."""
    jid, serial = ticket
    queue_key, number = tx.world.key_of(run), run.attempt + 1
    hours = user_hours.used_up(tx.world, queue_key.uid, run.spec.active_plan, tx.now)
    if hours is not None:  # since the gang requested its resources
        back_off(tx, ticket, hours.sentence, 0.0)
        return
    _drop_reservation(tx, ticket)
    tx.world.dequeue(queue_key, ticket)
    tx.shortened_queues[queue_key] = None
    if not cluster_assignment.queue_limit_continues(tx.world.policy, run):
        tx.emit(ClearTimer(timers.QueueLimit(jid, serial)))
    tokens: dict[AgentKey, list[Token]] = {}
    for place in hold.places:
        key = tx.world.key_at(run.spec, place.host)
        token = Token(jid, serial, number, place.role, place.index)
        there = tx.world.agent(key)
        there.placed.add(token)
        tokens.setdefault(key, []).append(token)
        tx.record(
            jid,
            TaskPlaced(
                at=tx.now.wall,
                token=token,
                agent_key=key,
                op_id=op_id(token, "run"),
                boot_id=there.boot_id or None,
                address=place.address,
                ports=place.ports,
                gpus=place.gpus,
            ),
        )
    for key, own in tokens.items():
        dispatch.launch(tx, key, own)
