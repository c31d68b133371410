"""The application of `up` and `server`: sign-in for development, the page, hooks, and errors
outside of the blueprint.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient
from front_end_fixture import Lines, refused
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.service.settings.settings import ServerSettings, Settings, SupervisorSettings
from jobscribe.service.site.secret_rotation import rotate
from jobscribe.service.site.startup_checks import check_server
from jobscribe.web import UserIds
from jobscribe.web.request.supervisor_client import SupervisorClient
from jobscribe.web.server import application, cookie_sessions, development_login, processes
from jobscribe.web.sign_in.login_sessions import Sessions


class Empty(msgspec.Struct):
    """A request without fields."""


def made(
    stub: StubSupervisor,
    *,
    development: bool = True,
    sessions: Sessions | None = None,
    secrets: Callable[[], tuple[str, ...]] | None = None,
    root: str = "/nowhere",
    **server: Any,
) -> Any:
    settings = Settings(root=root, server=ServerSettings(**server))
    sessions = (sessions or Sessions(None)) if development else None
    return application.create_app(
        settings,
        lambda: stub.address,
        Log("server", Redactor(), Lines()),
        sessions=sessions,
        secrets=secrets,
    )


@pytest.fixture
def client(stub: StubSupervisor) -> Any:
    stub.answers["/api/job-list"] = {"jobs": [], "next": None}
    app = made(stub)
    yield app.test_client()
    app.extensions["jobscribe"].close()


def signed_in(client: FlaskClient, name: str) -> dict[str, Any]:
    answer = client.post("/sign-in", json={"name": name})
    assert answer.status_code == 200, answer.get_data()
    return dict(answer.get_json())


def test_a_name_is_a_user_for_as_long_as_the_cookie_lasts(
    client: FlaskClient, stub: StubSupervisor
) -> None:
    refused(client.get("/who"), 401, "unauthenticated")
    refused(client.post("/own-jobs", json={}), 401, "unauthenticated")
    ann = signed_in(client, " ann ")
    assert ann["name"] == "ann" and client.get("/who").get_json() == ann
    client.post("/own-jobs", json={})
    assert stub.sent("/api/job-list")[-1]["uid"] == ann["uid"]
    bob = signed_in(client, "bob")
    assert bob["uid"] != ann["uid"] == signed_in(client, "ann")["uid"]
    client.post("/sign-out", json={})
    refused(client.get("/who"), 401, "unauthenticated")


def test_the_cookie_is_for_this_site_and_not_for_scripts(client: FlaskClient) -> None:
    cookie = client.post("/sign-in", json={"name": "ann"}).headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/" in cookie
    assert "Set-Cookie" not in client.post("/own-jobs", json={}).headers


def test_a_cookie_that_was_not_signed_here_is_nobodys(
    client: FlaskClient, stub: StubSupervisor
) -> None:
    from itsdangerous import URLSafeTimedSerializer

    name = client.application.config["SESSION_COOKIE_NAME"]
    for forged in (
        URLSafeTimedSerializer("guess", salt="cookie-session").dumps({"uid": "AnnAnn01"}),
        "x",
        "",
    ):
        client.set_cookie(name, forged)
        refused(client.post("/own-jobs", json={}), 401, "unauthenticated")
    assert made(stub, root="/other").config["SESSION_COOKIE_NAME"] != name, (
        "two sites on one host do not sign each other out"
    )


def test_a_cookie_outlives_a_rotation_of_the_secret(
    stub: StubSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cookie that is used while the earlier secret is valid is signed again with the new secret. A
    cookie that is not used in that time is refused later.
    """
    monkeypatch.setattr(cookie_sessions, "LOOK_SECS", 0.0)
    valid: list[str] = ["first secret of this site"]
    client = made(stub, secrets=lambda: tuple(valid)).test_client()
    name, ann = client.application.config["SESSION_COOKIE_NAME"], signed_in(client, "ann")
    old = client.get_cookie(name)
    assert old is not None and "Set-Cookie" not in client.get("/who").headers
    valid.insert(0, "second secret of this site")
    answer = client.get("/who")
    assert answer.get_json() == ann and "Set-Cookie" in answer.headers
    new = client.get_cookie(name)
    assert new is not None and new.value != old.value
    assert client.application.config["SESSION_COOKIE_NAME"] == name
    assert "Set-Cookie" not in client.get("/who").headers
    valid.pop()
    assert client.get("/who").get_json() == ann
    client.set_cookie(name, old.value)
    refused(client.get("/who"), 401, "unauthenticated")


