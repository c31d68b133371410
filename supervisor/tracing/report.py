"""What `trace` answers: the matches, and of the nearest of them the whole timeline, its phases, its
gaps and what clocks differ by.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...db.events.events import AgentGone, TaskEnded, TaskPlaced, agent_stream, job_stream
from ...db.store.contract import EventStore, Stored
from ...protocol.ids import AgentKey, parse_agent_key, short_agent, short_op, split_jid
from . import clock_offsets, phases, timeline
from .id_lookup import Known, Match, find, row_of, told
from .log_search import About, AboutAgent, Line

#: Of so many matches each has its timeline; of more, only the newest has, and the others are named.
WHOLE = 3
_PULLED = re.compile(r"pulled \S+ in [0-9.]+ s")
#: So many events before a placing are looked through for the end of what had that place.
_BEFORE, _MOMENT_SECS = 50, 1.0


def trace(
    store: EventStore, id_: str, uid: str | None, known: Known | None = None
) -> dict[str, Any]:
    """The timeline of the job (or agent) that this id, or beginning of one, belongs to. Raises
    Refusal("notFound").

    `others`: the same of further matches, where they are few.
    """
    matches, more = find(store, id_, uid, known or Known())
    answer = {"id": id_, "matches": told(matches), "moreMatches": more, **_of(store, matches[0])}
    answer["others"] = [_of(store, m) for m in matches[1:]] if len(matches) <= WHOLE else []
    return answer


def about(answer: dict[str, Any], known: Known | None = None) -> About | AboutAgent | None:
    """By what the job or agent of a trace is found in the logs; None where there is nothing about
    it.
    """
    events = [item["event"] for item in answer["items"]]
    if not events:
        return None
    if answer["job"] is None:
        return _about_agent(parse_agent_key(answer["agent"]), events, known or Known())
    return About(
        answer["job"]["jid"],
        answer["job"]["simulationType"],
        _ids(events, "op_id"),
        _ids(events, "req_id"),
        min(item["at"] for item in answer["items"]),
        math.inf if answer["job"]["busy"] else max(item["at"] for item in answer["items"]),
        *(_hosts(events, driver) for driver in ("docker", "sbatch")),
    )


def _about_agent(key: AgentKey, events: Sequence[Any], known: Known) -> AboutAgent:
    """Each life of an agent has the same id: the logs are asked for the time of which there are
    events.
    """
    short = short_agent(known.agent_id(key)) if known.agent_id is not None else ""
    # its last words are written after it was seen to be gone, by a second at most
    return AboutAgent(
        key,
        short,
        events[0].at,
        events[-1].at + 1 if isinstance(events[-1], AgentGone) else math.inf,
    )


def _hosts(events: Sequence[object], driver: str) -> frozenset[str]:
    """Where tasks of it were, with this driver."""
    return frozenset(
        e.agent_key.host
        for e in events
        if isinstance(e, TaskPlaced) and e.agent_key.driver == driver
    )


def lines_told(lines: list[Line], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of logs as items, with who wrote them, and the op or request that they name.

    orderAt: when it was by the supervisor's clock, as far as that is known.
    """
    job = about(answer)
    ids: list[tuple[str, dict[str, str]]] = []
    if isinstance(job, About):
        ids += ((short_op(op), {"op": op}) for op in sorted(job.ops))
        ids += ((request, {"request": request}) for request in sorted(job.requests))
    off = {f"agent/{key}": o["secs"] for o in answer["clocks"] for key in o["agents"]}
    return [
        {
            **line._asdict(),
            "component": _component(line.source),
            "orderAt": line.at - off.get(line.source.rpartition("/")[0], 0.0),
            "cause": next((cause for id_, cause in ids if id_ in line.text), None),
        }
        for line in lines
    ]


def pulled(lines: list[Line], waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The waits, with the images that were pulled in them, as far as the logs say."""
    pulls = [(line.at, found) for line in lines if (found := _PULLED.search(line.text)) is not None]
    return [
        {
            **w,
            "text": w["text"]
            + "".join(f"; {p[0]}" for at, p in pulls if w["since"] < at + 1 and at <= w["until"]),
        }
        if w["text"].partition(" s ")[2].startswith("until ")
        else w
        for w in waits
    ]


def _component(source: str) -> str:
    if source.startswith("agent/"):
        return "agent"
    return "front" if source.endswith("/server.log") else "supervisor"


def _ids(events: list[Any], name: str) -> frozenset[str]:
    return frozenset(i for e in events if (i := getattr(e, name, None)) is not None)


def _of(store: EventStore, match: Match) -> dict[str, Any]:
    row = row_of(store, match.jid)
    if match.agent is not None:
        events = store.read(agent_stream(parse_agent_key(match.agent)))[-timeline.NEWEST :]
    else:
        events = timeline.with_others(store, store.read(job_stream(match.jid or "")))
    return {
        "job": msgspec.to_builtins(row) if row is not None else None,
        "agent": match.agent,
        "items": timeline.items(events),
        "waits": phases.waits(events, lambda position: _freed(store, position, match.jid)),
        "phases": [p._asdict() for p in phases.phases(events)],
        "clocks": [_told(offset) for offset in clock_offsets.offsets(events)],
    }


def _told(offset: clock_offsets.Offset) -> dict[str, Any]:
    return {
        "host": offset.host,
        "secs": round(offset.secs, 3),
        "agents": [str(k) for k in offset.agents],
        "text": offset.sentence(),
    }


def _freed(store: EventStore, position: int, jid: str | None) -> str | None:
    """The job of the same user whose end, in the moment before, made room for what was placed at
    this position.
    """
    if jid is None:
        return None
    uid = split_jid(jid)[0]
    before: list[Stored] = [
        s for s in store.read_all(max(0, position - _BEFORE), _BEFORE) if s.position <= position
    ]
    for s in reversed(before):
        if isinstance(s.event, TaskEnded) and before[-1].event.at - s.event.at < _MOMENT_SECS:
            other = s.event.token.jid
            if other != jid and split_jid(other)[0] == uid:
                return other
    return None
