"""The addresses of the API listener with their handlers."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tornado.httputil
import tornado.routing
import tornado.web

from ...protocol.errors import Refusal
from .endpoints import (
    access,
    agents,
    app_calls,
    hosts,
    job_descriptions,
    monitoring,
    run_groups,
    run_plans,
    runs,
    sign_in,
    upkeep,
    usage,
    user_files,
)
from .endpoints.event_stream import events
from .endpoints.live_updates import job_changes, live
from .openpai import routes as openpai_routes
from .transport.authorization import Subject
from .transport.quick_posts import QuickPosts
from .transport.request_handler import ApiContext, Handler, Route


async def _livez(h: Handler) -> Any:
    return {"state": "ok"}


async def _readyz(h: Handler) -> Any:
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    if h.runs.engine.paused:
        raise Refusal("storageUnavailable", "the event store cannot be written now")
    return {"state": "ok", "head": h.runs.engine.store.head()}


async def _metrics(h: Handler) -> Any:
    return {"counters": h.runs.counters.all(), **h.runs.counters.measured()}


async def _nothing(h: Handler) -> Any:
    raise Refusal("notFound", f"there is nothing at {ascii(h.request.path)[:80]}")


ROUTES = (
    Route("/api/run-simulation", runs.run_simulation, "control", Subject.RUN),
    Route("/api/run-many", runs.run_many, "control", Subject.RUNS),
    Route("/api/run-description", job_descriptions.run_description, "control", Subject.BODY),
    Route("/api/run-plan", run_plans.run_plan, "read", Subject.RUN),
    Route("/api/run-array", run_groups.run_array, "control", Subject.RUN),
    Route("/api/run-status", runs.run_status, "read", Subject.BODY, quick=True),
    Route("/api/run-cancel", runs.run_cancel, "control", Subject.BODY),
    Route("/api/run-release", runs.run_release, "control", Subject.BODY),
    Route("/api/job-tasks", runs.job_tasks, "read", Subject.BODY),
    Route("/api/run-file", app_calls.run_file, "read", Subject.BODY),
    Route("/api/run-files", app_calls.run_files, "read", Subject.BODY),
    Route("/api/run-file-digest", app_calls.run_file_digest, "read", Subject.BODY),
    Route("/api/run-file-part", user_files.run_file_part, "read", Subject.BODY),
    Route(
        "/api/put-run-file",
        user_files.put_run_file,
        "control",
        Subject.QUERY,
        ("PUT",),
        sink=user_files.begin_put,
    ),
    Route("/api/call", app_calls.call, "control", Subject.BODY, quick=True),
    Route("/api/begin-session", app_calls.begin_session, "control", Subject.BODY),
    Route("/api/global-resources", app_calls.global_resources, "control", Subject.BODY),
    Route("/api/apps", app_calls.apps, "read", Subject.NOBODY, ("GET",)),
    Route(
        "/api/lib-file",
        user_files.lib_file,
        "control",
        Subject.QUERY,
        ("PUT", "DELETE"),
        sink=user_files.begin_upload,
    ),
    Route("/api/read-lib-file", user_files.read_lib_file, "read", Subject.BODY),
    Route("/api/lib-files", user_files.lib_files, "read", Subject.QUERY, ("GET",)),
    Route("/api/job-list", runs.job_list, "read", Subject.BODY_OR_ALL),
    Route("/api/job-group", run_groups.job_group, "read", Subject.BODY),
    Route("/api/group-cancel", run_groups.group_cancel, "control", Subject.BODY),
    Route("/api/job-log", runs.job_log, "read", Subject.BODY),
    Route("/api/job-metrics", usage.job_metrics, "read", Subject.BODY),
    Route("/api/usage", usage.usage, "read", Subject.BODY_OR_MEMBERS),
    Route("/api/disk-usage", usage.disk_usage, "read", Subject.BODY_OR_MEMBERS),
    Route("/api/job-story", runs.job_story, "read", Subject.BODY),
    Route("/api/job-why", runs.job_why, "read", Subject.BODY),
    Route("/api/trace", runs.trace_id, "read", Subject.BODY_OR_ALL),
    Route("/api/events", events, "read", Subject.QUERY_OR_ALL, ("GET",), streams=True),
    Route("/api/metrics", _metrics, "admin", Subject.ALL, ("GET",)),
    Route("/api/pool", hosts.pool, "admin", Subject.ALL, ("GET",)),
    Route("/api/pool-check", hosts.pool_check, "admin", Subject.ALL, ("GET",)),
    Route("/api/agents", agents.agents, "debug", Subject.BODY_OR_ALL),
    Route("/api/agent-logs", agents.agent_logs, "debug", Subject.BODY_OR_ALL),
    Route("/api/agent-stop", agents.agent_stop, "debug", Subject.BODY_OR_ALL),
    Route("/api/clusters", hosts.clusters, "read", Subject.BODY),
    Route("/api/notify", upkeep.notify, "admin", Subject.ALL, ("GET",)),
    Route("/api/notify-test", upkeep.notify_test, "admin", Subject.ALL),
    Route("/api/notify-retry", upkeep.notify_retry, "admin", Subject.ALL),
    Route("/api/retention", upkeep.retention, "admin", Subject.ALL, ("GET",)),
    Route("/api/retention-sweep", upkeep.retention_sweep, "admin", Subject.ALL),
    Route("/api/log-exchange", upkeep.log_exchange, "admin", Subject.ALL),
    Route("/api/sbatch-login", sign_in.sbatch_login, "control", Subject.BODY),
    Route("/api/sbatch-login-status", sign_in.sbatch_login_status, "read", Subject.BODY),
    Route("/api/sbatch-logout", sign_in.sbatch_logout, "control", Subject.BODY),
    Route("/api/job-changes", job_changes, "admin", Subject.ALL, ("GET",), streams=True),
    Route("/api/whoami", access.whoami, "any", Subject.NOBODY, ("GET",)),
    Route("/api/token-create", access.token_create, "control", Subject.BODY),
    Route("/api/token-list", access.token_list, "read", Subject.BODY),
    Route("/api/token-revoke", access.token_revoke, "control", Subject.BODY),
    Route("/api/device-start", access.device_start, None, Subject.NOBODY),
    Route("/api/device-token", access.device_token, None, Subject.NOBODY),
    Route("/api/device-show", access.device_show, "control", Subject.BODY),
    Route("/api/device-answer", access.device_answer, "control", Subject.BODY),
    Route("/api/audit", access.audit, "admin", Subject.ALL),
    Route("/live", live, None, Subject.NOBODY, ("GET",), streams=True),
    Route("/metrics", monitoring.metrics, "admin", Subject.ALL, ("GET",), monitors=True),
    Route("/health", monitoring.health, "admin", Subject.ALL, ("GET",), monitors=True),
    Route("/livez", _livez, None, Subject.NOBODY, ("GET",)),
    Route("/readyz", _readyz, None, Subject.NOBODY, ("GET",)),
    *openpai_routes.ROUTES,
    Route("/.*", _nothing, None, Subject.NOBODY, ("GET", "POST", "PUT", "DELETE")),
)


class _Matcher(tornado.routing.PathMatches):
    """Matches the path of a route, and its methods where they differ from those of another route with
    this path. (Elsewhere, the handler refuses another method by name.)
    """

    def __init__(self, route: Route) -> None:
        super().__init__(route.pattern)
        self._methods = route.methods if route.path in _DIVIDED else None

    def match(self, request: tornado.httputil.HTTPServerRequest) -> dict[str, Any] | None:
        if self._methods is not None and request.method not in self._methods:
            return None
        return super().match(request)


_DIVIDED = frozenset(p for p, count in Counter(r.path for r in ROUTES).items() if count > 1)


def application(services: ApiContext, routes: Sequence[Route] = ROUTES) -> QuickPosts:
    """Return the application of the API listener."""
    handlers = [
        tornado.routing.Rule(_Matcher(route), Handler, {"services": services, "route": route})
        for route in routes
    ]
    others = tornado.web.Application(handlers, log_function=monitoring.record_request)
    return QuickPosts(services, routes, others)
