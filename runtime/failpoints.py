"""Named places where a process can be made to die, so that tests can visit every one of them.
Standard library only.

`JOBSCRIBE_CRASHPOINT=<name>:<n>:<file>` in the environment of a supervisor makes the process that
comes to this place for the n-th time kill itself there (SIGKILL: nothing is flushed, closed or
said). It strikes once: it makes the file, and spares whoever finds it there. Agents, keepers and
job commands inherit it. Without the variable `reached` is a comparison with None.
"""

import os
import signal

VARIABLE = "JOBSCRIBE_CRASHPOINT"

#: Every place, in the order in which one run passes them.
POINTS = (
    "supervisor.decided",  # an input was decided, nothing of it is anywhere else
    "supervisor.taken",  # the writer took it, nothing is written
    "supervisor.committed",  # it is in the log, the witness does not know
    "supervisor.witnessed",  # it is durable, nobody was told
    "supervisor.delivered",  # the engine will be told
    "supervisor.durable",  # the engine knows, nothing was done about it
    "supervisor.acted",  # replies and messages are on their way
    "agent.received",  # a run op was read, the keeper knows nothing
    "keeper.consumed",  # the token is used, nothing runs
    "keeper.given",  # the input of an app's job command lies there, nothing runs
    "keeper.spawned",  # it runs, nobody wrote down who it is
    "keeper.noted",  # it is written down, the agent was not told
    "job.prepared",  # the app has filled the run directory, its program does not run
    "job.computed",  # the program is over, nobody knows
    "result.written",  # the result is in a temporary file
    "result.renamed",  # it has its name, and the job command was not told
    "keeper.stopping",  # why it is stopped is written down, no signal was sent
    "keeper.reaped",  # it ended, the exit is not written down
    "keeper.ended",  # the exit is written down, the agent was not told
    "agent.acknowledged",  # its end is durable, the keeper remembers it
    "keeper.struck",  # it is out of the ledger, the keeper still has it in memory
    "record.written",  # a record is in a temporary file
    "record.renamed",  # it has its name
    "purge.decided",  # it is durable that the run is purged, its directory is there
    "purge.renamed",  # the directory is out of the way, and not gone
    "upload.written",  # a file of a library is whole in a temporary file
    "upload.renamed",  # it has its name, nobody was told
    "lease.written",  # the leases are in a temporary file
    "lease.renamed",  # they have their name, nobody was told
)

_armed: str | None = None
_left = 0
_struck = ""


def arm(setting: str | None) -> None:
    """As in the environment variable; None disarms. Raises ValueError for a place that does not
    exist.
    """
    global _armed, _left, _struck
    if not setting:
        _armed = None
        return
    name, count, struck = setting.split(":", 2)
    if name not in POINTS:
        raise ValueError(
            f"{VARIABLE}: there is no crash point {name!r}; there are: {', '.join(POINTS)}"
        )
    _armed, _left, _struck = name, int(count), struck


def reached(name: str) -> None:
    """Die here, if that was asked for."""
    global _left
    if _armed != name:
        return
    _left -= 1
    if _left > 0:
        return
    try:
        os.close(os.open(_struck, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
