"""Frames and calls: the request to the app, and frame addresses that stay unique."""

from typing import Any

import pytest
from front_end_fixture import ANN, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.web.handlers.frames import FOR_EVER

FRAME = "3*otherAnimation*abcdefgh*odd*0123456789abcdef*1700000000"


def test_a_frame_is_asked_for_by_all_that_its_name_says(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/call"] = b'{"frameIndex":3,"frameCount":9}'
    answer = web.as_(ANN).get(f"/simulation-frame/{FRAME}")
    assert (answer.status_code, answer.get_data()) == (200, b'{"frameIndex":3,"frameCount":9}')
    call = stub.sent("/api/call")[0]
    assert (call["uid"], call["computeJid"], call["computeJobSerial"]) == (
        ANN,
        f"{ANN}-abcdefgh-oddAnimation",
        1_700_000_000,
    )
    assert (call["jobCmd"], call["simulationType"], call["computeModel"]) == (
        "get_simulation_frame",
        "odd",
        "oddAnimation",
    )
    assert call["args"] == {"frameReport": "otherAnimation", "frameIndex": 3}


def test_a_browser_keeps_a_frame_and_no_refusal_of_one(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/call"] = b"{}"
    kept = web.as_(ANN).get(f"/simulation-frame/{FRAME}")
    assert (
        kept.headers["Cache-Control"],
        kept.headers["Vary"],
        kept.headers["X-Content-Type-Options"],
    ) == (FOR_EVER, "Cookie", "nosniff")
    stub.answers["/api/call"] = Refusal("appRefused", "there is no frame 3 yet")
    assert web.as_(ANN).get(f"/simulation-frame/{FRAME}").headers["Cache-Control"] == "no-store"


def test_an_app_may_want_more_in_a_frames_name(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/call"] = b"{}"
    web.as_(ANN).get(f'/simulation-frame/{FRAME}*{{"z":1.5,"frameIndex":99,"a*b":2}}')
    assert stub.sent("/api/call")[0]["args"] == {
        "z": 1.5,
        "a*b": 2,
        "frameReport": "otherAnimation",
        "frameIndex": 3,
    }


@pytest.mark.parametrize(
    "name",
    [
        "",
        "3",
        "3*otherAnimation*abcdefgh*odd*ab",
        "-1*otherAnimation*abcdefgh*odd*ab*17",
        "1e3*otherAnimation*abcdefgh*odd*ab*17",
        "3*otherAnimation*abcdefgh*ODD*ab*17",
        "3*other%00Animation*abcdefgh*odd*ab*17",
        "3*otherAnimation*abcdefgh*odd**17",
        "3*otherAnimation*abcdefgh*odd*a-b*17",
        "3*otherAnimation*abcdefgh*odd*ab*0",
        "3*otherAnimation*abcdefgh*odd*ab*-17",
        "3*otherAnimation*abcdefgh*odd*ab*17*[]",
        "3*otherAnimation*abcdefgh*odd*ab*17*{",
        "\u0663*otherAnimation*abcdefgh*odd*ab*17",
        "99999999999999999999*otherAnimation*abcdefgh*odd*ab*17",
        "3*otherAnimation*abcdefgh*odd*ab*17*{" + "x" * 3000,
    ],
)
def test_what_is_no_frame(web: FrontEnd, stub: StubSupervisor, name: str) -> None:
    answer = web.as_(ANN).get(f"/simulation-frame/{name}")
    if name:
        refused(answer, 400, "badRequest")
    else:
        assert answer.status_code == 404
    assert stub.requests == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("staleSerial", 409),
        ("notFound", 404),
        ("notReady", 409),
        ("appRefused", 422),
        ("appFailed", 422),
        ("replyTooLarge", 413),
        ("deadline", 504),
    ],
)
def test_each_way_a_frame_can_fail_has_its_own_answer(
    web: FrontEnd, stub: StubSupervisor, code: str, status: int
) -> None:
    stub.answers["/api/call"] = Refusal(code, "why")
    refused(web.as_(ANN).get(f"/simulation-frame/{FRAME}"), status, code)


@pytest.mark.parametrize(
    ("path", "job_cmd"),
    [("/stateless-compute", "stateless_compute"), ("/stateful-compute", "stateful_compute")],
)
def test_a_method_gets_its_input_and_no_run(
    web: FrontEnd, stub: StubSupervisor, path: str, job_cmd: str
) -> None:
    stub.answers["/api/call"] = b'{"x":1.50}'
    answer = web.as_(ANN).post(
        path, {"simulationType": "odd", "method": "echo", "args": {"a": 1}, "deadlineSecs": 5}
    )
    assert answer.get_data() == b'{"x":1.50}'
    call = stub.sent("/api/call")[0]
    assert (
        call["jobCmd"],
        call["method"],
        call["args"],
        call["deadlineSecs"],
        call["computeJid"],
    ) == (job_cmd, "echo", {"a": 1}, 5.0, None)


def test_an_analysis_gets_its_run(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/call"] = b"[]"
    body: dict[str, Any] = {
        "simulationType": "odd",
        "simulationId": "abcdefgh",
        "report": "otherAnimation",
        "method": "where",
        "computeJobSerial": 17,
    }
    web.as_(ANN).said("/analysis-job", body)
    call = stub.sent("/api/call")[0]
    assert (call["computeJid"], call["computeJobSerial"], call["computeModel"]) == (
        f"{ANN}-abcdefgh-oddAnimation",
        17,
        "oddAnimation",
    )
    assert call["data"] == {}, "the run is read with the data that it was computed from"
