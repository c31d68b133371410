"""The Flask blueprint. Every request passes the same checks in the same order, and every response
has the same form.

The checks: method, user, cross-site request, then the route's own. A refusal is counted and has a
code. Any other exception is logged with its traceback and answered as `internal`.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import flask
import msgspec

from ...client.api.errors import ClientError
from ...client.transport.address import Address, Source, in_root
from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...protocol.redaction import Redactor
from ...runtime.log.destinations import Stream
from ...runtime.log.logger import Direct, Log
from ...runtime.struct_types import resolve_all
from ...service.site.secret_files import is_loopback
from ..request import csrf, error_responses
from ..request.app_catalog import AppCatalog
from ..request.context import Admin, FrontEndContext, May, Plan, RequestContext, User, as_json
from ..request.supervisor_client import SupervisorClient
from ..request.worker_quota import WorkerQuota
from . import docs_file, openapi
from . import pages as page_files
from .pages import PageOptions
from .route import Route
from .routes import ROUTES

#: All methods, so that a disallowed method gets our own error response.
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
STREAMS, EACH = 4, 8
_PAGES = PageOptions()


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
    pages: PageOptions | None = _PAGES,
) -> flask.Blueprint:
    """Return the front end's routes, to be registered in a Flask site.

    supervisor: its address; a root is read again when the supervisor is unreachable, because a
    restart may change the address. user: hook that returns the uid (8 letters or digits) of a
    request, None if nobody is signed in. It is the only source of the uid. A site with other user
    names maps them with `UserIds(path).user(hook)`. may: hook that returns a Refusal against this
    user's use of an api and simulation type (such as `planRequired` or `forbidden`), else None.
    admin: hook that returns whether this user may see all users' jobs. plan: hook that returns the
    user's current account plan, a short word stored with runs (the supervisor keeps the runs of
    plans in `purge.kept_plans`). streams: maximum number of downloads that hold a worker. each:
    maximum number of requests and downloads of one user at once. pages: None for a site without the
    pages below /jobs and their data below /page-data. `app.extensions[name].close()`
    releases all resources, for a process that creates several sites.
    """
    resolve_all()
    log = log or Log("web", Redactor(), Direct(Stream(sys.stderr)))
    site = FrontEndContext(
        SupervisorClient(_source(supervisor), log.redactor),
        AppCatalog(apps_also),
        log,
        user=user,
        may=may,
        admin=admin,
        plan=plan,
        quota=WorkerQuota(streams, each),
    )
    blueprint = flask.Blueprint(name, __name__)
    blueprint.record_once(lambda state: state.app.extensions.__setitem__(name, site))
    by_path: dict[str, dict[str, Route]] = {}
    offered = [r for r in ROUTES if pages is not None or not r.of_pages]
    for route in offered:
        by_path.setdefault(route.path, {})[route.method] = route
    for path, routes in by_path.items():
        endpoint = re.sub(r"\W+", "_", path.partition("<")[0]).strip("_")
        view = _view(site, routes)
        if pages is not None and path in page_files.PAGES:
            view = _page_or_data(_page(site, pages), view)
        blueprint.add_url_rule(
            path, endpoint, view, methods=METHODS, provide_automatic_options=False
        )
    blueprint.add_url_rule(
        "/openapi.json",
        "openapi",
        _document(site, offered),
        methods=METHODS,
        provide_automatic_options=False,
    )
    if pages is not None:
        _add_pages(blueprint, site, pages)
    return blueprint


def _page(site: FrontEndContext, options: PageOptions) -> Callable[..., flask.Response]:
    def page(rest: str = "") -> flask.Response:
        def show() -> flask.Response:
            _method(["GET"])
            uid = flask.g.jobscribe_uid = _uid(site, flask.request)
            file = flask.url_for(f"{flask.request.blueprint}.page_file", name="x")
            base = file.removesuffix(f"{page_files.FILES_PATH}x")
            shown = options if options.api else msgspec.structs.replace(options, api=_api(site))
            return page_files.document(shown, base, uid)

        return answered(site, show, ["GET"])

    return page


def _page_or_data(
    page: Callable[..., flask.Response], data: Callable[..., flask.Response]
) -> Callable[..., flask.Response]:
    """Return a view that answers a browser that opens the address with the page, and anybody else
    with the data.
    """

    def view(**args: str) -> flask.Response:
        opens = flask.request.accept_mimetypes.best_match(("application/json", "text/html"))
        answer = page() if opens == "text/html" else data(**args)
        answer.vary.add("Accept")
        return answer

    return view


def _add_pages(blueprint: flask.Blueprint, site: FrontEndContext, options: PageOptions) -> None:
    page = _page(site, options)

    def page_file(name: str) -> flask.Response:
        def send() -> flask.Response:
            _method(["GET"])
            return page_files.file(name)

        return answered(site, send, ["GET"])

    def docs() -> flask.Response:
        def send() -> flask.Response:
            _method(["GET"])
            return docs_file.answer()

        return answered(site, send, ["GET"])

    views: list[tuple[str, str, Callable[..., flask.Response]]] = [
        (page_files.FILES_PATH + docs_file.NAME, "page_docs", docs),
        *(
            (path, f"page_{n}", page)
            for n, path in enumerate(page_files.PAGES)
            if all(path != route.path for route in ROUTES)
        ),
        (page_files.FILES_PATH + "<name>", "page_file", page_file),
    ]
    for path, endpoint, view in views:
        blueprint.add_url_rule(
            path, endpoint, view, methods=METHODS, provide_automatic_options=False
        )


def _api(site: FrontEndContext) -> str | None:
    """Return the supervisor's address for commands, if browser and supervisor are on one machine."""
    if not is_loopback(flask.request.host.rpartition(":")[0].strip("[]")):
        return None
    try:
        url = site.upstream.address().url
    except (ClientError, Refusal):  # it does not run
        return None
    return url if is_loopback(urlsplit(url).hostname or "") else None


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


