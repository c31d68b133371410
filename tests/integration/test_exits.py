"""Every way in which a command can end: the reported outcome is true, and no process is left."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books, stories
from supervisor_process import (
    PROFILE,
    UID,
    SupervisorProcess,
    fresh_nap,
    jid_of,
    naps,
    rss,
    shell,
    spec,
    until,
)

#: Tests allow five times the promised time, because the machine may be busy.
ROOM = 5


@pytest.mark.parametrize(
    ("text", "state", "reason", "code", "number"),
    [
        ("exit 0", "completed", "exit", 0, None),
        ("exit 3", "error", "exit", 3, None),
        ("exit 137", "error", "exit", 137, None),
        ("exit 143", "error", "exit", 143, None),
        ("kill -KILL $$", "error", "signal", None, signal.SIGKILL),
        ("kill -SEGV $$", "error", "signal", None, signal.SIGSEGV),
        ("sh -c 'kill -KILL $$'; exit 137", "error", "exit", 137, None),
        ("exit 255", "error", "exit", 255, None),
    ],
)
def test_the_exit_is_told_as_it_was(
    shared: SupervisorProcess,
    text: str,
    state: str,
    reason: str,
    code: int | None,
    number: int | None,
) -> None:
    run = shell(text)
    said = shared.finished(run)
    assert (said["state"], said["reason"], said["exit"]["code"], said["exit"]["signal"]) == (
        state,
        reason,
        code,
        number,
    )
    assert said["exit"]["source"] == "keeper"


def test_a_kill_from_outside_is_a_signal_and_nobody_here_sent_it(shared: SupervisorProcess) -> None:
    nap = fresh_nap()
    run = spec(["sleep", nap])
    shared.submit(run)
    (pid,) = until(lambda: naps(nap), "it sleeps")
    os.kill(pid, signal.SIGKILL)
    said = shared.wait(run)
    assert (said["state"], said["reason"], said["exit"]["signal"], said["exit"]["code"]) == (
        "error",
        "signal",
        9,
        None,
    )
    assert "SIGKILL" in shared.post("job-why", uid=UID, computeJid=jid_of(run))["sentence"]


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (["/no/such/program"], 127, "not found"),
        (["no-such-program-anywhere"], 127, "not found"),
        (["/etc/passwd"], 126, "denied"),
    ],
)
def test_what_cannot_be_executed_says_so(
    shared: SupervisorProcess, command: list[str], code: int, word: str
) -> None:
    run = spec(command)
    said = shared.finished(run)
    assert (said["state"], said["exit"]["code"]) == ("error", code)
    assert word in shared.output(run, "stderr").body.decode().lower()
    assert word in (said["exit"]["lastLines"] or "").lower()


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(
    shared: SupervisorProcess,
) -> None:
    run = spec(["true"])
    in_its_way = shared.root / "user" / UID / "command" / run["simulationId"]
    in_its_way.parent.mkdir(parents=True, exist_ok=True)
    in_its_way.write_text("a file where the run directory should be")
    said = shared.finished(run)
    assert (said["state"], said["reason"], said["exit"]["source"]) == (
        "error",
        "startFailed",
        "start",
    )
    assert str(in_its_way) in said["error"]
    assert stories(shared.root)[jid_of(run)].count("TaskStarted") == 0


@pytest.fixture
def ordinary(make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    """Return a supervisor that obeys file permissions, also if the tests run as root."""
    site = make_site(obeys_permissions=True)
    site.start()
    yield site
    check_books(site)


def test_a_run_directory_that_cannot_be_written_is_an_error_and_other_runs_go_on(
    ordinary: SupervisorProcess,
) -> None:
    closed = spec(["true"])
    above = ordinary.root / "user" / UID / "command" / closed["simulationId"]
    above.mkdir(parents=True)
    above.chmod(0o500)
    said = ordinary.finished(closed)
    above.chmod(0o700)
    assert (said["state"], said["reason"]) == ("error", "startFailed")
    assert "ermission denied" in said["error"] and str(above) in said["error"]
    assert ordinary.finished(shell("touch file"))["state"] == "completed"


# ---- requested ends


def test_a_job_deaf_to_sigterm_is_gone_after_its_grace(shared: SupervisorProcess) -> None:
    nap = fresh_nap()
    run = shell(f"trap '' TERM HUP INT; echo deaf; while :; do sleep {nap}; done", graceSecs=0.5)
    shared.submit(run)
    until(lambda: naps(nap), "it sleeps")
    begun = time.monotonic()
    assert shared.cancel(run)["state"] == "canceled"
    until(lambda: not naps(nap), "nothing of it is left", ROOM * 1.5)
    said = shared.wait(run)
    assert time.monotonic() - begun < ROOM * 1.5
    assert (said["state"], said["reason"], said["exit"]["stopReason"]) == (
        "canceled",
        "cancel",
        "cancel",
    )


DAEMONS = {
    "in the background": "sleep NAP & ",
    "a session of its own": "setsid sleep NAP & ",
    "forked twice": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ); sleep 0.2; ",
    "everything shed": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; /bin/sleep NAP & /bin/sleep NAP' & ); sleep 0.2; ",
}


@pytest.mark.parametrize("text", DAEMONS.values(), ids=DAEMONS.keys())
def test_no_daemon_outlives_its_job(shared: SupervisorProcess, text: str) -> None:
    nap = fresh_nap()
    said = shared.finished(shell(text.replace("NAP", nap) + "exit 4"))
    assert naps(nap) == []
    assert (said["state"], said["exit"]["code"]) == ("error", 4)
    assert said["exit"]["survivorsKilled"] >= 1


@pytest.mark.parametrize("text", DAEMONS.values(), ids=DAEMONS.keys())
def test_no_daemon_outlives_a_cancel(shared: SupervisorProcess, text: str) -> None:
    nap = fresh_nap()
    run = shell(text.replace("NAP", nap) + f"sleep {nap}", graceSecs=0.3)
    shared.submit(run)
    until(lambda: len(naps(nap)) >= 2, "all of it runs")
    shared.cancel(run)
    assert shared.wait(run)["state"] == "canceled"
    assert naps(nap) == []


def test_the_time_limit_ends_a_run_and_is_named_as_the_reason(shared: SupervisorProcess) -> None:
    nap = fresh_nap()
    said = shared.finished(
        shell(f"trap 'exit 0' TERM; sleep {nap} & wait", timeLimitSecs=0.5, graceSecs=1)
    )
    assert (said["state"], said["reason"], said["exit"]["stopReason"]) == (
        "canceled",
        "timeLimit",
        "timeLimit",
    )
    assert said["canceledAfterSecs"] == 0.5
    assert naps(nap) == []


def test_a_run_that_waits_too_long_never_starts(shared: SupervisorProcess) -> None:
    nap = fresh_nap()
    blockers = [spec(["sleep", nap], graceSecs=0) for _ in range(4)]
    for run in blockers:
        shared.submit(run)
    until(lambda: len(naps(nap)) == 4, "all slots are taken")
    late = spec(["true"], queueLimitSecs=2.0)
    assert shared.submit(late)["state"] == "pending"
    waiting = shared.status(late)
    assert (
        waiting["queueState"] in ("cpu_slot", "op_slot") and "4 of 4" in waiting["jobStatusMessage"]
    )
    said = shared.wait(late)
    assert (said["state"], said["reason"], said["attempt"]) == ("canceled", "queueLimit", 0)
    assert stories(shared.root)[jid_of(late)] == ["RunRequested", "StopRequested", "RunEnded"]
    for run in blockers:
        shared.cancel(run)
        shared.wait(run)


# ---- the environment of a job


def test_the_termination_message_is_told(shared: SupervisorProcess) -> None:
    run = shell('printf "the mesh is not closed" >"$JOBSCRIBE_TERMINATION_MESSAGE"; exit 1')
    said = shared.finished(run)
    assert said["exit"]["terminationMessage"] == "the mesh is not closed"
    assert (
        shared.post("job-why", uid=UID, computeJid=jid_of(run))["terminationMessage"]
        == "the mesh is not closed"
    )


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1 << 20, 2048)])
def test_the_core_limit_is_the_one_asked_for(
    shared: SupervisorProcess, size: int, blocks: int
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    possible = blocks if hard == resource.RLIM_INFINITY else min(blocks, hard // 512)
    run = shell("ulimit -c", coreBytes=size)
    assert shared.finished(run)["state"] == "completed"
    assert shared.output(run).body.decode().strip() == str(possible)


def test_the_prefix_goes_in_front_of_the_command(shared: SupervisorProcess) -> None:
    run = spec(
        ["sh", "-c", "echo $WRAPPED $0 $1", "a b", "it's"], wrap=["env", "WRAPPED=by a prefix"]
    )
    assert shared.finished(run)["state"] == "completed"
    assert shared.output(run).body == b"by a prefix a b it's\n"


def test_the_environment_is_the_contract_and_the_login_profile_and_nothing_else(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(f"{PROFILE}=60", env={"SYSTEM_CANARY": "sings"}).start()
    run = spec(["/usr/bin/env", "-0"], env={"MY_OPTION": 'it\'s $HOME\n"two" lines'})
    said = site.finished(run)
    found = dict(e.split("=", 1) for e in site.output(run).body.decode().split("\0") if e)
    token = f"{jid_of(run)}/{said['computeJobSerial']}/1/main/0"
    evidence = (
        site.root / "agent" / f"local.sequential.{UID}@localhost" / "run" / token.replace("/", "-")
    )
    wanted = _login_profile() | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MY_OPTION": 'it\'s $HOME\n"two" lines',
        "JOBSCRIBE_TOKEN": token,
        "JOBSCRIBE_COMPUTE_JID": jid_of(run),
        "JOBSCRIBE_SERIAL": str(said["computeJobSerial"]),
        "JOBSCRIBE_ATTEMPT": "1",
        "JOBSCRIBE_TASK_ROLE": "main",
        "JOBSCRIBE_TASK_INDEX": "0",
        "JOBSCRIBE_RUN_DIR": said["runDir"],
        "JOBSCRIBE_TERMINATION_MESSAGE": str(evidence / "termination-message"),
        "JOBSCRIBE_REPORT": str(evidence / "report.jsonl"),
    }
    of_the_shell = {k: found.pop(k) for k in ("PWD", "OLDPWD", "_", "SHLVL") if k in found}
    assert found == wanted
    assert of_the_shell["PWD"] == said["runDir"]
    assert "SYSTEM_CANARY" not in found


def _login_profile() -> dict[str, str]:
    """Return the environment that a login shell of this user makes from an empty one, without
    product code.
    """
    import pwd

    me = pwd.getpwuid(os.getuid())
    path = (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        if os.getuid() == 0
        else "/usr/local/bin:/usr/bin:/bin"
    )
    clean = {
        "HOME": me.pw_dir,
        "USER": me.pw_name,
        "LOGNAME": me.pw_name,
        "SHELL": "/bin/bash",
        "PATH": path,
    }
    said = subprocess.run(
        ["/bin/bash", "-l", "-c", "env -0"],
        env=clean,
        capture_output=True,
        check=True,
        cwd=me.pw_dir,
    ).stdout.decode()
    out = dict(e.split("=", 1) for e in said.split("\0") if "=" in e)
    return {k: v for k, v in out.items() if k not in ("_", "SHLVL", "PWD", "OLDPWD", "TERM")}


@pytest.mark.timeout(120)
def test_a_gigabyte_of_output_costs_the_flooder_only(shared: SupervisorProcess) -> None:
    shared.finished(spec(["true"]))
    agent = shared.agent_pid()
    before = rss(shared.pid), rss(agent)
    run = shell("echo first; head -c 1073741824 /dev/zero; echo; echo last")
    shared.submit(run)
    log = _log_file(shared, run)
    most_disk = most_supervisor = most_agent = 0

    def over() -> bool:
        nonlocal most_disk, most_supervisor, most_agent
        if log.exists():
            most_disk = max(most_disk, log.stat().st_blocks * 512)
        most_supervisor, most_agent = (
            max(most_supervisor, rss(shared.pid)),
            max(most_agent, rss(agent)),
        )
        return bool(shared.status(run)["over"])

    until(over, "it is over", 90)
    said = shared.status(run)
    kept = log.stat().st_blocks * 512
    print(
        f"disk at most {most_disk >> 20} MiB, kept {kept >> 20} MiB; supervisor +{(most_supervisor - before[0]) >> 20} MiB,"
        f" agent +{(most_agent - before[1]) >> 20} MiB; dropped {said['exit']['droppedBytes']}"
    )
    assert said["state"] == "completed"
    assert kept <= 4 << 20 and most_disk < 512 << 20
    assert most_supervisor - before[0] <= 32 << 20 and most_agent - before[1] <= 16 << 20
    size = said["exit"]["stdoutBytes"]
    assert size == 1073741824 + len("first\n\nlast\n")
    assert size - (3 << 20) < said["exit"]["droppedBytes"] < size
    _check_dropped(shared, run, size, said["exit"]["droppedBytes"])
    assert any(
        "dropped" in line
        for line in shared.post("job-why", uid=UID, computeJid=jid_of(run))["evidence"]
    )


def _log_file(site: SupervisorProcess, run: dict[str, Any]) -> Path:
    serial = site.status(run)["computeJobSerial"]
    return (
        site.root
        / "agent"
        / f"local.sequential.{UID}@localhost"
        / "run"
        / f"{jid_of(run)}-{serial}-1-main-0"
        / "stdout.log"
    )


def _check_dropped(
    site: SupervisorProcess, run: dict[str, Any], size: int, dropped_bytes: int
) -> None:
    """A reader gets the beginning, the end, and the number of dropped bytes between them."""
    offset = dropped = got = 0
    text = b""
    while True:
        part = site.output(run, offset=offset, limit=512 * 1024)
        assert int(part.headers["X-Jobscribe-Offset"]) == offset + int(
            part.headers["X-Jobscribe-Dropped"]
        )
        dropped, got, text = (
            dropped + int(part.headers["X-Jobscribe-Dropped"]),
            got + len(part.body),
            text + part.body,
        )
        offset = int(part.headers["X-Jobscribe-Next-Offset"])
        if part.headers["X-Jobscribe-End"] == "true":
            break
    assert (dropped, got + dropped) == (dropped_bytes, size)
    assert text.startswith(b"first\n\0") and text.endswith(b"\0\nlast\n")


def test_what_a_run_did_can_be_done_again_by_hand(shared: SupervisorProcess) -> None:
    run = shell('echo "$MY_OPTION in $(pwd)"; exit 5', env={"MY_OPTION": "a b"})
    said = shared.finished(run)
    folder = Path(said["runDir"]) / ".jobscribe" / "latest"
    assert json.loads((folder / "exit.json").read_text())["code"] == 5
    again = subprocess.run(
        ["sh", folder / "script.sh"], capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stdout) == (5, f"a b in {said['runDir']}\n")


def test_of_a_purged_run_nobody_reads_what_it_wrote(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    """The exit status is kept. The files are deleted, together with all quotes of them."""
    site = make_site("purge.after_secs=1", "purge.every_secs=0.2").start()
    run = shell(
        "w=word; echo a $w out; echo Error: a $w err >&2; echo 'out of cheese' > $JOBSCRIBE_TERMINATION_MESSAGE; exit 3"
    )
    site.submit(run)
    who = {"uid": UID, "computeJid": jid_of(run)}
    until(lambda: site.status(run)["state"] == "job_run_purged", "it is purged")
    for stream in ("stdout", "stderr"):
        for more in ({}, {"tail": 100}, {"attempt": 1}, {"role": "main", "index": 0}):
            answer = site.output(run, stream, **more)
            assert (answer.code, answer.body) == (200, b""), more
            assert json.loads(answer.headers["X-Jobscribe-Note"])["word"] == "purged"
    for route in ("job-why", "job-story", "job-tasks", "run-status"):
        said = site.post(route, **who)
        assert "a word" not in json.dumps(said), (route, said)
        assert said.get("terminationMessage") is None
    assert (site.status(run)["exit"]["code"], site.status(run)["error"]) == (3, "out of cheese")
    file = site.ask("POST", "/api/run-file", json.dumps({**who, "name": "script.sh"}).encode())
    assert file.code == 404
