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
from ..state.agent_phase import AgentPhase
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from . import lifecycle


def changed(tx: Transaction, input_: HostChanged) -> None:
    """Apply a change of a host's availability. A repeated report only updates its detail."""
    where = (input_.driver, input_.host)
    host_selection.record_change(
        tx.world.host_assignment.down, where, input_.detail, tx.now.wall, up=input_.up
    )
    if input_.up:
        _up(tx, *where)
    else:
        _down(tx, *where, input_.detail)


def _down(tx: Transaction, driver: str, host: str, detail: str) -> None:
    tx.world.node_pool(driver).down.add(host)
    unreachable = Refusal(
        "agentUnavailable", f"its agent cannot be reached: the host {host} is down: {detail}"
    )
    for key, view in _there(tx, driver, host):
        if view.phase != AgentPhase.UP:
            for handle in view.wanted:
                tx.emit(ReplyRefusal(handle, unreachable))
            view.wanted.clear()
        rebalancing.leave_host(tx, key)
    gang_placement.host_down(tx, driver, host)


def _up(tx: Transaction, driver: str, host: str) -> None:
    pool = tx.world.node_pool(driver)
    pool.down.discard(host)
    gang_placement.granted(tx, gang_allocator.retry(pool, tx.now.mono))
    for key, _ in _there(tx, driver, host):
        lifecycle.retry_at_once(tx, key)
    for key in sorted(k for k in tx.world.agents if k.driver == driver):
        if (driver, key.host) in tx.world.host_assignment.down:
            rebalancing.leave_host(tx, key)
    tx.changed_memory[driver, host] = None


def _there(tx: Transaction, driver: str, host: str) -> list[tuple[AgentKey, AgentState]]:
    return sorted(
        ((k, v) for k, v in tx.world.agents.items() if (k.driver, k.host) == (driver, host)),
        key=lambda pair: pair[0],
    )
