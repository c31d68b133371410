"""Runs that are placed before they have a slot, while supervisor, agent or keeper is killed: none
is lost, none starts twice, a cancel is final, and the order of a user's runs is kept.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from consistency_check import check_books
from load_clients import killed
from oracle import Oracle
from supervisor_process import SupervisorProcess, jid_of, req_id, until

UID = "RunAhead"
WAITING = 12


def _placed_ahead(site: SupervisorProcess, run: dict[str, Any]) -> bool:
    return "placed with the agent, starts next" in str(site.status(run))


def _kill(site: SupervisorProcess, victim: str) -> None:
    match victim:
        case "supervisor":
            killed(site)
            site.start()
        case "agent":
            os.kill(site.agent_pid(UID), signal.SIGKILL)
        case "keeper":
            os.kill(int(site.keeper(UID)["pid"]), signal.SIGKILL)


@pytest.mark.parametrize("victim", ["supervisor", "agent", "keeper"])
def test_runs_that_wait_with_their_agent_survive_a_kill(
    make_site: Callable[..., SupervisorProcess], victim: str
) -> None:
    site = make_site(None, "slots.local_sequential=1", "limits.placed_ahead_secs=60").start()
    oracle = Oracle(site)
    first = oracle.job(uid=UID)
    oracle.submit(first, req_id())
    assert site.wait(first)["state"] == "completed"
    gated = oracle.gated(uid=UID)
    oracle.submit(gated, req_id())
    until(lambda: oracle.started(gated), "it has the slot")
    waiting = [oracle.job(uid=UID) for _ in range(WAITING)]
    for run in waiting:
        oracle.submit(run, req_id())
    canceled = waiting.pop(WAITING // 2)
    until(lambda: _placed_ahead(site, canceled), "it waits with its agent")

    _kill(site, victim)
    site.cancel(canceled)
    assert oracle.status(canceled)["state"] == "canceled"
    until(lambda: oracle.status(canceled)["over"], "its agent knows")

    def over() -> bool:
        oracle.open()
        return all(oracle.status(run)["over"] for run in (gated, *waiting))

    until(over, "all are over", 60)
    assert all(oracle.status(run)["state"] == "completed" for run in waiting)
    assert oracle.started(canceled) == [], "a cancel is final"
    started = [s.token.split("/")[0] for s in oracle.stamps() if s.what == "start"]
    assert started == [jid_of(run) for run in (first, gated, *waiting)], "in their order"
    check_books(site)
    print(oracle.check())
