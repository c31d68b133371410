"""What one round of questions to Slurm means for the jobs in it. Decides about each job; does
nothing but change what is known of it.

Slurm's silence is never an end: where it could not be asked, `unknown_since` says so. A job that
squeue and accounting both could be asked for, and do not know, is lost, but not at once: what was
submitted just now shows up late.
"""

import time

from msgspec.structs import replace

from ...protocol.clusters.batch import BatchState
from ...protocol.clusters.cluster import Cluster
from ..slurm.batch_script import COMMENT
from ..slurm.job_states import SlurmStatus, job_status
from ..slurm.output_parser import Account, Row
from .scheduler_queries import QueueSnapshot
from .start import SETTLED_SECS, found
from .state import BatchJob

#: Unknown to everybody for so long and so many rounds: it is lost. Known to accounting alone, which
#: never heard of its end: for so long.
ABSENT_SECS, ABSENT_ROUNDS, STALE_SECS = 10.0, 2, 25.0
#: Accounting is behind: so long it may take until it knows why a job ended (seconds).
ACCOUNT_SECS = 12.0
#: The reasons for which a job waits for ever may pass while a partition is being changed.
IMPOSSIBLE_ROUNDS = 2
#: In so many rounds what had started has to wait again, to be taken out of the queue.
AGAIN_ROUNDS = 2
#: What is said of jobs that this system canceled.
_TOLD_TO = "it was canceled, as it was told to from here"
_RECALLED = "it was put into Slurm's queue again after it had started; nothing is run a second time, so it was canceled"


class Reconciler:
    """run_dirs: tell where each job runs, because the supervisor knows another path."""

    def __init__(self, cluster: Cluster, *, run_dirs: bool) -> None:
        self._cluster, self._run_dirs = cluster, run_dirs

    def heard(self, job: BatchJob, said: QueueSnapshot, *, accounting: bool) -> None:
        """accounting: is there one, as far as is known?"""
        if said.rows is None:
            self.unknown(job, said.outage or "Slurm cannot be asked")
        elif job.job_id is None:
            self._looked_for(job, said)
        else:
            self._judged(job, said, accounting=accounting)

    def unknown(self, job: BatchJob, sentence: str) -> None:
        """Nobody could be asked."""
        job.absent_mono, job.missed = None, 0
        since = job.state.unknown_since or max(0.0, time.time())
        job.state = replace(job.state, unknown_since=since, sentence=sentence[:2048])

    def resubmit(self, job: BatchJob, said: QueueSnapshot) -> bool:
        """Is it certain that Slurm does not have it, though it was handed over?"""
        settled = said.began > job.asked_at + SETTLED_SECS
        return (
            job.job_id is None and said.rows is not None and said.accounts is not None and settled
        )

    def _looked_for(self, job: BatchJob, said: QueueSnapshot) -> None:
        assert said.rows is not None
        job.job_id = found(job, said.rows, said.accounts or {})
        if job.job_id is not None:
            job.unsure = False
            self._judged(job, said, accounting=False)
        elif said.accounts is None:
            self.unknown(job, said.accounting_outage or "Slurm's accounting cannot be asked")
        else:
            job.state = self._with(
                job,
                replace(
                    job.state,
                    sentence="sbatch did not say whether Slurm took it; it is being looked for",
                ),
            )

    def _judged(self, job: BatchJob, said: QueueSnapshot, *, accounting: bool) -> None:
        assert said.rows is not None and job.job_id is not None
        row, account = said.rows.get(job.job_id), (said.accounts or {}).get(job.job_id)
        job.foreign = row is not None and not _is_it(job, row)
        row, account = (
            None if job.foreign else row,
            account if account is not None and _is_it(job, account) else None,
        )
        if row is None and said.accounts is None and accounting:
            self.unknown(
                job,
                said.accounting_outage
                or "Slurm's accounting cannot be asked, and its controller has forgotten the job",
            )
            return
        if row is None and account is None and said.began < job.asked_at + 1.0:
            return  # it was asked for before there was anything to know
        job.account = account or (job.account if row is not None else None)
        verdict = _ours(job, job_status(self._cluster.name, row, job.account, now=time.time()))
        waits = verdict.kind == "waiting" and row is not None
        job.again_rounds = (
            job.again_rounds + 1 if waits and any(t.seen_at < said.began for t in job.tasks) else 0
        )
        self._learn(job, verdict)
        if verdict.kind == "absent":
            return
        if verdict.kind == "running":
            if row is not None and row.state == "RUNNING":
                for task in job.live:
                    task.exited_first = task.exited_first or task.code_at < said.began
            job.ran_at = (
                row.started_at
                if row is not None
                else account.started_at
                if account is not None
                else None
            )
        if verdict.kind == "over" and job.account_mono is None:
            job.account_mono = time.monotonic()
        if (
            account is not None and account.ended_at is not None and verdict.kind == "over"
        ):  # it has said what it knows
            job.account_mono = float("-inf")

    def _learn(self, job: BatchJob, verdict: SlurmStatus) -> None:
        now = time.monotonic()
        gone = verdict.kind == "absent" or verdict.stale
        job.missed = job.missed + 1 if gone else 0
        job.absent_mono = (job.absent_mono or now) if gone else None
        job.impossible_rounds = job.impossible_rounds + 1 if verdict.kind == "impossible" else 0
        if verdict.kind == "absent":
            if job.verdict is None or job.verdict.kind != "over":  # what is known of its end stays
                job.verdict = verdict
                job.state = self._with(job, replace(job.state, sentence=verdict.state.sentence))
            return
        job.verdict = verdict
        job.over_mono = (job.over_mono or now) if verdict.kind == "over" else None
        job.state = self._with(job, verdict.state)

    def _with(self, job: BatchJob, state: BatchState) -> BatchState:
        run_dir = job.lead.run_dir if self._run_dirs else ""
        return replace(state, job_id=job.job_id, unknown_since=None, run_dir=run_dir)


def _is_it(job: BatchJob, said: Row | Account) -> bool:
    """A controller that lost its newest books gives their ids anew. (Accounting may be behind with
    a name, and keep no comments.)
    """
    if said.comment.startswith(f"{COMMENT} "):
        return said.comment == job.comment
    return said.name in (job.name, "allocation", "")


def _ours(job: BatchJob, verdict: SlurmStatus) -> SlurmStatus:
    """What was canceled by this system is not called anybody else's doing."""
    if (
        verdict.exit is None
        or verdict.state.state != "CANCELLED"
        or not (job.recalled or job.stopping)
    ):
        return verdict
    sentence = _RECALLED if job.recalled else _TOLD_TO
    state = replace(verdict.state, sentence=sentence, canceled_by="")
    return verdict._replace(state=state, exit=replace(verdict.exit, detail=sentence, batch=state))


def gone(job: BatchJob) -> bool:
    """Does nobody know it any more, for long enough?"""
    if job.absent_mono is None or job.verdict is None or job.missed < ABSENT_ROUNDS:
        return False
    patience = STALE_SECS if job.verdict.stale else ABSENT_SECS
    return time.monotonic() - job.absent_mono >= patience


def wants_account(job: BatchJob) -> bool:
    """Has accounting still to say why it ended?"""
    if job.verdict is None or job.verdict.kind != "over" or job.account_mono is None:
        return False
    return time.monotonic() - job.account_mono < ACCOUNT_SECS and any(
        t.code_mono is None for t in job.live
    )
