"""Arrays on a real supervisor: one request creates two hundred runs, some are canceled, and all
records are correct.
"""

import json
import os
import time
from typing import Any

import pytest
from consistency_check import check_books
from loop_lag import loop
from supervisor_process import UID, SupervisorProcess, req_id, until

SID, RUNS = "sysarr01", 200
#: Limit of concurrent runs of the array. The site has eight slots.
AT_ONCE = 6
#: Number of waiting runs. The SOAK value is the maximum of one request.
WAITING = 10_000 if os.environ.get("SOAK") == "1" else 400
#: Every tenth run fails with a code that depends on its index. Runs from index 150 on sleep until
#: they are ended.
WORK = '[ "$ARRAY_INDEX" -ge 150 ] && exec sleep 1000; [ $((ARRAY_INDEX % 10)) -ne 3 ] || exit $((ARRAY_INDEX / 10 + 1)); echo "$ARRAY_INDEX"'
#: Indices that fail, with their exit codes.
CODES = {n: n // 10 + 1 for n in range(3, 150, 10)}


def group(site: SupervisorProcess, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = site.post("job-group", uid=UID, simulationId=SID, **fields)
    return answer


def cancel(site: SupervisorProcess, id_: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = site.post(
        "group-cancel", reqId=id_, uid=UID, simulationId=SID, **fields
    )
    return answer


def test_two_hundred_runs_are_submitted_counted_and_canceled_by_one_request_each(
    make_site: Any,
) -> None:
    site = make_site("slots.local_sequential=8", "slots.op_run=8")
    site.start()
    run = {"uid": UID, "simulationId": SID, "command": ["/bin/sh", "-c", WORK]}
    first = req_id()
    answer = site.post("run-array", reqId=first, run=run, indices=f"0-199%{AT_ONCE}")
    assert (answer["accepted"], answer["refusedCount"]) == (RUNS, 0)

    # cancel the sleeping runs while some of them wait and at least one runs
    until(lambda: group(site, limit=0)["counts"]["pending"] < 50, "those that end have ended")
    second = req_id()
    canceled = cancel(site, second, indices="150-199", reason="enough")
    assert (canceled["asked"], canceled["canceled"], canceled["missing"]) == (50, 50, 0)

    until(lambda: group(site, limit=0, waitSecs=20)["over"], "nothing is left")
    told = group(site, limit=1000)
    assert {s: n for s, n in told["counts"].items() if n} == {
        "completed": 135,
        "error": 15,
        "canceled": 50,
    }
    assert {e["code"]: e["count"] for e in told["exits"] if e["state"] == "error"} == dict.fromkeys(
        CODES.values(), 1
    )
    assert [r["index"] for r in told["runs"]] == list(range(RUNS)) and told["next"] is None
    assert {r["index"]: r["exit"]["code"] for r in told["runs"] if r["state"] == "error"} == CODES
    failed = group(site, status="failed", limit=1000)["runs"]
    assert [r["index"] for r in failed] == sorted([*CODES, *range(150, RUNS)])

    # repeating the requests changes nothing
    head = site.ask("GET", "/readyz").json()["head"]
    assert site.post("run-array", reqId=first, run=run, indices=f"0-199%{AT_ONCE}")["states"] == {
        "completed": 135,
        "error": 15,
        "canceled": 50,
    }
    assert cancel(site, second, indices="150-199")["repeated"]
    assert site.ask("GET", "/readyz").json()["head"] == head

    jobs = check_books(site)
    assert len(jobs) == RUNS
    assert {n: jobs[f"{UID}-{SID}-command_{n}"].run.exit.code for n in CODES} == CODES
    assert all(len(job.run.attempts) <= 1 for job in jobs.values())
    assert most_at_once(jobs.values()) == AT_ONCE
    (output,) = site.root.glob(f"agent/*/run/{UID}-{SID}-command_42-*/stdout.log")
    assert output.read_text() == "42\n"


def test_what_cannot_be_is_refused_by_name_and_nothing_is_stored(site: SupervisorProcess) -> None:
    run = {"uid": UID, "simulationId": SID, "command": ["true"]}
    head = site.ask("GET", "/readyz").json()["head"]
    asked: list[tuple[str, dict[str, Any], int, str]] = [
        (
            "run-array",
            {"reqId": req_id(), "run": run, "indices": "9-3"},
            400,
            "is reversed",
        ),
        ("run-array", {"reqId": req_id(), "run": run, "indices": "0-20000"}, 400, "at most 10000"),
        (
            "run-array",
            {"reqId": req_id(), "run": {**run, "env": {"ARRAY_INDEX": "1"}}, "indices": "0-3"},
            400,
            "ARRAY_INDEX",
        ),
        (
            "run-array",
            {"reqId": req_id(), "run": {**run, "command": ["x" * 9000]}, "indices": "0-9999"},
            413,
            "limit of an array",
        ),
        (
            "run-array",
            {"reqId": req_id(), "run": run, "indices": "0-3", "index": 1},
            400,
            "unknown field",
        ),
        ("job-group", {"uid": UID, "simulationId": SID}, 404, "no runs of simulation"),
        ("job-group", {"uid": UID, "simulationId": SID, "status": "odd"}, 400, "odd"),
        (
            "group-cancel",
            {"reqId": req_id(), "uid": UID, "simulationId": SID},
            404,
            "no runs of simulation",
        ),
    ]
    for path, body, code, said in asked:
        answer = site.ask("POST", "/api/" + path, json.dumps(body).encode())
        assert (answer.code, said in answer.json()["error"]) == (code, True), answer
    assert site.ask("POST", "/api/job-group", b"{}", {}).code == 401
    assert site.ask("GET", "/readyz").json()["head"] == head


def most_at_once(jobs: Any) -> int:
    """Return the largest number of runs that were active at the same time."""
    tasks = [t for job in jobs for a in job.run.attempts for t in a.tasks]
    changes = sorted([(t.placed_at, 1) for t in tasks] + [(t.ended_at, -1) for t in tasks])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.timeout(300)
def test_as_many_as_one_request_takes_wait_are_counted_and_canceled_and_the_loop_is_held_by_none_of_it(
    make_site: Any,
) -> None:
    site = make_site("slots.local_sequential=4", "slots.op_run=4")
    site.start()
    spent = {}

    def timed(what: str, path: str, **body: Any) -> dict[str, Any]:
        begun = time.monotonic()
        answer: dict[str, Any] = site.post(path, **body)
        spent[what] = round(time.monotonic() - begun, 2)
        return answer

    run = {"uid": UID, "simulationId": SID, "command": ["sleep", "1000"]}
    assert (
        timed("submit", "run-array", reqId=req_id(), run=run, indices=f"0-{WAITING - 1}")[
            "accepted"
        ]
        == WAITING
    )
    until(lambda: group(site, limit=0)["counts"]["running"] == 4, "four run")
    assert (
        timed("count", "job-group", uid=UID, simulationId=SID, limit=0)["counts"]["pending"]
        == WAITING - 4
    )
    assert (
        timed(
            "cancel those that wait",
            "group-cancel",
            reqId=req_id(),
            uid=UID,
            simulationId=SID,
            status="pending",
        )["canceled"]
        == WAITING - 4
    )
    assert group(site, limit=0)["counts"]["running"] == 4
    assert (
        timed("cancel the rest", "group-cancel", reqId=req_id(), uid=UID, simulationId=SID)[
            "canceled"
        ]
        == 4
    )
    assert group(site, limit=0, waitSecs=20)["over"]
    lag = loop(site)
    print(
        f"{WAITING} runs, seconds: {spent}; lag p99.9 {lag['p999'] * 1000:.0f} ms, worst {lag['worst']}"
    )
    stories = [len(job.run.attempts) for job in check_books(site).values()]
    assert (len(stories), sum(stories)) == (WAITING, 4)
