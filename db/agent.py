"""The fold of an agent's stream: what the log knows of one agent key."""

from typing import Any, assert_never

import msgspec

from ..protocol.ids import AgentKey
from .events import AgentEvent, AgentGone, AgentStarted, AgentStartFailed, AgentStartRequested

#: Tokens that may still be in use: a start whose outcome was never heard of leaves an agent behind that holds an older one.
TOKENS_KEPT = 4


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`version` counts events. handle: what finds it again; None when nothing runs as far as the log knows."""

    key: AgentKey
    version: int = 0
    attempt: int = 0
    token_hashes: tuple[str, ...] = ()
    handle: dict[str, Any] | None = None
    #: a start was asked for and nothing was heard of it
    starting: bool = False
    last_failure: str | None = None


def evolve_agent(agent: AgentRecord, event: AgentEvent) -> AgentRecord:
    """The record after this event."""
    agent = msgspec.structs.replace(agent, version=agent.version + 1)
    match event:
        case AgentStartRequested():
            hashes = (*agent.token_hashes, event.token_hash)[-TOKENS_KEPT:]
            return msgspec.structs.replace(agent, attempt=event.attempt, token_hashes=hashes, starting=True)
        case AgentStarted():
            return msgspec.structs.replace(agent, handle=event.handle, starting=False, last_failure=None)
        case AgentStartFailed():
            return msgspec.structs.replace(agent, starting=False, last_failure=event.reason)
        case AgentGone():
            return msgspec.structs.replace(agent, handle=None, starting=False, token_hashes=(), last_failure=event.reason)
        case _:
            assert_never(event)
