"""Logs of agents and jobs on a real supervisor, read with the commands that users type: by key, id
and job, of earlier agents and attempts, and after a restart.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, shell, until

from jobscribe.runtime.log import session_folders

KEY = f"local.sequential.{UID}@localhost"
OTHER = "SystemU2"
TWICE = """echo attempt $JOBSCRIBE_ATTEMPT
while [ ! -e {0}/go$JOBSCRIBE_ATTEMPT ]; do sleep 0.05; done
[ $JOBSCRIBE_ATTEMPT = 2 ] || exit 1
printf 'the last line'"""

pytestmark = pytest.mark.timeout(120)


def command(site: SupervisorProcess, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "jobscribe.cli", "--root", str(site.root), *words],
        stdin=subprocess.DEVNULL,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def typed(site: SupervisorProcess, *words: str) -> tuple[int, str, str]:
    done = site.command(*words)
    return done.returncode, done.stdout, done.stderr


def test_agents_are_listed_and_read_by_key_by_id_and_by_job(shared: SupervisorProcess) -> None:
    run = shell("echo x")
    shared.finished(run)
    code, out, err = typed(shared, "--json", "agent", "list", "--all-users")
    (row,) = (r for r in json.loads(out)["items"] if r["agent"] == KEY)
    assert (
        (code, err, row["phase"], row["uid"]) == (0, "", "up", UID)
        and row["pid"] == shared.agent_pid()
        and Path(row["log"]).is_file()
    )
    for name in (KEY, jid_of(run)):
        code, out, err = typed(shared, "agent", "logs", name, "--all")
        assert code == 0 and f"agent {KEY} starts" in out and f"jid={jid_of(run)}" in out
    shown = shared.post("agent-logs", agent=row["agentId"], uid=UID, tail=400)
    assert (
        shown["agent"] == KEY
        and 0 < len(shown["text"]) <= 400
        and shown["nextOffset"] == shown["size"]
    )


def test_whose_agent_it_is_is_checked_and_what_there_is_not_is_said(
    shared: SupervisorProcess,
) -> None:
    shared.finished(shell("true"))
    (row,) = (r for r in shared.post("agents", uid=UID)["agents"] if r["agent"] == KEY)
    assert shared.post("agents", uid=OTHER)["agents"] == []
    for name in (KEY, row["agentId"]):
        answer = shared.ask(
            "POST", "/api/agent-logs", json.dumps({"agent": name, "uid": OTHER}).encode()
        )
        assert (
            answer.json()["code"] == "notFound"
            and answer.json()["error"] == f"there is no agent {name} of user {OTHER}"
        )
    bare = shared.ask(
        "POST",
        "/api/agent-logs",
        json.dumps({"agent": KEY}).encode(),
        headers={"Authorization": "none"},
    )
    assert bare.code in (401, 403)
    keeper = typed(shared, "agent", "logs", KEY, "--keeper")
    assert keeper[:2] == (0, "") and "a keeper writes only about errors" in keeper[2]


def test_a_log_of_an_agent_holds_no_secret_whoever_wrote_it_there(
    shared: SupervisorProcess,
) -> None:
    shared.finished(shell("true"))
    log = shared.root / "agent" / KEY / "agent.log"
    with log.open("a") as file:
        file.write(f"token {shared.token}\n")
    text = shared.post("agent-logs", agent=KEY, tail=2000)["text"]
    assert shared.token not in text and "token " in text


def test_the_life_before_the_last_one(site: SupervisorProcess) -> None:
    site.finished(shell("true"))
    first = site.agent_pid()
    assert (
        "has no lines of an earlier process" in typed(site, "agent", "logs", KEY, "--previous")[2]
    )
    site.kill(first, signal.SIGKILL)
    until(lambda: site.agent_pid() != first, "another agent")
    run = shell("true")
    site.finished(run)
    code, out, err = typed(site, "agent", "logs", KEY, "--previous")
    assert (
        code == 0
        and f" {first} " in out
        and jid_of(run) not in out
        and "the process before the last start" in err
    )


def test_a_log_is_followed_through_a_retry_and_a_restart_to_the_last_line(
    site: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell(TWICE.format(tmp_path), retry={"count": 1})
    site.submit(run)
    reader = command(site, "job", "logs", "-f", jid_of(run))
    assert reader.stdout is not None and reader.stdout.readline() == "attempt 1\n"
    (tmp_path / "go1").touch()
    until(
        lambda: site.status(run)["attempt"] == 2 and site.status(run)["state"] == "running",
        "the second attempt runs",
    )
    sessions_before = session_folders.sessions(str(site.root))
    assert site.stop() == 0
    site.start()
    (tmp_path / "go2").touch()
    out, err = reader.communicate(timeout=60)
    assert (reader.returncode, out) == (0, "attempt 2\nthe last line") and err.count(
        "[attempt 2]"
    ) == 1, err
    assert typed(site, "job", "logs", jid_of(run), "--previous")[1] == "attempt 1\n"
    assert typed(site, "job", "logs", jid_of(run), "--attempt", "1")[1] == "attempt 1\n"
    # each start of the supervisor begins a new session of its log
    assert len(session_folders.sessions(str(site.root))) == len(sessions_before) + 1
    assert jid_of(run) in site.logged() and all(
        Path(f).parent.stat().st_mode & 0o777 == 0o700
        for f in session_folders.log_files(str(site.root), "supervisor")
    )


def test_there_is_never_an_empty_answer(shared: SupervisorProcess) -> None:
    silent, lost, never = shell("true"), shell("echo x"), shell("true", after=[])
    for run in (silent, lost, never):
        shared.finished(run)
    assert (
        "is over and wrote nothing to its standard error"
        in typed(shared, "job", "logs", jid_of(silent), "--stderr")[2]
    )
    (folder,) = (shared.root / "agent" / KEY / "run").glob(f"{jid_of(lost)}-*")
    os.unlink(folder / "stdout.log")
    said = typed(shared, "--json", "job", "logs", jid_of(lost), "--stdout")
    assert (
        json.loads(said[1])["note"] == "gone" and "wrote 2 bytes" in json.loads(said[1])["sentence"]
    )
    assert re.search(
        r"there is no previous attempt of \S+: the latest attempt is the first",
        typed(shared, "job", "logs", jid_of(lost), "--previous")[2],
    )


def test_an_agent_is_stopped_with_its_keeper_unless_it_has_runs(
    site: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    site.submit(run)
    site.running(run)
    agent, keeper = site.agent_pid(), site.keeper()["pid"]
    code, out, err = typed(site, "--uid", UID, "agent", "stop", KEY)
    assert (code, out) == (1, "") and f"{KEY} still has runs: 1 started and 0 waiting" in err, err
    assert typed(site, "--uid", OTHER, "agent", "stop", KEY)[0] == 1, (
        "somebody else's agent is not found"
    )
    (tmp_path / "go").touch()
    site.wait(run)
    code, out, err = typed(site, "--uid", UID, "--json", "agent", "stop", "--all")
    assert (code, json.loads(out)["stopped"]) == (0, [KEY]), err
    assert not Path(f"/proc/{agent}").exists()
    until(lambda: not Path(f"/proc/{keeper}").exists(), "its keeper ends, too")
    site.finished(shell("true"))
