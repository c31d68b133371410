"""Submission of batch scripts, and the search for a job if sbatch gave no answer.

sbatch may submit a job and then be killed, or its answer may be lost. So the agent searches for the
job by its comment. It submits the script again only if squeue and accounting both answered and do
not know the job. If Slurm has two jobs after all, the fence lets only one run.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

from ...protocol.clusters.cluster import Cluster
from ...runtime import failpoints
from ..slurm import output_parser
from ..slurm.output_parser import Account, Row
from ..slurm.script_markers import BATCH_SCRIPT
from .command_runner import NO_PROGRAM, CommandResult, Run
from .ledger import BatchLedger
from .state import BatchJob

#: Maximum number of concurrent sbatch commands per agent. Many requests slow the controller down.
_AT_ONCE = 4
#: A submitted job is visible within this time, or not at all (seconds).
SETTLED_SECS = 10.0
#: Maximum clock difference between the cluster's machines (seconds).
_CLOCKS_SECS = 5.0

Outcome = Literal["accepted", "refused", "unsure"]


class Submitter:
    """Runs sbatch and reports the outcome: accepted(job), refused(job, fault, sentence) or
    unsure(job, sentence).
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: BatchLedger,
        run: Run,
        *,
        accepted: Callable[[BatchJob], None],
        refused: Callable[[BatchJob, str, str], None],
        unsure: Callable[[BatchJob, str], None],
    ) -> None:
        self._cluster, self._ledger, self._run = cluster, ledger, run
        self._accepted, self._refused, self._unsure = accepted, refused, unsure
        self._semaphore = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self.count = 0

    def submit(self, job: BatchJob) -> None:
        """Submit now, or when other submissions have finished."""
        job.submitting = True
        task = asyncio.get_running_loop().create_task(self._submit(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _submit(self, job: BatchJob) -> None:
        async with self._semaphore:
            if not job.live or job.stopping:  # stopped while it waited
                job.submitting, job.unsure = False, job.sbatch_runs > 0
                self._unsure(job, "")
                return
            job.sbatch_runs, job.sbatch_at, job.unsure = job.sbatch_runs + 1, time.time(), True
            job.first_sbatch_at = job.first_sbatch_at or job.sbatch_at
            try:
                self._ledger.write(job)
            except OSError as e:
                job.submitting = False
                self._unsure(job, f"cannot record the submission: {e.strerror}")
                return
            failpoints.reached("keeper.consumed")
            self.count += 1
            result = await self._run(
                output_parser.submit(f"{job.first_task.folder}/{BATCH_SCRIPT}"),
                "",
                self._cluster.call_secs,
            )
            failpoints.reached("keeper.spawned")
            job.sbatch_at = time.time()
        job.submitting = False
        self._report_outcome(job, result)

    def _report_outcome(self, job: BatchJob, result: CommandResult) -> None:
        job_id = output_parser.parse_submitted(result.out) if result.code == 0 else None
        if job_id is not None:
            job.job_id, job.unsure = job_id, False
            self._ledger.try_write(job)
            job.first_task.log("jid={} is Slurm job {}", job.first_task.token.jid, job_id)
            self._accepted(job)
            return
        if result.code == 0:
            self._unsure(job, f"sbatch printed no job id: {result.out.strip()[:200]!a}")
            return
        outage = (
            result.err
            if result.effect_unknown or result.code == NO_PROGRAM
            else output_parser.outage(result.code, result.err)
        )
        if outage is not None:
            self._unsure(job, outage or "sbatch was killed before it printed an answer")
            return
        fault, sentence = output_parser.submission_error(result.err)
        if fault == "schedulerUnreachable":
            self._unsure(job, sentence)
        else:
            job.unsure = False
            self._refused(job, fault, sentence)


def find_job_id(
    job: BatchJob, rows: Mapping[str, Row], accounts: Mapping[str, Account]
) -> str | None:
    """Return the id of the job with this comment. Prefer an unfinished job, then the newest."""
    ids = {i: r.state for i, r in rows.items() if r.comment == job.comment}
    ids |= {i: a.state for i, a in accounts.items() if _is_record_of(job, a) and i not in ids}
    ranked = sorted(
        ids,
        key=lambda i: (ids[i] in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"), _number(i)),
    )
    return ranked[-1] if ranked else None


def _is_record_of(job: BatchJob, account: Account) -> bool:
    """Return whether this record belongs to the job. Without comments in accounting, name and time
    decide.
    """
    if account.comment:
        return account.comment == job.comment
    return (
        account.name == job.name
        and account.submitted_at is not None
        and account.submitted_at >= job.first_sbatch_at - _CLOCKS_SECS
    )


def _number(job_id: str) -> int:
    digits = job_id.split("_")[0].split("+")[0]
    return int(digits) if digits.isdigit() else 0
