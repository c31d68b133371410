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
from .agents import host_availability, idle_eviction, lifecycle
from .interface.effects import Effect, ReplyRefusal
from .interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    AgentStopRequested,
    Cancel,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    EvictionRefused,
    FramesLost,
    HostChanged,
    Input,
    Now,
    Purge,
    ReleaseHold,
    RequireAgent,
    Restarted,
    SignedIn,
    SignedOut,
    SignInNeeded,
    Submit,
    TimerFired,
)
from .runs import admission, attempts, debug_hold, dependencies, reconciler, retention, termination
from .scheduling import gang_placement, placement, rebalancing
from .state.world import Transaction, World


class Decision(msgspec.Struct, frozen=True):
    """One transaction and what follows from it. touched: jobs as they are once it is durable."""

    writes: tuple[Write, ...]
    receipts: tuple[Receipt, ...]
    touched: dict[str, Job]
    effects: tuple[Effect, ...]


def decide(world: World, inputs: Sequence[Input], now: Now) -> Decision:
    """What these inputs, taken together, lead to. The world is advanced; nothing else happens here."""
    turn = Transaction(world, now)
    for input_ in inputs:
        _one(turn, input_)
        _see_to(turn)
    dependencies.noticed(turn)
    return Decision(turn.writes(), tuple(turn.receipts), dict(turn.touched), tuple(turn.effects))


def _see_to(turn: Transaction) -> None:
    """What this input has led to for others: queues that are shorter, agents that came to be
    needed, room that somebody waits for.
    """
    while True:
        placement.follow(turn)
        rebalancing.even_out(turn)
        while turn.needed:
            key = next(iter(turn.needed))
            del turn.needed[key]
            lifecycle.ensure(turn, key)
        idle_eviction.look(turn)
        lifecycle.crowded(turn)
        if not (turn.shorter or turn.needed or turn.freed):
            return


def _one(turn: Transaction, input_: Input) -> None:
    match input_:
        case Submit() | Cancel() | ReleaseHold() | RequireAgent() | AgentStopRequested():
            try:
                match input_:
                    case Submit():
                        admission.submit(turn, input_)
                    case Cancel():
                        termination.cancel(turn, input_)
                    case ReleaseHold():
                        debug_hold.release(turn, input_)
                    case RequireAgent():
                        lifecycle.want(turn, input_)
                    case AgentStopRequested():
                        idle_eviction.stop_requested(turn, input_)
            except Refusal as e:
                turn.ask(ReplyRefusal(input_.handle, e))
        case Purge():
            retention.purge(turn, input_)
        case AgentConnected():
            lifecycle.connected(turn, input_)
        case AgentMessage():
            reconciler.said(turn, input_)
        case FramesLost():
            reconciler.gap(turn, input_)
        case AgentDisconnected():
            lifecycle.disconnected(turn, input_)
        case DriverStarted():
            lifecycle.started(turn, input_)
        case DriverFailed():
            lifecycle.failed(turn, input_.key, input_.attempt, input_.reason)
        case DriverFound():
            lifecycle.found(turn, input_)
        case DriverStopped():
            lifecycle.stopped(turn, input_.key)
        case SignInNeeded():
            lifecycle.sign_in_needed(turn, input_)
        case SignedIn():
            lifecycle.signed_in(turn, input_.key)
        case SignedOut():
            lifecycle.signed_out(turn, input_.key)
        case HostChanged():
            host_availability.changed(turn, input_)
        case EvictionRefused():
            idle_eviction.busy(turn, input_)
        case TimerFired():
            _timer(turn, input_)
        case Restarted():
            restarted(turn)
        case _:
            assert_never(input_)


def _timer(turn: Transaction, fired: TimerFired) -> None:
    match fired.timer:
        case ("agent-start", key, attempt):
            lifecycle.start_deadline(turn, key, attempt)
        case ("agent-retry", key, attempt):
            lifecycle.retry(turn, key, attempt)
        case ("agent-return", key):
            lifecycle.return_deadline(turn, key)
        case ("agent-idle", key):
            idle_eviction.deadline(turn, key)
        case ("agent-leave", key):
            idle_eviction.leave_deadline(turn, key)
        case ("agent-give-up", key, before, reason):
            lifecycle.give_up_queued(turn, key, before, reason)
        case ("queue", jid, serial):
            termination.queue_limit(turn, jid, serial)
        case ("limit", token):
            termination.time_limit(turn, token)
        case ("stop", token):
            termination.remind(turn, token)
        case ("sync", key, epoch):
            reconciler.sync_deadline(turn, key, epoch)
        case ("op", token):
            reconciler.op_deadline(turn, token)
        case ("retry", jid, serial):
            attempts.retry(turn, jid, serial)
        case ("debug", token):
            debug_hold.deadline(turn, token)
        case ("follow", jid):
            dependencies.follow(turn, jid)
        case ("hold", jid, serial):
            gang_placement.deadline(turn, (jid, serial))
        case ("gang", jid, serial):
            gang_placement.ask_again(turn, (jid, serial))
        case ("room", driver):
            gang_placement.look_again(turn, driver)
        case _:
            raise ValueError(f"a timer nobody knows: {fired.timer}")


def restarted(turn: Transaction) -> None:
    """Everything owed after a restart (or a failed commit) is asked for again; whatever was done
    already takes no harm.
    """
    for job in list(turn.world.jobs.values()):
        termination.arm(turn, job)
        debug_hold.arm(turn, job)
        if job.run is not None:
            attempts.arm(turn, job.jid, job.run)
    dependencies.look_at_all(turn)
    # those that may be there first: where memory is counted, they have theirs
    for key, view in sorted(
        turn.world.agents.items(), key=lambda pair: pair[1].record.handle is None
    ):
        if view.needed:
            view.unknown_since = turn.now.wall
            lifecycle.ensure(turn, key)


def outstanding(world: World, now: Now) -> tuple[Effect, ...]:
    """The effects that are owed right after a restart."""
    turn = Transaction(world, now)
    restarted(turn)
    _see_to(turn)
    return tuple(turn.effects)
