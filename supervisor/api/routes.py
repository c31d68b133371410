"""The addresses of the API listener with their handlers."""

from typing import Any

import tornado.web

from ...protocol.errors import Refusal
from .endpoints import (
    agents,
    app_calls,
    clusters,
    hosts,
    job_descriptions,
    monitoring,
    notifications,
    run_groups,
    run_plans,
    runs,
    sign_in,
    usage,
    user_files,
)
from .endpoints.event_stream import events
from .endpoints.live_updates import job_changes, live
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
    Route("/api/run-simulation", runs.run_simulation),
    Route("/api/run-many", runs.run_many),
    Route("/api/run-description", job_descriptions.run_description),
    Route("/api/run-plan", run_plans.run_plan),
    Route("/api/run-array", run_groups.run_array),
    Route("/api/run-status", runs.run_status, quick=True),
    Route("/api/run-cancel", runs.run_cancel),
    Route("/api/run-release", runs.run_release),
    Route("/api/job-tasks", runs.job_tasks),
    Route("/api/run-file", app_calls.run_file),
    Route("/api/run-files", app_calls.run_files),
    Route("/api/call", app_calls.call, quick=True),
    Route("/api/begin-session", app_calls.begin_session),
    Route("/api/global-resources", app_calls.global_resources),
    Route("/api/apps", app_calls.apps, ("GET",)),
    Route("/api/lib-file", user_files.lib_file, ("PUT", "DELETE"), sink=user_files.begin_upload),
    Route("/api/read-lib-file", user_files.read_lib_file),
    Route("/api/lib-files", user_files.lib_files, ("GET",)),
    Route("/api/job-list", runs.job_list),
    Route("/api/job-group", run_groups.job_group),
    Route("/api/group-cancel", run_groups.group_cancel),
    Route("/api/job-log", runs.job_log),
    Route("/api/job-metrics", usage.job_metrics),
    Route("/api/usage", usage.usage),
    Route("/api/job-story", runs.job_story),
    Route("/api/job-why", runs.job_why),
    Route("/api/trace", runs.trace_id),
    Route("/api/events", events, ("GET",), streams=True),
    Route("/api/metrics", _metrics, ("GET",)),
    Route("/api/pool", hosts.pool, ("GET",)),
    Route("/api/pool-check", hosts.pool_check, ("GET",)),
    Route("/api/agents", agents.agents),
    Route("/api/agent-logs", agents.agent_logs),
    Route("/api/agent-stop", agents.agent_stop),
    Route("/api/clusters", clusters.clusters),
    Route("/api/notify", notifications.notify, ("GET",)),
    Route("/api/notify-test", notifications.notify_test),
    Route("/api/notify-retry", notifications.notify_retry),
    Route("/api/sbatch-login", sign_in.sbatch_login),
    Route("/api/sbatch-login-status", sign_in.sbatch_login_status),
    Route("/api/sbatch-logout", sign_in.sbatch_logout),
    Route("/api/job-changes", job_changes, ("GET",), streams=True),
    Route("/live", live, ("GET",), open=True, streams=True),
    Route("/metrics", monitoring.metrics, ("GET",), monitors=True),
    Route("/health", monitoring.health, ("GET",), monitors=True),
    Route("/livez", _livez, ("GET",), open=True),
    Route("/readyz", _readyz, ("GET",), open=True),
    Route("/.*", _nothing, ("GET", "POST", "PUT", "DELETE"), open=True),
)


def application(services: ApiContext) -> QuickPosts:
    """Return the application of the API listener."""
    routes = [(route.path, Handler, {"services": services, "route": route}) for route in ROUTES]
    others = tornado.web.Application(routes, log_function=monitoring.record_request)
    return QuickPosts(services, ROUTES, others)
