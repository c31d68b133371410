"""In-memory state of a Slurm job and of its executions. Data only.

A plain run is a batch job with one task; the tasks of a gang share one batch job. Times with `mono`
in their name are seconds on the monotonic clock.
"""

import math

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.ids import Token, execution_log_ids, op_id
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution
from ...runtime.log.logger import Log
from ..slurm.job_states import SlurmStatus, StatusKind
from ..slurm.output_parser import Account
from ..slurm.script_markers import Started

#: Maximum length of a node name in reports (characters).
NODE_CHARS = 256


class Task:
    """One execution. folder: its evidence."""

    __slots__ = (
        "code_at",
        "code_mono",
        "dropped",
        "exit",
        "exited_first",
        "fenced",
        "folder",
        "grace",
        "kill_at",
        "kills_sent",
        "last_report",
        "limit",
        "log",
        "name",
        "own",
        "run_dir",
        "seen_at",
        "signaled",
        "sizes",
        "started",
        "started_mono",
        "step_over_mono",
        "stop_reason",
        "term_sent",
        "token",
    )

    def __init__(
        self, token: Token, folder: str, run_dir: str, limit: float | None, grace: float, log: Log
    ) -> None:
        self.log = log.bound(**execution_log_ids(token))
        self.token, self.name, self.folder, self.run_dir, self.limit, self.grace = (
            token,
            token.name,
            folder,
            run_dir,
            limit,
            grace,
        )
        self.started: Started | None = None
        #: when the start was seen (wall clock)
        self.seen_at = math.inf
        #: when it began, on this machine's monotonic clock
        self.started_mono: float | None = None
        #: the agent took the fence: the task never starts
        self.fenced = False
        #: when the script's own exit was seen (monotonic and wall clock), and that exit
        self.code_mono: float | None = None
        self.code_at = math.inf
        self.own: ExitInfo | None = None
        #: Slurm still reported the job as running when the script's exit, or the end of its step,
        #: was seen: the script exited first
        self.exited_first = False
        self.step_over_mono: float | None = None
        self.stop_reason: str | None = None
        #: when SIGKILL is due; the signals sent so far
        self.kill_at: float | None = None
        #: stop.json says that a signal may have been sent
        self.signaled = False
        self.term_sent = False
        self.kills_sent = 0
        self.exit: ExitInfo | None = None
        #: state of its output cap
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: last report
        self.last_report: Execution | None = None

    @property
    def ended(self) -> bool:
        return self.exit is not None


class BatchJob:
    """One Slurm job. tasks: the first one's folder holds the files of the whole job. sbatch_runs,
    sbatch_at, first_sbatch_at: number of sbatch runs, time of the last one and of the first one
    (wall clock).

    job_id None: not known yet. unsure: sbatch was run, and its outcome is unknown.
    """

    __slots__ = (
        "absent_mono",
        "absent_polls",
        "account",
        "account_mono",
        "cancels_sent",
        "comment",
        "first_sbatch_at",
        "foreign",
        "gang",
        "impossible",
        "impossible_polls",
        "job_id",
        "name",
        "over_mono",
        "ran_at",
        "requeue_canceled",
        "requeue_polls",
        "sbatch_at",
        "sbatch_runs",
        "slurm_status",
        "state",
        "submitting",
        "tasks",
        "unsure",
    )

    def __init__(
        self, tasks: list[Task], name: str, comment: str, state: BatchState, *, gang: bool
    ) -> None:
        self.tasks, self.name, self.comment, self.state, self.gang = (
            tasks,
            name,
            comment,
            state,
            gang,
        )
        self.job_id: str | None = None
        self.sbatch_runs, self.sbatch_at, self.first_sbatch_at = 0, 0.0, 0.0
        #: Slurm reuses the id for another job, which must not be reported or canceled
        self.foreign = False
        self.unsure = self.submitting = False
        #: last record from accounting
        self.account: Account | None = None
        #: last status from Slurm
        self.slurm_status: SlurmStatus | None = None
        #: since when Slurm reports it as over, since when Slurm does not know it, and since when
        #: accounting is awaited
        self.over_mono: float | None = None
        self.absent_mono: float | None = None
        self.account_mono: float | None = None
        #: since when it runs according to Slurm (wall clock)
        self.ran_at: float | None = None
        #: number of consecutive polls in which Slurm did not know it
        self.absent_polls = 0
        #: number of plain scancels sent
        self.cancels_sent = 0
        #: reason why it can never start, and the number of consecutive polls that reported the
        #: reason
        self.impossible = ""
        self.impossible_polls = 0
        #: number of consecutive polls in which it was queued again after its start; and whether it
        #: was canceled for that
        self.requeue_polls = 0
        self.requeue_canceled = False

    @property
    def first_task(self) -> Task:
        return self.tasks[0]

    @property
    def live(self) -> list[Task]:
        return [t for t in self.tasks if not t.ended]

    @property
    def stopping(self) -> bool:
        """Return whether all live tasks are being stopped."""
        return all(t.stop_reason is not None for t in self.live)


