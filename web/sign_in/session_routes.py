"""Routes that all sites with sessions of their own share: who is signed in, and sign-out."""

import flask
from flask.typing import ResponseReturnValue

from ...protocol.errors import Refusal
from ..request import csrf
from ..request.context import as_json
from .session_cookie import SessionCookie


class SessionRoutes:
    def __init__(self, cookie: SessionCookie) -> None:
        self._cookie = cookie

    def who(self) -> ResponseReturnValue:
        """Return the signed-in user. A page sends everybody else to `signIn`."""
        session = self._cookie.session()
        if session is None:
            raise Refusal("unauthenticated", "you are not signed in", {"signIn": "sign-in"})
        return {"state": "ok", "uid": session.uid, "name": session.name, "signIn": "sign-in"}

    def sign_out(self) -> flask.Response:
        """End the session on the server, not only in this browser."""
        csrf.check(flask.request.headers, flask.request.host, wants_json=True)
        answer = as_json({"state": "ok"})
        self._cookie.end(answer)
        return answer
