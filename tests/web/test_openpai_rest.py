"""OpenPAI's REST interface under the address of the front end: tokens for passwords by the real
libpam, and requests that a real supervisor answers with the token of their sender.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from front_end_fixture import Lines
from loop_lag import check_lag
from pam_engine import SERVICE, pam
from supervisor_process import SupervisorProcess, ended

from jobscribe.client.transport.address import Address
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.service.settings.settings import ServerSettings, Settings
from jobscribe.web.server import application, openpai_rest, sign_in
from jobscribe.web.server.user_ids import UserIds
from jobscribe.web.sign_in import password_tokens
from jobscribe.web.sign_in.password_check import PasswordCheck

SITE = "https://jobs.example.org"
ANN = {"username": "ann", "password": "Pw7-of-ann-here"}
JOB = {
    "jobName": "count",
    "image": "python:3.11",
    "taskRoles": [{"name": "one", "memoryMB": 100, "command": "echo counted $((40 + 2))"}],
}


class Site:
    """A front end with passwords in this process, and its supervisor beside it."""

    def __init__(
        self, supervisor: SupervisorProcess, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.lines, self.supervisor, self.uids = Lines(), supervisor, folder / "uids.json"
        env = pam(folder)
        patch.setattr(
            sign_in, "PasswordCheck", lambda service, log: PasswordCheck(service, log, env=env)
        )
        address = Address(url=supervisor.url, token=supervisor.token, uid="AnnAnn01")
        server = ServerSettings(
            pam_service=SERVICE, public_url=SITE, uid_file=str(self.uids), threads=2
        )
        log = Log("server", Redactor(), self.lines)
        self.app = application.create_app(
            Settings(server=server), lambda: address, log, sessions=None
        )

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Return the status and the body. more: further headers, or `data` instead of a JSON body."""
        given = more.pop("data", None)
        headers = {k.replace("_", "-"): v for k, v in more.items()}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = {"json": body} if given is None else {"data": given}
        client = self.app.test_client()
        answer = client.open(
            path, method=method, headers=headers, base_url=SITE, **data, buffered=True
        )
        text = answer.get_data(as_text=True)
        return answer.status_code, json.loads(text) if text[:1] in ("{", "[") else text


@pytest.fixture(scope="module")
def supervisor() -> Iterator[SupervisorProcess]:
    with ended(check_lag) as sites:
        sites.append(SupervisorProcess(()))
        yield sites[0].start()


@pytest.fixture
def site(
    supervisor: SupervisorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    made = Site(supervisor, tmp_path, monkeypatch)
    yield made
    made.app.extensions["jobscribe"].close()


def test_a_client_signs_in_with_a_password_and_runs_a_job_under_its_own_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = site.ask("POST", "/api/v1/token", ANN | {"expiration": 3600})
    assert code == 200 and said.keys() == {"token", "user", "admin"}, said
    token, uid = said["token"], said["user"]
    assert (uid, said["admin"]) == (UserIds(site.uids).known("ann"), False)
    jobs = "/api/v1/user/ann/jobs"
    code, said = site.ask("POST", f"{jobs}?noImage=true", JOB, token)
    assert (code, said["message"][:10]) == (202, "update job"), said
    deadline = time.monotonic() + 60
    while (state := site.ask("GET", f"{jobs}/count", token=token)[1])["jobStatus"]["state"] in (
        "WAITING",
        "RUNNING",
    ):
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    assert state["jobStatus"]["state"] == "SUCCEEDED", state
    # links lead to this address
    (task,) = state["taskRoles"]["one"]["taskStatuses"]
    assert task["containerLog"].startswith(f"{SITE}/api/v2/jobs/{uid}~count/")
    log = task["containerLog"].removeprefix(SITE)
    assert "counted 42" in site.ask("GET", log, token=token)[1]
    monkeypatch.setattr(openpai_rest, "AT_ONCE_BYTES", 1)  # piece by piece
    assert "counted 42" in site.ask("GET", log.replace(f"{uid}~", "ann~"), token=token)[1]
    (row,) = site.ask("GET", "/api/v1/jobs?username=ann", token=token)[1]
    assert (row["name"], row["username"]) == ("count", uid)
    code, said = site.ask("GET", "/api/v2/jobs?username=ann&withTotalCount=true", token=token)
    assert (code, said["totalCount"]) == (200, 1)
    # with a token, the supervisor answers
    assert site.ask("POST", "/api/v1/token", {}, token) == (
        200,
        {"token": token, "user": uid, "admin": False},
    )
    # errors are the supervisor's
    assert site.ask("GET", f"{jobs}/other", token=token)[0] == 404
    assert site.ask("GET", "/api/v1/user/Somebody/jobs", token=token)[0] == 403
    code, said = site.ask("PUT", f"{jobs}/count/executionType", {"value": "BAD"}, token)
    assert (code, said["code"]) == (400, "InvalidParametersError"), said
    texts = site.lines.text() + site.uids.read_text() + site.supervisor.log()
    assert ANN["password"] not in texts and token not in texts


def test_a_form_is_as_good_and_old_tokens_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_tokens, "KEPT", 2)
    given = [site.ask("POST", "/api/v1/token", data=ANN) for _ in range(4)]
    assert [code for code, _ in given] == [200] * 4, given
    works = [site.ask("GET", "/api/v1/jobs", token=said["token"])[0] for _, said in given]
    assert works == [401, 401, 200, 200]


