"""Clock offsets of other machines, from times that both sides recorded. Pure.

The agent's clock gives the start and end of a process. The supervisor's clock gives the placement
before it and the report after it. These bound the offset from both sides. If 0 is not between the
bounds, the clocks differ.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...db.events.events import TaskEnded, TaskPlaced, TaskStarted
from ...db.store.contract import Stored
from ...protocol.ids import AgentKey, Token

#: Smallest reported offset in seconds. Slurm's times are whole seconds.
LEAST_SECS, SLURM_SECS = 0.05, 1.5


class Offset(NamedTuple):
    """The clock of `host` is ahead by at least `secs`, or behind if `secs` is negative. agents: the
    agents on this host, whose log lines are affected.
    """

    host: str
    secs: float
    agents: tuple[AgentKey, ...]

    def sentence(self) -> str:
        how = "ahead" if self.secs > 0 else "behind"
        note = "its lines keep their times and are shown in causal order"
        return f"clock of {self.host} is {abs(self.secs):.1f} s {how}: {note}"


def offsets(events: Sequence[Stored]) -> list[Offset]:
    """Return the offsets of all hosts whose clocks certainly differ from the supervisor's."""
    bounds: dict[str, list[tuple[float, float]]] = {}
    places: dict[Token, TaskPlaced] = {}
    hosts: dict[str, set[AgentKey]] = {}
    where: dict[Token, str] = {}
    for event in (s.event for s in events):
        match event:
            case TaskPlaced(token=token):
                places[token] = event
            case TaskStarted(token=token, host=host) if token in places:
                placed = places[token]
                where[token] = host
                hosts.setdefault(host, set()).add(placed.agent_key)
                bounds.setdefault(host, []).append(
                    (event.started_at - event.at, event.started_at - placed.at)
                )
            case TaskEnded(token=token, exit=exit_) if (
                token in where and exit_.ended_at is not None and exit_.source == "keeper"
            ):
                bounds[where[token]].append(
                    (exit_.ended_at - event.at, exit_.ended_at - places[token].at)
                )
            case _:
                pass
    return [
        o
        for host, known in bounds.items()
        if (o := _offset(host, known, tuple(sorted(hosts[host])))) is not None
    ]


def _offset(
    host: str, known: list[tuple[float, float]], agents: tuple[AgentKey, ...]
) -> Offset | None:
    least, most = max(low for low, _ in known), min(high for _, high in known)
    sure = SLURM_SECS if any(key.driver == "sbatch" for key in agents) else LEAST_SECS
    if least > sure:
        return Offset(host, least, agents)
    return Offset(host, most, agents) if most < -sure else None
