"""OpenPAI's REST interface under the address of the front end. A token for name and password is issued
here, where passwords are checked. All other requests go to the supervisor with the API token of their
sender and with no other right.
"""

import re
from collections.abc import Callable, Iterator
from typing import Annotated
from urllib.parse import quote, urlencode

import flask
import msgspec
import werkzeug.exceptions

from ...client.api.errors import ClientError
from ...client.api.requests import Call
from ...client.transport.connection import Response
from ...protocol.api import tokens
from ...protocol.errors import CODES, Refusal
from ...protocol.wire.handshake import PUBLIC_URL
from ..request import csrf, error_responses
from ..request.context import FrontEndContext, as_json
from ..request.worker_quota import WorkerSlot
from ..sign_in.attempt_limits import client_address
from ..sign_in.password_sign_in import MAX_NAME
from ..sign_in.password_tokens import PasswordTokens

METHODS = ("GET", "POST", "PUT", "DELETE")
#: Largest body of a request for a token, in bytes. `waitress_server` limits the others.
TOKEN_BYTES = 16 * 1024
#: A larger answer is forwarded piece by piece, and counts as a download meanwhile, in bytes.
AT_ONCE_BYTES = 1024 * 1024
_BEARER = "Bearer "
_FORWARDED = ("Content-Type", "Accept")
_RETURNED = ("Content-Type", "Retry-After", "Allow")
#: The user in a path of a version: everything before it, the name, and the rest.
_USER = {
    "v1": re.compile(r"(user/)([^/]+)(/.*|)", re.DOTALL),
    "v2": re.compile(r"(jobs/)([^/~]+)(~.*)", re.DOTALL),
}
#: code of a refusal -> HTTP status and code of an error of OpenPAI
_ERRORS = {
    # as documented, with its spelling; the same for an unknown name, which is nobody's business
    "signInRefused": (400, "IncorrectPassworkError"),
    "signInDenied": (403, "ForbiddenUserError"),
    "forbidden": (403, "ForbiddenUserError"),
    "unauthenticated": (401, "UnauthorizedUserError"),
    "badRequest": (400, "InvalidParametersError"),
    "tooManyRequests": (429, "TooManyRequestsError"),
    "tokenLimit": (409, "ConflictTokenError"),
}


class TokenRequest(msgspec.Struct, frozen=True):
    """A request for a token. expiration: its lifetime in seconds."""

    username: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    expiration: Annotated[float, msgspec.Meta(gt=0, le=tokens.MAX_SECS)] | None = None


