"""The addresses of the API listener with their handlers."""

import functools
import gzip
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tornado.httputil
import tornado.routing
import tornado.web

from ...protocol.api import requests as rq
from ...protocol.api import site_requests as sq
from ...protocol.errors import Refusal
from . import openapi
from .endpoints import (
    access,
    agents,
    app_calls,
    hosts,
    run_groups,
    runs,
    sign_in,
    site,
    upkeep,
    usage,
    user_files,
)
from .endpoints.event_stream import events
from .endpoints.live_updates import job_changes, live
from .endpoints.submission import job_descriptions, job_texts, run_plans
from .openpai import routes as openpai_routes
from .transport import shard_rules as rules
from .transport.authorization import Subject
from .transport.quick_posts import QuickPosts
from .transport.request_handler import (
    BYTES,
    EVENTS,
    TEXT,
    ApiContext,
    Handler,
    QueryField,
    Route,
)


async def _livez(h: Handler) -> Any:
    """Return whether the process lives."""
    return {"state": "ok"}


async def _readyz(h: Handler) -> Any:
    """Return whether requests are served, with the position of the newest event."""
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    if h.runs.engine.paused or h.runs.engine.store.stalled():
        raise Refusal("storageUnavailable", "the event store cannot be written now")
    return {"state": "ok", "head": h.runs.engine.store.head()}


async def _metrics(h: Handler) -> Any:
    """Return counters and measured sizes of the supervisor."""
    return {"counters": h.runs.counters.all(), **h.runs.counters.measured()}


async def _openapi(h: Handler) -> Any:
    """The document of this interface, compressed for clients that accept gzip."""
    content, packed = _document()
    h.set_header("Vary", "Accept-Encoding")
    if "gzip" not in h.request.headers.get("Accept-Encoding", ""):
        return content
    h.set_header("Content-Encoding", "gzip")
    return packed


@functools.cache
def _document() -> tuple[bytes, bytes]:
    """Return the OpenAPI document, and its compressed form."""
    content = openapi.encoded(ROUTES)
    return content, gzip.compress(content, 9, mtime=0)


async def _nothing(h: Handler) -> Any:
    raise Refusal("notFound", f"there is nothing at {ascii(h.request.path)[:80]}")


_UID = QueryField("uid", "the user; absent: the sender", {"type": "string"})
_APP = QueryField("simulationType", "the app", required=True)
_NAME = QueryField("name", "of the file", required=True)
_OVER = QueryField("over", "ETag of the file that this one may replace; none: there is no file")
_JID = QueryField("computeJid", "events of this job alone")
_LIVE = (
    QueryField("computeJid", "the jobs of the page; may be repeated"),
    QueryField(
        "of",
        "without computeJid: own jobs, those of the members of your groups, or those of all users",
        {"enum": ["own", "group", "all"]},
    ),
    QueryField("logs", "the job whose output is streamed"),
    QueryField("stream", "of that output", {"enum": ["stdout", "stderr"]}),
    QueryField("attempt", "0: the latest", {"type": "integer", "minimum": 0}),
    QueryField("role", "of the task"),
    QueryField("index", "of the task", {"type": "integer", "minimum": 0}),
    QueryField("tail", "bytes of earlier output", {"type": "integer", "minimum": 0}),
    QueryField("shell", "shellId of an open shell of computeJid: its output is streamed instead"),
    QueryField("offset", "bytes of that output that have arrived", {"type": "integer"}),
)
_DEVICE = (
    QueryField("name", "of the token", required=True),
    QueryField("scope", "of the token; may be repeated", required=True),
    QueryField("expiresSecs", "lifetime of the token in seconds", {"type": "number"}),
)
_AFTER = QueryField(
    "after", "position of the last known event; -1: the newest", {"type": "integer"}
)

