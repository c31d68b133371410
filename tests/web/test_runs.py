"""Start, status and cancel: the requests to the supervisor, and the page's view of its answers."""

from typing import Any

import pytest
from front_end_fixture import ANN, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal

SERIAL = 1_700_000_000
JID = f"{ANN}-abcdefgh-oddReport"
RUN = {
    "simulationType": "odd",
    "simulationId": "abcdefgh",
    "report": "oddReport",
    "models": {"oddReport": {"number": 1}},
}
NAMED = {k: RUN[k] for k in ("simulationType", "simulationId", "report")}


def status(state: str, **fields: Any) -> dict[str, Any]:
    """Return a status as the supervisor sends it."""
    return {
        "state": state,
        "computeJid": JID,
        "computeJobHash": "ab12",
        "computeJobSerial": SERIAL,
        "simulationType": "odd",
        "computeJobQueued": 1.5,
        "computeJobStart": 2.5 if state != "pending" else None,
        "computeJobEnd": None,
        "elapsedTime": None,
        "reason": None,
        "error": None,
        "queueState": None,
        "jobStatusMessage": None,
        "known": True,
        "since": None,
        "over": state not in ("pending", "running"),
        "exit": None,
        "attempt": 1,
        "runDir": "/a/secret/place",
        "position": 7,
        "canceledAfterSecs": None,
        "nextRequestSeconds": 2,
        "parallelStatus": None,
        **fields,
    }


def missing(reason: str) -> dict[str, Any]:
    return {"state": "missing", "computeJid": JID, "reason": reason, "known": True, "over": True}


def test_a_run_is_asked_for_with_its_hash_and_the_data_of_its_app(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/run-simulation"] = status(
        "pending", queueState="agent", jobStatusMessage="its agent is being started"
    )
    said = web.as_(ANN).said(
        "/run-simulation", {**RUN, "reqId": "request-1", "computeJobSerial": 5, "uid": "BobBob02"}
    )
    sent = stub.sent("/api/run-simulation")[0]
    run = sent["run"]
    assert (sent["reqId"], sent["forceRun"], sent["computeJobSerial"]) == ("request-1", False, 5)
    assert (run["uid"], run["simulationType"], run["simulationId"], run["computeModel"]) == (
        ANN,
        "odd",
        "abcdefgh",
        "oddReport",
    )
    assert (run["jobRunMode"], run["command"], len(run["computeJobHash"])) == ("sequential", [], 32)
    assert run["data"] == {
        "simulationType": "odd",
        "simulationId": "abcdefgh",
        "report": "oddReport",
        "models": RUN["models"],
    }
    assert said["nextRequest"] == {
        **NAMED,
        "computeJobHash": "ab12",
        "computeJobSerial": SERIAL,
        "computeJobStart": None,
    }
    assert (said["state"], said["nextRequestSeconds"], said["queueState"]) == (
        "pending",
        2,
        "agent",
    )
    assert "runDir" not in said and "exit" not in said


def test_each_request_has_its_own_id_unless_it_brings_one(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/run-simulation"] = status("pending")
    for _ in range(2):
        web.as_(ANN).said("/run-simulation", RUN)
    first, second = (r["reqId"] for r in stub.sent("/api/run-simulation"))
    assert first != second


def test_the_hash_is_of_what_decides_the_result_and_of_nothing_else(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/run-simulation"] = status("pending")
    stub.answers["/api/lib-files"] = {
        "files": [{"name": "in.txt", "size": 1, "sha256": "5a", "mtime": 1.0}]
    }

    def hash_of(models: Any, sid: str = "abcdefgh") -> str:
        web.as_(ANN).said("/run-simulation", {**RUN, "models": models, "simulationId": sid})
        return str(stub.sent("/api/run-simulation")[-1]["run"]["computeJobHash"])

    plain = hash_of({})
    assert (
        hash_of(
            {"oddReport": {"number": 1, "answer": "fine", "secs": 0}, "other": {"x": 1}}, "zyxwvuts"
        )
        == plain
    )
    assert hash_of({"oddReport": {"number": 2}}) != plain
    assert stub.sent("/api/lib-files") == []
    with_file = hash_of({"file": "in.txt"})
    assert with_file != plain
    stub.answers["/api/lib-files"] = {
        "files": [{"name": "in.txt", "size": 1, "sha256": "5b", "mtime": 1.0}]
    }
    assert hash_of({"file": "in.txt"}) not in (plain, with_file)
    refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "models": {"file": "gone.txt"}}),
        422,
        "appRefused",
    )


