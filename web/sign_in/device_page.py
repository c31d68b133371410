"""The page on which a signed-in person approves or denies the login of a machine (RFC 8628). The
supervisor knows the logins; this page knows the person.
"""

import html
from collections.abc import Callable
from typing import Any

import flask

from ...protocol.api.device_logins import user_code
from ...protocol.api.requests import DeviceAnswer, DeviceShow
from ...protocol.errors import Refusal
from ..handlers import account
from ..request import csrf
from ..request.context import FrontEndContext
from . import pages

_BASE = "../"
_SCOPES = {
    "read": "see states, output and files of your runs",
    "control": "submit and cancel your runs, change your files, create tokens",
    "debug": "see and stop your agents",
    "admin": "use your role as an administrator",
}


class DevicePage:
    """Routes. user: returns the uid of a request. sign_in: whether this site has its own page for
    signing in, which continues here.
    """

    def __init__(
        self,
        site: FrontEndContext,
        user: Callable[[flask.Request], str | None],
        *,
        sign_in: bool,
    ) -> None:
        self._site, self._user, self._sign_in = site, user, sign_in

    def show(self) -> flask.Response:
        """Ask for the code, or show the login with this code."""
        return pages.answered(self._site, self._shown, base=_BASE)

    def answer(self) -> flask.Response:
        """Find the login of a typed code, approve it, or deny it."""
        return pages.answered(self._site, self._answered, base=_BASE)

    def _shown(self) -> flask.Response:
        given = flask.request.args.get("code", "")
        code = user_code(given) if given else ""
        uid = self._user(flask.request)
        if uid is None:
            return self._to_sign_in(code)
        return self._login(uid, code) if code else _enter()

    def _answered(self) -> flask.Response:
        request = flask.request
        csrf.check_origin(request.headers, request.host, required=True)
        uid = self._user(request)
        code = user_code(pages.posted("code"))
        if uid is None:
            return self._to_sign_in(code)
        match request.form.get("do"):
            case "find":
                return self._login(uid, code)
            case "approve" | "deny" as word:
                approve = word == "approve"
                if approve:
                    login = self._found(uid, code)
                    account.authorize_scopes(self._site, uid, login["scopes"])
                said = self._site.upstream.object(
                    "device-answer", DeviceAnswer(uid=uid, user_code=code, approve=approve)
                )
                return _done(said)
            case _:
                raise Refusal("badRequest", "the form has no known button")

    def _to_sign_in(self, code: str) -> flask.Response:
        if not self._sign_in:
            raise Refusal("unauthenticated", "you are not signed in")
        # codes have letters and a hyphen only
        answer = flask.Response(status=303)
        answer.headers["Location"] = "../sign-in" + (f"?device={code}" if code else "")
        return answer

    def _login(self, uid: str, code: str) -> flask.Response:
        login = self._found(uid, code)
        return pages.page("Log a machine in?", _details(login), base=_BASE)

    def _found(self, uid: str, code: str) -> dict[str, Any]:
        return self._site.upstream.object("device-show", DeviceShow(uid=uid, user_code=code))


def _enter() -> flask.Response:
    fields = pages.field("code", "Code that the machine shows")
    return pages.page(
        "Log a machine in", pages.form("device", fields, {"find": "Continue"}), base=_BASE
    )


def _details(login: dict[str, Any]) -> str:
    scopes = "".join(
        f"<li>{html.escape(f'{scope}: {_SCOPES.get(scope, scope)}')}</li>\n"
        for scope in login["scopes"]
    )
    return (
        pages.paragraph(
            f"A machine at the address {login['address']} asks to act for you. It calls itself"
            f" {login['name']!r}, and shows the code {login['userCode']}."
        )
        + f"<p>It could:</p>\n<ul>\n{scopes}</ul>\n"
        + pages.paragraph(
            "Approve this only if you started 'jobscribe auth login' yourself and it shows this code."
            " If somebody sent you the code or a link to this page, deny it."
        )
        + pages.form(
            "device",
            pages.hidden("code", login["userCode"]),
            {"approve": "Approve", "deny": "Deny"},
        )
    )


def _done(said: dict[str, Any]) -> flask.Response:
    if said["approved"]:
        text = f"{said['name']} is logged in within a few seconds. You can close this page."
        return pages.page("Approved", pages.paragraph(text), base=_BASE)
    text = f"{said['name']} gets no access. You can close this page."
    return pages.page("Denied", pages.paragraph(text), base=_BASE)
