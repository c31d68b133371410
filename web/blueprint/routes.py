"""Every route of the front end: its address, what it takes and gives, and who answers.

The blueprint and the OpenAPI document are made of this table.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..handlers import clusters, computations, diagnosis, downloads, frames, jobs, library, runs
from ..request import schemas
from ..request.context import RequestContext

Method = Literal["GET", "POST", "PUT", "DELETE"]
Gives = Literal["json", "file", "text"]


class Variable(msgspec.Struct, frozen=True):
    """A part of the address, or of its query. pattern: of a text; None for a whole number."""

    name: str
    about: str
    pattern: str | None = ".*"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """api: its name, as hooks and logs have it. reply: type of the JSON answer. visitor: also for
    those who are not signed in.

    may_except: it may also be answered by an SrExceptionReply.
    """

    api: str
    method: Method
    path: str
    answer: Callable[[RequestContext], Any]
    about: str
    takes: type[msgspec.Struct] | None = None
    reply: Any = Any
    gives: Gives = "json"
    query: tuple[Variable, ...] = ()
    visitor: bool = False
    may_except: bool = False


#: The shapes of what stands in addresses. Names as in protocol.ids, where they are checked.
VARIABLES = {
    "simulationType": r"^[a-z][a-z0-9_]{0,31}$",
    "simulationId": r"^[A-Za-z0-9]{8}$",
    "computeModel": r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    "frame": r"^-?[0-9]{1,9}$",
    "name": r"^[^/]{1,255}$",
    "frame_id": r"^[0-9]{1,10}\*[A-Za-z][A-Za-z0-9_]{0,63}\*[A-Za-z0-9]{8}\*[a-z][a-z0-9_]{0,31}\*[A-Za-z0-9]{1,64}\*[1-9][0-9]{0,15}$",
}
_SERIAL = Variable("computeJobSerial", "of the run; 0 or none: whichever is current", None)
_JOB = "<simulationType>/<simulationId>/<computeModel>"

ROUTES: tuple[Route, ...] = (
    Route(
        api="runSimulation",
        method="POST",
        path="/run-simulation",
        answer=runs.run_simulation,
        takes=schemas.RunSimulation,
        reply=schemas.StatusReply,
        may_except=True,
        about="Start a run, join the one that is live, or get the finished one with the same inputs",
    ),
    Route(
        api="runStatus",
        method="POST",
        path="/run-status",
        answer=runs.run_status,
        takes=schemas.RunStatus,
        reply=schemas.StatusReply,
        about="How a run stands; of a sequential one that completed, its result too",
    ),
    Route(
        api="runCancel",
        method="POST",
        path="/run-cancel",
        answer=runs.run_cancel,
        takes=schemas.RunCancel,
        reply=schemas.StatusReply,
        about="Cancel exactly this run",
    ),
    Route(
        api="simulationFrame",
        method="GET",
        path="/simulation-frame/<frame_id>",
        answer=frames.simulation_frame,
        about="One frame of a run, also while it runs",
    ),
    Route(
        api="analysisJob",
        method="POST",
        path="/analysis-job",
        answer=computations.analysis_job,
        takes=schemas.AnalysisJob,
        about="Have the app compute something from a run",
    ),
    Route(
        api="statelessCompute",
        method="POST",
        path="/stateless-compute",
        answer=computations.stateless_compute,
        takes=schemas.Compute,
        about="Have the app compute something from this input alone",
    ),
    Route(
        api="statefulCompute",
        method="POST",
        path="/stateful-compute",
        answer=computations.stateful_compute,
        takes=schemas.Compute,
        about="Have the app compute something with the user's library",
    ),
    Route(
        api="runFiles",
        method="GET",
        path=f"/run-files/{_JOB}",
        answer=downloads.run_files,
        reply=schemas.RunFilesReply,
        query=(_SERIAL,),
        about="The files of a run that are worth a download",
    ),
    Route(
        api="downloadRunFile",
        method="GET",
        path=f"/download-run-file/{_JOB}/<frame>",
        answer=downloads.download_run_file,
        gives="file",
        query=(Variable("suffix", "which file, as the app calls it"), _SERIAL),
        about="Download a file of a run",
    ),
    Route(
        api="runLog",
        method="GET",
        path=f"/run-log/{_JOB}",
        answer=downloads.run_log,
        gives="text",
        query=(
            Variable("stream", "stdout or stderr", "^(stdout|stderr)$"),
            Variable("tail", "only the newest so many bytes, at most 524288", None),
            _SERIAL,
        ),
        about="What a run has written, so far",
    ),
    Route(
        api="runWhy",
        method="GET",
        path=f"/run-why/{_JOB}",
        answer=diagnosis.run_why,
        reply=schemas.WhyReply,
        query=(_SERIAL,),
        about="Why a run waits, or ended as it did: the cause, what shows it, and what to try",
    ),
    Route(
        api="beginSession",
        method="POST",
        path="/begin-session",
        answer=computations.begin_session,
        takes=schemas.Body,
        reply=schemas.OkReply,
        about="Have an agent ready for what comes next; answered at once",
    ),
    Route(
        api="ownJobs",
        method="POST",
        path="/own-jobs",
        answer=jobs.own_jobs,
        takes=schemas.Jobs,
        reply=schemas.JobsReply,
        about="The user's jobs",
    ),
    Route(
        api="admJobs",
        method="POST",
        path="/adm-jobs",
        answer=jobs.adm_jobs,
        takes=schemas.Jobs,
        reply=schemas.JobsReply,
        about="Everybody's jobs, for administrators",
    ),
    Route(
        api="admCounters",
        method="POST",
        path="/adm-counters",
        answer=jobs.adm_counters,
        takes=schemas.Body,
        reply=schemas.CountersReply,
        about="What was refused, by code, for administrators",
    ),
    Route(
        api="jobSupervisorPing",
        method="POST",
        path="/job-supervisor-ping",
        answer=jobs.job_supervisor_ping,
        takes=schemas.Ping,
        reply=schemas.PingReply,
        visitor=True,
        about="Does the supervisor answer?",
    ),
    Route(
        api="globalResources",
        method="POST",
        path="/global-resources",
        answer=jobs.global_resources,
        takes=schemas.Resources,
        reply=schemas.ResourcesReply,
        about="Lease ports to a simulation, or give them back",
    ),
    Route(
        api="libFiles",
        method="GET",
        path="/lib-files/<simulationType>",
        answer=library.lib_files,
        reply=schemas.LibFilesReply,
        about="The files of the user's library",
    ),
    Route(
        api="getLibFile",
        method="GET",
        path="/lib-file/<simulationType>/<name>",
        answer=downloads.get_lib_file,
        gives="file",
        about="Download a file of the user's library",
    ),
    Route(
        api="putLibFile",
        method="PUT",
        path="/lib-file/<simulationType>/<name>",
        answer=library.put_lib_file,
        reply=schemas.LibFile,
        about="Upload a file into the user's library",
    ),
    Route(
        api="deleteLibFile",
        method="DELETE",
        path="/lib-file/<simulationType>/<name>",
        answer=library.delete_lib_file,
        about="Delete a file of the user's library",
    ),
    Route(
        api="clusters",
        method="GET",
        path="/clusters",
        answer=clusters.clusters,
        reply=schemas.ClustersReply,
        about="The clusters that runs can go to, with their partitions and limits",
    ),
    Route(
        api="sbatchLogin",
        method="POST",
        path="/sbatch-login",
        answer=clusters.sbatch_login,
        takes=schemas.SbatchLogin,
        reply=schemas.LoginReply,
        may_except=True,
        about="Sign in to a cluster",
    ),
    Route(
        api="sbatchLoginStatus",
        method="POST",
        path="/sbatch-login-status",
        answer=clusters.sbatch_login_status,
        takes=schemas.SbatchLoginStatus,
        reply=schemas.LoginStatusReply,
        about="Does the user have to sign in to a cluster?",
    ),
    Route(
        api="sbatchLogout",
        method="POST",
        path="/sbatch-logout",
        answer=clusters.sbatch_logout,
        takes=schemas.SbatchLogout,
        reply=schemas.LogoutReply,
        about="Sign out of a cluster; jobs that Slurm has go on",
    ),
    Route(
        api="liveTicket",
        method="POST",
        path="/live-ticket",
        answer=jobs.live_ticket,
        takes=schemas.Body,
        reply=schemas.TicketReply,
        about="A ticket that opens /live for a moment",
    ),
    Route(
        api="apps",
        method="GET",
        path="/apps",
        answer=jobs.apps,
        about="The apps that the user may run, with their models and fields",
    ),
)
