"""How late the loops of a site were: what every test of this folder ends with.

The supervisor measures each round of its loop and leaves out time in which it was not let run (see
`runtime.lag`), so that what is left is its own whatever else the machine does. The bound is the
promise's (50 ms, 99.9th percentile) with five times its room. Of supervisors that are gone, and of
agents, the longest rounds stand in the log: none of those may have been so long that no percentile
could excuse it. What a process that does nothing had to wait in the same time (see `machine_floor`)
is told beside it, and excuses nothing.
"""

import re
import time
from pathlib import Path

from scheduling_noise import floor, state
from supervisor_process import SupervisorProcess

BOUND_SECS, ROOM = 0.05, 5
LONGEST_SECS = 2.0
_HELD = re.compile(r"^.*the event loop was blocked for ([0-9.]+) s .*$", re.MULTILINE)


def loop(site: SupervisorProcess) -> dict:
    """What the supervisor says of its loop."""
    answer = site.ask("GET", "/api/metrics")
    assert answer.code == 200, answer
    return answer.json()["loop"]


def held(site: SupervisorProcess, longest: float = 0.0) -> list[str]:
    """Lines of the log about rounds that were longer than this (seconds)."""
    return [m[0] for m in _HELD.finditer(site.log()) if float(m[1]) > longest]


def check_lag(site: SupervisorProcess) -> list[str]:
    """What was too late, as sentences."""
    out = held(site, LONGEST_SECS)
    if site.process is None or site.process.poll() is not None or not _listens(site):
        return out
    said = loop(site)
    if said["p999"] > BOUND_SECS * ROOM:
        idle = floor().percentile(0.001, time.monotonic() - said["secs"])
        out.append(
            f"p99.9 of the lag is {said['p999']:.3f} s over {said['secs']:.1f} s (of a process that does nothing {idle:.3f} s): {said['worst']}\n"
            f"rounds {said['roundsUpTo']}; {_faults(site.pid)}; the machine: {state()}\n"
            + "\n".join(held(site)[-10:])
        )
    return out


def _faults(pid: int) -> str:
    """How often its threads waited for a page from the disk."""
    return (
        f"{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[9]} pages were read in"
    )


def _listens(site: SupervisorProcess) -> bool:
    """One that a test has stopped, or that never said where it is, cannot be asked."""
    state = Path(f"/proc/{site.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return bool(site.url) and state != "T"
