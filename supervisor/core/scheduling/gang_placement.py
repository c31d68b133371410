"""Gang placement: all tasks of one attempt of a run with roles get their resources before any is
placed.

Two phases. First the gang reserves everything: its slots (`concurrency_limits`), then cores,
memory, GPUs and ports of all tasks at once (`gang_allocator`). Then, when all its agents are up and
report its ports free, all tasks are placed in one transaction and launched afterwards. So the host
lists are complete before anything starts.

Ports of containers are not checked, because each container has its own. Nor are ports with a batch
scheduler, where only the nodes could check them; there everything fits (`cluster_assignment`). A
gang that cannot be completed releases everything and waits, with a reason. A reservation is a
notice, not an event: after a restart everything is reserved again.
"""

from collections.abc import Iterable

from ....db.events.events import TaskPlaced
from ....db.events.state import Run, Task
from ....protocol.ids import AgentKey, Token, derived_id, op_id
from ....protocol.jobs.roles import TaskPlace
from ....protocol.wire.messages import PortsProbed
from ..interface.effects import CheckPorts, ClearTimer, SetTimer
from ..resources import gang_allocator
from ..resources.concurrency_limits import RunKey
from ..resources.gang_allocator import AVOID_BLOCK_SECS, AVOID_SECS, Allocation
from ..state import cluster_assignment
from ..state.transaction import Transaction
from ..state.world import GangReservation
from . import dispatch

#: Added to the time until avoided ports are tried again, so that they are available by then.
_SLACK_SECS = 1.0


def ask(turn: Transaction, ticket: RunKey) -> None:
    """Request the resources of the roles of a run that holds its slots."""
    run = _run(turn, ticket)
    key = turn.world.key_of(run)
    if key.driver in turn.world.policy.batch:
        seed = f"{ticket[0]}/{ticket[1]}/{run.attempt + 1}"
        granted(
            turn, [(ticket, cluster_assignment.places(turn.world.policy, run.spec, key.host, seed))]
        )
        return
    view = turn.world.agent(key)
    room = turn.world.room(run.spec.driver)
    granted(
        turn,
        gang_allocator.request(
            room, ticket, view.queued[ticket], run.spec.roles, turn.now.mono, run.spec.active_plan
        ),
    )


def granted(turn: Transaction, grants: Iterable[Allocation]) -> None:
    """Reserve the granted placements and check the agents and ports."""
    for ticket, places in grants:
        run = _run(turn, ticket)
        number = turn.world.agent(turn.world.key_of(run)).queued[ticket]
        turn.world.holds[ticket] = GangReservation(
            number=number, places=places, since=turn.now.mono
        )
        turn.ask(SetTimer(("hold", *ticket), turn.world.policy.op_reply_secs))
        _advance(turn, ticket)


def go_on(turn: Transaction, key: AgentKey) -> None:
    """Continue the gangs that waited for this agent."""
    for ticket in sorted(turn.world.agent(key).holding):
        if (hold := turn.world.holds.get(ticket)) is not None:
            hold.probes.pop(key, None)
            _advance(turn, ticket)


def stand_by(turn: Transaction, key: AgentKey) -> None:
    """Drop the port checks of an agent that is away, and look for it again."""
    view = turn.world.agent(key)
    for ticket in sorted(view.holding):
        hold = turn.world.holds[ticket]
        hold.probes.pop(key, None)
        hold.free.discard(key)
        turn.need(key)


def drop(turn: Transaction, ticket: RunKey) -> None:
    """Release everything that the gang holds or waits for."""
    if turn.world.held_off.pop(ticket, None) is not None:
        turn.ask(ClearTimer(("gang", *ticket)))
    _forget(turn, ticket)
    for room in turn.world.rooms.values():
        granted(turn, gang_allocator.release(room, ticket, turn.now.mono))


def leave(turn: Transaction, key: AgentKey, token: Token) -> None:
    """Release the resources of an ended task, also of an earlier run."""
    room = turn.world.rooms.get(key.driver)
    if room is not None:
        granted(
            turn,
            gang_allocator.release(
                room, (token.jid, token.serial), turn.now.mono, (token.role, token.index)
            ),
        )


def foreign(turn: Transaction, task: Task) -> None:
    """Avoid the addresses of a task whose network could not be created because another network uses
    them.
    """
    driver = task.agent_key.driver
    gang_allocator.foreign(
        turn.world.room(driver), task.agent_key.host, task.address, turn.now.mono
    )
    turn.ask(SetTimer(("room", driver), AVOID_BLOCK_SECS + _SLACK_SECS))


def elsewhere(turn: Transaction, driver: str, host: str) -> None:
    """Let unplaced gangs with reservations on this host release everything and request other
    placements.
    """
    if driver in turn.world.policy.batch:
        return  # the run names one cluster, there is no other
    room = turn.world.room(driver)
    for ticket in sorted(turn.world.holds):
        hold = turn.world.holds.get(ticket)
        if (
            hold is None
            or _run(turn, ticket).spec.driver != driver
            or not any(p.host == host for p in hold.places)
        ):
            continue
        _forget(turn, ticket)
        granted(turn, gang_allocator.again(room, ticket, turn.now.mono))