def test_the_owner_of_the_site_is_the_user_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(development_login.getpass, "getuser", lambda: "joe")
    assert (
        development_login.uid_of("joe", "OwnOwn01")
        == "OwnOwn01"
        != development_login.uid_of("ann", "OwnOwn01")
    )


def cookie_of(client: FlaskClient, name: str) -> str:
    return client.post("/sign-in", json={"name": name}).headers["Set-Cookie"].partition(";")[0]


def test_a_cookie_that_was_copied_ends_with_its_session(client: FlaskClient) -> None:
    stolen, thief = cookie_of(client, "ann"), client.application.test_client(use_cookies=False)
    assert thief.get("/who", headers={"Cookie": stolen}).status_code == 200
    client.post("/sign-out", json={})
    refused(thief.get("/who", headers={"Cookie": stolen}), 401, "unauthenticated")
    first = cookie_of(client, "ann")
    cookie_of(client, "bob")
    refused(thief.get("/who", headers={"Cookie": first}), 401, "unauthenticated")


def test_sessions_survive_a_restart_are_bounded_and_expire(tmp_path: Path) -> None:
    now, path = [1e9], tmp_path / "sessions.json"
    sessions = Sessions(path, most=3, wall=lambda: now[0])
    ended: list[str] = []
    sessions.ended = ended.append
    tokens = [sessions.open("AnnAnn01", f"ann {i}") for i in range(4)]
    sessions.end(tokens[3])
    sessions.end("nobody's")
    assert (
        len(ended) == 1
        and path.stat().st_mode & 0o777 == 0o600
        and not any(t in path.read_text() for t in tokens)
    )
    again = Sessions(path, wall=lambda: now[0])
    assert [getattr(again.of(t), "name", None) for t in tokens] == [None, "ann 1", "ann 2", None]
    now[0] += 31 * 86400
    assert [again.of(t) for t in tokens] == [None] * 4
    path.write_bytes(b"{damaged")
    assert Sessions(path).of(tokens[1]) is None


def test_a_user_sees_and_ends_the_own_sessions_alone(stub: StubSupervisor) -> None:
    app = made(stub, root="/nowhere")
    here, there, bob = (app.test_client() for _ in range(3))
    firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    here.post("/sign-in", json={"name": "ann"}, headers={"User-Agent": firefox})
    there.post("/sign-in", json={"name": "ann"}, headers={"User-Agent": "curl"})
    bob.post("/sign-in", json={"name": "bob"})
    said = here.post("/page-data/sign-ins", json={}).get_json()
    rows = {row["current"]: row for row in said["signIns"]}
    assert said["kept"] and len(said["signIns"]) == 2
    assert (rows[True]["browser"], rows[False]["browser"]) == ("Firefox on Linux", "")
    assert 0 < rows[True]["begun"] < rows[True]["until"]
    # another user's session is not there: nothing happens
    other = {"id": rows[False]["id"]}
    assert len(bob.post("/page-data/sign-in-end", json=other).get_json()["signIns"]) == 1
    assert there.get("/who").status_code == 200
    for _ in range(2):
        left = here.post("/page-data/sign-in-end", json=other).get_json()["signIns"]
        assert [row["current"] for row in left] == [True]
    refused(there.get("/who"), 401, "unauthenticated")
    assert here.get("/who").status_code == bob.get("/who").status_code == 200
    refused(here.post("/page-data/sign-in-end", json={"id": "x"}), 400, "badRequest")
    here.post("/page-data/sign-in-end", json={"id": rows[True]["id"]})
    refused(here.get("/who"), 401, "unauthenticated")
    app.extensions["jobscribe"].close()


