"""The fold of an agent's stream: the state of one agent key as the log knows it."""

from typing import assert_never

import msgspec

from .events import (
    AgentEvent,
    AgentFolded,
    AgentGone,
    AgentSignInNeeded,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
)
from .state import AgentRecord

#: Token hashes kept for each agent. Older tokens may still be in use: a start with unknown outcome
#: can leave an agent behind, and the next start can find an agent that was reported gone by
#: mistake.
TOKENS_KEPT = 16


def evolve_agent(agent: AgentRecord, event: AgentEvent) -> AgentRecord:
    """Return the agent record after this event."""
    agent = msgspec.structs.replace(agent, version=agent.version + 1)
    match event:
        case AgentStartRequested():
            hashes = (*agent.token_hashes, event.token_hash)[-TOKENS_KEPT:]
            return msgspec.structs.replace(
                agent, attempt=event.attempt, token_hashes=hashes, starting=True
            )
        case AgentStarted():
            return msgspec.structs.replace(
                agent, handle=event.handle, starting=False, last_failure=None
            )
        case AgentStartFailed():
            return msgspec.structs.replace(agent, starting=False, last_failure=event.reason)
        case AgentSignInNeeded():
            # no agent got the token, so it must not push out a token that is in use
            hashes = (
                agent.token_hashes[:-1]
                if agent.starting and agent.attempt == event.attempt
                else agent.token_hashes
            )
            return msgspec.structs.replace(agent, starting=False, token_hashes=hashes)
        case AgentGone():
            hashes = () if event.ended else agent.token_hashes
            return msgspec.structs.replace(
                agent, handle=None, starting=False, token_hashes=hashes, last_failure=event.reason
            )
        case AgentFolded():
            return event.agent
        case _:
            assert_never(event)
