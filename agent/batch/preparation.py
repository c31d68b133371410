"""From tasks as they were asked for to all that lies in their evidence before Slurm is asked:
scripts, inputs, the batch script.

What is written here is what runs: the batch job gets nothing from the agent but these files.
Blocks.
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
from ...protocol.launch.job_script import exports, script
from ...protocol.wire.messages import Shared, TaskSpec
from ...runtime.execution.folder import INPUT, JOB, REPORT, SCRIPT, STDERR, STDOUT, write
from ..jobs import job_input
from ..keeper.linux.oom_detection import describe_fault
from ..slurm.batch_script import Step, Submission, batch_script, comment, job_name
from ..slurm.script_markers import BATCH_SCRIPT
from .ledger import BatchLedger
from .state import BatchJob, Task

#: Slurm takes no longer names of jobs without cutting them.
_NAME_CHARS = 128


class Unprepared(Exception):
    """The sentence says why nothing was submitted; fault: in a word (see exits.FAULTS)."""

    def __init__(self, sentence: str, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.fault = fault


class Asked(NamedTuple):
    """Tasks of one batch job. shared: of a gang. umask: of the login environment."""

    tasks: Sequence[tuple[Token, TaskSpec]]
    shared: Shared | None
    umask: str


class Preparation:
    def __init__(
        self, ledger: BatchLedger, cluster: Cluster, deployment: str, apps: tuple[str, ...]
    ) -> None:
        self._ledger, self._cluster, self._deployment, self.apps = ledger, cluster, deployment, apps

    def job(self, asked: Asked) -> BatchJob:
        """What is to be submitted, as yet nowhere but in memory."""
        tasks = [
            Task(
                token,
                self._ledger.evidence(token.name),
                spec.run_dir,
                spec.time_limit_secs,
                spec.grace_secs,
            )
            for token, spec in asked.tasks
        ]
        wishes = _wishes(asked.tasks[0][1])
        state = BatchState(
            cluster=self._cluster.name,
            partition=wishes.partition or "",
            account=wishes.account or "",
        )
        lead = tasks[0].token
        return BatchJob(
            tasks,
            job_name(lead)[:_NAME_CHARS],
            comment(self._deployment, lead),
            state,
            gang=asked.shared is not None,
        )

    def lay_out(self, job: BatchJob, asked: Asked) -> None:
        """Write all files, the note of it last. Raises Unprepared; then nothing was submitted, and
        the tokens are used up.
        """
        try:
            for task, (token, spec) in zip(job.tasks, asked.tasks, strict=True):
                self._task(task, token, spec, asked)
            text = batch_script(self._submission(job, asked))
            write(
                f"{job.lead.folder}/{BATCH_SCRIPT}", text.encode("utf-8", "surrogateescape"), 0o700
            )
            self._ledger.note(job)
        except Refusal as e:
            raise Unprepared(e.sentence, e.code if e.code == "batchRefused" else None) from None
        except OSError as e:
            word, sentence = describe_fault(e)
            raise Unprepared(f"its evidence cannot be written: {sentence}", word) from None

    def _submission(self, job: BatchJob, asked: Asked) -> Submission:
        limits = [t.limit for t in job.tasks if t.limit is not None]
        wishes = _wishes(asked.tasks[0][1])
        steps = tuple(
            Step(
                token=token,
                folder=task.folder,
                cores=_wishes(spec).cores or 1,
                gpus=_wishes(spec).gpus or 0,
                job_file=f"{spec.run_dir}/{JOB}" if job.gang else None,
            )
            for task, (token, spec) in zip(job.tasks, asked.tasks, strict=True)
        )
        return Submission(
            steps=steps,
            wishes=wishes,
            cluster=self._cluster,
            deployment=self._deployment,
            time_limit_secs=max(limits) if limits else None,
        )

    def _task(self, task: Task, token: Token, spec: TaskSpec, asked: Asked) -> None:
        folder = task.folder
        if spec.app is not None:
            write(
                f"{folder}/{INPUT}",
                job_input.input_json(spec.app, spec.run_dir, self.apps).encode(),
            )
            write(f"{folder}/{REPORT}", b"")
            spec = job_input.with_job_command(spec, Path(folder), job_input.import_roots())
        shared = exports(asked.shared.env) if asked.shared is not None else ""
        # without the environment of this machine: what the node's own login, modules and set-up
        # make counts there
        text = script(token, spec, {}, folder, umask=asked.umask, shared=shared)
        write(f"{folder}/{SCRIPT}", text.encode("utf-8", "surrogateescape"), 0o700)
        for name in (STDOUT, STDERR):  # who waits for them has something to look at
            write(f"{folder}/{name}", b"")
        os.makedirs(spec.run_dir, mode=0o700, exist_ok=True)
        if not os.access(spec.run_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", spec.run_dir)
        if asked.shared is not None:
            with contextlib.suppress(
                FileNotFoundError
            ):  # never through a link that an earlier attempt left
                os.unlink(f"{spec.run_dir}/{JOB}")
            write(f"{spec.run_dir}/{JOB}", asked.shared.job.encode())
        _link(folder, spec.run_dir, token)


def _wishes(spec: TaskSpec) -> BatchRequest:
    return BatchRequest() if spec.batch is msgspec.UNSET else spec.batch


def _link(folder: str, run_dir: str, token: Token) -> None:
    """Let the run directory lead to the evidence. It is a convenience: a job starts without it."""
    own = f"{run_dir}/.jobscribe"
    with contextlib.suppress(OSError):
        os.makedirs(own, 0o700, exist_ok=True)
        for name in (f"attempt-{token.attempt}", "latest"):
            temporary = f"{own}/.{name}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(folder, temporary)
            os.rename(temporary, f"{own}/{name}")
