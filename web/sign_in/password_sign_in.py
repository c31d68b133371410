"""The page for name and password. PAM itself is `password_check`."""

from collections.abc import Callable, Mapping

import flask

from ...protocol.api.device_logins import PAGE, user_code
from ..request import csrf
from ..request.context import FrontEndContext
from . import pages
from .attempt_limits import AttemptLimits, client_address
from .password_check import PasswordCheck
from .session_cookie import SessionCookie

#: Maximum length of a name.
MAX_NAME = 256


class PasswordSignIn:
    """Routes. uid_of: returns the uid of a name, durable. public_url: of the front end."""

    def __init__(
        self,
        check: PasswordCheck,
        cookie: SessionCookie,
        site: FrontEndContext,
        uid_of: Callable[[str], str],
        public_url: str,
        limits: AttemptLimits | None = None,
    ) -> None:
        self._check, self._cookie, self._site = check, cookie, site
        self._uid_of, self._public_url = uid_of, public_url
        self._limits = limits or AttemptLimits()

    def form(self) -> flask.Response:
        return pages.answered(self._site, lambda: _form(_device(flask.request.args)))

    def sign_in(self) -> flask.Response:
        return pages.answered(self._site, self._signed_in)

    def _signed_in(self) -> flask.Response:
        request = flask.request
        csrf.check_origin(request.headers, request.host, required=True)
        device = _device(request.form)
        name, password = pages.posted("name", limit=MAX_NAME), pages.posted("password")
        name, address = name.strip(), client_address(request)
        self._limits.begin(address, name)
        account = self._check.name(name, password)
        self._limits.succeeded(address, name)
        uid = self._uid_of(account)
        answer = flask.redirect(
            f"{self._public_url}/" + (f"{PAGE}?code={device}" if device else ""), 303
        )
        assert isinstance(answer, flask.Response)
        self._cookie.open(answer, uid, account)
        self._site.log("signed in u={} by PAM", uid)
        return answer


def _device(given: Mapping[str, str]) -> str:
    """Return the user code of the device login to approve after the sign-in; "" for none."""
    code = given.get("device", "")
    return user_code(code) if code else ""


def _form(device: str) -> flask.Response:
    fields = pages.field("name", "User name", complete="username") + pages.field(
        "password", "Password", kind="password", complete="current-password"
    )
    if device:
        fields += pages.hidden("device", device)
    return pages.page("Sign in", pages.form("sign-in", fields, {"signIn": "Sign in"}))
