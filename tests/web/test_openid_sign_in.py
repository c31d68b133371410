"""Sign-in with OpenID Connect: a real provider (glewlwyd), and ID tokens that no provider should
give. Nobody is signed in by an answer that is not the provider's, for this site, now, and for this
browser.
"""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import joserfc.jwk
import joserfc.jwt
import msgspec
import openid_engine
import pytest
import requests
from flask.testing import FlaskClient
from front_end_fixture import Lines, refused
from openid_engine import PASSWORD, SECRET, OpenIdEngine
from stub_supervisor import StubSupervisor

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.service.settings.settings import ServerSettings, Settings
from jobscribe.web.server import application
from jobscribe.web.sign_in import openid_provider, openid_sign_in
from jobscribe.web.sign_in.login_sessions import Sessions
from jobscribe.web.sign_in.openid_provider import Client, OpenIdProvider
from jobscribe.web.sign_in.openid_sign_in import BegunSignIns
from jobscribe.web.sign_in.session_cookie import SessionCookie

SITE = "http://localhost"
CALLBACK = SITE + "/sign-in/callback"
COOKIE = SessionCookie(Sessions(None), SITE, 1.0).name


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdEngine]:
    engine = OpenIdEngine(tmp_path_factory.mktemp("provider"), CALLBACK)
    yield engine
    engine.stop()


def secret_file(folder: Path, text: str = SECRET) -> str:
    path = folder / "client-secret"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


class Site:
    """The front end in this process, in front of a stub of the supervisor."""

    def __init__(self, stub: StubSupervisor, folder: Path, issuer: str, **more: Any) -> None:
        server = {
            "oidc_issuer": issuer,
            "oidc_client_id": openid_engine.CLIENT,
            "oidc_client_secret_file": secret_file(folder),
            "public_url": SITE,
            "uid_file": str(folder / "uids.json"),
        }
        self.lines = Lines()
        stub.answers["/api/job-list"] = {"jobs": [], "next": None}
        self.app = application.create_app(
            Settings(server=ServerSettings(**{**server, **more})),
            lambda: stub.address,
            Log("server", Redactor(), self.lines),
            sessions=None,
        )

    def counts(self) -> dict[str, int]:
        return self.app.extensions["jobscribe"].counts.all()


@pytest.fixture
def site(
    stub: StubSupervisor, tmp_path: Path, provider: OpenIdEngine
) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(issuer: str | None = None, **more: Any) -> Site:
        made.append(Site(stub, tmp_path, issuer or provider.issuer, **more))
        return made[-1]

    yield make
    for one in made:
        one.app.extensions["jobscribe"].close()


def begin(client: FlaskClient, query: str = "") -> str:
    """Return the address of the provider to which the browser is sent."""
    answer = client.get("/sign-in" + query)
    assert answer.status_code == 303, answer.get_data(as_text=True)
    return str(answer.headers["Location"])


def approved(provider: OpenIdEngine, address: str) -> str:
    """Sign in at the provider. Return the path and query to which it sends the browser."""
    with requests.Session() as person:
        provider.sign_in(person)
        answer = person.get(address + "&g_continue", allow_redirects=False, timeout=20)
    back = answer.headers["Location"]
    assert back.startswith(CALLBACK), back
    return back.removeprefix(SITE)


def page_of(answer: Any, status: int, code: str) -> str:
    text = str(answer.get_data(as_text=True))
    assert (answer.status_code, answer.mimetype) == (status, "text/html"), text
    assert f"Code: {code}" in text and "Traceback" not in text
    return text


def nobody(client: FlaskClient) -> None:
    assert client.get("/who").status_code == 401
    assert client.post("/own-jobs", json={}).status_code == 401


def test_a_person_signs_in_and_out_at_a_real_provider(
    site: Callable[..., Site], provider: OpenIdEngine, tmp_path: Path
) -> None:
    here = site()
    client = here.app.test_client()
    body = client.get("/who").get_json()
    assert (body["code"], body["signIn"]) == ("unauthenticated", "sign-in")
    address = begin(client)
    asked = parse_qs(urlsplit(address).query)
    assert asked["code_challenge_method"] == ["S256"] and asked["scope"] == ["openid profile"]
    back = approved(provider, address)
    # another browser, which has the address but did not begin
    page_of(here.app.test_client().get(back), 400, "signInExpired")
    back = approved(provider, begin(client))
    answer = client.get(back)
    assert (answer.status_code, answer.headers["Location"]) == (303, SITE + "/"), answer.get_data()
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie
    me = client.get("/who").get_json()
    assert me["name"] == "ann" and client.post("/own-jobs", json={}).status_code == 200
    # the same answer of the provider again
    page_of(client.get(back), 400, "signInExpired")
    # a further sign-in ends the earlier session
    first = client.get_cookie(COOKIE)
    client.get(approved(provider, begin(client)))
    second = client.get_cookie(COOKIE)
    assert first is not None and second is not None and first.value != second.value
    old = here.app.test_client()
    old.set_cookie(COOKIE, first.value)
    nobody(old)
    assert client.get("/who").get_json()["uid"] == me["uid"]
    # sessions survive a restart of the front end, and end with the sign-out
    again = site().app.test_client()
    again.set_cookie(COOKIE, second.value)
    assert again.get("/who").get_json()["name"] == "ann"
    refused(client.post("/sign-out", data="x"), 403, "crossSite")
    assert client.post("/sign-out", json={}).status_code == 200
    nobody(client)
    copied = here.app.test_client()
    copied.set_cookie(COOKIE, second.value)
    nobody(copied)
    code = parse_qs(urlsplit(back).query)["code"][0]
    texts = [here.lines.text(), *(p.read_text() for p in tmp_path.iterdir() if "uids" in p.name)]
    for secret in (PASSWORD, SECRET, code, second.value, "eyJ"):
        assert not any(secret in text for text in texts)


