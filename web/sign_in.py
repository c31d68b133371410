"""Sign-in for development: a name, no password, a signed cookie. Only `jobscribe up` has it, on loopback, for one unix user.

The page's own form talks to it in JSON; there is a plain one for those without the page.
"""

import getpass
import html
import os
from collections.abc import Callable
from typing import Annotated

import flask
import msgspec
from flask.typing import ResponseReturnValue

from ..protocol.errors import Refusal
from ..protocol.ids import derived_id
from . import csrf

#: Said by the proxy of `up`: the unix user at the other end of the connection, "-" where nobody knows.
PEER_HEADER = "X-Jobscribe-Peer"
_UID, _NAME = "uid", "name"


class Name(msgspec.Struct, frozen=True):
    """Who somebody wants to be."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


def user(request: flask.Request) -> str | None:
    """The hook: whose cookie it is."""
    uid = flask.session.get(_UID)
    return uid if isinstance(uid, str) else None


def uid_of(name: str, own_uid: str) -> str:
    """The unix user of this site is the user that the command line acts as; everybody else is derived from the name."""
    return own_uid if name == getpass.getuser() else derived_id(name.encode(), key=b"jobscribe development user")[:8]


def sign_in(own_uid: str) -> Callable[[], ResponseReturnValue]:
    """POST {"name"}, or a form with it."""

    def view() -> ResponseReturnValue:
        request = flask.request
        _same_person(request.headers.get(PEER_HEADER))
        form = request.mimetype == "application/x-www-form-urlencoded"
        if form:
            csrf.check_origin(request.headers, request.host, must_be_said=True)
            wanted = _name({_NAME: request.form.get(_NAME, "")})
        else:
            csrf.check(request.headers, request.host, wants_json=True)
            wanted = _name(_json(request.get_data(cache=False)))
        flask.session.clear()
        flask.session.permanent = True
        flask.session[_UID], flask.session[_NAME] = uid_of(wanted, own_uid), wanted
        return flask.redirect("./", 303) if form else who()

    return view


def sign_out() -> ResponseReturnValue:
    csrf.check(flask.request.headers, flask.request.host, wants_json=True)
    flask.session.clear()
    return {"state": "ok"}


def who() -> ResponseReturnValue:
    """Who is signed in."""
    if user(flask.request) is None:
        raise Refusal("unauthenticated", "nobody is signed in")
    return {"state": "ok", "uid": flask.session[_UID], "name": flask.session.get(_NAME, "")}


def form() -> flask.Response:
    """A page for those without the page."""
    name = html.escape(str(flask.session.get(_NAME, "")))
    return flask.Response(_FORM.replace("NAME", name), mimetype="text/html")


def _same_person(peer: str | None) -> None:
    """Other users of this machine can reach the port, but must not run anything as its owner."""
    if peer not in ("0", str(os.geteuid())):
        raise Refusal("forbidden", "this site is for the unix user who started it; start your own with 'jobscribe up'")


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
        raise Refusal("badRequest", "a name is made of letters that can be seen")
    return name


_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in</title></head>
<body><h1>Sign in</h1>
<form method="post" action="sign-in"><label>User name <input name="name" value="NAME" required maxlength="64"></label>
<button>Sign in</button></form>
<p>For development: any name will do, and there is no password.</p></body></html>
"""
