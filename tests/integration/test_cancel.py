"""An acknowledged cancel is final, whatever the state of the run."""

import os
import signal
import time
from typing import Any

import pytest
from consistency_check import check_books, events
from supervisor_process import (
    UID,
    SupervisorProcess,
    fresh_nap,
    jid_of,
    naps,
    req_id,
    shell,
    spec,
    until,
)

RACES = 50


def test_a_queued_run_is_canceled_without_an_agent(site: SupervisorProcess) -> None:
    """The fork server is frozen, so a new user gets no agent."""
    site.finished(spec(["true"]))
    (template,) = site.titled("template")
    os.kill(template, signal.SIGSTOP)
    run = spec(["true"], "SystemU3")
    site.submit(run)
    assert site.status(run)["queueState"] == "agent"
    said = site.cancel(run, reason="changed my mind")
    assert (said["state"], said["reason"], said["over"]) == ("canceled", "cancel", True)
    assert site.story(run) == ["RunRequested", "StopRequested", "RunEnded"]
    os.kill(template, signal.SIGCONT)
    later = spec(["true"], "SystemU3")
    assert site.finished(later)["state"] == "completed"
    assert site.story(run) == ["RunRequested", "StopRequested", "RunEnded"]


def test_a_supervisor_stops_though_its_template_is_frozen(site: SupervisorProcess) -> None:
    site.finished(spec(["true"]))
    (template,) = site.titled("template")
    os.kill(template, signal.SIGSTOP)
    assert site.stop() == 0
    assert site.titled("template") == []


def test_a_running_one_is_ended_and_the_second_cancel_changes_nothing(
    site: SupervisorProcess,
) -> None:
    nap = fresh_nap()
    run = spec(["sleep", nap], graceSecs=1)
    site.submit(run)
    until(lambda: naps(nap), "it sleeps")
    site.running(run)
    request = req_id()
    first = site.cancel(run, reqId=request, reason="enough")
    assert first["state"] == "canceled"
    again, once_more = site.cancel(run, reqId=request), site.cancel(run)
    assert (again["state"], once_more["state"]) == ("canceled", "canceled")
    said = site.wait(run)
    assert naps(nap) == []
    assert (said["state"], said["reason"], said["exit"]["signal"]) == (
        "canceled",
        "cancel",
        signal.SIGTERM,
    )
    assert site.story(run) == [
        "RunRequested",
        "TaskPlaced",
        "TaskStarted",
        "StopRequested",
        "RunEnded",
        "TaskEnded",
        "AttemptEnded",
    ]
    assert "enough" in site.post("job-why", uid=UID, computeJid=jid_of(run))["sentence"]


def test_a_cancel_of_another_serial_leaves_the_run_alone(site: SupervisorProcess) -> None:
    run = shell("sleep 60", graceSecs=0)
    serial = site.submit(run)["computeJobSerial"]
    site.running(run)
    head = site.ready()["head"]
    for other in (serial - 1, serial + 1):
        assert site.cancel(run, computeJobSerial=other)["state"] == "missing"
    assert site.ready()["head"] == head
    assert site.status(run)["state"] == "running"
    assert site.cancel(run, computeJobSerial=serial)["state"] == "canceled"
    site.wait(run)


def test_a_cancel_repeated_late_does_not_hit_the_run_that_came_after(
    site: SupervisorProcess,
) -> None:
    run = shell("sleep 60", graceSecs=0)
    site.submit(run)
    site.running(run)
    request = req_id()
    site.cancel(run, reqId=request)
    site.wait(run)
    second = site.submit(run)["computeJobSerial"]
    site.running(run)
    site.cancel(run, reqId=request)
    assert (site.status(run)["state"], site.status(run)["computeJobSerial"]) == ("running", second)
    site.cancel(run)
    site.wait(run)


def test_a_finished_run_stays_as_it_ended(site: SupervisorProcess) -> None:
    run = spec(["true"])
    site.finished(run)
    head = site.ready()["head"]
    assert site.cancel(run)["state"] == "completed"
    assert site.ready()["head"] == head


@pytest.mark.timeout(120)
def test_fifty_cancels_race_with_the_start(site: SupervisorProcess) -> None:
    """Cancel each run at another moment. A canceled run never runs afterwards and leaves no
    process.
    """
    nap = fresh_nap()
    site.finished(spec(["true"]))
    runs = [spec(["sleep", nap], graceSecs=0) for _ in range(RACES)]
    for n, run in enumerate(runs):
        site.submit(run)
        time.sleep((n % 10) * 0.002)
        assert site.cancel(run)["state"] == "canceled"
        assert site.status(run)["state"] == "canceled"
    for run in runs:
        said = site.wait(run)
        assert (said["state"], said["reason"]) == ("canceled", "cancel")
    assert naps(nap) == []
    placed = sum("TaskPlaced" in types for types in _stories(site, runs))
    started = sum("TaskStarted" in types for types in _stories(site, runs))
    print(f"of {RACES} canceled runs {placed} had been placed, {started} had a process")
    assert placed > 0
    check_books(site)
    _check_final(site)


def _stories(site: SupervisorProcess, runs: list[dict[str, Any]]) -> list[list[str]]:
    return [site.story(run) for run in runs]


def _check_final(site: SupervisorProcess) -> None:
    """Check in the event log that no run has another outcome after `canceled`."""
    canceled: set[tuple[str, int]] = set()
    for e in events(site.root):
        event, stream = e["event"], e["stream"]
        if e["type"] == "RunEnded":
            assert (stream, event["serial"]) not in canceled
            if event["status"] == "canceled":
                canceled.add((stream, event["serial"]))
    assert len(canceled) == RACES
