"""After many runs, memory and resources return to their start: containers in the engine, and
resources of the processes.
"""

import gc
import os
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest
from flooding import MIB, bulk, metrics
from in_memory_supervisor import WALL, Agent, InMemorySupervisor
from loop_lag import check_lag
from site_locations import share
from supervisor_process import SupervisorProcess, rss, spec, until

from jobscribe.protocol.ids import op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.messages import Execution, RunStatusUpdate
from jobscribe.supervisor.engine import decision_loop as engine_module

LIVES, USERS = share(500, 100_000), 20
#: Parts of the supervisor that count what they hold.
PARTS = ("engine", "run_service", "effect_executor", "hub", "live", "unsent", "calls")
CONTAINERS = (dict, list, set, deque, OrderedDict, Counter)


def kept(root: Any, *, besides: tuple[str, ...]) -> Counter[str]:
    """Count the elements of each container reachable from `root`, by attribute path. Skip
    attributes named in `besides`.
    """
    out: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while todo:
        name, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            out[name] += len(value)
            members = value.values() if isinstance(value, dict) else value
            todo += [(name + "[]", m) for m in list(members)]
        elif type(value).__module__.startswith(
            ("jobscribe.", "in_memory_supervisor")
        ) and not isinstance(value, type):
            fields = getattr(value, "__dict__", None) or {
                f: getattr(value, f, None) for f in getattr(value, "__struct_fields__", ())
            }
            todo += [(f"{name}.{f}", v) for f, v in fields.items() if f not in besides]
    return out


async def lives(in_memory: InMemorySupervisor, agents: list[Agent], count: int, first: int) -> None:
    """Take `count` runs from submission to end: most complete, some are canceled while queued, some
    while running.
    """
    for n in range(first, first + count):
        agent = agents[n % len(agents)]
        jid = await in_memory.submitted(n, agent.key.uid)
        token = in_memory.launched.pop()
        assert token.jid == jid
        if n % 3:
            agent.running(token)
        if n % 7 == 0:
            agent.report(token, frameCount=n)
        exit_ = ExitInfo(code=0, started_at=WALL, ended_at=WALL + 1)
        agent.say(
            RunStatusUpdate(
                execution=Execution(
                    token=token,
                    state="ended",
                    op_id=op_id(token, "run"),
                    pid=9,
                    start_ticks=7,
                    exit=exit_,
                )
            )
        )
        agent.heard.clear()


@pytest.mark.timeout(900)
async def test_nothing_of_a_life_stays_in_the_engine_or_in_who_serves_it() -> None:
    """Inspect every reachable dict, list, set and queue, whatever its name."""
    in_memory = InMemorySupervisor()
    agents = [in_memory.agent(f"Leak{n:04d}") for n in range(USERS)]
    besides = ("store", "_store", "lines", "log", "_log", "decoder", "launched", "started")
    # fill the caches for the next request before the measurement
    await lives(in_memory, agents, 2 * engine_module.CACHED, 1)
    in_memory.lines.lines.clear()
    gc.collect()
    before = kept(in_memory, besides=besides)
    await lives(in_memory, agents, LIVES, 10_000)
    after = kept(in_memory, besides=besides)
    print(f"{LIVES} lives: {in_memory.engine.sizes()}")
    assert {name: (before[name], n) for name, n in after.items() if n > before[name]} == {}
    assert in_memory.engine.sizes()["jobs"] == 0
    for agent in agents:
        agent.gone()
    sizes = in_memory.engine.sizes()
    assert (
        sizes["agents"],
        sizes["claims"],
        sizes["pools"],
        sizes["pending"],
        sizes["requests"],
    ) == (0, 0, 0, 0, 0)
    assert sizes["atHand"] <= engine_module.CACHED


@pytest.mark.timeout(1800)
def test_nothing_of_a_life_stays_in_the_processes(make_site) -> None:
    """Many runs in two halves: the second half adds little memory compared with the first, and no
    descriptor, task or timer.
    """
    site: SupervisorProcess = make_site(None)
    site.start()
    half = share(150, 50_000)
    site.finished(spec(["/bin/true"]))
    _lived(site, half)
    pids = {"supervisor": site.pid, "agent": site.agent_pid(), "keeper": site.keeper()["pid"]}
    before, memory, open_before = (
        _settled(site),
        {n: rss(p) for n, p in pids.items()},
        {n: _descriptors(p) for n, p in pids.items()},
    )
    _lived(site, half)
    grown = {n: (rss(p) - memory[n]) / MIB for n, p in pids.items()}
    print(f"{half} lives after {half}: grown {grown} MiB; {_counted(site)}")
    assert grown["supervisor"] <= 8 and grown["agent"] <= 4 and grown["keeper"] <= 1
    until(
        lambda: all((_descriptors(p) or 0) <= (open_before[n] or 0) for n, p in pids.items()),
        f"no more descriptors are open than before: {open_before}",
    )
    until(lambda: _counted(site)[0] == before[0], f"the counters are as before: {before[0]}")
    until(lambda: _counted(site)[1] <= before[1], f"no more than {before[1]} tasks of the loop")
    site.kill(pids["agent"], 15)
    site.kill(pids["keeper"], 15)
    until(
        lambda: metrics(site)["engine"]["agents"] == 0,
        "an agent that is gone and not needed is forgotten",
    )
    site.finished(spec(["/bin/true"]))
    assert check_lag(site) == []


def _counted(site: SupervisorProcess) -> tuple[dict[str, Any], int]:
    """Return what the parts of the supervisor hold, except decisions at hand, and the number of
    tasks of its loop.
    """
    said = metrics(site)
    said["engine"].pop("atHand")
    return {part: said[part] for part in PARTS}, said["process"]["tasks"]


def _settled(site: SupervisorProcess) -> tuple[dict[str, Any], int]:
    """Return the count once two in a row are equal: timers and tasks end late on a busy machine."""
    counts = [_counted(site)]

    def same() -> bool:
        counts.append(_counted(site))
        return counts[-1] == counts[-2]

    until(same, "the counters stay", pause=0.1)
    return counts[-1]


def _lived(site: SupervisorProcess, count: int) -> None:
    for first in range(0, count, 400):
        replies = bulk(
            site, [spec(["/bin/true"], graceSecs=0) for _ in range(min(400, count - first))]
        )
        assert {r["state"] for r in replies} == {"pending"}
        until(
            lambda: not site.post("job-list", active=True, limit=1)["jobs"],
            "all are over",
            120,
            0.05,
        )
    until(
        lambda: (
            metrics(site)["effect_executor"]["timers"] == 0 and metrics(site)["hub"]["tasks"] == 0
        ),
        "nothing is under way",
    )


def _descriptors(pid: int) -> int | None:
    """Return the number of open descriptors, or None if it cannot be read: the processes hide from
    their own user, so only root can count.
    """
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) if os.geteuid() == 0 else None
