"""A job stops at a breakpoint; its user debugs it from elsewhere, through supervisor and agent."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debugging_user import Debugger, attached, check_flooded, flooding_lines, waiting_stop
from supervisor_process import (
    UID,
    SupervisorProcess,
    jid_of,
    open_files,
    rss,
    shell,
    spec,
    until,
)

import jobscribe
from jobscribe.client import Client, ClientError

pytestmark = pytest.mark.process

OTHER = "SystemU2"
PROGRAM = """
def f(x):
    y = 2 * x
    breakpoint()
    return y + 1
print(f(3), flush=True)
raise ValueError("unlucky")
"""


def _listeners(*pids: int) -> set[str]:
    """Return the inodes of the TCP sockets at which these processes listen."""
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in lines.splitlines()]
    listening = {row[9] for row in rows if row[3] == "0A"}
    held = {file for pid in pids for file in open_files(pid)}
    return {inode for inode in listening if f"socket:[{inode}]" in held}


def _refusal(client: Client, jid: str, id_: str) -> str:
    """Return what a user is told who lists the stops of a job, and attaches to one."""
    with pytest.raises(ClientError) as listed:
        client.debug_list(jid)
    with pytest.raises(ClientError) as attached:
        client.debug_attach(jid, id_)
    return f"{listed.value.code} {listed.value} {attached.value.code} {attached.value}"


def _submit(site: SupervisorProcess, text: str = PROGRAM, **env: str) -> dict[str, Any]:
    run = spec([sys.executable, "-c", text], env={"JOBSCRIBE_DEBUG": "breakpoint", **env})
    site.submit(run)
    return run


@pytest.fixture
def client(site: SupervisorProcess) -> Iterator[Client]:
    """A user of the site. It reads the address again after a restart."""
    with Client.from_root(site.root, uid=UID) as out:
        yield out


def test_a_job_is_debugged_while_supervisor_and_agent_are_killed(
    site: SupervisorProcess, client: Client
) -> None:
    """Values are shown and changed; the exit stays that of the exception; nothing else listens."""
    run = _submit(site, JOBSCRIBE_DEBUG="on-error")
    jid = jid_of(run)
    stop = waiting_stop(client, jid)
    assert (stop["kind"], stop["line"], stop["function"]) == ("breakpoint", 4, "f")
    assert "remote debugging is on" in site.status(run)["debugging"]
    assert any("remote debugging is on" in line for line in client.why(jid)["evidence"])

    first = Debugger(client, stop)
    first.until("prompt")
    assert first.type("p y") == "6\n"
    assert _listeners(stop["pid"], site.agent_pid()) == set()
    assert _listeners(site.pid) != set()  # it is seen if there is one
    with pytest.raises(ClientError, match="another session is attached"):
        client.debug_attach(jid, stop["id"])
    with Client.from_root(site.root, uid=OTHER) as other:
        with pytest.raises(ClientError) as hidden:
            other.debug_io(first.session, limit=1)
        assert hidden.value.code == "notFound"
        missing = f"{UID}-missing1-command"
        theirs, none = (_refusal(other, name, stop["id"]) for name in (jid, missing))
        assert theirs.replace(jid, "") == none.replace(missing, ""), theirs

    folder = next(site.root.glob("agent/*/run/*/debug"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [p.stat().st_mode & 0o777 for p in folder.iterdir() if p.suffix == ".json"] == [0o600]

    site.kill(site.agent_pid())
    stop = waiting_stop(client, jid)
    site.stop(signal.SIGKILL)
    site.start()
    second = Debugger(client, waiting_stop(client, jid))
    second.until("prompt")
    second.type("y = 100")
    assert "ValueError" in second.type("c")  # it stops again at the exception
    second.type("c", "end")
    second.close()
    ended = site.wait(run)
    assert ended["exit"]["code"] == 1
    assert site.output(run).body == b"101\n"
    assert "ValueError: unlucky" in next(folder.glob("traceback-*.txt")).read_text()
    assert not [p for p in folder.iterdir() if p.suffix in (".json", ".sock")]
    actions = [event["event"]["action"] for event in site.post("audit")["events"]]
    assert actions.count("debug-attach") == 3 and actions.count("debug-detach") >= 2, actions


def test_a_job_that_nobody_debugs_continues_and_output_is_bounded(
    site: SupervisorProcess, client: Client
) -> None:
    run = _submit(site, JOBSCRIBE_DEBUG_SECS="0.2")
    ended = site.wait(run)
    assert ended["exit"]["code"] == 1 and site.output(run).body == b"7\n"
    assert b"nobody attached within 0.2 s" in site.output(run, "stderr").body

    flood = _submit(site, "x = 'y' * 10_000_000\nbreakpoint()\nprint('over')")
    stop = waiting_stop(client, jid_of(flood))
    debugger = Debugger(client, stop)
    debugger.until("prompt")
    assert len(debugger.type("p x")) < 2_000_000
    client.debug_io(debugger.session, "z" * 32_000)
    client.debug_io(debugger.session, "z" * 32_000)
    client.debug_io(debugger.session, "z" * 32_000)
    assert "a line of over 64 KiB was ignored" in debugger.type("z")
    client.debug_io(debugger.session, close=True)
    waiting_stop(client, jid_of(flood))
    held = rss(stop["pid"])
    said = site.command(
        *("debug", "attach", stop["id"], "--uid", UID), given="".join(flooding_lines(20))
    )
    check_flooded(said.stdout, said.stderr)
    assert said.returncode == 0 and "Traceback" not in said.stderr
    again = Debugger(client, waiting_stop(client, jid_of(flood)))
    again.until("prompt")
    assert rss(stop["pid"]) - held < 15 * 2**20, "the job keeps what its user did not read"
    again.type("c", "end")
    assert site.wait(flood)["exit"]["code"] == 0
    assert client.debug_list() == {"stops": [], "notes": []}


#: A process that forks, one of multiprocessing by spawn, a thread, and another program, stop each.
CHILDREN = """
import multiprocessing, os, subprocess, sys, threading
def stops(name):
    breakpoint()
    print(name, flush=True)
