"""A web client, the front end and a real login node: sign-in as in Sirepo's own tests of batch
runs, and a check that no typed secret is stored.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end_fixture import ANN, BOB, Browser, FrontEnd
from login_nodes import Sshd, Users
from supervisor_process import SupervisorProcess, texts_below, until

WISH = {"simulationType": "myapp", "simulationId": "sim00001", "report": "heightWeightReport"}
BATCH = {
    "jobRunMode": "sbatch",
    "sbatchQueue": "batch",
    "sbatchHours": 0.05,
    "sbatchNodes": 1,
    "sbatchCores": 1,
}


@pytest.fixture
def site(make_cluster_site: Callable[..., SupervisorProcess]) -> SupervisorProcess:
    return make_cluster_site(clusters={"lab": {"access": "ssh", "link": "direct"}})


@pytest.fixture
def web(site: SupervisorProcess) -> Iterator[FrontEnd]:
    web = FrontEnd(str(site.root))
    yield web
    web.close()


def asked(browser: Browser) -> dict[str, Any]:
    said: dict[str, Any] = browser.said(
        "/run-simulation", {**WISH, "models": {WISH["report"]: BATCH}}
    )
    return said


def login(browser: Browser, username: str, **secrets: str) -> dict[str, Any]:
    said: dict[str, Any] = browser.said(
        "/sbatch-login", {**WISH, "sbatchCredentials": {"username": username, "otp": "", **secrets}}
    )
    return said


def reason(said: dict[str, Any]) -> str:
    assert said["state"] == "srException" and said["srException"]["routeName"] == "sbatchLogin", (
        said
    )
    return str(said["srException"]["params"]["reason"])


def test_no_credentials_wrong_ones_a_cluster_that_is_away_and_the_right_ones(
    web: FrontEnd, site: SupervisorProcess, sshd: Sshd, hpc_users: Users
) -> None:
    ann, name, right = web.as_(ANN), hpc_users["one"], hpc_users.password
    first = asked(ann)
    assert reason(first) == "no-creds" and first["run"]["state"] == "pending"
    assert ann.said("/sbatch-login-status", WISH)["ready"] is False
    sshd.stop()
    assert (
        reason(login(ann, name, password=right, otp=hpc_users.code("one")))
        == "general-connection-error"
    )
    sshd.start()
    before = sshd.failures("one")
    wrong = login(ann, name, password="canary-wrong-4711", otp=hpc_users.code("one"))
    assert (
        reason(wrong) == "invalid-creds"
        and "127.0.0.1" in wrong["srException"]["params"]["sentence"]
    )
    until(lambda: sshd.failures("one") > before, "its log tells of it")
    code = hpc_users.code("one")
    assert login(ann, name, password=right, otp=code)["loginSuccess"]
    until(lambda: ann.said("/sbatch-login-status", WISH)["ready"], "signed in")
    assert (
        ann.said("/sbatch-login-status", WISH)["user"] == name
        and sshd.failures("one") == before + 1
    ), "one answer for each attempt"
    assert reason(asked(web.as_(BOB))) == "no-creds", "nobody else is"

    # the waiting run continues by itself
    def state() -> dict[str, Any]:
        said: dict[str, Any] = ann.said("/run-status", first["run"]["nextRequest"])
        return said

    done = until(
        lambda: (s := state())["state"] not in ("pending", "running") and s, "it has run", 120
    )
    assert done["state"] == "completed" and done["batch"]["jobId"] and "resultError" not in done, (
        done
    )
    # no typed secret is in a file of the supervisor or in the front end's log
    left = [
        str(p)
        for p, text in texts_below(site.root).items()
        for secret in (right, code, "canary-wrong-4711")
        if secret.encode() in text
    ]
    assert left == [] and not any(
        secret in web.lines.text() for secret in (right, code, "canary-wrong-4711")
    )
