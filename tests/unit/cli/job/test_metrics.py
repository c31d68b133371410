"""`job metrics`: a table that does not show unknown values as 0, means and sums by name, JSON, and
the end of a watch.
"""

import json
import signal
from typing import Any

import pytest

from jobscribe.db.records.resource_usage import total

Fake = Any
Run = Any

TASK = {
    "running": True,
    "at": 1.5,
    "cpuPercent": 150.04,
    "memoryBytes": 3 << 20,
    "readBytesPerSec": 0.0,
    "writtenBytesPerSec": 2048.0,
    "processes": 3,
    "gpuPercent": None,
    "gpuMemoryBytes": None,
    "cpuSecs": 200.0,
    "readBytes": 0,
    "writtenBytes": 5,
    "meanCpuPercent": 100.0,
    "peakCpuPercent": 180.0,
    "peakMemoryBytes": 5 << 30,
    "peakProcesses": 4,
    "peakGpuMemoryBytes": None,
}
NAMES = [n for n in TASK if n not in ("running", "at")]


def task(role: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"role": role, "index": index, **TASK, **fields}


def level(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tasks": len(tasks),
        "running": sum(t["running"] for t in tasks),
        **{n: total([t[n] for t in tasks]) for n in NAMES},
    }


def answer(jid: str, *tasks: dict[str, Any], state: str = "running") -> dict[str, Any]:
    roles = dict.fromkeys(t["role"] for t in tasks)
    return {
        "computeJid": jid,
        "computeJobSerial": 1,
        "state": state,
        "attempt": 1,
        "job": level(list(tasks)),
        "tasks": list(tasks),
        "roles": [{"role": r, **level([t for t in tasks if t["role"] == r])} for r in roles],
    }


@pytest.fixture
def jid(run: Run, fake: Fake) -> str:
    run("job", "submit", "-q", "--", "x")
    return next(iter(fake.jobs))


def say(fake: Fake, *answers: dict[str, Any]) -> None:
    left = list(answers)
    fake._job_metrics = lambda body: left.pop(0) if len(left) > 1 else left[0]


def test_one_task_is_one_row_and_unknown_is_not_0(run: Run, fake: Fake, jid: str) -> None:
    say(fake, answer(jid, task("main", 0)))
    ended = run("job", "metrics", jid)
    title, heads, row = ended.out.splitlines()
    assert title == f"{jid} running: 1 of 1 tasks running"
    assert heads.split("  ")[0] == "TASK"
    cells = [c.strip() for c in row.split("  ") if c.strip()]
    assert cells == [
        "main/0",
        "150.0 %",
        "3 m 20 s",
        "3.0 MiB",
        "5.0 GiB",
        "0 B/s",
        "2.0 KiB/s",
        "3",
        "n/a",
        "n/a",
        "n/a",
    ]
    assert (ended.code, ended.err) == (0, "")


def test_roles_and_job_have_means_and_sums_and_say_of_how_many(
    run: Run, fake: Fake, jid: str
) -> None:
    say(
        fake,
        answer(
            jid,
            task("worker", 0),
            task("worker", 1, cpuPercent=50.0),
            task("worker", 2, cpuPercent=None),
            task("ps", 0, processes=4),
        ),
    )
    lines = run("job", "metrics", jid).out.splitlines()
    rows = {line.split("  ")[0]: line for line in lines[2:]}
    assert list(rows) == [
        "worker/0",
        "worker/1",
        "worker/2",
        "ps/0",
        "worker (mean)",
        "worker (sum)",
        "job (mean)",
        "job (sum)",
    ]
    assert "100.0 % (2/3)" in rows["worker (mean)"] and "200.0 % (2/3)" in rows["worker (sum)"]
    assert "350.1 % (3/4)" in rows["job (sum)"] and " 3.2 " in rows["job (mean)"]
    assert rows["job (sum)"].count("n/a") == 3
    assert [
        line.split("  ")[0] for line in run("job", "metrics", "--sums", jid).out.splitlines()[2:]
    ] == list(rows)[4:]


def test_json_is_the_answer_as_it_is(run: Run, fake: Fake, jid: str) -> None:
    said = answer(jid, task("main", 0))
    say(fake, said)
    assert run("job", "metrics", "--json", jid).json() == {
        "schema": "jobscribe.job.metrics/1",
        **said,
    }
    assert fake.requests[-1] == (
        "job-metrics",
        {
            "uid": jid[:8],
            "computeJid": jid,
            "computeJobSerial": 0,
            "attempt": 0,
            "series": False,
            "role": None,
            "index": None,
        },
    )
    run("job", "metrics", "--json", "--series", jid)
    assert fake.requests[-1][1]["series"] is True
    assert run("job", "metrics", "--series", jid).code == 2


def test_a_run_without_tasks_has_no_table(run: Run, fake: Fake, jid: str) -> None:
    say(fake, answer(jid, state="pending"))
    assert run("job", "metrics", jid).out == f"{jid} pending: 0 of 0 tasks running\n"


def test_watching_ends_when_nothing_runs(
    run: Run, fake: Fake, jid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobscribe.cli.job import metrics

    monkeypatch.setattr(metrics, "INTERVAL_SECS", 0.01)
    over = answer(jid, task("main", 0, running=False, cpuPercent=None), state="completed")
    say(fake, answer(jid, state="pending"), answer(jid, task("main", 0)), over)
    ended = run("job", "metrics", "-w", "--json", jid)
    assert [line["state"] for line in ended.lines()] == ["pending", "running", "completed"]
    assert {line["schema"] for line in ended.lines()} == {"jobscribe.job.metrics/1"}


@pytest.mark.process
def test_ctrl_c_ends_a_watch_quietly(started: Any, fake: Fake, jid: str) -> None:
    say(fake, answer(jid, task("main", 0)))
    process = started("job", "metrics", "--watch", "--json", jid)
    assert json.loads(process.stdout.readline())["state"] == "running"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"", b"")