def test_what_goes_wrong_at_a_real_provider_signs_nobody_in(
    site: Callable[..., Site], provider: OpenIdEngine, tmp_path: Path
) -> None:
    here = site()
    client = here.app.test_client()
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]
    page_of(client.get(f"/sign-in/callback?state={state}&error=access_denied"), 403, "signInDenied")
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]
    answer = client.get(f"/sign-in/callback?state={state}&error=<b>&error_description=<b>")
    assert "<b>" not in page_of(answer, 503, "signInUnavailable")
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]
    page_of(client.get(f"/sign-in/callback?state={state}&code=guessed"), 400, "signInExpired")
    page_of(client.get("/sign-in/callback?code=x"), 400, "badRequest")
    nobody(client)
    # a wrong secret of the client
    other = tmp_path / "other"
    other.mkdir()
    wrong = site(oidc_client_secret_file=secret_file(other, "Wrong" + SECRET)).app.test_client()
    page_of(wrong.get(approved(provider, begin(wrong))), 503, "signInUnavailable")
    nobody(wrong)
    # the clock of this machine is an hour off, in both directions
    for off in (3600, -3600):
        client = Client(
            issuer=provider.issuer,
            id=openid_engine.CLIENT,
            secret=SECRET,
            redirect_uri=CALLBACK,
            scopes=("openid", "profile"),
            claim="preferred_username",
        )
        off_site = OpenIdProvider(client, lambda off=off: time.time() + off)
        back = approved(provider, off_site.address("s" * 20, "n" * 20, "v" * 64))
        with pytest.raises(Refusal, match="clock of this machine") as told:
            off_site.name(parse_qs(urlsplit(back).query)["code"][0], "n" * 20, "v" * 64)
        assert told.value.code == "signInInvalid"
    assert here.counts()["refused.signInExpired"] == 1
    assert here.counts()["refused.signInDenied"] == 1


def test_the_site_starts_without_the_provider_and_works_when_it_is_back(
    site: Callable[..., Site], provider: OpenIdEngine
) -> None:
    provider.stop()
    try:
        client = site().app.test_client()
        assert client.get("/healthz").status_code == 200
        page_of(client.get("/sign-in"), 503, "signInUnavailable")
    finally:
        provider.start()
    back = approved(provider, begin(client))
    provider.stop()
    try:
        page_of(client.get(back), 503, "signInUnavailable")
        nobody(client)
    finally:
        provider.start()
    assert client.get(approved(provider, begin(client))).status_code == 303


# ---- ID tokens that no provider should give

ISSUER = "https://sign-in.example.org"
KEY = joserfc.jwk.RSAKey.generate_key(2048, {"kid": "one"})
OTHER_KEY = joserfc.jwk.RSAKey.generate_key(2048, {"kid": "one"})
NOW = 1_700_000_000
CLAIMS = {
    "iss": ISSUER,
    "aud": "site",
    "sub": "4711",
    "iat": NOW,
    "exp": NOW + 300,
    "nonce": "the nonce",
    "preferred_username": "ann",
    "email": "ann@example.org",
}


def signed(key: Any = KEY, alg: str = "RS256", **claims: Any) -> str:
    content = {k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}
    return joserfc.jwt.encode({"alg": alg, "kid": "one"}, content, key, [alg])


def forged(**claims: Any) -> str:
    """Return a token without a signature."""
    part = [msgspec.json.encode(v) for v in ({"alg": "none"}, {**CLAIMS, **claims})]
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in part) + "."


class FakeSession:
    """The exchange of a code, without a connection."""

    def __init__(self, id_token: Any) -> None:
        self._given = {"id_token": id_token, "access_token": "a"}

    def __enter__(self) -> "FakeSession":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def fetch_token(self, *args: object, **more: object) -> dict[str, Any]:
        return self._given


