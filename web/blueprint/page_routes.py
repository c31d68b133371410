"""Routes of the pages. Requests and answers are those of the supervisor, without the user."""

import msgspec

from ...protocol.api import requests, site_requests
from ..handlers import account, job_edits, page_data, shells
from ..request.page_bodies import BODIES, SITE_BODIES, NoFields
from .route import PAGE_DATA, Route, Variable, route

_JID = "<computeJid>"


def _page_data(
    name: str, type_: type[msgspec.Struct], about: str, *, changes: bool = False
) -> Route:
    """Return the route that passes a request of a page on to the supervisor."""
    handler = (page_data.change if changes else page_data.forward)(name, type_)
    return route("POST", PAGE_DATA + name, handler, about, takes=BODIES[type_])


def _in_person(name: str, type_: type[msgspec.Struct], about: str) -> Route:
    """Return the route that sends a request as one of the signed-in user."""
    handler = page_data.in_person(name, type_)
    return route("POST", PAGE_DATA + name, handler, about, takes=BODIES[type_])


def _site_data(
    name: str,
    type_: type[msgspec.Struct] | None,
    about: str,
    *,
    changes: bool = False,
    without: frozenset[str] = frozenset(),
) -> Route:
    """Return the route that passes a request on as one of the signed-in user, with the role that
    this user has. It may be about other users or the site.
    """
    handler = page_data.site_data(name, type_, changes=changes, without=without)
    takes = NoFields if type_ is None else SITE_BODIES[type_]
    return route("POST", f"{PAGE_DATA}site/{name}", handler, about, takes=takes)


def _job_text(name: str, type_: type[msgspec.Struct], about: str, *, starts: bool = False) -> Route:
    """Return the route for a request about runs that the user describes."""
    handler = page_data.job_text(name, type_, starts=starts)
    return route("POST", PAGE_DATA + name, handler, about, takes=BODIES[type_])


def _downloads(
    below: str, whose: str, file: page_data.Handler, output: page_data.Handler
) -> tuple[Route, ...]:
    """Return the routes of downloads. below: "site/" for those of other users' jobs."""
    return (
        route(
            "GET",
            f"{PAGE_DATA}{below}job-file/{_JID}",
            file,
            f"Download a file of {whose}",
            gives="file",
            query=(Variable("name", "path below the run directory"),),
        ),
        route(
            "GET",
            f"{PAGE_DATA}{below}job-output/{_JID}",
            output,
            f"Download the output of a task of {whose}",
            gives="text",
            query=(
                Variable("stream", "stdout or stderr", "^(stdout|stderr)$"),
                Variable("attempt", "0: the latest", None),
                Variable("role", "of the task"),
                Variable("index", "of the task", None),
            ),
        ),
    )


#: Paths of machines in answers of the supervisor.
_PATHS = frozenset({"log", "where"})

