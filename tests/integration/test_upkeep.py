"""A real supervisor after compaction, backup and restore of its store. It continues, and jobs that
the log does not know are ended.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from consistency_check import check_books, events
from supervisor_process import PYTHON_PATH, SupervisorProcess, fresh_nap, jid_of, naps, shell, until

Make = Callable[..., SupervisorProcess]
#: After this time an agent that may not connect is given up, and its jobs are ended.
FAST = ("limits.agent_start_secs=1.5", "slots.local_sequential=1")


def jobscribe(site: SupervisorProcess, *args: str) -> str:
    """Run a maintenance command on this root, as an operator types it."""
    done = site.command("db", *args)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


def stamped(site: SupervisorProcess, name: str, nap: str) -> dict:
    """Return a run that adds a line to a separate file at each start, then sleeps."""
    return shell(f"echo started >> {site.place}/{name}; exec sleep {nap}", graceSecs=0)


def starts(site: SupervisorProcess, name: str) -> int:
    path = site.place / name
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "known", [False, True], ids=["an agent the backup does not know", "an agent that it knows"]
)
def test_what_was_started_after_the_backup_is_ended_and_nothing_starts_twice(
    make_site: Make, known: bool
) -> None:
    site = make_site(*FAST).start()
    if known:
        site.finished(shell("true"))
    jobscribe(site, "backup", str(site.place / "b"))
    nap = fresh_nap()
    late = stamped(site, "late", nap)
    serial = site.submit(late, "request-late")["computeJobSerial"]
    site.running(late)
    site.stop(signal.SIGTERM)
    assert naps(nap), "it runs on without a supervisor"
    said = jobscribe(site, "restore", str(site.place / "b"), "--replace")
    assert "the log continues from position" in said and "before-restore-1" in said
    site.start()
    until(lambda: not naps(nap), "what the log does not know is ended", 60.0)
    answer = site.ask(
        "POST",
        "/api/run-status",
        json.dumps({"uid": late["uid"], "computeJid": jid_of(late)}).encode(),
    )
    assert answer.code == 404, answer
    # the slot is free, the serial is new, and the same request makes a new run, because the
    # restored log does not contain the first one
    again = {**late, "command": ["/bin/sh", "-c", f"echo started >> {site.place}/again"]}
    assert site.submit(again, "request-late")["computeJobSerial"] > serial
    assert site.wait(again, 60.0)["state"] == "completed"
    assert (starts(site, "late"), starts(site, "again")) == (1, 1)
    types = [e["type"] for e in events(site.root) if e["stream"] == "system"]
    assert types[-2:] == ["LogSetBack", "SupervisorStarted"]
    check_books(site)
    # the next session does not search for orphans again
    site.stop(signal.SIGTERM)
    site.start()
    assert site.log().count("the event log was rolled back") == 1


@pytest.mark.timeout(180)
def test_a_run_that_waited_at_the_backup_and_ran_since_does_not_run_again(make_site: Make) -> None:
    """The execution has the same token as the execution that the restored log would start. The
    keeper's ledger decides its outcome.
    """
    site = make_site(*FAST).start()
    first_nap, nap = fresh_nap(), fresh_nap()
    first, over, running = (
        stamped(site, "first", first_nap),
        shell(f"echo started >> {site.place}/over; exit 3"),
        stamped(site, "running", nap),
    )
    site.submit(first)
    site.running(first)
    for run in (over, running):
        site.submit(run)
    jobscribe(site, "backup", str(site.place / "b"))
    site.cancel(first)
    assert site.wait(over)["exit"]["code"] == 3
    site.running(running)
    site.stop(signal.SIGTERM)
    jobscribe(site, "restore", str(site.place / "b"), "--replace")
    site.start()
    ends = {
        name: site.wait(run, 90.0)
        for name, run in (("first", first), ("over", over), ("running", running))
    }
    assert not naps(nap) and not naps(first_nap)
    assert {name: starts(site, name) for name in ends} == {"first": 1, "over": 1, "running": 1}, (
        ends
    )
    # first, running: ended as unknown to the log, so their outcome is lost. over: lost, unless its
    # agent still remembers the exit code.
    assert {
        name: (said["state"], said["reason"]) for name, said in ends.items() if name != "over"
    } == dict.fromkeys(("first", "running"), ("error", "lost"))
    assert ends["over"]["state"] == "error" and (
        ends["over"]["reason"] == "lost" or ends["over"]["exit"]["code"] == 3
    ), ends["over"]
    assert "the event log was rolled back and had no reco" in ends["running"]["error"]
    check_books(site)


@pytest.mark.timeout(120)
def test_a_supervisor_goes_on_with_a_compacted_log(make_site: Make) -> None:
    site = make_site().start()
    done, many = shell("echo kept; exit 0"), shell("exit 7")
    first = site.finished(done)
    for n in range(4):
        site.finished({**many, "command": ["/bin/sh", "-c", f"exit {n + 1}"]})
    before = {r["jid"]: r for r in site.post("job-list")["jobs"]}
    site.stop(signal.SIGTERM)
    count, position = len(events(site.root)), events(site.root)[-1]["position"]
    assert "nothing was" not in jobscribe(site, "compact", "--older-than", "0", "--history", "2")
    assert len(events(site.root)) < count / 4
    site.start()
    assert {r["jid"]: r for r in site.post("job-list")["jobs"]} == before
    said = site.status(done)
    assert {k: said[k] for k in ("state", "computeJobSerial", "exit", "runDir")} == {
        k: first[k] for k in ("state", "computeJobSerial", "exit", "runDir")
    }
    assert site.output(done).body == b"kept\n"
    # the result is found again by its hash, and a new run continues from the last serial
    assert site.submit(done)["computeJobSerial"] == first["computeJobSerial"]
    fifth = site.finished(many)
    assert fifth["exit"]["code"] == 7 and fifth["computeJobSerial"] > before[jid_of(many)]["serial"]
    assert site.story(many)[:2] == ["JobFolded", "RunRequested"]
    lines = site.post("job-story", uid=many["uid"], computeJid=jid_of(many))["lines"]
    assert "earlier events folded into this one" in lines[0]
    assert "folded" in json.dumps(site.post("trace", id=jid_of(done)))
    system = [e["event"] for e in events(site.root) if e["stream"] == "system"]
    assert [(e["type"], e.get("session")) for e in system] == [
        ("SystemFolded", 1),
        ("LogCompacted", None),
        ("SupervisorStarted", 2),
    ]
    # followers continue after their last event, across the gaps
    seen = followed(site, after=3, until_position=position + 1)
    assert seen == [e["position"] for e in events(site.root) if 3 < e["position"] <= position + 1]
    check_books(site)


def followed(site: SupervisorProcess, after: int, until_position: int) -> list[int]:
    connection = site.connection()
    out: list[int] = []
    try:
        connection.request(
            "GET", f"/api/events?after={after}", headers={"Authorization": "Bearer " + site.token}
        )
        reply = connection.getresponse()
        while not out or out[-1] < until_position:
            line = reply.fp.readline()
            if line.startswith(b"data: "):
                out.append(json.loads(line[6:])["position"])
    finally:
        connection.close()
    return out


@pytest.mark.timeout(120)
def test_a_supervisor_refuses_a_damaged_store_and_the_command_that_it_names_mends_it(
    make_site: Make,
) -> None:
    site = make_site().start()
    kept, lost = shell("exit 0"), shell("exit 0")
    site.finished(kept)
    position = events(site.root)[-1]["position"]
    site.finished(lost)
    site.stop(signal.SIGTERM)
    spoil(site.root, position + 3)
    before = {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for folder in ("db", "supervisor-job", "user")
        for p in (site.root / folder).rglob("*")
        if p.is_file()
    }
    process = site.fork_or_launch()
    out, _ = process.communicate(timeout=30)
    said = site.log()
    assert out == b"" and process.returncode == 78 and "Traceback" not in said
    command = f"jobscribe db repair --root {site.root}"
    assert f"damaged at position {position + 3}" in said and command in said, said[-2000:]
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in before} == before
    told = jobscribe(site, *command.split()[2:3], "--yes")
    assert jid_of(lost) in told and "before-repair-1" in told
    site.start()
    assert site.status(kept)["state"] == "completed"
    # the run started once; the log no longer has its end, and the agent does not repeat
    # acknowledged reports
    assert site.wait(lost, 60.0)["state"] in ("error", "completed")
    check_books(site)


def spoil(root: Path, position: int) -> None:
    import sqlite3

    with sqlite3.connect(root / "db" / "events.sqlite") as c:
        c.execute("UPDATE events SET at = at + 1 WHERE position = ?", (position,))
    c.close()
