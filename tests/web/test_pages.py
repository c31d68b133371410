"""The pages without a browser: their document and files, and requests that are passed on."""

import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import flask
import pytest
from front_end_fixture import ADM, ANN, BOB, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.handshake import ACTOR, SIGNED_IN
from jobscribe.web import PageOptions, create_blueprint

JID = f"{ANN}-abcdefgh-command"


def metas(text: str) -> dict[str, str]:
    return dict(re.findall(r'<meta name="jobscribe-(\w+)" content="([^"]*)">', text))


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs", f"/jobs/{JID}", "/jobs/a/b", "/jobs?state=error"),
        *("/submit", "/apps/heat/abcdefgh", "/queues", "/account", "/docs/site", "/reference"),
    ],
)
def test_each_address_is_the_same_document(make_web: Callable[..., FrontEnd], path: str) -> None:
    for prefix in ("", "/sims/a"):
        web = make_web("/nowhere", prefix=prefix)
        answer = web.as_(ANN).get(prefix + path)
        text = answer.get_data(as_text=True)
        assert (answer.status_code, answer.mimetype) == (200, "text/html")
        assert metas(text) == {"base": prefix, "user": ANN, "home": "", "site": "jobscribe"}
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and answer.headers["Cache-Control"] == "no-store"
        assert "<style" not in text and not re.search(r"<script(?![^>]* src=)|\son\w+=", text)
        for link in re.findall(r'(?:src|href)="([^"]+)"', text):
            assert link.startswith(prefix + "/page-files/")
            assert web.as_(None).get(link).status_code == 200
        assert metas(web.as_(None).get(prefix + path).get_data(as_text=True))["user"] == ""


def test_who_opens_apps_gets_the_page_and_others_get_data(web: FrontEnd) -> None:
    ann = web.as_(ANN)
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    for accept, kind in ((browser, "text/html"), ("*/*", "application/json")):
        answer = ann.get("/apps", Accept=accept)
        assert (answer.mimetype, answer.headers["Vary"]) == (kind, "Accept")
    assert ann.get("/apps").get_json()["apps"]
    assert web.as_(None).get("/apps", Accept=browser).status_code == 200
    refused(web.as_(None).get("/apps"), 401, "unauthenticated")
    refused(ann.post("/apps"), 405, "methodNotAllowed")


