"""How one execution ended: what is known, kept apart, so that nobody has to guess a signal out of
an exit code.
"""

import signal as _names
from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchState

#: Who says so: the keeper that waited for the process; the job's own wrapper script (its keeper was
#: gone); the container engine or the batch scheduler that ran it; the start itself (it never ran);
#: or nobody.
Source = Literal["keeper", "script", "engine", "scheduler", "start", "lost"]

#: Unix seconds, and seconds between two of them. Bounds keep NaN and infinity out, which JSON, and
#: so the event log, does not have.
Instant = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Span = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


#: What is said where `out_of_memory` is true, whatever the exit.
OUT_OF_MEMORY = "memory ran out, and the kernel killed a process of it"
#: What Slurm calls ends that are its own doing, or somebody's who told it so. Time limits are
#: stops, as everywhere.
BY_SCHEDULER = frozenset(
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
#: Why a start can fail that is no fault of the job, and what to do about it.
FAULTS = {
    "noProcesses": "wait until other jobs have ended, or raise the limit of processes (ulimit -u, TasksMax= of the unit)",
    "noDescriptors": "raise the limit of descriptors (ulimit -n, LimitNOFILE= of the unit), then submit it again",
    "noMemory": "run fewer jobs at once, or give the machine more memory, then submit it again",
    "noShell": "take an image that has /bin/sh; where the job has no image of its own, install a shell as /bin/sh on its machine",
    "diskFull": "free the disk that is named, then submit it again",
    "notWritable": "make what is named writable for the user the agent runs as, then submit it again",
    "portTaken": "choose ports that nobody else listens on, or leave them out: free ones are found then",
    "imageMissing": "check the spelling of the image, its registry and its tag; 'docker pull' by hand says whether there is one",
    "pullDenied": "give the pool credentials for that registry (the file of `registries`), or take an image that everybody may pull",
    "registryUnreachable": "try 'docker pull' by hand on that host: its network, proxy or DNS, or the registry, is down",
    "pullTimeout": "pull the image by hand on that host, take a smaller one, or raise the pool's `pullSecs`",
    "engineRefused": "'jobscribe pool check' says what is wrong with that host; the words of its engine say why it refused",
    "subnetTaken": "remove networks that nobody needs from that host ('docker network ls'), or give the pool other `taskSubnets`",
    "batchRefused": "ask for what the cluster has ('jobscribe cluster list' shows it), then submit it again; Slurm's own words are above",
    "neverPossible": "ask for what the partition has ('jobscribe cluster list' shows it), then submit it again",
    "schedulerUnreachable": "'jobscribe driver check sbatch' says whether Slurm can be asked; submit it again when it can",
    "volumeRefused": "name volumes of the pool, or folders of your own that are there and lead nowhere else",
}


#: Lines of the kernel's log that are kept of one end, and characters of each.
KERNEL_LINES, KERNEL_CHARS = 5, 300


#: Signals with which the kernel ends what it must, of which it may write a line: ILL, TRAP, ABRT,
#: BUS, FPE, KILL, SEGV, TERM, SYS.
OF_THE_KERNEL = frozenset((4, 5, 6, 7, 8, 9, 11, 15, 31))


class ExitFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was measured or seen around an end, for who asks why. None: it was not, or could not be.
    Sizes in bytes.

    memory_peak_bytes: the most that all of it took together, as its cgroup counted it (files that
    it read or wrote are in that); without such a count the most that was seen, which may be less
    than there was. memory_limit_bytes: the nearest limit that holds for it. memory_kills: how many
    processes the kernel killed in it for want of memory while it ran. kernel: lines of the kernel's
    log that name one of its processes or its cgroup. kernel_unread: why that log, which was to be
    read, was not. via_shell: a code of 128+n was made by a shell whose command was ended by a
    signal. ulimits: limits of one process that hold in it, as "ulimit -t 1", by its command's text
    or as seen on its processes. calls_timeout: the text of its command runs timeout(1).
    canceled_by_user: its own unix user, and nobody else, canceled it in Slurm. exited_first: it had
    exited by itself before its batch scheduler ended its job.
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
    """code 0..255 or None; signal 1..64 or None; at most one of the two is set. Times are unix
    seconds, sizes bytes.
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    source: Source = "keeper"
    #: our own intent, recorded before the first signal was sent
    stop_reason: str | None = None
    #: why there is no exit, or why it never started
    detail: str | None = None
    #: what a start failed for want of, in a word; see FAULTS
    fault: str | None = None
    #: did the kernel kill a process of it for want of memory? None: that cannot be known here (or
    #: an older version wrote this)
    out_of_memory: bool | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    user_secs: Span | None = None
    system_secs: Span | None = None
    max_rss_bytes: int | None = None
    #: processes of the job that outlived its main process and were killed
    survivors_killed: int = 0
    termination_message: str | None = None
    last_lines: str | None = None
    #: the last report of an app's run (frameCount, percentComplete, alert, ...)
    report: dict[str, Any] | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    dropped_bytes: int = 0
    #: the last word of the batch scheduler that started it
    batch: BatchState | msgspec.UnsetType = msgspec.UNSET
    #: what was seen around an end that is no exit 0; not there where an older version wrote this,
    #: or nobody was there to look
    facts: ExitFacts | msgspec.UnsetType = msgspec.UNSET

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def succeeded(self) -> bool:
        """It did what it was to do. What we stopped did not, although it may well have exited 0
        then.
        """
        return self.code == 0 and self.stop_reason is None

    @property
    def ended_by_scheduler(self) -> str | None:
        """The word of its batch scheduler, where that (or somebody there, and not we) ended it,
        whatever its program made of it.
        """
        if self.stop_reason is not None or self.code == 0 or self.source in ("start", "lost"):
            return None
        if isinstance(self.facts, ExitFacts) and self.facts.exited_first is True:
            return None
        said = self.batch.state if isinstance(self.batch, BatchState) else ""
        return said if said in BY_SCHEDULER else None

    @property
    def shell_code(self) -> int:
        """What a shell would report: the code, 128+n for signal n, 125 where nothing is known."""
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal is not None else 125

    def sentence(self) -> str:
        """One line for a person."""
        if self.source == "start":
            return f"could not be started: {self.detail}"
        memory = f"; {OUT_OF_MEMORY}" if self.out_of_memory else ""
        if self.source == "lost":
            return f"its end is not known: {self.detail}{memory}"
        if self.ended_by_scheduler is not None:
            told = self.detail or f"Slurm says {self.ended_by_scheduler}"
            return told + ("" if self.ended_by_scheduler == "OUT_OF_MEMORY" else memory)
        if self.signal is not None:
            return (
                f"ended by signal {self.signal} ({signal_name(self.signal)})"
                + (", core dumped" if self.core_dumped else "")
                + memory
            )
        if self.code is None:
            return f"{self.detail or 'how it ended is not known'}{memory}"
        return f"exit code {self.code}{memory}"


def number_of_signal(code: int | None, signal: int | None) -> int | None:
    """The signal that it ended with, or that a code of 128+n may stand for."""
    if signal is not None:
        return signal
    return code - 128 if code is not None and 128 < code <= 192 else None


def signal_name(number: int) -> str:
    try:
        return _names.Signals(number).name
    except ValueError:
        return f"signal {number}"
