"""Signed session cookies of `jobscribe up`. Their keys are derived from the server secret, so a
rotation of the secret rotates them. Whether a session has ended is decided in `login_sessions`.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Any

import flask
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface
from itsdangerous import BadSignature

#: Maximum number of cookies whose signature is known to be valid.
MOST_COOKIES = 2_000
#: Interval in which the secrets are looked at.
LOOK_SECS = 1.0


def cookie_name(root: str) -> str:
    """Return the name of the cookie. Browsers send cookies to all ports of a host, so each root has
    its own, which no rotation changes.
    """
    return f"jobscribe-{hashlib.sha256(root.encode()).hexdigest()[:8]}"


def cookie_key(secret: str) -> str:
    """Derive the signing key from a server secret."""
    first = hashlib.sha256(b"jobscribe cookie\0" + secret.encode()).hexdigest()
    return hashlib.sha256(first.encode()).hexdigest()


class SignedSessions(SecureCookieSessionInterface):
    """Flask's signed cookies. A cookie of an earlier secret is valid as long as that secret is, and
    is signed again with the current one by the next answer.

    secrets: returns the valid server secrets, the current one first. The signature of a cookie is
    checked once for the same secrets.
    """

    def __init__(
        self,
        secrets: Callable[[], tuple[str, ...]],
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secrets, self._mono = secrets, mono
        self._look_at = 0.0
        self._known: tuple[str, ...] = ()
        #: serializers for all valid keys, and for the current one
        self._all: Any = None
        self._current: Any = None
        #: contents of cookies with a valid signature of the current key, by cookie
        self._valid: dict[str, dict[str, Any]] = {}

    def get_signing_serializer(self, app: flask.Flask) -> Any:
        self.refresh(app)
        return self._all

    def refresh(self, app: flask.Flask) -> None:
        """Use the secrets that are valid now."""
        now = self._mono()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECS
        secrets = self._secrets()
        if secrets == self._known:
            return
        current, *earlier = map(cookie_key, secrets)
        app.secret_key = current
        app.config["SECRET_KEY_FALLBACKS"] = None
        self._current = super().get_signing_serializer(app)
        app.config["SECRET_KEY_FALLBACKS"] = list(reversed(earlier))
        self._all = super().get_signing_serializer(app)
        self._known, self._valid = secrets, {}

    def open_session(self, app: flask.Flask, request: flask.Request) -> SecureCookieSession | None:
        self.refresh(app)
        cookie = request.cookies.get(self.get_cookie_name(app)) or ""
        known = self._valid.get(cookie)
        if known is not None:
            return self.session_class(known)
        session = super().open_session(app, request)
        if not session:
            return session
        try:
            self._current.loads(cookie)
        except BadSignature:
            session.modified = True
            return session
        if len(self._valid) >= MOST_COOKIES:
            self._valid.clear()
        self._valid[cookie] = dict(session)
        return session
