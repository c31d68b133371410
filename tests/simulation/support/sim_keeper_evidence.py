"""Findings of the simulated keeper about an execution: by the process table, by being its parent,
and by its evidence.
"""

from typing import TYPE_CHECKING, Any

from sim_keeper_disk import Execution

from jobscribe.agent.keeper.executions import exit_info
from jobscribe.protocol.execution.table import never_started

if TYPE_CHECKING:
    from sim_machine import Host, Machine


def read_start(host: "Host", e: Execution, start: dict[str, Any]) -> None:
    e.process, e.life.limit, e.life.grace = start["process"], start["limit"], start["grace"]
    # the clock of another boot is useless
    e.life.started(start["wall"], start["mono"] if start["boot"] == host.boot else None)


def look_for_it(machine: "Machine", host: "Host", e: Execution) -> dict[str, Any] | None:
    """Find the main process of an earlier keeper's execution, or that it has exited. Return its
    exit if nothing of it can be left.
    """
    start = e.folder.start
    if start is None:
        return _search(machine, host, e)
    if start["boot"] != host.boot:
        return _from_evidence(machine, e, exit_info.RESTARTED)
    if e.process is None or e.process.ended is not None:
        e.life.exited(host.mono)
    return None


def _search(machine: "Machine", host: "Host", e: Execution) -> dict[str, Any] | None:
    """Search for the process: the keeper ended between consuming the token and recording the
    process.
    """
    p = machine.by_token.get(e.token)
    if p is not None and (p.ended is None or p.written is not None):
        e.process = p
        age = machine.time.now - p.started
        e.life.started(machine.time.wall - age, host.mono - age)
        if p.ended is not None:
            e.life.exited(host.mono)
    elif e.folder.output:
        e.life.exited(host.mono)
    else:
        return never_started(exit_info.NEVER_SPAWNED, machine.time.wall)
    return None


def exit_of(machine: "Machine", e: Execution) -> dict[str, Any]:
    """Return the exit of an execution whose main process has exited."""
    if e.own:
        exit_ = _from_parent(machine, e)
    else:
        exit_ = _from_evidence(
            machine,
            e,
            exit_info.KILLED_UNSEEN if e.process is not None else exit_info.NOTHING_LEFT,
        )
        if exit_["source"] == "lost" and e.life.kills and e.life.stop_reason is not None:
            exit_ = {"source": "keeper", "signal": 9}
    return exit_ | {"stopReason": e.life.stop_reason}


def elapsed(exit_: dict[str, Any]) -> float | None:
    """Return for how long it ran (seconds), if its exit says so."""
    began, ended = exit_.get("startedAt"), exit_.get("endedAt")
    return max(0.0, ended - began) if began is not None and ended is not None else None


def _from_parent(machine: "Machine", e: Execution) -> dict[str, Any]:
    assert e.process is not None
    p = e.process
    return {
        "source": "keeper",
        **_times(machine, e),
        **({"code": p.code} if p.signal is None else {"signal": p.signal}),
    }


def _from_evidence(machine: "Machine", e: Execution, otherwise: str) -> dict[str, Any]:
    p = e.process or machine.by_token.get(e.token)
    if p is None or p.written is None:
        return {
            "source": "lost",
            "detail": otherwise,
            "startedAt": _times(machine, e)["startedAt"] if e.process else None,
        }
    machine.time.saw("an end was taken from its evidence")
    return {
        "source": "keeper",
        **(_times(machine, e) if e.process else {}),
        **({"code": p.written} if p.signal is None else {"signal": p.written - 128}),
    }


def _times(machine: "Machine", e: Execution) -> dict[str, Any]:
    p, offset = e.process, machine.time.wall_offset
    assert p is not None
    return {
        "startedAt": p.started + offset,
        "endedAt": None if p.ended is None else p.ended + offset,
    }