def name_in(
    monkeypatch: pytest.MonkeyPatch, id_token: Any, claim: str = "preferred_username", **more: Any
) -> str:
    endpoints = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    metadata = {"issuer": ISSUER, **{e: f"{ISSUER}/{e}" for e in endpoints}, **more}
    keys = {"keys": [KEY.as_dict(private=False)]}
    monkeypatch.setattr(
        openid_provider,
        "_fetched",
        lambda url: msgspec.json.encode(metadata if "well-known" in url else keys),
    )
    client = Client(
        issuer=ISSUER, id="site", secret="s", redirect_uri=CALLBACK, scopes=("openid",), claim=claim
    )
    provider = OpenIdProvider(client, lambda: float(NOW))
    monkeypatch.setattr(provider, "_session", lambda metadata: FakeSession(id_token))
    return provider.name("code", "the nonce", "v" * 64)


def test_a_right_token_names_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_in(monkeypatch, signed()) == "ann"
    assert name_in(monkeypatch, signed(aud=["site"])) == "ann"
    assert name_in(monkeypatch, signed(email_verified=True), "email") == "ann@example.org"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (lambda: signed(aud="another site"), "signInInvalid"),
        (lambda: signed(aud="another site", azp="site"), "signInInvalid"),
        (lambda: signed(aud=["another site", "site"]), "signInInvalid"),
        (lambda: signed(aud=None), "signInInvalid"),
        (lambda: signed(iss="https://evil.example"), "signInInvalid"),
        (lambda: signed(nonce="another"), "signInInvalid"),
        (lambda: signed(nonce=None), "signInInvalid"),
        (lambda: signed(exp=NOW - 61), "signInInvalid"),
        (lambda: signed(exp=None), "signInInvalid"),
        (lambda: signed(iat=NOW - 3600, exp=NOW + 3600), "signInInvalid"),
        (lambda: signed(iat=NOW + 3600, exp=NOW + 7200), "signInInvalid"),
        (lambda: signed(iat=None), "signInInvalid"),
        (lambda: signed(iat="now"), "signInInvalid"),
        (lambda: signed(at_hash="AAAAAAAAAAAAAAAAAAAAAA"), "signInInvalid"),
        (lambda: signed(OTHER_KEY), "signInInvalid"),
        (forged, "signInInvalid"),
        (lambda: signed()[:-8] + "AAAAAAAA", "signInInvalid"),
        (lambda: "x", "signInInvalid"),
        (lambda: None, "signInInvalid"),
        (lambda: signed(preferred_username=None), "signInDenied"),
        (lambda: signed(preferred_username=7), "signInDenied"),
        (lambda: signed(preferred_username=" "), "signInDenied"),
    ],
)
def test_a_token_that_is_not_for_this_sign_in_names_nobody(
    monkeypatch: pytest.MonkeyPatch, token: Callable[[], Any], code: str
) -> None:
    with pytest.raises(Refusal) as told:
        name_in(monkeypatch, token())
    assert told.value.code == code and "eyJ" not in told.value.sentence


def test_an_email_address_that_the_provider_did_not_verify_names_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for more in ({}, {"email_verified": False}, {"email_verified": "true"}):
        with pytest.raises(Refusal) as told:
            name_in(monkeypatch, signed(**more), "email")
        assert told.value.code == "signInDenied"


@pytest.mark.parametrize(
    "more",
    [{"issuer": "https://evil.example"}, {"token_endpoint": "http://evil.example/t"}],
    ids=str,
)
def test_a_provider_that_is_another_one_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    with pytest.raises(Refusal) as told:
        name_in(monkeypatch, signed(), **more)
    assert told.value.code == "signInUnavailable"


def test_a_state_is_of_one_browser_used_once_bounded_and_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    begun = BegunSignIns(lambda: now[0])

    def finish(state: str, browser: str | None) -> str:
        try:
            return begun.finish(state, browser).verifier
        except Refusal as e:
            return e.code

    state, mine = begun.begin("192.0.2.1", "a browser", None)
    assert finish(state, "a browser") == mine.verifier
    assert finish(state, "a browser") == finish("unknown", "a browser") == "signInExpired"
    for browser in (None, "another browser"):
        state, _ = begun.begin("192.0.2.1", "a browser", None)
        assert finish(state, browser) == "signInExpired"
        assert finish(state, "a browser") == "signInExpired", "it is used"
    state, _ = begun.begin("192.0.2.1", "a browser", None)
    now[0] += 600.0
    assert finish(state, "a browser") == "signInExpired"
    monkeypatch.setattr(openid_sign_in, "MOST_BEGUN", 3)
    states = [begun.begin("192.0.2.1", "a browser", None)[0] for _ in range(5)]
    assert len(begun) == 3
    assert [finish(s, "a browser") == "signInExpired" for s in states] == [True] * 2 + [False] * 3
    for _ in range(openid_sign_in.BY_ADDRESS):
        begun.begin("192.0.2.2", "a browser", None)
    with pytest.raises(Refusal) as told:
        begun.begin("192.0.2.2", "a browser", None)
    assert told.value.code == "tooManyRequests"
