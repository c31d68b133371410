"""The queue: who waits for an agent, who for slots, and the moment a task is placed.

A run whose agent is not up waits outside the pools, so that a broken agent of one user holds no
slot of another. When the agent is up and known, its runs ask for their slots in the order of
submission; whoever holds all of them is placed at once, or, with roles, goes on to ask for what
those need (`gangs`).

Only the first of an agent's runs ask; the others, who could not get anything before these, stand
behind them. So an agent that comes or goes, or a slot that becomes free, costs the same however
many wait.
"""

from collections.abc import Iterable
from itertools import islice

from ....db.events.events import TaskPlaced
from ....db.events.state import Job, Run
from ....protocol.ids import AgentKey, Token, op_id
from ....protocol.wire.messages import PortsProbed
from ..interface.effects import ClearTimer
from ..resources import concurrency_limits
from ..resources.concurrency_limits import RunKey
from ..state import cluster_assignment
from ..state.world import Transaction, World, dir_pool, pools_of
from . import dispatch, gang_placement

ROLE, INDEX = "main", 0
#: Runs of one agent that ask for slots at once; when half of them have what they want, others
#: follow.
ASKING = 128


def enqueue(turn: Transaction, job: Job) -> None:
    """A new run waits from now on, for an agent that is seen to."""
    run = job.run
    assert run is not None
    key, number = turn.world.homes.choose(run.spec), turn.world.number()
    if key is None:
        turn.world.homes.homeless[job.jid, run.serial] = number
        return
    turn.world.enqueue(key, (job.jid, run.serial), number)
    claim_all(turn, key)
    turn.need(key)


def waits(world: World, ticket: RunKey, run: Run) -> bool:
    """Is it in a queue?"""
    view = world.agents.get(world.key_of(run))
    return ticket in world.homes.homeless or (view is not None and ticket in view.queued)


def up(turn: Transaction, key: AgentKey) -> None:
    """The agent is up and known: its runs go on."""
    gang_placement.go_on(turn, key)
    claim_all(turn, key)


def claim_all(turn: Transaction, key: AgentKey) -> None:
    """If the agent is up, its queued runs ask for slots, oldest first."""
    view = turn.world.agent(key)
    if not view.known:
        return
    while (room := min(ASKING, len(view.queued)) - len(view.asking)) > 0:
        behind = (
            (ticket, number) for ticket, number in view.queued.items() if ticket not in view.asking
        )
        for ticket, number in list(islice(behind, room)):
            view.asking.add(ticket)
            run = turn.world.jobs[ticket[0]].run
            assert run is not None and run.serial == ticket[1]
            place(
                turn,
                concurrency_limits.request(
                    turn.world.slots,
                    ticket,
                    number,
                    pools_of(key, ticket[0], run.spec, turn.world.policy.batch),
                ),
            )


def withdraw_all(turn: Transaction, key: AgentKey) -> None:
    """The agent is away: its queued runs wait outside the pools again."""
    withdraw(turn, key, turn.world.agent(key).asking)
    gang_placement.stand_by(turn, key)


def withdraw(turn: Transaction, key: AgentKey, tickets: Iterable[RunKey]) -> None:
    """These do not ask any more."""
    view = turn.world.agent(key)
    # all at once, so that none of them gets what another one of them gives back
    leaving = sorted(view.asking.intersection(tickets), key=view.queued.__getitem__, reverse=True)
    view.asking.difference_update(leaving)
    for ticket in leaving:
        if ticket in view.queued:  # a gang may have been placed with what another one gave back
            gang_placement.drop(turn, ticket)
    _see_to(
        turn,
        place(
            turn,
            concurrency_limits.release_all(
                turn.world.slots, [t for t in leaving if t in view.queued]
            ),
        ),
    )


def in_order(turn: Transaction, key: AgentKey) -> None:
    """Others have come to this agent's queue: the oldest of all ask."""
    view = turn.world.agent(key)
    view.queued = dict(sorted(view.queued.items(), key=lambda item: item[1]))
    view.gangs = dict(sorted(view.gangs.items(), key=lambda item: item[1]))
    withdraw(turn, key, view.asking - set(islice(view.queued, ASKING)))
    claim_all(turn, key)


def leave(turn: Transaction, key: AgentKey, ticket: RunKey) -> None:
    """A queued run does not want to run any more."""
    turn.world.dequeue(key, ticket)
    _give_back(turn, ticket)
    _see_to(turn, {key})


def over(turn: Transaction, key: AgentKey, token: Token) -> None:
    """Nothing is left of this execution: what it held goes to whoever is next, and with the last
    one of its attempt the slots.
    """
    turn.world.agent(key).placed.discard(token)
    gang_placement.leave(turn, key, token)
    if (token.jid, token.serial) not in turn.world.tallies:
        _give_back(turn, (token.jid, token.serial))


def probed(turn: Transaction, key: AgentKey, said: PortsProbed) -> None:
    """An agent has looked at the ports of a gang."""
    gang_placement.probed(turn, key, said)


def running(turn: Transaction, token: Token) -> None:
    """It started: the run directory may be read from now on."""
    run = turn.world.jobs[token.jid].run
    if (
        run is not None
        and run.serial == token.serial
        and cluster_assignment.keeps_limit(turn.world.policy, run)
    ):
        turn.ask(ClearTimer(("queue", token.jid, token.serial)))
    _give_back(turn, (token.jid, token.serial), dir_pool(token.jid))


def _give_back(turn: Transaction, ticket: RunKey, only: str | None = None) -> None:
    if only is None:
        gang_placement.drop(turn, ticket)
    _see_to(turn, place(turn, concurrency_limits.release(turn.world.slots, ticket, only)))


def follow(turn: Transaction) -> None:
    """Gangs were placed: others may ask in their place."""
    keys = list(turn.shorter)
    turn.shorter.clear()
    _see_to(turn, keys)


def _see_to(turn: Transaction, keys: Iterable[AgentKey]) -> None:
    """Fewer runs of these agents ask than did: others may."""
    for key in sorted(keys):
        if len(turn.world.agent(key).asking) <= ASKING // 2:
            claim_all(turn, key)


def place(turn: Transaction, tickets: Iterable[RunKey]) -> set[AgentKey]:
    """These hold all their slots: assign them, durably, then launch; gangs ask for more. Returns
    whose queue has become shorter.
    """
    keys: set[AgentKey] = set()
    for ticket in tickets:
        run = turn.world.jobs[ticket[0]].run
        assert run is not None and run.serial == ticket[1]
        if run.spec.roles:
            gang_placement.ask(turn, ticket)
        else:
            keys.add(_place_one(turn, ticket, run))
    return keys


def _place_one(turn: Transaction, ticket: RunKey, run: Run) -> AgentKey:
    jid, serial = ticket
    key = turn.world.key_of(run)
    token = Token(jid, serial, run.attempt + 1, ROLE, INDEX)
    view = turn.world.agent(key)
    turn.world.dequeue(key, ticket)
    view.placed.add(token)
    limited = run.spec.queue_limit_secs or turn.world.policy.queue_limit_secs
    if limited and not cluster_assignment.keeps_limit(turn.world.policy, run):
        turn.ask(ClearTimer(("queue", jid, serial)))
    turn.record(
        jid,
        TaskPlaced(
            at=turn.now.wall,
            token=token,
            agent_key=key,
            op_id=op_id(token, "run"),
            boot_id=view.boot_id or None,
        ),
    )
    dispatch.launch(turn, key, (token,))
    return key
