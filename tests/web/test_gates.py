"""Checks of every request before any work is done: the user, the origin, and the format."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from front_end_fixture import ADM, ANN, BOB, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import CODES, Refusal
from jobscribe.web.blueprint.openapi import REFUSALS
from jobscribe.web.blueprint.routes import ROUTES

Make = Callable[..., FrontEnd]
BODIES: dict[str, dict[str, Any]] = {
    "runSimulation": {"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport"},
    "runStatus": {"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport"},
    "runCancel": {"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport"},
    "analysisJob": {
        "simulationType": "odd",
        "simulationId": "abcdefgh",
        "report": "oddReport",
        "method": "where",
    },
    "statelessCompute": {"simulationType": "odd", "method": "echo"},
    "statefulCompute": {"simulationType": "odd", "method": "library"},
    "globalResources": {"simulationType": "odd", "simulationId": "abcdefgh"},
}
VALUES = {
    "simulationType": "odd",
    "simulationId": "abcdefgh",
    "computeModel": "oddReport",
    "frame": "-1",
    "name": "a.txt",
    "frame_id": "0*oddAnimation*abcdefgh*odd*0123456789abcdef*1700000000",
}


def address(path: str) -> str:
    for name, value in VALUES.items():
        path = path.replace(f"<{name}>", value)
    return path


def sent(web: FrontEnd, uid: str | None, route: Any, **headers: str) -> Any:
    options: dict[str, Any] = {"headers": headers}
    if route.method == "POST":
        options["json"] = BODIES.get(route.api, {})
    elif route.method != "GET":
        options["headers"] = {"X-Jobscribe": "1", **headers}
        options["data"] = b"x"
    return web.as_(uid).ask(route.method, address(route.path), **options)


class Gate(NamedTuple):
    web: FrontEnd
    stub: StubSupervisor


@pytest.fixture(scope="module")
def _gate() -> Iterator[Gate]:
    stub = StubSupervisor()
    web = FrontEnd(stub.address)
    yield Gate(web, stub)
    web.close()
    stub.close()


@pytest.fixture
def gate(_gate: Gate) -> Gate:
    """A front end for tests that change nothing in it: it takes longer to make than they do."""
    _gate.stub.requests.clear()
    return _gate


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r.api)
def test_nobody_is_let_in_but_to_ask_whether_all_is_well(gate: Gate, route: Any) -> None:
    web, stub = gate
    stub.answers["/livez"] = {"state": "ok"}
    answer = sent(web, None, route)
    if route.api == "jobSupervisorPing":
        assert answer.status_code == 200
    else:
        refused(answer, 401, "unauthenticated")
        assert stub.requests == []


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r.api)
def test_another_method_is_refused_with_those_that_there_are(gate: Gate, route: Any) -> None:
    web, stub = gate
    there = {r.method for r in ROUTES if r.path == route.path}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - there:
        answer = web.as_(ANN).ask(method, address(route.path))
        refused(answer, 405, "methodNotAllowed")
        assert set(answer.headers["Allow"].split(", ")) == there
    assert stub.requests == []


CHANGING = [r for r in ROUTES if r.method != "GET"]


@pytest.mark.parametrize("route", CHANGING, ids=lambda r: r.api)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:81"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://["},
        {"Origin": "file://localhost"},
    ],
    ids=str,
)
def test_another_site_cannot_make_a_browser_change_anything(
    gate: Gate, route: Any, headers: dict[str, str]
) -> None:
    web, stub = gate
    refused(sent(web, ANN, route, **headers), 403, "crossSite")
    assert stub.requests == []


@pytest.mark.parametrize("route", CHANGING, ids=lambda r: r.api)
def test_what_a_form_of_another_site_can_send_is_not_taken(gate: Gate, route: Any) -> None:
    web, stub = gate
    for content in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "",
    ):
        answer = web.as_(ANN).ask(
            route.method,
            address(route.path),
            data=b"{}",
            headers={"Content-Type": content} if content else {},
        )
        refused(answer, 403, "crossSite")
    assert stub.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:80"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://LOCALHOST"},
    ],
    ids=str,
)
def test_a_page_of_this_site_is_taken(
    web: FrontEnd, stub: StubSupervisor, headers: dict[str, str]
) -> None:
    stub.answers["/api/begin-session"] = {"state": "ok"}
    assert web.as_(ANN).post("/begin-session", **headers).status_code == 200
    charset = web.as_(ANN).ask(
        "POST",
        "/begin-session",
        data=b"{}",
        headers={"Content-Type": "Application/JSON; charset=utf-8", **headers},
    )
    assert charset.status_code == 200


def test_behind_a_proxy_the_site_is_what_the_browser_calls_it(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/begin-session"] = {"state": "ok"}
    there = {"Host": "sims.example.org", "Origin": "https://sims.example.org"}
    assert web.as_(ANN).post("/begin-session", **there).status_code == 200
    refused(
        web.as_(ANN).post("/begin-session", **{**there, "Origin": "https://sims.example.org:8443"}),
        403,
        "crossSite",
    )


def test_the_user_is_whom_the_hook_names_and_never_what_the_body_says(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/job-list"] = {"jobs": [], "next": None}
    web.as_(ANN).said("/own-jobs", {"uid": BOB, "limit": 5})
    assert stub.sent("/api/job-list")[0]["uid"] == ANN


@pytest.mark.parametrize("uid", ["short", "has-dash", "", 7, "../../.."])
def test_a_hook_that_names_no_uid_is_a_fault_of_the_site(
    web: FrontEnd, stub: StubSupervisor, uid: Any
) -> None:
    web.user = lambda request: uid
    body = refused(web.as_(ANN).post("/own-jobs"), 500, "badConfig")
    assert "does not return a uid: uid must be " in body["error"] and ascii(uid) in body["error"], (
        "the rule is named"
    )
    assert body["error"] in web.lines.text()
    assert stub.requests == []


def test_what_goes_wrong_inside_is_logged_with_its_trace_and_told_without(web: FrontEnd) -> None:
    def broken(request: Any) -> str:
        raise ZeroDivisionError("deep inside")

    web.user = broken
    body = refused(web.as_(ANN).post("/own-jobs"), 500, "internal")
    assert "deep inside" not in body["error"]
    assert "Traceback" in web.lines.text() and "deep inside" in web.lines.text()


def test_plans_and_roles_are_the_sites_to_judge_for_each_api_and_app(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/call"] = b"{}"
    web.refusals[ANN, "statelessCompute", "odd"] = Refusal("planRequired", "your trial is over")
    web.refusals[ANN, "apps", "heat"] = Refusal("forbidden", "heat is not for you")
    web.refusals[ANN, "simulationFrame", "odd"] = Refusal("forbidden", "odd is not for you")
    compute = BODIES["statelessCompute"]
    assert (
        refused(web.as_(ANN).post("/stateless-compute", compute), 402, "planRequired")["error"]
        == "your trial is over"
    )
    refused(web.as_(ANN).get(address("/simulation-frame/<frame_id>")), 403, "forbidden")
    assert stub.requests == []
    assert web.as_(BOB).post("/stateless-compute", compute).status_code == 200
    names = {a["name"] for a in web.as_(ANN).get("/apps").get_json()["apps"]}
    assert "heat" not in names and "odd" in names
    assert "heat" in {a["name"] for a in web.as_(BOB).get("/apps").get_json()["apps"]}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "simulationType"),
        (b"{", "not JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"\xff", "not JSON"),
        (b"null", "object"),
        (
            b'{"simulationType": "ODD", "simulationId": "abcdefgh", "report": "oddReport"}',
            "simulationType",
        ),
        (
            b'{"simulationType": "odd", "simulationId": "abc/../..", "report": "oddReport"}',
            "simulationId",
        ),
        (
            b'{"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport", "models": []}',
            "models",
        ),
        (
            b'{"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport", "forceRun": "yes"}',
            "forceRun",
        ),
        (
            b'{"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport", "computeJobSerial": -1}',
            "computeJobSerial",
        ),
        (
            b'{"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport", "models": {"a": 1e999}}',
            "number",
        ),
    ],
)
def test_a_body_that_is_not_what_the_schema_says(
    web: FrontEnd, stub: StubSupervisor, body: bytes, named: str
) -> None:
    answer = web.as_(ANN).ask(
        "POST", "/run-simulation", data=body, headers={"Content-Type": "application/json"}
    )
    said = refused(answer, 400, "badRequest")
    assert named in said["error"] and "\\Z" not in said["error"]
    if named not in ("object", "not JSON", "number"):
        assert named in [p["path"] for p in said["problems"]]
    assert stub.requests == []


def test_a_body_that_is_nested_without_end_or_too_long(web: FrontEnd, stub: StubSupervisor) -> None:
    def sent(models: bytes) -> Any:
        body = (
            b'{"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport", "models": '
            + models
            + b"}"
        )
        return web.as_(ANN).ask(
            "POST", "/run-simulation", data=body, headers={"Content-Type": "application/json"}
        )

    for depth in (700, 2_000, 100_000):
        answer = sent(b'{"a":' * depth + b"1" + b"}" * depth)
        assert answer.status_code in (400, 404), answer.get_data()  # the stub has no answers
    refused(sent(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400, "tooDeep")
    refused(sent(b'{"a": "' + b"x" * (3 << 20) + b'"}'), 413, "tooLarge")


def test_what_is_refused_is_counted_by_its_code_for_administrators(web: FrontEnd) -> None:
    for _ in range(3):
        web.as_(None).post("/own-jobs")
    web.as_(ANN).post("/run-status", {})
    refused(web.as_(ANN).post("/adm-counters"), 403, "forbidden")
    counters = web.as_(ADM).said("/adm-counters")["counters"]
    assert counters == {
        "refused.unauthenticated": 3,
        "refused.badRequest": 1,
        "refused.forbidden": 1,
    }


@pytest.mark.parametrize(
    "code", [c for c in REFUSALS if c not in ("unauthenticated", "methodNotAllowed")]
)
def test_what_the_supervisor_refuses_reaches_the_browser_as_it_is(
    web: FrontEnd, stub: StubSupervisor, code: str
) -> None:
    stub.answers["/api/begin-session"] = Refusal(code, "as the supervisor says it")
    body = refused(web.as_(ANN).post("/begin-session"), CODES[code].http, code)
    assert (body["error"], body["retry"]) == ("as the supervisor says it", CODES[code].retry)


def test_a_front_end_with_a_wrong_secret_does_not_tell_the_browser_to_sign_in(
    stub: StubSupervisor, make_web: Make
) -> None:
    web = make_web(msgspec.structs.replace(stub.address, token="a wrong one, and long enough"))
    refused(web.as_(ANN).post("/own-jobs"), 503, "supervisorUnavailable")
    assert "unauthenticated" in web.lines.text()
    assert "a wrong one" not in web.lines.text()


@pytest.mark.parametrize(
    "answer", [(200, {}, b"<html>"), (502, {}, b"<html>"), (200, {}, b"[]"), (404, {}, b"")]
)
def test_something_else_at_the_supervisors_address(
    web: FrontEnd, stub: StubSupervisor, answer: Any
) -> None:
    stub.answers["/api/begin-session"] = answer
    refused(web.as_(ANN).post("/begin-session"), 503, "supervisorUnavailable")


def test_a_supervisor_that_is_away_is_said_at_once_and_found_again_elsewhere(
    stub: StubSupervisor, make_web: Make
) -> None:
    where = [stub.address]
    web = make_web(lambda: where[0])
    other = StubSupervisor()
    for s in (stub, other):
        s.answers["/api/begin-session"] = {"state": "ok"}
    assert web.as_(ANN).post("/begin-session").status_code == 200
    stub.close()
    assert (
        refused(web.as_(ANN).post("/begin-session"), 503, "supervisorUnavailable")["retry"] is True
    )
    where[0] = other.address
    assert web.as_(ANN).post("/begin-session").status_code == 200
    other.close()


def test_a_prefix_is_no_matter(stub: StubSupervisor, make_web: Make) -> None:
    stub.answers["/api/begin-session"] = {"state": "ok"}
    web = make_web(stub.address, prefix="/sims")
    assert web.as_(ANN).post("/sims/begin-session").status_code == 200
    assert "/sims/run-status" in web.as_(None).get("/sims/openapi.json").get_json()["paths"]
