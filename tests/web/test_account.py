"""Data of the pages of the account, the documentation and the reference, without a browser."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from front_end_fixture import ADM, ANN, BOB, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.handshake import ACTOR, SIGNED_IN

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_tokens_are_requested_by_their_user_in_person(web: FrontEnd, stub: StubSupervisor) -> None:
    created = {"state": "ok", "secret": "jst_x", "id": "abcd1234"}
    for name in ("token-create", "token-list", "token-revoke"):
        stub.answers[f"/api/{name}"] = created
    new = {"name": "laptop", "scopes": ["read"], "expiresSecs": 60}
    answer = web.as_(ANN).post("/page-data/token-create", new)
    assert answer.get_json() == created and answer.headers["Cache-Control"] == "no-store"
    web.as_(ADM).post("/page-data/token-list", {})
    web.as_(BOB).post("/page-data/token-revoke", {"id": "abcd1234", "reason": "lost"})
    sent = [
        (h.get(SIGNED_IN), h.get(ACTOR), body)
        for h, (_, body) in zip(stub.headers, stub.requests, strict=True)
    ]
    assert [row[:2] for row in sent] == [(ANN, None), (ADM, None), (BOB, None)]
    assert [row[2]["uid"] for row in sent] == [ANN, ADM, BOB]
    assert "jst_x" not in web.lines.text()
    for name, body in (("create", new), ("list", {}), ("revoke", {"id": "abcd1234"})):
        path = f"/page-data/token-{name}"
        refused(web.as_(ANN).post(path, {**body, "uid": BOB}), 400, "badRequest")
        refused(web.as_(None).post(path, body), 401, "unauthenticated")
        web.refusals[(ANN, f"token{name.title()}Page", None)] = Refusal("forbidden", "not here")
        refused(web.as_(ANN).post(path, body), 403, "forbidden")
    assert len(stub.requests) == 3
    # who may not start commands gets no token for them: it is used where no hook is asked
    web.refusals.clear()
    web.refusals[(ANN, "runSimulation", "command")] = Refusal("planRequired", "not with this plan")
    web.as_(ANN).post("/page-data/token-create", new)
    control = new | {"scopes": ["read", "control"]}
    refused(web.as_(ANN).post("/page-data/token-create", control), 402, "planRequired")
    assert len(stub.requests) == 4


def test_usage_and_disk_are_those_of_the_user(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers |= {"/api/usage": {"rows": []}, "/api/disk-usage": {"users": []}}
    web.as_(ANN).said("/page-data/usage", {"since": "2026-01", "by": ["day"]})
    web.as_(ADM).said("/page-data/disk-usage", {})
    assert (stub.sent("/api/usage")[0]["uid"], stub.sent("/api/disk-usage")[0]["uid"]) == (ANN, ADM)
    refused(web.as_(ANN).post("/page-data/usage", {"uid": BOB}), 400, "badRequest")


def test_a_site_that_signs_people_in_itself_has_no_sessions(web: FrontEnd) -> None:
    assert web.as_(ANN).said("/page-data/sign-ins", {}) == {
        "state": "ok",
        "kept": False,
        "signIns": [],
    }
    end = {"id": "0123456789abcdef"}
    refused(web.as_(ANN).post("/page-data/sign-in-end", end), 404, "notFound")


@pytest.mark.parametrize("packed", [False, True])
def test_the_documentation_is_that_of_this_version(web: FrontEnd, packed: bool) -> None:
    accepts = {"Accept-Encoding": "gzip"} if packed else {}
    answer = web.as_(None).get("/page-files/docs.json", **accepts)
    raw = answer.get_data()
    said: dict[str, Any] = json.loads(gzip.decompress(raw) if packed else raw)
    assert said["pages"] == {f.stem: f.read_text() for f in DOCS.glob("*.md")}
    tag = answer.headers["ETag"]
    again = web.as_(None).get("/page-files/docs.json", **accepts, **{"If-None-Match": tag})
    assert (again.status_code, again.get_data()) == (304, b"")
    refused(web.as_(None).post("/page-files/docs.json"), 405, "methodNotAllowed")


def test_the_document_of_the_supervisor_is_passed_on(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/openapi.json"] = {"openapi": "3.1.0"}
    assert web.as_(ANN).get("/page-data/api-document").get_json() == {"openapi": "3.1.0"}
    packed = web.as_(ANN).get("/page-data/api-document", **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.get_data())) == {"openapi": "3.1.0"}
    refused(web.as_(None).get("/page-data/api-document"), 401, "unauthenticated")


@pytest.mark.parametrize("path", ["/account", "/docs", "/docs/site", "/reference/site?q=a"])
def test_each_page_has_an_address(web: FrontEnd, path: str) -> None:
    answer = web.as_(ANN).get(path)
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
