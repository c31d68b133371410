"""Eviction of idle agents: after an idle time, or at once if another agent needs the memory of
their host.

No agent that is needed is evicted, with one exception: an agent whose runs only wait makes room for
one whose executions must be found. If an agent is needed again while it stops, it is started again
afterwards, unless it reports that it is busy.
"""

from ....db.events.events import AgentGone
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, AgentKind
from ..interface import timers
from ..interface.effects import (
    AgentReady,
    ClearTimer,
    EndConnection,
    EvictAgent,
    ListTasks,
    SetTimer,
    StopAgent,
)
from ..interface.inputs import AgentConnected, AgentStopRequested, EvictionRefused
from ..scheduling import placement
from ..state.agent_phase import AgentPhase, PhaseTrigger
from ..state.agent_state import AgentState
from ..state.transaction import Transaction

#: A remaining time below this is treated as elapsed.
_SOON_SECS = 0.001
#: Delay before the next request to an agent that did not stop because of a pending answer.
_BUSY_SECS = 5.0
#: Why an agent is evicted: sent to the agent, and logged.
UNNEEDED, REQUESTED = "it was idle for too long", "its user or an operator asked for it"
NOT_CONNECTED = {
    "advice": "'jobscribe agent list' shows its state; to stop it on its host, send SIGTERM to its keeper"
}


def update(tx: Transaction) -> None:
    """Update the idle state of all agents that changed in this decision."""
    watched = sorted(tx.world.watched)
    tx.world.watched.clear()
    for key in watched:
        view = tx.world.agents.get(key)
        if view is None or key.kind == AgentKind.CONTAINER:
            continue
        idle = view.phase == AgentPhase.UP and view.synced and not view.needed
        if idle and not view.idle:
            view.idle, view.used = True, tx.now.mono
            if key.driver in tx.world.policy.agent_idle_secs:
                tx.emit(
                    SetTimer(
                        timers.AgentIdleDeadline(key), tx.world.policy.agent_idle_secs[key.driver]
                    )
                )
            tx.changed_memory[key.driver, key.host] = None
        elif (
            view.phase == AgentPhase.UP
            and view.synced
            and view.only_waits
            and tx.world.host_assignment.waiting_for_memory
        ):
            tx.changed_memory[key.driver, key.host] = None
        if view.idle and not idle:
            view.idle = view.busy = False
            tx.emit(ClearTimer(timers.AgentIdleDeadline(key)))


def idle_deadline(tx: Transaction, key: AgentKey) -> None:
    """Evict an agent after its idle time, unless it was called meanwhile."""
    view = tx.world.agent(key)
    if not view.idle or view.phase != AgentPhase.UP or view.needed:
        return
    if view.busy:
        view.busy = False
        tx.changed_memory[key.driver, key.host] = None
    secs = tx.world.policy.agent_idle_secs.get(key.driver)
    if secs is None:
        return
    left = secs - (tx.now.mono - view.used)
    if left > _SOON_SECS:
        tx.emit(SetTimer(timers.AgentIdleDeadline(key), left))
    else:
        evict(tx, view)


def stop_requested(tx: Transaction, input_: AgentStopRequested) -> None:
    """Stop an agent without runs at the request of its user or an operator. Raise Refusal for any
    other.
    """
    key = input_.key
    view = tx.world.agents.get(key)
    if view is None or view.phase not in (AgentPhase.UP, AgentPhase.LEAVING) or not view.synced:
        raise Refusal(
            "agentUnavailable",
            f"{key} is not connected, so it cannot be told to stop",
            NOT_CONNECTED,
        )
    if view.needed:
        raise Refusal(
            "agentBusy",
            f"{key} still has runs: {len(view.placed)} started and {len(view.queued)} waiting",
        )
    if view.phase == AgentPhase.UP:
        evict(tx, view, REQUESTED)
    tx.emit(AgentReady(input_.handle, key))