def test_a_wrong_password_an_unknown_name_and_bad_requests_are_refused(site: Site) -> None:
    wrong = {
        site.ask("POST", "/api/v1/token", {**ANN, **w})[1]["code"]
        for w in (
            {"password": "wrong"},
            {"username": "eve"},
        )
    }
    assert wrong == {"IncorrectPassworkError"}
    code, said = site.ask(
        "POST", "/api/v1/token", {"username": "bob", "password": "Pw7-of-bob-here"}
    )
    assert (code, said["code"]) == (403, "ForbiddenUserError")
    for body in ({}, {"username": "ann"}, {**ANN, "expiration": -1}, {**ANN, "password": 7}, [1]):
        code, said = site.ask("POST", "/api/v1/token", body)
        assert (code, said["code"]) == (400, "InvalidParametersError"), said
        assert "Pw7" not in said["message"]
    assert site.ask("POST", "/api/v1/token", {**ANN, "password": "x" * 20_000})[0] == 413
    # a page of another site
    assert site.ask("POST", "/api/v1/token", ANN, Origin="https://evil.example")[0] == 403
    # guesses are limited
    codes = [site.ask("POST", "/api/v1/token", {**ANN, "password": "no"})[0] for _ in range(5)]
    assert 429 in codes
    assert "Pw7" not in site.lines.text()


def test_nobody_gets_the_rights_of_the_front_end(site: Site) -> None:
    somebody = {"X_Jobscribe_Signed_In": "AnnAnn01", "X_Jobscribe_Actor": "AnnAnn01"}
    secret = site.supervisor.token
    for token in (None, secret, "", "jst_" + "x" * 52):
        for path in ("/api/v1/jobs", "/api/v1/user/AnnAnn01/jobs", "/api/v2/jobs"):
            assert site.ask("GET", path, token=token, **somebody)[0] == 401, (token, path)
    token = site.ask("POST", "/api/v1/token", ANN)[1]["token"]
    assert site.ask("GET", "/api/v1/user/AnnAnn01/jobs", token=token, **somebody)[0] == 403
    # nothing else of the supervisor is reachable this way
    for path in (
        "/api/v1/../site-users",
        "/api/v1/%2e%2e/site-users",
        "/api/site-users",
        "/api/v3/jobs",
    ):
        assert site.ask("GET", path, token=token)[0] in (404, 405), path


def test_a_supervisor_that_is_away_is_an_error_in_openpai_s_form(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = site.ask("POST", "/api/v1/token", ANN)[1]["token"]
    upstream = site.app.extensions["jobscribe"].upstream
    monkeypatch.setattr(
        upstream, "address", lambda: Address(url="http://127.0.0.1:9", token="x", uid="AnnAnn01")
    )
    code, said = site.ask("GET", "/api/v1/jobs", token=token)
    assert (code, said["code"]) == (503, "UnknownError") and "unreachable" in said["message"]
