"""Stacks and profiles of a running job through a real supervisor, agent and py-spy, from the command
line of its user.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inspected_program import Recorders
from shell_user import client_of
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, spec, until

from jobscribe.client import ClientError
from jobscribe.protocol.jobs.inspection import Program

Make = Callable[..., SupervisorProcess]
#: How long (seconds) a busy machine may take for a slice.
PATIENT = 90.0
ANN, BOB = "ann00001", "bob00001"
#: Computes a little until a file is there. The child has no Python.
PROGRAM = """
import os, subprocess, sys, threading, time
def waits():
    time.sleep(1000)
def computes():
    while not os.path.exists(sys.argv[1]):
        sum(range(60000))
        time.sleep(0.004)
threading.Thread(target=waits, name="helper", daemon=True).start()
child = subprocess.Popen(["/bin/sleep", "1000"])
print("begun", flush=True)
computes()
child.kill()
os._exit(3)
"""


def starts(site: SupervisorProcess, *args: str) -> "subprocess.Popen[str]":
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "jobscribe.cli", "--root", str(site.root), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=site.place,
        env=env | {"PYTHONPATH": PYTHON_PATH},
    )


def types(site: SupervisorProcess, *args: str, code: int = 0) -> tuple[str, str]:
    done = site.command(*args, cwd=site.place)
    assert done.returncode == code, (args, done)
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def stacks(site: SupervisorProcess, jid: str) -> dict[str, dict[str, Any]]:
    """Return the processes of `debug stack`, by the names of their programs."""
    out, _ = types(site, "debug", "stack", jid, "--uid", ANN, "--json")
    return {p["name"]: p for p in json.loads(out)["processes"]}


def recorded(path: Path) -> int:
    """Return the samples of the program in a folded profile, which is for its user only."""
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [line for line in path.read_text().splitlines() if ";computes (" in line]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.soak("tests/integration/test_shells.py, whose programs these are")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_a_recording_ends_with_a_sentence_when_something_is_killed(
    make_site: Make, tmp_path: Path, what: str
) -> None:
    """What was recorded before is kept; the job goes on, and is recorded again."""
    site = make_site().start()
    go = tmp_path / "go"
    run = spec([sys.executable, "-c", PROGRAM, str(go)], ANN)
    site.submit(run)
    jid = jid_of(run)
    until(lambda: b"begun" in site.output(run).body, "the job runs")
    record = ("profile", "record", jid, "--uid", ANN, "--format", "raw", "--output")
    (python,) = {p["pid"] for p in stacks(site, jid).values() if p["python"]}
    recorders = Recorders(python)
    began = starts(site, *record, "one", "--seconds", "600")
    until(lambda: recorders() > 1, "a second slice", PATIENT)
    if what == "agent":
        site.kill(site.agent_pid(ANN))
    else:
        site.stop(signal.SIGKILL)
        site.start()
    _, said = began.communicate(timeout=100)
    print(began.returncode, said)
    assert began.returncode == 0 and "Traceback" not in said
    assert "was restarted; the job goes on" in said, said
    assert recorded(site.place / "one") > 0
    until(lambda: site.status(run)["state"] == "running", "the job goes on")
    gone = {p for p in Path("/proc").glob("[0-9]*") if p.name in map(str, recorders.seen)}
    until(lambda: not any(p.exists() for p in gone), "no recorder is left", PATIENT)
    types(site, *record, "two", "--seconds", "1")
    assert recorded(site.place / "two") > 0
    go.touch()
    assert site.wait(run)["exit"]["code"] == 3


@pytest.mark.timeout(300)
def test_a_running_job_is_inspected_and_goes_on(make_site: Make, tmp_path: Path) -> None:
    """Stacks, also of a stopped process; a profile, also of a job that ends meanwhile; another user;
    the limit of the host; the audit trail. The job's exit is its own.
    """
    site = make_site("debugger.recordings=1").start()
    go = tmp_path / "go"
    run = spec([sys.executable, "-c", PROGRAM, str(go), "--password=hunter2"], ANN)
    site.submit(run)
    jid = jid_of(run)
    until(lambda: b"begun" in site.output(run).body, "the job runs")

    found = stacks(site, jid)
    python = next(p for p in found.values() if p["python"])
    assert python["method"] == "py-spy", python
    threads = {t["name"]: [f["function"] for f in t["frames"]] for t in python["threads"]}
    assert "computes" in threads["MainThread"] and threads["helper"][0] == "waits", threads
    assert "hunter2" not in json.dumps(found) and "--password=" in python["command"]
    assert found["sleep"]["parent"] == python["pid"] and found["sleep"]["method"] is None

    os.kill(python["pid"], signal.SIGSTOP)
    text, _ = types(site, "debug", "stack", jid, "main-0", "--uid", ANN)
    assert "stopped by a signal" in text and "read by py-spy" in text and "computes" in text, text
    assert "\nT" in Path(f"/proc/{python['pid']}/status").read_text().replace("State:\t", "\n")
    os.kill(python["pid"], signal.SIGCONT)

    record = ("profile", "record", jid, "--uid", ANN, "--format", "raw", "--output")
    types(site, *record, "one", "--seconds", "2")
    assert recorded(site.place / "one") > 0
    assert "exists" in types(site, *record, "one", code=2)[1]

    recorders = Recorders(python["pid"])
    meanwhile = starts(site, *record, "two", "--seconds", "600")
    with client_of(site, BOB) as bob:
        refusals = []
        for name in (jid, f"{ANN}-abcdefgh-command"):
            with pytest.raises(ClientError) as hidden:
                bob.open_shell(name, program=Program(name="stacks"))
            refusals.append((hidden.value.code, hidden.value.sentence.replace(name, "JID")))
        assert refusals[0] == refusals[1]
    until(recorders, "the recording begins", PATIENT)
    asked = {"uid": ANN, "computeJid": jid, "shellId": "s" * 32, "program": {"name": "profile"}}
    full = site.ask("POST", "/api/shell-open", json.dumps(asked).encode())
    assert full.code == 429 and b"debugger.recordings" in full.body, full
    # its first slice is complete when the next one begins
    until(lambda: recorders() > 1, "a second slice", PATIENT)
    go.touch()
    _, said = meanwhile.communicate(timeout=100)
    assert meanwhile.returncode == 0 and "the task ended" in said, said
    assert recorded(site.place / "two") > 0
    ended = site.wait(run)
    assert ended["exit"]["code"] == 3, ended
    said = types(site, "debug", "stack", jid, "--uid", ANN, code=125)[1]
    assert "has ended" in said and f"jobscribe core list {jid}" in said, said
    asked["program"] = {"name": "stacks"}
    late = site.ask("POST", "/api/shell-open", json.dumps(asked).encode())
    assert late.json()["code"] == "alreadyEnded" and b"has ended" in late.body, late
    bad = site.ask(
        "POST", "/api/shell-open", json.dumps({**asked, "program": {"name": "sh"}}).encode()
    )
    assert bad.json()["code"] == "badRequest", bad
    events = [e["event"] for e in site.post("audit")["events"]]
    programs = [e.get("program") for e in events if e["type"] == "ShellOpened"]
    assert programs.count("stacks") == 2 and "profile" in programs, programs
