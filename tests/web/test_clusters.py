"""Cluster runs and cluster sign-in through the whole front end: browser, blueprint, the
supervisor's API, and a fake driver.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end_fixture import ANN, BOB, Browser, FrontEnd, refused
from login_nodes_fake import Api
from stub_supervisor import StubSupervisor

from jobscribe.client.transport.address import Address
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.web.handlers.cluster_fields import NAMES

#: A password that must not appear anywhere after it was typed.
CANARY = "canary-4711-correct-horse"
VALUES = {"frames": 3}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api("Vq3nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A")
    yield api
    api.close()


@pytest.fixture
def front(api: Api, make_web: Callable[..., FrontEnd]) -> FrontEnd:
    return make_web(Address(url=api.url, token="Vq3nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A", uid=ANN))


def wish(sid: str = "sim00001", **fields: Any) -> dict[str, Any]:
    """Return the request of a page for a heat run on a cluster."""
    batch = {"jobRunMode": "sbatch", **fields}
    return {
        "simulationType": "heat",
        "simulationId": sid,
        "report": "heatAnimation",
        "models": {"heatAnimation": {**VALUES, **batch}},
    }


def login(
    browser: Browser,
    username: str = "joe",
    password: str = "correct horse",
    otp: str = "123456",
    **more: Any,
) -> Any:
    return browser.said(
        "/sbatch-login",
        {"sbatchCredentials": {"username": username, "password": password, "otp": otp}, **more},
    )


def test_a_run_waits_for_the_sign_in_and_goes_on_after_it(front: FrontEnd, api: Api) -> None:
    ann = front.as_(ANN)
    asked = ann.said("/run-simulation", wish(sbatchCluster="beta"))
    assert asked["state"] == "srException" and asked["srException"]["routeName"] == "sbatchLogin"
    params = asked["srException"]["params"]
    assert (
        params["reason"],
        params["isModal"],
        params["simulationId"],
        params["computeModel"],
        params["report"],
        params["cluster"],
    ) == (
        "no-creds",
        True,
        "sim00001",
        "heatAnimation",
        "heatAnimation",
        "beta",
    )
    run = asked["run"]
    assert (
        run["state"] == "pending"
        and run["computeJobSerial"]
        and run["nextRequest"]["computeJobHash"]
    )
    status = ann.said("/run-status", run["nextRequest"])
    assert (status["state"], status["signIn"]["cluster"]) == ("pending", "beta")

    # clients without knowledge of clusters name the simulation
    about = {"simulationType": "heat", "simulationId": "sim00001", "report": "heatAnimation"}
    assert ann.said("/sbatch-login-status", about) | {"sentence": ""} == {
        "ready": False,
        "cluster": "beta",
        "host": "beta.example.org",
        "access": "ssh",
        "user": None,
        "sentence": "",
    }
    wrong = login(ann, password="no", **about)
    assert (
        wrong["state"] == "srException"
        and wrong["srException"]["params"]["reason"] == "invalid-creds"
    )
    assert (
        wrong["srException"]["params"]["simulationId"] == "sim00001"
        and "has not accepted" in wrong["srException"]["params"]["sentence"]
    )
    assert login(ann, **about) == {
        "state": "ok",
        "loginSuccess": True,
        "cluster": "beta",
        "user": "joe",
    }
    assert [t[1] for t in api.login_nodes.tried] == ["beta", "beta"]
    assert ann.said("/sbatch-login-status", about)["ready"] is True
    assert "signIn" not in ann.said("/run-status", run["nextRequest"])
    again = ann.said("/run-simulation", wish(sbatchCluster="beta"))
    assert (again["state"], again["computeJobSerial"]) == ("pending", run["computeJobSerial"]), (
        "asking again joins it"
    )
    # no other user is signed in by that
    assert front.as_(BOB).said("/sbatch-login-status", {"cluster": "beta"})["ready"] is False
    assert (
        front.as_(BOB).said("/run-simulation", wish(sbatchCluster="beta"))["state"] == "srException"
    )
    # no other user may sign in as this user, and this user may not sign in as another
    other = ann.post(
        "/sbatch-login",
        {
            "cluster": "beta",
            "sbatchCredentials": {"username": "ann", "password": CANARY, "otp": ""},
        },
    )
    refused(other, 409, "signedInAlready")
    out = ann.said("/sbatch-logout", {"cluster": "beta"})
    assert (out["signedOut"], out["agentEnded"], out["user"], out["runs"]) == (True, True, "joe", 0)
    assert (
        ann.said("/sbatch-login-status", about)["ready"] is False
        and len(api.login_nodes.tried) == 2
    )


def test_a_cluster_that_cannot_be_reached_is_another_reason_and_too_many_tries_a_refusal(
    front: FrontEnd, api: Api
) -> None:
    ann = front.as_(ANN)
    api.login_nodes.answer = lambda given: Refusal(
        "signInUnreachable", "login.example.org does not answer"
    )
    params = login(ann)["srException"]["params"]
    assert (params["reason"], params["sentence"], params["cluster"]) == (
        "general-connection-error",
        "login.example.org does not answer",
        "alpha",
    )
    api.login_nodes.answer = None
    for _ in range(3):
        assert login(ann, password="no")["srException"]["params"]["reason"] == "invalid-creds"
    answer = ann.post(
        "/sbatch-login",
        {"sbatchCredentials": {"username": "joe", "password": "correct horse", "otp": "123456"}},
    )
    assert "try again in 60 s" in refused(answer, 429, "tooManyRequests")["error"]
    assert len(api.login_nodes.tried) == 4


def test_a_sign_in_is_sent_once_whatever_becomes_of_it(stub: StubSupervisor, web: FrontEnd) -> None:
    stub.answers["/api/sbatch-login-status"] = {"ready": False, "cluster": "alpha", "host": "h"}
    stub.answers["/api/sbatch-login"] = (200, {"Content-Length": "1000"}, b"{")
    answer = web.as_(ANN).post(
        "/sbatch-login", {"sbatchCredentials": {"username": "joe", "password": CANARY}}
    )
    assert answer.status_code >= 500 and CANARY not in answer.get_data(as_text=True)
    stub.answers["/api/sbatch-login"] = Refusal("storageUnavailable", "not now")
    refused(
        web.as_(ANN).post(
            "/sbatch-login", {"sbatchCredentials": {"username": "joe", "password": CANARY}}
        ),
        503,
        "storageUnavailable",
    )
    assert len(stub.sent("/api/sbatch-login")) == 2
    assert CANARY not in web.lines.text()


def test_nothing_of_a_sign_in_is_seen_again(front: FrontEnd, api: Api) -> None:
    """Type the password in every field and in every wrong place. The driver repeats it in every
    possible way.
    """
    ann = front.as_(ANN)
    ann.said("/run-simulation", wish())
    fields = ("password", "otp", "privateKey", "passphrase", "certificate")
    answers: list[Any] = [
        None,
        lambda g: Refusal(
            "signInRefused",
            f"{g.user}: {g.password} {g.code} {g.key} {g.passphrase} {g.certificate}",
        ),
        lambda g: Refusal("signInUnreachable", f"{g.password}{g.code}"),
        lambda g: RuntimeError(f"{g.user} {g.password} {g.code} {g.key}"),
        lambda g: Refusal("internal", f"{g.password} {g.user}"),
    ]
    said = ""
    for n, answer in enumerate(answers):
        api.login_nodes.answer = answer
        chromium = front.as_(f"Canary0{n}")
        for one in (
            {"username": f"joe{n}", **dict.fromkeys(fields, CANARY)},
            {"username": f"{CANARY}{n}", "password": "short"},
            {"username": f"sue{n}", "otp": CANARY},
        ):
            said += chromium.post("/sbatch-login", {"sbatchCredentials": one}).get_data(
                as_text=True
            )
    for body in (
        {"sbatchCredentials": {"username": "joe", "password": [CANARY]}},
        {"sbatchCredentials": {CANARY: CANARY}},
        {"sbatchCredentials": CANARY},
        {"sbatchCredentials": {"username": f"{CANARY} {CANARY}"}},
        {"cluster": f"{CANARY} ", "sbatchCredentials": {"username": "joe"}},
        {"sbatchCredentials": {"username": "joe", "password": CANARY * 6_000}},
        [CANARY],
    ):
        answer = ann.post("/sbatch-login", body)
        assert answer.status_code in (400, 413)
        said += answer.get_data(as_text=True)
    for raw in (
        f'{{"{CANARY}": ',
        f'{{"sbatchCredentials": {{"username": "joe", "password": "{CANARY}',
    ):
        said += ann.ask(
            "POST", "/sbatch-login", data=raw.encode(), headers={"Content-Type": "application/json"}
        ).get_data(as_text=True)
    assert len(api.login_nodes.tried) >= 10, "it was really sent"

    engine = api.in_memory.engine
    jid = f"{ANN}-sim00001-heatAnimation"
    seen = {
        "answers": said,
        "log of the front end": front.lines.text(),
        "log of the supervisor": api.log(),
        "counters": json.dumps(api.in_memory.counters.all() | api.in_memory.counters.measured())
        + json.dumps(front.app.extensions["jobscribe"].counts.all()),
        "events": repr(engine.store.read(f"job/{jid}")),
        "job": repr(engine.durable(jid)),
        "status": json.dumps(ann.said("/own-jobs")),
    }
    assert all(seen.values())
    for where, text in seen.items():
        assert CANARY not in text, where


def test_the_gates_are_those_of_every_route(front: FrontEnd, api: Api) -> None:
    body = {"sbatchCredentials": {"username": "joe", "password": "correct horse", "otp": "123456"}}
    for path in ("/sbatch-login", "/sbatch-login-status"):
        refused(front.as_(None).post(path, body), 401, "unauthenticated")
        refused(front.as_(ANN).get(path), 405, "methodNotAllowed")
        refused(
            front.as_(ANN).post(path, body, **{"Sec-Fetch-Site": "cross-site"}), 403, "crossSite"
        )
        refused(
            front.as_(ANN).post(path, body, Origin="https://evil.example.org"), 403, "crossSite"
        )
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        refused(
            front.as_(ANN).ask("POST", path, data=b"sbatchCredentials=x", headers=form),
            403,
            "crossSite",
        )
    front.refusals[ANN, "sbatchLogin", None] = Refusal(
        "planRequired", "clusters are not in your plan"
    )
    refused(front.as_(ANN).post("/sbatch-login", body), 402, "planRequired")
    assert api.login_nodes.tried == []
    # the uid comes from the site, never from the body
    front.as_(BOB).said("/sbatch-login", {**body, "uid": ANN})
    assert [t[0] for t in api.login_nodes.tried] == [BOB]


def test_the_clusters_are_listed(front: FrontEnd, stub: StubSupervisor, web: FrontEnd) -> None:
    found = front.as_(ANN).get("/clusters").get_json()["clusters"]
    assert [(c["cluster"], c["access"], c["partitions"]) for c in found] == [
        ("alpha", "ssh", None),
        ("beta", "ssh", None),
        ("gamma", "account", None),
    ]
    assert web.as_(ANN).get("/clusters").get_json() == {"clusters": []}, (
        "an older supervisor knows of none"
    )


# ---- cluster fields of a simulation


def sent(stub: StubSupervisor, web: FrontEnd, **fields: Any) -> Any:
    """Return the run that the front end requests from the supervisor."""
    stub.answers["/api/run-simulation"] = {
        "state": "pending",
        "computeJid": f"{ANN}-sim00001-heatAnimation",
        "computeJobSerial": 7,
        "known": True,
    }
    web.as_(ANN).said("/run-simulation", wish(**fields))
    return stub.sent("/api/run-simulation")[-1]["run"]


@pytest.mark.parametrize(
    ("fields", "batch", "secs"),
    [
        ({}, {}, None),
        (
            {
                "sbatchQueue": "debug",
                "sbatchProject": "m123",
                "sbatchHours": 0.5,
                "sbatchNodes": 2,
                "sbatchCores": 8,
                "tasksPerNode": 4,
            },
            {"partition": "debug", "account": "m123", "nodes": 2, "cores": 8, "tasksPerNode": 4},
            1800.0,
        ),
        ({"sbatchCores": 16, "sbatchHours": "1.5"}, {"tasks": 16}, 5400.0),
        (
            {
                "sbatchNodes": "3",
                "sbatchCores": 4.0,
                "sbatchQueue": "",
                "sbatchProject": None,
                "sbatchHours": "",
            },
            {"nodes": 3, "cores": 4},
            None,
        ),
        (
            {"sbatchCluster": "beta", "sbatchQos": "long", "sbatchMemoryMb": 4096, "sbatchGpus": 0},
            {"cluster": "beta", "qos": "long", "memoryMb": 4096, "gpus": 0},
            None,
        ),
    ],
)
def test_fields_of_a_simulation_say_what_is_asked_of_the_cluster(
    stub: StubSupervisor,
    web: FrontEnd,
    fields: dict[str, Any],
    batch: dict[str, Any],
    secs: float | None,
) -> None:
    run = sent(stub, web, **fields)
    said = {k: v for k, v in run["batch"].items() if v not in (None, [], "")}
    assert (run["driver"], said, run["timeLimitSecs"]) == ("sbatch", batch, secs)
    assert (
        not NAMES & set(run["data"]["models"]["heatAnimation"])
        and run["data"]["models"]["heatAnimation"] == VALUES
    )
    assert BatchRequest().nodes is None


def test_where_it_runs_is_no_input(stub: StubSupervisor, web: FrontEnd) -> None:
    here, there = (
        sent(stub, web, jobRunMode="parallel", sbatchHours=7, sbatchCores="nonsense"),
        sent(stub, web, sbatchNodes=3),
    )
    assert here["computeJobHash"] == there["computeJobHash"]
    assert (here["driver"], "batch" in here, here["timeLimitSecs"]) == ("", False, None), (
        "without sbatch they mean nothing"
    )
    stub.answers["/api/run-status"] = {
        "state": "missing",
        "reason": "noRun",
        "known": True,
        "over": True,
        "computeJid": "x",
    }
    web.as_(ANN).said("/run-status", wish(sbatchNodes=3))
    assert stub.sent("/api/run-status")[-1]["computeJobHash"] == there["computeJobHash"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("jobRunMode", "slurm", "one of sequential, parallel, sbatch"),
        ("jobRunMode", ["sbatch"], "one of"),
        ("sbatchNodes", 0, "from 1 to"),
        ("sbatchNodes", 2.5, "whole number"),
        ("sbatchCores", "many", "whole number"),
        ("tasksPerNode", -1, "whole number"),
        ("sbatchCores", True, "whole"),
        ("sbatchHours", 0, "over 0"),
        ("sbatchHours", "NaN", "over 0"),
        ("sbatchHours", 1e9, "up to 8784"),
        ("sbatchHours", [1], "over 0"),
        ("sbatchQueue", "debug\n#SBATCH --uid=0", "a name as Slurm has them"),
        ("sbatchProject", "$(id)", "a name"),
        ("sbatchQueue", 7, "a name"),
        ("sbatchCluster", "../x", "a name"),
        ("sbatchNodes", 10**400, "whole number"),
        ("sbatchCores", "1e400", "whole number"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_its_name(
    stub: StubSupervisor, web: FrontEnd, field: str, value: Any, words: str
) -> None:
    body = refused(web.as_(ANN).post("/run-simulation", wish(**{field: value})), 400, "badRequest")
    assert body["error"].startswith(f"models.heatAnimation.{field} (") and words in body["error"]
    assert stub.sent("/api/run-simulation") == []


def test_what_the_cluster_does_not_have_is_said_in_the_supervisors_words(
    stub: StubSupervisor, web: FrontEnd
) -> None:
    for code in ("batchRefused", "resourceExceeded"):
        stub.answers["/api/run-simulation"] = Refusal(
            code, "partition debug of alpha has 2 nodes, not 5"
        )
        assert (
            refused(web.as_(ANN).post("/run-simulation", wish(sbatchNodes=5)), 400, code)["error"]
            == "partition debug of alpha has 2 nodes, not 5"
        )
