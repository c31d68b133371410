"""Descriptors or space for small files run out while the supervisor runs: requests are refused with
a code, and the supervisor recovers without a restart.
"""

import contextlib
import http.client
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import strace_calls
from consistency_check import check_books
from failing_calls import Fault
from running_jobs import LongJob, ask, refused
from supervisor_process import UID, SupervisorProcess, jid_of, shell, until

Make = Callable[..., SupervisorProcess]


def cpu_secs(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_descriptors_it_neither_spins_nor_floods_its_log_and_serves_again_when_there_are_some(
    make_site: Make,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a supervisor hides from its own user; only root can count what it has open")
    site = make_site("slots.local_sequential=3").start()
    long, run = LongJob(site), shell("exit 0")
    limits = resource.prlimit(site.pid, resource.RLIMIT_NOFILE)
    in_use = len(os.listdir(f"/proc/{site.pid}/fd"))
    resource.prlimit(site.pid, resource.RLIMIT_NOFILE, (in_use, limits[1]))
    waiting = [site.connection(timeout=2.0) for _ in range(4)]
    try:
        for connection in waiting:
            connection.connect()  # the kernel connects; the supervisor does not accept
        began, spent, said = time.monotonic(), cpu_secs(site.pid), len(site.log())
        until(lambda: time.monotonic() - began > 2.0, "two seconds are over", pause=0.1)
        assert cpu_secs(site.pid) - spent < 1.0, "it spins"
        assert len(site.log()) - said < 100_000, site.log()[-2000:]
        answer = ask(site, run, "request-in-need")  # on an existing connection
        if answer.code != 200:
            refused(answer, "storageUnavailable")
        long.check()
    finally:
        resource.prlimit(site.pid, resource.RLIMIT_NOFILE, limits)
        for connection in waiting:
            connection.close()
    until(lambda: _served(site, run), "it serves again", 5 * 2.0)
    assert site.wait(run)["state"] == "completed"
    long.check()
    long.let_go()
    check_books(site)


def _served(site: SupervisorProcess, run: dict[str, Any]) -> bool:
    """Return whether the same request succeeds on a new connection."""
    with contextlib.closing(site.connection(timeout=2.0)) as connection:
        try:
            connection.request("GET", "/livez")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
    return ask(site, run, "request-in-need").code == 200


def test_a_lease_of_ports_that_cannot_be_put_on_record_is_refused_and_not_lost(
    make_site: Make,
) -> None:
    """The n-th call on the file of port leases fails, for every n."""
    strace_calls.required()
    site = make_site().start()
    files = [site.root / "leases.json", site.root / f"leases.json.{site.pid}.new"]
    body = {"uid": UID, "simulationType": "command", "simulationId": "leaseAAA", "ports": 2}
    first = site.post("global-resources", **body)["ports"]
    refusals = 0
    for calls, error in (
        ("openat", "EMFILE"),
        ("write", "ENOSPC"),
        ("fsync", "EIO"),
        ("rename", "ENOSPC"),
    ):
        fault = Fault(site.pid, calls, f"error={error}", "1", files, site.place / "struck")
        other = {**body, "simulationId": f"lease{calls[:3]}"}
        answer = site.ask("POST", "/api/global-resources", json.dumps(other).encode())
        assert len(fault.end()) == 1, calls
        refused(answer, "storageUnavailable")
        refusals += 1
        ports = site.post("global-resources", **other)["ports"]
        assert not set(ports) & set(first)
        assert not [p.name for p in site.root.iterdir() if p.name.endswith(".new")]
    assert refusals == 4
    assert site.stop() == 0
    site.start()
    assert site.post("global-resources", **body)["ports"] == first


def test_a_file_of_a_library_that_cannot_be_kept_is_refused_and_leaves_nothing(
    make_site: Make,
) -> None:
    strace_calls.required()
    site = make_site().start()
    place = f"/api/lib-file?uid={UID}&simulationType=command&name="
    assert site.ask("PUT", place + "old.dat", b"old").code == 200
    library = site.root / "user" / UID / "command" / "lib"
    for n, (calls, error) in enumerate(
        (("fsync", "EIO"), ("renameat", "ENOSPC"), ("openat", "EMFILE"))
    ):
        fault = Fault(
            site.pid,
            calls,
            f"error={error}",
            "1+",
            [library] if calls != "fsync" else [],
            site.place / "struck",
        )
        answer = site.ask("PUT", f"{place}new{n}.dat", b"new")
        assert fault.end(), calls
        refused(answer, "storageUnavailable")
        until(lambda: [p.name for p in library.iterdir()] == ["old.dat"], "what was begun is gone")
    assert site.ask("PUT", place + "old.dat", b"newer").code == 200
    assert (library / "old.dat").read_bytes() == b"newer"


def test_records_that_cannot_be_written_are_written_later(make_site: Make) -> None:
    strace_calls.required()
    site = make_site().start()
    for calls, error in (("openat", "EMFILE"), ("write", "ENOSPC")):
        run = shell("exit 0")
        path = site.root / "supervisor-job" / f"{jid_of(run)}.json"
        fault = Fault(
            site.pid,
            calls,
            f"error={error}",
            "1",
            [path, path.with_name(f"{path.name}.{site.pid}.new")],
            site.place / "struck",
        )
        assert site.finished(run)["state"] == "completed"
        until(fault.struck, "a record could not be written")
        fault.end()
        # the message comes a moment after the failed call
        until(lambda: "a record could not be written" in site.log(), "it is said")
    check_books(site)
