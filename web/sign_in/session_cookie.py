"""The cookie of a login session, for sites with OpenID Connect or PAM. The session itself is on the
server (`login_sessions`); the cookie has its random token, which nothing needs to sign.
"""

import hashlib
import re
from urllib.parse import urlsplit

import flask

from .login_sessions import Session, Sessions
from .session_list import browser_of

#: Lifetime of the cookie that binds a sign-in to the browser that began it, in seconds.
BEGUN_SECS = 600
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class SessionCookie:
    """public_url: address of the front end for browsers."""

    def __init__(self, sessions: Sessions, public_url: str, secs: float) -> None:
        self.sessions, self._secs = sessions, secs
        self.secure = urlsplit(public_url).scheme == "https"
        # browsers send cookies to all ports of a host, so each site has its own name there
        site = hashlib.sha256(public_url.encode()).hexdigest()[:8]
        # with this prefix browsers take the cookie from this host over HTTPS only
        self.name = "__Host-jobscribe" if self.secure else f"jobscribe-{site}"
        self.begun_name = self.name + "-begun"

    def token(self) -> str | None:
        """Return the token in the request's cookie, live or not."""
        return _token(flask.request, self.name)

    def session(self, request: flask.Request | None = None) -> Session | None:
        """Return the session of a request (default: the current one)."""
        return self.sessions.of(_token(request or flask.request, self.name))

    def user(self, request: flask.Request) -> str | None:
        """User hook: return the uid of the request's session."""
        session = self.session(request)
        return None if session is None else session.uid

    def open(self, answer: flask.Response, uid: str, name: str) -> None:
        """Begin a session, and end the browser's earlier one, so that no token known before the
        sign-in is valid after it. Raises Refusal("storageUnavailable").
        """
        self.sessions.end(self.token())
        browser = browser_of(flask.request.headers.get("User-Agent", ""))
        token = self.sessions.open(uid, name, browser)
        self._set(answer, self.name, token, self._secs)

    def end(self, answer: flask.Response) -> None:
        """End the session on the server, and remove the cookie."""
        self.sessions.end(self.token())
        answer.delete_cookie(self.name, path="/", secure=self.secure, httponly=True)

    def begun(self) -> str | None:
        """Return the random text by which this browser is known while a person signs in."""
        return _token(flask.request, self.begun_name)

    def begin(self, answer: flask.Response, text: str) -> None:
        self._set(answer, self.begun_name, text, BEGUN_SECS)

    def _set(self, answer: flask.Response, name: str, value: str, secs: float) -> None:
        answer.set_cookie(
            name,
            value,
            max_age=int(secs),
            path="/",
            secure=self.secure,
            httponly=True,
            samesite="Lax",
        )


def _token(request: flask.Request, name: str) -> str | None:
    value = request.cookies.get(name, "")
    return value if _TOKEN.fullmatch(value) else None
