"""Crash points: named places where tests can make a process kill itself. Standard library only.

`JOBSCRIBE_CRASHPOINT=<name>:<n>:<file>` in the environment of a supervisor makes the process that
reaches this point for the n-th time kill itself (SIGKILL: nothing is flushed, closed or logged). It
happens once: the process creates the file, and later ones that find the file continue. Agents,
keepers and job commands inherit the variable. Without it, `reached` is a comparison with None.
"""

import os
import signal

VARIABLE = "JOBSCRIBE_CRASHPOINT"

#: All points, in the order of one run.
POINTS = (
    "supervisor.decided",  # decided in memory only
    "supervisor.taken",  # taken by the writer, nothing written
    "supervisor.committed",  # in the log, the durable head is not updated
    "supervisor.witnessed",  # durable, nothing was reported
    "supervisor.delivered",  # the engine will be called
    "supervisor.durable",  # the engine knows it, no effect was performed
    "supervisor.acted",  # replies and messages are on their way
    "agent.received",  # launch message read, the keeper knows nothing
    "keeper.consumed",  # token used, nothing runs
    "keeper.given",  # input of an app's job command written, nothing runs
    "keeper.spawned",  # process started, its pid is not recorded
    "keeper.noted",  # pid recorded, the agent was not told
    "job.prepared",  # run directory filled by the app, its program not started
    "job.computed",  # the program has ended, not reported
    "result.written",  # result in a temporary file
    "result.renamed",  # result renamed, the job command was not told
    "keeper.stopping",  # stop reason recorded, no signal sent
    "keeper.seen",  # process ended, exit not recorded
    "keeper.ended",  # exit recorded, the agent was not told
    "agent.acknowledged",  # the end is durable, the keeper still has the entry
    "keeper.struck",  # removed from the ledger, the keeper still has it in memory
    "record.written",  # record in a temporary file
    "record.renamed",  # record renamed
    "purge.decided",  # purge durable, the directory still exists
    "purge.renamed",  # directory renamed, not removed
    "evidence.marked",  # a second name for the folder of an execution exists, nothing is exchanged
    "evidence.exchanged",  # its token stays used, the folder has the second name
    "compaction.completed",  # new log complete, the old one is in place
    "compaction.marked",  # the head file names the end of the old log in both slots
    "compaction.replaced",  # new log in place, the head file names the old one
    "compaction.exchanged",  # the head file names the new log, nothing was reported
    "upload.written",  # library file complete in a temporary file
    "upload.renamed",  # library file renamed, not reported
    "lease.written",  # leases in a temporary file
    "lease.renamed",  # leases renamed, not reported
)

_armed: str | None = None
_remaining = 0
_marker = ""


def arm(setting: str | None) -> None:
    """Arm a point with the value of the environment variable; None disarms. Raise ValueError for an
    unknown point.
    """
    global _armed, _remaining, _marker
    if not setting:
        _armed = None
        return
    name, count, marker = setting.split(":", 2)
    if name not in POINTS:
        raise ValueError(
            f"{VARIABLE}: there is no crash point {name!r}; there are: {', '.join(POINTS)}"
        )
    _armed, _remaining, _marker = name, int(count), marker


def reached(name: str) -> None:
    """Kill this process if this point is armed."""
    global _remaining
    if _armed != name:
        return
    _remaining -= 1
    if _remaining > 0:
        return
    try:
        os.close(os.open(_marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
