"""Development login: a name, no password, a signed cookie with a session token. Only `jobscribe up`
uses it, on loopback.

The proxy admits only requests of one unix user of this machine (see `proxy`). The page's form sends
JSON; a plain form serves browsers without scripts.
"""

import getpass
from collections.abc import Mapping
from typing import Annotated

import flask
import msgspec
from flask.typing import ResponseReturnValue

from ...protocol.api.device_logins import PAGE, user_code
from ...protocol.errors import Refusal
from ...protocol.ids import derived_id
from ..request import csrf
from ..sign_in import pages
from ..sign_in.login_sessions import Session, Sessions
from ..sign_in.session_list import browser_of

_TOKEN, _NAME = "session", "name"


class Name(msgspec.Struct, frozen=True):
    """Request body of a sign-in."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class SignIn:
    """Sign-in routes of one site. own_uid: uid of the command line user."""

    def __init__(self, sessions: Sessions, own_uid: str) -> None:
        self.sessions, self._own_uid = sessions, own_uid

    def session(self) -> Session | None:
        """Return the session of the request's cookie."""
        return self.sessions.of(flask.session.get(_TOKEN))

    def token(self) -> str | None:
        """Return the token of this session; None if it has ended."""
        return None if self.session() is None else str(flask.session[_TOKEN])

    def user(self, request: flask.Request) -> str | None:
        """User hook: return the uid of the request's session."""
        session = self.session()
        return None if session is None else session.uid

    def sign_in(self) -> ResponseReturnValue:
        """Handle POST {"name"}, or a form with the name."""
        request = flask.request
        form = request.mimetype == "application/x-www-form-urlencoded"
        if form:
            csrf.check_origin(request.headers, request.host, required=True)
            wanted = _name({_NAME: request.form.get(_NAME, "")})
        else:
            csrf.check(request.headers, request.host, wants_json=True)
            wanted = _name(_json(request.get_data(cache=False)))
        self.sessions.end(flask.session.get(_TOKEN))
        flask.session.clear()
        flask.session.permanent = True
        flask.session[_TOKEN] = self.sessions.open(
            uid_of(wanted, self._own_uid),
            wanted,
            browser_of(request.headers.get("User-Agent", "")),
        )
        if not form:
            return self.who()
        device = request.form.get("device", "")
        wanted = f"{PAGE}?code={user_code(device)}" if device else f"./{_page(request.form)}"
        return flask.redirect(wanted, 303)

    def sign_out(self) -> ResponseReturnValue:
        """End the session on the server, not only in this browser."""
        csrf.check(flask.request.headers, flask.request.host, wants_json=True)
        self.sessions.end(flask.session.get(_TOKEN))
        flask.session.clear()
        return {"state": "ok"}

    def who(self) -> ResponseReturnValue:
        """Return the signed-in user."""
        session = self.session()
        if session is None:
            raise Refusal("unauthenticated", "you are not signed in")
        return {"state": "ok", "uid": session.uid, "name": session.name}

    def form(self) -> flask.Response:
        """Return the sign-in page for browsers without scripts."""
        session, device = self.session(), flask.request.args.get("device", "")
        code = user_code(device) if device else ""
        name = getpass.getuser() if session is None else session.name
        fields = (
            pages.field("name", "User name", value=name, complete="username")
            + pages.hidden("device", code)
            + pages.hidden("page", _page(flask.request.args))
            + pages.paragraph(
                "For development: there is no password, and any name will do. Jobs of the command"
                f" line belong to {getpass.getuser()}."
            )
        )
        return pages.page("Sign in", pages.form("sign-in", fields, {"signIn": "Sign in"}))


def uid_of(name: str, own_uid: str) -> str:
    """Return the uid of a name: own_uid for the unix user of this process, else derived from the
    name.
    """
    return (
        own_uid
        if name == getpass.getuser()
        else derived_id(name.encode(), key=b"jobscribe development user")[:8]
    )


def _page(fields: Mapping[str, str]) -> str:
    """Return the page after the sign-in; "", the start page, unless it is a known one."""
    return "jobs" if fields.get("page") == "jobs" else ""


def _json(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Refusal("badRequest", f"the body is not JSON: {e}") from None


def _name(body: object) -> str:
    try:
        name = msgspec.convert(body, Name).name.strip()
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", f"a name is needed, of at most 64 characters: {e}") from None
    if not name or not name.isprintable():
        raise Refusal("badRequest", "a name must have printable characters")
    return name
