"""Handing batch scripts to Slurm, once each as far as anybody can tell, and finding out what came
of it where nobody said.

sbatch may take a job and be killed, or lose its answer, before it says so. So what was handed over
is looked for by its comment; it is handed over again only when squeue and accounting both could be
asked and know nothing of it. (Should Slurm have both after all, the fence lets one of them run.)
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

from ...protocol.clusters.cluster import Cluster
from ...protocol.ids import execution_log_ids
from ...runtime import failpoints
from ...runtime.log.logger import Log
from ..slurm import output_parser
from ..slurm.output_parser import Account, Row
from ..slurm.script_markers import BATCH_SCRIPT
from .command_runner import NO_PROGRAM, Ran, Run
from .ledger import BatchLedger
from .state import BatchJob

#: At once, for one agent: a controller that is asked by many slows down for all.
_AT_ONCE = 4
#: What sbatch took shows up within so many seconds, or not at all.
SETTLED_SECS = 10.0
#: So far the clocks of a cluster's machines may be apart.
_CLOCKS_SECS = 5.0

Outcome = Literal["accepted", "refused", "unsure"]


class Submitter:
    """accepted(job), refused(job, fault, sentence), unsure(job, sentence): what came of it."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: BatchLedger,
        run: Run,
        log: Log,
        *,
        accepted: Callable[[BatchJob], None],
        refused: Callable[[BatchJob, str, str], None],
        unsure: Callable[[BatchJob, str], None],
    ) -> None:
        self._cluster, self._ledger, self._run, self._log = cluster, ledger, run, log
        self._accepted, self._refused, self._unsure = accepted, refused, unsure
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._working: set[asyncio.Task[None]] = set()
        self.count = 0

    def submit(self, job: BatchJob) -> None:
        """Now, or when it is its turn."""
        job.submitting = True
        working = asyncio.get_running_loop().create_task(self._submit(job))
        self._working.add(working)
        working.add_done_callback(self._working.discard)

    def close(self) -> None:
        for task in self._working:
            task.cancel()

    async def _submit(self, job: BatchJob) -> None:
        async with self._turns:
            if (
                not job.live or job.stopping
            ):  # told to end while it waited: nobody has to start it first
                job.submitting, job.unsure = False, job.asked > 0
                self._unsure(job, "")
                return
            job.asked, job.asked_at, job.unsure = job.asked + 1, time.time(), True
            job.first_asked_at = job.first_asked_at or job.asked_at
            try:
                self._ledger.note(job)
            except OSError as e:
                job.submitting = False
                self._unsure(job, f"what is submitted cannot be written down: {e.strerror}")
                return
            failpoints.reached("keeper.consumed")
            self.count += 1
            ran = await self._run(
                output_parser.submit(f"{job.lead.folder}/{BATCH_SCRIPT}"),
                "",
                self._cluster.call_secs,
            )
            failpoints.reached("keeper.spawned")
            job.asked_at = time.time()
        job.submitting = False
        self._judge(job, ran)

    def _judge(self, job: BatchJob, ran: Ran) -> None:
        job_id = output_parser.parse_submitted(ran.out) if ran.code == 0 else None
        if job_id is not None:
            job.job_id, job.unsure = job_id, False
            self._ledger.note_when_possible(job)
            self._log(
                "jid={} is Slurm's job {}",
                job.lead.token.jid,
                job_id,
                **execution_log_ids(job.lead.token),
            )
            self._accepted(job)
            return
        if ran.code == 0:
            self._unsure(job, f"sbatch did not say which job it is: {ran.out.strip()[:200]!a}")
            return
        outage = (
            ran.err
            if ran.unsure or ran.code == NO_PROGRAM
            else output_parser.outage(ran.code, ran.err)
        )
        if outage is not None:
            self._unsure(job, outage or "sbatch was ended before it said anything")
            return
        fault, sentence = output_parser.refused(ran.err)
        if fault == "schedulerUnreachable":
            self._unsure(job, sentence)
        else:
            job.unsure = False
            self._refused(job, fault, sentence)


def found(job: BatchJob, rows: Mapping[str, Row], accounts: Mapping[str, Account]) -> str | None:
    """The job id that Slurm gave it, by its comment. Of two, the newer one that is not over; else
    the newer one.
    """
    ids = {i: r.state for i, r in rows.items() if r.comment == job.comment}
    ids |= {i: a.state for i, a in accounts.items() if _told_apart(job, a) and i not in ids}
    ranked = sorted(
        ids,
        key=lambda i: (ids[i] in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"), _number(i)),
    )
    return ranked[-1] if ranked else None


def _told_apart(job: BatchJob, account: Account) -> bool:
    """Many accountings keep no comments: then name and time have to do."""
    if account.comment:
        return account.comment == job.comment
    return (
        account.name == job.name
        and account.submitted_at is not None
        and account.submitted_at >= job.first_asked_at - _CLOCKS_SECS
    )


def _number(job_id: str) -> int:
    digits = job_id.split("_")[0].split("+")[0]
    return int(digits) if digits.isdigit() else 0
