"""decide(world, inputs, now): the one door to the core. Who answers what is here; what the answer
is, in the topic modules.

submission (run requests), purging (what is not kept), execution (what agents report), stopping
(cancels, limits), dependencies (runs after runs), agency (agents' lives), debugging (failed tasks
that are kept), attempts (completion, retries), placement (queue, slots), gangs (runs of many
tasks), outages (hosts down and up), idling (agents that nobody needs, and memory of hosts), moving
(queued runs from host to host). They call each other in this direction only: submission, execution,
outages -> stopping, agency, debugging -> dependencies, attempts -> moving, idling -> placement ->
gangs -> rooms, tasks.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from ...db.events.state import Job
from ...db.store.contract import Receipt, Write
from ...protocol.errors import Refusal
from .agents import host_availability as outages
from .agents import idle_eviction as idling
from .agents import lifecycle as agency
from .interface.effects import Effect, ReplyRefusal
from .interface.inputs import (
    AgentBusy,
    AgentConnected,
    AgentDisconnected,
    AgentGap,
    AgentSaid,
    AgentStopRequested,
    Cancel,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    HostChanged,
    Input,
    Now,
    Purge,
    Release,
    Restarted,
    SignedIn,
    SignedOut,
    SignInNeeded,
    Submit,
    TimerFired,
    WantAgent,
)
from .runs import admission as submission
from .runs import attempts, dependencies
from .runs import debug_hold as debugging
from .runs import reconciler as execution
from .runs import retention as purging
from .runs import termination as stopping
from .scheduling import gang_placement as gangs
from .scheduling import placement
from .scheduling import rebalancing as moving
from .state.world import Turn, World


class Decision(msgspec.Struct, frozen=True):
    """One transaction and what follows from it. touched: jobs as they are once it is durable."""

    writes: tuple[Write, ...]
    receipts: tuple[Receipt, ...]
    touched: dict[str, Job]
    effects: tuple[Effect, ...]


def decide(world: World, inputs: Sequence[Input], now: Now) -> Decision:
    """What these inputs, taken together, lead to. The world is advanced; nothing else happens here."""
    turn = Turn(world, now)
    for input_ in inputs:
        _one(turn, input_)
        _see_to(turn)
    dependencies.noticed(turn)
    return Decision(turn.writes(), tuple(turn.receipts), dict(turn.touched), tuple(turn.effects))


def _see_to(turn: Turn) -> None:
    """What this input has led to for others: queues that are shorter, agents that came to be
    needed, room that somebody waits for.
    """
    while True:
        placement.follow(turn)
        moving.even_out(turn)
        while turn.needed:
            key = next(iter(turn.needed))
            del turn.needed[key]
            agency.ensure(turn, key)
        idling.look(turn)
        agency.crowded(turn)
        if not (turn.shorter or turn.needed or turn.freed):
            return


def _one(turn: Turn, input_: Input) -> None:
    match input_:
        case Submit() | Cancel() | Release() | WantAgent() | AgentStopRequested():
            try:
                match input_:
                    case Submit():
                        submission.submit(turn, input_)
                    case Cancel():
                        stopping.cancel(turn, input_)
                    case Release():
                        debugging.release(turn, input_)
                    case WantAgent():
                        agency.want(turn, input_)
                    case AgentStopRequested():
                        idling.stop_requested(turn, input_)
            except Refusal as e:
                turn.ask(ReplyRefusal(input_.handle, e))
        case Purge():
            purging.purge(turn, input_)
        case AgentConnected():
            agency.connected(turn, input_)
        case AgentSaid():
            execution.said(turn, input_)
        case AgentGap():
            execution.gap(turn, input_)
        case AgentDisconnected():
            agency.disconnected(turn, input_)
        case DriverStarted():
            agency.started(turn, input_)
        case DriverFailed():
            agency.failed(turn, input_.key, input_.attempt, input_.reason)
        case DriverFound():
            agency.found(turn, input_)
        case DriverStopped():
            agency.stopped(turn, input_.key)
        case SignInNeeded():
            agency.sign_in_needed(turn, input_)
        case SignedIn():
            agency.signed_in(turn, input_.key)
        case SignedOut():
            agency.signed_out(turn, input_.key)
        case HostChanged():
            outages.changed(turn, input_)
        case AgentBusy():
            idling.busy(turn, input_)
        case TimerFired():
            _timer(turn, input_)
        case Restarted():
            restarted(turn)
        case _:
            assert_never(input_)


def _timer(turn: Turn, fired: TimerFired) -> None:
    match fired.timer:
        case ("agent-start", key, attempt):
            agency.start_deadline(turn, key, attempt)
        case ("agent-retry", key, attempt):
            agency.retry(turn, key, attempt)
        case ("agent-return", key):
            agency.return_deadline(turn, key)
        case ("agent-idle", key):
            idling.deadline(turn, key)
        case ("agent-leave", key):
            idling.leave_deadline(turn, key)
        case ("agent-give-up", key, before, reason):
            agency.give_up_queued(turn, key, before, reason)
        case ("queue", jid, serial):
            stopping.queue_limit(turn, jid, serial)
        case ("limit", token):
            stopping.time_limit(turn, token)
        case ("stop", token):
            stopping.remind(turn, token)
        case ("sync", key, epoch):
            execution.sync_deadline(turn, key, epoch)
        case ("op", token):
            execution.op_deadline(turn, token)
        case ("retry", jid, serial):
            attempts.retry(turn, jid, serial)
        case ("debug", token):
            debugging.deadline(turn, token)
        case ("follow", jid):
            dependencies.follow(turn, jid)
        case ("hold", jid, serial):
            gangs.deadline(turn, (jid, serial))
        case ("gang", jid, serial):
            gangs.ask_again(turn, (jid, serial))
        case ("room", driver):
            gangs.look_again(turn, driver)
        case _:
            raise ValueError(f"a timer nobody knows: {fired.timer}")


def restarted(turn: Turn) -> None:
    """Everything owed after a restart (or a failed commit) is asked for again; whatever was done
    already takes no harm.
    """
    for job in list(turn.world.jobs.values()):
        stopping.arm(turn, job)
        debugging.arm(turn, job)
        if job.run is not None:
            attempts.arm(turn, job.jid, job.run)
    dependencies.look_at_all(turn)
    # those that may be there first: where memory is counted, they have theirs
    for key, view in sorted(
        turn.world.agents.items(), key=lambda pair: pair[1].record.handle is None
    ):
        if view.needed:
            view.unknown_since = turn.now.wall
            agency.ensure(turn, key)


def outstanding(world: World, now: Now) -> tuple[Effect, ...]:
    """The effects that are owed right after a restart."""
    turn = Turn(world, now)
    restarted(turn)
    _see_to(turn)
    return tuple(turn.effects)
