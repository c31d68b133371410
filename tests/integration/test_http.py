"""Bad requests: each gets an error code and a sentence, is counted, and changes nothing."""

import contextlib
import json
import socket
from typing import Any
from urllib.parse import quote

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, req_id, shell, spec

OTHER_UID = "SystemU2"
ENVELOPE = {"state", "code", "error", "advice", "retry"}


def refused(
    site: SupervisorProcess,
    path: str,
    body: Any,
    code: str,
    http_code: int,
    *words: str,
    method: str = "POST",
    raw: bytes | None = None,
) -> dict[str, Any]:
    """Check all properties that every refusal has, and return the refusal."""
    before = site.ready()
    counter = "refused." + code
    answer = site.ask(method, path, raw if raw is not None else json.dumps(body).encode())
    assert answer.code == http_code, (answer.code, answer.body)
    said: dict[str, Any] = answer.json()
    assert set(said) - {"problems"} == ENVELOPE and (said["state"], said["code"]) == (
        "error",
        code,
    ), said
    for word in words:
        assert word in said["error"], said
    assert said["error"] and said["advice"]
    after = site.ready()
    assert after["head"] == before["head"], "a refused request left an event"
    assert after["counters"][counter] == before["counters"].get(counter, 0) + 1
    return said


def run_body(**changes: Any) -> dict[str, Any]:
    return {"reqId": req_id(), "run": {**spec(["true"]), **changes}}


# ---- authentication


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "bearer TOKEN"},
        {"Authorization": "TOKEN"},
        {"Authorization": "Bearer TOKENx"},
        {"Cookie": "Authorization=Bearer TOKEN"},
        {"Authorization": "Bearer \xe9\xe9"},
    ],
    ids=lambda h: str(h)[:40],
)
def test_without_the_secret_nothing_is_answered_and_all_wrong_ones_alike(
    shared: SupervisorProcess, headers: dict[str, str]
) -> None:
    sent = {k: v.replace("TOKEN", shared.token) for k, v in headers.items()}
    head = shared.ready()["head"]
    bodies = set()
    for method, path in (
        ("POST", "/api/run-simulation"),
        ("POST", "/api/run-status"),
        ("GET", "/api/events"),
    ):
        answer = shared.ask(method, path, json.dumps(run_body()).encode(), headers=sent)
        assert answer.code == 401
        bodies.add(answer.body)
    assert len(bodies) == 1
    assert shared.ready()["head"] == head


def test_liveness_needs_no_secret_and_tells_none(shared: SupervisorProcess) -> None:
    for path in ("/livez", "/readyz"):
        answer = shared.ask("GET", path, headers={})
        assert answer.code == 200 and shared.token.encode() not in answer.body


# ---- paths and methods


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/",
        "/api/run-simulation/",
        "/api/../api/run-simulation",
        "/api/nothing",
        "/%00",
        "/agent",
        "//api/run-status",
    ],
)
def test_an_address_that_is_none_is_said_to_be_none(shared: SupervisorProcess, path: str) -> None:
    refused(shared, path, {}, "notFound", 404)


@pytest.mark.parametrize(
    "path",
    [
        "run-simulation",
        "run-many",
        "run-status",
        "run-cancel",
        "job-list",
        "job-log",
        "job-story",
        "job-why",
        "job-metrics",
        "job-tasks",
        "run-release",
        "job-tag",
        "trace",
        "usage",
        "disk-usage",
    ],
)
def test_what_takes_post_does_not_take_get(shared: SupervisorProcess, path: str) -> None:
    refused(shared, f"/api/{path}", {}, "methodNotAllowed", 405, path, method="GET")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused_in_the_same_form(shared: SupervisorProcess, method: str) -> None:
    refused(shared, "/api/run-status", {}, "methodNotAllowed", 405, method=method)


# ---- ids


NO_IDS = [
    "",
    "short",
    "ninechars",
    "abc\u0131efgh"[:8],
    "\u0430bcdefgh",
    "abcd\0fgh",
    "../../et",
    "abcdefg\n",
    "abcdefg ",
    "abcd-fgh",
    "ABCDEFG\u212a",
    12345678,
    None,
    ["a"],
]


@pytest.mark.parametrize("value", NO_IDS, ids=ascii)
@pytest.mark.parametrize("field", ["uid", "simulationId"])
def test_what_is_no_id_gets_in_nowhere(shared: SupervisorProcess, field: str, value: Any) -> None:
    refused(shared, "/api/run-simulation", run_body(**{field: value}), "badRequest", 400, field)


