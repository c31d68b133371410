"""The answer of `trace`: the matches, and the timeline, phases, gaps and clock offsets of the best
match.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...db.events.events import AgentGone, TaskEnded, TaskPlaced, agent_stream, job_stream
from ...db.store.contract import EventStore, Stored
from ...protocol.ids import AgentKey, parse_agent_key, short_agent, short_op, split_jid
from . import clock_offsets, phases, timeline
from .id_lookup import Known, Match, find, match_bodies, row_of
from .log_search import AgentQuery, JobQuery, Line

#: Up to this number of matches, each gets a timeline. With more matches, only the newest gets one.
WHOLE = 3
_CAUSE = re.compile(r"([A-Z][A-Za-z]+)(?:@([0-9]+))?")
_CAUSE_AT_END = re.compile(rf" cause={_CAUSE.pattern}\Z")
_PULLED = re.compile(r"pulled \S+ in [0-9.]+ s")
#: Number of events, and seconds, before a placement that may contain the end of the previous task.
_BEFORE, _MOMENT_SECS = 50, 1.0


def trace(
    store: EventStore, id_: str, uid: str | None, known: Known | None = None
) -> dict[str, Any]:
    """Return the timeline of the job or agent with this id, or prefix of an id.

    `others` has the timelines of further matches, if they are few. Raises Refusal("notFound").
    """
    matches, more = find(store, id_, uid, known or Known())
    answer = {
        "id": id_,
        "matches": match_bodies(matches),
        "moreMatches": more,
        **_timeline(store, matches[0]),
    }
    answer["others"] = [_timeline(store, m) for m in matches[1:]] if len(matches) <= WHOLE else []
    return answer


def log_query(answer: dict[str, Any], known: Known | None = None) -> JobQuery | AgentQuery | None:
    """Return the query for log lines about the job or agent of a trace; None without events."""
    events = [item["event"] for item in answer["items"]]
    if not events:
        return None
    if answer["job"] is None:
        return _agent_query(parse_agent_key(answer["agent"]), events, known or Known())
    return JobQuery(
        answer["job"]["jid"],
        answer["job"]["simulationType"],
        _ids(events, "op_id"),
        _ids(events, "req_id"),
        min(item["at"] for item in answer["items"]),
        math.inf if answer["job"]["busy"] else max(item["at"] for item in answer["items"]),
        *(_hosts(events, driver) for driver in ("docker", "sbatch")),
    )


def _agent_query(key: AgentKey, events: Sequence[Any], known: Known) -> AgentQuery:
    """Return the query for an agent. Its id is the same after a restart, so the time is limited."""
    short = short_agent(known.agent_id(key)) if known.agent_id is not None else ""
    # its last output is logged up to a second after AgentGone
    return AgentQuery(
        key,
        short,
        events[0].at,
        events[-1].at + 1 if isinstance(events[-1], AgentGone) else math.inf,
    )


def _hosts(events: Sequence[object], driver: str) -> frozenset[str]:
    """Return the hosts of the job's tasks with this driver."""
    return frozenset(
        e.agent_key.host
        for e in events
        if isinstance(e, TaskPlaced) and e.agent_key.driver == driver
    )


def line_items(lines: list[Line], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return log lines as items, with their component and cause.

    orderAt: time by the supervisor's clock (unix seconds), corrected by the known offset. cause:
    the `op` or `request` that the line names. For a line about an effect also `name`: the type of
    the event or input that caused it, and for an event `version` and, if the timeline has the
    event, `position`.
    """
    job = log_query(answer)
    ids: list[tuple[str, dict[str, str]]] = []
    if isinstance(job, JobQuery):
        ids += ((short_op(op), {"op": op}) for op in sorted(job.ops))
        ids += ((request, {"request": request}) for request in sorted(job.requests))
    offsets = {f"agent/{key}": o["secs"] for o in answer["clocks"] for key in o["agents"]}
    return [
        {
            **line._asdict(),
            "component": _component(line.source),
            "orderAt": line.at - offsets.get(line.source.rpartition("/")[0], 0.0),
            "cause": {
                **next((cause for id_, cause in ids if id_ in line.text), {}),
                **_named_cause(line, answer["items"]),
            }
            or None,
        }
        for line in lines
    ]


def _named_cause(line: Line, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the cause that a line of the supervisor names at its end, as text, or in its field, as
    JSON.
    """
    if _component(line.source) != "supervisor":
        return {}
    try:
        found = _CAUSE.fullmatch(str(json.loads(line.text).get("cause")))
    except ValueError:
        found = _CAUSE_AT_END.search(line.text)
    if found is None:
        return {}
    name, version = found.groups()
    if version is None:
        return {"name": name}
    caused_by: dict[str, Any] = {"name": name, "version": int(version)}
    # several agents may have an event of this type and version
    events = [i for i in items if (type(i["event"]).__name__, i["version"]) == (name, int(version))]
    if len(events) == 1:
        caused_by["position"] = events[0]["position"]
    return caused_by


def with_image_pulls(lines: list[Line], waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the texts of waits the image pulls that the logs show in their time."""
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


def _timeline(store: EventStore, match: Match) -> dict[str, Any]:
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
        "clocks": [_offset_body(offset) for offset in clock_offsets.offsets(events)],
    }


def _offset_body(offset: clock_offsets.Offset) -> dict[str, Any]:
    return {
        "host": offset.host,
        "secs": round(offset.secs, 3),
        "agents": [str(k) for k in offset.agents],
        "text": offset.sentence(),
    }


def _freed(store: EventStore, position: int, jid: str | None) -> str | None:
    """Return the job of the same user that ended just before this position and freed the slot, if
    any.
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
