"""Agents that are in a supervisor's log although no driver started them. A test with their tokens
can act as these agents.
"""

import time

from supervisor_process import SupervisorProcess, until

from jobscribe.db.events.events import AgentStarted, AgentStartRequested, agent_stream
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, Write
from jobscribe.protocol.ids import AgentKey, derived_id
from jobscribe.protocol.wire.messages import Alive
from jobscribe.supervisor.core.state.transaction import token_hash


def tell_of_agents(site: SupervisorProcess, keys: list[AgentKey]) -> None:
    """Record in the log of a stopped site that the supervisor started all these agents."""
    said: list[object] = []
    store = SqliteStore(site.root / "db" / "events.sqlite", lambda call: call())
    try:
        for key in keys:
            events = (
                AgentStartRequested(
                    at=time.time(), agent_key=key, token_hash=token_hash(token_of(key)), attempt=1
                ),
                AgentStarted(
                    at=time.time(),
                    agent_key=key,
                    handle={"pid": 1, "startTicks": 1, "bootId": "of another machine"},
                ),
            )
            store.append(Batch(writes=(Write(agent_stream(key), 0, events),)), said.append)
        until(lambda: len(said) == len(keys), "the log has them")
    finally:
        store.close()
    assert all(isinstance(s, Appended) for s in said)


def token_of(key: AgentKey) -> str:
    return derived_id(str(key).encode(), key=b"storm")


def alive_of(site: SupervisorProcess, key: AgentKey) -> Alive:
    """Return the first message of an agent's connection. Agent ids are derived from a secret of the
    root.
    """
    secret = (site.root / "secret" / "agents").read_text().strip()
    return Alive(
        agent_id=derived_id(str(key).encode(), key=secret.encode()),
        agent_key=key,
        version="1",
        host="node1",
        boot_id="boot1",
        pid=10,
        keeper_pid=9,
    )
