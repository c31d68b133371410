"""Wires the sign-in of `jobscribe server` to its application, as the settings choose it."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import flask

from ...protocol.errors import Refusal
from ...service.settings.settings import Settings
from ...service.site.secret_files import read_secret
from ..request.context import FrontEndContext
from ..sign_in.attempt_limits import AttemptLimits
from ..sign_in.login_sessions import Sessions
from ..sign_in.password_check import PasswordCheck
from ..sign_in.password_sign_in import PasswordSignIn
from ..sign_in.password_tokens import PasswordTokens
from ..sign_in.session_cookie import SessionCookie
from ..sign_in.session_routes import SessionRoutes
from .user_ids import UserIds

#: Maximum number of sessions of a site.
MOST_SESSIONS = 10_000


def session_cookie(settings: Settings) -> SessionCookie | None:
    """Return the sessions of a site that signs people in itself; None for another site. They are in
    a file beside the uids.
    """
    s = settings.server
    if s.oidc_issuer is None and s.pam_service is None:
        return None
    if s.public_url is None or s.uid_file is None:
        raise Refusal("badConfig", "sign-in needs server.public_url and server.uid_file")
    path = Path(s.uid_file).absolute()
    sessions = Sessions(
        path.with_name(path.name + ".sessions"), most=MOST_SESSIONS, secs=s.session_secs
    )
    return SessionCookie(sessions, s.public_url, s.session_secs)


def add_sign_in(
    app: flask.Flask, settings: Settings, cookie: SessionCookie, site: FrontEndContext
) -> PasswordTokens | None:
    """Add the routes of sign-in. Return what issues tokens for passwords, if this site checks some.

    Raises Refusal if a package is missing or a secret is unsafe.
    """
    s = settings.server
    assert s.uid_file is not None and s.public_url is not None
    uid_of = UserIds(s.uid_file).of
    routes = SessionRoutes(cookie)
    app.add_url_rule("/who", "who", routes.who, methods=["GET"])
    app.add_url_rule("/sign-out", "sign_out", routes.sign_out, methods=["POST"])
    if s.oidc_issuer is not None:
        _add_openid(app, settings, cookie, site, uid_of)
    elif s.pam_service is not None:
        if importlib.util.find_spec("pamela") is None:
            raise _missing("pam", "server.pam_service", "pamela")
        check, limits = PasswordCheck(s.pam_service, site.log), AttemptLimits()
        sign_in = PasswordSignIn(check, cookie, site, uid_of, s.public_url, limits)
        app.add_url_rule("/sign-in", "sign_in_form", sign_in.form, methods=["GET"])
        app.add_url_rule("/sign-in", "sign_in", sign_in.sign_in, methods=["POST"])
        return PasswordTokens(check, limits, site, uid_of)
    return None


def _add_openid(
    app: flask.Flask,
    settings: Settings,
    cookie: SessionCookie,
    site: FrontEndContext,
    uid_of: Callable[[str], str],
) -> None:
    try:
        from ..sign_in.openid_provider import Client, OpenIdProvider
        from ..sign_in.openid_sign_in import OpenIdSignIn
    except ImportError as e:
        raise _missing("oidc", "server.oidc_issuer", e.name) from None
    s = settings.server
    assert s.oidc_issuer and s.oidc_client_id and s.oidc_client_secret_file and s.public_url
    secret = read_secret(s.oidc_client_secret_file, "server.oidc_client_secret_file")
    client = Client(
        issuer=s.oidc_issuer,
        id=s.oidc_client_id,
        secret=site.log.redactor.add(secret),
        redirect_uri=f"{s.public_url}/sign-in/callback",
        scopes=s.oidc_scopes,
        claim=s.oidc_claim,
    )
    sign_in = OpenIdSignIn(OpenIdProvider(client), cookie, site, uid_of, s.public_url)
    app.add_url_rule("/sign-in", "sign_in", sign_in.start, methods=["GET"])
    app.add_url_rule("/sign-in/callback", "sign_in_callback", sign_in.callback, methods=["GET"])


def _missing(extra: str, setting: str, package: str | None) -> Refusal:
    return Refusal(
        "badConfig",
        f"{setting} needs the package {package}: run pip install 'jobscribe[{extra}]'",
    )
