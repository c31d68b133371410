"""The small Flask application that `jobscribe server` and `jobscribe up` serve: the blueprint, the
page, and how it is.
"""

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import werkzeug.exceptions

from ...client.transport.address import Source
from ...protocol.errors import Refusal
from ...runtime.log.logger import Log
from ...service.settings.settings import Settings
from ...service.site.secret_files import is_loopback
from ..blueprint.blueprint import METHODS, create_blueprint
from ..request import error_responses
from ..request.context import as_json
from .development_login import SignIn
from .login_sessions import SESSION_SECS, Sessions, key_of
from .user_ids import UserIds

STATIC = Path(__file__).parents[1] / "static"
#: Scripts, pictures and styles come from here and from nowhere else, and no other site may show our
#: page inside its own.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
#: Where the application keeps the hook that says who the user is, and its SignIn.
USER = "jobscribe-user"
_SIGN_IN = "jobscribe-sign-in"


def create_app(
    settings: Settings, source: Source, log: Log, *, sessions: Sessions | None
) -> flask.Flask:
    """sessions: those of the sign-in by name, for this machine only; without them
    `server.user_hook` says who the user is.

    Raises Refusal where a hook cannot be had.
    """
    app = flask.Flask(__name__, static_folder=None)
    # an address that is not quite right is not there: a redirection would not be in our form
    app.url_map.merge_slashes = app.url_map.strict_slashes = False
    server = settings.server
    sign_in = None if sessions is None else SignIn(sessions, source().uid)
    user = _required(server.user_hook) if sign_in is None else sign_in.user
    if sign_in is None and server.uid_file is not None:
        user = UserIds(server.uid_file).user(user)
    app.extensions[USER] = user
    half = max(1, server.threads // 2)
    app.register_blueprint(
        create_blueprint(
            supervisor=source,
            user=user,
            may=_optional("server.may_hook", server.may_hook),
            admin=_optional("server.admin_hook", server.admin_hook),
            plan=_optional("server.plan_hook", server.plan_hook),
            apps_also=settings.apps.also,
            log=log,
            streams=half,
            each=half,
        )
    )
    app.add_url_rule("/healthz", "healthz", lambda: as_json({"state": "ok"}))
    app.add_url_rule("/", "index", lambda: _page("index.html"))
    app.add_url_rule("/static/<path:name>", "static", _page)
    app.register_error_handler(Exception, _form_of_errors(log))
    app.after_request(_headers)
    if sign_in is not None:
        _for_development(app, source, sign_in)
    return app


def _for_development(app: flask.Flask, source: Source, sign_in: SignIn) -> None:
    key = hashlib.sha256(b"jobscribe cookie\0" + source().token.encode()).hexdigest()
    app.extensions[_SIGN_IN] = sign_in
    app.config.update(
        # browsers send cookies to all ports of a host: each root has its own
        SESSION_COOKIE_NAME=f"jobscribe-{key[:8]}",
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_HTTPONLY=True,
        PERMANENT_SESSION_LIFETIME=SESSION_SECS,
        SESSION_REFRESH_EACH_REQUEST=False,
    )
    app.secret_key = hashlib.sha256(key.encode()).hexdigest()
    app.add_url_rule("/sign-in", "sign_in_form", sign_in.form, methods=["GET"])
    app.add_url_rule("/sign-in", "sign_in", sign_in.sign_in, methods=["POST"])
    app.add_url_rule("/sign-out", "sign_out", sign_in.sign_out, methods=["POST"])
    app.add_url_rule("/who", "who", sign_in.who, methods=["GET"])
    app.before_request(_this_machine)


def session_key(app: flask.Flask, cookie: str) -> str | None:
    """The key of the cookie's session, without a request to the application; None where it has none
    that goes on.
    """
    with app.test_request_context(headers={"Cookie": cookie}):
        token = app.extensions[_SIGN_IN].token()
        return None if token is None else key_of(token)


def _this_machine() -> None:
    """A name of somebody else's that leads here would make his pages pages of this site."""
    host = flask.request.host
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if not is_loopback(name.strip("[]")):
        raise Refusal(
            "crossSite", f"this site is called 127.0.0.1 or localhost, not {ascii(name)[:80]}"
        )


def _page(name: str) -> flask.Response:
    answer = flask.send_from_directory(STATIC, name)
    # asked for anew each time, and answered with 304 where it is the same
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["Content-Security-Policy"] = POLICY
    return answer


def _headers(answer: flask.Response) -> flask.Response:
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers.setdefault("Referrer-Policy", "same-origin")
    answer.headers.setdefault("Content-Security-Policy", POLICY)
    return answer


def _form_of_errors(log: Log) -> Callable[[Exception], flask.Response]:
    """What is refused outside of the blueprint, in the same form."""

    def answer(error: Exception) -> flask.Response:
        match error:
            case Refusal():
                refusal = error
            case werkzeug.exceptions.MethodNotAllowed():
                refusal = Refusal(
                    "methodNotAllowed",
                    f"{flask.request.path[:80]} does not take {flask.request.method[:20]}",
                )
            case werkzeug.exceptions.NotFound():
                refusal = Refusal(
                    "notFound", f"there is nothing at {ascii(flask.request.path)[:80]}"
                )
            case werkzeug.exceptions.HTTPException():
                refusal = Refusal("badRequest", f"the request cannot be understood: {error.name}")
            case _:
                log.exception("{} {} failed", flask.request.method, flask.request.path, error=error)
                refusal = Refusal("internal", "something went wrong inside; the log has it")
        response = as_json(error_responses.body(refusal), refusal.http)
        response.headers["Cache-Control"] = "no-store"
        if isinstance(error, werkzeug.exceptions.MethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods or METHODS))
        return response

    return answer


def _required(hook: str | None) -> Callable[..., Any]:
    found = _optional("server.user_hook", hook)
    if found is None:
        raise Refusal(
            "unsafe", "nobody says who the users are; name a module:function in server.user_hook"
        )
    return found


def _optional(setting: str, hook: str | None) -> Callable[..., Any] | None:
    """The function that a setting names. Raises Refusal("badConfig")."""
    if hook is None:
        return None
    module, _, name = hook.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as e:  # whatever a site's module raises when it is imported
        raise Refusal(
            "badConfig", f"{setting}: {hook} cannot be had: {type(e).__name__}: {e}"
        ) from e
    if not callable(found):
        raise Refusal("badConfig", f"{setting}: {hook} is no function")
    function: Callable[..., Any] = found
    return function
