"""Agents that nobody needs: sent home after a while, or at once where another one needs the memory
of their host.

Nobody is sent home who is needed. Who leaves may be needed again before it is gone: then it is
started anew when it is, unless it says itself that it is busy.
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
from ..state.world import AgentState, Transaction

#: What is left of the time is not waited for.
_SOON_SECS = 0.001
#: Whoever did not go because somebody waited for its answer is not asked again before.
_BUSY_SECS = 5.0
#: Why an agent is dismissed: told to the agent, and in the logs.
UNNEEDED, REQUESTED = "nobody has needed it for long", "its user or an operator asked for it"
NOT_CONNECTED = {
    "advice": "'jobscribe agent list' shows how it stands; on its host it is ended by SIGTERM to its keeper"
}


def look(turn: Transaction) -> None:
    """Agents that were looked at in this decision: who is idle from now on, and who is not any
    more.
    """
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
    """It was idle for long; perhaps somebody called it meanwhile."""
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
    """End an agent that has no runs, as its user or an operator asks; raises Refusal for any other."""
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
    """Ask it to go."""
    key = view.record.key
    if view.idle:
        view.idle = False
        turn.ask(ClearTimer(("agent-idle", key)))
    turn.enter(view, "leaving")
    turn.ask(EvictAgent(key, view.epoch, view.record.handle or {}, reason))
    turn.ask(SetTimer(("agent-leave", key), turn.world.policy.agent_start_secs))


def back(turn: Transaction, view: AgentState, input_: AgentConnected) -> None:
    """It has connected anew, and may not have heard that it is to go."""
    turn.ask(EndConnection(input_.key, view.epoch, "a newer connection of this agent"))
    view.epoch = input_.epoch
    turn.ask(EvictAgent(input_.key, view.epoch, view.record.handle or {}))


def busy(turn: Transaction, input_: EvictionRefused) -> None:
    """Somebody waits for an answer of it: it stays, and what it said meanwhile is asked for."""
    view = turn.world.agent(input_.key)
    if view.phase != "leaving" or view.epoch != input_.epoch or not view.synced:
        return
    turn.ask(ClearTimer(("agent-leave", input_.key)))
    turn.enter(view, "up")
    view.used, view.idle, view.busy = turn.now.mono, True, True
    turn.ask(SetTimer(("agent-idle", input_.key), _BUSY_SECS))
    turn.freed[input_.key.driver, input_.key.host] = (
        None  # nothing was, and another one may have to go
    )
    turn.ask(ListTasks(input_.key))
    placement.up(turn, input_.key)


def leave_deadline(turn: Transaction, key: AgentKey) -> None:
    """It was asked to go and is still there."""
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
    """Nothing is left of an agent that was to leave."""
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
    """Is there memory for it on its host? If not, as few idle agents as needed are sent home, where
    that helps at all.
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
