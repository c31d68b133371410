"""The OpenID Connect provider of a site: discovery, the exchange of a code, and the validation of ID
tokens. It knows no browser and no session.

Nothing is asked at the start: the provider may be down then. All texts of the provider are foreign,
and neither codes nor tokens are in a message.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import joserfc.errors
import joserfc.jwk
import joserfc.jwt
import msgspec
import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken

from ...protocol.errors import Refusal
from ...schema.fields import InvalidValue
from ...service.settings.value_parsers import site_url

#: Time limits for a connection and for each piece of an answer, in seconds.
TIMEOUT = (5.0, 10.0)
#: The provider's description and keys are requested again after this time, in seconds.
KEPT_SECS = 3600.0
#: Difference of the two clocks that is accepted, in seconds.
LEEWAY_SECS = 60
#: An ID token is issued for the code that was just exchanged, so an older one shows that the clocks
#: differ. Seconds.
OLDEST_SECS = 300
#: Requests to the provider at once: each one holds a worker.
AT_ONCE = 4
#: Asymmetric algorithms. Without them a token could be "signed" with a public key or not at all.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_ERROR = re.compile(r"[a-z_]{1,40}", re.ASCII)

Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


class _Metadata(msgspec.Struct, frozen=True):
    """The provider's description (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    userinfo_endpoint: Url | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """This site, as the provider knows it. claim: names the user."""

    issuer: str
    id: str
    secret: str
    redirect_uri: str
    scopes: tuple[str, ...]
    claim: str

    def __repr__(self) -> str:
        return f"Client({self.id} at {self.issuer})"