def state_of(job: BatchJob, task: Task) -> BatchState:
    """Return Slurm's last state for this task. Tasks of a gang have their own run directory and
    node.
    """
    if not job.gang:
        return job.state
    node = task.started.nodes if task.started is not None and task.started.step else ""
    return msgspec.structs.replace(
        job.state, run_dir=task.run_dir if job.state.run_dir else "", node=node[:NODE_CHARS]
    )


def execution(job: BatchJob, task: Task, mono: float) -> Execution:
    """Return the wire message for a task."""
    op = op_id(task.token, "run")
    if task.exit is not None:
        return ended(task.token, task.exit, task.started)
    if task.own is not None:
        return _ending(job, task, task.own)
    running = (
        job.slurm_status is not None
        and job.slurm_status.kind == StatusKind.RUNNING
        and not job.gang
    )
    if task.started is None and not running:
        return Execution(
            token=task.token, state=ExecutionState.STARTING, op_id=op, batch=state_of(job, task)
        )
    elapsed = None if task.started_mono is None else max(0.0, mono - task.started_mono)
    at = task.started.at if task.started is not None else job.ran_at
    pid = task.started.pid if task.started is not None else 0
    return Execution(
        token=task.token,
        state=ExecutionState.RUNNING,
        op_id=op,
        pid=pid,
        start_ticks=0,
        started_at=at,
        elapsed_secs=elapsed,
        batch=state_of(job, task),
    )


def _ending(job: BatchJob, task: Task, own: ExitInfo) -> Execution:
    """Return the wire message for a task whose script has exited while Slurm has not finished the
    job.
    """
    elapsed = (
        None
        if own.started_at is None or own.ended_at is None
        else max(0.0, own.ended_at - own.started_at)
    )
    return Execution(
        token=task.token,
        state=ExecutionState.RUNNING,
        op_id=op_id(task.token, "run"),
        pid=task.started.pid if task.started is not None else 0,
        start_ticks=0,
        started_at=own.started_at,
        elapsed_secs=elapsed,
        batch=state_of(job, task),
        exit=msgspec.structs.replace(own, stop_reason=task.stop_reason),
    )


def ended(token: Token, exit_: ExitInfo, started: Started | None = None) -> Execution:
    elapsed = None
    if exit_.started_at is not None and exit_.ended_at is not None:
        elapsed = max(0.0, exit_.ended_at - exit_.started_at)
    pid = started.pid if started is not None else None
    return Execution(
        token=token,
        state=ExecutionState.ENDED,
        op_id=op_id(token, "run"),
        pid=pid,
        start_ticks=None if pid is None else 0,
        started_at=exit_.started_at,
        elapsed_secs=elapsed,
        exit=exit_,
        batch=exit_.batch,
    )
