"""From an id, or the beginning of one, to the jobs and agents that it belongs to, by the store's
index of names. Only reads.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ...db.events.events import job_stream
from ...db.store.contract import EventStore, IndexRow, Name
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, parse_agent_key, short_agent

#: So many characters at the least begin an id. What is shorter can only be the number of a job of
#: Slurm's.
LEAST = 4
#: Matches that are told of; one more is looked for, so that it can be said that there are more.
SHOWN = 20
#: How many characters at its end may be wrong for something near to be offered, and how much is
#: offered.
TYPOS, NEAR = 8, 5
#: Of a user's jobs in containers of their own, so many of the newest are asked for the names of
#: those.
BOXES = 200
WHATS = "computeJid, opId, reqId, the number of a job of Slurm's, the name of a container, an agent key, the four characters of an agentId"

_SLURM_ID = re.compile(r"[0-9]{1,20}([_+][0-9]{1,10})?")
_AGENT_ID = re.compile(r"[A-Za-z0-9]{4}")
_BOX = re.compile(r"srj-t-([A-Za-z0-9]{8})-[0-9a-f]{1,64}")
#: Of several names by which one stream is found, the first of these is told.
_ORDER = ("job", "agent", "agentId", "request", "op", "slurm", "container")


class Match(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """what: `job`, `op`, `request`, `slurm`, `container`, `agent` or `agentId`; `name` is the id in
    full. Of an agent `jid` is None.

    status, position: of the job as it stands; of an agent None and 0.
    """

    what: str
    name: str
    stream: str
    jid: str | None = None
    agent: str | None = None
    status: str | None = None
    position: int = 0


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in the log: an agent's id by its key, and the name of the container that a task
    has.
    """

    agent_id: Callable[[AgentKey], str] | None = None
    container: Callable[[AgentKey, Token], str | None] = lambda key, token: None


def find(store: EventStore, id_: str, uid: str | None, known: Known) -> tuple[list[Match], bool]:
    """Whatever of this user's is meant by it, newest first; and whether there is more. Raises
    Refusal("notFound"): it says what is near.
    """
    found = _distinct(store, _meant(store, id_, uid, known))
    if not found:
        raise Refusal("notFound", _nothing(store, id_, uid, known))
    return found[:SHOWN], len(found) > SHOWN


def _meant(store: EventStore, id_: str, uid: str | None, known: Known) -> list[Match]:
    """What is called exactly this is meant before what only begins like it."""
    rows = (
        [r for r in store.find_jobs(id_, SHOWN + 1) if uid is None or r.uid == uid]
        if len(id_) >= LEAST
        else []
    )
    whole = [r for r in rows if r.jid == id_]
    if whole:
        return [_job(whole[0])]
    agents = (
        [a for a in store.agents() if uid is None or parse_agent_key(a).uid == uid]
        if "." in id_
        else []
    )
    exact = [
        *(_agent("agent", a, a) for a in agents if a == id_),
        *_slurm(store, id_, uid),
        *_ids_of_agents(store, id_, uid, known),
    ]
    if exact or len(id_) < LEAST:
        return exact
    names = [n for n in store.names(id_, uid, SHOWN * 5) if n.what != "slurm"]
    begins = [
        *map(_job, rows),
        *map(_named, names),
        *(_agent("agent", a, a) for a in agents if a.startswith(id_)),
    ]
    return begins or list(_boxes(store, id_, uid, known))


def _job(row: IndexRow) -> Match:
    return Match(what="job", name=row.jid, stream=job_stream(row.jid), jid=row.jid)


def _agent(what: str, name: str, key: str) -> Match:
    return Match(what=what, name=name, stream=f"agent/{key}", agent=key)


def _named(name: Name) -> Match:
    if name.stream.startswith("agent/"):
        return _agent(name.what, name.name, name.stream.removeprefix("agent/"))
    return Match(
        what=name.what, name=name.name, stream=name.stream, jid=name.stream.removeprefix("job/")
    )


def _slurm(store: EventStore, id_: str, uid: str | None) -> Iterator[Match]:
    """Jobs of Slurm's with this number. Each cluster counts its own: there may be several. Their
    parts and arrays are among them.
    """
    if _SLURM_ID.fullmatch(id_) is None:
        return
    found = [n for n in store.names(id_, uid, 10) if n.name == id_]
    if found or not id_.isdigit():
        whole = re.split("[_+]", id_)[0]
        found = found or [n for n in store.names(whole, uid, 10) if n.name == whole]
    else:
        found = [n for between in "+_" for n in store.names(id_ + between, uid, SHOWN)]
    yield from (_named(n) for n in found if n.what == "slurm")