class OpenPaiRest:
    """Routes. issue: of tokens for passwords; None for a site that checks none. known: returns the uid
    of a user name, None if it has none. public_url: of the front end, for links in answers.
    """

    def __init__(
        self,
        site: FrontEndContext,
        issue: PasswordTokens | None,
        known: Callable[[str], str | None],
        public_url: str | None,
    ) -> None:
        self._site, self._issue, self._known = site, issue, known
        self._public_url = public_url

    def add_to(self, app: flask.Flask) -> None:
        for version in ("v1", "v2"):
            app.add_url_rule(
                f"/api/{version}/<path:rest>",
                f"openpai_{version}",
                self._view(version),
                methods=METHODS,
                provide_automatic_options=False,
            )

    def _view(self, version: str) -> Callable[[str], flask.Response]:
        def view(rest: str) -> flask.Response:
            try:
                answer = self._answered(version, rest)
            except Refusal as e:
                answer = self._refused(e)
            except ClientError as e:
                answer = self._refused(error_responses.from_supervisor(e))
            except Exception as e:
                self._site.counts.add("internal")
                self._site.log.exception(
                    "{} {} failed", flask.request.method, flask.request.path, error=e
                )
                answer = self._refused(
                    Refusal("internal", "an internal error occurred; the log has details")
                )
            answer.headers.setdefault("Cache-Control", "no-store")
            return answer

        return view

    def _answered(self, version: str, rest: str) -> flask.Response:
        request = flask.request
        csrf.check_origin(request.headers, request.host)
        asks = (request.method, version, rest) == ("POST", "v1", "token")
        if asks and "Authorization" not in request.headers:
            return self._token()
        return self._forwarded(version, rest)

    def _token(self) -> flask.Response:
        asked = _token_request(flask.request)
        if self._issue is None:
            raise Refusal(
                "forbidden",
                "this site gives no tokens for passwords",
                {
                    "advice": "create a token on the page /account, and send it as Authorization: Bearer TOKEN"
                },
            )
        issued = self._issue.issue(
            client_address(flask.request), asked.username.strip(), asked.password, asked.expiration
        )
        return as_json({"token": issued.text, "user": issued.uid, "admin": issued.admin})

    def _forwarded(self, version: str, rest: str) -> flask.Response:
        request = flask.request
        given = request.headers.get("Authorization", "")
        if not given.startswith(_BEARER + tokens.PREFIX):
            raise Refusal("unauthenticated", "the API token is missing or is none of this site")
        call = Call(
            path=self._target(version, rest),
            body=request.get_data(cache=False) or None,
            method=request.method,
            headers={n: v for n in _FORWARDED if (v := request.headers.get(n)) is not None}
            | ({} if self._public_url is None else {PUBLIC_URL: self._public_url}),
        )
        # a token is not checked here, so its holder is unknown: an address has the workers of a user
        sender = f"openpai {client_address(request)}"
        with self._site.quota.request(sender):
            found = self._site.upstream.relayed(given.removeprefix(_BEARER), call)
            try:
                if found.headers.number("Content-Length") <= AT_ONCE_BYTES:
                    with found:
                        answer = flask.Response(found.read(), status=found.status)
                else:
                    slot = self._site.quota.stream(sender)
                    answer = flask.Response(_Body(found, slot), status=found.status)
            except BaseException:
                found.close()
                raise
        answer.headers.clear()
        for name in _RETURNED:
            if (value := found.headers.get(name)) is not None:
                answer.headers[name] = value
        return answer

    def _target(self, version: str, rest: str) -> str:
        """Return the path and query for the supervisor. Names of users become their uids."""
        match = _USER[version].fullmatch(rest)
        if match is not None:
            rest = f"{match[1]}{self._known(match[2]) or match[2]}{match[3]}"
        path = f"/api/{version}/{quote(rest, safe='/~')}"
        pairs = [
            (key, self._uids(value) if key == "username" else value)
            for key, value in flask.request.args.items(multi=True)
        ]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def _uids(self, names: str) -> str:
        return ",".join(self._known(name) or name for name in names.split(","))

    def _refused(self, refusal: Refusal) -> flask.Response:
        self._site.counts.add("refused." + refusal.code)
        self._site.log(
            "{} {} refused: {}: {}",
            flask.request.method,
            flask.request.path,
            refusal.code,
            refusal.sentence,
        )
        status, code = _ERRORS.get(refusal.code, (refusal.http, "UnknownError"))
        advice = refusal.more.get("advice") or CODES[refusal.code].advice
        answer = as_json({"code": code, "message": f"{refusal.sentence}; {advice}"}, status)
        if "retryAfterSecs" in refusal.more:
            answer.headers["Retry-After"] = str(refusal.more["retryAfterSecs"])
        return answer


class _Body:
    """The body of an answer, with a slot that is released in any case."""

    def __init__(self, response: Response, slot: WorkerSlot) -> None:
        self._response, self._slot, self._pieces = response, slot, response.chunks()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._slot.close()


def _token_request(request: flask.Request) -> TokenRequest:
    """Return the name and password of a JSON body or a form. An error names no value, because one of
    them is a password. Raises Refusal (badRequest, tooLarge).
    """
    request.max_content_length = TOKEN_BYTES
    try:
        if request.mimetype == "application/x-www-form-urlencoded":
            return msgspec.convert(request.form.to_dict(), TokenRequest, strict=False)
        return msgspec.json.decode(request.get_data(cache=False), type=TokenRequest)
    except werkzeug.exceptions.RequestEntityTooLarge:
        raise Refusal(
            "tooLarge", f"a request for a token is limited to {TOKEN_BYTES} bytes"
        ) from None
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        werkzeug.exceptions.HTTPException,
    ):
        raise Refusal(
            "badRequest",
            "a request for a token is a JSON object or a form with `username`, `password` and, if you"
            f" like, `expiration` (seconds, at most {tokens.MAX_SECS:g})",
        ) from None
