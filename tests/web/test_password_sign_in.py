"""Sign-in with name and password by the real libpam: the same answer for every wrong name and
password, limits by name and address, a deadline, and no password anywhere.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flask.testing import FlaskClient
from front_end_fixture import Lines
from pam_engine import SERVICE, pam
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.service.settings.settings import ServerSettings, Settings
from jobscribe.web.server import application, sign_in
from jobscribe.web.sign_in.attempt_limits import BY_ADDRESS, BY_NAME, CLIENT, AttemptLimits
from jobscribe.web.sign_in.password_check import PasswordCheck

SITE = "https://jobs.example.org"
RIGHT = {"name": "ann", "password": "Pw7-of-ann-here"}
HERE = {"Origin": SITE, "Host": "jobs.example.org"}


class Site:
    def __init__(self, stub: StubSupervisor, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines = Lines()
        env = pam(folder)
        monkeypatch.setattr(
            sign_in, "PasswordCheck", lambda service, log: PasswordCheck(service, log, env=env)
        )
        stub.answers["/api/job-list"] = {"jobs": [], "next": None}
        server = ServerSettings(
            pam_service=SERVICE, public_url=SITE, uid_file=str(folder / "uids.json")
        )
        log = Log("server", Redactor(), self.lines)
        self.app = application.create_app(
            Settings(server=server), lambda: stub.address, log, sessions=None
        )

    def browser(self) -> FlaskClient:
        client = self.app.test_client()
        client.environ_base["wsgi.url_scheme"] = "https"
        return client


@pytest.fixture
def site(stub: StubSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(stub, tmp_path, monkeypatch)
    yield made
    made.app.extensions["jobscribe"].close()


def post(client: FlaskClient, body: dict[str, str], **headers: str) -> Any:
    return client.post("/sign-in", data=body, headers={**HERE, **headers}, base_url=SITE)


def refused(answer: Any, status: int, code: str) -> str:
    text = str(answer.get_data(as_text=True))
    assert answer.status_code == status and f"Code: {code}" in text, text
    assert "Set-Cookie" not in answer.headers
    return text


def test_only_the_right_password_of_an_account_that_may_sign_in(site: Site, tmp_path: Path) -> None:
    client = site.browser()
    assert 'type="password"' in client.get("/sign-in", base_url=SITE).get_data(as_text=True)
    answer = post(client, RIGHT)
    assert (answer.status_code, answer.headers["Location"]) == (303, SITE + "/"), answer.get_data()
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-jobscribe=") and "Domain" not in cookie
    assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=Lax", "Path=/;"))
    me = client.get("/who", base_url=SITE).get_json()
    assert me["name"] == "ann"
    # a wrong password, an unknown name, and another user's password
    pages = {
        refused(post(site.browser(), {"name": name, "password": word}), 401, "signInRefused")
        for name, word in (("ann", "wrong"), ("eve", "wrong"), ("bob", RIGHT["password"]))
    }
    assert len(pages) == 1, "the answer does not tell whether the name exists"
    refused(
        post(site.browser(), {"name": "bob", "password": "Pw7-of-bob-here"}), 403, "signInDenied"
    )
    refused(post(client, {**RIGHT, "password": RIGHT["password"] + "\0"}), 401, "signInRefused")
    refused(post(client, {"name": "ann"}), 400, "badRequest")
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused(post(site.browser(), RIGHT, **headers), 403, "crossSite")
    no_origin = site.browser().post("/sign-in", data=RIGHT, base_url=SITE)
    refused(no_origin, 403, "crossSite")
    texts = [site.lines.text(), *(p.read_text() for p in tmp_path.glob("uids*"))]
    token = cookie.partition("=")[2].partition(";")[0]
    assert not any(s in text for text in texts for s in (RIGHT["password"], "Pw7", token))
    assert site.app.extensions["jobscribe"].counts.all()["refused.signInRefused"] == 4


def test_guesses_are_limited_by_name_and_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limits = AttemptLimits(lambda: now[0])

    def tried(address: str, name: str) -> bool:
        try:
            limits.begin(address, name)
        except Refusal as e:
            assert e.code == "tooManyRequests" and int(str(e.more["retryAfterSecs"])) > 0
            return False
        return True

    assert [tried(f"10.0.0.{n}", "ann") for n in range(BY_NAME + 1)] == [True] * BY_NAME + [False]
    assert tried("10.0.1.0", "bob")
    begun = [tried("10.0.2.0", f"name {n}") for n in range(BY_ADDRESS + 1)]
    assert begun == [True] * BY_ADDRESS + [False]
    now[0] += 61.0
    assert tried("10.0.0.1", "ann") and not tried("10.0.0.1", "ann")
    # a right password does not count
    for _ in range(2 * BY_ADDRESS):
        assert tried("10.0.3.0", "eve")
        limits.succeeded("10.0.3.0", "eve")


def test_the_page_is_limited_for_the_client_behind_the_proxy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        PasswordCheck, "name", lambda self, name, password: said.append(name) or _refuse()
    )
    for n in range(BY_ADDRESS):
        refused(
            post(site.browser(), {"name": f"n{n}", "password": "x"}, **{CLIENT: "192.0.2.7"}),
            401,
            "signInRefused",
        )
    answer = post(site.browser(), {"name": "z", "password": "x"}, **{CLIENT: "192.0.2.7"})
    refused(answer, 429, "tooManyRequests")
    assert int(answer.headers["Retry-After"]) > 0 and "z" not in said
    post(site.browser(), {"name": "z", "password": "x"}, **{CLIENT: "192.0.2.8"})
    assert said[-1] == "z"


def _refuse() -> str:
    raise Refusal("signInRefused", "name or password is wrong")


def test_a_module_that_blocks_or_is_missing_holds_nobody_up(tmp_path: Path) -> None:
    env, lines = pam(tmp_path), Lines()
    log = Log("server", Redactor(), lines)
    began = time.monotonic()
    slow = PasswordCheck("slow", log, secs=1.0, env=env)
    with pytest.raises(Refusal) as told:
        slow.name("ann", "Pw7-of-ann-here")
    assert told.value.code == "signInUnavailable" and time.monotonic() - began < 30
    left = [c for c in psutil.Process().children(recursive=True) if "sleep" in c.name()]
    assert left == [], "the module's program ended with the check"
    with pytest.raises(Refusal) as told:
        PasswordCheck("broken", log, env=env).name("ann", "Pw7-of-ann-here")
    assert told.value.code in ("signInUnavailable", "signInRefused")
    for _ in range(4):
        slow._busy.acquire()
    with pytest.raises(Refusal) as told:
        slow.name("ann", "x")
    assert told.value.code == "signInUnavailable"
    assert "did not answer within" in lines.text() and "Pw7" not in lines.text()
