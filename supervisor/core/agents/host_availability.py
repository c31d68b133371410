"""Hosts that go down and come back. Queued runs move to other hosts and do not move back by
themselves.

Runs on such a host are left alone: their state is unknown, and none is declared lost.
"""

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey
from ..interface.effects import ReplyRefusal
from ..interface.inputs import HostChanged
from ..resources import gang_allocator, host_selection
from ..scheduling import gang_placement, rebalancing
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from . import lifecycle


def changed(turn: Transaction, input_: HostChanged) -> None:
    """Apply a change of a host's availability. A repeated report only updates its detail."""
    where = (input_.driver, input_.host)
    host_selection.note(turn.world.homes.down, where, input_.detail, turn.now.wall, up=input_.up)
    if input_.up:
        _up(turn, *where)
    else:
        _down(turn, *where, input_.detail)


def _down(turn: Transaction, driver: str, host: str, detail: str) -> None:
    turn.world.room(driver).down.add(host)
    unreachable = Refusal(
        "agentUnavailable", f"its agent cannot be reached: the host {host} is down: {detail}"
    )
    for key, view in _there(turn, driver, host):
        if view.phase != "up":
            for handle in view.wanted:
                turn.ask(ReplyRefusal(handle, unreachable))
            view.wanted.clear()
        rebalancing.away(turn, key)
    gang_placement.elsewhere(turn, driver, host)


def _up(turn: Transaction, driver: str, host: str) -> None:
    room = turn.world.room(driver)
    room.down.discard(host)
    gang_placement.granted(turn, gang_allocator.look_again(room, turn.now.mono))
    for key, _ in _there(turn, driver, host):
        lifecycle.retry_at_once(turn, key)
    for key in sorted(k for k in turn.world.agents if k.driver == driver):
        if (driver, key.host) in turn.world.homes.down:
            rebalancing.away(turn, key)
    turn.freed[driver, host] = None


def _there(turn: Transaction, driver: str, host: str) -> list[tuple[AgentKey, AgentState]]:
    return sorted(
        ((k, v) for k, v in turn.world.agents.items() if (k.driver, k.host) == (driver, host)),
        key=lambda pair: pair[0],
    )
