"""The Flask application of `jobscribe server` and `jobscribe up`: the blueprint, the page, and the
health check.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import flask
import werkzeug.exceptions
from flask.typing import ResponseReturnValue

from ...client.transport.address import Source
from ...protocol.api.device_logins import PAGE
from ...protocol.errors import Refusal
from ...runtime.log.logger import Log
from ...service.settings.settings import Settings
from ...service.site.secret_files import is_loopback
from ..blueprint.blueprint import METHODS, create_blueprint
from ..blueprint.pages import PageOptions
from ..request import error_responses
from ..request.context import FrontEndContext, as_json
from ..sign_in.device_page import DevicePage
from ..sign_in.login_sessions import SESSION_SECS, Sessions, key_of
from ..sign_in.password_tokens import PasswordTokens
from ..sign_in.session_list import SessionList
from .cookie_sessions import SignedSessions, cookie_name
from .development_login import SignIn
from .openpai_rest import OpenPaiRest
from .proxy_user import ProxyUser
from .sign_in import add_sign_in, session_cookie
from .user_ids import UserIds

#: Content security policy: scripts, images and styles only from this site, and no framing by other
#: sites.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
#: Keys of the application's extensions: the user hook, and the SignIn.
USER = "jobscribe-user"
_SIGN_IN = "jobscribe-sign-in"
#: Pages of a site with sessions of its own.
_SIGNS_IN = {"home": "/sign-in", "sign_out": "/sign-out"}


def create_app(
    settings: Settings,
    source: Source,
    log: Log,
    *,
    sessions: Sessions | None,
    secrets: Callable[[], tuple[str, ...]] | None = None,
) -> flask.Flask:
    """Create the application. sessions: of the development login, for this machine only; if None,
    the settings determine how people sign in. secrets: the valid server secrets, the current one
    first, from which cookie keys are derived; None for that of `source`.

    Raises Refusal if a hook cannot be loaded.
    """
    app = flask.Flask(__name__, static_folder=None)
    # an inexact address is not found: a redirect would not have our response form
    app.url_map.merge_slashes = app.url_map.strict_slashes = False
    server = settings.server
    sign_in = None if sessions is None else SignIn(sessions, source().uid)
    cookie = None if sign_in is not None else session_cookie(settings)
    if sign_in is not None:
        user: Callable[..., Any] = sign_in.user
    elif cookie is not None:
        user = cookie.user
    elif server.user_header is not None:
        user = ProxyUser(server.user_header)
    else:
        user = _required(server.user_hook)
    if sign_in is None and cookie is None and server.uid_file is not None:
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
            pages=PageOptions(
                device=f"/{PAGE}",
                api=_api(settings),
                **_SIGNS_IN if sign_in is not None or cookie is not None else {},
            ),
        )
    )
    app.add_url_rule("/healthz", "healthz", lambda: as_json({"state": "ok"}))
    app.add_url_rule("/", "index", lambda: _start(sign_in))
    app.register_error_handler(Exception, _form_of_errors(log))
    app.after_request(_headers)
    site: FrontEndContext = app.extensions["jobscribe"]
    issue: PasswordTokens | None = None
    if sign_in is not None:
        site.sign_ins = SessionList(sign_in.sessions, sign_in.token)
        _for_development(app, settings.root, secrets or (lambda: (source().token,)), sign_in)
    elif cookie is not None:
        site.sign_ins = SessionList(cookie.sessions, cookie.token)
        issue = add_sign_in(app, settings, cookie, site)
    known = (lambda _: None) if server.uid_file is None else UserIds(server.uid_file).known
    OpenPaiRest(site, issue, known, server.public_url).add_to(app)
    page = DevicePage(site, user, sign_in=sign_in is not None or cookie is not None)
    app.add_url_rule(f"/{PAGE}", "device_form", page.show, methods=["GET"])
    app.add_url_rule(f"/{PAGE}", "device_answer", page.answer, methods=["POST"])
    return app


def _api(settings: Settings) -> str | None:
    """Return the supervisor's address for commands on other machines, where it has HTTPS."""
    host = urlsplit(settings.server.public_url or "").hostname
    port = settings.supervisor.tls_port
    if host is None or settings.supervisor.tls_cert is None or port == 0:
        return None
    return f"https://{host if ':' not in host else f'[{host}]'}:{port}"


def _for_development(
    app: flask.Flask, root: str, secrets: Callable[[], tuple[str, ...]], sign_in: SignIn
) -> None:
    app.extensions[_SIGN_IN] = sign_in
    app.config.update(
        SESSION_COOKIE_NAME=cookie_name(root),
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_HTTPONLY=True,
        PERMANENT_SESSION_LIFETIME=SESSION_SECS,
        SESSION_REFRESH_EACH_REQUEST=False,
    )
    app.session_interface = sessions = SignedSessions(secrets)
    sessions.refresh(app)
    app.add_url_rule("/sign-in", "sign_in_form", sign_in.form, methods=["GET"])
    app.add_url_rule("/sign-in", "sign_in", sign_in.sign_in, methods=["POST"])
    app.add_url_rule("/sign-out", "sign_out", sign_in.sign_out, methods=["POST"])
    app.add_url_rule("/who", "who", sign_in.who, methods=["GET"])
    app.before_request(_this_machine)


def session_key(app: flask.Flask, cookie: str) -> str | None:
    """Return the session key of a cookie without serving a request; None without a valid session."""
    with app.test_request_context(headers={"Cookie": cookie}):
        token = app.extensions[_SIGN_IN].token()
        return None if token is None else key_of(token)


def _this_machine() -> None:
    """Refuse other host names: DNS rebinding would make another site's pages same-origin."""
    name = _host_name(flask.request.host)
    if not _is_this_machine(name):
        raise Refusal(
            "crossSite",
            f"this site is only reachable as 127.0.0.1 or localhost, not as {ascii(name)[:80]}",
        )


def _host_name(host: str) -> str:
    return (host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host).strip("[]")


_is_this_machine = functools.lru_cache(64)(is_loopback)


def _start(sign_in: SignIn | None) -> ResponseReturnValue:
    """Return where people begin: the page of apps, after a development login."""
    isnt_known = sign_in is not None and sign_in.session() is None
    answer = flask.redirect("./sign-in" if isnt_known else "./apps")
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _headers(answer: flask.Response) -> flask.Response:
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers.setdefault("Referrer-Policy", "same-origin")
    answer.headers.setdefault("Content-Security-Policy", POLICY)
    return answer


def _form_of_errors(log: Log) -> Callable[[Exception], flask.Response]:
    """Return an error handler with the blueprint's response form, for errors outside of the
    blueprint.
    """

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
                refusal = Refusal("badRequest", f"the request is not valid: {error.name}")
            case _:
                log.exception("{} {} failed", flask.request.method, flask.request.path, error=error)
                refusal = Refusal(
                    "internal", "an internal error occurred; the log of this site has details"
                )
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
            "unsafe",
            "no hook determines the user of a request; set server.user_hook to module:function",
        )
    return found


def _optional(setting: str, hook: str | None) -> Callable[..., Any] | None:
    """Return the function that a setting names. Raises Refusal("badConfig")."""
    if hook is None:
        return None
    module, _, name = hook.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as e:  # a site's module may raise anything at import
        raise Refusal(
            "badConfig", f"{setting}: {hook} cannot be loaded: {type(e).__name__}: {e}"
        ) from e
    if not callable(found):
        raise Refusal("badConfig", f"{setting}: {hook} is not a function")
    function: Callable[..., Any] = found
    return function
