"""In-memory state of a Slurm job and of its executions. Data only.

A plain run is a batch job with one task; the tasks of a gang share one batch job. Times with `mono`
in their name are seconds on the monotonic clock.
"""

import math

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.execution.lifecycle import Lifecycle, Policy
from ...protocol.ids import Token, execution_log_ids, op_id, printable
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution
from ...runtime.log.logger import Log
from ..slurm.job_states import SlurmStatus, StatusKind
from ..slurm.output_parser import Account, JobUsage
from ..slurm.script_markers import Started

#: Maximum length of a node name in reports (characters).
NODE_CHARS = 256


#: Slurm ends what outlives a script, and a script's own exit is reported at once.
POLICY = Policy(leftover=None, ending=0.0)


class Task:
    """One execution. folder: its evidence. limit: time limit of its order (seconds), which Slurm
    enforces. `life.barred`: the agent took the fence.
    """

    __slots__ = (
        "code_at",
        "dropped",
        "exited_first",
        "folder",
        "held_until",
        "job",
        "last_report",
        "life",
        "limit",
        "log",
        "name",
        "release_mono",
        "released",
        "run_dir",
        "seen_at",
        "sizes",
        "started",
        "step_over_mono",
        "stop_at",
        "token",
    )

    def __init__(
        self, token: Token, folder: str, run_dir: str, limit: float | None, grace: float, log: Log
    ) -> None:
        self.log = log.bound(**execution_log_ids(token))
        self.token, self.name, self.folder, self.run_dir, self.limit = (
            token,
            token.name,
            folder,
            run_dir,
            limit,
        )
        self.life = Lifecycle(POLICY, grace=grace)
        #: None: it ended before its launch
        self.job: BatchJob | None = None
        self.started: Started | None = None
        #: wall time of the last record of its stop, that of a signal; 0 without one
        self.stop_at = 0.0
        #: when the start, and the script's own exit or the end of its step, were seen (wall clock)
        self.seen_at = self.code_at = math.inf
        #: Slurm still reported the job as running when the script's exit, or the end of its step,
        #: was seen: the script exited first
        self.exited_first = False
        self.step_over_mono: float | None = None
        #: it failed, and its script holds the allocation until then (unix seconds); and whether that
        #: is not wanted any more
        self.held_until: float | None = None
        self.released = False
        #: when the job is canceled if its script has not ended the hold (monotonic)
        self.release_mono = math.inf
        #: state of its output cap
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: last report
        self.last_report: Execution | None = None


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
        "comment",
        "first_sbatch_at",
        "foreign",
        "gang",
        "holds",
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
        "usage",
        "usage_mono",
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
        for task in tasks:
            task.job = self
        self.job_id: str | None = None
        self.sbatch_runs, self.sbatch_at, self.first_sbatch_at = 0, 0.0, 0.0
        #: its script holds the allocation of a failed task
        self.holds = False
        #: Slurm reuses the id for another job, which must not be reported or canceled
        self.foreign = False
        self.unsure = self.submitting = False
        #: last record from accounting
        self.account: Account | None = None
        #: its usage by accounting, from its end on; when that was asked for last
        self.usage: JobUsage | None = None
        self.usage_mono = float("-inf")
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
        return [t for t in self.tasks if not t.life.ended]

    @property
    def stopping(self) -> bool:
        """Return whether all live tasks are being stopped."""
        return all(t.life.stopping for t in self.live)


def is_held(task: Task) -> bool:
    """Return whether its allocation is held for debugging, and that is still wanted."""
    return task.held_until is not None and not task.released and not task.life.ended


def state_of(job: BatchJob, task: Task) -> BatchState:
    """Return Slurm's last state for this task. Tasks of a gang have their own run directory and
    node. Its script may know the nodes before Slurm has told them.
    """
    if not job.gang:
        nodes = task.started.nodes if task.started is not None else ""
        if job.state.nodes or not nodes:
            return job.state
        return msgspec.structs.replace(job.state, nodes=printable(nodes))
    node = task.started.nodes if task.started is not None and task.started.step else ""
    return msgspec.structs.replace(
        job.state, run_dir=task.run_dir if job.state.run_dir else "", node=node[:NODE_CHARS]
    )


def report(task: Task, mono: float) -> Execution:
    """Return the wire message for a task. A script that has exited while Slurm has not finished the
    job is reported as running, with its exit.
    """
    life, started, job = task.life, task.started, task.job
    exit_, state, started_at = life.exit, life.state, life.started_at
    if exit_ is None and life.own_exit is not None:
        exit_ = msgspec.structs.replace(life.own_exit, stop_reason=life.stop_reason)
    if state is ExecutionState.STARTING and job is not None and _runs_in_slurm(job):
        state, started_at = ExecutionState.RUNNING, job.ran_at
    pid = started.pid if started is not None else 0 if state is ExecutionState.RUNNING else None
    return Execution(
        token=task.token,
        state=state,
        op_id=op_id(task.token, "run"),
        pid=pid,
        start_ticks=None if pid is None else 0,
        started_at=started_at if exit_ is None else exit_.started_at,
        elapsed_secs=life.running_secs(mono) if exit_ is None else _run_secs(exit_),
        exit=exit_,
        batch=exit_.batch if life.ended or job is None else state_of(job, task),
        held_until=task.held_until or msgspec.UNSET if is_held(task) else msgspec.UNSET,
    )


def _runs_in_slurm(job: BatchJob) -> bool:
    """Return whether Slurm reports a plain run as running, perhaps before its script has begun."""
    status = job.slurm_status
    return status is not None and status.kind == StatusKind.RUNNING and not job.gang


def _run_secs(exit_: ExitInfo) -> float | None:
    if exit_.started_at is None or exit_.ended_at is None:
        return None
    return max(0.0, exit_.ended_at - exit_.started_at)