def test_an_app_says_no_in_its_own_words_and_fails_without_its_trace(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    no = refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "models": {"oddReport": {"number": 13}}}),
        422,
        "appRefused",
    )
    assert no["error"] == "13 is no number for us"
    kind = refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "models": {"oddReport": {"number": "x"}}}),
        422,
        "appRefused",
    )
    assert "models.oddReport.number" in kind["error"]
    broken = refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "models": {"oddReport": {"number": 14}}}),
        422,
        "appFailed",
    )
    assert broken["error"] == "odd failed in parameters: KeyError: 'fourteen'"
    assert "Traceback" in web.lines.text()
    assert stub.requests == []


def test_unknown_apps_and_reports_are_named_with_those_there_are(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    app = refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "simulationType": "nosuch"}), 404, "unknownApp"
    )
    assert "heat" in app["error"] and "odd" in app["error"]
    report = refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "report": "nosuch"}), 404, "notFound"
    )
    assert "oddAnimation" in report["error"] and "otherAnimation" in report["error"]
    refused(
        web.as_(ANN).post("/run-simulation", {**RUN, "simulationType": "command"}),
        404,
        "unknownApp",
    )
    assert stub.requests == []


def test_several_reports_share_one_run(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-simulation"] = status("running")
    for report in ("oddAnimation", "otherAnimation"):
        said = web.as_(ANN).said("/run-simulation", {**RUN, "report": report, "models": {}})
        assert said["nextRequest"]["report"] == report
    first, second = (r["run"] for r in stub.sent("/api/run-simulation"))
    assert first["computeModel"] == second["computeModel"] == "oddAnimation"
    assert first["computeJobHash"] == second["computeJobHash"]


def test_a_finished_result_comes_with_the_status(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-simulation"] = stub.answers["/api/run-status"] = status("completed")
    stub.answers["/api/call"] = {"title": "a", "plots": [{"points": [1, 2.5]}]}
    for path in ("/run-simulation", "/run-status"):
        said = web.as_(ANN).said(path, RUN)
        assert (said["state"], said["title"], said["plots"][0]["points"]) == (
            "completed",
            "a",
            [1, 2.5],
        )
        assert "nextRequest" not in said
    call = stub.sent("/api/call")[0]
    assert (call["jobCmd"], call["computeJid"], call["computeJobSerial"], call["uid"]) == (
        "sequential_result",
        JID,
        SERIAL,
        ANN,
    )


def test_a_result_that_is_no_object_stands_in_a_field(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-status"] = status("completed")
    stub.answers["/api/call"] = b"[1,2]"
    assert web.as_(ANN).said("/run-status", NAMED)["result"] == [1, 2]


@pytest.mark.parametrize("where", ["result", "progress"])
def test_what_an_app_says_never_wins_over_what_is_known_of_the_run(
    web: FrontEnd, stub: StubSupervisor, where: str
) -> None:
    lies = {
        "state": "error",
        "computeJobStart": 0,
        "computeJobSerial": 1,
        "error": "x",
        "reason": "x",
        "over": False,
        "known": False,
        "computeJid": "x",
        "computeJobHash": "x",
        "nextRequest": "x",
        "nextRequestSeconds": 0,
        "elapsedTime": -1,
        "resultError": "x",
        "mine": 5,
    }
    if where == "result":
        stub.answers["/api/run-status"], stub.answers["/api/call"] = status("completed"), lies
    else:
        stub.answers["/api/run-status"] = status("running", parallelStatus=lies)
    said = web.as_(ANN).said("/run-status", NAMED)
    assert said["mine"] == 5
    assert (
        said["computeJobStart"],
        said["computeJobSerial"],
        said["computeJid"],
        said["computeJobHash"],
    ) == (2.5, SERIAL, JID, "ab12")
    assert (
        "error" not in said
        and "reason" not in said
        and "resultError" not in said
        and "elapsedTime" not in said
    )
    assert (said["state"], said["known"]) == ("completed" if where == "result" else "running", True)
    assert said.get("nextRequest") != "x"


def test_why_a_run_failed_is_told_and_an_app_cannot_say_it(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    why = {
        "cause": "outOfMemory",
        "confidence": "likely",
        "sentence": "memory ran out",
        "try": ["give it more memory"],
    }
    stub.answers["/api/run-status"] = status(
        "error", reason="signal", error="ended by signal 9 (SIGKILL)", why=why
    )
    assert web.as_(ANN).said("/run-status", NAMED)["why"] == why
    stub.answers["/api/run-status"] = status(
        "running", why=None, parallelStatus={"why": "x", "frameCount": 1}
    )
    assert "why" not in web.as_(ANN).said("/run-status", NAMED)


def test_a_parallel_run_says_how_far_it_is(web: FrontEnd, stub: StubSupervisor) -> None:
    asked = {**NAMED, "report": "oddAnimation"}
    stub.answers["/api/run-status"] = status("running")
    assert (lambda s: (s["frameCount"], s["percentComplete"]))(
        web.as_(ANN).said("/run-status", asked)
    ) == (0, 0.0)
    stub.answers["/api/run-status"] = status(
        "running", parallelStatus={"frameCount": 5, "percentComplete": 50.0, "words": "half"}
    )
    said = web.as_(ANN).said("/run-status", asked)
    assert (said["frameCount"], said["percentComplete"], said["words"]) == (5, 50.0, "half")
    assert "parallelStatus" not in said


@pytest.mark.parametrize(
    "code", ["appFailed", "replyTooLarge", "agentUnavailable", "deadline", "tooManyRequests"]
)
def test_a_result_that_cannot_be_had_changes_nothing_about_the_run(
    web: FrontEnd, stub: StubSupervisor, code: str
) -> None:
    stub.answers["/api/run-status"] = status("completed")
    stub.answers["/api/call"] = Refusal(code, "plots[0].points[3] is NaN")
    said = web.as_(ANN).said("/run-status", NAMED)
    assert (said["state"], said["resultError"]["code"], said["resultError"]["error"]) == (
        "completed",
        code,
        "plots[0].points[3] is NaN",
    )


def test_a_status_without_its_run_directory_is_missing(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-status"] = status("completed")
    stub.answers["/api/call"] = Refusal("notFound", "the run directory is gone")
    said = web.as_(ANN).said("/run-status", NAMED)
    assert (said["state"], said["reason"]) == ("missing", "runDirNotFound")
    assert "nextRequest" not in said


@pytest.mark.parametrize(
    ("report", "path"), [("oddReport", "/api/call"), ("oddAnimation", "/api/run-file")]
)
def test_a_run_whose_directory_is_gone_is_run_once_more(
    web: FrontEnd, stub: StubSupervisor, report: str, path: str
) -> None:
    stub.answers["/api/run-simulation"] = lambda body: status(
        "pending" if body["forceRun"] else "completed"
    )
    stub.answers[path] = Refusal("notFound", "the run directory is gone")
    for _ in range(2):
        said = web.as_(ANN).said(
            "/run-simulation", {**RUN, "report": report, "models": {}, "reqId": "request-1"}
        )
        assert said["state"] == "pending" and said["nextRequest"]
    first, again, same_first, same_again = stub.sent("/api/run-simulation")
    assert (first["forceRun"], again["forceRun"]) == (False, True)
    assert first["reqId"] == same_first["reqId"] != again["reqId"] == same_again["reqId"]
    assert first["run"] == again["run"]


def test_what_is_gone_again_is_said_and_not_run_for_ever(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/run-simulation"] = status("completed")
    stub.answers["/api/call"] = Refusal("notFound", "the run directory is gone")
    assert web.as_(ANN).said("/run-simulation", RUN)["state"] == "missing"
    assert len(stub.sent("/api/run-simulation")) == 2


def test_a_request_repeated_after_its_run_was_repeated_gets_the_newer_run(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/run-simulation"] = status(
        "completed", superseded=True, computeJobSerial=SERIAL - 9
    )
    stub.answers["/api/run-status"] = status("running")
    assert web.as_(ANN).said("/run-simulation", RUN)["computeJobSerial"] == SERIAL
    hash_ = stub.sent("/api/run-simulation")[0]["run"]["computeJobHash"]
    assert stub.sent("/api/run-status")[0]["computeJobHash"] == hash_
    assert len(stub.sent("/api/run-simulation")) == 1


def test_another_browser_is_running_the_simulation(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-simulation"] = Refusal(
        "anotherRun", "another browser is running the simulation"
    )
    assert (
        refused(web.as_(ANN).post("/run-simulation", RUN), 409, "anotherRun")["error"]
        == "another browser is running the simulation"
    )


@pytest.mark.parametrize("reason", ["computeJobHash-mismatch", "computeJobSerial-mismatch"])
def test_the_status_of_another_run_is_missing_with_the_reason(
    web: FrontEnd, stub: StubSupervisor, reason: str
) -> None:
    stub.answers["/api/run-status"] = missing(reason)
    said = web.as_(ANN).said(
        "/run-status", {**NAMED, "computeJobHash": "f00", "computeJobSerial": 3}
    )
    assert (said["state"], said["reason"]) == ("missing", reason)
    asked = stub.sent("/api/run-status")[0]
    assert (asked["computeJobHash"], asked["computeJobSerial"]) == ("f00", 3)


def test_a_page_may_ask_by_its_inputs(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-simulation"] = status("pending")
    stub.answers["/api/run-status"] = status("pending")
    web.as_(ANN).said("/run-simulation", RUN)
    web.as_(ANN).said("/run-status", RUN)
    web.as_(ANN).said("/run-status", NAMED)
    by_inputs, any_run = stub.sent("/api/run-status")
    assert (
        by_inputs["computeJobHash"] == stub.sent("/api/run-simulation")[0]["run"]["computeJobHash"]
    )
    assert any_run["computeJobHash"] is None


@pytest.mark.parametrize("path", ["/run-status", "/run-cancel"])
def test_no_job_and_a_job_of_another_app_are_answered_alike(
    web: FrontEnd, stub: StubSupervisor, path: str
) -> None:
    stub.answers["/api/run-status"] = Refusal("notFound", f"there is no job {JID}")
    nothing = web.as_(ANN).said(path, NAMED)
    assert (nothing["state"], nothing["reason"]) == ("missing", "noRun")
    stub.answers["/api/run-status"] = status("running", simulationType="myapp")
    assert web.as_(ANN).said(path, NAMED) == nothing
    assert stub.sent("/api/run-cancel") == []


@pytest.mark.parametrize(("type_", "model"), [("command", "command"), ("removed", "oldReport")])
def test_jobs_that_no_app_describes_have_status_and_cancel(
    web: FrontEnd, stub: StubSupervisor, type_: str, model: str
) -> None:
    jid = f"{ANN}-abcdefgh-{model}"
    stub.answers["/api/run-status"] = {
        **status("running"),
        "simulationType": type_,
        "computeJid": jid,
    }
    stub.answers["/api/run-cancel"] = {
        **status("canceled"),
        "simulationType": type_,
        "computeJid": jid,
    }
    named = {"simulationType": type_, "simulationId": "abcdefgh", "report": model}
    said = web.as_(ANN).said("/run-status", named)
    assert (
        (said["state"], said["computeJid"]) == ("running", jid)
        and "percentComplete" not in said
        and "frameCount" not in said
    )
    assert web.as_(ANN).said("/run-cancel", named)["state"] == "canceled"
    assert stub.sent("/api/run-cancel")[0]["computeJid"] == jid


def test_exactly_the_run_that_is_meant_is_canceled(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-status"] = status("running")
    stub.answers["/api/run-cancel"] = status("canceled", reason="cancel")
    said = web.as_(ANN).said(
        "/run-cancel",
        {**NAMED, "computeJobHash": "ab12", "computeJobSerial": SERIAL, "reqId": "request-9"},
    )
    assert said["state"] == "canceled"
    sent = stub.sent("/api/run-cancel")[0]
    assert (sent["computeJobSerial"], sent["reqId"], sent["uid"], sent["computeJid"]) == (
        SERIAL,
        "request-9",
        ANN,
        JID,
    )
    asked = stub.sent("/api/run-status")[0]
    assert (asked["computeJobHash"], asked["computeJobSerial"]) == ("ab12", SERIAL)


@pytest.mark.parametrize(
    "said",
    [
        missing("computeJobSerial-mismatch"),
        missing("computeJobHash-mismatch"),
        status("completed"),
        status("error", error="it broke"),
        status("canceled", superseded=True, computeJobSerial=3),
        status("running", superseded=True, computeJobSerial=3),
    ],
    ids=lambda s: f"{s['state']}-{s['reason']}",
)
def test_nothing_else_is_canceled_and_the_page_is_told_the_truth(
    web: FrontEnd, stub: StubSupervisor, said: dict[str, Any]
) -> None:
    stub.answers["/api/run-status"] = said
    answer = web.as_(ANN).said("/run-cancel", {**NAMED, "computeJobSerial": 3})
    assert (answer["state"], answer.get("error")) == (said["state"], said.get("error"))
    assert stub.sent("/api/run-cancel") == []


def test_a_list_shows_jobs_by_their_parts(web: FrontEnd, stub: StubSupervisor) -> None:
    row = {
        "jid": JID,
        "uid": ANN,
        "status": "running",
        "serial": SERIAL,
        "simulationType": "odd",
        "kind": "sequential",
        "driver": "local",
        "busy": True,
        "queuedAt": 1.5,
        "startedAt": 2.5,
        "endedAt": None,
        "reason": None,
        "position": 9,
    }
    stub.answers["/api/job-list"] = {"jobs": [row], "next": 9}
    said = web.as_(ANN).said("/own-jobs")
    assert said["next"] == 9
    assert said["jobs"] == [
        {
            "computeJid": JID,
            "uid": ANN,
            "simulationId": "abcdefgh",
            "simulationType": "odd",
            "computeModel": "oddReport",
            "state": "running",
            "computeJobSerial": SERIAL,
            "computeJobQueued": 1.5,
            "computeJobStart": 2.5,
            "computeJobEnd": None,
            "reason": None,
            "computeJobPosition": 9,
        }
    ]
    web.as_(ANN).said("/own-jobs", {"active": None, "before": 9, "limit": 7})
    assert stub.sent("/api/job-list") == [
        {"uid": ANN, "status": None, "active": True, "before": None, "limit": 100},
        {"uid": ANN, "status": None, "active": None, "before": 9, "limit": 7},
    ]


def test_administrators_see_everybodys_jobs_and_nobody_else_does(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    from front_end_fixture import ADM

    stub.answers["/api/job-list"] = {"jobs": [], "next": None}
    refused(web.as_(ANN).post("/adm-jobs"), 403, "forbidden")
    assert stub.requests == []
    assert web.as_(ADM).said("/adm-jobs") == {"jobs": [], "next": None, "cursor": None}
    assert stub.sent("/api/job-list")[0]["uid"] is None


def test_a_ticket_is_signed_with_the_secret_that_is_valid_now(
    stub: StubSupervisor, make_web: Any
) -> None:
    import time

    import msgspec

    from jobscribe.service import tickets

    where = [stub.address]
    web = make_web(lambda: where[0])
    for secret in (stub.address.token, "another secret, as long as that one"):
        where[0] = msgspec.structs.replace(stub.address, token=secret)
        said = web.as_(ANN).said("/live-ticket")
        assert tickets.verify((secret,), said["ticket"], time.time()) == (ANN, False)
        assert said["header"] == tickets.HEADER and time.time() < said["until"] < time.time() + 60
        assert secret not in web.lines.text()