if __name__ == "__main__":
    forked = multiprocessing.get_context("fork").Process(target=stops, args=("forked",))
    forked.start()
    made = multiprocessing.get_context("spawn").Process(target=stops, args=("spawned",))
    made.start()
    thread = threading.Thread(target=stops, args=("thread",))
    thread.start()
    text = "breakpoint()\\nprint('program', flush=True)"
    program = subprocess.Popen([sys.executable, "-c", text])
    thread.join(); made.join(); forked.join()
    sys.exit(program.wait() or made.exitcode or forked.exitcode)
"""


def test_child_processes_and_threads_stop_one_by_one(
    site: SupervisorProcess, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    run = spec(
        [sys.executable, str(tmp_path / "children.py")], env={"JOBSCRIBE_DEBUG": "breakpoint"}
    )
    site.submit(run)
    jid = jid_of(run)

    def stopped() -> list[Any] | None:
        found = client.debug_list(jid)["stops"]
        return found if len(found) == 4 else None

    stops = until(stopped, "all stop", 60.0)
    assert len({stop["pid"] for stop in stops}) == 4
    names = list[str]()
    for stop in stops:
        debugger = Debugger(client, stop)
        debugger.until("prompt")
        names.append(debugger.type("p name if 'name' in dir() else 'program'").strip("'\n"))
        debugger.type("c", "running")
        with contextlib.suppress(ClientError):  # it ends with its process
            debugger.close()
    assert site.wait(run)["exit"]["code"] == 0
    assert sorted(names) == ["forked", "program", "spawned", "thread"]
    assert sorted(site.output(run).body.decode().split()) == sorted(names)


@pytest.mark.soak("the test above, with 20 MB")
@pytest.mark.timeout(1200)
def test_a_debugger_that_is_flooded_with_1_gb_costs_no_memory(
    site: SupervisorProcess, client: Client
) -> None:
    """A user pastes, a debugger shows, a process sends without end, and a client sends 1 GB each."""
    run = _submit(site, "breakpoint()\nprint('over')")
    stop = waiting_stop(client, jid_of(run))
    pids = {"job": stop["pid"], "agent": site.agent_pid(), "supervisor": site.pid}
    before = {name: rss(pid) for name, pid in pids.items()}
    words = ("debug", "attach", stop["id"], "--root", str(site.root), "--uid", UID)
    code, said, shown, peak = attached(words, flooding_lines(1000))
    assert code == 0
    check_flooded(said, shown)
    debugger = Debugger(client, waiting_stop(client, jid_of(run)))
    debugger.until("prompt")
    for _ in range(31_250):
        client.debug_io(debugger.session, "z" * 32_000)
    assert "was ignored" in debugger.type("z")
    grown = {name: (rss(pid) - before[name]) / 2**20 for name, pid in pids.items()}
    print(f"grown: {grown} MiB; peak of the user's command: {peak / 2**20} MiB")
    assert max(grown.values()) < 40, grown
    assert peak < 200 * 2**20
    debugger.type("c", "end")
    site.read_address()  # its connection was idle for minutes
    assert site.wait(run)["exit"]["code"] == 0 and site.output(run).body == b"over\n"


@pytest.mark.soak("tests/slurm/test_mpi.py, on a cluster")
def test_ranks_of_mpi_on_this_machine_stop_one_by_one(
    site: SupervisorProcess, client: Client
) -> None:
    script = Path(jobscribe.__file__).parent / "etc/engines/mpi.sh"
    if subprocess.run([script, "check"], check=False).returncode:
        pytest.skip("mpirun is not installed")
    ring = (script.parents[2] / "etc/examples/openpai/code/ring.py").read_text()
    program = ring.replace("print(", "breakpoint()\nprint(")
    start = (
        f'. /dev/stdin <<END\n$({script} env)\nEND\nexec mpirun -n 3 --oversubscribe "$0" -c "$1"'
    )
    run = spec(
        ["/bin/sh", "-c", start, sys.executable, program], env={"JOBSCRIBE_DEBUG": "breakpoint"}
    )
    site.submit(run)
    jid = jid_of(run)

    def stopped() -> list[Any] | None:
        found = client.debug_list(jid)["stops"]
        return found if len(found) == 3 else None

    stops = {s["rank"]: s for s in until(stopped, "all ranks stop", 60.0)}
    listed = site.command("debug", "list", jid, "--uid", UID).stdout
    for rank in range(3):
        stop = stops[rank]
        assert re.search(
            rf"{stop['id']} +{jid} +main/0 rank {rank} +{stop['host']} +{stop['pid']} +<string>:",
            listed,
        ), listed
    debugger = Debugger(client, stops[1])
    debugger.until("prompt")
    assert debugger.type("p rank.value") == "1\n"
    done = site.command("debug", "continue", jid, "--uid", UID, "--json")
    assert set(json.loads(done.stdout)["continued"]) == {stops[0]["id"], stops[2]["id"]}, done
    until(lambda: site.output(run).body.count(b"had") == 2, "the others go on")
    debugger.type("given.value += 1000")
    debugger.type("c", "running")
    debugger.close()
    assert site.wait(run)["exit"]["code"] == 0
    assert b"rank 1 of 3" in site.output(run).body and b"had 1002" in site.output(run).body
    unknown = site.command("debug", "continue", "nosuchjob", "--uid", UID)
    assert unknown.returncode not in (0, 1) and "Traceback" not in unknown.stderr, unknown


def test_an_operator_turns_remote_debugging_and_profiles_off(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site("debugger.allowed=no", "profiler.allowed=no")
    site.start()
    run = shell("true", env={"JOBSCRIBE_DEBUG": "breakpoint"})
    body = json.dumps({"reqId": "a" * 12, "run": run}).encode()
    answer = site.ask("POST", "/api/run-simulation", body)
    assert answer.code == 403 and "turned off" in answer.json()["error"], answer
    body = json.dumps({"reqId": "b" * 12, "run": shell("true", profile="mem")}).encode()
    answer = site.ask("POST", "/api/run-simulation", body)
    assert answer.code == 403 and "profiler.allowed" in answer.json()["error"], answer
