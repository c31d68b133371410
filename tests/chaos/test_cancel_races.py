"""An acknowledged cancel is final, at any instant around the start and even if the supervisor dies
right after it.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from consistency_check import check_books
from oracle import FINAL, Oracle
from site_locations import ROOM, dice, share
from supervisor_process import SupervisorProcess, fresh_nap, naps, req_id, shell, until

#: Without SOAK=1, its sites have this user.
USER = "ordinary user"
ROUNDS, AT_ONCE = share(3, 100), 5
#: Grace of jobs that ignore SIGTERM; one more second is allowed.
GRACE_SECS = 0.3
UID = "CancelR1"


@pytest.mark.timeout(120 + ROUNDS * 10)
def test_cancels_race_with_starts_and_the_supervisor_dies_after_the_last_ack(
    make_site: Callable[..., SupervisorProcess], who: int | None
) -> None:
    site = make_site(who, f"slots.local_sequential={AT_ONCE}").start()
    oracle, nap = Oracle(site), fresh_nap()
    chance = dice(f"cancel/{who}")
    site.finished(shell("exit 0", UID))
    runs: list[dict[str, Any]] = []
    last = 0.0
    for _ in range(ROUNDS):
        batch = [
            oracle.job(
                f"trap '' TERM; setsid sleep {nap} & sleep {nap}", uid=UID, graceSecs=GRACE_SECS
            )
            for _ in range(AT_ONCE)
        ]
        for run in batch:
            oracle.submit(run, req_id())
            time.sleep(chance.choice((0, 0, chance.random() * 0.01, chance.random() * 0.05)))
            assert oracle.heard(site.cancel(run))["state"] == "canceled"
        begun = time.monotonic()
        site.stop(signal.SIGKILL)
        site.start()
        for run in batch:
            assert oracle.status(run)["state"] == "canceled", (
                "it is final, whatever its agent says of it"
            )
        until(lambda: not naps(nap), "nothing of any is left", (GRACE_SECS + 1) * ROOM)
        last = max(last, time.monotonic() - begun)
        for run in batch:
            assert site.wait(run)["state"] == "canceled"
            assert oracle.status(run)["reason"] == "cancel"
        runs += batch
    started = sum(bool(oracle.started(run)) for run in runs)
    print(
        f"{len(runs)} races, {started} had started; nothing was left after {last:.2f} s at the latest, a restart included"
    )
    assert started > 0, "some had started"
    _check_stories(site, runs)
    assert site.finished(shell("exit 0", UID))["state"] == "completed", "the slots are free"
    check_books(site)
    oracle.check()


def _check_stories(site: SupervisorProcess, runs: list[dict[str, Any]]) -> None:
    """Check that no event shows the run running after the cancel, and that each run ended as
    canceled.
    """
    for run in runs:
        said = site.post(
            "job-story", uid=run["uid"], computeJid=f"{run['uid']}-{run['simulationId']}-command"
        )["events"]
        ends = [e["event"]["status"] for e in said if e["event"]["type"] == "RunEnded"]
        assert ends == ["canceled"] and ends[0] in FINAL


def test_a_queued_run_is_canceled_while_no_agent_can_live(
    make_site: Callable[..., SupervisorProcess], who: int | None
) -> None:
    """The fork server, keepers and agents are dead or frozen; a queued run leaves the queue at
    once.
    """
    site = make_site(who, "slots.local_sequential=1").start()
    oracle = Oracle(site)
    blocker, waits, behind = (oracle.gated(uid=UID) for _ in range(3))
    for run in (blocker, waits, behind):
        oracle.submit(run, req_id())
    until(lambda: oracle.started(blocker), "the first one runs")
    (template,) = site.titled("template")
    os.kill(template, signal.SIGSTOP)
    site.kill(site.keeper(UID)["pid"])
    until(lambda: not site.titled("agent"), "its agent is gone with it")
    begun = time.monotonic()
    said = oracle.heard(site.cancel(waits))
    assert (said["state"], said["reason"], said["over"]) == ("canceled", "cancel", True)
    assert time.monotonic() - begun < ROOM
    site.stop(signal.SIGKILL)
    os.kill(template, signal.SIGCONT)
    site.start()

    def over() -> bool:
        oracle.open()
        return all(site.status(run)["over"] for run in (blocker, behind))

    until(over, "the others end")
    assert [oracle.status(run)["state"] for run in (blocker, waits, behind)] == [
        "completed",
        "canceled",
        "completed",
    ]
    assert not oracle.started(waits)
    check_books(site)
    oracle.check()