@pytest.mark.parametrize(
    "value", ["", "../x", "a/b", "1model", "m\0", "m\u00f6del", "a" * 65, "a-b", None]
)
def test_what_is_no_compute_model_gets_in_nowhere(shared: SupervisorProcess, value: Any) -> None:
    refused(
        shared,
        "/api/run-simulation",
        run_body(computeModel=value),
        "badRequest",
        400,
        "computeModel",
    )


@pytest.mark.parametrize(
    "jid",
    [
        "",
        "x",
        f"{UID}-abcdefgh",
        f"{UID}-abcdefgh-",
        f"{UID}-../../xx-command",
        f"{UID}-abcdefgh-command\n",
        f"{UID}-abcdefgh-c\u043emmand",
        f"{UID}_abcdefgh_command",
    ],
    ids=ascii,
)
@pytest.mark.parametrize(
    "path",
    [
        "run-status",
        "run-cancel",
        "job-log",
        "job-story",
        "job-why",
        "job-metrics",
        "job-tasks",
        "run-release",
        "job-tag",
    ],
)
def test_what_is_no_compute_jid_gets_in_nowhere(
    shared: SupervisorProcess, path: str, jid: str
) -> None:
    body = {"uid": UID, "computeJid": jid} | ({"reqId": req_id()} if path == "run-cancel" else {})
    refused(shared, f"/api/{path}", body, "badRequest", 400, "computeJid")


@pytest.mark.parametrize(
    "value", ["", "short", "a" * 65, "with space", "sch\u00f6n-und-lang", "null\0null", 12345678]
)
def test_what_is_no_request_id_gets_in_nowhere(shared: SupervisorProcess, value: Any) -> None:
    refused(
        shared, "/api/run-simulation", {**run_body(), "reqId": value}, "badRequest", 400, "reqId"
    )


# ---- bodies


@pytest.mark.parametrize(
    ("raw", "code", "http_code"),
    [
        (b"", "badRequest", 400),
        (b"hello", "badRequest", 400),
        (b"[]", "badRequest", 400),
        (b'"text"', "badRequest", 400),
        (b"null", "badRequest", 400),
        (b"7", "badRequest", 400),
        (b"{", "badRequest", 400),
        (b'{"reqId": "\xff\xfe"}', "badRequest", 400),
        (b'{"a": NaN}', "badRequest", 400),
        (b"\xef\xbb\xbf{}", "badRequest", 400),
        (b"[" * 100_000 + b"]" * 100_000, "tooDeep|badRequest", 400),
        (b'{"run": ' + b'{"env": ' * 3000 + b"{}" + b"}" * 3001, "tooDeep|badRequest", 400),
        (b'{"reqId": "' + b"a" * (8 * 1024 * 1024) + b'"}', "tooLarge", 413),
    ],
    ids=lambda v: ascii(v)[:30],
)
def test_a_body_that_is_no_request_is_refused(
    shared: SupervisorProcess, raw: bytes, code: str, http_code: int
) -> None:
    before = shared.ready()
    answer = shared.ask("POST", "/api/run-simulation", raw)
    said = answer.json()
    assert answer.code == http_code and said["code"] in code.split("|")
    assert set(said) - {"problems"} == ENVELOPE
    after = shared.ready()
    assert after["head"] == before["head"]
    counter = "refused." + said["code"]
    assert after["counters"][counter] == before["counters"].get(counter, 0) + 1


def test_a_body_that_is_far_too_large_is_refused_before_it_is_taken_in(
    shared: SupervisorProcess,
) -> None:
    before = shared.ready()
    connection = shared.connection(10)
    connection.putrequest("POST", "/api/run-simulation")
    connection.putheader("Authorization", "Bearer " + shared.token)
    connection.putheader("Content-Length", str(100 * 1024 * 1024))
    connection.endheaders()
    reply = connection.getresponse()
    said = json.loads(reply.read())
    connection.close()
    assert (reply.status, said["code"]) == (413, "tooLarge")
    after = shared.ready()
    assert after["head"] == before["head"]
    assert (
        after["counters"]["refused.tooLarge"] == before["counters"].get("refused.tooLarge", 0) + 1
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"reqId": "request-x1", "more": 1, "run": RUN}', "more"),
        ('{"reqId": "request-x1", "run": {"more": 1, "uid": "a"}}', "more"),
        ('{"reqId": "request-x1"}', "run"),
        ('{"run": RUN}', "reqId"),
        ('{"reqId": "request-x1", "run": RUN, "forceRun": "yes"}', "forceRun"),
        ('{"reqId": "request-x1", "req_id": "request-x2", "run": RUN}', "req_id"),
        ('{"reqId": "request-x1", "computeJobSerial": -1, "run": RUN}', "computeJobSerial"),
        ('{"reqId": "request-x1", "computeJobSerial": 1e300, "run": RUN}', "computeJobSerial"),
    ],
)
def test_unknown_missing_and_wrong_fields_are_named(
    shared: SupervisorProcess, text: str, word: str
) -> None:
    refused(
        shared,
        "/api/run-simulation",
        None,
        "badRequest",
        400,
        word,
        raw=text.replace("RUN", json.dumps(spec(["true"]))).encode(),
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"reqId": "request-x1", "reqId": "request-x2", "run": RUN}',
        '{"reqId": "request-x1", "run": RUN, "run": RUN}',
    ],
)
def test_a_field_that_is_there_twice_is_refused(shared: SupervisorProcess, text: str) -> None:
    refused(
        shared,
        "/api/run-simulation",
        None,
        "badRequest",
        400,
        "twice",
        raw=text.replace("RUN", json.dumps(spec(["true"]))).encode(),
    )


