"""Preparation of a batch job: writes scripts, inputs and the batch script into the evidence before
sbatch runs.

The batch job gets nothing from the agent except these files. Blocks.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...protocol.clusters.batch import BatchRequest, BatchState
from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal
from ...protocol.ids import Token
from ...protocol.launch.job_script import export_lines, script
from ...protocol.wire.messages import Shared, TaskSpec
from ...runtime.execution.folder import INPUT, JOB, REPORT, SCRIPT, STDERR, STDOUT, write
from ...runtime.log.logger import Log
from ..breakpoints.environment import stage
from ..jobs import job_input
from ..keeper.linux.oom_detection import describe_fault
from ..profiles import environment as profiles
from ..slurm.batch_script import Step, Submission, batch_script, comment, job_name
from ..slurm.script_markers import BATCH_SCRIPT
from .ledger import BatchLedger
from .state import BatchJob, Task

#: Slurm truncates longer job names.
_NAME_CHARS = 128


class Unprepared(Exception):
    """Preparation failed, and nothing was submitted. fault: a fault code (see exit_info.FAULTS)."""

    def __init__(self, sentence: str, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.fault = fault


class LaunchRequest(NamedTuple):
    """Tasks of one batch job. shared: only for a gang. umask: from the login environment."""

    tasks: Sequence[tuple[Token, TaskSpec]]
    shared: Shared | None
    umask: str


class Preparation:
    """run_dirs: report the run directory of each job, because the supervisor does not know it."""

    def __init__(
        self,
        ledger: BatchLedger,
        cluster: Cluster,
        deployment: str,
        apps: tuple[str, ...],
        log: Log,
        *,
        run_dirs: bool = False,
    ) -> None:
        self._ledger, self._cluster, self._deployment, self.apps = ledger, cluster, deployment, apps
        self._log, self._run_dirs = log, run_dirs

    def job(self, launch: LaunchRequest) -> BatchJob:
        """Return the batch job, which exists only in memory so far."""
        tasks = [
            Task(
                token,
                self._ledger.evidence(token.name),
                spec.run_dir,
                spec.time_limit_secs,
                spec.grace_secs,
                self._log,
            )
            for token, spec in launch.tasks
        ]
        request = _request(launch.tasks[0][1])
        state = BatchState(
            cluster=self._cluster.name,
            partition=request.partition or "",
            account=request.account or "",
            # the script may say that it runs before Slurm was asked once
            run_dir=tasks[0].run_dir if self._run_dirs else "",
        )
        first_token = tasks[0].token
        job = BatchJob(
            tasks,
            job_name(first_token)[:_NAME_CHARS],
            comment(self._deployment, first_token),
            state,
            gang=launch.shared is not None,
        )
        job.holds = launch.tasks[0][1].debug_secs is not msgspec.UNSET
        return job

    def write_files(self, job: BatchJob, launch: LaunchRequest) -> None:
        """Write all files, the ledger's record last. Raises Unprepared: nothing was submitted, and
        the tokens are consumed.
        """
        try:
            for task, (token, spec) in zip(job.tasks, launch.tasks, strict=True):
                self._write_task(task, token, spec, launch)
            text = batch_script(self._submission(job, launch))
            write(
                f"{job.first_task.folder}/{BATCH_SCRIPT}",
                text.encode("utf-8", "surrogateescape"),
                0o700,
            )
            self._ledger.write(job)
        except Refusal as e:
            raise Unprepared(e.sentence, e.code if e.code == "batchRefused" else None) from None
        except OSError as e:
            fault_code, sentence = describe_fault(e)
            raise Unprepared(f"cannot write its evidence: {sentence}", fault_code) from None

    def _submission(self, job: BatchJob, launch: LaunchRequest) -> Submission:
        limits = [t.limit for t in job.tasks if t.limit is not None]
        first = launch.tasks[0][1]
        request, hold = _request(first), first.debug_secs
        steps = tuple(
            Step(
                token=token,
                folder=task.folder,
                cores=_request(spec).cores or 1,
                gpus=_request(spec).gpus or 0,
                job_file=f"{spec.run_dir}/{JOB}" if job.gang else None,
            )
            for task, (token, spec) in zip(job.tasks, launch.tasks, strict=True)
        )
        return Submission(
            steps=steps,
            request=request,
            cluster=self._cluster,
            deployment=self._deployment,
            time_limit_secs=max(limits) if limits else None,
            debug_secs=None if hold is msgspec.UNSET else hold,
            core_bytes=first.core_bytes,
        )

    def _write_task(self, task: Task, token: Token, spec: TaskSpec, launch: LaunchRequest) -> None:
        folder = task.folder
        if spec.app is not None:
            write(
                f"{folder}/{INPUT}",
                job_input.input_json(spec.app, spec.run_dir, self.apps).encode(),
            )
            write(f"{folder}/{REPORT}", b"")
            spec = job_input.with_job_command(spec, Path(folder), job_input.import_roots())
        spec = profiles.stage(token, stage(spec, folder), folder)
        shared = export_lines(launch.shared.env) if launch.shared is not None else ""
        # without this machine's environment: on the node, its own login, modules and set-up count
        text = script(token, spec, {}, folder, umask=launch.umask, shared=shared)
        write(f"{folder}/{SCRIPT}", text.encode("utf-8", "surrogateescape"), 0o700)
        for name in (STDOUT, STDERR):  # so that readers can open them before the job starts
            write(f"{folder}/{name}", b"")
        os.makedirs(spec.run_dir, mode=0o700, exist_ok=True)
        if not os.access(spec.run_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", spec.run_dir)
        if launch.shared is not None:
            # never write through a link that an earlier attempt left
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{spec.run_dir}/{JOB}")
            write(f"{spec.run_dir}/{JOB}", launch.shared.job.encode())
        _link(folder, spec.run_dir, token)


def _request(spec: TaskSpec) -> BatchRequest:
    return BatchRequest() if spec.batch is msgspec.UNSET else spec.batch


def _link(folder: str, run_dir: str, token: Token) -> None:
    """Link the evidence into the run directory for convenience. Errors are ignored."""
    links = f"{run_dir}/.jobscribe"
    with contextlib.suppress(OSError):
        os.makedirs(links, 0o700, exist_ok=True)
        for name in (f"attempt-{token.attempt}", "latest"):
            temporary = f"{links}/.{name}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(folder, temporary)
            os.rename(temporary, f"{links}/{name}")
