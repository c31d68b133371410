"""Regression tests with a real supervisor for known defects of the reference (RUN-7 to RUN-10) and
related races.
"""

import hashlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from front_end_fixture import ANN, BOB, Browser, FrontEnd, followed, refused
from supervisor_process import SupervisorProcess, until

REPORT = {"simulationType": "odd", "report": "oddReport"}
MOVIE = {"simulationType": "odd", "report": "oddAnimation"}


def running(browser: Browser, request: dict[str, Any]) -> dict[str, Any]:
    said = browser.said("/run-simulation", request)
    while said["state"] == "pending":
        time.sleep(0.02)
        said = browser.said("/run-status", said["nextRequest"])
    assert said["state"] == "running", said
    return said


def movie(sid: str, secs: float = 60.0) -> dict[str, Any]:
    return {**MOVIE, "simulationId": sid, "models": {"oddAnimation": {"secs": secs}}}


def frame(index: int, sid: str, hash_: str, serial: int) -> str:
    return f"/simulation-frame/{index}*oddAnimation*{sid}*odd*{hash_}*{serial}"


def test_run_8_a_large_file_is_downloaded_whole_and_in_parts(real: FrontEnd) -> None:
    ann, sid = real.as_(ANN), "large001"
    followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": sid}))
    size = 40 * 1024 * 1024 + 13
    block = bytes(range(256)) * 4096
    whole = (block * (size // len(block) + 1))[:size]
    path = f"/download-run-file/odd/{sid}/oddReport/-1?suffix=big{size}"
    answer = ann.ask("GET", path, buffered=False)
    digest, length = hashlib.sha256(), 0
    for piece in answer.iter_encoded():
        digest.update(piece)
        length += len(piece)
    answer.close()
    assert (answer.status_code, length, digest.digest()) == (
        200,
        size,
        hashlib.sha256(whole).digest(),
    )
    part = ann.get(path, Range=f"bytes={size - 100}-", **{"If-Range": answer.headers["ETag"]})
    assert (part.status_code, part.get_data()) == (206, whole[-100:])
    assert ann.get(path, **{"If-None-Match": answer.headers["ETag"]}).status_code == 304
    refused(ann.get(path, Range=f"bytes={size}-"), 416, "rangeNotSatisfiable")


def test_run_8_a_reply_too_large_says_so_with_both_sizes_and_the_run_stays_completed(
    real: FrontEnd,
) -> None:
    ann, sid = real.as_(ANN), "large002"
    said = followed(
        ann,
        ann.said(
            "/run-simulation",
            {**REPORT, "simulationId": sid, "models": {"oddReport": {"answer": "huge"}}},
        ),
    )
    assert (said["state"], said["resultError"]["code"]) == ("completed", "replyTooLarge")
    sizes = [
        int(word)
        for word in said["resultError"]["error"].replace(",", "").replace(";", " ").split()
        if word.isdigit()
    ]
    assert len(sizes) >= 2 and max(sizes) > 9 * 1024 * 1024 > min(sizes), said["resultError"]
    refused(
        ann.post("/stateless-compute", {"simulationType": "odd", "method": "huge"}),
        413,
        "replyTooLarge",
    )


def test_run_9_a_frame_of_an_old_run_is_refused_and_not_a_fault(real: FrontEnd) -> None:
    ann, sid = real.as_(ANN), "frames01"
    first = followed(ann, ann.said("/run-simulation", movie(sid, 0.0)))
    old = frame(1, sid, first["computeJobHash"], first["computeJobSerial"])
    assert ann.get(old).get_json()["frameIndex"] == 1
    second = followed(ann, ann.said("/run-simulation", {**movie(sid, 0.0), "forceRun": True}))
    assert second["computeJobSerial"] > first["computeJobSerial"]
    refused(ann.get(old), 409, "staleSerial")
    assert (
        ann.get(frame(1, sid, second["computeJobHash"], second["computeJobSerial"])).status_code
        == 200
    )
    refused(
        ann.get(frame(99, sid, second["computeJobHash"], second["computeJobSerial"])),
        422,
        "appRefused",
    )


def test_run_9_an_unknown_method_is_named_without_a_trace_and_leaves_nothing(
    real: FrontEnd, module_site: SupervisorProcess
) -> None:
    ann = real.as_(ANN)
    check_books(module_site)  # all records are written
    before = sorted(p.name for p in (module_site.root / "supervisor-job").glob("*"))
    for path, more in (("/stateless-compute", {}), ("/stateful-compute", {})):
        no = refused(
            ann.post(path, {"simulationType": "odd", "method": "0x23", **more}), 404, "notFound"
        )
        assert "0x23" in no["error"] and "File" not in no["error"]
    assert sorted(p.name for p in (module_site.root / "supervisor-job").glob("*")) == before
    assert (
        ann.said("/own-jobs", {"active": None})["jobs"]
        == real.as_(ANN).said("/own-jobs", {"active": None})["jobs"]
    )


def test_run_9_an_app_that_fails_is_told_without_its_trace(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    for method, named in (("raises", "ValueError"), ("exits", ""), ("nan", "a[0].b")):
        no = refused(
            ann.post("/stateless-compute", {"simulationType": "odd", "method": method}),
            422,
            "appFailed",
        )
        assert named in no["error"] and "Traceback" not in no["error"] and "\n" not in no["error"]


def test_run_9_a_running_job_says_when_it_started_whatever_its_app_reports(real: FrontEnd) -> None:
    ann, begun = real.as_(ANN), time.time()
    said = running(ann, movie("started1"))
    try:
        until(
            lambda: ann.said("/run-status", said["nextRequest"]).get("words") == "as the app says",
            "the app's report is there",
        )
        now = ann.said("/run-status", said["nextRequest"])
        assert begun - 5 < now["computeJobStart"] < time.time() + 5
        assert (now["state"], now["computeJobSerial"], now.get("error")) == (
            "running",
            said["computeJobSerial"],
            None,
        )
        assert (now["frameCount"], now["percentComplete"]) == (3, 30.0)
        assert (
            ann.get(
                frame(2, "started1", now["computeJobHash"], now["computeJobSerial"])
            ).status_code
            == 200
        ), "frames come while it runs"
    finally:
        assert ann.said("/run-cancel", said["nextRequest"])["state"] == "canceled"


@pytest.mark.parametrize(
    "wrong",
    [
        {"computeJobHash": "0000000000000000"},
        {"computeJobSerial": 1},
        {"simulationType": "myapp", "report": "heightWeightReport"},
        {"simulationId": "nothere1"},
    ],
    ids=str,
)
def test_run_9_a_wrong_cancel_cancels_nothing_and_says_so(
    real: FrontEnd, wrong: dict[str, Any]
) -> None:
    ann = real.as_(ANN)
    said = running(ann, movie("cancel01"))
    try:
        answer = ann.said("/run-cancel", {**said["nextRequest"], **wrong})
        assert answer["state"] == "missing", answer
        assert ann.said("/run-status", said["nextRequest"])["state"] == "running"
    finally:
        right = ann.said("/run-cancel", said["nextRequest"])
    assert right["state"] == "canceled"
    assert ann.said("/run-status", said["nextRequest"])["state"] == "canceled"
    assert ann.said("/run-cancel", said["nextRequest"])["state"] == "canceled", (
        "again, and it is the same"
    )


def test_run_7_a_run_that_waits_for_a_slot_is_answered_and_canceled_at_once(real: FrontEnd) -> None:
    ann, bob = real.as_(ANN), real.as_(BOB)
    holding = [running(ann, movie(f"holds00{n}")) for n in range(2)]
    waiting = bob.said("/run-simulation", movie("waits001"))
    try:
        assert waiting["state"] == "pending"
        until(
            lambda: (
                "slot" in (bob.said("/run-status", waiting["nextRequest"]).get("queueState") or "")
            ),
            "it says that it waits for a slot",
        )
        assert bob.said("/run-cancel", waiting["nextRequest"])["state"] == "canceled"
        assert bob.said("/run-status", waiting["nextRequest"])["state"] == "canceled"
    finally:
        for said in holding:
            ann.said("/run-cancel", said["nextRequest"])
    after = bob.said("/run-simulation", movie("waits001", 0.0))
    assert followed(bob, after)["state"] == "completed"


def test_run_10_a_call_that_hangs_is_ended_and_the_next_is_served(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    begun = time.monotonic()
    hanging = {
        "simulationType": "odd",
        "method": "sleeps",
        "args": {"secs": 100},
        "deadlineSecs": 1.0,
    }
    refused(ann.post("/stateless-compute", hanging), 504, "deadline")
    assert time.monotonic() - begun < 20
    assert ann.said(
        "/stateless-compute", {"simulationType": "odd", "method": "echo", "args": {"a": 1}}
    ) == {"a": 1}


def test_run_3_a_download_that_takes_too_long_changes_nothing_about_the_run(
    make_site: Any, make_web: Any
) -> None:
    site = make_site("limits.call_secs=1").start()
    ann = make_web(str(site.root)).as_(ANN)
    said = followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": "slow0001"}))
    refused(ann.get("/download-run-file/odd/slow0001/oddReport/-1?suffix=slow"), 504, "deadline")
    again = ann.said("/run-status", {**REPORT, "simulationId": "slow0001"})
    assert (again["state"], again["computeJobSerial"]) == ("completed", said["computeJobSerial"])
    assert ann.get("/download-run-file/odd/slow0001/oddReport/-1?suffix=big10").status_code == 200


@pytest.mark.parametrize("suffix", ["link", "up", "absolute", "nul", "no-such-file"])
def test_no_download_leaves_the_run_directory(real: FrontEnd, suffix: str) -> None:
    ann = real.as_(ANN)
    followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": "paths001"}))
    answer = ann.get(f"/download-run-file/odd/paths001/oddReport/-1?suffix={suffix}")
    assert answer.status_code in (400, 404, 422), answer.get_data(as_text=True)[:200]
    assert b"root:" not in answer.get_data()
    assert ann.said("/run-status", {**REPORT, "simulationId": "paths001"})["state"] == "completed"


def test_a_page_of_a_run_is_saved_and_not_shown(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": "paths002"}))
    answer = ann.get("/download-run-file/odd/paths002/oddReport/-1?suffix=page")
    assert (
        answer.headers["Content-Disposition"]
        == "attachment; filename*=UTF-8''pag%C3%A9%20%221%22.html"
    )
    assert (
        answer.headers["X-Content-Type-Options"],
        answer.headers["Content-Security-Policy"][:7],
    ) == ("nosniff", "sandbox")


@pytest.mark.parametrize(
    ("answer", "code", "named"),
    [
        ("nan", "appFailed", "plots[0].points[1]"),
        ("raise", "appFailed", "ZeroDivisionError"),
    ],
)
def test_a_result_that_cannot_be_sent_is_named_and_the_run_stays_completed(
    real: FrontEnd, answer: str, code: str, named: str
) -> None:
    ann = real.as_(ANN)
    request = {
        **REPORT,
        "simulationId": f"result{answer[:2]}",
        "models": {"oddReport": {"answer": answer}},
    }
    said = followed(ann, ann.said("/run-simulation", request))
    if said["state"] == "completed":
        assert said["resultError"]["code"] == code and named in said["resultError"]["error"]
    else:  # the job command, which reads the result first, may have reported the error already
        assert said["state"] == "error" and named in said["error"], said
        assert "Traceback" not in said["error"]


def test_a_liar_of_an_app_is_not_believed(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    said = followed(
        ann,
        ann.said(
            "/run-simulation",
            {**REPORT, "simulationId": "liar0001", "models": {"oddReport": {"answer": "liar"}}},
        ),
    )
    assert (said["state"], said["title"]) == ("completed", "the truth")
    assert (
        said["computeJobSerial"] > 7 and said["computeJobStart"] > 0 and said.get("error") is None
    )


def test_a_run_whose_directory_was_removed_is_computed_again(
    real: FrontEnd, module_site: SupervisorProcess
) -> None:
    ann = real.as_(ANN)
    for report, model in (("oddReport", "oddReport"), ("oddAnimation", "oddAnimation")):
        request = {"simulationType": "odd", "simulationId": "removed1", "report": report}
        first = followed(ann, ann.said("/run-simulation", request))
        cached = ann.said("/run-simulation", request)
        assert (cached["state"], cached["computeJobSerial"]) == (
            "completed",
            first["computeJobSerial"],
        )
        shutil.rmtree(Path(module_site.root) / "user" / ANN / "odd" / "removed1" / model)
        again = ann.said("/run-simulation", request)
        assert (
            again["state"] in ("pending", "running")
            and again["computeJobSerial"] > first["computeJobSerial"]
        )
        assert followed(ann, again)["state"] == "completed"


def test_two_browsers_join_one_run_and_a_third_with_other_values_is_told(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    first = running(ann, movie("joined01"))
    try:
        second = real.as_(ANN).said("/run-simulation", movie("joined01"))
        assert second["computeJobSerial"] == first["computeJobSerial"]
        no = refused(
            real.as_(ANN).post("/run-simulation", movie("joined01", 61.0)), 409, "anotherRun"
        )
        assert no["error"] == "another browser is running the simulation"
        refused(
            real.as_(ANN).post("/run-simulation", {**movie("joined01"), "forceRun": True}),
            409,
            "anotherRun",
        )
    finally:
        ann.said("/run-cancel", first["nextRequest"])


def test_a_request_sent_again_is_one_run(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    request = {
        **REPORT,
        "simulationId": "repeat01",
        "forceRun": True,
        "reqId": "a-request-of-this-test",
    }
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(real.as_(ANN).said("/run-simulation", request))
        )
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert len({a["computeJobSerial"] for a in answers}) == 1 and len(answers) == 4
    assert followed(ann, answers[0])["state"] == "completed"


def test_an_uploaded_file_is_read_by_the_run_and_decides_its_hash(
    real: FrontEnd, module_site: SupervisorProcess
) -> None:
    ann = real.as_(ANN)
    request = {**REPORT, "simulationId": "upload01", "models": {"file": "in.txt"}}
    refused(ann.post("/run-simulation", request), 422, "appRefused")
    serials, digests = [], []
    for content in (b"one", b"two"):
        put = ann.put("/lib-file/odd/in.txt", content)
        assert put.get_json()["sha256"] == hashlib.sha256(content).hexdigest()
        said = followed(ann, ann.said("/run-simulation", request))
        assert said["state"] == "completed", said
        serials.append(said["computeJobSerial"])
        digests.append(said["computeJobHash"])
        assert (
            Path(module_site.root) / "user" / ANN / "odd" / "upload01" / "oddReport" / "in.txt"
        ).read_bytes() == content
        assert ann.said("/run-simulation", request)["computeJobSerial"] == serials[-1]
    assert digests[0] != digests[1] and serials[0] < serials[1]
    assert ann.delete("/lib-file/odd/in.txt").status_code == 200
    refused(ann.delete("/lib-file/odd/in.txt"), 404, "notFound")


def test_ports_are_the_same_each_time_and_given_back(real: FrontEnd) -> None:
    ann, mine = real.as_(ANN), {"simulationType": "odd", "simulationId": "ports001", "ports": 2}
    first = ann.said("/global-resources", mine)
    assert len(first["ports"]) == 2 == len(set(first["ports"]))
    assert ann.said("/global-resources", mine)["ports"] == first["ports"]
    assert not set(real.as_(BOB).said("/global-resources", mine)["ports"]) & set(first["ports"])
    ann.said("/global-resources", {**mine, "release": True})


def test_a_log_is_there_in_part_and_whole(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": "logged01"}))
    path = "/run-log/odd/logged01/oddReport"
    assert ann.get(path).get_data(as_text=True) == "odd begins\nodd ends\n"
    assert ann.get(path + "?tail=5").get_data(as_text=True) == "ends\n"
    assert ann.get(path + "?stream=stderr").get_data() == b""


def test_an_analysis_reads_its_run_also_while_it_runs(real: FrontEnd) -> None:
    ann = real.as_(ANN)
    asked = {**REPORT, "simulationId": "analysis", "method": "where"}
    refused(ann.post("/analysis-job", asked), 404, "notFound")
    followed(ann, ann.said("/run-simulation", {**REPORT, "simulationId": "analysis"}))
    assert isinstance(ann.said("/analysis-job", asked)["files"], list)
    no = refused(ann.post("/analysis-job", {**asked, "method": "nosuch"}), 404, "notFound")
    assert "where" in no["error"]
    refused(ann.post("/analysis-job", {**asked, "computeJobSerial": 5}), 409, "staleSerial")


def test_an_agent_is_had_ready_by_a_session(real: FrontEnd, module_site: SupervisorProcess) -> None:
    uid = "NewUser9"
    assert real.as_(uid).said("/begin-session") == {"state": "ok"}
    until(
        lambda: (
            module_site.titled("agent")
            and (module_site.root / "agent" / str(module_site.agent_key(uid))).exists()
        ),
        "an agent is there",
    )
