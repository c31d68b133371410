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
from ....protocol.jobs.roles import Place
from ....protocol.wire.messages import PortsProbed
from ..interface.effects import ClearTimer, Probe, SetTimer
from ..resources import gang_allocator as rooms
from ..resources.concurrency_limits import Ticket
from ..resources.gang_allocator import AVOID_BLOCK_SECS, AVOID_SECS, Grant
from ..state import cluster_assignment as batch
from ..state.world import Hold, Turn
from . import dispatch as tasks

#: A pause before ports that were in use are looked at again has a little room, so that they are
#: free to be chosen then.
_SLACK_SECS = 1.0


def ask(turn: Turn, ticket: Ticket) -> None:
    """It has its slots: now it asks for what its roles need."""
    run = _run(turn, ticket)
    key = turn.world.key_of(run)
    if key.driver in turn.world.policy.batch:
        seed = f"{ticket[0]}/{ticket[1]}/{run.attempt + 1}"
        granted(turn, [(ticket, batch.places(turn.world.policy, run.spec, key.host, seed))])
        return
    view = turn.world.agent(key)
    room = turn.world.room(run.spec.driver)
    granted(
        turn,
        rooms.request(
            room, ticket, view.queued[ticket], run.spec.roles, turn.now.mono, run.spec.active_plan
        ),
    )


def granted(turn: Turn, grants: Iterable[Grant]) -> None:
    """These gangs have everything."""
    for ticket, places in grants:
        run = _run(turn, ticket)
        number = turn.world.agent(turn.world.key_of(run)).queued[ticket]
        turn.world.holds[ticket] = Hold(number=number, places=places, since=turn.now.mono)
        turn.ask(SetTimer(("hold", *ticket), turn.world.policy.op_reply_secs))
        _advance(turn, ticket)


def go_on(turn: Turn, key: AgentKey) -> None:
    """This agent is up and known: gangs that waited for it."""
    for ticket in sorted(turn.world.agent(key).holding):
        if (hold := turn.world.holds.get(ticket)) is not None:
            hold.probes.pop(key, None)
            _advance(turn, ticket)


def stand_by(turn: Turn, key: AgentKey) -> None:
    """This agent is away: what it said of its ports is old, and somebody still needs it."""
    view = turn.world.agent(key)
    for ticket in sorted(view.holding):
        hold = turn.world.holds[ticket]
        hold.probes.pop(key, None)
        hold.free.discard(key)
        turn.need(key)


def drop(turn: Turn, ticket: Ticket) -> None:
    """It does not want to be placed any more, or not now: everything it holds goes to whoever is
    next.
    """
    if turn.world.held_off.pop(ticket, None) is not None:
        turn.ask(ClearTimer(("gang", *ticket)))
    _forget(turn, ticket)
    for room in turn.world.rooms.values():
        granted(turn, rooms.release(room, ticket, turn.now.mono))


def leave(turn: Turn, key: AgentKey, token: Token) -> None:
    """Nothing is left of this task, also of one of an earlier run: what it held goes to whoever is
    next.
    """
    room = turn.world.rooms.get(key.driver)
    if room is not None:
        granted(
            turn,
            rooms.release(
                room, (token.jid, token.serial), turn.now.mono, (token.role, token.index)
            ),
        )


def foreign(turn: Turn, task: Task) -> None:
    """Its network could not be made: somebody else has these addresses there. Nobody is given them
    for a while, nor is its next attempt.
    """
    driver = task.agent_key.driver
    rooms.foreign(turn.world.room(driver), task.agent_key.host, task.address, turn.now.mono)
    turn.ask(SetTimer(("room", driver), AVOID_BLOCK_SECS + _SLACK_SECS))


def elsewhere(turn: Turn, driver: str, host: str) -> None:
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
        granted(turn, rooms.again(room, ticket, turn.now.mono))


def probed(turn: Turn, key: AgentKey, said: PortsProbed) -> None:
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


def deadline(turn: Turn, ticket: Ticket) -> None:
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


def hold_off(turn: Turn, ticket: Ticket, reason: str) -> None:
    """It gives everything back, and asks again in a while."""
    secs = turn.world.policy.hold_again_secs
    drop(turn, ticket)
    turn.world.held_off[ticket] = (reason, turn.now.wall + secs)
    turn.ask(SetTimer(("gang", *ticket), secs))


def ask_again(turn: Turn, ticket: Ticket) -> None:
    """The while is over."""
    if turn.world.held_off.pop(ticket, None) is not None:
        ask(turn, ticket)


def look_again(turn: Turn, driver: str) -> None:
    """Ports and addresses that strangers had may be free; who waits on looks again when others may
    be.
    """
    room = turn.world.room(driver)
    granted(turn, rooms.look_again(room, turn.now.mono))
    again = rooms.next_look(room)
    if again is not None:
        turn.ask(SetTimer(("room", driver), max(0.0, again - turn.now.mono) + _SLACK_SECS))


# ---- inside


def _run(turn: Turn, ticket: Ticket) -> Run:
    run = turn.world.jobs[ticket[0]].run
    assert run is not None and run.serial == ticket[1]
    return run


def _ports(place: Place) -> tuple[int, ...]:
    return tuple(port for ports in place.ports.values() for port in ports)


def _agents(turn: Turn, run: Run, hold: Hold) -> set[AgentKey]:
    return {turn.world.key_at(run.spec, place.host) for place in hold.places}


def _advance(turn: Turn, ticket: Ticket) -> None:
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
            turn.ask(Probe(key, hold.probes[key], tuple(ports)))
    if not _agents(turn, run, hold) - hold.free:
        _place(turn, ticket, run, hold)


def _other_ports(turn: Turn, ticket: Ticket, key: AgentKey, busy: list[int]) -> None:
    """Strangers listen on some of its ports."""
    hold, run = turn.world.holds[ticket], _run(turn, ticket)
    room = turn.world.room(run.spec.driver)
    places, grants = rooms.taken(room, ticket, {key.host: busy}, turn.now.mono)
    # also when it has others now: somebody else may have to wait for these
    turn.ask(SetTimer(("room", run.spec.driver), AVOID_SECS + _SLACK_SECS))
    if places is not None:
        hold.places = places
        _advance(turn, ticket)
    else:
        _forget(turn, ticket)
    granted(turn, grants)


def _forget(turn: Turn, ticket: Ticket) -> None:
    hold = turn.world.holds.pop(ticket, None)
    if hold is not None:
        turn.ask(ClearTimer(("hold", *ticket)))
        for key in _agents(turn, _run(turn, ticket), hold):
            turn.world.agent(key).holding.discard(ticket)


def _place(turn: Turn, ticket: Ticket, run: Run, hold: Hold) -> None:
    """Assign all its tasks, durably, then launch them."""
    jid, serial = ticket
    home, number = turn.world.key_of(run), run.attempt + 1
    _forget(turn, ticket)
    turn.world.dequeue(home, ticket)
    turn.shorter[home] = None
    if not batch.keeps_limit(turn.world.policy, run):
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
        tasks.launch(turn, key, own)
