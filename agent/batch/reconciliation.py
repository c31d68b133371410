"""Reconciliation of known batch jobs with one snapshot of Slurm. Decides about each job and changes
only the in-memory state.

An unreachable Slurm never ends a job: `unknown_since` records the outage. A job unknown to both
squeue and accounting is lost, but only after a delay, because a new submission shows up late.
"""

import time

from msgspec.structs import replace

from ...protocol.clusters.batch import BatchState, SlurmState
from ...protocol.clusters.cluster import Cluster
from ..slurm.batch_script import COMMENT
from ..slurm.job_states import SlurmStatus, StatusKind, ended_before, job_status
from ..slurm.output_parser import Account, Row
from .scheduler_queries import QueueSnapshot
from .start import SETTLED_SECS, find_job_id
from .state import BatchJob

#: A job is lost if unknown to both for ABSENT_SECS and ABSENT_ROUNDS polls, or known only to
#: accounting without an end for STALE_SECS.
ABSENT_SECS, ABSENT_POLLS, STALE_SECS = 10.0, 2, 25.0
#: Accounting may lag: maximum time to wait for the cause of an end (seconds).
ACCOUNT_SECS = 12.0
#: Number of polls with an impossible reason before the job ends: it may pass while a partition is
#: being changed.
IMPOSSIBLE_POLLS = 2
#: Number of polls in which a started job is queued again before it is canceled.
REQUEUE_POLLS = 2
#: Sentences for jobs that jobscribe canceled.
_CANCELED = "it was canceled by jobscribe, as requested"
_REQUEUE_CANCELED = (
    "it was requeued in Slurm after it had started; jobscribe canceled it, "
    "because nothing is run a second time"
)


class Reconciler:
    """Applies snapshots of Slurm to batch jobs. run_dirs: report the run directory of each job,
    because the supervisor knows it by another path.
    """

    def __init__(self, cluster: Cluster, *, run_dirs: bool) -> None:
        self._cluster, self._run_dirs = cluster, run_dirs

    def apply(self, job: BatchJob, snapshot: QueueSnapshot, *, accounting: bool) -> None:
        """Apply a snapshot to a job. accounting: whether the cluster has accounting, as far as
        known.
        """
        if snapshot.rows is None:
            self.mark_unknown(job, snapshot.outage or "Slurm cannot be queried")
        elif job.job_id is None:
            self._find_job(job, snapshot)
        else:
            self._apply_rows(job, snapshot, accounting=accounting)

    def mark_unknown(self, job: BatchJob, sentence: str) -> None:
        """Record that Slurm could not be queried."""
        job.absent_mono, job.absent_polls = None, 0
        since = job.state.unknown_since or max(0.0, time.time())
        job.state = replace(job.state, unknown_since=since, sentence=sentence[:2048])

    def needs_resubmission(self, job: BatchJob, snapshot: QueueSnapshot) -> bool:
        """Return whether Slurm certainly does not have a job that was submitted."""
        settled = snapshot.began > job.sbatch_at + SETTLED_SECS
        return (
            job.job_id is None
            and snapshot.rows is not None
            and snapshot.accounts is not None
            and settled
        )

    def _find_job(self, job: BatchJob, snapshot: QueueSnapshot) -> None:
        assert snapshot.rows is not None
        job.job_id = find_job_id(job, snapshot.rows, snapshot.accounts or {})
        if job.job_id is not None:
            job.unsure = False
            self._apply_rows(job, snapshot, accounting=False)
        elif snapshot.accounts is None:
            self.mark_unknown(
                job, snapshot.accounting_outage or "Slurm's accounting cannot be queried"
            )
        else:
            job.state = self._complete_state(
                job,
                replace(
                    job.state,
                    sentence="sbatch did not confirm the submission; searching for the job",
                ),
            )

    def _apply_rows(self, job: BatchJob, snapshot: QueueSnapshot, *, accounting: bool) -> None:
        assert snapshot.rows is not None and job.job_id is not None
        row, account = snapshot.rows.get(job.job_id), (snapshot.accounts or {}).get(job.job_id)
        job.foreign = row is not None and not _is_row_of(job, row)
        row, account = (
            None if job.foreign else row,
            account if account is not None and _is_row_of(job, account) else None,
        )
        if row is None and snapshot.accounts is None and accounting:
            self.mark_unknown(
                job,
                snapshot.accounting_outage
                or "Slurm's accounting cannot be queried, and its controller has forgotten the job",
            )
            return
        if row is None and account is None and snapshot.began < job.sbatch_at + 1.0:
            return  # the query may have started before the submission
        job.account = account or (job.account if row is not None else None)
        slurm_status = _explain_own_cancel(
            job, job_status(self._cluster.name, row, job.account, now=time.time())
        )
        waiting = slurm_status.kind == StatusKind.WAITING and row is not None
        job.requeue_polls = (
            job.requeue_polls + 1
            if waiting and any(t.seen_at < snapshot.began for t in job.tasks)
            else 0
        )
        self._record_status(job, slurm_status)
        if slurm_status.kind == StatusKind.ABSENT:
            return
        if slurm_status.kind == StatusKind.RUNNING:
            if row is not None and row.state == SlurmState.RUNNING:
                for task in job.live:
                    task.exited_first = task.exited_first or task.code_at < snapshot.began
            job.ran_at = (
                row.started_at
                if row is not None
                else account.started_at
                if account is not None
                else None
            )
        if slurm_status.kind == StatusKind.OVER and job.account_mono is None:
            job.account_mono = time.monotonic()
        if (
            account is not None
            and account.ended_at is not None
            and slurm_status.kind == StatusKind.OVER
        ):
            job.account_mono = float("-inf")  # accounting is complete

    def _record_status(self, job: BatchJob, slurm_status: SlurmStatus) -> None:
        now = time.monotonic()
        missing = slurm_status.kind == StatusKind.ABSENT or slurm_status.stale
        job.absent_polls = job.absent_polls + 1 if missing else 0
        job.absent_mono = (job.absent_mono or now) if missing else None
        job.impossible_polls = (
            job.impossible_polls + 1 if slurm_status.kind == StatusKind.IMPOSSIBLE else 0
        )
        if slurm_status.kind == StatusKind.ABSENT:
            if (
                job.slurm_status is None or job.slurm_status.kind != StatusKind.OVER
            ):  # keep a known end
                job.slurm_status = slurm_status
                job.state = self._complete_state(
                    job, replace(job.state, sentence=slurm_status.state.sentence)
                )
            return
        job.slurm_status = slurm_status
        job.over_mono = (job.over_mono or now) if slurm_status.kind == StatusKind.OVER else None
        job.state = self._complete_state(job, slurm_status.state)

    def _complete_state(self, job: BatchJob, state: BatchState) -> BatchState:
        run_dir = job.first_task.run_dir if self._run_dirs else ""
        return replace(state, job_id=job.job_id, unknown_since=None, run_dir=run_dir)


