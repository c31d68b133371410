"""Every route of the front end: address, request and response types, and handler. The blueprint and
the OpenAPI document are built from this table.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ...protocol.api import requests, site_requests
from ..handlers import (
    account,
    clusters,
    computations,
    diagnosis,
    downloads,
    frames,
    job_edits,
    jobs,
    library,
    page_data,
    runs,
)
from ..request import schemas
from ..request.context import RequestContext
from ..request.page_bodies import BODIES, SITE_BODIES, NoFields

Method = Literal["GET", "POST", "PUT", "DELETE"]
Gives = Literal["json", "file", "text"]


class Variable(msgspec.Struct, frozen=True):
    """A variable in the path or in the query. pattern: of a text; None for a whole number."""

    name: str
    about: str
    pattern: str | None = ".*"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. api: its name for hooks and logs. reply: type of the JSON response. visitor: also
    for users who are not signed in.

    may_except: the response may also be an SrExceptionReply.
    """

    api: str
    method: Method
    path: str
    handler: Callable[[RequestContext], Any]
    about: str
    takes: type[msgspec.Struct] | None = None
    reply: Any = Any
    gives: Gives = "json"
    query: tuple[Variable, ...] = ()
    visitor: bool = False
    may_except: bool = False

    @property
    def of_pages(self) -> bool:
        """Return whether only the pages use it."""
        return self.path.startswith("/page-data/")


#: Patterns of path variables. The names are those of protocol.ids, which validates them.
VARIABLES = {
    "simulationType": r"^[a-z][a-z0-9_]{0,31}$",
    "simulationId": r"^[A-Za-z0-9]{8}$",
    "computeModel": r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    "computeJid": r"^[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}$",
    "frame": r"^-?[0-9]{1,9}$",
    "name": r"^[^/]{1,255}$",
    "frame_id": r"^[0-9]{1,10}\*[A-Za-z][A-Za-z0-9_]{0,63}\*[A-Za-z0-9]{8}\*[a-z][a-z0-9_]{0,31}\*[A-Za-z0-9]{1,64}\*[1-9][0-9]{0,15}$",
}
_SERIAL = Variable("computeJobSerial", "of the run; 0 or absent: the current run", None)
_JID = "<computeJid>"
_JOB = "<simulationType>/<simulationId>/<computeModel>"


def _page_data(
    name: str, type_: type[msgspec.Struct], about: str, *, changes: bool = False
) -> Route:
    """Return the route that passes a request of a page on to the supervisor."""
    first, *rest = name.split("-")
    return Route(
        api=first + "".join(map(str.title, rest)) + "Page",
        method="POST",
        path=f"/page-data/{name}",
        handler=(page_data.change if changes else page_data.forward)(name, type_),
        takes=BODIES[type_],
        about=about,
    )


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
    first, *rest = name.split("-")
    return Route(
        api=first + "".join(map(str.title, rest)) + "SitePage",
        method="POST",
        path=f"/page-data/site/{name}",
        handler=page_data.site_data(name, type_, changes=changes, without=without),
        takes=NoFields if type_ is None else SITE_BODIES[type_],
        about=about,
    )


def _job_text(name: str, type_: type[msgspec.Struct], about: str, *, starts: bool = False) -> Route:
    """Return the route for a request about runs that the user describes."""
    first, *rest = name.split("-")
    return Route(
        api=first + "".join(map(str.title, rest)) + "Page",
        method="POST",
        path=f"/page-data/{name}",
        handler=page_data.job_text(name, type_, starts=starts),
        takes=BODIES[type_],
        about=about,
    )


def _downloads(
    below: str, whose: str, file: page_data.Handler, output: page_data.Handler
) -> tuple[Route, ...]:
    """Return the routes of downloads. below: "site/" for those of other users' jobs."""
    kind = "SitePage" if below else "Page"
    return (
        Route(
            api=f"jobFile{kind}",
            method="GET",
            path=f"/page-data/{below}job-file/{_JID}",
            handler=file,
            gives="file",
            query=(Variable("name", "path below the run directory"),),
            about=f"Download a file of {whose}",
        ),
        Route(
            api=f"jobOutput{kind}",
            method="GET",
            path=f"/page-data/{below}job-output/{_JID}",
            handler=output,
            gives="text",
            query=(
                Variable("stream", "stdout or stderr", "^(stdout|stderr)$"),
                Variable("attempt", "0: the latest", None),
                Variable("role", "of the task"),
                Variable("index", "of the task", None),
            ),
            about=f"Download the output of a task of {whose}",
        ),
    )


#: Paths of machines in answers of the supervisor.
_PATHS = frozenset({"log", "where"})