def evict(tx: Transaction, view: AgentState, reason: str = UNNEEDED) -> None:
    """Ask the agent to stop."""
    key = view.record.key
    if view.idle:
        view.idle = False
        tx.emit(ClearTimer(timers.AgentIdleDeadline(key)))
    tx.change_phase(view, PhaseTrigger.EVICTION_REQUESTED)
    if view.asking:
        placement.withdraw_all(tx, key)  # a freed slot would go to a run whose agent ends
    tx.emit(EvictAgent(key, view.epoch, view.record.handle or {}, reason))
    tx.emit(SetTimer(timers.AgentLeaveDeadline(key), tx.world.policy.agent_start_secs))
    # an agent that has waited for longer may now need fewer others to leave
    tx.changed_memory[key.driver, key.host] = None


def reconnected(tx: Transaction, view: AgentState, input_: AgentConnected) -> None:
    """Accept a new connection of an agent that may not have received the request to stop, and ask
    again.
    """
    tx.emit(EndConnection(input_.key, view.epoch, "a newer connection of this agent"))
    view.epoch = input_.epoch
    tx.change_phase(view, PhaseTrigger.CONNECTED)
    tx.emit(EvictAgent(input_.key, view.epoch, view.record.handle or {}))


def refused(tx: Transaction, input_: EvictionRefused) -> None:
    """Keep an agent that owes an answer, and request the reports that it sent meanwhile."""
    view = tx.world.agent(input_.key)
    if view.phase != AgentPhase.LEAVING or view.epoch != input_.epoch or not view.synced:
        return
    tx.emit(ClearTimer(timers.AgentLeaveDeadline(input_.key)))
    tx.change_phase(view, PhaseTrigger.EVICTION_REFUSED)
    view.used, view.idle, view.busy = tx.now.mono, True, True
    tx.emit(SetTimer(timers.AgentIdleDeadline(input_.key), _BUSY_SECS))
    tx.changed_memory[input_.key.driver, input_.key.host] = (
        None  # no memory was freed; another agent may be evicted
    )
    tx.emit(ListTasks(input_.key))
    placement.agent_up(tx, input_.key)


def leave_deadline(tx: Transaction, key: AgentKey) -> None:
    """Ask again after the deadline."""
    view = tx.world.agent(key)
    if view.phase != AgentPhase.LEAVING:
        return
    tx.emit(
        EvictAgent(key, view.epoch, {})
        if view.record.handle is None
        else StopAgent(key, view.record.handle)
    )
    tx.emit(SetTimer(timers.AgentLeaveDeadline(key), tx.world.policy.agent_start_secs))


def gone(tx: Transaction, key: AgentKey, trigger: PhaseTrigger, why: str = "it was idle") -> None:
    """Record that an agent has ended completely. trigger: EVICTED or SIGNED_OUT."""
    view = tx.world.agent(key)
    tx.emit(ClearTimer(timers.AgentLeaveDeadline(key)))
    tx.record_agent(
        key, AgentGone(at=tx.now.wall, agent_key=key, reason=f"stopped: {why}", ended=True)
    )
    view.synced = False
    tx.change_phase(view, trigger)
    if view.needed:
        tx.require_agent(key)


def ensure_memory(tx: Transaction, key: AgentKey) -> bool:
    """Return whether the host has memory for this agent. If not, evict as few idle agents as
    needed, if that can help.
    """
    host_assignment = tx.world.host_assignment
    lacking = host_assignment.missing_mb(key) + host_assignment.reserved_mb(key)
    if lacking <= 0:
        return True
    lacking -= sum(map(host_assignment.agent_mb, host_assignment.leaving_agents(key)))
    idle = host_assignment.idle_agents(key)
    if sum(map(host_assignment.agent_mb, idle)) >= lacking:
        for other in idle:
            if lacking <= 0:
                break
            if tx.world.agents[other].placed:
                continue  # it got the slot of an evicted one
            lacking -= host_assignment.agent_mb(other)
            evict(tx, tx.world.agent(other))
    return False
