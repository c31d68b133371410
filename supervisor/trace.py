"""One id, one timeline: everything the event log knows about a job, an op, a request or an agent, in order; and what the logs say."""

import math
from typing import Any

import msgspec

from ..db.events import agent_stream, job_stream
from ..db.store import EventStore, IndexRow, Stored
from ..db.story import story
from ..protocol.errors import Refusal
from ..protocol.ids import parse_agent_key
from .log_lines import About

#: How far back an id that is not the beginning of a computeJid is looked for, events.
SEARCHED = 20_000
PAGE = 1000


def trace(store: EventStore, id_: str, uid: str | None) -> dict[str, Any]:
    """The timeline of the job (or agent) that this id, or prefix of one, belongs to. Raises Refusal("notFound")."""
    if "@" in id_:
        events = store.read(agent_stream(parse_agent_key(id_)))
        if not events:
            raise Refusal("notFound", f"nothing is known of the agent {id_}")
        return _timeline(id_, [], events)
    rows = [r for r in store.find_jobs(id_) if uid is None or r.uid == uid]
    if not rows:
        jid = _search(store, id_)
        rows = [r for r in store.find_jobs(jid) if uid is None or r.uid == uid] if jid else []
    if not rows:
        raise Refusal("notFound", f"no job, op or request begins with {id_} (among the last {SEARCHED} events)")
    if len(rows) > 1:
        raise Refusal("badRequest", f"{id_} is the beginning of several jobs: " + ", ".join(r.jid for r in rows[:5]))
    return _timeline(id_, rows, _with_agents(store, store.read(job_stream(rows[0].jid))))


def about(answer: dict[str, Any]) -> About | None:
    """By what the job of a trace is found in the logs; None where the trace is of an agent."""
    if answer["job"] is None:
        return None
    events = [item["event"] for item in answer["items"]]
    return About(
        answer["job"]["jid"], answer["job"]["simulationType"], _ids(events, "op_id"), _ids(events, "req_id"),
        min(item["at"] for item in answer["items"]),
        math.inf if answer["job"]["busy"] else max(item["at"] for item in answer["items"]),
    )


def _ids(events: list[Any], name: str) -> frozenset[str]:
    return frozenset(i for e in events if (i := getattr(e, name, None)) is not None)


def _search(store: EventStore, id_: str) -> str | None:
    """The job whose events mention an opId or reqId that begins like this, newest first."""
    after = max(0, store.head() - SEARCHED)
    found: str | None = None
    while events := store.read_all(after, PAGE):
        after = events[-1].position
        for stored in events:
            op, req = getattr(stored.event, "op_id", None), getattr(stored.event, "req_id", None)
            if stored.stream.startswith("job/") and any(i is not None and i.startswith(id_) for i in (op, req)):
                found = stored.stream.removeprefix("job/")
    return found


def _with_agents(store: EventStore, events: list[Stored]) -> list[Stored]:
    """The job's events with those of its agents that fall in between."""
    keys = {e.event.agent_key for e in events if hasattr(e.event, "agent_key")}
    first = events[0].position if events else 0
    last = max((e.position for e in events), default=0)
    agents = [s for key in keys for s in store.read(agent_stream(key)) if first <= s.position <= last]
    return sorted([*events, *agents], key=lambda s: s.position)


def _timeline(id_: str, rows: list[IndexRow], events: list[Stored]) -> dict[str, Any]:
    lines = story(events)
    return {
        "id": id_, "job": msgspec.to_builtins(rows[0]) if rows else None,
        "items": [
            {"at": s.event.at, "source": s.stream, "position": s.position, "text": line, "event": s.event}
            for s, line in zip(events, lines, strict=True)
        ],
    }