class OpenIdProvider:
    """One provider, for all threads. wall: unix seconds."""

    def __init__(self, client: Client, wall: Callable[[], float] = time.time) -> None:
        self._client, self._wall = client, wall
        self._metadata: _Metadata | None = None
        self._keys: Any = None
        self._until = 0.0
        self._busy = threading.BoundedSemaphore(AT_ONCE)

    def address(self, state: str, nonce: str, verifier: str) -> str:
        """Return the address at which a person signs in. Raises Refusal("signInUnavailable")."""
        with self._asking():
            metadata = self._known()
        with self._session(metadata) as session:
            url, _ = session.create_authorization_url(
                metadata.authorization_endpoint, state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url)

    def name(self, code: str, nonce: str, verifier: str) -> str:
        """Return the name of the person who signed in. Raises Refusal: signInUnavailable,
        signInInvalid, signInDenied.
        """
        with self._asking():
            metadata = self._known()
            with self._session(metadata) as session:
                given = self._exchanged(session, metadata, code, verifier)
                claims = self._claims(metadata, given, nonce)
                name = claims.get(self._client.claim)
                if name is None and metadata.userinfo_endpoint is not None:
                    claims = self._user_info(session, metadata.userinfo_endpoint, claims["sub"])
                    name = claims.get(self._client.claim)
        return self._user_name(name, claims)

    def denied(self, error: str) -> Refusal:
        """Return the refusal for an error that the provider reported through the browser."""
        if error == "access_denied":
            return Refusal("signInDenied", "the sign-in was denied at the provider")
        word = error if _ERROR.fullmatch(error) else "an error"
        return Refusal("signInUnavailable", f"the provider could not sign you in: {word}")

    # ---- requests to the provider

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn each failure of the provider into a refusal without foreign text."""
        if not self._busy.acquire(blocking=False):
            raise Refusal("signInUnavailable", "too many people are signing in at this moment")
        try:
            yield
        except requests.RequestException as e:
            raise Refusal(
                "signInUnavailable",
                f"the OpenID Connect provider {self._client.issuer} cannot be reached: {type(e).__name__}",
            ) from None
        finally:
            self._busy.release()

    def _session(self, metadata: _Metadata) -> Any:
        client, methods = self._client, metadata.token_endpoint_auth_methods_supported
        basic = "client_secret_basic" in methods or "client_secret_post" not in methods
        session = OAuth2Session(
            client.id,
            client.secret,
            token_endpoint_auth_method="client_secret_basic" if basic else "client_secret_post",
            scope=" ".join(client.scopes),
            redirect_uri=client.redirect_uri,
            code_challenge_method="S256",
        )
        session.verify = _authorities()
        session.max_redirects = 0
        return session

    def _known(self) -> _Metadata:
        """Return the provider's description, at most KEPT_SECS old."""
        now = time.monotonic()
        if self._metadata is None or now >= self._until:
            issuer = self._client.issuer
            raw = _fetched(issuer.rstrip("/") + "/.well-known/openid-configuration")
            try:
                found = msgspec.json.decode(raw, type=_Metadata)
                for url in (
                    found.authorization_endpoint,
                    found.token_endpoint,
                    found.jwks_uri,
                    found.userinfo_endpoint or issuer,
                ):
                    site_url(url.partition("?")[0])
            except (ValueError, InvalidValue) as e:
                raise Refusal(
                    "signInUnavailable", f"the provider's description is not valid: {_short(e)}"
                ) from None
            if found.issuer != issuer:
                raise Refusal(
                    "signInUnavailable",
                    f"the provider calls itself {ascii(found.issuer)[1:-1][:200]}, and server.oidc_issuer is {issuer}",
                )
            self._metadata, self._until, self._keys = found, now + KEPT_SECS, None
        return self._metadata

    def _key_set(self, metadata: _Metadata, *, fresh: bool) -> Any:
        if self._keys is None or fresh:
            raw = _fetched(metadata.jwks_uri)
            try:
                self._keys = joserfc.jwk.KeySet.import_key_set(msgspec.json.decode(raw))
            except (ValueError, TypeError, KeyError, joserfc.errors.JoseError) as e:
                raise Refusal(
                    "signInUnavailable", f"the provider's keys are not valid: {_short(e)}"
                ) from None
        return self._keys

    def _exchanged(
        self, session: Any, metadata: _Metadata, code: str, verifier: str
    ) -> dict[str, Any]:
        """Return the tokens for a code."""
        try:
            given = session.fetch_token(
                metadata.token_endpoint,
                grant_type="authorization_code",
                code=code,
                code_verifier=verifier,
                timeout=TIMEOUT,
                allow_redirects=False,
            )
        except AuthlibBaseError as e:
            word = e.error if isinstance(e.error, str) and _ERROR.fullmatch(e.error) else "an error"
            if word in ("invalid_grant", "invalid_code"):
                raise Refusal(
                    "signInExpired", "the provider does not accept the code of this sign-in"
                ) from None
            raise Refusal("signInUnavailable", f"the provider refused this site: {word}") from None
        except (ValueError, TypeError):
            given = None
        if not isinstance(given, dict) or not isinstance(given.get("id_token"), str):
            raise Refusal("signInInvalid", "the provider's answer has no ID token")
        return given

    def _user_info(self, session: Any, url: str, subject: object) -> dict[str, Any]:
        answer = session.get(url, timeout=TIMEOUT, allow_redirects=False)
        try:
            found = msgspec.json.decode(answer.content, type=dict[str, Any])
        except ValueError:
            found = {}
        if found.get("sub") != subject:
            raise Refusal("signInInvalid", "the provider's user information is of another user")
        return found

    # ---- the ID token

    def _claims(self, metadata: _Metadata, given: dict[str, Any], nonce: str) -> dict[str, Any]:
        try:
            try:
                token = joserfc.jwt.decode(
                    given["id_token"], self._key_set(metadata, fresh=False), list(ALGORITHMS)
                )
            except (joserfc.errors.InvalidKeyIdError, joserfc.errors.BadSignatureError):
                # the provider may have changed its keys
                token = joserfc.jwt.decode(
                    given["id_token"], self._key_set(metadata, fresh=True), list(ALGORITHMS)
                )
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self._client.issuer},
                    "aud": {"essential": True, "value": self._client.id},
                },
                params={
                    "nonce": nonce,
                    "client_id": self._client.id,
                    "access_token": given.get("access_token"),
                },
            )
            now = int(self._wall())
            self._check_clock(claims, now)
            claims.validate(now=now, leeway=LEEWAY_SECS)
        except (joserfc.errors.JoseError, ValueError, TypeError, KeyError) as e:
            raise Refusal(
                "signInInvalid", f"the provider's ID token is not valid: {_short(e)}"
            ) from None
        return dict(claims)

    def _check_clock(self, claims: dict[str, Any], now: int) -> None:
        """Raise Refusal unless the token was issued just now and is not over."""
        issued = claims.get("iat")
        if not isinstance(issued, int | float) or isinstance(issued, bool):
            raise ValueError("it has no time of issue")
        off = now - issued
        if off > OLDEST_SECS or off < -LEEWAY_SECS:
            raise Refusal(
                "signInInvalid",
                f"the provider's ID token was issued {abs(off):.0f} s {'ago' if off > 0 else 'in the future'} by"
                " the clock of this machine: the operator must correct one of the two clocks",
            )

    def _user_name(self, name: object, claims: dict[str, Any]) -> str:
        claim = self._client.claim
        if not isinstance(name, str) or not name.strip():
            raise Refusal(
                "signInDenied",
                f"the provider does not name you to this site: its answer has no claim {claim}",
            )
        if claim == "email" and claims.get("email_verified") is not True:
            raise Refusal("signInDenied", "the provider did not verify your email address")
        return name


def _authorities() -> str | bool:
    """Return the file with the certificate authorities, as other clients of this machine do."""
    return os.environ.get("SSL_CERT_FILE") or True


def _fetched(url: str) -> bytes:
    answer = requests.get(url, timeout=TIMEOUT, allow_redirects=False, verify=_authorities())
    if answer.status_code != 200:
        raise Refusal(
            "signInUnavailable",
            f"the OpenID Connect provider answers with HTTP {answer.status_code}",
        )
    return bytes(answer.content)


def _short(error: Exception) -> str:
    """Describe an error of a foreign text without much of it."""
    return ascii(str(error))[1:-1][:120] or type(error).__name__