def _is_row_of(job: BatchJob, row: Row | Account) -> bool:
    """Return whether a row belongs to this job. A controller that lost its latest state reuses job
    ids. (Accounting may report the name late, and may store no comments.)
    """
    if row.comment.startswith(f"{COMMENT} "):
        return row.comment == job.comment
    return row.name in (job.name, "allocation", "")


def _explain_own_cancel(job: BatchJob, slurm_status: SlurmStatus) -> SlurmStatus:
    """Replace Slurm's sentence for a job that jobscribe canceled, so that it does not blame another
    user.
    """
    if (
        slurm_status.exit is None
        or slurm_status.state.state != SlurmState.CANCELLED
        or not (job.requeue_canceled or job.stopping or any(t.released for t in job.tasks))
        or (
            job.stopping
            and ended_before(slurm_status, min((t.stop_at for t in job.live), default=0.0))
        )
    ):
        return slurm_status
    sentence = _REQUEUE_CANCELED if job.requeue_canceled else _CANCELED
    state = replace(slurm_status.state, sentence=sentence, canceled_by="")
    return slurm_status._replace(
        state=state, exit=replace(slurm_status.exit, detail=sentence, batch=state)
    )


def is_gone(job: BatchJob) -> bool:
    """Return whether Slurm has not known the job for long enough."""
    if job.absent_mono is None or job.slurm_status is None or job.absent_polls < ABSENT_POLLS:
        return False
    limit_secs = STALE_SECS if job.slurm_status.stale else ABSENT_SECS
    return time.monotonic() - job.absent_mono >= limit_secs


def wants_account(job: BatchJob) -> bool:
    """Return whether to wait for the cause of the end from accounting."""
    if (
        job.slurm_status is None
        or job.slurm_status.kind != StatusKind.OVER
        or job.account_mono is None
    ):
        return False
    return time.monotonic() - job.account_mono < ACCOUNT_SECS and any(
        not t.life.exiting for t in job.live
    )