def test_pages_name_the_address_for_commands_where_it_can_be_reached(stub: StubSupervisor) -> None:
    app = made(stub)
    for host, api in (("127.0.0.1:8000", stub.url), ("[::1]:8000", stub.url)):
        page = app.test_client().get("/account", headers={"Host": host}).get_data(as_text=True)
        assert f'<meta name="jobscribe-api" content="{api}">' in page
        assert '<meta name="jobscribe-device" content="/sign-in/device">' in page
    app.extensions["jobscribe"].close()
    settings = Settings(
        root="/nowhere",
        server=ServerSettings(user_header="X-User", public_url="https://jobs.example.org"),
        supervisor=SupervisorSettings(tls_cert="c", tls_key="k", tls_port=8443),
    )
    log = Log("server", Redactor(), Lines())
    site = application.create_app(settings, lambda: stub.address, log, sessions=None)
    page = site.test_client().get("/account", headers={"X-User": "AnnAnn01"}).get_data(as_text=True)
    assert '<meta name="jobscribe-api" content="https://jobs.example.org:8443">' in page
    site.extensions["jobscribe"].close()
    plain = application.create_app(
        Settings(root="/nowhere", server=ServerSettings(user_header="X-User")),
        lambda: stub.address,
        log,
        sessions=None,
    )
    headers = {"X-User": "AnnAnn01", "Host": "jobs.example.org"}
    page = plain.test_client().get("/account", headers=headers).get_data(as_text=True)
    assert "jobscribe-api" not in page, "the loopback address is of no use elsewhere"
    plain.extensions["jobscribe"].close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"name": ""}, 400),
        ({"name": 7}, 400),
        ({"name": "x" * 65}, 400),
        ({"name": "a\nb"}, 400),
        ([], 400),
    ],
)
def test_what_is_no_name(client: FlaskClient, body: Any, code: int) -> None:
    refused(client.post("/sign-in", json=body), code, "badRequest")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}], ids=str
)
def test_another_site_can_neither_sign_in_nor_out(
    client: FlaskClient, headers: dict[str, str]
) -> None:
    refused(client.post("/sign-in", json={"name": "ann"}, headers=headers), 403, "crossSite")
    refused(client.post("/sign-in", data={"name": "ann"}, headers=headers), 403, "crossSite")
    refused(client.post("/sign-out", json={}, headers=headers), 403, "crossSite")


def test_the_plain_form_works_for_a_browser_that_says_from_where(client: FlaskClient) -> None:
    page = client.get("/sign-in")
    assert page.status_code == 200 and b"<form" in page.get_data()
    refused(client.post("/sign-in", data={"name": "ann"}), 403, "crossSite")
    answer = client.post(
        "/sign-in", data={"name": "<b>ann"}, headers={"Origin": "http://localhost"}
    )
    assert answer.status_code == 303
    assert answer.headers["Location"] == "./"
    assert b"&lt;b&gt;ann" in client.get("/sign-in").get_data()


