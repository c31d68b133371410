"""Command line calls and gang requests for tests of whole jobs in containers."""

import json
import os
import subprocess
import sys
from typing import Any

from docker_hosts import Hosts
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, req_id, spec

#: Texts that no user output may contain.
TRACES = ("Traceback", 'File "', "Error(", "docker.errors", "urllib3", "object at 0x")


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }


def words(site: SupervisorProcess, *args: str) -> list[str]:
    return [sys.executable, "-m", "jobscribe.cli", "--root", str(site.root), *args]


def types(site: SupervisorProcess, *args: str, code: int = 0) -> tuple[str, str]:
    """Run a jobscribe command that must end with this code and show no traceback; return its
    standard output and standard error.
    """
    done = site.command(*args)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    check_plain(done.stdout + done.stderr)
    return done.stdout, done.stderr


def check_plain(text: str) -> None:
    assert [t for t in TRACES if t in text] == [], text


def role(name: str, command: str | list[str], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "command": ["/bin/sh", "-c", command] if isinstance(command, str) else command,
        **fields,
    }


def gang(*roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    run = spec([], roles=list(roles), **fields)
    del run["command"]
    return run


def tasks(site: SupervisorProcess, run: dict[str, Any], attempt: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.post(
        "job-tasks", uid=run["uid"], computeJid=jid_of(run), attempt=attempt
    )["tasks"]
    return found


def output(
    site: SupervisorProcess, run: dict[str, Any], name: str, index: int = 0, **fields: Any
) -> str:
    return site.output(run, role=name, index=index, **fields).body.decode()


def refused(site: SupervisorProcess, run: dict[str, Any], status: int, code: str) -> str:
    """Check that a run is refused, that nothing is stored, and that nothing changes on the hosts.
    Return the sentence.
    """
    head = site.ready()["head"]
    answer = site.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
    )
    said = answer.json()
    assert (answer.code, said["code"]) == (status, code), said
    assert site.ready()["head"] == head
    check_plain(said["error"])
    return str(said["error"])


def there(hosts: Hosts, run: dict[str, Any], *what: str) -> dict[str, list[str]]:
    """Return the names of the job's containers and networks by host. what: additional labels."""
    marks = [
        w
        for label in (f"jobscribe.jid={jid_of(run)}", *what)
        for w in ("--filter", f"label={label}")
    ]
    out = {}
    for name, host in hosts.hosts.items():
        found = host.containers(f"jobscribe.jid={jid_of(run)}", *what)
        found += host.docker("network", "ls", "--format", "{{.Name}}", *marks).split()
        if found:
            out[name] = sorted(found)
    return out
