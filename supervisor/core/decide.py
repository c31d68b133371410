"""`decide(world, inputs, now)`: the only entry point of the core. It maps each input to the module
that handles it.

Modules: admission (run requests), retention (run directories to remove), reconciler (reports of
agents), termination (cancels, limits), dependencies (runs after runs), lifecycle (agents),
debug_hold (failed tasks that are held), attempts (completion, retries), placement (queue, slots),
gang_placement (runs with roles), host_availability (hosts down and up), idle_eviction (idle agents,
memory of hosts), rebalancing (queued runs from host to host). They call each other in this
direction only: admission, reconciler, host_availability -> termination, lifecycle, debug_hold ->
dependencies, attempts -> rebalancing, idle_eviction -> placement -> gang_placement ->
gang_allocator, task_counts.
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
from .state.transaction import Transaction
from .state.world import World


class Decision(msgspec.Struct, frozen=True):
    """One transaction and its effects. touched: changed jobs as they are once it is durable."""

    writes: tuple[Write, ...]
    receipts: tuple[Receipt, ...]
    touched: dict[str, Job]
    effects: tuple[Effect, ...]


def decide(world: World, inputs: Sequence[Input], now: Now) -> Decision:
    """Decide these inputs together. Advances the world; has no other side effects."""
    turn = Transaction(world, now)
    for input_ in inputs:
        _one(turn, input_)
        _see_to(turn)
    dependencies.noticed(turn)
    return Decision(turn.writes(), tuple(turn.receipts), dict(turn.touched), tuple(turn.effects))


def _see_to(turn: Transaction) -> None:
    """Handle consequences for other runs and agents: shorter queues, agents that are now needed,
    and freed resources.
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
    """Emit all outstanding effects after a restart or a failed commit. All of them are idempotent."""
    for job in list(turn.world.jobs.values()):
        termination.arm(turn, job)
        debug_hold.arm(turn, job)
        if job.run is not None:
            attempts.arm(turn, job.jid, job.run)
    dependencies.look_at_all(turn)
    # agents that may be running come first: their memory is already in use
    for key, view in sorted(
        turn.world.agents.items(), key=lambda pair: pair[1].record.handle is None
    ):
        if view.needed:
            view.unknown_since = turn.now.wall
            lifecycle.ensure(turn, key)


def outstanding(world: World, now: Now) -> tuple[Effect, ...]:
    """Return the effects that are outstanding right after a restart."""
    turn = Transaction(world, now)
    restarted(turn)
    _see_to(turn)
    return tuple(turn.effects)
