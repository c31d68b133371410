"""Retention and compaction in a real supervisor: old evidence goes, live jobs and answers stay, the
log is compacted while jobs run, and after the restore of an older backup nothing starts again.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from consistency_check import check_books
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, req_id, shell, until


def command(site: SupervisorProcess, *args: str) -> Any:
    done = site.command("--json", *args)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return json.loads(done.stdout)


def folders(site: SupervisorProcess) -> dict[str, int]:
    """Return the number of files in each folder of an execution; -1 for a name alone."""
    paths = site.root.glob("agent/*/run/[!.]*")
    return {p.name.split("-")[1]: len(list(p.iterdir())) if p.is_dir() else -1 for p in paths}


def record(site: SupervisorProcess, run: dict[str, Any]) -> Any:
    """Return the record of a job with one run directory."""
    return json.loads((site.root / "supervisor-job" / f"{jid_of(run)}.json").read_text())


@pytest.mark.timeout(180)
def test_evidence_goes_the_log_is_compacted_and_nothing_starts_twice(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(
        "retention.every_secs=86400",  # nothing goes by itself
        "retention.evidence_secs=1",
        "retention.superseded_secs=1",
        "limits.agent_start_secs=2",
        "slots.local_sequential=1",
    ).start()
    stamps = site.place / "stamps"

    def run(name: str) -> dict[str, Any]:
        until_there = f"while [ ! -e {site.place}/{name}.go ]; do sleep 0.05; done"
        return shell(f"echo {name} >>{stamps}; {until_there}")

    first, waits, lives, last = (run(name) for name in ("first", "waits", "lives", "last"))
    site.submit(first)
    site.running(first)
    site.submit(waits)
    # the backup knows a run that has started, and one that waits for its slot
    backup = str(site.place / "backup")
    command(site, "db", "backup", backup)
    for name in ("first", "waits"):
        (site.place / f"{name}.go").touch()
    site.finished(waits)
    site.post("run-simulation", reqId=req_id(), run=waits, forceRun=True)
    site.finished(waits)
    site.submit(lives)
    site.running(lives)

    def planned() -> Any:
        report = command(site, "retention", "--dry-run")
        return report["kinds"]["evidence"]["count"] == 3 and report

    assert until(planned, "their evidence is old", 20, pause=0.5)["inspected"] == 4
    before = folders(site)
    assert min(before.values()) >= 0, "a dry run removes nothing"
    assert command(site, "retention", "--now")["kinds"]["evidence"]["count"] == 3
    gone = {first["simulationId"]: -1, waits["simulationId"]: -1}
    assert folders(site) == before | gone
    said = command(site, "retention")
    assert said["total"]["kinds"]["evidence"]["count"] == 3 and said["current"] is None
    assert site.status(waits)["exit"]["code"] == 0

    rules = ("--older-than", "0", "--history", "0", "--no-keep")
    compacted = command(site, "db", "compact", *rules)
    assert compacted["changed"] and compacted["compacted"]["jobsFolded"] == 2
    assert site.status(waits)["exit"]["code"] == 0
    until(lambda: record(site, waits)["historyDropped"] == 1, "its record was written", 20)
    assert command(site, "db", "check")["ok"]
    (site.place / "lives.go").touch()
    (site.place / "last.go").touch()
    site.finished(lives)
    site.submit(last)
    site.stop(signal.SIGKILL)
    site.start()
    site.finished(last)
    check_books(site)

    site.stop()
    command(site, "db", "restore", "--replace", backup)
    site.start()
    assert site.wait(first)["state"] == site.wait(waits)["state"] == "error"
    assert sorted(stamps.read_text().split()) == ["first", "last", "lives", "waits", "waits"]
