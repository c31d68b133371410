"""A fake Slurm. It accepts batch scripts and runs them, answers squeue, sacct, scancel and other
commands in Slurm's format, and fails on request. It uses nothing of the product but its field
separator.
"""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from jobscribe.agent.batch.command_runner import NO_ANSWER, CommandResult
from jobscribe.agent.slurm.command_lines import SEPARATOR

DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
DB_DOWN = "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:127.0.0.1:6819: Connection refused"
USER = "hpcuser1"


class FakeJob:
    def __init__(self, job_id: str, script: Path, now: float) -> None:
        text = script.read_text()
        self.job_id, self.script, self.submitted_at = job_id, script, now
        self.name = re.search(r"--job-name=(\S+)", text)[1]  # type: ignore[index]
        self.comment = re.search(r'--comment="([^"]*)"', text)[1]  # type: ignore[index]
        self.state, self.reason = "PENDING", "Priority"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.exit = "0:0"
        self.by = self.max_rss = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        #: whether squeue and sacct still know the job
        self.in_queue = self.in_accounting = True

    @property
    def over(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "COMPLETING")


class FakeSlurm:
    """A fake Slurm cluster with failure switches.

    `hold`: jobs stay pending until `begin`. `down`, `accounting_down`: the controller or the
    accounting does not answer. `lost_answers`, `lost_requests`: the number of following sbatch
    calls with a lost answer or request. `late`: seconds before each answer. `completing`: seconds
    between the script's end and the job's end. `hung`: ends of scripts go unnoticed, as with a hung
    slurmstepd.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.numbers = itertools.count(11)
        self.hold = self.down = self.accounting_down = self.no_accounting = (
            self.accounting_comments
        ) = False
        self.accounting_comments = True
        self.lost_answers = 0
        self.lost_requests = 0
        #: new jobs appear in no query
        self.hidden = False
        self.late = 0.0
        self.completing = 0.0
        self.hung = False
        self.refuse = ""
        #: processor times and memory of all jobs by accounting; the name of those jobs, if another
        self.used, self.used_name = ("", "", ""), ""
        self.calls: list[list[str]] = []
        #: sbatch sets `taken` when it has accepted a job, and waits for `answer` before it replies
        self.taken, self.answer = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self._waiting: set[asyncio.Task[None]] = set()

    def count(self, program: str) -> int:
        return sum(c[0] == program for c in self.calls)

    async def __call__(self, argv: Sequence[str], stdin: str, secs: float) -> CommandResult:
        argv = _without_env(argv)
        self.calls.append(argv)
        if self.late:
            await asyncio.sleep(min(self.late, secs))
            if self.late >= secs:
                return CommandResult(NO_ANSWER, "", f"{argv[0]} did not answer within {secs:g} s")
        verb = getattr(self, "_" + argv[0])
        if self.down and argv[0] not in ("sacct", "sacctmgr"):
            return CommandResult(1, "", DOWN)
        if self.accounting_down and argv[0] in ("sacct", "sacctmgr"):
            return CommandResult(1, "", DB_DOWN)
        return await verb(argv[1:])

    async def close(self) -> None:
        for job in self.jobs.values():
            if job.process is not None and job.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
        for task in self._waiting:
            task.cancel()

    # ---- cluster events

    def begin(self, job: FakeJob) -> None:
        job.state, job.reason, job.started_at = "RUNNING", "", time.time()
        env = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": job.job_id,
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_RESTART_COUNT": str(job.restarts),
            "HOME": "/",
        }
        job.process = subprocess.Popen(
            ["/bin/sh", str(job.script)],
            env=env,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        task = asyncio.get_running_loop().create_task(self._until_over(job))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def end(self, job: FakeJob, state: str, exit_: str = "0:0", reason: str = "") -> None:
        """Set the job's end as Slurm reports it, whatever its script did."""
        job.state, job.exit, job.reason, job.ended_at = state, exit_, reason, time.time()
        if job.process is not None and job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)

    def time_out(self, job: FakeJob) -> None:
        """Time the job out: set TIMEOUT, then send SIGTERM."""
        job.state, job.exit, job.reason, job.ended_at = "TIMEOUT", "0:0", "TimeLimit", time.time()
        assert job.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGTERM)

    async def _until_over(self, job: FakeJob) -> None:
        assert job.process is not None
        process = job.process
        while process.poll() is None or self.hung:
            await asyncio.sleep(0.01)
        if self.completing and job.state == "RUNNING":
            job.state = "COMPLETING"
            await asyncio.sleep(self.completing)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # Slurm kills all processes of an ended job
        if not job.over and job.process is process:
            code = process.returncode
            job.ended_at = time.time()
            job.state = "COMPLETED" if code == 0 else "FAILED"
            job.exit = f"{code}:0" if code >= 0 else f"0:{-code}"
            job.reason = "" if code == 0 else "NonZeroExitCode"

    # ---- commands

    async def _sbatch(self, argv: list[str]) -> CommandResult:
        if self.lost_requests:
            self.lost_requests -= 1
            return CommandResult(NO_ANSWER, "", "sbatch did not answer within 1 s")
        if self.refuse:
            return CommandResult(1, "", self.refuse)
        job = FakeJob(str(next(self.numbers)), Path(argv[-1]), time.time())
        self.jobs[job.job_id] = job
        job.in_queue = job.in_accounting = not self.hidden
        if not self.hold:
            self.begin(job)
        self.taken.set()
        await self.answer.wait()
        if self.lost_answers:
            self.lost_answers -= 1
            return CommandResult(NO_ANSWER, "", "sbatch did not answer within 1 s")
        return CommandResult(0, f"{job.job_id}\n", "")

    async def _squeue(self, argv: list[str]) -> CommandResult:
        lines = []
        for j in self.jobs.values():
            if j.in_queue:
                lines.append(
                    SEPARATOR.join(
                        (
                            j.job_id,
                            USER,
                            j.state,
                            _time(j.submitted_at),
                            _time(j.started_at),
                            _time(j.ended_at),
                            "1:00",
                            "debug",
                            "acct",
                            "n1" if j.started_at else "",
                            j.reason or "None",
                            j.name,
                            j.comment,
                        )
                    )
                )
        return CommandResult(0, "\n".join(lines) + "\n", "")

    async def _sacct(self, argv: list[str]) -> CommandResult:
        if self.no_accounting:
            return CommandResult(1, "", "Slurm accounting storage is disabled")
        named = next(
            (a.partition("=")[2].split(",") for a in argv if a.startswith("--jobs=")), None
        )
        names = next(a.partition("=")[2] for a in argv if a.startswith("--format="))
        lines = []
        for j in self.jobs.values():
            if j.in_accounting and (named is None or j.job_id in named):
                said = {
                    "JobID": j.job_id,
                    "User": USER,
                    "State": j.state + (f" by {j.by}" if j.by else ""),
                    "ExitCode": j.exit,
                    "DerivedExitCode": "0:0",
                    "Submit": _time(j.submitted_at),
                    "Start": _time(j.started_at) or "Unknown",
                    "End": _time(j.ended_at) or "Unknown",
                    "ElapsedRaw": "1",
                    "MaxRSS": j.max_rss or self.used[2],
                    "UserCPU": self.used[0],
                    "SystemCPU": self.used[1],
                    "Partition": "debug",
                    "Account": "acct",
                    "NodeList": "n1" if j.started_at else "None assigned",
                    "Reason": j.reason or "None",
                    "JobName": self.used_name if "UserCPU" in names and self.used_name else j.name,
                    "Comment": j.comment if self.accounting_comments else "",
                }
                lines.append(SEPARATOR.join(said[n] for n in names.split(",")))
        return CommandResult(0, "\n".join(lines) + "\n", "")

    async def _scancel(self, argv: list[str]) -> CommandResult:
        number = next((a.partition("=")[2] for a in argv if a.startswith("--signal=")), None)
        job = self.jobs.get(argv[-1].split(".")[0])
        if job is None or job.over:
            return CommandResult(
                1,
                "",
                f"scancel: error: Kill job error on job id {argv[-1]}: Invalid job id specified",
            )
        if job.state == "PENDING":
            if number is None:
                job.state, job.by, job.ended_at = "CANCELLED", "1001", time.time()
            return CommandResult(0, "", "")
        assert job.process is not None
        if number == "TERM" and "--full" in argv:
            os.killpg(job.process.pid, signal.SIGTERM)
        elif number in (None, "KILL"):
            job.state, job.by, job.ended_at = "CANCELLED", "1001", time.time()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)
        return CommandResult(0, "", "")

    async def _scontrol(self, argv: list[str]) -> CommandResult:
        return CommandResult(
            0,
            "PartitionName=debug AllowGroups=ALL Default=YES MaxNodes=3 MaxTime=01:00:00 State=UP TotalNodes=3\n",
            "",
        )

    async def _sinfo(self, argv: list[str]) -> CommandResult:
        if "--version" in argv:
            return CommandResult(0, "slurm-wlm 22.05.8\n", "")
        return CommandResult(
            0, SEPARATOR.join(("debug*", "3", "4", "1000", "(null)", "up")) + "\n", ""
        )

    async def _sacctmgr(self, argv: list[str]) -> CommandResult:
        return CommandResult(0, "lab|acct|normal\n", "")


def _time(at: float | None) -> str:
    return "" if at is None else str(int(at))


def _without_env(argv: Sequence[str]) -> list[str]:
    words = list(argv)
    if words[0] == "env":
        words.pop(0)
        while words[0] == "-u" or "=" in words[0]:
            del words[: 2 if words[0] == "-u" else 1]
    return words
