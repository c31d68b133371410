"""Gangs: all tasks of one attempt of a run with roles, held together before any of them is placed.

Two phases. First everything is held: its slots (`slots`), then cores, memory, GPUs and ports for
every task at once (`rooms`). Then, when each of its agents is up and says that nobody listens on
these ports, all tasks are placed in one transaction, and only then launched: so the lists of hosts
are complete before anything starts. Tasks in containers have all ports to themselves: nobody is
asked about those. Nor is anybody asked with a batch scheduler, where only its nodes could say, and
everything fits (`batch`). What cannot be completed gives everything back and waits, with a reason.
A hold is a notice, not an event: after a restart everything is held anew.
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
from ..state.world import GangReservation, Transaction
from . import dispatch

#: A pause before ports that were in use are looked at again has a little room, so that they are
#: free to be chosen then.
_SLACK_SECS = 1.0


def ask(turn: Transaction, ticket: RunKey) -> None:
    """It has its slots: now it asks for what its roles need."""
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
    """These gangs have everything."""
    for ticket, places in grants:
        run = _run(turn, ticket)
        number = turn.world.agent(turn.world.key_of(run)).queued[ticket]
        turn.world.holds[ticket] = GangReservation(
            number=number, places=places, since=turn.now.mono
        )
        turn.ask(SetTimer(("hold", *ticket), turn.world.policy.op_reply_secs))
        _advance(turn, ticket)


def go_on(turn: Transaction, key: AgentKey) -> None:
    """This agent is up and known: gangs that waited for it."""
    for ticket in sorted(turn.world.agent(key).holding):
        if (hold := turn.world.holds.get(ticket)) is not None:
            hold.probes.pop(key, None)
            _advance(turn, ticket)


def stand_by(turn: Transaction, key: AgentKey) -> None:
    """This agent is away: what it said of its ports is old, and somebody still needs it."""
    view = turn.world.agent(key)
    for ticket in sorted(view.holding):
        hold = turn.world.holds[ticket]
        hold.probes.pop(key, None)
        hold.free.discard(key)
        turn.need(key)


def drop(turn: Transaction, ticket: RunKey) -> None:
    """It does not want to be placed any more, or not now: everything it holds goes to whoever is
    next.
    """
    if turn.world.held_off.pop(ticket, None) is not None:
        turn.ask(ClearTimer(("gang", *ticket)))
    _forget(turn, ticket)
    for room in turn.world.rooms.values():
        granted(turn, gang_allocator.release(room, ticket, turn.now.mono))


def leave(turn: Transaction, key: AgentKey, token: Token) -> None:
    """Nothing is left of this task, also of one of an earlier run: what it held goes to whoever is
    next.
    """
    room = turn.world.rooms.get(key.driver)
    if room is not None:
        granted(
            turn,
            gang_allocator.release(
                room, (token.jid, token.serial), turn.now.mono, (token.role, token.index)
            ),
        )


def foreign(turn: Transaction, task: Task) -> None:
    """Its network could not be made: somebody else has these addresses there. Nobody is given them
    for a while, nor is its next attempt.
    """
    driver = task.agent_key.driver
    gang_allocator.foreign(
        turn.world.room(driver), task.agent_key.host, task.address, turn.now.mono
    )
    turn.ask(SetTimer(("room", driver), AVOID_BLOCK_SECS + _SLACK_SECS))


def elsewhere(turn: Transaction, driver: str, host: str) -> None:
    """This host cannot be asked: gangs that hold something there and are not placed give everything
    back, and ask for other places.
    """
    if driver in turn.world.policy.batch:
        return  # there is one cluster that it may go to
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
    """An agent has looked at its ports."""
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
    """It has everything for some time and is not placed: ask again, then give everything back for a
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
    """It gives everything back, and asks again in a while."""
    secs = turn.world.policy.hold_again_secs
    drop(turn, ticket)
    turn.world.held_off[ticket] = (reason, turn.now.wall + secs)
    turn.ask(SetTimer(("gang", *ticket), secs))


def ask_again(turn: Transaction, ticket: RunKey) -> None:
    """The while is over."""
    if turn.world.held_off.pop(ticket, None) is not None:
        ask(turn, ticket)


def look_again(turn: Transaction, driver: str) -> None:
    """Ports and addresses that strangers had may be free; who waits on looks again when others may
    be.
    """
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
    """Have each of its agents up, and asked about the ports there; when all is well, place it."""
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
    """Strangers listen on some of its ports."""
    hold, run = turn.world.holds[ticket], _run(turn, ticket)
    room = turn.world.room(run.spec.driver)
    places, grants = gang_allocator.taken(room, ticket, {key.host: busy}, turn.now.mono)
    # also when it has others now: somebody else may have to wait for these
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
    """Assign all its tasks, durably, then launch them."""
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