@pytest.mark.parametrize(
    ("changes", "code", "http_code", "words"),
    [
        ({"simulationType": "srw"}, "unknownApp", 404, ("srw", "command")),
        ({"driver": "docker"}, "badRequest", 400, ("docker", "local")),
        ({"driver": "Docker!"}, "badRequest", 400, ("driver",)),
        ({"jobRunMode": "both"}, "badRequest", 400, ("jobRunMode",)),
        ({"command": []}, "badRequest", 400, ("command",)),
        ({"command": "true"}, "badRequest", 400, ("command",)),
        ({"command": ["a\0b"]}, "badRequest", 400, ("command",)),
        ({"command": ["x"] * 10_001}, "badRequest", 400, ("command",)),
        ({"command": ["x" * 100_000] * 6}, "tooLarge", 413, ("limit",)),
        ({"wrap": ["a\0b"]}, "badRequest", 400, ("wrap",)),
        ({"env": {"JOBSCRIBE_TOKEN": "x"}}, "badRequest", 400, ("JOBSCRIBE_TOKEN",)),
        ({"env": {"API_TOKEN": "abc"}}, "badRequest", 400, ("API_TOKEN", "secret")),
        ({"env": {"DB_PASSWORD": "abc"}}, "badRequest", 400, ("DB_PASSWORD",)),
        ({"env": {"A B": "x"}}, "badRequest", 400, ("env",)),
        ({"env": {"A=B": "x"}}, "badRequest", 400, ("env",)),
        ({"env": {"A": "x\0"}}, "badRequest", 400, ("env",)),
        ({"env": {"A": 1}}, "badRequest", 400, ("env",)),
        ({"timeLimitSecs": 0}, "badRequest", 400, ("timeLimitSecs",)),
        ({"timeLimitSecs": -1}, "badRequest", 400, ("timeLimitSecs",)),
        ({"queueLimitSecs": "5"}, "badRequest", 400, ("queueLimitSecs",)),
        ({"graceSecs": 3601}, "badRequest", 400, ("graceSecs",)),
        ({"coreBytes": -1}, "badRequest", 400, ("coreBytes",)),
        ({"simName": "x" * 1001}, "badRequest", 400, ("simName",)),
    ],
    ids=lambda v: ascii(v)[:40],
)
def test_a_run_that_cannot_be_is_refused_with_what_is_wrong(
    shared: SupervisorProcess, changes: dict, code: str, http_code: int, words: tuple[str, ...]
) -> None:
    said = refused(shared, "/api/run-simulation", run_body(**changes), code, http_code, *words)
    assert "abc" not in said["error"]


def test_of_many_runs_the_bad_ones_alone_are_refused(shared: SupervisorProcess) -> None:
    good, bad, good_too = spec(["true"]), spec(["true"], simulationType="srw"), spec(["true"])
    before = shared.ready()["counters"].get("refused.unknownApp", 0)
    replies = shared.post("run-many", reqId=req_id(), runs=[good, bad, good_too])["runs"]
    assert [r["state"] for r in replies] == ["pending", "error", "pending"] and replies[1][
        "code"
    ] == "unknownApp"
    assert shared.ready()["counters"]["refused.unknownApp"] == before + 1
    assert [shared.wait(r)["state"] for r in (good, good_too)] == ["completed"] * 2
    refused(shared, "/api/run-status", {"uid": UID, "computeJid": jid_of(bad)}, "notFound", 404)


