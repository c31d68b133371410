"""The Flask blueprint: every request through the same gates, in the same order, and every answer in
the same form.

Method, who asks, whether another site made the browser ask, then the route. A refusal is counted
and has a code; whatever else goes wrong is logged with its trace and answered as `internal`.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flask

from ...client.api.errors import ClientError
from ...client.transport.address import Address, Source, in_root
from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...protocol.redaction import Redactor
from ...runtime.log.destinations import Stream
from ...runtime.log.logger import Direct, Log
from ..request import csrf, error_responses
from ..request.app_catalog import AppCatalog
from ..request.context import Admin, FrontEndContext, May, Plan, RequestContext, User, as_json
from ..request.supervisor_client import SupervisorClient
from ..request.worker_quota import WorkerQuota
from . import openapi
from .routes import ROUTES, Route

#: All of them, so that a wrong one is answered in our form, too.
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
STREAMS, EACH = 4, 8


def create_blueprint(
    *,
    supervisor: Address | Source | str,
    user: User,
    may: May | None = None,
    admin: Admin | None = None,
    plan: Plan | None = None,
    apps_also: Sequence[str] = (),
    name: str = "jobscribe",
    log: Log | None = None,
    streams: int = STREAMS,
    each: int = EACH,
) -> flask.Blueprint:
    """The front end's routes, to be registered in a Flask site.

    supervisor: where it is; a root is read anew whenever it cannot be reached, so that it may be
    started again. user: says whose request this is (a uid of 8 letters or digits), None for nobody.
    The only source of the uid. A site whose users have other names gives them uids with
    `UserIds(path).user(hook)`. may: what speaks against this user's use of this api and simulation
    type (None where there is none): a Refusal, as of `planRequired` or `forbidden`. admin: may this
    user see everybody's jobs? plan: what the user's account is now, a small word that runs are
    submitted with (`purge.kept_plans` of the supervisor names those whose runs are kept). streams:
    downloads that may hold a worker at once. each: requests and downloads of one user that may.
    `app.extensions[name].close()` gives back what is held, for sites that come and go within one
    process.
    """
    log = log or Log("web", Redactor(), Direct(Stream(sys.stderr)))
    site = FrontEndContext(
        SupervisorClient(_source(supervisor), log.redactor),
        AppCatalog(apps_also),
        log,
        user=user,
        may=may,
        admin=admin,
        plan=plan,
        places=WorkerQuota(streams, each),
    )
    blueprint = flask.Blueprint(name, __name__)
    blueprint.record_once(lambda state: state.app.extensions.__setitem__(name, site))
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    for path, routes in by_path.items():
        endpoint = re.sub(r"\W+", "_", path.partition("<")[0]).strip("_")
        blueprint.add_url_rule(
            path, endpoint, _view(site, routes), methods=METHODS, provide_automatic_options=False
        )
    blueprint.add_url_rule(
        "/openapi.json",
        "openapi",
        _document(site),
        methods=METHODS,
        provide_automatic_options=False,
    )
    return blueprint


def _source(supervisor: Address | Source | str) -> Source:
    match supervisor:
        case Address():
            return lambda: supervisor
        case str():
            return in_root(os.path.expanduser(supervisor))
        case _:
            return supervisor


def _view(site: FrontEndContext, routes: Mapping[str, Route]) -> Callable[..., flask.Response]:
    def view(**args: str) -> flask.Response:
        return answered(site, lambda: _routed(site, routes, args), routes)

    return view


def _document(site: FrontEndContext) -> Callable[[], flask.Response]:
    def document() -> flask.Response:
        return answered(site, _json_document, ["GET"])

    def _json_document() -> flask.Response:
        _method(["GET"])
        return as_json(openapi.document(flask.request.path.removesuffix("/openapi.json")))

    return document


def _routed(
    site: FrontEndContext, routes: Mapping[str, Route], args: Mapping[str, str]
) -> flask.Response:
    request = flask.request
    route = routes[_method(routes)]
    uid = flask.g.jobscribe_uid = _uid(site, request)
    if not uid and not route.visitor:
        raise Refusal("unauthenticated", "nobody is signed in")
    if route.method != "GET":
        csrf.check(request.headers, request.host, wants_json=route.method == "POST")
    with site.places.request(uid):
        body = route.answer(RequestContext(site, route.api, request, uid, args))
    return body if isinstance(body, flask.Response) else as_json(body)


def _method(allowed: Any) -> str:
    method = "GET" if flask.request.method == "HEAD" else flask.request.method
    if method not in allowed:
        raise Refusal(
            "methodNotAllowed", f"{flask.request.path[:80]} takes {' and '.join(allowed)}"
        )
    return method


def _uid(site: FrontEndContext, request: flask.Request) -> str:
    """ "" for nobody. A hook that says something else than a uid is a mistake of the site, and
    never the browser's.
    """
    uid = site.user(request)
    if uid is None:
        return ""
    try:
        return parse("uid", uid)
    except Refusal as e:
        site.counts.add("badUserHook")
        ways = "its operator corrects the hook, or has the names of its users mapped to uids (docs/front-end.md, 'User names')"
        raise Refusal(
            "badConfig",
            f"the hook of this site that says who the user is does not give a uid: {e.sentence}; {ways}",
        ) from None


def answered(
    site: FrontEndContext, answer: Callable[[], flask.Response], methods: Any = ()
) -> flask.Response:
    """What `answer` returns, or the error that it raises, in our form."""
    try:
        response = answer()
    except Refusal as e:
        response = _refused(site, e, methods)
    except ClientError as e:
        refusal = error_responses.from_supervisor(e)
        if refusal.code != e.code:
            site.log("{}: the supervisor says {}: {}", _asked(), e.code, e.sentence)
        response = _refused(site, refusal, methods)
    except Exception as e:
        site.counts.add("internal")
        site.log.exception("{} failed", _asked(), error=e)
        response = as_json(
            error_responses.body(
                Refusal("internal", "something went wrong inside; the log has it")
            ),
            500,
        )
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    return response


def _asked() -> str:
    """The request as the log shows it: what is asked for, and by whom if that is known yet."""
    return f"{flask.request.method} {flask.request.path} uid={flask.g.get('jobscribe_uid') or None}"


def _refused(site: FrontEndContext, refusal: Refusal, methods: Any) -> flask.Response:
    site.counts.add("refused." + refusal.code)
    site.log("{} refused: {}: {}", _asked(), refusal.code, refusal.sentence)
    if refusal.__cause__ is not None:
        site.log.exception("its cause", error=refusal.__cause__)
    response = as_json(error_responses.body(refusal), refusal.http)
    if refusal.code == "methodNotAllowed":
        response.headers["Allow"] = ", ".join(methods)
    return response
