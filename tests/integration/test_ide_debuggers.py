"""An IDE debugs a job with debugpy, through supervisor and agent."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from dap_client import attached_ide
from debugging_user import waiting_stop
from supervisor_process import UID, SupervisorProcess, jid_of, open_files, rss, spec

from jobscribe.client import Client

PROGRAM = """
def f(x):
    y = 2 * x
    breakpoint()
    return "é" + str(y)
print(f(3), flush=True)
print(f(4), flush=True)
print(f(5), flush=True)
"""
#: Prints 40 MB.
FLOOD = "[print('w' * 65535, file=__import__('sys').stderr) for _ in range(640)] and None"
#: Neither an address where nothing listens nor a missing debugpy is a failure of the job.
WITHOUT = """
import os, sys
breakpoint()
sys.modules["debugpy"] = None
os.environ["JOBSCRIBE_DEBUG"] = "debugpy"
breakpoint()
breakpoint()
print("whole")
"""


def _listening(*pids: int) -> set[str]:
    """Return the TCP sockets at which these processes listen."""
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in lines.splitlines()]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    return inodes & {file for pid in pids for file in open_files(pid)}


def _output(client: Client, jid: str, stream: Any) -> str:
    return b"".join(part.data for part in client.logs(jid, stream)).decode()


def test_an_ide_stops_changes_and_continues_a_job(site: SupervisorProcess) -> None:
    """Nothing but debugpy's own connection is on the job's host; the IDE may attach again."""
    run = spec([sys.executable, "-c", PROGRAM], env={"JOBSCRIBE_DEBUG": "debugpy"})
    site.submit(run)
    jid = jid_of(run)
    with Client.from_root(site.root, uid=UID) as client:
        stop = waiting_stop(client, jid)
        assert (stop["line"], stop["function"]) == (4, "f")
        with attached_ide(site, UID, stop["id"]) as (ide, _):
            ide.begin()
            at = ide.stopped()
            assert (at["name"], at["line"]) in (("f", 4), ("f", 5))
            assert ide.ask("evaluate", expression="y", frameId=at["id"])["result"] == "6"
            ide.ask("evaluate", expression="y = 70", frameId=at["id"], context="repl")
            assert _listening(stop["pid"], site.agent_pid()) == set()
            (listed,) = client.debug_list(jid)["stops"]
            assert listed["attached"]
            ide.ask("continue", threadId=at["thread"])
            at = ide.stopped()
            assert ide.ask("evaluate", expression="y", frameId=at["id"])["result"] == "8"
            ide.ask("disconnect")
        again = waiting_stop(client, jid)
        assert again["id"] != stop["id"]
        with attached_ide(site, UID, again["id"]) as (ide, process):
            ide.begin()
            at = ide.stopped()
            ide.ask("evaluate", expression="y = 'ü'", frameId=at["id"], context="repl")
            # the job prints faster than the IDE reads
            held = rss(again["pid"])
            ide.ask("evaluate", expression=FLOOD, frameId=at["id"], context="repl")
            ide.output("characters of output dropped")
            assert rss(again["pid"]) - held < 20 * 2**20
            ide.ask("continue", threadId=at["thread"])
            assert client.wait(jid, timeout=60).state == "completed"
        assert process.returncode == 0
        assert _output(client, jid, "stdout") == "é70\né8\néü\n"


def test_a_debugger_that_is_not_there_is_no_failure(site: SupervisorProcess) -> None:
    run = spec([sys.executable, "-c", WITHOUT], env={"JOBSCRIBE_DEBUG": "pydevd:127.0.0.1:9"})
    site.submit(run)
    with Client.from_root(site.root, uid=UID) as client:
        assert client.wait(jid_of(run), timeout=60).state == "completed"
        said = _output(client, jid_of(run), "stderr")
        events = [e["event"] for e in client.story(jid_of(run))["events"]]
    assert said.count("debugpy cannot be imported") == 1
    assert re.search("pydevd cannot be imported|127.0.0.1:9 is not reachable", said)
    noticed = {e["code"]: e["text"] for e in events if e["type"] == "TaskNoticed"}
    assert "debugpy cannot be imported" in noticed["debuggerMissing"], events
    for text in noticed.values():
        assert f"{text}; the job continues" in said


@pytest.mark.soak("the test above")
@pytest.mark.parametrize("mode", ["debugpy:127.0.0.1:9", "pydevd:127.0.0.1:9"])
def test_an_address_where_nothing_listens_is_no_failure(site: SupervisorProcess, mode: str) -> None:
    """pydevd is that of debugpy here."""
    text = (
        "import debugpy.server.api\nimport sys; sys.breakpointhook = sys.__breakpointhook__\n"
        + WITHOUT.replace('"debugpy"] = None', '"x"] = None')
    )
    run = spec(
        [sys.executable, "-c", text],
        env={"JOBSCRIBE_DEBUG": mode, "JOBSCRIBE_DEBUG_SECS": "1"},
    )
    site.submit(run)
    with Client.from_root(site.root, uid=UID) as client:
        assert client.wait(jid_of(run), timeout=60).state == "completed"
        said = _output(client, jid_of(run), "stderr")
    assert said.count("127.0.0.1:9 is not reachable") == 1
    assert "no IDE attached within 1 s" in said
