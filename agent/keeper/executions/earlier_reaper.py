"""The reaper of an earlier keeper: the parent of executions that this keeper took over.

It records an exit before it reaps the process. So while a main process is a zombie of a reaper,
its exit is about to be known.
"""

from __future__ import annotations

import os
import signal

from ....runtime import processes
from ....runtime.execution.wait_status import REAPER_TITLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....runtime.processes import Process


def will_record(zombie: Process) -> bool:
    """Return whether the parent of an ended process is a reaper, or is about to be: a dying keeper
    has no command line any more. Continues a stopped reaper.
    """
    parent = processes.find(zombie.parent)
    if not zombie.over or parent is None or parent.pid == os.getpid():
        return False
    try:
        with open(f"/proc/{parent.pid}/cmdline", "rb") as f:
            title = f.read(len(REAPER_TITLE))
    except OSError:
        return False
    if title not in (REAPER_TITLE, b""):
        return False
    if parent.state == processes.STOPPED:
        processes.send_signal(parent.pid, parent.ticks, signal.SIGCONT)
    return True
