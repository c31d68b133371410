"""Definitions, clones and uploads of the page of a job, without a browser."""

import hashlib
from typing import Any

from front_end_fixture import ANN, BOB, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal

JID = f"{ANN}-abcdefgh-command"
SPEC: dict[str, Any] = {
    "uid": ANN,
    "simulationId": "abcdefgh",
    "command": ["python", "train.py", "--token", "hidden-1"],
    "driver": "local",
    "env": {"STEPS": "5", "API_TOKEN": "hidden-2"},
    "timeLimitSecs": 60,
    "simName": "train",
}
APP = {
    "uid": ANN,
    "simulationId": "abcdefgh",
    "simulationType": "odd",
    "computeModel": "oddReport",
    "data": {"simulationId": "abcdefgh", "models": {"oddReport": {"n": 1}}},
}


def stored(stub: StubSupervisor, spec: dict[str, Any]) -> None:
    event = {"type": "RunRequested", "reqId": "request0", "spec": spec}
    stub.answers["/api/job-story"] = {"events": [{"event": event}]}
    stub.answers["/api/run-simulation"] = {"state": "pending"}


def test_a_definition_is_a_job_file_without_secrets(web: FrontEnd, stub: StubSupervisor) -> None:
    stored(stub, SPEC)
    answer = web.as_(ANN).post("/page-data/job-definition", {"computeJid": JID})
    said = answer.get_json()
    assert said["definition"]["env"]["STEPS"] == "5" and said["definition"]["timeLimit"] == 60
    assert said["definition"]["clonedFrom"] == JID and said["app"] is False
    assert "hidden" not in answer.get_data(as_text=True)
    assert {w["name"] for w in said["withheld"]} == {"API_TOKEN", "token"}
    assert said["definition"]["env"]["API_TOKEN"] in {w["reference"] for w in said["withheld"]}
    refused(web.as_(BOB).post("/page-data/job-definition", {"computeJid": JID}), 404, "notFound")


def test_a_clone_is_checked_as_a_whole_and_starts_once(web: FrontEnd, stub: StubSupervisor) -> None:
    stored(stub, SPEC)
    found = web.as_(ANN).said("/page-data/job-definition", {"computeJid": JID})["definition"]
    clone = {"computeJid": JID, "reqId": "request1", "definition": found}
    # values that were not copied, and all other problems at once, each with its place
    bad = {**found, "timeLimit": -1, "odd": 1}
    error = web.as_(ANN).post("/page-data/job-clone", {**clone, "definition": bad})
    refused(error, 400, "badRequest")
    paths = {p["path"] for p in error.get_json()["problems"]}
    assert {"timeLimit", "odd", "env.API_TOKEN"} <= paths
    assert stub.sent("/api/run-simulation") == []

    env = {"STEPS": "6", "TOKEN_FILE": "token.txt"}
    good = {**found, "env": env, "command": ["true"], "name": "again"}
    for _ in range(2):
        sent = web.as_(ANN).said("/page-data/job-clone", {**clone, "definition": good})
        assert sent == {"state": "pending"}
    stub.answers["/api/run-simulation"] = {"runDir": f"/srv/user/{ANN}/command/abcdefgh/command"}
    sent = web.as_(ANN).said("/page-data/job-clone", {**clone, "definition": good})
    assert sent == {"runDir": ""}, "the answer to a repetition has no path of the site"
    first, second, _ = stub.sent("/api/run-simulation")
    assert first == second and first["reqId"] == "request1"
    run = first["run"]
    assert (run["uid"], run["command"], run["env"]) == (ANN, ["true"], env)
    assert run["simulationId"] != "abcdefgh" and run["clonedFrom"] == JID
    two = {"jobs": {n: {"command": "true"} for n in "ab"}}
    refused(
        web.as_(ANN).post("/page-data/job-clone", {**clone, "definition": two}), 400, "badRequest"
    )
    refused(web.as_(BOB).post("/page-data/job-clone", clone), 404, "notFound")
    web.refusals = {(ANN, "runSimulation", "command"): Refusal("planRequired", "no runs")}
    refused(
        web.as_(ANN).post("/page-data/job-clone", {**clone, "definition": good}),
        402,
        "planRequired",
    )


def test_a_clone_of_an_apps_run_has_a_simulation_of_its_own(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    stored(stub, APP)
    jid = f"{ANN}-abcdefgh-oddReport"
    found = web.as_(ANN).said("/page-data/job-definition", {"computeJid": jid})
    assert found["app"] is True
    clone = {"computeJid": jid, "reqId": "request1", "definition": found["definition"]}
    web.as_(ANN).said("/page-data/job-clone", clone)
    run = stub.sent("/api/run-simulation")[0]["run"]
    assert run["simulationId"] == run["data"]["simulationId"] != "abcdefgh"
    assert run["simulationType"] == "odd" and run["data"]["models"] == {"oddReport": {"n": 1}}


def test_a_part_of_a_file_is_for_ones_own_job(web: FrontEnd) -> None:
    digest = hashlib.sha256(b"abcdef").hexdigest()
    path = f"/page-data/job-file/{JID}?name=in/a.txt&sha256={digest}&size=6"
    headers = {"X-Jobscribe": "1"}
    refused(web.as_(ANN).ask("PUT", path, data=b"abc"), 403, "crossSite")
    refused(web.as_(BOB).ask("PUT", path, data=b"abc", headers=headers), 404, "notFound")
    odd = path.replace(digest, "odd")
    refused(web.as_(ANN).ask("PUT", odd, data=b"abc", headers=headers), 400, "badRequest")