ROUTES = (
    Route(
        "/api/run-simulation",
        runs.run_simulation,
        "control",
        Subject.RUN,
        quick=True,
        takes=rq.RunSimulation,
    ),
    Route(
        "/api/run-many", runs.run_many, "control", Subject.RUNS, takes=rq.RunMany, merge=rules.RUNS
    ),
    Route(
        "/api/run-description",
        job_descriptions.run_description,
        "control",
        Subject.BODY,
        takes=rq.RunDescription,
    ),
    Route("/api/job-options", job_texts.options, "read", Subject.BODY, takes=rq.JobOptions),
    Route("/api/job-check", job_texts.job_check, "read", Subject.BODY, takes=rq.JobCheck),
    Route("/api/run-text", job_texts.run_text, "control", Subject.BODY, takes=rq.RunText),
    Route("/api/run-plan", run_plans.run_plan, "read", Subject.RUN, takes=rq.RunPlan),
    Route("/api/run-array", run_groups.run_array, "control", Subject.RUN, takes=rq.RunArray),
    Route(
        "/api/run-status",
        runs.run_status,
        "read",
        Subject.BODY,
        quick=True,
        takes=rq.RunStatusRequest,
    ),
    Route("/api/run-cancel", runs.run_cancel, "control", Subject.BODY, takes=rq.RunCancel),
    Route("/api/run-release", runs.run_release, "control", Subject.BODY, takes=rq.RunRelease),
    Route("/api/run-purge", runs.run_purge, "control", Subject.BODY, takes=rq.RunPurge),
    Route("/api/job-tag", runs.job_tag, "control", Subject.BODY, takes=rq.JobTag),
    Route("/api/job-tasks", runs.job_tasks, "read", Subject.BODY, takes=rq.JobTasks),
    Route("/api/run-file", app_calls.run_file, "read", Subject.BODY, takes=rq.RunFile, gives=BYTES),
    Route("/api/run-files", app_calls.run_files, "read", Subject.BODY, takes=rq.RunFiles),
    Route(
        "/api/run-file-digest",
        app_calls.run_file_digest,
        "read",
        Subject.BODY,
        takes=rq.RunFileDigest,
    ),
    Route(
        "/api/run-file-part", user_files.run_file_part, "read", Subject.BODY, takes=rq.RunFilePart
    ),
    Route(
        "/api/put-run-file",
        user_files.put_run_file,
        "control",
        Subject.QUERY,
        ("PUT",),
        sink=user_files.begin_put,
        query=(rq.PutRunFile,),
    ),
    Route("/api/call", app_calls.call, "control", Subject.BODY, quick=True, takes=rq.CallRequest),
    Route(
        "/api/begin-session",
        app_calls.begin_session,
        "control",
        Subject.BODY,
        takes=rq.BeginSession,
    ),
    Route(
        "/api/global-resources",
        app_calls.global_resources,
        "control",
        Subject.BODY,
        takes=rq.GlobalResources,
    ),
    Route("/api/apps", app_calls.apps, "read", Subject.NOBODY, ("GET",)),
    Route(
        "/api/lib-file",
        user_files.lib_file,
        "control",
        Subject.QUERY,
        ("PUT", "DELETE"),
        sink=user_files.begin_upload,
        query=(_UID, _APP, _NAME, _OVER),
    ),
    Route(
        "/api/read-lib-file",
        user_files.read_lib_file,
        "read",
        Subject.BODY,
        takes=rq.LibFile,
        gives=BYTES,
    ),
    Route(
        "/api/lib-files", user_files.lib_files, "read", Subject.QUERY, ("GET",), query=(_UID, _APP)
    ),
    Route(
        "/api/job-list",
        runs.job_list,
        "read",
        Subject.BODY_OR_ALL,
        takes=rq.JobList,
        merge=rules.JOB_LIST,
    ),
    Route(
        "/api/job-search",
        runs.job_search,
        "read",
        Subject.BODY_OR_MEMBERS,
        takes=rq.JobSearch,
        merge=rules.JOB_SEARCH,
    ),
    Route("/api/job-group", run_groups.job_group, "read", Subject.BODY, takes=rq.JobGroup),
    Route(
        "/api/group-cancel", run_groups.group_cancel, "control", Subject.BODY, takes=rq.GroupCancel
    ),
    Route("/api/job-log", runs.job_log, "read", Subject.BODY, takes=rq.JobLog, gives=BYTES),
    Route("/api/job-core", runs.job_core, "debug", Subject.BODY, takes=rq.JobCore, gives=BYTES),
    Route("/api/job-metrics", usage.job_metrics, "read", Subject.BODY, takes=rq.JobMetrics),
    Route(
        "/api/usage",
        usage.usage,
        "read",
        Subject.BODY_OR_MEMBERS,
        takes=rq.UsageReport,
        merge=rules.USAGE,
    ),
    Route(
        "/api/disk-usage",
        usage.disk_usage,
        "read",
        Subject.BODY_OR_MEMBERS,
        takes=rq.DiskReport,
        merge=rules.DISK,
    ),
    Route("/api/job-story", runs.job_story, "read", Subject.BODY, takes=rq.JobStory),
    Route("/api/job-why", runs.job_why, "read", Subject.BODY, takes=rq.RunStatusRequest),
    Route(
        "/api/trace", runs.trace_id, "read", Subject.BODY_OR_ALL, takes=rq.Trace, merge=rules.ONE
    ),
    Route(
        "/api/events",
        events,
        "read",
        Subject.QUERY_OR_ALL,
        ("GET",),
        streams=True,
        query=(_AFTER, _UID, _JID),
        gives=EVENTS,
        merge=rules.LOG,
    ),
    Route(
        "/api/shell-open", runs.shell_open, "debug", Subject.BODY, takes=rq.ShellOpen, as_user=True
    ),
    Route(
        "/api/shell-use",
        runs.shell_use,
        "debug",
        Subject.BODY,
        takes=rq.ShellUse,
        polls=True,
        as_user=True,
    ),
    Route("/api/metrics", _metrics, "admin", Subject.ALL, ("GET",), merge=rules.EACH),
    Route("/api/pool", hosts.pool, "admin", Subject.ALL, ("GET",), merge=rules.POOL),
    Route(
        "/api/pool-check", hosts.pool_check, "admin", Subject.ALL, ("GET",), merge=rules.POOL_CHECK
    ),
    Route(
        "/api/queues",
        site.queues,
        "read",
        Subject.BODY_OR_ALL,
        takes=rq.QueueReport,
        merge=rules.QUEUES,
    ),
    Route("/api/site-health", site.health, "admin", Subject.ALL, ("GET",), merge=rules.HEALTH),
    Route(
        "/api/site-drain",
        site.drain,
        "admin",
        Subject.ALL,
        takes=sq.DrainChange,
        merge=rules.DRAINS,
    ),
    Route("/api/site-drains", site.drained, "admin", Subject.ALL, ("GET",), merge=rules.DRAINS),
    Route(
        "/api/site-supervisors",
        site.supervisors,
        "admin",
        Subject.ALL,
        ("GET",),
        merge=rules.SUPERVISORS,
    ),
    Route(
        "/api/site-handover",
        site.hand_over,
        "admin",
        Subject.ALL,
        takes=sq.Handover,
        merge=rules.HANDOVER,
    ),
    Route("/api/site-load", site.load, "admin", Subject.ALL, ("GET",), merge=rules.LOAD),
    Route("/api/site-users", site.users, "admin", Subject.ALL, ("GET",), merge=rules.USERS),
    Route(
        "/api/site-tokens",
        site.tokens,
        "admin",
        Subject.ALL,
        takes=sq.TokenFilter,
        merge=rules.TOKENS,
    ),
    Route(
        "/api/site-configuration",
        site.configuration,
        "admin",
        Subject.ALL,
        ("GET",),
        merge=rules.EACH,
    ),
    Route(
        "/api/agents",
        agents.agents,
        "debug",
        Subject.BODY_OR_ALL,
        takes=rq.AgentList,
        merge=rules.AGENTS,
    ),
    Route(
        "/api/agent-logs",
        agents.agent_logs,
        "debug",
        Subject.BODY_OR_ALL,
        takes=rq.AgentLogs,
        merge=rules.ONE,
    ),
    Route(
        "/api/agent-stop",
        agents.agent_stop,
        "debug",
        Subject.BODY_OR_ALL,
        takes=rq.AgentStop,
        merge=rules.ONE,
    ),
    Route("/api/debug-list", agents.debug_list, "debug", Subject.BODY, takes=rq.DebugList),
    Route("/api/debug-attach", agents.debug_attach, "debug", Subject.BODY, takes=rq.DebugAttach),
    Route("/api/debug-io", agents.debug_io, "debug", Subject.BODY, takes=rq.DebugIo),
    Route("/api/clusters", hosts.clusters, "read", Subject.BODY, takes=rq.ClusterList),
    Route("/api/notify", upkeep.notify, "admin", Subject.ALL, ("GET",), merge=rules.TARGETS),
    Route(
        "/api/notify-test",
        upkeep.notify_test,
        "admin",
        Subject.ALL,
        takes=sq.TargetName,
        merge=rules.ONE,
    ),
    Route(
        "/api/notify-retry",
        upkeep.notify_retry,
        "admin",
        Subject.ALL,
        takes=sq.TargetName,
        merge=rules.EACH,
    ),
    Route(
        "/api/retention", upkeep.retention, "admin", Subject.ALL, ("GET",), merge=rules.RETENTION
    ),
    Route(
        "/api/retention-sweep",
        upkeep.retention_sweep,
        "admin",
        Subject.ALL,
        takes=sq.Sweep,
        merge=rules.SWEEP,
    ),
    Route(
        "/api/log-exchange",
        upkeep.log_exchange,
        "admin",
        Subject.ALL,
        takes=sq.Exchange,
        merge=rules.EXCHANGE,
    ),
    Route("/api/sbatch-login", sign_in.sbatch_login, "control", Subject.BODY, takes=rq.SbatchLogin),
    Route(
        "/api/sbatch-login-status",
        sign_in.sbatch_login_status,
        "read",
        Subject.BODY,
        takes=rq.SbatchLoginStatus,
    ),
    Route(
        "/api/sbatch-logout", sign_in.sbatch_logout, "control", Subject.BODY, takes=rq.SbatchLogout
    ),
    Route(
        "/api/job-changes",
        job_changes,
        "admin",
        Subject.ALL,
        ("GET",),
        streams=True,
        gives=TEXT,
        merge=rules.LINES,
    ),
    Route("/api/whoami", access.whoami, "any", Subject.NOBODY, ("GET",)),
    Route("/api/token-create", access.token_create, "control", Subject.BODY, takes=rq.TokenCreate),
    Route("/api/token-list", access.token_list, "read", Subject.BODY, takes=rq.TokenList),
    Route("/api/token-revoke", access.token_revoke, "control", Subject.BODY, takes=rq.TokenRevoke),
    Route(
        "/api/created-tokens-revoke",
        access.created_tokens_revoke,
        "admin",
        Subject.ALL,
        takes=rq.CreatedTokensRevoke,
        merge=rules.ROUTERS,
    ),
    Route(
        "/api/device-begin",
        access.device_begin,
        "admin",
        Subject.ALL,
        takes=rq.DeviceBegin,
        merge=rules.ROUTERS,
    ),
    Route(
        "/api/device-end",
        access.device_end,
        "admin",
        Subject.ALL,
        takes=rq.DeviceEnd,
        merge=rules.ROUTERS,
    ),
    Route("/api/device-start", access.device_start, None, Subject.NOBODY, query=_DEVICE),
    Route("/api/device-token", access.device_token, None, Subject.NOBODY),
    Route("/api/device-show", access.device_show, "control", Subject.BODY, takes=rq.DeviceShow),
    Route(
        "/api/device-answer", access.device_answer, "control", Subject.BODY, takes=rq.DeviceAnswer
    ),
    Route("/api/audit", access.audit, "admin", Subject.ALL, takes=rq.AuditPage, merge=rules.AUDIT),
    Route(
        "/live",
        live,
        None,
        Subject.NOBODY,
        ("GET",),
        streams=True,
        query=_LIVE,
        gives=EVENTS,
        merge=rules.PAGE,
    ),
    Route(
        "/metrics",
        site.metrics,
        "admin",
        Subject.ALL,
        ("GET",),
        monitors=True,
        gives=TEXT,
        merge=rules.METRICS,
    ),
    Route(
        "/health", site.health, "admin", Subject.ALL, ("GET",), monitors=True, merge=rules.HEALTH
    ),
    Route("/livez", _livez, None, Subject.NOBODY, ("GET",)),
    Route("/readyz", _readyz, None, Subject.NOBODY, ("GET",)),
    Route("/api/openapi.json", _openapi, None, Subject.NOBODY, ("GET",)),
    *openpai_routes.ROUTES,
    openpai_routes.OTHER,
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
    others = tornado.web.Application(handlers, log_function=site.record_request)
    return QuickPosts(services, routes, others)
