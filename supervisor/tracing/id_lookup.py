"""Find the jobs and agents of an id, or prefix of an id, by the name index. Only reads."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ...db.events.events import job_stream
from ...db.store.contract import EventStore, IndexRow, Name
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, parse_agent_key, short_agent

#: Shortest prefix of an id. A shorter text can only be a Slurm job number.
LEAST = 4
#: Largest number of matches in an answer.
SHOWN = 20
#: Number of wrong characters at the end for which similar ids are offered, and how many are offered.
TYPOS, NEAR = 8, 5
#: Number of a user's newest jobs that are searched for a container name.
CONTAINER_JOBS = 200
ID_KINDS = "computeJid, opId, reqId, Slurm job number, container name, agent key, or the first four characters of an agentId"

_SLURM_ID = re.compile(r"[0-9]{1,20}([_+][0-9]{1,10})?")
_AGENT_ID = re.compile(r"[A-Za-z0-9]{4}")
_CONTAINER = re.compile(r"srj-t-([A-Za-z0-9]{8})-[0-9a-f]{1,64}")
#: If several names match one stream, the first kind in this order is reported.
_ORDER = ("job", "agent", "agentId", "request", "op", "slurm", "container")


class Match(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """what: `job`, `op`, `request`, `slurm`, `container`, `agent` or `agentId`. name: the complete
    id. jid: None for an agent. status, position: of the job's current run; None and 0 for an agent.
    """

    what: str
    name: str
    stream: str
    jid: str | None = None
    agent: str | None = None
    status: str | None = None
    position: int = 0


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Names that are not in the event log: agent ids by key, and container names of tasks."""

    agent_id: Callable[[AgentKey], str] | None = None
    container: Callable[[AgentKey, Token], str | None] = lambda key, token: None


def find(store: EventStore, id_: str, uid: str | None, known: Known) -> tuple[list[Match], bool]:
    """Return the matches of this user, newest first, and whether there are more.

    uid: None for all users. Raises Refusal("notFound") with similar ids.
    """
    found = _distinct(store, _matches(store, id_, uid, known))
    if not found:
        raise Refusal("notFound", _not_found(store, id_, uid, known))
    return found[:SHOWN], len(found) > SHOWN


def _matches(store: EventStore, id_: str, uid: str | None, known: Known) -> list[Match]:
    """Return exact matches, or else matches by prefix."""
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
    names = [n for n in store.names(id_, uid, SHOWN * 5) if n.what not in ("slurm", "tag")]
    begins = [
        *map(_job, rows),
        *map(_named, names),
        *(_agent("agent", a, a) for a in agents if a.startswith(id_)),
    ]
    return begins or list(_containers(store, id_, uid, known))


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
    """Yield the Slurm jobs with this number, with their components and arrays.

    Several clusters may use the same number.
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
    """Yield the agents with an agentId that begins with these four characters; logs never show
    more.
    """
    if known.agent_id is None or _AGENT_ID.fullmatch(id_) is None:
        return
    for name in store.agents():
        key = parse_agent_key(name)
        if (uid is None or key.uid == uid) and short_agent(known.agent_id(key)) == id_:
            yield _agent("agentId", id_, name)


def _containers(store: EventStore, id_: str, uid: str | None, known: Known) -> Iterator[Match]:
    """Yield the job of a task container. Its name is computed, because the log does not contain it."""
    container = _CONTAINER.fullmatch(id_)
    if container is None or uid not in (None, container[1]):
        return
    for row in store.jobs(uid=container[1], limit=CONTAINER_JOBS):
        if row.driver != "docker":
            continue
        for event in (s.event for s in store.read(job_stream(row.jid))):
            token, key = getattr(event, "token", None), getattr(event, "agent_key", None)
            name = known.container(key, token) if key is not None and token is not None else None
            if name is not None and name.startswith(id_):
                yield Match(what="container", name=name, stream=job_stream(row.jid), jid=row.jid)
                break


def _distinct(store: EventStore, matches: Iterable[Match]) -> list[Match]:
    """Return one match for each stream, with the job's status; newest change first."""
    best: dict[str, Match] = {}
    for match in matches:
        other = best.get(match.stream)
        if other is None or _ORDER.index(match.what) < _ORDER.index(other.what):
            best[match.stream] = match
    return sorted(
        (_with_status(store, m) for m in best.values()), key=lambda m: (-m.position, m.name)
    )


def _with_status(store: EventStore, match: Match) -> Match:
    row = row_of(store, match.jid)
    return (
        match
        if row is None
        else msgspec.structs.replace(match, status=row.status, position=row.position)
    )


def row_of(store: EventStore, jid: str | None) -> IndexRow | None:
    return None if jid is None else next((r for r in store.find_jobs(jid, 1) if r.jid == jid), None)


def _not_found(store: EventStore, id_: str, uid: str | None, known: Known) -> str:
    """Return the sentence for no match, with similar ids or the kinds of ids."""
    whose = "" if uid is None else f" for user {uid} (--all-users searches all users)"
    near: list[Match] = []
    for cut in range(1, min(TYPOS, len(id_) - LEAST) + 1):
        prefix = id_[:-cut]
        # a whole part of a computeJid would be missing, so nothing is similar
        near = [] if prefix.endswith("-") else _distinct(store, _near(store, prefix, uid))
        if near or prefix.endswith("-"):
            break
    names = ", ".join(
        f"{m.what} {m.name}" + (f" of {m.jid or m.agent}" if m.name not in (m.jid, m.agent) else "")
        for m in near[:NEAR]
    )
    return f"no id is or begins with {id_}{whose}; " + (
        f"near it: {names}" if names else f"it can be: {ID_KINDS}"
    )


def no_job(store: EventStore, jid: str) -> Refusal:
    """Return the refusal for an unknown job, with similar jobs of its user."""
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


def match_bodies(matches: list[Match]) -> list[dict[str, Any]]:
    """Return matches in the form of the API."""
    return [{k: v for k, v in msgspec.to_builtins(m).items() if k != "stream"} for m in matches]
