"""`decide(world, inputs, now)`: the only entry point of the core. It maps each input to the module
that handles it.

Modules: admission (run requests), retention (run directories to remove), reconciler (reports of
agents), termination (cancels, limits), dependencies (runs after runs), lifecycle (agents),
debug_hold (failed tasks that are held), tags, attempts (completion, retries), placement (queue, slots),
gang_placement (runs with roles), site_limits (parts of limits of the site), host_availability (hosts down and up),
host_drains, idle_eviction (idle agents, memory of hosts), rebalancing (queued runs from host to host). They call each other in this
direction only: admission, reconciler, host_availability -> termination, lifecycle, debug_hold ->
dependencies, attempts -> rebalancing, idle_eviction -> placement -> gang_placement ->
gang_allocator, task_counts.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from ...db.events.state import Job
from ...db.events.usage_row import UsageRow
from ...db.store.contract import Receipt, Write
from ...protocol.errors import Refusal
from .agents import host_availability, host_drains, idle_eviction, lifecycle
from .interface import timers
from .interface.effects import CausedEffect, Effect, ReplyRefusal
from .interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    AgentStopRequested,
    Cancel,
    ChangeTags,
    DrainsChanged,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    EvictionRefused,
    FramesLost,
    GrantsChanged,
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
from .interface.timers import Timer
from .runs import (
    admission,
    attempts,
    debug_hold,
    dependencies,
    reconciler,
    retention,
    tags,
    termination,
)
from .scheduling import gang_placement, placement, rebalancing, site_limits
from .state.transaction import Transaction
from .state.world import World


class Decision(msgspec.Struct, frozen=True):
    """One transaction and its effects. touched: changed jobs as they are once it is durable.
    caused: the effects in order, each with its cause. usage: what the events add to it.
    """

    writes: tuple[Write, ...]
    receipts: tuple[Receipt, ...]
    touched: dict[str, Job]
    caused: tuple[CausedEffect, ...]
    usage: tuple[UsageRow, ...] = ()

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(c.effect for c in self.caused)


def decide(world: World, inputs: Sequence[Input], now: Now) -> Decision:
    """Decide these inputs together. Advances the world; has no other side effects."""
    tx = Transaction(world, now)
    for input_ in inputs:
        tx.begin_input(input_)
        _apply(tx, input_)
        _follow_up(tx)
    tx.end_inputs()
    placement.fill_windows(tx)
    _follow_up(tx)
    dependencies.schedule_followers(tx)
    return Decision(
        tx.writes(), tuple(tx.receipts), dict(tx.touched), tuple(tx.caused), tuple(tx.usage)
    )


def _follow_up(tx: Transaction) -> None:
    """Handle consequences for other runs and agents: shorter queues, agents that are now needed,
    and freed resources.
    """
    while True:
        placement.refill_shortened(tx)
        rebalancing.rebalance(tx)
        while tx.needed_agents:
            key = next(iter(tx.needed_agents))
            del tx.needed_agents[key]
            lifecycle.ensure(tx, key)
        idle_eviction.update(tx)
        lifecycle.retry_memory(tx)
        if not (tx.shortened_queues or tx.needed_agents or tx.changed_memory):
            return


def _apply(tx: Transaction, input_: Input) -> None:
    match input_:
        case (
            Submit()
            | Cancel()
            | ReleaseHold()
            | ChangeTags()
            | RequireAgent()
            | AgentStopRequested()
        ):
            try:
                match input_:
                    case Submit():
                        admission.submit(tx, input_)
                    case Cancel():
                        termination.cancel(tx, input_)
                    case ReleaseHold():
                        debug_hold.release(tx, input_)
                    case ChangeTags():
                        tags.change(tx, input_)
                    case RequireAgent():
                        lifecycle.require(tx, input_)
                    case AgentStopRequested():
                        idle_eviction.stop_requested(tx, input_)
            except Refusal as e:
                tx.emit(ReplyRefusal(input_.handle, e))
        case Purge():
            retention.purge(tx, input_)
        case AgentConnected():
            lifecycle.connected(tx, input_)
        case AgentMessage():
            reconciler.message_received(tx, input_)
        case FramesLost():
            reconciler.frames_lost(tx, input_)
        case AgentDisconnected():
            lifecycle.disconnected(tx, input_)
        case DriverStarted():
            lifecycle.started(tx, input_)
        case DriverFailed():
            lifecycle.failed(tx, input_.key, input_.attempt, input_.reason)
        case DriverFound():
            lifecycle.found(tx, input_)
        case DriverStopped():
            lifecycle.stopped(tx, input_.key)
        case SignInNeeded():
            lifecycle.sign_in_needed(tx, input_)
        case SignedIn():
            lifecycle.signed_in(tx, input_.key)
        case SignedOut():
            lifecycle.signed_out(tx, input_.key)
        case DrainsChanged():
            host_drains.changed(tx, input_)
        case GrantsChanged():
            site_limits.changed(tx, input_)
        case HostChanged():
            host_availability.changed(tx, input_)
        case EvictionRefused():
            idle_eviction.refused(tx, input_)
        case TimerFired():
            _timer(tx, input_.timer)
        case Restarted():
            restarted(tx)
        case _:
            assert_never(input_)


def _timer(tx: Transaction, timer: Timer) -> None:
    match timer:
        case timers.AgentStartDeadline(key, attempt):
            lifecycle.start_deadline(tx, key, attempt)
        case timers.AgentStartRetry(key, attempt):
            lifecycle.retry(tx, key, attempt)
        case timers.AgentReturnDeadline(key):
            lifecycle.return_deadline(tx, key)
        case timers.AgentIdleDeadline(key):
            idle_eviction.idle_deadline(tx, key)
        case timers.AgentLeaveDeadline(key):
            idle_eviction.leave_deadline(tx, key)
        case timers.HoursCheck(key):
            placement.claim_all(tx, key)
        case timers.QueueGiveUp(key, before, reason):
            lifecycle.give_up_queued(tx, key, before, reason)
        case timers.QueueLimit(jid, serial):
            termination.queue_limit(tx, jid, serial)
        case timers.TimeLimit(token):
            termination.time_limit(tx, token)
        case timers.StopReminder(token):
            termination.repeat_stop(tx, token)
        case timers.SnapshotDeadline(key, epoch):
            reconciler.sync_deadline(tx, key, epoch)
        case timers.LaunchDeadline(token):
            reconciler.op_deadline(tx, token)
        case timers.AttemptRetry(jid, serial):
            attempts.retry(tx, jid, serial)
        case timers.DebugHoldDeadline(token):
            debug_hold.deadline(tx, token)
        case timers.FollowerCheck(jid):
            dependencies.follow(tx, jid)
        case timers.ReservationDeadline(jid, serial):
            gang_placement.deadline(tx, (jid, serial))
        case timers.ReservationRetry(jid, serial):
            placement.gang_backoff_over(tx, (jid, serial))
        case timers.NodePoolRetry(driver):
            gang_placement.retry_pool(tx, driver)
        case _:
            assert_never(timer)


def restarted(tx: Transaction) -> None:
    """Emit all outstanding effects after a restart or a failed commit. All of them are idempotent."""
    for job in list(tx.world.jobs.values()):
        termination.arm(tx, job)
        debug_hold.arm(tx, job)
        if job.run is not None:
            attempts.arm(tx, job.jid, job.run)
    dependencies.schedule_all(tx)
    # agents that may be running come first: their memory is already in use
    for key, view in sorted(
        tx.world.agents.items(), key=lambda pair: pair[1].record.handle is None
    ):
        if view.needed:
            view.unknown_since = tx.now.wall
            lifecycle.ensure(tx, key)


def outstanding(world: World, now: Now) -> tuple[Effect, ...]:
    """Return the effects that are outstanding right after a restart."""
    tx = Transaction(world, now)
    tx.begin_input(Restarted())
    restarted(tx)
    _follow_up(tx)
    return tuple(c.effect for c in tx.caused)
