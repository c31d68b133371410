"""The outcome of one execution. Exit code, signal, stop reason and measurements are separate
fields, so no reader has to guess a signal from an exit code.

Values and their texts only; `diagnosis` explains causes.
"""

import signal as _names
from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchState
from .core_report import CoreReport
from .notices import Notices

#: Who reports the exit: the keeper that waited for the process; the job's own script (its keeper
#: was gone); the container engine or batch scheduler that ran it; the start itself (the command
#: never ran); or nobody.
Source = Literal["keeper", "script", "engine", "scheduler", "start", "lost"]

#: Unix seconds, and durations in seconds. The bounds exclude NaN and infinity, which JSON, and so
#: the event log, cannot represent.
Instant = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Span = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


#: Part of the sentence if `out_of_memory` is true, with any exit.
OUT_OF_MEMORY = "memory ran out, so the kernel killed one of its processes"
#: Slurm states of jobs that Slurm itself or an administrator ended. Time limits count as stops, as
#: with all drivers.
SCHEDULER_END_STATES = frozenset(
    (
        "CANCELLED",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "DEADLINE",
        "REVOKED",
        "OUT_OF_MEMORY",
    )
)
#: Reasons why a start fails without a fault of the job, each with advice.
FAULTS = {
    "noProcesses": "wait until other jobs have ended, or raise the process limit (ulimit -u, TasksMax= of the unit)",
    "noDescriptors": "raise the file descriptor limit (ulimit -n, LimitNOFILE= of the unit), then submit it again",
    "noMemory": "run fewer jobs at once, or give the machine more memory, then submit it again",
    "noShell": "use an image that has /bin/sh; for a job without an image, install a shell as /bin/sh on its machine",
    "diskFull": "free space on the named disk, then submit it again",
    "notWritable": "make the named path writable for the unix user of the agent, then submit it again",
    "portTaken": "choose ports that no other process listens on, or omit them, so that free ports are chosen",
    "imageMissing": "check the spelling of the image, its registry and its tag; run 'docker pull' on that host to test it",
    "pullDenied": "check the image, and the credentials in `registryAuth` of the job or in the pool's `registries` file",
    "credentialsLost": "submit the job again, with its credentials: a supervisor keeps them in memory only",
    "registryUnreachable": "run 'docker pull' on that host: its network, proxy or DNS, or the registry, is down",
    "pullTimeout": "pull the image manually on that host, use a smaller one, or raise the pool's `pullSecs`",
    "engineRefused": "read the engine's message above; run 'jobscribe pool check' to find the problem of that host",
    "subnetTaken": "remove unused networks from that host ('docker network ls'), or change `taskSubnets` of the pool",
    "batchRefused": "read Slurm's message above; request what the cluster has ('jobscribe cluster list' shows it), then submit it again",
    "neverPossible": "request what the partition has ('jobscribe cluster list' shows it), then submit it again",
    "schedulerUnreachable": "run 'jobscribe driver check sbatch'; submit it again when Slurm answers",
    "volumeRefused": "name volumes of the pool, or existing folders of your own that are no links to other places",
}


#: Maximum number of kernel log lines per execution, and of characters in each.
KERNEL_LINES, KERNEL_CHARS = 5, 300


#: Signals that the kernel itself sends and may log: ILL, TRAP, ABRT, BUS, FPE, KILL, SEGV, TERM,
#: SYS.
KERNEL_SIGNALS = frozenset((4, 5, 6, 7, 8, 9, 11, 15, 31))


class ExitFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Measurements and observations around an exit that help to find its cause. None: not measured
    or not measurable. Sizes in bytes.

    - `memory_peak_bytes`: the peak of all processes together, as counted by their cgroup (including
      page cache); without a cgroup, the highest sample, which may be too low.
    - `memory_limit_bytes`: the lowest limit that applies.
    - `memory_kills`: number of processes that the kernel killed for lack of memory during the
      execution.
    - `kernel`: lines of the kernel log that name one of the processes or the cgroup.
    - `kernel_unread`: why the kernel log could not be read.
    - `via_shell`: a shell made a code of 128+n because its command was killed by a signal.
    - `exited_first`: the command had exited before its batch scheduler ended the job.
    - `ulimits`: process limits in force, such as "ulimit -t 1", from the command text or seen on
      processes.
    - `calls_timeout`: the command text runs timeout(1).
    - `canceled_by_user`: only the unix user of the job canceled it in Slurm.
    """

    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_kills: int | None = None
    kernel: tuple[str, ...] = ()
    kernel_unread: str | None = None
    via_shell: bool | None = None
    exited_first: bool | msgspec.UnsetType = msgspec.UNSET
    ulimits: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    calls_timeout: bool | msgspec.UnsetType = msgspec.UNSET
    canceled_by_user: bool | msgspec.UnsetType = msgspec.UNSET


class ExitInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The exit of an execution. code 0..255 or None; signal 1..64 or None; at most one of the two is
    set. Times are unix seconds, sizes bytes.
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    source: Source = "keeper"
    #: why jobscribe stopped it, recorded before the first signal
    stop_reason: str | None = None
    #: why there is no exit status, or why the command did not start
    detail: str | None = None
    #: reason of a failed start; a key of FAULTS
    fault: str | None = None
    #: whether the kernel killed one of its processes for lack of memory; None: unknown, or written
    #: by an older version
    out_of_memory: bool | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    user_secs: Span | None = None
    system_secs: Span | None = None
    max_rss_bytes: int | None = None
    #: number of processes that outlived the main process and were killed
    survivors_killed: int = 0
    termination_message: str | None = None
    last_lines: str | None = None
    #: the last progress report of an app's run (frameCount, percentComplete, alert, ...)
    report: dict[str, Any] | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    dropped_bytes: int = 0
    #: the last state from the batch scheduler that started it
    batch: BatchState | msgspec.UnsetType = msgspec.UNSET
    #: observations around an exit other than 0; unset if an older version wrote this or nothing
    #: observed it
    facts: ExitFacts | msgspec.UnsetType = msgspec.UNSET
    #: about core files, if the run asked for them
    core: CoreReport | msgspec.UnsetType = msgspec.UNSET
    #: of an agent's report only; in the log they are events of their own
    notices: Notices | msgspec.UnsetType = msgspec.UNSET

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def succeeded(self) -> bool:
        """Return whether the command finished with exit code 0 and was not stopped by jobscribe. A
        stopped command may exit 0, too.
        """
        return self.code == 0 and self.stop_reason is None

    @property
    def ended_by_scheduler(self) -> str | None:
        """Return the batch scheduler's state if the scheduler or an administrator ended the job,
        whatever the exit code is. None otherwise.
        """
        if self.stop_reason is not None or self.code == 0 or self.source in ("start", "lost"):
            return None
        if isinstance(self.facts, ExitFacts) and self.facts.exited_first is True:
            return None
        state = self.batch.state if isinstance(self.batch, BatchState) else ""
        return state if state in SCHEDULER_END_STATES else None

    @property
    def shell_code(self) -> int:
        """Return the exit code that a shell would report: the code, 128+n for signal n, or 125 if
        neither is known.
        """
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal is not None else 125

    def sentence(self) -> str:
        """Return one line for people."""
        if self.source == "start":
            return f"could not be started: {self.detail}"
        memory = f"; {OUT_OF_MEMORY}" if self.out_of_memory else ""
        if self.source == "lost":
            return f"exit status unknown: {self.detail}{memory}"
        if self.ended_by_scheduler is not None:
            reported = self.detail or f"Slurm says {self.ended_by_scheduler}"
            return reported + ("" if self.ended_by_scheduler == "OUT_OF_MEMORY" else memory)
        if self.signal is not None:
            return (
                f"ended by signal {self.signal} ({signal_name(self.signal)})"
                + (", core dumped" if self.core_dumped else "")
                + memory
            )
        if self.code is None:
            return f"{self.detail or 'exit status unknown'}{memory}"
        return f"exit code {self.code}{memory}"


def signal_number(code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended the process, or signal n for an exit code of 128+n."""
    if signal is not None:
        return signal
    return code - 128 if code is not None and 128 < code <= 192 else None


def signal_by_name(name: str) -> int | None:
    """Return the number of a signal, such as SIGKILL or kill."""
    word = name.upper()
    return getattr(_names.Signals, word if word.startswith("SIG") else f"SIG{word}", None)


def signal_name(number: int) -> str:
    try:
        return _names.Signals(number).name
    except ValueError:
        return f"signal {number}"
