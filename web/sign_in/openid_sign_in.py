"""Sign-in with OpenID Connect: authorization code flow with PKCE, state and nonce. The provider
itself is `openid_provider`.
"""

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable

import flask
import msgspec

from ...protocol.api.device_logins import PAGE, user_code
from ...protocol.errors import Refusal
from ...runtime.connections.token_buckets import TokenBuckets
from ..request.context import FrontEndContext
from . import pages
from .attempt_limits import client_address
from .openid_provider import OpenIdProvider
from .session_cookie import BEGUN_SECS, SessionCookie

#: Sign-ins that were begun and not finished; further ones drop the oldest.
MOST_BEGUN = 2_000
#: Sign-ins begun by one address: at once, and then in a second.
BY_ADDRESS, BY_ADDRESS_PER_SEC = 100, 1.0
#: Longest parameter of the provider's answer.
MAX_PARAMETER = 4096


class Begun(msgspec.Struct, frozen=True):
    """A sign-in that was begun. browser: digest of the text in the browser's cookie. device: user
    code of the device login to approve afterwards. until: monotonic seconds.
    """

    browser: str
    nonce: str
    verifier: str
    device: str | None
    until: float


class BegunSignIns:
    """Sign-ins of this process, by state. Each is finished at most once. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._begun: dict[str, Begun] = {}
        self._addresses = TokenBuckets(BY_ADDRESS_PER_SEC, BY_ADDRESS, clock)

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, address: str, browser: str, device: str | None) -> tuple[str, Begun]:
        """Return the state of a new sign-in, and the sign-in. Raises Refusal("tooManyRequests")."""
        state = secrets.token_urlsafe(32)
        begun = Begun(
            _digest(browser),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            device,
            self._clock() + BEGUN_SECS,
        )
        with self._lock:
            secs = self._addresses.take(address)
            if secs:
                raise Refusal(
                    "tooManyRequests",
                    "too many sign-ins were begun from your address",
                    {"retryAfterSecs": math.ceil(secs)},
                )
            now = self._clock()
            live = [(k, b) for k, b in self._begun.items() if b.until > now]
            self._begun = dict(live[-(MOST_BEGUN - 1) :])
            self._begun[_digest(state)] = begun
        return state, begun

    def finish(self, state: str, browser: str | None) -> Begun:
        """Remove and return the sign-in. Raises Refusal("signInExpired") for an unknown or used
        state, after BEGUN_SECS, and for another browser.
        """
        with self._lock:
            begun = self._begun.pop(_digest(state), None)
        if begun is None or begun.until <= self._clock():
            raise Refusal("signInExpired", "this sign-in is over, or was used before")
        if browser is None or not secrets.compare_digest(begun.browser, _digest(browser)):
            raise Refusal("signInExpired", "this sign-in was begun in another browser")
        return begun


class OpenIdSignIn:
    """Routes. uid_of: returns the uid of a name, durable. public_url: of the front end."""

    def __init__(
        self,
        provider: OpenIdProvider,
        cookie: SessionCookie,
        site: FrontEndContext,
        uid_of: Callable[[str], str],
        public_url: str,
    ) -> None:
        self._provider, self._cookie, self._site = provider, cookie, site
        self._uid_of, self._public_url = uid_of, public_url
        self.begun = BegunSignIns()

    def start(self) -> flask.Response:
        """Send the browser to the provider."""
        return pages.answered(self._site, self._started)

    def callback(self) -> flask.Response:
        """Finish the sign-in that the provider answers."""
        return pages.answered(self._site, self._finished, base="../")

    def _started(self) -> flask.Response:
        device = flask.request.args.get("device")
        browser = self._cookie.begun() or secrets.token_urlsafe(32)
        state, begun = self.begun.begin(
            client_address(flask.request), browser, None if device is None else user_code(device)
        )
        answer = _redirect(self._provider.address(state, begun.nonce, begun.verifier))
        self._cookie.begin(answer, browser)
        return answer

    def _finished(self) -> flask.Response:
        begun = self.begun.finish(_parameter("state"), self._cookie.begun())
        if "error" in flask.request.args:
            raise self._provider.denied(_parameter("error"))
        name = self._provider.name(_parameter("code"), begun.nonce, begun.verifier)
        uid = self._uid_of(name)
        device = "" if begun.device is None else f"{PAGE}?code={begun.device}"
        answer = _redirect(f"{self._public_url}/{device}")
        self._cookie.open(answer, uid, name)
        self._site.log("signed in u={} by OpenID Connect", uid)
        return answer


def _redirect(url: str) -> flask.Response:
    answer = flask.Response(status=303)
    answer.headers["Location"] = url
    answer.headers["Cache-Control"] = "no-store"
    # the address has a code, which no other site must get
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


def _parameter(name: str) -> str:
    value = flask.request.args.get(name, "")
    if not 0 < len(value) <= MAX_PARAMETER:
        raise Refusal("badRequest", f"the provider's answer has no valid {name}")
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
