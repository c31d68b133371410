"""The queue: who waits for an agent, who for slots, and the moment a task is placed.

A run whose agent is not up waits outside the pools, so that a broken agent of one user holds no slot of another. When the
agent is up and known, its runs ask for their slots in the order of submission; whoever holds all three is placed at once.

Only the first of an agent's runs ask; the others, who could not get anything before these, stand behind them. So an agent that
comes or goes, or a slot that becomes free, costs the same however many wait.
"""

from collections.abc import Iterable
from itertools import islice

from ...db.events import TaskPlaced
from ...db.state import Job
from ...protocol.ids import AgentKey, Token, op_id
from ...protocol.messages import AppInput, TaskSpec
from . import slots
from .effects import ClearTimer, LaunchTask, SetTimer
from .slots import Ticket
from .world import Turn, dir_pool, pools_of

ROLE, INDEX = "main", 0
#: Runs of one agent that ask for slots at once; when half of them have what they want, others follow.
ASKING = 128


def enqueue(turn: Turn, job: Job) -> AgentKey:
    """A new run waits from now on. Returns the agent it waits for."""
    run = job.run
    assert run is not None
    key = turn.world.key_of(run)
    turn.world.agent(key).queued[(job.jid, run.serial)] = turn.world.number()
    claim_all(turn, key)
    return key


def claim_all(turn: Turn, key: AgentKey) -> None:
    """If the agent is up, its queued runs ask for slots, oldest first."""
    view = turn.world.agent(key)
    if view.phase != "up" or not view.synced:
        return
    while (room := min(ASKING, len(view.queued)) - len(view.asking)) > 0:
        behind = ((ticket, number) for ticket, number in view.queued.items() if ticket not in view.asking)
        for ticket, number in list(islice(behind, room)):
            view.asking.add(ticket)
            place(turn, slots.request(turn.world.slots, ticket, number, pools_of(key, ticket[0])))


def withdraw_all(turn: Turn, key: AgentKey) -> None:
    """The agent is away: its queued runs wait outside the pools again."""
    view = turn.world.agent(key)
    # the last first, so that none of them gets what another one of them gives back
    for ticket in sorted(view.asking, key=view.queued.__getitem__, reverse=True):
        view.asking.discard(ticket)
        _give_back(turn, ticket)


def leave(turn: Turn, key: AgentKey, ticket: Ticket) -> None:
    """A queued run does not want to run any more."""
    view = turn.world.agent(key)
    view.queued.pop(ticket, None)
    view.asking.discard(ticket)
    _give_back(turn, ticket)
    _follow(turn, {key})


def over(turn: Turn, key: AgentKey, token: Token) -> None:
    """Nothing is left of this execution: its slots go to whoever is next."""
    turn.world.agent(key).placed.discard(token)
    _give_back(turn, (token.jid, token.serial))


def running(turn: Turn, token: Token) -> None:
    """It started: the run directory may be read from now on."""
    _give_back(turn, (token.jid, token.serial), dir_pool(token.jid))


def _give_back(turn: Turn, ticket: Ticket, only: str | None = None) -> None:
    _follow(turn, place(turn, slots.release(turn.world.slots, ticket, only)))


def _follow(turn: Turn, keys: Iterable[AgentKey]) -> None:
    """Fewer runs of these agents ask than did: others may."""
    for key in sorted(keys):
        if len(turn.world.agent(key).asking) <= ASKING // 2:
            claim_all(turn, key)


def place(turn: Turn, tickets: Iterable[Ticket]) -> set[AgentKey]:
    """These hold all their slots: assign them, durably, then launch. Returns whose they are."""
    keys: set[AgentKey] = set()
    for jid, serial in tickets:
        run = turn.world.jobs[jid].run
        assert run is not None and run.serial == serial
        key = turn.world.key_of(run)
        token = Token(jid, serial, len(run.attempts) + 1, ROLE, INDEX)
        view = turn.world.agent(key)
        view.queued.pop((jid, serial), None)
        view.asking.discard((jid, serial))
        view.placed.add(token)
        keys.add(key)
        if run.spec.queue_limit_secs or turn.world.policy.queue_limit_secs:
            turn.ask(ClearTimer(("queue", jid, serial)))
        turn.record(jid, TaskPlaced(
            at=turn.now.wall, token=token, agent_key=key, op_id=op_id(token, "run"), boot_id=view.boot_id or None,
        ))
        launch(turn, key, token)
    return keys


def launch(turn: Turn, key: AgentKey, token: Token) -> None:
    """Ask for its start; at most once is the task driver's promise, so asking again is harmless."""
    run = turn.world.jobs[token.jid].run
    assert run is not None
    spec = run.spec
    limit = spec.time_limit_secs if spec.time_limit_secs is not None else turn.world.policy.time_limit_secs
    app = None if spec.data is None else AppInput(simulation_type=spec.simulation_type, compute_model=spec.compute_model, data=spec.data)
    task = TaskSpec(
        command=spec.command, app=app, run_dir=run.run_dir, env=spec.env, wrap=spec.wrap,
        time_limit_secs=limit, grace_secs=spec.grace_secs, core_bytes=spec.core_bytes,
    )
    turn.ask(LaunchTask(key, token, task))
    turn.ask(SetTimer(("op", token), turn.world.policy.op_reply_secs))