def test_the_plain_form_offers_the_user_of_the_command_line_and_leads_to_jobs(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(development_login.getpass, "getuser", lambda: "joe")
    form = client.get("/sign-in?page=jobs").get_data(as_text=True)
    assert 'name="name" type="text" value="joe"' in form and 'name="page" value="jobs"' in form
    for page, location in (("jobs", "./jobs"), ("//other.org", "./"), ("", "./")):
        answer = client.post(
            "/sign-in", data={"name": "joe", "page": page}, headers={"Origin": "http://localhost"}
        )
        assert answer.headers["Location"] == location
    assert "other" not in client.get("/sign-in?page=//other.org").get_data(as_text=True)


@pytest.mark.parametrize(
    ("host", "ok"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_a_name_of_somebody_elses_that_leads_here_is_not_this_site(
    client: FlaskClient, host: str, ok: bool
) -> None:
    answer = client.get("/who", headers={"Host": host})
    refused(answer, 401, "unauthenticated") if ok else refused(answer, 403, "crossSite")


def test_the_start_leads_to_the_sign_in_and_then_to_the_apps(client: FlaskClient) -> None:
    for where in ("./sign-in", "./apps"):
        start = client.get("/")
        assert (start.status_code, start.headers["Location"]) == (302, where)
        assert start.headers["Cache-Control"] == "no-store"
        page = client.get(where[1:], headers={"Accept": "text/html,*/*;q=0.8"})
        text = page.get_data(as_text=True)
        assert page.mimetype == "text/html"
        policy = page.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        links = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert len(links) >= 2
        for link in links:
            assert client.get(link.removeprefix(".")).status_code == 200
        client.post("/sign-in", json={"name": "ann"})


@pytest.mark.parametrize(
    "path",
    [
        "/page-files/../application.py",
        "/page-files/%2e%2e/application.py",
        "/page-files//etc/passwd",
        "/page-files/",
        "/nowhere",
        "/page-files/x\0y",
    ],
)
def test_what_is_not_there_is_said_in_the_usual_form(client: FlaskClient, path: str) -> None:
    refused(client.get(path), 404, "notFound")


def test_a_wrong_method_too(client: FlaskClient) -> None:
    answer = client.post("/who", json={})
    refused(answer, 405, "methodNotAllowed")
    assert "GET" in answer.headers["Allow"]
    assert client.get("/healthz").get_json() == {"state": "ok"}


def a_user(request: Any) -> str | None:
    return request.headers.get("X-Their-User")


def test_in_production_the_sites_own_hook_says_who_it_is_and_there_is_no_sign_in(
    stub: StubSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers["/api/job-list"] = {"jobs": [], "next": None}
    monkeypatch.setattr(application, "a_user", a_user, raising=False)
    app = made(stub, development=False, user_hook="jobscribe.web.server.application:a_user")
    client = app.test_client()
    assert (
        client.post(
            "/own-jobs", json={}, headers={"X-Their-User": "AnnAnn01", "Host": "sims.example.org"}
        ).status_code
        == 200
    )
    refused(client.post("/own-jobs", json={}), 401, "unauthenticated")
    for path in ("/sign-in", "/who", "/sign-out"):
        assert client.post(path, json={"name": "ann"}).status_code == 404
    app.extensions["jobscribe"].close()


def test_names_of_the_site_become_uids_where_a_file_is_set_for_them(
    stub: StubSupervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub.answers["/api/job-list"] = {"jobs": [], "next": None}
    monkeypatch.setattr(application, "a_user", a_user, raising=False)
    app = made(
        stub,
        development=False,
        user_hook="jobscribe.web.server.application:a_user",
        uid_file=str(tmp_path / "uids.json"),
    )
    client = app.test_client()
    assert (
        client.post("/own-jobs", json={}, headers={"X-Their-User": "ann@example.org"}).status_code
        == 200
    )
    assert stub.sent("/api/job-list")[0]["uid"] == UserIds(tmp_path / "uids.json").of(
        "ann@example.org"
    )
    refused(client.post("/own-jobs", json={}), 401, "unauthenticated")
    app.extensions["jobscribe"].close()


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ({}, "unsafe"),
        ({"user_hook": "no_such_module:x"}, "badConfig"),
        ({"user_hook": "jobscribe.web.server.application:nothing"}, "badConfig"),
        ({"user_hook": "jobscribe.web.server.application:POLICY"}, "badConfig"),
        ({"user_hook": "jobscribe"}, "badConfig"),
        (
            {"user_hook": "jobscribe.web.server.application:create_app", "admin_hook": "x:y"},
            "badConfig",
        ),
    ],
)
def test_a_server_without_its_hooks_does_not_start(
    stub: StubSupervisor, server: dict[str, str], code: str
) -> None:
    with pytest.raises(Refusal) as e:
        made(stub, development=False, **server)
    assert e.value.code == code


@pytest.mark.parametrize(
    ("server", "named"),
    [
        ({}, "user_hook"),
        ({"user_hook": "a:b", "ip": "0.0.0.0"}, "server.ip"),
        ({"user_hook": "a:b"}, ""),
    ],
)
def test_unsafe_settings_are_refused_before_anything_starts(
    server: dict[str, str], named: str
) -> None:
    settings = Settings(server=ServerSettings(**server))
    if not named:
        check_server(settings)
        return
    with pytest.raises(Refusal) as e:
        check_server(settings)
    assert e.value.code == "unsafe" and named in e.value.sentence


def test_what_is_on_its_way_when_a_site_closes_is_answered_and_its_connection_not_kept(
    stub: StubSupervisor,
) -> None:
    upstream = SupervisorClient(lambda: stub.address, Redactor())
    stub.answers["/api/first"] = {"state": "ok"}
    stub.answers["/api/last"] = lambda _: upstream.close() or {"state": "ok"}
    assert (
        upstream.object("first", Empty()) == {"state": "ok"}
        and len(upstream._connection._idle) == 1
    )
    assert (
        upstream.object("last", Empty()) == {"state": "ok"} and len(upstream._connection._idle) == 0
    )


def test_a_front_end_follows_the_file_of_its_secret(tmp_path: Path) -> None:
    """The front end needs no restart, and keeps the secret in use if the file cannot be used."""
    file, lines = tmp_path / "secret", Lines()
    file.write_text("0123456789abcdefghijklm")
    file.chmod(0o600)
    settings = Settings(
        server=ServerSettings(supervisor_url="https://jobs.example"),
        supervisor=SupervisorSettings(server_secret_file=str(file)),
    )
    log = Log("server", Redactor(), lines)
    source = processes._source(settings, log)
    assert source().token == "0123456789abcdefghijklm"
    new = rotate(str(file), "supervisor.server_secret_file", 100.0, time.time()).current
    assert source().token == new
    file.chmod(0o644)
    assert source().token == new
    log("known: {}", f"0123456789abcdefghijklm {new}")
    said = lines.text()
    assert "secretRefused" in said and new not in said and "0123456789abcdefghijklm" not in said