def test_the_name_of_a_simulation_is_that_of_its_job(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/run-simulation"] = {"state": "pending", "computeJid": JID}
    run = {"simulationType": "heat", "simulationId": "abcdefgh", "report": "heatAnimation"}
    hashes = set()
    for simulation in (
        {"name": "my plate"},
        {"name": " "},
        {"name": 3},
        {"name": "a\0b"},
        "odd",
        {},
    ):
        web.as_(ANN).said("/run-simulation", {**run, "models": {"simulation": simulation}})
        hashes.add(stub.sent("/api/run-simulation")[-1]["run"]["computeJobHash"])
    names = [sent["run"].get("simName") for sent in stub.sent("/api/run-simulation")]
    assert names == ["my plate", None, None, None, None, None]
    assert len(hashes) == 1, "a name changes no result"


def test_files_are_kept_for_ever_and_compressed(web: FrontEnd) -> None:
    text = web.as_(ANN).get("/jobs").get_data(as_text=True)
    names = re.findall(r'"(/page-files/[^"]+)"', text)
    size = 0
    for name in names:
        plain = web.as_(None).get(name)
        packed = web.as_(None).get(name, **{"Accept-Encoding": "gzip"})
        assert "immutable" in plain.headers["Cache-Control"] and "nosniff" in str(plain.headers)
        types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert plain.mimetype == types[name.rpartition(".")[2]]
        if packed.headers.get("Content-Encoding") == "gzip":
            assert gzip.decompress(packed.get_data()) == plain.get_data()
        size += len(packed.get_data())
    assert size < 200_000 and len(names) >= 3
    for other in ("manifest.json", "sources.sha256", "..", "nosuch.js"):
        refused(web.as_(ANN).get(f"/page-files/{other}"), 404, "notFound")
    refused(web.as_(ANN).post("/jobs"), 405, "methodNotAllowed")


def test_a_site_chooses_its_style_and_title_or_no_pages() -> None:
    def site(pages: PageOptions | None) -> Any:
        app = flask.Flask("a_site")
        blueprint = create_blueprint(supervisor="/nowhere", user=lambda r: ANN, pages=pages)
        app.register_blueprint(blueprint, url_prefix="/sims")
        return app.test_client()

    options = PageOptions(style="/our.css", home='/"><b>', title="A & B")
    text = site(options).get("/sims/jobs").get_data(as_text=True)
    assert '<link rel="stylesheet" href="/our.css">' in text and "<title>A &amp; B</title>" in text
    assert "<b>" not in text and metas(text)["home"] == "/&quot;&gt;&lt;b&gt;"
    without = site(None)
    assert without.get("/sims/jobs").status_code == 404
    for pages, there in ((None, False), (options, True)):
        client = site(pages)
        paths = client.get("/sims/openapi.json").get_json()["paths"]
        assert any(p.startswith("/sims/page-data/") for p in paths) is there
        assert "/sims/run-cancel" in paths
        body = {"computeJid": JID}
        found = client.post("/sims/page-data/job-why", json=body).status_code
        assert (found == 404) is not there, found


def test_requests_are_passed_on_with_the_signed_in_user(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    answer = b'{"jobs":[],"next":null,"more":{"from":"the supervisor"}}'
    stub.answers["/api/job-search"] = (200, {}, answer)
    got = web.as_(ANN).post("/page-data/job-search", {"states": ["error"], "text": "a"})
    assert got.get_data() == answer
    assert stub.sent("/api/job-search")[0]["uid"] == ANN
    # nobody names another user, or a job of one
    for body in ({"uid": BOB}, {"uid": ANN}, {"odd": 1}, {"limit": 10**6}):
        refused(web.as_(ANN).post("/page-data/job-search", body), 400, "badRequest")
    # log lines need a scope that users do not have, and a request that waits holds a worker
    refused(web.as_(ANN).post("/page-data/trace", {"id": JID, "logs": True}), 400, "badRequest")
    for name in ("run-status", "job-log"):
        waiting = {"computeJid": JID, "waitSecs": 30}
        refused(web.as_(ANN).post(f"/page-data/{name}", waiting), 400, "badRequest")
    stub.answers["/api/run-cancel"] = {"state": "canceled"}
    stub.answers["/api/run-status"] = {"state": "running", "simulationType": "command"}
    cancel = {"computeJid": JID, "reqId": "request1", "reason": "no use"}
    refused(web.as_(BOB).post("/page-data/run-cancel", cancel), 404, "notFound")
    refused(web.as_(BOB).get(f"/page-data/job-file/{JID}?name=a"), 404, "notFound")
    assert len(stub.requests) == 1
    assert web.as_(ANN).said("/page-data/run-cancel", cancel) == {"state": "canceled"}
    assert (
        stub.sent("/api/run-cancel")[0] | {"uid": ANN, **cancel} == stub.sent("/api/run-cancel")[0]
    )
    sent = len(stub.sent("/api/run-cancel"))
    for key in (("runCancelPage", None), ("runCancel", None), ("runCancel", "command")):
        web.refusals = {(ANN, *key): Refusal("forbidden", "not on this site")}
        refused(web.as_(ANN).post("/page-data/run-cancel", cancel), 403, "forbidden")
    assert len(stub.sent("/api/run-cancel")) == sent
    for path, *apis in (
        ("job-file", "jobFilePage", "downloadRunFile"),
        ("job-output", "jobOutputPage", "runLog"),
    ):
        for api in apis:
            web.refusals = {(ANN, api, None): Refusal("forbidden", "not on this site")}
            refused(web.as_(ANN).get(f"/page-data/{path}/{JID}?name=a"), 403, "forbidden")


def test_a_limit_of_searches_is_passed_on(web: FrontEnd, stub: StubSupervisor) -> None:
    many = Refusal("tooManyRequests", "4 searches are running", {"retryAfterSecs": 1})
    stub.answers["/api/job-search"] = many
    answer = web.as_(ANN).post("/page-data/job-search", {})
    refused(answer, 429, "tooManyRequests")
    assert answer.headers["Retry-After"] == "1"


def test_a_request_about_others_names_its_sender_and_not_its_subject(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stub.answers["/api/job-search"] = (200, {}, b'{"jobs":[]}')
    stub.answers["/api/whoami"] = {"role": "groupAdmin"}
    web.as_(ANN).post("/page-data/site/job-search", {"uid": BOB})
    web.as_(ANN).post("/page-data/site/job-search", {})
    web.as_(ADM).post("/page-data/site/job-search", {})
    assert [r.get("uid") for r in stub.sent("/api/job-search")] == [BOB, None, None]
    assert web.as_(ANN).said("/page-data/site/whoami", {}) == {"role": "groupAdmin"}
    named = [(h.get(SIGNED_IN), h.get(ACTOR)) for h in stub.headers]
    assert named == [(ANN, None), (ANN, None), (None, ADM), (ANN, None)]
    refused(web.as_(None).post("/page-data/site/job-search", {}), 401, "unauthenticated")
    refused(web.as_(ANN).post("/page-data/site/whoami", {"uid": BOB}), 400, "badRequest")


ROOT = "/srv/our site/root"
AGENT = f"{ROOT}/agent/local.parallel.{ANN}@localhost"
RUN_DIR = f"{ROOT}/user/{ANN}/command/abcdefgh/command"


def test_pages_get_no_path_of_the_site(web: FrontEnd, stub: StubSupervisor) -> None:
    agent, run_dir = (p.replace(" ", "-") for p in (AGENT, RUN_DIR))
    mine = {"command": [f"{RUN_DIR}/own.py"]}
    stub.answers["/api/job-story"] = {
        "events": [{"event": {"runDir": RUN_DIR, "spec": mine, "handle": {"folder": AGENT}}}],
        "lines": [
            f"cannot write '{run_dir}/a/0/x.dat': disk full",
            f"see {agent}/run/{JID}-17-1-main-0/stderr.log",
            f"{agent} has no room; read /etc/motd",
        ],
    }
    stub.answers["/api/job-tasks"] = {
        "tasks": [
            {"runDir": f"{RUN_DIR}/a/0", "evidence": f"{AGENT}/run/{JID}-17-1-a-0"},
            {"runDir": None, "evidence": None, "exit": {"lastLines": f"open {run_dir}/x"}},
        ]
    }
    stub.answers["/api/run-status"] = stub.answers["/api/trace"] = {"runDir": RUN_DIR, "x": [1.5]}
    asked = {"computeJid": JID}
    story = web.as_(ANN).said("/page-data/job-story", asked)
    (event,) = (e["event"] for e in story["events"])
    assert event == {"runDir": "", "spec": mine, "handle": {"folder": None}}
    assert story["lines"] == [
        "cannot write 'a/0/x.dat': disk full",
        "see stderr.log",
        "(folder of the agent) has no room; read /etc/motd",
    ]
    tasks = web.as_(ANN).said("/page-data/job-tasks", asked)["tasks"]
    assert tasks[0] == {"runDir": "a/0", "evidence": None}
    assert tasks[1]["exit"]["lastLines"] == f"open {run_dir}/x", "the job has printed it"
    for path, body in (("run-status", asked), ("trace", {"id": JID})):
        assert web.as_(ANN).said(f"/page-data/{path}", body) == {"runDir": "", "x": [1.5]}


def test_pages_get_no_paths_of_machines(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/agents"] = {"agents": [{"agent": "a", "log": "/srv/x", "jobs": ["b"]}]}
    stub.answers["/api/agent-logs"] = {"text": "starts", "where": "/srv/x"}
    said = web.as_(ANN).said("/page-data/site/agents", {})
    assert said == {"agents": [{"agent": "a", "jobs": ["b"]}]}
    assert web.as_(ANN).said("/page-data/site/agent-logs", {"agent": "a"}) == {"text": "starts"}
    agent, run_dir = (p.replace(" ", "-") for p in (AGENT, RUN_DIR))
    stub.answers["/api/agent-logs"] = {"text": f"started in {agent}\nruns {run_dir}/a/0"}
    assert web.as_(ANN).said("/page-data/site/agent-logs", {"agent": "a"}) == {
        "text": "started in (folder of the agent)\nruns a/0"
    }
    own = f"jobscribe run -- {run_dir}/own.py"
    lines = [f"    task main 0, in {run_dir}", f"    task main 0, in {run_dir}/a/0"]
    stub.answers["/api/job-check"] = {"jobs": [{"name": "x", "lines": lines}], "command": own}
    assert web.as_(ANN).said("/page-data/job-check", {"text": "x"}) == {
        "jobs": [{"name": "x", "lines": ["    task main 0", "    task main 0, in a/0"]}],
        "command": own,
    }
    stub.answers["/api/run-text"] = {"jobs": {"x": [{"state": "running", "runDir": RUN_DIR}]}}
    sent = web.as_(ANN).said("/page-data/run-text", {"reqId": "request1", "text": "x"})
    assert sent == {"jobs": {"x": [{"state": "running", "runDir": ""}]}}


def test_a_retry_is_the_newest_request_once(web: FrontEnd, stub: StubSupervisor) -> None:
    spec = {"uid": ANN, "simulationId": "abcdefgh", "command": ["true"], "driver": "local"}
    event = {"type": "RunRequested", "reqId": "request0", "spec": spec}
    stub.answers["/api/job-story"] = {"events": [{"event": event}]}
    stub.answers["/api/run-status"] = {"state": "running"}
    stub.answers["/api/run-simulation"] = {"state": "pending"}
    retry = {"computeJid": JID, "reqId": "request1"}
    refused(web.as_(ANN).post("/page-data/job-retry", retry), 409, "conflict")
    stub.answers["/api/run-status"] = {"state": "error"}
    assert web.as_(ANN).said("/page-data/job-retry", retry) == {"state": "pending"}
    (sent,) = stub.sent("/api/run-simulation")
    assert (sent["reqId"], sent["forceRun"]) == ("request1", True)
    assert sent["run"]["command"] == ["true"] and sent["run"]["driver"] == "local"
    # the same request again, because its answer was lost: the run is active meanwhile
    stub.answers["/api/run-status"] = {"state": "running"}
    event["reqId"] = "request1"
    assert web.as_(ANN).said("/page-data/job-retry", retry) == {"state": "pending"}
    web.refusals[(ANN, "jobRetryPage", "command")] = Refusal("planRequired", "not in your plan")
    refused(web.as_(ANN).post("/page-data/job-retry", retry), 402, "planRequired")
    web.refusals = {(ANN, "runSimulation", "command"): Refusal("planRequired", "no runs")}
    refused(web.as_(ANN).post("/page-data/job-retry", retry), 402, "planRequired")


def test_output_keeps_its_place_and_cannot_be_a_page(web: FrontEnd, stub: StubSupervisor) -> None:
    place = {"Offset": "5", "Next-Offset": "25", "Dropped": "0", "End": "true"}
    place |= {"Attempt": "2", "Role": "a", "Index": "1"}
    headers = {f"X-Jobscribe-{name}": value for name, value in place.items()}
    stub.answers["/api/job-log"] = (200, headers, b"<script>alert(1)</script>")
    answer = web.as_(ANN).post("/page-data/job-log", {"computeJid": JID, "tail": 100})
    assert (
        answer.mimetype == "text/plain" and "sandbox" in answer.headers["Content-Security-Policy"]
    )
    assert {k: answer.headers[k] for k in headers} == headers
    output = web.as_(ANN).get(f"/page-data/job-output/{JID}?stream=stderr&attempt=2&role=a&index=1")
    assert output.get_data() == b"<script>alert(1)</script>" and output.mimetype == "text/plain"
    sent = stub.sent("/api/job-log")[-1]
    assert (sent["stream"], sent["attempt"], sent["role"], sent["index"]) == ("stderr", 2, "a", 1)
    refused(web.as_(ANN).get(f"/page-data/job-output/{JID}?stream=x"), 400, "badRequest")


def test_a_download_of_output_stays_with_its_attempt(web: FrontEnd, stub: StubSupervisor) -> None:
    def piece(body: dict[str, Any]) -> Any:
        last = body["offset"] == 3
        place: dict[str, Any] = {
            "Offset": body["offset"],
            "Next-Offset": body["offset"] + 3,
            "Dropped": 0,
        }
        place |= {"Serial": 17, "Attempt": 2, "Role": "worker", "Index": 1}
        place["End"] = "true" if last else "false"
        if rerun and last:
            return Refusal("staleSerial", "run 17 is not the current one")
        headers = {f"X-Jobscribe-{name}": str(value) for name, value in place.items()}
        return 200, headers, b"two" if last else b"one"

    rerun: list[bool] = []
    stub.answers["/api/job-log"] = piece
    assert web.as_(ANN).get(f"/page-data/job-output/{JID}").get_data() == b"onetwo"
    first, second = stub.sent("/api/job-log")
    assert first["attempt"] == first["computeJobSerial"] == 0
    assert second["computeJobSerial"] == 17
    rerun.append(True)
    said = web.as_(ANN).get(f"/page-data/job-output/{JID}").get_data()
    assert said.startswith(b"one\n[the job was started again"), said
    assert (second["attempt"], second["role"], second["index"]) == (2, "worker", 1)


def test_a_described_job_has_the_plan_of_the_site_and_its_permission(
    make_web: Callable[..., FrontEnd], stub: StubSupervisor
) -> None:
    web = make_web(stub.address, plan=lambda uid: "gold")
    stub.answers["/api/run-text"] = {"jobs": {}}
    stub.answers["/api/job-check"] = {"problems": []}
    stub.answers["/api/job-options"] = {"drivers": []}
    sent = {"reqId": "request1", "text": "name: x", "tags": ["a"]}
    assert web.as_(ANN).said("/page-data/run-text", sent) == {"jobs": {}}
    web.as_(ANN).said("/page-data/job-check", {"text": "x" * 2_500_000, "plan": True})
    web.as_(ANN).said("/page-data/job-options", {})
    for path in ("run-text", "job-check", "job-options"):
        (got,) = stub.sent(f"/api/{path}")
        assert (got["uid"], got["activePlan"]) == (ANN, "gold")
    # user and plan are not the page's to choose
    for more in ({"uid": BOB}, {"activePlan": "platinum"}):
        refused(web.as_(ANN).post("/page-data/run-text", sent | more), 400, "badRequest")
    large = {"text": "x" * 3_200_000}
    refused(web.as_(ANN).post("/page-data/job-check", large), 413, "tooLarge")
    # the problems of the text reach its author
    problems = [{"line": 3, "path": "name", "problem": "p", "right": "r"}]
    body = {"code": "badRequest", "error": "not valid", "retry": False, "problems": problems}
    stub.answers["/api/run-text"] = (400, {}, json.dumps(body | {"state": "error"}).encode())
    said = refused(web.as_(ANN).post("/page-data/run-text", sent), 400, "badRequest")
    assert said["problems"] == problems
    # a site that restricts the start of runs restricts this one, too
    for api in ("runTextPage", "runSimulation"):
        web.refusals = {(ANN, api, "command"): Refusal("planRequired", "not in your plan")}
        refused(web.as_(ANN).post("/page-data/run-text", sent), 402, "planRequired")
    web.refusals = {(ANN, "jobCheckPage", "command"): Refusal("forbidden", "no")}
    refused(web.as_(ANN).post("/page-data/job-check", {"text": ""}), 403, "forbidden")


def test_a_job_of_another_user_is_asked_for_in_the_name_of_the_signed_in_user(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    asked = {"uid": ANN, "computeJid": JID}
    stub.answers["/api/run-status"] = {"state": "running"}
    stub.answers["/api/job-why"] = {"state": "error", "try": ["wait", "docker ps"], "path": "/x"}
    stub.answers["/api/run-cancel"] = {"state": "canceled"}
    stub.answers["/api/job-log"] = (200, {"X-Jobscribe-Offset": "0", "X-Jobscribe-End": "true",
                                          "X-Jobscribe-Dropped": "0"}, b"output")  # fmt: skip
    bob, chief = web.as_(BOB), web.as_(ADM)
    assert bob.said("/page-data/site/run-status", asked) == {"state": "running"}
    assert bob.said("/page-data/site/job-why", asked) == {"state": "error", "try": ["wait"]}
    chief.said("/page-data/site/run-cancel", asked | {"reqId": "request1", "reason": "why"})
    assert chief.post("/page-data/site/job-log", asked).get_data() == b"output"
    assert chief.get(f"/page-data/site/job-output/{JID}").get_data() == b"output"
    senders = [h.get(SIGNED_IN) or h.get(ACTOR) for h in stub.headers]
    assert senders == [BOB, BOB, *[ADM] * 4], "a cancel asks for the app of the job first"
    assert {r["uid"] for path in ("run-status", "run-cancel", "job-log") for r in stub.sent(f"/api/{path}")} == {ANN}  # fmt: skip
    # the front end itself asks about one's own jobs
    web.as_(ANN).said("/page-data/run-status", {"computeJid": JID})
    assert (stub.headers[-1].get(SIGNED_IN), stub.headers[-1].get(ACTOR)) == (None, None)
    refused(web.as_(None).post("/page-data/site/run-status", asked), 401, "unauthenticated")
    refused(bob.post("/page-data/site/run-status", {"computeJid": JID}), 400, "badRequest")


def test_a_shell_is_opened_and_used_in_the_name_of_the_signed_in_user(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    asked = {"uid": ANN, "computeJid": JID, "shellId": "s" * 32}
    stub.answers["/api/shell-open"] = {"state": "ok"}
    # base64 that looks like a path of the site stays as it is
    data = "/aaaa/agent/local.parallel.AnnAnn01@here/"
    stub.answers["/api/shell-use"] = {"data": data}
    for uid in (ANN, BOB, ADM):
        assert web.as_(uid).said("/page-data/site/shell-open", asked) == {"state": "ok"}
        assert web.as_(uid).said("/page-data/site/shell-use", asked) == {"data": data}
    senders = [h.get(SIGNED_IN) or h.get(ACTOR) for h in stub.headers]
    assert senders == [ANN, ANN, BOB, BOB, ADM, ADM], "the supervisor decides by the sender's role"
    ann = web.as_(ANN)
    for path, more in (("open", {"program": {"name": "stacks"}}), ("use", {"waitSecs": 20})):
        refused(ann.post(f"/page-data/site/shell-{path}", asked | more), 400, "badRequest")
    refused(web.as_(None).post("/page-data/site/shell-use", asked), 401, "unauthenticated")
    # a site that refuses this user runs of commands refuses shells, too
    web.refusals = {(ANN, "runSimulation", "command"): Refusal("planRequired", "not in your plan")}
    refused(ann.post("/page-data/site/shell-open", asked), 402, "planRequired")
    web.refusals = {(ANN, "shellUseSitePage", None): Refusal("forbidden", "no")}
    refused(ann.post("/page-data/site/shell-use", asked), 403, "forbidden")
