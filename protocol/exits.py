"""How one execution ended: what is known, kept apart, so that nobody has to guess a signal out of an exit code."""

import signal as _names
from typing import Annotated, Any, Literal

import msgspec

#: Who says so: the keeper that waited for the process; the job's own wrapper script (its keeper was gone);
#: the start itself (it never ran); or nobody.
Source = Literal["keeper", "script", "start", "lost"]

#: Unix seconds, and seconds between two of them. Bounds keep NaN and infinity out, which JSON, and so the event log, does not have.
Instant = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Span = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


#: What is said where `out_of_memory` is true, whatever the exit.
OUT_OF_MEMORY = "memory ran out, and the kernel killed a process of it"
#: Why a start can fail that is no fault of the job, and what to do about it.
FAULTS = {
    "noProcesses": "wait until other jobs have ended, or raise the limit of processes (ulimit -u, TasksMax= of the unit)",
    "noDescriptors": "raise the limit of descriptors (ulimit -n, LimitNOFILE= of the unit), then submit it again",
    "noMemory": "run fewer jobs at once, or give the machine more memory, then submit it again",
    "noShell": "install a shell as /bin/sh on the machine of the agent",
    "diskFull": "free the disk that is named, then submit it again",
    "notWritable": "make what is named writable for the user the agent runs as, then submit it again",
    "portTaken": "choose ports that nobody else listens on, or leave them out: free ones are found then",
}


class ExitInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """code 0..255 or None; signal 1..64 or None; at most one of the two is set. Times are unix seconds, sizes bytes."""

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
    #: did the kernel kill a process of it for want of memory? None: that cannot be known here (or an older version wrote this)
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

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def succeeded(self) -> bool:
        """It did what it was to do. What we stopped did not, although it may well have exited 0 then."""
        return self.code == 0 and self.stop_reason is None

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
        if self.signal is not None:
            return f"ended by signal {self.signal} ({signal_name(self.signal)})" + (", core dumped" if self.core_dumped else "") + memory
        return f"exit code {self.code}{memory}"


def signal_name(number: int) -> str:
    try:
        return _names.Signals(number).name
    except ValueError:
        return f"signal {number}"
