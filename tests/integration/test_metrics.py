"""Resource usage of a real job. Its owner, and only its owner, can read it during the run, after a
supervisor restart, and afterwards.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden_root import command
from supervisor_process import UID, SupervisorProcess, fresh_nap, jid_of, req_id, spec, until

from jobscribe.supervisor.usage.time_series import NAMES

#: Holds 64 MiB, uses half a second of CPU time in a child, then waits for a file.
PROGRAM = """
import os, subprocess, sys, time
kept = bytearray(b"x" * (64 << 20))
burn = "import time\\nwhile time.process_time() < 0.5: sum(range(10000))"
subprocess.run([sys.executable, "-c", burn], check=True)
open("burnt", "w").close()
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


def metrics(site: SupervisorProcess, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
    said: dict[str, Any] = site.post(
        "job-metrics", uid=run["uid"], computeJid=jid_of(run), **fields
    )
    return said


def test_what_a_job_takes_is_known_while_it_runs_and_when_it_is_over(
    site: SupervisorProcess,
) -> None:
    run = spec([sys.executable, "-c", PROGRAM])
    site.submit(run)
    ended = Path(site.running(run)["runDir"]) / "burnt"
    until(ended.exists, "its child has ended")

    def burnt() -> dict[str, Any] | None:
        (task,) = metrics(site, run)["tasks"]
        return task if (task["cpuSecs"] or 0) >= 0.5 and task["memoryBytes"] else None

    task = until(burnt, "what its child took is counted", 5 * 8.0)
    assert (
        task["running"] and 64 << 20 <= task["memoryBytes"] < 256 << 20 and task["processes"] >= 1
    )
    assert (task["gpuPercent"], task["gpuMemoryBytes"]) == (None, None)

    # usage is not stored as an event: the next supervisor gets it from the agent again
    site.kill(site.pid)
    assert site.process is not None and site.process.stdout is not None
    site.process.wait()
    site.process.stdout.close()
    site.process = None
    site.start()
    until(
        lambda: (metrics(site, run)["tasks"][0]["cpuSecs"] or 0) >= 0.5,
        "the next supervisor knows it, too",
        5 * 8.0,
    )
    with_series = metrics(site, run, series=True)
    assert (
        with_series["seriesFields"] == list(NAMES)
        and with_series["tasks"][0]["series"][-1][NAMES.index("memoryBytes")] >= 64 << 20
    )

    (Path(site.status(run)["runDir"]) / "enough").touch()
    assert site.wait(run)["state"] == "completed"
    answer = metrics(site, run)
    (task,) = answer["tasks"]
    assert (answer["job"]["running"], task["cpuPercent"], task["memoryBytes"]) == (0, None, None)
    assert (
        task["cpuSecs"] >= 0.5
        and task["peakMemoryBytes"] >= 64 << 20
        and answer["job"]["cpuSecs"]["known"] == 1
    )


def test_each_role_has_means_and_sums_over_its_tasks(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site("resources.local_cpu=8").start()

    def role(name: str, tasks: int, text: str) -> dict[str, Any]:
        return {"name": name, "tasks": tasks, "command": ["/bin/sh", "-c", text], "memoryMb": 1}

    nap = fresh_nap()
    run = {
        **spec(()),
        "roles": [role("worker", 2, "while :; do :; done"), role("ps", 1, f"sleep {nap}; :")],
    }
    site.submit(run)

    def all_known() -> dict[str, Any] | None:
        answer = metrics(site, run)
        known = answer["job"]["cpuPercent"]["known"] == 3
        return answer if known and answer["roles"][0]["cpuSecs"]["sum"] > 0.2 else None

    answer = until(all_known, "all three tasks are sampled, and two compute", 5 * 8.0)
    worker, ps = answer["roles"]
    assert [(r["role"], r["tasks"], r["running"]) for r in answer["roles"]] == [
        ("worker", 2, 2),
        ("ps", 1, 1),
    ]
    assert (
        worker["cpuPercent"]["sum"]
        == sum(t["cpuPercent"] for t in answer["tasks"] if t["role"] == "worker")
        == 2 * worker["cpuPercent"]["mean"]
    )
    # how much a busy loop gets depends on the machine
    assert 10 * ps["cpuPercent"]["sum"] < worker["cpuPercent"]["sum"]
    assert ps["processes"]["sum"] >= 2
    assert answer["job"]["memoryBytes"]["sum"] == sum(t["memoryBytes"] for t in answer["tasks"])
    site.cancel(run)
    site.wait(run)
    over = metrics(site, run)
    assert (
        over["job"]["running"] == 0
        and over["job"]["cpuSecs"]["known"] == 3
        and over["roles"][0]["cpuSecs"]["sum"] > 0.2
    )


def test_nobody_else_is_told(shared: SupervisorProcess) -> None:
    run = spec(["true"])
    shared.finished(run)
    for body, code, http_code in (
        ({"uid": "SystemU2", "computeJid": jid_of(run)}, "notFound", 404),
        ({"uid": UID, "computeJid": jid_of(run), "computeJobSerial": 7}, "staleSerial", 409),
        ({"uid": UID, "computeJid": jid_of(run), "reqId": req_id()}, "badRequest", 400),
    ):
        answer = shared.ask("POST", "/api/job-metrics", json.dumps(body).encode())
        assert (answer.code, answer.json()["code"]) == (http_code, code)


def test_the_usage_of_a_run_is_accounted_once_and_survives_restart_and_compaction(
    site: SupervisorProcess,
) -> None:
    run, failing = spec([sys.executable, "-c", BURN]), spec(["false"])
    for one in (run, failing):
        site.finished(one)
    answer = site.post("usage", uid=UID, by=["user", "app", "month"])
    (row,) = answer["rows"]
    assert (row["user"], row["app"]) == (UID, "command")
    assert (row["runs"], row["completed"], row["error"], row["executions"]) == (2, 1, 1, 2)
    assert 0.4 <= row["cpuSecs"] <= row["coreSecs"] + 0.5 and row["wallUnknown"] == 0
    # some kernels do not say how much memory a process used
    assert row["memoryUnknown"] or (row["peakMemoryBytes"] > 0 and row["memoryGibSecs"] > 0)
    assert answer["total"] == {k: v for k, v in row.items() if k in answer["total"]}
    assert site.post("usage", by=["user"])["rows"][0]["user"] == UID
    assert site.post("usage", uid="noB0dyAA")["rows"] == []
    assert site.post("usage", uid=UID, until="2001-01")["rows"] == []
    assert site.post("usage", uid=UID, since="2001-01-31")["total"] == answer["total"]

    site.stop()
    command(site.root, "db", "compact", "--older-than", "0")
    command(site.root, "db", "rebuild")
    command(site.root, "db", "check")
    site.start()
    assert site.post("usage", uid=UID, by=["user", "app", "month"]) == answer


def test_a_usage_request_that_does_not_fit_is_refused(shared: SupervisorProcess) -> None:
    for wrong in ({"by": ["nobody"]}, {"since": "january"}, {"since": "2023-02-30"}, {"until": 5}):
        body = json.dumps({"uid": UID, **wrong}).encode()
        answer = shared.ask("POST", "/api/usage", body)
        assert answer.code == 400, wrong


BURN = "import time\nwhile time.process_time() < 0.5: sum(range(10000))"
