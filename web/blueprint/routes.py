"""Every route of the front end: address, request and response types, and handler. The blueprint and
the OpenAPI document are built from this table.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ...protocol.api import requests
from ..handlers import (
    clusters,
    computations,
    diagnosis,
    downloads,
    frames,
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


def _site_data(name: str, type_: type[msgspec.Struct] | None, about: str) -> Route:
    """Return the route that passes a request on as one of the signed-in user, with the role that
    this user has. It may be about other users or the site.
    """
    first, *rest = name.split("-")
    return Route(
        api=first + "".join(map(str.title, rest)) + "SitePage",
        method="POST",
        path=f"/page-data/site/{name}",
        handler=page_data.site_data(name, type_),
        takes=NoFields if type_ is None else SITE_BODIES[type_],
        about=about,
    )


#: Requests of the pages. Requests and answers are those of the supervisor, without the user.
_PAGES = (
    _page_data("job-search", requests.JobSearch, "The user's jobs: filters, words, orders, pages"),
    _page_data("run-status", requests.RunStatusRequest, "Status of a job"),
    _page_data("job-tasks", requests.JobTasks, "Attempts of a job, and the tasks of one"),
    _page_data("job-story", requests.JobStory, "Events of a job"),
    _page_data("job-metrics", requests.JobMetrics, "Resource usage of a job"),
    _page_data("trace", requests.Trace, "Timeline of a job, with the reasons of its waits"),
    _page_data("run-files", requests.RunFiles, "Files of the run directory of a job"),
    _page_data("run-cancel", requests.RunCancel, "Cancel a job", changes=True),
    _page_data("run-release", requests.RunRelease, "Release held tasks of a job", changes=True),
    _page_data("job-tag", requests.JobTag, "Change the tags of a job", changes=True),
    _site_data("whoami", None, "The signed-in user, with role and scopes"),
    _site_data(
        "job-search", requests.JobSearch, "Jobs of another user, or of all whom one may see"
    ),
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
        api="jobFilePage",
        method="GET",
        path=f"/page-data/job-file/{_JID}",
        handler=page_data.job_file,
        gives="file",
        query=(Variable("name", "path below the run directory"),),
        about="Download a file of a job",
    ),
    Route(
        api="jobOutputPage",
        method="GET",
        path=f"/page-data/job-output/{_JID}",
        handler=page_data.job_output,
        gives="text",
        query=(
            Variable("stream", "stdout or stderr", "^(stdout|stderr)$"),
            Variable("attempt", "0: the latest", None),
            Variable("role", "of the task"),
            Variable("index", "of the task", None),
        ),
        about="Download the output of a task",
    ),
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