PAGES = (
    _page_data("job-search", requests.JobSearch, "The user's jobs: filters, words, orders, pages"),
    _page_data("run-status", requests.RunStatusRequest, "Status of a job"),
    _page_data("job-tasks", requests.JobTasks, "Attempts of a job, and the tasks of one"),
    _page_data("job-story", requests.JobStory, "Events of a job"),
    _page_data("job-metrics", requests.JobMetrics, "Resource usage of a job"),
    _page_data("trace", requests.Trace, "Timeline of a job, with the reasons of its waits"),
    _page_data("run-files", requests.RunFiles, "Files of the run directory of a job"),
    _page_data("run-file-part", requests.RunFilePart, "Bytes of an interrupted upload"),
    _page_data("run-cancel", requests.RunCancel, "Cancel a job", changes=True),
    _page_data("run-release", requests.RunRelease, "Release held tasks of a job", changes=True),
    _page_data("job-tag", requests.JobTag, "Change the tags of a job", changes=True),
    _site_data("debug-list", requests.DebugList, "Processes that wait for a debugger"),
    _page_data("usage", requests.UsageReport, "Usage of the user's ended runs"),
    _page_data("disk-usage", requests.DiskReport, "Disk usage and quotas of the user"),
    _in_person("token-list", requests.TokenList, "API tokens of the user, without their secrets"),
    route(
        "POST",
        "/page-data/token-create",
        account.token_create,
        "Create an API token; its text is shown only once",
        takes=BODIES[requests.TokenCreate],
    ),
    _in_person("token-revoke", requests.TokenRevoke, "Revoke an API token"),
    route(
        "POST",
        "/page-data/sign-ins",
        account.sign_ins,
        "Sign-in sessions of the user",
        takes=NoFields,
        reply=account.SignIns,
    ),
    route(
        "POST",
        "/page-data/sign-in-end",
        account.sign_in_end,
        "End a sign-in session of the user",
        takes=account.SignInEnd,
        reply=account.SignIns,
    ),
    route(
        "GET",
        "/page-data/api-document",
        account.api_document,
        "The OpenAPI document of the supervisor",
    ),
    _site_data("whoami", None, "The signed-in user, with role and scopes"),
    _site_data(
        "job-search", requests.JobSearch, "Jobs of another user, or of all whom one may see"
    ),
    _site_data("run-status", requests.RunStatusRequest, "Status of another user's job"),
    _site_data("job-tasks", requests.JobTasks, "Attempts and tasks of another user's job"),
    _site_data("job-story", requests.JobStory, "Events of another user's job"),
    _site_data("job-metrics", requests.JobMetrics, "Resource usage of another user's job"),
    _site_data("trace", requests.Trace, "Timeline of another user's job"),
    _site_data("run-files", requests.RunFiles, "Files of another user's job"),
    _site_data("run-cancel", requests.RunCancel, "Cancel another user's job", changes=True),
    _site_data("run-release", requests.RunRelease, "Release another user's tasks", changes=True),
    _site_data("job-tag", requests.JobTag, "Change the tags of another user's job", changes=True),
    route(
        "POST",
        "/page-data/site/job-why",
        page_data.site_job_why,
        "Why another user's job waits, or why it ended",
        takes=SITE_BODIES[requests.RunStatusRequest],
    ),
    route(
        "POST",
        "/page-data/site/job-log",
        page_data.site_job_log,
        "A piece of the output of another user's task",
        takes=SITE_BODIES[requests.JobLog],
        gives="text",
    ),
    route(
        "POST",
        "/page-data/site/shell-open",
        shells.shell_open,
        "Open a shell in a task, for a terminal of a page",
        takes=SITE_BODIES[requests.ShellOpen],
    ),
    route(
        "POST",
        "/page-data/site/shell-use",
        shells.shell_use,
        "Type into a shell, change the size of its terminal, or hang up",
        takes=SITE_BODIES[requests.ShellUse],
    ),
    _job_text("job-options", requests.JobOptions, "What the user may request, for a form"),
    _job_text("job-check", requests.JobCheck, "Problems and dry run of the text of a job file"),
    _job_text("run-text", requests.RunText, "Submit the text of a job file", starts=True),
    _site_data("queues", requests.QueueReport, "Queues, turns, limits, and why runs wait"),
    _site_data("pool", None, "Hosts of containers"),
    _site_data("pool-check", None, "Faults of hosts of containers"),
    _site_data("clusters", requests.ClusterList, "Slurm clusters with their partitions"),
    _site_data("agents", requests.AgentList, "Agents with state and last error", without=_PATHS),
    _site_data("agent-logs", requests.AgentLogs, "A piece of an agent's log", without=_PATHS),
    _site_data("site-health", None, "Faults of the system with remedies"),
    _site_data(
        "site-drain", site_requests.DrainChange, "Begin or end a drain of a host or the site"
    ),
    _site_data("site-drains", None, "Drains of hosts and of the site"),
    _site_data("site-supervisors", None, "Supervisors with their leases and standbys"),
    _site_data("site-load", None, "What the supervisor does now"),
    _site_data("site-users", None, "Users with roles, tokens and active runs"),
    _site_data("site-tokens", site_requests.TokenFilter, "API tokens of all users"),
    _site_data("token-revoke", requests.TokenRevoke, "Revoke an API token"),
    _site_data("site-configuration", None, "Settings with their origins, and limits of users"),
    _site_data("retention", None, "What retention removed"),
    _site_data("retention-sweep", site_requests.Sweep, "What retention would remove now"),
    _site_data("notify", None, "Targets of notifications"),
    _site_data("notify-test", site_requests.TargetName, "Send a test message"),
    _site_data("notify-retry", site_requests.TargetName, "Send waiting notifications now"),
    _site_data("audit", requests.AuditPage, "Requests of users for other users"),
    route(
        "POST",
        "/page-data/job-why",
        page_data.job_why,
        "Why a job waits, or why it ended",
        takes=BODIES[requests.RunStatusRequest],
    ),
    route(
        "POST",
        "/page-data/job-log",
        page_data.job_log,
        "A piece of the output of a task",
        takes=BODIES[requests.JobLog],
        gives="text",
    ),
    route(
        "POST",
        "/page-data/job-retry",
        page_data.job_retry,
        "Start a job again with the same request",
        takes=page_data.JobRetry,
    ),
    route(
        "POST",
        "/page-data/job-definition",
        job_edits.job_definition,
        "The job file that describes a job again, without secrets",
        takes=job_edits.JobNamed,
    ),
    route(
        "POST",
        "/page-data/site/job-definition",
        job_edits.site_job_definition,
        "The job file that describes another user's job",
        takes=job_edits.SiteJobNamed,
    ),
    route(
        "POST",
        "/page-data/job-clone",
        job_edits.job_clone,
        "Submit a changed definition of a job as a new job",
        takes=job_edits.JobClone,
    ),
    route(
        "PUT",
        f"/page-data/job-file/{_JID}",
        job_edits.put_job_file,
        "Store a part of a file in the run directory of a job",
        api="putJobFilePage",
        query=(
            Variable("name", "path below the run directory"),
            Variable("sha256", "of the whole file", "^[0-9a-f]{64}$"),
            Variable("size", "of the whole file", None),
            Variable("offset", "of this part", None),
            Variable("replace", "true: also over an existing file", "^(true|false)$"),
        ),
    ),
    *_downloads("", "a job", page_data.job_file, page_data.job_output),
    *_downloads("site/", "another user's job", page_data.site_job_file, page_data.site_job_output),
)