def test_too_many_runs_at_once_are_refused_whole(shared: SupervisorProcess) -> None:
    refused(
        shared,
        "/api/run-many",
        {"reqId": req_id(), "runs": [spec(["x"])] * 10_001},
        "badRequest",
        400,
        "runs",
    )
    refused(shared, "/api/run-many", {"reqId": req_id(), "runs": []}, "badRequest", 400, "runs")


@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "after=1.5",
        "after=%ff",
        "uid=%ff",
        "uid=short",
        "computeJid=../x",
        "computeJid=%00",
        "after=\u0663",
    ],
    ids=ascii,
)
def test_a_stream_of_events_from_nowhere_is_refused(shared: SupervisorProcess, query: str) -> None:
    refused(
        shared,
        "/api/events?" + quote(query, safe="=%/."),
        None,
        "badRequest",
        400,
        method="GET",
        raw=b"",
    )


# ---- ownership


@pytest.mark.parametrize(
    "path",
    [
        "run-status",
        "run-cancel",
        "job-log",
        "job-story",
        "job-why",
        "job-metrics",
        "job-tasks",
        "run-release",
        "job-tag",
    ],
)
def test_not_yours_and_not_there_answer_alike(shared: SupervisorProcess, path: str) -> None:
    run = spec(["true"])
    shared.finished(run)
    absent = f"{UID}-{'n0tThere'}-command"
    more = {"reqId": req_id()} if path == "run-cancel" else {}
    one = refused(
        shared,
        f"/api/{path}",
        {"uid": OTHER_UID, "computeJid": jid_of(run), **more},
        "notFound",
        404,
    )
    more = {"reqId": req_id()} if path == "run-cancel" else {}
    other = refused(
        shared, f"/api/{path}", {"uid": UID, "computeJid": absent, **more}, "notFound", 404
    )
    assert one["error"].replace(jid_of(run), "JID") == other["error"].replace(absent, "JID")
    assert {k: v for k, v in one.items() if k != "error"} == {
        k: v for k, v in other.items() if k != "error"
    }


def test_a_request_id_that_meant_another_job_is_a_conflict(shared: SupervisorProcess) -> None:
    first, second = spec(["true"]), spec(["true"])
    request = req_id()
    shared.submit(first, request)
    shared.wait(first)
    refused(
        shared, "/api/run-simulation", {"reqId": request, "run": second}, "conflict", 409, request
    )
    assert shared.submit({**first, "uid": OTHER_UID}, request)["computeJobSerial"] > 0
    shared.wait({**first, "uid": OTHER_UID})


def test_a_slot_that_is_taken_by_another_run_is_refused(shared: SupervisorProcess) -> None:
    run = shell("sleep 60", graceSecs=0)
    shared.submit(run)
    shared.running(run)  # nothing more happens to this run
    refused(
        shared,
        "/api/run-simulation",
        {"reqId": req_id(), "run": {**run, "command": ["other"]}},
        "anotherRun",
        409,
    )
    assert shared.submit(run)["computeJobSerial"] == shared.status(run)["computeJobSerial"]
    shared.cancel(run)
    shared.wait(run)


def test_a_finished_run_is_reused_and_forced_anew_with_a_higher_serial(
    shared: SupervisorProcess,
) -> None:
    run = shell("date +%N")
    first = shared.finished(run)["computeJobSerial"]
    assert shared.submit(run)["computeJobSerial"] == first
    forced = shared.post("run-simulation", reqId=req_id(), run=run, forceRun=True)[
        "computeJobSerial"
    ]
    assert forced > first
    assert shared.wait(run)["computeJobSerial"] == forced
    assert shared.status(run, computeJobSerial=first)["superseded"]
    assert shared.status(run, computeJobSerial=first - 1)["reason"] == "computeJobSerial-mismatch"
    assert shared.status(run, computeJobHash="a0")["reason"] == "computeJobHash-mismatch"


# ---- below HTTP


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /api/run-status HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /api/run-status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    ],
    ids=lambda r: ascii(r)[:30],
)
def test_what_is_not_http_costs_its_connection_only(shared: SupervisorProcess, raw: bytes) -> None:
    host, port = shared.url.removeprefix("http://").split(":")
    head = shared.ready()["head"]
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        peer.sendall(raw)
        with contextlib.suppress(ConnectionResetError):
            while peer.recv(65536):
                pass
    assert shared.ready()["head"] == head


def test_an_answer_does_not_say_what_serves_it(shared: SupervisorProcess) -> None:
    answer = shared.ask("GET", "/livez")
    assert answer.headers["Server"] is None
    assert (answer.headers["Cache-Control"], answer.headers["X-Content-Type-Options"]) == (
        "no-store",
        "nosniff",
    )