def _ids_of_agents(store: EventStore, id_: str, uid: str | None, known: Known) -> Iterator[Match]:
    """No more of an agentId than its first characters is ever shown to anybody."""
    if known.agent_id is None or _AGENT_ID.fullmatch(id_) is None:
        return
    for name in store.agents():
        key = parse_agent_key(name)
        if (uid is None or key.uid == uid) and short_agent(known.agent_id(key)) == id_:
            yield _agent("agentId", id_, name)


def _boxes(store: EventStore, id_: str, uid: str | None, known: Known) -> Iterator[Match]:
    """Containers of single tasks: their names are made of what the log has, and stand nowhere in
    it.
    """
    box = _BOX.fullmatch(id_)
    if box is None or uid not in (None, box[1]):
        return
    for row in store.jobs(uid=box[1], limit=BOXES):
        if row.driver != "docker":
            continue
        for event in (s.event for s in store.read(job_stream(row.jid))):
            token, key = getattr(event, "token", None), getattr(event, "agent_key", None)
            name = known.container(key, token) if key is not None and token is not None else None
            if name is not None and name.startswith(id_):
                yield Match(what="container", name=name, stream=job_stream(row.jid), jid=row.jid)
                break


def _distinct(store: EventStore, matches: Iterable[Match]) -> list[Match]:
    """Each stream once, with how its job stands; newest change first."""
    best: dict[str, Match] = {}
    for match in matches:
        there = best.get(match.stream)
        if there is None or _ORDER.index(match.what) < _ORDER.index(there.what):
            best[match.stream] = match
    return sorted((_standing(store, m) for m in best.values()), key=lambda m: (-m.position, m.name))


def _standing(store: EventStore, match: Match) -> Match:
    row = row_of(store, match.jid)
    return (
        match
        if row is None
        else msgspec.structs.replace(match, status=row.status, position=row.position)
    )


def row_of(store: EventStore, jid: str | None) -> IndexRow | None:
    return None if jid is None else next((r for r in store.find_jobs(jid, 1) if r.jid == jid), None)


def _nothing(store: EventStore, id_: str, uid: str | None, known: Known) -> str:
    """That there is none, what is near, and what can be looked for."""
    whose = (
        "" if uid is None else f" among what belongs to {uid} (--all-users looks among everybody's)"
    )
    near: list[Match] = []
    for cut in range(1, min(TYPOS, len(id_) - LEAST) + 1):
        prefix = id_[:-cut]
        # behind the hyphen of a computeJid there is nothing of it left that anything could be near
        # to
        near = [] if prefix.endswith("-") else _distinct(store, _near(store, prefix, uid))
        if near or prefix.endswith("-"):
            break
    told = ", ".join(
        f"{m.what} {m.name}" + (f" of {m.jid or m.agent}" if m.name not in (m.jid, m.agent) else "")
        for m in near[:NEAR]
    )
    return f"nothing is called {id_}, or begins like it{whose}; " + (
        f"near it: {told}" if told else f"it can be: {WHATS}"
    )


def no_job(store: EventStore, jid: str) -> Refusal:
    """That there is no such job of its user, and which are near: for those who typed it."""
    uid, simulation_id, *_ = jid.split("-")
    for length in range(len(simulation_id), 1, -1):
        rows = store.find_jobs(f"{uid}-{simulation_id[:length]}", NEAR)
        if rows:
            return Refusal(
                "notFound", f"there is no job {jid}; near it: {', '.join(r.jid for r in rows)}"
            )
    return Refusal("notFound", f"there is no job {jid}")


def _near(store: EventStore, prefix: str, uid: str | None) -> list[Match]:
    rows = [r for r in store.find_jobs(prefix, SHOWN) if uid is None or r.uid == uid]
    agents = (
        [
            a
            for a in store.agents()
            if a.startswith(prefix) and (uid is None or parse_agent_key(a).uid == uid)
        ]
        if "." in prefix
        else []
    )
    return [
        *map(_job, rows),
        *map(_named, store.names(prefix, uid, NEAR)),
        *(_agent("agent", a, a) for a in agents),
    ]


def told(matches: list[Match]) -> list[dict[str, Any]]:
    return [{k: v for k, v in msgspec.to_builtins(m).items() if k != "stream"} for m in matches]
