"""Eviction of idle agents: after an idle time, or at once if another agent needs the memory of
their host.

No agent that is needed is evicted. If an agent is needed again while it stops, it is started again
afterwards, unless it reports that it is busy.
"""

from ....db.events.events import AgentGone
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey
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
from ..state.agent_state import AgentState
from ..state.transaction import Transaction

#: A remaining time below this is treated as elapsed.
_SOON_SECS = 0.001
#: Delay before an agent is asked again that stayed because of a pending answer.
_BUSY_SECS = 5.0
#: Why an agent is evicted: sent to the agent, and logged.
UNNEEDED, REQUESTED = "nobody has needed it for long", "its user or an operator asked for it"
NOT_CONNECTED = {
    "advice": "'jobscribe agent list' shows how it stands; on its host it is ended by SIGTERM to its keeper"
}


def look(turn: Transaction) -> None:
    """Update the idle state of all agents that changed in this decision."""
    watched = sorted(turn.world.watched)
    turn.world.watched.clear()
    for key in watched:
        view = turn.world.agents.get(key)
        if view is None or key.kind == "container":
            continue
        idle = view.phase == "up" and view.synced and not view.needed
        if idle and not view.idle:
            view.idle, view.used = True, turn.now.mono
            if key.driver in turn.world.policy.agent_idle_secs:
                turn.ask(
                    SetTimer(("agent-idle", key), turn.world.policy.agent_idle_secs[key.driver])
                )
            turn.freed[key.driver, key.host] = None
        elif view.idle and not idle:
            view.idle = view.busy = False
            turn.ask(ClearTimer(("agent-idle", key)))


def deadline(turn: Transaction, key: AgentKey) -> None:
    """Evict an agent whose idle time is over, unless it was called meanwhile."""
    view = turn.world.agent(key)
    if not view.idle or view.phase != "up" or view.needed:
        return
    if view.busy:
        view.busy = False
        turn.freed[key.driver, key.host] = None
    secs = turn.world.policy.agent_idle_secs.get(key.driver)
    if secs is None:
        return
    left = secs - (turn.now.mono - view.used)
    if left > _SOON_SECS:
        turn.ask(SetTimer(("agent-idle", key), left))
    else:
        dismiss(turn, view)


def stop_requested(turn: Transaction, input_: AgentStopRequested) -> None:
    """Stop an agent without runs at the request of its user or an operator. Raise Refusal for any
    other.
    """
    key = input_.key
    view = turn.world.agents.get(key)
    if view is None or view.phase not in ("up", "leaving") or not view.synced:
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
    if view.phase == "up":
        dismiss(turn, view, REQUESTED)
    turn.ask(AgentReady(input_.handle, key))


def dismiss(turn: Transaction, view: AgentState, reason: str = UNNEEDED) -> None:
    """Ask the agent to stop."""
    key = view.record.key
    if view.idle:
        view.idle = False
        turn.ask(ClearTimer(("agent-idle", key)))
    turn.enter(view, "leaving")
    turn.ask(EvictAgent(key, view.epoch, view.record.handle or {}, reason))
    turn.ask(SetTimer(("agent-leave", key), turn.world.policy.agent_start_secs))


def back(turn: Transaction, view: AgentState, input_: AgentConnected) -> None:
    """Accept a new connection of an agent that may not have received the request to stop, and ask
    again.
    """
    turn.ask(EndConnection(input_.key, view.epoch, "a newer connection of this agent"))
    view.epoch = input_.epoch
    turn.ask(EvictAgent(input_.key, view.epoch, view.record.handle or {}))


def busy(turn: Transaction, input_: EvictionRefused) -> None:
    """Keep an agent that owes an answer, and request the reports that it sent meanwhile."""
    view = turn.world.agent(input_.key)
    if view.phase != "leaving" or view.epoch != input_.epoch or not view.synced:
        return
    turn.ask(ClearTimer(("agent-leave", input_.key)))
    turn.enter(view, "up")
    view.used, view.idle, view.busy = turn.now.mono, True, True
    turn.ask(SetTimer(("agent-idle", input_.key), _BUSY_SECS))
    turn.freed[input_.key.driver, input_.key.host] = (
        None  # nothing was freed, but another agent may have to go
    )
    turn.ask(ListTasks(input_.key))
    placement.up(turn, input_.key)


def leave_deadline(turn: Transaction, key: AgentKey) -> None:
    """Ask again after the deadline."""
    view = turn.world.agent(key)
    if view.phase != "leaving":
        return
    turn.ask(
        EvictAgent(key, view.epoch, {})
        if view.record.handle is None
        else StopAgent(key, view.record.handle)
    )
    turn.ask(SetTimer(("agent-leave", key), turn.world.policy.agent_start_secs))


def gone(turn: Transaction, key: AgentKey, why: str = "nobody needed it") -> None:
    """Record that nothing of an evicted agent is left."""
    view = turn.world.agent(key)
    turn.ask(ClearTimer(("agent-leave", key)))
    turn.record_agent(
        key, AgentGone(at=turn.now.wall, agent_key=key, reason=f"stopped: {why}", ended=True)
    )
    view.synced = False
    turn.enter(view, "absent")
    if view.needed:
        turn.need(key)


def make_room(turn: Transaction, key: AgentKey) -> bool:
    """Return whether the host has memory for this agent. If not, evict as few idle agents as
    needed, if that can help.
    """
    homes = turn.world.homes
    lacking = homes.lacking(key)
    if lacking <= 0:
        return True
    lacking -= sum(map(homes.mb, homes.leaving(key)))
    idle = homes.idle(key)
    if sum(map(homes.mb, idle)) >= lacking:
        for other in idle:
            if lacking <= 0:
                break
            lacking -= homes.mb(other)
            dismiss(turn, turn.world.agent(other))
    return False
