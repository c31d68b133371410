"""Children of a killed or stopped keeper: the executions they belong to, and the record of their
exits. For the reaper, which imports this module only then.
"""

from __future__ import annotations

import contextlib
import os
import time

from ...runtime import processes
from ...runtime.execution import keeper_ledger, wait_status
from ...runtime.execution.folder import EXIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...runtime.execution.keeper_ledger import Contents
    from ...runtime.processes import Process

    #: names of executions by pid and start time of their main processes
    Mains = dict[tuple[int, int], str]


def recorded_mains(folder: str) -> Mains:
    """Return the main processes that the keeper recorded."""
    return _recorded(keeper_ledger.load(folder))


def all_mains(folder: str, known: Mains) -> Mains:
    """Return the main processes of a killed keeper, also one whose pid it could not record any
    more.

    known: earlier result; nothing else is found for the executions in it.

    The keeper starts one execution at a time, so there is at most one. Its main process is a
    session leader, younger than the use of its token. It carries the token in its environment; a
    zombie has no environment any more, so it counts only if there is no other.
    """
    ledger = keeper_ledger.load(folder)
    out, found = known | _recorded(ledger), set(known.values())
    for name, entry in ledger.entries.items():
        evidence = f"{folder}/run/{name}"
        if (
            entry.start is not None
            or entry.exit is not None
            or name in found
            or entry.ticks is None
            or not os.path.isdir(evidence)
            or os.path.exists(f"{evidence}/{EXIT}")
        ):
            continue
        leaders = [
            p
            for p in map(processes.find, processes.children())
            if p is not None
            and p.session == p.pid
            and p.ticks >= entry.ticks
            and (p.pid, p.ticks) not in out
            and (p.pid, p.ticks) != ledger.agent
        ]
        marked = [
            p
            for p in leaders
            if not p.over
            and processes.environment(p.pid, b"JOBSCRIBE_TOKEN")[0] == os.fsencode(entry.token)
        ]
        zombies = [p for p in leaders if p.over]
        if marked or len(zombies) == 1:
            main = min(marked or zombies, key=lambda p: p.ticks)
            out[main.pid, main.ticks] = name
    return out


def _recorded(ledger: Contents) -> Mains:
    return {entry.main: name for name, entry in ledger.entries.items() if entry.main is not None}


def record_exit(folder: str, name: str, child: Process, status: int) -> None:
    """Write the wait status of an execution's main process to its evidence, unless it is recorded
    with an earlier time. Raises OSError, but not if the evidence is gone.
    """
    evidence = f"{folder}/run/{name}"
    seen = wait_status.read(evidence, child.pid, child.ticks)
    if seen is not None and seen.status == status:
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        wait_status.write(evidence, child.pid, child.ticks, status, time.monotonic())