def _document(site: FrontEndContext, offered: Sequence[Route]) -> Callable[[], flask.Response]:
    def document() -> flask.Response:
        return answered(site, _json_document, ["GET"])

    def _json_document() -> flask.Response:
        _method(["GET"])
        return as_json(openapi.document(flask.request.path.removesuffix("/openapi.json"), offered))

    return document


def _routed(
    site: FrontEndContext, routes: Mapping[str, Route], args: Mapping[str, str]
) -> flask.Response:
    request = flask.request
    route = routes[_method(routes)]
    uid = flask.g.jobscribe_uid = _uid(site, request)
    if not uid and not route.visitor:
        raise Refusal("unauthenticated", "you are not signed in")
    if route.method != "GET":
        csrf.check(request.headers, request.host, wants_json=route.method == "POST")
    with site.quota.request(uid):
        body = route.handler(RequestContext(site, route.api, request, uid, args))
    return body if isinstance(body, flask.Response) else as_json(body)


def _method(allowed: Any) -> str:
    method = "GET" if flask.request.method == "HEAD" else flask.request.method
    if method not in allowed:
        raise Refusal(
            "methodNotAllowed", f"{flask.request.path[:80]} takes {' and '.join(allowed)}"
        )
    return method


def _uid(site: FrontEndContext, request: flask.Request) -> str:
    """Return the uid, "" if nobody is signed in. A hook that returns another value is an error of
    the site, not of the browser.
    """
    uid = site.user(request)
    if uid is None:
        return ""
    try:
        return parse("uid", uid)
    except Refusal as e:
        site.counts.add("badUserHook")
        ways = "the operator must correct the hook, or map the user names to uids (docs/front-end.md, 'User names')"
        raise Refusal(
            "badConfig",
            f"the user hook of this site does not return a uid: {e.sentence}; {ways}",
        ) from None


def answered(
    site: FrontEndContext, answer: Callable[[], flask.Response], methods: Any = ()
) -> flask.Response:
    """Return the result of `answer`, or an error response for its exception."""
    try:
        response = answer()
    except Refusal as e:
        response = _refused(site, e, methods)
    except ClientError as e:
        refusal = error_responses.from_supervisor(e)
        if refusal.code != e.code:
            site.log("{}: the supervisor refused: {}: {}", _request_text(), e.code, e.sentence)
        response = _refused(site, refusal, methods)
    except Exception as e:
        site.counts.add("internal")
        site.log.exception("{} failed", _request_text(), error=e)
        response = as_json(
            error_responses.body(
                Refusal("internal", "an internal error occurred; the log of this site has details")
            ),
            500,
        )
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    return response


def _request_text() -> str:
    """Describe the request for the log: method, path and user, if known."""
    return f"{flask.request.method} {flask.request.path} uid={flask.g.get('jobscribe_uid') or None}"


def _refused(site: FrontEndContext, refusal: Refusal, methods: Any) -> flask.Response:
    site.counts.add("refused." + refusal.code)
    site.log("{} refused: {}: {}", _request_text(), refusal.code, refusal.sentence)
    if refusal.__cause__ is not None:
        site.log.exception("cause of the refusal", error=refusal.__cause__)
    response = as_json(error_responses.body(refusal), refusal.http)
    if "retryAfterSecs" in refusal.more:
        response.headers["Retry-After"] = str(refusal.more["retryAfterSecs"])
    if refusal.code == "methodNotAllowed":
        response.headers["Allow"] = ", ".join(methods)
    return response
