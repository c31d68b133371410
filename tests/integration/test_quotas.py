"""A real supervisor with limits over all runs of a user and a disk quota, over a restart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor_process import UID, SupervisorProcess, jid_of, req_id, shell, until

Make = Callable[..., SupervisorProcess]
FILE = "limits: {totalCores: 1, coreHours: 1000, diskSoft: 1, diskHard: 3}\n"


def disk(site: SupervisorProcess) -> dict[str, Any]:
    (user,) = site.post("disk-usage", uid=UID)["users"]
    return dict(user)


def refused(site: SupervisorProcess, method: str, path: str, body: bytes) -> dict[str, Any]:
    answer = site.ask(method, f"/api/{path}", body)
    said: dict[str, Any] = answer.json()
    assert (answer.code, said["code"]) == (403, "quotaExceeded"), said
    return said


def new_run() -> bytes:
    return json.dumps({"reqId": req_id(), "run": shell("true")}).encode()


def test_cores_wait_and_a_full_quota_refuses_runs_and_uploads(
    make_site: Make, tmp_path: Path
) -> None:
    file, gate = tmp_path / "queues.yml", tmp_path / "gate"
    file.write_text(FILE)
    site = make_site("slots.local_sequential=4", "slots.op_run=4", f"queues.file={file}").start()
    writes = "head -c 2000000 /dev/zero > out"
    first, second = shell(f"{writes}; until test -e {gate}; do sleep 0.05; done"), shell(writes)
    assert "quotaWarning" not in site.submit(first), "nothing is written yet"
    site.running(first)
    site.submit(second)
    said = until(
        lambda: (reply := site.status(second))["queueState"] == "user_limit" and reply, "it waits"
    )
    assert "may have 1 at a time, 1 runs hold 1, and it needs 1" in said["jobStatusMessage"]
    active = json.dumps({"uid": UID, "computeJid": jid_of(first)}).encode()
    busy = site.ask("POST", "/api/run-purge", active)
    assert (busy.code, busy.json()["code"]) == (409, "conflict")
    gate.touch()
    site.finished(first)
    site.finished(second)
    until(lambda: disk(site)["state"] == "hard", "both run directories are measured")
    said = refused(site, "POST", "run-simulation", new_run())
    assert "rm -r" in said["error"] and said["usedBytes"] > 3 * 2**20
    upload = f"lib-file?uid={UID}&simulationType=myapp&name=a"
    assert "the upload needs 3 B more" in refused(site, "PUT", upload, b"abc")["error"]
    known = site.submit(second)
    assert known["state"] == "completed", "a run that exists is no new one"
    site.stop()
    site.start()
    assert disk(site)["state"] == "hard", "known right after the start"
    refused(site, "POST", "run-simulation", new_run())
    # its user needs no access to the machine
    before = site.status(first)
    for run in (first, second, first):
        purged = site.post("run-purge", uid=UID, computeJid=jid_of(run))
        assert purged["state"] == "job_run_purged" and purged["runDir"] is None
    assert purged["exit"] == before["exit"] and purged["over"]
    until(lambda: disk(site)["state"] == "ok", "the files are gone")
    assert not list(site.root.glob(f"agent/*{UID}*/run/*{jid_of(first)}*/*"))
    assert site.post("run-simulation", **json.loads(new_run()))["computeJid"]