#: Requests of the pages. Requests and answers are those of the supervisor, without the user.
_PAGES = (
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
    *(
        Route(
            api=f"token{verb.title()}Page",
            method="POST",
            path=f"/page-data/token-{verb}",
            handler=handler or page_data.in_person(f"token-{verb}", type_),
            takes=BODIES[type_],
            about=about,
        )
        for verb, type_, about, handler in (
            ("list", requests.TokenList, "API tokens of the user, without their secrets", None),
            (
                "create",
                requests.TokenCreate,
                "Create an API token; its text is shown only once",
                account.token_create,
            ),
            ("revoke", requests.TokenRevoke, "Revoke an API token", None),
        )
    ),
    Route(
        api="signInsPage",
        method="POST",
        path="/page-data/sign-ins",
        handler=account.sign_ins,
        takes=NoFields,
        reply=account.SignIns,
        about="Sign-in sessions of the user",
    ),
    Route(
        api="signInEndPage",
        method="POST",
        path="/page-data/sign-in-end",
        handler=account.sign_in_end,
        takes=account.SignInEnd,
        reply=account.SignIns,
        about="End a sign-in session of the user",
    ),
    Route(
        api="apiDocumentPage",
        method="GET",
        path="/page-data/api-document",
        handler=account.api_document,
        about="The OpenAPI document of the supervisor",
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
    Route(
        api="jobWhySitePage",
        method="POST",
        path="/page-data/site/job-why",
        handler=page_data.site_job_why,
        takes=SITE_BODIES[requests.RunStatusRequest],
        about="Why another user's job waits, or why it ended",
    ),
    Route(
        api="jobLogSitePage",
        method="POST",
        path="/page-data/site/job-log",
        handler=page_data.site_job_log,
        takes=SITE_BODIES[requests.JobLog],
        gives="text",
        about="A piece of the output of another user's task",
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
    Route(
        api="jobWhyPage",
        method="POST",
        path="/page-data/job-why",
        handler=page_data.job_why,
        takes=BODIES[requests.RunStatusRequest],
        about="Why a job waits, or why it ended",
    ),
    Route(
        api="jobLogPage",
        method="POST",
        path="/page-data/job-log",
        handler=page_data.job_log,
        takes=BODIES[requests.JobLog],
        gives="text",
        about="A piece of the output of a task",
    ),
    Route(
        api="jobRetryPage",
        method="POST",
        path="/page-data/job-retry",
        handler=page_data.job_retry,
        takes=page_data.JobRetry,
        about="Start a job again with the same request",
    ),
    Route(
        api="jobDefinitionPage",
        method="POST",
        path="/page-data/job-definition",
        handler=job_edits.job_definition,
        takes=job_edits.JobNamed,
        about="The job file that describes a job again, without secrets",
    ),
    Route(
        api="jobDefinitionSitePage",
        method="POST",
        path="/page-data/site/job-definition",
        handler=job_edits.site_job_definition,
        takes=job_edits.SiteJobNamed,
        about="The job file that describes another user's job",
    ),
    Route(
        api="jobClonePage",
        method="POST",
        path="/page-data/job-clone",
        handler=job_edits.job_clone,
        takes=job_edits.JobClone,
        about="Submit a changed definition of a job as a new job",
    ),
    Route(
        api="putJobFilePage",
        method="PUT",
        path=f"/page-data/job-file/{_JID}",
        handler=job_edits.put_job_file,
        query=(
            Variable("name", "path below the run directory"),
            Variable("sha256", "of the whole file", "^[0-9a-f]{64}$"),
            Variable("size", "of the whole file", None),
            Variable("offset", "of this part", None),
            Variable("replace", "true: also over an existing file", "^(true|false)$"),
        ),
        about="Store a part of a file in the run directory of a job",
    ),
    *_downloads("", "a job", page_data.job_file, page_data.job_output),
    *_downloads("site/", "another user's job", page_data.site_job_file, page_data.site_job_output),
)

ROUTES: tuple[Route, ...] = (
    Route(
        api="runSimulation",
        method="POST",
        path="/run-simulation",
        handler=runs.run_simulation,
        takes=schemas.RunSimulation,
        reply=schemas.StatusReply,
        may_except=True,
        about="Start a run, join the active one, or get the completed one with the same inputs",
    ),
    Route(
        api="runStatus",
        method="POST",
        path="/run-status",
        handler=runs.run_status,
        takes=schemas.RunStatus,
        reply=schemas.StatusReply,
        about="Status of a run, with the result of a completed sequential run",
    ),
    Route(
        api="runCancel",
        method="POST",
        path="/run-cancel",
        handler=runs.run_cancel,
        takes=schemas.RunCancel,
        reply=schemas.StatusReply,
        about="Cancel exactly this run",
    ),
    Route(
        api="simulationFrame",
        method="GET",
        path="/simulation-frame/<frame_id>",
        handler=frames.simulation_frame,
        about="One frame of a run, also while it runs",
    ),
    Route(
        api="analysisJob",
        method="POST",
        path="/analysis-job",
        handler=computations.analysis_job,
        takes=schemas.AnalysisJob,
        about="Let the app compute something from a run",
    ),
    Route(
        api="statelessCompute",
        method="POST",
        path="/stateless-compute",
        handler=computations.stateless_compute,
        takes=schemas.Compute,
        about="Let the app compute something from the request alone",
    ),
    Route(
        api="statefulCompute",
        method="POST",
        path="/stateful-compute",
        handler=computations.stateful_compute,
        takes=schemas.Compute,
        about="Let the app compute something with the user's library",
    ),
    Route(
        api="runFiles",
        method="GET",
        path=f"/run-files/{_JOB}",
        handler=downloads.run_files,
        reply=schemas.RunFilesReply,
        query=(_SERIAL,),
        about="Names of the files of a run offered for download",
    ),
    Route(
        api="downloadRunFile",
        method="GET",
        path=f"/download-run-file/{_JOB}/<frame>",
        handler=downloads.download_run_file,
        gives="file",
        query=(Variable("suffix", "suffix of the file, as defined by the app"), _SERIAL),
        about="Download a file of a run",
    ),
    Route(
        api="runLog",
        method="GET",
        path=f"/run-log/{_JOB}",
        handler=downloads.run_log,
        gives="text",
        query=(
            Variable("stream", "stdout or stderr", "^(stdout|stderr)$"),
            Variable("tail", "only the newest bytes, at most 524288", None),
            _SERIAL,
        ),
        about="Output of a run so far",
    ),
    Route(
        api="runWhy",
        method="GET",
        path=f"/run-why/{_JOB}",
        handler=diagnosis.run_why,
        reply=schemas.WhyReply,
        query=(_SERIAL,),
        about="Why a run waits, or why it ended: cause, evidence and advice",
    ),
    Route(
        api="beginSession",
        method="POST",
        path="/begin-session",
        handler=computations.begin_session,
        takes=schemas.Body,
        reply=schemas.OkReply,
        about="Start an agent in advance; answered at once",
    ),
    Route(
        api="ownJobs",
        method="POST",
        path="/own-jobs",
        handler=jobs.own_jobs,
        takes=schemas.Jobs,
        reply=schemas.JobsReply,
        about="The user's jobs",
    ),
    Route(
        api="admJobs",
        method="POST",
        path="/adm-jobs",
        handler=jobs.adm_jobs,
        takes=schemas.Jobs,
        reply=schemas.JobsReply,
        about="All users' jobs, for administrators",
    ),
    Route(
        api="admCounters",
        method="POST",
        path="/adm-counters",
        handler=jobs.adm_counters,
        takes=schemas.Body,
        reply=schemas.CountersReply,
        about="Number of refusals by code, for administrators",
    ),
    Route(
        api="jobSupervisorPing",
        method="POST",
        path="/job-supervisor-ping",
        handler=jobs.job_supervisor_ping,
        takes=schemas.Ping,
        reply=schemas.PingReply,
        visitor=True,
        about="Check that the supervisor answers",
    ),
    Route(
        api="globalResources",
        method="POST",
        path="/global-resources",
        handler=jobs.global_resources,
        takes=schemas.Resources,
        reply=schemas.ResourcesReply,
        about="Lease ports to a simulation, or release them",
    ),
    Route(
        api="libFiles",
        method="GET",
        path="/lib-files/<simulationType>",
        handler=library.lib_files,
        reply=schemas.LibFilesReply,
        about="The files of the user's library",
    ),
    Route(
        api="getLibFile",
        method="GET",
        path="/lib-file/<simulationType>/<name>",
        handler=downloads.get_lib_file,
        gives="file",
        about="Download a file of the user's library",
    ),
    Route(
        api="putLibFile",
        method="PUT",
        path="/lib-file/<simulationType>/<name>",
        handler=library.put_lib_file,
        reply=schemas.LibFile,
        about="Upload a file into the user's library",
    ),
    Route(
        api="deleteLibFile",
        method="DELETE",
        path="/lib-file/<simulationType>/<name>",
        handler=library.delete_lib_file,
        about="Delete a file of the user's library",
    ),
    Route(
        api="clusters",
        method="GET",
        path="/clusters",
        handler=clusters.clusters,
        reply=schemas.ClustersReply,
        about="The clusters that can run jobs, with partitions and limits",
    ),
    Route(
        api="sbatchLogin",
        method="POST",
        path="/sbatch-login",
        handler=clusters.sbatch_login,
        takes=schemas.SbatchLogin,
        reply=schemas.LoginReply,
        may_except=True,
        about="Sign in to a cluster",
    ),
    Route(
        api="sbatchLoginStatus",
        method="POST",
        path="/sbatch-login-status",
        handler=clusters.sbatch_login_status,
        takes=schemas.SbatchLoginStatus,
        reply=schemas.LoginStatusReply,
        about="Whether the user must sign in to a cluster",
    ),
    Route(
        api="sbatchLogout",
        method="POST",
        path="/sbatch-logout",
        handler=clusters.sbatch_logout,
        takes=schemas.SbatchLogout,
        reply=schemas.LogoutReply,
        about="Sign out of a cluster; jobs in Slurm continue",
    ),
    Route(
        api="liveTicket",
        method="POST",
        path="/live-ticket",
        handler=jobs.live_ticket,
        takes=schemas.Body,
        reply=schemas.TicketReply,
        about="A ticket that opens /live for a short time",
    ),
    Route(
        api="apps",
        method="GET",
        path="/apps",
        handler=jobs.apps,
        about="The apps that the user may run, with their models and fields",
    ),
    *_PAGES,
)
