"""What is known of one job of Slurm's and of the executions in it. Data only.

A plain run is a batch job with one task; the tasks of a gang share one. Times called `mono` are
seconds on the monotonic clock.
"""

import math

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.ids import Token, op_id
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution
from ..slurm.job_states import SlurmStatus
from ..slurm.output_parser import Account
from ..slurm.script_markers import Started

#: Of the name of one node, that many characters are told.
NODE_CHARS = 256


class Task:
    """One execution. folder: its evidence."""

    __slots__ = (
        "began_mono",
        "code_at",
        "code_mono",
        "dropped",
        "exit",
        "exited_first",
        "fenced",
        "folder",
        "grace",
        "kill_at",
        "killed",
        "limit",
        "name",
        "own",
        "run_dir",
        "said",
        "seen_at",
        "signaled",
        "sizes",
        "started",
        "step_over_mono",
        "stop_reason",
        "termed",
        "token",
    )

    def __init__(
        self, token: Token, folder: str, run_dir: str, limit: float | None, grace: float
    ) -> None:
        self.token, self.name, self.folder, self.run_dir, self.limit, self.grace = (
            token,
            token.name,
            folder,
            run_dir,
            limit,
            grace,
        )
        self.started: Started | None = None
        #: when that was seen (wall clock)
        self.seen_at = math.inf
        #: when it began, on this machine's clock
        self.began_mono: float | None = None
        #: the agent has its fence: it never starts
        self.fenced = False
        #: since when its own exit is known: monotonic, and by the wall clock; and that exit
        self.code_mono: float | None = None
        self.code_at = math.inf
        self.own: ExitInfo | None = None
        #: Slurm still called it running when its own exit, or the end of its step, was known: no
        #: end that Slurm made came before
        self.exited_first = False
        self.step_over_mono: float | None = None
        self.stop_reason: str | None = None
        #: from when on everything of it is killed; what was sent so far
        self.kill_at: float | None = None
        #: stop.json says that a signal may have been sent
        self.signaled = False
        self.termed = False
        self.killed = 0
        self.exit: ExitInfo | None = None
        #: for the cap of its output
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: what was reported of it last
        self.said: Execution | None = None

    @property
    def ended(self) -> bool:
        return self.exit is not None


class BatchJob:
    """tasks: the first one's folder holds what concerns all. asked: how often sbatch was run for
    it, and when last (wall clock).

    job_id `None`: nobody knows one yet. unsure: sbatch was run, and nobody knows what came of it.
    """

    __slots__ = (
        "absent_mono",
        "account",
        "account_mono",
        "again_rounds",
        "asked",
        "asked_at",
        "canceled",
        "comment",
        "first_asked_at",
        "foreign",
        "gang",
        "impossible",
        "impossible_rounds",
        "job_id",
        "missed",
        "name",
        "over_mono",
        "ran_at",
        "recalled",
        "state",
        "submitting",
        "tasks",
        "unsure",
        "verdict",
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
        self.asked, self.asked_at, self.first_asked_at = 0, 0.0, 0.0
        #: by its id Slurm knows another job now: nothing is said or done about that one
        self.foreign = False
        self.unsure = self.submitting = False
        #: what accounting said of it last
        self.account: Account | None = None
        #: what its last rows mean
        self.verdict: SlurmStatus | None = None
        #: since when Slurm calls it over, since when it knows nothing of it, since when accounting
        #: is waited for
        self.over_mono: float | None = None
        self.absent_mono: float | None = None
        self.account_mono: float | None = None
        #: since when it runs, by Slurm's word (wall clock)
        self.ran_at: float | None = None
        #: in so many rounds in a row Slurm knew nothing of it
        self.missed = 0
        #: plain scancel was sent so often
        self.canceled = 0
        #: why it would wait for ever, which is why it ends; and in so many rounds Slurm said so
        self.impossible = ""
        self.impossible_rounds = 0
        #: in so many rounds Slurm had it in its queue again, although it had started; and was it
        #: canceled for that?
        self.again_rounds = 0
        self.recalled = False

    @property
    def lead(self) -> Task:
        return self.tasks[0]

    @property
    def live(self) -> list[Task]:
        return [t for t in self.tasks if not t.ended]

    @property
    def stopping(self) -> bool:
        """Is every task that is left to end?"""
        return all(t.stop_reason is not None for t in self.live)


def state_of(job: BatchJob, task: Task) -> BatchState:
    """What Slurm said last, as this task has it: those of a gang have directories of their own, and
    each its node.
    """
    if not job.gang:
        return job.state
    node = task.started.nodes if task.started is not None and task.started.step else ""
    return msgspec.structs.replace(
        job.state, run_dir=task.run_dir if job.state.run_dir else "", node=node[:NODE_CHARS]
    )


def execution(job: BatchJob, task: Task, mono: float) -> Execution:
    """As the wire has it."""
    op = op_id(task.token, "run")
    if task.exit is not None:
        return ended(task.token, task.exit, task.started)
    if task.own is not None:
        return _ending(job, task, task.own)
    running = job.verdict is not None and job.verdict.kind == "running" and not job.gang
    if task.started is None and not running:
        return Execution(token=task.token, state="starting", op_id=op, batch=state_of(job, task))
    elapsed = None if task.began_mono is None else max(0.0, mono - task.began_mono)
    at = task.started.at if task.started is not None else job.ran_at
    pid = task.started.pid if task.started is not None else 0
    return Execution(
        token=task.token,
        state="running",
        op_id=op,
        pid=pid,
        start_ticks=0,
        started_at=at,
        elapsed_secs=elapsed,
        batch=state_of(job, task),
    )


def _ending(job: BatchJob, task: Task, own: ExitInfo) -> Execution:
    """Its script has written down its exit, and Slurm has not finished it."""
    elapsed = (
        None
        if own.started_at is None or own.ended_at is None
        else max(0.0, own.ended_at - own.started_at)
    )
    return Execution(
        token=task.token,
        state="running",
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
        state="ended",
        op_id=op_id(token, "run"),
        pid=pid,
        start_ticks=None if pid is None else 0,
        started_at=exit_.started_at,
        elapsed_secs=elapsed,
        exit=exit_,
        batch=exit_.batch,
    )
