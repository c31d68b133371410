"""Event loop lag of a site, checked at the end of every test in this folder.

The supervisor measures each iteration of its loop. It subtracts time in which it was ready but not
scheduled (see `runtime.lag`), so the load of the machine does not count. The bound is five times
the promised one (50 ms, 99.9th percentile). For agents and for supervisors that have ended, the log
holds the longest iterations. None of them may exceed `LONGEST_SECS`. The report also gives the lag
of an idle process in the same time (see `scheduling_noise`), which excuses nothing.
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
    """Return the loop metrics of the supervisor."""
    answer = site.ask("GET", "/api/metrics")
    assert answer.code == 200, answer
    return answer.json()["loop"]


def held(site: SupervisorProcess, longest: float = 0.0) -> list[str]:
    """Return log lines about iterations that took longer than `longest` (seconds)."""
    return [m[0] for m in _HELD.finditer(site.log()) if float(m[1]) > longest]


def check_lag(site: SupervisorProcess) -> list[str]:
    """Return a sentence for each exceeded bound."""
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
    """Return how many page faults of this process needed a disk read."""
    return (
        f"{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[9]} pages were read in"
    )


def _listens(site: SupervisorProcess) -> bool:
    """Return whether the supervisor can answer: it is not stopped and has printed its address."""
    state = Path(f"/proc/{site.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return bool(site.url) and state != "T"
