"""Acknowledgements of ended executions travel with other messages, and never long after them."""

import asyncio
from typing import Any

from in_memory_supervisor import Agent, InMemorySupervisor, until

from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import RunAck, RunStatus
from jobscribe.supervisor.connections import hub

TOKENS = tuple(Token(f"user0001-sim{n:05d}-command", 1, 1, "main", 0) for n in range(3))


def with_frames() -> tuple[Agent, list[list[Any]]]:
    """Return an agent, and the messages of each frame that it gets from now on."""
    agent = InMemorySupervisor().agent()
    frames: list[list[Any]] = []

    async def write_message(frame: bytes, binary: bool) -> None:
        frames.append(agent.decoder.messages(frame))

    agent.socket.write_message = write_message  # type: ignore[method-assign]
    return agent, frames


async def test_acknowledgements_precede_the_next_message_in_its_frame() -> None:
    agent, frames = with_frames()
    await asyncio.sleep(0)
    for token in TOKENS:
        agent.connection.send(RunAck(tokens=(token,)))
    await asyncio.sleep(0)
    assert frames == [], "they wait"
    message = RunStatus(op_id="o" * 32)
    agent.connection.send(message)
    await until(lambda: frames, "a frame")
    assert frames == [[RunAck(tokens=TOKENS), message]]
    await asyncio.sleep(2 * hub.ACK_HELD_SECS)
    assert len(frames) == 1


async def test_acknowledgements_without_another_message_are_sent_soon_each_once() -> None:
    agent, frames = with_frames()
    agent.connection.send(RunAck(tokens=TOKENS[:1]))
    agent.connection.send(RunAck(tokens=TOKENS))
    await until(lambda: frames, "a frame")
    assert frames == [[RunAck(tokens=TOKENS)]]


async def test_a_lost_connection_sends_no_acknowledgement() -> None:
    agent, frames = with_frames()
    agent.connection.send(RunAck(tokens=TOKENS))
    agent.gone()
    await asyncio.sleep(2 * hub.ACK_HELD_SECS)
    assert frames == [] and agent.socket.closed is None


async def test_a_connection_that_is_closed_by_the_supervisor_sends_them_first() -> None:
    agent, frames = with_frames()
    agent.connection.send(RunAck(tokens=TOKENS))
    await agent.in_memory.hub.close()
    assert frames == [[RunAck(tokens=TOKENS)]]
