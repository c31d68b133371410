"""The queue: who waits for an agent, who for slots, and the moment a task is placed.

A run whose agent is not up waits outside the pools, so that a broken agent of one user holds no slot of another. When the
agent is up and known, its runs ask for their slots in the order of submission; whoever holds all three is placed at once.
"""

from collections.abc import Iterable

from ...db.events import TaskPlaced
from ...db.job import Job
from ...protocol.ids import AgentKey, Token, op_id
from ...protocol.messages import AppInput, TaskSpec
from . import slots
from .effects import ClearTimer, LaunchTask, SetTimer
from .slots import Ticket
from .world import Turn, dir_pool, pools_of

ROLE, INDEX = "main", 0


def enqueue(turn: Turn, job: Job) -> AgentKey:
    """A new run waits from now on. Returns the agent it waits for."""
    run = job.run
    assert run is not None
    key = turn.world.key_of(run)
    number = turn.world.number()
    turn.world.agent(key).queued[(job.jid, run.serial)] = number
    claim(turn, key, (job.jid, run.serial), number)
    return key


def claim(turn: Turn, key: AgentKey, ticket: Ticket, number: int) -> None:
    view = turn.world.agent(key)
    if view.phase == "up" and view.synced:
        place(turn, slots.request(turn.world.slots, ticket, number, pools_of(key, ticket[0])))


def claim_all(turn: Turn, key: AgentKey) -> None:
    """The agent is up: its queued runs ask for slots, oldest first."""
    for ticket, number in sorted(turn.world.agent(key).queued.items(), key=lambda pair: pair[1]):
        claim(turn, key, ticket, number)


def withdraw_all(turn: Turn, key: AgentKey) -> None:
    """The agent is away: its queued runs wait outside the pools again."""
    for ticket in list(turn.world.agent(key).queued):
        place(turn, slots.release(turn.world.slots, ticket))


def leave(turn: Turn, key: AgentKey, ticket: Ticket) -> None:
    """A queued run does not want to run any more."""
    turn.world.agent(key).queued.pop(ticket, None)
    place(turn, slots.release(turn.world.slots, ticket))


def over(turn: Turn, key: AgentKey, token: Token) -> None:
    """Nothing is left of this execution: its slots go to whoever is next."""
    turn.world.agent(key).placed.discard(token)
    place(turn, slots.release(turn.world.slots, (token.jid, token.serial)))


def running(turn: Turn, token: Token) -> None:
    """It started: the run directory may be read from now on."""
    place(turn, slots.release(turn.world.slots, (token.jid, token.serial), dir_pool(token.jid)))


def place(turn: Turn, tickets: Iterable[Ticket]) -> None:
    """These hold all their slots: assign them, durably, then launch."""
    for jid, serial in tickets:
        run = turn.world.jobs[jid].run
        assert run is not None and run.serial == serial
        key = turn.world.key_of(run)
        token = Token(jid, serial, len(run.attempts) + 1, ROLE, INDEX)
        view = turn.world.agent(key)
        view.queued.pop((jid, serial), None)
        view.placed.add(token)
        if run.spec.queue_limit_secs or turn.world.policy.queue_limit_secs:
            turn.ask(ClearTimer(("queue", jid, serial)))
        turn.record(jid, TaskPlaced(at=turn.now.wall, token=token, agent_key=key, op_id=op_id(token, "run")))
        launch(turn, key, token)


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
