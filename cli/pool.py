"""`jobscribe pool show` and `pool check`: the hosts of container drivers."""

from typing import Any

from .session.session import command, session
from .terminal.quantities import moment

_HEADS = (
    "HOST",
    "STATE",
    "SINCE",
    "VERSION",
    "SEQUENTIAL",
    "PARALLEL",
    "AGENTS",
    "TASKS",
    "CPU",
    "MEMORY MB",
    "GPU",
    "PLANS",
)
_NONE = "this supervisor has no pool: add docker to drivers.use, and its hosts to docker.pool (see docs/docker.md)"


@command()
def show() -> None:
    """Show the hosts of the pool: state, time of the last change, and usage.

    Usage is used/total. SEQUENTIAL and PARALLEL count concurrent runs in agents. CPU, MEMORY MB and
    GPU count resources of tasks in their own containers.
    """
    s = session()
    hosts = s.client().operating.pool()
    if s.screen.json:
        s.screen.value("jobscribe.pool/1", {"items": hosts})
        return
    if not hosts:
        s.screen.message(_NONE)
        return
    s.screen.table(_HEADS, [_row(h) for h in hosts])
    for host in hosts:
        if host["state"] != "up":
            s.screen.message(f"{host['host']}: {host['detail']}")


@command()
def check() -> None:
    """Use each host as a run would: certificates, daemon, image. Exits with 1 on a fault."""
    s = session()
    problems = s.client().operating.pool_check()
    if s.screen.json:
        s.screen.value("jobscribe.pool.check/1", {"ok": not problems, "items": problems})
    else:
        for problem in problems:
            s.screen.line(problem)
        if not problems:
            s.screen.message(
                "all hosts of the pool can be used" if s.client().operating.pool() else _NONE
            )
    if problems:
        raise SystemExit(1)


def _row(host: dict[str, Any]) -> list[str]:
    slots, agents_mb = host["slots"], host["agentsMb"]
    memory = f" ({agents_mb[0]}/{agents_mb[1]} MB)" if agents_mb[1] is not None else ""
    return [
        host["host"],
        host["state"],
        "-" if host["since"] is None else moment(host["since"]),
        host["version"] or "-",
        _ratio(slots["sequential"]),
        _ratio(slots["parallel"]),
        f"{host['agents']}{memory}",
        str(host["tasks"]),
        _ratio(host["cpu"]),
        _ratio(host["memoryMb"]),
        _ratio(host["gpus"]),
        " ".join(host["plans"]) or "-",
    ]


def _ratio(pair: list[int]) -> str:
    return f"{pair[0]}/{pair[1]}"
