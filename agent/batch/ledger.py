"""The agent's durable record of executions through the batch scheduler, for the next agent.

<folder>/batch/<token.name>.json     one entry per execution whose exit is not acknowledged:
                                     its token, and the first task of its batch job
<folder>/run/<token.name>/           its evidence (see runtime.execution.folder); creating it
                                     consumes the token
    batch.sh                         in the folder of the batch job's first task: the sbatch script
    batch.json                       there: the submission, its job id, Slurm's last report
"""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.errors import Refusal
from ...protocol.ids import Token, parse_token
from ...protocol.jobs.exit_info import ExitInfo
from ...runtime.execution.folder import EXIT, STOP, read_json, write_json
from ...runtime.execution.pending_writes import PendingWrites
from ...runtime.filesystems import make_folder
from ...runtime.log.logger import Log
from .state import BatchJob, Task

BATCH = "batch.json"
_SUFFIX = ".json"


class LedgerEntry(NamedTuple):
    token: Token
    first_name: str


class BatchLedger:
    """Ledger in the agent's folder. A failed write of an exit or a stop is kept in `pending`
    until the poll loop tries it again.
    """

    def __init__(self, folder: str, log: Log) -> None:
        self._log = log
        self._entries, self._runs = f"{folder}/batch", f"{folder}/run"
        self.pending = PendingWrites(lambda sentence: log("{}", sentence))

    def make(self) -> None:
        for path in (self._entries, self._runs):
            make_folder(path)

    def evidence(self, name: str) -> str:
        return f"{self._runs}/{name}"

    def consume(self, token: Token, first_name: str) -> None:
        """Mark this token as started. Raises OSError; FileExistsError if it was used before."""
        write_json(
            f"{self._entries}/{token.name}{_SUFFIX}", {"token": str(token), "lead": first_name}
        )
        try:
            os.mkdir(self.evidence(token.name), 0o700)
        except FileExistsError:
            raise
        except OSError:
            self.remove_entry(token.name)
            raise

    def remove_entry(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._entries}/{name}{_SUFFIX}")

    def entries(self) -> Iterator[LedgerEntry]:
        """Return all entries in order of names. Unreadable files are skipped."""
        for file in sorted(os.listdir(self._entries)):
            content = read_json(f"{self._entries}/{file}") if file.endswith(_SUFFIX) else None
            with contextlib.suppress(Refusal, TypeError, KeyError):
                if content is not None:
                    yield LedgerEntry(parse_token(content["token"]), str(content["lead"]))

    # ---- a batch job

    def write(self, job: BatchJob) -> None:
        """Write the state of the batch job. Raises OSError."""
        write_json(
            f"{job.first_task.folder}/{BATCH}",
            {
                "tokens": [str(t.token) for t in job.tasks],
                "runDirs": [t.run_dir for t in job.tasks],
                "limits": [t.limit for t in job.tasks],
                "graces": [t.life.grace for t in job.tasks],
                "gang": job.gang,
                "name": job.name,
                "comment": job.comment,
                "asked": job.sbatch_runs,
                "askedAt": job.sbatch_at,
                "firstAskedAt": job.first_sbatch_at,
                "jobId": job.job_id,
                "state": msgspec.to_builtins(job.state),
                "impossible": job.impossible,
                "recalled": job.requeue_canceled,
                "holds": job.holds,
            },
        )

    def try_write(self, job: BatchJob) -> None:
        """Write the state of the batch job, and ignore an error: the next agent can find this state
        again.
        """
        with contextlib.suppress(OSError):
            self.write(job)

    def read(self, first_name: str) -> BatchJob | None:
        """Return the batch job recorded in this folder, with its tasks from their evidence. None if
        there is none.
        """
        content = read_json(f"{self.evidence(first_name)}/{BATCH}")
        if content is None:
            return None
        try:
            rows = zip(
                content["tokens"],
                content["runDirs"],
                content["limits"],
                content["graces"],
                strict=True,
            )
            tasks = [
                self._task(parse_token(token), str(run_dir), limit, float(grace))
                for token, run_dir, limit, grace in rows
            ]
            # the job id is written as soon as Slurm returns it, with the state of that moment
            state = msgspec.convert({**content["state"], "jobId": content["jobId"]}, BatchState)
            job = BatchJob(
                tasks,
                str(content["name"]),
                str(content["comment"]),
                state,
                gang=bool(content["gang"]),
            )
            job.sbatch_runs, job.sbatch_at, job.job_id = (
                int(content["asked"]),
                float(content["askedAt"]),
                content["jobId"],
            )
            job.first_sbatch_at, job.impossible = (
                float(content["firstAskedAt"]),
                str(content["impossible"]),
            )
            job.requeue_canceled = content.get("recalled") is True
            job.holds = content.get("holds") is True
        except (KeyError, TypeError, ValueError, Refusal, msgspec.ValidationError):
            return None
        job.unsure = job.job_id is None
        return job if tasks else None

    def _task(self, token: Token, run_dir: str, limit: float | None, grace: float) -> Task:
        task = Task(token, self.evidence(token.name), run_dir, limit, grace, self._log)
        task.life.claimed()
        exit_, stop = self.exit(token.name), read_json(f"{task.folder}/{STOP}")
        if exit_ is not None:
            task.life.finish(exit_)
        elif stop is not None:
            given, at = stop.get("grace"), stop.get("at")
            task.stop_at = float(at) if isinstance(at, int | float) else 0.0
            task.life.resume_stop(
                str(stop.get("reason")),
                float(given) if isinstance(given, int | float) else grace,
                time.monotonic(),
                # older versions did not record whether they had sent a signal
                signaled=stop.get("signaled") is not False,
            )
        return task

    # ---- ends

    def exit(self, name: str) -> ExitInfo | None:
        """Return the recorded exit info, or None."""
        content = read_json(f"{self.evidence(name)}/{EXIT}")
        try:
            return None if content is None else msgspec.convert(content, ExitInfo)
        except msgspec.ValidationError:
            return ExitInfo(source="lost", detail="its recorded exit info cannot be read")

    def close(self, folder: str, exit_: ExitInfo) -> None:
        """Write the exit info, now or as soon as possible."""
        content: dict[str, Any] = msgspec.to_builtins(exit_)
        self.pending.write(f"{folder}/{EXIT}", content)
