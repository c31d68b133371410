"""Every address of the API listener, with who answers there."""

from typing import Any

import tornado.web

from ...protocol.errors import Refusal
from .endpoints import agents, clusters, monitoring, runs, sign_in, usage
from .endpoints import app_calls as calls
from .endpoints import hosts as pool
from .endpoints import job_descriptions as descriptions
from .endpoints import notifications as notify
from .endpoints import run_groups as groups
from .endpoints import run_plans as plans
from .endpoints import user_files as library
from .endpoints.event_stream import events
from .endpoints.live_updates import live
from .transport.request_handler import Handler, Route, Services


async def _livez(h: Handler) -> Any:
    return {"state": "ok"}


async def _readyz(h: Handler) -> Any:
    if h.desk.draining:
        raise Refusal("draining", "the supervisor is stopping")
    if h.desk.engine.paused:
        raise Refusal("storageUnavailable", "the store cannot be written now")
    return {"state": "ok", "head": h.desk.engine.store.head()}


async def _metrics(h: Handler) -> Any:
    return {"counters": h.desk.counters.all(), **h.desk.counters.measured()}


async def _nothing(h: Handler) -> Any:
    raise Refusal("notFound", f"there is nothing at {ascii(h.request.path)[:80]}")


ROUTES = (
    Route("/api/run-simulation", runs.run_simulation),
    Route("/api/run-many", runs.run_many),
    Route("/api/run-description", descriptions.run_description),
    Route("/api/run-plan", plans.run_plan),
    Route("/api/run-array", groups.run_array),
    Route("/api/run-status", runs.run_status),
    Route("/api/run-cancel", runs.run_cancel),
    Route("/api/run-release", runs.run_release),
    Route("/api/job-tasks", runs.job_tasks),
    Route("/api/run-file", calls.run_file),
    Route("/api/run-files", calls.run_files),
    Route("/api/call", calls.call),
    Route("/api/begin-session", calls.begin_session),
    Route("/api/global-resources", calls.global_resources),
    Route("/api/apps", calls.apps, ("GET",)),
    Route("/api/lib-file", library.lib_file, ("PUT", "DELETE"), sink=library.begin_upload),
    Route("/api/read-lib-file", library.read_lib_file),
    Route("/api/lib-files", library.lib_files, ("GET",)),
    Route("/api/job-list", runs.job_list),
    Route("/api/job-group", groups.job_group),
    Route("/api/group-cancel", groups.group_cancel),
    Route("/api/job-log", runs.job_log),
    Route("/api/job-metrics", usage.job_metrics),
    Route("/api/job-story", runs.job_story),
    Route("/api/job-why", runs.job_why),
    Route("/api/trace", runs.trace_id),
    Route("/api/events", events, ("GET",), streams=True),
    Route("/api/metrics", _metrics, ("GET",)),
    Route("/api/pool", pool.pool, ("GET",)),
    Route("/api/pool-check", pool.pool_check, ("GET",)),
    Route("/api/agents", agents.agents),
    Route("/api/agent-logs", agents.agent_logs),
    Route("/api/agent-stop", agents.agent_stop),
    Route("/api/clusters", clusters.clusters),
    Route("/api/notify", notify.notify, ("GET",)),
    Route("/api/notify-test", notify.notify_test),
    Route("/api/notify-retry", notify.notify_retry),
    Route("/api/sbatch-login", sign_in.sbatch_login),
    Route("/api/sbatch-login-status", sign_in.sbatch_login_status),
    Route("/api/sbatch-logout", sign_in.sbatch_logout),
    Route("/live", live, ("GET",), open=True, streams=True),
    Route("/metrics", monitoring.metrics, ("GET",), monitors=True),
    Route("/health", monitoring.health, ("GET",), monitors=True),
    Route("/livez", _livez, ("GET",), open=True),
    Route("/readyz", _readyz, ("GET",), open=True),
    Route("/.*", _nothing, ("GET", "POST", "PUT", "DELETE"), open=True),
)


def application(services: Services) -> tornado.web.Application:
    """The API listener."""
    routes = [(route.path, Handler, {"services": services, "route": route}) for route in ROUTES]
    return tornado.web.Application(routes, log_function=monitoring.seen)