def probed(turn: Transaction, key: AgentKey, said: PortsProbed) -> None:
    """Handle an agent's report on the ports of a gang."""
    holding = turn.world.agent(key).holding
    ticket = next((t for t in holding if turn.world.holds[t].probes.get(key) == said.op_id), None)
    if ticket is None:
        return
    hold = turn.world.holds[ticket]
    del hold.probes[key]
    own = {port for place in hold.places if place.host == key.host for port in _ports(place)}
    busy = sorted(own & set(said.busy))
    if busy:
        _other_ports(turn, ticket, key, busy)
        return
    hold.free.add(key)
    _advance(turn, ticket)


def deadline(turn: Transaction, ticket: RunKey) -> None:
    """Check again a gang that holds everything and is not placed, later release everything for a
    while.
    """
    hold = turn.world.holds.get(ticket)
    if hold is None:
        return
    if turn.now.mono - hold.since < turn.world.policy.hold_secs:
        hold.probes.clear()
        turn.ask(SetTimer(("hold", *ticket), turn.world.policy.op_reply_secs))
        _advance(turn, ticket)
        return
    late = sorted(str(key) for key in _agents(turn, _run(turn, ticket), hold) - hold.free)
    hold_off(
        turn,
        ticket,
        f"it had everything it asks for, but {', '.join(late)} did not answer within {turn.world.policy.hold_secs:g} s",
    )


def hold_off(turn: Transaction, ticket: RunKey, reason: str) -> None:
    """Release everything, and request it again later."""
    secs = turn.world.policy.hold_again_secs
    drop(turn, ticket)
    turn.world.held_off[ticket] = (reason, turn.now.wall + secs)
    turn.ask(SetTimer(("gang", *ticket), secs))


def ask_again(turn: Transaction, ticket: RunKey) -> None:
    """Request the resources again after the pause."""
    if turn.world.held_off.pop(ticket, None) is not None:
        ask(turn, ticket)


def look_again(turn: Transaction, driver: str) -> None:
    """Retry ports and addresses that were avoided, and set the timer for the next retry."""
    room = turn.world.room(driver)
    granted(turn, gang_allocator.look_again(room, turn.now.mono))
    again = gang_allocator.next_look(room)
    if again is not None:
        turn.ask(SetTimer(("room", driver), max(0.0, again - turn.now.mono) + _SLACK_SECS))


# ---- inside


def _run(turn: Transaction, ticket: RunKey) -> Run:
    run = turn.world.jobs[ticket[0]].run
    assert run is not None and run.serial == ticket[1]
    return run


def _ports(place: TaskPlace) -> tuple[int, ...]:
    return tuple(port for ports in place.ports.values() for port in ports)


def _agents(turn: Transaction, run: Run, hold: GangReservation) -> set[AgentKey]:
    return {turn.world.key_at(run.spec, place.host) for place in hold.places}


def _advance(turn: Transaction, ticket: RunKey) -> None:
    """Ensure that all agents are up and the ports checked. Then place the gang."""
    hold, run = turn.world.holds[ticket], _run(turn, ticket)
    for key in sorted(_agents(turn, run, hold) - hold.free):
        view = turn.world.agent(key)
        view.holding.add(ticket)
        if not view.known:
            turn.need(key)
        elif key.kind == "container" or key.driver in turn.world.policy.batch:
            hold.free.add(key)
        elif key not in hold.probes:
            hold.tries += 1
            hold.probes[key] = derived_id(
                f"{ticket}|{hold.number}|{hold.tries}".encode() + turn.now.entropy,
                key=b"jobscribe probe",
            )
            ports = sorted(
                port for place in hold.places if place.host == key.host for port in _ports(place)
            )
            turn.ask(CheckPorts(key, hold.probes[key], tuple(ports)))
    if not _agents(turn, run, hold) - hold.free:
        _place(turn, ticket, run, hold)


def _other_ports(turn: Transaction, ticket: RunKey, key: AgentKey, busy: list[int]) -> None:
    """Replace ports on which other processes listen."""
    hold, run = turn.world.holds[ticket], _run(turn, ticket)
    room = turn.world.room(run.spec.driver)
    places, grants = gang_allocator.taken(room, ticket, {key.host: busy}, turn.now.mono)
    # also if the gang got other ports: another gang may wait for these
    turn.ask(SetTimer(("room", run.spec.driver), AVOID_SECS + _SLACK_SECS))
    if places is not None:
        hold.places = places
        _advance(turn, ticket)
    else:
        _forget(turn, ticket)
    granted(turn, grants)


def _forget(turn: Transaction, ticket: RunKey) -> None:
    hold = turn.world.holds.pop(ticket, None)
    if hold is not None:
        turn.ask(ClearTimer(("hold", *ticket)))
        for key in _agents(turn, _run(turn, ticket), hold):
            turn.world.agent(key).holding.discard(ticket)


def _place(turn: Transaction, ticket: RunKey, run: Run, hold: GangReservation) -> None:
    """Place all tasks, durably, then launch them."""
    jid, serial = ticket
    home, number = turn.world.key_of(run), run.attempt + 1
    _forget(turn, ticket)
    turn.world.dequeue(home, ticket)
    turn.shorter[home] = None
    if not cluster_assignment.keeps_limit(turn.world.policy, run):
        turn.ask(ClearTimer(("queue", jid, serial)))
    tokens: dict[AgentKey, list[Token]] = {}
    for place in hold.places:
        key = turn.world.key_at(run.spec, place.host)
        token = Token(jid, serial, number, place.role, place.index)
        there = turn.world.agent(key)
        there.placed.add(token)
        tokens.setdefault(key, []).append(token)
        turn.record(
            jid,
            TaskPlaced(
                at=turn.now.wall,
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
        dispatch.launch(turn, key, own)
